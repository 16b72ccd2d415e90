"""The reference as a graph: itself, or what an exporter makes of it now. And a candidate that is none.

An estimator is converted for the inputs that the candidate declares, a network captured as the candidate was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.compare.call import answers
from likewise.compare.observe import prepare
from likewise.contracts.comparison import Incident, Pair
from likewise.contracts.data import Array, Batch
from likewise.contracts.models import ExportRequest, Model, Runner
from likewise.data.columns import ArrayColumns
from likewise.explain import remedies
from likewise.explain.case import Case, made_once, rows_agreeing
from likewise.explain.experiment import Trial
from likewise.explain.trace import fed
from likewise.models import quietly
from likewise.models.arrays import RowLayout
from likewise.models.onnx import describe, edits, grafts
from likewise.models.onnx.inside import Opened, constants
from likewise.registry import exporters, open_model

if TYPE_CHECKING:
    from onnx import ModelProto

SECONDS = 3.0
"""A conversion is not begun with less time left."""

SECONDS_FOR_EXPORT = 4.0
"""An export that captures a program is not begun with less time left."""

CAPTURED = ("node_", "val_")
"""How names begin in a graph of a captured program: what is left of its exporter where the metadata are gone."""


@made_once
def converted(case: Case) -> ModelProto | None:
    """The graph that the reference gives today, or None. A conversion cannot be stopped, and takes nobody's time.

    One with the candidate's own operators, if there is a way to it: others keep what was learnt in other forms.
    """
    if case.framework("reference") == "onnx":
        graph: ModelProto | None = case.graph("reference")
        return graph
    candidate, native = case.graph("candidate"), case.native("reference")
    if candidate is None or not hasattr(native, "get_params"):
        return None
    found: ModelProto | None = None
    for convert in (partial(_by_skl2onnx, native, candidate), partial(_by_likewise, case, candidate)):
        if not case.lasts(SECONDS):
            break
        with case.waiting():
            made = convert()
        if made is not None and _operators(made) == _operators(candidate):
            return made
        found = found or made
    return found


def _operators(proto: ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def _by_likewise(case: Case, candidate: ModelProto) -> ModelProto | None:
    """What `likewise export` makes of the reference, in the precision of the candidate."""
    exporter = remedies.exporter_of(case)
    double = any(constant.values.dtype == np.float64 for constant in constants(candidate))
    try:
        return None if exporter is None else exporter.export(remedies.request_of(case, double=double))
    except Exception:  # noqa: BLE001 - converters raise anything; without a twin there is less to compare
        return None


def _by_skl2onnx(model: Any, candidate: ModelProto) -> ModelProto | None:
    """An estimator converted for the candidate's inputs; of one that has no converter, the steps before it."""
    try:
        from skl2onnx import convert_sklearn, get_latest_tested_opset_version
        from sklearn.base import is_classifier
        from sklearn.pipeline import Pipeline
    except ImportError:
        return None
    model = getattr(model, "best_estimator_", model)
    types = _types(candidate)
    parts = [model, model[:-1]] if isinstance(model, Pipeline) and len(model) > 1 else [model]
    older = {"": get_latest_tested_opset_version(), "ai.onnx.ml": 3}
    for part in parts:
        options = {id(part): {"zipmap": False}} if is_classifier(part) else None
        for opset, given in ((None, options), (older, options), (None, None)):
            try:
                with quietly():
                    found: ModelProto = convert_sklearn(part, initial_types=types, target_opset=opset, options=given)
            except Exception:  # noqa: BLE001 - converters raise anything; without a twin there is less to compare
                continue
            return found
    return None


def _types(candidate: ModelProto) -> list[tuple[str, Any]]:
    from onnx import TensorProto
    from skl2onnx.common import data_types

    known = {
        TensorProto.FLOAT: data_types.FloatTensorType,
        TensorProto.DOUBLE: data_types.DoubleTensorType,
        TensorProto.INT64: data_types.Int64TensorType,
        TensorProto.INT32: data_types.Int32TensorType,
        TensorProto.BOOL: data_types.BooleanTensorType,
        TensorProto.STRING: data_types.StringTensorType,
    }
    stored = {tensor.name for tensor in candidate.graph.initializer}
    found = []
    for value in candidate.graph.input:
        if value.name not in stored:
            held = value.type.tensor_type
            shape = [dim.dim_value if dim.dim_value > 0 else None for dim in held.shape.dim]
            found.append((value.name, known.get(held.elem_type, data_types.FloatTensorType)([None, *shape[1:]])))
    return found


@contextmanager
def with_graph(case: Case) -> Iterator[Case | None]:
    """The same case with what the candidate's own exporter makes of it in its place, which can be edited.

    None where it cannot be exported, or the export answers otherwise than the candidate.
    """
    runner, side, sample = case.runners["candidate"], case.side("candidate"), case.required
    exporter = next((known for known in exporters() if known.claims(runner.native)), None)
    if exporter is None or not case.lasts(SECONDS):
        yield None
        return
    with ExitStack() as stack:
        try:
            with case.waiting():
                fed = side.feed(sample.batch)[0]
                proto = exporter.export(ExportRequest(runner.native, runner.signature, fed, details=runner.details))
            model = Model("onnx", proto.SerializeToString())
            found = _in_its_place(case, model, stack.enter_context(open_model(model)))
        except Exception:  # noqa: BLE001 - exporters raise anything; without a graph there is less to look at
            found = None
        # Outside of what is caught: what ends a probe is not about the export.
        yield found


def _in_its_place(case: Case, model: Model, opened: Runner) -> Case | None:
    sample, runners = case.required, {**case.runners, "candidate": opened}
    # Held against the candidate itself first, then against the reference as the candidate was.
    itself = replace(case, runners={**case.runners, "reference": case.runners["candidate"]})
    plan = replace(case.plan, candidate=model, pair={}, feed={})
    alike = itself.compared(replace(plan, reference=case.plan.candidate), opened, sample.batch)
    prepared = prepare(plan, case.runners["reference"], opened, sample.batch)
    if alike is None or not alike[1].all() or isinstance(prepared, Incident) or prepared.pairing.mismatches:
        return None
    ours, theirs = (answers(side, sample.batch, case.call_rows)[0] for side in (prepared.reference, prepared.candidate))
    graphed = replace(case, plan=plan, runners=runners, known={})
    graphed.reference, graphed.candidate = prepared.reference, prepared.candidate
    graphed.specs = tuple(case.as_judged(spec) for spec in prepared.pairing.pairs)
    pairs = graphed.pairs(sample.batch, ours, theirs)
    known = tuple(pair for pair in pairs if isinstance(pair, Pair))
    failing = ~rows_agreeing(pairs, len(sample))
    graphed.sample = replace(sample, reference=ours, candidate=theirs, pairs=known, failing=failing)
    return graphed


@dataclass(frozen=True, slots=True, eq=False)
class Twin:
    """The reference as a graph. `side` is whose settings it is run with; `exported`: it was made for this."""

    graph: Opened
    side: str
    inputs: Callable[[Batch], dict[str, Array]]
    outputs: Mapping[str, str]
    exported: bool


@made_once
def twin(case: Case) -> Twin | None:
    """The reference as a graph that answers as it does: itself, or what it gives when it is exported now."""
    if case.framework("reference") == "onnx":
        proto = case.editable("reference")
        if proto is None:
            return None
        graph = Opened.of(proto, case.tensor_types("reference"))
        same = {spec.reference: spec.reference for spec in case.specs}
        return Twin(graph, "reference", lambda batch: fed(case, "reference", batch), same, exported=False)
    known = converted(case)
    made = chain(() if known is None else (known,), _exported(case))
    return next((found for proto in made if (found := _as_it_answers(case, proto)) is not None), None)


def _exported(case: Case) -> Iterator[ModelProto]:
    """What the reference's own exporter makes of it now, by the way and the opset that the candidate was made with."""
    exporter, candidate = remedies.exporter_of(case), case.graph()
    if exporter is None:
        return
    # It is open for inference now, in whatever mode it was found.
    details = {**case.runners["reference"].details, "training_mode": False}
    # What was made another way still holds the same values.
    for recorded in (True, False) if _recorded(candidate) else (False,):
        for opset in (grafts.opset(candidate, ""), None):
            if not case.lasts(SECONDS_FOR_EXPORT):
                return
            request = remedies.request_of(case, details=details, opset=opset, recorded=recorded)
            try:
                with case.waiting():
                    made = exporter.export(request)
            except Exception:  # noqa: BLE001 - exporters raise anything; without a twin there is less to compare
                continue
            yield made
            break


def _recorded(candidate: ModelProto) -> bool:
    """Was a graph made by torch's older exporter, which records a run?"""
    if candidate.producer_name != "pytorch":
        return False
    nodes = candidate.graph.node
    names = (name for node in nodes for name in (node.name, *node.output))
    return not any(node.metadata_props for node in nodes) and not any(name.startswith(CAPTURED) for name in names)


def _as_it_answers(case: Case, proto: ModelProto) -> Twin | None:
    """An export of the reference, if it answers like it on rows that fail now."""
    try:
        found = remedies.in_candidates_place(Trial.few(case), proto)
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it is of no use
        return None
    if found is None or not found[0].pairing.pairs or found[1].share < 1 - 1e-9:
        return None
    written = edits.editable(proto, case.largest_copy)
    if written is None:
        return None
    feed = found[0].candidate.feed
    layout = RowLayout(Model("onnx", written), describe.inputs(written), ())

    def inputs(batch: Batch) -> dict[str, Array]:
        return layout.feed(replace(batch, inputs=ArrayColumns(dict(feed(batch)[0].inputs))))

    outputs = {spec.reference: spec.candidate for spec in found[0].pairing.pairs}
    return Twin(Opened.of(written, edits.tensor_types(written)), "candidate", inputs, outputs, exported=True)
