"""What is asked beside the data of models that take long: by rule, the most telling first, and the rest is told."""

from __future__ import annotations

import copy
import json
import re
from html import unescape

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression

import data_only
import likewise
from likewise.compare import variations
from likewise.errors import UsageError
from likewise.judge.diff import diff
from likewise.registry import extensions
from likewise.report import render
from likewise.report.formats.json import EXTENSION as JSON
from likewise.report.formats.json import loads
from likewise.tasks.amounts import seconds_or_times
from likewise.tasks.settings import load_gates
from planting import codes, expect

COUNT = 64
ROWS = {"x": np.random.default_rng(5).normal(size=(COUNT, 4))}
SHORT = {"beside_budget": "1x", "edge": "report"}
"""Whatever a row takes, all tries together take more than the rows of the data once more."""


def total(x):
    return x.sum(axis=1)


class Counted:
    """A model that keeps how many rows each of its calls had; `wrong` says in which calls it errs."""

    def __init__(self, wrong=lambda x: False, burn=0):
        self.calls, self.wrong, self.burn = [], wrong, burn

    def __call__(self, x):
        self.calls.append(len(x))
        sum(number * number for number in range(self.burn * len(x)))
        return total(x) + (1.0 if self.wrong(x) else 0.0)


def beside(model):
    """The calls that came after the first rows and the data."""
    return model.calls[model.calls.index(COUNT) + 1 :]


def untried(report):
    return {left.kind: set(left.names) for left in report.comparison.untried}


def test_each_model_is_asked_about_as_many_rows_as_the_data_had_the_most_telling_first():
    reference, candidate = Counted(), Counted()
    report = expect(data_only.check(reference, candidate, ROWS, **SHORT), "PASS")
    # Alone, three, four reversed, four and one left over; then one call of other sizes up to half of the rows.
    assert beside(candidate)[:9] == [1, 1, 3, 4, 4, 1, 7, 2, 9]
    # These tell whether the reference depends on the batch.
    assert beside(reference)[:3] == [1, 1, 4]
    assert sum(beside(reference)) <= sum(beside(candidate)) <= COUNT
    swept = [(facts.size, facts.rows, facts.order) for facts in report.comparison.batch_sizes]
    assert swept == [(1, 2, ""), (3, 3, ""), (7, 7, ""), (2, 2, ""), (9, 9, "")]
    assert [facts.order for facts in report.comparison.batch_orders] == ["rows reversed", "one row left over"]
    assert report.comparison.suites[0].name == "missing-values"
    again = data_only.check(Counted(), Counted(), ROWS, **SHORT)
    assert again.comparison == report.comparison


def test_what_the_main_run_covered_is_neither_asked_again_nor_listed():
    report = data_only.check(Counted(), Counted(), ROWS, batch_size=7, **SHORT)
    assert 7 not in [facts.size for facts in report.comparison.batch_sizes]
    assert "7" not in untried(report)["batch"]
    # The last call of the main run had a row left over.
    assert 1 not in [facts.size for facts in report.comparison.batch_sizes]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        pytest.param(lambda x: len(x) == 1, "batch size 1", id="alone"),
        pytest.param(lambda x: len(x) in (3, 5), "batch size 3", id="odd"),
        pytest.param(lambda x: len(x) == 4, "rows reversed", id="places"),
        pytest.param(lambda x: len(x) < 10, "batch size", id="small"),
    ],
)
def test_a_fault_in_other_batches_fails_all_the_same(wrong, said):
    report = data_only.check(total, Counted(wrong), ROWS, **SHORT)
    expect(report, "FAIL")
    assert said in " ".join(finding.message for finding in report.verdict.findings)


def test_a_row_left_over_fails_all_the_same():
    asked = []

    def candidate(x):
        asked.append(len(x))
        # Buffers of the call before: wrong only where one row follows a full call.
        return total(x) + (1.0 if len(x) == 1 and asked[-2] == 4 else 0.0)

    expect(data_only.check(total, candidate, ROWS, **SHORT), "FAIL")


def test_rows_sorted_and_not_put_back_fail_all_the_same():
    ordered = {"x": np.sort(ROWS["x"], axis=0)}
    expect(data_only.check(total, lambda x: np.sort(total(x)), ordered, **SHORT), "FAIL", "rows reversed")


def test_a_reference_that_depends_on_the_batch_is_compared_in_the_same_one():
    def centred(x):
        return total(x - x.mean(axis=0))

    report = data_only.check(centred, lambda x: centred(x) + 0.0, ROWS, **SHORT)
    expect(report, "PASS")
    assert "reference-batch" in codes(report)


class Average(torch.nn.Module):
    def forward(self, x):
        return x.sum(1) / float(int(x.shape[1]))


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    """A graph whose file leaves an axis open, and that holds at one length only."""
    path = tmp_path_factory.mktemp("traced") / "average.onnx"
    rows = np.random.default_rng(0).normal(size=(24, 6, 3)).astype(np.float32)
    axes = {"x": {0: "rows", 1: "seq"}, "y": {0: "rows"}}
    names = {"input_names": ["x"], "output_names": ["y"]}
    with pytest.warns((DeprecationWarning, torch.jit.TracerWarning)):
        torch.onnx.export(
            Average().eval(), (torch.from_numpy(rows),), str(path), dynamo=False, dynamic_axes=axes, **names
        )
    return str(path), {"x": rows}


def test_another_length_fails_all_the_same(traced):
    path, rows = traced
    report = data_only.check(Average().eval(), path, rows, **SHORT, shapes=None)
    failed = {suite.name: suite.rows for suite in report.verdict.suites if suite.outcome == "FAIL"}
    assert failed == {"seq=5": 2, "seq=7": 2}
    assert untried(report)["shape"] == {"seq=1", "seq=12"}
    full = data_only.check(Average().eval(), path, rows, **SHORT, shapes={"seq": (12,)})
    assert {suite.name: suite.rows for suite in full.verdict.suites if suite.kind == "shape"} == {"seq=12": 8}


def test_thorough_finds_what_the_short_plan_says_it_did_not_try():
    def wrong(x):
        return len(x) == 33

    report = expect(data_only.check(total, Counted(wrong), ROWS, **SHORT), "PASS")
    assert "33" in untried(report)["batch"]
    thorough = data_only.check(total, Counted(wrong), ROWS, **SHORT, thorough=True)
    expect(thorough, "FAIL", "33")
    assert thorough.comparison.untried == ()
    # So does whoever names it.
    expect(data_only.check(total, Counted(wrong), ROWS, **SHORT, batch_sizes=(33,)), "FAIL", "33")


@pytest.mark.parametrize("edge", ["fail", "strict"])
def test_edge_suites_that_block_are_tried_in_full(edge):
    asked = {**SHORT, "edge": edge, "batch_sizes": ()}
    short, thorough = (data_only.check(total, total, ROWS, **asked, thorough=full) for full in (False, True))
    assert short.comparison == thorough.comparison
    assert not short.comparison.untried


def test_models_that_take_long_by_the_clock_are_asked_less_and_others_everything():
    slow = Counted(burn=100_000)
    report = expect(data_only.check(slow, Counted(), ROWS, edge="report"), "PASS")
    assert "33" in untried(report)["batch"]
    assert sum(beside(slow)) <= COUNT
    quick = data_only.check(total, Counted(), ROWS, edge="report")
    assert quick.comparison.untried == ()
    assert 33 in [facts.size for facts in quick.comparison.batch_sizes]
    assert (
        data_only.check(total, Counted(), ROWS, beside_budget="1h").comparison
        == data_only.check(total, Counted(), ROWS, thorough=True).comparison
    )


def test_a_small_network_is_asked_everything_however_busy_the_machine(monkeypatch):
    def busy(plan, prepared, head, rows, name):
        return 0.02

    monkeypatch.setattr(variations, "_call_seconds", busy)
    small = torch.nn.Linear(4, 1, dtype=torch.float64).eval()
    report = expect(data_only.check(small, copy.deepcopy(small), ROWS, edge="report"), "PASS")
    assert not report.comparison.untried
    # What a function does is not told by its size, nor what an estimator does by how it was made.
    target = ROWS["x"].sum(axis=1)
    fitted = LinearRegression().fit(ROWS["x"], target)
    assert data_only.check(fitted, copy.deepcopy(fitted), ROWS["x"], edge="report").comparison.untried
    assert data_only.check(total, Counted(), ROWS, edge="report").comparison.untried


def test_what_a_call_costs_is_the_least_of_some_and_measured_no_oftener_than_it_takes():
    asked = []

    def fit(*seconds, enough=1.0):
        took = iter(seconds)
        asked[:] = []
        return variations._fit(
            {"reference": 10, "candidate": 20}, enough, lambda name: asked.append(name) or next(took)
        )

    assert fit(0.02, 0.03)
    assert asked == ["reference", "candidate"]
    # A busy machine: what the second turn measures of the one counts with the best of the other.
    assert fit(0.05, 0.03, 0.02, 0.09)
    assert not fit(*[0.05] * 6)
    assert len(asked) == 2 * variations.TIMES
    # One that takes long is asked once.
    assert not fit(0.5, 0.03, 0.03, 0.03)


def test_twice_as_much_tries_more():
    once, twice = (data_only.check(total, Counted(), ROWS, edge="report", beside_budget=b) for b in ("1x", "2x"))
    assert untried(twice)["batch"] < untried(once)["batch"]


def test_a_model_that_changes_its_answers_is_found_by_a_few_images():
    images = {"x": np.random.default_rng(0).normal(size=(16, 2, 3, 3)).astype(np.float32)}
    asked = []

    def candidate(x):
        asked.append(len(x))
        return x.sum(axis=(1, 2, 3)) + len(asked)

    report = data_only.check(lambda x: x.sum(axis=(1, 2, 3)), candidate, images, **SHORT)
    expect(report, "FAIL")
    assert "unstable" in codes(report)
    assert asked[0] == 8


@pytest.fixture(scope="module")
def short():
    return data_only.check(total, Counted(), ROWS, **SHORT)


@pytest.mark.parametrize("name", [renderer.format for renderer in extensions("report.formats")])
def test_every_format_says_what_was_not_tried(short, name):
    text = " ".join(re.sub(r"&#8203;|\\", "", unescape(render(short, name))).split())
    assert re.search(r"[nN]ot tried for lack of time \(--thorough tries it\): batch sizes 4, 8, 31", text), text


def test_the_report_keeps_what_was_not_tried_and_older_ones_have_none(short):
    written = json.loads(JSON.render(short))
    assert loads(json.dumps(written)).comparison == short.comparison
    del written["coverage"]["untried"]
    assert loads(json.dumps(written)).comparison.untried == ()


def test_a_shorter_list_of_tries_is_told_and_not_worse(short):
    thorough = data_only.check(total, Counted(), ROWS, edge="report", thorough=True)
    found = diff(thorough, short)
    assert found.outcome == "PASS", found.headline
    told = " ".join(change.message for change in found.changes)
    assert "batch size 33 is no longer tried" in told
    assert "not tried for lack of time" in told
    # Left out by somebody is worse as ever.
    less = data_only.check(total, Counted(), ROWS, **SHORT, skip_suites=("missing-values",))
    assert "missing-values" in diff(thorough, less).headline


@pytest.mark.parametrize("said", ["soon", "-1s", "2y", "x", ""])
def test_a_budget_that_makes_no_sense_is_a_usage_error(said):
    with pytest.raises(UsageError, match="--beside-budget"):
        likewise.check(total, total, ROWS, beside_budget=said)


def test_a_configuration_says_it_too(tmp_path):
    file = tmp_path / "likewise.toml"
    gate = '[gates.{0}]\nreference = "a.onnx"\ncandidate = "b.onnx"\ndata = "c.npz"\n{1}\n'
    file.write_text(gate.format("a", 'beside_budget = "2x"') + gate.format("b", "beside_budget = 90\nthorough = true"))
    gates = load_gates(file)
    assert seconds_or_times(gates["a"].beside_budget) == (0.0, 2.0)
    assert seconds_or_times(gates["b"].beside_budget) == (90.0, 0.0)
    assert gates["b"].thorough
