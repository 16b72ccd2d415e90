"""LightGBM models: live boosters and scikit-learn wrappers, and the text files of save_model.

To ONNX they go through onnxmltools. What it is known to get wrong is refused: each case was seen to give other answers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array, Batch
from likewise.contracts.models import Adapter, ExportRequest, Kind, Label, Model, OutputSpec, Runner, Signature
from likewise.contracts.values import dataclass
from likewise.errors import ModelError, extra, one_line
from likewise.models import boosters, require_known
from likewise.models.boosters import BoosterRunner, classifier_outputs, derives_from, dtype_of, output

if TYPE_CHECKING:
    from onnx import ModelProto


_UNNAMED = re.compile(r"Column_\d+")

HEADER = re.compile(rb"tree\r?\nversion=")

RANKING = ("lambdarank", "rank_xendcg")


def is_model(target: object) -> bool:
    """Is this a booster of LightGBM, or one of its scikit-learn wrappers?"""
    return derives_from(target, "lightgbm", ("LGBMModel", "Booster"))


def is_wrapper(target: object) -> bool:
    """Is this one of the scikit-learn wrappers, also a subclass of one?"""
    return derives_from(target, "lightgbm", ("LGBMModel",))


def booster_of(model: Any) -> Any:
    """The booster in a wrapper, or the booster itself."""
    return model.booster_ if is_wrapper(model) else model


@dataclass(frozen=True, slots=True)
class Facts:
    """`objective` is as the model writes it, such as `binary sigmoid:1`; empty where it was a function."""

    objective: str
    classes: int
    rounds: int
    trees: int
    best_round: int | None
    averaged: bool
    features: int
    names: tuple[str, ...] | None
    categorical: tuple[str, ...]
    categories: tuple[Sequence[Any], ...]

    @property
    def task(self) -> str:
        """The first word of the objective."""
        return self.objective.partition(" ")[0]


def facts_of(booster: Any) -> Facts:
    """Read from the model itself: parameters may be synonyms, or those of another training."""
    header = booster.dump_model(num_iteration=1)
    names = tuple(header["feature_names"])
    infos = header.get("feature_infos") or {}
    best = booster.best_iteration
    return Facts(
        objective=header.get("objective", ""),
        classes=int(header["num_class"]),
        rounds=booster.current_iteration(),
        trees=booster.num_trees(),
        best_round=best if best and best > 0 else None,
        averaged=bool(header.get("average_output")),
        features=len(names),
        names=None if all(_UNNAMED.fullmatch(name) for name in names) else names,
        # Ranges are written for numbers, the codes themselves for categories.
        categorical=tuple(name for name in names if infos.get(name, {}).get("values")),
        categories=tuple(booster.pandas_categorical or ()),
    )


def categories_by_column(facts: Facts, frame: Any) -> Mapping[str, Sequence[Any]]:
    """Which column has which categories. The model keeps the lists in the order of the columns, without their names."""
    import pandas as pd

    if not facts.categories:
        return {}
    given = [name for name in frame.columns if isinstance(frame[name].dtype, pd.CategoricalDtype)]
    if len(given) == len(facts.categories):
        return dict(zip(given, facts.categories, strict=True))
    if len(facts.categorical) == len(facts.categories):
        return dict(zip(facts.categorical, facts.categories, strict=True))
    raise ModelError(
        f"the model was trained on {len(facts.categories)} categorical columns and does not say which; "
        f"the data has {len(given)}",
        remedy="Give the columns that were categorical in training as pandas categories",
    )


class LightgbmAdapter(Adapter):
    """All knowledge of LightGBM."""

    framework = "lightgbm"
    modules = ("lightgbm",)

    def claims(self, target: object) -> bool:
        return (
            boosters.begins(target, (".txt", ".lgb", ".lgbm"), HEADER)
            or (boosters.begins(target, (".model",), HEADER) and os.path.exists(str(target)))
            or is_model(target)
        )

    @contextmanager
    def open(self, model: Model) -> Iterator[Runner]:
        require_known(model)
        target = boosters.loaded(model, _load)
        wrapper = target if is_wrapper(target) else None
        booster = target if wrapper is None else _booster_of(wrapper, model.name)
        facts = facts_of(booster)
        inputs, table = boosters.inputs_of(
            facts.names, facts.features, coded=facts.categorical if facts.categories else ()
        )
        signature = Signature(inputs, _outputs(wrapper, facts), table=table, underscored=True)

        def ask(batch: Batch) -> _Answers:
            data = boosters.data_of(batch, signature)
            if table and facts.categories:
                known = categories_by_column(facts, data)
                data = boosters.with_categories(data, known, refuse_unseen=False)
            return _Answers(target, data, _classes(wrapper, facts))

        yield BoosterRunner(target, signature, _details(booster, facts, wrapper), name=model.name, ask=ask)


class _Answers(boosters.Answers):
    def __init__(self, model: Any, data: Any, classes: Array | None) -> None:
        super().__init__(model, data, raw_score=True)
        self._classes = classes

    @cached_property
    def probabilities(self) -> Array:
        if hasattr(self._model, "predict_proba"):
            return self._model.predict_proba(self._data)  # type: ignore[no-any-return]
        return self.value

    @cached_property
    def label(self) -> Array:
        """The class of the largest probability, which is how the wrapper's own predict decides."""
        import numpy as np

        assert self._classes is not None
        found = self.probabilities
        if found.ndim == 1:
            found = np.stack([1.0 - found, found], axis=1)
        return self._classes[np.argmax(found, axis=1)]  # type: ignore[no-any-return]


def _load(path: str | os.PathLike[str]) -> Any:
    content = boosters.content(path)
    with extra("boost", needed_for=f"reading {os.fspath(path)}"):
        import lightgbm
    if not HEADER.match(content):
        raise boosters.unreadable(path, "LightGBM", "it does not begin with a tree and a version")
    # LightGBM reads beyond the end of a file that was cut, and takes the process with it.
    whole = b"\nend of trees" in content and (b"\nparameters:" in content) == (b"\nend of parameters" in content)
    if not whole:
        raise boosters.unreadable(path, "LightGBM", "it ends early")
    try:
        return lightgbm.Booster(model_str=content.decode())
    except Exception as error:
        raise boosters.unreadable(path, "LightGBM", one_line(error)) from error


def _booster_of(wrapper: Any, name: str) -> Any:
    from sklearn.exceptions import NotFittedError

    try:
        return wrapper.booster_
    except NotFittedError as error:
        raise boosters.unfitted(name) from error


def _classes(wrapper: Any, facts: Facts) -> Array | None:
    """The labels of a classifier; a booster numbers its classes, as its training data did."""
    import numpy as np

    if wrapper is not None:
        return np.asarray(wrapper.classes_) if hasattr(wrapper, "predict_proba") else None
    if facts.task in ("binary", "multiclass", "multiclassova"):
        return np.arange(max(facts.classes, 2))
    return None


def _outputs(wrapper: Any, facts: Facts) -> tuple[OutputSpec, ...]:
    if facts.task in RANKING or derives_from(wrapper, "lightgbm", ("LGBMRanker",)):
        return (output("scores", Kind.SCORE, dtype="float64"),)
    classes = _classes(wrapper, facts)
    several = facts.classes if facts.classes > 1 else None
    if classes is None:
        return (output("value", Kind.VALUE, several, dtype="float64"),)
    if not facts.objective:  # a function: the wrapper cannot tell what its sums mean
        return (output("scores", Kind.SCORE, several, dtype="float64"),)
    labels: list[Label] = [
        value if isinstance(value, bool | int | float | str) else str(value) for value in classes.tolist()
    ]
    return classifier_outputs(
        labels,
        label=dtype_of(classes),
        probabilities=several if wrapper is None else len(labels),
        scores=several,
        dtype="float64",
    )


def _details(booster: Any, facts: Facts, wrapper: Any) -> Mapping[str, Any]:
    import lightgbm

    return {
        "lightgbm": lightgbm.__version__,
        "model": type(wrapper if wrapper is not None else booster).__name__,
        "objective": facts.objective,
        "rounds": facts.rounds,
        "rounds_used": facts.best_round or facts.rounds,
        "best_iteration": facts.best_round,
        "trees": facts.trees,
        "averaged": facts.averaged,
        "features": facts.features,
        "categorical_features": list(facts.categorical),
    }


UNSUPPORTED = ("cross_entropy", "cross_entropy_lambda", "fair", "mape")


def _exported(request: ExportRequest) -> ModelProto:
    with extra("boost", needed_for="the export of LightGBM models"):
        import lightgbm
        import onnxmltools  # noqa: F401
    wrapper = request.model if is_wrapper(request.model) else None
    booster = booster_of(request.model)
    facts = facts_of(booster)
    _require_convertible(wrapper, booster, facts, request)

    def used() -> Any:
        """A copy of a booster has the trees that predict uses and the objective's proper name."""
        if wrapper is not None:
            return wrapper
        return lightgbm.Booster(model_str=booster.model_to_string(num_iteration=facts.best_round))

    return boosters.to_onnx("lightgbm", used, facts.features, request, zipmap=request.zipmap)


def _require_convertible(wrapper: Any, booster: Any, facts: Facts, request: ExportRequest) -> None:
    """Refuse what the converter is known to get wrong, or to give up on without a reason."""
    if request.double:
        raise ModelError(
            "onnxmltools converts LightGBM models to float32 only",
            remedy="Leave out double; rows whose values lie on a split may then answer differently",
        )
    if not facts.objective or facts.task in UNSUPPORTED:
        named = repr(facts.task) if facts.task else "that is a function"
        raise ModelError(f"onnxmltools cannot convert the objective {named}", remedy="Serve the model with LightGBM")
    for wrong, what in _wrong(facts):
        if wrong:
            raise ModelError(f"onnxmltools converts {what}", remedy="Serve the model with LightGBM")
    trees = [tree["tree_structure"] for tree in booster.dump_model()["tree_info"]]
    for node in (node for tree in trees for node in boosters.unrolled(tree, "left_child", "right_child")[0]):
        if node.get("missing_type") == "Zero":
            name = facts.names[node["split_feature"]] if facts.names else node["split_feature"]
            raise ModelError(
                f"the model takes zero for a missing value (feature {name!r}), and ONNX knows only NaN",
                remedy="Replace zero by NaN in the data, and train without zero_as_missing",
            )
        if "leaf_coeff" in node:
            raise ModelError(
                "onnxmltools converts linear trees wrongly: it keeps only the constant of a leaf",
                remedy="Train without linear_tree",
            )
    if hasattr(wrapper, "predict_proba") and wrapper.classes_.dtype.kind == "b":
        raise ModelError("onnxmltools cannot convert boolean classes", remedy="Train on 0 and 1")
    for index, known in enumerate(facts.categories):
        told = len(facts.categorical) == len(facts.categories)
        name = repr(facts.categorical[index]) if told else f"number {index + 1} of the categorical ones"
        boosters.require_codes(name, known)


def _wrong(facts: Facts) -> tuple[tuple[bool, str], ...]:
    sigmoid = re.search(r"sigmoid:(\S+)", facts.objective)
    steep = sigmoid is not None and float(sigmoid[1]) != 1
    return (
        (facts.task == "multiclassova", "'multiclassova' wrongly: it puts a softmax in the place of the sigmoids"),
        (steep, f"{facts.objective!r} wrongly: it takes the sigmoid's factor for 1"),
        ("sqrt" in facts.objective.split(), f"{facts.objective!r} wrongly: it leaves out the square"),
        (facts.averaged, "random forests wrongly: it does not divide by the number of trees"),
    )


EXTENSION = LightgbmAdapter()
EXPORTER = boosters.BoosterExporter("lightgbm", is_model, _exported)
