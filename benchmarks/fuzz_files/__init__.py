"""Files for `make fuzz`: one valid seed of every kind that is read, and the ways in which they are damaged."""
