"""Layers put into a graph that lacks them: a bias behind its weights, a batch norm folded in, a layer between two."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from likewise.contracts.data import Array
from likewise.explain.matching import Match
from likewise.models.onnx.inside import LARGEST, Constant, absent, with_added, with_values
from likewise.models.parameters import BUFFER, GRAPH, NETWORK, Parameter

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


WEIGHTS = ("coef_", "coefs_", "weight", "dual_coef_", "_dual_coef_")
THIRD_INPUT = {"Gemm", "Conv", "ConvTranspose"}
ATTRIBUTE = {"LinearClassifier": "intercepts", "LinearRegressor": "intercepts"}
ACTIVATIONS = {"Relu", "Sigmoid", "Tanh", "Gelu", "LeakyRelu", "Elu", "Selu", "Softplus", "HardSwish", "Mish"}


def with_bias(graph: ModelProto, matches: Sequence[Match], bias: Parameter) -> ModelProto | None:
    """The graph with a bias added where the weights of the same layer are used; None if they are not found."""
    match = _weights_of(bias, matches)
    if match is None:
        return None
    constant = match.constant
    values = bias.values.ravel().astype(constant.values.dtype)
    if constant.operator in ATTRIBUTE:
        return with_values(graph, [(absent(graph, constant.node, ATTRIBUTE[constant.operator]), values)])
    if constant.operator in THIRD_INPUT and len(graph.graph.node[constant.node].input) < 3:
        return with_values(graph, [(absent(graph, constant.node, 2), values)])
    return with_added(graph, constant.node, values) if constant.operator in ("MatMul", "Gemm") else None


def _weights_of(bias: Parameter, matches: Sequence[Match]) -> Match | None:
    """Where the weights stand that a bias belongs to: the same owner, the same number of the layer."""
    number = bias.attribute[bias.attribute.find("[") :] if "[" in bias.attribute else ""
    for match in matches:
        other = match.parameter
        weighted = other is not None and other.step == bias.step and other.attribute.startswith(WEIGHTS)
        if weighted and other is not None and other.attribute.endswith(number):
            return match
    return None


def unfolded(
    graph: ModelProto, matches: Sequence[Match], missing: Sequence[Parameter], folded: Sequence[Parameter]
) -> list[tuple[str, list[tuple[Constant, Array]]]]:
    """Batch norms whose numbers are nowhere, with the weights before them as they would be with it folded in."""
    gone = {parameter.step for parameter in missing if parameter.attribute == "running_mean"}
    plain = {
        match.parameter.path: match.constant
        for match in matches
        if match.parameter is not None and not match.parameter.rounding and not match.different.any()
    }
    found: dict[tuple[str, str], list[tuple[Constant, Array]]] = {}
    for parameter in folded:
        norm = parameter.kind.partition(" with ")[2].removesuffix(" folded in")
        weight = plain.get(f"{parameter.step}.weight")
        if norm in gone and weight is not None:
            # A layer before a norm often has no bias of its own; the fold gives it one.
            given = plain.get(parameter.path) or absent(graph, weight.node, 2)
            found.setdefault((parameter.step, norm), []).append((given, parameter.values.astype(weight.values.dtype)))
    return [(norm, changes) for (_, norm), changes in found.items() if len(changes) == 2]


def with_folded(graph: ModelProto, changes: Sequence[tuple[Constant, Array]]) -> ModelProto | None:
    """The graph with weights that have a batch norm folded in; None where they do not fit."""
    operators = {constant.operator for constant, _ in changes}
    if not operators <= THIRD_INPUT or any(c.values.size not in (0, values.size) for c, values in changes):
        return None
    return with_values(graph, [(c, v if c.absent else v.reshape(c.values.shape)) for c, v in changes])


def with_layer(
    graph: ModelProto, matches: Sequence[Match], known: Sequence[Parameter], missing: Sequence[Parameter]
) -> Iterator[tuple[str, ModelProto]]:
    """The graph with a linear layer that is missing, before the layer that follows it in the reference."""
    used = {match.parameter.path: match for match in matches if match.parameter is not None}
    paths = list(dict.fromkeys(parameter.path for parameter in known))
    for weight in missing:
        if weight.outputs_first is None or weight.values.ndim != 2 or len(set(weight.values.shape)) != 1:
            continue
        following = [used[path] for path in paths[paths.index(weight.path) + 1 :] if path in used]
        match = next((found for found in following if found.constant.place == 1 and _multiplies(found)), None)
        bias = next((p for p in missing if p.is_intercept and _layer(p) == _layer(weight)), None)
        if match is None:
            continue
        matrix = weight.values.T if weight.outputs_first else weight.values
        for activated in (True, False):
            changed = _inserted(
                graph, match.constant, matrix, None if bias is None else bias.values, activated=activated
            )
            if changed is not None:
                yield _layer(weight), changed


def is_network(match: Match) -> bool:
    """Is it a weight of something with layers?"""
    return match.parameter is not None and (
        match.parameter.kind in (NETWORK, GRAPH) or match.parameter.attribute.startswith("coefs_")
    )


def _multiplies(match: Match) -> bool:
    return match.constant.operator in ("MatMul", "Gemm")


def _layer(parameter: Parameter) -> str:
    """What a weight and its bias have in common: their module, or their number."""
    number = parameter.attribute.partition("[")[2].removesuffix("]")
    return f"{number} of {parameter.step or parameter.kind}" if number else parameter.step


def _inserted(
    graph: ModelProto, before: Constant, weight: Array, bias: Array | None, *, activated: bool
) -> ModelProto | None:
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    node = graph.graph.node[before.node]
    dtype = before.values.dtype
    if graph.ByteSize() > LARGEST:
        return None
    maker = next((n for n in graph.graph.node if node.input[0] in n.output), None)
    activation = maker.op_type if maker is not None and maker.op_type in ACTIVATIONS else None
    if activated and activation is None:
        return None
    copy = onnx.ModelProto()
    copy.CopyFrom(graph)
    shift = np.zeros(len(weight)) if bias is None else bias
    copy.graph.initializer.append(
        numpy_helper.from_array(np.ascontiguousarray(weight.astype(dtype)), "likewise_weight")
    )
    copy.graph.initializer.append(numpy_helper.from_array(shift.astype(dtype), "likewise_shift"))
    made = [
        helper.make_node("MatMul", [node.input[0], "likewise_weight"], ["likewise_product"], "likewise_matmul"),
        helper.make_node("Add", ["likewise_product", "likewise_shift"], ["likewise_sum"], "likewise_add"),
    ]
    if activated and activation is not None and maker is not None:
        made.append(_like(maker, "likewise_sum", "likewise_activated"))
    copy.graph.node[before.node].input[0] = made[-1].output[0]
    for offset, entry in enumerate(made):
        copy.graph.node.insert(before.node + offset, entry)
    return copy


def with_activation(graph: ModelProto) -> Iterator[tuple[str, ModelProto]]:
    """The graph with an activation between two layers that follow one another without any."""
    import onnx
    from onnx import helper

    nodes = graph.graph.node
    makers = {name: index for index, node in enumerate(nodes) for name in node.output}
    kinds = list(dict.fromkeys(node.op_type for node in nodes if node.op_type in ACTIVATIONS)) or ["Relu", "Tanh"]
    linear = ("MatMul", "Gemm", "Conv", "Add")
    for index, node in enumerate(nodes):
        before = makers.get(node.input[0]) if node.op_type in ("MatMul", "Gemm", "Conv") else None
        if before is None or nodes[before].op_type not in linear or graph.ByteSize() > LARGEST:
            continue
        for kind in kinds:
            copy = onnx.ModelProto()
            copy.CopyFrom(graph)
            pattern = next((one for one in nodes if one.op_type == kind), helper.make_node(kind, [""], [""]))
            again = _like(pattern, node.input[0], "likewise_activated")
            copy.graph.node[index].input[0] = "likewise_activated"
            copy.graph.node.insert(index, again)
            yield f"{kind} before {node.name or node.op_type}", copy


def with_scaled_input(graph: ModelProto, missing: Sequence[Parameter]) -> Iterator[tuple[str, ModelProto]]:
    """The graph with its input centred and scaled by what the module keeps and the graph has not."""
    kept = [parameter for parameter in missing if parameter.kind == BUFFER and parameter.values.dtype.kind == "f"]
    stored = {tensor.name for tensor in graph.graph.initializer}
    inputs = [value.name for value in graph.graph.input if value.name not in stored]
    if len(inputs) != 1 or graph.ByteSize() > LARGEST:
        return
    pairs = [(shift, scale) for shift in kept for scale in kept if shift is not scale]
    for shift, scale in [*pairs, *((one, None) for one in kept), *((None, one) for one in kept)]:
        names = ", ".join(one.path for one in (shift, scale) if one is not None)
        yield f"{names} (input '{inputs[0]}')", _scaled(graph, inputs[0], shift, scale)


def _scaled(graph: ModelProto, given: str, shift: Parameter | None, scale: Parameter | None) -> ModelProto:
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    copy = onnx.ModelProto()
    copy.CopyFrom(graph)
    for node in copy.graph.node:
        node.input[:] = ["likewise_scaled" if name == given else name for name in node.input]
    for number, (values, neutral) in enumerate(((scale, 1.0), (shift, 0.0))):
        array = np.asarray(neutral if values is None else values.values, dtype=np.float32)
        copy.graph.initializer.append(numpy_helper.from_array(array, f"likewise_scale_{number}"))
    divide = helper.make_node("Div", ["likewise_centred", "likewise_scale_0"], ["likewise_scaled"])
    copy.graph.node.insert(0, divide)
    copy.graph.node.insert(0, helper.make_node("Sub", [given, "likewise_scale_1"], ["likewise_centred"]))
    return copy


def _like(node: NodeProto, given: str, gives: str) -> NodeProto:
    """A node of the same kind elsewhere."""
    import onnx

    again = onnx.NodeProto()
    again.CopyFrom(node)
    del again.input[:], again.output[:]
    again.name = "likewise_activation"
    again.input.append(given)
    again.output.append(gives)
    return again
