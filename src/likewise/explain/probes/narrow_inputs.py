"""The candidate is given its inputs in a narrower type than the reference, and digits are lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from likewise.contracts.data import Array
from likewise.data.cells import Edit, Field, names_of
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import ENOUGH, Change, Effect, Trial, smallest
from likewise.explain.fields import declared_types, fields_of
from likewise.explain.parts import decided_by_trees

NARROW = ("float32", "float16", "bfloat16")

HALF_ENOUGH = 0.9
"""Half precision at the inputs mostly comes with half precision inside, which is another cause."""

COINCIDENCE = 1e-3
"""A rounding this small against the spread of a feature matters to a tree only where a threshold happens to be."""


class NarrowInputs:
    """Feed the reference what the cast leaves of each column, and see whether it then answers like the candidate."""

    causes = ("float32-input-cast", "float32-threshold")
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        fields = fields_of(case)
        return bool(_at_the_door(case, fields) or _inside(case, fields))

    def test(self, case: Case) -> Sequence[Explained]:
        fields = fields_of(case)
        for types, where in ((_at_the_door(case, fields), ""), (_inside(case, fields), ", inside its graph")):
            if types and (found := _explained(case, types, where)):
                return [found]
        found = _with_its_constants(case, _at_the_door(case, fields))
        return [] if found is None else [found]


def _at_the_door(case: Case, fields: Sequence[Field]) -> dict[Field, str]:
    """The features that the candidate declares in a type that does not hold all of their values."""
    declared = declared_types(case, "candidate", fields)
    inputs = case.required.batch.inputs
    return {f: d for f, d in declared.items() if d in NARROW and rounded(f.of(inputs), d) is not None}


def _inside(case: Case, fields: Sequence[Field]) -> dict[Field, str]:
    """The features that a graph takes in full, and may still cast before it uses them."""
    if case.framework("candidate") != "onnx":
        return {}
    declared = declared_types(case, "candidate", fields)
    inputs = case.required.batch.inputs
    wide = [field for field in fields if declared.get(field) in ("float64", "int64", "int32", "uint64", "uint32")]
    return {field: "float32" for field in wide if rounded(field.of(inputs), "float32") is not None}


def rounded(array: Array, dtype: str) -> Array | None:
    """The values that are left after a cast there and back; None if all of them survive it."""
    import numpy as np

    from likewise.data.casts import numpy_dtype

    if array.dtype.kind not in "iuf":
        return None
    with np.errstate(all="ignore"):
        there = array.astype(numpy_dtype(dtype))
        if array.dtype.kind == "f":
            back = there.astype(array.dtype)
            return None if np.array_equal(back, array, equal_nan=True) else back
        limits = np.iinfo(array.dtype)
        # 2**63 as a float is one more than the largest integer.
        back = np.clip(there.astype(np.float64), limits.min, np.nextafter(float(limits.max), 0)).astype(array.dtype)
    return None if np.array_equal(back, array) else back


def _with_its_constants(case: Case, types: Mapping[Field, str]) -> Explained | None:
    """The same with a reference whose own numbers are rounded too: what is taken off a large value is large itself."""
    if not types or set(types.values()) != {"float32"}:
        return None
    from likewise.explain.rounding import rounded as rounded_reference

    twin = rounded_reference(case, "float32")
    if twin is None:
        return None
    with case.opened("reference", target=twin) as opened:
        if opened is None:
            return None
        reference = Change("reference", opened=opened)
        alone = Trial.some(case).run(reference)
        if alone is None or alone.share >= ENOUGH:
            return None
        return _explained(case, types, ", and with its constants rounded as well", reference=reference)


def _explained(
    case: Case,
    types: Mapping[Field, str],
    where: str,
    *,
    reference: Change = Change("reference"),  # noqa: B008
) -> Explained | None:
    """One experiment with all columns, then with as few as it takes."""
    enough = HALF_ENOUGH if set(types.values()) != {"float32"} else 0.0
    trial = Trial.some(case)
    fields = sorted(types, key=lambda field: -_loss(trial.values(field), types[field]))
    together = _effect(trial, types, fields, reference)
    if together is None or not together.explains or together.share < enough:
        return None
    bar = 0.95 * together.share

    def does(some: Sequence[Field]) -> bool:
        effect = _effect(trial, types, some, reference)
        return effect is not None and effect.share >= bar

    few = smallest(fields, does)
    whole = _effect(Trial.whole(case), types, few, reference)
    if whole is None or not whole.explains or whole.share < enough:
        return None
    names, dtype = names_of(few), types[few[0]]
    worst = max(_loss(trial.values(field), types[field]) for field in few)
    by_chance = worst < COINCIDENCE and decided_by_trees(case)
    return Explained(
        "float32-threshold" if by_chance else "float32-input-cast",
        names,
        f"given {names} rounded to {dtype}, as the candidate has it{where}, the reference agrees with it on "
        f"{int(whole.covered.sum()):,} of {int(whole.failing.sum()):,} failing rows"
        + ("; the rounded value is on the other side of a threshold of its trees" if by_chance else ""),
        f"Export with {names} as double inputs (likewise export --double), or subtract a constant from large values "
        "before the model is fitted",
        covered=whole.covered,
        simplicity=3 if by_chance else 2,
    )


def _effect(trial: Trial, types: Mapping[Field, str], fields: Sequence[Field], reference: Change) -> Effect | None:
    changes = []
    for field in fields:
        values = trial.values(field)
        narrow = rounded(values, types[field])
        if narrow is not None:
            changes.append(Edit(field, narrow != values, narrow))
    return trial.run(replace(reference, cells=changes)) if changes else None


def _loss(values: Array, dtype: str) -> float:
    """The largest change by the cast, measured in the spread of the values."""
    import numpy as np

    narrow = rounded(values, dtype)
    if narrow is None:
        return 0.0
    before = values.astype(np.float64)
    finite = np.isfinite(before)
    spread = float(np.std(before[finite])) if finite.any() else 0.0
    change = np.abs(narrow[finite].astype(np.float64) - before[finite])
    return float(change.max() / spread) if spread > 0 and change.size else float("inf")


EXTENSION = NarrowInputs()
