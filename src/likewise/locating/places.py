"""Where in a graph what a part of the reference gives is found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from likewise.contracts.data import Array
from likewise.differing import is_numeric, rows_of
from likewise.locating.opened import Opened
from likewise.locating.parts import Part
from likewise.structure.alike import differing, likeness
from likewise.structure.graph_edits import module_of

ALONG = 0.9
"""How well the columns of a tensor must go along with those of a step to be taken for them, 1 being all the way."""


def owners(graph: Opened, paths: Sequence[str]) -> dict[int, str]:
    """The module that nodes come from: as the exporter says, or as the weights they read are called."""
    known = set(paths)
    found: dict[int, str] = {}
    for index in graph.computing:
        said = module_of(graph.node(index))
        holders = (name.rpartition(".")[0] for name in graph.reads[index])
        owner = said if said in known else next((holder for holder in holders if holder in known), None)
        if owner is not None:
            found[index] = owner
    return found


def places_of_modules(parts: Sequence[Part], graph: Opened, tensors: Mapping[str, Array]) -> dict[str, Part]:
    """For the tensors that leave a module, the module: what leaves it is the last that it computes."""
    held = owners(graph, [part.path for part in parts])
    found: dict[str, Part] = {}
    for part in parts:
        last = max((index for index, owner in held.items() if owner == part.path), default=None)
        name = "" if last is None else graph.node(last).output[0]
        if name in tensors and part.gave is not None and tensors[name].shape == part.gave.shape:
            found[name] = part
    return found


def places_of_steps(
    parts: Sequence[Part], known: Mapping[str, str], graph: Opened, tensors: Mapping[str, Array]
) -> dict[str, Part]:
    """For tensors that hold what a step gives, right or wrong, the step.

    `known` are tensors that were shown to be a step's, by its path. What is equal tells by itself; of the rest the
    last tensor is taken whose columns go along with those of the step.
    """
    tables = {
        name: rows_of(tensors[name]).astype("float64")
        for name in graph.tensors
        if name in tensors and tensors[name].ndim and tensors[name].size and is_numeric(tensors[name])
    }
    found: dict[str, Part] = {}
    waiting: list[tuple[Part, Array]] = []
    for part in parts:
        if part.gave is None:
            continue
        fitting = [name for name, table in tables.items() if table.shape == part.gave.shape]
        equal = [name for name in fitting if not differing(tables[name], part.gave).any()]
        proven = known.get(part.path)
        if equal:
            found |= dict.fromkeys(equal, part)
        elif proven in fitting:
            found[proven] = part
        else:
            waiting.append((part, part.gave))
    for part, gave in waiting:
        free = [name for name, table in tables.items() if table.shape == gave.shape and name not in found]
        scored = [(round(likeness(tables[name], gave), 2), place, name) for place, name in enumerate(free)]
        if scored and max(scored)[0] >= ALONG:
            found[max(scored)[2]] = part
    return found
