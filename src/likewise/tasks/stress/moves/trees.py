"""Rows that reach every leaf of a tree model, values on every threshold, and none where one may be missing.

A path is satisfied with values of real rows: whatever stands between a column and the trees (a scaler, an
encoder), a value that goes left in one row goes left in another. Only a value *at* a threshold has to be
made, by turning what comes before around where that is a monotone function of one column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from likewise.contracts.comparison import Comparison
from likewise.contracts.data import Array
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import Outcome, Verdict
from likewise.errors import LikewiseError
from likewise.explain.case import Case, Sample
from likewise.explain.trees import Reading, has_trees
from likewise.explain.trees import read as read_trees
from likewise.models.trees.ensemble import DEEPEST, Ensemble, as_compared, goes_left, leaves
from likewise.tasks.stress.moves import Move, Search, Turn
from likewise.tasks.stress.space import Rows, Space

SAMPLE = 1_024
"""Real rows whose way through trees is followed."""

MOST_VARIABLES = 4_096
"""Variables beyond which no tree is looked for."""

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
    split; `place` is the line of each node. `above` is the node above each, `left_of` whether it stands left there.
    """

    space: Space
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

    def gaps(self) -> Array:
        """The splits of a variable that may be missing."""
        splits = np.flatnonzero(~self.ensemble.is_leaf)
        missing = self.space.where(lambda column: column.gaps)
        return splits[np.isin(self.variables[self.ensemble.feature[splits]], missing)]

    def leaves(self) -> Array:
        """All leaves, those that the fewest real rows reach first."""
        found = np.flatnonzero(self.ensemble.is_leaf)
        return found[np.argsort(self.visits[found], kind="stable")]

    def variable(self, node: int) -> int:
        """The variable that a split compares."""
        return int(self.variables[self.ensemble.feature[node]])

    def reaching(self, node: int, random: np.random.Generator) -> Recipe | None:
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
            own = columns == variable
            fitting = np.flatnonzero(allowed[own].all(axis=0))
            if len(fitting):
                recipe.copied.append((variable, int(self.donors[fitting[random.integers(0, len(fitting))]])))
                continue
            made = self._between(steps[own], sides[own])
            if made is None:
                return None
            recipe.made.append((variable, made))
        return recipe

    def at_threshold(self, node: int, random: np.random.Generator) -> float | None:
        """A value of the data on a threshold or a last digit beside it."""
        threshold = float(self.ensemble.threshold[node])
        column = int(self.ensemble.feature[node])
        if self._is_direct(column):
            with np.errstate(over="ignore"):
                single = np.float32(threshold)
                towards = np.float32(random.choice([-np.inf, np.inf]))
                choices = [threshold, float(single), float(np.nextafter(single, towards))]
                choices.append(float(np.nextafter(threshold, float(towards))))
            return choices[int(random.integers(0, len(choices)))]
        value = self._raw(column, threshold)
        if value is None:
            return None
        unit = float(np.spacing(np.float32(abs(value))))
        return value + unit * float(STEPS[int(random.integers(0, len(STEPS)))]) * float(random.choice([1.0, 0.25]))

    def _path(self, node: int) -> tuple[Array, Array]:
        """The nodes above a node, and whether the way goes left at each."""
        nodes: list[int] = []
        sides: list[bool] = []
        while self.above[node] >= 0 and len(nodes) < DEEPEST:
            sides.append(bool(self.left_of[node]))
            node = int(self.above[node])
            nodes.append(node)
        return np.array(nodes, dtype=np.int64), np.array(sides, dtype=bool)

    def _between(self, nodes: Array, sides: Array) -> float | None:
        """A number that no real row has, within all thresholds of a path; None if there is none."""
        ensemble = self.ensemble
        if len(np.unique(ensemble.feature[nodes])) != 1 or (ensemble.group[nodes] >= 0).any():
            return None
        upper = float(ensemble.threshold[nodes[sides]].min(initial=np.inf))
        lower = float(ensemble.threshold[nodes[~sides]].max(initial=-np.inf))
        held, element = self.space.column(self.variable(nodes[0]))
        if not lower < upper or not held.is_number:
            return None
        column = int(ensemble.feature[nodes[0]])
        ends = [self._raw(column, end) for end in (lower, upper) if np.isfinite(end)]
        told = [end for end in ends if end is not None]
        if len(told) < len(ends):
            return None
        if len(told) == 2:
            return sum(told) / 2
        return float(held.low[element]) if np.isfinite(upper) else float(held.high[element])

    def _is_direct(self, column: int) -> bool:
        """Do the trees see a column of the data as it is?"""
        if column not in self.direct:
            raw, seen = self._both(column)
            with np.errstate(over="ignore"):
                same = raw is not None and bool((raw.astype(np.float32) == seen.astype(np.float32)).all())
            self.direct[column] = same
        return self.direct[column]

    def _raw(self, column: int, value: float) -> float | None:
        """The value of the data that the trees see as this one; None where no monotone function tells."""
        if column not in self.inverses:
            self.inverses[column] = _inverse(*self._both(column))
        inverse = self.inverses[column]
        return None if inverse is None else float(np.interp(value, *inverse))

    def _both(self, column: int) -> tuple[Array | None, Array]:
        """A column as the data has it and as the trees see it, where both are numbers."""
        seen = self.seen[:, column]
        held, element = self.space.column(int(self.variables[column]))
        if not held.is_number:
            return None, seen
        raw = held.values[self.donors, element].astype(np.float64)
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
            if not has_trees(case, side):
                continue
            trees = read_trees(case, side)
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
    seen = as_compared(ensemble, rows)
    if seen.shape[1] < int(ensemble.feature.max(initial=-1)) + 1:
        return None
    known = {space.name(variable): variable for variable in range(space.variables)}
    variables = np.array([_variable(trees.name(column), known) for column in range(seen.shape[1])], dtype=np.int64)
    above = np.full(len(ensemble.feature), -1, dtype=np.int64)
    left_of = np.zeros(len(ensemble.feature), dtype=bool)
    splits = np.flatnonzero(~ensemble.is_leaf)
    above[ensemble.left[splits]], left_of[ensemble.left[splits]] = splits, True
    above[ensemble.right[splits]] = splits
    visits = np.bincount(leaves(ensemble, rows).reshape(-1), minlength=len(ensemble.feature))
    kept = min(len(seen), max(FEWEST, CELLS // max(len(splits), 1)))
    goes = np.empty((len(splits), kept), dtype=bool)
    step = max(1, BLOCK // kept)
    for start in range(0, len(splits), step):
        some = splits[start : start + step]
        values = seen[:kept, ensemble.feature[some]].T.reshape(-1)
        goes[start : start + step] = goes_left(ensemble, np.repeat(some, kept), values).reshape(-1, kept)
    place = np.full(len(ensemble.feature), -1, dtype=np.int64)
    place[splits] = np.arange(len(splits))
    return Forest(space, ensemble, seen[:kept], donors[:kept], variables, above, left_of, visits, goes, place)


def _variable(name: str, known: Mapping[str, int]) -> int:
    """The variable behind a column that trees see; an encoder's `city_Paris` is `city`."""
    if name in known:
        return known[name]
    bare = name.rpartition("__")[2]
    starts = [entry for entry in known if bare.startswith(f"{entry}_")]
    return known[max(starts, key=len)] if starts else -1


@dataclass(slots=True)
class _Tour:
    """Nodes, each with the number of its forest, visited one after the other; and how to make a row for one."""

    nodes: Array
    recipe: Callable[[int, int], Recipe | None]
    place: int = 0

    def next(self, count: int) -> list[Recipe]:
        """The rows for the next nodes, of those that a row can be made for."""
        at = np.arange(self.place, self.place + min(count, len(self.nodes)))
        self.place += len(at)
        made = [self.recipe(*self.nodes[place % len(self.nodes)].tolist()) for place in at.tolist()]
        return [recipe for recipe in made if recipe is not None]


def _tree_paths(search: Search) -> Turn | None:
    """Visits the leaves that the fewest real rows reach, and the thresholds in random order."""
    if search.space.variables > MOST_VARIABLES:
        return None
    donors = np.arange(min(len(search.pool), SAMPLE))
    forests = read(_case(search, donors), search.space, donors)
    if not forests:
        return None
    random = search.random

    def leaf(number: int, node: int) -> Recipe | None:
        return forests[number].reaching(node, random)

    def gap(number: int, node: int) -> Recipe | None:
        """Reaches a split without the value that it asks for."""
        return _with(forests[number].reaching(node, random), forests[number].variable(node), float("nan"))

    def split(number: int, node: int) -> Recipe | None:
        value = forests[number].at_threshold(node, random)
        recipe = forests[number].reaching(node, random)
        return None if value is None else _with(recipe, forests[number].variable(node), value)

    leaves = _Tour(_numbered([forest.leaves() for forest in forests]), leaf)
    splits = _Tour(_numbered([forest.splits() for forest in forests]), split)
    gaps = _Tour(_numbered([forest.gaps() for forest in forests]), gap)
    random.shuffle(splits.nodes)
    random.shuffle(gaps.nodes)

    def turn() -> None:
        third = search.count // 3 if len(gaps.nodes) else search.count // 2
        recipes = [recipe for tour in (leaves, gaps, splits) for recipe in tour.next(third)]
        if recipes:
            search.measure(rows_of(recipes, search.space))

    return turn


def _with(recipe: Recipe | None, variable: int, value: float) -> Recipe | None:
    return None if recipe is None else replace(recipe, made=[*recipe.made, (variable, value)])


def _numbered(found: list[Array]) -> Array:
    """Nodes with the number of their forest."""
    return np.concatenate([np.stack([np.full(len(nodes), index), nodes], axis=1) for index, nodes in enumerate(found)])


def _case(search: Search, positions: Array) -> Case:
    """The models opened up, with real rows and without answers: what trees are given needs inputs only."""
    prepared, plan = search.prepared, replace(search.plan, progress=None)
    batch = search.batch(search.space.real(positions))
    return Case(
        plan,
        Comparison(),
        Verdict(Outcome.INCONCLUSIVE, "", (), (), None),
        float("inf"),
        plan.tolerance,
        {"reference": prepared.reference.runner, "candidate": prepared.candidate.runner},
        prepared.reference,
        prepared.candidate,
        prepared.pairing.pairs,
        Sample(batch, {}, {}, (), np.zeros(len(batch), dtype=bool), complete=False),
    )


EXTENSION = Move("tree paths", _tree_paths)
