"""Who says what an answer is worth. A judger looks at one answer and the gold answer, never at two."""
