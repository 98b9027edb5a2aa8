"""What only lessons, demonstrations and measurements need."""
