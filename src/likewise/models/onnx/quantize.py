"""Smaller numbers in an ONNX graph: which nodes are worth them, half precision, and eight-bit integers.

ONNX Runtime's own converters do the work. They are kept away from the nodes before and after the weights. The one to
half precision is given the types that it cannot infer (operators of scikit-learn exports), and the casts it puts
around what it leaves alone are taken out again: a number that goes to half and straight back only loses digits.
"""

from __future__ import annotations

import json
import platform
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Tensors
from likewise.contracts.values import dataclass
from likewise.data.files import replacing
from likewise.errors import ModelError, UsageError, one_line
from likewise.models.onnx import describe, edits
from likewise.models.onnx.edits import reads
from likewise.models.remote import start

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto


DYNAMIC, STATIC, FP16 = "dynamic", "static", "fp16"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a model is to be quantised.

    `reduce_range` None: chosen by what this processor's kernels do. `op_types` replaces our choice of
    nodes by all nodes of these types. `force` takes a model that is quantised already, `allow_noop`
    one on which nothing would change.
    """

    mode: str = DYNAMIC
    calibration: str = "minmax"
    calibration_rows: int = 512
    per_channel: bool = False
    format: str = "qdq"
    weights: str = "int8"
    reduce_range: bool | None = None
    exclude: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    force: bool = False
    allow_noop: bool = False


WEIGHTED = {
    "Attention", "Conv", "ConvTranspose", "EmbedLayerNormalization", "GRU", "Gather", "Gemm", "LSTM", "MatMul",
    "QAttention", "RNN",
}  # fmt: skip
"""Operators that multiply with stored weights or look them up; these fill the file and take the time."""


def operators(model: ModelProto) -> dict[str, int]:
    """How many nodes of each operator, most frequent first."""
    counts = Counter(node.op_type for node in model.graph.node)
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


def heart(graph: GraphProto) -> set[str]:
    """The names of the nodes with weights and of those that lie between them.

    What comes before the first weights prepares columns of very different scales; what comes after
    the last turns scores into answers. Neither has weights to shrink and both lose by it: eight bits
    for incomes and interest rates in one tensor leave nothing of the rates.
    """
    weighted = {node.name for node in weighted_nodes(graph)}
    makers = {name: node.name for node in graph.node for name in node.output}
    before = {node.name: {makers[name] for name in reads(node) if name in makers} for node in graph.node}
    after: dict[str, set[str]] = {name: set() for name in before}
    for name, sources in before.items():
        for source in sources:
            after[source].add(name)
    return weighted | (_reachable(weighted, after) & _reachable(weighted, before))


def _reachable(start: set[str], neighbours: Mapping[str, set[str]]) -> set[str]:
    queue = [other for name in start for other in neighbours[name]]
    seen: set[str] = set()
    while queue:
        name = queue.pop()
        if name not in seen:
            seen.add(name)
            queue.extend(neighbours[name])
    return seen


def weighted_nodes(graph: GraphProto) -> list[NodeProto]:
    """The nodes that multiply with, or look up, floating-point numbers stored in the file."""
    stored = _stored(graph)
    return [node for node in graph.node if node.op_type in WEIGHTED and stored.intersection(node.input)]


def _stored(graph: GraphProto) -> set[str]:
    from onnx import TensorProto

    floats = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16)
    return {name for name, tensor in edits.tensors(graph).items() if tensor.data_type in floats}


def to_halves(model: ModelProto, recipe: Recipe) -> ModelProto:
    """The model with half-precision weights and the same inputs and outputs."""
    import onnx.shape_inference
    from onnxruntime.transformers import float16

    if recipe.op_types:
        kept = [node.name for node in model.graph.node if node.op_type not in recipe.op_types]
    else:
        inner = heart(model.graph)
        kept = [node.name for node in model.graph.node if node.name not in inner]
    try:
        _complete_types(model)
        half: ModelProto = float16.convert_float_to_float16(
            model, keep_io_types=True, node_block_list=[*kept, *recipe.exclude], disable_shape_infer=True
        )
        _drop_round_trips(half.graph)
        edits.sort_nodes(half.graph)
        # ONNX Runtime's layout optimiser crashes on half-precision values whose shapes are not noted.
        del half.graph.value_info[:]
        half = onnx.shape_inference.infer_shapes(half)
    except Exception as error:
        raise ModelError(
            f"ONNX Runtime's float16 converter failed: {one_line(error)}",
            remedy="Leave nodes out with --exclude, or name operators with --op-type MatMul",
        ) from error
    return half


def _complete_types(model: ModelProto) -> None:
    """Note the type of every value, as ONNX Runtime itself infers them: the converter casts by these notes."""
    from onnx import TensorProto, helper

    graph = model.graph
    del graph.value_info[:]
    declared = {value.name for value in (*graph.input, *graph.output)}
    inner = [name for node in graph.node for name in node.output if name and name not in declared]
    types = edits.tensor_types(model)
    graph.value_info.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        for name in inner
        if types.get(name) == TensorProto.FLOAT
    )


def _drop_round_trips(graph: GraphProto) -> None:
    """Feed what was cast to half and back from the number before the casts."""
    from onnx import TensorProto

    makers = {name: node for node in graph.node for name in node.output}
    outputs = {value.name for value in graph.output}
    typed = (*graph.input, *graph.output, *graph.value_info)
    floats = {value.name for value in typed if value.type.tensor_type.elem_type == TensorProto.FLOAT}
    direct: dict[str, str] = {}
    for node in graph.node:
        before = makers.get(node.input[0]) if _casts_to(node, TensorProto.FLOAT) else None
        if before is not None and _casts_to(before, TensorProto.FLOAT16) and before.input[0] in floats:
            direct[node.output[0]] = before.input[0]
    edits.replace_reads(graph, direct)
    for last in graph.output:
        # An output must keep its name: its last cast becomes the identity of the number before.
        if last.name in direct:
            node = makers[last.name]
            node.op_type, node.input[0] = "Identity", direct[last.name]
            del node.attribute[:]
    while True:
        read = outputs.union(*map(reads, graph.node))
        unused = [node for node in graph.node if node.op_type == "Cast" and node.output[0] not in read]
        if not unused:
            return
        for node in unused:
            graph.node.remove(node)


def _casts_to(node: NodeProto, kind: int) -> bool:
    return node.op_type == "Cast" and bool(edits.attribute(node, "to") == kind)


def to_integers(
    model: ModelProto, folder: Path, recipe: Recipe, rows: Iterator[Tensors] | None, *, reduce_range: bool
) -> ModelProto:
    """The model with integer weights; `folder` is for files in between, `rows` calibrate a static one."""
    import onnx

    # From a file: given a model in memory, the quantiser moves its weights into a file that it then removes.
    source, target = folder / "float.onnx", folder / "integer.onnx"
    batches = None if rows is None else list(rows)
    while True:
        try:
            onnx.save(model, source)
            _quantize(source, target, model, recipe, batches, reduce_range=reduce_range)
            return onnx.load(target)
        except Exception as error:  # the quantiser raises many types
            if not model.graph.value_info:
                raise ModelError(
                    f"ONNX Runtime's quantiser failed: {one_line(error)}",
                    remedy="Try another --calibration, leave nodes out with --exclude, "
                    "or name operators with --op-type MatMul",
                ) from error
            # Types and shapes noted by an exporter may contradict those the quantiser infers; it can do without.
            del model.graph.value_info[:]


def _quantize(
    source: Path, target: Path, model: ModelProto, recipe: Recipe, batches: list[Tensors] | None, *, reduce_range: bool
) -> None:
    from onnxruntime.quantization import (
        CalibrationMethod,
        QuantFormat,
        QuantType,
        quantize_dynamic,
        quantize_static,
    )

    chosen, excluded = _nodes(model, recipe)
    common: dict[str, Any] = {
        "op_types_to_quantize": chosen,
        "nodes_to_exclude": excluded,
        "per_channel": recipe.per_channel,
        "reduce_range": reduce_range,
        "weight_type": QuantType.QInt8 if recipe.weights == "int8" else QuantType.QUInt8,
    }
    if recipe.mode != STATIC:
        quantize_dynamic(source, target, **common)
        return
    assert batches is not None
    methods = {"minmax": "MinMax", "entropy": "Entropy", "percentile": "Percentile"}
    quantize_static(
        source,
        target,
        _Rows(batches),
        quant_format=QuantFormat.QDQ if recipe.format == "qdq" else QuantFormat.QOperator,
        activation_type=QuantType.QUInt8,
        calibrate_method=getattr(CalibrationMethod, methods[recipe.calibration]),
        **common,
    )


def _nodes(model: ModelProto, recipe: Recipe) -> tuple[list[str] | None, list[str]]:
    """The operator types to quantise and the nodes to leave alone."""
    # The dynamic quantiser splits a Gemm before it looks at names.
    excluded = [*recipe.exclude, *(f"{name}_MatMul" for name in recipe.exclude)]
    if recipe.op_types:
        return list(recipe.op_types), excluded
    inner = heart(model.graph)
    outside = [node.name for node in model.graph.node if node.name not in inner]
    types = sorted({node.op_type for node in model.graph.node if node.name in inner})
    return (types if recipe.mode == STATIC else None), [*outside, *excluded]


class _Rows:
    """The calibration rows in the form the quantiser asks for."""

    def __init__(self, batches: list[Tensors]) -> None:
        self._batches = iter(batches)

    def get_next(self) -> Tensors | None:
        return next(self._batches, None)

    def __iter__(self) -> Iterator[Tensors]:
        return self._batches


DOT_PRODUCTS = ("avx512_vnni", "avx_vnni", "amx_int8")


def reduce_range(*, machine: str | None = None, cpuinfo: str | None = None) -> tuple[bool, str]:
    """Should weights have seven bits here? With the reason, as a sentence.

    ONNX Runtime multiplies unsigned activations with signed weights. Without a dot-product instruction, x86 adds
    two such products in 16 bits, where they can saturate: the result is wrong, not imprecise. Seven-bit weights
    cannot saturate, anywhere, at the price of half the resolution.
    """
    machine = (platform.machine() if machine is None else machine).lower()
    if machine in ("aarch64", "arm64"):
        kernels = "its dot-product kernels add" if "asimddp" in _flags(cpuinfo) else "its kernels add"
        return False, f"8-bit weights: this is an ARM processor, {kernels} products in 32 bits and cannot saturate"
    flags = _flags(cpuinfo)
    found = next((name for name in DOT_PRODUCTS if name in flags), None)
    if found is not None:
        return False, (
            f"8-bit weights: this processor has {found}, which does not saturate; "
            "for machines without VNNI give --reduce-range"
        )
    if not flags:
        return True, (
            "7-bit weights (reduce_range): it cannot be told whether this processor has VNNI, "
            "and without it 8-bit products can saturate"
        )
    return True, (
        "7-bit weights (reduce_range): this processor has no VNNI, and its 8-bit products can saturate; "
        "for machines with VNNI give --no-reduce-range"
    )


def _flags(cpuinfo: str | None) -> frozenset[str]:
    """The features the processor names, as Linux lists them; none where it does not."""
    if cpuinfo is None:
        try:
            cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return frozenset()
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    return frozenset(
        word for name, _, value in lines if name.strip().lower() in ("flags", "features") for word in value.split()
    )


OPEN = """
import onnxruntime as ort
settings = ort.SessionOptions()
settings.log_severity_level = 4
try:
    ort.InferenceSession({path!r}, settings, providers=["CPUExecutionProvider"])
    print("opened", end="")
except Exception as error:
    print(error, end="")
"""


def read(path: Path) -> tuple[ModelProto, int]:
    """The model with weights that are stored beside its file, and the bytes of both."""
    if path.suffix.lower() != ".onnx":
        raise UsageError(f"{path} is not an .onnx file", remedy="Export the model to ONNX first")
    model = describe.read(path)
    return describe.whole(model), describe.file_bytes(path)


def note_origin(result: ModelProto, original: ModelProto, sha256: str, settings: Mapping[str, Any]) -> None:
    """Keep what the input says about itself and add where the file comes from."""
    import onnx

    versions = {name: version(name) for name in ("likewise", "onnx", "onnxruntime")}
    kept = {entry.key: entry.value for entry in (*original.metadata_props, *result.metadata_props)}
    kept |= {
        "likewise.quantized_from": sha256,
        "likewise.quantization_mode": str(settings["mode"]),
        "likewise.quantization_settings": json.dumps(settings, sort_keys=True),
        "likewise.quantization_versions": json.dumps(versions, sort_keys=True),
    }
    onnx.helper.set_model_props(result, kept)


def write(model: ModelProto, path: Path) -> int:
    """Put the file in its place once ONNX Runtime has opened it; its size."""
    with replacing(path) as temporary:
        try:
            temporary.write_bytes(model.SerializeToString())
        except Exception as error:  # protobuf has several types for "larger than 2 GB"
            raise ModelError(f"{path} cannot be written as one file: {one_line(error)}") from error
        _require_loadable(temporary)
        return temporary.stat().st_size


def _require_loadable(path: Path) -> None:
    """Open the file in a process of its own: the runtime's optimisers may crash on a graph that is valid."""
    process = start(OPEN.format(path=str(path)))
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout as answer:
        said = answer.read().decode(errors="replace").strip()
    code = process.wait()
    if said == "opened":
        return
    how = said.splitlines()[-1][:500] if said else f"ONNX Runtime crashed on it ({_signal(-code)})"
    raise ModelError(
        f"the quantised file does not load and was not kept: {how}",
        remedy="Export the model for opset 13 or later, leave nodes out with --exclude, or leave out --per-channel",
    )


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
