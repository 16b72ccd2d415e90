"""XGBoost models: live boosters and scikit-learn wrappers, .json, .ubj and other files of save_model.

To ONNX they go through onnxmltools, which is handed a copy of exactly the trees that `predict` uses, without feature
names and inside the wrapper whose conversion is right for the objective. What it is known to get wrong is refused:
each entry of `WRONG` was seen to give other answers than the model.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array, Batch
from likewise.contracts.models import Adapter, ExportRequest, Kind, Model, OutputSpec, Runner, Signature
from likewise.contracts.values import dataclass
from likewise.errors import ModelError, UsageError, extra, one_line
from likewise.models import boosters, require_known
from likewise.models.boosters import BoosterRunner, classifier_outputs, derives_from, output

if TYPE_CHECKING:
    from onnx import ModelProto


JSON = re.compile(rb'\s*\{\s*("version"\s*:\s*\[[\d,\s]*\]\s*,\s*)?"learner"\s*:')

BINARY_JSON = re.compile(rb"\{L.{8}(learner|version)", re.S)

OPTIONS = ("best_iteration", "missing", "threads")


def is_model(target: object) -> bool:
    """Is this a booster of XGBoost, or one of its scikit-learn wrappers?"""
    return derives_from(target, "xgboost", ("XGBModel", "Booster"))


def is_wrapper(target: object) -> bool:
    """Is this one of the scikit-learn wrappers, also a subclass of one?"""
    return derives_from(target, "xgboost", ("XGBModel",))


def booster_of(model: Any) -> Any:
    """The booster in a wrapper, or the booster itself."""
    return model.get_booster() if is_wrapper(model) else model


@dataclass(frozen=True, slots=True)
class Facts:
    """`classes` is 0 unless the objective has classes; `best_round` is set where training stopped early.

    `threads` is 0 where XGBoost takes as many as there are.
    """

    objective: str
    kind: str
    classes: int
    targets: int
    base_score: tuple[float, ...]
    parallel_trees: int
    rounds: int
    best_round: int | None
    features: int
    names: tuple[str, ...] | None
    categorical: tuple[str, ...]
    threads: int

    @property
    def multilabel(self) -> bool:
        return self.targets > 1 and self.objective.startswith("binary:")


def facts_of(booster: Any) -> Facts:
    """Read from the configuration the booster carries, as its parameters may say something else."""
    learner = json.loads(booster.save_config())["learner"]
    shape, trees = learner["learner_model_param"], learner["gradient_booster"]
    trees = trees.get("gbtree", trees)
    objective = learner["objective"]["name"]
    classes = int(shape["num_class"])
    base = json.loads(shape["base_score"])
    best = booster.attr("best_iteration")
    names, types = booster.feature_names, booster.feature_types or ()
    return Facts(
        objective=objective,
        kind=learner["gradient_booster"]["name"],
        classes=2 if classes == 0 and objective.startswith("binary:") else classes,
        targets=int(shape.get("num_target", 1)),
        base_score=tuple(base) if isinstance(base, list) else (float(base),),
        parallel_trees=int(trees.get("gbtree_model_param", {}).get("num_parallel_tree", 1)),
        rounds=booster.num_boosted_rounds(),
        best_round=None if best is None else int(best),
        features=booster.num_features(),
        names=None if names is None else tuple(map(str, names)),
        categorical=tuple(
            str(names[index] if names else index) for index, kind in enumerate(types) if str(kind).startswith("c")
        ),
        threads=int(learner.get("generic_param", {}).get("nthread", 0)),
    )


def categories_of(booster: Any) -> Mapping[str, Sequence[Any]]:
    """The categories of each column that was trained from a DataFrame; models from before XGBoost 3.1 keep none."""
    if not any(str(kind).startswith("c") for kind in booster.feature_types or ()):
        return {}  # not asked, as a linear booster refuses the question
    if not hasattr(booster, "get_categories"):
        return {}
    kept = booster.get_categories(export_to_arrow=True).to_arrow() or ()
    return {str(name): values.to_pylist() for name, values in kept if values is not None}


def reason(error: Exception) -> str:
    """What XGBoost said, without the place in its source and the addresses of its stack."""
    text = re.sub(r"^\w+: \[[\d:]+\] \S+:\d+:\s*", "", one_line(error, limit=10_000).partition("Stack trace:")[0])
    return text.strip()[:500].rstrip(".")


class _Answers(boosters.Answers):
    def __init__(self, model: Any, data: Any, facts: Facts) -> None:
        super().__init__(model, data, output_margin=True)
        self._facts = facts


class _OfWrapper(_Answers):
    @cached_property
    def probabilities(self) -> Array:
        return self._model.predict_proba(self._data)  # type: ignore[no-any-return]

    @cached_property
    def label(self) -> Array:
        import numpy as np

        # How the wrapper's own predict decides, without a second pass over the trees.
        plain = type(self._model).__module__.startswith("xgboost.") and not self._facts.multilabel
        if plain and self._facts.objective == "binary:logistic":
            return np.asarray(self.probabilities[:, 1] > 0.5, dtype=np.int64)
        if plain and self._facts.objective == "multi:softprob" and self._facts.classes > 2:
            return np.asarray(np.argmax(self.probabilities, axis=1))
        return self.value


class _OfBooster(_Answers):
    @cached_property
    def probabilities(self) -> Array:
        if self._facts.objective != "multi:softmax":
            return self.value
        from scipy.special import softmax

        return softmax(self.scores, axis=1)  # type: ignore[no-any-return]

    @cached_property
    def label(self) -> Array:
        import numpy as np

        if self._facts.objective in ("multi:softmax", "binary:hinge"):
            return self.value.astype(np.int64)
        if self.value.ndim == 1 or self._facts.multilabel:
            return np.asarray(self.value > 0.5, dtype=np.int64)
        return np.asarray(np.argmax(self.value, axis=1))


def _outputs_of_wrapper(model: Any, facts: Facts) -> tuple[OutputSpec, ...]:
    if derives_from(model, "xgboost", ("XGBRankerMixIn", "XGBRanker")):
        return (output("scores", Kind.SCORE, dtype="float32"),)
    if not hasattr(model, "predict_proba"):
        return (_value(facts),)
    if callable(model.objective):  # the wrapper knows no classes then, and gives what the trees add up to
        return (output("scores", Kind.SCORE, facts.classes or None, dtype="float32"),)
    label, probabilities, scores = _classifier_outputs(facts, columns=facts.classes)
    # Its predict_proba of such a model gives margins.
    return (label, scores) if facts.objective == "binary:logitraw" else (label, probabilities, scores)


def _outputs_of_booster(facts: Facts) -> tuple[OutputSpec, ...]:
    if facts.objective.startswith("rank:") or facts.objective == "binary:logitraw":
        return (output("scores", Kind.SCORE, facts.targets if facts.targets > 1 else None, dtype="float32"),)
    if not facts.classes:
        return (_value(facts),)
    # Of two classes a booster gives the second only.
    return _classifier_outputs(facts, columns=facts.classes if facts.objective.startswith("multi:") else None)


def _classifier_outputs(facts: Facts, *, columns: int | None) -> tuple[OutputSpec, OutputSpec, OutputSpec]:
    several = facts.targets
    if facts.multilabel:
        return classifier_outputs(None, labels=several, probabilities=several, scores=several, dtype="float32")
    margins = facts.classes if facts.objective.startswith("multi:") else None
    return classifier_outputs(range(facts.classes), probabilities=columns, scores=margins, dtype="float32")


def _value(facts: Facts) -> OutputSpec:
    return output("value", Kind.VALUE, facts.targets if facts.targets > 1 else None, dtype="float32")


class XgboostAdapter(Adapter):
    """All knowledge of XGBoost. Options: `threads`; `best_iteration` and `missing`, for boosters that do not say."""

    framework = "xgboost"
    modules = ("xgboost",)

    def claims(self, target: object) -> bool:
        return (
            boosters.named(target, (".ubj", ".xgb"))
            or boosters.begins(target, (".json",), JSON)
            or (boosters.begins(target, (".model", ".bin"), BINARY_JSON) and os.path.exists(str(target)))
            or is_model(target)
        )

    @contextmanager
    def open(self, model: Model) -> Iterator[Runner]:
        require_known(model, OPTIONS)
        yield _opened(boosters.loaded(model, _load), model)


def _load(path: str | os.PathLike[str]) -> Any:
    """The booster in a file, inside the wrapper that saved it if one did."""
    content = boosters.content(path)
    with extra("boost", needed_for=f"reading {os.fspath(path)}"):
        import xgboost
    if not (JSON.match(content) or BINARY_JSON.match(content)):
        raise boosters.unreadable(path, "XGBoost", "it does not begin like one, as JSON or UBJSON")
    # A file of half its length makes XGBoost ask for memory that nobody has.
    if content.rstrip()[-1:] != b"}":
        raise boosters.unreadable(path, "XGBoost", "it ends early")
    try:
        if JSON.match(content):
            # XGBoost's own parser reads beyond what is damaged, and takes the process with it.
            json.loads(content)
        booster = xgboost.Booster(model_file=bytearray(content))
        saved_by = json.loads(booster.attr("scikit_learn") or "{}").get("_estimator_type")
        wrappers = {"classifier": "XGBClassifier", "regressor": "XGBRegressor", "ranker": "XGBRanker"}
        if saved_by not in wrappers:
            return booster
        with extra("sklearn", needed_for=f"{os.fspath(path)}, saved by {wrappers[saved_by]},"):
            import sklearn  # noqa: F401
        wrapper = getattr(xgboost, wrappers[saved_by])(enable_categorical=True)
        wrapper.load_model(bytearray(content))
        return wrapper
    except ModelError:
        raise
    except Exception as error:
        raise boosters.unreadable(path, "XGBoost", reason(error)) from error


def _opened(target: Any, described: Model) -> Runner:
    import xgboost

    wrapper = target if is_wrapper(target) else None
    booster = target
    threads = _threads(described)
    if wrapper is not None:
        from sklearn.exceptions import NotFittedError

        try:
            booster = wrapper.get_booster()
        except NotFittedError as error:
            raise boosters.unfitted(described.name) from error
        if threads is not None:
            wrapper = copy.deepcopy(wrapper)
            wrapper.n_jobs, booster = threads, wrapper.get_booster()
        if "missing" in described.options:
            wrapper = copy.copy(wrapper)
            wrapper.missing = _missing(described)
    else:
        if str(described.options.get("best_iteration", "")).lower() in ("1", "true", "yes"):
            best = facts_of(booster).best_round
            if best is None:
                raise ModelError(f"{described.name} has no best iteration: its training did not stop early")
            booster = booster[: best + 1]
        if threads is not None:
            booster = copy.deepcopy(booster)
    if threads is not None:
        booster.set_param({"nthread": threads})
    facts = facts_of(booster)
    inputs, table = boosters.inputs_of(facts.names, facts.features, coded=categories_of(booster))
    outputs = _outputs_of_booster(facts) if wrapper is None else _outputs_of_wrapper(wrapper, facts)
    signature = Signature(inputs, outputs, table=table)
    data = _categorical(booster, facts, signature)
    types = None if categories_of(booster) else booster.feature_types

    def ask(batch: Batch) -> Any:
        if wrapper is not None:
            return _OfWrapper(wrapper, data(batch), facts)
        matrix = xgboost.DMatrix(
            data(batch),
            missing=_missing(described),
            feature_types=types,
            enable_categorical=bool(facts.categorical),
            nthread=threads,
        )
        return _OfBooster(booster, matrix, facts)

    used = facts.rounds if wrapper is None or facts.best_round is None else facts.best_round + 1
    details = _details(booster, facts, wrapper, used=used)
    native = booster if wrapper is None else wrapper
    return BoosterRunner(native, signature, details, name=described.name, ask=ask, reason=reason)


def _categorical(booster: Any, facts: Facts, signature: Signature) -> Any:
    """How a batch becomes data: with categories where the model has them."""
    import pandas as pd

    known = categories_of(booster)

    def data(batch: Batch) -> Any:
        found = boosters.data_of(batch, signature)
        if not signature.table or not facts.categorical:
            return found
        if known:
            return boosters.with_categories(found, known, refuse_unseen=True)
        for name in facts.categorical:
            kind = found[name].dtype
            if not isinstance(kind, pd.CategoricalDtype) and not pd.api.types.is_numeric_dtype(kind):
                raise ModelError(
                    f"column {name!r} is categorical, and the model does not keep the names of its categories",
                    remedy="Give its codes, or train the model again with XGBoost 3.1 or later",
                )
        return found

    return data


def _missing(described: Model) -> float:
    return float(described.options.get("missing", "nan"))


def _threads(described: Model) -> int | None:
    """The threads asked for; None where the model is to use its own number of them."""
    given = described.options.get("threads")
    try:
        return None if given is None else int(given)
    except ValueError as error:
        raise UsageError(f"threads is {given!r}", remedy="Give a number, such as 1") from error


def _details(booster: Any, facts: Facts, wrapper: Any, *, used: int) -> Mapping[str, Any]:
    import xgboost

    details: dict[str, Any] = {
        "xgboost": xgboost.__version__,
        "model": type(wrapper if wrapper is not None else booster).__name__,
        "objective": facts.objective,
        "booster": facts.kind,
        "rounds": facts.rounds,
        "rounds_used": used,
        "threads": facts.threads,
        "features": facts.features,
        "categorical_features": list(facts.categorical),
        "base_score": list(facts.base_score),
    }
    if facts.best_round is not None:
        details["best_iteration"] = facts.best_round
        if used == facts.rounds > facts.best_round + 1:
            details["warnings"] = [
                f"training stopped early at round {facts.best_round}, and Booster.predict takes all {facts.rounds} "
                "rounds unless told otherwise: so does this check (option best_iteration=true takes the best)"
            ]
    if wrapper is not None:
        details["missing"] = str(wrapper.missing)
    return details


CLASSIFIED = ("binary:logistic", "binary:hinge", "multi:softprob", "multi:softmax")

WRONG = {
    "reg:logistic": "leaves out the sigmoid",
    "survival:cox": "leaves out the exponent",
    "survival:aft": "leaves out the exponent",
}
"""Objectives whose link function onnxmltools 1.16 does not convert."""


def _exported(request: ExportRequest) -> ModelProto:
    with extra("boost", needed_for="the export of XGBoost models"):
        import onnxmltools  # noqa: F401
        import xgboost
    wrapper = request.model if is_wrapper(request.model) else None
    booster = booster_of(request.model)
    facts = facts_of(booster)
    _require_convertible(wrapper, booster, facts, request)
    if wrapper is not None and facts.best_round is not None:
        booster = booster[: facts.best_round + 1]

    def clean() -> Any:
        made = (xgboost.XGBClassifier if facts.objective in CLASSIFIED else xgboost.XGBRegressor)()
        made.load_model(_anonymous(booster, facts))
        return made

    return boosters.to_onnx("xgboost", clean, facts.features, request, reason=reason)


def _anonymous(booster: Any, facts: Facts) -> bytearray:
    """A copy as the converter reads it: features by position, without early stopping, softmax as probabilities."""
    booster = booster.copy()
    types = booster.feature_types
    booster.feature_names = None
    # A dump writes no threshold for a boolean and a rounded one for an integer.
    booster.feature_types = types and ["c" if str(kind).startswith("c") else "float" for kind in types]
    booster.set_attr(best_iteration=None, best_score=None, scikit_learn=None)
    if facts.objective == "multi:softmax":
        booster.set_param({"objective": "multi:softprob"})
    raw: bytearray = booster.save_raw("json")
    return raw


def _require_convertible(wrapper: Any, booster: Any, facts: Facts, request: ExportRequest) -> None:
    """Refuse what the converter is known to get wrong, or to give up on without a reason."""
    if request.double:
        raise ModelError("XGBoost computes in float32 itself, so there is no float64 export", remedy="Leave out double")
    if request.zipmap:
        raise ModelError("onnxmltools writes no dictionaries for XGBoost models", remedy="Leave out zipmap")
    if facts.kind != "gbtree":
        what = "its trees carry weights" if facts.kind == "dart" else "it has no trees"
        raise ModelError(f"onnxmltools cannot convert the booster {facts.kind!r}: {what}", remedy="Train a gbtree")
    if facts.objective in WRONG:
        raise ModelError(
            f"onnxmltools converts the objective {facts.objective!r} wrongly: it {WRONG[facts.objective]}",
            remedy="Serve the model with XGBoost",
        )
    if wrapper is not None and (facts.objective == "binary:logitraw" or callable(wrapper.objective)):
        raise ModelError(
            "onnxmltools cannot convert a classifier that gives margins",
            remedy="Export its booster: model.get_booster()",
        )
    if facts.targets > 1:
        raise ModelError(
            f"onnxmltools converts a model with {facts.targets} targets wrongly: it adds all trees to the first",
            remedy="Export one model per target",
        )
    if facts.objective.startswith("multi:") and (facts.classes == 2 or facts.parallel_trees > 1):
        why = "two classes" if facts.classes == 2 else f"{facts.parallel_trees} parallel trees"
        raise ModelError(
            f"onnxmltools converts {facts.objective!r} with {why} wrongly: it gives trees to other classes",
            remedy="Train with binary:logistic" if facts.classes == 2 else "Train with num_parallel_tree=1",
        )
    missing = getattr(wrapper, "missing", None)
    if missing is not None and missing == missing:
        raise ModelError(
            f"the model takes {missing} for a missing value, and ONNX knows only NaN",
            remedy="Replace it by NaN in the data, and train with the default",
        )
    categories = categories_of(booster)
    for name, known in categories.items():
        boosters.require_codes(repr(name), known)
    if facts.categorical and not categories and facts.names is not None:
        raise ModelError(
            f"feature {facts.categorical[0]!r} is categorical, and the model does not keep the names of its categories",
            remedy="Encode it before the model, and train on the codes",
        )


EXTENSION = XgboostAdapter()
EXPORTER = boosters.BoosterExporter("xgboost", is_model, _exported)
