"""The types and roles every room speaks in. Read these files and you know the system.

`data` is what flows in, `models` is what answers, `comparison` is what was observed, `verdict` is what it means and
what changed since the last run, with how its figures are written, `report` is what is kept, also of how fast both are.

Nothing here imports another part of likewise or a heavy library: arrays are named in
annotations only, so `import likewise` stays as light as the standard library.
"""
