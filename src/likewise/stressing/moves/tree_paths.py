"""Rows that reach every leaf of a tree model, values on every threshold, and none where one may be missing."""

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
    gaps: Array
    leaf: int = 0
    split: int = 0
    gap: int = 0


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
        gaps = _numbered([forest.gaps(search.space) for forest in found])
        search.random.shuffle(splits)
        search.random.shuffle(gaps)
        search.memory["tree paths"] = _Tour(found, leaves, splits, gaps)
        return True

    def turn(self, search: Search) -> None:
        tour: _Tour = search.memory["tree paths"]
        third = search.count // 3 if len(tour.gaps) else search.count // 2
        recipes = _to_leaves(search, tour, third)
        recipes += _to_gaps(search, tour, third)
        recipes += _to_splits(search, tour, third)
        if recipes:
            search.measure(forests.rows_of(recipes, search.space))


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


def _to_gaps(search: Search, tour: _Tour, count: int) -> list[Recipe]:
    """Rows that reach a split without the value that it asks for."""
    found = []
    for _ in range(min(count, len(tour.gaps))):
        index, node = tour.gaps[tour.gap % len(tour.gaps)].tolist()
        tour.gap += 1
        forest = tour.forests[index]
        recipe = forest.reaching(search.space, node, search.random)
        if recipe is not None:
            recipe.made.append((int(forest.variables[forest.ensemble.feature[node]]), float("nan")))
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
