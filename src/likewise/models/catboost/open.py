"""CatBoost models: live ones, .cbm files, and .json files of save_model(format="json")."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from likewise.contracts.data import Array
from likewise.contracts.models import Adapter, Kind, Label, Model, OutputSpec, Runner, Signature
from likewise.errors import ModelError, extra, one_line
from likewise.models import boosters, require_known
from likewise.models.boosters import BoosterRunner, classifier_outputs, derives_from, dtype_of, output

JSON = re.compile(rb'\s*\{\s*"(ctr_data|features_info)"\s*:')

MAGIC = b"CBM1"


def is_model(target: object) -> bool:
    """Is this a model of CatBoost?"""
    return derives_from(target, "catboost", ("CatBoost",))


@dataclass(frozen=True, slots=True)
class Facts:
    """`loss` is the training's loss without its parameters; `columns` is how many numbers a row has, None for one."""

    loss: str
    trees: int
    best_tree: int | None
    features: int
    names: tuple[str, ...] | None
    categorical: tuple[str, ...]
    text: tuple[str, ...]
    embedding: tuple[str, ...]
    scale: float
    bias: tuple[float, ...]

    @property
    def multilabel(self) -> bool:
        return self.loss in ("MultiLogloss", "MultiCrossEntropy")

    @property
    def columns(self) -> int | None:
        return len(self.bias) if len(self.bias) > 1 else None


def facts_of(model: Any) -> Facts:
    """Read from the model; one that was loaded from a file may know less about its training."""
    names = tuple(model.feature_names_)
    scale, bias = model.get_scale_and_bias()
    return Facts(
        loss=_loss_of(model),
        trees=model.tree_count_,
        best_tree=model.best_iteration_,
        features=len(names),
        # What CatBoost writes where the training data had no names.
        names=None if names == tuple(map(str, range(len(names)))) else names,
        categorical=tuple(names[index] for index in model.get_cat_feature_indices()),
        text=tuple(names[index] for index in model.get_text_feature_indices()),
        embedding=tuple(names[index] for index in model.get_embedding_feature_indices()),
        scale=float(scale),
        bias=tuple(bias) if isinstance(bias, list | tuple) else (float(bias),),
    )


def _loss_of(model: Any) -> str:
    """The loss function, as the model itself keeps it."""
    return str(model.get_all_params().get("loss_function", "")).partition(":")[0]


def reason(error: Exception) -> str:
    """What CatBoost said, without the place in its source."""
    return re.sub(r"^\w+: (\S+\.(cpp|h|pyx):\d+: )?", "", one_line(error)).rstrip(".")


class CatboostAdapter(Adapter):
    """All knowledge of CatBoost."""

    framework = "catboost"
    modules = ("catboost",)

    def claims(self, target: object) -> bool:
        return boosters.named(target, (".cbm",)) or boosters.begins(target, (".json",), JSON) or is_model(target)

    @contextmanager
    def open(self, model: Model) -> Iterator[Runner]:
        require_known(model)
        target = boosters.loaded(model, _load)
        if not target.is_fitted():
            raise ModelError(f"{model.name} is not fitted", remedy="Call fit, then save the model again")
        facts = facts_of(target)
        inputs, table = boosters.inputs_of(facts.names, facts.features)
        signature = Signature(inputs, _outputs(target, facts), table=table)
        yield BoosterRunner(
            target,
            signature,
            _details(target, facts),
            name=model.name,
            ask=lambda batch: _Answers(target, boosters.data_of(batch, signature), facts),
            reason=reason,
        )


class _Answers:
    """What a model says to the same rows, each question asked once."""

    def __init__(self, model: Any, data: Any, facts: Facts) -> None:
        self._model, self._facts = model, facts
        self._data = _pool(data, facts)

    def _ask(self, kind: str) -> Array:
        from catboost import CatBoost

        # The method of the base class: those of the wrappers take other arguments.
        return CatBoost.predict(self._model, self._data, prediction_type=kind)  # type: ignore[no-any-return]

    @cached_property
    def value(self) -> Array:
        return self._model.predict(self._data)  # type: ignore[no-any-return]

    @cached_property
    def scores(self) -> Array:
        return self._ask("RawFormulaVal")

    @cached_property
    def probabilities(self) -> Array:
        return self._ask("Probability")

    @cached_property
    def label(self) -> Array:
        found = self._ask("Class")
        return found if self._facts.multilabel else found.reshape(len(found))


def _pool(data: Any, facts: Facts) -> Any:
    """The rows, read once for all questions."""
    from catboost import Pool

    return Pool(
        data,
        cat_features=_places(facts.categorical, facts),
        text_features=_places(facts.text, facts),
        embedding_features=_places(facts.embedding, facts),
    )


def _places(names: tuple[str, ...], facts: Facts) -> list[Any] | None:
    """Features as CatBoost takes them: by name, or by position in an array."""
    return None if not names else list(names) if facts.names else [int(name) for name in names]


def _load(path: str | os.PathLike[str]) -> Any:
    """The model in a file, as the class that its loss belongs to."""
    content = boosters.content(path)
    with extra("boost", needed_for=f"reading {os.fspath(path)}"):
        import catboost
    written = "cbm" if content.startswith(MAGIC) else "json"
    if written == "json":
        # CatBoost loads a JSON file that was cut without a word, with the trees it found.
        try:
            json.loads(content)
        except ValueError as error:
            raise boosters.unreadable(path, "CatBoost", "it is neither .cbm nor whole JSON") from error
    try:
        model = catboost.CatBoost().load_model(os.fspath(path), format=written)
        loss = _loss_of(model)
        ranks = catboost.CatBoost._is_ranking_objective(loss)
        other = catboost.CatBoostRanker if ranks else catboost.CatBoostRegressor
        kind = catboost.CatBoostClassifier if len(model.classes_) else other
        return kind().load_model(os.fspath(path), format=written)
    except Exception as error:
        raise boosters.unreadable(path, "CatBoost", reason(error)) from error


def _outputs(model: Any, facts: Facts) -> tuple[OutputSpec, ...]:
    if derives_from(model, "catboost", ("CatBoostRanker",)):
        return (output("scores", Kind.SCORE, facts.columns, dtype="float64"),)
    classes = model.classes_
    if not len(classes):
        return (output("value", Kind.VALUE, facts.columns, dtype="float64"),)
    if facts.multilabel:
        several = facts.columns
        return classifier_outputs(None, labels=several, probabilities=several, scores=several, dtype="float64")
    labels: list[Label] = classes.tolist()
    return classifier_outputs(
        labels, label=dtype_of(classes), probabilities=len(labels), scores=facts.columns, dtype="float64"
    )


def _details(model: Any, facts: Facts) -> Mapping[str, Any]:
    import catboost

    details: dict[str, Any] = {
        "catboost": catboost.__version__,
        "model": type(model).__name__,
        "objective": facts.loss,
        "trees": facts.trees,
        "best_iteration": facts.best_tree,
        "features": facts.features,
        "categorical_features": list(facts.categorical),
        "text_features": list(facts.text),
        "embedding_features": list(facts.embedding),
        "scale": facts.scale,
        "bias": list(facts.bias),
    }
    if threshold := dict(model.get_metadata()).get("binclass_probability_threshold"):
        details["probability_threshold"] = float(threshold)
    return details


EXTENSION = CatboostAdapter()
