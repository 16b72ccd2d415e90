"""Weights put back into a copy of the candidate's graph, and parts that it lacks put in.

A part is a bias behind its weights, a batch norm folded into them, a layer or an activation between two others,
the scaling of an input.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.explain.case import Case
from likewise.explain.experiment import Change, Effect, Trial, fewest, first, run
from likewise.explain.weights.arrays import Match
from likewise.explain.weights.differences import Difference, Weights, weights
from likewise.models.arrays import BUFFER, GRAPH, NETWORK, Parameter
from likewise.models.onnx import edits
from likewise.models.onnx.inside import LARGEST, Constant, absent, with_added, with_values

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


MOST_EXPERIMENTS = 16
"""Of more differing constants the necessary ones are not told from the others."""

MOST_SINGLE = 6
"""Differing constants that are tried one by one where all together do not help."""

MOST_TRIED = 6
"""Missing parts of one kind that are put in, one after the other."""

WEIGHTS = ("coef_", "coefs_", "weight", "dual_coef_", "_dual_coef_")
THIRD_INPUT = {"Gemm", "Conv", "ConvTranspose"}
ATTRIBUTE = {"LinearClassifier": "intercepts", "LinearRegressor": "intercepts"}
ACTIVATIONS = {"Relu", "Sigmoid", "Tanh", "Gelu", "LeakyRelu", "Elu", "Selu", "Softplus", "HardSwish", "Mish"}

Part = tuple[Place, "ModelProto"]
"""A part that is missing, and the graph with it."""


def put_back(case: Case, differences: Sequence[Difference]) -> tuple[Change, ...]:
    """The candidate with these constants as they should be; nothing if the graph is too large to be copied."""
    found = weights(case)
    assert found is not None
    values = [(match.constant, _as_stored(match)) for entry in differences for match in entry.matches]
    graph = with_values(found.graph, values)
    return () if graph is None else (Change(target=graph),)


def needed(case: Case, differences: Sequence[Difference]) -> tuple[Sequence[Difference], Effect] | None:
    """The few that have to be put back, with what that does; None if neither all nor any one of them helps."""

    def does(trial: Trial, some: Sequence[Difference]) -> Effect | None:
        return trial.run(*put_back(case, some))

    by_damage = sorted(differences, key=lambda one: -float(one.match.different.mean()))
    if not 1 < len(differences) <= MOST_EXPERIMENTS:
        whole = run(case, *put_back(case, differences)) if differences else None
        return (differences, whole) if whole is not None and whole.explains else None
    if (found := fewest(case, by_damage, does)) is not None:
        return [one for one in differences if one in found[0]], found[1]
    # Others may have been taken for arrays that they are not.
    likely = sorted(differences, key=lambda one: (not one.pattern.regular, float(one.match.different.mean())))
    alone = first(case, likely[:MOST_SINGLE], lambda trial, one: does(trial, [one]))
    return None if alone is None else ((alone[0],), alone[1])


def _as_stored(match: Match) -> Array:
    """What should be there in the type that the node takes."""
    narrowed = match.constant.absent and match.expected.dtype == np.float64
    return match.expected.astype(np.float32) if narrowed else match.expected


def missing_parts(found: Weights) -> Iterator[Part]:
    """Parts of the model for which the graph has no place, the likeliest first."""
    gone = [parameter for parameter in found.missing if not parameter.rounding]
    for bias in [entry for entry in gone if entry.is_intercept and entry.values.any()][:MOST_TRIED]:
        yield from _with_bias(found, bias)
    yield from _with_normalisation(found, gone)
    yield from _with_layer(found, gone)
    if not gone and not found.differences and any(map(_is_network, found.matches)):
        yield from _with_activation(found.graph)


def word(parameter: Parameter | None) -> str:
    """What is added to a layer: a network has biases, an estimator intercepts."""
    biased = parameter is not None and parameter.attribute.startswith(("bias", "intercepts_"))
    return "bias" if biased else "intercept"


def _with_bias(found: Weights, bias: Parameter) -> Iterator[Part]:
    """The graph with a bias added where the weights of the same layer are used."""
    match = _weights_of(bias, found.matches)
    if match is None:
        return
    constant, graph = match.constant, found.graph
    values = bias.values.ravel().astype(constant.values.dtype)
    given: ModelProto | None = None
    if constant.operator in ATTRIBUTE:
        given = with_values(graph, [(absent(graph, constant.node, ATTRIBUTE[constant.operator]), values)])
    elif constant.operator in THIRD_INPUT and len(graph.graph.node[constant.node].input) < 3:
        given = with_values(graph, [(absent(graph, constant.node, 2), values)])
    elif constant.operator in ("MatMul", "Gemm"):
        given = with_added(graph, constant.node, values)
    if given is not None:
        yield Place(word(bias), (bias.path,), path=bias.step, nodes=(constant.node_name,)), given


def _weights_of(bias: Parameter, matches: Sequence[Match]) -> Match | None:
    """Where the weights stand that a bias belongs to: the same owner, the same number of the layer."""
    number = bias.attribute[bias.attribute.find("[") :] if "[" in bias.attribute else ""
    for match in matches:
        other = match.parameter
        weighted = other is not None and other.step == bias.step and other.attribute.startswith(WEIGHTS)
        if weighted and other is not None and other.attribute.endswith(number):
            return match
    return None


def _with_normalisation(found: Weights, missing: Sequence[Parameter]) -> Iterator[Part]:
    """The graph with batch norms whose numbers are nowhere folded into the weights before them."""
    gone = {parameter.step for parameter in missing if parameter.attribute == "running_mean"}
    plain = {
        match.parameter.path: match.constant
        for match in found.matches
        if match.parameter is not None and not match.parameter.rounding and not match.different.any()
    }
    changed: dict[tuple[str, str], list[tuple[Constant, Array]]] = {}
    for parameter in found.known:
        weight = plain.get(f"{parameter.step}.weight")
        if parameter.folded in gone and weight is not None:
            # A layer before a norm often has no bias of its own; the fold gives it one.
            given = plain.get(parameter.path) or absent(found.graph, weight.node, 2)
            values = parameter.values.astype(weight.values.dtype)
            changed.setdefault((parameter.step, parameter.folded), []).append((given, values))
    whole = [(norm, changes) for (_, norm), changes in changed.items() if len(changes) == 2]
    for norm, changes in whole[:MOST_TRIED]:
        operators = {constant.operator for constant, _ in changes}
        if operators <= THIRD_INPUT and all(c.values.size in (0, values.size) for c, values in changes):
            fitted = [(c, v if c.absent else v.reshape(c.values.shape)) for c, v in changes]
            graph = with_values(found.graph, fitted)
            if graph is not None:
                yield Place(f"normalisation {norm}", path=norm, nodes=(changes[0][0].node_name,)), graph


def _with_layer(found: Weights, missing: Sequence[Parameter]) -> Iterator[Part]:
    """The graph with a linear layer that is missing, before the layer that follows it in the reference."""
    used = {match.parameter.path: match for match in found.matches if match.parameter is not None}
    paths = list(dict.fromkeys(parameter.path for parameter in found.known))
    for weight in missing:
        if weight.outputs_first is None or weight.values.ndim != 2 or len(set(weight.values.shape)) != 1:
            continue
        following = [used[path] for path in paths[paths.index(weight.path) + 1 :] if path in used]
        multiplied = (m.constant for m in following if m.constant.operator in ("MatMul", "Gemm"))
        before = next((constant for constant in multiplied if constant.place == 1), None)
        bias = next((p for p in missing if p.is_intercept and _layer(p) == _layer(weight)), None)
        if before is None:
            continue
        matrix = weight.values.T if weight.outputs_first else weight.values
        shift = np.zeros(len(matrix)) if bias is None else bias.values
        for activated in (True, False):
            graph = _inserted(found.graph, before, matrix, shift, activated=activated)
            if graph is not None:
                yield Place(f"layer {_layer(weight)}", path=weight.step, nodes=(before.node_name,)), graph


def _is_network(match: Match) -> bool:
    """Is it a weight of something with layers?"""
    return match.parameter is not None and (
        match.parameter.kind in (NETWORK, GRAPH) or match.parameter.attribute.startswith("coefs_")
    )


def _layer(parameter: Parameter) -> str:
    """What a weight and its bias have in common: their module, or their number."""
    number = parameter.attribute.partition("[")[2].removesuffix("]")
    return f"{number} of {parameter.step or parameter.kind}" if number else parameter.step


def _inserted(
    graph: ModelProto, before: Constant, weight: Array, shift: Array, *, activated: bool
) -> ModelProto | None:
    from onnx import helper

    node = graph.graph.node[before.node]
    dtype = before.values.dtype
    if graph.ByteSize() > LARGEST:
        return None
    maker = next((n for n in graph.graph.node if node.input[0] in n.output), None)
    activation = maker.op_type if maker is not None and maker.op_type in ACTIVATIONS else None
    if activated and activation is None:
        return None
    copy = edits.copied(graph)
    edits.set_constant(copy.graph, "likewise_weight", np.ascontiguousarray(weight.astype(dtype)))
    edits.set_constant(copy.graph, "likewise_shift", shift.astype(dtype))
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


def _with_activation(graph: ModelProto) -> Iterator[Part]:
    """The graph with an activation between two layers that follow one another without any."""
    from onnx import helper

    nodes = graph.graph.node
    makers = {name: index for index, node in enumerate(nodes) for name in node.output}
    kinds = list(dict.fromkeys(node.op_type for node in nodes if node.op_type in ACTIVATIONS)) or ["Relu", "Tanh"]
    linear = ("MatMul", "Gemm", "Conv", "Add")
    bare = []
    for index, node in enumerate(nodes):
        before = makers.get(node.input[0]) if node.op_type in ("MatMul", "Gemm", "Conv") else None
        if before is not None and nodes[before].op_type in linear and graph.ByteSize() <= LARGEST:
            bare += [(index, node, kind) for kind in kinds]
    for index, node, kind in bare[:MOST_TRIED]:
        copy = edits.copied(graph)
        pattern = next((one for one in nodes if one.op_type == kind), helper.make_node(kind, [""], [""]))
        copy.graph.node[index].input[0] = "likewise_activated"
        copy.graph.node.insert(index, _like(pattern, node.input[0], "likewise_activated"))
        yield Place(f"activation {kind} before {node.name or node.op_type}", nodes=(node.name or node.output[0],)), copy


def unscaled_inputs(found: Weights) -> Iterator[Part]:
    """The graph with its input centred and scaled by what the module keeps and the graph has not."""
    graph = found.graph
    kept = [parameter for parameter in found.missing if parameter.kind == BUFFER and parameter.values.dtype.kind == "f"]
    stored = {tensor.name for tensor in graph.graph.initializer}
    inputs = [value.name for value in graph.graph.input if value.name not in stored]
    if len(inputs) != 1 or graph.ByteSize() > LARGEST:
        return
    pairs = [(shift, scale) for shift in kept for scale in kept if shift is not scale]
    ways = [*pairs, *((one, None) for one in kept), *((None, one) for one in kept)]
    for shift, scale in ways[:MOST_TRIED]:
        names = ", ".join(one.path for one in (shift, scale) if one is not None)
        place = Place(names, (f"input '{inputs[0]}'",), tensors=(inputs[0],))
        yield place, _scaled(graph, inputs[0], shift, scale)


def _scaled(graph: ModelProto, given: str, shift: Parameter | None, scale: Parameter | None) -> ModelProto:
    from onnx import helper

    copy = edits.copied(graph)
    edits.replace_reads(copy.graph, {given: "likewise_scaled"})
    for name, values, neutral in (("likewise_scale", scale, 1.0), ("likewise_shift", shift, 0.0)):
        array = np.asarray(neutral if values is None else values.values, dtype=np.float32)
        edits.set_constant(copy.graph, name, array)
    divide = helper.make_node("Div", ["likewise_centred", "likewise_scale"], ["likewise_scaled"])
    copy.graph.node.insert(0, divide)
    copy.graph.node.insert(0, helper.make_node("Sub", [given, "likewise_shift"], ["likewise_centred"]))
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
