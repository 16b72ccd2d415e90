"""scikit-learn models: live estimators, .joblib, .pkl, .pickle and .skops files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Adapter, Model, Runner, Signature
from likewise.discovery import extensions
from likewise.errors import LikewiseError, ModelError, one_line
from likewise.estimators import answering, describing, loading
from likewise.estimators.views import inputs_of, views_of
from likewise.model_options import require_known


class EstimatorRunner:
    """A fitted estimator that answers batches."""

    def __init__(self, estimator: Any, name: str, fitted_with: str | None = None) -> None:
        self.native = self._estimator = estimator
        self._name = name
        self._fitted_with = fitted_with
        self._views = views_of(estimator, name)
        self._seen: dict[str, Array] = {}
        inputs, table = inputs_of(estimator)
        self._signature = Signature(inputs, tuple(view.spec for view in self._views), table=table)

    @property
    def signature(self) -> Signature:
        return self._signature

    @property
    def details(self) -> Mapping[str, Any]:
        return describing.details(self._estimator, self._fitted_with)

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        wanted = [view for view in self._views if outputs is None or view.name in outputs]
        if not len(batch):
            classes = getattr(self._estimator, "classes_", None)
            return {view.name: answering.empty(view, classes, self._seen) for view in wanted}
        try:
            answers = answering.ask(self._estimator, self._data(batch), wanted)
        except LikewiseError:
            raise
        except Exception as error:
            raise ModelError(f"{self._name} did not answer: {one_line(error)}") from error
        self._seen |= {name: answer[:0] for name, answer in answers.items()}
        return answers

    def _data(self, batch: Batch) -> Any:
        if self._signature.inputs is not None and not self._signature.table:
            return batch.inputs["X"]
        only = next(iter(batch.inputs.values())) if len(batch.inputs) == 1 and not self._signature.table else None
        return only if only is not None and only.ndim > 1 else batch.inputs.frame()


class SklearnAdapter:
    """All knowledge of scikit-learn."""

    framework = "sklearn"
    modules = ("pandas", "sklearn.pipeline")

    def claims(self, target: object) -> bool:
        if isinstance(target, str | os.PathLike):
            return loading.names_a_model(str(target))
        if "sklearn" not in sys.modules or isinstance(target, type):
            return False
        from sklearn.base import BaseEstimator

        return isinstance(target, BaseEstimator) and _better_adapter(target) is None

    @contextmanager
    def open(self, model: Model) -> Iterator[Runner]:
        target, version = model.target, None
        path = os.fspath(target) if isinstance(target, str | os.PathLike) else None
        if path is not None:
            target, version = loading.read(path, trusted=tuple(model.options.get("trusted", ())))
        if (better := _better_adapter(target)) is not None:
            with better.open(replace(model, framework=better.framework, target=target)) as runner:
                yield runner
            return
        loading.require_estimator(target, path)
        require_known(model)
        yield EstimatorRunner(target, model.name, version)


def _better_adapter(target: object) -> Adapter | None:
    """The adapter of a framework whose models look like scikit-learn's, or are pickled like them."""
    if isinstance(target, str | os.PathLike | bytes) or type(target).__module__.startswith("sklearn."):
        return None
    others = [found for found in extensions("adapters") if found.framework not in ("python", SklearnAdapter.framework)]
    return next((found for found in others if found.claims(target)), None)


EXTENSION = SklearnAdapter()
