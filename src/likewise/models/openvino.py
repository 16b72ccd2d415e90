"""OpenVINO: its own .xml files, and ONNX files that it is to run (option `framework=openvino`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Adapter, InputSpec, Kind, Model, OutputSpec, Shape
from likewise.data.columns import numpy_dtype
from likewise.errors import ModelError, UnavailableError, extra, one_line
from likewise.models import require_known
from likewise.models.arrays import RowLayout, kind_of, widened
from likewise.models.onnx import describe

if TYPE_CHECKING:
    from onnx import ModelProto

OPTIONS = {"device": "CPU", "precision": None, "threads": None, "batch_axis": None}
"""`precision` is the type OpenVINO computes in; left out, it is what the processor does best."""


ONE_OF_A_NAME = ("net", "layers", "layer", "body", "then_body", "else_body")
"""Parts of a graph that hold nothing twice: of two, OpenVINO takes the first or the last."""


class OpenvinoAdapter(Adapter):
    """All knowledge of OpenVINO."""

    framework = "openvino"
    holds_interpreter = False
    as_written = MappingProxyType({"precision": "f32"})

    def claims(self, target: object) -> bool:
        if not isinstance(target, str | PathLike):
            return False
        path = Path(target)
        return path.suffix.lower() == ".xml" and path.with_suffix(".bin").is_file()

    @contextmanager
    def open(self, model: Model) -> Iterator[OpenvinoRunner]:
        with extra("openvino", needed_for=f"running {model.name}"):
            import openvino  # noqa: F401
        require_known(model, OPTIONS)
        yield OpenvinoRunner(model)


class OpenvinoRunner:
    """A compiled model."""

    def __init__(self, model: Model) -> None:
        import openvino

        # First: it refuses graphs that lead out of their folder, which OpenVINO would follow.
        proto = None if str(model.target).lower().endswith(".xml") else describe.read(model.target)
        graph = _read(model, openvino.Core())
        options = {**OPTIONS, **model.options}
        hints = {"INFERENCE_NUM_THREADS": options["threads"], "INFERENCE_PRECISION_HINT": options["precision"]}
        settings = {name: str(value) for name, value in hints.items() if value is not None}
        _require_device(str(options["device"]), openvino.Core().available_devices)
        try:
            self.native = self._compiled = openvino.Core().compile_model(graph, options["device"], settings)
        except RuntimeError as error:
            raise ModelError(
                f"OpenVINO cannot compile {model.name}: {_reason(error)}",
                remedy="Convert it again with this version of OpenVINO, or choose another device",
            ) from error
        self._names = [_name(port, index) for index, port in enumerate(graph.outputs)]
        inputs = tuple(InputSpec(_name(port, i), _dtype(port), _shape(port)) for i, port in enumerate(graph.inputs))
        outputs = tuple(
            OutputSpec(name, kind_of(name, _dtype(port)) or Kind.VALUE, _dtype(port), _shape(port))
            for name, port in zip(self._names, graph.outputs, strict=True)
        )
        self._dtypes = {spec.name: spec.dtype for spec in outputs}
        outputs, called = _with_meaning(outputs, proto)
        self._layout = RowLayout(model, inputs, outputs, called=called)
        self.signature = self._layout.signature
        self.details: Mapping[str, Any] = {
            "openvino": openvino.__version__,
            "device": options["device"],
            "precision": str(self._compiled.get_property("INFERENCE_PRECISION_HINT").to_string()),
            "quantized_nodes": sum("FakeQuantize" in node.get_type_name() for node in graph.get_ops()),
        }
        if files := _beside(model.target):
            self.details = {**self.details, describe.EXTERNAL_DATA: files}

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        arrays = self._ask(batch)
        if self._layout.learn(batch, arrays, self._ask):
            self.signature = self._layout.signature
        return {name: self._layout.rows_of(name, array, batch) for name, array in arrays.items()}

    def _ask(self, batch: Batch) -> dict[str, Array]:
        import numpy as np

        inputs = self._layout.feed(batch)
        try:
            # One of its own: that of the compiled model would have the answers of whoever asks last.
            answers = self._compiled.create_infer_request().infer(inputs, share_inputs=True)
        except (RuntimeError, TypeError, ValueError) as error:
            raise ModelError(f"OpenVINO could not run it: {_reason(error)}") from error
        # Copied: the arrays are views of memory that goes with the request.
        return {name: self._array(name, np.array(answers[index])) for index, name in enumerate(self._names)}

    def _array(self, name: str, array: Array) -> Array:
        # OpenVINO hands out bfloat16 under the name of the other type of two bytes.
        return widened(array.view(numpy_dtype("bfloat16"))) if self._dtypes[name] == "bfloat16" else array


def _require_device(device: str, available: Sequence[str]) -> None:
    """A kind of device that OpenVINO knows and this machine does not have is told apart from a model it refuses."""
    kind = device.partition(".")[0].upper()
    if kind in ("GPU", "NPU") and not any(name.partition(".")[0] == kind for name in available):
        raise UnavailableError(f"{device} is not on this machine", remedy=f"It has: {', '.join(available)}")


def _read(model: Model, core: Any) -> Any:
    target = model.target
    try:
        if isinstance(target, str | PathLike):
            if not Path(target).is_file():
                raise ModelError(f"there is no file {target}", remedy="Check the path of the model")
            weights, folder = Path(target).with_suffix(".bin"), Path(target).resolve().parent
            if weights.is_file() and folder not in weights.resolve().parents:
                told = f"{target} keeps its weights in {weights}, a link that leads out of its folder"
                raise ModelError(told, remedy="Copy the weights beside the .xml")
            if str(target).lower().endswith(".xml"):
                _require_one_reading(Path(target))
            return core.read_model(str(target))
        content = target if isinstance(target, bytes) else target.SerializeToString()
        return core.read_model(content, b"")
    except RuntimeError as error:
        raise ModelError(
            f"OpenVINO cannot read {model.name}: {_reason(error)}", remedy="Give an .xml beside its .bin, or an .onnx"
        ) from error


def _beside(target: Any) -> list[str]:
    """The files beside a graph that hold its weights, by their names from its folder on."""
    if not isinstance(target, str | PathLike):
        return []
    path = Path(target)
    if path.suffix.lower() != ".xml":
        return describe.beside(path)
    return [path.with_suffix(".bin").name] if path.with_suffix(".bin").is_file() else []


def _require_one_reading(path: Path) -> None:
    """OpenVINO takes the first of what others refuse: an attribute or a layer given twice, a second graph behind it."""
    from xml.parsers import expat

    within: list[tuple[str, set[str]]] = [("", set())]
    parser = expat.ParserCreate()

    def start(name: str, attributes: dict[str, str]) -> None:
        above, known = within[-1]
        told, twice = name, f"a {above!r} has two {name!r}"
        if (above, name) == ("layers", "layer"):
            number = attributes.get("id", "")
            # OpenVINO takes `01` and ` 1` for 1.
            told = str(int(number)) if number.strip().lstrip("+").isdecimal() else number
            twice = f"two layers have the id {told!r}"
        if above in ONE_OF_A_NAME and told in known:
            raise ValueError(twice)
        known.add(told)
        within.append((name, set()))

    def end(_: str) -> None:
        within.pop()

    def declared(*_: object) -> None:
        raise ValueError("it declares what its text stands for")

    parser.StartElementHandler, parser.EndElementHandler, parser.StartDoctypeDeclHandler = start, end, declared
    try:
        with path.open("rb") as file:
            parser.ParseFile(file)
    except (expat.ExpatError, ValueError) as error:
        told = f"{path} is no graph that everybody would read alike: {one_line(error)}"
        raise ModelError(told, remedy="Convert it again with this version of OpenVINO") from error


def _with_meaning(
    outputs: tuple[OutputSpec, ...], proto: ModelProto | None
) -> tuple[tuple[OutputSpec, ...], Mapping[str, Shape | None]]:
    """What the outputs of an ONNX file mean and how its axes are called, which OpenVINO's graph does not say."""
    if proto is None:
        return outputs, {}
    declared = {spec.name: spec for spec in describe.outputs(proto)}
    called = {spec.name: spec.shape for spec in describe.inputs(proto)} | {n: s.shape for n, s in declared.items()}
    meant = tuple(
        replace(spec, kind=declared[spec.name].kind, classes=declared[spec.name].classes)
        if spec.name in declared
        else spec
        for spec in outputs
    )
    return meant, called


def _name(port: Any, index: int) -> str:
    """The name a port was exported with; a port may have several, or none."""
    return min(port.get_names(), default=f"{port.get_node().get_friendly_name()}.{index}")


def _dtype(port: Any) -> str | None:
    kind = str(port.get_element_type().get_type_name())
    names = {"f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16", "boolean": "bool"}
    return names.get(kind, kind.replace("i", "int", 1) if kind[0] == "i" else kind.replace("u", "uint", 1))


def _shape(port: Any) -> Shape | None:
    shape = port.get_partial_shape()
    if shape.rank.is_dynamic:
        return None
    return tuple(None if dim.is_dynamic else dim.get_length() for dim in shape)


def _reason(error: Exception) -> str:
    """The last line that is no place in OpenVINO's own source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and "Exception from" not in line]
    return (" ".join(lines) or one_line(error))[:300]


EXTENSION = OpenvinoAdapter()
