"""Rows made up from the models: legal for them, the same for the same seed, and never mistaken for real ones."""

from __future__ import annotations

import json
import pickle
import re

import numpy as np
import onnx
import pandas as pd
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import data_only
import likewise
from likewise.compare.variations.generated import planned_for
from likewise.contracts.data import Provenance
from likewise.contracts.verdict import Outcome, Severity
from likewise.data.random_values import Between, Cells, Column, Normal, OneOf, Padded, Part, WithGaps, Words
from likewise.data.readers.generated import GeneratedSource
from likewise.errors import UsageError
from likewise.registry import describe_model, open_source
from likewise.report import render
from likewise.tasks.judge import judge

CITIES = ("Oslo", "Paris", "Rome")
QUICK = {"explain": False, "edge": "off", "batch_sizes": ()}


def check(reference, candidate, data="generated:200", **options):
    return data_only.check(reference, candidate, data, **{**QUICK, **options})


def rows_of(*models, rows=200, seed=0, **options):
    """The generated rows as one DataFrame or dict of arrays, by the way a check makes them."""
    sides = dict(zip(("reference", "candidate"), map(describe_model, models), strict=False))
    batch = next(planned_for(sides, **options).source(asked=rows, seed=seed).batches(rows))
    return dict(batch.inputs)


def described(report):
    return {column.name: column for column in report.comparison.generated}


@pytest.fixture(scope="module")
def people():
    random = np.random.default_rng(5)
    frame = pd.DataFrame(
        {
            "age": random.normal(40, 12, 400),
            "income": random.normal(30_000, 4_000, 400),
            "city": random.choice(CITIES, 400),
            "plan": random.integers(0, 4, 400),
        }
    )
    frame.loc[::9, "age"] = np.nan
    return frame


@pytest.fixture(scope="module")
def target(people):
    return (people.age.fillna(40) + 9 * (people.city == "Rome") + 2 * people.plan > 46).astype(int)


def preparation():
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

    return ColumnTransformer(
        [
            ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), ["age", "income"]),
            ("city", OneHotEncoder(), ["city"]),
            ("plan", OrdinalEncoder(), ["plan"]),
        ]
    )


@pytest.fixture(scope="module")
def pipeline(people, target):
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    return make_pipeline(preparation(), LogisticRegression(max_iter=2_000)).fit(people, target)


@pytest.fixture(scope="module")
def exported(pipeline, people, tmp_path_factory):
    path = tmp_path_factory.mktemp("people") / "model.onnx"
    likewise.export(pipeline, people, path, check=False)
    return str(path)


class Reader(torch.nn.Module):
    """The mean of the embeddings of what is not padding."""

    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(37, 8)
        self.places = torch.nn.Embedding(64, 8)
        self.last = torch.nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask, position_ids):
        kept = attention_mask.unsqueeze(-1).to(torch.float32)
        seen = (self.words(input_ids) + self.places(position_ids)) * kept
        return self.last(seen.sum(1) / kept.sum(1))


@pytest.fixture(scope="module")
def reader():
    torch.manual_seed(0)
    return Reader().eval()


@pytest.fixture(scope="module")
def reader_onnx(reader, tmp_path_factory):
    path = tmp_path_factory.mktemp("reader") / "reader.onnx"
    ids = np.arange(12, dtype=np.int64).reshape(2, 6)
    data = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.stack([np.arange(6)] * 2)}
    likewise.export(reader, data, path, check=False, dynamic=dict.fromkeys(data, (0, 1)))
    return str(path)


class Eye(torch.nn.Module):
    """A small network on pixels from 0 to 255, which it normalises itself."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([123.0, 116.0, 103.0]).view(1, 3, 1, 1))
        self.register_buffer("deviation", torch.tensor([58.0, 57.0, 57.0]).view(1, 3, 1, 1))
        self.convolution = torch.nn.Conv2d(3, 4, 3)
        self.last = torch.nn.Linear(4, 2)

    def forward(self, image):
        seen = self.convolution((image - self.mean) / self.deviation)
        return self.last(torch.relu(seen).mean((2, 3)))


@pytest.fixture(scope="module")
def eye():
    torch.manual_seed(1)
    return Eye().eval()


@pytest.fixture(scope="module")
def eye_onnx(eye, tmp_path_factory):
    path = tmp_path_factory.mktemp("eye") / "eye.onnx"
    image = np.zeros((2, 3, 12, 12), dtype=np.float32)
    likewise.export(eye, {"image": image}, path, check=False, dynamic={"image": (0, 2, 3)})
    return str(path)


SOURCE = GeneratedSource(
    (
        Column("x", "float64", (), (Part(WithGaps(Normal(3.0, 2.0), 0.3), "why"),)),
        Column("n", "int64", (5,), (Part(Between(0, 9, whole=True), "why"),)),
        Column("t", "object", (), (Part(OneOf(("a", "b", None)), "why"),)),
        Column("w", "object", (), (Part(Words(("one", "two")), "why"),)),
        Column("p", "float32", (2,), (Part(Cells((0.0, 1.0), -1.0, 2.0), "why"), Part(Normal(), "why"))),
        Column("m", "int64", (6,), (Part(Padded(), "why"),)),
        Column("large", "float32", (3, 120, 120), (Part(Between(0.0, 1.0), "why"),)),
    ),
    seed=7,
    start=0,
    stop=61,
    total=61,
)


def collected(batches):
    batches = list(batches)
    numbers = np.concatenate([batch.rows.numbers for batch in batches])
    names = list(batches[0].inputs)
    return numbers, {name: np.concatenate([batch.inputs[name] for batch in batches]) for name in names}


def assert_same(one, other):
    assert list(one) == list(other)
    for name in one:
        assert one[name].dtype == other[name].dtype
        same = one[name].tolist() == other[name].tolist() if one[name].dtype == object else None
        assert one[name].tobytes() == other[name].tobytes() if same is None else same


@pytest.mark.parametrize("size", [1, 4, 60, 1000])
def test_the_same_rows_at_every_batch_size(size):
    numbers, whole = collected(SOURCE.batches(61))
    again, cells = collected(SOURCE.batches(size))
    assert again.tolist() == numbers.tolist() == list(range(61))
    assert_same(cells, whole)


@pytest.mark.parametrize("count", [1, 3, 100])
def test_shards_together_are_the_whole(count):
    shards = SOURCE.shards(count)
    assert len(shards) == min(count, 61)
    assert sum(shard.rows for shard in shards) == 61
    numbers, cells = collected([batch for shard in shards for batch in shard.batches(4)])
    assert numbers.tolist() == list(range(61))
    assert_same(cells, collected(SOURCE.batches(61))[1])


def test_shards_travel_with_the_fingerprint_of_the_whole():
    travelled = pickle.loads(pickle.dumps(SOURCE.shards(2)[1]))
    assert travelled.fingerprint == SOURCE.fingerprint
    assert collected(travelled.batches(9))[0].tolist() == list(range(30, 61))
    assert travelled.provenance is Provenance.GENERATED


def test_another_seed_gives_other_rows():
    other = GeneratedSource(SOURCE.columns, 8, 61, stop=61)
    assert other.fingerprint != SOURCE.fingerprint
    assert not np.array_equal(other.columns[1].rows(8, 0, 61), SOURCE.columns[1].rows(7, 0, 61))


def test_rows_do_not_depend_on_how_many_there_are():
    more = GeneratedSource(SOURCE.columns[:5], 7, 5_000, stop=5_000)
    first = next(more.batches(61)).inputs
    assert_same(dict(first), {name: collected(SOURCE.batches(61))[1][name] for name in first})


def test_values_are_within_what_is_known():
    _, cells = collected(SOURCE.batches(61))
    seen = cells["x"][~np.isnan(cells["x"])]
    assert 0 < np.isnan(cells["x"]).mean() < 0.6
    assert np.abs(seen - 3.0).max() <= 6.0
    assert set(np.unique(cells["n"])) == set(range(10))
    assert set(cells["t"].tolist()) == {"a", "b", None}
    assert {word for text in cells["w"] for word in text.split()} == {"one", "two"}
    assert -1.0 <= cells["p"][:, 0].min() < cells["p"][:, 0].max() <= 2.0
    assert (np.diff(cells["m"], axis=1) <= 0).all()
    assert cells["m"][:, 0].all()
    assert not cells["m"].all()


def test_a_pipeline_is_given_what_it_was_fitted_with(pipeline, exported, people):
    report = check(pipeline, exported)
    assert report.outcome is Outcome.PASS
    frame = pd.DataFrame(rows_of(pipeline, exported))
    assert set(frame.city) == set(CITIES)
    assert set(frame.plan) == {0, 1, 2, 3}
    ages = frame.age.dropna()
    assert 0 < frame.age.isna().mean() < 0.2
    assert ages.mean() == pytest.approx(people.age.mean(), abs=3)
    assert ages.std() == pytest.approx(people.age.fillna(people.age.mean()).std(), rel=0.2)
    lines = described(report)
    assert lines["city"].values == "one of 'Oslo', 'Paris', 'Rome'"
    assert "OneHotEncoder" in lines["city"].why
    assert "SimpleImputer" in lines["age"].why
    assert all(line.known for line in lines.values())


def test_the_graph_alone_says_as_much(pipeline, exported):
    fitted, read = rows_of(pipeline), rows_of(exported)
    assert list(fitted) == list(read)
    assert set(read["city"]) == set(CITIES)
    assert set(read["plan"].tolist()) == {0, 1, 2, 3}
    assert np.nanmean(read["income"]) == pytest.approx(np.nanmean(fitted["income"]), rel=0.05)
    assert np.isnan(read["age"]).any()


def test_a_wrong_category_mapping_is_found(pipeline, exported):
    proto = onnx.load(exported)
    (encoder,) = [node for node in proto.graph.node if node.op_type == "OneHotEncoder"]
    (known,) = [a for a in encoder.attribute if a.name == "cats_strings"]
    known.strings[0], known.strings[2] = known.strings[2], known.strings[0]
    report = check(pipeline, proto.SerializeToString())
    assert report.outcome is Outcome.FAIL
    assert re.match(r"\d+ of 200 generated rows differ by more than", report.verdict.headline)
    rows = report.comparison.outputs[0].details["worst_rows"]["rows"]
    assert {row["inputs"]["city"] for row in rows} <= {"Oslo", "Rome"}


def test_the_verdict_says_that_rows_are_generated(pipeline, exported, tmp_path):
    report = check(pipeline, exported, "generated:150", seed=3, report=str(tmp_path / "report.json"))
    assert report.samples == 150
    assert report.origin.data.kind == "generated"
    assert report.verdict.headline.startswith("150 generated rows agree")
    (warning,) = [finding for finding in report.verdict.findings if finding.code == "generated-data"]
    assert warning.severity is Severity.WARNING
    assert "none of them real" in warning.message
    assert "rows like these" not in report.verdict.confidence.statement
    assert "nothing is claimed about real ones" in report.verdict.confidence.statement
    assert report.verdict.confidence.upper_bound == 1.0
    terminal, markdown = render(report, "terminal", width=200), render(report, "markdown")
    for text in (terminal, markdown):
        assert "150 rows of made-up values, seed 3" in text
        assert "generated" in text
    assert "Generated city: one of 'Oslo', 'Paris', 'Rome'" in markdown
    assert re.search(r"^Generated 3 more columns", terminal, re.M)
    stored = json.loads((tmp_path / "report.json").read_text())
    assert [line["name"] for line in stored["coverage"]["generated"]] == ["age", "income", "city", "plan"]
    assert stored["provenance"]["data"]["kind"] == "generated"


def test_judging_again_does_not_make_the_rows_real(pipeline, exported, tmp_path):
    check(pipeline, exported, report=str(tmp_path / "report.json"))
    again = judge(likewise.load(tmp_path / "report.json"), abs_tol=0.5)
    assert "nothing is claimed about real ones" in again.verdict.confidence.statement
    assert any(finding.code == "generated-data" for finding in again.verdict.findings)


def test_generated_rows_cannot_show_a_failure_rate(pipeline, exported):
    report = check(pipeline, exported, "generated:5000", max_failure_rate=0.5)
    assert report.outcome is Outcome.INCONCLUSIVE
    assert any(finding.code == "generated-rate" for finding in report.verdict.findings)


def test_the_same_seed_gives_the_same_bytes(pipeline, exported):
    one, same, other = (
        check(pipeline, exported, seed=seed, batch_size=size) for seed, size in ((1, 7), (1, 64), (2, 7))
    )
    assert one.origin.data.sha256 == same.origin.data.sha256 != other.origin.data.sha256
    assert one.comparison == same.comparison


def test_samples_say_how_many_rows(pipeline, exported):
    assert check(pipeline, exported, "generated", samples=33).samples == 33
    assert check(pipeline, exported, "generated").samples == 1_000


def test_rows_are_generated_for_models_only():
    with pytest.raises(UsageError, match="check of two models only"):
        next(open_source("generated").batches(1))
    with pytest.raises(UsageError, match="at least one row"):
        open_source("generated:0")


def test_a_folder_of_that_name_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "generated").mkdir()
    pd.DataFrame({"a": [1, 2]}).to_parquet(tmp_path / "generated" / "a.parquet")
    assert open_source("generated").provenance is Provenance.REAL


def test_models_that_declare_nothing_are_inconclusive():
    report = check(lambda frame: frame, lambda frame: frame)
    assert report.outcome is Outcome.INCONCLUSIVE
    assert "rows cannot be generated" in report.verdict.headline


def test_a_function_is_given_what_the_graph_beside_it_takes(exported, pipeline):
    def served(frame):
        return {"probabilities": pipeline.predict_proba(frame)}

    report = check(served, exported, ignore=("label",))
    assert report.outcome is Outcome.PASS, report.verdict.headline


def test_what_cannot_be_guessed_is_said():
    from sklearn.linear_model import LinearRegression

    model = LinearRegression().fit(np.eye(3), [1.0, 2.0, 3.0])
    report = check(model, model)
    (line,) = report.comparison.generated
    assert (line.name, line.known) == ("X", False)
    assert "nothing is known" in line.why
    (warning,) = [finding for finding in report.verdict.findings if finding.code == "generated-data"]
    assert "nothing is known about 1 of 1 columns: X" in warning.message


def test_whole_numbers_that_only_the_candidate_asks_for_are_told():
    """The fee was trained on fractions, and the export cuts them off: rows of whole numbers cannot show it."""
    from skl2onnx import convert_sklearn
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OrdinalEncoder, StandardScaler

    random = np.random.default_rng(0)
    frame = pd.DataFrame({"fee": random.gamma(4, 15, 200), "usage": random.random(200), "grade": np.arange(200) % 4})
    steps = make_column_transformer((StandardScaler(), ["fee", "usage"]), (OrdinalEncoder(), ["grade"]))
    model = make_pipeline(steps, LinearRegression()).fit(frame, frame["fee"])
    types = [("fee", Int64TensorType), ("usage", FloatTensorType), ("grade", Int64TensorType)]
    cutting = convert_sklearn(model, initial_types=[(name, kind([None, 1])) for name, kind in types])
    report = check(model, cutting)
    assert report.outcome is Outcome.PASS
    lines = described(report)
    assert lines["fee"].why.endswith("whole numbers, because the candidate takes int64: fractions were not tried")
    assert {name: line.known for name, line in lines.items()} == {"fee": False, "usage": True, "grade": True}
    (warning,) = [finding for finding in report.verdict.findings if finding.code == "generated-data"]
    assert "only whole numbers were tried, because the candidate takes no others, in fee" in warning.message
    assert "nothing is known" not in warning.message
    assert not data_only.check(model, cutting, frame, **QUICK).passed


def test_whole_numbers_that_both_take_are_not_doubted(reader_onnx):
    report = check(reader_onnx, reader_onnx)
    assert not any(line.fractions_untried for line in report.comparison.generated)


def test_trees_are_asked_on_both_sides_of_their_thresholds(people, target, tmp_path):
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.pipeline import make_pipeline

    forest = RandomForestClassifier(5, max_depth=4, random_state=0)
    model = make_pipeline(preparation(), forest).fit(people, target)
    likewise.export(model, people, tmp_path / "forest.onnx", check=False)
    report = check(model, tmp_path / "forest.onnx", "generated:500")
    assert report.outcome is Outcome.PASS
    prepared = model[0].transform(pd.DataFrame(rows_of(model, rows=500)))
    leaves = forest.apply(prepared)
    # Every leaf that the training rows reach is reached, but for combinations that are rare.
    reached = sum(len(set(leaves[:, tree])) for tree in range(5))
    trained = sum(len(set(forest.apply(model[0].transform(people))[:, tree])) for tree in range(5))
    assert reached >= 0.8 * trained


@pytest.fixture(scope="module")
def numbers():
    random = np.random.default_rng(2)
    X = random.normal(size=(400, 3)) * [1.0, 10.0, 100.0]
    X[::5, 1] = np.nan
    return X, (np.nan_to_num(X[:, 1]) + 4 * X[:, 0] > 0).astype(int)


@pytest.mark.parametrize("framework", ["xgboost", "lightgbm"])
def test_boosters_are_asked_around_their_thresholds(framework, numbers, tmp_path):
    X, y = numbers
    if framework == "xgboost":
        from xgboost import XGBClassifier

        model = XGBClassifier(n_estimators=8, max_depth=3).fit(X, y)
        frame = model.get_booster().trees_to_dataframe()
        cuts = frame[frame.Feature == "f1"].Split
    else:
        from lightgbm import LGBMClassifier

        model = LGBMClassifier(n_estimators=8, verbose=-1).fit(X, y)
        frame = model.booster_.trees_to_dataframe()
        cuts = frame[frame.split_feature == "Column_1"].threshold
    likewise.export(model, X, tmp_path / "booster.onnx", check=False)
    report = check(model, tmp_path / "booster.onnx", "generated:300")
    assert report.outcome is Outcome.PASS, report.verdict.headline
    drawn = rows_of(model, rows=300)["X"][:, 1]
    assert 0 < np.isnan(drawn).mean() < 0.2
    seen = np.sort(drawn[~np.isnan(drawn)])
    spread = cuts.max() - cuts.min()
    assert cuts.min() - spread <= seen[0] < cuts.min() < cuts.max() < seen[-1] <= cuts.max() + spread


def test_the_categories_of_a_booster_are_its_own(people, target):
    from xgboost import XGBClassifier

    frame = people.assign(city=people.city.astype("category"))
    model = XGBClassifier(n_estimators=4, max_depth=3, enable_categorical=True).fit(frame, target)
    report = check(model, model)
    assert report.outcome is Outcome.PASS
    assert set(pd.Series(rows_of(model)["city"]).dropna()) == set(CITIES)


@pytest.mark.parametrize("live", [True, False], ids=["module and graph", "graph alone"])
def test_ids_stay_inside_the_embedding(reader, reader_onnx, live):
    models = (reader if live else reader_onnx, reader_onnx)
    report = check(*models, "generated:64")
    assert report.outcome is Outcome.PASS, report.verdict.headline
    drawn = rows_of(*models, rows=300)
    assert {array.shape for array in drawn.values()} == {(300, 16)}
    assert (drawn["input_ids"].min(), drawn["input_ids"].max()) == (0, 36)
    mask = drawn["attention_mask"]
    assert mask[:, 0].all()
    assert 0.2 < mask.mean() < 0.9
    assert (np.diff(mask, axis=1) <= 0).all()
    np.testing.assert_array_equal(drawn["position_ids"], np.tile(np.arange(16), (300, 1)))


@pytest.mark.parametrize("live", [True, False], ids=["module and graph", "graph alone"])
def test_pixels_go_as_far_as_the_normalisation_says(eye, eye_onnx, live):
    models = (eye if live else eye_onnx, eye_onnx)
    report = check(*models, "generated:8")
    assert report.outcome is Outcome.PASS, report.verdict.headline
    drawn = rows_of(*models, rows=8)["image"]
    assert drawn.shape == (8, 3, 64, 64)
    assert drawn.dtype == np.float32
    assert 0 <= drawn.min() < 5
    assert 250 < drawn.max() <= 255


def graph(nodes, inputs, outputs, constants=()):
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants]
    made = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(made, opset_imports=opsets, ir_version=9).SerializeToString()


def value(name, kind, shape):
    return helper.make_tensor_value_info(name, kind, shape)


def test_open_axes_of_one_name_have_one_size_that_the_model_takes():
    """Both inputs are folded into blocks of 24, which 16 does not fill."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("Reshape", ["sum", "blocks"], ["folded"]),
        helper.make_node("ReduceSum", ["folded", "axes"], ["out"], keepdims=0),
    ]
    inputs = [value(name, TensorProto.FLOAT, ["batch", "steps"]) for name in "ab"]
    constants = [("blocks", np.array([0, -1, 64])), ("axes", np.array([1, 2]))]
    model = graph(nodes, inputs, [value("out", TensorProto.FLOAT, ["batch"])], constants)
    drawn = rows_of(model, rows=5)
    assert drawn["a"].shape == drawn["b"].shape == (5, 64)
    assert check(model, model).outcome is Outcome.PASS


def test_one_hot_widths_and_bounds_are_read_from_the_graph():
    nodes = [
        helper.make_node("OneHot", ["kind", "depth", "values"], ["hot"]),
        helper.make_node("Clip", ["x", "low", "high"], ["clipped"]),
        helper.make_node("Add", ["hot", "clipped"], ["out"]),
    ]
    inputs = [value("kind", TensorProto.INT64, ["n"]), value("x", TensorProto.FLOAT, ["n", 4])]
    constants = [
        ("depth", np.array(4)),
        ("values", np.array([0, 1], dtype=np.float32)),
        ("low", np.array(-2, dtype=np.float32)),
        ("high", np.array(8, dtype=np.float32)),
    ]
    drawn = rows_of(graph(nodes, inputs, [value("out", TensorProto.FLOAT, ["n", 4])], constants), rows=400)
    assert set(drawn["kind"].tolist()) == {0, 1, 2, 3}
    assert -3 <= drawn["x"].min() < -2
    assert 8 < drawn["x"].max() <= 9


def test_gates_in_a_file_elsewhere_may_ask_for_generated_rows(tmp_path):
    from likewise.tasks.settings import load_gates

    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "likewise.toml").write_text('[gates.a]\nreference = "a.onnx"\ncandidate = "b.onnx"\ndata = "generated"\n')
    gate = load_gates(folder / "likewise.toml")["a"]
    assert (gate.data, gate.reference) == ("generated", "a.onnx")
