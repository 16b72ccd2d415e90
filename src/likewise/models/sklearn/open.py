"""scikit-learn models: live estimators, .joblib, .pkl, .pickle and .skops files, and the ways of asking them."""

from __future__ import annotations

import json
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from likewise import errors
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Adapter, InputSpec, Kind, Model, OutputSpec, Runner, Shape, Signature
from likewise.contracts.values import dataclass
from likewise.data.archives import require_one_archive
from likewise.data.files import named_once
from likewise.errors import LikewiseError, ModelError, UntrustedModelError, extra, one_line
from likewise.models import pickles, require_known
from likewise.models.arrays import dense, plain_labels
from likewise.models.sklearn.asking import apply_steps, is_multilabel, labels_from, rule_of
from likewise.models.sklearn.walk import innermost, outermost, passed_over
from likewise.registry import adapters

SUFFIXES = (".joblib", ".pkl", ".pickle", ".skops")
KEPT = ("FunctionNode", "JsonNode", "MethodNode", "ObjectNode", "OperatorFuncNode", "PartialNode", "TypeNode")
"""How skops builds what it does not call: by name, or made empty and filled. All else is called with its content."""

_COMPRESSED = (".gz", ".bz2", ".xz", ".lzma", ".z", ".lz4")


def read(path: str | os.PathLike[str], *, trusted: Sequence[str]) -> tuple[Any, str | None]:
    """What a file holds, and the version of scikit-learn that wrote it where the file says so."""
    name = os.fspath(path)
    with extra("sklearn", needed_for=f"reading {name}"):
        import sklearn  # noqa: F401
    if name.lower().endswith(".skops"):
        return _load_skops(name, trusted), None
    value, versions = pickles.read(path, trusted=trusted)
    return value, ", ".join(versions) or None


def _load_skops(name: str, trusted: Sequence[str]) -> Any:
    with extra("sklearn", needed_for=f"reading {name}"):
        import skops.io
    if not os.path.isfile(name):
        raise ModelError(f"there is no file {name}", remedy="Check the path of the model")
    try:
        with zipfile.ZipFile(name) as archive:
            require_one_archive(archive)
            if len(set(archive.namelist())) != len(archive.namelist()):
                raise ValueError("it holds two files of one name, and readers do not agree on which counts")
            schema = archive.read("schema.json")
        # Every entry once: it is named by how skops builds it, and what it is to be. Others are without a name.
        entries: set[tuple[str, ...]] = set()
        json.loads(schema, object_pairs_hook=lambda pairs: entries.add(_named(named_once(pairs))))
        if any(loader == "MethodNode" for loader, *_ in entries) and "*" not in trusted:
            # To take a method of an object may run code of it, which nobody has looked at yet.
            told = f"{name} takes a method of an object, which could run before anybody has looked at it"
            raise UntrustedModelError(told, remedy="Name a function instead, or allow everything with --trust '*'")
        built = [entry for loader, *entry in entries if loader and loader not in KEPT]
        called = [f"{module}.{kind}" for module, kind in built if not pickles.known_to_build(module, kind)]
        _refuse_untrusted(name, called, trusted)
        unknown = skops.io.get_untrusted_types(file=name)
        _refuse_untrusted(name, [entry for entry in unknown if not pickles.known(entry)], trusted)
        model = skops.io.load(name, trusted=unknown)
    except (LikewiseError, Warning):
        raise
    except Exception as error:
        raise ModelError(
            f"{name} cannot be loaded: it is damaged or not a .skops file ({one_line(error)})",
            remedy="Copy it again, or save the model again with skops.io.dump(model, path)",
        ) from error
    pickles.refuse_what_no_model_holds(name, model, trusted)
    return model


def _refuse_untrusted(name: str, references: Sequence[str], trusted: Sequence[str]) -> None:
    gate = pickles.Gate(trusted)
    if refused := [entry for entry in references if not gate.trusts(entry)]:
        raise pickles.refusal(name, refused)


def _named(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(entry.get(name) or "") for name in ("__loader__", "__module__", "__class__"))


def _require_estimator(value: Any, name: str | None = None) -> None:
    """Refuse what cannot answer: no estimator, or one that was never fitted. `name` is the file it was in."""
    holds = f"{name} holds" if name else "the model is"
    if not _is_estimator(value):
        raise ModelError(f"{holds} {_content(value)}, not a scikit-learn estimator", remedy=_way_out(value))
    from sklearn.base import BaseEstimator
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    searched = hasattr(value, "refit") and hasattr(value, "cv_results_") and not hasattr(value, "best_estimator_")
    if searched:
        raise ModelError(
            f"{holds} a {type(value).__name__} with refit=False, which has no model to ask",
            remedy="Search with refit=True, or save the estimator fitted with best_params_",
        )
    try:
        if isinstance(value, BaseEstimator):
            check_is_fitted(value)
    except NotFittedError as error:
        raise ModelError(
            f"{holds} a {type(value).__name__} that is not fitted", remedy="Call fit, then save the model again"
        ) from error


def _is_estimator(value: object) -> bool:
    """Does this behave like an estimator? Classes do not: they have to be made and fitted first."""
    return not isinstance(value, type) and hasattr(value, "fit") and hasattr(value, "get_params")


def _content(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, Mapping):
        return f"a dict with the keys {', '.join(repr(key) for key in list(value)[:10])}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    kind = type(value)
    return f"a {kind.__qualname__}" if kind.__module__ == "builtins" else f"a {kind.__module__}.{kind.__qualname__}"


def _way_out(value: Any) -> str:
    entries = (
        value.items() if isinstance(value, Mapping) else enumerate(value if isinstance(value, list | tuple) else ())
    )
    inside = [f"{key!r} ({type(entry).__name__})" for key, entry in list(entries)[:100] if _is_estimator(entry)]
    if inside:
        return f"Save the estimator itself: the entry {' or '.join(inside)}"
    if not isinstance(value, type) and (hasattr(value, "predict") or callable(value)):
        return "Give a Python function that calls it instead: `file.py:function`"
    return "Save the fitted estimator itself, with its preprocessing, as a Pipeline"


@dataclass(frozen=True, slots=True)
class View:
    """One way of asking: the method to call, and which part of a list of answers it is."""

    spec: OutputSpec
    method: str
    part: int | None = None

    @property
    def name(self) -> str:
        return self.spec.name


def inputs_of(model: Any) -> tuple[tuple[InputSpec, ...] | None, bool]:
    """The declared inputs, and whether they are columns of a table."""
    from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer

    first = outermost(model)
    names = getattr(model, "feature_names_in_", None)
    names = getattr(first, "feature_names_in_", None) if names is None else names
    if names is not None:
        columns = [str(name) for name in names]
        spare = passed_over(model, columns)
        return tuple(InputSpec(name, optional=name in spare) for name in columns), True
    if isinstance(first, CountVectorizer | HashingVectorizer):
        return (InputSpec("X", None, (None,)),), False
    count = getattr(model, "n_features_in_", None)
    count = getattr(first, "n_features_in_", None) if count is None else count
    return (None, False) if count is None else ((InputSpec("X", None, (None, int(count))),), False)


def views_of(model: Any, name: str) -> tuple[View, ...]:
    """Every way the model can be asked about new rows; an error if there is none."""
    views = _predicting_views(model, name)
    # A feature selector around a model can do both, and exporters take it for what it selects.
    selects = hasattr(model, "get_support") and hasattr(model, "transform") and views[0].method != "transform"
    return (*views, _view("selected", Kind.VALUE, "transform")) if selects else views


def _predicting_views(model: Any, name: str) -> tuple[View, ...]:
    kind = _type_of(model)
    if not hasattr(model, "predict"):
        if hasattr(model, "transform"):
            return (_view("value", Kind.VALUE, "transform"),)
        only = "has neither predict nor transform"
        if hasattr(model, "fit_predict"):
            only = "can only label the rows it was fitted on (fit_predict)"
        raise ModelError(
            f"{name}: {type(innermost(model)).__name__} {only}, so it cannot answer new rows",
            remedy="Compare a model with predict or transform, such as a classifier trained on its labels",
        )
    if kind == "regressor":
        return (_view("value", Kind.VALUE, "predict"),)
    if kind == "outlier_detector":
        label = _view("label", Kind.LABEL, "predict", shape=(None,), classes=(-1, 1))
        return (label, *_if_it_has(model, _view("scores", Kind.SCORE, "decision_function", shape=(None,))))
    if kind == "classifier" or hasattr(model, "classes_"):
        return _classifier_views(model)
    if hasattr(model, "predict_proba"):
        return _mixture_views(model)
    if kind == "clusterer":
        label = _view("label", Kind.LABEL, "predict", shape=(None,))
        return (label, *_if_it_has(model, _view("distances", Kind.DISTANCE, "transform")))
    return (_view("value", Kind.VALUE, "predict"),)


def _classifier_views(model: Any) -> tuple[View, ...]:
    classes = getattr(model, "classes_", None)
    if classes is None or is_multilabel(innermost(model), classes):
        return _multilabel_views(model, classes)
    labels = plain_labels(classes)
    count = len(labels)
    # Support vector machines may give a column for each pair of classes; with three classes only the name tells.
    in_pairs = getattr(innermost(model), "decision_function_shape", None) == "ovo" and count > 2
    scored = None if in_pairs else labels
    shape: Shape | None = (None,) if count == 2 else (None, count)
    decided_by_scores = hasattr(model, "decision_function") and scored and rule_of(innermost(model)) is None
    decided_by = "scores" if decided_by_scores else "probabilities"
    return (
        _view("label", Kind.LABEL, "predict", shape=(None,), classes=labels, decided_by=decided_by),
        *_if_it_has(
            model,
            _view("probabilities", Kind.PROBABILITY, "predict_proba", shape=(None, count), classes=labels),
            _view("scores", Kind.SCORE, "decision_function", shape=shape if scored else None, classes=scored),
        ),
    )


def _multilabel_views(model: Any, classes: Any) -> tuple[View, ...]:
    """Several labels a row: probabilities come as one array, or as a list with an array a label."""
    label = _view("label", Kind.LABEL, "predict")
    scores = _view("scores", Kind.SCORE, "decision_function")
    probabilities: tuple[View, ...] = (_view("probabilities", Kind.PROBABILITY, "predict_proba"),)
    apart = isinstance(classes, list) and type(innermost(model)).__name__ != "ClassifierChain"
    if apart and len({len(options) for options in classes}) > 1:
        about = [{"shape": (None, len(options)), "classes": plain_labels(options)} for options in classes]
        probabilities = tuple(
            _view(f"probabilities.{part}", Kind.PROBABILITY, "predict_proba", part=part, **told)
            for part, told in enumerate(about)
        )
    return (label, *_if_it_has(model, *probabilities, scores))


def _mixture_views(model: Any) -> tuple[View, ...]:
    weights = getattr(innermost(model), "weights_", None)
    labels = None if weights is None else tuple(range(len(weights)))
    shape = None if labels is None else (None, len(labels))
    return (
        _view("label", Kind.LABEL, "predict", shape=(None,), classes=labels),
        _view("probabilities", Kind.PROBABILITY, "predict_proba", shape=shape, classes=labels),
    )


def _view(name: str, kind: Kind, method: str, *, part: int | None = None, **about: Any) -> View:
    return View(OutputSpec(name, kind, view=True, **about), method, part)


def _if_it_has(model: Any, *views: View) -> tuple[View, ...]:
    return tuple(view for view in views if hasattr(model, view.method))


def _type_of(model: Any) -> str | None:
    """What the estimator says it is: `classifier`, `regressor`, `clusterer`, `outlier_detector` …"""
    try:
        from sklearn.utils import get_tags

        kind = get_tags(model).estimator_type
    except (ImportError, AttributeError):  # scikit-learn before 1.6, or a class that only looks like its own
        kind = getattr(model, "_estimator_type", None)
    return None if kind is None else str(kind)


def ask(model: Any, data: Any, views: Sequence[View]) -> dict[str, Array]:
    """The answers of the views to the rows, as arrays with a row each."""
    methods = dict.fromkeys(view.method for view in views)
    model, data = apply_steps(model, data)
    answers = {method: getattr(model, method)(data) for method in methods if method != "predict"}
    if "predict" in methods:
        labels = labels_from(model, answers.get("predict_proba"))
        answers["predict"] = model.predict(data) if labels is None else labels
    return {view.name: _array(answers[view.method], view) for view in views}


def _array(answer: Any, view: View) -> Array:
    import numpy as np

    if isinstance(answer, list | tuple):
        answer = answer[view.part] if view.part is not None else np.stack(answer, axis=1)
    if hasattr(answer, "toarray"):
        answer = dense(view.name, answer)
    array = answer.to_numpy() if hasattr(answer, "to_numpy") else np.asarray(answer)
    return _as_labels(array) if array.dtype.kind in "OUS" else np.asarray(array)


def _as_labels(array: Array) -> Array:
    """Text as objects of `str`; numbers that travelled as objects as numbers."""
    import numpy as np

    if array.dtype.kind == "U":
        return array.astype(object)
    if array.dtype.kind == "S":
        return np.char.decode(array).astype(object)
    values = array.ravel().tolist()
    kinds = set(map(type, values))
    if kinds == {str}:
        return array
    if kinds and all(issubclass(kind, bool | int | float | np.number | np.bool_) for kind in kinds):
        return np.array(values).reshape(array.shape)
    texts = np.empty(len(values), dtype=object)
    texts[:] = [None if value is None else str(value) for value in values]
    return texts.reshape(array.shape)


def _empty(view: View, classes: Any, seen: Mapping[str, Array]) -> Array:
    """The answer to no rows: scikit-learn refuses such calls, but its shape may be known."""
    import numpy as np

    if view.name in seen:
        return seen[view.name][:0]
    tail = None if view.spec.shape is None else view.spec.shape[1:]
    if tail is None or not all(isinstance(size, int) for size in tail):
        raise ModelError(
            f"the shape of the output {view.name!r} is not known before the model has answered a row",
            remedy="Give data with at least one row",
        )
    labels = view.method == "predict" and isinstance(classes, np.ndarray)
    blank = np.empty((0, *(size for size in tail if isinstance(size, int))), dtype=classes.dtype if labels else float)
    return blank.astype(object) if blank.dtype.kind in "US" else blank


class EstimatorRunner:
    """A fitted estimator that answers batches."""

    def __init__(self, estimator: Any, name: str, fitted_with: str | None = None) -> None:
        self.native = self._estimator = estimator
        self._name = name
        self._fitted_with = fitted_with
        self._views = views_of(estimator, name)
        self._seen: dict[str, Array] = {}
        inputs, table = inputs_of(estimator)
        self.signature = Signature(inputs, tuple(view.spec for view in self._views), table=table)

    @property
    def details(self) -> Mapping[str, Any]:
        from likewise.models.sklearn.inside import details

        return details(self._estimator, self.signature, self._fitted_with)

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        wanted = [view for view in self._views if outputs is None or view.name in outputs]
        if not len(batch):
            classes = getattr(self._estimator, "classes_", None)
            return {view.name: _empty(view, classes, self._seen) for view in wanted}
        try:
            answers = ask(self._estimator, self._data(batch), wanted)
        except LikewiseError:
            raise
        except Exception as error:
            raise ModelError(f"{self._name} did not answer: {one_line(error)}") from error
        self._seen |= {name: answer[:0] for name, answer in answers.items()}
        return answers

    def _data(self, batch: Batch) -> Any:
        if self.signature.inputs is not None and not self.signature.table:
            return batch.inputs["X"]
        only = next(iter(batch.inputs.values())) if len(batch.inputs) == 1 and not self.signature.table else None
        return only if only is not None and only.ndim > 1 else batch.inputs.frame()


class SklearnAdapter(Adapter):
    """All knowledge of scikit-learn."""

    framework = "sklearn"
    modules = ("pandas", "sklearn.pipeline")
    families = (
        *("sklearn.compose", "sklearn.ensemble", "sklearn.feature_extraction.text", "sklearn.linear_model"),
        *("sklearn.naive_bayes", "sklearn.neural_network", "sklearn.preprocessing", "sklearn.svm"),
        *("likewise.models.sklearn.inside", "likewise.models.sklearn.trees"),
    )

    def claims(self, target: object) -> bool:
        if isinstance(target, str | os.PathLike):
            name = str(target).lower()
            for suffix in _COMPRESSED:
                name = name.removesuffix(suffix)
            return name.endswith(SUFFIXES)
        if "sklearn" not in sys.modules or isinstance(target, type):
            return False
        from sklearn.base import BaseEstimator

        return isinstance(target, BaseEstimator) and _better_adapter(target) is None

    @contextmanager
    def open(self, model: Model) -> Iterator[Runner]:
        target, version = model.target, None
        path = os.fspath(target) if isinstance(target, str | os.PathLike) else None
        if path is not None:
            target, version = read(path, trusted=tuple(model.options.get("trusted", ())))
        _stay_in_process()
        if (better := _better_adapter(target)) is not None:
            with better.open(replace(model, framework=better.framework, target=target)) as runner:
                yield runner
            return
        _require_estimator(target, path)
        require_known(model)
        yield EstimatorRunner(target, model.name, version)


def _stay_in_process() -> None:
    """Where no program may be started, what a model does in parallel is done by threads, and cores are not counted."""
    if errors.confined and "joblib" in sys.modules:
        from joblib import parallel
        from joblib.externals.loky.backend import context

        parallel.DEFAULT_BACKEND = parallel.DEFAULT_PROCESS_BACKEND = parallel.DEFAULT_THREAD_BACKEND
        context.physical_cores_cache = os.cpu_count() or 1


def _better_adapter(target: object) -> Adapter | None:
    """The adapter of a framework whose models look like scikit-learn's, or are pickled like them."""
    if isinstance(target, str | os.PathLike | bytes) or type(target).__module__.startswith("sklearn."):
        return None
    others = [found for found in adapters() if found.framework not in ("python", SklearnAdapter.framework)]
    return next((found for found in others if found.claims(target)), None)


EXTENSION = SklearnAdapter()
