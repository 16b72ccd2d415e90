"""Possible causes of a difference, one family a file, each with the experiment that tests it."""
