"""What is asked beside the data: other batches, lengths and settings, rows made to find trouble, generated rows."""
