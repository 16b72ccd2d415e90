"""Rows that a model refuses: found one by one in few calls, told by side, and agreed on where both do."""

from __future__ import annotations

import numpy as np
import pytest
from edge_pairs import opened

from likewise.compare.variations import refusals
from likewise.compare.variations.refusals import CALLS, try_rows
from likewise.contracts.data import Batch, RowIds
from likewise.data.columns import ArrayColumns

ROWS = 64


class Choosy:
    """Refuses a call that holds one of these values, and counts its calls."""

    def __init__(self, *refused: float) -> None:
        self.refused, self.calls = np.array(refused), 0

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        self.calls += 1
        found = np.intersect1d(rows, self.refused)
        if len(found):
            raise ValueError(f"no {found[0]:g} please")
        return rows * 2


def tried(reference: Choosy, candidate: Choosy, values: np.ndarray, **how: bool):
    with opened(reference, candidate, {"x": np.linspace(0.1, 0.9, ROWS)}, batch_sizes=()) as (plan, prepared, _, _):
        reference.calls = candidate.calls = 0
        names = np.array([f"value {value:g}" for value in values], dtype=object)
        batch = Batch(RowIds(np.arange(len(values)), names), ArrayColumns({"x": values}))
        return try_rows(plan, prepared, [batch], **how)


@pytest.mark.parametrize("count", [1, 2, 7, 33])
def test_a_row_that_one_refuses_is_found_and_the_others_are_compared(count):
    values = np.arange(1.0, count + 1)
    reference, candidate = Choosy(), Choosy(values[-1])
    found = tried(reference, candidate, values)
    (mismatch,) = found.comparison.mismatches
    assert mismatch.code == refusals.REFUSED
    assert (
        f"the candidate refuses 1 of {count} rows that the reference answers, first value {count}: " in mismatch.message
    )
    assert mismatch.message.endswith(f"no {count} please")
    assert (found.comparison.rows, found.refused) == (count - 1, 0)
    assert reference.calls == 1
    assert candidate.calls <= 1 + 2 * np.ceil(np.log2(max(count, 2)))


def test_rows_that_both_refuse_agree():
    found = tried(Choosy(3.0, 5.0), Choosy(3.0, 5.0), np.arange(1.0, 9.0))
    assert not found.comparison.mismatches
    assert (found.comparison.rows, found.refused) == (6, 2)


def test_each_side_refuses_another_row():
    found = tried(Choosy(2.0), Choosy(7.0), np.arange(1.0, 9.0))
    assert len(found.comparison.mismatches) == 2
    assert (found.comparison.rows, found.refused) == (6, 0)


def test_many_refused_rows_take_few_calls_and_are_not_made_out_to_agree():
    values = np.arange(1.0, ROWS + 1)
    reference, candidate = Choosy(), Choosy(*values[::2])
    found = tried(reference, candidate, values)
    assert candidate.calls <= CALLS + 1
    (mismatch,) = found.comparison.mismatches
    assert "the candidate refuses up to " in mismatch.message
    told = int(mismatch.message.split("up to ")[1].split(" of ")[0])
    assert told + found.comparison.rows == ROWS
    assert told >= ROWS / 2


def test_where_refusals_are_forgiven_every_row_is_known():
    """A row that was refused only with others may hide one that both answer, and answer differently."""
    values = np.arange(1.0, ROWS + 1)
    reference = Choosy(*values[::2])
    found = tried(reference, Choosy(), values, outside=True, decides=True)
    (mismatch,) = found.comparison.mismatches
    assert mismatch.code == refusals.OUTSIDE
    assert f"the reference refuses {ROWS // 2} of {ROWS} rows that the candidate answers" in mismatch.message
    assert (found.comparison.rows, found.refused) == (ROWS // 2, 0)
    (guessed,) = tried(Choosy(*values[::2]), Choosy(), values).comparison.mismatches
    assert guessed.code == refusals.REFUSED
    (other,) = tried(Choosy(), Choosy(2.0), values, outside=True, decides=True).comparison.mismatches
    assert other.code == refusals.REFUSED


def test_refusals_that_are_not_all_known_are_not_forgiven(monkeypatch):
    monkeypatch.setattr(refusals, "CALLS_TO_DECIDE", 3)
    values = np.arange(1.0, ROWS + 1)
    (mismatch,) = tried(Choosy(*values[::2]), Choosy(), values, outside=True, decides=True).comparison.mismatches
    assert mismatch.code == refusals.REFUSED


def test_a_batch_that_both_refuse_row_by_row_agrees():
    values = np.arange(1.0, ROWS + 1)
    found = tried(Choosy(*values), Choosy(*values), values)
    assert not found.comparison.mismatches
    assert (found.comparison.rows, found.refused) == (0, ROWS)


def test_where_it_is_not_known_whether_both_refuse_the_same_rows_nothing_is_claimed():
    values = np.arange(1.0, 201.0)
    found = tried(Choosy(*values), Choosy(*values), values)
    assert found.refused < 200
    (incident,) = found.comparison.incidents
    assert incident.code == "refused-together"
    told = int(incident.message.split()[0])
    assert told + found.refused == 200


def test_rows_that_each_refuses_alone_are_not_taken_for_rows_that_both_refuse():
    """Every other row is refused by one side, the rest by the other: in parts both refuse, row by row never."""
    values = np.arange(1.0, ROWS + 1)
    found = tried(Choosy(*values[::2]), Choosy(*values[1::2]), values)
    assert found.refused == 0
    assert len(found.comparison.mismatches) == 2


def test_a_model_that_ends_the_process_politely_has_refused():
    class Leaving(Choosy):
        def __call__(self, rows):
            if (rows == 4.0).any():
                raise SystemExit(2)
            return rows * 2

    found = tried(Choosy(), Leaving(), np.arange(1.0, 9.0))
    (mismatch,) = found.comparison.mismatches
    assert "first value 4" in mismatch.message
    assert found.comparison.rows == 7
