"""Every ordinary model can be read, and answers as if an unrestricted loader had read it."""

from __future__ import annotations

import collections
import datetime
import functools
import io
import operator
import pickle
import re
import warnings

import joblib
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import scipy.spatial.distance
import scipy.special
import scipy.stats
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessRegressor, kernels
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import RandomizedSearchCV
from sklearn.naive_bayes import MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.utils import all_estimators
from threadpoolctl import threadpool_limits

from likewise.models.pickles import load


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Toy models: threads would only wait for each other."""
    with threadpool_limits(1):
        yield


VALUES = {
    "frame": pd.DataFrame(
        {
            "number": [1, 2],
            "text": ["x", None],
            "category": pd.Categorical(["u", "v"]),
            "time": pd.to_datetime(["2020", "2021"]),
            "integer": pd.array([1, None], dtype="Int64"),
            "boolean": pd.array([True, None], dtype="boolean"),
        }
    ),
    "index": pd.MultiIndex.from_tuples([(1, "a"), (2, "b")]),
    "timestamp": pd.Timestamp("2020", tz="UTC"),
    "missing": [pd.NA, pd.NaT, None, float("nan")],
    "distributions": [scipy.stats.loguniform(1e-3, 1), scipy.stats.randint(1, 9), scipy.stats.norm],
    "functions": [np.log1p, np.nan_to_num, scipy.special.expit, scipy.spatial.distance.cosine, str.lower, len],
    "partial": functools.partial(np.clip, a_min=0, a_max=1),
    "pattern": re.compile("a+").findall,
    "getter": operator.itemgetter("text"),
    "collections": [collections.OrderedDict(a=1), collections.Counter("ab"), collections.deque([1], 3), {1}, {2: 3}],
    "moments": [datetime.datetime(2020, 1, 1), datetime.timedelta(1), datetime.date(2020, 1, 1)],
    "sparse": [scipy.sparse.csr_matrix(np.eye(3)), scipy.sparse.coo_array(np.eye(3))],
    "random": [np.random.RandomState(0), np.random.default_rng(0)],
    "scalars": [np.float32(2), np.int64(2), np.bool_(True), np.str_("a"), 1j, b"bytes", bytearray(b"x"), range(3), ...],
    "types": [int, np.float32, np.dtype("f4"), np.dtype([("a", "f4"), ("b", "i8")])],
}
ARRAYS = {
    "objects": np.array(["a", None, 1.5], dtype=object),
    "fields": np.zeros(3, dtype=[("a", "f4"), ("b", "i8")]),
    "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "dates": np.array(["2020-01-01"], dtype="M8[D]"),
    "swapped": np.arange(5, dtype=">f8"),
    "text": np.array(["aä", "b"]),
    "scalar": np.array(3.0),
    "empty": np.zeros((0, 3)),
    "large": np.arange(100_000.0),
}


def dumped(tmp_path, value):
    """The value in every form it may be found in."""
    for compress in (0, 3, ("gzip", 1), ("bz2", 1), ("xz", 1)):
        joblib.dump(value, tmp_path / "value.joblib", compress=compress)
        yield tmp_path / "value.joblib"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        (tmp_path / "value.pkl").write_bytes(pickle.dumps(value, protocol=protocol))
        yield tmp_path / "value.pkl"


@pytest.mark.parametrize("name", VALUES)
def test_values_found_in_models(tmp_path, name):
    for path in dumped(tmp_path, VALUES[name]):
        assert type(load(path)) is type(VALUES[name])


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_come_back_as_they_were(tmp_path, name):
    for path in dumped(tmp_path, ARRAYS[name]):
        array = load(path)
        assert array.dtype.newbyteorder("=") == ARRAYS[name].dtype.newbyteorder("=")
        assert array.shape == ARRAYS[name].shape
        assert array.tolist() == ARRAYS[name].tolist()


RNG = np.random.default_rng(0)
X = np.abs(RNG.normal(size=(60, 4))) + 0.1
CLASSES = (X[:, 0] > X[:, 1]).astype(int)
TARGETS = X @ [1.0, 2.0, 3.0, 4.0]
DOCUMENTS = ["red apple pie", "green apple", "blue sky", "red sky at night"] * 15
SLOW = {"TSNE", "GraphicalLassoCV", "LogisticRegressionCV", "MiniBatchDictionaryLearning", "DictionaryLearning"}
NEEDED = {
    "estimator": LogisticRegression(),
    "estimators": [("a", LogisticRegression()), ("b", KNeighborsClassifier())],
    "transformers": [("a", StandardScaler(), [0, 1])],
    "transformer_list": [("a", StandardScaler())],
    "steps": [("a", StandardScaler()), ("b", Ridge())],
    "param_grid": {"C": [1.0]},
    "param_distributions": {"C": [1.0]},
    "dictionary": np.eye(4),
}


def instance(cls):
    """An estimator with what it cannot do without."""
    import inspect

    parameters = inspect.signature(cls).parameters.values()
    required = [p.name for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    options = {name: NEEDED[name] for name in required}
    if cls.__name__ in ("StackingRegressor", "VotingRegressor"):
        options["estimators"] = [("a", Ridge())]
    for name, value in (("n_estimators", 4), ("max_iter", 30), ("cv", 2), ("n_init", 1)):
        if any(p.name == name for p in parameters):
            options[name] = value
    return cls(**options)


def fitted(cls):
    """The estimator fitted on the first toy data it takes, with that data; None if it takes none."""
    for arguments in ((X, CLASSES), (X, TARGETS), (X, np.c_[CLASSES, 1 - CLASSES]), (DOCUMENTS,), (CLASSES,)):
        model = instance(cls)
        try:
            model.fit(*arguments)
            answers(model, arguments[0])
        except (ValueError, TypeError, AttributeError, IndexError):
            continue
        return model, arguments[0]
    return None


def answers(model, data):
    """What the model says of the data, whichever way it can be asked."""
    found = []
    for method in ("predict", "predict_proba", "decision_function", "transform"):
        if hasattr(model, method):
            values = getattr(model, method)(data)
            for value in values if isinstance(values, list | tuple) else [values]:
                found.extend([value.data, value.nonzero()[1]] if scipy.sparse.issparse(value) else [np.asarray(value)])
    return found


def assert_reads_like_the_original(path, model, data):
    """The same answers as the unrestricted loaders give: joblib plain and compressed, pickles of each protocol."""
    for compress in (0, 1):
        joblib.dump(model, path, compress=compress)
        assert_equal_answers(load(path), joblib.load(path), data)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        pickled = pickle.dumps(model, protocol=protocol)
        path.write_bytes(pickled)
        loaded = load(path)
        if protocol in (2, 5):
            assert_equal_answers(loaded, pickle.loads(pickled), data)


def assert_equal_answers(model, original, data):
    for found, expected in zip(answers(model, data), answers(original, data), strict=True):
        assert np.array_equal(found, expected, equal_nan=expected.dtype.kind == "f"), original


def test_every_estimator_of_scikit_learn_can_be_read(tmp_path):
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # toy data: models do not converge, and that is not the point
        for name, cls in all_estimators():
            if name in SLOW or name == "FrozenEstimator":
                continue
            found = fitted(cls)
            if found is None:
                continue
            assert_reads_like_the_original(tmp_path / "model", *found)
            seen.append(name)
    assert len(seen) >= 170, sorted({name for name, _ in all_estimators()} - set(seen))


COMPOSED = {
    "text": lambda: make_pipeline(TfidfVectorizer(preprocessor=str.lower), MultinomialNB()).fit(DOCUMENTS, CLASSES),
    "tokens": lambda: CountVectorizer(tokenizer=re.compile("[a-z]+").findall, token_pattern=None).fit(DOCUMENTS),
    "search": lambda: RandomizedSearchCV(
        LogisticRegression(),
        {"C": scipy.stats.loguniform(0.1, 1), "max_iter": scipy.stats.randint(90, 99)},
        n_iter=2,
        cv=2,
    ).fit(X, CLASSES),
    "kernel": lambda: GaussianProcessRegressor(kernels.RBF(1.0) * 2.0 + kernels.WhiteKernel(), optimizer=None).fit(
        X, TARGETS
    ),
    "columns": lambda: make_pipeline(
        ColumnTransformer([("n", FunctionTransformer(np.log1p), [0]), ("c", OneHotEncoder(), [1])]),
        LogisticRegression(),
    ).fit(np.c_[X[:, 0], CLASSES], CLASSES),
    "frozen": lambda: FrozenEstimator(LogisticRegression().fit(X, CLASSES)),
    "isotonic": lambda: CalibratedClassifierCV(LogisticRegression(), method="isotonic", cv=2).fit(X, CLASSES),
    "ball tree": lambda: KNeighborsClassifier(algorithm="ball_tree").fit(X, CLASSES),
}


@pytest.mark.parametrize("name", COMPOSED)
def test_composed_models_can_be_read(tmp_path, name):
    model = COMPOSED[name]()
    data = DOCUMENTS if name in ("text", "tokens") else np.c_[X[:, 0], CLASSES] if name == "columns" else X
    assert_reads_like_the_original(tmp_path / "model", model, data)


def test_a_gzipped_pickle_can_be_read(tmp_path):
    import gzip

    buffer = io.BytesIO(pickle.dumps(Ridge()))
    (tmp_path / "m.pkl").write_bytes(gzip.compress(buffer.getvalue()))
    assert isinstance(load(tmp_path / "m.pkl"), Ridge)
