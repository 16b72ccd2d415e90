"""Models that are opened and asked by another Python: another interpreter, other packages, a container, a machine.

`open` is what other rooms see of it, `place` starts such a Python, `make` installs packages for one, and `far_worker`
with `wire` is the program that runs there.
"""
