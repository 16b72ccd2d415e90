"""Real fitted pipelines with their real exports, and how a person would ask both of them by hand.

Nothing here uses likewise: what a report should say is derived from scikit-learn, ONNX Runtime and numpy alone.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
from skl2onnx import to_onnx
from skl2onnx.common.data_types import (
    FloatTensorType,
    Int64TensorType,
    StringTensorType,
)
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.datasets import make_blobs, make_classification, make_multilabel_classification, make_regression
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    AdaBoostClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import SVC, LinearSVC
from sklearn.tree import DecisionTreeClassifier

ROWS = 300
OPSETS = {"": 18, "ai.onnx.ml": 3}

Answers = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Paired:
    """One pair of outputs that a person would compare; `margin` is the answer that tells how sure the reference is."""

    name: str
    kind: str
    margin: str | None = None
    margin_kind: str | None = None


@dataclass(frozen=True)
class Exported:
    """A reference, its export, the data, and how to ask both by hand."""

    reference: Any
    candidate: bytes
    frame: pd.DataFrame
    pairs: tuple[Paired, ...]
    feed: Callable[[pd.DataFrame], dict[str, np.ndarray]]
    ask_reference: Callable[[pd.DataFrame], Answers]
    read_candidate: Callable[[Mapping[str, Any]], Answers]
    preset: str = "float32"
    casts: Mapping[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """(input, column) to (type in the data, type the candidate takes), where they differ."""

    def ask_candidate(self, frame: pd.DataFrame, size: int) -> Answers:
        """The export's answers, called with `size` rows at a time."""
        session = onnxruntime.InferenceSession(self.candidate, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        parts = []
        for start in range(0, len(frame), size):
            answers = session.run(names, self.feed(frame.iloc[start : start + size]))
            parts.append(self.read_candidate(dict(zip(names, answers, strict=True))))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def table(X: np.ndarray) -> pd.DataFrame:
    """A DataFrame with its columns apart from each other, as a table file gives it."""
    return pd.DataFrame({f"f{i}": np.ascontiguousarray(X[:, i]) for i in range(X.shape[1])})


def classes_of(count: int, *, seed: int = 0, rows: int = ROWS, features: int = 6) -> tuple[pd.DataFrame, np.ndarray]:
    X, y = make_classification(
        rows,
        features,
        n_informative=features - 1,
        n_redundant=0,
        n_classes=count,
        n_clusters_per_class=1,
        class_sep=0.6,
        random_state=seed,
    )
    return table(X), y


def as_matrix(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    return {"X": frame.to_numpy(dtype=np.float64).astype(np.float32)}


def matrix_casts(frame: pd.DataFrame) -> dict[tuple[str, str], tuple[str, str]]:
    return {("X", name): ("float64", "float32") for name in frame.columns}


def export(model: Any, frame: pd.DataFrame, **options: Any) -> bytes:
    return export_as(model, [("X", FloatTensorType([None, frame.shape[1]]))], options)


def export_as(model: Any, types: list[tuple[str, Any]], options: Mapping[str, Any]) -> bytes:
    given = {id(model): dict(options)} if options else None
    with warnings.catch_warnings():
        # The converter uses what numpy, onnx and scikit-learn call deprecated; that is not what is tested here.
        warnings.simplefilter("ignore")
        return to_onnx(model, initial_types=types, options=given, target_opset=OPSETS).SerializeToString()


def from_zipmap(classes: Any) -> Callable[[Mapping[str, Any]], Answers]:
    def read(outputs: Mapping[str, Any]) -> Answers:
        rows = [[row[label] for label in classes] for row in outputs["output_probability"]]
        return {"label": outputs["output_label"], "probabilities": np.array(rows, dtype=np.float64)}

    return read


def from_tensors(outputs: Mapping[str, Any]) -> Answers:
    return {"label": outputs["label"], "probabilities": outputs["probabilities"]}


def classifier(
    model: Any, frame: pd.DataFrame, *, preset: str = "float32", zipmap: bool = False, candidate: Any = None
) -> Exported:
    """A classifier with probabilities; the candidate is its own export unless another model is named."""
    exported = model if candidate is None else candidate
    return Exported(
        reference=model,
        candidate=export(exported, frame, **({} if zipmap else {"zipmap": False})),
        frame=frame,
        pairs=(
            Paired("label", "label", "probabilities", "probability"),
            Paired("probabilities", "probability"),
        ),
        feed=as_matrix,
        ask_reference=lambda rows: {"label": model.predict(rows), "probabilities": model.predict_proba(rows)},
        read_candidate=from_zipmap(model.classes_.tolist()) if zipmap else from_tensors,
        preset=preset,
        casts=matrix_casts(frame),
    )


def regressor(model: Any, frame: pd.DataFrame, *, preset: str = "float32", columns: int = 1) -> Exported:
    return Exported(
        reference=model,
        candidate=export(model, frame),
        frame=frame,
        pairs=(Paired("value", "value"),),
        feed=as_matrix,
        ask_reference=lambda rows: {"value": model.predict(rows)},
        read_candidate=lambda out: {"value": out["variable"].reshape(-1) if columns == 1 else out["variable"]},
        preset=preset,
        casts=matrix_casts(frame),
    )


def binary_logistic() -> Exported:
    frame, y = classes_of(2)
    return classifier(make_pipeline(StandardScaler(), LogisticRegression()).fit(frame, y), frame, zipmap=True)


def multiclass_text_labels() -> Exported:
    frame, y = classes_of(4)
    names = np.array(["ant", "bee", "cat", "dog"], dtype=object)[y]
    return classifier(LogisticRegression(max_iter=500).fit(frame, names), frame, preset="strict", zipmap=True)


def random_forest() -> Exported:
    frame, y = classes_of(3)
    return classifier(RandomForestClassifier(15, random_state=0).fit(frame, y), frame)


def grid_search() -> Exported:
    frame, y = classes_of(3, seed=3)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression()), {"logisticregression__C": [0.1, 1]}, cv=2
    )
    return classifier(search.fit(frame, y), frame)


def hist_gradient_boosting_with_missing_values() -> Exported:
    frame, y = classes_of(3)
    frame = frame.mask(np.random.default_rng(0).random(frame.shape) < 0.1)
    return classifier(HistGradientBoostingClassifier(max_iter=5, max_leaf_nodes=8).fit(frame, y), frame)


def gradient_boosting() -> Exported:
    frame, y = classes_of(3)
    return classifier(GradientBoostingClassifier(n_estimators=15, random_state=0).fit(frame, y), frame, zipmap=True)


def ada_boost() -> Exported:
    frame, y = classes_of(3)
    return classifier(AdaBoostClassifier(n_estimators=10, random_state=0).fit(frame, y), frame)


def naive_bayes() -> Exported:
    frame, y = classes_of(3)
    return classifier(GaussianNB().fit(frame, y), frame)


def nearest_neighbours() -> Exported:
    frame, y = classes_of(2)
    return classifier(KNeighborsClassifier(5).fit(frame, y), frame, preset="standard")


def calibrated() -> Exported:
    frame, y = classes_of(3)
    return classifier(CalibratedClassifierCV(LinearSVC(), cv=3).fit(frame, y), frame)


def stacking() -> Exported:
    frame, y = classes_of(3)
    members = [("linear", LogisticRegression()), ("tree", DecisionTreeClassifier(max_depth=3, random_state=0))]
    return classifier(StackingClassifier(members, final_estimator=LogisticRegression(), cv=3).fit(frame, y), frame)


def voting() -> Exported:
    frame, y = classes_of(3)
    members = [("linear", LogisticRegression()), ("bayes", GaussianNB())]
    return classifier(VotingClassifier(members, voting="soft", flatten_transform=False).fit(frame, y), frame)


def neural_network() -> Exported:
    frame, y = classes_of(3)
    return classifier(MLPClassifier((16,), max_iter=60, tol=1, random_state=0).fit(frame, y), frame, preset="strict")


def deep_tree_at_float32_thresholds() -> Exported:
    """Values that float32 moves across the thresholds of the tree: a real failure of a faithful export."""
    rng = np.random.default_rng(0)
    X = 1.0 + rng.integers(0, 40, size=(ROWS, 4)) * 2.0**-28
    y = (X.sum(axis=1) > np.median(X.sum(axis=1))).astype(int)
    frame = table(X)
    return classifier(HistGradientBoostingClassifier(max_iter=10, min_samples_leaf=3).fit(frame, y), frame)


def stale_export() -> Exported:
    """The export of a model that was fitted on the first half of the data only."""
    frame, y = classes_of(3, seed=1)
    names = np.array(["low", "middle", "high"], dtype=object)[y]
    model = LogisticRegression(max_iter=500).fit(frame, names)
    earlier = LogisticRegression(max_iter=500).fit(frame[:150], names[:150])
    return classifier(model, frame, preset="strict", candidate=earlier)


def nearly_the_same_export() -> Exported:
    """The export of a model that saw a few rows less: labels change where the reference hardly decides."""
    frame, y = classes_of(2, seed=7)
    model = LogisticRegression(max_iter=500).fit(frame, y)
    earlier = LogisticRegression(max_iter=500).fit(frame[:-9], y[:-9])
    return classifier(model, frame, preset="standard", candidate=earlier)


def bit_equality_asked_of_an_export() -> Exported:
    frame, y = classes_of(2, seed=2)
    return classifier(LogisticRegression().fit(frame, y), frame, preset="exact")


def linear_regression() -> Exported:
    X, y = make_regression(ROWS, 5, noise=3, random_state=0)
    return regressor(make_pipeline(StandardScaler(), LinearRegression()).fit(table(X), y), table(X))


def millions() -> Exported:
    X, y = make_regression(ROWS, 5, noise=3, random_state=0)
    return regressor(HistGradientBoostingRegressor(max_iter=10, max_leaf_nodes=8).fit(table(X), 1e6 * y), table(X))


def several_targets() -> Exported:
    X, Y = make_regression(ROWS, 5, n_targets=3, noise=3, random_state=0)
    return regressor(Ridge().fit(table(X), Y), table(X), columns=3)


def forest_of_several_targets() -> Exported:
    X, Y = make_regression(ROWS, 5, n_targets=2, noise=3, random_state=0)
    model = RandomForestRegressor(8, random_state=0).fit(table(X), Y)
    return regressor(model, table(X), columns=2)


def multi_label_forest() -> Exported:
    """Probabilities come as a list with one array a label on both sides."""
    X, Y = make_multilabel_classification(ROWS, 6, n_classes=3, random_state=0)
    frame = table(X + 0.1)
    model = RandomForestClassifier(10, random_state=0).fit(frame, Y)
    return Exported(
        reference=model,
        candidate=export(model, frame, zipmap=False),
        frame=frame,
        pairs=(Paired("label", "label"), Paired("probabilities", "probability")),
        feed=as_matrix,
        ask_reference=lambda rows: {
            "label": model.predict(rows),
            "probabilities": np.stack(model.predict_proba(rows), axis=1),
        },
        read_candidate=lambda out: {"label": out["label"], "probabilities": np.moveaxis(out["probabilities"], 1, 0)},
        casts=matrix_casts(frame),
    )


def multi_output_classifier() -> Exported:
    X, Y = make_multilabel_classification(ROWS, 6, n_classes=3, random_state=0)
    frame = table(X + 0.1)
    model = MultiOutputClassifier(LogisticRegression(max_iter=500)).fit(frame, Y)
    return Exported(
        reference=model,
        candidate=export(model, frame, zipmap=False),
        frame=frame,
        pairs=(Paired("label", "label"), Paired("probabilities", "probability")),
        feed=as_matrix,
        ask_reference=lambda rows: {
            "label": model.predict(rows),
            "probabilities": np.stack(model.predict_proba(rows), axis=1),
        },
        read_candidate=lambda out: {"label": out["label"], "probabilities": np.stack(out["probabilities"], axis=1)},
        casts=matrix_casts(frame),
    )


def scored(model: Any, frame: pd.DataFrame, **options: Any) -> Exported:
    """A classifier that gives decision scores and no probabilities."""
    return Exported(
        reference=model,
        candidate=export(model, frame, **options),
        frame=frame,
        pairs=(Paired("label", "label", "scores", "score"), Paired("scores", "score")),
        feed=as_matrix,
        ask_reference=lambda rows: {"label": model.predict(rows), "scores": model.decision_function(rows)},
        read_candidate=lambda out: {"label": out["label"], "scores": out["probabilities"]},
        casts=matrix_casts(frame),
    )


def linear_support_vectors() -> Exported:
    frame, y = classes_of(3)
    return scored(LinearSVC().fit(frame, y), frame)


def support_vectors() -> Exported:
    frame, y = classes_of(3)
    return scored(SVC().fit(frame, y), frame, zipmap=False, raw_scores=True)


def isolation_forest() -> Exported:
    X, _ = make_blobs(ROWS, 5, centers=2, random_state=0)
    frame = table(X)
    model = IsolationForest(n_estimators=8, random_state=0).fit(frame)
    return Exported(
        reference=model,
        candidate=export(model, frame),
        frame=frame,
        pairs=(Paired("label", "label", "scores", "score"), Paired("scores", "score")),
        feed=as_matrix,
        ask_reference=lambda rows: {"label": model.predict(rows), "scores": model.decision_function(rows)},
        read_candidate=lambda out: {"label": out["label"].reshape(-1), "scores": out["scores"].reshape(-1)},
        casts=matrix_casts(frame),
    )


def clusters() -> Exported:
    X, _ = make_blobs(ROWS, 5, centers=3, random_state=0)
    frame = table(X)
    model = KMeans(3, n_init=1, random_state=0).fit(frame)
    return Exported(
        reference=model,
        candidate=export(model, frame),
        frame=frame,
        pairs=(Paired("label", "label", "distances", "distance"), Paired("distances", "distance")),
        feed=as_matrix,
        ask_reference=lambda rows: {"label": model.predict(rows), "distances": model.transform(rows)},
        read_candidate=lambda out: {"label": out["label"], "distances": out["scores"]},
        casts=matrix_casts(frame),
    )


def transformer() -> Exported:
    X, _ = make_blobs(ROWS, 6, centers=3, random_state=0)
    frame = table(X)
    model = make_pipeline(StandardScaler(), PCA(3)).fit(frame)
    return Exported(
        reference=model,
        candidate=export(model, frame),
        frame=frame,
        pairs=(Paired("value", "value"),),
        feed=as_matrix,
        ask_reference=lambda rows: {"value": model.transform(rows)},
        read_candidate=lambda out: {"value": out["variable"]},
        casts=matrix_casts(frame),
    )


WORDS = ("red", "green", "blue", "fast", "slow", "bright", "dark", "loud", "quiet")


def text_frame() -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=rng.integers(2, 9))) for _ in range(ROWS)]
    labels = np.array(["calm" if text.count("slow") + text.count("quiet") else "busy" for text in texts], dtype=object)
    return pd.DataFrame({"text": texts}), labels


def text(vectorizer: Any) -> Exported:
    frame, labels = text_frame()
    model = make_pipeline(vectorizer, LogisticRegression()).fit(frame["text"], labels)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as in export_as
        proto = to_onnx(
            model,
            initial_types=[("words", StringTensorType([None, 1]))],
            options={id(model): {"zipmap": False}, id(vectorizer): {"locale": "C.UTF-8"}},
            target_opset=OPSETS,
        )
    return Exported(
        reference=model,
        candidate=proto.SerializeToString(),
        frame=frame,
        pairs=(
            Paired("label", "label", "probabilities", "probability"),
            Paired("probabilities", "probability"),
        ),
        feed=lambda rows: {"words": rows["text"].to_numpy(dtype=object).reshape(-1, 1)},
        ask_reference=lambda rows: {
            "label": model.predict(rows["text"]),
            "probabilities": model.predict_proba(rows["text"]),
        },
        read_candidate=from_tensors,
    )


def counted_words() -> Exported:
    return text(CountVectorizer())


def weighted_words() -> Exported:
    return text(TfidfVectorizer())


def mixed_types() -> Exported:
    """Numbers with gaps, categories of which some were never seen, booleans and whole numbers, an input a column."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": np.where(rng.random(ROWS) < 0.15, np.nan, rng.normal(40, 12, ROWS)),
            "income": rng.lognormal(10, 1, ROWS),
            "visits": rng.integers(0, 50, ROWS),
            "member": rng.random(ROWS) < 0.4,
            "city": rng.choice(["Oslo", "Rome", "Lima"], ROWS),
        }
    )
    y = np.where(frame["income"] + 800 * frame["visits"] * frame["member"] > 25_000, "yes", "no")
    columns = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["age", "income"]),
            ("counts", StandardScaler(), ["visits", "member"]),
            ("places", OneHotEncoder(handle_unknown="ignore"), ["city"]),
        ]
    )
    model = make_pipeline(columns, LogisticRegression(max_iter=500)).fit(frame, y)
    unseen = frame.copy()
    unseen.loc[::17, "city"] = "Atlantis"
    unseen.loc[5::23, "city"] = None
    types = [
        ("age", FloatTensorType([None, 1])),
        ("income", FloatTensorType([None, 1])),
        ("visits", Int64TensorType([None, 1])),
        ("member", Int64TensorType([None, 1])),
        ("city", StringTensorType([None, 1])),
    ]
    wanted = {"age": np.float32, "income": np.float32, "visits": np.int64, "member": np.int64, "city": object}
    return Exported(
        reference=model,
        candidate=export_as(model, types, {"zipmap": False}),
        frame=unseen,
        pairs=(
            Paired("label", "label", "probabilities", "probability"),
            Paired("probabilities", "probability"),
        ),
        feed=lambda rows: {
            name: rows[name].fillna("" if name == "city" else np.nan).to_numpy().astype(dtype).reshape(-1, 1)
            for name, dtype in wanted.items()
        },
        ask_reference=lambda rows: {"label": model.predict(rows), "probabilities": model.predict_proba(rows)},
        read_candidate=from_tensors,
        casts={
            ("age", "age"): ("float64", "float32"),
            ("income", "income"): ("float64", "float32"),
            ("member", "member"): ("bool", "int64"),
            ("city", "city"): ("object", "string"),
        },
    )


def quantized(*, preset: str) -> Exported:
    """An INT8 network against the float32 export it was made from."""
    X, y = make_regression(ROWS, 8, noise=1, random_state=0)
    frame = table(X.astype(np.float32))
    model = make_pipeline(StandardScaler(), MLPRegressor(hidden_layer_sizes=(32,), max_iter=40, tol=1, random_state=0))
    reference = export(model.fit(frame, y / np.abs(y).max()), frame)
    session = onnxruntime.InferenceSession(reference, providers=["CPUExecutionProvider"])
    return Exported(
        reference=reference,
        candidate=to_int8(reference),
        frame=frame,
        pairs=(Paired("variable", "value"),),
        feed=as_matrix,
        ask_reference=lambda rows: {"variable": session.run(["variable"], as_matrix(rows))[0]},
        read_candidate=lambda out: {"variable": out["variable"]},
        preset=preset,
    )


def to_int8(model: bytes) -> bytes:
    from tempfile import TemporaryDirectory

    from onnxruntime.quantization import QuantType, quantize_dynamic

    with TemporaryDirectory() as folder:
        before, after = Path(folder, "float32.onnx"), Path(folder, "int8.onnx")
        before.write_bytes(model)
        quantize_dynamic(before, after, weight_type=QuantType.QUInt8)
        return after.read_bytes()


def int8_under_its_own_preset() -> Exported:
    return quantized(preset="quantized")


def int8_under_the_default_preset() -> Exported:
    return quantized(preset="float32")


PIPELINES: dict[str, Callable[[], Exported]] = {
    builder.__name__: builder
    for builder in (
        binary_logistic,
        multiclass_text_labels,
        random_forest,
        grid_search,
        hist_gradient_boosting_with_missing_values,
        gradient_boosting,
        ada_boost,
        naive_bayes,
        nearest_neighbours,
        calibrated,
        stacking,
        voting,
        neural_network,
        deep_tree_at_float32_thresholds,
        stale_export,
        nearly_the_same_export,
        bit_equality_asked_of_an_export,
        linear_regression,
        millions,
        several_targets,
        forest_of_several_targets,
        multi_label_forest,
        multi_output_classifier,
        linear_support_vectors,
        support_vectors,
        isolation_forest,
        clusters,
        transformer,
        counted_words,
        weighted_words,
        mixed_types,
        int8_under_its_own_preset,
        int8_under_the_default_preset,
    )
}
