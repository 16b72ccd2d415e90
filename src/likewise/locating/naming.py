"""The nodes that a diagnosis speaks of: it names nodes, tensors, constants, modules, steps, trees or operators."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from likewise.locating.opened import Opened
from likewise.structure.graph_edits import module_of
from likewise.structure.twins import TREES

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
