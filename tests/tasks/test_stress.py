"""A search finds planted faults that no real row shows, says the truth about them, and tries only possible rows."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

import data_only
import likewise
from likewise.contracts.results import StressResult
from likewise.contracts.verdict import Outcome
from likewise.errors import UsageError
from likewise.registry import extensions
from likewise.report import tables
from likewise.report.formats.json import dumps, read
from likewise.tasks.stress import moves as search
from planting import here


@pytest.fixture(scope="module")
def frame():
    """A table with every kind of column, in which nothing is rare but combinations."""
    random = np.random.default_rng(11)
    rows = 1_500
    made = pd.DataFrame(
        {
            "amount": np.exp(random.normal(3, 1, rows)),
            "count": random.integers(0, 40_000_000, rows),
            "share": random.random(rows).astype(np.float32),
            "flag": random.random(rows) < 0.3,
            "grade": random.integers(1, 6, rows),
            "city": random.choice(["Rome", "Oslo", "Bern", "Lima", "Kyiv"], rows, p=[0.5, 0.3, 0.15, 0.04, 0.01]),
            "score": np.where(random.random(rows) < 0.05, np.nan, random.normal(0, 1, rows)),
        }
    )
    made.loc[made["city"] == "Kyiv", "amount"] = made["amount"].clip(upper=30)
    return made


def answer(rows):
    city = rows["city"].map({"Rome": 0.0, "Oslo": 0.1, "Bern": 0.2, "Lima": 0.3, "Kyiv": 0.4}).to_numpy(dtype=float)
    score = np.nan_to_num(rows["score"].to_numpy(), nan=0.25)
    return rows["amount"].to_numpy() / 100 + rows["count"].to_numpy() / 1e8 + city + score + rows["grade"].to_numpy()


def faulty(rows):
    """Wrong in one city for large amounts, which the data never holds together."""
    wrong = (rows["city"] == "Kyiv") & (rows["amount"] > 100)
    return answer(rows) + np.where(wrong, 0.5, 0.0)


def test_a_fault_of_two_columns_is_found_and_told_with_those_columns(frame):
    assert data_only.check(answer, faulty, frame)
    found = likewise.stress(answer, faulty, frame, calls=60, abs_tol=0.01)
    assert found.outcome is Outcome.FAIL
    assert not found
    assert found.data_worst == 0
    assert found.data_beyond == 0
    worst = found.rows[0]
    assert worst.abs_diff == pytest.approx(0.5)
    assert {change.column for change in worst.changes} <= {"city", "amount"}
    assert worst.changed == len(worst.changes)
    real = frame.iloc[int(worst.base)]
    for change in worst.changes:
        assert change.before == pytest.approx(real[change.column]) if change.column == "amount" else real["city"]
    assert sum(move.gains for move in found.moves) >= 1


def test_the_same_seed_and_calls_find_the_same(frame):
    one, other, third = (
        replace(likewise.stress(answer, faulty, frame, calls=30, seed=seed), seconds=0.0, seconds_in_models=0.0)
        for seed in (3, 3, 4)
    )
    assert asdict(one) == asdict(other)
    assert asdict(one) != asdict(third)
    assert max(one.calls.values()) <= 30


@pytest.fixture
def tried(monkeypatch):
    """Every batch that the moves had measured."""
    batches = []

    def recorded(*arguments):
        batches.append(original(*arguments))
        return batches[-1]

    original = search.batch_of
    monkeypatch.setattr(search, "batch_of", recorded)
    return batches


@pytest.mark.parametrize("widen", [0.0, 0.1])
def test_every_row_tried_could_be_in_the_data(frame, tried, widen):
    likewise.stress(answer, answer, frame, calls=50, widen=widen)
    together = pd.concat([batch.inputs.frame() for batch in tried])
    assert len(together) > 2_000
    assert together.dtypes.to_dict() == frame.dtypes.to_dict()
    for name in ("amount", "count", "share", "score"):
        reach = widen * (frame[name].max() - frame[name].min()) * (1 + 1e-6)
        assert together[name].min() >= frame[name].min() - reach
        assert together[name].max() <= frame[name].max() + reach
        assert together[name].nunique() > 100
        if widen:
            assert together[name].max() > frame[name].max()
        assert together[name].isna().any() == frame[name].isna().any()
    for name in ("flag", "grade", "city"):
        assert set(together[name]) <= set(frame[name])


def test_a_range_is_left_only_when_asked(frame):
    top = frame["amount"].max()

    def outside(rows):
        return answer(rows) + np.where(rows["amount"] > top, 3.0, 0.0)

    assert likewise.stress(answer, outside, frame, calls=30).outcome is Outcome.PASS
    found = likewise.stress(answer, outside, frame, calls=30, widen=0.1, abs_tol=0.01)
    assert found.outcome is Outcome.FAIL
    assert [change.column for change in found.rows[0].changes] == ["amount"]


def test_the_file_reproduces_the_difference_to_the_bit(example_folder, tmp_path):
    paths = [str(example_folder / name) for name in ("booster.joblib", "booster.onnx", "test.parquet")]
    output = tmp_path / "stress.parquet"
    found = likewise.stress(*paths, calls=40, output=str(output))
    assert found.outcome is Outcome.FAIL
    assert found.data_beyond == 0
    assert found.file == str(output)
    assert pq.read_schema(output).equals(pq.read_schema(paths[2]), check_metadata=True)
    assert pq.read_metadata(output).num_rows == len(found.rows)
    report = data_only.check(*paths[:2], str(output))
    assert report.outcome is Outcome.FAIL
    assert report.max_abs_diff == found.max_abs_diff
    assert report.max_abs_diff > 1e4 * found.data_max_abs_diff
    for facts in report.comparison.outputs:
        for entry in facts.details["worst_rows"]["rows"]:
            row = found.rows[entry["number"]]
            if row.output == facts.name:
                assert (entry["severity"], entry["abs_diff"]) == (row.severity, row.abs_diff)


def shifting(rows):
    """Its answers depend on the largest amount of the call, as those of a dynamically quantised model do."""
    return answer(rows) + 1e-4 * rows["amount"].max() * np.sin(rows["amount"].to_numpy())


@pytest.fixture(scope="module")
def shifted(frame, tmp_path_factory):
    outlier = frame.assign(amount=np.where(np.arange(len(frame)) == 700, 1e5, frame["amount"].clip(upper=30)))
    path = tmp_path_factory.mktemp("shifted") / "worst.parquet"
    found = likewise.stress(answer, shifting, outlier, calls=24, abs_tol=0.5, rel_tol=0.0, output=str(path))
    return outlier, path, found


def test_the_worst_input_is_never_less_bad_than_a_real_row(shifted):
    outlier, path, found = shifted
    assert found.rows[0].severity_in_search >= found.data_worst
    real = int(np.abs(np.sin(outlier["amount"].to_numpy()[672:])).argmax()) + 672
    assert (found.rows[0].base, found.rows[0].changed) == (real, 0)
    written = pd.read_parquet(path)
    assert len(written) == len(found.rows)
    assert written["amount"][0] == outlier["amount"][real]
    assert found.data_abs_diff == pytest.approx(0.5 * found.data_worst)
    assert found.rows[0].abs_diff_in_search == pytest.approx(0.5 * found.rows[0].severity_in_search)
    # The real rows from 672 on are asked about in one call, with the outlier beside them.
    apart = 1e-4 * 1e5 * np.abs(np.sin(outlier["amount"].to_numpy()))
    assert found.data_abs_diff == pytest.approx(apart[real], rel=1e-6)
    assert found.data_max_abs_diff == found.data_abs_diff


def test_a_difference_that_depends_on_the_call_is_told_and_fails(shifted):
    _, path, found = shifted
    assert found.outcome is Outcome.FAIL
    worst = found.rows[0]
    written = pd.read_parquet(path)
    expected = np.abs(shifting(written) - answer(written))[worst.position]
    assert worst.abs_diff == pytest.approx(expected)
    assert worst.severity < 0.1 * worst.severity_in_search
    assert any("depend on what else is in the call" in note for note in found.notes)
    assert "the same in the file" in tables.stress_table(found)


def test_where_nothing_is_worse_the_real_row_is_reported_and_written(frame, tmp_path):
    """The difference is largest in one real row, and nothing else makes it larger."""
    top = frame["amount"].idxmax()

    def growing(rows):
        return answer(rows) + 1e-3 * rows["amount"].to_numpy()

    output = tmp_path / "worst.parquet"
    found = likewise.stress(answer, growing, frame, calls=40, abs_tol=10.0, rel_tol=0.0, output=str(output))
    assert (found.rows[0].base, found.rows[0].changed) == (top, 0)
    assert found.rows[0].severity_in_search == found.data_worst
    assert found.data_abs_diff == pytest.approx(1e-3 * frame["amount"].max())
    pd.testing.assert_series_equal(pd.read_parquet(output).iloc[0], frame.loc[top], check_names=False)
    lines = tables.stress_table(found).splitlines()
    assert next(line for line in lines if line.startswith("factor")).split() == ["factor", "1×"]


def test_the_largest_difference_of_a_real_row_is_told_beside_the_worst(frame):
    """Under a relative tolerance the worst row is one with a small answer."""

    def growing(rows):
        return answer(rows) * (1 + 1e-5) + 1e-5

    found = likewise.stress(answer, growing, frame, calls=30, abs_tol=1e-9, rel_tol=1e-3)
    apart = np.abs(growing(frame) - answer(frame))
    worst = int(np.argmax(apart / (1e-9 + 1e-3 * np.abs(answer(frame)))))
    assert found.data_abs_diff == pytest.approx(apart[worst])
    assert found.data_max_abs_diff == pytest.approx(apart.max())
    assert any("another real row has a larger difference" in note for note in found.notes)


def test_the_changes_told_are_those_of_the_file(frame, tmp_path):
    output = tmp_path / "worst.parquet"
    found = likewise.stress(answer, faulty, frame, calls=60, output=str(output))
    written = pd.read_parquet(output)
    for row in found.rows:
        expected = frame.iloc[int(row.base)].copy()
        for change in row.changes:
            expected[change.column] = change.after
        pd.testing.assert_series_equal(written.iloc[row.position], expected, check_names=False, check_dtype=False)


def test_not_finite_on_one_side_is_the_worst(frame):
    def broken(rows):
        return np.where((rows["city"] == "Kyiv") & (rows["score"].isna()), np.nan, faulty(rows))

    some = frame[~((frame["city"] == "Kyiv") & frame["score"].isna())].reset_index(drop=True)
    found = likewise.stress(answer, broken, some, calls=60)
    assert found.outcome is Outcome.FAIL
    assert math.isinf(found.rows[0].severity)
    assert {change.column for change in found.rows[0].changes} <= {"city", "score"}
    strict = json.loads(dumps(found), parse_constant=lambda text: pytest.fail(text))
    assert strict["rows"][0]["severity"] == "Infinity"


def refusing(rows):
    if ((rows["city"] == "Kyiv") & rows["score"].isna()).any():
        raise ValueError("no score for Kyiv")
    return answer(rows)


def test_a_row_that_one_model_refuses_is_told_apart(frame):
    some = frame[~((frame["city"] == "Kyiv") & frame["score"].isna())].reset_index(drop=True)
    found = likewise.stress(answer, refusing, some, calls=120)
    assert found.outcome is Outcome.FAIL
    assert found.refusals.candidate_only > 0
    assert found.refusals.reference_only == found.refusals.both == 0
    assert found.found_worst == 0
    example = found.refusals.examples[0]
    assert example["refused_by"] == "candidate"
    assert {change["column"] for change in example["changes"]} & {"city", "score"}


def test_a_row_that_both_refuse_is_counted_and_no_difference(frame):
    some = frame[~((frame["city"] == "Kyiv") & frame["score"].isna())].reset_index(drop=True)
    found = likewise.stress(refusing, refusing, some, calls=120)
    assert found.refusals.both > 0
    assert found.refusals.candidate_only == found.refusals.reference_only == 0
    assert found.outcome in (Outcome.PASS, Outcome.INCONCLUSIVE)
    assert (found.outcome is Outcome.INCONCLUSIVE) == (found.refusals.not_told > 0)


def test_limits_of_single_rows_are_judged_and_averages_are_not(frame):
    loose = {"abs_tol": 1.0}
    assert likewise.stress(answer, faulty, frame, calls=60, **loose).outcome is Outcome.PASS
    found = likewise.stress(answer, faulty, frame, calls=60, **loose, limits={"max_abs_diff": 0.1})
    assert found.outcome is Outcome.FAIL
    assert "max_abs_diff is 0.5, above its limit of 0.1" in found.headline
    averages = likewise.stress(answer, faulty, frame, calls=60, **loose, mean_tol=1e-9)
    assert averages.outcome is Outcome.PASS
    assert any("mean_abs_diff" in note for note in averages.notes)


def test_a_changed_label_is_a_difference(frame):
    def label(rows):
        return np.where(answer(rows) > 4, "yes", "no")

    def other(rows):
        return np.where((rows["city"] == "Kyiv") & (rows["amount"] > 100), "maybe", label(rows))

    found = likewise.stress(label, other, frame, calls=60)
    assert found.outcome is Outcome.FAIL
    assert found.rows[0].candidate == "maybe"


def test_what_cannot_be_searched_is_inconclusive(frame, tmp_path, example_folder):
    assert likewise.stress(answer, faulty, frame[:0]).outcome is Outcome.INCONCLUSIVE
    missing = likewise.stress("missing.joblib", faulty, frame)
    assert missing.outcome is Outcome.INCONCLUSIVE
    assert "missing.joblib" in missing.headline
    golden = tmp_path / "golden.parquet"
    likewise.record(str(example_folder / "model.joblib"), str(example_folder / "test.parquet"), golden)
    recorded = likewise.stress(str(golden), str(example_folder / "model.onnx"), str(example_folder / "test.parquet"))
    assert recorded.outcome is Outcome.INCONCLUSIVE
    assert "recorded" in recorded.headline
    assert tables.stress_table(recorded).startswith(" INCONCLUSIVE")


@pytest.mark.parametrize(
    "options",
    [{"budget": 0}, {"calls": 0}, {"widen": -1}, {"output": "rows.csv"}, {"callz": 3}, {"abs_tol": -1}],
    ids=lambda options: next(iter(options)),
)
def test_a_question_that_makes_no_sense_raises(frame, options):
    with pytest.raises(UsageError):
        likewise.stress(answer, faulty, frame, **options)


def test_a_budget_that_is_too_short_to_search_is_no_pass(frame):
    found = likewise.stress(answer, answer, frame, calls=1)
    assert found.outcome is Outcome.INCONCLUSIVE


def test_moves_have_names_of_their_own():
    names = [move.name for move in extensions("tasks.stress.moves")]
    assert len(set(names)) == len(names) >= 8


def test_the_command_finds_writes_and_tells(example_folder, tmp_path):
    models = [str(example_folder / name) for name in ("booster.joblib", "booster.onnx")]
    data = str(example_folder / "test.parquet")
    done = here("stress", *models, "--data", data, "--calls", "30", "--report", "report.json", folder=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.startswith(" FAIL   booster.joblib → booster.onnx")
    shown = [line for line in done.stdout.splitlines() if not line.startswith("  likewise check")]
    assert max(map(len, shown)) <= 80
    assert "worst input found" in done.stdout
    assert (tmp_path / "stress.parquet").exists()
    found = read(StressResult, json.loads((tmp_path / "report.json").read_text()))
    assert found.outcome is Outcome.FAIL
    assert found.rows[0].changes


def test_the_command_printed_repeats_what_matters(example_folder, tmp_path):
    models = [str(example_folder / name) for name in ("model.joblib", "model.onnx")]
    data = str(example_folder / "test.parquet")
    given = ["--preset", "quantized", "--abs-tol", "1e-12", "--limit", "nonfinite_mismatch=0.0", "--ignore", "label"]
    given += ["--candidate-option", "threads=1", "--batch-size", "64", "--nan-equal", "false"]
    done = here("stress", *models, "--data", data, "--calls", "9", *given, folder=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("  likewise check ")]
    words = shlex.split(line)
    assert words[:6] == ["likewise", "check", *models, "--data", "stress.parquet"]
    pairs = set(zip(words[6::2], words[7::2], strict=True))
    assert pairs == set(zip(given[::2], given[1::2], strict=True))
    here(*words[1:], "--no-explain", folder=tmp_path).expect(1)


def test_the_exit_code_says_whether_anything_was_found(example_folder, tmp_path):
    folder, data = example_folder, str(example_folder / "test.parquet")
    same = here(
        "stress",
        str(folder / "model.joblib"),
        str(folder / "model.onnx"),
        "--data",
        data,
        "--calls",
        "30",
        "--json",
        folder=tmp_path,
    )
    assert same.returncode == 0, same.stdout + same.stderr
    assert json.loads(same.stdout)["outcome"] == "PASS"
    lost = here(
        "stress", "missing.joblib", str(folder / "model.onnx"), "--data", data, "--report", "lost.json", folder=tmp_path
    )
    assert lost.returncode == 3
    assert json.loads((tmp_path / "lost.json").read_text())["outcome"] == "INCONCLUSIVE"
    assert here("stress", "a.joblib", "b.onnx", "--data", data, "--widen", "much", folder=tmp_path).returncode == 2


def test_where_nothing_could_be_changed_or_measured_nothing_passes():
    one = pd.DataFrame({"x": [1.0]})
    model = lambda rows: rows["x"].to_numpy()  # noqa: E731
    alone = likewise.stress(model, model, one, calls=10)
    assert alone.outcome == "INCONCLUSIVE"
    assert "nothing to change" in alone.headline
    many = pd.DataFrame({"x": np.linspace(0, 1, 30)})
    nothing = lambda rows: np.full(len(rows), np.nan)  # noqa: E731
    hollow = likewise.stress(nothing, nothing, many, calls=10)
    assert hollow.outcome == "INCONCLUSIVE"
    assert "nothing to measure" in hollow.headline
