"""The measures of both runs, output by output and batch size by batch size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from likewise.contracts.diffing import Change, Direction
from likewise.contracts.measuring import OutputFacts, Tolerance
from likewise.contracts.reporting import Report
from likewise.diffing.terms import Key, bounds, looser, tighter
from likewise.diffing.weighing import BY_TOLERANCE, ONLY_WITH_A_LIMIT, Scale, largest_answer, weigh
from likewise.policies import AT_LEAST, AT_MOST
from likewise.showing import figure

MANY_TIMES = 900.0
"""Percent from which a factor reads better."""

Place = int | None
"""A batch size, or None for all rows."""


def changes(old: Report, new: Report, allow: float) -> Iterator[Change]:
    """Every measure that stands in the old run, for outputs and batch sizes that stand in both."""
    limits = tighter(bounds(old), bounds(new))
    before, after = _places(old), _places(new)
    for place in [place for place in before if place in after]:
        old_rows, old_outputs = before[place]
        new_rows, new_outputs = after[place]
        for name in [name for name in old_outputs if name in new_outputs]:
            pair = old_outputs[name], new_outputs[name]
            scale = Scale(old_rows, new_rows, _tighter_tolerance(old, new), largest_answer(*pair))
            yield from _of_output(pair, place, limits, scale, allow, _tolerances(old, new))


def _of_output(
    pair: tuple[OutputFacts, OutputFacts],
    place: Place,
    limits: Mapping[Key, float],
    scale: Scale,
    allow: float,
    tolerances: tuple[Tolerance, Tolerance],
) -> Iterator[Change]:
    old, new = pair
    where = "" if place is None else f" at batch size {place}"
    for measure in [name for name in old.measures if name in AT_MOST | AT_LEAST]:
        name, value = f"{old.name}.{measure}", old.measures[measure]
        bound = limits.get((old.name, measure, place))
        if measure not in new.measures:
            message = f"{name}{where} is no longer measured"
            yield Change("measure", name, Direction.WORSE, message, value, None, None, old.name, place)
            continue
        now = new.measures[measure]
        weighed = weigh(measure, value, now, scale=scale, bound=bound, allow=allow)
        direction, percent = weighed.direction, weighed.percent
        if measure in ONLY_WITH_A_LIMIT and bound is None and direction is not Direction.SAME:
            direction = Direction.OTHER
        if measure in BY_TOLERANCE and tolerances[0] != tolerances[1]:
            direction = _under_another(direction, *tolerances)
        message = _told(name, where, (value, now), percent, direction)
        yield Change("measure", name, direction, message, value, now, percent, old.name, place)


def _under_another(direction: Direction, old: Tolerance, new: Tolerance) -> Direction:
    """More under a wider tolerance is worse, no more under a tighter one is not; the rest cannot be told."""
    telling = direction is Direction.WORSE if looser(old, new) else direction is not Direction.WORSE
    return direction if telling else Direction.UNKNOWN


def _told(name: str, where: str, values: tuple[float, float], percent: float | None, direction: Direction) -> str:
    old, new = (value_text(name, value) for value in values)
    if direction is Direction.UNKNOWN:
        return f"{name}{where} was {old} and is {new} under another tolerance: whether it got worse cannot be told"
    if direction is Direction.SAME:
        return f"{name}{where} is {new}, as before" if old == new else f"{name}{where} is {new}, it was {old}"
    share = "" if percent is None else f" ({percent_text(percent)})"
    return f"{name}{where} went from {old} to {new}{share}"


def percent_text(percent: float) -> str:
    """A change as a person reads it: above zero is worse."""
    if percent >= MANY_TIMES:
        return f"{percent / 100 + 1:,.0f} times as much"
    whole = f"{abs(percent):.0f}" if abs(percent) >= 10 else f"{abs(percent):.2g}"
    return f"{whole}% {'worse' if percent > 0 else 'better'}"


def value_text(name: str, value: float) -> str:
    """A figure, also where what matters is how little it lacks to 1."""
    shown = figure(value)
    near_one = name.rpartition(".")[2] in AT_LEAST and shown == "1" and value != 1
    return f"1 − {1 - value:.2g}" if near_one else shown


def _places(report: Report) -> dict[Place, tuple[int, dict[str, OutputFacts]]]:
    facts = report.comparison
    found: dict[Place, tuple[int, dict[str, OutputFacts]]] = {None: (facts.rows, {o.name: o for o in facts.outputs})}
    for size in facts.batch_sizes:
        found[size.size] = (size.rows, {output.name: output for output in size.outputs})
    return found


def _tolerances(old: Report, new: Report) -> tuple[Tolerance, Tolerance]:
    """Those of the runs, not of the policies: they are what was counted with."""
    return old.comparison.tolerance, new.comparison.tolerance


def _tighter_tolerance(old: Report, new: Report) -> Tolerance:
    ours, theirs = old.policy.tolerance, new.policy.tolerance
    return Tolerance(min(ours.absolute, theirs.absolute), min(ours.relative, theirs.relative))
