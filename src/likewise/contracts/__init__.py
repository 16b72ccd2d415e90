"""The types and roles every layer speaks in. Read these files and you know the system.

`data` is what flows in, `models` is what answers, `measuring` is what was observed,
`judging` is what it means, `reporting` is what is kept.

Nothing here imports another part of likewise or a heavy library: arrays are named in
annotations only, so `import likewise` stays as light as the standard library.
"""
