"""ONNX's own backend suite as cases for the gate, and an oracle that decides them without any code of ours.

The oracle runs the graph in ONNX Runtime and walks the values with a plain loop. Types that numpy does not have
are cast to float32 inside a copy of the graph, so that nothing here reads them the way the product does.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

SHIPPED = ("simple", "pytorch-operator", "pytorch-converted")
ABSOLUTE, RELATIVE = 1e-4, 1e-3
"""The rule of the gate's default preset, written down a second time on purpose."""

NARROW = {
    getattr(TensorProto, name)
    for name in ("BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT8E8M0",
                 "FLOAT4E2M1", "INT4", "UINT4", "INT2", "UINT2")
    if hasattr(TensorProto, name)
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """One model with its recorded tensors: lists of values, a name, and where it comes from."""

    name: str
    model: onnx.ModelProto
    sets: tuple[tuple[tuple[Any, ...], tuple[Any, ...]], ...]
    folder: Path | None = None

    def written(self, place: Path) -> Path:
        """The case as files: model.onnx and test_data_set_*."""
        if self.folder is not None:
            return self.folder
        folder = place / self.name
        folder.mkdir(parents=True, exist_ok=True)
        onnx.save(self.model, folder / "model.onnx")
        for number, (inputs, outputs) in enumerate(self.sets):
            data_set = folder / f"test_data_set_{number}"
            data_set.mkdir(exist_ok=True)
            graph = self.model.graph
            for role, values, infos in (("input", inputs, graph.input), ("output", outputs, graph.output)):
                for index, (value, info) in enumerate(zip(values, infos, strict=False)):
                    proto = _proto(value, info)
                    (data_set / f"{role}_{index}.pb").write_bytes(proto.SerializeToString())
        return folder


@lru_cache(maxsize=1)
def cases() -> tuple[Case, ...]:
    """Every case of the suite: the generated ones of single operators, and the folders shipped with the wheel."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    generated = [
        Case(case.name, case.model, tuple((tuple(ins), tuple(outs)) for ins, outs in case.data_sets or ()))
        for case in found
        if case.model is not None
    ]
    return (*sorted(generated, key=lambda case: case.name), *_shipped())


def _shipped() -> Iterator[Case]:
    root = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for kind in SHIPPED:
        for folder in sorted((root / kind).iterdir()):
            if (folder / "model.onnx").exists():
                model = onnx.load(folder / "model.onnx")
                sets = tuple(_read(data_set, model) for data_set in sorted(folder.glob("test_data_set_*")))
                yield Case(f"{kind}/{folder.name}", model, sets, folder)


def _read(data_set: Path, model: onnx.ModelProto) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    def values(role: str, infos: Any) -> tuple[Any, ...]:
        files = sorted(data_set.glob(f"{role}_*.pb"), key=lambda path: int(path.stem.rpartition("_")[2]))
        return tuple(_value(path, info) for path, info in zip(files, infos, strict=False))

    return values("input", model.graph.input), values("output", model.graph.output)


def _value(path: Path, info: onnx.ValueInfoProto) -> Any:
    content = path.read_bytes()
    if info.type.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(content))
    if info.type.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(content))
    return onnx.TensorProto.FromString(content)


def _proto(value: Any, info: onnx.ValueInfoProto) -> Any:
    if isinstance(value, onnx.TensorProto):
        return value
    if info.type.HasField("sequence_type"):
        return numpy_helper.from_list([np.asarray(item) for item in value], info.name)
    if info.type.HasField("optional_type"):
        return numpy_helper.from_optional(value, info.name)
    return numpy_helper.from_array(np.asarray(value), info.name)


def decide(case: Case) -> bool | None:
    """Does the graph, run as it would be deployed, give what was recorded? None where nobody can say."""
    if not any(isinstance(value, list) or np.size(value) for _, outputs in case.sets for value in map(_plain, outputs)):
        return None
    answers = [_answers(case.model, inputs) for inputs, _ in case.sets]
    if not answers or any(found is None for found in answers):
        return None
    return all(
        len(found or ()) == len(outputs)
        and all(alike(_plain(ours), theirs) for ours, theirs in zip(outputs, found or (), strict=True))
        for found, (_, outputs) in zip(answers, case.sets, strict=True)
    )


def _plain(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        value = numpy_helper.to_array(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if value is None:
        return None
    array = np.asarray(value)
    return array.astype(np.float32) if _is_narrow(array) else array


def _is_narrow(array: Any) -> bool:
    return array.dtype.kind == "V" or array.dtype.name in ("bfloat16",) or "float8" in array.dtype.name or (
        array.dtype.name in ("int4", "uint4", "int2", "uint2", "float4_e2m1fn")
    )  # fmt: skip


def _answers(model: onnx.ModelProto, inputs: tuple[Any, ...]) -> list[Any] | None:
    import onnxruntime as ort

    widened = _with_casts(model)
    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    feeds = {info.name: _plain(value) for info, value in zip(model.graph.input, inputs, strict=False)}
    try:
        session = ort.InferenceSession(widened.SerializeToString(), settings, providers=["CPUExecutionProvider"])
        found: list[Any] = session.run(None, {name: _fed(value) for name, value in feeds.items()})
        again: list[Any] = session.run(None, {name: _fed(value) for name, value in feeds.items()})
    except Exception:  # noqa: BLE001 - whatever it raises: this runtime does not run this graph
        return None
    # Random numbers have no right answer.
    return found if all(alike(one, other) for one, other in zip(found, again, strict=True)) else None


def _fed(value: Any) -> Any:
    if isinstance(value, list):
        return [_fed(item) for item in value]
    return value.astype(object) if value is not None and value.dtype.kind in "US" else value


def _with_casts(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose inputs and outputs are float32 where numpy has no such type."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    graph = copy.graph
    for info in graph.input:
        kind = info.type.tensor_type.elem_type
        if info.type.HasField("tensor_type") and kind in NARROW:
            inner = f"{info.name}__narrow"
            for node in graph.node:
                for index, name in enumerate(node.input):
                    if name == info.name:
                        node.input[index] = inner
            info.type.tensor_type.elem_type = TensorProto.FLOAT
            graph.node.insert(0, helper.make_node("Cast", [info.name], [inner], to=kind))
    for info in graph.output:
        kind = info.type.tensor_type.elem_type
        if info.type.HasField("tensor_type") and kind in NARROW:
            inner = f"{info.name}__narrow"
            for node in graph.node:
                for index, name in enumerate(node.output):
                    if name == info.name:
                        node.output[index] = inner
                for index, name in enumerate(node.input):
                    if name == info.name:
                        node.input[index] = inner
            info.type.tensor_type.elem_type = TensorProto.FLOAT
            graph.node.append(helper.make_node("Cast", [inner], [info.name], to=TensorProto.FLOAT))
    return copy


def alike(ours: Any, theirs: Any) -> bool:
    """One value against another, element by element."""
    if ours is None or theirs is None:
        return ours is None and theirs is None
    if isinstance(ours, list) or isinstance(theirs, list):
        same = isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs)
        return same and all(map(alike, ours, theirs))
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.shape != theirs.shape:
        return False
    return all(map(_close, ours.ravel().tolist(), theirs.ravel().tolist()))


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        if math.isinf(one) or math.isinf(other):
            return one == other
        return abs(other - one) <= ABSOLUTE + RELATIVE * abs(one)
    if isinstance(one, complex) or isinstance(other, complex):
        return _close(one.real, other.real) and _close(one.imag, other.imag)
    return bool(one == other)
