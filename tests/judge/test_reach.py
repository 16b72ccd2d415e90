"""What the rows allow us to claim: plans, bounds, and rows of every value of a column."""

from __future__ import annotations

import json
import math
from collections import Counter

import joblib
import numpy as np
import onnxruntime
import pandas as pd
import pytest

import data_only
from likewise.contracts.data import RowIds
from likewise.data.selection import MISSING, equal_shares, select
from likewise.errors import UsageError
from likewise.judge.verdict import rows_needed, upper_bound
from likewise.registry import open_source
from planting import here


def binomial_tail(violations: int, rows: int, rate: float) -> float:
    """The chance of so few violations, by adding it up."""
    return math.fsum(math.comb(rows, k) * rate**k * (1 - rate) ** (rows - k) for k in range(violations + 1))


def test_of_two_rows_one_may_be_enough_to_rule_out_nearly_all():
    """The largest rate that one of two does not rule out is the root of 0.95, 0.9747: there both are beyond."""
    assert rows_needed(0.98, 0.95, 1) == 2
    assert rows_needed(0.97, 0.95, 1) == 3


@pytest.mark.parametrize("violations", [0, 1, 3])
@pytest.mark.parametrize(("rate", "level"), [(0.01, 0.95), (0.05, 0.99), (0.2, 0.9)])
def test_the_rows_needed_are_the_fewest_that_rule_the_rate_out(rate, level, violations):
    rows = rows_needed(rate, level, violations)
    assert binomial_tail(violations, rows, rate) <= 1 - level < binomial_tail(violations, rows - 1, rate)
    assert upper_bound(violations, rows, level) <= rate


@pytest.mark.parametrize(
    "words", [[], ["--rows", "0"], ["--max-failure-rate", "1"], ["--rows", "9", "--max-failure-rate", "0.1"]]
)
def test_a_plan_without_a_sensible_question_is_a_usage_error(words, tmp_path):
    done = here("plan", *words, folder=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_what_a_number_of_rows_allows_as_json(tmp_path):
    found = json.loads(here("plan", "--rows", "500", "--json", folder=tmp_path).stdout)
    assert found["claims"][0]["upper_bound"] == pytest.approx(1 - 0.05 ** (1 / 500))


def test_shares_are_equal_until_a_value_runs_out():
    assert equal_shares({"a": 1000, "b": 3, "c": 50}, 90) == {"a": 44, "b": 3, "c": 43}
    assert equal_shares({"a": 2, "b": 3}, 90) == {"a": 2, "b": 3}
    assert sum(equal_shares({str(n): 10 for n in range(7)}, 12).values()) == 12


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(5)
    country = rng.choice(["DE", "FR", "MT", None], size=5_000, p=[0.7, 0.28, 0.002, 0.018])
    return pd.DataFrame({"x": rng.normal(size=5_000), "y": rng.normal(size=5_000), "country": country})


@pytest.mark.parametrize("sample", ["first", "random"])
def test_the_same_rows_are_drawn_at_every_batch_size_and_in_shards(frame, sample):
    source = select(open_source(frame), samples=60, sample=sample, seed=3, stratify="country")
    drawn = [np.concatenate([b.rows.numbers for b in source.batches(size)]) for size in (1, 7, 5_000)]
    assert all(np.array_equal(drawn[0], other) for other in drawn[1:])
    sharded = [batch.rows.numbers for shard in source.shards(3) for batch in shard.batches(11)]
    assert np.array_equal(np.sort(np.concatenate(sharded)), drawn[0])
    counts = Counter(frame["country"].fillna(MISSING).iloc[drawn[0]])
    rare = int((frame["country"] == "MT").sum())
    assert rare < 15 <= min(count for value, count in counts.items() if value != "MT")
    assert counts["MT"] == rare
    assert sum(counts.values()) == 60


def test_the_first_rows_of_each_value_are_the_first(frame):
    source = select(open_source(frame), samples=20, stratify="country", drop=["country"])
    numbers = {int(number) for batch in source.batches(64) for number in batch.rows.numbers}
    for value in ("DE", "FR"):
        mine = np.flatnonzero(frame["country"] == value)
        taken = sorted(numbers & set(mine.tolist()))
        assert taken == mine[: len(taken)].tolist()


def test_rows_keep_their_value_when_they_are_cut_and_joined():
    rows = RowIds(np.arange(4), None, np.array(["a", "b", "a", "c"], dtype=object))
    assert rows.slice(1, 3).strata.tolist() == ["b", "a"]
    assert rows.at(np.array([3, 0])).strata.tolist() == ["c", "a"]


def test_every_value_is_reported_as_a_loop_by_hand_finds_it(example_folder):
    """Against the models themselves: rows, rows beyond and the largest difference by value."""
    table = pd.read_parquet(example_folder / "test.parquet")
    report = data_only.check(
        str(example_folder / "model.joblib"),
        str(example_folder / "model.int8.onnx"),
        table,
        abs_tol=0.005,
        rel_tol=0,
        stratify="purpose",
        batch_size=len(table),  # INT8 scales are found for a whole call
        batch_sizes=(),
    )
    session = onnxruntime.InferenceSession(example_folder / "model.int8.onnx")
    text = {entry.name: entry.type == "tensor(string)" for entry in session.get_inputs()}
    feed = {n: table[n].to_numpy(object if text[n] else np.float32).reshape(-1, 1) for n in text}
    ours = joblib.load(example_folder / "model.joblib").predict_proba(table)
    theirs = session.run(["probabilities"], feed)[0].astype(np.float64)
    apart = np.abs(theirs - ours)
    expected = {
        str(value): (int(mine.sum()), int((apart[mine] > 0.005).any(axis=1).sum()), float(apart[mine].max()))
        for value in table["purpose"].unique()
        for mine in [(table["purpose"] == value).to_numpy()]
    }
    found = {s.value: (s.rows, s.rows_beyond, s.worst["probabilities"]) for s in report.comparison.strata}
    assert found.keys() == expected.keys()
    for value, (rows, beyond, worst) in expected.items():
        assert found[value][0] == rows
        # A changed label may be beyond the tolerance where no probability is.
        assert found[value][1] >= beyond
        assert found[value][2] == pytest.approx(worst, rel=1e-12)
    assert sum(s.rows_beyond for s in report.comparison.strata) == report.comparison.rows_beyond
    assert all(stratum.column == "purpose" for stratum in report.comparison.strata)


def test_an_unknown_column_or_one_with_too_many_values_is_a_usage_error(frame):
    with pytest.raises(UsageError, match=r"no column 'contry'.*did you mean 'country'"):
        list(select(open_source(frame), stratify="contry").batches(10))
    with pytest.raises(UsageError, match="more than 1,000 values"):
        list(select(open_source(frame), samples=9, stratify="x").batches(10))
    model = lambda rows: np.asarray(rows["x"])  # noqa: E731
    with pytest.raises(UsageError, match="more than 1,000 values"):
        data_only.check(model, model, frame, stratify="x")


def test_fewer_rows_than_asked_for_are_inconclusive(frame):
    model = lambda rows: np.asarray(rows["x"])  # noqa: E731
    report = data_only.check(model, model, frame.iloc[:50], stratify="country", samples=60)
    assert report.outcome == "INCONCLUSIVE"


def test_the_command_writes_every_value_into_the_report(example_folder, tmp_path):
    words = ["--stratify", "purpose", "--samples", "1000", "--sample", "random", "--report", str(tmp_path / "r.json")]
    words += data_only.FLAGS
    done = here(
        "check", "model.onnx", "model.onnx", "--allow-same", "--data", "test.parquet", *words, folder=example_folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    strata = json.loads((tmp_path / "r.json").read_text())["coverage"]["strata"]
    assert sum(stratum["rows"] for stratum in strata) == 1_000
    assert max(s["rows"] for s in strata) - min(s["rows"] for s in strata) <= 1
