"""The candidate takes a column as another type: fractions are cut off, integers wrap, numbers are spelt as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from likewise.contracts.data import Array
from likewise.data.cells import Edit, Field, names_of
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import MOST_ALONE, Change, Effect, Trial, smallest
from likewise.explain.fields import declared_types, fields_of

INTEGERS = frozenset({2, 3, 4, 5, 6, 7, 12, 13})
"""The codes of ONNX for the integer types of all sizes."""

PASSING = frozenset(
    [
        *("ArrayFeatureExtractor", "Concat", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split"),
        *("Squeeze", "Transpose", "Unsqueeze"),
    ]
)
"""Operators that hand values on as they are."""


class InputTypes:
    """Feed the reference what the candidate's type leaves of a column; or the candidate the text it may have meant."""

    causes = ("input-type", "integer-overflow")
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        fields = fields_of(case)
        return bool(_declared(case, fields) or _cut_inside(case, fields) or _spelt(case, fields))

    def test(self, case: Case) -> Sequence[Explained]:
        fields = fields_of(case)
        declared = _declared(case, fields)
        found = _whole_numbers(case, declared, inside=False)
        if found is None:
            inside = dict.fromkeys((field for field in _cut_inside(case, fields) if field not in declared), "int64")
            found = _whole_numbers(case, _doing_good(case, inside), inside=True)
        if found is None:
            found = _as_text(case, _spelt(case, fields))
        return [] if found is None else [found]


def _declared(case: Case, fields: Sequence[Field]) -> dict[Field, str]:
    """The features declared as whole numbers or yes/no, whose values are not all of that kind."""
    inputs = case.required.batch.inputs
    return {
        field: dtype
        for field, dtype in declared_types(case, "candidate", fields).items()
        if dtype.startswith(("int", "uint", "bool")) and left_of(field.of(inputs), dtype) is not None
    }


def _cut_inside(case: Case, fields: Sequence[Field]) -> list[Field]:
    """The features with fractions that a graph takes in full and casts to whole numbers before anything else."""
    graph = case.graph()
    if graph is None:
        return []
    cut = _inputs_cast_to_whole_numbers(graph)
    inputs = case.required.batch.inputs
    routes = case.side("candidate").feed.routes or ()
    taken = {column for route in routes if route.input.name in cut for column in route.columns}
    return [field for field in fields if field.column in taken and left_of(field.of(inputs), "int64") is not None]


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


def _spelt(case: Case, fields: Sequence[Field]) -> list[Field]:
    """The features that are numbers in the data and text to the candidate."""
    inputs = case.required.batch.inputs
    declared = declared_types(case, "candidate", fields)
    return [f for f in fields if declared.get(f) == "string" and f.of(inputs).dtype.kind in "biuf"]


def left_of(array: Array, dtype: str) -> Array | None:
    """The values after a cast to whole numbers and back; None if all survive, or the column holds no numbers."""
    import numpy as np

    if array.dtype.kind not in "biuf":
        return None
    finite = np.isfinite(array) if array.dtype.kind == "f" else np.ones(len(array), dtype=bool)
    back = array.copy()
    with np.errstate(all="ignore"):
        back[finite] = array[finite].astype(np.dtype(dtype)).astype(array.dtype)
    return None if np.array_equal(back[finite], array[finite]) else back


def _whole_numbers(case: Case, types: Mapping[Field, str], *, inside: bool) -> Explained | None:
    """The reference fed what is left after the cast, with all the columns and then with as few as it takes."""
    if not types:
        return None
    trial = Trial.some(case)
    together = _effect(trial, types, list(types))
    if together is None or not together.explains:
        return None

    def does(some: Sequence[Field]) -> bool:
        effect = _effect(trial, types, some)
        return effect is not None and effect.share >= 0.95 * together.share

    few = smallest(list(types), does)
    whole = _effect(Trial.whole(case), types, few)
    if whole is None or not whole.explains:
        return None
    names = names_of(few)
    wraps = all(_only_wraps(field.of(case.required.batch.inputs), types[field]) for field in few)
    dtype = types[few[0]]
    how = f"the candidate casts {names} to whole numbers" if inside else f"the candidate takes {names} as {dtype}"
    return Explained(
        "integer-overflow" if wraps else "input-type",
        names,
        f"{how}; given what that leaves ({_example(case, few[0], dtype)}), the reference agrees "
        f"with it on {int(whole.covered.sum()):,} of {int(whole.failing.sum()):,} failing rows",
        f"Keep fractions out of {names}, which the exporter takes for whole numbers"
        if inside
        else f"Export again with {names} as {'int64' if wraps else 'a float input'}: the type comes from the sample or "
        "the initial_types given to the exporter",
        covered=whole.covered,
        simplicity=2,
    )


def _doing_good(case: Case, types: Mapping[Field, str]) -> dict[Field, str]:
    """The columns whose cast makes rows agree and none disagree: of one wide input, a graph may cast only some."""
    if len(types) <= 1:
        return dict(types)
    trial = Trial.some(case)
    effects = {field: _effect(trial, types, [field]) for field in list(types)[:MOST_ALONE]}
    return {f: types[f] for f, effect in effects.items() if effect is not None and effect.share > 0 == effect.damage}


def _effect(trial: Trial, types: Mapping[Field, str], fields: Sequence[Field]) -> Effect | None:
    changes = []
    for field in fields:
        values = trial.values(field)
        left = left_of(values, types[field])
        if left is not None:
            changes.append(Edit(field, left != values, left))
    return trial.run(Change("reference", cells=changes)) if changes else None


def _only_wraps(array: Array, dtype: str) -> bool:
    """Are all the values whole numbers, so that only their size can be what does not fit?"""
    import numpy as np

    if dtype == "bool":
        return False
    return array.dtype.kind in "iu" or bool(np.all((array == np.trunc(array)) | ~np.isfinite(array)))


def _example(case: Case, field: Field, dtype: str) -> str:
    """One value of a failing row, before and after."""
    import numpy as np

    values = field.of(case.required.batch.inputs)
    left = left_of(values, dtype)
    if left is None:
        return "nothing"
    touched = np.flatnonzero((left != values) & np.isfinite(values))
    failing = touched[case.required.failing[touched]]
    row = int((failing if len(failing) else touched)[0])
    return f"{values[row]:.6g} becomes {left[row]:.6g}"


SPELLINGS: Mapping[str, Callable[[float], str]] = {
    "whole numbers without a point": lambda value: str(int(value)) if value == int(value) else str(value),
    "numbers with a point": lambda value: str(float(value)),
    "the shortest form": lambda value: f"{value:g}",
}


def _as_text(case: Case, fields: Sequence[Field]) -> Explained | None:
    """The candidate fed the numbers in another spelling."""
    if not fields:
        return None
    trial, whole = Trial.some(case), Trial.whole(case)
    for told, spell in SPELLINGS.items():
        effect = whole.run(Change("candidate", cells=[_respelt(whole, field, spell) for field in fields]))
        if effect is None or not effect.explains:
            continue
        names = names_of(smallest(fields, _doing(trial, spell, 0.95 * effect.share)))
        return Explained(
            "input-type",
            names,
            f"the candidate takes {names} as text; fed as {told}, it agrees with the reference on "
            f"{int(effect.covered.sum()):,} of {int(effect.failing.sum()):,} failing rows",
            f"Export again with {names} as a number, or store it as the text the model was fitted with",
            covered=effect.covered,
            simplicity=2,
        )
    return None


def _doing(trial: Trial, spell: Callable[[float], str], bar: float) -> Callable[[Sequence[Field]], bool]:
    def does(some: Sequence[Field]) -> bool:
        effect = trial.run(Change("candidate", cells=[_respelt(trial, field, spell) for field in some]))
        return effect is not None and effect.share >= bar

    return does


def _respelt(trial: Trial, field: Field, spell: Callable[[float], str]) -> Edit:
    import numpy as np

    values = trial.values(field)
    known = np.isfinite(values.astype(np.float64))
    text = [spell(value) if told else "" for value, told in zip(values.tolist(), known, strict=True)]
    return Edit(field, np.ones(len(values), dtype=bool), np.array(text, dtype=object))


EXTENSION = InputTypes()
