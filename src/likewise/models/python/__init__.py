"""Anything that can be called: a function, a factory, an object with predict."""
