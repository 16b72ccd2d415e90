"""Nothing passes on rows that are missing, cut off, doubled or out of order."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import data_only
from likewise.contracts.data import Batch, Provenance, RowIds
from likewise.data.columns import ArrayColumns
from likewise.errors import UsageError
from planting import codes, expect, planted, rows, said, worst

VALUES = np.linspace(1.0, 2.0, 400)
FRAME = pd.DataFrame({"x": VALUES})


def own_value(frame):
    return {"value": frame["x"].to_numpy()}


class EndsEarly:
    """A source that promises a hundred rows and gives sixty."""

    location, fingerprint, provenance, rows = "a stream", "0" * 64, Provenance.REAL, 100

    def batches(self, size):
        for start in range(0, 60, size):
            numbers = np.arange(start, min(start + size, 60))
            yield Batch(RowIds(numbers), ArrayColumns({"X": numbers.astype(np.float64)}))

    def shards(self, count):
        return [self]


def test_no_rows_in_arrays_is_inconclusive():
    model = planted(value=VALUES)
    report = expect(data_only.check(model, model, rows(0)), "INCONCLUSIVE", "holds no rows")
    assert report.samples == 0
    assert report.verdict.confidence is None


def test_no_rows_in_a_parquet_file_is_inconclusive(tmp_path):
    path = tmp_path / "none.parquet"
    FRAME[:0].to_parquet(path)
    expect(data_only.check(own_value, own_value, path), "INCONCLUSIVE", "none.parquet", "holds no rows")


def test_no_rows_in_a_live_frame_is_inconclusive():
    expect(data_only.check(own_value, own_value, FRAME[:0]), "INCONCLUSIVE", "holds no rows")


@pytest.mark.parametrize("name", ["data.csv", "data.jsonl", "data.parquet", "data.npy", "data.npz"])
def test_a_file_of_zero_bytes_is_inconclusive(tmp_path, name):
    (tmp_path / name).touch()
    expect(data_only.check(own_value, own_value, tmp_path / name), "INCONCLUSIVE", name)


def test_a_csv_with_a_header_only_is_inconclusive(tmp_path):
    path = tmp_path / "header.csv"
    path.write_text("x,y\n")
    expect(data_only.check(own_value, own_value, path), "INCONCLUSIVE", "header.csv", "holds no rows")


def test_a_parquet_file_cut_in_half_is_inconclusive(tmp_path):
    path = tmp_path / "cut.parquet"
    FRAME.to_parquet(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    expect(data_only.check(own_value, own_value, path), "INCONCLUSIVE", "cut.parquet", "Write the file again")


def test_a_parquet_file_with_a_damaged_page_is_inconclusive(tmp_path):
    path = tmp_path / "damaged.parquet"
    values = np.random.default_rng(0).normal(size=20_000)
    pq.write_table(pa.table({"x": values}), path, row_group_size=5_000, use_dictionary=False, compression="gzip")
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 2000] = bytes(2000)
    path.write_bytes(content)
    expect(data_only.check(own_value, own_value, path), "INCONCLUSIVE", "damaged.parquet", "Write the file again")


def test_a_csv_whose_last_line_is_broken_is_inconclusive(tmp_path):
    path = tmp_path / "broken.csv"
    path.write_text("x,y\n" + "".join(f"{number},1\n" for number in range(50)) + "50")
    expect(data_only.check(own_value, own_value, path), "INCONCLUSIVE", "broken.csv", "row 50")


def test_a_csv_that_ends_inside_quotes_is_inconclusive(tmp_path):
    path = tmp_path / "quoted.csv"
    path.write_text("x,y\n" + "".join(f'{number},"a"\n' for number in range(50)) + '50,"a')
    expect(data_only.check(own_value, own_value, path), "INCONCLUSIVE", "quoted.csv", "never closed")


def test_a_half_written_jsonl_is_inconclusive(tmp_path):
    path = tmp_path / "half.jsonl"
    lines = [json.dumps({"x": float(number)}) for number in range(50)]
    path.write_text("\n".join(lines) + '\n{"x": 5')
    expect(data_only.check(own_value, own_value, path), "INCONCLUSIVE", "half.jsonl", "line 51")


def test_a_missing_data_file_is_inconclusive_and_a_near_name_is_offered(tmp_path):
    FRAME.to_parquet(tmp_path / "holdout.parquet")
    report = data_only.check(own_value, own_value, tmp_path / "holdot.parquet")
    expect(report, "INCONCLUSIVE", "there is no file", "holdot.parquet", "did you mean 'holdout.parquet'")


def test_a_folder_without_data_is_inconclusive(tmp_path):
    expect(data_only.check(own_value, own_value, tmp_path), "INCONCLUSIVE", str(tmp_path))


def test_more_samples_than_there_are_rows_is_inconclusive():
    model = planted(value=VALUES)
    report = data_only.check(model, model, rows(40), samples=41)
    expect(report, "INCONCLUSIVE", "41 rows were expected and 40 were compared")
    expect(data_only.check(model, model, rows(40), samples=40), "PASS", "40 rows")


def test_a_source_that_ends_early_is_inconclusive():
    model = planted(value=VALUES)
    report = data_only.check(model, model, EndsEarly())
    expect(report, "INCONCLUSIVE", "100 rows were expected and 60 were compared")
    assert report.samples == 60


@pytest.mark.parametrize(
    ("cut", "count"),
    [
        (lambda a: a[:-1], "31"),
        (lambda a: np.append(a, 0.0), "33"),
        (lambda a: a[None, :], "1"),
        (lambda a: a[:0], "0"),
    ],
    ids=["one too few", "one too many", "rows along the second axis", "none at all"],
)
def test_another_number_of_answers_than_rows_fails(cut, count):
    def candidate(X):
        return {"value": cut(VALUES[X.astype(int)])}

    report = data_only.check(planted(value=VALUES), candidate, rows(100))
    expect(report, "FAIL", "the candidate", "was given 32 rows", f"answered {count} in output 'value'")
    assert "row-count" in codes(report, "failure")


def test_one_row_lost_in_a_later_call_fails():
    def candidate(X):
        kept = X[X != 299]
        return {"value": VALUES[kept.astype(int)]}

    report = data_only.check(planted(value=VALUES), candidate, rows(300))
    expect(report, "FAIL", "candidate", "'value'", "44 rows", "answered 43")


def test_a_reference_that_loses_a_row_is_inconclusive():
    def reference(X):
        return {"value": VALUES[X.astype(int)][:-1]}

    report = data_only.check(reference, planted(value=VALUES), rows(100))
    expect(report, "INCONCLUSIVE", "the reference", "answered 31 in output 'value'")


def test_a_transposed_answer_fails():
    table = np.stack([VALUES, -VALUES, VALUES * 2], axis=1)

    def candidate(X):
        return {"value": table[X.astype(int)].T}

    report = data_only.check(planted(value=table), candidate, rows(100))
    expect(report, "FAIL", "output 'value'", "of shape (3, 32)")


def test_a_transposed_answer_fails_also_when_it_is_square():
    table = np.arange(16.0).reshape(4, 4)

    def candidate(X):
        return {"value": table[X.astype(int)].T}

    report = data_only.check(planted(value=table), candidate, rows(4), batch_sizes=())
    expect(report, "FAIL", "value.mismatch_rate")
    # |r - c| is largest between 3 and 12, in row 0 and in row 3.
    assert worst(report, "value")[0]["abs_diff"] == 9.0


def test_reordered_rows_fail_and_the_worst_rows_are_named():
    swapped = VALUES.copy()
    swapped[[10, 90]] = swapped[[90, 10]]
    report = data_only.check(planted(value=VALUES), planted(value=swapped), rows(100))
    expect(report, "FAIL", "value.mismatch_rate", "2 of 100 rows differ by more than 0.0001")
    assert {row["row"] for row in worst(report, "value") if row["severity"] > 1} == {10, 90}


def test_ids_name_the_worst_rows():
    wrong = VALUES.copy()
    wrong[7] += 0.5
    data = {**rows(50), "customer": np.array([f"c-{number}" for number in range(50)], dtype=object)}
    report = data_only.check(planted(value=VALUES), planted(value=wrong), data, id="customer")
    expect(report, "FAIL", "value.mismatch_rate")
    first = worst(report, "value")[0]
    assert (first["row"], first["number"]) == ("c-7", 7)
    assert first["abs_diff"] == pytest.approx(0.5)


def test_ids_that_stand_for_two_rows_are_inconclusive():
    data = {**rows(50), "customer": np.array([f"c-{number % 49}" for number in range(50)], dtype=object)}
    model = planted(value=VALUES)
    report = data_only.check(model, model, data, id="customer")
    expect(report, "INCONCLUSIVE", "'c-0'", "'customer'", "row 49")


def test_an_id_column_that_does_not_exist_makes_no_sense():
    model = planted(value=VALUES)
    data = {**rows(50), "customer": np.arange(50)}
    with pytest.raises(UsageError, match="no column 'custmer' to name rows by; did you mean 'customer'"):
        data_only.check(model, model, data, id="custmer")
    with pytest.raises(UsageError, match="no column 'come' to name rows by") as refused:
        data_only.check(model, model, data, id="come")
    assert "did you mean" not in str(refused.value)  # two letters of three are in 'customer', which is no slip


def test_a_row_without_an_id_is_inconclusive():
    names = np.array([f"c-{number}" for number in range(50)], dtype=object)
    names[31] = None
    model = planted(value=VALUES)
    report = data_only.check(model, model, {**rows(50), "customer": names}, id="customer")
    expect(report, "INCONCLUSIVE", "row 31", "'customer'")


def test_a_live_array_and_a_live_frame_are_taken_as_they_are():
    expect(data_only.check(lambda X: X * 2, lambda X: X * 2, np.arange(40.0)), "PASS", "40 rows")
    report = data_only.check(own_value, own_value, FRAME)
    assert "400 rows" in said(expect(report, "PASS"))


MANY = 40_000
"""Rows enough for several chunks, of which the last is reached only after the others were compared."""


def answering_until(last, change):
    """A candidate that is right until the batch that holds the last row; `change` gets its rows and answers."""

    def candidate(X):
        values = 1 + X / MANY
        return change(X, values) if (last == X).any() else {"value": values}

    return candidate


def right(X):
    return {"value": 1 + X / MANY}


def failing(X, values):
    raise RuntimeError("the last one is too much")


@pytest.mark.parametrize(
    ("change", "outcome", "words"),
    [
        (lambda X, v: {"value": v + (X == MANY - 1)}, "FAIL", ("value.mismatch_rate", "1 of 40,000 rows")),
        (lambda X, v: {"value": np.where(X == MANY - 1, np.nan, v)}, "FAIL", ("value.nonfinite_mismatch is 1",)),
        (lambda X, v: {"value": v[:-1]}, "FAIL", ("the candidate", "7,231 in output 'value'")),
        (lambda X, v: {"value": v[:, None].repeat(2, axis=1)}, "FAIL", ("'value'", "(n, 2) in the candidate")),
        (lambda X, v: {"value": v.astype(str).astype(object)}, "FAIL", ("'value'", "text in the candidate")),
        (lambda X, v: {"result": v}, "FAIL", ("'value' is no longer given",)),
        (failing, "INCONCLUSIVE", ("the candidate", "rows 32768 to 39999", "too much")),
    ],
    ids=["one wrong", "one NaN", "one lost", "another shape", "another type", "another name", "an exception"],
)
def test_what_goes_wrong_in_the_last_chunk_alone_is_seen(change, outcome, words):
    report = data_only.check(right, answering_until(MANY - 1, change), rows(MANY))
    expect(report, outcome, *words)


def test_an_extra_output_that_turns_up_in_the_last_chunk_fails():
    candidate = answering_until(MANY - 1, lambda X, values: {"value": values, "more": values})
    expect(data_only.check(right, candidate, rows(MANY)), "FAIL", "'more'")


def test_a_candidate_that_overwrites_its_input_does_not_overwrite_the_data():
    table = np.random.default_rng(0).normal(size=(30, 3))
    kept = table.copy()

    def overwrites(X):
        X[:] = 0.0
        return {"value": X.sum(axis=1)}

    report = data_only.check(lambda X: {"value": X.sum(axis=1)}, overwrites, {"X": table})
    assert report.outcome != "PASS", "zero was compared with zero"
    assert np.array_equal(table, kept)


def test_a_candidate_that_leaves_the_process_does_not_take_the_caller_along():
    def leaves(X):
        raise SystemExit(0)

    report = data_only.check(planted(value=VALUES), leaves, rows(40))
    expect(report, "INCONCLUSIVE", "the candidate", "sys.exit(0)")


@pytest.mark.parametrize(
    ("data", "first"),
    [
        (np.zeros((20, 2, 2)), 8),
        (np.zeros((20, 3), np.int64), 8),  # tokens
        (np.zeros((20, 3)), 20),
        (np.zeros(20, np.int64), 20),
    ],
)
def test_a_network_is_first_asked_about_a_few_rows(data, first):
    """Tensors and tokens are what takes long; of a table up to 32 rows are looked at."""
    asked = []

    def model(X):
        asked.append(len(X))
        return {"value": np.zeros(len(X))}

    data_only.check(model, lambda X: {"value": np.zeros(len(X))}, {"X": data})
    assert asked[0] == first
