"""What can be said about failing rows without an experiment: which they are, and what the difference looks like."""
