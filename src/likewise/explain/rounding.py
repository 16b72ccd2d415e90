"""What a narrower type leaves of stored numbers, and what that does to the answers.

A graph holds what the exporter's type leaves of each weight. Three questions are asked of it here:

- given the same rounded weights, does the reference answer like the candidate?
- which arrays show that they went through half precision, and which of the reference's do they stand for?
- moved at random within what the type rounds off, how far do the stored numbers move the answers? A difference that
  is no larger than that is the rounding's.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.compare.observe import rows_beyond
from likewise.contracts.comparison import Mismatch, Pair
from likewise.contracts.data import Array, Tensors
from likewise.contracts.report import Place
from likewise.data.columns import numpy_dtype
from likewise.explain import trace
from likewise.explain.case import Case, made_once
from likewise.explain.experiment import Effect
from likewise.explain.weights import reference_parameters
from likewise.models.onnx import describe, edits, grafts, widen

if TYPE_CHECKING:
    from onnx import ModelProto


DEEPEST = 12
"""How far into what an estimator holds its numbers are looked for."""

Rounding = Callable[[Array], Array]


def rounded(case: Case, dtype: str, *, clip: float | None = None) -> Any:
    """The reference as a live object with weights rounded to a type; None where it cannot be copied.

    `clip` bounds the weights first, as some converters do.
    """
    native, framework = case.native("reference"), case.framework("reference")
    if native is None:
        return None
    if framework == "torch":
        return _rounded_module(case, native, dtype, clip)
    if framework == "onnx":
        return _rounded_graph(case, partial(_rounded_array, dtype=dtype, clip=clip))
    if framework == "sklearn":
        return _rounded_estimator(native, partial(_rounded_array, dtype=dtype, clip=clip))
    return None


def doubled(case: Case) -> Any:
    """The reference as a live object that computes in float64; None where it cannot be made to."""
    native = case.native("reference")
    if native is None:
        return None
    if case.framework("reference") == "torch":
        twin = copied_module(native, case.largest_copy)
        return None if twin is None else twin.double()
    if case.framework("reference") == "onnx":
        proto = edits.editable(case.graph("reference"), case.largest_copy)
        if proto is None:
            return None
        found = widen.runnable(proto, widen.Widening(edits.tensor_types(proto)))
        return None if found is None else found[0]
    return None


def copied_module(module: Any, most: int = edits.LARGEST_COPY) -> Any:
    """A module of its own with the same weights; None where it is too large, or refuses to be copied."""
    size = sum(tensor.nbytes for tensor in module.state_dict().values() if hasattr(tensor, "nbytes"))
    if size > most:
        return None
    try:
        return copy.deepcopy(module)
    except Exception:  # noqa: BLE001 - modules of users raise anything; without a copy there is no experiment
        return None


def _rounded_module(case: Case, module: Any, dtype: str, clip: float | None) -> Any:
    import torch

    twin = copied_module(module, case.largest_copy)
    if twin is None:
        return None
    kind = getattr(torch, dtype)
    with torch.no_grad():
        for tensor in twin.state_dict().values():
            if hasattr(tensor, "is_floating_point") and tensor.is_floating_point():
                bounded = tensor if clip is None else tensor.clamp(-clip, clip)
                tensor.copy_(bounded.to(kind).to(tensor.dtype))
    return twin


def _rounded_graph(case: Case, change: Rounding) -> Any:
    proto = edits.editable(case.graph("reference"), case.largest_copy)
    if proto is None or describe.size(proto) > case.largest_copy:
        return None
    inner = [graph for node in edits.all_nodes(proto.graph) for graph in edits.subgraphs(node)]
    for graph in (proto.graph, *inner):
        for name, array in edits.constants(graph).items():
            if array.dtype in (np.float32, np.float64):
                edits.set_constant(graph, name, change(array))
    return proto


def _rounded_estimator(estimator: Any, change: Rounding) -> Any:
    try:
        twin = copy.deepcopy(estimator)
    except Exception:  # noqa: BLE001 - as above
        return None
    _round_inside(twin, change, set(), 0)
    return twin


def _round_inside(owner: Any, change: Rounding, seen: set[int], depth: int) -> None:
    """Round every number that an object holds, directly or in what it holds."""
    if id(owner) in seen or depth > DEEPEST or not hasattr(owner, "__dict__"):
        return
    seen.add(id(owner))

    def within(value: Any, depth: int) -> Any:
        if isinstance(value, np.ndarray) and value.dtype == object and value.size <= 10_000:
            for index, entry in np.ndenumerate(value):
                value[index] = within(entry, depth + 1)
        elif isinstance(value, np.ndarray):
            return change(value) if value.dtype.kind == "f" else value
        elif isinstance(value, float):
            return float(change(np.array(value)))
        elif isinstance(value, list) or type(value) is tuple:
            entries = [within(entry, depth + 1) for entry in value]
            return tuple(entries) if isinstance(value, tuple) else entries
        elif type(value) is dict:
            return {key: within(entry, depth + 1) for key, entry in value.items()}
        elif hasattr(value, "data") and hasattr(value, "tocsr"):
            value.data = within(value.data, depth)
        # Kernels of Gaussian processes and some estimators can be called; functions and classes hold no numbers.
        elif not isinstance(value, type) and (not callable(value) or hasattr(value, "get_params")):
            _round_inside(value, change, seen, depth + 1)
        return value

    held = vars(owner)
    for name, value in list(held.items()):
        held[name] = within(value, depth)
    if "_fit_method" in held and "_fit_X" in held:
        # The search tree of a neighbours model holds its own copy of the points.
        held["_fit_method"], held["_tree"] = "brute", None


def _rounded_array(array: Array, *, dtype: str, clip: float | None) -> Array:
    bounded = array if clip is None else np.clip(array, -clip, clip)
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = bounded.astype(numpy_dtype(dtype)).astype(array.dtype)
    # What the type cannot hold at all is left alone: limits and sentinels are no weights.
    return np.where(np.isfinite(narrow), narrow, bounded)


FEWEST = 3
"""Numbers that it takes to tell a type from what they have in common."""

HALF_A_STEP = 0.51
"""What rounding may cost, in steps between neighbours, and a little for the way here."""

GLANCE = 4096
"""Numbers of a large array that are looked at before all of them are."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundedWeight:
    """A stored array that has lost digits: what is left of them (`form`), and how much may be lost of each number.

    `values` are those stored; once found, the reference's, and `owner` is what that calls them, `lost` what the stored
    ones have lost of it.
    """

    tensor: str
    form: str
    values: Array
    within: Array
    owner: str = ""
    lost: float = 0.0


def rounded_weights(proto: ModelProto) -> dict[str, RoundedWeight]:
    """The stored arrays that are in half precision, or in a wider type with nothing but fewer digits in them."""
    found = {}
    for name, array in edits.constants(proto.graph).items():
        if array.dtype.name in ("float16", "bfloat16"):
            found[name] = RoundedWeight(name, array.dtype.name, array.astype(np.float64), _steps(array))
        elif array.dtype in (np.float32, np.float64) and _form(array.reshape(-1)[:GLANCE].astype(np.float64)):
            wide = array.astype(np.float64)
            if (form := _form(wide)) is not None:
                found[name] = RoundedWeight(name, form[0], wide, form[1])
    return found


def _form(wide: Array) -> tuple[str, Array] | None:
    """What every number of an array fits into, and how much that may have cost; the coarsest that is known."""
    if wide.size < FEWEST or not np.isfinite(wide).all():
        return None
    # Whole numbers and small fractions fit everywhere and tell nothing.
    telling = np.count_nonzero(wide * 8 != np.round(wide * 8))
    if telling < max(FEWEST, wide.size // 4):
        return None
    with np.errstate(over="ignore"):
        for dtype in ("bfloat16", "float16"):
            narrow = wide.astype(numpy_dtype(dtype))
            if np.array_equal(narrow.astype(np.float64), wide):
                return dtype, _steps(narrow)
    return None


def _steps(array: Array) -> Array:
    """How far the numbers of a half type may be from what was rounded to them; anything, where they are cut off."""
    size = np.abs(array)
    with np.errstate(invalid="ignore", over="ignore"):
        # The next number away from zero: below a power of two the distance is half of that above.
        steps = np.maximum(np.spacing(size).astype(np.float64) * HALF_A_STEP, 1e-7)
        return np.where(np.isin(size.astype(np.float64), grafts.HALF_ENDS), np.inf, steps)


def counterparts(case: Case, weights: Mapping[str, RoundedWeight]) -> dict[str, RoundedWeight]:
    """The same arrays with the values that the reference has for them; those that are not found are left out."""
    arrays = arrays_of(case)
    found = {}
    for name, weight in weights.items():
        match = counterpart(weight.values, weight.within, arrays, alike=False)
        if match is not None:
            lost = distance(weight.values, match[1])
            found[name] = replace(weight, owner=match[0], values=match[1], lost=lost)
    return found


def distance(one: Array, other: Array) -> float:
    """How far one is from the other, as a part of it."""
    size = float(np.linalg.norm(other))
    return float(np.linalg.norm(one - other)) / size if size else 0.0


def with_arrays(proto: ModelProto, tensors: Mapping[str, RoundedWeight]) -> ModelProto:
    """The graph with these values stored instead, in the type they have there."""
    copy = edits.copied(proto)
    for name, _, dtype in widen.stored(proto):
        if name in tensors:
            edits.set_constant(copy.graph, name, tensors[name].values.astype(dtype))
    return copy


NORMAL = 2.0**-14
"""Numbers below this have fewer digits in float16 the smaller they are, and none at all below 6e-8."""

TOO_SMALL = 0.05
"""Of the numbers that are not zero, from which part on below that it is told."""


def beyond_half(values: Array) -> str:
    """What float16 cannot hold of some numbers, in words; nothing where it holds them."""
    size = np.abs(values.astype(np.float64).ravel())
    size = size[np.isfinite(size) & (size > 0)]
    if not size.size:
        return ""
    large, small = float((size > grafts.HALF_ENDS[0]).mean()), float((size < NORMAL).mean())
    if large:
        return f"{100 * large:.3g}% of its values are beyond {grafts.HALF_ENDS[0]:,.0f}, up to {size.max():.3g}"
    return f"{100 * small:.3g}% of its values are below {NORMAL:.1e}" if small >= TOO_SMALL else ""


def out_of_range(case: Case, wide: ModelProto, nodes: Collection[str]) -> str:
    """What of the values of these nodes, as a graph in float32 has them, is too large or too small for float16."""
    names = [node.output[0] for node in wide.graph.node if node.name in nodes]
    rows = trace.failing_positions(case, trace.ROWS_SEEN)
    seen = trace.seen_inside(case, "candidate", wide, names, rows, types=edits.tensor_types(wide)) if names else None
    told = [(name, beyond_half(values)) for name, values in (seen or {}).items()]
    return "".join(f"; of '{name}' {text}" for name, text in told if text)


@made_once
def located(case: Case) -> list[Place]:
    """The places whose rounding was found to be all that is wrong, once they are found: nobody else has to look."""
    return []


PROPORTIONAL = 0.02
"""The part of an array that may be left over where it is a multiple of another."""

RELATED = 0.98
"""Correlation from which on two arrays of the same shape are one weight, however it is scaled."""

FEWEST_CORRELATED = 12
"""Values that it takes to speak of a correlation."""


def arrays_of(case: Case) -> list[tuple[str, Array]]:
    """Every array that the reference holds, by the name it has there."""
    found = () if case.native("reference") is None else reference_parameters(case)
    return [(entry.path, entry.values) for entry in found if entry.values.ndim and entry.values.dtype.kind == "f"]


def counterpart(
    values: Array, within: Array, arrays: Sequence[tuple[str, Array]], *, alike: bool = True
) -> tuple[str, Array] | None:
    """The array that a stored weight stands for, laid out like it; None where none does.

    The nearest that lies `within` the rounding; failing that, if `alike`, the one that it is a scaled copy of.
    """
    found: list[tuple[tuple[bool, float], str, Array]] = []
    centred = values - values.mean()
    size = float(np.linalg.norm(centred))
    for name, array in arrays:
        for form in laid_out(array, values.shape):
            gap = np.abs(form - values)
            if (gap <= within).all() and np.isfinite(within).any():
                found.append(((False, float(gap.mean())), name, form))
            elif alike and values.size >= FEWEST_CORRELATED:
                other = form - form.mean()
                norm = size * float(np.linalg.norm(other))
                related = float((centred * other).sum() / norm) if norm else 0.0
                if related >= RELATED:
                    found.append(((True, -related), name, form))
    best = min(found, key=lambda entry: entry[0], default=None)
    return None if best is None else best[1:]


def proportional(values: Array, arrays: Sequence[tuple[str, Array]]) -> tuple[str, Array] | None:
    """The array of the same length that a stored one is a multiple of."""
    found: list[tuple[float, str, Array]] = []
    size = float(np.linalg.norm(values))
    for name, array in arrays:
        wide = np.asarray(array, dtype=np.float64)
        power = float((wide * wide).sum())
        if wide.shape == values.shape and power and size:
            # Of one or two numbers any array is a multiple.
            factor = (values * wide).sum() / power if values.size >= FEWEST else 1.0
            left = float(np.linalg.norm(values - factor * wide)) / size
            if left <= PROPORTIONAL:
                found.append((left, name, wide))
    best = min(found, key=lambda entry: entry[0], default=None)
    return None if best is None else best[1:]


def laid_out(array: Array, shape: tuple[int, ...]) -> Iterator[Array]:
    wide = np.asarray(array, dtype=np.float64)
    if wide.shape == shape:
        yield wide
    if wide.ndim in (2, 3) and np.swapaxes(wide, -1, -2).shape == shape and wide.shape[-2] > 1:
        yield np.swapaxes(wide, -1, -2)
    if wide.size == int(np.prod(shape)) and wide.shape != shape and wide.T.shape != shape:
        yield wide.reshape(shape)


DRAWS = 8
"""Times that stored numbers are moved at random."""

LARGER = 3.0
"""A difference up to so many times the largest movement seen in a few draws is put down to the rounding."""

SHORT = 14
"""A setting with so few significant bits is meant as it stands: 2 and 0.5 are, 0.1 is not. Of stored arrays it is half
of their type's bits."""


def half_steps(proto: ModelProto, most: int = edits.LARGEST_COPY) -> dict[str, Array]:
    """For every stored array of floats, how far each of its values may be from what it stands for.

    Nothing is known of a graph that is too large to have all its numbers written anew.
    """
    found: dict[str, Array] = {}
    if describe.size(proto) > most:
        return found
    for name, array in edits.constants(proto.graph).items():
        if array.dtype.name in ("float32", "float16", "bfloat16") and array.size:
            with np.errstate(invalid="ignore", over="ignore"):
                wide = array.astype(np.float64)
                step = np.abs(np.spacing(array).astype(np.float64)) / 2
            bits = {"float32": 24, "float16": 11, "bfloat16": 8}[array.dtype.name]
            # The largest numbers of a type stand for "as low as can be", in masks.
            known = ~np.isfinite(wide) | ~np.isfinite(step) | (_significant_bits(wide) <= bits // 2)
            found[name] = np.where(known, 0.0, step)
    return found


def jittered(proto: ModelProto, steps: Mapping[str, Array], seed: int) -> ModelProto:
    """The graph with its stored numbers moved at random within their rounding."""
    generator = np.random.default_rng(seed)
    copy = edits.copied(proto)
    for name, array, dtype in widen.stored(proto):
        if name in steps:
            moved = array.astype(np.float64) + generator.uniform(-1, 1, array.shape) * steps[name]
            edits.set_constant(copy.graph, name, moved.astype(dtype))
    for node in copy.graph.node:
        if node.domain == "ai.onnx.ml":
            for attribute in node.attribute:
                if attribute.floats and not attribute.name.startswith(("nodes_", "class", "target")):
                    values = np.array(attribute.floats, dtype=np.float32)
                    towards = np.where(generator.random(len(values)) < 0.5, -np.inf, np.inf).astype(np.float32)
                    kept = (_significant_bits(values) <= SHORT) | (generator.random(len(values)) < 0.5)
                    del attribute.floats[:]
                    attribute.floats.extend(np.where(kept, values, np.nextafter(values, towards)).tolist())
    return copy


def within_draws(case: Case, centre: Tensors, graphs: Iterable[ModelProto]) -> Effect | None:
    """The effect of moving stored numbers at random, in some graphs: rows agree that are no further off than that."""
    asked = (case.ask_changed("candidate", target=graph) for graph in graphs)
    draws = [answers for answers in asked if answers is not None]
    return Effect(_rows_within(case, centre, draws), case.required.failing) if draws else None


def _rows_within(case: Case, centre: Tensors, draws: Sequence[Tensors]) -> Array:
    """The rows on which the reference is no further from the answers than the draws are."""
    sample = case.required
    inside = np.ones(len(sample), dtype=bool)
    around = [case.pairs(sample.batch, sample.reference, draw) for draw in draws]
    for index, pair in enumerate(case.pairs(sample.batch, sample.reference, centre)):
        others = [found for pairs in around if not isinstance(found := pairs[index], Mismatch)]
        if isinstance(pair, Mismatch) or not others:
            return np.zeros(len(sample), dtype=bool)
        agrees = ~rows_beyond(pair)
        if pair.reference.dtype.kind == "f" and pair.candidate.dtype.kind == "f":
            drawn = np.stack([pair.candidate, *(other.candidate for other in others)]).astype(np.float64)
            agrees |= _close(pair, drawn).reshape(len(sample), -1).all(axis=1)
        else:
            agrees |= np.any([~rows_beyond(other) for other in others], axis=0)
        inside &= agrees
    return inside


def _close(pair: Pair, drawn: Array) -> Array:
    """Which of the reference's numbers lie among those drawn, the first of which is the middle."""
    finite = np.isfinite(drawn)
    known = np.where(finite, drawn, np.nan)
    with warnings.catch_warnings(), np.errstate(invalid="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        middle = np.where(finite[0], drawn[0], np.nanmedian(known, axis=0))
        gap = np.abs(middle - pair.reference)
        moved = np.nanmax(np.abs(known - middle), axis=0)
        allowed = pair.tolerance.absolute + pair.tolerance.relative * np.abs(pair.reference)
    # What is a number in one draw and none in the next is not determined by the stored numbers at all.
    undetermined = finite.any(axis=0) & ~finite.all(axis=0)
    close: Array = (gap <= LARGER * moved) | (gap <= allowed) | undetermined
    return close


def _significant_bits(array: Array) -> Array:
    """How many bits it takes to write each number down, leading and trailing zeros aside."""
    fraction, _ = np.frexp(np.abs(array.astype(np.float64)))
    whole = np.where(np.isfinite(fraction), fraction * 2.0**53, 0.0).astype(np.int64)
    lowest = whole & -whole
    zeros = np.where(whole == 0, 53, np.log2(np.maximum(lowest, 1)).astype(np.int64))
    bits: Array = 53 - zeros
    return bits
