"""The nodes of the candidate that a difference comes in at: as a diagnosis says, or as their errors show.

The nodes that a diagnosis speaks of: it names nodes, tensors, constants, modules, steps, trees or operators.

The part of a large graph that is worth looking at: around some nodes, a few steps up and down.

Where in a graph a difference comes in: the values inside of both models, put side by side node by node.

The error that each node of a graph adds, told apart from the error of what it is given.

A node is run alone on the reference's own values; what it gives then is held against what the reference has there.
Where the reference has nothing in the place of a node's inputs, the nodes before it are run along, back to the nearest
values that it has. All parts of a graph run at once, in windows of bounded size.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from likewise.compare.differences import is_numeric, same_labels
from likewise.compare.observe import align
from likewise.contracts.comparison import Mismatch, PairSpec
from likewise.contracts.data import Array, Batch
from likewise.errors import LikewiseError, ModelError, one_line
from likewise.explain.case import Case, Explained
from likewise.explain.counterparts import (
    Part,
    comparable,
    counterparts,
    owners,
    parts_of,
    places_of_modules,
    places_of_steps,
)
from likewise.explain.first_wrong_step import WrongStep, first_wrong_step
from likewise.explain.trace import fed, inside, opened, run
from likewise.explain.weights.twins import TREES
from likewise.models.onnx.describe import SHAPE_ONLY
from likewise.models.onnx.edits import module_of
from likewise.models.onnx.inside import GIVEN, Cone, Opened

ROWS = 32
"""Failing rows that the values inside of both models are computed for."""

NOTICEABLE = 1e-6
"""No error below this part of a tensor's largest value makes a culprit: it is the noise of single precision."""

STANDS_OUT = 10.0
"""... nor one that is not so many times the next largest."""

MOST_TOGETHER = 3
"""If more nodes could only be measured together, none of them is named."""


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """The candidate's graph, what was measured in it, and what of the reference stands beside.

    `beside` names for tensors of the candidate what the reference has there: a tensor of its graph, or the path of one
    of its `parts`. `values` are the candidate's tensors on one row, for their shapes. `untold` says what could not be
    measured, and why.
    """

    graph: Opened
    rewritten: bool
    suspects: tuple[int, ...] = ()
    errors: Errors = field(default_factory=lambda: Errors({}, {}, {}))
    reference: Opened | None = None
    parts: tuple[Part, ...] = ()
    beside: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Array] = field(default_factory=dict)
    rows: int = 0
    untold: str = ""


def located(case: Case, best: Explained | None) -> Located:
    """Open the candidate up, lay the reference beside it, and measure; what fails on the way is said, not raised.

    Only a graph that cannot be opened up at all is an error.
    """
    written = case.editable()
    if written is None:
        raise ModelError("the graph of the candidate is too large to be opened up")
    found = Located(Opened.of(written, {}), rewritten=False)
    try:
        positions = _failing(case, ROWS)
        graph, rewritten = opened(case, "candidate", positions)
        found = _laid_open(case, graph, positions, rewritten=rewritten)
        found = _beside_parts(case, found, best) if found.reference is None else _beside_graph(case, found, best)
    except Exception as error:  # noqa: BLE001 - whatever goes wrong here must not take the explanation along
        told = error.message if isinstance(error, LikewiseError) else one_line(error)
        found = replace(found, untold=told, suspects=found.suspects or _suspects(case, found, best, {}))
    # A name in a diagnosis may be that of something innocent near by.
    if all(found.errors.introduced.get(index, NOTICEABLE) < NOTICEABLE for index in found.suspects):
        found = replace(found, suspects=_standing_out(found) or found.suspects)
    return found


def _standing_out(found: Located) -> tuple[int, ...]:
    """The node that adds far more error than any other, with the few that were measured together with it."""
    introduced = found.errors.introduced
    ranked = sorted(introduced, key=lambda index: -introduced[index])
    if not ranked or introduced[ranked[0]] < NOTICEABLE:
        return ()
    next_largest = introduced[ranked[1]] if len(ranked) > 1 else 0.0
    together = [i for i in found.errors.together[ranked[0]] if found.graph.node(i).op_type not in PASSING_ON]
    # A whole graph that could only be measured as one says nothing of its nodes.
    stands_out = introduced[ranked[0]] >= STANDS_OUT * next_largest and (len(ranked) > 1 or len(together) <= 1)
    return tuple(together or ranked[:1]) if stands_out and len(together) <= MOST_TOGETHER else ()


def _failing(case: Case, count: int) -> Array:
    """Positions of failing rows, as many as a graph takes at once where it takes one number only."""
    sample = case.required
    if not sample.batch.stacked:
        return np.arange(len(sample))
    chosen = np.flatnonzero(sample.failing)[: max(count, 1)]
    graphs = [side for side in ("candidate", "reference") if case.framework(side) == "onnx"]
    fixed = [size for side in graphs if (size := case.side(side).fixed_batch) is not None]
    return np.resize(chosen, fixed[0]) if fixed else chosen


def _laid_open(case: Case, graph: Opened, positions: Array, *, rewritten: bool) -> Located:
    """The shapes and sizes of the candidate's tensors, and the reference's graph where it has one."""
    reference = None
    if case.framework("reference") == "onnx":
        reference, _ = opened(case, "reference", positions)
    one = case.rows(_failing(case, 1))
    values = inside(case, "candidate", graph, graph.tensors, fed(case, "candidate", one))
    return Located(graph, rewritten=rewritten, reference=reference, values=values)


def _beside_graph(case: Case, found: Located, best: Explained | None) -> Located:
    """A reference that is a graph: tensor beside tensor."""
    graph, reference = found.graph, found.reference
    assert reference is not None
    pairs = counterparts(reference, graph)
    one = case.rows(_failing(case, 1))
    ours = inside(case, "reference", reference, set(pairs.values()), fed(case, "reference", one))
    pairs = comparable(pairs, ours, found.values)
    largest = max((array.nbytes for array in found.values.values()), default=1)
    batch, positions = _rows(case, largest)
    inputs = fed(case, "reference", batch)

    def values(names: Collection[str]) -> Mapping[str, Array]:
        seen = inside(case, "reference", reference, {pairs[name] for name in names if name in pairs}, inputs)
        return {name: seen[pairs[name]] for name in names if pairs.get(name) in seen}

    beside = Beside(frozenset(pairs), values, _answers(case, graph, positions, known=pairs))
    suspects = _suspects(case, found, best, {})
    return _measured(case, replace(found, beside=pairs, suspects=suspects, rows=len(positions)), beside, batch)


def _beside_parts(case: Case, found: Located, best: Explained | None) -> Located:
    """A reference that is no graph: what its steps or modules give, and its answers."""
    graph = found.graph
    batch, positions = _rows(case, sum(array.nbytes for array in found.values.values()))
    parts = parts_of(case, batch)
    places: dict[str, Part] = {}
    held: dict[str, list[int]] = {}
    if any(part.gave is not None for part in parts):
        tensors = inside(case, "candidate", graph, graph.tensors, fed(case, "candidate", batch))
        if case.framework("reference") == "sklearn":
            places = places_of_steps(parts, _proven(case), graph, tensors)
        else:
            places = places_of_modules(parts, graph, tensors)
            for index, path in owners(graph, [part.path for part in parts]).items():
                held.setdefault(path, []).append(index)
    for name, part in places.items():
        held.setdefault(part.path, [graph.makers[name]])
    # Not one of these is without values: only such parts have places.
    gave = {name: part.gave for name, part in places.items() if part.gave is not None}

    def values(names: Collection[str]) -> Mapping[str, Array]:
        return {name: gave[name] for name in names if name in gave}

    beside = Beside(frozenset(gave), values, _answers(case, graph, positions, known=gave))
    named = {name: part.path for name, part in places.items()}
    suspects = _suspects(case, found, best, held)
    found = replace(found, parts=parts, beside=named, suspects=suspects, rows=len(positions))
    return _measured(case, found, beside, batch)


def _rows(case: Case, bytes_a_row: int) -> tuple[Batch, Array]:
    """As many failing rows as stay within bounds."""
    positions = _failing(case, min(ROWS, WINDOW // max(bytes_a_row, 1)))
    return case.rows(positions), positions


def _proven(case: Case) -> dict[str, str]:
    """The tensor that was shown to hold what a step gives wrongly; looked for before by a hypothesis, or now."""
    wrong: WrongStep | None = first_wrong_step(case)
    return {} if wrong is None or wrong.place.columns is not None else {wrong.step.path: wrong.place.tensor}


def _answers(case: Case, graph: Opened, positions: Array, *, known: Collection[str]) -> dict[str, Answer]:
    """What the reference answers in the place of the graph's outputs."""
    found: dict[str, Answer] = {}
    for spec in case.specs:
        tensor = _before_zipmap(graph, spec.candidate)
        values = case.required.reference.get(spec.reference)
        if tensor is not None and tensor not in known and values is not None:
            found[tensor] = Answer(spec, values[positions])
    return found


def _before_zipmap(graph: Opened, output: str) -> str | None:
    """The tensor that an output holds, also where it is handed out as a list of dictionaries."""
    maker = graph.makers.get(output)
    if maker is not None and graph.node(maker).op_type == "ZipMap":
        output = graph.node(maker).input[0]
    return output if output in graph.makers else None


def _suspects(case: Case, found: Located, best: Explained | None, parts: Mapping[str, list[int]]) -> tuple[int, ...]:
    """The nodes that the best diagnosis names."""
    if best is None:
        return ()
    graph = found.graph
    if found.rewritten and (written := case.editable()) is not None:
        before = Opened.of(written, {})
        named = carried_over(spoken_of(str(best.culprit), best.evidence, before, {}, {}), before, graph)
        if named:
            return named
    outputs: dict[str, list[int]] = {}
    for spec in case.specs:
        tensor = _before_zipmap(graph, spec.candidate)
        for name in (spec.name, spec.reference, spec.candidate) if tensor is not None else ():
            outputs[name] = [graph.makers[tensor]] if tensor is not None else []
    return spoken_of(str(best.culprit), best.evidence, graph, parts, outputs)


def _measured(case: Case, found: Located, beside: Beside, batch: Batch) -> Located:
    graph = found.graph
    edges = [(edge.source, edge.target) for edge in graph.edges()]
    # Where the culprit is known, only what will be shown is looked at.
    nodes = around(graph.computing, edges, found.suspects) if found.suspects else graph.computing
    rows = max(found.rows, 1)
    errors = measured(
        case,
        graph,
        beside,
        fed(case, "candidate", batch),
        sizes={name: array.nbytes * rows for name, array in found.values.items()},
        nodes=nodes,
        suspects=found.suspects,
    )
    return replace(found, errors=errors)


QUOTED = re.compile(r"'([^']+)'")
WORD = re.compile(r"[^\s,;()'\"]+")
TREE = re.compile(r"\b(trees?|leaf|leaves|ensemble)\b")
SHORTEST = 3
"""Letters of a word that may be a name although it stands in no quotation marks."""

FEW = 3
"""Nodes of one operator that its name alone is taken for."""

Places = Mapping[str, Iterable[int]]


def spoken_of(culprit: str, evidence: str, graph: Opened, parts: Places, outputs: Places) -> tuple[int, ...]:
    """The nodes that a diagnosis names, the most exact kind of name first; none if it names none.

    `parts` are nodes by the path of a step or module, `outputs` by the name of an output.
    """
    exact = (_nodes(graph), _tensors(graph), _constants(graph), _modules(graph))
    quoted, words = QUOTED.findall(culprit), _words(culprit)
    operators = _of_operators(graph, set(words))
    if named := _first(quoted, exact):
        return named
    # "attribute 'offset' of Scaler" says more than the step that this is part of, if there are few of them.
    if 0 < len(operators) <= FEW:
        return operators
    steps = (parts, _last_names(parts))
    if named := _first(quoted, steps) or _first(words, (*exact, *steps)):
        return named
    if TREE.search(culprit) and (trees := _of_operators(graph, TREES)):
        return trees
    if named := operators or _first(QUOTED.findall(evidence), exact[:-1]):
        return named
    return _first([*quoted, *words, *(word.partition("[")[0] for word in words)], (outputs,))


def carried_over(indices: Iterable[int], written: Opened, running: Opened) -> tuple[int, ...]:
    """Where nodes of a graph have gone in what the runtime made of it: to the nearest tensors that both have."""
    found: dict[int, None] = {}
    readers: dict[str, list[int]] = {}
    for index, names in enumerate(written.reads):
        for name in names:
            readers.setdefault(name, []).append(index)
    queue, seen = list(indices), set[int]()
    while queue:
        index = queue.pop(0)
        if index in seen:
            continue
        seen.add(index)
        there = [name for name in written.node(index).output if name in running.makers]
        found |= dict.fromkeys(running.makers[name] for name in there)
        if not there:
            queue.extend(reader for name in written.node(index).output for reader in readers.get(name, ()))
    return tuple(found)


def _words(text: str) -> list[str]:
    return [word.rstrip(".:") for word in WORD.findall(text) if len(word) >= SHORTEST]


def _first(names: Sequence[str], kinds: Iterable[Places]) -> tuple[int, ...]:
    """What the first kind of things that has any of these names has under them."""
    return next((found for kind in kinds if (found := _known(names, kind))), ())


def _known(names: Iterable[str], kind: Places) -> tuple[int, ...]:
    return tuple(dict.fromkeys(index for name in names for index in kind.get(name, ())))


def _nodes(graph: Opened) -> Places:
    return {graph.node(index).name: (index,) for index in graph.computing}


def _tensors(graph: Opened) -> Places:
    return {name: (index,) for index in graph.computing for name in graph.node(index).output if name}


def _constants(graph: Opened) -> Places:
    """The nodes that use a constant, also through others that only pass it on."""
    computing = set(graph.computing)
    found: dict[str, list[int]] = {}
    for index in graph.computing:
        for name in _held(graph, index, computing):
            found.setdefault(name, []).append(index)
    return found


def _held(graph: Opened, index: int, computing: set[int]) -> Iterator[str]:
    for name in graph.reads[index]:
        maker = graph.makers.get(name)
        if maker is None and name not in graph.inputs:
            yield name
        elif maker is not None and maker not in computing:
            yield name
            yield from _held(graph, maker, computing)


def _modules(graph: Opened) -> Places:
    found: dict[str, list[int]] = {}
    for index in graph.computing:
        if module := module_of(graph.node(index)):
            found.setdefault(module, []).append(index)
    return found


def _last_names(parts: Places) -> Places:
    """Steps by the last word of their path, where that is enough."""
    found: dict[str, list[int]] = {}
    for path, nodes in parts.items():
        found.setdefault(path.rpartition("__")[2], []).extend(nodes)
    return found


def _of_operators(graph: Opened, operators: Iterable[str]) -> tuple[int, ...]:
    wanted = set(operators)
    return tuple(index for index in graph.computing if graph.node(index).op_type in wanted)


Node = TypeVar("Node", bound=Hashable)

MOST = 40
"""Nodes of a side that are shown; a graph that has no more is shown whole."""

STEPS = 2
"""How far from its centre a part of a graph reaches, up and down."""


def around(
    nodes: Sequence[Node], edges: Iterable[tuple[Node, Node]], centres: Sequence[Node], *, most: int = MOST
) -> list[Node]:
    """The centres and what is nearest to them, in the order of the graph; the whole graph if it is small."""
    if len(nodes) <= most:
        return list(nodes)
    before: dict[Node, list[Node]] = {}
    after: dict[Node, list[Node]] = {}
    for source, target in edges:
        after.setdefault(source, []).append(target)
        before.setdefault(target, []).append(source)
    known = set(nodes)
    chosen = dict.fromkeys([node for node in centres if node in known][:most])
    # In turns, so that a node with many readers leaves room for what it reads.
    for near in _in_turns(_reached(before, list(chosen)), _reached(after, list(chosen))):
        if len(chosen) < most:
            chosen[near] = None
    return [node for node in nodes if node in chosen]


def _reached(onwards: Mapping[Node, Sequence[Node]], centres: Sequence[Node]) -> list[Node]:
    """What is a few steps from the centres in one direction, the nearest first."""
    found: dict[Node, None] = {}
    edge = list(centres)
    for _ in range(STEPS):
        edge = list(dict.fromkeys(further for node in edge for further in onwards.get(node, ())))
        found |= dict.fromkeys(edge)
    return list(found)


def _in_turns(one: Sequence[Node], other: Sequence[Node]) -> list[Node]:
    longest = max(len(one), len(other))
    return [entry for place in range(longest) for side in (one, other) for entry in side[place : place + 1]]


WINDOW = 64 * 2**20
"""Bytes of inner values that are held at once, of either side."""

PASSING_ON = (SHAPE_ONLY - {"Normalizer"}) | {"QuantizeLinear", "DequantizeLinear"}
"""Operators that are not to blame for a part of the graph that was measured as a whole."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the reference answers in the place of an output of the graph."""

    spec: PairSpec
    values: Array


@dataclass(frozen=True, slots=True)
class Beside:
    """What the reference has in the place of tensors of the candidate, asked for by the candidate's names.

    `tensors` have the same shape on both sides and may be given to the candidate; `answers` are only compared.
    """

    tensors: frozenset[str]
    values: Callable[[Collection[str]], Mapping[str, Array]]
    answers: Mapping[str, Answer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Errors:
    """What was measured of some nodes. `together` are all the nodes that the measurement of one is about."""

    introduced: Mapping[int, float]
    inherited: Mapping[int, float]
    together: Mapping[int, tuple[int, ...]]


def error(reference: Array, candidate: Array) -> float | None:
    """The largest difference as a part of the largest value of either side; None where shapes do not allow it.

    It is 1 at least where one side alone is not finite. Of text and truth values it is the share that differs.
    """
    if reference.size != candidate.size or not reference.size:
        return None
    candidate = candidate.reshape(reference.shape)
    numeric = (
        is_numeric(reference) and is_numeric(candidate) and "b" not in (reference.dtype.kind, candidate.dtype.kind)
    )
    if not numeric:
        return float(1.0 - same_labels(reference, candidate).mean())
    ours, theirs = reference.astype(np.float64), candidate.astype(np.float64)
    finite = np.isfinite(ours) & np.isfinite(theirs)
    with np.errstate(invalid="ignore"):
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    broken = 1.0 if (~finite & ~same).any() else 0.0
    ours, theirs = ours[finite], theirs[finite]
    scale = max(np.abs(ours).max(initial=0.0), np.abs(theirs).max(initial=0.0))
    # Each is divided first: the difference of two huge numbers may be no number.
    return max(float(np.abs(ours / scale - theirs / scale).max()) if scale else 0.0, broken)


def answer_error(answer: Answer, candidate: Array) -> float | None:
    """How far an output is from the reference's answer, with the columns put in the reference's order."""
    from likewise.contracts.models import Kind

    aligned = align(answer.spec, answer.values, candidate) if len(candidate) == len(answer.values) else None
    if aligned is None or isinstance(aligned, Mismatch):
        return None
    if answer.spec.kind is Kind.LABEL:
        return float(1.0 - same_labels(*aligned).mean())
    return error(*aligned)


def measured(
    case: Case,
    graph: Opened,
    beside: Beside,
    inputs: Mapping[str, Array],
    *,
    sizes: Mapping[str, int],
    nodes: Collection[int],
    suspects: Collection[int] = (),
) -> Errors:
    """The errors of these nodes, as far as the reference has something in their place.

    `sizes` are the bytes of the candidate's tensors. The error of a part of several nodes is told of the suspects among
    them, or else of the last one that does not only pass values on.
    """
    given = beside.tensors & graph.types.keys()
    cones = [
        graph.cone(name, given)
        for index in sorted(nodes)
        for name in graph.node(index).output
        if (name in given or name in beside.answers) and name in graph.types
    ]
    introduced: dict[int, float] = {}
    inherited: dict[int, float] = {}
    together: dict[int, tuple[int, ...]] = {}
    for window in _windows(cones, sizes):
        sources = {name for cone in window for name in cone.sources}
        theirs = inside(case, "candidate", graph, sources, inputs)
        ours = beside.values(sources | {cone.tensor for cone in window if cone.tensor in given})
        alone = _alone(case, graph, window, {**inputs, **_as_given(ours, theirs)})
        for cone in window:
            if cone.tensor not in alone:
                continue
            found = _introduced(beside, cone, ours, alone[cone.tensor])
            felt = [error(ours[name], theirs[name]) for name in cone.sources if name in ours and name in theirs]
            for index in _blamed(graph, cone, suspects):
                if found is not None:
                    introduced[index] = max(found, introduced.get(index, 0.0))
                inherited[index] = max(inherited.get(index, 0.0), *(value or 0.0 for value in felt), 0.0)
                together[index] = max(together.get(index, ()), _computing(graph, cone), key=len)
    return Errors(introduced, inherited, together)


def _introduced(beside: Beside, cone: Cone, ours: Mapping[str, Array], gave: Array) -> float | None:
    if cone.tensor in ours:
        return error(ours[cone.tensor], gave)
    return answer_error(beside.answers[cone.tensor], gave) if cone.tensor in beside.answers else None


def _as_given(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> dict[str, Array]:
    """The reference's values in the types and shapes that the candidate computes with."""
    found: dict[str, Array] = {}
    for name, array in theirs.items():
        if name in ours and ours[name].size == array.size:
            with np.errstate(over="ignore", invalid="ignore"):
                found[name + GIVEN] = ours[name].astype(array.dtype).reshape(array.shape)
    return found


def _alone(case: Case, graph: Opened, cones: Sequence[Cone], inputs: Mapping[str, Array]) -> dict[str, Array]:
    """What the parts give, each on its own; one that does not run takes no other along."""
    ready = [cone for cone in cones if all(name + GIVEN in inputs for name in cone.sources)]
    if not ready:
        return {}
    try:
        return run(case, "candidate", graph.alone(ready), inputs)
    except ModelError:
        if len(ready) == 1:
            return {}
    half = len(ready) // 2
    return {**_alone(case, graph, ready[:half], inputs), **_alone(case, graph, ready[half:], inputs)}


def _computing(graph: Opened, cone: Cone) -> tuple[int, ...]:
    computing = set(graph.computing)
    return tuple(index for index in cone.nodes if index in computing)


def _blamed(graph: Opened, cone: Cone, suspects: Collection[int]) -> list[int]:
    """The nodes that the error of a part is told of."""
    nodes = _computing(graph, cone)
    suspected = [index for index in nodes if index in suspects]
    if suspected or len(nodes) <= 1:
        return suspected or list(nodes)
    last = graph.makers[cone.tensor]
    while graph.node(last).op_type in PASSING_ON:
        before = graph.makers.get(graph.node(last).input[0])
        if before is None or before not in nodes:
            break
        last = before
    return [last]


def _windows(cones: Sequence[Cone], sizes: Mapping[str, int]) -> Iterator[list[Cone]]:
    """Parts whose values together stay within bounds, one after the other."""
    window: list[Cone] = []
    held = 0
    for cone in cones:
        needed = sum(sizes.get(name, 0) for name in (*cone.sources, cone.tensor))
        if window and held + needed > WINDOW:
            yield window
            window, held = [], 0
        window.append(cone)
        held += needed
    if window:
        yield window
