"""`likewise export`: real pipelines become files that answer like them, or an error that names the step."""

from __future__ import annotations

import hashlib
import json
import warnings

import joblib
import numpy as np
import onnx
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, IsolationForest, RandomForestClassifier
from sklearn.feature_extraction import DictVectorizer
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsOneClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    StandardScaler,
    TargetEncoder,
)
from sklearn.semi_supervised import LabelPropagation

import data_only
import likewise
from likewise.errors import DataError, ModelError, UsageError
from likewise.models.sklearn import ensembles
from planting import command, here

ROWS = 240
BEYOND_FLOAT32 = 2**25


@pytest.fixture(scope="module")
def frame():
    """Numbers with gaps, whole numbers, identifiers that float32 cannot tell apart, flags, text with gaps."""
    random = np.random.default_rng(0)
    size = random.normal(size=ROWS).round(3)
    shop = random.choice(["north", "south", "west"], ROWS).astype(object)
    return pd.DataFrame(
        {
            "size": np.where(random.random(ROWS) < 0.1, np.nan, size),
            "rooms": random.integers(1, 9, ROWS),
            "agent": BEYOND_FLOAT32 + random.integers(0, 6, ROWS),
            "new": random.random(ROWS) < 0.5,
            "shop": pd.Series(np.where(random.random(ROWS) < 0.2, None, shop), dtype="str"),
        }
    )


@pytest.fixture(scope="module")
def sold(frame):
    noise = np.random.default_rng(1).normal(size=ROWS)
    return ((frame["agent"] % 2) + frame["rooms"] / 4 + frame["size"].fillna(0) + noise > 2).astype(int)


def columns(*encoders):
    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    return ColumnTransformer(
        [
            ("numbers", numbers, ["size", "rooms"]),
            ("agents", OneHotEncoder(handle_unknown="ignore"), ["agent", "new"]),
            ("shops", make_pipeline(*encoders), ["shop"]),
        ],
        sparse_threshold=0,
    )


def dtypes(exported):
    return {entry["name"]: entry["dtype"] for entry in exported.features}


def with_surprises(frame):
    """The same table with a category, an identifier and a gap that training never saw."""
    surprising = frame.copy()
    surprising.loc[3:7, "shop"] = "east"
    surprising.loc[5:9, "agent"] = BEYOND_FLOAT32 + 77
    surprising.loc[0:4, "size"] = np.nan
    return surprising


ENCODINGS = {
    "a gap is a category": [OneHotEncoder(handle_unknown="ignore")],
    "a gap is filled with the most frequent": [
        SimpleImputer(strategy="most_frequent"),
        OneHotEncoder(handle_unknown="ignore"),
    ],
    "a gap is filled with a word": [
        SimpleImputer(strategy="constant", fill_value="none"),
        OneHotEncoder(handle_unknown="ignore"),
    ],
    "a gap has its own mean": [TargetEncoder()],
    "a gap is as good as unknown": [
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-1)
    ],
}


@pytest.mark.parametrize("encoders", ENCODINGS.values(), ids=ENCODINGS)
def test_mixed_columns_with_gaps_and_unseen_categories_survive(encoders, frame, sold, tmp_path):
    model = make_pipeline(columns(*encoders), LogisticRegression()).fit(frame, sold)
    exported = data_only.export(model, with_surprises(frame), tmp_path / "m.onnx")
    assert exported, exported.report.verdict.headline
    assert dtypes(exported) == {
        "size": "float32",
        "rooms": "float32",
        "agent": "int64",
        "new": "int64",
        "shop": "string",
    }
    assert exported.report.samples == ROWS


def test_probabilities_come_as_an_array_unless_dictionaries_are_asked_for(frame, sold, tmp_path):
    model = LogisticRegression().fit(frame[["rooms"]], sold)
    for zipmap in (False, True):
        assert data_only.export(model, frame, tmp_path / "m.onnx", zipmap=zipmap)
        operators = {node.op_type for node in onnx.load(tmp_path / "m.onnx").graph.node}
        assert ("ZipMap" in operators) is zipmap


def test_identifiers_beyond_float32_are_told_apart_also_without_an_encoder(frame, sold, tmp_path):
    """The graph still computes in float32: `double` is what keeps their last digits in arithmetic."""
    numbers = frame[["agent", "rooms"]]
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(numbers, sold)
    single = data_only.export(model, numbers, tmp_path / "single.onnx")
    assert dtypes(single) == {"agent": "int64", "rooms": "float32"}
    double = data_only.export(model, numbers, tmp_path / "double.onnx", double=True)
    assert dtypes(double) == {"agent": "float64", "rooms": "float64"}
    assert double.report.max_abs_diff < 1e-12 < single.report.max_abs_diff


def test_small_whole_numbers_that_are_computed_with_can_be_missing(frame, sold, tmp_path):
    """An int64 input could not take the gap that the imputer was made for."""
    model = make_pipeline(columns(OneHotEncoder(handle_unknown="ignore")), LogisticRegression()).fit(frame, sold)
    likewise.export(model, frame, tmp_path / "m.onnx", check=False)
    later = frame.astype({"rooms": float})
    later.loc[0:9, "rooms"] = np.nan
    assert data_only.check(model, tmp_path / "m.onnx", later).passed


NUMBERS = ["rooms", "agent", "new"]
PLAIN = {
    "a bare classifier": LogisticRegression(),
    "steps": make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()),
    "products": make_pipeline(StandardScaler(), PolynomialFeatures(2), LogisticRegression(max_iter=1000)),
    "a search": GridSearchCV(
        make_pipeline(StandardScaler(), LogisticRegression()), {"logisticregression__C": [1]}, cv=2
    ),
    "calibrated": CalibratedClassifierCV(LogisticRegression(), cv=2),
    "forest": RandomForestClassifier(5, random_state=0),
    "boosted": HistGradientBoostingClassifier(max_iter=5),
    "clusters": KMeans(3, random_state=0, n_init=1),
    "a transformer": StandardScaler(),
}


@pytest.mark.parametrize("model", PLAIN.values(), ids=PLAIN)
def test_a_table_has_one_input_a_column_whatever_sees_it_first(model, frame, sold, tmp_path):
    table = frame[NUMBERS].assign(agent=frame["agent"] % 10)
    exported = data_only.export(model.fit(table, sold), table, tmp_path / "m.onnx", abs_tol=1e-4)
    assert exported, exported.report.verdict.headline
    assert dtypes(exported) == {"rooms": "float32", "agent": "float32", "new": "bool"}


def test_an_array_stays_one_input(frame, sold, tmp_path):
    X = frame[["rooms", "agent"]].to_numpy()
    small = (X % 100).astype(float)
    exported = data_only.export(LogisticRegression().fit(small, sold), small, tmp_path / "m.onnx")
    assert exported
    assert [(entry["name"], entry["dtype"], entry["shape"]) for entry in exported.features] == [
        ("X", "float32", [None, 2])
    ]
    whole = likewise.export(RandomForestClassifier(3).fit(X, sold), X, tmp_path / "whole.onnx", check=False)
    assert dtypes(whole) == {"X": "int64"}


def test_a_table_for_a_model_of_arrays_says_which_columns_stand_where(frame, sold, tmp_path):
    table = frame[["rooms", "new"]]
    model = LogisticRegression().fit(table.to_numpy(float), sold)
    exported = data_only.export(model, table, tmp_path / "m.onnx")
    assert exported
    assert exported.features[0]["columns"] == ["rooms", "new"]


def test_a_regressor_and_several_text_classes(frame, tmp_path):
    table = frame[["rooms", "new"]]
    value = data_only.export(Ridge().fit(table, frame["rooms"] * 2.5), table, tmp_path / "value.onnx")
    assert value
    kinds = np.array(["flat", "house", "loft"], dtype=object)[frame["rooms"] % 3]
    model = make_pipeline(StandardScaler(), MLPClassifier((4,), random_state=0, max_iter=2000)).fit(table, kinds)
    named = data_only.export(model, table, tmp_path / "named.onnx")
    assert named
    assert json.loads((tmp_path / "named.metadata.json").read_text())["classes"] == ["flat", "house", "loft"]


@pytest.mark.parametrize("vectorizer", [TfidfVectorizer(ngram_range=(1, 2)), CountVectorizer(lowercase=False)])
def test_text_is_cut_into_the_same_words(vectorizer, sold, tmp_path):
    words = ["Été à Nîmes", "x-ray no.7 a", "naïve_b it's", "日本 lake 99", "GOOD good"]
    texts = np.array([f"{words[i % 5]} row{i % 7} {words[i % 3]}" for i in range(ROWS)], dtype=object)
    model = make_pipeline(vectorizer, LogisticRegression()).fit(texts, sold)
    exported = data_only.export(model, {"review": texts}, tmp_path / "m.onnx")
    assert exported, exported.report.verdict.headline
    assert [entry["dtype"] for entry in exported.features] == ["string"]
    table = pd.DataFrame({"review": texts, "stars": np.arange(ROWS) % 5})
    both = ColumnTransformer([("text", vectorizer, "review"), ("rest", "passthrough", ["stars"])])
    assert data_only.export(make_pipeline(both, LogisticRegression()).fit(table, sold), table, tmp_path / "t.onnx")


def test_a_model_that_needs_an_older_operator_set_gets_it_and_says_so(frame, tmp_path):
    X = frame[["rooms", "new"]].to_numpy(np.float32)
    exported = data_only.export(
        IsolationForest(n_estimators=10, random_state=0).fit(X), X, tmp_path / "m.onnx", opset=18
    )
    assert exported, exported.report.verdict.headline
    assert "ai.onnx.ml 3" in exported.notes[0]
    opsets = {entry.domain: entry.version for entry in onnx.load(tmp_path / "m.onnx").opset_import}
    assert opsets["ai.onnx.ml"] <= 3
    assert opsets[""] <= 18


class Doubler(TransformerMixin, BaseEstimator):
    """A step of the user's own, which no converter knows."""

    def fit(self, X, y=None):
        self.fitted_ = True
        return self

    def transform(self, X):
        return X * 2


REFUSED = {
    "a step of one's own": (
        make_pipeline(ColumnTransformer([("n", make_pipeline(Doubler(), StandardScaler()), ["rooms"])]), Ridge()),
        "step 'columntransformer.n.doubler' (Doubler): it has no converter",
        "before the model, or teach it",
    ),
    "a function": (
        make_pipeline(FunctionTransformer(np.spacing), Ridge()),
        "step 'functiontransformer' (FunctionTransformer): it calls numpy.spacing",
        "before the model",
    ),
    "a final estimator": (LabelPropagation(), "LabelPropagation: it has no converter", "Train a model it supports"),
}


@pytest.mark.parametrize(("model", "message", "remedy"), REFUSED.values(), ids=REFUSED)
def test_a_step_that_cannot_be_converted_is_named(model, message, remedy, frame, sold, tmp_path):
    model = model.fit(frame[["rooms"]], sold)
    with pytest.raises(ModelError) as caught:
        data_only.export(model, frame, tmp_path / "m.onnx")
    assert message in caught.value.message
    assert remedy in caught.value.remedy
    assert not caught.value.message.endswith(".")
    assert not list(tmp_path.iterdir())


def test_a_step_inside_a_calibrated_model_is_refused_with_the_way_out(frame, sold, tmp_path):
    inner = make_pipeline(columns(OneHotEncoder(handle_unknown="ignore")), LogisticRegression())
    model = CalibratedClassifierCV(inner, cv=2).fit(frame, sold)
    with pytest.raises(ModelError, match="ColumnTransformer see the columns first"):
        data_only.export(model, frame, tmp_path / "m.onnx")


def test_dictionaries_are_refused_with_what_to_use_instead(frame, tmp_path):
    rows = frame[["rooms", "size"]].to_dict("records")
    with pytest.raises(ModelError, match="It takes dictionaries"):
        data_only.export(DictVectorizer(sparse=False).fit(rows), rows, tmp_path / "m.onnx")


def test_flags_of_trees_are_written_as_the_integers_that_onnx_has_for_them(frame, sold, tmp_path, monkeypatch):
    """protobuf 7 refuses a boolean where an integer belongs; the converter lists booleans for histogram boosting."""
    made = onnx.helper.make_attribute

    def strict(key, value, *more, **options):
        if isinstance(value, list) and any(isinstance(entry, bool | np.bool_) for entry in value):
            raise TypeError("Field onnx.AttributeProto.ints: Expected an int, got a boolean.")
        return made(key, value, *more, **options)

    monkeypatch.setattr(onnx.helper, "make_attribute", strict)
    rows = frame[["size", "rooms"]].to_numpy()
    model = HistGradientBoostingClassifier(max_iter=3).fit(rows, sold)
    assert likewise.export(model, rows, tmp_path / "model.onnx", **data_only.OPTIONS)
    assert onnx.helper.make_attribute is strict


def test_what_does_not_load_never_takes_the_place_of_a_file(frame, sold, tmp_path):
    path = tmp_path / "m.onnx"
    likewise.export(LogisticRegression().fit(frame[["rooms"]], sold), frame, path, check=False)
    before = path.read_bytes()
    model = GaussianProcessClassifier().fit(frame[["rooms"]], sold)
    with pytest.raises(ModelError, match="does not load") as caught:
        data_only.export(model, frame, path)
    assert "has no such operator" in caught.value.remedy
    assert path.read_bytes() == before


def test_named_classes_that_a_converter_cannot_write_are_the_one_thing_to_change(frame, tmp_path, monkeypatch):
    """Leaving out --double would not help, and is not proposed."""
    table, rooms = frame[["rooms"]], np.digitize(frame["rooms"], np.quantile(frame["rooms"], [0.3, 0.6]))
    model = OneVsOneClassifier(LogisticRegression())
    named = np.array(["a", "b", "c"])[rooms]
    assert data_only.export(model.fit(table, named), table, tmp_path / "m.onnx", double=True).report.passed
    # Written as skl2onnx does by itself.
    monkeypatch.setattr(ensembles, "one_against_one", lambda write: write.as_registered(write.operator.type))
    with pytest.raises(ModelError, match="does not load") as caught:
        data_only.export(model, table, tmp_path / "other.onnx", double=True)
    assert caught.value.remedy.startswith("Train it on classes that are whole numbers (0, 1, 2 …)")


def test_questions_that_make_no_sense(frame, sold, tmp_path):
    table = frame[["rooms"]]
    model = LogisticRegression().fit(table, sold)
    with pytest.raises(UsageError, match=r"ends in \.onnx"):
        data_only.export(model, table, tmp_path / "model.bin")
    with pytest.raises(UsageError, match="did you mean 'abs_tol'"):
        data_only.export(model, table, tmp_path / "m.onnx", abs_toll=1)
    with pytest.raises(DataError, match="no rows"):
        data_only.export(model, table[:0], tmp_path / "m.onnx")
    timed = table.assign(rooms=pd.Timestamp("2020-01-01"))
    with pytest.raises(ModelError, match="holds times"):
        data_only.export(model, timed, tmp_path / "m.onnx")
    likewise.export(model, table, tmp_path / "m.onnx", check=False)
    with pytest.raises(ModelError, match="ONNX model already"):
        data_only.export(tmp_path / "m.onnx", table, tmp_path / "again.onnx")


def test_nothing_the_converter_prints_reaches_the_user(frame, sold, tmp_path, capfd):
    model = make_pipeline(columns(OneHotEncoder(handle_unknown="ignore")), LogisticRegression()).fit(frame, sold)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        likewise.export(model, frame, tmp_path / "m.onnx", check=False)
    assert not caught
    assert capfd.readouterr() == ("", "")


@pytest.fixture(scope="module")
def folder(frame, sold, tmp_path_factory):
    folder = tmp_path_factory.mktemp("shipping")
    model = make_pipeline(columns(SimpleImputer(strategy="most_frequent"), OneHotEncoder()), LogisticRegression())
    joblib.dump(model.fit(frame, sold), folder / "model.joblib")
    joblib.dump(
        make_pipeline(FunctionTransformer(np.spacing), Ridge()).fit(frame[["rooms"]], sold), folder / "bad.joblib"
    )
    frame.to_parquet(folder / "test.parquet")
    return folder


def test_the_same_model_gives_the_same_file_and_the_verdict_is_the_exit_code(folder):
    words = ["model.joblib", "--data", "test.parquet"]
    done = here("export", *words, "-o", "one.onnx", "--report", "one.json", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Wrote one.onnx" in done.stdout
    assert " PASS " in done.stdout
    assert done.stderr == ""
    assert json.loads((folder / "one.json").read_text())["samples"] == ROWS
    tiny = ["--abs-tol", "1e-12", "--report", "two.json", "--json"]
    failed = here("export", *words, "-o", "two.onnx", *tiny, folder=folder).expect(1)
    assert json.loads(failed.stdout)["outcome"] == "FAIL"
    other = {"PYTHONHASHSEED": "2"}
    command("export", *words, "-o", "three.onnx", "--no-check", folder=folder, environment=other).expect(0)
    assert len({(folder / f"{name}.onnx").read_bytes() for name in ("one", "two", "three")}) == 1


def test_the_file_says_where_it_came_from(folder):
    done = here(
        "export", "model.joblib", "--data", "test.parquet", "-o", "m.onnx", "--no-check", "--json", folder=folder
    )
    assert done.returncode == 0
    written = json.loads(done.stdout)
    assert written["sha256"] == hashlib.sha256((folder / "m.onnx").read_bytes()).hexdigest()
    assert written["report"] is None
    carried = {entry.key: entry.value for entry in onnx.load(folder / "m.onnx").metadata_props}
    assert carried["likewise.reference_sha256"] == hashlib.sha256((folder / "model.joblib").read_bytes()).hexdigest()
    assert json.loads(carried["likewise.classes"]) == [0, 1]
    assert json.loads(carried["likewise.features"]) == written["features"]
    assert json.loads((folder / "m.features.json").read_text())["features"] == written["features"]
    assert set(json.loads(carried["likewise.versions"])) == {"likewise", "onnx", "skl2onnx", "sklearn"}
    assert not (folder / "parity_report.json").exists()


def test_what_cannot_be_exported_is_no_pass(folder):
    done = here("export", "bad.joblib", "--data", "test.parquet", "-o", "bad.onnx", folder=folder)
    assert done.returncode == 3
    assert "step 'functiontransformer'" in done.stderr
    assert not (folder / "bad.onnx").exists()
    assert here("export", "model.joblib", "-o", "m.onnx", folder=folder).returncode == 2


def stale(report):
    return [finding for finding in report.verdict.findings if finding.code == "stale-artefact"]


def test_a_candidate_of_another_reference_is_a_warning_and_no_failure(folder, frame, sold, tmp_path):
    likewise.export(folder / "model.joblib", frame, tmp_path / "m.onnx", check=False)
    assert not stale(data_only.check(folder / "model.joblib", tmp_path / "m.onnx", frame))
    golden = tmp_path / "golden.parquet"
    likewise.record(folder / "model.joblib", frame, golden)
    assert not stale(data_only.check(golden, tmp_path / "m.onnx", frame))
    assert not stale(data_only.check(joblib.load(folder / "model.joblib"), tmp_path / "m.onnx", frame))

    retrained = joblib.load(folder / "model.joblib").set_params(logisticregression__tol=2e-4)
    joblib.dump(retrained, tmp_path / "model.joblib")
    report = data_only.check(tmp_path / "model.joblib", tmp_path / "m.onnx", frame)
    assert report.passed
    (finding,) = stale(report)
    assert finding.severity == "warning"
    assert "another model" in finding.message
    likewise.record(tmp_path / "model.joblib", frame, golden)
    assert stale(data_only.check(golden, tmp_path / "m.onnx", frame))


def test_a_quantised_candidate_remembers_the_file_it_was_made_from(folder, frame, tmp_path):
    likewise.export(folder / "model.joblib", frame, tmp_path / "m.onnx", check=False)
    quantised = onnx.load(tmp_path / "m.onnx")
    sha256 = hashlib.sha256((tmp_path / "m.onnx").read_bytes()).hexdigest()
    quantised.metadata_props.add(key="likewise.quantized_from", value=sha256)
    onnx.save(quantised, tmp_path / "q.onnx")
    assert not stale(data_only.check(tmp_path / "m.onnx", tmp_path / "q.onnx", frame))
    assert not stale(data_only.check(folder / "model.joblib", tmp_path / "q.onnx", frame))
    likewise.export(folder / "model.joblib", frame, tmp_path / "m.onnx", check=False, zipmap=True)
    assert stale(data_only.check(tmp_path / "m.onnx", tmp_path / "q.onnx", frame))
