"""CatBoost models: live ones, .cbm files, and .json files of save_model(format="json")."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from likewise.boosters import cat, files, tables
from likewise.boosters.running import BoosterRunner, derives_from, output
from likewise.contracts.data import Array
from likewise.contracts.models import Kind, Label, Model, OutputSpec, Runner, Signature
from likewise.errors import ModelError, extra
from likewise.model_options import require_known

JSON = re.compile(rb'\s*\{\s*"(ctr_data|features_info)"\s*:')
MAGIC = b"CBM1"


class CatboostAdapter:
    """All knowledge of CatBoost."""

    framework = "catboost"
    modules = ("catboost",)

    def claims(self, target: object) -> bool:
        return (
            files.named(target, (".cbm",))
            or files.begins(target, (".json",), JSON)
            or derives_from(target, "catboost", cat.MODELS)
        )

    @contextmanager
    def open(self, model: Model) -> Iterator[Runner]:
        require_known(model)
        target = model.target
        if isinstance(target, str | os.PathLike):
            target = _load(target)
        if not target.is_fitted():
            raise ModelError(f"{model.name} is not fitted", remedy="Call fit, then save the model again")
        facts = cat.facts_of(target)
        inputs, table = tables.inputs_of(facts.names, facts.features)
        signature = Signature(inputs, _outputs(target, facts), table=table)
        yield BoosterRunner(
            target,
            signature,
            _details(target, facts),
            name=model.name,
            ask=lambda batch: _Answers(target, tables.data_of(batch, signature), facts),
            reason=cat.reason,
        )


class _Answers:
    """What a model says to the same rows, each question asked once."""

    def __init__(self, model: Any, data: Any, facts: cat.Facts) -> None:
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


def _pool(data: Any, facts: cat.Facts) -> Any:
    """The rows, read once for all questions."""
    from catboost import Pool

    return Pool(
        data,
        cat_features=_places(facts.categorical, facts),
        text_features=_places(facts.text, facts),
        embedding_features=_places(facts.embedding, facts),
    )


def _places(names: tuple[str, ...], facts: cat.Facts) -> list[Any] | None:
    """Features as CatBoost takes them: by name, or by position in an array."""
    return None if not names else list(names) if facts.names else [int(name) for name in names]


def _load(path: str | os.PathLike[str]) -> Any:
    """The model in a file, as the class that its loss belongs to."""
    content = files.content(path)
    with extra("boost", needed_for=f"reading {os.fspath(path)}"):
        import catboost
    written = "cbm" if content.startswith(MAGIC) else "json"
    if written == "json":
        # CatBoost loads a JSON file that was cut without a word, with the trees it found.
        try:
            json.loads(content)
        except ValueError as error:
            raise files.unreadable(path, "CatBoost", "it is neither .cbm nor whole JSON") from error
    try:
        model = catboost.CatBoost().load_model(os.fspath(path), format=written)
        loss = cat.loss_of(model)
        ranks = catboost.CatBoost._is_ranking_objective(loss)
        other = catboost.CatBoostRanker if ranks else catboost.CatBoostRegressor
        kind = catboost.CatBoostClassifier if len(model.classes_) else other
        return kind().load_model(os.fspath(path), format=written)
    except Exception as error:
        raise files.unreadable(path, "CatBoost", cat.reason(error)) from error


def _outputs(model: Any, facts: cat.Facts) -> tuple[OutputSpec, ...]:
    if derives_from(model, "catboost", ("CatBoostRanker",)):
        return (output("scores", Kind.SCORE, facts.columns, dtype="float64"),)
    classes = model.classes_
    if not len(classes):
        return (output("value", Kind.VALUE, facts.columns, dtype="float64"),)
    if facts.multilabel:
        return (
            output("label", Kind.LABEL, facts.columns, dtype="int64"),
            output("probabilities", Kind.PROBABILITY, facts.columns, dtype="float64"),
            output("scores", Kind.SCORE, facts.columns, dtype="float64"),
        )
    labels: list[Label] = classes.tolist()
    dtype = "string" if classes.dtype.kind in "OUS" else str(classes.dtype)
    return (
        output("label", Kind.LABEL, dtype=dtype, classes=labels, decided_by="probabilities"),
        output("probabilities", Kind.PROBABILITY, len(labels), dtype="float64", classes=labels),
        output("scores", Kind.SCORE, facts.columns, dtype="float64", classes=labels),
    )


def _details(model: Any, facts: cat.Facts) -> Mapping[str, Any]:
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
