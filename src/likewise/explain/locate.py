"""The nodes of the candidate that a difference comes in at: as a diagnosis says, or as their errors show.

The values inside of both models are put side by side node by node; around the culprit, a part of the graph that is
worth looking at.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from likewise.contracts.data import Array, Batch
from likewise.contracts.report import Place
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
from likewise.explain.node_errors import PASSING_ON, WINDOW, Answer, Beside, Errors, fed, inside, measured, opened
from likewise.models.onnx.edits import module_of
from likewise.models.onnx.inside import Opened

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


def _suspects(case: Case, found: Located, best: Explained | None, parts: Known) -> tuple[int, ...]:
    """The nodes that the best diagnosis names."""
    if best is None:
        return ()
    place = best.culprit
    graph = found.graph
    if found.rewritten and (written := case.editable()) is not None:
        before = Opened.of(written, {})
        named = _carried_over(nodes_at(place, before, {}, {}), before, graph)
        if named:
            return named
    outputs: dict[str, tuple[int, ...]] = {}
    for spec in case.specs:
        tensor = _before_zipmap(graph, spec.candidate)
        if tensor is not None:
            outputs |= dict.fromkeys((spec.name, spec.reference, spec.candidate), (graph.makers[tensor],))
    return nodes_at(place, graph, parts, outputs)


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


Known = Mapping[str, Iterable[int]]


def nodes_at(place: Place, graph: Opened, parts: Known, outputs: Known) -> tuple[int, ...]:
    """The nodes of the candidate that a place speaks of, by the most exact of what it knows; none if it knows none.

    `parts` are nodes by the path of a step or module, `outputs` by the name of an output.
    """
    if place.side != "candidate":
        return ()
    kinds: tuple[tuple[Sequence[str], Known], ...] = (
        (place.nodes, {graph.node(index).name: (index,) for index in graph.computing}),
        (place.tensors, {name: (index,) for index in graph.computing for name in graph.node(index).output if name}),
        (place.tensors, _constants(graph)),
        ((place.path,), _modules(graph)),
        ((place.path,), parts),
        (place.outputs, outputs),
    )
    found = (tuple(dict.fromkeys(i for name in names for i in known.get(name, ()))) for names, known in kinds)
    return next((indices for indices in found if indices), ())


def _carried_over(indices: Iterable[int], written: Opened, running: Opened) -> tuple[int, ...]:
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


def _constants(graph: Opened) -> Known:
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


def _modules(graph: Opened) -> Known:
    found: dict[str, list[int]] = {}
    for index in graph.computing:
        if module := module_of(graph.node(index)):
            found.setdefault(module, []).append(index)
    return found


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
