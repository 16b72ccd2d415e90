"""What was agreed and what was measured in both runs: limits and policy, then measures output by output.

A change of a measure counts when it is larger than the allowed part of the old value and larger than what is
noise for that measure. Both sides of the noise are chosen small: what is not known to be noise counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from likewise.contracts.comparison import OutputFacts, Tolerance
from likewise.contracts.report import Report
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import AT_LEAST, AT_MOST, Change, Check, Direction, change_text, figure, value_text

Key = tuple[str, str, int | None]
"""Output, measure, batch size."""

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

MEASURED_SUITES = ("setting", "shape")
"""Kinds of suites that are worth comparing by their figures; edge cases are made to magnify differences."""


def _bounds(checks: Sequence[Check]) -> dict[Key, float]:
    """The tightest bound that each measure was judged by."""
    found: dict[Key, float] = {}
    for check in checks:
        key = (check.output, check.measure, check.batch_size)
        found[key] = _tightest(check.measure, check.bound, found.get(key, check.bound))
    return found


def _tighter(old: Mapping[Key, float], new: Mapping[Key, float]) -> dict[Key, float]:
    """The tighter of both runs' bounds."""
    return {key: _tightest(key[1], *(found[key] for found in (old, new) if key in found)) for key in {**old, **new}}


def limits(old: Report, new: Report) -> Iterator[Change]:
    """Limits that were loosened, tightened, dropped or added. Those of an output that is gone go with it."""
    before, after = _bounds(old.verdict.checks), _bounds(new.verdict.checks)
    outputs = {output.name for output in new.comparison.outputs}
    sizes = {None, *(facts.size for facts in new.comparison.batch_sizes)}
    for key, bound in before.items():
        output, measure, size = key
        if output not in outputs or size not in sizes:
            continue
        # Batch sizes follow the limits on all rows: each is told once.
        if size is not None and (output, measure, None) in before:
            continue
        name = f"{output}.{measure}"
        if key not in after:
            message = f"the limit of {figure(bound)} on {name} is gone"
            yield Change("limit", name, Direction.WORSE, message, old=bound, output=output, batch_size=size)
        elif after[key] != bound:
            loosened = _tightest(measure, bound, after[key]) == bound
            word, direction = ("loosened", Direction.WORSE) if loosened else ("tightened", Direction.BETTER)
            message = f"the limit on {name} was {word} from {figure(bound)} to {figure(after[key])}"
            yield Change("limit", name, direction, message, old=bound, new=after[key], output=output, batch_size=size)
    for key, bound in after.items():
        output, measure, size = key
        if key not in before and size is None:
            name = f"{output}.{measure}"
            message = f"there is a new limit of {figure(bound)} on {name}"
            yield Change("limit", name, Direction.BETTER, message, new=bound, output=output)


def policy(old: Report, new: Report) -> Iterator[Change]:
    """What else was agreed: tolerance, NaN, confidence, batch sizes."""
    before, after = old.policy, new.policy
    if before.preset != after.preset:
        message = f"the preset is {after.preset}, it was {before.preset}"
        yield Change("policy", "preset", Direction.OTHER, message, old=before.preset, new=after.preset)
    if before.tolerance != after.tolerance:
        wider = _looser(before.tolerance, after.tolerance)
        word = "loosened" if wider else "tightened"
        message = f"the tolerance was {word} from {_shown(before.tolerance)} to {_shown(after.tolerance)}"
        told = (_shown(before.tolerance), _shown(after.tolerance))
        yield Change("policy", "tolerance", Direction.WORSE if wider else Direction.BETTER, message, *told)
    rates = (before.max_failure_rate, after.max_failure_rate)
    for name, was, now, wider in (
        ("nan_equal", before.nan_equal, after.nan_equal, after.nan_equal),
        ("confidence", before.confidence, after.confidence, after.confidence < before.confidence),
        ("max_failure_rate", *rates, rates[1] is None or (rates[0] is not None and rates[1] > rates[0])),
        ("fixed_batch", before.fixed_batch, after.fixed_batch, after.fixed_batch),
    ):
        if was != now:
            message = f"{name} went from {_word(was)} to {_word(now)}, which asks {'less' if wider else 'more'}"
            yield Change("policy", name, Direction.WORSE if wider else Direction.BETTER, message, was, now)


def _looser(old: Tolerance, new: Tolerance) -> bool:
    """Does the new tolerance let anything through that the old one did not?"""
    fewer_exact = old.exact_integers and not new.exact_integers
    return new.absolute > old.absolute or new.relative > old.relative or fewer_exact


def _tightest(measure: str, *found: float) -> float:
    return max(found) if measure in AT_LEAST else min(found)


def _shown(tolerance: Tolerance) -> str:
    relative = f" + {tolerance.relative:g}·|reference|" if tolerance.relative else ""
    return f"{tolerance.absolute:g}{relative}" + (", whole numbers equal" if tolerance.exact_integers else "")


def _word(value: object) -> str:
    return "none" if value is None else str(value).lower()


@dataclass(frozen=True, slots=True)
class _Weighed:
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
            limited = _badness(measure, bound, self.new_rows) * PART_OF_LIMIT
            return max(floor, limited)
        if measure in SIZES:
            relative = self.tolerance.relative * self.largest if measure in LARGEST else 0.0
            return max(floor, PART_OF_LIMIT * (self.tolerance.absolute + relative))
        return SHARE_OF_ROWS if measure in ("label_flips", "flip_rate", "rank_agreement") else floor


def weigh(measure: str, old: float, new: float, *, scale: Scale, bound: float | None, allow: float) -> _Weighed:
    """Is the new value worse, by more than `allow` percent and by more than noise?"""
    before, after = _badness(measure, old, scale.old_rows), _badness(measure, new, scale.new_rows)
    if before == after or (math.isnan(before) and math.isnan(after)):
        return _Weighed(Direction.SAME, 0.0)
    if math.isnan(before) or math.isnan(after) or math.isinf(before) or math.isinf(after):
        worse = math.isnan(after) or after > before
        return _Weighed(Direction.WORSE if worse else Direction.BETTER, None)
    percent = 100 * (after - before) / before if before > 0 else None
    matters = max(before * allow / 100, scale.noise(measure, bound))
    if not after - before <= matters:
        return _Weighed(Direction.WORSE, percent)
    return _Weighed(Direction.BETTER if before - after > matters else Direction.SAME, percent)


def _badness(measure: str, value: float, rows: int) -> float:
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
        found = _badness(change.name.rpartition(".")[2], float(change.new), rows=0)
        return (True, 0.0) if math.isnan(found) else (False, found)

    return max(changes, key=order)


def _largest_answer(*outputs: OutputFacts) -> float:
    """The largest finite magnitude either side answered in either run; 1 where that is not known."""
    bounds = [output.details.get("extremes") or {} for output in outputs]
    found = [abs(end) for extremes in bounds for side in ("reference", "candidate") for end in extremes.get(side) or ()]
    return max((value for value in found if math.isfinite(value)), default=1.0)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where outputs were measured: on all rows, or as the fields of a change with these names say."""

    batch_size: int | None = None
    place: str = ""

    @property
    def subject(self) -> str:
        return "suite-measure" if self.place and self.batch_size is None else "measure"


@dataclass(frozen=True, slots=True)
class _Found:
    """What one run measured in one place, and the bounds it was judged by there."""

    rows: int
    outputs: Mapping[str, OutputFacts]
    bounds: Mapping[Key, float]
    blocks: bool = True


def changes(old: Report, new: Report, allow: float) -> Iterator[Change]:
    """Every output and measure that stands in the old run, wherever something was measured in both."""
    before, after = dict(_places(old)), dict(_places(new))
    for place in [place for place in before if place in after]:
        ours, theirs = before[place], after[place]
        limits = _tighter(ours.bounds, theirs.bounds)
        less = Direction.WORSE if place == _Place() else less_is(new)
        told = Change(place.subject, "", less, "", None, None, None, None, place.batch_size)
        told = replace(told, blocks=ours.blocks, place=place.place)
        for name, output in ours.outputs.items():
            if name in theirs.outputs:
                pair = output, theirs.outputs[name]
                scale = Scale(ours.rows, theirs.rows, _tighter_tolerance(old, new), _largest_answer(*pair))
                yield from _of_output(
                    pair, replace(told, output=name), limits, scale, allow, _tolerances(old, new, *pair)
                )
            # Those that are gone from all rows are told with the outputs.
            elif place != _Place():
                gone = replace(told, subject="output", name=name, old=name, output=name)
                yield replace(gone, message=output_gone(gone, where(gone)))


def less_is(report: Report) -> Direction:
    """What it means that a run tried less: one that had no time for more says so, and is not worse."""
    return Direction.OTHER if report.comparison.untried else Direction.WORSE


def output_gone(change: Change, where: str) -> str:
    """That an output is not there any more, as the start of a sentence."""
    return f"output {change.name!r} is no longer compared {where}".rstrip()


def where(change: Change) -> str:
    """Where something was found, as the end of a name; nothing for all rows."""
    if change.suite:
        return f"in the suite {change.suite}"
    if change.batch_size is None:
        return ""
    return f"at batch size {change.batch_size}" + (f", {change.place}" if change.place else "")


def _of_output(
    pair: tuple[OutputFacts, OutputFacts],
    told: Change,
    limits: Mapping[Key, float],
    scale: Scale,
    allow: float,
    tolerances: tuple[Tolerance, Tolerance],
) -> Iterator[Change]:
    old, new = pair
    for measure in [name for name in old.measures if name in AT_MOST | AT_LEAST]:
        value = old.measures[measure]
        told = replace(told, name=f"{old.name}.{measure}", old=value)
        bound = limits.get((old.name, measure, None if told.suite else told.batch_size))
        if measure not in new.measures:
            yield replace(told, message=moved(told, where(told)))
            continue
        now = new.measures[measure]
        weighed = weigh(measure, value, now, scale=scale, bound=bound, allow=allow)
        direction, percent = weighed.direction, weighed.percent
        if measure in ONLY_WITH_A_LIMIT and bound is None and direction is not Direction.SAME:
            direction = Direction.OTHER
        if measure in BY_TOLERANCE and tolerances[0] != tolerances[1]:
            direction = _under_another(direction, *tolerances)
        change = replace(told, direction=direction, new=now, percent=percent)
        yield replace(change, message=moved(change, where(change)))


def _under_another(direction: Direction, old: Tolerance, new: Tolerance) -> Direction:
    """More under a wider tolerance is worse, no more under a tighter one is not; the rest cannot be told."""
    telling = direction is Direction.WORSE if _looser(old, new) else direction is not Direction.WORSE
    return direction if telling else Direction.UNKNOWN


def moved(change: Change, where: str, *, of_several: bool = False) -> str:
    """One measure, then and now, as the start of a sentence."""
    name = f"{change.name} {where}".rstrip()
    if change.new is None:
        return f"{name} is no longer measured"
    old, new = (value_text(change.name, float(value)) for value in (change.old, change.new))
    worst = "at worst " if of_several else ""
    if change.direction is Direction.UNKNOWN:
        told = f"{name} was {worst}{old} and is {new}, but counts what is beyond another tolerance now"
        return f"{told}: what it would be under the old one is not known"
    if change.direction is Direction.SAME:
        return f"{name} is {worst}{new}, " + ("as before" if old == new else f"it was {old}")
    share = change_text(change)
    return f"{name} went {worst}from {old} to {new}" + (f" ({share})" if share else "")


def _places(report: Report) -> Iterator[tuple[_Place, _Found]]:
    facts, limits = report.comparison, _bounds(report.verdict.checks)
    yield _Place(), _Found(facts.rows, _by_name(facts.outputs), limits)
    # Orders are judged by the limits of their batch size. Where nothing is measured, nothing is tried.
    for batch in (batch for batch in (*facts.batch_sizes, *facts.batch_orders) if batch.outputs):
        yield _Place(batch.size, batch.order), _Found(batch.rows, _by_name(batch.outputs), limits)
    for suite, verdict in zip(facts.suites, report.verdict.suites, strict=True):
        if suite.kind in MEASURED_SUITES:
            measured = suite.comparison
            found = _Found(measured.rows, _by_name(measured.outputs), _bounds(verdict.checks), suite.blocks)
            yield _Place(place=f"{suite.kind} {suite.name}"), found


def _by_name(outputs: tuple[OutputFacts, ...]) -> dict[str, OutputFacts]:
    return {output.name: output for output in outputs}


def _tolerances(old: Report, new: Report, ours: OutputFacts, theirs: OutputFacts) -> tuple[Tolerance, Tolerance]:
    """Those of the runs, not of the policies: they are what was counted with."""
    return ours.asked_by(old.comparison.tolerance), theirs.asked_by(new.comparison.tolerance)


def _tighter_tolerance(old: Report, new: Report) -> Tolerance:
    ours, theirs = old.policy.tolerance, new.policy.tolerance
    return Tolerance(min(ours.absolute, theirs.absolute), min(ours.relative, theirs.relative))
