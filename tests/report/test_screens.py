"""The screen of a check: short, in words, and honest about what it leaves out. `make screens` measures hundreds."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import data_only
import likewise
import screens
from likewise.contracts.report import Diagnosis, Explanation
from likewise.report import render
from planting import DOUBLE, FLOAT, graph, planted, rows
from screens import fits, screen

COUNT = 60
BASE = np.linspace(0.1, 1.0, COUNT)
ROWS = rows(COUNT)
SQNR = 10 * np.log10(np.square(BASE).sum() / 0.195**2)


def off_by(*differences: float) -> np.ndarray:
    """The answers with the first few changed."""
    found = BASE.copy()
    found[: len(differences)] += differences
    return found


def check(reference: dict, candidate: dict, **options: object) -> likewise.Report:
    return data_only.check(planted(**reference), planted(**candidate), ROWS, **options)


def fixed_batch(size: int) -> bytes:
    """A graph that takes so many rows a call, and no other number."""
    shape = [size]
    return graph(
        [("Mul", ["X", "two"], ["value"], {})], {"X": (DOUBLE, shape)}, {"value": (DOUBLE, shape)}, two=np.array(2.0)
    )


def test_a_failure_says_how_many_rows_differ_by_more_than_what_and_where():
    report = check({"score": BASE}, {"score": off_by(0.17, 0.01, -0.02)}, abs_tol=1e-5)
    assert report.verdict.headline == "3 of 60 rows differ by more than 1e-05 in 'score', the worst by 0.17"
    assert "3 of 60 rows differ by more than 1e-05 in 'score', the worst by 0.17." in fits(report)
    one = check({"score": BASE}, {"score": off_by(0.17)}, abs_tol=1e-5)
    assert one.verdict.headline == "1 of 60 rows differs by more than 1e-05 in 'score', the worst by 0.17"
    every = check({"score": BASE}, {"score": BASE + 1}, abs_tol=1e-5)
    assert every.verdict.headline == "all 60 rows differ by more than 1e-05 in 'score', the worst by 1"


def test_the_worst_is_one_beyond_tolerance():
    """A difference that a large answer is allowed is not what is wrong."""
    reference = np.append(BASE[:-1], 1e6)
    candidate = np.append(off_by(0.25)[:-1], 1e6 + 500)
    report = check({"score": reference}, {"score": candidate})
    assert report.max_abs_diff == 500
    told = "1 of 60 rows differs by more than 0.0001 + 0.001·|reference| in 'score', the worst by 0.25"
    assert report.verdict.headline == told


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"mean_tol": 0.001}, "the mean difference in 'score' is 0.00325, and 0.001 is allowed"),
        ({"limits": {"max_abs_diff": 0.1}}, "the largest difference in 'score' is 0.195, and 0.1 is allowed"),
        ({"limits": {"sqnr_db": 90}}, f"score.sqnr_db is {SQNR:.4g}, below its limit of 90"),
    ],
)
def test_other_limits_are_words_too_where_there_are_any(options, told):
    report = check({"score": BASE}, {"score": off_by(0.195)}, abs_tol=0.2, **options)
    assert report.verdict.headline == told
    # No row is beyond tolerance: none is among the worst.
    assert "Rows of score" not in fits(report)
    assert "beyond" not in screen(report)


def test_rows_within_tolerance_are_not_among_those_beyond_it():
    report = check({"score": BASE}, {"score": off_by(0.17, 1e-6)})
    text = fits(report)
    assert "Rows of score furthest beyond tolerance\n  row 0:" in text
    assert "row 1:" not in text
    assert "\n| 0 | " in render(report, "markdown")
    assert "\n| 1 | " not in render(report, "markdown")


def explained(report: likewise.Report, cause: str = "float32-threshold", **settings: object) -> likewise.Report:
    """As after a check of files on the command line whose cause has a verified remedy."""
    files = {"reference": "m.joblib", "candidate": "my model.onnx", "data": "t.parquet", **settings}
    origin = replace(
        report.origin,
        settings=files,
        reference=replace(report.origin.reference, sha256="0" * 64),
        candidate=replace(report.origin.candidate, kind="onnx"),
    )
    found = Explanation(rows=60, failing_rows=2, excluded=tuple(f"cause-{number}" for number in range(30)))
    best = Diagnosis(cause, "income", 1.0, "seen", "Export it again", remedy_verified=True)
    return replace(report, origin=origin, explanation=found, diagnoses=(best,))


def test_a_verified_remedy_ends_in_the_command_that_carries_it_out():
    failed = check({"score": BASE}, {"score": off_by(1, 1, 1)})
    command = "likewise fix m.joblib 'my model.onnx' --data t.parquet"
    assert f"     {command} -o fixed.onnx\n" in fits(explained(failed))
    assert f"{command} --abs-tol 0.01 --samples 40 -o fixed.onnx" in " ".join(
        fits(explained(failed, samples=40, abs_tol=0.01)).split()
    )
    for left in (
        explained(failed, cause="quantization"),
        explained(failed, data="DataFrame"),
        explained(failed, gate="int8"),
        explained(failed, sample="random"),
        failed,
    ):
        assert "likewise fix" not in fits(left)


def test_an_explanation_of_some_failing_rows_is_not_told_of_all():
    failed = check({"score": BASE}, {"score": off_by(1, 1, 1)})
    assert "Why: float32-threshold, income: explains 100% of the 2 failing rows looked at\n" in fits(explained(failed))
    fewer = check({"score": BASE}, {"score": off_by(1, 1)})
    assert "Why: float32-threshold, income: explains 100% of the failing rows\n" in fits(explained(fewer))


def test_an_explanation_without_time_is_not_told_as_one_that_found_nothing():
    report = check({"score": BASE}, {"score": off_by(0.17)}, abs_tol=1e-5)
    tried = Explanation(rows=60, failing_rows=1, complete=True)
    assert "Why: none of the experiments explains it." in fits(replace(report, explanation=tried))
    for found in (replace(tried, not_tested=("row-order: no time",)), Explanation(0, 0, False, not_tested=("all",))):
        told = replace(report, explanation=found)
        assert "Why: not found, and not everything was tested; --explain-budget" in fits(told)
        assert "not everything was tested" in render(told, "markdown")


def test_what_to_do_is_said_although_a_cause_is_named_without_a_remedy():
    """A detector finds fewer boxes than it was given rows."""
    undecided = data_only.check(lambda X: X[:3], lambda X: X[:3], ROWS)
    cause = Diagnosis("output-layout", "boxes", 0.0, "the shapes differ", "", ())
    beside = replace(undecided, diagnoses=(cause,))
    told = [fits(beside), *(re.sub(r"\\|&#8203;", "", render(beside, name)) for name in ("markdown", "html", "junit"))]
    for text in told:
        assert "→ Every output needs one answer per row" in " ".join(text.split())
    turned = data_only.check(lambda X: X, lambda X: X[None], ROWS)
    assert "--batch-axis OUTPUT:1 where its rows lie elsewhere" in " ".join(fits(turned).split())


def test_causes_that_did_not_help_are_counted_where_they_are_many():
    report = explained(check({"score": BASE}, {"score": off_by(1, 1)}))
    assert "Tried, did not help: 30 other causes, which the report lists." in screen(report, full=True)
    few = replace(report, explanation=replace(report.explanation, excluded=("row-order", "feature-order")))
    assert "Tried, did not help: row-order, feature-order." in screen(few, full=True)


def test_several_outputs_and_labels_are_one_sentence():
    labels = np.array(["a", "b"] * (COUNT // 2), dtype=object)
    other = labels.copy()
    other[0] = "b"
    report = check(
        {"one": BASE, "two": BASE, "three": BASE, "label": labels},
        {"one": off_by(1), "two": off_by(1, 2), "three": off_by(1), "label": other},
    )
    assert report.verdict.headline.startswith("2 of 60 rows differ by more than 0.0001 + 0.001·|reference| in 'two'")
    assert report.verdict.headline.endswith("; 1 in 'one'; and in 1 more output; 1 of 60 labels changed")
    fits(report)


def test_a_failure_at_other_batch_sizes_is_one_finding():
    def alone(X):
        return {"value": X + (1.0 if len(X) == 1 or 3 <= len(X) <= 9 else 0.0)}

    report = data_only.check(lambda X: {"value": X}, alone, ROWS)
    found = [finding for finding in report.verdict.findings if finding.severity == "failure"]
    assert [finding.code for finding in found] == ["mismatch_rate"]
    assert found[0].message.endswith("at batch size 1, above its limit of 0; at batch sizes 3, 4, 7–9 too")
    assert report.verdict.headline.startswith("at batch sizes 1, 3, 4, 7–9: all ")
    fits(report)


def test_what_does_not_fit_is_counted():
    """Thirty outputs that fail, with a warning each."""
    names = [f"output_{number}" for number in range(30)]
    report = check(dict.fromkeys(names, BASE), {name: np.full(COUNT, 7.0) for name in names})
    text = fits(report)
    left = int(re.search(r"Details \((\d+) more warnings", text)[1])
    shown = text.count("! ")
    assert left + shown == sum(finding.severity == "warning" for finding in report.verdict.findings) == 30
    assert "likewise report parity_report.json [--html FILE]" in " ".join(text.split())
    assert screen(report, full=True).count("! ") == 30


def test_a_pass_has_its_warnings_and_counts_its_notes():
    report = check({"value": np.full(COUNT, 3.0)}, {"value": np.full(COUNT, 3.0, dtype=np.float32)})
    text = fits(report)
    assert "! Both models give the same 'value' for every one of 60 rows of varied data." in text
    assert "Details (1 note): likewise report parity_report.json [--html FILE]" in text
    assert "float32" not in text
    assert "float32" in screen(report, full=True)


def test_batch_sizes_that_were_not_run_are_not_listed():
    report = data_only.check(lambda X: {"value": 2 * X}, fixed_batch(COUNT), ROWS, fixed_batch=True)
    assert report.passed
    assert f"{COUNT} rows of dict." in fits(report)
    assert "batch size" not in fits(report)
    swept = check({"value": BASE}, {"value": BASE})
    assert "60 rows of dict; 11 batch sizes (1–60) and other orders too." in fits(swept)
    assert "batch sizes 1–4, 7–9, 31–33, 60 too, and rows in other places" in screen(swept, full=True)


def test_columns_that_lose_values_on_the_way_are_one_warning_that_names_the_worst():
    """Beyond 2²⁴ float32 skips odd numbers; the smaller ones lose the larger part."""
    data = {"near": 2 * np.arange(COUNT) + 2**24 + 1, "far": 2 * np.arange(COUNT) + 2**30 + 1}
    shape = ["rows"]
    proto = graph(
        [("Add", ["near", "far"], ["value"], {})],
        dict.fromkeys(data, (FLOAT, shape)),
        {"value": (FLOAT, shape)},
    )
    report = data_only.check(
        lambda rows: {"value": (rows["near"] + rows["far"]).astype(float)}, proto, data, rel_tol=1e-3
    )
    (lossy,) = [finding.message for finding in report.verdict.findings if finding.code == "lossy-input"]
    lost = {name: np.abs(1 - values.astype(np.float32).astype(float) / values) for name, values in data.items()}
    changed = sum(int((share > 0).sum()) for share in lost.values())
    assert lossy.startswith(f"{changed} of 120 values of 'far', 'near' change on their way to the candidate")
    assert lossy.endswith(f"from int64 to float32, by up to {100 * lost['near'].max():.3g}% in 'near'")
    assert lost["near"].max() > lost["far"].max()
    fits(report)


def test_the_same_screen_at_any_width_and_for_one_row():
    report = data_only.check(planted(value=BASE), planted(value=BASE), rows(1))
    assert "1 row agrees" in fits(report)
    assert "1 row of dict" in fits(report)
    for width in (40, 60, 120):
        text = screens.screen(report, width=width)
        assert max(map(len, text.splitlines())) <= width
