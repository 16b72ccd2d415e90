"""Planted faults whose place and cause are known: the exam of `benchmarks/locate.py`."""
