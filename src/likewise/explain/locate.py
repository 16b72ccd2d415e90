"""The nodes of the candidate that a difference comes in at: as a diagnosis says, or as their errors show.

The values inside of both models are put side by side node by node; around the culprit, a part of the graph that is
worth looking at is drawn: the candidate's nodes with the error each adds, beside those of the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

from likewise.contracts.data import Array, Batch
from likewise.contracts.report import GraphEdge, GraphNode, GraphView, Place
from likewise.errors import LikewiseError, ModelError, one_line
from likewise.explain import counterparts
from likewise.explain.case import Case, Explained
from likewise.explain.counterparts import Answer, Beside, Errors, Part, measured, opened, outlines
from likewise.explain.first_wrong_step import first_wrong_step
from likewise.explain.trace import failing_positions, fed, inside
from likewise.models.onnx.edits import module_of
from likewise.models.onnx.inside import Opened

if TYPE_CHECKING:
    from onnx import AttributeProto, NodeProto


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
    of its `parts`. `values` are outlines of the candidate's tensors on one row. `untold` says what could not be
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
        one = fed(case, "candidate", case.rows(failing_positions(case, 1)))
        values = outlines(case, "candidate", Opened.of(written, case.tensor_types()), one)
        _, positions = _rows(case, values, case.looked_at)
        graph, rewritten = opened(case, "candidate", positions)
        reference = opened(case, "reference", positions)[0] if case.framework("reference") == "onnx" else None
        values = outlines(case, "candidate", graph, one) if rewritten else values
        found = Located(graph, rewritten, reference=reference, values=values)
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
    together = [
        i for i in found.errors.together[ranked[0]] if found.graph.node(i).op_type not in counterparts.PASSING_ON
    ]
    # A whole graph that could only be measured as one says nothing of its nodes.
    stands_out = introduced[ranked[0]] >= STANDS_OUT * next_largest and (len(ranked) > 1 or len(together) <= 1)
    return tuple(together or ranked[:1]) if stands_out and len(together) <= MOST_TOGETHER else ()


def _beside_graph(case: Case, found: Located, best: Explained | None) -> Located:
    """A reference that is a graph: tensor beside tensor."""
    graph, reference = found.graph, found.reference
    assert reference is not None
    pairs = counterparts.counterparts(reference, graph)
    one = case.rows(failing_positions(case, 1))
    ours = outlines(case, "reference", reference, fed(case, "reference", one))
    pairs = counterparts.comparable(pairs, ours, found.values)
    batch, positions = _rows(case, found.values, case.looked_at)
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
    batch, positions = _rows(case, found.values, case.held)
    parts = counterparts.parts_of(case, batch)
    places: dict[str, Part] = {}
    held: dict[str, list[int]] = {}
    if any(part.gave is not None for part in parts):
        tensors = inside(case, "candidate", graph, graph.tensors, fed(case, "candidate", batch))
        if case.framework("reference") == "sklearn":
            wrong = first_wrong_step(case)
            known = {} if wrong is None or wrong.place.columns is not None else {wrong.step.path: wrong.place.tensor}
            places = counterparts.places_of_steps(parts, known, graph, tensors)
        else:
            places = counterparts.places_of_modules(parts, graph, tensors)
            for index, path in counterparts.owners(graph, [part.path for part in parts]).items():
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


def _rows(case: Case, values: Mapping[str, Array], most: int) -> tuple[Batch, Array]:
    """As many failing rows as stay within bounds; the runtime may keep all tensors, however few are read."""
    bytes_a_row = sum(array.nbytes for array in values.values())
    positions = failing_positions(case, min(ROWS, most // max(bytes_a_row, 1)))
    return case.rows(positions), positions


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
    # Where the culprit is known, only what will be shown is looked at.
    nodes = around(graph.computing, graph.links(), found.suspects) if found.suspects else graph.computing
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
    computing = set(graph.computing)
    kinds: tuple[tuple[Sequence[str], Known], ...] = (
        (place.nodes, {graph.node(index).name: (index,) for index in graph.computing}),
        (place.tensors, {name: (index,) for index in graph.computing for name in graph.node(index).output if name}),
        (
            place.tensors,
            _grouped((name, index) for index in graph.computing for name in _held(graph, index, computing)),
        ),
        ((place.path,), _grouped((module_of(graph.node(index)) or "", index) for index in graph.computing)),
        ((place.path,), parts),
        (place.outputs, outputs),
    )
    found = (tuple(dict.fromkeys(i for name in names if name for i in known.get(name, ()))) for names, known in kinds)
    return next((indices for indices in found if indices), ())


def _carried_over(indices: Iterable[int], written: Opened, running: Opened) -> tuple[int, ...]:
    """Where nodes of a graph have gone in what the runtime made of it: to the nearest tensors that both have."""
    found: dict[int, None] = {}
    readers = written.readers
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


def _grouped(pairs: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, index in pairs:
        found.setdefault(name, []).append(index)
    return found


def _held(graph: Opened, index: int, computing: set[int]) -> Iterator[str]:
    """The constants that a node uses, also through others that only pass them on."""
    for name in graph.reads[index]:
        maker = graph.makers.get(name)
        if maker is None and name not in graph.inputs:
            yield name
        elif maker is not None and maker not in computing:
            yield name
            yield from _held(graph, maker, computing)


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
    for both in zip_longest(_reached(before, list(chosen)), _reached(after, list(chosen))):
        for near in both:
            if near is not None and len(chosen) < most:
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


LONGEST_DETAIL, LONGEST_NAME, MOST_LISTED = 300, 200, 8
NOT_TOLD = "the graph around the culprit"


def around_culprit(case: Case, best: Explained | None) -> tuple[GraphView | None, tuple[str, ...]]:
    """What surrounds the culprit of the best diagnosis, or the node that adds most error; and what was not measured.

    None where the candidate is no ONNX graph.
    """
    try:
        if case.graph("candidate") is None:
            return None, ()
        found = located(case, best)
        return _view(found), (f"{NOT_TOLD}, its errors: {found.untold}",) if found.untold else ()
    except LikewiseError as error:
        return None, (f"{NOT_TOLD}: {error.message}",)
    except Exception as error:  # noqa: BLE001 - a picture that fails must not take the explanation along
        return None, (f"{NOT_TOLD}: {one_line(error)}",)


def _view(found: Located) -> GraphView:
    graph = found.graph
    introduced = found.errors.introduced
    # Without a culprit, what adds most is looked at; without any error measured, what gives the answers.
    most = sorted(introduced, key=lambda index: -introduced[index])[:1] or list(graph.computing[-1:])
    centres = found.suspects or most
    shown = around(graph.computing, graph.links(), centres)
    nodes, edges = _drawn("candidate", graph, shown, lambda index: _measured_there(found, index))
    theirs, links = _of_reference(found, shown, centres)
    return GraphView((*nodes, *theirs), (*edges, *links), _note(found, len(shown)))


def _drawn(
    side: str, graph: Opened, shown: Sequence[int], more: Callable[[int], Mapping[str, Any]]
) -> tuple[list[GraphNode], list[GraphEdge]]:
    """Some nodes of a graph, with what more there is to say of each, and the tensors between them."""
    ids = {index: f"{side}:{graph.node(index).name or index}" for index in shown}
    nodes = [
        GraphNode(ids[index], side, _short(graph.node(index).name), graph.node(index).op_type, **more(index))
        for index in shown
    ]
    edges = [
        GraphEdge(ids[edge.source], ids[edge.target], _short(edge.tensor))
        for edge in graph.edges()
        if edge.source in ids and edge.target in ids
    ]
    return nodes, edges


def _measured_there(found: Located, index: int) -> dict[str, Any]:
    """What is known of a node of the candidate."""
    node, errors = found.graph.node(index), found.errors
    together = len(errors.together.get(index, (index,))) - 1
    beside = next((found.beside[name] for name in node.output if name in found.beside), None)
    details = [
        *_details(node, found.values),
        *([f"beside {beside!r} of the reference"] if beside is not None else []),
        *([f"measured together with {together} node{'s' if together > 1 else ''} beside it"] if together else []),
    ]
    return {
        "culprit": index in found.suspects,
        "introduced": errors.introduced.get(index),
        "inherited": errors.inherited.get(index),
        "detail": _short("; ".join(details), LONGEST_DETAIL),
    }


def _of_reference(
    found: Located, shown: Sequence[int], centres: Sequence[int]
) -> tuple[list[GraphNode], list[GraphEdge]]:
    """The reference's nodes, steps or modules that stand beside those shown."""

    def beside(indices: Sequence[int]) -> list[str]:
        names = [name for index in indices for name in found.graph.node(index).output if name in found.beside]
        return list(dict.fromkeys(found.beside[name] for name in names))

    wanted, graph = [*beside(centres), *beside(shown)], found.reference
    if graph is not None:
        middle = [graph.makers[name] for name in wanted if name in graph.makers] or list(graph.computing[-1:])
        # What stands beside the culprit is the middle; what stands beside its surroundings comes by itself.
        kept = around(graph.computing, graph.links(), middle[: max(len(beside(centres)), 1)])
        return _drawn(
            "reference",
            graph,
            kept,
            lambda index: {"detail": _short("; ".join(_details(graph.node(index), {})), LONGEST_DETAIL)},
        )
    paths = [part.path for part in found.parts]
    pairs = [(source, part.path) for part in found.parts for source in part.before]
    near = around(paths, pairs, wanted[:1] or paths[-1:])
    nodes = [
        GraphNode(
            f"reference:{part.path}",
            "reference",
            _short(part.path),
            part.operator,
            detail=_short(part.detail, LONGEST_DETAIL),
        )
        for part in found.parts
        if part.path in near
    ]
    return nodes, [GraphEdge(f"reference:{a}", f"reference:{b}", "") for a, b in pairs if a in near and b in near]


def _note(found: Located, shown: int) -> str:
    total = len(found.graph.computing)
    told = (
        [f"{shown} of {total:,} nodes of the candidate"] if shown < total else [f"all {total} nodes of the candidate"]
    )
    if found.rewritten:
        told.append("as ONNX Runtime rewrites the graph, because as it is written it does not differ like this")
    if found.errors.introduced:
        rows = "1 failing row" if found.rows == 1 else f"{found.rows} failing rows"
        told.append(f"errors on {rows}, as parts of the largest value of a tensor")
    if len(found.parts) > 1 and all(len(part.before) <= 1 for part in found.parts):
        told.append("the reference's parts in the order in which they run")
    return "; ".join(told)


def _details(node: NodeProto, values: Mapping[str, Array]) -> list[str]:
    """What a node is beside its operator: its domain, its settings, and what it gives."""
    domain = [f"domain {node.domain}"] if node.domain not in ("", "ai.onnx") else []
    given = [f"{name}: {_shape(values[name])}" for name in node.output if name in values]
    return [*domain, *given, *(_setting(attribute) for attribute in node.attribute)]


def _shape(array: Array) -> str:
    # The first axis is that of the one row looked at.
    kind = "text" if array.dtype.kind in "OUS" else str(array.dtype)
    return f"{kind}[{', '.join(map(str, array.shape))}]"


def _setting(attribute: AttributeProto) -> str:
    from onnx import AttributeProto, helper

    plain = (AttributeProto.INT, AttributeProto.FLOAT, AttributeProto.STRING)
    if attribute.type not in (*plain, AttributeProto.INTS, AttributeProto.FLOATS, AttributeProto.STRINGS):
        return f"{attribute.name}=…"
    value: Any = helper.get_attribute_value(attribute)
    entries = [_entry(entry) for entry in (list(value)[:MOST_LISTED] if attribute.type not in plain else [value])]
    if attribute.type in plain:
        return f"{attribute.name}={entries[0]}"
    more = f", … {len(value):,} in all" if len(value) > MOST_LISTED else ""
    return f"{attribute.name}=[{', '.join(entries)}{more}]"


def _entry(value: Any) -> str:
    if isinstance(value, bytes):
        return _short(value.decode("utf-8", "replace"), 40)
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _short(text: str, longest: int = LONGEST_NAME) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
