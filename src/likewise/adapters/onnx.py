"""ONNX models, run by ONNX Runtime as they would be deployed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from typing import Any

from likewise import onnxgraph
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Model, OutputSpec, Signature
from likewise.decoding import array_of_dicts, arrays_of_list
from likewise.errors import ModelError, UsageError, nearest, one_line

OPTIMIZATIONS = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}
OPTIONS = ("providers", "optimization", "threads", "inter_threads", "disabled_optimizers", "trusted")


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
    """An inference session and what its graph declares."""

    def __init__(self, model: Model) -> None:
        proto = onnxgraph.read(model.target)
        self.native = proto
        self._session, settings = _session(model)
        self._names = [value.name for value in self._session.get_outputs()]
        declared = onnxgraph.outputs(proto)
        self._row_axis = {spec.name: _row_axis(spec) for spec in declared}
        self._declared = {spec.name: spec for spec in declared}
        inputs = onnxgraph.inputs(proto)
        batches = {spec.shape[0] if spec.shape else None for spec in inputs}
        fixed = batches.pop() if len(batches) == 1 else None
        self.signature = Signature(
            inputs=inputs,
            outputs=tuple(_rows_first(spec, self._row_axis[spec.name]) for spec in declared),
            batch=fixed if isinstance(fixed, int) else None,
        )
        self.details: Mapping[str, Any] = {**onnxgraph.details(proto), **settings}

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        # All outputs are always computed: leaving one out would let the optimiser remove nodes that run in production.
        try:
            answers = self._session.run(self._names, dict(batch.inputs))
        except Exception as error:  # the runtime raises many types; all mean that it did not answer
            raise ModelError(f"ONNX Runtime could not run it: {one_line(error)}") from error
        tensors: dict[str, Array] = {}
        for name, answer in zip(self._names, answers, strict=True):
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
        array = np.asarray(answer)
        axis = self._row_axis[name]
        return {name: np.moveaxis(array, axis, 0) if stacked and axis and array.ndim > axis else array}


def _session(model: Model) -> tuple[Any, dict[str, Any]]:
    import onnxruntime as ort

    options = dict(model.options)
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    level = options.get("optimization", "all")
    if level not in OPTIMIZATIONS:
        raise UsageError(f"unknown optimization {level!r}", remedy=f"Choose one of: {', '.join(OPTIMIZATIONS)}")
    settings.graph_optimization_level = getattr(ort.GraphOptimizationLevel, OPTIMIZATIONS[level])
    settings.intra_op_num_threads = int(options.get("threads", 0))
    settings.inter_op_num_threads = int(options.get("inter_threads", 0))
    for key, value in options.items():
        if key.startswith("session."):
            settings.add_session_config_entry(key, str(value))
        elif key not in OPTIONS:
            known = (*OPTIONS, "session.…")
            raise UsageError(f"the onnx adapter has no option {key!r}{nearest(key, known)}", remedy=f"It has: {known}")
    providers = _providers(options.get("providers", ("CPUExecutionProvider",)), ort.get_available_providers())
    target = model.target
    if isinstance(target, PathLike):
        target = str(target)
    elif not isinstance(target, str | bytes):
        target = target.SerializeToString()
    disabled = _listed(options.get("disabled_optimizers", ()))
    try:
        session = ort.InferenceSession(target, settings, providers=providers, disabled_optimizers=disabled)
    except Exception as error:  # the runtime raises many types; all mean that it does not load
        raise ModelError(
            f"ONNX Runtime cannot load {model.name}: {one_line(error)}",
            remedy="Export it again for an opset that this ONNX Runtime supports",
        ) from error
    if session.get_providers()[: len(providers)] != providers:
        raise ModelError(f"asked for {providers}, ONNX Runtime fell back to {session.get_providers()}")
    return session, {
        "onnxruntime": ort.__version__,
        "providers": session.get_providers(),
        "optimization": level,
        "threads": settings.intra_op_num_threads,
    }


def _providers(wanted: Any, available: Sequence[str]) -> list[str]:
    """The providers asked for; one that is not on this machine is an error, never a fall-back."""
    names = [name if name.endswith("Provider") else f"{name}ExecutionProvider" for name in _listed(wanted)]
    for name in names:
        if name not in available:
            raise ModelError(f"ONNX Runtime has no {name} on this machine", remedy=f"It has: {', '.join(available)}")
    return names


def _listed(value: Any) -> list[str]:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else list(value)


def _row_axis(spec: OutputSpec) -> int:
    """Axis 0, unless the file declares it fixed and exactly one later axis free (one block a target)."""
    shape = spec.shape or ()
    free = [axis for axis, dim in enumerate(shape) if not isinstance(dim, int)]
    return free[0] if shape and isinstance(shape[0], int) and len(free) == 1 else 0


def _rows_first(spec: OutputSpec, axis: int) -> OutputSpec:
    if not axis or spec.shape is None:
        return spec
    return replace(spec, shape=(spec.shape[axis], *spec.shape[:axis], *spec.shape[axis + 1 :]))


EXTENSION = OnnxAdapter()
