"""Strategies for users' own property tests: legal for the model, in its own form, simple when they fail."""

from __future__ import annotations

import builtins
import subprocess
import sys

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, Phase, find, given, settings

import likewise
from likewise.errors import MissingExtraError, UsageError
from likewise.testing import inputs_for, rows_for

PLAIN = settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
SHRINKING = settings(max_examples=300, deadline=None, database=None, suppress_health_check=list(HealthCheck))
COLOURS = ("blue", "green", "red")


@pytest.fixture(scope="module")
def table():
    random = np.random.default_rng(0)
    frame = pd.DataFrame({"size": random.normal(50, 5, 200), "colour": random.choice(COLOURS, 200)})
    frame.loc[::10, "size"] = np.nan
    return frame


@pytest.fixture(scope="module")
def pipeline(table):
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    prepared = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), ["size"]), (OneHotEncoder(), ["colour"])
    )
    return make_pipeline(prepared, LogisticRegression()).fit(table, (table["size"] > 50).astype(int))


@pytest.fixture(scope="module")
def path(pipeline, table, tmp_path_factory):
    file = tmp_path_factory.mktemp("testing") / "model.onnx"
    likewise.export(pipeline, table, file, check=False)
    return str(file)


class Lookup(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(11, 4)

    def forward(self, input_ids, attention_mask):
        kept = attention_mask.unsqueeze(-1)
        return (self.words(input_ids) * kept).sum(1)


def test_a_model_of_columns_gets_a_data_frame(pipeline):
    seen = []

    @PLAIN
    @given(inputs_for(pipeline, rows=(2, 5)))
    def answers(frame):
        seen.append(frame)
        assert list(frame.columns) == ["size", "colour"]
        assert 2 <= len(frame) <= 5
        assert set(frame.colour) <= set(COLOURS)
        assert np.isfinite(pipeline.predict_proba(frame)).all()

    answers()
    assert any(frame["size"].isna().any() for frame in seen)
    assert {colour for frame in seen for colour in frame.colour} == set(COLOURS)


def test_a_graph_gets_what_its_session_takes(path, pipeline):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    @PLAIN
    @given(inputs_for(path))
    def agrees(inputs):
        _, found = session.run(None, inputs)
        frame = pd.DataFrame({name: array[:, 0] for name, array in inputs.items()})
        np.testing.assert_allclose(found, pipeline.predict_proba(frame), atol=1e-5)

    agrees()


def test_tensors_come_as_arrays_by_name():
    module = Lookup().eval()

    @PLAIN
    @given(inputs_for(module, rows=3))
    def answers(inputs):
        assert inputs["input_ids"].shape == (3, 16)
        assert inputs["input_ids"].dtype == np.int64
        assert (np.diff(inputs["attention_mask"], axis=1) <= 0).all()
        given_tensors = {name: torch.from_numpy(array) for name, array in inputs.items()}
        assert module(**given_tensors).shape == (3, 4)

    answers()


def test_an_estimator_without_names_gets_an_array(table):
    from sklearn.tree import DecisionTreeRegressor

    X = np.linspace(0, 1, 60).reshape(30, 2)
    model = DecisionTreeRegressor(max_depth=3, random_state=0).fit(X, X[:, 0] ** 2)
    thresholds = model.tree_.threshold[model.tree_.feature == 0]

    @PLAIN
    @given(inputs_for(model))
    def answers(array):
        assert array.shape[1] == 2
        assert not np.isin(array[:, 0], thresholds).any()
        assert np.isfinite(model.predict(array)).all()

    answers()


def test_large_tensors_are_drawn_too():
    class Bright(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = torch.nn.Conv2d(3, 1, 3)

        def forward(self, image):
            return self.convolution(image).mean((1, 2, 3))

    quick = settings(PLAIN, max_examples=5, phases=[Phase.generate])
    seen = set()

    @quick
    @given(inputs_for(Bright().eval(), rows=2))
    def answers(inputs):
        seen.add((inputs["image"].shape, str(inputs["image"].dtype)))
        assert inputs["image"].min() >= 0
        assert inputs["image"].max() <= 1

    answers()
    assert seen == {((2, 3, 64, 64), "float32")}


def test_what_fails_shrinks_to_few_simple_rows(pipeline):
    frame = find(inputs_for(pipeline), lambda rows: (rows.colour == "red").any(), settings=SHRINKING)
    assert len(frame) == 1
    assert frame.colour.tolist() == ["red"]
    assert not frame["size"].isna().any()


def test_the_model_is_opened_when_the_first_example_is_drawn(tmp_path):
    strategy = inputs_for(str(tmp_path / "later.onnx"))
    with pytest.raises(likewise.LikewiseError, match="there is no file"):
        find(strategy, lambda _: True, settings=PLAIN)


def test_rows_for_are_the_same_for_the_same_seed(pipeline, path):
    pd.testing.assert_frame_equal(rows_for(pipeline, rows=20, seed=4), rows_for(pipeline, rows=20, seed=4))
    assert not rows_for(pipeline, rows=20, seed=4).equals(rows_for(pipeline, rows=20, seed=5))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    assert len(session.run(None, rows_for(path, rows=7))[0]) == 7


@pytest.mark.parametrize("rows", [0, (0, 3), (4, 2)])
def test_numbers_of_rows_that_make_no_sense_are_refused(rows, pipeline):
    with pytest.raises(UsageError, match="rows is"):
        inputs_for(pipeline, rows=rows)


def test_without_hypothesis_one_line_says_how_to_get_it(pipeline, monkeypatch):
    plain = builtins.__import__

    def without(name, *args, **options):
        if name.partition(".")[0] == "hypothesis":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return plain(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError) as caught:
        inputs_for(pipeline)
    assert str(caught.value).endswith("Run: pip install 'likewise[testing]'")


def test_importing_it_needs_no_hypothesis():
    code = "import likewise.testing, sys; sys.exit('hypothesis' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
