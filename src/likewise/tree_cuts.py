"""The thresholds that a suite may aim at: those of the first of both models whose trees can be read."""

from __future__ import annotations

from likewise.contracts.suites import Seen
from likewise.structure.fields import Field
from likewise.structure.trees.cuts import Cut, cuts
from likewise.suiting import FLOAT, INTEGER, all_features, kind

MOST = 96
"""Thresholds that are aimed at, those next to the roots first."""


def cuts_seen(seen: Seen) -> tuple[Cut, ...]:
    """Thresholds on numbers of the data; the reference's, or the candidate's where the reference cannot be read."""
    if "cuts" not in seen.memory:
        seen.memory["cuts"] = _cuts(seen)
    found: tuple[Cut, ...] = seen.memory["cuts"]
    return found


def _cuts(seen: Seen) -> tuple[Cut, ...]:
    known = {(field.column, field.index) for field in all_features(seen) if kind(seen, field) in (FLOAT, INTEGER)}
    for side, runner in seen.runners.items():
        found = cuts(runner.native, seen.fed.get(side, {}), most=MOST, seed=seen.seed)
        if usable := tuple(cut for cut in found if (cut.column, cut.index) in known):
            return usable
    return ()


def field_at(cut: Cut) -> Field:
    """The feature that a threshold asks about."""
    name = cut.column if cut.index is None else f"{cut.column}[{cut.index}]"
    return Field(cut.column, cut.index, name, 0)
