"""Answers that some model gave before, instead of a model."""
