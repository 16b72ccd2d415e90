"""All knowledge of one kind of data a file: how its rows are read in batches, with ids."""
