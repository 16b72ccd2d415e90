"""ONNX models, run by ONNX Runtime as they would be deployed, or by onnx's reference evaluator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import Any

from likewise import onnxgraph, rowaxes
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Model, OutputSpec, Shape, Signature
from likewise.decoding import array_of_dicts, arrays_of_list, widened
from likewise.errors import ModelError
from likewise.onnxsessions import open_session
from likewise.rowaxes import RowAxes


class OnnxAdapter:
    """Opens paths, bytes and ModelProto objects."""

    framework = "onnx"

    def claims(self, target: object) -> bool:
        if isinstance(target, str | PathLike):
            return str(target).lower().endswith((".onnx", ".ort"))
        return isinstance(target, bytes) or type(target).__module__.startswith("onnx.onnx")

    @contextmanager
    def open(self, model: Model) -> Iterator[OnnxRunner]:
        yield OnnxRunner(model)


class OnnxRunner:
    """An open graph and what it declares."""

    def __init__(self, model: Model) -> None:
        proto = onnxgraph.read(model.target)
        self.native = proto
        self._session = open_session(model, proto)
        said = rowaxes.parse(model.options.get("batch_axis"))
        inputs, declared = onnxgraph.inputs(proto), onnxgraph.outputs(proto)
        self._fed_along = {spec.name: _input_axis(spec.name, spec.shape, said) for spec in inputs}
        self._declared = {spec.name: spec for spec in declared}
        inputs = tuple(replace(s, shape=rowaxes.rows_first(s.shape, self._fed_along[s.name])) for s in inputs)
        batches = {spec.shape[0] if spec.shape else None for spec in inputs}
        first = batches.pop() if len(batches) == 1 else None
        fixed = first if isinstance(first, int) else None
        self._row_axis = {spec.name: _row_axis(spec, said, fixed) for spec in declared}
        self.signature = Signature(
            inputs=inputs,
            outputs=tuple(replace(s, shape=rowaxes.rows_first(s.shape, self._row_axis[s.name])) for s in declared),
            batch=fixed,
        )
        self.details: Mapping[str, Any] = {**onnxgraph.details(proto), **self._session.settings}

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        # All outputs are always computed: leaving one out would let the optimiser remove nodes that run in production.
        inputs = dict(batch.inputs)
        if batch.stacked:
            inputs = {name: rowaxes.from_front(array, self._fed_along.get(name, 0)) for name, array in inputs.items()}
        tensors: dict[str, Array] = {}
        for name, answer in zip(self._session.outputs, self._session.run(inputs), strict=True):
            tensors.update(self._decode(name, answer, stacked=batch.stacked))
        return tensors

    def _decode(self, name: str, answer: Any, *, stacked: bool) -> dict[str, Array]:
        import numpy as np

        if isinstance(answer, dict):
            answer = [answer]
        if isinstance(answer, list):
            if answer and isinstance(answer[0], dict):
                return {name: array_of_dicts(answer, self._declared[name].classes)[0]}
            return arrays_of_list(name, answer)
        if answer is None:
            raise ModelError(f"output {name!r} is empty: an optional value that the model left out")
        array = widened(np.asarray(answer))
        return {name: rowaxes.to_front(array, self._row_axis[name]) if stacked else array}


def _input_axis(name: str, shape: Shape | None, said: RowAxes) -> int:
    """Axis 0, unless the user says otherwise or the file calls another axis the batch."""
    stated = said.of(name, len(shape or ()))
    return stated if stated is not None else rowaxes.declared(shape) or 0


def _row_axis(spec: OutputSpec, said: RowAxes, fixed_batch: int | None) -> int:
    """Axis 0, unless the file declares another: by name, or as the only free one (one block a target)."""
    shape = spec.shape or ()
    free = [axis for axis, dim in enumerate(shape) if not isinstance(dim, int)]
    if spec.name in said.named:
        return said.named[spec.name]
    if (named := rowaxes.declared(shape)) is not None:
        return named
    # Where the inputs fix the batch, a free axis is a length, not the rows.
    if shape and isinstance(shape[0], int) and len(free) == 1 and fixed_batch is None:
        return free[0]
    stated = said.of(spec.name, len(shape))
    return stated if stated in free else 0


EXTENSION = OnnxAdapter()
