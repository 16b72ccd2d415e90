"""scikit-learn models and boosters as converters write them: nothing is edited by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from locate_faults.corpus import Built
from sklearn.calibration import CalibratedClassifierCV
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

NUMBERS = ("age", "income", "debt", "since")


def numbers() -> pd.DataFrame:
    rng = np.random.default_rng(7)
    return pd.DataFrame(
        {
            "age": rng.integers(18, 90, 300).astype(np.float32),
            "income": rng.gamma(2, 20000, 300).round(2),
            "debt": rng.gamma(1, 5000, 300).round(2),
            "since": rng.integers(1, 400, 300).astype(np.float32),
        }
    ).astype(np.float32)


def with_gaps() -> pd.DataFrame:
    frame = numbers()
    frame[np.random.default_rng(8).random(frame.shape) < 0.1] = np.nan
    return frame


def with_zeros() -> pd.DataFrame:
    frame = numbers()
    frame[np.random.default_rng(9).random(frame.shape) < 0.15] = 0
    return frame


def of_few_values() -> pd.DataFrame:
    rng = np.random.default_rng(10)
    return pd.DataFrame({name: rng.integers(0, 5, 300) for name in NUMBERS}).astype(np.float32)


def notes() -> pd.DataFrame:
    rng = np.random.default_rng(11)
    words = np.array(
        ["café", "Straße", "naïve", "x", "don't", "e-mail", "résumé", "OK", "3.5", "plain", "word", "İstanbul"]
    )
    return pd.DataFrame({"note": [" ".join(rng.choice(words, 6)) for _ in range(200)]})


def target(rows: pd.DataFrame) -> np.ndarray:
    plain = rows.select_dtypes("number").fillna(0)
    values = (
        plain.rank(pct=True).sum(axis=1).to_numpy() if len(plain.columns) else rows.iloc[:, 0].str.len().to_numpy(float)
    )
    noise = np.random.default_rng(12).normal(size=len(rows)) * 0.3
    return values + noise


def labels(rows: pd.DataFrame, classes: int = 2) -> np.ndarray:
    values = target(rows)
    return np.digitize(values, np.quantile(values, np.arange(1, classes) / classes))


def words(rows: pd.DataFrame) -> np.ndarray:
    return np.array(["no", "yes"])[labels(rows)]


@dataclass(frozen=True)
class Natural:
    """A model, what it is fitted to, and what writes it as a file: `likewise export` unless it is said."""

    name: str
    make: Callable[[], Any]
    rows: Callable[[], pd.DataFrame]
    wanted: Callable[[pd.DataFrame], np.ndarray]
    causes: tuple[str, ...]
    paths: tuple[str, ...]
    convert: Callable[[Any, pd.DataFrame, Path], None] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def by_skl2onnx(model: Any, rows: pd.DataFrame, path: Path, **options: Any) -> None:
    """As tutorials do it: one matrix of floats."""
    from skl2onnx import to_onnx

    chosen = {id(model): options} if options else None
    path.write_bytes(to_onnx(model, rows[:4].to_numpy(np.float32), options=chosen).SerializeToString())


def by_onnxmltools(model: Any, rows: pd.DataFrame, path: Path) -> None:
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    taken = [("input", FloatTensorType([None, len(rows.columns)]))]
    path.write_bytes(onnxmltools.convert_lightgbm(model, initial_types=taken, zipmap=False).SerializeToString())


def boosted(**options: Any) -> Callable[[], Any]:
    from lightgbm import LGBMClassifier

    return lambda: LGBMClassifier(n_estimators=20, num_leaves=7, verbose=-1, **options)


CASES = [
    Natural(
        "lightgbm-zeros",
        boosted(zero_as_missing=True),
        with_zeros,
        labels,
        ("missing-value-handling",),
        NUMBERS,
        by_onnxmltools,
    ),
    Natural(
        "lightgbm-forest",
        boosted(boosting_type="rf", bagging_freq=1, bagging_fraction=0.7),
        numbers,
        labels,
        ("aggregation",),
        ("trees",),
        by_onnxmltools,
    ),
    Natural(
        "tree-gaps",
        lambda: DecisionTreeClassifier(max_depth=4, random_state=0),
        with_gaps,
        labels,
        ("missing-value-handling",),
        NUMBERS,
        by_skl2onnx,
    ),
    Natural(
        "calibrated-isotonic",
        lambda: CalibratedClassifierCV(GaussianNB(), method="isotonic", cv=3),
        numbers,
        labels,
        ("operator-semantics", "approximation"),
        ("IsotonicRegression", "calibrators", "ArgMin"),
        by_skl2onnx,
    ),
    Natural(
        "neighbours-equally-near",
        lambda: KNeighborsClassifier(5),
        of_few_values,
        labels,
        ("tie-breaking",),
        ("KNeighborsClassifier",),
        partial(by_skl2onnx, zipmap=False),
    ),
    Natural(
        "neighbours-unweighted",
        lambda: KNeighborsRegressor(4, weights="distance"),
        numbers,
        target,
        ("aggregation",),
        ("KNeighborsRegressor",),
        by_skl2onnx,
    ),
    Natural(
        "raw-scores",
        lambda: LogisticRegression(max_iter=5),
        numbers,
        labels,
        ("output-kind", "link-function"),
        ("probabilities", "scores"),
        partial(by_skl2onnx, raw_scores=True, zipmap=False),
    ),
    Natural(
        "without-classes",
        lambda: DecisionTreeClassifier(max_depth=3, random_state=0),
        numbers,
        words,
        ("label-mapping",),
        ("label",),
        partial(by_skl2onnx, nocl=True, zipmap=False),
    ),
    Natural(
        "text-of-other-scripts",
        lambda: make_pipeline(TfidfVectorizer(), LogisticRegression()),
        notes,
        labels,
        ("tokenizer",),
        ("note",),
    ),
    Natural(
        "process",
        lambda: make_pipeline(StandardScaler(), GaussianProcessRegressor(alpha=1e-8)),
        numbers,
        target,
        ("float32-compute",),
        ("gaussianprocessregressor", "model"),
        by_skl2onnx,
    ),
]


def makers(_: Any) -> Iterator[tuple[str, Callable[[Path], Built]]]:
    for case in CASES:
        yield f"natural-{case.name}", partial(make, case)


def make(case: Natural, place: Path) -> Built:
    """The fitted model, the rows, and the file as the converter writes it."""
    import joblib

    import likewise

    rows = case.rows()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        text = len(rows.columns) == 1
        model = case.make().fit(rows.iloc[:, 0] if text else rows, case.wanted(rows))
        joblib.dump(model, place / "model.joblib")
        rows.to_parquet(place / "rows.parquet")
        if case.convert is None:
            likewise.export(model, rows, place / "candidate.onnx", check=False)
        else:
            case.convert(model, rows, place / "candidate.onnx")
    return Built(
        f"natural-{case.name}", "natural scikit-learn", str(place / "model.joblib"), str(place / "candidate.onnx"),
        str(place / "rows.parquet"), "natural", case.causes, (), (), case.paths, case.options, case.name,
    )  # fmt: skip
