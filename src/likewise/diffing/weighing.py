"""When one measure is worse than it was.

A change counts when it is larger than the allowed part of the old value and larger than what is noise
for that measure. Both sides of the noise are chosen small: what is not known to be noise counts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from likewise.contracts.diffing import Change, Direction
from likewise.contracts.measuring import OutputFacts, Tolerance
from likewise.policies import AT_LEAST, AT_MOST

PART_OF_LIMIT = 0.01
"""A change below this part of the limit, or of the tolerance where there is no limit, is none."""

SHARE_OF_ROWS = 0.001
"""A change of labels or of order in fewer rows than this is none, where no limit says otherwise."""

FLOAT64_NOISE = 2.0**-50
"""Relative to the largest answer: four units in the last place of float64."""

ONLY_WITH_A_LIMIT = frozenset({"max_ulp_diff", "max_rel_diff", "cosine", "sqnr_db"})
"""They magnify answers near zero, or say on another scale what is said already: they count where they are limited."""

SIZES = frozenset(name for name in AT_MOST if name.endswith(("_abs_diff", "_drift")))
LARGEST = frozenset({"max_abs_diff", *(name for name in AT_MOST if name.endswith("_drift"))})
COUNTS = frozenset({"label_flips", "material_flips", "nonfinite_mismatch"})
BY_TOLERANCE = frozenset({"mismatch_rate", "material_flips"})
"""They count what is beyond the tolerance of the run: under another tolerance they are other measures."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """The direction of one measure, and by how many percent it got worse."""

    direction: Direction
    percent: float | None


@dataclass(frozen=True, slots=True)
class Scale:
    """What one output of both runs is measured with: rows of each, the tighter limits, the largest answer."""

    old_rows: int
    new_rows: int
    tolerance: Tolerance
    largest: float

    def noise(self, measure: str, bound: float | None) -> float:
        """The change of the measure's badness that is none."""
        floor = FLOAT64_NOISE * (self.largest if measure in SIZES else 1.0)
        if bound is not None:
            limited = badness(measure, bound, self.new_rows) * PART_OF_LIMIT
            return max(floor, limited)
        if measure in SIZES:
            relative = self.tolerance.relative * self.largest if measure in LARGEST else 0.0
            return max(floor, PART_OF_LIMIT * (self.tolerance.absolute + relative))
        return SHARE_OF_ROWS if measure in ("label_flips", "flip_rate", "rank_agreement") else floor


def weigh(measure: str, old: float, new: float, *, scale: Scale, bound: float | None, allow: float) -> Weighed:
    """Is the new value worse, by more than `allow` percent and by more than noise?"""
    before, after = badness(measure, old, scale.old_rows), badness(measure, new, scale.new_rows)
    if before == after or (math.isnan(before) and math.isnan(after)):
        return Weighed(Direction.SAME, 0.0)
    if math.isnan(before) or math.isnan(after) or math.isinf(before) or math.isinf(after):
        worse = math.isnan(after) or after > before
        return Weighed(Direction.WORSE if worse else Direction.BETTER, None)
    percent = 100 * (after - before) / before if before > 0 else None
    matters = max(before * allow / 100, scale.noise(measure, bound))
    if not after - before <= matters:
        return Weighed(Direction.WORSE, percent)
    return Weighed(Direction.BETTER if before - after > matters else Direction.SAME, percent)


def badness(measure: str, value: float, rows: int) -> float:
    """The value on a scale where zero is perfect and more is worse: counts by the row, agreement by what it lacks."""
    if measure == "sqnr_db":
        return 0.0 if value == math.inf else 10.0 ** (min(-value, 6000.0) / 20)
    if measure in AT_LEAST:
        return 1.0 - value
    return value / rows if measure in COUNTS and rows else value


def worst_of(changes: Sequence[Change]) -> Change:
    """The change of one measure that leaves it worst."""

    def order(change: Change) -> tuple[bool, float]:
        if change.new is None:
            return False, 0.0
        found = badness(change.name.rpartition(".")[2], float(change.new), rows=0)
        return (True, 0.0) if math.isnan(found) else (False, found)

    return max(changes, key=order)


def largest_answer(*outputs: OutputFacts) -> float:
    """The largest finite magnitude either side answered in either run; 1 where that is not known."""
    found = [
        abs(end) for output in outputs for ends in (output.details.get("extremes") or {}).values() for end in ends or ()
    ]
    finite = [value for value in found if isinstance(value, float | int) and math.isfinite(value)]
    return max(finite, default=1.0)
