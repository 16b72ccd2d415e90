"""XGBoost models: live boosters and scikit-learn wrappers, .json, .ubj and other files of save_model.

To ONNX they go through onnxmltools, which is handed a copy of exactly the trees that `predict` uses, without feature
names and inside the wrapper whose conversion is right for the objective. What it is known to get wrong is refused:
each entry of `WRONG` was seen to give other answers than the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from functools import cached_property
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array, Batch
from likewise.contracts.models import ExportRequest, Kind, Model, OutputSpec, Runner
from likewise.contracts.values import dataclass
from likewise.data.files import named_once
from likewise.errors import ModelError, UsageError, extra, one_line
from likewise.models import boosters, ubjson
from likewise.models.boosters import BoosterRunner, classifier_outputs, output

if TYPE_CHECKING:
    from onnx import ModelProto

    from likewise.models.trees.ensemble import Ensemble, Tree


JSON = re.compile(rb'\s*\{\s*("version"\s*:\s*\[[\d,\s]*\]\s*,\s*)?"learner"\s*:')
BINARY_JSON = re.compile(rb"\{L.{8}(learner|version)", re.S)

is_model = boosters.instances_of("xgboost", "XGBModel", "Booster")
"""Is this a model of XGBoost: a booster, or one of its scikit-learn wrappers?"""

is_wrapper = boosters.instances_of("xgboost", "XGBModel")
"""Is this one of the scikit-learn wrappers, also a subclass of one?"""


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

    @property
    def several(self) -> int | None:
        """How many numbers a row has; None for one."""
        return self.targets if self.targets > 1 else None


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


class _OfWrapper(boosters.Answers):
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


class _OfBooster(boosters.Answers):
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
    if boosters.instances_of("xgboost", "XGBRankerMixIn", "XGBRanker")(model):
        return (output("scores", Kind.SCORE, dtype="float32"),)
    if not hasattr(model, "predict_proba"):
        return (output("value", Kind.VALUE, facts.several, dtype="float32"),)
    if callable(model.objective):  # the wrapper knows no classes then, and gives what the trees add up to
        return (output("scores", Kind.SCORE, facts.classes or None, dtype="float32"),)
    label, probabilities, scores = _classifier_outputs(facts, columns=facts.classes)
    # Its predict_proba of such a model gives margins.
    return (label, scores) if facts.objective == "binary:logitraw" else (label, probabilities, scores)


def _outputs_of_booster(facts: Facts) -> tuple[OutputSpec, ...]:
    if facts.objective.startswith("rank:") or facts.objective == "binary:logitraw":
        return (output("scores", Kind.SCORE, facts.several, dtype="float32"),)
    if not facts.classes:
        return (output("value", Kind.VALUE, facts.several, dtype="float32"),)
    # Of two classes a booster gives the second only.
    return _classifier_outputs(facts, columns=facts.classes if facts.objective.startswith("multi:") else None)


def _classifier_outputs(facts: Facts, *, columns: int | None) -> tuple[OutputSpec, OutputSpec, OutputSpec]:
    several = facts.several
    if facts.multilabel:
        return classifier_outputs(None, labels=several, probabilities=several, scores=several, dtype="float32")
    margins = facts.classes if facts.objective.startswith("multi:") else None
    return classifier_outputs(range(facts.classes), probabilities=columns, scores=margins, dtype="float32")


class XgboostAdapter(boosters.BoosterAdapter):
    """All knowledge of XGBoost. Options: `threads`; `best_iteration` and `missing`, for boosters that do not say."""

    framework, title = "xgboost", "XGBoost"
    modules = ("xgboost",)
    options = ("best_iteration", "missing", "threads")

    def claims(self, target: object) -> bool:
        return (
            boosters.named(target, (".ubj", ".xgb"))
            or boosters.begins(target, (".json",), JSON)
            or boosters.begins(target, (".model", ".bin"), BINARY_JSON, there=True)
            or is_model(target)
        )

    def damage(self, content: bytes) -> str:
        if BINARY_JSON.match(content):
            return ubjson.fault(content)
        # A file of half its length makes XGBoost ask for memory that nobody has.
        cut = "" if content.rstrip()[-1:] == b"}" else "it ends early"
        return cut if JSON.match(content) else "it does not begin like one, as JSON or UBJSON"

    def load(self, path: str, content: bytes) -> Any:
        """The booster in a file, inside the wrapper that saved it if one did."""
        import xgboost

        if JSON.match(content):
            # XGBoost's own parser reads beyond what is damaged, and takes the process with it.
            json.loads(content, object_pairs_hook=named_once)
        booster = xgboost.Booster(model_file=bytearray(content))
        saved_by = json.loads(booster.attr("scikit_learn") or "{}").get("_estimator_type")
        wrappers = {"classifier": "XGBClassifier", "regressor": "XGBRegressor", "ranker": "XGBRanker"}
        if saved_by not in wrappers:
            return booster
        with extra("sklearn", needed_for=f"{path}, saved by {wrappers[saved_by]},"):
            import sklearn  # noqa: F401
        wrapper = getattr(xgboost, wrappers[saved_by])(enable_categorical=True)
        wrapper.load_model(bytearray(content))
        return wrapper

    def reason(self, error: Exception) -> str:
        """What XGBoost said, without the place in its source and the addresses of its stack."""
        text = re.sub(r"^\w+: \[[\d:]+\] \S+:\d+:\s*", "", one_line(error, limit=10_000).partition("Stack trace:")[0])
        return text.strip()[:500].rstrip(".")

    def runner(self, target: Any, model: Model) -> Runner:
        import xgboost

        wrapped, threads, native = is_wrapper(target), _threads(model), target
        if wrapped:
            boosters.fitted(target.get_booster, model.name)
        elif str(model.options.get("best_iteration", "")).lower() in ("1", "true", "yes"):
            best = facts_of(target).best_round
            if best is None:
                raise ModelError(f"{model.name} has no best iteration: its training did not stop early")
            native = target[: best + 1]
        if threads is not None:
            native = deepcopy(native)
            booster_of(native).set_param({"nthread": threads})
        if wrapped and threads is not None:
            native.n_jobs = threads
        if wrapped and "missing" in model.options:
            native = copy(native)
            native.missing = _missing(model)
        booster = booster_of(native)
        facts = facts_of(booster)
        known = categories_of(booster)
        outputs = _outputs_of_wrapper(native, facts) if wrapped else _outputs_of_booster(facts)
        signature = boosters.signature_of(facts.names, facts.features, outputs, coded=known)

        def ask(batch: Batch) -> Any:
            data = boosters.data_of(batch, signature)
            if signature.table and facts.categorical:
                data = _with_categories(data, known, facts)
            if wrapped:
                return _OfWrapper(native, data, facts, output_margin=True)
            matrix = xgboost.DMatrix(
                data,
                missing=_missing(model),
                feature_types=None if known else booster.feature_types,
                enable_categorical=bool(facts.categorical),
                nthread=threads,
            )
            return _OfBooster(booster, matrix, facts, output_margin=True)

        used = facts.best_round + 1 if wrapped and facts.best_round is not None else facts.rounds
        return BoosterRunner(native, signature, _details(native, facts, used), model.name, ask, self.reason)


def _with_categories(frame: Any, known: Mapping[str, Sequence[Any]], facts: Facts) -> Any:
    """Columns with the model's own categories where it keeps them; else they must come as categories or codes."""
    import pandas as pd

    if known:
        return boosters.with_categories(frame, known, refuse_unseen=True)
    for name in facts.categorical:
        kind = frame[name].dtype
        if not isinstance(kind, pd.CategoricalDtype) and not pd.api.types.is_numeric_dtype(kind):
            raise ModelError(
                f"column {name!r} is categorical, and the model does not keep the names of its categories",
                remedy="Give its codes, or train the model again with XGBoost 3.1 or later",
            )
    return frame


def _missing(model: Model) -> float:
    return float(model.options.get("missing", "nan"))


def _threads(model: Model) -> int | None:
    """The threads asked for; None where the model is to use its own number of them."""
    given = model.options.get("threads")
    try:
        return None if given is None else int(given)
    except ValueError as error:
        raise UsageError(f"threads is {given!r}", remedy="Give a number, such as 1") from error


def _details(native: Any, facts: Facts, used: int) -> Mapping[str, Any]:
    import xgboost

    details: dict[str, Any] = {
        "xgboost": xgboost.__version__,
        "model": type(native).__name__,
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
    if is_wrapper(native):
        details["missing"] = str(native.missing)
    return details


CLASSIFIED = ("binary:logistic", "binary:hinge", "multi:softprob", "multi:softmax")

WRONG = {
    "reg:logistic": "leaves out the sigmoid",
    "survival:cox": "leaves out the exponent",
    "survival:aft": "leaves out the exponent",
}
"""Objectives whose link function onnxmltools 1.16 does not convert."""


def _converted(request: ExportRequest) -> ModelProto:
    import xgboost

    booster = booster_of(request.model)
    facts = facts_of(booster)
    if is_wrapper(request.model) and facts.best_round is not None:
        booster = booster[: facts.best_round + 1]

    def clean() -> Any:
        made = (xgboost.XGBClassifier if facts.objective in CLASSIFIED else xgboost.XGBRegressor)()
        made.load_model(_anonymous(booster, facts))
        return made

    return boosters.to_onnx("xgboost", clean, facts.features, request, reason=EXTENSION.reason)


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


def _refusals(request: ExportRequest) -> boosters.Refusals:
    wrapper = request.model if is_wrapper(request.model) else None
    booster = booster_of(request.model)
    facts = facts_of(booster)
    if request.double:
        yield "XGBoost computes in float32 itself, so there is no float64 export", "Leave out double"
    if request.zipmap:
        yield "onnxmltools writes no dictionaries for XGBoost models", "Leave out zipmap"
    if facts.kind != "gbtree":
        what = "its trees carry weights" if facts.kind == "dart" else "it has no trees"
        yield f"onnxmltools cannot convert the booster {facts.kind!r}: {what}", "Train a gbtree"
    if facts.objective in WRONG:
        told = f"onnxmltools converts the objective {facts.objective!r} wrongly: it {WRONG[facts.objective]}"
        yield told, "Serve the model with XGBoost"
    if wrapper is not None and (facts.objective == "binary:logitraw" or callable(wrapper.objective)):
        told = "onnxmltools cannot convert a classifier that gives margins"
        yield told, "Export its booster: model.get_booster()"
    if facts.targets > 1:
        told = f"onnxmltools converts a model with {facts.targets} targets wrongly: it adds all trees to the first"
        yield told, "Export one model per target"
    if facts.objective.startswith("multi:") and (facts.classes == 2 or facts.parallel_trees > 1):
        why = "two classes" if facts.classes == 2 else f"{facts.parallel_trees} parallel trees"
        told = f"onnxmltools converts {facts.objective!r} with {why} wrongly: it gives trees to other classes"
        yield told, "Train with binary:logistic" if facts.classes == 2 else "Train with num_parallel_tree=1"
    missing = getattr(wrapper, "missing", None)
    if missing is not None and missing == missing:
        told = f"the model takes {missing} for a missing value, and ONNX knows only NaN"
        yield told, "Replace it by NaN in the data, and train with the default"
    categories = categories_of(booster)
    for name, known in categories.items():
        yield from boosters.named_categories(repr(name), known)
    if facts.categorical and not categories and facts.names is not None:
        name = facts.categorical[0]
        told = f"feature {name!r} is categorical, and the model does not keep the names of its categories"
        yield told, "Encode it before the model, and train on the codes"


LOGARITHMIC = ("count:poisson", "reg:gamma", "reg:tweedie", "survival:cox", "survival:aft")


def read_trees(model: Any) -> Ensemble | None:
    """The trees that predict uses: a wrapper's up to the best round, where training stopped early; None without any."""
    from likewise.models.trees.ensemble import ensemble_of

    booster = booster_of(model)
    best = None if booster is model else facts_of(booster).best_round
    learner = json.loads(bytes(booster.save_raw("json")))["learner"]
    grown = learner["gradient_booster"]
    dropped = grown.get("weight_drop")
    model = grown.get("gbtree", grown).get("model")
    if model is None or "trees" not in model:
        return None
    ends = model.get("iteration_indptr")
    stored = len(model["trees"])
    used = stored if best is None or not ends else int(ends[min(best + 1, len(ends) - 1)])
    shape = learner["learner_model_param"]
    outputs = max(int(shape["num_class"]), int(shape.get("num_target", 1)), 1)
    trees = [
        _tree(index, model["trees"][index], int(model["tree_info"][index]), 1.0 if dropped is None else dropped[index])
        for index in range(used)
    ]
    return ensemble_of(
        trees,
        outputs=outputs,
        dtype="float32",
        base=_base(shape, learner["objective"]["name"], outputs),
        whole=True,
        stored=stored,
    )


def _tree(number: int, entry: dict[str, Any], output: int, weight: float) -> Tree:
    import numpy as np

    from likewise.models.trees.ensemble import LEAF, Gap, Tree

    left, right = np.array(entry["left_children"]), np.array(entry["right_children"])
    leaf = left < 0
    # Written with nine digits, read back as the float32 that was meant.
    condition = np.array(entry["split_conditions"], dtype=np.float32).astype(np.float64)
    gap = np.where(np.array(entry["default_left"], dtype=bool), Gap.LEFT, Gap.RIGHT)
    groups: dict[int, Array] = {}
    starts, sizes = entry.get("categories_segments", []), entry.get("categories_sizes", [])
    for node, start, size in zip(entry.get("categories_nodes", []), starts, sizes, strict=True):
        groups[node] = np.array(entry["categories"][start : start + size])
        # The categories that are listed go right.
        left[node], right[node] = right[node], left[node]
        gap[node] = Gap.RIGHT if gap[node] == Gap.LEFT else Gap.LEFT
    vector = int(entry["tree_param"].get("size_leaf_vector", "1"))
    nodes = np.flatnonzero(leaf)
    if vector > 1:
        weights = np.array(entry["base_weights"], dtype=np.float32).reshape(-1, vector)[nodes]
        leaves = (np.repeat(nodes, vector), np.tile(np.arange(vector), len(nodes)), weights.ravel() * weight)
    else:
        leaves = (nodes, np.full(len(nodes), output), condition[nodes] * weight)
    return Tree(
        number=number,
        feature=np.where(leaf, LEAF, np.array(entry["split_indices"])),
        threshold=np.where(leaf, 0.0, condition),
        left=left,
        right=right,
        leaves=leaves,
        gap=gap,
        strict=True,
        groups=groups,
    )


def _base(shape: dict[str, str], objective: str, outputs: int) -> Array:
    """The base score as what is added to the trees."""
    import numpy as np

    given = json.loads(shape["base_score"])
    base = np.broadcast_to(np.asarray(given, dtype=np.float64).reshape(-1), (outputs,)).copy()
    with np.errstate(divide="ignore", invalid="ignore"):
        if objective in ("binary:logistic", "reg:logistic"):
            return np.asarray(np.log(base) - np.log1p(-base))
        return np.asarray(np.log(base)) if objective in LOGARITHMIC else base


def cut_to(model: Any, trees: int) -> Any:
    """A copy that uses its first trees only; None if that is no whole number of rounds."""
    booster = booster_of(model)
    grown = json.loads(booster.save_config())["learner"]["gradient_booster"]
    count = int(grown.get("gbtree", grown).get("gbtree_model_param", {}).get("num_trees", 0))
    rounds, rest = divmod(trees * booster.num_boosted_rounds(), max(count, 1))
    if rest:
        return None
    cut = booster[:rounds]
    cut.set_attr(best_iteration=None, best_score=None)
    return boosters.rewrapped(model, cut, wrapper=model is not booster)


EXTENSION = XgboostAdapter()
EXPORTER = boosters.BoosterExporter("xgboost", "XGBoost", is_model, _refusals, _converted)
