"""What runs in another Python: opens models there and answers over standard input and output.

It is sent over the pipe together with `wire.py`, `far_networks.py` and `sklearn/asking.py`, as one program that needs
Python 3.8, numpy and the model's framework, and nothing of ours.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

from likewise.models.environments.far_networks import Compiled, Network, Refused
from likewise.models.environments.wire import pack, receive, send, unpack
from likewise.models.sklearn.asking import apply_steps, is_multilabel, labels_from, rule_of

PICKLES = (".joblib", ".pkl", ".pickle", ".skops")
NETWORKS = (".pt", ".pth", ".pt2", ".jit", ".ts", ".torchscript")
COMPRESSED = (".gz", ".bz2", ".xz", ".lzma", ".z", ".lz4")
MODULES = {"scikit-learn": "sklearn", "onnxruntime-gpu": "onnxruntime", "xgboost-cpu": "xgboost"}
"""Packages that are imported under another name."""


class Estimator:
    """What has `predict` or `transform`: scikit-learn, and boosters that look like it."""

    def __init__(self, model: Any) -> None:
        if isinstance(model, type) or not (hasattr(model, "predict") or hasattr(model, "transform")):
            raise Refused(f"it holds a {type(model).__name__}, which has neither predict nor transform")
        self.model = model
        self.views = dict(self._views())

    def _views(self) -> Any:
        model, inner = self.model, innermost(self.model)
        classes, kind = getattr(model, "classes_", None), _kind(model)
        if not hasattr(model, "predict"):
            yield "value", ("value", "transform", None)
        elif kind == "outlier_detector":
            yield "label", ("label", "predict", [-1, 1])
            if hasattr(model, "decision_function"):
                yield "scores", ("score", "decision_function", None)
        elif kind != "regressor" and (kind == "classifier" or classes is not None):
            several = getattr(classes, "ndim", 1) > 1 or is_multilabel(inner, classes)
            labels = None if several or classes is None else [_label(label) for label in classes]
            yield "label", ("label", "predict", labels)
            if hasattr(model, "predict_proba"):
                yield "probabilities", ("probability", "predict_proba", labels)
            if hasattr(model, "decision_function"):
                pairs = getattr(inner, "decision_function_shape", None) == "ovo" and len(labels or ()) > 2
                yield "scores", ("score", "decision_function", None if pairs else labels)
            elif _margin(model) is not None:
                yield "scores", ("score", "margin", labels)
        elif hasattr(model, "predict_proba"):
            yield "label", ("label", "predict", None)
            yield "probabilities", ("probability", "predict_proba", None)
        elif kind == "clusterer":
            yield "label", ("label", "predict", None)
            if hasattr(model, "transform"):
                yield "distances", ("distance", "transform", None)
        else:
            name, meant = ("scores", "score") if kind == "ranker" else ("value", "value")
            yield name, (meant, "predict", None)

    def described(self) -> dict[str, Any]:
        outputs = [{"name": name, "kind": kind, "classes": known} for name, (kind, _, known) in self.views.items()]
        inner = innermost(self.model)
        # Where `predict` does not follow from the probabilities, scikit-learn decides by the scores.
        by_scores = type(inner).__module__.startswith("sklearn.") and rule_of(inner) is None
        return {"outputs": outputs, "estimator": type(self.model).__name__, "by_scores": by_scores, **self._inputs()}

    def _inputs(self) -> dict[str, Any]:
        first = outermost(self.model)
        holders = [self.model, first, *([booster] if (booster := _booster(self.model)) is not None else [])]
        for name in ("feature_names_in_", "feature_names", "feature_name_", "feature_names_"):
            for holder in holders:
                found = getattr(holder, name, None)
                if found is not None and len(found) and not all(_numbered(entry) for entry in found):
                    return {
                        "columns": [str(entry) for entry in found],
                        "underscored": _family(self.model) == "lightgbm",
                    }
        if hasattr(first, "vocabulary_") or type(first).__name__ == "HashingVectorizer":
            return {"text": True}
        counts = [getattr(holder, "n_features_in_", None) for holder in holders]
        return {"features": next((int(count) for count in counts if count is not None), None)}

    def ask(self, rows: Any, wanted: list[str] | None) -> dict[str, Any]:
        methods = {name: view[1] for name, view in self.views.items() if wanted is None or name in wanted}
        model, data = apply_steps(self.model, rows) if "sklearn" in sys.modules else (self.model, rows)
        answers = {way: self._called(model, way, data) for way in methods.values() if way != "predict"}
        if "predict" in methods.values():
            labels = labels_from(model, answers.get("predict_proba"))
            answers["predict"] = model.predict(data) if labels is None else labels
        found = {name: _answer(answers[method]) for name, method in methods.items()}
        if "label" in found and self.views["label"][2] is not None:
            found["label"] = found["label"].reshape(len(found["label"]))  # CatBoost gives a column
        return found

    def _called(self, model: Any, method: str, data: Any) -> Any:
        return model.predict(data, **(_margin(model) or {})) if method == "margin" else getattr(model, method)(data)


def innermost(model: Any) -> Any:
    """The estimator that answers, inside searches and pipelines."""
    while True:
        if hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        elif getattr(model, "steps", None) and not isinstance(model.steps[-1][1], str):
            model = model.steps[-1][1]
        else:
            return model


def outermost(model: Any) -> Any:
    """The first step, which is given the data."""
    while True:
        if hasattr(model, "best_estimator_"):
            model = model.best_estimator_
        elif getattr(model, "steps", None) and hasattr(model.steps[0][1], "get_params"):
            model = model.steps[0][1]
        else:
            return model


def _kind(model: Any) -> Any:
    try:
        from sklearn.utils import get_tags

        return get_tags(model).estimator_type
    except (ImportError, AttributeError, TypeError):
        return getattr(model, "_estimator_type", None)


def _family(model: Any) -> str:
    return next((base.__module__.split(".")[0] for base in type(model).__mro__ if base.__module__ != "builtins"), "")


def _label(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def _margin(model: Any) -> dict[str, Any] | None:
    """How a booster is asked for what its trees add up to."""
    asked: dict[str, dict[str, Any]] = {"xgboost": {"output_margin": True}, "lightgbm": {"raw_score": True}}
    asked["catboost"] = {"prediction_type": "RawFormulaVal"}
    return asked.get(_family(model))


def _booster(model: Any) -> Any:
    return model.get_booster() if _family(model) == "xgboost" and hasattr(model, "get_booster") else None


def _numbered(name: Any) -> bool:
    """`Column_3`, `f3`, `3`: what boosters call a column that has no name."""
    return str(name).replace("Column_", "").lstrip("f").isdecimal()


def _answer(answer: Any) -> Any:
    """An answer as one array with a row each."""
    import numpy as np

    if isinstance(answer, (list, tuple)) and answer and getattr(answer[0], "ndim", 0) == 2:
        answer = np.stack(answer, axis=1)
    if hasattr(answer, "toarray"):
        answer = answer.toarray()
    array = answer.to_numpy() if hasattr(answer, "to_numpy") else np.asarray(answer)
    return array.astype(object) if array.dtype.kind in "US" else array


def read_pickle(name: str, content: bytes) -> Any:
    """The object in a pickle, by joblib where it is there. It runs whatever the file says."""
    import io
    import pickle

    if name.endswith(".skops"):
        import skops.io

        return skops.io.loads(content, trusted=skops.io.get_untrusted_types(data=content))
    try:
        import joblib
    except ImportError:
        return pickle.loads(content)
    return joblib.load(io.BytesIO(content))


class Booster:
    """A booster's own file, without the wrapper that scikit-learn's people know."""

    model: Any

    def __init__(self, content: bytes) -> None:
        if content.lstrip()[:4] == b"tree":
            import lightgbm

            self.model = lightgbm.Booster(model_str=content.decode())
            names, told = self.model.feature_name(), self.model.dump_model(num_iteration=1)
            self.objective, self.classes = str(told.get("objective", "")).split(" ")[0], int(told["num_class"])
            self.margin: dict[str, Any] = {"raw_score": True}
            self.wrap: Callable[[Any], Any] = lambda rows: rows
        else:
            import xgboost

            self.model = xgboost.Booster(model_file=bytearray(content))
            learner = json.loads(self.model.save_config())["learner"]
            self.objective, names = learner["objective"]["name"], self.model.feature_names
            self.classes, self.margin = int(learner["learner_model_param"]["num_class"]), {"output_margin": True}
            types = self.model.feature_types
            self.wrap = lambda rows: xgboost.DMatrix(rows, feature_types=types if "c" in (types or ()) else None)
        self.names = [str(entry) for entry in names or () if not _numbered(entry)]
        self.features = int(self.model.num_features() if hasattr(self.model, "num_features") else len(names or ()))
        self.features = self.features or int(self.model.num_feature())

    def described(self) -> dict[str, Any]:
        if self.objective.startswith(("rank:", "lambdarank", "rank_xendcg")) or self.objective == "binary:logitraw":
            outputs: list[dict[str, Any]] = [{"name": "scores", "kind": "score", "classes": None}]
        elif self.objective.startswith(("binary", "multi")):
            known = list(range(max(self.classes, 2)))
            kinds = (("label", "label"), ("probabilities", "probability"), ("scores", "score"))
            outputs = [{"name": name, "kind": kind, "classes": known} for name, kind in kinds]
        else:
            outputs = [{"name": "value", "kind": "value", "classes": None}]
        inputs: dict[str, Any] = {"columns": self.names} if self.names else {"features": self.features}
        inputs["underscored"] = "raw_score" in self.margin
        return {"outputs": outputs, "estimator": "Booster", "objective": self.objective, **inputs}

    def ask(self, rows: Any, wanted: list[str] | None) -> dict[str, Any]:
        import numpy as np

        rows, found = self.wrap(rows), {}
        names = [entry["name"] for entry in self.described()["outputs"]]
        value = np.asarray(self.model.predict(rows))
        for name in (name for name in names if wanted is None or name in wanted):
            if name == "scores" and len(names) > 1:
                found[name] = self.model.predict(rows, **self.margin)
            elif name == "label" and self.objective in ("multi:softmax", "binary:hinge"):
                found[name] = value.astype(np.int64)
            elif name == "label":
                found[name] = np.argmax(value, axis=1) if value.ndim > 1 else np.asarray(value > 0.5, np.int64)
            else:
                found[name] = value
        return {name: np.asarray(answer) for name, answer in found.items()}


def saved_by_wrapper(content: bytes) -> Any:
    """A file that a scikit-learn wrapper of XGBoost saved, in such a wrapper again; None for others."""
    if content.lstrip()[:4] == b"tree":
        return None
    import xgboost

    saved = json.loads(xgboost.Booster(model_file=bytearray(content)).attr("scikit_learn") or "{}")
    wrappers = {"classifier": "XGBClassifier", "regressor": "XGBRegressor", "ranker": "XGBRanker"}
    if saved.get("_estimator_type") not in wrappers:
        return None
    wrapper = getattr(xgboost, wrappers[saved["_estimator_type"]])()
    wrapper.load_model(bytearray(content))
    return Estimator(wrapper)


class Graph:
    """An ONNX graph in this Python's ONNX Runtime."""

    def __init__(self, target: Any, options: dict[str, Any]) -> None:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 4
        levels = {"disable": "DISABLE_ALL", "basic": "ENABLE_BASIC", "extended": "ENABLE_EXTENDED", "all": "ENABLE_ALL"}
        level = options.get("optimization", "all")
        settings.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, "ORT_" + levels[level])
        settings.intra_op_num_threads = int(options.get("threads", 0))
        self.session = onnxruntime.InferenceSession(target, settings, providers=["CPUExecutionProvider"])
        self.names = [value.name for value in self.session.get_outputs()]
        self.level = level

    def described(self) -> dict[str, Any]:
        return {"graph": self.names, "providers": self.session.get_providers(), "optimization": self.level}

    def ask(self, rows: Any, wanted: list[str] | None) -> list[Any]:
        return list(self.session.run(self.names, rows))


def saved_by_catboost(content: bytes) -> Any:
    """A model of CatBoost, as the class that its loss belongs to."""
    import catboost

    plain = catboost.CatBoost().load_model(blob=content)
    loss = str(plain.get_all_params().get("loss_function", "")).split(":")[0]
    ranks = catboost.CatBoost._is_ranking_objective(loss)
    other = catboost.CatBoostRanker if ranks else catboost.CatBoostRegressor
    return (catboost.CatBoostClassifier if len(plain.classes_) else other)().load_model(blob=content)


class Function:
    """Code that a user names: `file.py:function` or `module:function`."""

    def __init__(self, place: str, attribute: str) -> None:
        if place.endswith(".py"):
            if not os.path.isfile(place):
                raise Refused(f"there is no file {place} over there")
            sys.path.insert(0, os.path.dirname(place))
            spec: Any = importlib.util.spec_from_file_location("likewise_user_model", place)
            module = importlib.util.module_from_spec(spec)
            sys.modules["likewise_user_model"] = module
            spec.loader.exec_module(module)
        else:
            sys.path.insert(0, os.getcwd())
            module = importlib.import_module(place)
        found: Any = module
        for part in attribute.split("."):
            found = getattr(found, part)
        self.call = found if callable(found) else found.predict

    def described(self) -> dict[str, Any]:
        return {"callable": getattr(self.call, "__qualname__", type(self.call).__name__)}

    def ask(self, rows: Any, wanted: list[str] | None) -> Any:
        return self.call(rows)


def opened(question: dict[str, Any], files: list[bytes]) -> Any:
    """The model that is asked for, ready to answer."""
    if "attribute" in question:
        return Function(question["place"], question["attribute"])
    name, content = question["name"].lower(), files[0] if files else b""
    for suffix in COMPRESSED:
        name = name[: -len(suffix)] if name.endswith(suffix) else name
    if name.endswith((".onnx", ".ort")):
        return Graph(question.get("path") or content, question["options"])
    if name.endswith((*PICKLES, *NETWORKS)):
        if not question["trusted"]:
            raise Refused("such a file runs code here, and nobody said that it may")
        return Network(content) if name.endswith(NETWORKS) else Estimator(read_pickle(name, content))
    if name.endswith(".xml"):
        return Compiled(*files)
    if content.startswith(b"CBM1"):
        return Estimator(saved_by_catboost(content))
    return saved_by_wrapper(content) or Booster(content)


def versions() -> dict[str, str]:
    """The packages whose modules are loaded, by name."""
    from importlib.metadata import PackageNotFoundError, distribution

    found: dict[str, str] = {}
    # By the names of their folders: to read what each of some hundred packages says of itself takes longer than to
    # import one of them.
    for folder in filter(os.path.isdir, sys.path):
        for entry in os.listdir(folder):
            name, _, kind = entry.rpartition(".")
            written = name.split("-")[0].lower().replace(".", "_")
            module = MODULES.get(written.replace("_", "-"), written)
            if kind in ("dist-info", "egg-info") and module in sys.modules:
                try:
                    package = distribution(written)
                except PackageNotFoundError:
                    continue
                found.setdefault(str(package.metadata["Name"]), package.version)
    return dict(sorted(found.items()))


def serve(questions: Any, answers: Any) -> None:
    """Answer until nobody asks any more."""
    models: dict[int, Any] = {}
    noted: list[str] = []
    warnings.showwarning = lambda message, *_, **__: noted.append(" ".join(str(message).split()))
    told = {"python": sys.version.split()[0], "executable": sys.executable, "platform": sys.platform}
    send(answers, {"answer": {**told, "confinement": os.environ.get("LIKEWISE_CONFINEMENT", "")}}, [])
    while True:
        try:
            question, buffers = receive(questions)
        except EOFError:
            return
        given: list[Any] = []
        try:
            number = question["model"]
            if question["do"] == "open":
                models[number] = opened(question, [bytes(buffer) for buffer in buffers])
                described = models[number].described()
                if "columns" in described:
                    import pandas  # noqa: F401 - what rows will be given as counts among the versions
                answer = {"described": described, "versions": versions()}
            elif question["do"] == "close":
                answer = {"closed": models.pop(number, None) is not None}
            else:
                rows = unpack(question["rows"], buffers)
                answer = {"answers": pack(models[number].ask(rows, question["wanted"]), given)}
            reply: dict[str, Any] = {"answer": answer}
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the other side is where it is handled
            given, kind = [], type(error).__name__
            name = getattr(error, "name", None) if isinstance(error, ImportError) else None
            reply = {"error": "" if isinstance(error, Refused) else kind, "told": str(error), "missing": name}
        send(answers, {**reply, "noted": noted[:20]}, given)
        noted.clear()


def main() -> None:
    """Keep the pipes for messages: what a model prints goes to standard error, and it reads nothing."""
    sys.path[:] = [entry for entry in sys.path if entry]
    answers = os.fdopen(os.dup(1), "wb")
    questions = sys.stdin.buffer
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    serve(questions, answers)


if __name__ == "__main__":
    main()
