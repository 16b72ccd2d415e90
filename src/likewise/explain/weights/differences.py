"""The weights of both sides laid beside one another: what is equal, what differs, what is nowhere to be found."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.explain.case import Case
from likewise.explain.weights import matching
from likewise.explain.weights.arrays import Match, Pattern, is_float, is_text, pattern, storage_of
from likewise.explain.weights.matching import TREES, identified, matched
from likewise.models.arrays import GRAPH, MODEL, PREPROCESSING, Parameter
from likewise.models.onnx.inside import Constant, constants
from likewise.models.sklearn.inside import parameters
from likewise.models.torch import inside

if TYPE_CHECKING:
    from onnx import ModelProto


LEARNING = {"MatMul", "Gemm", "Conv", "ConvTranspose", "LSTM", "GRU", "RNN", "Scan", "Loop", "Attention"}
LEARNING |= {"LinearClassifier", "LinearRegressor", "SVMClassifier", "SVMRegressor", "Einsum"}
LEARNING |= {"TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", "BatchNormalization"}
"""Operators that are the model: what comes before the first of them prepares its inputs."""

PREPARING = {"Scaler", "Imputer", "OneHotEncoder", "LabelEncoder", "TfIdfVectorizer", "Binarizer", "DictVectorizer"}

ADDED = {("Gemm", 2), ("Conv", 2), ("ConvTranspose", 2), ("Add", 0), ("Add", 1)}
"""Where nodes take what is added: a vector there is an intercept."""

OTHER_TREES = Pattern("other thresholds throughout", regular=False)

FEW_SHARED = 0.5
"""Of the thresholds of two ensembles, if one was made from the other."""

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
        others = [entry for entry in concerned if not entry.pattern.regular]
        weighty = [entry for entry in others if entry.match.expected.size > 1 and not entry.is_intercept]
        if not weighty or 2 * len(others) <= len(concerned):
            return False
        return len(others) >= 2 or len(weighty) >= self.compared(role, biases=False)


def weights(case: Case) -> Weights | None:
    """The weights of both sides, or None where one of them keeps its own to itself."""
    return case.once(_laid_out)


def _laid_out(case: Case) -> Weights | None:
    graph = case.graph("candidate") if case.runners.get("candidate") is not None else None
    if graph is None or case.native("reference") is None:
        return None
    known = _parameters(case)
    twin = matching.twin(case)
    if not known and twin is None:
        return None
    held = [constant for constant in constants(graph) if constant.operator not in TREES]
    found: list[Match] = []
    if twin is not None:
        pairs = [pair for pair in matching.counterparts(twin, graph) if pair[0].operator not in TREES]
        names = identified([mine for mine, _ in pairs], known, freely=True, tick=case.require_time)
        found = [_twinned(mine, yours, names.get(mine.key)) for mine, yours in pairs]
    paired = {match.constant.key for match in found}
    named = {match.parameter.path for match in found if match.parameter is not None}
    rest = [constant for constant in held if constant.key not in paired and not _labels(constant)]
    found += matched(rest, [parameter for parameter in known if parameter.path not in named], tick=case.require_time)
    found, before = _placed(graph, _of_one_storage(found), known)
    differences = [*_differences(found, before)]
    if twin is not None:
        differences += [Difference(tuple(trees), OTHER_TREES, MODEL) for trees in _other_trees(twin, graph)]
    predicts = hasattr(case.native("reference"), "predict") or not hasattr(case.native("reference"), "transform")
    return Weights(graph, tuple(found), tuple(differences), known, before, predicts)


def _other_trees(twin: ModelProto, graph: ModelProto) -> Iterator[list[Match]]:
    """Ensembles of which hardly a threshold is the reference's; damage to a few is looked for elsewhere."""
    for pairs in matching.ensembles(twin, graph):
        if matching.shared_thresholds(pairs) < FEW_SHARED:
            thresholds_first = sorted(pairs, key=lambda pair: not matching.holds_thresholds(pair[0]))
            yield [Match(yours, mine.values) for mine, yours in thresholds_first]


def _parameters(case: Case) -> tuple[Parameter, ...]:
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
    before = _before_the_model(graph)
    for constant in {c.tensor: c for c in constants(graph)}.values():
        learnt = is_float(constant.values) or is_text(constant.values)
        if learnt and constant.operator not in TREES and not _labels(constant):
            role = PREPROCESSING if constant.node in before else MODEL
            yield Parameter("", constant.tensor, constant.values, role, GRAPH)


def _labels(constant: Constant) -> bool:
    return isinstance(constant.place, str) and constant.place.startswith(matching.LABELS)


def _twinned(mine: Constant, yours: Constant, named: Match | None) -> Match:
    """What a constant should hold is what its twin holds; what that is called, the parameter tells."""
    expected = mine.values
    if not yours.absent and is_float(yours.values) and is_float(expected):
        expected = expected.astype(yours.values.dtype)
    if yours.values.size == expected.size:
        expected = expected.reshape(yours.values.shape)
    if named is None:
        return Match(yours, expected)
    return Match(yours, expected, named.parameter, named.form)


def _differences(matches: Sequence[Match], before: frozenset[int]) -> Iterator[Difference]:
    together: dict[Any, list[Match]] = {}
    for match in matches:
        if bool(match.different.any()):
            together.setdefault(match.constant.tensor or match.constant.key, []).append(match)
    for group in together.values():
        first = group[0]
        how = pattern(first.constant.values, first.expected, first.different)
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
    before = frozenset(_before_the_model(graph, named))
    taken = {match.parameter.step for match in matches if match.parameter is not None}
    waiting = {p.step: p for p in known if p.role == PREPROCESSING and p.step not in taken and p.kind != GRAPH}
    every = {p.step: p for p in known if p.role == PREPROCESSING and p.kind != GRAPH}
    owner = next((next(iter(steps.values())) for steps in (waiting, every) if len(steps) == 1), None)
    if owner is None:
        return list(matches), before
    return [
        replace(match, parameter=_unnamed(owner, match))
        if match.parameter is None and match.constant.node in before
        else match
        for match in matches
    ], before


def _unnamed(owner: Parameter, match: Match) -> Parameter:
    """An array of a step of which only the owner is known."""
    return Parameter(owner.step, match.constant.tensor, match.expected, owner.role, owner.kind)


def _before_the_model(graph: ModelProto, model: Collection[int] = ()) -> set[int]:
    """The nodes that prepare the inputs: nothing of the model comes before them.

    `model` are nodes known to be the model; where none is, it begins with the first operator that learns.
    """
    learnt: set[str] = set()
    found: set[int] = set()
    if model:
        for index, node in enumerate(graph.graph.node):
            if index in model or node.op_type in TREES or any(name in learnt for name in node.input):
                learnt.update(node.output)
            else:
                found.add(index)
        return found
    if not any(node.op_type in LEARNING for node in graph.graph.node):
        return {index for index, node in enumerate(graph.graph.node) if node.op_type in PREPARING}
    stored = {tensor.name for tensor in graph.graph.initializer}
    for index, node in enumerate(graph.graph.node):
        embeds = node.op_type == "Gather" and node.input[0] in stored
        if node.op_type in LEARNING or embeds or any(name in learnt for name in node.input):
            learnt.update(node.output)
        else:
            found.add(index)
    return found


def is_intercept(match: Match) -> bool:
    if match.parameter is not None and match.parameter.kind != GRAPH:
        return match.parameter.is_intercept
    constant = match.constant
    if isinstance(constant.place, str):
        return constant.place in ("intercepts", "rho")
    flat = match.expected.size == max(match.expected.shape, default=1)
    return flat and (constant.operator, constant.place) in ADDED
