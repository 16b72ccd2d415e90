"""Whether a step whose output differs is at fault itself, or rounding, or what it was given."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

from likewise.contracts.data import Array
from likewise.explain.alike import differing, same_as_one
from likewise.models.sklearn.inside import Seen, Step, in_form_of, numbers

ALWAYS = 0.9
"""What holds for this share of the wrong rows or entries is the reason."""

NOISE = {"float32": 1e-3, "float64": 1e-3, "float16": 2e-2}
"""An error below this part of the spread of its column may be rounding that added up."""

DRAWS, ROUNDED_OFTEN = 8, 8.0
"""Steps are run so often on numbers that are moved at random, and may be off by so many times what that does."""

OPPOSITE = ((1.0, -1.0), (-1.0, 1.0))
"""Values and what they are compared with moved against each other: the way to an edge that no random draw takes."""

MOST_INPUTS = 16


def is_noise(values: Array, expected: Array, stored: Any) -> bool:
    """Are all differences so small that adding up in the type of the tensor could be the reason?"""
    import numpy as np

    if not np.array_equal(np.isfinite(values), np.isfinite(expected)):
        return False
    with np.errstate(invalid="ignore", over="ignore"):
        finite = np.where(np.isfinite(expected), expected, 0.0)
        spread = finite.max(axis=0) - finite.min(axis=0)
        scale = np.where(spread > 0, spread, np.abs(finite).max(axis=0))
        small = np.abs(values - expected) <= NOISE.get(stored.name, 1e-3) * scale
    return bool(small[np.isfinite(expected)].all())


def within_rounding(step: Step, record: Seen, found: Array, wrong: Array, stored: Any) -> bool:
    """Does moving the step's numbers by what the type of the tensor rounds off move its output as far as that?

    Near the edge of a bin, or where large numbers cancel, that is far.
    """
    import numpy as np

    given, expected = record.input, record.output
    if given is None or expected is None or not wrong.any():
        return False
    ulp = float(np.finfo(stored).eps) if stored.kind == "f" else float(np.finfo(np.float32).eps)
    rng = np.random.default_rng(0)
    reach = np.zeros(expected.shape)
    for ours, theirs in (*OPPOSITE, *[(rng, rng)] * DRAWS):
        moved = transformed(_jittered(step, ulp, theirs), in_form_of(record.given, _moved(given, ulp, ours)))
        if moved is None or moved.shape != expected.shape:
            return False
        with np.errstate(invalid="ignore"):
            reach = np.maximum(reach, np.nan_to_num(np.abs(moved - expected), nan=0.0, posinf=np.inf))
    with np.errstate(invalid="ignore"):
        covered = np.abs(found - expected) <= ROUNDED_OFTEN * reach
    return bool(covered[wrong].mean() >= ALWAYS)


def right_for_other_input(step: Step, record: Seen, found: Array, wrong: Array, tables: Sequence[Array]) -> bool:
    """Would the step give what the graph has, from a tensor before it or from its own input rounded?"""
    import numpy as np

    given, expected = record.input, record.output
    bad = wrong.any(axis=1)
    if given is None or expected is None or not bad.any():
        return False
    # What the step gives is no input of it: one that is applied twice is at fault.
    others = [table for table in tables if table.shape == given.shape and not same_as_one(table, [found, expected])]
    for table in [given.astype(np.float32).astype(np.float64), *others[:MOST_INPUTS]]:
        again = transformed(step, in_form_of(record.given, table))
        if again is None or again.shape != found.shape:
            continue
        still = differing(again, found).any(axis=1)
        if (still & bad).sum() <= (1 - ALWAYS) * bad.sum():
            return True
    return False


def transformed(step: Step, table: Any) -> Array | None:
    """What a step gives for a table; None if it refuses."""
    try:
        return numbers(step.estimator.transform(table))
    except Exception:  # noqa: BLE001 - steps raise many types on tables they were not made for
        return None


def _jittered(step: Step, ulp: float, way: Any) -> Step:
    """The step with what it was fitted to moved by rounding."""
    import numpy as np

    estimator = copy(step.estimator)
    for name, value in vars(step.estimator).items():
        if not isinstance(value, np.ndarray) or not name.endswith("_"):
            continue
        if value.dtype.kind == "f":
            setattr(estimator, name, _moved(value, ulp, way))
        elif value.dtype == object and value.ndim == 1 and all(isinstance(v, np.ndarray) for v in value):
            parts = np.empty(len(value), dtype=object)
            parts[:] = [_moved(part, ulp, way) if part.dtype.kind == "f" else part for part in value]
            setattr(estimator, name, parts)
    return Step(step.path, estimator, step.joins, step.upstream)


def _moved(values: Array, ulp: float, way: Any) -> Array:
    """Numbers moved by half of what rounding may do: up, down (1, -1), or each by chance."""
    import numpy as np

    ways = way if isinstance(way, float) else way.choice(np.array([-1.0, 1.0]), size=values.shape)
    moved: Array = values + 0.5 * ulp * ways * np.abs(values)
    return moved
