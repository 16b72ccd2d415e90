"""The measures of both runs, output by output and batch size by batch size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

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
    where = "" if place is None else f"at batch size {place}"
    for measure in [name for name in old.measures if name in AT_MOST | AT_LEAST]:
        name, value = f"{old.name}.{measure}", old.measures[measure]
        bound = limits.get((old.name, measure, place))
        if measure not in new.measures:
            gone = Change("measure", name, Direction.WORSE, "", value, None, None, old.name, place)
            yield replace(gone, message=moved(gone, where))
            continue
        now = new.measures[measure]
        weighed = weigh(measure, value, now, scale=scale, bound=bound, allow=allow)
        direction, percent = weighed.direction, weighed.percent
        if measure in ONLY_WITH_A_LIMIT and bound is None and direction is not Direction.SAME:
            direction = Direction.OTHER
        if measure in BY_TOLERANCE and tolerances[0] != tolerances[1]:
            direction = _under_another(direction, *tolerances)
        change = Change("measure", name, direction, "", value, now, percent, old.name, place)
        yield replace(change, message=moved(change, where))


def _under_another(direction: Direction, old: Tolerance, new: Tolerance) -> Direction:
    """More under a wider tolerance is worse, no more under a tighter one is not; the rest cannot be told."""
    telling = direction is Direction.WORSE if looser(old, new) else direction is not Direction.WORSE
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


def change_text(change: Change) -> str:
    """How much worse or better, as a person reads it; nothing where both figures say it best."""
    measure = change.name.rpartition(".")[2]
    if measure in AT_LEAST:
        lacking = [1 - float(value) for value in (change.new, change.old)]
        told = measure != "sqnr_db" and all(map(math.isfinite, lacking))
        return f"lacks {figure(lacking[0])}, lacked {figure(lacking[1])}" if told else ""
    if change.percent is None:
        return ""
    if change.percent >= MANY_TIMES:
        return f"{change.percent / 100 + 1:,.0f} times as much"
    size = abs(change.percent)
    shown = f"{size:.0f}" if size >= 10 else f"{size:.2g}"
    return f"{shown}% {'worse' if change.percent > 0 else 'better'}"


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
