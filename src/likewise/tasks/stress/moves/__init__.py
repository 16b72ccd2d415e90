"""Ways to change rows, one a file."""
