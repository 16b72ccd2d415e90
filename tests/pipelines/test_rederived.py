"""Every figure of a report is what plain numpy makes of the same answers."""

from __future__ import annotations

import json

import numpy as np
import pytest
from rederiving import FORM, SIZES, confusion, magnitudes, within_histogram_error

import data_only
from likewise.report.formats.json import EXTENSION as JSON

QUANTILES = {f"{name}_abs_diff" for name in ("p50", "p90", "p95", "p99", "p99_9")}
ROUNDED = {"cosine", "sqnr_db"}


def assert_same_figures(stated, by_hand):
    stated = {measure: value for measure, value in stated.items() if measure not in FORM}
    assert set(stated) == set(by_hand)
    for measure, value in stated.items():
        if measure in QUANTILES:
            assert within_histogram_error(value, by_hand[measure]), measure
        elif measure == "reference_drift":
            # A model's own frame may lie otherwise in memory than ours, and is then summed in another order.
            assert value == pytest.approx(by_hand[measure], abs=1e-12), measure
        elif measure in ROUNDED:
            assert value == pytest.approx(by_hand[measure], rel=1e-12), measure
        else:
            assert value == by_hand[measure], measure


def without_own_noise(found):
    return {name: value for name, value in found.items() if name != "reference_drift"}


def body(report):
    """All of the report but where it came from; pandas shows a missing number as NaN where a file has null.

    How much a model moves by itself is left out: arrays of a file may lie elsewhere in memory than live ones.
    """
    document = json.loads(JSON.render(report), object_hook=without_own_noise)
    del document["provenance"]
    for row in document["worst_rows"]:
        row["inputs"] = {name: None if value == "NaN" else value for name, value in row["inputs"].items()}
    return json.dumps(document, indent=2)


def test_the_outputs_a_person_would_compare_are_compared(checked):
    expected = {paired.name: (paired.kind, paired.margin) for paired in checked.case.pairs}
    found = {name: (output.pair.kind.value, output.pair.margin_from) for name, output in checked.outputs.items()}
    assert found == expected
    assert checked.report.comparison.mismatches == ()
    assert checked.report.comparison.incidents == ()


def test_every_measure_is_what_numpy_says(checked):
    for paired in checked.case.pairs:
        assert_same_figures(checked.outputs[paired.name].measures, checked.by_hand.measures(paired))


def test_every_measure_at_every_batch_size_is_what_numpy_says(checked):
    swept = {facts.size: facts for facts in checked.report.comparison.batch_sizes}
    assert tuple(swept) == SIZES
    for size, facts in swept.items():
        assert facts.rows == checked.by_hand.swept_rows(size)
        assert {output.name for output in facts.outputs} == {paired.name for paired in checked.case.pairs}
        for paired in checked.case.pairs:
            measures = next(output.measures for output in facts.outputs if output.name == paired.name)
            assert_same_figures(measures, checked.by_hand.measures_at(paired, size))


def test_rows_and_rows_beyond_are_counted_once(checked):
    comparison = checked.report.comparison
    assert comparison.rows == comparison.expected_rows == checked.by_hand.rows
    assert comparison.rows_beyond == checked.by_hand.rows_beyond()
    assert comparison.varied


def test_the_worst_rows_are_the_worst_with_their_inputs_and_answers(checked):
    for paired in checked.case.pairs:
        ours, theirs = checked.by_hand.answers(paired)
        stated = checked.outputs[paired.name].details.get("worst_rows", {}).get("rows", [])
        expected = checked.by_hand.worst_rows(paired)
        assert [row["number"] for row in stated] == [number for _, number in expected]
        for row, (severity, number) in zip(stated, expected, strict=True):
            assert row["row"] == number
            assert row["severity"] == pytest.approx(severity, rel=1e-12)
            assert np.array_equal(np.asarray(row["reference"], ours.dtype), ours[number])
            assert np.array_equal(np.asarray(row["candidate"], theirs.dtype), theirs[number])
            place = tuple(row["index"])
            if paired.kind == "label":
                assert np.asarray(ours[number])[place] != np.asarray(theirs[number])[place]
            else:
                mine, other = float(np.asarray(ours[number])[place]), float(np.asarray(theirs[number])[place])
                assert row["abs_diff"] == abs(other - mine)
            assert_same_row(row["inputs"], checked.case.frame.iloc[number])


def assert_same_row(shown, row):
    assert list(shown) == list(row.index)
    for name, value in row.items():
        missing = value != value or value is None
        assert (shown[name] is None or shown[name] != shown[name]) if missing else shown[name] == value


def test_changed_labels_are_counted_by_what_they_became(checked):
    for paired in checked.case.pairs:
        if paired.kind != "label":
            continue
        ours, theirs = checked.by_hand.answers(paired)
        details = checked.outputs[paired.name].details["agreement"]
        stated = {(entry["reference"], entry["candidate"]): entry["count"] for entry in details["confusion"]}
        assert stated == confusion(ours, theirs)
        for side, labels in (("reference_labels", ours), ("candidate_labels", theirs)):
            counts = dict(zip(*(part.tolist() for part in np.unique(labels, return_counts=True)), strict=True))
            assert {entry["label"]: entry["count"] for entry in details[side]} == counts
        assert not details["types_differ"]


def test_the_stored_magnitudes_and_histogram_cover_every_value(checked):
    for paired in checked.case.pairs:
        if paired.kind == "label":
            continue
        ours, theirs = checked.by_hand.answers(paired)
        details = checked.outputs[paired.name].details
        stated = {
            entry["exponent"]: (entry["count"], entry["max_abs_diff"]) for entry in details["closeness"]["magnitudes"]
        }
        assert stated == magnitudes(ours, theirs)
        assert details["closeness"]["values"] == details["closeness"]["finite"] == ours.size
        assert details["closeness"]["relative_floor"] == 1e-6
        assert sum(count for *_, count in details["distribution"]["histogram"]) == ours.size
        assert details["distribution"]["quantile_error"] == 2.0**-7
        assert details["ranking"]["sampled_rows"] == checked.by_hand.rows


def test_every_lossy_input_is_counted(checked):
    stated = {(cast.input, cast.column): cast for cast in checked.report.comparison.casts}
    assert set(stated) == set(checked.case.casts)
    for (_, column), cast in stated.items():
        assert cast.side == "candidate"
        source, target = checked.case.casts[cast.input, column]
        assert (cast.source_dtype, cast.target_dtype) == (source, target)
        values = checked.case.frame[column]
        assert cast.values == len(values)
        if target == "string":
            assert (cast.changed, cast.largest_relative_change) == (values.isna().sum(), 0.0)
            continue
        before = values.to_numpy()
        after = before.astype(target).astype(source)
        lost = ~((after == before) | (before != before))
        assert cast.changed == lost.sum()
        worst = np.max(np.abs(after[lost] - before[lost]) / np.abs(before[lost])) if lost.any() else 0.0
        assert cast.largest_relative_change == worst


def test_the_verdict_is_the_policy_applied_by_hand(checked):
    verdict = checked.report.verdict
    stated = {
        (c.output, c.measure, c.value, c.bound, c.outcome.value, c.batch_size)
        for c in verdict.checks
        if c.measure not in FORM
    }
    assert stated == checked.by_hand.checks()
    assert verdict.outcome.value == checked.by_hand.verdict()
    assert bool(checked.report) is checked.report.passed is (checked.by_hand.verdict() == "PASS")


def test_the_confidence_bound_is_clopper_and_pearsons(checked):
    confidence = checked.report.verdict.confidence
    assert (confidence.level, confidence.rows) == (0.95, checked.by_hand.rows)
    assert confidence.violations == checked.by_hand.rows_beyond()
    assert confidence.upper_bound == pytest.approx(checked.by_hand.upper_bound(0.95), rel=1e-9)


def test_the_fields_that_teams_read_stand_at_the_top(checked):
    document = json.loads(JSON.render(checked.report))
    numeric = [checked.by_hand.measures(paired) for paired in checked.case.pairs if paired.kind != "label"]
    assert list(document)[:6] == ["samples", "max_abs_diff", "mean_abs_diff", "abs_tol", "mean_tol", "passed"]
    assert document["samples"] == checked.report.samples == checked.by_hand.rows
    assert document["max_abs_diff"] == checked.report.max_abs_diff == max(m["max_abs_diff"] for m in numeric)
    assert document["mean_abs_diff"] == checked.report.mean_abs_diff == max(m["mean_abs_diff"] for m in numeric)
    assert document["abs_tol"] == checked.report.abs_tol == checked.by_hand.gate.absolute
    assert document["mean_tol"] == checked.report.mean_tol == checked.by_hand.gate.mean
    assert document["passed"] is (checked.by_hand.verdict() == "PASS")


def test_files_and_live_objects_give_the_same_facts(checked, saved):
    options = {"preset": checked.case.preset, "batch_size": checked.by_hand.rows, "explain": False}
    from_files = data_only.check(*saved, **options)
    assert body(from_files) == body(checked.report)
