"""The trees of a model, and rows that reach a chosen node of them.

A path is satisfied with values of real rows: whatever stands between a column and the trees (a scaler, an
encoder), a value that goes left in one row goes left in another. Only a value *at* a threshold has to be
made, by turning what comes before around where that is a monotone function of one column.

Rows that reach every leaf of a tree model, values on every threshold, and none where one may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.data import Array
from likewise.errors import LikewiseError
from likewise.explain import tree_reading
from likewise.explain.case import Case
from likewise.models.trees import walk
from likewise.models.trees.ensemble import Ensemble
from likewise.tasks.stress.search import Search
from likewise.tasks.stress.space import Rows, Space

if TYPE_CHECKING:
    from likewise.explain.tree_reading import Reading


ALIKE = 1e-5
"""Thresholds that are this close are the same ones, rounded."""

CELLS, BLOCK, FEWEST = 40_000_000, 2_000_000, 64
"""Splits times real rows that are held and walked at a time, and the fewest rows."""

STEPS = np.array([0, 1, -1, 2, -2, 4, -4, 16, -16])
"""Distances from a threshold that had to be computed, in units of the last place of a float."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A row to make: a real row, values that it takes from other real rows, and values of its own."""

    base: int
    copied: list[tuple[int, int]]
    made: list[tuple[int, float]]


def rows_of(recipes: Sequence[Recipe], space: Space) -> Rows:
    """The rows that recipes describe."""
    rows = space.real(np.array([recipe.base for recipe in recipes], dtype=np.int64))
    copied = [(at, *entry) for at, recipe in enumerate(recipes) for entry in recipe.copied]
    if copied:
        at, variables, donors = (np.array(part, dtype=np.int64) for part in zip(*copied, strict=True))
        rows = space.copied(rows, at, variables, donors)
    made = [(at, *entry) for at, recipe in enumerate(recipes) for entry in recipe.made]
    if made:
        places, variables = (np.array([entry[part] for entry in made], dtype=np.int64) for part in (0, 1))
        rows = space.assigned(rows, places, variables, np.array([entry[2] for entry in made]))
    return rows


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """Trees, the real rows as they see them, and the variable behind each of their columns (-1: not known).

    `donors` are the real rows that `seen` shows. `goes` says which of them a split sends left, one line a
    split; `place` is the line of each node.
    """

    ensemble: Ensemble
    seen: Array
    donors: Array
    variables: Array
    above: Array
    left_of: Array
    visits: Array
    goes: Array
    place: Array
    inverses: dict[int, tuple[Array, Array] | None] = field(default_factory=dict)
    direct: dict[int, bool] = field(default_factory=dict)

    def splits(self) -> Array:
        """The nodes that compare a number whose variable is known."""
        ensemble = self.ensemble
        numeric = ~ensemble.is_leaf & (ensemble.group < 0)
        numeric[numeric] = self.variables[ensemble.feature[numeric]] >= 0
        return np.flatnonzero(numeric & np.isfinite(ensemble.threshold))

    def gaps(self, space: Space) -> Array:
        """The splits of a variable that may be missing."""
        splits = np.flatnonzero(~self.ensemble.is_leaf)
        owners = self.variables[self.ensemble.feature[splits]]
        return splits[[owner >= 0 and space.may_miss(owner) for owner in owners.tolist()]]

    def leaves(self) -> Array:
        """All leaves, those that the fewest real rows reach first."""
        found = np.flatnonzero(self.ensemble.is_leaf)
        return found[np.argsort(self.visits[found], kind="stable")]

    def reaching(self, space: Space, node: int, random: np.random.Generator) -> Recipe | None:
        """A row that reaches a node: the real row that is nearest, with the fewest values of others."""
        steps, sides = self._path(node)
        allowed = self.goes[self.place[steps]] == sides[:, None] if len(steps) else np.ones((1, len(self.seen)), bool)
        met = allowed.sum(axis=0)
        nearest = np.flatnonzero(met == met.max())
        chosen = int(nearest[random.integers(0, len(nearest))])
        recipe = Recipe(int(self.donors[chosen]), [], [])
        if met[chosen] == len(allowed):
            return recipe
        columns = self.variables[self.ensemble.feature[steps]]
        for variable in np.unique(columns[~allowed[:, chosen]]).tolist():
            if variable < 0:
                return None
            fitting = np.flatnonzero(allowed[columns == variable].all(axis=0))
            if len(fitting):
                recipe.copied.append((variable, int(self.donors[fitting[random.integers(0, len(fitting))]])))
                continue
            own = columns == variable
            made = self._between(space, steps[own], sides[own])
            if made is None:
                return None
            recipe.made.append((variable, made))
        return recipe

    def at_threshold(self, node: int, space: Space, random: np.random.Generator) -> float | None:
        """A value of the data on a threshold or a last digit beside it."""
        threshold = float(self.ensemble.threshold[node])
        column = int(self.ensemble.feature[node])
        if self._is_direct(space, column):
            with np.errstate(over="ignore"):
                single = np.float32(threshold)
                towards = np.float32(random.choice([-np.inf, np.inf]))
                choices = [threshold, float(single), float(np.nextafter(single, towards))]
                choices.append(float(np.nextafter(threshold, float(towards))))
            return choices[int(random.integers(0, len(choices)))]
        value = self._raw(space, column, threshold)
        if value is None:
            return None
        unit = float(np.spacing(np.float32(abs(value))))
        return value + unit * float(STEPS[int(random.integers(0, len(STEPS)))]) * float(random.choice([1.0, 0.25]))

    def _path(self, node: int) -> tuple[Array, Array]:
        """The nodes above a node, and whether the way goes left at each."""
        nodes: list[int] = []
        sides: list[bool] = []
        while self.above[node] >= 0 and len(nodes) < walk.DEEPEST:
            sides.append(bool(self.left_of[node]))
            node = int(self.above[node])
            nodes.append(node)
        return np.array(nodes, dtype=np.int64), np.array(sides, dtype=bool)

    def _between(self, space: Space, nodes: Array, sides: Array) -> float | None:
        """A number that no real row has, within all thresholds of a path; None if there is none."""
        ensemble = self.ensemble
        if len(np.unique(ensemble.feature[nodes])) != 1 or (ensemble.group[nodes] >= 0).any():
            return None
        column = int(ensemble.feature[nodes[0]])
        upper = float(ensemble.threshold[nodes[sides]].min(initial=np.inf))
        lower = float(ensemble.threshold[nodes[~sides]].max(initial=-np.inf))
        if not lower < upper:
            return None
        variable = int(self.variables[column])
        held = space.columns[int(space.owner[variable])]
        if not held.is_number:
            return None
        ends = [self._raw(space, column, end) for end in (lower, upper) if np.isfinite(end)]
        if None in ends:
            return None
        element = int(space.element[variable])
        told = [float(end) for end in ends if end is not None]
        if len(told) == 2:
            return (told[0] + told[1]) / 2
        return float(held.low[element]) if np.isfinite(upper) else float(held.high[element])

    def _is_direct(self, space: Space, column: int) -> bool:
        """Do the trees see a column of the data as it is?"""
        if column not in self.direct:
            raw, seen = self._both(space, column)
            with np.errstate(over="ignore"):
                same = raw is not None and bool((raw.astype(np.float32) == seen.astype(np.float32)).all())
            self.direct[column] = same
        return self.direct[column]

    def _raw(self, space: Space, column: int, value: float) -> float | None:
        """The value of the data that the trees see as this one; None where no monotone function tells."""
        if column not in self.inverses:
            self.inverses[column] = _inverse(*self._both(space, column))
        inverse = self.inverses[column]
        return None if inverse is None else float(np.interp(value, *inverse))

    def _both(self, space: Space, column: int) -> tuple[Array | None, Array]:
        """A column as the data has it and as the trees see it, where both are numbers."""
        seen = self.seen[:, column]
        variable = int(self.variables[column])
        held = space.columns[int(space.owner[variable])]
        if not held.is_number:
            return None, seen
        raw = held.values[self.donors, int(space.element[variable])].astype(np.float64)
        both = np.isfinite(raw) & np.isfinite(seen)
        return raw[both], seen[both]


def _inverse(raw: Array | None, seen: Array) -> tuple[Array, Array] | None:
    """What the trees see, ascending, and the values of the data behind it; None if that is no monotone function."""
    if raw is None or len(raw) < 2:
        return None
    order = np.argsort(raw, kind="stable")
    raw, seen = raw[order], seen[order]
    step = np.diff(seen)[np.diff(raw) > 0]
    if not len(step) or not ((step >= 0).all() or (step <= 0).all()) or seen[0] == seen[-1]:
        return None
    return (seen, raw) if seen[0] < seen[-1] else (seen[::-1], raw[::-1])


def read(case: Case, space: Space, donors: Array) -> list[Forest]:
    """The trees of both models, those of the candidate only where they are others."""
    found: list[Forest] = []
    for side in ("reference", "candidate"):
        try:
            if not tree_reading.has_trees(case, side):
                continue
            trees = tree_reading.read(case, side)
        except LikewiseError:
            continue
        if trees is None or trees.rows is None or not trees.ensemble.trees:
            continue
        if found and _alike(found[0].ensemble, trees.ensemble):
            continue
        forest = _forest(trees, space, donors)
        if forest is not None:
            found.append(forest)
    return found


def _alike(one: Ensemble, other: Ensemble) -> bool:
    if one.trees != other.trees or len(one.feature) != len(other.feature):
        return False
    ours, theirs = np.sort(one.threshold[~one.is_leaf]), np.sort(other.threshold[~other.is_leaf])
    return len(ours) == len(theirs) and bool(np.allclose(ours, theirs, rtol=ALIKE, atol=1e-12, equal_nan=True))


def _forest(trees: Reading, space: Space, donors: Array) -> Forest | None:
    ensemble, rows = trees.ensemble, trees.rows
    assert rows is not None
    seen = walk.as_compared(ensemble, rows)
    width = max(int(ensemble.feature.max(initial=-1)) + 1, 0)
    if seen.shape[1] < width:
        return None
    variables = np.array([_variable(trees.name(column), space) for column in range(seen.shape[1])], dtype=np.int64)
    above = np.full(len(ensemble.feature), -1, dtype=np.int64)
    left_of = np.zeros(len(ensemble.feature), dtype=bool)
    splits = np.flatnonzero(~ensemble.is_leaf)
    above[ensemble.left[splits]], left_of[ensemble.left[splits]] = splits, True
    above[ensemble.right[splits]] = splits
    visits = np.bincount(walk.leaves(ensemble, rows).reshape(-1), minlength=len(ensemble.feature))
    kept = min(len(seen), max(FEWEST, CELLS // max(len(splits), 1)))
    goes = np.empty((len(splits), kept), dtype=bool)
    step = max(1, BLOCK // kept)
    for start in range(0, len(splits), step):
        some = splits[start : start + step]
        values = seen[:kept, ensemble.feature[some]].T.reshape(-1)
        goes[start : start + step] = walk.goes_left(ensemble, np.repeat(some, kept), values).reshape(-1, kept)
    place = np.full(len(ensemble.feature), -1, dtype=np.int64)
    place[splits] = np.arange(len(splits))
    return Forest(ensemble, seen[:kept], donors[:kept], variables, above, left_of, visits, goes, place)


def _variable(name: str, space: Space) -> int:
    """The variable behind a column that trees see; an encoder's `city_Paris` is `city`."""
    if name in space.positions:
        return space.positions[name]
    bare = name.rpartition("__")[2]
    starts = [known for known in space.positions if bare.startswith(f"{known}_")]
    return space.positions[max(starts, key=len)] if starts else -1


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
        found = read(search.case, search.space, np.asarray(sample.batch.rows.numbers))
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
            search.measure(rows_of(recipes, search.space))


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
