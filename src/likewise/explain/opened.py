"""Graphs of a case run with what is inside of them laid open: as they are written, or as the runtime makes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array, Batch
from likewise.contracts.models import Model
from likewise.errors import ModelError
from likewise.explain.case import Case
from likewise.explain.experiment import Trial
from likewise.models.arrays import RowAxes, from_front
from likewise.models.onnx import describe, edits
from likewise.models.onnx.inside import Opened, rewritten
from likewise.models.onnx.open import open_session

if TYPE_CHECKING:
    from onnx import ModelProto


SEEN_AS_WRITTEN = 0.5
"""A graph is shown as it is written if running it so moves its answers by no more than this part of the difference."""


def opened(case: Case, side: str, positions: Array) -> tuple[Opened, bool]:
    """A side's graph in the form in which the difference is in it; and whether the runtime has rewritten that.

    Names are those that its owner knows wherever the graph as it is written differs like the one that runs. Where it
    does not, the optimiser is at fault, and only the graph that it makes shows where.
    """
    written = case.editable(side)
    if written is None:
        raise ModelError(f"the graph of the {side} is too large to be opened up")
    if side == "candidate" and _optimised(case) and not _differs_as_written(case, positions):
        made = rewritten(case.plan.candidate, written)
        return Opened.of(made, edits.tensor_types(made)), True
    return Opened.of(written, case.tensor_types(side)), False


def _optimised(case: Case) -> bool:
    options = case.plan.candidate.options
    ours = options.get("runtime", "onnxruntime") == "onnxruntime"
    return bool(ours and options.get("optimization", "all") != "disable")


def _differs_as_written(case: Case, positions: Array) -> bool:
    batch = case.rows(positions)
    plain = case.ask_changed("candidate", options={"optimization": "disable"}, batch=batch)
    # Asked about the same rows again: the answers of some models depend on the rows beside.
    running = case.ask("candidate", batch)
    if plain is None or running is None:
        return True
    apart = Trial(case, positions).gap()
    return Trial(case, positions).moved(plain, running) <= SEEN_AS_WRITTEN * apart


def fed(case: Case, side: str, batch: Batch) -> dict[str, Array]:
    """The inputs of a side's graph for these rows, with the axes in the order it wants them."""
    model: Model = getattr(case.plan, side)
    inputs = case.fed(side, batch)
    if not batch.stacked:
        return dict(inputs)
    said, specs = RowAxes.said_of(model), {spec.name: spec for spec in describe.inputs(case.graph(side))}
    return {
        name: from_front(array, said.of_input(name, specs[name].shape) if name in specs else 0)
        for name, array in inputs.items()
    }


def run(case: Case, side: str, proto: ModelProto, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """All outputs of a graph that hold arrays; the runtime takes it as it stands."""
    import numpy as np

    case.require_time()
    model: Model = getattr(case.plan, side)
    options = dict(model.options)
    if options.get("runtime", "onnxruntime") == "onnxruntime":
        options = {"optimization": "disable", **{k: v for k, v in options.items() if k != "optimization"}}
    session = open_session(replace(model, target=proto, options=options), proto)
    wanted = {value.name for value in proto.graph.input}
    answers: Any = session.run({name: array for name, array in inputs.items() if name in wanted})
    return {
        name: np.asarray(answer)
        for name, answer in zip(session.outputs, answers, strict=True)
        if answer is not None and not isinstance(answer, list | dict)
    }


def inside(
    case: Case, side: str, graph: Opened, names: Collection[str], inputs: Mapping[str, Array]
) -> dict[str, Array]:
    """The values of these tensors of a graph, its inputs among them."""
    given = {name: inputs[name] for name in names if name in inputs}
    made = [name for name in names if name in graph.makers and name in graph.types]
    if not made:
        return given
    proto = edits.exposed(graph.proto, made, graph.types)
    found = run(case, side, proto, inputs)
    return {**given, **{name: found[name] for name in made if name in found}}
