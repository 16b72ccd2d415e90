"""What models are made of, in one form for all frameworks: trees, constants, steps."""
