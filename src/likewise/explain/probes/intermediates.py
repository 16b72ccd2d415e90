"""The wrong tensor is the output: a hidden layer, a step before the last, a sibling of what it should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.compare.align import align
from likewise.compare.differences import is_numeric
from likewise.compare.observe import rows_beyond
from likewise.contracts.comparison import Mismatch, Pair, PairSpec, Tolerance
from likewise.contracts.data import Array
from likewise.contracts.models import Kind
from likewise.contracts.report import Place
from likewise.explain import answers, trace
from likewise.explain.case import Case, Explained, probe
from likewise.explain.counterparts import parts_of
from likewise.explain.experiment import Trial
from likewise.explain.features import innermost, input_of_last_step

if TYPE_CHECKING:
    from onnx import ModelProto

FEW_ROWS = 48
"""Rows on which they are looked at."""

ALIKE = 0.98
"""Two tensors are the same if so many of the rows agree."""

WIDE = Tolerance(1e-3, 1e-2)
"""In a tolerance wider than this, tensors would be taken for one another."""


@probe("wrong-intermediate", when=lambda case: case.required.batch.stacked and bool(_concerned(case)))
def intermediates(case: Case) -> Sequence[Explained]:
    """Look for the reference's answer among the candidate's tensors, and for the candidate's among the reference's."""
    trial = Trial.few(case, FEW_ROWS)
    return list(_right_elsewhere(case, trial)) or list(_something_else(case, trial))


def _concerned(case: Case) -> list[PairSpec]:
    """Outputs that differ or could not be put side by side, numbers only."""
    failing = [pair.spec for pair in case.failing_pairs()]
    paired = [pair.spec for pair in case.required.pairs]
    found = []
    for spec in case.specs:
        theirs = case.required.candidate.get(spec.candidate)
        if theirs is None or not is_numeric(theirs) or spec.reference not in case.required.reference:
            continue
        if any(spec is one for one in failing) or not any(spec is one for one in paired):
            found.append(spec)
    return found


def _right_elsewhere(case: Case, trial: Trial) -> Iterator[Explained]:
    """Tensors of the candidate that the output is not made from, and that are what it should be."""
    if case.graph() is None:
        return
    leading = {spec.candidate: _sources(case.graph(), spec.candidate) for spec in _concerned(case)}
    inside = trace.looked_into(case, trial.batch, apart_from=set.intersection(*leading.values()))
    if inside is None:
        return
    for spec in _concerned(case):
        ours, sources = trial.reference[spec.reference], leading[spec.candidate]
        # The last one is the nearest to what an output is.
        for name, array in reversed(list(inside.values.items())):
            if name not in inside.made_by or name in sources or not _same(spec, ours, array, case):
                continue
            with trace.reader(case, name) as read:
                told = read(case.required.batch)
            if told is None:
                continue
            effect = Trial.whole(case).effect(candidate={**case.required.candidate, spec.candidate: told})
            if effect.explains:
                yield effect.explained(
                    "wrong-intermediate",
                    Place(
                        spec.name,
                        (f"output '{spec.candidate}' instead of tensor '{name}'",),
                        outputs=(spec.candidate,),
                        tensors=(name,),
                    ),
                    f"tensor '{name}' of the candidate's graph, which its output '{spec.candidate}' is not made from, "
                    f"agrees with the reference on {effect.told}",
                    f"Make '{name}' the output of the graph",
                    simplicity=3,
                )
                return


def _something_else(case: Case, trial: Trial) -> Iterator[Explained]:
    """Something the reference computes on its way, and that is what the candidate answers."""
    concerned = _concerned(case)
    if not concerned or case.native("reference") is None:
        return
    inner = _of_reference(case, trial)
    for spec in concerned:
        theirs, right = trial.candidate[spec.candidate], trial.reference[spec.reference]
        for name, array in inner.items():
            if answers.distinct(array) < 2 or _same(spec, right, array, case):
                continue
            if _same(spec, array, theirs, case):
                # What else a row is wrong in is not told by this output.
                told = [rows_beyond(p) if p.spec is spec else ~rows_beyond(p) for p in case.required.pairs]
                yield Explained(
                    "wrong-intermediate",
                    Place(spec.name, (f"output '{spec.candidate}' is {name}",), outputs=(spec.candidate,)),
                    f"on {len(trial)} rows looked at, the candidate's '{spec.candidate}' is {name} of the "
                    f"reference, not its {spec.name}",
                    f"Export the whole model: what it gives at the end is {spec.name}",
                    covered=np.logical_and.reduce([case.required.failing, *told]),
                )
                return


def _same(spec: PairSpec, ours: Array, theirs: Array, case: Case) -> bool:
    """Do two arrays hold the same numbers, row by row, whatever the shape of a row?"""
    if not (is_numeric(ours) and is_numeric(theirs)) or ours.shape[:1] != theirs.shape[:1]:
        return False
    if spec.columns is not None or spec.reference_column is not None or spec.expand is not None:
        aligned = align(spec, ours, theirs) if theirs.ndim == 2 or spec.columns is None else None
        if aligned is None or isinstance(aligned, Mismatch):
            return False
        ours, theirs = aligned
    if ours.size != theirs.size or not ours.size:
        return False
    known = case.tolerance
    tolerance = answers.forgiving(Tolerance(min(known.absolute, WIDE.absolute), min(known.relative, WIDE.relative)))
    plain = replace(spec, kind=Kind.VALUE, columns=None, reference_column=None, expand=None)
    batch = case.rows(np.arange(len(ours)))
    pair = Pair(plain, batch, ours, theirs.reshape(ours.shape), tolerance, nan_equal=case.plan.nan_equal)
    return bool(rows_beyond(pair).mean() <= 1 - ALIKE)


def _sources(proto: Any, output: str) -> set[str]:
    """The tensors that an output of a graph is made from."""
    found = {output}
    for node in reversed(proto.graph.node):
        if found.intersection(node.output):
            found.update(node.input)
    return found


def _of_reference(case: Case, trial: Trial) -> Mapping[str, Array]:
    """What the reference computes before its answer, and its other answers, by a name for a person."""
    framework = case.framework("reference")
    if framework == "onnx":
        proto = case.editable("reference")
        made = [] if proto is None else _of_its_size(case, proto, trial)
        told = None if proto is None else trace.seen_inside(case, "reference", proto, made, trial.positions)
        found = {f"tensor '{name}'": array for name, array in (told or {}).items()}
    else:
        step = "step " if framework == "sklearn" else ""
        parts = [part for part in parts_of(case, trial.batch) if part.gave is not None]
        found = {f"what {step}'{part.path}' gives": np.asarray(part.gave) for part in parts}
        found |= _of_last_step(case, trial) if framework == "sklearn" else _activated(found)
    return {name: array for name, array in found.items() if is_numeric(array) and array.shape[:1] == (len(trial),)}


def _of_its_size(case: Case, proto: ModelProto, trial: Trial) -> list[str]:
    """The tensors of the reference that may be an output, by their size: all of them at once may be too many."""
    made = [name for node in proto.graph.node for name in node.output if name]
    concerned = _concerned(case)
    if any(spec.columns is not None or spec.reference_column is not None or spec.expand for spec in concerned):
        return made
    sizes = {trial.candidate[spec.candidate].size // len(trial) for spec in concerned}
    seen = trace.seen_inside(case, "reference", proto, made, trial.positions[:1]) or {}
    return [name for name, array in seen.items() if array.ndim and array.size in {n * len(array) for n in sizes}]


def _activated(parts: Mapping[str, Array]) -> dict[str, Array]:
    """Activations are often functions, which no module stands for."""
    ways: dict[str, Callable[[Array], Array]] = {
        "relu": lambda x: np.maximum(x, 0),
        "tanh": np.tanh,
        "sigmoid": answers.sigmoid,
    }
    return {
        f"{name}, after a {told}": way(array)
        for name, array in parts.items()
        if is_numeric(array)
        for told, way in ways.items()
    }


def _of_last_step(case: Case, trial: Trial) -> dict[str, Array]:
    """What the methods of the last step give."""
    case.require_time()
    model, found = innermost(case), dict[str, Array]()
    try:
        data = input_of_last_step(case, trial.batch)
        for method in ("decision_function", "predict_log_proba", "score_samples", "transform", "predict_proba"):
            if hasattr(model, method):
                value = getattr(model, method)(data)
                found[f"{method} of the model"] = np.asarray(value.toarray() if hasattr(value, "toarray") else value)
    except Exception:  # noqa: BLE001 - a method that refuses these rows ends the list, no more
        pass
    return found


EXTENSIONS = (intermediates,)
