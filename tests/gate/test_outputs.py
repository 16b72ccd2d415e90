"""Outputs are compared with their counterparts or not at all, in the shape they came in."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from onnx import helper
from skl2onnx import to_onnx
from sklearn.datasets import make_classification
from sklearn.linear_model import LogisticRegression

import data_only
from planting import codes, expect, measures, planted, rows, said

COUNT = 60
VALUES = np.linspace(1.0, 2.0, COUNT)
TABLE = np.stack([VALUES, -VALUES, 2 * VALUES], axis=1)


def answering(answer):
    """A candidate that gives back the same thing whatever it is asked."""
    return lambda X: answer


def test_an_output_the_candidate_lacks_is_inconclusive():
    report = data_only.check(planted(price=VALUES, risk=TABLE), planted(price=VALUES), rows(COUNT))
    expect(report, "INCONCLUSIVE", "output 'risk' of the reference", "no counterpart", "--ignore risk")


def test_an_output_the_reference_lacks_fails():
    report = data_only.check(planted(price=VALUES), planted(price=VALUES, risk=TABLE), rows(COUNT))
    expect(report, "FAIL", "output 'risk' of the candidate", "no counterpart", "--ignore NAME")
    assert "extra-output" in codes(report, "failure")


def test_what_cannot_be_paired_is_no_failure_beside_an_inconclusive_verdict():
    report = data_only.check(planted(a=VALUES, b=TABLE), planted(a=VALUES + 1, c=VALUES, d=VALUES), rows(COUNT))
    expect(report, "INCONCLUSIVE", "output 'b' of the reference", "output 'c' of the candidate", "a.mismatch_rate is 1")
    assert not codes(report, "failure")
    assert {"extra-output", "mismatch_rate"} <= set(codes(report, "warning"))


def test_two_outputs_of_one_shape_are_never_paired_by_position():
    report = data_only.check(planted(a=VALUES, b=VALUES), planted(c=VALUES, d=VALUES), rows(COUNT))
    expect(report, "INCONCLUSIVE", "'a' (value)", "'c' (value)", "--pair")


def test_swapped_names_are_paired_by_name_and_fail():
    report = data_only.check(planted(a=VALUES, b=-VALUES), planted(a=-VALUES, b=VALUES), rows(COUNT))
    expect(report, "FAIL", "a.mismatch_rate is 1", "b.mismatch_rate is 1")


def test_outputs_of_equal_names_are_paired_in_any_order():
    report = data_only.check(planted(a=VALUES, b=-VALUES), planted(b=-VALUES, a=VALUES), rows(COUNT))
    expect(report, "PASS")
    assert {(o.pair.reference, o.pair.candidate) for o in report.comparison.outputs} == {("a", "a"), ("b", "b")}


@pytest.mark.parametrize(("names", "told"), [("cd", True), ("ba", True), ("dc", False)])
def test_outputs_in_another_order_are_told(names, told):
    """Who takes outputs by their position gets the table where there were numbers."""
    answers = {names[0]: TABLE, names[1]: VALUES} if told else {names[0]: VALUES, names[1]: TABLE}
    report = data_only.check(planted(a=VALUES, b=TABLE), planted(**answers), rows(COUNT))
    expect(report, "PASS")
    assert ("the candidate gives its outputs in another order: 'b', 'a'" in said(report)) == told


def test_a_column_against_a_vector_is_squeezed_and_noted():
    report = data_only.check(planted(value=VALUES), planted(value=VALUES[:, None]), rows(COUNT))
    expect(report, "PASS")
    assert "float64 (n,) in the reference and float64 (n, …) in the candidate" in said(report)
    assert "rank-mismatch" in codes(report, "warning")


def test_a_column_against_a_vector_is_compared_row_by_row_not_all_against_all():
    wrong = VALUES.copy()
    wrong[3] += 1
    report = data_only.check(planted(value=VALUES), planted(value=wrong[:, None]), rows(COUNT))
    expect(report, "FAIL", "1 of 60 rows differs by more than 0.0001")
    assert measures(report, "value")["mismatches"] == 1


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        (TABLE[:, :1].repeat(2, axis=1), "(n, 2)"),
        (TABLE[:, None, :], "(n, 1, 3)"),
        (VALUES, "(n,)"),
        (TABLE[:, :1], "(n, 1)"),
    ],
)
def test_another_shape_fails_and_is_never_broadcast(given, shape):
    report = data_only.check(planted(value=TABLE), planted(value=given), rows(COUNT))
    expect(report, "FAIL", "output 'value' has shape (n, 3) in the reference", f"{shape} in the candidate")
    assert "no limit applies" not in report.verdict.headline


def test_none_is_no_answer():
    report = data_only.check(planted(value=VALUES), answering(None), rows(COUNT))
    expect(report, "INCONCLUSIVE", "the candidate", "rows 0 to 31", "returned None")


def test_a_scalar_is_no_answer_to_many_rows():
    report = data_only.check(planted(value=VALUES), answering(1.5), rows(COUNT))
    expect(report, "FAIL", "the candidate", "a single number")


def test_ragged_lists_are_no_answer():
    ragged = answering([[1.0, 2.0], [3.0]])
    report = data_only.check(planted(value=VALUES), ragged, rows(COUNT))
    expect(report, "INCONCLUSIVE", "the candidate", "'output' is not an array")


class Thing:
    """Equal to nothing but itself."""


async def later(X):
    return X


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda X: (x for x in X), "generator"),
        (later, "coroutine"),
        (lambda X: [Thing() for _ in X], "Thing"),
        (lambda X: [{1, 2} for _ in X], "set"),
        (lambda X: np.array([{"a": 1}, *[{"b": 2}] * (len(X) - 1)], dtype=object), "dict"),
        (lambda X: np.array([np.arange(i % 3) for i in range(len(X))], dtype=object), "ndarray"),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine 'later' was never awaited:RuntimeWarning")
def test_things_that_are_no_values_are_no_answer(answer, kind):
    report = data_only.check(planted(value=VALUES), answer, rows(COUNT))
    expect(report, "INCONCLUSIVE", "the candidate", f"'output' holds objects of type {kind}")
    expect(data_only.check(answer, planted(value=VALUES), rows(COUNT)), "INCONCLUSIVE", "the reference", kind)


@pytest.mark.parametrize(
    "form",
    [
        scipy.sparse.csr_matrix,
        lambda table: table.astype(object),
        lambda table: torch.from_numpy(table).requires_grad_() * 1,
    ],
)
def test_one_table_in_other_forms_is_the_same_answer(form):
    reference = planted(output=TABLE)
    expect(data_only.check(reference, lambda X: form(TABLE[: len(X)] + 1e-6), rows(COUNT), batch_sizes=()), "PASS")
    expect(data_only.check(reference, lambda X: form(TABLE[: len(X)] + 1), rows(COUNT), batch_sizes=()), "FAIL")


def test_a_structured_array_gives_one_output_a_column():
    def table(shift):
        return lambda X: np.rec.fromarrays([np.asarray(X), np.where(X > 3, np.nan, X + shift)], names="price,risk")

    expect(data_only.check(table(0), table(1e-9), rows(COUNT)), "PASS")
    expect(data_only.check(table(0), table(1), rows(COUNT)), "FAIL", "4 of 60 rows differ", "'risk'")


def test_what_is_infinite_on_one_side_everywhere_was_judged():
    report = data_only.check(planted(value=VALUES), planted(value=np.full(COUNT, np.inf)), rows(COUNT))
    expect(report, "FAIL", "all 60 rows differ", "NaN or infinite on one side only")
    assert "not-judged" not in codes(report)


def test_no_outputs_at_all_is_inconclusive():
    report = data_only.check(planted(value=VALUES), answering({}), rows(COUNT))
    expect(report, "INCONCLUSIVE", "no output of the candidate", "'value'")


def test_an_output_that_changes_shape_between_calls_is_inconclusive():
    def candidate(X):
        return {"value": np.zeros((len(X), 2 if X[0] < 200 else 3))}

    report = data_only.check(planted(value=np.zeros((300, 2))), candidate, rows(300))
    expect(report, "INCONCLUSIVE", "'value'", "candidate", "a different shape from call to call")


def test_an_output_that_is_called_otherwise_in_a_later_call_is_inconclusive():
    def candidate(X):
        return {"value" if X[0] < 200 else "result": np.zeros(len(X))}

    report = data_only.check(planted(value=np.zeros(300)), candidate, rows(300))
    expect(report, "INCONCLUSIVE", "candidate", "different outputs from call to call")


def test_an_output_that_changes_shape_within_one_batch_is_inconclusive():
    def candidate(X):
        return {"value": np.zeros((len(X), 2 if X[0] < 200 else 3))}

    report = data_only.check(planted(value=np.zeros((300, 2))), candidate, rows(300), batch_size=50)
    expect(report, "INCONCLUSIVE", "'value'", "candidate", "a different shape from call to call")


def test_a_candidate_that_raises_on_some_rows_is_inconclusive_and_the_rows_are_named():
    def candidate(X):
        if (X == 57).any():
            raise ZeroDivisionError("row 57 has no denominator")
        return {"value": VALUES[X.astype(int)]}

    report = data_only.check(planted(value=VALUES), candidate, rows(COUNT), batch_size=10)
    expect(report, "INCONCLUSIVE", "the candidate", "rows 50 to 59", "ZeroDivisionError", "no denominator")


def test_a_reference_that_raises_is_inconclusive_and_named():
    def reference(X):
        raise RuntimeError("I was trained on other data")

    report = data_only.check(reference, planted(value=VALUES), rows(COUNT))
    expect(report, "INCONCLUSIVE", "the reference", "rows 0 to 31", "I was trained on other data")
    assert report.comparison.incidents[0].side == "reference"


def test_an_output_beyond_tolerance_does_not_excuse_rows_that_were_not_compared():
    def candidate(X):
        if (X == 57).any():
            raise RuntimeError("out of order")
        return {"value": VALUES[X.astype(int)] + 1}

    report = data_only.check(planted(value=VALUES), candidate, rows(COUNT), batch_size=10)
    expect(report, "INCONCLUSIVE", "out of order")


def test_pairing_by_hand_compares_what_was_named():
    options = {"pair": {"c": "b", "d": "a"}}
    report = data_only.check(planted(a=VALUES, b=-VALUES), planted(c=-VALUES, d=VALUES), rows(COUNT), **options)
    expect(report, "PASS")
    crossed = {"pair": {"c": "a", "d": "b"}}
    report = data_only.check(planted(a=VALUES, b=-VALUES), planted(c=-VALUES, d=VALUES), rows(COUNT), **crossed)
    expect(report, "FAIL", "a.mismatch_rate is 1", "b.mismatch_rate is 1")


@pytest.mark.parametrize(
    ("pair", "words"),
    [
        ({"valeu": "value"}, ("'valeu' of the candidate", "did you mean 'value'")),
        ({"value": "valu"}, ("'valu' of the reference", "did you mean 'value'")),
    ],
)
def test_pairing_by_a_name_that_does_not_exist_is_inconclusive(pair, words):
    model = planted(value=VALUES)
    expect(data_only.check(model, model, rows(COUNT), pair=pair), "INCONCLUSIVE", *words)


def test_an_output_cannot_be_both_paired_and_ignored():
    model = planted(value=VALUES, other=VALUES)
    report = data_only.check(model, model, rows(COUNT), pair={"value": "value"}, ignore=("value",))
    expect(report, "INCONCLUSIVE", "'value'", "not both")


def test_an_ignored_output_is_left_out_and_said_so():
    candidate = planted(value=VALUES, debug=TABLE)
    report = data_only.check(planted(value=VALUES), candidate, rows(COUNT), ignore=("debug",))
    expect(report, "PASS", "outputs left out on request: 'debug'")


def test_ignoring_everything_is_inconclusive():
    model = planted(value=VALUES)
    expect(data_only.check(model, model, rows(COUNT), ignore=("value",)), "INCONCLUSIVE", "no output of the candidate")


def test_ignoring_a_name_that_does_not_exist_is_inconclusive():
    model = planted(value=VALUES)
    report = data_only.check(model, model, rows(COUNT), ignore=("vlaue",))
    expect(report, "INCONCLUSIVE", "'vlaue'", "did you mean 'value'")


def test_a_reference_asked_in_several_ways_is_compared_where_the_candidate_answers(models):
    report = data_only.check(models.joblib.classifier, models.onnx.classifier, models.data)
    expect(report, "PASS", "does not give 'scores', so it was not compared")
    assert report.samples == 300
    assert {output.name for output in report.comparison.outputs} == {"label", "probabilities"}


def test_class_columns_in_another_order_are_matched_by_class_and_told():
    """Three classes that the candidate lists in another order, each with the coefficients that belong to it."""
    data, classes = make_classification(120, 4, n_informative=4, n_redundant=0, n_classes=3, random_state=0)
    data = data.astype(np.float32)
    model = LogisticRegression().fit(data, classes)
    proto = to_onnx(model, data[:1], options={"zipmap": False})
    (node,) = [node for node in proto.graph.node if node.op_type == "LinearClassifier"]
    held = {attribute.name: attribute for attribute in node.attribute}
    moved = [2, 0, 1]
    for name, values in {
        "classlabels_ints": [held["classlabels_ints"].ints[place] for place in moved],
        "coefficients": np.reshape(held["coefficients"].floats, (3, 4))[moved].ravel().tolist(),
        "intercepts": np.asarray(held["intercepts"].floats)[moved].tolist(),
    }.items():
        node.attribute.remove(held[name])
        node.attribute.append(helper.make_attribute(name, values))
    report = data_only.check(model, proto.SerializeToString(), data)
    expect(report, "PASS", "the candidate's class columns are in another order: [2, 0, 1]")


def test_a_number_for_a_whole_call_has_no_rows_and_is_told_so():
    def model(type_):
        return lambda frame: {"value": frame["x"].to_numpy(), "temperature": type_(1.5)}

    frame = pd.DataFrame({"x": np.arange(20.0)})
    report = data_only.check(model(np.float64), model(np.float32), frame)
    expect(report, "PASS", "'temperature' is float64 of rank 0 in the reference and float32 of rank 0 in the candidate")


@pytest.mark.parametrize("place", [(0, 0), (1, 7), (2, -1)])
def test_answers_that_are_very_wide_are_compared_to_the_last(place):
    """Two such rows are looked at together, and then the third."""
    answers = np.random.default_rng(0).normal(size=(3, 2**17))
    other = answers.copy()
    other[place] += 1.0
    expect(data_only.check(planted(value=answers), planted(value=answers), rows(3)), "PASS")
    report = data_only.check(planted(value=answers), planted(value=other), rows(3))
    expect(report, "FAIL", "1 of 3 rows differs")
    (output,) = report.comparison.outputs
    assert [(row["number"], row["index"]) for row in output.worst_rows] == [(place[0], [place[1] % 2**17])]
    assert output.measures["mismatch_rate"] == 1 / (3 * 2**17)


def test_a_number_for_a_whole_call_is_not_compared_with_one_for_every_row():
    frame = pd.DataFrame({"x": np.arange(20.0)})
    single = lambda rows: {"value": rows["x"].to_numpy(), "level": np.float64(1.5)}  # noqa: E731
    each = lambda rows: {"value": rows["x"].to_numpy(), "level": np.full(len(rows), 1.5)}  # noqa: E731
    words = "was given 20 rows and answered a single number in output 'level'"
    expect(data_only.check(single, each, frame), "INCONCLUSIVE", "the reference", words)
    expect(data_only.check(each, single, frame), "FAIL", "the candidate", words)


def test_an_ignored_output_may_have_any_number_of_rows():
    model = lambda X: {"value": X, "debug": np.zeros(3)}  # noqa: E731
    expect(data_only.check(model, model, rows(COUNT), ignore=("debug",)), "PASS", "left out on request: 'debug'")
    expect(data_only.check(model, model, rows(COUNT)), "INCONCLUSIVE", "answered 3 in output 'debug'")


def test_values_without_a_byte_are_no_answer():
    model = lambda X: {"value": np.zeros(len(X), "V0")}  # noqa: E731
    expect(data_only.check(model, model, rows(COUNT)), "INCONCLUSIVE", "output 'value' holds values without a byte")


def in_units(unit):
    return lambda X: {"value": np.full(len(X), 5, dtype=f"m8[{unit}]")}


@pytest.mark.parametrize("unit", ["D", "ns"])
def test_times_that_no_unit_has_in_common_are_of_another_type(unit):
    """numpy does not say how many days a year has."""
    report = data_only.check(in_units("Y"), in_units(unit), rows(COUNT))
    expect(report, "FAIL", f"is timedelta64[Y] in the reference and timedelta64[{unit}] in the candidate")
    expect(data_only.check(in_units("Y"), in_units("Y"), rows(COUNT)), "PASS")


@pytest.mark.parametrize("kind", ["float8_e5m2", "float8_e4m3fn", "bfloat16", "int4"])
def test_small_numbers_of_a_function_are_numbers(kind):
    dtype = np.dtype(getattr(ml_dtypes, kind))
    model = lambda value: lambda X: {"value": np.full(len(X), value).astype(dtype)}  # noqa: E731
    expect(data_only.check(model(1), model(1), rows(COUNT)), "PASS", "largest difference 0")
    expect(data_only.check(model(1), model(2), rows(COUNT)), "FAIL", "the worst by 1")
