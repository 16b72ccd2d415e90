"""What is inside a fitted scikit-learn model: what it is in a few words, the arrays that fitting gave it, its columns.

Boosters are asked about their columns here too: both say scalings, categories, fill values and thresholds.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.models import Signature
from likewise.contracts.values import dataclass
from likewise.data.columns import plain
from likewise.data.random_values import VOCABULARY, About, Clues, Place, nodes_by_feature
from likewise.models import catboost as cat
from likewise.models import lightgbm as lgb
from likewise.models import xgboost as xgb
from likewise.models.arrays import MODEL, PREPROCESSING, Parameter, plain_labels
from likewise.models.sklearn.walk import Role, chosen, followed, innermost, joined, parts, steps_before, steps_of
from likewise.models.trees.ensemble import Ensemble, Gap
from likewise.models.trees.read import trees_of

_MOST_SHOWN = 50
_LONGEST_VALUE = 80

NO_WEIGHTS = {"classes_", "feature_names_in_", "n_features_in_", "n_iter_", "loss_curve_", "feature_importances_"}
"""What fitted estimators keep and no export contains as a weight; labels have hypotheses of their own."""

UNDERSCORED = ("_fit_X", "_y", "_dual_coef_", "_intercept_", "_probA", "_probB", "_y_train_mean", "_y_train_std")

OUTPUTS_FIRST = {"coef_": True, "coefs_": False, "components_": True}
"""Which way round matrices of estimators multiply."""

NOT_NEGATIVE = ("log", "log10", "log2", "log1p", "sqrt")
"""Functions of numpy that a FunctionTransformer may hold and that give NaN below zero."""

ROWS_KEPT = ("support_vectors_", "_fit_X", "cluster_centers_")
"""Where estimators keep rows, or what rows look like."""


def one_line(model: Any) -> str:
    """The model and what it is made of: `Pipeline(StandardScaler → LogisticRegression)`."""
    name = type(model).__name__
    if hasattr(model, "best_estimator_"):
        return f"{name}({one_line(model.best_estimator_)})"
    if steps := steps_of(model):
        return f"{name}({' → '.join(one_line(step) for _, step in steps)})"
    return "passthrough" if model is None or isinstance(model, str) else name


def details(model: Any, signature: Signature, fitted_with: str | None) -> dict[str, Any]:
    """Facts for the record, as plain JSON values."""
    import sklearn

    facts: dict[str, Any] = {"estimator": one_line(model), "sklearn": sklearn.__version__}
    if fitted_with:
        facts["fitted_with"] = fitted_with
    if steps := steps_of(getattr(model, "best_estimator_", model)):
        facts["steps"] = [{"name": str(name), "class": one_line(step)} for name, step in steps]
    classes = getattr(model, "classes_", None)
    if classes is not None and not isinstance(classes, list):
        facts["classes"] = list(plain_labels(classes[:_MOST_SHOWN]))
    if (inputs := signature.inputs) is not None:
        width = inputs[0].shape[-1] if inputs and inputs[0].shape else None
        facts["features"] = len(inputs) if signature.table else width
    facts["parameters"] = _parameters(innermost(model))
    return facts


def _parameters(model: Any) -> dict[str, Any]:
    """What was set differently from the default."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(type(model)).parameters.items()}
    changed = {
        name: value
        for name, value in model.get_params(deep=False).items()
        if name in defaults and repr(value) != repr(defaults[name])
    }
    return {name: _short(value) for name, value in list(changed.items())[:_MOST_SHOWN]}


def _short(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value if not isinstance(value, str) else value[:_LONGEST_VALUE]
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    text = " ".join(str(plain(value)).split())
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 1]}…"


def parameters(model: Any, columns: Sequence[str]) -> tuple[Parameter, ...]:
    """The fitted arrays of an estimator of scikit-learn's kind; `columns` are what it is fed."""
    role = MODEL if hasattr(model, "predict") else PREPROCESSING
    return tuple(_walk(model, "", role, tuple(columns)))


def _walk(model: Any, path: str, role: str, columns: tuple[str, ...]) -> Iterator[Parameter]:
    """The arrays of an estimator and of those inside it; the names of columns go along as far as they are known."""
    own = tuple(map(str, getattr(model, "feature_names_in_", columns)))
    columns = own if len(own) == getattr(model, "n_features_in_", len(own)) else ()
    found = list(parts(model))
    if not any(part.role in (Role.STEP, Role.LAST, Role.BRANCH, Role.ALIAS) for part in found):
        yield from _own(model, path, role, columns)
    for part in found:
        preparing = part.role in (Role.STEP, Role.BRANCH)
        given = () if part.role in (Role.OWN, Role.FINAL) else _chosen(part.columns, columns)
        yield from _walk(part.estimator, joined(path, part.name), PREPROCESSING if preparing else role, given)
        if part.role is Role.STEP:
            columns = tuple(names_given(part.estimator, columns))


def _chosen(selector: Any, columns: tuple[str, ...]) -> tuple[str, ...]:
    try:
        return tuple(chosen(selector, columns))
    except (IndexError, TypeError, ValueError):  # the columns are not known
        return ()


def _own(model: Any, path: str, role: str, columns: tuple[str, ...]) -> Iterator[Parameter]:
    kind = type(model).__name__
    if hasattr(model, "tree_"):
        return
    for attribute, value in _fitted(model):
        for name, column, values in _arrays(attribute, value, columns):
            if column is not None:
                yield Parameter(path, name, values, role, kind, (column,) * len(values))
                continue
            axis = _axis_of_columns(name, values, len(columns))
            named = columns if axis is not None else ()
            first = OUTPUTS_FIRST.get(name.partition("[")[0])
            yield Parameter(path, name, values, role, kind, named, axis or 0, outputs_first=first)


def _fitted(model: Any) -> Iterator[tuple[str, Any]]:
    held = vars(model) if hasattr(model, "__dict__") else {}
    for name, value in held.items():
        public = name.endswith("_") and not name.startswith("_")
        beside = name == "var_" and "scale_" in held  # a scaler divides by the one and keeps the other
        if (public or name in UNDERSCORED) and name not in NO_WEIGHTS and not name.startswith("n_") and not beside:
            yield name, value


def _arrays(attribute: str, value: Any, columns: tuple[str, ...]) -> Iterator[tuple[str, str | None, Array]]:
    """The arrays of an attribute: itself, or the entries of a list, which may be one a column."""
    if isinstance(value, float | np.floating):
        yield attribute, None, np.asarray([value])
    elif attribute == "vocabulary_" and isinstance(value, Mapping):
        yield attribute, None, np.array(sorted(value, key=lambda term: value[term]), dtype=object)
    elif _is_list_of_arrays(value):
        named = len(value) == len(columns) and attribute in ("categories_", "bin_edges_")
        for number, entry in enumerate(value):
            yield f"{attribute}[{number}]", columns[number] if named else None, _plain(np.asarray(entry))
    elif isinstance(value, np.ndarray) and value.size:
        yield attribute, None, _plain(value)
    elif hasattr(value, "toarray") and value.shape[0] * value.shape[1] <= 10_000_000:
        yield attribute, None, _plain(np.asarray(value.toarray()))


def _is_list_of_arrays(value: Any) -> bool:
    listed = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1)
    return listed and len(value) > 0 and all(isinstance(entry, np.ndarray) for entry in value)


def _plain(values: Array) -> Array:
    """Numbers as they are; everything else as text."""
    if values.dtype.kind in "biuf":
        return np.atleast_1d(values)
    return np.array([str(entry) for entry in values.flat], dtype=object).reshape(np.atleast_1d(values).shape)


def _axis_of_columns(attribute: str, values: Array, count: int) -> int | None:
    if not count:
        return None
    if attribute.startswith("coefs_["):
        return 0 if attribute == "coefs_[0]" and values.shape[0] == count else None
    return values.ndim - 1 if values.shape[-1] == count else None


def names_after(steps: Sequence[tuple[str, Any]], columns: tuple[str, ...]) -> tuple[str, ...]:
    """The names of what the steps give: the data's own where a step keeps a column a column."""
    names = list(columns)
    for path, step in steps:
        names = names_given(step, names) or [f"{path}[{index}]" for index in range(_width(step))]
    return tuple(_original(name, columns) for name in names)


def names_given(step: Any, names: Sequence[str]) -> list[str]:
    """What a step calls its outputs, given its inputs' names; nothing if it does not say."""
    import numpy as np

    for given in (np.array(names, dtype=object), None):
        try:
            return [str(name) for name in step.get_feature_names_out(given)]
        except Exception:  # noqa: BLE001 - steps of others may raise anything; names are for the reader only
            continue
    return []


def _width(step: Any) -> int:
    for name in ("n_components_", "n_components", "n_features_in_"):
        found = getattr(step, name, None)
        if isinstance(found, int):
            return found
    return 0


def _original(name: str, columns: Sequence[str]) -> str:
    """A name without the branches it went through, where that is a column of the data."""
    rest = name
    while rest not in columns and "__" in rest:
        rest = rest.partition("__")[2]
    return rest if rest in columns else name


@dataclass(frozen=True, slots=True)
class _Line:
    """What has become of a column: a step sees `factor * value + shift`."""

    factor: float = 1.0
    shift: float = 0.0

    def back(self, seen: float) -> float:
        """The value of the column that a step sees as this."""
        return (seen - self.shift) / self.factor

    def then(self, factor: float, shift: float) -> _Line | None:
        return _Line(self.factor * factor, self.shift * factor + shift) if factor else None


def clues_of(native: Any, signature: Signature) -> Clues | None:
    """The clues of a scikit-learn estimator or a booster, by input; None for anything else."""
    if not (hasattr(native, "get_params") or any(kind.is_model(native) for kind in (xgb, lgb, cat))):
        return None
    labels, places = _labels(signature)
    clues = Clues()
    if not labels:
        return clues
    lines = dict(_told_by_steps(native, labels, places, clues)) if hasattr(native, "get_params") else {}
    before, model = steps_before(native)
    names = names_after(before, tuple(labels)) if before else tuple(labels)
    _told_by_categories(model, names, places, clues)
    ensemble = trees_of(model)
    if ensemble is not None and ensemble.trees:
        _told_by_trees(ensemble, model, names, places, lines, clues)
    return clues


def _labels(signature: Signature) -> tuple[list[str], dict[str, Place]]:
    """A name for every column, and where it lies in the inputs."""
    specs = signature.inputs or ()
    if signature.table:
        return [spec.name for spec in specs], {spec.name: (spec.name, None) for spec in specs}
    if len(specs) != 1:
        return [], {}
    shape = specs[0].shape or ()
    if len(shape) == 2 and isinstance(shape[1], int):
        labels = [f"x{index}" for index in range(shape[1])]
        return labels, {label: (specs[0].name, index) for index, label in enumerate(labels)}
    return ["x0"], {"x0": (specs[0].name, None)}


def _told_by_steps(
    native: Any, labels: Sequence[str], places: Mapping[str, Place], clues: Clues
) -> Iterator[tuple[str, _Line | None]]:
    """Note what every step says of the columns that reach it, and give what has become of each column in the end."""
    lines: dict[tuple[str, str], _Line | None] = {}
    for path, step, names in followed(native, labels):
        branch = path.rpartition("__")[0]
        for position, name in enumerate(names):
            line = lines.get((branch, name), _Line())
            if line is not None and name in places:
                _note(step, position, line, places[name], clues)
                line = _after(step, position, line)
            lines[branch, name] = line
    for name in labels:
        ends = {line for (_, reached), line in lines.items() if reached == name}
        if ends:
            yield name, ends.pop() if len(ends) == 1 else None


def _note(step: Any, position: int, line: _Line, place: Place, clues: Clues) -> None:
    """What one fitted step says of one of its columns."""
    who = type(step).__name__
    if line == _Line():
        _note_categories(step, position, place, clues, who)
    _note_fill(step, position, line, place, clues, who)
    centre, spread = _centre(step, position)
    if centre is not None and spread is not None:
        told = (line.back(centre), abs(spread / line.factor))
        clues.add(place, About.SCALE, told, f"mean and deviation that {who} was fitted with")
    elif (ends := _ends(step, position)) is not None:
        low, high = sorted((line.back(ends[0]), line.back(ends[1])))
        clues.add(place, About.RANGE, (low, high), f"the range that {who} was fitted on")
    edges = getattr(step, "bin_edges_", None)
    if edges is not None and len(edges) > position:
        told_cuts = [line.back(float(edge)) for edge in edges[position]]
        clues.add(place, About.THRESHOLDS, told_cuts, f"the bins of {who}")


def _note_categories(step: Any, position: int, place: Place, clues: Clues, who: str) -> None:
    categories = getattr(step, "categories_", None)
    if isinstance(categories, list) and len(categories) > position:
        known = [None if value is None or value != value else value for value in categories[position].tolist()]
        clues.add(place, About.CATEGORIES, known, f"the categories of {who}")
    vocabulary = getattr(step, "vocabulary_", None)
    if isinstance(vocabulary, dict) and vocabulary:
        clues.add(place, About.WORDS, sorted(vocabulary), f"the vocabulary of {who}")


def _note_fill(step: Any, position: int, line: _Line, place: Place, clues: Clues, who: str) -> None:
    """An imputer: what it looks for may be missing, and what it fills in is a value like others."""
    if "Imputer" not in who or not hasattr(step, "missing_values"):
        return
    looked_for = step.missing_values
    if line == _Line() and (looked_for is None or looked_for != looked_for):
        clues.add(place, About.GAPS, (), f"{who} fills what is missing")
    held = getattr(step, "statistics_", None)
    if held is None:
        held = getattr(getattr(step, "initial_imputer_", None), "statistics_", None)
    if held is not None and len(held) > position:
        value = held[position]
        if isinstance(value, str):
            clues.add(place, About.FILL, (value,), f"what {who} fills in")
        elif value is not None:
            clues.add(place, About.FILL, (line.back(float(value)),), f"what {who} fills in")


def _centre(step: Any, position: int) -> tuple[float | None, float | None]:
    """The mean and the deviation a step was fitted with."""
    kind = type(step).__name__
    if kind == "StandardScaler":
        return _at(step, "mean_", position, 0.0), _at(step, "scale_", position, 1.0)
    if kind == "RobustScaler":
        spread = _at(step, "scale_", position, 1.0)
        # A quarter of a normal lies on each side of 0.6745 deviations.
        return _at(step, "center_", position, 0.0), None if spread is None else spread / 1.349
    if kind == "PCA":
        return _at(step, "mean_", position, 0.0), float(step.get_covariance()[position, position]) ** 0.5
    if kind == "GaussianNB":
        return float(step.theta_[:, position].mean()), float(step.var_[:, position].max()) ** 0.5
    return None, None


def _ends(step: Any, position: int) -> tuple[float, float] | None:
    """The least and the greatest value a step has seen."""
    kind = type(step).__name__
    if kind == "MinMaxScaler":
        return float(step.data_min_[position]), float(step.data_max_[position])
    if kind == "MaxAbsScaler":
        return -float(step.max_abs_[position]), float(step.max_abs_[position])
    if kind == "QuantileTransformer":
        return float(step.quantiles_[0, position]), float(step.quantiles_[-1, position])
    if kind == "PowerTransformer" and step.standardize:
        seen = np.repeat([[-2.0], [2.0]], len(step.lambdas_), axis=1)
        low, high = step.inverse_transform(seen)[:, position].tolist()
        return low, high
    if kind == "FunctionTransformer" and getattr(step.func, "__name__", "") in NOT_NEGATIVE:
        return (0.0 if step.func.__name__ in ("log1p", "sqrt") else 0.01), 10.0
    for name in ROWS_KEPT:
        rows = getattr(step, name, None)
        if isinstance(rows, np.ndarray) and rows.ndim == 2 and rows.shape[1] > position and len(rows):
            return float(np.nanmin(rows[:, position])), float(np.nanmax(rows[:, position]))
    return None


def _at(step: Any, name: str, position: int, absent: float) -> float | None:
    held = getattr(step, name, None)
    return absent if held is None else float(held[position])


def _after(step: Any, position: int, line: _Line) -> _Line | None:
    """What a column has become behind a step; None where that is no line."""
    kind = type(step).__name__
    if kind == "SimpleImputer" or (kind == "FunctionTransformer" and step.func is None):
        return line
    if kind in ("StandardScaler", "RobustScaler"):
        centre = _at(step, "mean_" if kind == "StandardScaler" else "center_", position, 0.0) or 0.0
        spread = _at(step, "scale_", position, 1.0) or 1.0
        return line.then(1 / spread, -centre / spread)
    if kind == "MinMaxScaler":
        return line.then(float(step.scale_[position]), float(step.min_[position]))
    if kind == "MaxAbsScaler":
        return line.then(1 / float(step.scale_[position]), 0.0)
    return None if hasattr(step, "transform") else line


def _told_by_categories(model: Any, names: Sequence[str], places: Mapping[str, Place], clues: Clues) -> None:
    """The categories that a booster, or scikit-learn's histogram boosting, keeps for its own columns."""
    for name, values in _categories(model, names).items():
        if name in places:
            told = [None if value is None or value != value else value for value in values]
            clues.add(places[name], About.CATEGORIES, told, f"the categories of {type(model).__name__}")
    if cat.is_model(model):
        facts = cat.facts_of(model)
        for name in (*facts.categorical, *facts.text):
            why = "CatBoost keeps no texts, only their hashes: a small vocabulary"
            about = About.CATEGORIES if name in facts.categorical else About.WORDS
            if name in places:
                clues.add(places[name], about, VOCABULARY[:4], why, sure=False)


def _categories(model: Any, names: Sequence[str]) -> dict[str, list[Any]]:
    if xgb.is_model(model):
        kept = xgb.categories_of(xgb.booster_of(model))
        return {name: list(values) for name, values in kept.items()}
    if lgb.is_model(model):
        facts = lgb.facts_of(lgb.booster_of(model))
        if len(facts.categorical) != len(facts.categories):
            return {}
        return {name: list(values) for name, values in zip(facts.categorical, facts.categories, strict=True)}
    encoder = getattr(getattr(model, "_preprocessor", None), "named_transformers_", {}).get("encoder")
    marked = getattr(model, "is_categorical_", None)
    if encoder is None or marked is None:
        return {}
    chosen = [names[index] for index in marked.nonzero()[0] if index < len(names)]
    return {name: values.tolist() for name, values in zip(chosen, encoder.categories_, strict=False)}


def _told_by_trees(
    ensemble: Ensemble,
    model: Any,
    names: Sequence[str],
    places: Mapping[str, Place],
    lines: Mapping[str, _Line | None],
    clues: Clues,
) -> None:
    """The thresholds of every column that reaches the trees as it is, or along a line."""
    missing = _takes_missing(model)
    nodes = nodes_by_feature(ensemble.feature)
    for feature, name in enumerate(names):
        line = lines.get(name, _Line())
        if name not in places or line is None:
            continue
        here = nodes.get(feature, np.zeros(0, dtype=np.int64))
        groups = ensemble.group[here]
        of_groups = np.unique(groups[groups >= 0])
        cuts: Array = np.unique(ensemble.threshold[here[groups < 0]])
        cuts = cuts[np.isfinite(cuts)]
        if len(of_groups) and line == _Line():
            codes = sorted({int(code) for group in of_groups for code in ensemble.groups[group].tolist()})
            told = [*codes, codes[-1] + 1]
            clues.add(places[name], About.CATEGORIES, told, "the codes that trees ask for, and one more")
        elif len(cuts):
            back = [line.back(cut) for cut in cuts.tolist()]
            clues.add(places[name], About.THRESHOLDS, back, "thresholds of the trees")
        else:
            clues.add(places[name], About.RANGE, (-1.0, 1.0), "the trees never ask for it")
        if missing and (missing == "always" or bool(np.any(ensemble.gap[here] != Gap.LIKE_ZERO))):
            clues.add(places[name], About.GAPS, (), "the trees know where missing values go")


def _takes_missing(model: Any) -> str:
    """Do the trees take missing values: `always`, where they have `learnt` it, or never (nothing)?"""
    if xgb.is_model(model):
        missing = getattr(model, "missing", None)
        return "always" if missing is None or missing != missing else ""
    if lgb.is_model(model):
        return "learnt"
    return "always" if type(model).__name__.startswith("HistGradientBoosting") else ""
