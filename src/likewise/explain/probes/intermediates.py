"""An output that is another tensor of the model: a hidden layer, a step before the last, a sibling."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from likewise.compare.differences import is_numeric
from likewise.compare.observe import align, rows_beyond
from likewise.contracts.comparison import Mismatch, Pair, PairSpec, Tolerance
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Kind
from likewise.contracts.report import Place
from likewise.explain import answers
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Trial
from likewise.models.onnx import edits

MOST_TENSORS = 400
"""Tensors of a graph that are looked at, from its end."""

FEW_ROWS = 48
"""Rows on which they are looked at."""

ALIKE = 0.98
"""Two tensors are the same if so many of the rows agree."""

MOST_ELEMENTS = 4_000_000
"""Larger tensors are not looked at."""

WIDE = Tolerance(1e-3, 1e-2)
"""In a tolerance wider than this, tensors would be taken for one another."""


class Intermediates:
    """Look for the reference's answer among the candidate's tensors, and for the candidate's among the reference's."""

    causes = ("wrong-intermediate",)
    needs_answers = True
    slow = False

    def plausible(self, case: Case) -> bool:
        return case.required.batch.stacked and bool(_concerned(case))

    def test(self, case: Case) -> Sequence[Explained]:
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
    proto = case.editable()
    if proto is None:
        return
    tensors = _tensors_of(case, "candidate", proto, trial.batch)
    sources = _sources(proto)
    for spec in _concerned(case):
        ours = trial.reference[spec.reference]
        # The last one is the nearest to what an output is.
        for name, array in reversed(list(tensors.items())):
            if name in sources[spec.candidate] or not _same(spec, ours, array, case):
                continue
            exposed = edits.exposed(proto, [name], case.tensor_types())
            told = _asked(case, "candidate", exposed, [name], None)
            if told is None or name not in told:
                continue
            effect = Trial.whole(case).effect(candidate={**case.required.candidate, spec.candidate: told[name]})
            if effect.explains:
                yield Explained(
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
                    covered=effect.covered,
                    simplicity=3,
                )
                return


def _something_else(case: Case, trial: Trial) -> Iterator[Explained]:
    """Something the reference computes on its way, and that is what the candidate answers."""
    concerned = _concerned(case)
    if not concerned or case.native("reference") is None:
        return
    inner = _of_reference(case, trial.batch)
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
                    simplicity=3,
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


def _tensors_of(case: Case, side: str, proto: Any, batch: Batch) -> Tensors:
    """What flows through a graph on some rows, with a row each."""
    made = [name for node in proto.graph.node if node.op_type != "Constant" for name in node.output if name]
    names = made[-MOST_TENSORS:]
    exposed = edits.exposed(proto, names, case.tensor_types(side))
    told = _asked(case, side, exposed, names, batch) or {}
    return {name: array for name, array in told.items() if 0 < array.size <= MOST_ELEMENTS}


def _asked(case: Case, side: str, proto: Any, names: Sequence[str], batch: Batch | None) -> Tensors | None:
    """A changed graph asked once; tensors without a row each are left out instead of refused."""
    with case.opened(side, target=proto) as opened:
        if opened is None:
            return None
        return case.ask(replace(opened, ignored=frozenset(names), outputs=None), batch)


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


def _of_reference(case: Case, batch: Batch) -> Mapping[str, Array]:
    """What the reference computes before its answer, and its other answers, by a name for a person."""
    model = case.native("reference")
    if case.framework("reference") == "onnx":
        proto = case.editable("reference")
        told = {} if proto is None else _tensors_of(case, "reference", proto, batch)
        return {f"tensor '{name}'": array for name, array in told.items()}
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        return _of_module(case, model, batch)
    if case.framework("reference") == "sklearn":
        return _of_steps(case, model, batch)
    return {}


def _of_module(case: Case, model: Any, batch: Batch) -> Mapping[str, Array]:
    """What each module gives, as seen on its way."""
    seen: dict[str, Array] = {}

    def look(name: str) -> Any:
        def hook(_module: Any, _inputs: Any, output: Any) -> None:
            if hasattr(output, "detach") and output.ndim and name not in seen:
                seen[name] = output.detach().cpu().float().numpy()

        return hook

    handles = []
    try:
        for name, module in model.named_modules():
            if name and hasattr(module, "register_forward_hook"):
                handles.append(module.register_forward_hook(look(f"what '{name}' gives")))
        case.ask("reference", batch)
    except RuntimeError:  # a captured program has modules that take no hooks
        return {}
    finally:
        for handle in handles:
            handle.remove()
    kept = {name: array for name, array in seen.items() if len(array) == len(batch) and array.size <= MOST_ELEMENTS}
    # Activations are often functions, which no module stands for.
    for name, array in list(kept.items()):
        kept[f"{name}, after a relu"] = np.maximum(array, 0)
        kept[f"{name}, after a tanh"] = np.tanh(array)
        kept[f"{name}, after a sigmoid"] = answers.sigmoid(array)
    return kept


def _of_steps(case: Case, model: Any, batch: Batch) -> Mapping[str, Array]:
    """What each step of a pipeline gives, and the methods and hidden layers of the last one."""
    case.require_time()
    side = case.side("reference")
    fed, _ = side.feed(batch)
    signature = side.runner.signature
    data: Any = fed.inputs["X"] if signature.inputs is not None and not signature.table else fed.inputs.frame()
    found: dict[str, Any] = {}
    while hasattr(model, "best_estimator_"):
        model = model.best_estimator_
    try:
        if hasattr(model, "steps"):
            for name, step in model.steps[:-1]:
                data = data if step in (None, "passthrough") else step.transform(data)
                found[f"what step '{name}' gives"] = data
            model = model.steps[-1][1]
        for method in ("decision_function", "predict_log_proba", "score_samples", "transform", "predict_proba"):
            if hasattr(model, method):
                found[f"{method} of the model"] = getattr(model, method)(data)
        found |= _hidden_layers(model, data)
    except Exception:  # noqa: BLE001 - a method that refuses these rows ends the list, no more
        pass
    arrays = {
        name: np.asarray(value.toarray() if hasattr(value, "toarray") else value) for name, value in found.items()
    }
    return {name: array for name, array in arrays.items() if is_numeric(array) and len(array) == len(batch)}


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


EXTENSION = Intermediates()
