"""How results look and where they come from. Nothing is judged here.

`formats/` has one format of a report a file, `words` what they share, `console` and `notebook` where they are shown,
`provenance` where a report comes from; `bench`, `noise`, `stress`, `quantize` and `diff` show the other results.
"""
