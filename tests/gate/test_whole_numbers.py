"""Whole numbers may be names: they agree when they are equal, unless somebody says by how much they may differ."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

import data_only
import likewise
from likewise.contracts.models import Kind, OutputSpec
from likewise.models.recorded import _from_arrow
from planting import BOOL, FLOAT, INT64, codes, expect, graph, measures, planted, rows

COUNT = 200
TABLE = np.random.default_rng(0).normal(size=(COUNT, 12)).astype(np.float32)
ITEMS = np.arange(1_000, 1_000 + 12)


class Recommended(torch.nn.Module):
    """The ids of the three items that score best, as a shop would ask for them."""

    def __init__(self, first):
        super().__init__()
        self.register_buffer("items", torch.arange(first, first + 12))

    def forward(self, X):
        return self.items[torch.topk(X, 3, dim=1).indices]


def shop(first, kind=INT64):
    """The same as an ONNX file; `kind` is the type in which the ids are given."""
    nodes = [
        ("TopK", ["X", "three"], ["best", "place"], {"axis": 1}),
        ("Gather", ["items", "place"], ["found"], {"axis": 0}),
        ("Cast", ["found"], ["ids"], {"to": kind}),
    ]
    constants = {"three": np.array([3]), "items": np.arange(first, first + 12)}
    return graph(nodes, {"X": (FLOAT, [None, 12])}, {"ids": (kind, [None, 3])}, **constants)


def check(candidate, **options):
    return data_only.check(Recommended(1_000), candidate, {"X": TABLE}, **options)


def test_ids_that_are_all_off_by_one_fail_and_the_right_ones_pass():
    wrong = check(shop(1_001))
    expect(wrong, "FAIL", "mismatch_rate is 1", "all 200 rows differ in")
    assert measures(wrong, wrong.comparison.outputs[0].name)["max_abs_diff"] == 1
    expect(check(shop(1_000)), "PASS")


def test_ids_given_as_floats_are_held_to_the_same_rule():
    expect(check(shop(1_001, FLOAT)), "FAIL", "mismatch_rate is 1")
    expect(check(shop(1_000, FLOAT)), "PASS")
    # No float32 holds these: the number of an item has become that of another one.
    large = 3 * 2**24 + 1 + 2 * np.arange(COUNT)
    rounded = planted(total=large.astype(np.float32))
    expect(data_only.check(planted(total=large), rounded, rows(COUNT)), "FAIL", "total.mismatch_rate is 1")
    expect(data_only.check(planted(total=large), rounded, rows(COUNT), rel_tol=1e-6), "PASS")


PRESETS = ["float32", "strict", "standard", "quantized", "exact"]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        (np.int32([7, 8]), np.float32([7.00001, 8])),
        (np.int32([1912244330, 8]), np.float32([1912244480, 8])),
        (np.array([-8769504594271552125, 8]), np.array([-8.769504594271553e18, 8])),
        (np.array([2**53 + 1, 8]), np.array([2.0**53, 8])),
        (np.array([True, False]), np.array([0.9999999, 0.0])),
    ],
    ids=["fraction", "float32", "float64", "beyond 2**53", "bool"],
)
def test_no_preset_lets_a_whole_number_become_another(reference, candidate, preset):
    for ours, theirs in ((reference, candidate), (candidate, reference)):
        report = data_only.check(planted(count=ours), planted(count=theirs), rows(2), preset=preset)
        assert report.outcome == "FAIL"
        assert likewise.judge(report, preset="quantized").outcome == "FAIL"
    same = data_only.check(
        planted(count=reference), planted(count=reference.astype(np.int64)), rows(2), preset="strict"
    )
    assert same.passed


def test_a_tolerance_of_ones_own_is_held_against_the_difference_as_it_is():
    ours, theirs = planted(count=np.array([-8769504594271552125])), planted(count=np.array([-8.769504594271553e18]))
    expect(data_only.check(ours, theirs, rows(1), abs_tol=1e-12), "FAIL", "max_abs_diff is 387")
    expect(data_only.check(ours, theirs, rows(1), abs_tol=387), "PASS")


@pytest.mark.parametrize("preset", PRESETS[:4])
def test_who_says_how_far_is_heard_under_every_preset_and_who_says_how_much_on_average_is_not(preset):
    counts = np.arange(COUNT) + 5_000
    ours, theirs = planted(count=counts), planted(count=counts + 1)
    report = data_only.check(ours, theirs, rows(COUNT), preset=preset, limits={"count.max_abs_diff": 1})
    expect(report, "PASS")
    report = data_only.check(ours, theirs, rows(COUNT), preset=preset, limits={"mean_abs_diff": 2})
    expect(report, "FAIL")


@pytest.mark.parametrize("options", [{"abs_tol": 1.0}, {"rel_tol": 1e-3}, {"limits": {"max_abs_diff": 1}}], ids=str)
def test_who_says_by_how_much_they_may_differ_is_heard(options):
    expect(check(shop(1_001), **options), "PASS")
    expect(check(shop(1_003), **options), "FAIL")


def test_a_limit_on_one_output_is_for_that_output():
    counts = np.arange(COUNT) + 5_000
    right, wrong = planted(count=counts, item=counts), planted(count=counts + 1, item=counts + 1)
    report = data_only.check(right, wrong, rows(COUNT), limits={"count.max_abs_diff": 1})
    expect(report, "FAIL", "item.mismatch_rate is 1")
    assert "count.mismatch_rate" not in report.verdict.headline
    only = data_only.check(right, planted(count=counts + 1, item=counts), rows(COUNT), limits={"count.max_abs_diff": 1})
    expect(only, "PASS")


def test_counts_beside_numbers_do_not_change_how_numbers_are_judged():
    counts, prices = np.arange(COUNT), np.linspace(1_000, 2_000, COUNT)
    right = planted(count=counts, price=prices)
    expect(data_only.check(right, planted(count=counts, price=prices * 1.0005), rows(COUNT)), "PASS")
    expect(data_only.check(right, planted(count=counts + 1, price=prices * 1.0005), rows(COUNT)), "FAIL", "count")


def test_yes_and_no_are_judged_exactly():
    nodes = [("ReduceSum", ["X", "one"], ["sum"], {"keepdims": 0}), ("Greater", ["sum", "bound"], ["alarm"], {})]
    constants = {"one": np.array([1]), "bound": np.array(0, dtype=np.float32)}
    alarm = graph(nodes, {"X": (FLOAT, [None, 12])}, {"alarm": (BOOL, [None])}, **constants)
    reference = lambda X: {"alarm": X.sum(axis=1) > 0}  # noqa: E731
    expect(data_only.check(reference, alarm, {"X": TABLE}), "PASS")
    nearly = lambda X: {"alarm": np.where(X.sum(axis=1) > 0, 0.9995, 0.0)}  # noqa: E731
    expect(data_only.check(reference, nearly, {"X": TABLE}), "FAIL", "alarm.mismatch_rate")


def test_a_finished_run_is_judged_again_by_the_same_rule():
    report = check(shop(1_001))
    assert likewise.judge(report).outcome == "FAIL"
    assert likewise.judge(report, mean_tol=5.0).outcome == "FAIL"
    assert likewise.judge(report, abs_tol=1.0).outcome == "PASS"
    loose = check(shop(1_001), abs_tol=1e-4, rel_tol=1e-3)
    assert loose.passed
    assert likewise.judge(loose, preset="float32").outcome == "FAIL"


def test_whole_numbers_at_other_batch_sizes_are_exact_too():
    def drifting(X):
        return {"count": 2_000 + X.astype(np.int64) + (len(X) == 1)}

    report = likewise.check(planted(count=2_000 + np.arange(COUNT)), drifting, rows(COUNT), explain=False, edge="off")
    expect(report, "FAIL", "count.mismatch_rate is 1 at batch size 1")
    assert "dtype" not in codes(report, "failure")


FORMS = {
    "list": lambda ids: ids,
    "objects": lambda ids: np.array(ids, dtype=object),
    "pandas": lambda ids: pd.Series(ids, dtype="Int64"),
    "frame": lambda ids: pd.DataFrame({"output": pd.array(ids, dtype="Int64")}),
    "polars": lambda ids: pl.DataFrame({"output": pl.Series(ids, dtype=pl.Int64)}),
    "arrow": lambda ids: pa.table({"output": pa.array(ids, pa.int64())}),
}


def with_gaps(form, *, shift=0):
    """Ids of which every seventh is missing."""
    return lambda X: FORMS[form]([None if int(x) % 7 == 0 else 1_000 + int(x) + shift for x in X])


@pytest.mark.parametrize("form", FORMS)
def test_ids_with_gaps_are_names_too(form):
    report = data_only.check(with_gaps(form), with_gaps(form, shift=1), rows(COUNT))
    expect(report, "FAIL", "171 of 200 labels of 'output' changed")


@pytest.mark.parametrize("form", FORMS)
def test_ids_with_the_same_gaps_agree_in_every_batch(form):
    report = data_only.check(with_gaps(form), with_gaps("list"), rows(COUNT), batch_sizes=None)
    expect(report, "PASS")
    assert "reference-batch" not in codes(report)


def test_recorded_ids_with_gaps_are_names_too(tmp_path):
    golden = str(tmp_path / "golden.parquet")
    likewise.record(with_gaps("frame"), rows(COUNT), golden)
    expect(data_only.check(golden, with_gaps("frame"), rows(COUNT)), "PASS")
    expect(data_only.check(golden, with_gaps("frame", shift=1), rows(COUNT)), "FAIL", "171 of 200 labels")


def test_floats_with_gaps_are_no_names():
    def answering(shift):
        return lambda X: [None if int(x) % 7 == 0 else float(x) + shift for x in X]

    expect(data_only.check(answering(0), answering(1e-6), rows(COUNT)), "PASS", "14.5% of 'output' is NaN on both")
    expect(data_only.check(answering(0), answering(1.0), rows(COUNT)), "FAIL", "171 of 200 rows differ by more than")


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64()])
def test_recorded_whole_numbers_with_gaps_keep_their_digits(kind):
    column = pa.chunked_array([pa.array([2**53 + 1, None], kind)])
    assert _from_arrow(column, OutputSpec("y", Kind.VALUE, shape=(None,))).tolist() == [2**53 + 1, None]


@pytest.mark.skipif(np.finfo(np.longdouble).nmant <= 52, reason="long double is a double here")
@pytest.mark.parametrize(
    ("ours", "theirs", "outcome"),
    [
        (np.longdouble(1), np.longdouble(1) + np.finfo(np.longdouble).eps, "FAIL"),
        (np.longdouble("1e-400"), np.longdouble("3e-400"), "FAIL"),
        (2**63 - 1, np.longdouble(2) ** 63, "FAIL"),
        (np.longdouble("1e400"), np.longdouble("1e401"), "INCONCLUSIVE"),
        (np.longdouble("inf"), np.longdouble("1e400"), "INCONCLUSIVE"),
        (np.longdouble(1) / 3, np.longdouble(1) / 3, "PASS"),
    ],
)
def test_long_doubles_are_told_apart_by_digits_that_no_double_has(ours, theirs, outcome):
    def answering(value):
        return lambda x: {"value": np.full(len(x), value)}

    options = {"abs_tol": 0, "rel_tol": 0, "edge": "off", "batch_sizes": (), "allow_same": True}
    report = likewise.check(answering(ours), answering(theirs), {"x": np.zeros(8)}, **options)
    assert report.outcome == outcome, report.headline
