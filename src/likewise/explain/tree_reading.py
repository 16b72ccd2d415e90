"""What the columns that trees see are called in the user's data.

The trees of one side of a case, and the rows of its sample as these trees are given them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array
from likewise.errors import LikewiseError
from likewise.explain.case import Case
from likewise.models.lightgbm import open as lgb
from likewise.models.onnx import trees as onnx
from likewise.models.sklearn.walk import names_after, steps_before
from likewise.models.trees import composed
from likewise.models.trees.ensemble import LEAF, Ensemble
from likewise.models.xgboost import open as xgb

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


ONE_TO_ONE = frozenset(
    {"Identity", "Cast", "Scaler", "Imputer", "Sub", "Add", "Mul", "Div", "Clip", "Where", "Sqrt", "Log", "Abs"}
)
"""Operators that keep a column a column."""


def names_in_graph(case: Case, side: str, proto: ModelProto, tensor: str) -> tuple[str, ...]:
    """The names of a tensor's columns, followed back to the inputs of the graph."""
    found: Any = getattr(case, side)
    fed: dict[str, tuple[str, ...]] = {}
    for route in found.feed.routes or () if found is not None else ():
        names = route.columns
        array = case.required.batch.inputs[names[0]] if case.sample is not None else None
        if len(names) == 1 and array is not None and array.ndim == 2 and array.shape[1] > 1:
            fed[route.input.name] = tuple(f"{names[0]}[{index}]" for index in range(array.shape[1]))
        else:
            fed[route.input.name] = names
    makers = {name: node for node in proto.graph.node for name in node.output}
    return tuple(_followed(tensor, makers, fed, 0))


def _followed(
    tensor: str, makers: Mapping[str, NodeProto], fed: Mapping[str, tuple[str, ...]], depth: int
) -> tuple[str, ...]:
    if tensor in fed:
        return fed[tensor]
    node = makers.get(tensor)
    if node is None or depth > 40:
        return ()
    if node.op_type in ("Concat", "FeatureVectorizer"):
        parts = [_followed(given, makers, fed, depth + 1) for given in node.input]
        return tuple(name for part in parts for name in part) if all(parts) else ()
    if node.op_type in ONE_TO_ONE:
        parts = [_followed(given, makers, fed, depth + 1) for given in node.input]
        known = [part for part in parts if part]
        return known[0] if len(known) == 1 else ()
    return ()


MOST_CELLS = 40_000_000
"""Rows times columns of what trees are given, beyond which rows are not followed."""


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


def read(case: Case, side: str) -> Reading | None:
    """What one side's trees are; read once a case."""
    return case.once(_of_graph if case.framework(side) == "onnx" else _of_model, side)


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
    seen = _seen(case, side, proto, held)
    if seen is None:
        return Reading(held.ensemble, None, names_in_graph(case, side, proto, held.sources[0]), held)
    import numpy as np

    held = _with_widths(held, {source: array.shape[1] for source, array in seen.items()})
    rows = np.hstack([seen[source] for source in held.sources])
    return Reading(held.ensemble, rows, names_in_graph(case, side, proto, held.sources[0]), held)


def _with_widths(held: onnx.GraphTrees, widths: Mapping[str, int]) -> onnx.GraphTrees:
    """The same with the true number of columns of each source."""
    import numpy as np

    starts = np.cumsum([0, *(widths[source] for source in held.sources)]).tolist()
    offsets = dict(zip(held.sources, starts, strict=False))
    sites = tuple(replace(site, offset=offsets[site.source]) for site in held.sites)
    trees = held.ensemble
    shift = np.array([site.offset for site in sites])[trees.place[trees.tree]]
    feature = np.where(trees.column >= 0, trees.column + shift, LEAF)
    return replace(held, ensemble=replace(trees, feature=feature), sites=sites, widths=dict(widths))


def _seen(case: Case, side: str, proto: ModelProto, held: onnx.GraphTrees) -> Mapping[str, Array] | None:
    """What reaches the trees: fed to the graph, or asked for as further outputs of a copy."""
    from onnx import ModelProto as Proto
    from onnx import helper

    if case.sample is None:
        return None
    fed = {value.name for value in proto.graph.input}
    inside = [source for source in held.sources if source not in fed]
    given: dict[str, Array] = {}
    if len(inside) < len(held.sources):
        given |= {name: array for name, array in case.fed(side).items() if name in held.sources}
    if inside:
        copied = Proto()
        copied.CopyFrom(proto)
        shown = {value.name for value in copied.graph.output}
        for source in inside:
            if source not in shown:
                kind = onnx.element_type(proto, source)
                copied.graph.output.append(helper.make_tensor_value_info(source, kind, None))
        answered = case.ask_changed(side, target=copied)
        if answered is None:
            return None
        given |= {source: answered[source] for source in inside if source in answered}
    rows = len(case.sample)
    widest = max((site.columns.max() + 1 for site in held.sites if site.columns is not None), default=0)
    usable = all(
        source in given and given[source].ndim == 2 and len(given[source]) == rows and _numeric(given[source])
        for source in held.sources
    )
    if not usable or sum(array.size for array in given.values()) > MOST_CELLS:
        return None
    # A node that asks for a column beyond the last reads somebody else's memory: nothing to follow there.
    asked = max(int(held.ensemble.column.max(initial=0)) + 1, int(widest))
    return given if all(array.shape[1] >= min(asked, held.widths[s]) for s, array in given.items()) else None


def _numeric(array: Array) -> bool:
    return array.dtype.kind in "biuf"


def _of_model(case: Case, side: str) -> Reading | None:
    native = case.native(side)
    if native is None:
        return None
    before, model = steps_before(native)
    ensemble = composed.trees_of(model)
    if ensemble is None or not ensemble.trees:
        return None
    columns = _columns(case, side)
    if before:
        rows, names = _after(case, side, before, columns)
    else:
        rows, names = _rows(case, side, model), columns
    width = int(ensemble.feature.max(initial=-1)) + 1
    if rows is not None and (rows.ndim != 2 or rows.shape[1] < width or rows.size > MOST_CELLS):
        rows = None
    return Reading(ensemble, rows, names, direct=not before)


def _columns(case: Case, side: str) -> tuple[str, ...]:
    """The data's own names of what a model is fed, in the model's order."""
    found: Any = getattr(case, side)
    if found is None:
        return ()
    names = found.feed.columns or tuple(case.required.batch.inputs)
    if len(names) == 1:
        array = case.required.batch.inputs[names[0]] if case.sample is not None else None
        if array is not None and array.ndim == 2:
            return tuple(f"{names[0]}[{index}]" for index in range(array.shape[1]))
    return tuple(names)


def _after(
    case: Case, side: str, before: list[tuple[str, Any]], columns: tuple[str, ...]
) -> tuple[Array | None, tuple[str, ...]]:
    """The sample after the steps before the trees, and what its columns are called."""
    from sklearn.pipeline import Pipeline

    steps = Pipeline(before)
    names = names_after(before, columns)
    if case.sample is None or len(names) * len(case.sample) > MOST_CELLS:
        return None, names
    with case.opened(side, target=steps) as opened:
        answered = None if opened is None else case.ask(replace(opened, outputs=None))
    rows = next(iter((answered or {}).values()), None)
    return (rows if rows is not None and _numeric(rows) else None), names


def _rows(case: Case, side: str, model: Any) -> Array | None:
    """The sample as numbers in the order of the model's features, coded as the model codes it."""
    import numpy as np

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
    import numpy as np

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
    import numpy as np
    import pandas as pd

    places = pd.Index(list(categories)).get_indexer(pd.Index(array))
    return np.where(places < 0, np.nan, places).astype(np.float64)


def _known_only(model: Any, rows: Array | None) -> Array | None:
    """Categories that scikit-learn's histogram boosting has not seen, as the missing values it takes them for."""
    import numpy as np

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
