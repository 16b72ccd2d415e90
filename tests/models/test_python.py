"""Anything that can be called is a model: named by module, by file, or live."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import data_only
from likewise.contracts.models import Model
from likewise.errors import ModelError
from likewise.registry import adapter, describe_model

MODEL = """
import numpy as np
from neighbour import FACTOR

def predict(frame):
    return frame["x"].to_numpy() * FACTOR

def named(frame):
    return {"probability": frame["x"].to_numpy() / 10, "label": frame["x"].to_numpy() > 3}

def dictionaries(frame):
    return [{"no": 1 - p, "yes": p} for p in frame["x"] / 10]

class Service:
    def predict(self, frame):
        return predict(frame)

service = Service()
number = 3
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "neighbour.py").write_text("FACTOR = 2\n")
    path = tmp_path / "served.py"
    path.write_text(MODEL)
    return path


@pytest.fixture
def frame():
    return pd.DataFrame({"x": np.arange(8.0)})


@pytest.mark.parametrize("attribute", ["predict", "service", "service.predict"])
def test_a_file_names_a_function_or_an_object_with_predict(file, frame, attribute):
    report = data_only.check(f"{file}:{attribute}", lambda table: table["x"].to_numpy() * 2, frame, preset="exact")
    assert report.passed, report.verdict


def test_a_module_is_found_from_the_working_folder(file, frame, monkeypatch):
    monkeypatch.chdir(file.parent)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    assert data_only.check("served:predict", f"{file}:predict", frame).passed


def test_outputs_are_named_by_the_dictionary_and_understood_by_their_names(file, frame):
    report = data_only.check(f"{file}:named", f"{file}:named", frame)
    assert {output.name: str(output.pair.kind) for output in report.comparison.outputs} == {
        "label": "label",
        "probability": "probability",
    }


def test_one_dictionary_a_row_is_read_by_class(file, frame):
    swapped = [{"yes": value / 10, "no": 1 - value / 10} for value in frame["x"]]
    report = data_only.check(f"{file}:dictionaries", lambda table: swapped[: len(table)], frame, batch_sizes=())
    assert report.passed, report.verdict
    assert report.comparison.outputs[0].pair.classes == ("no", "yes")


def test_what_another_framework_knows_better_is_handed_on(tmp_path, frame):
    (tmp_path / "fitted.py").write_text(
        "import numpy as np, pandas as pd\nfrom sklearn.linear_model import LinearRegression\n"
        "x = pd.DataFrame({'x': np.arange(8.0)})\nmodel = LinearRegression().fit(x, 3 * x['x'])\n"
    )
    target = f"{tmp_path / 'fitted.py'}:model"
    assert describe_model(target).framework == "python"
    with adapter("python").open(Model("python", target)) as runner:
        assert "LinearRegression" in runner.details["estimator"]
    assert data_only.check(target, lambda table: table["x"].to_numpy() * 3, frame).passed


@pytest.mark.parametrize(
    ("attribute", "message"),
    [("predikt", "did you mean 'predict'"), ("number", "cannot be called")],
)
def test_a_name_that_is_not_a_model_is_refused(file, attribute, message):
    with pytest.raises(ModelError, match=message), adapter("python").open(Model("python", f"{file}:{attribute}")):
        pass


@pytest.mark.parametrize("source", ["raise ValueError('no licence')", "import nothing_of_that_name", "def broken(:"])
def test_a_file_that_does_not_import_is_one_line(tmp_path, source):
    (tmp_path / "bad.py").write_text(source)
    with pytest.raises(ModelError, match=r"importing .*bad\.py failed"):
        adapter("python").open(Model("python", f"{tmp_path / 'bad.py'}:predict")).__enter__()


def test_arrays_arrive_as_arrays(tmp_path):
    seen = []

    def model(argument):
        seen.append(argument)
        return argument["a"] if isinstance(argument, dict) else argument[:, 0]

    rows = np.arange(6.0).reshape(3, 2)
    assert data_only.check(model, model, rows).passed
    assert isinstance(seen[0], np.ndarray)
    assert data_only.check(model, model, {"a": rows[:, 0], "b": rows}).passed
    assert isinstance(seen[-1], dict)


def within(rows, *, moved=0.0):
    """A decoder's answer: scores, and a state for each of two layers."""
    return {"logits": rows, "past": ((rows[:, 0], rows[:, 1]), (rows[:, 1], rows + moved)), "size": (1,) * len(rows)}


def boxes(rows, *, least=0.0):
    """A detector's answer: for every image a dictionary with as many boxes as it finds."""
    return [{"boxes": row[row > least], "scores": row} for row in np.atleast_2d(rows)]


ROWS = np.arange(12.0).reshape(6, 2)


def test_answers_within_each_other_are_outputs_by_their_path():
    report = data_only.check(within, lambda rows: within(rows), ROWS)
    assert report.passed
    found = {output.name for output in report.comparison.outputs}
    assert found == {"logits", "past.0.0", "past.0.1", "past.1.0", "past.1.1", "size"}
    differing = data_only.check(within, lambda rows: within(rows, moved=1.0), ROWS)
    assert {check.output for check in differing.verdict.checks if check.outcome == "FAIL"} == {"past.1.1"}


def test_as_many_boxes_as_there_are_where_every_call_is_one_sample():
    samples = [{"rows": ROWS[place : place + 1]} for place in range(1, 4)]
    report = data_only.check(boxes, lambda rows: boxes(rows), samples)
    assert report.passed
    assert {output.name for output in report.comparison.outputs} == {"output_0.boxes", "output_0.scores"}
    assert data_only.check(boxes, lambda rows: boxes(rows, least=2.0), samples).outcome == "FAIL"


@pytest.mark.parametrize("answer", [boxes, lambda rows: [row[row > 3] for row in rows]])
def test_answers_of_different_lengths_say_how_they_can_be_compared(answer):
    report = data_only.check(answer, lambda rows: answer(rows), ROWS)
    assert report.outcome == "INCONCLUSIVE"
    assert "--batch-axis none" in report.verdict.findings[0].remedy


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (lambda rows: {"a": {"b": rows}, "a.b": rows + 1}, "a.b"),
        (lambda rows: {1: rows, "1": rows + 1}, "output_1"),
        (lambda rows: pd.DataFrame({1: rows[:, 0], "1": rows[:, 1]}), "1"),
    ],
)
def test_two_answers_of_one_name_are_refused(answer, name):
    report = data_only.check(answer, lambda rows: answer(rows), ROWS)
    assert report.outcome == "INCONCLUSIVE"
    assert f"it answers {name!r} twice" in report.verdict.headline


def test_of_nothing_within_an_answer_the_name_stays():
    model = lambda rows: {"a": rows, "found": [], "none": ()}  # noqa: E731 - two of it are two models
    report = data_only.check(model, lambda rows: model(rows), [{"rows": ROWS}])
    assert {output.name for output in report.comparison.outputs} == {"a", "found", "none"}


def test_a_column_with_an_array_in_every_cell_is_an_array():
    report = data_only.check(lambda rows: pd.Series(list(rows)), lambda rows: rows + 1.0, ROWS)
    assert (report.outcome, report.max_abs_diff) == ("FAIL", 1.0)
    assert data_only.check(lambda rows: pd.DataFrame({"v": list(rows)}), lambda rows: {"v": rows}, ROWS).passed
