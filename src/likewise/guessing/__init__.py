"""What rows a model would take, told from the model: for checks without data and for property tests."""
