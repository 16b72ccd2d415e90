"""The same model in another precision, where its framework has one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from likewise.cases import graph_with_weights
from likewise.columns import with_columns
from likewise.contracts.data import Array, Batch, Tensors
from likewise.errors import ModelError
from likewise.noising.subject import Subject
from likewise.structure import graph_edits, rounding, widening


def in_double(subject: Subject) -> tuple[Tensors, Tensors]:
    """What the model answers to inputs that float32 can hold, as it is and when it computes in float64."""
    batch = as_single(subject.batch)
    before = subject.answers if batch is None else subject.ask(batch)
    # The optimiser has fusions that know float32 only.
    options = {"optimization": "disable"} if subject.framework == "onnx" else {}
    return before, subject.ask_other(target=_doubled(subject), batch=batch, **options)


def as_single(batch: Batch, *, keep_type: bool = True) -> Batch | None:
    """The rows with what float32 leaves of their numbers, as float64 or as float32; None if nothing changes."""
    import numpy as np

    wide = {name: array for name, array in batch.inputs.items() if array.dtype == np.float64}
    with np.errstate(over="ignore"):
        narrow = {name: array.astype(np.float32) for name, array in wide.items()}
    if keep_type:
        narrow = {name: array.astype(np.float64) for name, array in narrow.items()}
        if all(np.array_equal(narrow[name], wide[name], equal_nan=True) for name in wide):
            return None
    return _with(batch, narrow) if wide else None


def as_double(batch: Batch) -> Batch | None:
    """The rows with their float32 numbers as float64; None if there are none."""
    import numpy as np

    narrow = {name: array for name, array in batch.inputs.items() if array.dtype == np.float32}
    return _with(batch, {name: array.astype(np.float64) for name, array in narrow.items()}) if narrow else None


def _with(batch: Batch, columns: dict[str, Array]) -> Batch:
    return replace(batch, inputs=with_columns(batch.inputs, columns))


def _doubled(subject: Subject) -> Any:
    if subject.framework == "torch":
        twin = rounding.copied_module(subject.side.runner.native)
        if twin is None:
            raise ModelError("the module cannot be copied")
        return twin.double()
    return _wide_graph(subject)


def _wide_graph(subject: Subject) -> Any:
    """The graph in double; refused where every operator that computes has no kernel for it."""
    proto = graph_edits.editable(graph_with_weights(subject.model))
    if proto is None:
        raise ModelError("the graph is too large to be copied")
    plan = widening.Widening(graph_edits.tensor_types(proto))
    computing = widening.computing_nodes(proto, plan)
    found = widening.runnable(proto, plan) if computing else None
    if found is None:
        raise ModelError("nothing in the graph can be computed in float64")
    wide, tried = found
    narrow = sorted({node.op_type for node in computing if node.op_type in tried.narrow_ops})
    if all(node.op_type in tried.narrow_ops for node in computing):
        raise ModelError(f"ONNX Runtime computes {', '.join(narrow)} in float32 only")
    if narrow:
        subject.notes.append(f"precision: {', '.join(narrow)} still compute in float32: there is no wider kernel")
    return wide
