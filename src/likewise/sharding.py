"""Rows into parts of about one size."""

from __future__ import annotations


def split(start: int, stop: int, count: int) -> list[tuple[int, int]]:
    """At most `count` ranges that together are `start` to `stop`; none is empty unless the whole is."""
    length = stop - start
    count = max(1, min(count, length))
    cuts = [start + length * index // count for index in range(count + 1)]
    return [(cuts[index], cuts[index + 1]) for index in range(count)]
