"""A session: each model is opened once and asked once, also when its failure is explained."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

import data_only
from likewise.compare import engines, observe
from likewise.compare.observe import Partial, without_ignored
from likewise.contracts.comparison import Stratum
from likewise.contracts.models import Model
from likewise.models.onnx.open import EXTENSION as ONNX
from likewise.models.python import EXTENSION as PYTHON

ROWS = 600
SPINNING = "session.intra_op.allow_spinning"


class Asked:
    """A model that counts the rows it is asked about, and is wrong where its input is large."""

    def __init__(self, beyond: float) -> None:
        self.beyond = beyond
        self.rows: list[int] = []

    def __call__(self, x):
        self.rows.append(len(x))
        return {"value": np.where(x > self.beyond, x, x / 2)}


@pytest.fixture
def opened(monkeypatch):
    """How often a model was opened."""
    found = []
    original = type(PYTHON).open

    @contextmanager
    def counting(self, model):
        found.append(model.name)
        with original(self, model) as runner:
            yield runner

    monkeypatch.setattr(type(PYTHON), "open", counting)
    return found


def test_a_failure_is_explained_with_the_models_that_are_open(opened):
    right, wrong = Asked(np.inf), Asked(500.0)
    report = data_only.explain(right, wrong, {"x": np.arange(float(ROWS))})
    assert report.outcome == "FAIL"
    assert opened == ["Asked", "Asked"]
    assert report.explanation.rows == ROWS
    assert report.explanation.complete
    assert report.explanation.failing_rows == report.comparison.rows_beyond == ROWS - 501


def test_no_more_than_the_rows_that_were_kept_are_looked_at(monkeypatch):
    monkeypatch.setattr(engines, "FIRST_ROWS", 100)
    monkeypatch.setattr(engines, "FAILING_ROWS", 40)
    report = data_only.explain(Asked(np.inf), Asked(500.0), {"x": np.arange(float(ROWS))})
    explanation = report.explanation
    assert not explanation.complete
    # The first rows, those that fail, and the worst of the run, wherever they are.
    assert 140 <= explanation.rows <= 150
    assert 40 <= explanation.failing_rows <= 50


@pytest.mark.parametrize("said", [None, "1"])
def test_two_models_that_take_turns_do_not_keep_the_cores_from_each_other(said):
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Neg", ["x"], ["y"])],
        "graph",
        [value("x", onnx.TensorProto.FLOAT, ["N"])],
        [value("y", onnx.TensorProto.FLOAT, ["N"])],
    )
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)
    model = Model("onnx", proto, {} if said is None else {SPINNING: said})
    found, original = [], type(ONNX).open

    @contextmanager
    def watched(self, model):
        found.append(model.options.get(SPINNING))
        with original(self, model) as runner:
            yield runner

    with pytest.MonkeyPatch.context() as patch, engines.Session(model, model) as both:
        patch.setattr(type(ONNX), "open", watched)
        both.both()
    assert found == [said or "0"] * 2


def test_columns_that_neither_model_takes_are_read_on_where_that_costs_nothing():
    """Arrays are in memory already; of a table only the columns that are taken are read."""
    columns = {name: np.zeros(2) for name in ("x", *(f"other_{number}" for number in range(20)))}
    side = SimpleNamespace(feed=SimpleNamespace(columns=("x",)))
    prepared = SimpleNamespace(first=SimpleNamespace(inputs=columns), reference=side, candidate=side)
    plan = SimpleNamespace(source="arrays")
    assert without_ignored(plan, prepared) == (plan, prepared)


def test_what_is_said_of_models_and_data_as_a_whole_is_not_said_of_edge_cases():
    data = {"x": np.arange(30.0), "unused": np.arange(30.0)}
    report = data_only.check(lambda rows: rows["x"], lambda rows: rows["x"], data, edge="report", batch_sizes=())
    assert report.comparison.varied
    assert len(report.comparison.suites) > 5
    for suite in report.comparison.suites:
        whole = suite.comparison.varied, suite.comparison.notes, suite.comparison.warnings, suite.comparison.timeline
        assert whole == (False, (), (), None), suite.name


def test_rows_of_one_value_are_added_up_over_batches_and_the_worst_of_each_output_is_kept():
    """In the second batch, `b` could not be compared, and `c` only there."""
    first = Partial(strata={"red": Stratum("", "red", 3, 1, {"a": 0.5, "b": 0.25}), "blue": Stratum("", "blue", 1, 0)})
    second = Partial(strata={"red": Stratum("", "red", 2, 2, {"a": 0.75, "c": 0.125})})
    worst = {"a": 0.75, "b": 0.25, "c": 0.125}
    for together in (first.merge(second), second.merge(first)):
        assert together.strata["red"] == Stratum("", "red", 5, 3, worst)
        assert together.strata["blue"] == Stratum("", "blue", 1, 0)


def test_rows_that_are_wider_than_what_is_observed_at_once_are_observed_one_by_one(monkeypatch):
    monkeypatch.setattr(observe, "PART", 2)
    three = lambda x: np.stack([x, x, x], axis=1)  # noqa: E731
    moved = lambda x: three(x) + (x > 2)[:, None]  # noqa: E731
    report = data_only.check(three, moved, {"x": np.arange(5.0)}, batch_sizes=())
    assert (report.comparison.rows, report.comparison.rows_beyond) == (5, 2)


@pytest.mark.parametrize(
    ("data", "first"),
    [
        (np.zeros((40, 3)), 32),
        (np.zeros((40, 3), np.int64), 8),  # tokens
        (np.zeros((40, 3, 2)), 8),
        (np.zeros((40, 3, 2, 2)), 8),
        (np.zeros(40, np.int64), 32),
    ],
)
def test_networks_are_asked_about_fewer_rows_first(data, first):
    asked = []

    def model(x):
        asked.append(len(x))
        return np.arange(float(len(x)))

    data_only.check(model, model, {"x": data}, batch_sizes=())
    assert asked[0] == first
