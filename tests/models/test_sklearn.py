"""scikit-learn models answer through likewise exactly as they answer by themselves."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import warnings

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import skops.io
from sklearn.base import BaseEstimator
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import DBSCAN, Birch, KMeans
from sklearn.compose import ColumnTransformer
from sklearn.covariance import EllipticEnvelope
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge, SGDClassifier
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import FixedThresholdClassifier, GridSearchCV
from sklearn.multioutput import ClassifierChain, MultiOutputClassifier
from sklearn.naive_bayes import BernoulliNB, ComplementNB, GaussianNB, MultinomialNB
from sklearn.neighbors import KernelDensity, KNeighborsClassifier, LocalOutlierFactor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.semi_supervised import LabelPropagation, LabelSpreading
from sklearn.svm import SVC, OneClassSVM
from sklearn.tree import DecisionTreeClassifier, ExtraTreeClassifier
from threadpoolctl import threadpool_limits

from likewise.contracts.data import Batch, RowIds
from likewise.contracts.models import Kind, Model
from likewise.data.columns import ArrayColumns, ArrowColumns, FrameColumns
from likewise.errors import MissingExtraError, ModelError, UntrustedModelError
from likewise.models.sklearn.open import EXTENSION

RNG = np.random.default_rng(0)
ROWS = 240
X = np.round(np.abs(RNG.normal(size=(ROWS, 4))), 2)
TWO = (X[:, 0] > X[:, 1]).astype(int)
THREE = np.array(["red", "green", "blue"])[X[:, :3].argmax(axis=1)]
TARGET = X @ [1.0, 2.0, 3.0, 4.0]
TEXTS = np.array(["red apple pie", "green apple", "blue sky", "red sky at night"] * 60, dtype=object)
TABLE = pd.DataFrame(
    {
        "age": np.where(RNG.random(ROWS) < 0.1, np.nan, X[:, 0] * 50),
        "city": pd.Series(RNG.choice(["Oslo", "Rome", "Lima"], ROWS)).where(RNG.random(ROWS) > 0.1),
        "income": X[:, 2],
        "member": X[:, 3] > 0.5,
    }
)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Toy models: threads would only wait for each other."""
    with threadpool_limits(1):
        yield


def batch_of(data):
    if isinstance(data, pd.DataFrame | pl.DataFrame):
        columns = FrameColumns(data)
    elif isinstance(data, np.ndarray):
        columns = ArrayColumns({"X": data})
    else:
        columns = data
    return Batch(RowIds(np.arange(len(data))), columns)


def opened(target, **options):
    return EXTENSION.open(Model("sklearn", target, options))


def answers(model, data, outputs=None):
    with opened(model) as runner:
        return runner.run(batch_of(data), outputs=outputs)


def signature(model):
    with opened(model) as runner:
        return runner.signature


def specs(model):
    return {output.name: output for output in signature(model).outputs}


def table_pipeline(final=None):
    columns = ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["age", "income"]),
            ("names", OneHotEncoder(handle_unknown="ignore"), ["city"]),
        ],
        remainder="passthrough",
    )
    return make_pipeline(columns, final or LogisticRegression())


# ---------------------------------------------------------------- what is claimed


@pytest.mark.parametrize("name", ["a.joblib", "a.pkl", "a.PICKLE", "dir/a.skops", "a.joblib.gz", "a.pkl.z"])
def test_model_files_are_claimed(name):
    from pathlib import Path

    assert EXTENSION.claims(name)
    assert EXTENSION.claims(Path(name))


@pytest.mark.parametrize("target", ["a.onnx", "module:thing", "a.csv.gz", 3, None, LogisticRegression, {"a": 1}])
def test_other_things_are_not_claimed(target):
    assert not EXTENSION.claims(target)


def test_live_estimators_are_claimed_without_importing_scikit_learn():
    assert EXTENSION.claims(LogisticRegression())
    code = (
        "import sys; from likewise.models.sklearn.open import EXTENSION as e; "
        "assert e.claims('m.joblib') and not e.claims(object()); "
        "print([m for m in ('sklearn', 'joblib', 'numpy', 'skops') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# ---------------------------------------------------------------- families


FAMILIES = {
    "binary": (lambda: LogisticRegression().fit(X, TWO), X),
    "multiclass": (lambda: LogisticRegression().fit(X, THREE), X),
    "pipeline": (lambda: make_pipeline(StandardScaler(), LogisticRegression()).fit(X, THREE), X),
    "search": (lambda: GridSearchCV(make_pipeline(PCA(2), SVC()), {"svc__C": [1.0]}, cv=2).fit(X, TWO), X),
    "table": (lambda: table_pipeline().fit(TABLE, TWO), TABLE),
    "table boosting": (lambda: HistGradientBoostingRegressor(max_iter=5).fit(TABLE[["age", "income"]], TARGET), TABLE),
    "regression": (lambda: Ridge().fit(X, TARGET), X),
    "several targets": (lambda: LinearRegression().fit(X, np.c_[TARGET, -TARGET]), X),
    "isolation forest": (lambda: IsolationForest(n_estimators=5, random_state=0).fit(X), X),
    "one class": (lambda: OneClassSVM().fit(X), X),
    "outlier factor": (lambda: LocalOutlierFactor(novelty=True).fit(X), X),
    "envelope": (lambda: EllipticEnvelope(random_state=0).fit(X), X),
    "clusters": (lambda: make_pipeline(StandardScaler(), KMeans(3, n_init=1, random_state=0)).fit(X), X),
    "birch": (lambda: Birch(n_clusters=3).fit(X), X),
    "mixture": (lambda: GaussianMixture(2, random_state=0).fit(X), X),
    "transformer": (lambda: make_pipeline(StandardScaler(), PCA(2)).fit(X), X),
    "trees": (lambda: RandomForestClassifier(5, random_state=0).fit(X, THREE), X),
    "neighbours": (lambda: KNeighborsClassifier().fit(X, THREE), X),
    "text": (lambda: make_pipeline(TfidfVectorizer(), MultinomialNB()).fit(TEXTS, THREE), TEXTS),
    "several labels": (lambda: RandomForestClassifier(5, random_state=0).fit(X, np.c_[TWO, 1 - TWO]), X),
}
METHODS = {
    "label": "predict",
    "probabilities": "predict_proba",
    "scores": "decision_function",
    "distances": "transform",
}


@pytest.fixture(scope="module")
def families():
    """Fitted once; nothing a test does may change them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # toy data
        return {name: make() for name, (make, _) in FAMILIES.items()}


def saved(model, how, folder):
    path = folder / f"model.{how.partition(' ')[0]}"
    if how.startswith("joblib"):
        joblib.dump(model, path, compress=3 if "compressed" in how else 0)
    elif how == "pkl":
        path.write_bytes(pickle.dumps(model))
    else:
        skops.io.dump(model, path)
    return path


WAYS = [
    (family, how)
    for family in FAMILIES
    for how in ("live", "joblib", "joblib compressed", "pkl", "skops")
    if (family, how) != ("birch", "skops")  # skops cannot write it
]


@pytest.mark.parametrize(("family", "how"), WAYS)
def test_answers_are_those_of_scikit_learn(families, tmp_path, family, how):
    model, data = families[family], FAMILIES[family][1]
    target = model if how == "live" else saved(model, how, tmp_path)
    if family == "table boosting":
        data = data[["age", "income"]]
    with opened(target) as runner:
        found = runner.run(batch_of(data))
        again = runner.run(batch_of(data))
        declared = runner.signature.outputs
        json.dumps(runner.details, allow_nan=False)
    assert set(found) == {output.name for output in declared}
    for output in declared:
        assert output.view
        value = found[output.name]
        method = METHODS.get(output.name) or ("predict" if hasattr(model, "predict") else "transform")
        expected = getattr(model, method)(data)
        expected = np.stack(expected, axis=1) if isinstance(expected, list) else expected
        assert value.shape == expected.shape
        assert value.tolist() == expected.tolist()
        assert value.tolist() == again[output.name].tolist()
        if output.shape is not None:
            assert len(output.shape) == value.ndim
            assert all(size in (None, real) for size, real in zip(output.shape, value.shape, strict=True))


def test_a_classifier_says_what_its_outputs_mean(families):
    found = specs(families["multiclass"])
    assert {name: output.kind for name, output in found.items()} == {
        "label": Kind.LABEL,
        "probabilities": Kind.PROBABILITY,
        "scores": Kind.SCORE,
    }
    assert all(output.classes == ("blue", "green", "red") for output in found.values())
    assert answers(families["multiclass"], X)["label"].dtype == object


def test_classes_are_plain_python_values():
    for labels, expected in ((TWO, (0, 1)), (TWO.astype(bool), (False, True)), (TWO * 2.0, (0.0, 2.0))):
        model = LogisticRegression().fit(X, labels)
        classes = specs(model)["label"].classes
        assert classes == expected
        assert [type(value) for value in classes] == [type(value) for value in expected]
        assert answers(model, X)["label"].dtype == labels.dtype


def test_object_labels_become_text_or_numbers():
    numbers = LogisticRegression().fit(X, np.array(["no", "yes"], dtype=object)[TWO])
    found = answers(numbers, X)["label"]
    assert found.dtype == object
    assert set(map(type, found)) == {str}


def test_only_what_exists_is_offered():
    assert set(specs(SVC().fit(X, TWO))) == {"label", "scores"}
    assert set(specs(KNeighborsClassifier().fit(X, TWO))) == {"label", "probabilities"}
    assert set(specs(SGDClassifier(loss="hinge").fit(X, TWO))) == {"label", "scores"}
    assert set(specs(Ridge().fit(X, TARGET))) == {"value"}


def test_columns_of_pairs_of_classes_carry_no_classes():
    one_to_one = SVC(decision_function_shape="ovo").fit(X, THREE)
    assert specs(one_to_one)["scores"].classes is None
    assert specs(SVC().fit(X, THREE))["scores"].classes == ("blue", "green", "red")
    assert specs(SVC(decision_function_shape="ovo").fit(X, TWO))["scores"].classes == (0, 1)
    search = GridSearchCV(make_pipeline(one_to_one), {"svc__C": [1.0]}, cv=2).fit(X, THREE)
    assert specs(search)["scores"].classes is None


def test_kinds_of_the_other_families(families):
    kinds = {
        family: {name: output.kind for name, output in specs(families[family]).items()}
        for family in ("regression", "isolation forest", "clusters", "birch", "mixture", "transformer")
    }
    assert kinds == {
        "regression": {"value": Kind.VALUE},
        "isolation forest": {"label": Kind.LABEL, "scores": Kind.SCORE},
        "clusters": {"label": Kind.LABEL, "distances": Kind.DISTANCE},
        "birch": {"label": Kind.LABEL, "distances": Kind.DISTANCE},
        "mixture": {"label": Kind.LABEL, "probabilities": Kind.PROBABILITY},
        "transformer": {"value": Kind.VALUE},
    }
    assert specs(families["isolation forest"])["label"].classes == (-1, 1)
    assert specs(families["mixture"])["probabilities"].classes == (0, 1)


def test_several_labels_with_equal_classes_are_stacked():
    targets = np.c_[TWO, X[:, 2] > 0.5]
    for model in (
        DecisionTreeClassifier(max_depth=3),
        KNeighborsClassifier(),
        MultiOutputClassifier(LogisticRegression()),
    ):
        model.fit(X, targets)
        found = answers(model, X)
        assert found["label"].shape == (ROWS, 2)
        assert np.array_equal(found["label"], model.predict(X))
        assert np.array_equal(found["probabilities"], np.stack(model.predict_proba(X), axis=1))
        assert specs(model)["probabilities"].classes is None


def test_several_labels_with_different_classes_stand_apart():
    model = DecisionTreeClassifier(max_depth=3).fit(X, np.c_[TWO, np.digitize(X[:, 2], [0.5, 1.0])])
    found = answers(model, X)
    assert set(found) == {"label", "probabilities.0", "probabilities.1"}
    for part, expected in enumerate(model.predict_proba(X)):
        assert np.array_equal(found[f"probabilities.{part}"], expected)
    assert specs(model)["probabilities.1"].classes == (0, 1, 2)


def test_chains_and_networks_give_several_labels_in_one_array():
    targets = np.c_[TWO, X[:, 2] > 0.5].astype(int)
    for model in (ClassifierChain(LogisticRegression()), MLPClassifier((3,), max_iter=400, tol=1e-2, random_state=0)):
        model.fit(X, targets)
        found = answers(model, X)
        assert np.array_equal(found["label"], model.predict(X))
        assert np.array_equal(found["probabilities"], model.predict_proba(X))
        assert specs(model)["probabilities"].classes is None


def test_sparse_and_frame_results_become_arrays():
    encoder = OneHotEncoder().fit(X[:, :1])
    assert np.array_equal(answers(encoder, X[:, :1])["value"], encoder.transform(X[:, :1]).toarray())
    for container in ("pandas", "polars"):
        scaler = StandardScaler().set_output(transform=container).fit(X)
        found = answers(scaler, X)["value"]
        assert type(found) is np.ndarray
        assert np.array_equal(found, scaler.transform(X).to_numpy())


def test_a_sparse_result_that_would_fill_the_memory_is_refused():
    model = HashingVectorizer().fit(TEXTS)
    with pytest.raises(ModelError, match="sparse output 'value'") as caught:
        answers(model, TEXTS)
    assert "--batch-size" in str(caught.value)


# ---------------------------------------------------------------- inputs


def test_columns_come_from_the_model(families):
    found = signature(families["table"])
    assert found.table
    assert [spec.name for spec in found.inputs] == ["age", "city", "income", "member"]
    assert all(spec.dtype is None for spec in found.inputs)


@pytest.mark.parametrize("model", ["pipeline", "search", "trees", "clusters"])
def test_arrays_are_one_input(families, model):
    found = signature(families[model])
    assert not found.table
    assert [(spec.name, spec.shape) for spec in found.inputs] == [("X", (None, 4))]


def test_documents_are_one_input(families):
    assert [(spec.name, spec.shape) for spec in signature(families["text"]).inputs] == [("X", (None,))]
    assert signature(HashingVectorizer().fit(TEXTS)).inputs[0].shape == (None,)


def test_an_estimator_that_says_nothing_takes_what_there_is():
    class Anything(BaseEstimator):
        def fit(self, X, y=None):
            self.fitted_ = True
            return self

        def predict(self, X):
            return np.asarray(X)[:, 0]

    model = Anything().fit(X)
    assert signature(model).inputs is None
    assert np.array_equal(answers(model, X)["value"], X[:, 0])
    assert np.array_equal(answers(model, pd.DataFrame(X))["value"], X[:, 0])


def test_the_first_step_names_the_columns_behind_a_passthrough():
    model = Pipeline([("none", "passthrough"), ("model", LogisticRegression())]).fit(TABLE[["income"]], TWO)
    assert [spec.name for spec in signature(model).inputs] == ["income"]
    assert np.array_equal(answers(model, TABLE[["income"]])["label"], model.predict(TABLE[["income"]]))


def test_pandas_polars_and_arrow_give_the_same_answers(families):
    import pyarrow as pa

    model = families["table"]
    expected = model.predict_proba(TABLE)
    polars = pl.from_pandas(TABLE)
    table = pa.Table.from_pandas(TABLE, preserve_index=False)
    assert np.array_equal(answers(model, TABLE)["probabilities"], expected)
    assert np.allclose(answers(model, polars)["probabilities"], model.predict_proba(polars), rtol=0, atol=0)
    with opened(model) as runner:
        found = runner.run(Batch(RowIds(np.arange(ROWS)), ArrowColumns(table)))
    assert np.array_equal(found["probabilities"], expected)


def test_mixed_types_and_missing_values_reach_the_model_as_they_are():
    encode = ColumnTransformer(
        [("names", OrdinalEncoder(encoded_missing_value=-1), ["city"])],
        remainder="passthrough",
        verbose_feature_names_out=False,
    )
    model = make_pipeline(encode, HistGradientBoostingClassifier(max_iter=5)).fit(TABLE, THREE)
    found = answers(model, TABLE)
    assert found["label"].tolist() == model.predict(TABLE).tolist()
    assert np.array_equal(found["probabilities"], model.predict_proba(TABLE))


# ---------------------------------------------------------------- the cost of several questions


class Counting(StandardScaler):
    calls = 0

    def transform(self, X, copy=None):
        type(self).calls += 1
        return super().transform(X, copy=copy)


@pytest.mark.parametrize("search", [False, True])
def test_steps_run_once_for_all_questions(search):
    model = make_pipeline(Counting(), "passthrough", LogisticRegression())
    model = GridSearchCV(model, {"logisticregression__C": [1.0]}, cv=2) if search else model
    model.fit(X, TWO)
    Counting.calls = 0
    found = answers(model, X)
    assert Counting.calls == 1
    assert np.array_equal(found["label"], model.predict(X))
    assert np.array_equal(found["probabilities"], model.predict_proba(X))
    assert np.array_equal(found["scores"], model.decision_function(X))


def test_only_what_is_asked_is_computed(monkeypatch):
    model = LogisticRegression().fit(X, TWO)
    monkeypatch.setattr(LogisticRegression, "predict_proba", lambda *_: pytest.fail("was not asked"))
    assert set(answers(model, X, frozenset({"label"}))) == {"label"}
    assert answers(model, X, frozenset()) == {}


def test_nested_pipelines_and_passthrough_ends():
    nested = make_pipeline(StandardScaler(), make_pipeline(PCA(2), LogisticRegression())).fit(X, TWO)
    assert np.array_equal(answers(nested, X)["probabilities"], nested.predict_proba(X))
    ending = Pipeline([("scale", StandardScaler()), ("end", "passthrough")]).fit(X)
    assert np.array_equal(answers(ending, X)["value"], ending.transform(X))


def test_frames_flow_between_steps():
    frame = TABLE[["age", "income"]]
    model = make_pipeline(SimpleImputer(), LogisticRegression()).set_output(transform="pandas").fit(frame, TWO)
    assert np.array_equal(answers(model, frame)["probabilities"], model.predict_proba(frame))


PLANTED = np.r_[X, np.zeros((3, 4)), np.full((3, 4), 1e6), X[:200] * 1e-9, np.repeat(X[:1], 50, axis=0)]
MANY = np.r_[PLANTED, np.abs(RNG.normal(size=(3000, 4)))]
SHARING = {
    "logistic": LogisticRegression(),
    "liblinear": LogisticRegression(solver="liblinear"),
    "tree": DecisionTreeClassifier(max_depth=2),
    "extra tree": ExtraTreeClassifier(max_depth=2, random_state=0),
    "forest": RandomForestClassifier(4, max_depth=2, random_state=0),
    "extra trees": ExtraTreesClassifier(4, max_depth=2, random_state=0),
    "boosting": GradientBoostingClassifier(n_estimators=4),
    "histogram boosting": HistGradientBoostingClassifier(max_iter=4),
    "adaboost": AdaBoostClassifier(n_estimators=4),
    "gaussian bayes": GaussianNB(),
    "multinomial bayes": MultinomialNB(),
    "complement bayes": ComplementNB(),
    "bernoulli bayes": BernoulliNB(binarize=0.5),
    "network": MLPClassifier((4,), max_iter=500, tol=1e-2, random_state=0),
    "linear discriminant": LinearDiscriminantAnalysis(),
    "quadratic discriminant": QuadraticDiscriminantAnalysis(),
    "soft voting": VotingClassifier([("a", GaussianNB()), ("b", DecisionTreeClassifier(max_depth=2))], voting="soft"),
    "bagging": BaggingClassifier(DecisionTreeClassifier(max_depth=1), 4, random_state=0),
    "calibrated": CalibratedClassifierCV(GaussianNB(), cv=2),
    "propagation": LabelPropagation(kernel="knn"),
    "spreading": LabelSpreading(kernel="knn"),
    "stacking": StackingClassifier([("a", GaussianNB())], LogisticRegression(), cv=2),
    "vector machine": SVC(),
    "neighbours": KNeighborsClassifier(4),
    "threshold": FixedThresholdClassifier(LogisticRegression(), threshold=0.7, pos_label=1),
}


FOR_TWO_CLASSES = ("threshold", "liblinear")
LABELLED = [
    (name, labels)
    for name in SHARING
    for labels in ("two", "three", "flags")
    if labels == "two" or name not in FOR_TWO_CLASSES
]


@pytest.mark.parametrize(("name", "labels"), LABELLED)
def test_labels_are_bit_equal_to_predict(name, labels):
    from sklearn.base import clone

    targets = {"two": TWO, "three": THREE, "flags": TWO.astype(bool)}[labels]
    model = clone(SHARING[name]).fit(X, targets)
    found = answers(model, MANY)
    expected = model.predict(MANY)
    assert found["label"].tolist() == expected.tolist()
    assert found["label"].dtype == (object if labels == "three" else expected.dtype)


def test_planted_ties_are_decided_by_predict():
    model = LogisticRegression().fit(X, TWO)
    model.coef_, model.intercept_ = np.array([[1.0, -1.0, 0.0, 0.0]]), np.array([0.0])
    tied = np.repeat(RNG.normal(size=(2000, 1)), 4, axis=1)
    close = tied + np.c_[RNG.choice([-1e-12, 0.0, 1e-12], 2000), np.zeros((2000, 3))]
    for rows in (tied, close, np.r_[tied, X, close]):
        assert np.array_equal(answers(model, rows)["label"], model.predict(rows))


def test_labels_come_from_probabilities_where_that_is_certain(monkeypatch):
    model = RandomForestClassifier(4, random_state=0).fit(X, TWO)
    expected = model.predict(X)
    monkeypatch.setattr(RandomForestClassifier, "predict", lambda *_: pytest.fail("asked twice"))
    assert np.array_equal(answers(model, X)["label"], expected)


def test_a_subclass_with_its_own_predict_is_asked():
    class Cautious(LogisticRegression):
        def predict(self, X):
            return np.zeros(len(X), dtype=int)

    assert not answers(Cautious().fit(X, TWO), X)["label"].any()


# ---------------------------------------------------------------- no rows


@pytest.mark.parametrize("family", ["binary", "multiclass", "trees", "mixture", "isolation forest", "text"])
def test_no_rows_give_empty_answers_of_the_right_shape(families, family):
    model, data = families[family], FAMILIES[family][1]
    with opened(model) as runner:
        before = runner.run(batch_of(data[:0]))
        full = runner.run(batch_of(data))
        after = runner.run(batch_of(data[:0]))
    for name, value in full.items():
        assert after[name].shape == before[name].shape == (0, *value.shape[1:])
        assert after[name].dtype == value.dtype


def test_no_rows_before_the_shape_is_known(families):
    with opened(families["several targets"]) as runner:
        with pytest.raises(ModelError, match="at least one row"):
            runner.run(batch_of(X[:0]))
        runner.run(batch_of(X))
        assert runner.run(batch_of(X[:0]))["value"].shape == (0, 2)


# ---------------------------------------------------------------- refusals


def fails(target, **options):
    with pytest.raises(ModelError) as caught, opened(target, **options):
        pass
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_model_that_was_not_fitted(tmp_path):
    joblib.dump(make_pipeline(StandardScaler(), LogisticRegression()), tmp_path / "m.joblib")
    assert "Pipeline that is not fitted" in str(fails(tmp_path / "m.joblib"))
    assert "LogisticRegression that is not fitted" in str(fails(LogisticRegression()))


def test_a_search_without_a_model(tmp_path):
    search = GridSearchCV(Ridge(), {"alpha": [1.0]}, cv=2, refit=False).fit(X, TARGET)
    assert "refit=False" in str(fails(search))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (
            {"model": Ridge().fit(X, TARGET), "columns": ["a"]},
            ("dict with the keys 'model', 'columns'", "'model' (Ridge)"),
        ),
        (("v1", Ridge().fit(X, TARGET)), ("a tuple of 2", "1 (Ridge)")),
        (TABLE, ("DataFrame", "Save the fitted estimator")),
        ([1, 2], ("a list of 2", "Save the fitted estimator")),
        (np.arange(3), ("numpy.ndarray", "Save the fitted estimator")),
        (LogisticRegression, ("the class LogisticRegression", "Save the fitted")),
    ],
)
def test_a_file_without_an_estimator_says_what_it_holds(tmp_path, content, expected):
    joblib.dump(content, tmp_path / "m.joblib")
    message = str(fails(tmp_path / "m.joblib"))
    assert all(part in message for part in expected), message


def test_models_that_cannot_answer_new_rows():
    assert "fit_predict" in str(fails(DBSCAN().fit(X)))
    assert "fit_predict" in str(fails(LocalOutlierFactor().fit(X)))
    assert "neither predict nor transform" in str(fails(KernelDensity().fit(X)))


@pytest.mark.parametrize("name", ["m.joblib", "m.pkl", "m.skops"])
def test_files_that_are_missing_or_something_else(tmp_path, name):
    assert "there is no file" in str(fails(tmp_path / name))
    (tmp_path / name).write_bytes(b"\x89PNG\r\n\x1a\n" + b"\0" * 99)
    assert "cannot be loaded" in str(fails(tmp_path / name))


def test_untrusted_code_is_refused_and_named(tmp_path):
    joblib.dump(Counting().fit(X), tmp_path / "m.joblib")
    error = fails(tmp_path / "m.joblib")
    assert isinstance(error, UntrustedModelError)
    assert f"{Counting.__module__}.Counting" in error.message
    with opened(tmp_path / "m.joblib", trusted=[f"{Counting.__module__}.*"]) as runner:
        assert np.array_equal(runner.run(batch_of(X))["value"], StandardScaler().fit_transform(X))


def test_skops_files_keep_the_same_rule(tmp_path):
    skops.io.dump(Counting().fit(X), tmp_path / "m.skops")
    error = fails(tmp_path / "m.skops")
    assert isinstance(error, UntrustedModelError)
    assert f"{Counting.__module__}.Counting" in error.message
    assert "--trust" in error.remedy
    with opened(tmp_path / "m.skops", trusted=[f"{Counting.__module__}.*"]) as runner:
        assert np.array_equal(runner.run(batch_of(X))["value"], StandardScaler().fit_transform(X))


def test_the_words_of_the_model_are_kept(families):
    with opened(families["binary"]) as runner, pytest.raises(ModelError, match="expecting 4 features"):
        runner.run(batch_of(X[:, :2]))
    with opened(families["binary"]) as runner, pytest.raises(ModelError, match="NaN"):
        runner.run(batch_of(X * np.nan))


def test_a_missing_framework_is_named(tmp_path, monkeypatch):
    saved(LogisticRegression().fit(X, TWO), "skops", tmp_path)
    monkeypatch.setitem(sys.modules, "skops", None)
    monkeypatch.setitem(sys.modules, "skops.io", None)
    error = fails(tmp_path / "model.skops")
    assert isinstance(error, MissingExtraError)
    assert "pip install 'likewise[sklearn]'" in str(error)


# ---------------------------------------------------------------- facts for the record


def test_details_describe_the_model(families, tmp_path):
    import sklearn

    path = saved(families["search"], "joblib", tmp_path)
    with opened(path) as runner:
        facts = runner.details
    assert facts["estimator"] == "GridSearchCV(Pipeline(PCA → SVC))"
    assert facts["steps"] == [{"name": "pca", "class": "PCA"}, {"name": "svc", "class": "SVC"}]
    assert facts["sklearn"] == facts["fitted_with"] == sklearn.__version__
    assert facts["classes"] == [0, 1]
    assert facts["features"] == 4


def test_details_show_what_was_set():
    with opened(HistGradientBoostingClassifier(max_iter=5, early_stopping=False).fit(X, TWO)) as runner:
        assert runner.details["parameters"] == {"max_iter": 5, "early_stopping": False}
