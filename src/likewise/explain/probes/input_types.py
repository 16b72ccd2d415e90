"""The candidate takes a column in another type: digits are lost, fractions cut, integers wrap, numbers become text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.data.cells import Edit, Field, names_of
from likewise.data.columns import numpy_dtype
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import ENOUGH, MOST_ALONE, Change, Effect, Trial, fewest, first
from likewise.explain.features import decided_by_trees, declared_types, fields_of
from likewise.explain.rounding import rounded as rounded_reference

NARROW = ("float32", "float16", "bfloat16")
WHOLE = ("int", "uint", "bool")
WIDE = ("float64", "int64", "int32", "uint64", "uint32")

HALF_ENOUGH = 0.9
"""Half precision at the inputs mostly comes with half precision inside, which is another cause."""

COINCIDENCE = 1e-3
"""A rounding this small against the spread of a feature matters to a tree only where a threshold happens to be."""

INTEGERS = frozenset({2, 3, 4, 5, 6, 7, 12, 13})
"""The codes of ONNX for the integer types of all sizes."""

PASSING = frozenset(
    [
        *("ArrayFeatureExtractor", "Concat", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split"),
        *("Squeeze", "Transpose", "Unsqueeze"),
    ]
)
"""Operators that hand values on as they are."""

SPELLINGS: Mapping[str, Callable[[float], str]] = {
    "whole numbers without a point": lambda value: str(int(value)) if value == int(value) else str(value),
    "numbers with a point": lambda value: str(float(value)),
    "the shortest form": lambda value: f"{value:g}",
}

Types = Mapping[Field, str]
"""The narrower type in which the candidate may have some features."""


class NarrowInputs:
    """Feed the reference what a float type leaves of each column: does it then answer like the candidate?"""

    causes = ("float32-input-cast", "float32-threshold")
    needs_answers = True
    slow = False

    def plausible(self, case: Case) -> bool:
        return bool(_declared(case, NARROW) or _wide(case))

    def test(self, case: Case) -> Sequence[Explained]:
        declared = _declared(case, NARROW)
        found = (
            _rounded(case, declared)
            or _rounded(case, _wide(case), ", inside its graph")
            or _rounded_with_constants(case, declared)
        )
        return [] if found is None else [found]


class InputTypes:
    """Feed the reference what whole numbers leave of a column; or the candidate the text it may have meant."""

    causes = ("input-type", "integer-overflow")
    needs_answers = True
    slow = False

    def plausible(self, case: Case) -> bool:
        return bool(_declared(case, WHOLE) or _cut_inside(case) or _spelt(case))

    def test(self, case: Case) -> Sequence[Explained]:
        found = (
            _whole_numbers(case, _declared(case, WHOLE), inside=False)
            or _whole_numbers(case, _doing_good(case, _cut_inside(case)), inside=True)
            or _as_text(case, _spelt(case))
        )
        return [] if found is None else [found]


def _declared(case: Case, kinds: tuple[str, ...]) -> dict[Field, str]:
    """The features that the candidate declares in a type of these kinds that does not hold all of their values."""
    inputs = case.required.batch.inputs
    declared = declared_types(case, "candidate", fields_of(case))
    return {f: d for f, d in declared.items() if d.startswith(kinds) and _left_of(f.of(inputs), d) is not None}


def _wide(case: Case) -> dict[Field, str]:
    """The features that a graph takes in full, and may still cast before it uses them."""
    if case.framework("candidate") != "onnx":
        return {}
    inputs = case.required.batch.inputs
    declared = declared_types(case, "candidate", fields_of(case))
    return {f: "float32" for f, d in declared.items() if d in WIDE and _left_of(f.of(inputs), "float32") is not None}


def _cut_inside(case: Case) -> dict[Field, str]:
    """The features with fractions that a graph takes in full and casts to whole numbers before anything else."""
    graph = case.graph()
    if graph is None:
        return {}
    cut = _inputs_cast_to_whole_numbers(graph)
    inputs = case.required.batch.inputs
    routes = case.side("candidate").feed.routes or ()
    taken = {column for route in routes if route.input.name in cut for column in route.columns}
    declared = _declared(case, WHOLE)
    open_ = [field for field in fields_of(case) if field.column in taken and field not in declared]
    return {field: "int64" for field in open_ if _left_of(field.of(inputs), "int64") is not None}


def _inputs_cast_to_whole_numbers(graph: Any) -> set[str]:
    """The inputs of a graph that reach a cast to integers without having been computed with."""
    carries: dict[str, set[str]] = {given.name: {given.name} for given in graph.graph.input}
    found: set[str] = set()
    for node in graph.graph.node:
        sources = set().union(*(carries.get(name, set()) for name in node.input))
        to = next((attribute.i for attribute in node.attribute if attribute.name == "to"), None)
        if node.op_type == "Cast" and to in INTEGERS:
            found |= sources
        elif node.op_type in PASSING:
            carries |= dict.fromkeys(node.output, sources)
    return found


def _left_of(array: Array, dtype: str) -> Array | None:
    """The values after a cast there and back; None if all of them survive it, or the column holds no numbers."""
    if array.dtype.kind not in "biuf":
        return None
    finite = np.isfinite(array) if array.dtype.kind == "f" else np.ones(len(array), dtype=bool)
    back = array.copy()
    with np.errstate(all="ignore"):
        there = array[finite].astype(numpy_dtype(dtype))
        if array.dtype.kind in "iu" and there.dtype.kind not in "biu":
            limits = np.iinfo(array.dtype)
            # 2**63 as a float is one more than the largest integer.
            there = np.clip(there.astype(np.float64), limits.min, np.nextafter(float(limits.max), 0))
        back[finite] = there.astype(array.dtype)
    return None if np.array_equal(back[finite], array[finite]) else back


def _loss(values: Array, dtype: str) -> float:
    """The largest change by the cast, measured in the spread of the values."""
    left = _left_of(values, dtype)
    if left is None:
        return 0.0
    before = values.astype(np.float64)
    finite = np.isfinite(before)
    spread = float(np.std(before[finite])) if finite.any() else 0.0
    change = np.abs(left[finite].astype(np.float64) - before[finite])
    return float(change.max() / spread) if spread > 0 and change.size else float("inf")


def _given(types: Types, reference: Change, trial: Trial, fields: Sequence[Field]) -> Effect | None:
    """The reference given what the casts leave of some features."""
    cells = []
    for field in fields:
        values = trial.values(field)
        left = _left_of(values, types[field])
        if left is not None:
            cells.append(Edit(field, left != values, left))
    return trial.run(replace(reference, cells=cells)) if cells else None


def _cast(
    case: Case,
    types: Types,
    *,
    reference: Change = Change("reference"),  # noqa: B008
    enough: float = ENOUGH,
) -> tuple[tuple[Field, ...], Effect] | None:
    """The fewest features whose casts explain as much as all of them: those that lose most are tried first."""
    trial = Trial.some(case)
    fields = sorted(types, key=lambda field: -_loss(trial.values(field), types[field]))
    return fewest(case, fields, partial(_given, types, reference), enough=enough)


def _place(fields: Sequence[Field]) -> Place:
    return Place(names_of(fields), columns=tuple(field.name for field in fields))


def _rounded(
    case: Case,
    types: Types,
    where: str = "",
    *,
    reference: Change = Change("reference"),  # noqa: B008
) -> Explained | None:
    found = _cast(case, types, reference=reference, enough=HALF_ENOUGH if set(types.values()) - {"float32"} else ENOUGH)
    if found is None:
        return None
    few, effect = found
    place, trial = _place(few), Trial.some(case)
    worst = max(_loss(trial.values(field), types[field]) for field in few)
    by_chance = worst < COINCIDENCE and decided_by_trees(case)
    return Explained(
        "float32-threshold" if by_chance else "float32-input-cast",
        place,
        f"given {place} rounded to {types[few[0]]}, as the candidate has it{where}, the reference agrees with it on "
        + effect.told
        + ("; the rounded value is on the other side of a threshold of its trees" if by_chance else ""),
        f"Export with {place} as double inputs (likewise export --double), or subtract a constant from large values "
        "before the model is fitted",
        covered=effect.covered,
        simplicity=3 if by_chance else 2,
    )


def _rounded_with_constants(case: Case, types: Types) -> Explained | None:
    """The same with a reference whose own numbers are rounded too: what is taken off a large value is large itself."""
    if set(types.values()) != {"float32"}:
        return None
    twin = rounded_reference(case, "float32")
    if twin is None:
        return None
    with case.opened("reference", target=twin) as opened:
        reference = Change("reference", opened=opened)
        alone = None if opened is None else Trial.some(case).run(reference)
        if alone is None or alone.share >= ENOUGH:
            return None
        return _rounded(case, types, ", and with its constants rounded as well", reference=reference)


def _whole_numbers(case: Case, types: Types, *, inside: bool) -> Explained | None:
    found = _cast(case, types)
    if found is None:
        return None
    few, effect = found
    place, dtype = _place(few), types[few[0]]
    wraps = all(_only_wraps(field.of(case.required.batch.inputs), types[field]) for field in few)
    how = f"the candidate casts {place} to whole numbers" if inside else f"the candidate takes {place} as {dtype}"
    return Explained(
        "integer-overflow" if wraps else "input-type",
        place,
        f"{how}; given what that leaves ({_example(case, few[0], dtype)}), the reference agrees with it on "
        + effect.told,
        f"Keep fractions out of {place}, which the exporter takes for whole numbers"
        if inside
        else f"Export again with {place} as {'int64' if wraps else 'a float input'}: the type comes from the sample or "
        "the initial_types given to the exporter",
        covered=effect.covered,
        simplicity=2,
    )


def _doing_good(case: Case, types: Types) -> Types:
    """The columns whose cast makes rows agree and none disagree: of one wide input, a graph may cast only some."""
    if len(types) <= 1:
        return types
    trial = Trial.some(case)
    effects = {field: _given(types, Change("reference"), trial, [field]) for field in list(types)[:MOST_ALONE]}
    return {f: types[f] for f, effect in effects.items() if effect is not None and effect.share > 0 == effect.damage}


def _only_wraps(array: Array, dtype: str) -> bool:
    """Are all the values whole numbers, so that only their size can be what does not fit?"""
    if dtype == "bool":
        return False
    return array.dtype.kind in "iu" or bool(np.all((array == np.trunc(array)) | ~np.isfinite(array)))


def _example(case: Case, field: Field, dtype: str) -> str:
    """One value of a failing row, before and after."""
    values = field.of(case.required.batch.inputs)
    left = _left_of(values, dtype)
    if left is None:
        return "nothing"
    touched = np.flatnonzero((left != values) & np.isfinite(values))
    failing = touched[case.required.failing[touched]]
    row = int((failing if len(failing) else touched)[0])
    return f"{values[row]:.6g} becomes {left[row]:.6g}"


def _spelt(case: Case) -> list[Field]:
    """The features that are numbers in the data and text to the candidate."""
    inputs = case.required.batch.inputs
    declared = declared_types(case, "candidate", fields_of(case))
    return [f for f, dtype in declared.items() if dtype == "string" and f.of(inputs).dtype.kind in "biuf"]


def _as_text(case: Case, fields: Sequence[Field]) -> Explained | None:
    """The candidate fed the numbers in another spelling."""
    if not fields:
        return None
    way = first(case, SPELLINGS, lambda trial, told: _respelt(told, trial, fields))
    found = None if way is None else fewest(case, fields, partial(_respelt, way[0]))
    if way is None or found is None:
        return None
    place, effect = _place(found[0]), found[1]
    return Explained(
        "input-type",
        place,
        f"the candidate takes {place} as text; fed as {way[0]}, it agrees with the reference on {effect.told}",
        f"Export again with {place} as a number, or store it as the text the model was fitted with",
        covered=effect.covered,
        simplicity=2,
    )


def _respelt(way: str, trial: Trial, fields: Sequence[Field]) -> Effect | None:
    cells, spell = [], SPELLINGS[way]
    for field in fields:
        values = trial.values(field)
        known = np.isfinite(values.astype(np.float64))
        text = [spell(value) if told else "" for value, told in zip(values.tolist(), known, strict=True)]
        cells.append(Edit(field, np.ones(len(values), dtype=bool), np.array(text, dtype=object)))
    return trial.run(Change(cells=cells))


EXTENSIONS = (NarrowInputs(), InputTypes())
