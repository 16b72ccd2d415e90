"""Rows and tensors on their way to a model.

`readers/` opens each kind of data, cuts batches and puts them together, `formats` reads its files, `columns` is the
form in which it travels, `selection` says which rows and columns are taken. `cells` changes single values and counts
what another type loses, `random_values` draws them where there are none, by the clues that models give; `files` says
exactly which data it was.
"""
