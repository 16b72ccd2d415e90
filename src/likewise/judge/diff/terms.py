"""The terms of both runs: limits as they applied to each output, and the rest of the policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from likewise.contracts.comparison import Tolerance
from likewise.contracts.diff import Change, Direction
from likewise.contracts.report import Report
from likewise.contracts.verdict import AT_LEAST, Check
from likewise.contracts.words import figure

Key = tuple[str, str, int | None]
"""Output, measure, batch size."""


def bounds(checks: Sequence[Check]) -> dict[Key, float]:
    """The tightest bound that each measure was judged by."""
    found: dict[Key, float] = {}
    for check in checks:
        key = (check.output, check.measure, check.batch_size)
        found[key] = _tightest(check.measure, check.bound, found.get(key, check.bound))
    return found


def tighter(old: Mapping[Key, float], new: Mapping[Key, float]) -> dict[Key, float]:
    """The tighter of both runs' bounds."""
    return {key: _tightest(key[1], *(found[key] for found in (old, new) if key in found)) for key in {**old, **new}}


def limits(old: Report, new: Report) -> Iterator[Change]:
    """Limits that were loosened, tightened, dropped or added. Those of an output that is gone go with it."""
    before, after = bounds(old.verdict.checks), bounds(new.verdict.checks)
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
        wider = looser(before.tolerance, after.tolerance)
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


def looser(old: Tolerance, new: Tolerance) -> bool:
    """Does the new tolerance let anything through that the old one did not?"""
    return new.absolute > old.absolute or new.relative > old.relative


def _tightest(measure: str, *found: float) -> float:
    return max(found) if measure in AT_LEAST else min(found)


def _shown(tolerance: Tolerance) -> str:
    return f"{tolerance.absolute:g}" + (f" + {tolerance.relative:g}·|reference|" if tolerance.relative else "")


def _word(value: object) -> str:
    return "none" if value is None else str(value).lower()
