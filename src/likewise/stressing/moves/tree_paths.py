"""Rows that reach every leaf of a tree model, and values on every threshold and a last digit beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from likewise.contracts.data import Array
from likewise.stressing import forests
from likewise.stressing.forests import Forest, Recipe
from likewise.stressing.searching import Search


@dataclass(slots=True)
class _Tour:
    """What is still to be visited."""

    forests: list[Forest]
    leaves: Array
    splits: Array
    leaf: int = 0
    split: int = 0


class TreePaths:
    """Visits the leaves that the fewest real rows reach, and the thresholds in random order."""

    name = "tree paths"

    def applies(self, search: Search) -> bool:
        sample = search.case.sample
        if sample is None or search.space.variables > 4_096:
            return False
        found = forests.read(search.case, search.space, np.asarray(sample.batch.rows.numbers))
        if not found:
            return False
        leaves = _numbered([forest.leaves() for forest in found])
        splits = _numbered([forest.splits() for forest in found])
        search.random.shuffle(splits)
        search.memory["tree paths"] = _Tour(found, leaves, splits)
        return True

    def turn(self, search: Search) -> None:
        tour: _Tour = search.memory["tree paths"]
        half = search.count // 2
        to_leaves = _to_leaves(search, tour, half)
        to_splits = _to_splits(search, tour, search.count - half)
        if to_leaves or to_splits:
            search.measure(forests.rows_of([*to_leaves, *to_splits], search.space))


def _numbered(found: list[Array]) -> Array:
    """Nodes with the number of their forest."""
    return np.concatenate([np.stack([np.full(len(nodes), index), nodes], axis=1) for index, nodes in enumerate(found)])


def _to_leaves(search: Search, tour: _Tour, count: int) -> list[Recipe]:
    found = []
    for _ in range(min(count, len(tour.leaves))):
        index, node = tour.leaves[tour.leaf % len(tour.leaves)].tolist()
        tour.leaf += 1
        recipe = tour.forests[index].reaching(search.space, node, search.random)
        if recipe is not None:
            found.append(recipe)
    return found


def _to_splits(search: Search, tour: _Tour, count: int) -> list[Recipe]:
    found = []
    for _ in range(min(count, len(tour.splits))):
        index, node = tour.splits[tour.split % len(tour.splits)].tolist()
        tour.split += 1
        forest = tour.forests[index]
        value = forest.at_threshold(node, search.space, search.random)
        recipe = forest.reaching(search.space, node, search.random)
        if value is not None and recipe is not None:
            recipe.made.append((int(forest.variables[forest.ensemble.feature[node]]), value))
            found.append(recipe)
    return found


EXTENSION = TreePaths()
