"""Pictures and tables. They read records from outside; the loop does not know them."""
