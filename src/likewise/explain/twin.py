"""The reference as a graph: itself, or what it gives when it is exported now, once that is seen to answer like it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from likewise.compare.call import answers
from likewise.compare.observe import prepare
from likewise.contracts.comparison import Incident
from likewise.contracts.data import Array, Batch
from likewise.contracts.models import ExportRequest, Model
from likewise.data.columns import ArrayColumns
from likewise.explain import counterparts
from likewise.explain.case import Case, made_once
from likewise.explain.experiment import Effect, Trial
from likewise.explain.weights import matching
from likewise.models.arrays import RowLayout
from likewise.models.onnx import describe, edits, grafts
from likewise.models.onnx.inside import Opened
from likewise.registry import exporters, open_model

if TYPE_CHECKING:
    from onnx import ModelProto

SECONDS_FOR_EXPORT = 4.0
"""An export that captures a program is not begun with less time left."""


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
    """The reference as a graph that answers as it does, where there is one."""
    if case.framework("reference") == "onnx":
        proto = case.editable("reference")
        if proto is None:
            return None
        graph = Opened.of(proto, case.tensor_types("reference"))
        same = {spec.reference: spec.reference for spec in case.specs}
        return Twin(graph, "reference", lambda batch: counterparts.fed(case, "reference", batch), same, exported=False)
    for make in (matching.twin, _exported):
        proto = make(case)
        found = None if proto is None else _as_it_answers(case, proto)
        if found is not None:
            return found
    return None


def _exported(case: Case) -> ModelProto | None:
    """What the reference's own exporter makes of it now, by the way and the opset that the candidate was made with."""
    native, candidate = case.native("reference"), case.graph()
    exporter = next((known for known in exporters() if known.claims(native)), None)
    if exporter is None or case.seconds_left() < SECONDS_FOR_EXPORT:
        return None
    runner = case.runners["reference"]
    fed, _ = case.side("reference").feed(case.required.batch)
    recorded = candidate.producer_name == "pytorch" and not any(node.metadata_props for node in candidate.graph.node)
    for opset in (grafts.opset(candidate, ""), None):
        request = ExportRequest(
            native,
            runner.signature,
            fed,
            # It is open for inference now, in whatever mode it was found.
            details={name: value for name, value in runner.details.items() if name != "training_mode"},
            batch_axis=case.plan.reference.options.get("batch_axis"),
            opset=opset,
            recorded=recorded,
        )
        try:
            with case.waiting():
                return exporter.export(request)
        except Exception:  # noqa: BLE001 - exporters raise anything; without a twin there is less to compare
            continue
    return None


def _as_it_answers(case: Case, proto: ModelProto) -> Twin | None:
    """An export of the reference, if it answers like it on rows that fail now."""
    model = Model("onnx", proto.SerializeToString())
    trial, runner = Trial.few(case), case.runners["reference"]
    try:
        with open_model(model) as opened:
            plan = replace(case.plan, candidate=model, pair={}, feed={})
            prepared = prepare(plan, runner, opened, trial.batch)
            if isinstance(prepared, Incident) or prepared.pairing.mismatches:
                return None
            theirs, _ = answers(prepared.candidate, trial.batch)
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it is of no use
        return None
    specs = [case.as_judged(spec) for spec in prepared.pairing.pairs]
    if not specs or Effect(case.agreeing(trial.batch, trial.reference, theirs, specs), trial.failing).share < 1 - 1e-9:
        return None
    written = edits.editable(proto)
    assert written is not None
    graph, feed = Opened.of(written, edits.tensor_types(written)), prepared.candidate.feed
    layout = RowLayout(model, describe.inputs(written), ())

    def inputs(batch: Batch) -> dict[str, Array]:
        return layout.feed(replace(batch, inputs=ArrayColumns(dict(feed(batch)[0].inputs))))

    return Twin(graph, "candidate", inputs, {spec.reference: spec.candidate for spec in specs}, exported=True)
