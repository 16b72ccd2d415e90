"""Presets and limits: what is acceptable, from what a user says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from likewise.errors import UsageError, nearest

if TYPE_CHECKING:
    from likewise.contracts.verdict import Limit, Policy


class Preset(NamedTuple):
    """A named set of limits. Relative tolerance above zero makes the elementwise rule `mismatch_rate`."""

    absolute: float
    relative: float
    mean: float | None
    flips: str
    bit_equal: bool = False


PRESETS: Mapping[str, Preset] = {
    "float32": Preset(1e-4, 1e-3, None, "material_flips"),
    "strict": Preset(0.01, 0.0, 0.005, "material_flips"),
    "standard": Preset(0.04, 0.0, 0.01, "material_flips"),
    "quantized": Preset(0.06, 0.0, 0.02, "material_flips"),
    "exact": Preset(0.0, 0.0, None, "label_flips", bit_equal=True),
}
LOSSY = frozenset({"standard", "quantized"})
"""Presets for what changes some labels by design: whoever says how many may change is not held to none beside it."""

FORM = ("dtype_mismatch", "rank_mismatch", "layout_mismatch")
"""Whether answers come in another form. Values are judged by other limits."""

DEFAULT_PRESET = "float32"


def make_policy(
    *,
    preset: str | None = None,
    abs_tol: float | None = None,
    rel_tol: float | None = None,
    mean_tol: float | None = None,
    limits: Mapping[str, float] | None = None,
    nan_equal: bool = True,
    confidence: float = 0.95,
    max_failure_rate: float | None = None,
    fixed_batch: bool = False,
    allow_same: bool = False,
) -> Policy:
    """The policy a user asked for: a preset, changed by what is said beside it.

    An absolute tolerance alone is a gate on the absolute difference: the relative part of the
    preset goes unless it is asked for too.
    """
    # The presets are part of `--help`, which needs no types.
    from likewise.contracts.comparison import Tolerance
    from likewise.contracts.verdict import Limit, Policy

    name = preset or DEFAULT_PRESET
    if name not in PRESETS:
        raise UsageError(f"unknown preset {name!r}{nearest(name, PRESETS)}", remedy=f"Presets: {', '.join(PRESETS)}")
    chosen = PRESETS[name]
    absolute = chosen.absolute if abs_tol is None else _tolerance("abs-tol", abs_tol)
    relative = chosen.relative if abs_tol is None else 0.0
    relative = relative if rel_tol is None else _tolerance("rel-tol", rel_tol)
    mean = chosen.mean if mean_tol is None else _tolerance("mean-tol", mean_tol)
    explicit = abs_tol is not None or rel_tol is not None
    bounds = [Limit("mismatch_rate", 0.0, explicit=explicit, of_numbers=True)]
    if relative == 0 and rel_tol is None:
        bounds = [Limit("max_abs_diff", absolute, explicit=explicit, of_numbers=True)]
    if mean is not None:
        bounds.append(Limit("mean_abs_diff", mean, explicit=mean_tol is not None, of_numbers=True))
    bounds.append(Limit(chosen.flips, 0.0))
    if chosen.bit_equal and absolute == relative == 0:
        bounds.append(Limit("max_ulp_diff", 0.0))
        bounds.extend(Limit(measure, 0.0) for measure in FORM)
    bounds.append(Limit("nonfinite_mismatch", 0.0))
    extra = [_limit(text, bound) for text, bound in (limits or {}).items()]
    replaced = {limit.measure for limit in extra if limit.output is None}
    return Policy(
        preset=name,
        tolerance=Tolerance(absolute, relative, exact_integers=not explicit and absolute + relative > 0),
        limits=(*(limit for limit in bounds if limit.measure not in replaced), *extra),
        nan_equal=nan_equal,
        confidence=_share("confidence", confidence),
        max_failure_rate=None if max_failure_rate is None else _share("max-failure-rate", max_failure_rate),
        fixed_batch=fixed_batch,
        allow_same=allow_same,
    )


def _limit(text: str, bound: float) -> Limit:
    from likewise.contracts.verdict import AT_LEAST, AT_MOST, Limit

    output, _, measure = text.rpartition(".")
    known = AT_LEAST | AT_MOST
    if measure not in known:
        raise UsageError(
            f"there is no measure {measure!r}{nearest(measure, known)}", remedy=f"Measures: {', '.join(sorted(known))}"
        )
    if not math.isfinite(bound) or (measure in AT_MOST and bound < 0):
        raise UsageError(f"the limit on {text} is {bound}", remedy="Give a number that a measure can be within")
    return Limit(measure, float(bound), output or None, explicit=True)


def _tolerance(name: str, value: float) -> float:
    if not 0 <= value < math.inf:
        raise UsageError(f"--{name} is {value}", remedy="A tolerance is zero or a positive number")
    return float(value)


def _share(name: str, value: float) -> float:
    if not 0 < value < 1:
        raise UsageError(f"--{name} is {value}", remedy="Give a share between 0 and 1, such as 0.95")
    return float(value)
