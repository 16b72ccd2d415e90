"""Sizes of batches and lengths that are worth trying: those that a graph names."""

from __future__ import annotations

from collections.abc import Sequence

from likewise.explain.case import Case
from likewise.models.onnx import edits

LARGEST, MOST = 512, 12
"""The largest size that is tried where the graph itself names it, and how many of those."""


def numbers_in(case: Case, *, lengths: bool = False) -> list[int]:
    """Sizes that are written into the candidate's graph: of shapes that it makes, and of constants that it adds.

    A length may be any number of a constant or of its shape; a batch size is a whole one, or that of a first axis.
    """
    proto = case.graph()
    found: set[int] = set()
    for array in () if proto is None else edits.constants(proto.graph).values():
        if array.dtype.kind in ("if" if lengths else "i") and 0 < array.size <= 8:
            found.update(int(v) for v in array.reshape(-1) if 1 < v <= LARGEST and float(v).is_integer())
        axes = array.shape if lengths else array.shape[:1] if array.ndim > 1 else ()
        found.update(size for size in axes if 1 < size <= LARGEST)
    return sorted(found)[:MOST]


def sizes_told(sizes: Sequence[int]) -> str:
    """Sizes in a sentence, the smallest first."""
    return ", ".join(str(size) for size in sorted(set(sizes)))
