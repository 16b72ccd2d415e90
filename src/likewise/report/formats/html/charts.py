"""What the charts and the graph draw: plain numbers and text, bounded, and the sentences that say the same."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from likewise.contracts.comparison import OutputFacts, Tolerance
from likewise.contracts.report import GraphNode, GraphView, Report
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import counted, figure
from likewise.report.formats.html.cells import (
    Cell,
    Table,
    at_worst,
    beyond,
    count,
    element,
    left_out,
    number,
    share,
    shown,
    table,
    words,
)

OUTPUTS_DRAWN = 12
POINTS_IN_ALL = 6_000
"""Points of all scatter plots of a page together; each output gets its share."""

INPUTS_SHOWN = 12
NO_SAMPLE: Mapping[str, Any] = {"rows_seen": 0, "row": [], "element": [], "reference": [], "candidate": []}
NODES_DRAWN = 200
ROUNDING = 1e-6
"""What a node in float32 may add by rounding, as a part of the largest value of its tensor."""


@dataclass(frozen=True, slots=True)
class Charts:
    """The charts of one output with their sentences, and the tables that hold the same figures."""

    name: str
    kind: str
    data: Mapping[str, Any]
    scatter: str = ""
    histogram: Table | None = None
    deciles: Table | None = None


def numeric_outputs(report: Report) -> list[OutputFacts]:
    """Outputs that hold numbers; reports written before there was a sample to draw have their histogram."""
    return [output for output in report.comparison.outputs if {"scatter", "distribution"} & output.details.keys()]


def charts(report: Report) -> tuple[Charts, ...]:
    """Charts of the outputs that hold numbers, at most a dozen: those with the largest share beyond come first."""
    numeric = numeric_outputs(report)
    numeric.sort(key=lambda output: -(number(output.measures.get("mismatch_rate", 0.0)) or 0.0))
    kept = numeric[:OUTPUTS_DRAWN]
    most = POINTS_IN_ALL // max(1, len(kept))
    return tuple(_charts(output, report.comparison.tolerance, most) for output in kept)


def _charts(output: OutputFacts, tolerance: Tolerance, most: int) -> Charts:
    points, said = _points(output, most)
    histogram, deciles = _histogram(output), _deciles(output)
    data = {
        "name": output.name,
        "points": points,
        "tolerance": [tolerance.absolute, tolerance.relative],
        "histogram": [[_edge(low), _edge(high), amount] for low, high, amount in _spans(output)],
        "deciles": [
            {
                "from": number(group["from"]),
                "to": number(group["to"]),
                "values": group["values"],
                "beyond": group["beyond"],
                "largest": number(group["max_abs_diff"]),
            }
            for group in _groups(output)
        ],
    }
    return Charts(output.name, str(output.pair.kind), data, said, histogram, deciles)


def _points(output: OutputFacts, most: int) -> tuple[list[dict[str, Any]], str]:
    """The sample and the exact extremes; points that are not finite cannot be drawn and are counted instead."""
    sample = output.details.get("scatter", NO_SAMPLE)
    elements = sample["element"] or [0] * len(sample["row"])
    columns_of_sample = sample["row"], elements, sample["reference"], sample["candidate"]
    drawn = list(zip(*columns_of_sample, strict=True))[:most]
    classes, several = output.pair.classes, bool(sample["element"])
    points: list[dict[str, Any]] = []
    for row, place, reference, candidate in drawn:
        label = shown(classes[place]) if several and classes is not None and place < len(classes) else f"[{place}]"
        points.append(
            {"row": shown(row), "at": label if several else "", "r": _finite(reference), "c": _finite(candidate)}
        )
    extremes = output.worst_rows
    points += [_extreme(row) for row in extremes]
    finite = [point for point in points if point["r"] is not None and point["c"] is not None]
    seen = int(sample["rows_seen"])
    what = "one value of each row" if several else "every row"
    if not seen:
        what = "no sample, because this report was written without one"
    elif len(drawn) < seen:
        what = f"a sample of {len(drawn):,} of {seen:,} rows" + (", one value of each" if several else "")
    said = f"Shows {what}" + (f", and the {len(extremes)} rows that differ most, exactly." if extremes else ".")
    left = len(points) - len(finite)
    return finite, said + (f" Not drawn, because not finite: {counted(left, 'points')}." if left else "")


def _extreme(row: Mapping[str, Any]) -> dict[str, Any]:
    inputs = list(row["inputs"].items())
    told = [[str(name)[:80], words(value).text] for name, value in inputs[:INPUTS_SHOWN]]
    return {
        "row": shown(row["row"]),
        "at": element(row),
        "r": _finite(at_worst(row, "reference")),
        "c": _finite(at_worst(row, "candidate")),
        "worst": True,
        "inputs": told,
        "more": max(0, len(inputs) - INPUTS_SHOWN),
    }


def _spans(output: OutputFacts) -> Sequence[Any]:
    return output.details.get("distribution", {}).get("histogram", []) or ()


def _groups(output: OutputFacts) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = output.details.get("deciles", {}).get("groups", [])
    return found


def _histogram(output: OutputFacts) -> Table | None:
    spans = _spans(output)
    total = sum(int(amount) for _, _, amount in spans)
    return table(
        f"Differences of {output.name} by size",
        ("Absolute difference", "#Values", "#Share"),
        (
            (
                Cell("none: bit for bit the same value" if not number(high) else f"{_short(low)} to {_short(high)}"),
                count(amount),
                Cell(share(int(amount) / total)),
            )
            for low, high, amount in spans
        ),
    )


def _deciles(output: OutputFacts) -> Table | None:
    return table(
        f"Differences of {output.name} by decile of the reference",
        ("Reference from", "to", "#Values", "#Beyond tolerance", "#Largest difference"),
        (
            (
                Cell(_short(group["from"])),
                Cell(_short(group["to"])),
                count(group["values"]),
                beyond(group["beyond"]),
                count(group["max_abs_diff"]),
            )
            for group in _groups(output)
        ),
        note="Values that are finite on both sides; the edges are exact to 0.8%.",
    )


def noise(tolerance: Tolerance) -> float:
    """The error up to which a node is drawn as any other: rounding, or less where the tolerance is below that."""
    return min(ROUNDING, tolerance.absolute + tolerance.relative)


def neutral(tolerance: Tolerance) -> str:
    """What a node without colour has in common with the others that have none."""
    most = noise(tolerance)
    why = "as rounding of float32 does" if most == ROUNDING else "which the tolerance allows"
    return f"introduces at most {most:g}, {why}" if most else "introduces nothing"


def graph_data(view: GraphView | None, tolerance: Tolerance) -> Mapping[str, Any] | None:
    """Nodes and edges around the culprit, as many as can be drawn."""
    if view is None or not view.nodes:
        return None
    nodes = _nodes(view)
    known = {node.id for node in nodes}
    return {
        "noise": noise(tolerance),
        "neutral": neutral(tolerance),
        "nodes": [
            {
                "id": node.id,
                "side": node.side,
                "name": node.name,
                "operator": node.operator,
                "culprit": node.culprit,
                "introduced": _finite(node.introduced),
                "told": _told(node),
            }
            for node in nodes
        ],
        "edges": [
            {"source": edge.source, "target": edge.target, "tensor": edge.tensor}
            for edge in view.edges
            if edge.source in known and edge.target in known
        ],
    }


def graph_table(view: GraphView | None, tolerance: Tolerance) -> Table | None:
    """The same graph in words."""
    if view is None:
        return None
    nodes = _nodes(view)
    left = len(view.nodes) - len(nodes)
    names = {node.id: node.name for node in view.nodes}
    sources: dict[str, list[str]] = {}
    for edge in view.edges:
        sources.setdefault(edge.target, []).append(names.get(edge.source, edge.source))
    return table(
        "Nodes of the graph, and the error that each introduces",
        ("Node", "Side", "Operator", "#Error it introduces", "#Error it inherits", "Inputs from", "Note"),
        (
            (
                Cell(words(node.name).text, tone="bad", mark="✗", why="culprit") if node.culprit else words(node.name),
                words(node.side),
                words(node.operator),
                _error(node.introduced),
                _error(node.inherited),
                words(", ".join(sorted(set(sources.get(node.id, ["–"]))))),
                words(node.detail or "–"),
            )
            for node in nodes
        ),
        sortable=True,
        note=f"Errors are parts of the largest value of a tensor. A node that {neutral(tolerance)} has no colour."
        + (f" {left_out(left, ' nodes')}" if left else ""),
    )


def _nodes(view: GraphView) -> list[GraphNode]:
    """At most so many, the culprits and the larger errors first; in the order of the graph."""
    ranked = sorted(view.nodes, key=lambda node: (not node.culprit, -(number(node.introduced) or 0.0)))
    kept = {id(node) for node in ranked[:NODES_DRAWN]}
    return [node for node in view.nodes if id(node) in kept]


def _told(node: GraphNode) -> str:
    introduced = "not measured" if node.introduced is None else figure(node.introduced)
    inherited = "not measured" if node.inherited is None else figure(node.inherited)
    told = f"{node.operator} {node.name}, {node.side}: introduces {introduced}, inherits {inherited}"
    return ("Culprit. " if node.culprit else "") + told + (f". {node.detail}" if node.detail else "")


def _error(value: float | None) -> Cell:
    return Cell("not measured", tone="quiet") if value is None else count(value)


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that stands in a page: no character of it can end the element or begin another."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _finite(value: Any) -> float | None:
    found = number(value) if isinstance(value, float | int | str) else None
    return found if found is not None and math.isfinite(found) else None


def _edge(value: Any) -> float:
    found = number(value)
    return found if found is not None and math.isfinite(found) else 1.7e308


def _short(value: Any) -> str:
    found = number(value)
    return figure(value) if found is None else f"{found:.3g}"
