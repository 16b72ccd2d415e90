"""Asking a changed model once: opened, asked, closed again, so that many trials leave nothing behind."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from likewise.compare.observe import align
from likewise.contracts.comparison import Mismatch
from likewise.contracts.data import Array, Batch, Tensors
from likewise.explain.case import ENOUGH, HARMLESS, Case, Effect
from likewise.models.onnx import edits

if TYPE_CHECKING:
    from onnx import ModelProto


Thing = TypeVar("Thing")

FEW = 64
"""Rows that a slow way of running a model is asked about."""

SOME = 256
"""Rows that a search asks about, which asks many times."""

NEARER = 0.5
"""A change takes a difference away if no more than this part of it is left, in the mean over failing rows."""

PATIENCE = 0.3
"""The part of the time left that the search for a culprit may take, once the cause is known."""


def graph_of(case: Case, side: str = "candidate") -> ModelProto | None:
    """A side's graph in the form that experiments start from, made once. Not to be changed: copy it."""
    key = f"graph of the {side}, written out"
    if key not in case.memory:
        case.memory[key] = edits.editable(case.graph(side))
    found: ModelProto | None = case.memory[key]
    return found


def types_of(case: Case, side: str = "candidate") -> dict[str, int]:
    """The types of the tensors of that graph."""
    key = f"types of the {side}"
    if key not in case.memory:
        proto = graph_of(case, side)
        case.memory[key] = {} if proto is None else edits.tensor_types(proto)
    found: dict[str, int] = case.memory[key]
    return found


def answered(
    case: Case,
    side: str,
    *,
    target: Any = None,
    options: Mapping[str, Any] | None = None,
    batch: Batch | None = None,
    size: int | None = None,
) -> Tensors | None:
    """What a side's model answers with other settings or another graph; None if it does not load or run."""
    outer = case.stack
    with ExitStack() as stack:
        case.stack = stack
        try:
            opened = case.reopened(side, target=target, options=options)
            return None if opened is None else case.ask(opened, batch, size=size)
        finally:
            case.stack = outer


def effect_of(case: Case, **changed: Any) -> Effect | None:
    """What changing the candidate does to the comparison; None if it does not answer, or comes no nearer.

    A few rows are asked first: most changes lead nowhere, and models may be slow.
    """
    if len(case.required) > 2 * FEW:
        positions = few_rows(case)
        some = answered(case, "candidate", batch=picked(case, positions), **changed)
        first = None if some is None else effect_on(case, positions, candidate=some)
        if first is None or first.share < ENOUGH / 2 or first.damage > 10 * HARMLESS:
            return None
    tensors = answered(case, "candidate", **changed)
    if tensors is None or not nearer(case, candidate=tensors):
        return None
    return case.effect(candidate=tensors)


def nearer(case: Case, *, reference: Tensors | None = None, candidate: Tensors | None = None) -> bool:
    """Is most of the difference gone? Rows just beyond the tolerance come inside by chance, whatever moves them."""
    before = gap(case)
    return not before or gap(case, reference=reference, candidate=candidate) <= NEARER * before


def gap(
    case: Case,
    *,
    reference: Tensors | None = None,
    candidate: Tensors | None = None,
    positions: Array | None = None,
) -> float:
    """How far the numbers of both sides are apart on failing rows, in the mean; new answers may be to some rows."""
    import numpy as np

    sample = case.required
    failing = sample.failing if positions is None else sample.failing[positions]
    total = 0.0
    for spec in case.specs:
        ours = _of(reference, sample.reference, spec.reference, positions)
        theirs = _of(candidate, sample.candidate, spec.candidate, positions)
        if ours is None or theirs is None:
            continue
        aligned = align(spec, ours, theirs)
        if isinstance(aligned, Mismatch) or any(side.dtype.kind != "f" for side in aligned):
            continue
        with np.errstate(invalid="ignore"):
            apart = np.abs(aligned[0].astype(np.float64) - aligned[1])[failing]
        total += float(apart[np.isfinite(apart)].mean()) if np.isfinite(apart).any() else 0.0
    return total


def gap_between(case: Case, one: Tensors, other: Tensors, positions: Array) -> float:
    """How far two answers of the candidate are apart on failing rows; infinitely, where only one is finite."""
    import numpy as np

    total, failing = 0.0, case.required.failing[positions]
    for name in {spec.candidate for spec in case.specs}:
        mine, yours = one.get(name), other.get(name)
        if mine is None or yours is None or mine.shape != yours.shape:
            continue
        if mine.dtype.kind != "f":
            total += float(np.mean((mine != yours)[failing])) if failing.any() else 0.0
            continue
        mine, yours = mine.astype(np.float64)[failing], yours.astype(np.float64)[failing]
        if (np.isfinite(mine) != np.isfinite(yours)).any():
            return float("inf")
        both = np.isfinite(mine) & np.isfinite(yours)
        total += float(np.abs(mine - yours)[both].mean()) if both.any() else 0.0
    return total


def _of(given: Tensors | None, before: Tensors, name: str, positions: Array | None) -> Array | None:
    """The new answer of an output, or what was answered to these rows before."""
    if given is not None and name in given:
        return given[name]
    array = before.get(name)
    return array if array is None or positions is None else array[positions]


def searching(case: Case, things: Iterable[Thing], *, patience: float = PATIENCE) -> Iterator[Thing]:
    """One thing after the other, as long as a search may take: a known cause must not be lost over its culprit."""
    enough = case.seconds_left() * (1 - patience)
    for thing in things:
        if case.seconds_left() < enough:
            return
        yield thing


def few_rows(case: Case, count: int = FEW) -> Array:
    """Positions of some failing rows and of some others, at least as many failing ones as not."""
    import numpy as np

    failing, others = np.flatnonzero(case.required.failing), np.flatnonzero(~case.required.failing)
    chosen = _spread_over(failing, max(count - len(others), count // 2, 1))
    return np.sort(np.concatenate([chosen, _spread_over(others, count - len(chosen))]))


def _spread_over(positions: Array, count: int) -> Array:
    import numpy as np

    if len(positions) <= count:
        return positions
    return positions[np.linspace(0, len(positions) - 1, max(count, 0)).astype(np.int64)]


def picked(case: Case, positions: Array) -> Batch:
    """Some rows of the sample; a test case without a row axis can only be taken whole."""
    import numpy as np

    sample = case.required
    whole = not sample.batch.stacked or np.array_equal(positions, np.arange(len(sample)))
    return sample.batch if whole else case.rows(positions)


def effect_on(
    case: Case, positions: Array, *, reference: Tensors | None = None, candidate: Tensors | None = None
) -> Effect:
    """Compare some rows again, with new answers to these rows alone."""
    full = case.effect(
        reference=_spread(case.required.reference, reference, positions),
        candidate=_spread(case.required.candidate, candidate, positions),
    )
    return Effect(full.agrees[positions], case.required.failing[positions])


def _spread(before: Tensors, changed: Tensors | None, positions: Array) -> Tensors | None:
    """The answers to all rows, some of them replaced."""
    import numpy as np

    if changed is None:
        return None
    together: dict[str, Array] = {}
    for name, array in changed.items():
        if name not in before or before[name].shape[1:] != array.shape[1:]:
            together[name] = np.zeros((len(next(iter(before.values()))), *array.shape[1:]), dtype=array.dtype)
        else:
            together[name] = before[name].astype(np.result_type(before[name], array), copy=True)
        together[name][positions] = array
    return together


def seen_inside(
    case: Case,
    side: str,
    proto: ModelProto,
    names: Collection[str],
    types: Mapping[str, int],
    positions: Array,
    options: Mapping[str, Any] | None = None,
) -> dict[str, Array] | None:
    """The values of tensors inside a graph, for some rows of the sample; None if it does not run.

    By default the runtime does not optimise: fusing would take away the tensors that are to be seen.
    """
    import numpy as np

    outer = case.stack
    with ExitStack() as stack:
        case.stack = stack
        try:
            settings = {"optimization": "disable"} if options is None else options
            opened = case.reopened(side, target=edits.exposed(proto, names, types), options=settings)
            if opened is None:
                return None
            if opened.fixed_batch is not None:
                positions = np.resize(positions, opened.fixed_batch)
            fed, _ = opened.feed(picked(case, positions))
            seen = case.ask_fed(opened, dict(fed.inputs))
            return None if seen is None else {name: seen[name] for name in names if name in seen}
        finally:
            case.stack = outer


def rows_apart(case: Case, side: str, one: Tensors, other: Tensors, *, floor: float = 0.0) -> Array:
    """The rows on which a side has answered differently, beyond the tolerance, in any output that is compared.

    `floor` is how much of the largest value may be noise whatever the tolerance.
    """
    import numpy as np

    apart = np.zeros(len(next(iter(one.values()))), dtype=bool)
    for name in {getattr(spec, side) for spec in case.specs}:
        if name not in one or name not in other or one[name].shape != other[name].shape:
            apart[:] = True
            continue
        mine, theirs = one[name], other[name]
        if mine.dtype.kind == "f":
            mine, theirs = mine.astype(np.float64), theirs.astype(np.float64)
            largest = float(np.max(np.abs(mine[np.isfinite(mine)]), initial=0.0))
            with np.errstate(invalid="ignore"):
                allowed = case.tolerance.absolute + case.tolerance.relative * np.abs(mine)
                close = np.abs(mine - theirs) <= np.maximum(allowed, floor * largest)
            different = ~(close | (mine == theirs) | (np.isnan(mine) & np.isnan(theirs)))
        else:
            different = mine != theirs
        apart |= np.asarray(different).reshape(len(apart), -1).any(axis=1)
    return apart


def mask_of(case: Case, positions: Array, covered: Array) -> Array:
    """A mask over the sample from one over some of its rows."""
    import numpy as np

    mask = np.zeros(len(case.required), dtype=bool)
    mask[positions[covered]] = True
    return mask


def seconds_for(case: Case, side: str, rows: int, **changed: Any) -> float | None:
    """How long a changed model would take for so many rows, from one row; None if it does not answer that."""
    import numpy as np

    began = time.monotonic()
    one = answered(case, side, batch=picked(case, np.array([0])), **changed)
    return None if one is None else (time.monotonic() - began) * rows
