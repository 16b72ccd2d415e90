"""Fitted models and their faithful exports, each made once a session. Nothing here is broken."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache, wraps
from pathlib import Path

import numpy as np
import pandas as pd

from faults.quiet import quietly

OPSETS = {"": 18, "ai.onnx.ml": 3}
FEATURES = ["height", "weight", "age", "dose"]


def once(build):
    """Made at the first call, without a word, and kept."""

    @cache
    @wraps(build)
    def made(*arguments):
        with quietly():
            return build(*arguments)

    return made


@cache
def folder() -> Path:
    """Where files are written; gone when the session ends."""
    path = Path(tempfile.mkdtemp(prefix="faults-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def rng(seed=0):
    return np.random.default_rng(seed)


def single(values):
    """Numbers that float32 holds exactly, so that casting an input is not the fault."""
    return np.asarray(values, dtype=np.float32).astype(np.float64)


@once
def measurements(rows=300, seed=0) -> pd.DataFrame:
    draw = rng(seed)
    means, spreads = [170.0, 70.0, 45.0, 5.0], [10.0, 12.0, 15.0, 2.0]
    return pd.DataFrame(
        {
            name: single(mean + spread * draw.normal(size=rows))
            for name, mean, spread in zip(FEATURES, means, spreads, strict=True)
        }
    )


def standard(frame) -> np.ndarray:
    return ((frame - [170.0, 70.0, 45.0, 5.0]) / [10.0, 12.0, 15.0, 2.0]).to_numpy()


def recovery(frame, seed=1) -> np.ndarray:
    z = standard(frame)
    return 10 + z @ [1.0, -2.0, 0.5, 3.0] + z[:, 0] * z[:, 3] + 0.3 * rng(seed).normal(size=len(z))


def ill(frame) -> np.ndarray:
    return (recovery(frame) > 10.5).astype(int)


def severity(frame) -> np.ndarray:
    return np.digitize(recovery(frame), [8.5, 12.0])


def words(codes, *names) -> np.ndarray:
    return np.array(names)[codes]


def with_gaps(frame, *columns, share=0.15, seed=3) -> pd.DataFrame:
    frame = frame.copy()
    for place, name in enumerate(columns):
        frame.loc[rng(seed + place).random(len(frame)) < share, name] = np.nan
    return frame


@once
def loans(rows=400, seed=5) -> pd.DataFrame:
    """Numbers, an integer, gaps, and two kinds of text."""
    draw = rng(seed)
    balance = single(draw.normal(2_000, 900, rows))
    return pd.DataFrame(
        {
            "income": single(draw.lognormal(10, 0.4, rows).round(2)),
            "balance": np.where(draw.random(rows) < 0.15, np.nan, balance),
            "age": draw.integers(18, 80, rows),
            "city": draw.choice(["Lima", "Oslo", "Quito", "Rome"], rows).astype(object),
            "grade": draw.choice(["A", "B", "C"], rows).astype(object),
        }
    )


def defaulted(frame) -> np.ndarray:
    risk = (
        2.0 * (frame["income"] < 20_000)
        + (frame["age"] < 35)
        + 1.5 * frame["city"].isin(["Lima", "Rome"])
        + 1.0 * frame["balance"].isna()
        + 0.001 * (2_000 - frame["balance"].fillna(2_000))
        + (frame["grade"] == "C")
    )
    return (risk + rng(9).normal(0, 0.5, len(frame)) > 2.2).astype(int)


def types_of(frame):
    """One input a column: text, whole numbers as floats, floats."""
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType

    return [
        (name, StringTensorType([None, 1]) if frame[name].dtype.kind in "OT" else FloatTensorType([None, 1]))
        for name in frame
    ]


def converted(model, data, *, types=None, options=None):
    """What a script with skl2onnx gets: one matrix input unless told otherwise, no dictionaries."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType

    with quietly():
        chosen = dict(options or {})
        if hasattr(model, "predict_proba") and not hasattr(model, "weights_"):
            chosen.setdefault(id(model), {"zipmap": False})
        return to_onnx(
            model,
            initial_types=types or [("X", FloatTensorType([None, np.shape(data)[1]]))],
            options=chosen,
            target_opset=OPSETS,
        )


@once
def logistic(classes=2, text=True):
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

    frame = measurements()
    codes = ill(frame) if classes == 2 else severity(frame)
    names = ("healthy", "ill") if classes == 2 else ("mild", "severe", "worst")
    model = Pipeline([("scaler", StandardScaler()), ("classifier", LogisticRegression())])
    return model.fit(frame, words(codes, *names) if text else codes)


@once
def logistic_onnx(classes=2, text=True):
    return converted(logistic(classes, text), measurements())


@once
def loan_pipeline(seed=None):
    """Imputer, scaler, encoder, logistic regression; a seed fits it to a resample of the data."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import Pipeline

    frame = loans()
    target = defaulted(frame)
    if seed is not None:
        chosen = rng(seed).integers(0, len(frame), 120)
        frame, target = frame.iloc[chosen], target[chosen]
    return Pipeline([("prep", loan_columns()), ("clf", LogisticRegression(max_iter=500))]).fit(frame, target)


def loan_columns(*, scaled=True, encoder=None):
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    steps = [("imputer", SimpleImputer(strategy="median")), *([("scaler", StandardScaler())] if scaled else [])]
    return ColumnTransformer(
        [
            ("num", Pipeline(steps), ["income", "balance", "age"]),
            ("cat", encoder or OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["city", "grade"]),
        ]
    )


@once
def loan_onnx():
    return converted(loan_pipeline(), loans(), types=types_of(loans()))


@once
def forest(kind="regressor", trees=8):
    from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

    frame = measurements()
    if kind == "regressor":
        return RandomForestRegressor(trees, max_depth=5, random_state=0).fit(frame, recovery(frame))
    return RandomForestClassifier(trees, max_depth=5, random_state=0).fit(frame, severity(frame))


@once
def forest_onnx(kind="regressor", trees=8):
    return converted(forest(kind, trees), measurements())


@once
def boosted():
    from sklearn.ensemble import GradientBoostingRegressor

    frame = measurements()
    return GradientBoostingRegressor(n_estimators=12, max_depth=3, random_state=0).fit(frame, recovery(frame))


@once
def boosted_onnx():
    return converted(boosted(), measurements())


def numbered(frame) -> pd.DataFrame:
    """Columns named as the XGBoost converter wants them."""
    return frame.set_axis([f"f{place}" for place in range(frame.shape[1])], axis=1)


@once
def xgb(kind="binary", gaps=False, trees=12, seed=0):
    import xgboost

    frame = numbered(with_gaps(measurements(), "weight", "dose") if gaps else measurements())
    settings = {"n_estimators": trees, "max_depth": 4, "n_jobs": 1, "random_state": seed, "learning_rate": 0.3}
    if seed:
        settings |= {"subsample": 0.5, "max_depth": 3}
    whole = measurements()
    if kind == "regression":
        bump = 4 * frame["f1"].isna().to_numpy()
        return xgboost.XGBRegressor(**settings).fit(frame, recovery(whole) + bump)
    return xgboost.XGBClassifier(**settings).fit(frame, ill(whole) if kind == "binary" else severity(whole))


def xgb_converted(model, features=4):
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    with quietly():
        return onnxmltools.convert_xgboost(model, initial_types=[("X", FloatTensorType([None, features]))])


@once
def xgb_onnx(kind="binary", gaps=False, trees=12, seed=0):
    return xgb_converted(xgb(kind, gaps, trees, seed))


LIGHT = {"n_estimators": 12, "num_leaves": 8, "n_jobs": 1, "verbose": -1, "min_child_samples": 5, "random_state": 0}


def light(frame, target, *, classifier=False, fit=None, **settings):
    import lightgbm

    kind = lightgbm.LGBMClassifier if classifier else lightgbm.LGBMRegressor
    with quietly():
        return kind(**{**LIGHT, **settings}).fit(frame, target, **(fit or {}))


def light_converted(model, features=4):
    import onnxmltools
    from onnxmltools.convert.common.data_types import FloatTensorType

    with quietly():
        return onnxmltools.convert_lightgbm(
            model, initial_types=[("X", FloatTensorType([None, features]))], zipmap=False
        )


@once
def light_plain():
    frame = measurements()
    return light(frame, recovery(frame))


@once
def light_plain_onnx():
    return light_converted(light_plain())


def cat(frame, target, *, classifier=False, **settings):
    import catboost

    kind = catboost.CatBoostClassifier if classifier else catboost.CatBoostRegressor
    chosen = {"iterations": 12, "depth": 4, "verbose": 0, "thread_count": 1, "allow_writing_files": False}
    with quietly():
        return kind(**{**chosen, "random_seed": 0, **settings}).fit(frame, target)


def cat_converted(model):
    import onnx

    path = folder() / "catboost.onnx"
    with quietly():
        model.save_model(str(path), format="onnx")
    return onnx.load(path)


@once
def sk_network():
    """A network of scikit-learn behind a scaler."""
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

    frame = measurements()
    network = MLPClassifier(hidden_layer_sizes=(12, 8), max_iter=150, random_state=0)
    return Pipeline([("scaler", StandardScaler()), ("network", network)]).fit(frame, severity(frame))


@once
def sk_network_onnx():
    return converted(sk_network(), measurements())


TEXTS = ["good", "bad", "fine", "awful", "film", "plot", "actor", "music", "slow", "great", "Dull", "Superb"]


@once
def reviews(rows=160, more=()):
    draw = rng(11)
    vocabulary = [*TEXTS, *more]
    texts = np.array([" ".join(draw.choice(vocabulary, 7)) for _ in range(rows)], dtype=object)
    liked = np.array([sum(word in text.lower() for word in ("good", "great", "superb", "fine")) for text in texts])
    return texts, (liked >= 2).astype(int)


def text_model(texts, target, vectorizer=None):
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import Pipeline

    with quietly():
        return Pipeline([("tfidf", vectorizer or TfidfVectorizer()), ("clf", LogisticRegression(C=5))]).fit(
            texts, target
        )


def text_converted(model, **options):
    from skl2onnx.common.data_types import StringTensorType

    chosen = {id(model): {"zipmap": False}, id(model[0]): {"locale": "C.UTF-8", **options}}
    return converted(model, None, types=[("text", StringTensorType([None]))], options=chosen)
