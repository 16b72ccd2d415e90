"""Samples that depend on nothing but the rows that were seen: those whose numbers have the smallest hashes."""

from __future__ import annotations

import numpy as np

from likewise.contracts.data import Array


def hashed(numbers: Array) -> Array:
    """splitmix64: different numbers have different hashes, and neighbours have unrelated ones."""
    mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def smallest(hashes: Array, count: int) -> Array:
    """Positions of the `count` smallest hashes, smallest first; all positions where there are no more."""
    chosen = np.arange(len(hashes)) if len(hashes) <= count else _candidates(hashes, count)
    return np.asarray(chosen[np.argsort(hashes[chosen])][:count])


def _candidates(hashes: Array, count: int) -> Array:
    """Positions among which the smallest are: hashes are spread evenly, so a threshold leaves few too many."""
    share = min(1.0, 1.2 * count / len(hashes) + 8 / len(hashes))
    chosen = np.flatnonzero(hashes <= np.uint64(min(share * 2.0**64, 2.0**64 - 2048)))
    return chosen if len(chosen) >= count else np.argpartition(hashes, count)[:count]
