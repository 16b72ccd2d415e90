"""The weights of both sides laid beside one another: what is equal, what differs, what is nowhere to be found.

Weights are put back into a copy of the candidate's graph, and parts that it lacks put in: a bias behind its weights,
a batch norm folded into them, an activation between two layers, the scaling of an input.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.explain import twins, weight_matching
from likewise.explain.case import Case, made_once
from likewise.explain.experiment import Change, Effect, Trial, fewest, first, run
from likewise.explain.trace import reference_steps
from likewise.explain.weight_arrays import Form, Match, Pattern, is_float, is_text, pattern, storage_of
from likewise.explain.weight_matching import (
    TREES,
    after,
    before_the_model,
    by_branch,
    identified,
    is_intercept,
    labels,
    matched,
    where_named,
)
from likewise.models.arrays import BUFFER, GRAPH, MODEL, NETWORK, PREPROCESSING, Parameter
from likewise.models.onnx import describe, edits
from likewise.models.onnx.inside import LARGEST, Constant, absent, constants, with_added, with_values
from likewise.models.sklearn.inside import parameters
from likewise.models.torch import inside

if TYPE_CHECKING:
    from onnx import ModelProto


MOST_LOCATED, FEW_ENTRIES = 10_000, 3
"""Differing entries that are looked at, and that are named one by one."""


@dataclass(frozen=True, slots=True, eq=False)
class Difference:
    """A stored constant that does not hold what it should, at all its uses."""

    matches: tuple[Match, ...]
    pattern: Pattern
    role: str

    @property
    def match(self) -> Match:
        return self.matches[0]

    @property
    def constant(self) -> Constant:
        return self.match.constant

    @property
    def parameter(self) -> Parameter | None:
        return self.match.parameter

    @property
    def name(self) -> str:
        """What the model's owner calls it, or what the graph does."""
        return self.constant.tensor or self.constant.text if self.parameter is None else self.parameter.path

    @property
    def is_intercept(self) -> bool:
        return is_intercept(self.match)

    @property
    def dropped(self) -> bool:
        """An intercept that is gone is a part that was dropped, not a damaged weight."""
        return self.is_intercept and (self.constant.absent or self.pattern.zero)

    def spot(self) -> str:
        """Where in the fitted array the differing entries stand; empty where they are all over it."""
        if self.constant.values.shape != self.match.expected.shape:
            return ""
        entries = np.flatnonzero(self.match.different.ravel())[:MOST_LOCATED]
        found = np.array(list(dict.fromkeys(self.match.index(int(entry)) for entry in entries)))
        if self.pattern.few and len(found) <= FEW_ENTRIES:
            return "index " + ", ".join(str(index.tolist()) for index in found)
        whole = self.match.expected.shape if self.parameter is None else self.parameter.values.shape
        for axis, name in enumerate(("row", "column") if found.shape[1] > 1 else ()):
            lines = np.unique(found[:, axis])
            if len(lines) <= 2 and len(lines) < whole[axis] and len(entries) < MOST_LOCATED:
                return f"{name}{'s' if len(lines) > 1 else ''} {' and '.join(map(str, lines))}"
        return ""

    def columns(self) -> list[str]:
        """The columns that the differing entries speak of, each once."""
        if self.parameter is None or not self.parameter.columns or self.match.form is None:
            return []
        if self.constant.values.shape != self.match.expected.shape:
            return list(dict.fromkeys(self.parameter.columns))
        entries = np.flatnonzero(self.match.different.ravel())[:MOST_LOCATED]
        found = [self.parameter.column(self.match.index(int(entry))) for entry in entries]
        return [name for name in dict.fromkeys(found) if name is not None]


@dataclass(frozen=True, slots=True)
class Weights:
    """Both sides' weights.

    `known` are the reference's fitted arrays, `before` the nodes of the candidate's graph that prepare the
    inputs. `predicts` is False where the reference is a transformer and nothing else.
    """

    graph: ModelProto
    matches: tuple[Match, ...]
    differences: tuple[Difference, ...]
    known: tuple[Parameter, ...]
    before: frozenset[int]
    predicts: bool

    @property
    def missing(self) -> list[Parameter]:
        """Fitted arrays that no constant of the candidate holds, in any form."""
        taken = {match.parameter.path for match in self.matches if match.parameter is not None}
        return [parameter for parameter in self.known if parameter.path not in taken]

    def compared(self, role: str | None = None, *, biases: bool = True) -> int:
        """How many stored constants were compared with what they should hold; helpers that were not learnt aside."""
        named = [match for match in self.matches if match.parameter is not None]
        different = [entry.match for entry in self.differences]
        counted = [match for match in (*named, *different) if role in (None, _role(match, self.before))]
        return len({m.constant.tensor or m.constant.key for m in counted if biases or not is_intercept(m)})

    @property
    def stale(self) -> bool:
        """Do the weights look like those of another training, with other values in most that the model learnt?"""
        role = MODEL if self.predicts else None
        concerned = [entry for entry in self.differences if role in (None, entry.role)]
        others = [entry for entry in concerned if not entry.pattern.regular and elsewhere(entry, concerned) is None]
        weighty = [entry for entry in others if entry.match.expected.size > 1 and not entry.is_intercept]
        if not weighty or 2 * len(others) <= len(concerned):
            return False
        return len(others) >= 2 or len(weighty) >= self.compared(role, biases=False)


def elsewhere(entry: Difference, differences: Sequence[Difference]) -> Difference | None:
    """The one that should hold what another does: of the same training, then, and read in the wrong place."""
    held = entry.constant.values
    others = (other for other in differences if other is not entry)
    return next((other for other in others if np.array_equal(other.match.expected, held)), None)


@made_once
def weights(case: Case) -> Weights | None:
    """The weights of both sides, or None where one of them keeps its own to itself."""
    graph = case.graph("candidate") if case.runners.get("candidate") is not None else None
    if graph is None or case.native("reference") is None:
        return None
    known, twin = reference_parameters(case), twins.converted(case)
    if not known and twin is None:
        return None
    held = [constant for constant in constants(graph) if constant.operator not in TREES]
    found: list[Match] = []
    if twin is not None:
        pairs = [pair for pair in weight_matching.counterparts(twin, graph) if pair[0].operator not in TREES]
        names = _by_name([mine for mine, _ in pairs], known)
        nameless = [mine for mine, _ in pairs if mine.key not in names]
        names |= identified(case, nameless, known, freely=True)
        found = [_twinned(mine, yours, names.get(mine.key)) for mine, yours in pairs]
    paired = {match.constant.key for match in found}
    named = {match.parameter.path for match in found if match.parameter is not None}
    rest = [constant for constant in held if constant.key not in paired and not labels(constant)]
    found += matched(case, rest, [parameter for parameter in known if parameter.path not in named])
    found = where_named(graph, _of_one_storage(by_branch(graph, found, known)), known)
    found, before = _placed(graph, found, known)
    if case.framework("reference") == "sklearn" and not reference_steps(case):
        before = frozenset()  # one estimator and nothing before it
    differences = [*_differences(found, before)]
    for pairs in () if twin is None else weight_matching.other_trees(twin, graph):
        trees = tuple(Match(yours, mine.values) for mine, yours in pairs)
        differences.append(Difference(trees, Pattern("other thresholds throughout", regular=False), MODEL))
    predicts = hasattr(case.native("reference"), "predict") or not hasattr(case.native("reference"), "transform")
    return Weights(graph, tuple(found), tuple(differences), known, before, predicts)


def reference_parameters(case: Case) -> tuple[Parameter, ...]:
    """Every fitted array of the reference."""
    native = case.native("reference")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(native, torch.nn.Module):
        return tuple(inside.parameters_of(native))
    if case.framework("reference") == "onnx":
        return tuple(_stored(case.graph("reference")))
    if "sklearn" in sys.modules and hasattr(native, "get_params"):
        feed = case.reference.feed.columns if case.reference is not None else None
        return parameters(native, tuple(feed or ()))
    return ()


def _stored(graph: ModelProto) -> Iterator[Parameter]:
    """The constants of a reference that is a graph itself."""
    before = before_the_model(graph)
    for constant in {c.tensor: c for c in constants(graph)}.values():
        learnt = is_float(constant.values) or is_text(constant.values)
        if learnt and constant.operator not in TREES and not labels(constant):
            role = PREPROCESSING if constant.node in before else MODEL
            yield Parameter("", constant.tensor, constant.values, role, GRAPH)


def _by_name(held: Sequence[Constant], known: Sequence[Parameter]) -> dict[tuple[int, int | str], Match]:
    """What constants of a reference that is a graph itself are called: they need not be looked for."""
    named = {parameter.path: parameter for parameter in known if parameter.kind == GRAPH}
    stored = [(constant, named.get(constant.tensor)) for constant in held]
    return {
        constant.key: Match(constant, parameter.values, parameter, Form(parameter, parameter.values, "as it is"))
        for constant, parameter in stored
        if parameter is not None and parameter.values.shape == constant.values.shape
    }


def _twinned(mine: Constant, yours: Constant, named: Match | None) -> Match:
    """What a constant should hold is what its twin holds; what that is called, the parameter tells."""
    expected = mine.values
    if not yours.absent and is_float(yours.values) and is_float(expected):
        expected = expected.astype(yours.values.dtype, copy=False)
    if yours.values.size == expected.size and yours.values.shape != expected.shape:
        expected = expected.reshape(yours.values.shape)
    return Match(yours, expected) if named is None else Match(yours, expected, named.parameter, named.form)


def _differences(matches: Sequence[Match], before: frozenset[int]) -> Iterator[Difference]:
    together: dict[Any, list[Match]] = {}
    for match in matches:
        if bool(match.different.any()):
            together.setdefault(match.constant.tensor or match.constant.key, []).append(match)
    for group in together.values():
        first = group[0]
        how = pattern(first.constant.values, first.expected, first.different)
        for array in (first.constant.values, first.expected):
            describe.release(array)
        yield Difference(tuple(group), how, _role(first, before))


def _role(match: Match, before: Collection[int]) -> str:
    """Does a constant prepare the inputs, or is it what the model learnt?"""
    if match.parameter is not None:
        return match.parameter.role
    return PREPROCESSING if match.constant.node in before else MODEL


def _of_one_storage(matches: Sequence[Match]) -> list[Match]:
    """A graph is rounded as a whole: what many values tell holds for the constants with few."""
    numbers = [
        (m.constant.values.ravel()[:MOST_LOCATED], m.expected.ravel()[:MOST_LOCATED])
        for m in matches
        if m.constant.values.dtype == np.float32
        and m.constant.values.shape == m.expected.shape
        and is_float(m.expected)
    ]
    if not numbers:
        return list(matches)
    storage = storage_of(*(np.concatenate(side) for side in zip(*numbers, strict=True)))
    return [replace(match, storage=storage) for match in matches]


def _placed(
    graph: ModelProto, matches: Sequence[Match], known: Sequence[Parameter]
) -> tuple[list[Match], frozenset[int]]:
    """The nodes that prepare the inputs; constants among them that no array names belong to the step without any."""
    named = {match.constant.node for match in matches if match.parameter is not None and match.parameter.role == MODEL}
    prepared = {m.constant.node for m in matches if m.parameter is not None and m.parameter.role == PREPROCESSING}
    held = {match.parameter.path for match in matches if match.parameter is not None}
    before = frozenset(before_the_model(graph, named))
    taken = {match.parameter.step for match in matches if match.parameter is not None}
    waiting = {p.step: p for p in known if p.role == PREPROCESSING and p.step not in taken and p.kind != GRAPH}
    every = {p.step: p for p in known if p.role == PREPROCESSING and p.kind != GRAPH}
    if not waiting and any(p.role == MODEL and p.path not in held for p in known):
        # Behind steps that are all found, what nobody names is of the model, which has arrays that are not.
        before -= {index for node in prepared for index in after(graph, node)} - prepared
    owner = next((next(iter(steps.values())) for steps in (waiting, every) if len(steps) == 1), None)
    if owner is None:
        return list(matches), before
    owned = [
        replace(m, parameter=Parameter(owner.step, m.constant.tensor, m.expected, owner.role, owner.kind))
        if m.parameter is None and m.constant.node in before
        else m
        for m in matches
    ]
    return owned, before


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
    values = []
    for match in (match for entry in differences for match in entry.matches):
        narrowed = match.constant.absent and match.expected.dtype == np.float64
        values.append((match.constant, match.expected.astype(np.float32) if narrowed else match.expected))
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


def missing_parts(found: Weights) -> Iterator[Part]:
    """Parts of the model for which the graph has no place, the likeliest first."""
    gone = [parameter for parameter in found.missing if not parameter.rounding]
    for bias in [entry for entry in gone if entry.is_intercept and entry.values.any()][:MOST_TRIED]:
        yield from _with_bias(found, bias)
    yield from _with_normalisation(found, gone)
    if not gone and not found.differences and any(map(_is_network, found.matches)):
        yield from _with_activation(found.graph)


def word(parameter: Parameter | None) -> str:
    """What is added: to a layer a network has biases, an estimator intercepts; a detector of outliers has an offset."""
    words = {"bias": "bias", "intercepts_": "bias", "offset_": "offset"}
    named = "" if parameter is None else parameter.attribute
    return next((word for start, word in words.items() if named.startswith(start)), "intercept")


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


def _is_network(match: Match) -> bool:
    """Is it a weight of something with layers?"""
    return match.parameter is not None and (
        match.parameter.kind in (NETWORK, GRAPH) or match.parameter.attribute.startswith("coefs_")
    )


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
        copy.graph.node.insert(index, pattern)
        added = copy.graph.node[index]
        added.name = "likewise_activation"
        del added.input[:], added.output[:]
        added.input.append(node.input[0])
        added.output.append("likewise_activated")
        copy.graph.node[index + 1].input[0] = "likewise_activated"
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
