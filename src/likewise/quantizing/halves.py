"""Half-precision weights: half the size, three significant digits, nothing beyond 65,504.

ONNX Runtime's converter does the work. It is given the types that it cannot infer (operators of
scikit-learn exports), it is kept away from the nodes before and after the weights, and the casts it
puts around those are taken out again: a number that goes to half and straight back only loses digits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from likewise.contracts.quantizing import Recipe
from likewise.errors import ModelError, one_line
from likewise.quantizing.graphs import heart, reads, sort_nodes

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto


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
        sort_nodes(half.graph)
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
    import onnx
    import onnxruntime as ort

    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    declared = {value.name for value in (*probe.graph.input, *probe.graph.output)}
    inner = [name for node in probe.graph.node for name in node.output if name and name not in declared]
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in inner)
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(probe.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    floats = {value.name for value in session.get_outputs() if value.type == "tensor(float)"}
    del model.graph.value_info[:]
    model.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in inner if name in floats
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
    for node in graph.node:
        for index, name in enumerate(node.input):
            node.input[index] = direct.get(name, name)
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
    return node.op_type == "Cast" and any(a.name == "to" and a.i == kind for a in node.attribute)
