"""The graph around the culprit: the candidate's nodes with the error each adds, beside those of the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array
from likewise.contracts.report import GraphEdge, GraphNode, GraphView
from likewise.errors import LikewiseError, one_line
from likewise.explain.case import Case, Explained
from likewise.explain.locate import Located, around, located
from likewise.models.onnx.inside import Opened

if TYPE_CHECKING:
    from onnx import AttributeProto, NodeProto


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
    edges = graph.edges()
    introduced = found.errors.introduced
    # Without a culprit, what adds most is looked at; without any error measured, what gives the answers.
    most = sorted(introduced, key=lambda index: -introduced[index])[:1] or list(graph.computing[-1:])
    shown = around(graph.computing, [(e.source, e.target) for e in edges], found.suspects or most)
    nodes = [_of_candidate(found, index) for index in shown]
    told = [
        GraphEdge(_id("candidate", graph, edge.source), _id("candidate", graph, edge.target), _short(edge.tensor))
        for edge in edges
        if edge.source in shown and edge.target in shown
    ]
    theirs, links = _of_reference(found, shown, found.suspects or most)
    return GraphView((*nodes, *theirs), (*told, *links), _note(found, len(shown)))


def _of_candidate(found: Located, index: int) -> GraphNode:
    node, errors = found.graph.node(index), found.errors
    together = len(errors.together.get(index, (index,))) - 1
    beside = next((found.beside[name] for name in node.output if name in found.beside), None)
    details = [
        *_details(node, found.values),
        *([f"beside {beside!r} of the reference"] if beside is not None else []),
        *([f"measured together with {together} node{'s' if together > 1 else ''} beside it"] if together else []),
    ]
    return GraphNode(
        _id("candidate", found.graph, index),
        "candidate",
        _short(node.name),
        node.op_type,
        culprit=index in found.suspects,
        introduced=errors.introduced.get(index),
        inherited=errors.inherited.get(index),
        detail=_short("; ".join(details), LONGEST_DETAIL),
    )


def _of_reference(
    found: Located, shown: Sequence[int], centres: Sequence[int]
) -> tuple[list[GraphNode], list[GraphEdge]]:
    """The reference's nodes, steps or modules that stand beside those shown."""

    def beside(indices: Sequence[int]) -> list[str]:
        names = [name for index in indices for name in found.graph.node(index).output if name in found.beside]
        return list(dict.fromkeys(found.beside[name] for name in names))

    wanted = [*beside(centres), *beside(shown)]
    if found.reference is None:
        return _of_parts(found, wanted)
    graph = found.reference
    edges = graph.edges()
    middle = [graph.makers[name] for name in wanted if name in graph.makers] or list(graph.computing[-1:])
    # What stands beside the culprit is the middle; what stands beside its surroundings comes by itself.
    kept = around(graph.computing, [(e.source, e.target) for e in edges], middle[: max(len(beside(centres)), 1)])
    nodes = [
        GraphNode(
            _id("reference", graph, index),
            "reference",
            _short(graph.node(index).name),
            graph.node(index).op_type,
            detail=_short("; ".join(_details(graph.node(index), {})), LONGEST_DETAIL),
        )
        for index in kept
    ]
    links = [
        GraphEdge(_id("reference", graph, edge.source), _id("reference", graph, edge.target), _short(edge.tensor))
        for edge in edges
        if edge.source in kept and edge.target in kept
    ]
    return nodes, links


def _of_parts(found: Located, wanted: Sequence[str]) -> tuple[list[GraphNode], list[GraphEdge]]:
    paths = [part.path for part in found.parts]
    pairs = [(source, part.path) for part in found.parts for source in part.before]
    kept = around(paths, pairs, wanted[:1] or paths[-1:])
    nodes = [
        GraphNode(
            f"reference:{part.path}",
            "reference",
            _short(part.path),
            part.operator,
            detail=_short(part.detail, LONGEST_DETAIL),
        )
        for part in found.parts
        if part.path in kept
    ]
    links = [
        GraphEdge(f"reference:{source}", f"reference:{target}", "")
        for source, target in pairs
        if source in kept and target in kept
    ]
    return nodes, links


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


def _id(side: str, graph: Opened, index: int) -> str:
    return f"{side}:{graph.node(index).name or index}"


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
