"""An output that is another tensor of the model: a hidden layer, a step before the last, a sibling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from likewise.compare.align import align
from likewise.compare.differences import is_numeric
from likewise.compare.observe import rows_beyond
from likewise.contracts.comparison import Mismatch, Pair, PairSpec, Tolerance
from likewise.contracts.data import Array
from likewise.contracts.models import Kind
from likewise.contracts.report import Place
from likewise.explain import answers
from likewise.explain.case import Case, Explained, probe
from likewise.explain.counterparts import parts_of
from likewise.explain.experiment import Trial
from likewise.explain.features import innermost, input_of_last_step
from likewise.explain.trace import looked_into, reader, seen_inside

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
    inside = looked_into(case, trial.batch) if case.graph() is not None else None
    if inside is None:
        return
    sources = _sources(case.graph())
    for spec in _concerned(case):
        ours = trial.reference[spec.reference]
        # The last one is the nearest to what an output is.
        for name, array in reversed(list(inside.values.items())):
            if name not in inside.made_by or name in sources[spec.candidate] or not _same(spec, ours, array, case):
                continue
            with reader(case, name) as read:
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
                yield Explained(
                    "wrong-intermediate",
                    Place(spec.name, (f"output '{spec.candidate}' is {name}",), outputs=(spec.candidate,)),
                    f"on {len(trial)} rows looked at, the candidate's '{spec.candidate}' is {name} of the "
                    f"reference, not its {spec.name}",
                    f"Export the whole model: what it gives at the end is {spec.name}",
                    covered=case.required.failing & _fails(case, spec),
                )
                return


def _fails(case: Case, spec: PairSpec) -> Array:
    """The rows that fail on this output."""
    for pair in case.required.pairs:
        if pair.spec is spec:
            return rows_beyond(pair)
    return case.required.failing


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


def _sources(proto: Any) -> Mapping[str, set[str]]:
    """For each output of a graph the tensors it is made from."""
    producers = {name: node for node in proto.graph.node for name in node.output}
    found: dict[str, set[str]] = {}
    for value in proto.graph.output:
        seen: set[str] = set()
        queue = [value.name]
        while queue:
            name = queue.pop()
            if name in seen:
                continue
            seen.add(name)
            node = producers.get(name)
            queue.extend(node.input if node is not None else ())
        found[value.name] = seen
    return found


def _of_reference(case: Case, trial: Trial) -> Mapping[str, Array]:
    """What the reference computes before its answer, and its other answers, by a name for a person."""
    if case.framework("reference") == "onnx":
        proto = case.editable("reference")
        made = [] if proto is None else [name for node in proto.graph.node for name in node.output if name]
        told = None if proto is None else seen_inside(case, "reference", proto, made, trial.positions)
        found = {f"tensor '{name}'": array for name, array in (told or {}).items()}
    elif case.framework("reference") == "sklearn":
        found = {f"what step '{name}' gives": array for name, array in _given_by_parts(case, trial)}
        found |= _of_last_step(case, trial)
    else:
        found = {f"what '{name}' gives": array for name, array in _given_by_parts(case, trial)}
        # Activations are often functions, which no module stands for.
        for name, array in list(found.items()):
            found[f"{name}, after a relu"] = np.maximum(array, 0)
            found[f"{name}, after a tanh"] = np.tanh(array)
            found[f"{name}, after a sigmoid"] = answers.sigmoid(array)
    return {name: array for name, array in found.items() if is_numeric(array) and array.shape[:1] == (len(trial),)}


def _given_by_parts(case: Case, trial: Trial) -> Iterator[tuple[str, Array]]:
    yield from ((part.path, part.gave) for part in parts_of(case, trial.batch) if part.gave is not None)


def _of_last_step(case: Case, trial: Trial) -> dict[str, Array]:
    """The methods and hidden layers of the last step."""
    case.require_time()
    model, found = innermost(case), dict[str, Array]()
    try:
        data = input_of_last_step(case, trial.batch)
        for method in ("decision_function", "predict_log_proba", "score_samples", "transform", "predict_proba"):
            if hasattr(model, method):
                value = getattr(model, method)(data)
                found[f"{method} of the model"] = np.asarray(value.toarray() if hasattr(value, "toarray") else value)
        found |= _hidden_layers(model, data)
    except Exception:  # noqa: BLE001 - a method that refuses these rows ends the list, no more
        pass
    return found


def _hidden_layers(model: Any, data: Any) -> dict[str, Array]:
    """The layers of scikit-learn's networks."""
    if not hasattr(model, "coefs_") or not hasattr(model, "intercepts_"):
        return {}
    ways: dict[str, Any] = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh, "logistic": answers.sigmoid}
    values = np.asarray(data, dtype=np.float64)
    found: dict[str, Array] = {}
    for index, (weights, bias) in enumerate(zip(model.coefs_[:-1], model.intercepts_[:-1], strict=True), 1):
        sums = values @ weights + bias
        values = ways.get(model.activation, np.asarray)(sums)
        found[f"hidden layer {index} of the network"] = values
        found[f"hidden layer {index} of the network before its activation"] = sums
    return found


EXTENSION = intermediates
