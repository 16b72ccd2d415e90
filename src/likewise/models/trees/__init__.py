"""Tree ensembles of every framework in one form: read, walked, laid side by side, and written into a graph again."""
