"""Rows and tensors on their way to a model.

`readers/` opens each kind of data, `columns` is the form in which it travels, `selection` says which rows and columns
are taken, `rows` cuts batches and puts them together. `casts` counts what another type loses, `cells` changes single
values, `random_values` draws them where there are none, `fingerprints` says exactly which data it was.
"""
