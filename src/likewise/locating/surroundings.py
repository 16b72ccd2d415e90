"""The part of a large graph that is worth looking at: around some nodes, a few steps up and down."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

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
