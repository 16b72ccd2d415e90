"""ONNX models, run by ONNX Runtime as they would be deployed, or by onnx's reference evaluator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import Any

from likewise import onnxgraph, rowaxes
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Model, Signature
from likewise.decoding import array_of_dicts, arrays_of_list, widened
from likewise.errors import ModelError
from likewise.onnxsessions import open_session, require_options


class OnnxAdapter:
    """Opens paths, bytes and ModelProto objects."""

    framework = "onnx"
    holds_interpreter = False

    def claims(self, target: object) -> bool:
        if isinstance(target, str | PathLike):
            return str(target).lower().endswith((".onnx", ".ort"))
        return isinstance(target, bytes) or type(target).__module__.startswith("onnx.onnx")

    def sharing(self, model: Model) -> Model:
        """The model, told not to keep a core busy while it waits; the answers are the same."""
        if model.options.get("runtime", "onnxruntime") != "onnxruntime":
            return model
        return replace(model, options={"session.intra_op.allow_spinning": "0", **model.options})

    def require_options(self, model: Model) -> None:
        require_options(model)

    @contextmanager
    def open(self, model: Model) -> Iterator[OnnxRunner]:
        yield OnnxRunner(model)


class OnnxRunner:
    """An open graph and what it declares."""

    def __init__(self, model: Model) -> None:
        proto = onnxgraph.read(model.target)
        self.native = proto
        self._session = open_session(model, proto)
        said = rowaxes.said_of(model)
        inputs, declared = onnxgraph.inputs(proto), onnxgraph.outputs(proto)
        self._fed_along = {spec.name: rowaxes.of_input(spec.name, spec.shape, said) for spec in inputs}
        self._declared = {spec.name: spec for spec in declared}
        inputs = tuple(replace(s, shape=rowaxes.rows_first(s.shape, self._fed_along[s.name])) for s in inputs)
        batches = {spec.shape[0] if spec.shape else None for spec in inputs}
        first = batches.pop() if len(batches) == 1 else None
        fixed = first if isinstance(first, int) else None
        self._row_axis = {s.name: rowaxes.of_output(s.name, s.shape, said, fixed_batch=fixed) for s in declared}
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


EXTENSION = OnnxAdapter()
