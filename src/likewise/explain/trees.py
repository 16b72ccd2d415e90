"""The trees of both sides of a case: what they are given for the rows of the sample, and where they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.data.cells import listed
from likewise.errors import LikewiseError, ModelError
from likewise.explain.case import Case, Fix, made_once
from likewise.explain.experiment import ENOUGH, Change
from likewise.models import lightgbm as lgb
from likewise.models import xgboost as xgb
from likewise.models.onnx import edits, tree_edits, widen
from likewise.models.onnx import trees as onnx
from likewise.models.onnx.guess import Graph
from likewise.models.onnx.tree_edits import UnwritableError, with_input, written
from likewise.models.sklearn.inside import names_after
from likewise.models.sklearn.walk import steps_before
from likewise.models.trees.differences import Differences, differences, partings, with_splits
from likewise.models.trees.ensemble import Ensemble, as_compared, boundary
from likewise.models.trees.read import trees_of

if TYPE_CHECKING:
    from onnx import ModelProto


MOST_CELLS = 40_000_000
"""Rows times columns of what trees are given, beyond which rows are not followed."""

SHOWN = 6
"""Categories of a split that are named."""

ROUNDING = 1e-5
"""How far apart a value may be on both sides, relative to the size of its column, to be one value rounded."""


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """Trees, the names of the columns they see, and what they are given for the rows of the sample.

    `rows` is None where it cannot be told; then only the trees themselves can be compared. `graph` is
    set where the trees stand in an ONNX graph. `direct`: nothing comes before a framework's own trees,
    so that what they are given is the data as the framework reads it.
    """

    ensemble: Ensemble
    rows: Array | None
    names: tuple[str, ...]
    graph: onnx.GraphTrees | None = None
    direct: bool = False

    def name(self, column: int) -> str:
        return self.names[column] if 0 <= column < len(self.names) else f"column {column}"


@made_once
def read(case: Case, side: str) -> Reading | None:
    """What one side's trees are."""
    return (_of_graph if case.framework(side) == "onnx" else _of_model)(case, side)


def has_trees(case: Case, side: str) -> bool:
    """A first look, without reading them."""
    if case.framework(side) == "onnx":
        proto = case.graph(side)
        return proto is not None and onnx.holds_trees(proto)
    return case.native(side) is not None


def _of_graph(case: Case, side: str) -> Reading | None:
    proto = case.graph(side)
    held = None if proto is None else onnx.read(proto)
    if held is None:
        return None
    names = _names_in_graph(case, side, proto, held.sources[0])
    seen = _seen(case, side, proto, held)
    if seen is None:
        return Reading(held.ensemble, None, names, held)
    held = held.laid_out({source: array.shape[1] for source, array in seen.items()})
    return Reading(held.ensemble, np.hstack([seen[source] for source in held.sources]), names, held)


def _names_in_graph(case: Case, side: str, proto: ModelProto, tensor: str) -> tuple[str, ...]:
    """The data's own names of a tensor's columns, as far as they can be followed back to the inputs."""
    routes = case.side(side).feed.routes or () if case.sample is not None else ()
    fed = {route.input.name: _with_indices(case, route.columns) for route in routes}
    traces = Graph(proto.graph, {name: len(columns) for name, columns in fed.items()}).layouts.get(tensor, ())
    return tuple(
        f"column {place}" if trace is None or trace.column is None else fed[trace.input][trace.column]
        for place, trace in enumerate(traces)
    )


def _with_indices(case: Case, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Columns by name; those of one table without names by their position in it."""
    array = case.required.batch.inputs[columns[0]] if len(columns) == 1 else None
    if array is None or array.ndim != 2 or array.shape[1] < 2:
        return columns
    return tuple(f"{columns[0]}[{index}]" for index in range(array.shape[1]))


def _seen(case: Case, side: str, proto: ModelProto, held: onnx.GraphTrees) -> Mapping[str, Array] | None:
    """What reaches the trees: fed to the graph, or asked for as further outputs of a copy."""
    if case.sample is None:
        return None
    fed = {value.name for value in proto.graph.input}
    inside = [source for source in held.sources if source not in fed]
    given: dict[str, Array] = {}
    if len(inside) < len(held.sources):
        given |= {name: array for name, array in case.fed(side).items() if name in held.sources}
    if inside:
        types = {source: onnx.element_type(proto, source) for source in inside}
        answered = case.ask_changed(side, target=edits.exposed(proto, inside, types))
        if answered is None:
            return None
        given |= {source: answered[source] for source in inside if source in answered}
    usable = all(
        source in given
        and given[source].ndim == 2
        and len(given[source]) == len(case.sample)
        and _numeric(given[source])
        for source in held.sources
    )
    if not usable or sum(array.size for array in given.values()) > MOST_CELLS:
        return None
    # A node that asks for a column beyond the last reads somebody else's memory: nothing to follow there.
    widest = max((int(site.columns.max()) + 1 for site in held.sites if site.columns is not None), default=0)
    asked = max(int(held.ensemble.column.max(initial=0)) + 1, widest)
    return given if all(array.shape[1] >= min(asked, held.widths[s]) for s, array in given.items()) else None


def _numeric(array: Array) -> bool:
    return array.dtype.kind in "biuf"


def _of_model(case: Case, side: str) -> Reading | None:
    native = case.native(side)
    if native is None:
        return None
    before, model = steps_before(native)
    ensemble = trees_of(model)
    if ensemble is None or not ensemble.trees:
        return None
    columns: tuple[str, ...] = ()
    if case.sample is not None:
        columns = _with_indices(case, tuple(case.side(side).feed.columns or case.sample.batch.inputs))
    names = names_after(before, columns) if before else columns
    rows = _after(case, side, before, len(names)) if before else _rows(case, side, model)
    width = int(ensemble.feature.max(initial=-1)) + 1
    if rows is not None and (rows.ndim != 2 or rows.shape[1] < width or rows.size > MOST_CELLS):
        rows = None
    return Reading(ensemble, rows, names, direct=not before)


def _after(case: Case, side: str, before: list[tuple[str, Any]], width: int) -> Array | None:
    """The sample after the steps before the trees, of which so many columns are known."""
    from sklearn.pipeline import Pipeline

    if case.sample is None or width * len(case.sample) > MOST_CELLS:
        return None
    with case.opened(side, target=Pipeline(before)) as opened:
        answered = None if opened is None else case.ask(replace(opened, outputs=None))
    rows = next(iter((answered or {}).values()), None)
    return rows if rows is not None and _numeric(rows) else None


def _rows(case: Case, side: str, model: Any) -> Array | None:
    """The sample as numbers in the order of the model's features, coded as the model codes it."""
    if case.sample is None:
        return None
    try:
        fed = case.fed(side)
        arrays = dict(fed)
    except LikewiseError:
        return None
    if len(arrays) == 1 and (only := next(iter(arrays.values()))).ndim == 2:
        rows = _as_numbers(only)
    else:
        codes = _codes(model, fed)
        parts = [_coded(array, codes[name]) if name in codes else _as_numbers(array) for name, array in arrays.items()]
        if any(part is None or part.ndim != 1 for part in parts):
            return None
        rows = np.stack([part for part in parts if part is not None], axis=1)
    missing = getattr(model, "missing", None) if xgb.is_wrapper(model) else None
    if rows is not None and missing is not None and missing == missing:
        rows = np.where(rows == missing, np.nan, rows)
    return _known_only(model, rows)


def _as_numbers(array: Array) -> Array | None:
    if _numeric(array):
        return array.astype(np.float64)
    try:
        return np.array([np.nan if value is None else float(value) for value in array.ravel()]).reshape(array.shape)
    except (TypeError, ValueError):
        return None


def _codes(model: Any, fed: Any) -> Mapping[str, Any]:
    """The categories of each column that the model takes as codes."""
    if lgb.is_model(model):
        facts = lgb.facts_of(lgb.booster_of(model))
        try:
            found = lgb.categories_by_column(facts, fed.frame()) if facts.categories else {}
        except LikewiseError:
            return {}
        # LightGBM writes underscores for blanks; the columns are fed in its order.
        told = dict(zip(facts.names or (), fed, strict=False))
        return {str(told.get(name, name)): categories for name, categories in found.items()}
    if xgb.is_model(model):
        return xgb.categories_of(xgb.booster_of(model))
    return {}


def _coded(array: Array, categories: Any) -> Array:
    import pandas as pd

    places = pd.Index(list(categories)).get_indexer(pd.Index(array))
    return np.where(places < 0, np.nan, places).astype(np.float64)


def _known_only(model: Any, rows: Array | None) -> Array | None:
    """Categories that scikit-learn's histogram boosting has not seen, as the missing values it takes them for."""
    marked = getattr(model, "is_categorical_", None)
    preprocessor = getattr(model, "_preprocessor", None)
    if rows is None or marked is None or preprocessor is None:
        return rows
    rows = rows.copy()
    encoder = preprocessor.named_transformers_["encoder"]
    for column, values in zip(np.flatnonzero(marked).tolist(), encoder.categories_, strict=True):
        if values.dtype.kind in "biuf":
            rows[~np.isin(rows[:, column], values), column] = np.nan
    return rows


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """The trees of both sides, where they differ, and where the failing rows take different paths.

    `rows` and `pairs` say which row parts at which pair of nodes; `followed` is False where that cannot be told.
    """

    case: Case
    reference: Reading
    candidate: Reading
    differ: Differences
    rows: Array
    pairs: Array
    followed: bool

    def node(self, pair: int) -> tuple[int, int]:
        """The nodes of a pair, in both ensembles."""
        return int(self.differ.alignment.reference[pair]), int(self.differ.alignment.candidate[pair])

    def column(self, pair: int) -> str:
        """What the column is called that the reference asks about."""
        return self.reference.name(int(self.reference.ensemble.column[self.node(pair)[0]]))

    def tree(self, pair: int) -> str:
        """Where the candidate's node stands, as `tree 3, node 7`."""
        return self.candidate.ensemble.name(self.node(pair)[1])

    def met(self, pair: int, row: int) -> tuple[float, float]:
        """What a pair is asked about in a row, in the reference and in the candidate."""
        seen, given = (
            float(side.rows[row, side.ensemble.feature[node]]) if side.rows is not None else float("nan")
            for side, node in zip((self.reference, self.candidate), self.node(pair), strict=True)
        )
        return seen, given

    def place(self, pair: int, *more: str) -> Place:
        """A pair as `income (tree 3, node 7)`."""
        name, where = self.column(pair), self.tree(pair)
        if self.reference.ensemble.column[self.node(pair)[0]] < 0:
            return Place(where, more, nodes=self.nodes(pair))
        return Place(name, (where, *more), columns=(name,), nodes=self.nodes(pair))

    def site(self, pair: int | None = None) -> onnx.Site:
        """The node of the candidate's graph that holds a pair, or the first that holds trees."""
        held, trees = self.candidate.graph, self.candidate.ensemble
        assert held is not None
        return held.sites[0 if pair is None else int(trees.place[trees.tree[self.node(pair)[1]]])]

    def nodes(self, pair: int | None = None) -> tuple[str, ...]:
        """The name of that node."""
        node = self.case.graph("candidate").graph.node[self.site(pair).node]
        return (str(node.name or node.output[0]),)

    def worst(self, pairs: Array) -> tuple[int, int]:
        """Of these pairs the one where most failing rows take another path, and how many do."""
        here = self.pairs[np.isin(self.pairs, pairs)]
        return most(here) if len(here) else (int(pairs[0]), 0)

    def concerns(self, pairs: Array) -> bool:
        """Do enough failing rows take another path at these pairs for them to explain the failure?"""
        rows = np.unique(self.rows[np.isin(self.pairs, pairs)])
        return bool(len(pairs)) and (not self.followed or len(rows) >= ENOUGH * int(self.case.required.failing.sum()))

    def written(self, ensemble: Ensemble | None) -> tuple[Change, ...]:
        """These trees in the candidate's graph; nothing where they cannot be said there."""
        assert self.candidate.graph is not None
        try:
            proto = None if ensemble is None else written(self.case.graph(), self.candidate.graph, ensemble)
        except UnwritableError:
            proto = None
        return () if proto is None else (Change(target=proto),)

    def thresholds(self, pairs: Array) -> tuple[Fix, ...]:
        """The reference's thresholds in the candidate's graph: in its own type, then with all of it in double."""
        wide = replace(self.differ, theirs=replace(self.differ.theirs, dtype="float64"))
        held, proto = self.candidate.graph, self.case.graph()
        assert held is not None

        def narrow() -> ModelProto | None:
            changes = self.written(with_splits(self.differ, pairs))
            return changes[0].target if changes else None

        def double() -> ModelProto | None:
            try:
                named, exact = edits.copied(written(proto, held, with_splits(self.differ, pairs))), {}
                edits.name_nodes(named.graph)
                for place, site in enumerate(held.sites):
                    exact[named.graph.node[site.node].name] = tree_edits.exact(held, with_splits(wide, pairs), place)
                return widen.in_double(named, exact)[0]
            except (UnwritableError, ModelError):
                return None

        told = "thresholds set to the last value that goes left in the reference"
        return Fix(told, narrow), Fix(f"{told}, and the graph computed in double", double)

    def given(self, rows: Array) -> tuple[Change, ...]:
        """The candidate's graph with these values before its trees."""
        assert self.candidate.graph is not None
        return (Change(target=with_input(self.case.graph(), self.candidate.graph, rows), whole=True),)

    @property
    def other_splits(self) -> str:
        """How many splits ask something else, in words."""
        differ = self.differ
        return f"{int((differ.column | differ.moved | differ.torn).sum())} of {differ.inner} splits ask something else"


@made_once
def survey(case: Case) -> Survey | None:
    """Compare the trees of both sides; None where one of them has none that can be read."""
    candidate = read(case, "candidate")
    reference = None if candidate is None else read(case, "reference")
    if reference is None or candidate is None:
        return None
    ours, theirs = reference.ensemble, candidate.ensemble
    found = differences(ours, theirs)
    if reference.rows is None or candidate.rows is None or found.retrained:
        none = np.zeros(0, np.int64)
        return Survey(case, reference, candidate, found, none, none, followed=False)
    failing = np.flatnonzero(case.required.failing)
    parted = partings(found.alignment, ours, theirs, reference.rows[failing], candidate.rows[failing])
    return Survey(case, reference, candidate, found, failing[parted[0]], parted[1], followed=True)


def most(values: Array) -> tuple[int, int]:
    """The value that is there most often, and how often."""
    found, counts = np.unique(values, return_counts=True)
    best = int(np.argmax(counts))
    return int(found[best]), int(counts[best])


@dataclass(frozen=True, slots=True, eq=False)
class Nudged:
    """What the trees would be given, which values were moved, and how much of each column's spread rounding took."""

    rows: Array
    moved: Array
    lost: dict[int, float]


def nudged(found: Survey, pairs: Array) -> Nudged | None:
    """Values moved as little as can be across thresholds that they only passed by rounding.

    `pairs` are splits that ask the same. None where what the trees are given is not known.
    """
    ours, theirs = found.reference, found.candidate
    if ours.rows is None or theirs.rows is None:
        return None
    node, other = found.differ.alignment.reference[pairs], found.differ.alignment.candidate[pairs]
    seen, given = ours.ensemble.feature[node], theirs.ensemble.feature[other]
    limit, held = boundary(ours.ensemble, node), boundary(theirs.ensemble, other)
    rows = theirs.rows.copy()
    moved = np.zeros(rows.shape, dtype=bool)
    lost: dict[int, float] = {}
    for one, two in np.unique(np.stack([seen, given], axis=1), axis=0).tolist():
        here = (seen == one) & (given == two)
        value = as_compared(ours.ensemble, ours.rows[:, one])
        value_there = as_compared(theirs.ensemble, theirs.rows[:, two])
        wanted = _wanted(limit[here], held[here], value, value_there, theirs.ensemble.dtype)
        rounded = np.isfinite(wanted) & (_apart(value, value_there) <= ROUNDING)
        rows[rounded, two] = wanted[rounded]
        moved[rounded, two] = True
        lost[two] = _lost(value, value_there)
    return Nudged(rows, moved, lost)


def _apart(value: Array, value_there: Array) -> Array:
    """How far a value is from the other side's, relative to its size or the typical one of its column."""
    finite = np.isfinite(value)
    typical = float(np.median(np.abs(value[finite]))) if finite.any() else 0.0
    with np.errstate(invalid="ignore", divide="ignore"):
        size = np.maximum(np.maximum(np.abs(value), typical), 1e-30)
        apart = np.abs(value - value_there) / size
    return np.where(np.isnan(apart), np.inf, apart)


def _lost(value: Array, value_there: Array) -> float:
    """The largest difference of a column on both sides, in units of its spread."""
    both = np.isfinite(value) & np.isfinite(value_there)
    if not both.any():
        return 0.0
    spread = float(np.std(value[both]))
    largest = float(np.abs(value[both] - value_there[both]).max())
    return largest / spread if spread > 0 else 0.0


def _wanted(limit: Array, held: Array, value: Array, value_there: Array, dtype: str) -> Array:
    """The nearest value that falls between the same thresholds as the reference's; NaN where none is needed."""
    order = np.lexsort((held, limit))
    limit, held = limit[order], np.maximum.accumulate(held[order])
    rank, rank_there = np.searchsorted(limit, value), np.searchsorted(held, value_there)
    count = len(held)
    upper = np.where(rank < count, held[np.minimum(rank, count - 1)], np.inf)
    with np.errstate(over="ignore"):
        below = held[np.maximum(rank - 1, 0)].astype(dtype)
        following = np.nextafter(below, np.array(np.inf, dtype=dtype)).astype(np.float64)
    lower = np.where(rank > 0, following, -np.inf)
    wanted = np.clip(value_there, lower, np.maximum(upper, lower))
    possible = (lower <= upper) & (rank != rank_there) & np.isfinite(value) & np.isfinite(value_there)
    return np.where(possible, wanted, np.nan)


def members(trees: Ensemble, node: int) -> str:
    """The categories that a split asks for; empty where it asks for none."""
    if trees.group[node] < 0:
        return ""
    return f"one of {{{listed([f'{value:g}' for value in trees.groups[trees.group[node]].tolist()], SHOWN)}}}"


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def going_astray(rows: int) -> str:
    return f", where {counted(rows, 'failing row')} go{'es' if rows == 1 else ''} the other way" if rows else ""
