"""Every rule of the judge by itself, on facts written down by hand: both sides of every line it draws."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from likewise.contracts.comparison import (
    BatchSizeFacts,
    Cast,
    Comparison,
    Incident,
    Mismatch,
    OutputFacts,
    PairSpec,
    SuiteFacts,
    Tolerance,
    Untried,
)
from likewise.contracts.models import Kind
from likewise.contracts.report import Artefact, Origin, Report
from likewise.contracts.timeline import Spell, Timeline
from likewise.contracts.verdict import (
    Change,
    Check,
    Diff,
    Direction,
    Finding,
    Limit,
    Outcome,
    Policy,
    Severity,
    Told,
)
from likewise.errors import UsageError
from likewise.judge import findings, verdict
from likewise.judge.findings import Judgement, checked, failure_in_words, flips_above, in_words, rows_beyond
from likewise.judge.outputs import holds_numbers, is_empty, judge_outputs, nan_share
from likewise.judge.policy import make_policy
from likewise.judge.timeline import judge_timeline
from likewise.judge.verdict import (
    baseline_undecided,
    held_against,
    judge,
    nothing_to_explain,
    rows_needed,
    upper_bound,
    with_baseline,
)

EXACTLY = Tolerance(0.0, 0.0)
LOOSE = Tolerance(0.125, 0.0)


def output(name="y", kind=Kind.VALUE, *, pair=None, details=None, **measures):
    return OutputFacts(name, pair or PairSpec(name, name, kind, "name"), measures, details or {})


def policy(*limits, tolerance=LOOSE, **facts):
    return Policy("strict", tolerance, limits, **facts)


def case(*outputs, limits=(), tolerance=LOOSE, measured=LOOSE, rows=100, allowed=None, **facts):
    comparison = Comparison(rows=rows, outputs=outputs, tolerance=measured, **facts)
    return Judgement(comparison, policy(*limits, tolerance=tolerance, **(allowed or {})))


def of(judgement, code):
    return [(found.severity, found.message, found.output) for found in judgement.findings if found.code == code]


# Limits


@pytest.mark.parametrize(
    ("measure", "value", "bound", "outcome"),
    [
        ("max_abs_diff", 0.5, 0.5, "PASS"),
        ("max_abs_diff", 0.501, 0.5, "FAIL"),
        ("cosine", 0.5, 0.5, "PASS"),
        ("cosine", 0.499, 0.5, "FAIL"),
        ("max_abs_diff", math.nan, 0.5, "FAIL"),
        ("cosine", math.nan, 0.5, "FAIL"),
    ],
)
def test_a_limit_holds_up_to_its_bound(measure, value, bound, outcome):
    found = output(**{measure: value})
    (check,) = checked(case(found), Limit(measure, bound), found, 7)
    assert (check.output, check.measure, check.bound, check.outcome, check.batch_size) == (
        *("y", measure, bound, outcome),
        7,
    )
    assert check.value == value or math.isnan(value)
    assert not list(checked(case(found), Limit("mean_abs_diff", 1.0), found))


def test_a_limit_that_does_not_hold_in_words():
    assert in_words(Check("y", "cosine", 0.25, 0.5, Outcome.FAIL)) == "y.cosine is 0.25, below its limit of 0.5"
    assert in_words(Check("y", "max_abs_diff", 2.0, 0.5, Outcome.FAIL, 8)) == (
        "y.max_abs_diff is 2 at batch size 8, above its limit of 0.5"
    )


@pytest.mark.parametrize(
    ("limit", "others", "value"),
    [
        (Limit("label_flips", 0.0, explicit=True), (), 3.0),
        (Limit("label_flips", 0.0), (), None),  # nobody asked
        (Limit("max_ulp_diff", 0.0, explicit=True), (), None),  # which no best class tells
        (Limit("label_flips", 0.0, explicit=True), (output("label", label_flips=0.0),), None),
        (Limit("label_flips", 0.0, "y", explicit=True), (output("label", label_flips=0.0),), 3.0),
        (Limit("flip_rate", 0.0, explicit=True), (), 0.25),
        (Limit("material_flips", 0.0, explicit=True), (), 1.0),
    ],
)
def test_scores_are_asked_for_their_best_class_where_somebody_limits_labels(limit, others, value):
    scores = output(top1_flips=3.0, top1_flip_rate=0.25, top1_material_flips=1.0)
    found = list(checked(case(scores, *others), limit, scores))
    assert [check.value for check in found] == ([] if value is None else [value])


WHOLE = {"closeness": {"integer_rounding": 0.0, "rows": 100, "values": 100}}
PRESET = Tolerance(0.125, 0.0, exact_integers=True)


@pytest.mark.parametrize(
    ("limit", "tolerance", "details", "more", "bounds"),
    [
        (Limit("max_abs_diff", 0.5), PRESET, WHOLE, (), [0.0]),  # whole numbers are equal
        (Limit("max_abs_diff", 0.5), PRESET, {}, (), [0.5]),
        (Limit("max_abs_diff", 0.5), LOOSE, WHOLE, (), [0.5]),
        (Limit("max_abs_diff", 0.5, explicit=True), PRESET, WHOLE, (), [0.5]),
        (Limit("mean_abs_diff", 0.5), PRESET, WHOLE, (), [0.5]),
        # or as far apart as the user says
        (Limit("max_abs_diff", 0.5), PRESET, WHOLE, (Limit("max_abs_diff", 3.0, "y", explicit=True),), []),
        (Limit("mean_abs_diff", 0.5), PRESET, WHOLE, (Limit("max_rel_diff", 3.0, explicit=True),), []),
        (Limit("max_abs_diff", 0.5), PRESET, WHOLE, (Limit("mismatch_rate", 0.01, explicit=True),), []),
        (Limit("max_abs_diff", 0.5), PRESET, WHOLE, (Limit("max_abs_diff", 3.0, "z", explicit=True),), [0.0]),
        (Limit("max_abs_diff", 0.5), PRESET, WHOLE, (Limit("p99_abs_diff", 3.0, explicit=True),), [0.0]),
        (Limit("max_abs_diff", 0.5), PRESET, WHOLE, (Limit("max_rel_diff", 3.0),), [0.0]),
        (Limit("max_abs_diff", 0.5), PRESET, WHOLE, (Limit("label_flips", 3.0, explicit=True),), [0.0]),
        (Limit("max_abs_diff", 0.5), PRESET, {}, (Limit("max_rel_diff", 3.0, explicit=True),), [0.5]),
        (Limit("max_ulp_diff", 0.5), PRESET, WHOLE, (Limit("max_rel_diff", 3.0, explicit=True),), [0.5]),
    ],
)
def test_what_a_preset_asks_of_whole_numbers(limit, tolerance, details, more, bounds):
    found = output(details=details, max_abs_diff=1.0, mean_abs_diff=1.0, max_ulp_diff=1.0, max_rel_diff=1.0)
    judgement = case(found, limits=(limit, *more), tolerance=tolerance, measured=tolerance)
    assert [check.bound for check in checked(judgement, limit, found)] == bounds


@pytest.mark.parametrize(
    ("preset", "limit", "more", "asked"),
    [
        ("standard", Limit("material_flips", 0.0), Limit("label_flips", 9.0, explicit=True), False),
        ("quantized", Limit("material_flips", 0.0), Limit("flip_rate", 0.5, explicit=True), False),
        ("strict", Limit("material_flips", 0.0), Limit("label_flips", 9.0, explicit=True), True),
        ("standard", Limit("material_flips", 0.0, explicit=True), Limit("label_flips", 9.0, explicit=True), True),
        ("standard", Limit("material_flips", 0.0), Limit("label_flips", 9.0), True),
        ("standard", Limit("label_flips", 0.0), Limit("flip_rate", 0.5, explicit=True), True),
    ],
)
def test_how_many_labels_may_change_is_said_once(preset, limit, more, asked):
    found = output("label", Kind.LABEL, label_flips=1.0, flip_rate=0.01, material_flips=1.0)
    judgement = case(found)
    judgement.policy = Policy(preset, LOOSE, (limit, more))
    assert bool(list(checked(judgement, limit, found))) is asked


# Under another tolerance than the run's


def magnitudes(*entries, values=100, rows=100, **facts):
    listed = [{"exponent": exponent, "count": 1, "max_abs_diff": largest} for exponent, largest in entries]
    return {"closeness": {"rows": rows, "values": values, "magnitudes": listed, **facts}}


@pytest.mark.parametrize(
    ("tolerance", "broken", "bound", "expected"),
    [
        (Tolerance(0.5, 0.0), 0.0, 0.0, ("PASS", 0.0)),
        (Tolerance(0.25, 0.0), 0.0, 0.0, ("FAIL", 0.01)),  # one of a hundred at least
        (Tolerance(0.25, 0.0), 3.0, 0.0, ("FAIL", 0.03)),
        (Tolerance(0.5, 0.0), 2.0, 0.0, ("FAIL", 0.02)),
        (Tolerance(0.0, 0.3), 0.0, 0.0, ("INCONCLUSIVE", None)),  # of 1 to 2, from 0.3 to 0.6
        (Tolerance(0.0, 0.5), 0.0, 0.0, ("PASS", 0.0)),
        (Tolerance(0.25, 0.0), 0.0, 0.01, ("INCONCLUSIVE", None)),
        (Tolerance(0.25, 0.0), 0.0, 0.009, ("FAIL", 0.01)),
        (Tolerance(0.25, 0.0), 0.0, 1.0, ("PASS", 1.0)),
    ],
)
def test_a_rate_under_another_tolerance_is_bounded_from_both_sides(tolerance, broken, bound, expected):
    found = output(details=magnitudes((1, 0.5)), mismatch_rate=0.5, nonfinite_mismatch=broken)
    (check,) = checked(case(found, tolerance=tolerance), Limit("mismatch_rate", bound), found)
    assert (check.outcome, check.value) == expected
    # Under that of the run it is what was measured.
    (check,) = checked(case(found), Limit("mismatch_rate", bound), found)
    assert check.value == 0.5


def test_what_cannot_be_decided_names_the_batch_size():
    found = output(details=magnitudes((1, 0.5)), mismatch_rate=0.5, nonfinite_mismatch=0.0)
    judgement = case(found, tolerance=Tolerance(0.0, 0.3))
    list(checked(judgement, Limit("mismatch_rate", 0.0), found, 8))
    assert of(judgement, "undecided") == [
        (
            Severity.INCONCLUSIVE,
            "y.mismatch_rate at batch size 8 cannot be decided under the new tolerance from the stored facts",
            "y",
        )
    ]


SPANS = {"unknown": 2, "spans": [[0.0, 0.0, 4], [0.0, 0.25, 8], [0.25, 0.5, 16]]}


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [(0.0, (26, 26)), (0.1, (18, 26)), (0.25, (18, 18)), (0.3, (2, 18)), (0.5, (2, 2)), (1.0, (2, 2))],
)
def test_flips_are_above_a_threshold_for_certain_or_perhaps(threshold, expected):
    assert flips_above(SPANS, threshold) == expected


def test_best_classes_are_counted_by_their_margins_too():
    scores = output(details={"top_class": {"margins": SPANS}}, top1_material_flips=9.0)
    limit = Limit("material_flips", 0.0, explicit=True)
    (check,) = checked(case(scores, tolerance=Tolerance(0.25, 0.0)), limit, scores)
    assert (check.outcome, check.value) == ("FAIL", 2.0)


@pytest.mark.parametrize(
    ("exponent", "expected"),
    [
        (None, (0.0, 0.0)),
        (1, (1.0, 2.0)),
        (-1021, (2.0**-1022, 2.0**-1021)),
        (-1022, (0.0, 2.0**-1022)),
        (1023, (2.0**1022, 2.0**1023)),
        (1024, (2.0**1023, sys.float_info.max)),
    ],
)
def test_the_references_of_an_exponent(exponent, expected):
    assert findings._magnitude_range(exponent) == expected


@pytest.mark.parametrize(
    ("relative", "expected"),
    [(4.0, (False, False)), (3.9, (False, True)), (1.0, (False, True)), (0.99, (True, True))],
)
def test_the_largest_double_may_stand_for_twice_as_much(relative, expected):
    """Of references from 2**1023 on: half of what the least of them allows is held against the largest double."""
    entry = {"exponent": 1024, "max_abs_diff": sys.float_info.max}
    assert findings.mismatch_bounds([entry], 0.0, relative) == expected


@pytest.mark.parametrize(
    ("nan", "allowed", "measured_nan", "tolerance", "expected"),
    [
        (0.0, True, True, LOOSE, 7),
        (3.0, True, True, LOOSE, 7),
        (3.0, False, False, LOOSE, 7),
        (0.0, False, True, LOOSE, 7),  # nothing is NaN
        (3.0, False, True, LOOSE, None),  # those are beyond as well, in rows that nobody counted
        (3.0, True, False, LOOSE, 0),  # they no longer count, and nothing else is beyond
        (0.0, True, True, Tolerance(0.5, 0.0), 0),
        (0.0, True, True, Tolerance(0.25, 0.0), None),
        (0.0, True, True, Tolerance(0.0, 0.3), None),  # of 1 to 2, from 0.3 to 0.6: some may be beyond
        (3.0, False, False, Tolerance(0.5, 0.0), None),
    ],
)
def test_rows_beyond_are_told_where_the_facts_tell(nan, allowed, measured_nan, tolerance, expected):
    largest = 0.0 if tolerance == LOOSE else 0.5
    found = output(details=magnitudes((1, largest)), mismatch_rate=0.5, nonfinite_mismatch=0.0, nan_both=nan)
    judgement = case(found, tolerance=tolerance, rows_beyond=7, nan_equal=measured_nan, allowed={"nan_equal": allowed})
    assert rows_beyond(judgement) == expected


def test_rows_beyond_another_tolerance_are_unknown_where_nothing_was_measured():
    assert rows_beyond(case(output(), tolerance=EXACTLY, rows_beyond=7)) is None
    labels = output(details={"agreement": {"margins": SPANS}}, material_flips=1.0)
    assert rows_beyond(case(labels, tolerance=Tolerance(9.0, 0.0), rows_beyond=7)) is None, "two nobody knows"
    known = replace(labels, details={"agreement": {"margins": {**SPANS, "unknown": 0}}})
    assert rows_beyond(case(known, tolerance=Tolerance(9.0, 0.0), rows_beyond=7)) == 0


# A failure in words


def numbers(name, beyond, rows=100, largest=0.5, **measures):
    measures = {"max_abs_diff": largest, "rows_beyond": float(beyond), **measures}
    return output(name, details=magnitudes((1, largest), rows=rows), **measures)


def failed(name, size=None, measure="max_abs_diff", value=0.5):
    return Check(name, measure, value, 0.125, Outcome.FAIL, size)


def at(size, *outputs, rows=100):
    return BatchSizeFacts(size, rows, outputs)


@pytest.mark.parametrize(
    ("beyond", "words"),
    [
        ((3, 3), "at batch sizes 1, 8: 3 of 100 rows differ by more than 0.125 in 'y', the worst by 0.5"),
        ((0, 1), "at batch sizes 1, 8: up to 1 of 100 rows differs by more than 0.125 in 'y', the worst by 0.5"),
        ((3, 5), "at batch sizes 1, 8: up to 5 of 100 rows differ by more than 0.125 in 'y', the worst by 0.5"),
        ((100, 100), "at batch sizes 1, 8: all rows differ by more than 0.125 in 'y', the worst by 0.5"),
        ((100, 99), "at batch sizes 1, 8: up to 100 of 100 rows differ by more than 0.125 in 'y', the worst by 0.5"),
    ],
)
def test_rows_that_differ_at_several_batch_sizes(beyond, words):
    sizes = tuple(at(size, numbers("y", count)) for size, count in zip((1, 8), beyond, strict=True))
    judgement = case(numbers("y", 0), batch_sizes=(*sizes, at(32, numbers("y", 50))))
    assert failure_in_words(judgement, [failed("y", 8), failed("y", 1)]) == words


def test_rows_that_differ_at_one_batch_size_or_on_the_data():
    judgement = case(numbers("y", 4), batch_sizes=(at(8, numbers("y", 100)), at(1, numbers("y", 7))))
    assert failure_in_words(judgement, [failed("y", 8)]) == (
        "at batch size 8: all 100 rows differ by more than 0.125 in 'y', the worst by 0.5"
    )
    # Where the data fail too, they are told and not the sizes.
    assert failure_in_words(judgement, [failed("y", 8), failed("y")]) == (
        "4 of 100 rows differ by more than 0.125 in 'y', the worst by 0.5"
    )
    # As many of a batch that was given fewer rows are another share.
    judgement = case(
        numbers("y", 0), batch_sizes=(at(8, numbers("y", 4, rows=0), rows=8), at(1, numbers("y", 4, rows=0), rows=16))
    )
    assert failure_in_words(judgement, [failed("y", 1), failed("y", 8)]).startswith(
        "at batch sizes 1, 8: up to 4 of 8 rows differ"
    )
    sizes = (at(8, numbers("y", 4, rows=8)), at(1, numbers("y", 8, rows=16)), at(2, numbers("y", 0, rows=0), rows=0))
    assert failure_in_words(case(numbers("y", 0), batch_sizes=sizes[:2]), [failed("y", 1), failed("y", 8)]).startswith(
        "at batch sizes 1, 8: 8 of 16 rows differ"
    ), "as large a share of both"
    assert failure_in_words(
        case(numbers("y", 0), batch_sizes=sizes), [failed("y", 1), failed("y", 2), failed("y", 8)]
    ).startswith("at batch sizes 1–8: up to 8 of 16 rows differ")
    sizes = (at(8, numbers("y", 1, rows=1)), at(1, numbers("y", 2, rows=2)))
    assert failure_in_words(case(numbers("y", 0), batch_sizes=sizes), [failed("y", 1), failed("y", 8)]).startswith(
        "at batch sizes 1, 8: all rows differ"
    )


def test_nothing_may_differ_on_the_data_and_rounding_may_in_other_batches():
    judgement = case(
        numbers("y", 0),
        tolerance=EXACTLY,
        measured=EXACTLY,
        batch_sizes=(at(8, numbers("y", 4)), at(1, numbers("y", 0))),
    )
    assert failure_in_words(judgement, [failed("y", 8)]) == (
        "at batch size 8: 4 of 100 rows differ by more than 0.0001 + 0.001·|reference| in 'y', the worst by 0.5"
    )
    judgement = case(numbers("y", 4), tolerance=EXACTLY, measured=EXACTLY)
    assert failure_in_words(judgement, [failed("y")]) == "4 of 100 rows differ in 'y', the worst by 0.5"


def test_whole_numbers_differ_by_no_tolerance():
    found = numbers("y", 4)
    found = replace(found, details={"closeness": {**found.details["closeness"], "integer_rounding": 0.0}})
    told = failure_in_words(case(found, tolerance=PRESET, measured=PRESET), [failed("y")])
    assert told == "4 of 100 rows differ in 'y', the worst by 0.5"
    told = failure_in_words(case(found), [failed("y")])
    assert told == "4 of 100 rows differ by more than 0.125 in 'y', the worst by 0.5"


def test_labels_that_changed_at_several_batch_sizes():
    def flips(count, material):
        facts = {"agreement": {"rows": 50}}
        return output("label", Kind.LABEL, details=facts, label_flips=float(count), material_flips=float(material))

    judgement = case(flips(0, 0), batch_sizes=(at(1, flips(2, 2)), at(8, flips(5, 4))))
    checks = [failed("label", size, "material_flips") for size in (1, 8)]
    assert failure_in_words(judgement, checks) == (
        "at batch sizes 1, 8: up to 5 of 50 labels changed, 4 by more than noise"
    )
    assert failure_in_words(judgement, checks[:1]) == "at batch size 1: 2 of 50 labels changed"


def test_the_worst_is_one_that_is_beyond_for_certain():
    """Of answers from 4 to 8, ten per cent are up to 0.8: a difference of 0.5 may be allowed there."""
    found = output(details=magnitudes((1, 0.25), (3, 0.5)), max_abs_diff=0.5, rows_beyond=1.0)
    tenth = Tolerance(0.0, 0.1)
    told = failure_in_words(case(found, tolerance=tenth, measured=tenth), [failed("y")])
    assert told == "1 of 100 rows differs by more than 0.1·|reference| in 'y', the worst by 0.25"
    assert findings._worst_by(found, Tolerance(0.0, 0.5)) == "", "and nobody knows which"
    shown = replace(found, details={**found.details, "worst_rows": {"rows": [{"abs_diff": 0.75}, {"abs_diff": 0.8}]}})
    assert findings._worst_by(shown, Tolerance(0.0, 0.5)) == ", the worst by 0.75"
    assert findings._worst_by(shown, Tolerance(0.25, 0.0)) == ", the worst by 0.5"
    assert findings._worst_by(found, Tolerance(0.5, 0.0)) == "", "as far apart as is allowed"
    text = replace(found, details={**found.details, "worst_rows": {"rows": [{"abs_diff": None}]}})
    assert findings._worst_by(text, Tolerance(0.0, 0.5)) == ""


def test_other_limits_are_told_as_they_are():
    judgement = case(output(cosine=0.25, p90_abs_diff=0.5))
    assert failure_in_words(judgement, [failed("y", None, "p90_abs_diff")]) == (
        "the 90th percentile of the differences in 'y' is 0.5, and 0.125 is allowed"
    )
    assert failure_in_words(judgement, [failed("y", None, "p90_abs_diff"), failed("y", None, "cosine")]).startswith(
        "the 90th percentile"
    ), "the first of them"
    gone = failed("gone", None, "label_flips", 3.0)
    assert failure_in_words(judgement, [gone]) == "gone.label_flips is 3, above its limit of 0.125"
    changed = output("label", Kind.LABEL, label_flips=2.0)
    typed = failed("label", None, "dtype_mismatch", 1.0)
    assert failure_in_words(case(changed), [typed]) == "label.dtype_mismatch is 1, above its limit of 0.125"
    assert failure_in_words(case(changed), [failed("label", None, "label_flips")]) == (
        "2 of 100 labels changed, 0 by more than noise"
    )
    assert failure_in_words(judgement, [failed("y", None, "cosine", 0.0)]) == "y.cosine is 0, below its limit of 0.125"


# Noise, and tolerances that cover everything


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((), None),
        ((Limit("max_abs_diff", 0.5),), 0.5),
        ((Limit("max_abs_diff", 0.5, "z"),), None),
        ((Limit("max_abs_diff", 0.5), Limit("max_abs_diff", 0.25, "y")), 0.25),
        ((Limit("mismatch_rate", 0.0),), 0.125 + 0.5 * 8),
        ((Limit("mismatch_rate", 0.01),), None),  # some may be anything
        ((Limit("mean_abs_diff", 0.0),), None),
        ((Limit("mismatch_rate", 0.0), Limit("max_abs_diff", 9.0)), 0.125 + 0.5 * 8),
    ],
)
def test_the_most_that_any_answer_may_differ_by(limits, expected):
    assert findings._allowed(output(), policy(*limits, tolerance=Tolerance(0.125, 0.5)), 8.0) == expected


@pytest.mark.parametrize(
    ("entries", "largest"),
    [((), 0.0), ((None,), 0.0), ((None, -2, 3), 8.0), ((1023,), 2.0**1023), ((1024,), 2.0**1023), ((-3,), 0.125)],
)
def test_a_bound_on_the_answers_of_the_reference(entries, largest):
    found = output(details=magnitudes(*((exponent, 0.0) for exponent in entries)))
    assert findings._largest_answer(found) == largest
    assert findings._largest_answer(output()) == 0.0


@pytest.mark.parametrize(
    ("moves", "told"), [(0.0010, False), (0.0011, True), (0.002, True), (0.0021, False), (None, False)]
)
@pytest.mark.parametrize(("measure", "side"), [("batch_drift", "candidate"), ("reference_drift", "reference")])
def test_noise_above_the_tolerance_is_told(measure, side, moves, told):
    """The answers are below 2: what moves by up to 0.002 is noise."""
    found = output(details=magnitudes((1, 0.0)), **({} if moves is None else {measure: moves}))
    comparison = Comparison(outputs=(found,))
    messages = list(findings.noise_findings(comparison, policy(Limit("max_abs_diff", 0.001))))
    assert [(finding.code, finding.severity, finding.output) for finding in messages] == (
        [("below-noise-floor", Severity.WARNING, "y")] if told else []
    )
    assert all(f"the {side}'s own answers" in finding.message for finding in messages)
    assert all(finding.remedy.startswith(f"Measure it: likewise noise {side.upper()} ") for finding in messages)
    assert not list(findings.noise_findings(comparison, policy()))


@pytest.mark.parametrize(
    ("bounds", "largest", "limits", "severity"),
    [
        ((1.0, 1.25), 0.1, (Limit("max_abs_diff", 0.125),), Severity.INCONCLUSIVE),
        ((1.0, 1.26), 0.1, (Limit("max_abs_diff", 0.125),), None),
        ((1.0, 1.0), 0.1, (Limit("max_abs_diff", 0.125),), None),
        (None, 0.1, (Limit("max_abs_diff", 0.125),), None),
        ((1.0, 1.25), 0.0625, (Limit("max_abs_diff", 0.125),), Severity.WARNING),  # it follows to a quarter
        ((1.0, 1.25), 0.063, (Limit("max_abs_diff", 0.125),), Severity.INCONCLUSIVE),
        ((1.0, 1.25), math.nan, (Limit("max_abs_diff", 0.125),), Severity.INCONCLUSIVE),
        ((1.0, 1.25), 0.1, (Limit("max_abs_diff", 0.125, explicit=True),), Severity.WARNING),
        ((1.0, 1.25), 0.1, (Limit("max_abs_diff", 0.125), Limit("cosine", 0.1, "y", explicit=True)), Severity.WARNING),
        (
            (1.0, 1.25),
            0.1,
            (Limit("max_abs_diff", 0.125), Limit("cosine", 0.1, "z", explicit=True)),
            Severity.INCONCLUSIVE,
        ),
        ((1.0, 1.25), 0.1, (), None),
    ],
)
def test_a_tolerance_that_covers_all_that_the_reference_says(bounds, largest, limits, severity):
    found = output(details={"extremes": {"widest": bounds}}, max_abs_diff=largest)
    comparison = Comparison(rows=100, outputs=(found,), varied=True)
    told = list(findings.wide_tolerance_findings(comparison, policy(*limits)))
    assert [finding.severity for finding in told] == ([] if severity is None else [severity])
    if told:
        assert told[0].message.startswith("the reference's 'y' goes from 1 to 1.25 and may differ by 0.125: ")
        assert told[0].remedy == "Choose one below the differences that matter, such as --abs-tol 3e-04 --rel-tol 0"
        assert (told[0].code, told[0].output) == ("wide-tolerance", "y")
    assert not list(findings.wide_tolerance_findings(replace(comparison, varied=False), policy(*limits)))


def test_of_a_relative_tolerance_both_ends_count():
    """Ten per cent of 1 and of 1.2 are 0.1 and 0.12: together more than what lies between."""
    asked = policy(Limit("mismatch_rate", 0.0), tolerance=Tolerance(0.0, 0.1))
    assert findings._covering(output(), asked, 1.0, 1.2) == pytest.approx(0.12)
    assert findings._covering(output(), asked, -1.2, -1.0) == pytest.approx(0.12)
    assert findings._covering(output(), asked, 1.0, 1.25) is None
    assert findings._covering(output(), policy(), 1.0, 1.2) is None


def test_columns_without_others_and_those_the_tolerance_does_not_cover_are_not_told():
    found = output(max_abs_diff=0.5)
    asked = policy(Limit("max_abs_diff", 0.125))
    for count, narrow, told in ((2, 0.25, 1), (2, 0.26, 0), (1, 0.25, 0), (0, 0.25, 0)):
        columns = {"count": count, "narrowest": [(1, 0.0, narrow, 0.1)]}
        assert len(list(findings._wide_in_columns(found, asked, columns, Severity.INCONCLUSIVE))) == told
    assert not list(findings._wide_in_columns(found, asked, {}, Severity.INCONCLUSIVE))
    for apart, severity in ((0.0625, Severity.NOTE), (0.07, Severity.INCONCLUSIVE)):
        columns = {"count": 2, "narrowest": [(1, 1.0, 1.25, apart)]}
        (told,) = findings._wide_in_columns(found, asked, columns, Severity.INCONCLUSIVE)
        assert told.severity is severity, "a quarter of what the reference moves by"


def test_where_nothing_is_finite_on_both_sides_nothing_is_known_to_differ():
    found = output(details={"extremes": {"widest": (1.0, 1.25)}})
    comparison = Comparison(rows=100, outputs=(found,), varied=True)
    (told,) = findings.wide_tolerance_findings(comparison, policy(Limit("max_abs_diff", 0.125)))
    assert told.severity is Severity.WARNING


# Outputs


def judged(*outputs, checks=(), **facts):
    judgement = case(*outputs, **facts)
    judgement.checks.extend(checks)
    judge_outputs(judgement)
    return judgement


def passing(name="y", measure="max_abs_diff"):
    return Check(name, measure, 0.0, 0.125, Outcome.PASS)


EMPTY = {"closeness": {"rows": 100, "values": 0}}


def test_what_holds_numbers():
    assert holds_numbers(output(nonfinite_mismatch=0.0))
    assert not holds_numbers(output(label_flips=0.0))
    assert not holds_numbers(output(details=EMPTY))
    assert holds_numbers(output())
    assert is_empty(output(details=EMPTY))
    assert not is_empty(output(details={"closeness": {"rows": 0, "values": 0}}))
    assert not is_empty(output(details=magnitudes()))
    assert not is_empty(output())


def test_outputs_without_values_are_told():
    both = judged(output(details=EMPTY), output("z", details=magnitudes(), nonfinite_mismatch=0.0, max_abs_diff=0.0))
    assert of(both, "no-values") == [
        (Severity.WARNING, "output 'y' holds no values: its shape and type were compared", None)
    ]
    alone = judged(output(details=EMPTY))
    assert [severity for severity, _, _ in of(alone, "no-values")] == [Severity.INCONCLUSIVE, Severity.WARNING]
    assert not of(judged(), "no-values")


@pytest.mark.parametrize(
    ("found", "checks", "mismatches", "told"),
    [
        # No value is finite on both sides
        (output(nonfinite_mismatch=0.0), (passing(),), (), "none of its values is finite on both sides"),
        (output(nonfinite_mismatch=0.0, max_abs_diff=0.0), (passing(),), (), None),
        (output(nonfinite_mismatch=1.0), (replace(passing(), outcome=Outcome.FAIL),), (), None),
        # No limit
        (output(max_abs_diff=0.0), (), (), "no limit applies to it"),
        (output(max_abs_diff=0.0), (passing("z"),), (), "no limit applies to it"),
        (output(max_abs_diff=0.0), (passing(measure="nonfinite_mismatch"),), (), "no limit applies to it"),
        (output(max_abs_diff=0.0), (passing(measure="nan_share"),), (), "no limit applies to it"),
        (output(max_abs_diff=0.0), (passing(measure="rank_mismatch"),), (), "no limit applies to it"),
        (output(max_abs_diff=0.0), (passing(),), (), None),
        (output(max_abs_diff=0.0), (), (Mismatch("shape", "another", "y"),), None),
        # Labels beside numbers that were judged may be left without a limit
        (output("y", Kind.LABEL, label_flips=0.0), (passing("z"),), (), None),
        (output("y", Kind.LABEL, label_flips=0.0), (), (), "no limit applies to it"),
    ],
)
def test_an_output_that_was_not_judged(found, checks, mismatches, told):
    judgement = judged(found, checks=checks, mismatches=mismatches)
    expected = [(Severity.INCONCLUSIVE, f"output 'y' was not judged: {told}", "y")] if told else []
    assert of(judgement, "not-judged") == expected


@pytest.mark.parametrize(
    ("nan", "share", "nan_equal", "severity", "message"),
    [
        (1.0, 0.01, True, Severity.NOTE, "1 value is NaN on both sides"),
        (2_000.0, 0.02, True, Severity.NOTE, "2,000 values are NaN on both sides"),
        (10.0, 0.1, True, Severity.WARNING, "10 values are NaN on both sides, 10% of 'y'"),
        (9.9, 0.0999, True, Severity.NOTE, "9 values are NaN on both sides"),
        (10.0, 0.1, False, Severity.FAILURE, "10 values are NaN on both sides, 10% of 'y'"),
        (1.0, 0.01, False, Severity.FAILURE, "1 value is NaN on both sides"),
    ],
)
def test_nan_on_both_sides_is_told(nan, share, nan_equal, severity, message):
    found = output(max_abs_diff=0.0, nan_both=nan, nan_share=share)
    judgement = judged(found, checks=[passing()], allowed={"nan_equal": nan_equal})
    assert of(judgement, "nan-both") == [(severity, message, "y")]
    (finding,) = [finding for finding in judgement.findings if finding.code == "nan-both"]
    assert bool(finding.remedy) is (share >= 0.1)
    assert nan_share(output()) == ""


def test_other_best_classes_are_told_where_no_labels_are_compared():
    found = output(
        details={"top_class": {"rows": 1_000, "classes": 4}}, max_abs_diff=0.0, top1_flips=3.0, top1_material_flips=0.0
    )
    ((severity, message, _),) = of(judged(found, checks=[passing()]), "top-class")
    assert severity is Severity.NOTE
    assert message == "in 3 of 1,000 rows another of the 4 columns of 'y' is the largest, all within noise"
    material = replace(found, measures={**found.measures, "top1_material_flips": 2.0})
    assert of(judged(material), "top-class")[0][1].endswith("the largest, 2 by more than noise")
    assert not of(judged(found, output("label", Kind.LABEL, label_flips=0.0)), "top-class")
    assert not of(judged(replace(found, measures={"max_abs_diff": 0.0, "top1_flips": 0.0})), "top-class")


def test_labels_without_scores_and_labels_of_other_types_are_told():
    found = output("label", Kind.LABEL, label_flips=1.0, material_flips=1.0)
    assert of(judged(found), "no-scores") == [
        (Severity.NOTE, "no scores were compared, so a changed label of 'label' cannot be told from noise", "label")
    ]
    scores = replace(found.pair, scores=(PairSpec("p", "p", Kind.SCORE, "name"),))
    assert not of(judged(replace(found, pair=scores)), "no-scores")
    assert not of(judged(output("label", Kind.LABEL, label_flips=1.0, material_flips=0.0)), "no-scores")
    assert not of(judged(output("label", Kind.VALUE, label_flips=1.0, material_flips=1.0)), "no-scores")
    for differ in (True, False):
        typed = replace(found, details={"agreement": {"types_differ": differ}})
        assert bool(of(judged(typed), "label-types")) is differ


def test_what_pairing_decided_and_what_was_left_out_is_told():
    pair = PairSpec("y", "y", Kind.VALUE, "name", notes=("one", "two"))
    judgement = judged(output(pair=pair, max_abs_diff=0.0), not_compared=("z",))
    assert of(judgement, "pairing") == [(Severity.NOTE, "y: one", "y"), (Severity.NOTE, "y: two", "y")]
    assert of(judgement, "not-compared") == [
        (Severity.NOTE, "the candidate does not give 'z', so it was not compared", None)
    ]


@pytest.mark.parametrize("metric", ["closeness", "agreement"])
def test_one_number_for_a_call_is_the_same_for_its_rows(metric):
    details = {metric: {"constant_reference": True, "rows": 100, "values": 100}}
    assert of(judged(output(details=details), varied=True), "constant-output") == [
        (Severity.WARNING, "the reference gives the same 'y' for every one of 100 rows of varied data", "y")
    ]
    per_call = PairSpec("y", "y", Kind.VALUE, "name", per_call=True)
    assert not of(judged(output(details=details, pair=per_call), varied=True), "constant-output")


@pytest.mark.parametrize(
    ("reference", "not_compared", "pair", "remedy"),
    [
        ((0.0, 1.0), ("decision_function",), ("y", "q", None), "--pair q=decision_function"),
        ((0.0, 1.0), ("embedding",), ("y", "q", None), "--pair candidate_output=scores"),
        ((0.0, 1.0), ("decision_function",), ("y", "q", 1), "--pair candidate_output=scores"),
        ((-3.0, 1.0), ("decision_function",), ("y", "q", None), None),  # the reference's are no probabilities either
    ],
)
def test_scores_under_the_name_of_probabilities(reference, not_compared, pair, remedy):
    ours, theirs, column = pair
    spec = PairSpec(ours, theirs, Kind.PROBABILITY, "kind", ("a", "b"), reference_column=column)
    extremes = {"extremes": {"candidate": (-2.0, 3.0), "reference": reference}}
    judgement = judged(output(spec.name, pair=spec, details=extremes), not_compared=not_compared)
    told = [finding for finding in judgement.findings if finding.code == "not-probabilities"]
    assert [finding.remedy.rpartition(": ")[2] for finding in told] == ([] if remedy is None else [remedy])
    assert all("'q' of the candidate goes from -2 to 3: these are scores" in finding.message for finding in told)


# Since when


def spell(**given):
    usual = {"since": "10:00", "until": None, "before": "9:59", "after": None, "rows": 1_500, "rows_beyond": 1_200}
    return Spell(**{**usual, "rows_outside": 2_000, "beyond_outside": 0, "chance": 0.0002, **given})


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (
            spell(),
            "rows differ since 10:00 (the row before: 9:59): 1,200 of 1,500 rows then, 0 of 2,000 before; "
            "by chance 2 in 10,000",
        ),
        (
            spell(since=None, until="11:00", before=None, after="11:01", beyond_outside=5, chance=0.001),
            "more rows differ until 11:00 (the row after: 11:01): 1,200 of 1,500 rows then, 5 of 2,000 after; "
            "by chance 10 in 10,000",
        ),
        (
            spell(until="11:00", after="11:01"),
            "rows differ from 10:00 until 11:00 (the row before: 9:59, the row after: 11:01): 1,200 of 1,500 rows "
            "then, 0 of 2,000 before and after; by chance 2 in 10,000",
        ),
    ],
)
def test_since_when_rows_differ(found, words):
    timeline = Timeline(3_500, 0, "9:00", "12:00", spell=found)
    judgement = case(timeline=timeline)
    judge_timeline(judgement)
    assert [(finding.code, finding.severity, finding.message) for finding in judgement.findings] == [
        ("since-when", Severity.WARNING, words)
    ]
    other = case(timeline=timeline, tolerance=EXACTLY)
    judge_timeline(other)
    assert not other.findings, "under another tolerance other rows differ"


def test_rows_without_a_time_are_told():
    judgement = case(timeline=Timeline(1_000, 500, None, None))
    judge_timeline(judgement)
    assert of(judgement, "untimed") == [(Severity.NOTE, "500 of 1,500 rows have no time that can be read", None)]
    for silent in (case(timeline=Timeline(1_000, 0, None, None)), case()):
        judge_timeline(silent)
        assert not silent.findings


# Policies


def bounds(found):
    return [(limit.measure, limit.bound, limit.output, limit.explicit, limit.of_numbers) for limit in found.limits]


@pytest.mark.parametrize(
    ("options", "tolerance", "limits"),
    [
        (
            {},
            Tolerance(1e-4, 1e-3, True),
            [("mismatch_rate", 0.0, None, False, True), "material_flips", "nonfinite_mismatch"],
        ),
        (
            {"preset": "strict"},
            Tolerance(0.01, 0.0, True),
            [
                ("max_abs_diff", 0.01, None, False, True),
                ("mean_abs_diff", 0.005, None, False, True),
                *("material_flips", "nonfinite_mismatch"),
            ],
        ),
        (
            {"preset": "exact"},
            Tolerance(0.0, 0.0),
            [
                ("max_abs_diff", 0.0, None, False, True),
                *("label_flips", "max_ulp_diff", "dtype_mismatch", "rank_mismatch", "layout_mismatch"),
                "nonfinite_mismatch",
            ],
        ),
        (
            {"preset": "exact", "abs_tol": 0.5},
            Tolerance(0.5, 0.0),
            [("max_abs_diff", 0.5, None, True, True), "label_flips", "nonfinite_mismatch"],
        ),
        (
            {"preset": "exact", "rel_tol": 0.5},
            Tolerance(0.0, 0.5),
            [("mismatch_rate", 0.0, None, True, True), "label_flips", "nonfinite_mismatch"],
        ),
        (
            {"abs_tol": 0.5},
            Tolerance(0.5, 0.0),
            [("max_abs_diff", 0.5, None, True, True), "material_flips", "nonfinite_mismatch"],
        ),
        (
            {"rel_tol": 0.0},
            Tolerance(1e-4, 0.0),
            [("mismatch_rate", 0.0, None, True, True), "material_flips", "nonfinite_mismatch"],
        ),
        (
            {"abs_tol": 0, "rel_tol": 0.25, "mean_tol": 0.125},
            Tolerance(0.0, 0.25),
            [
                ("mismatch_rate", 0.0, None, True, True),
                ("mean_abs_diff", 0.125, None, True, True),
                *("material_flips", "nonfinite_mismatch"),
            ],
        ),
        (
            {"limits": {"material_flips": 3, "y.cosine": 0.5, "nonfinite_mismatch": 0, "y.max_abs_diff": 1}},
            Tolerance(1e-4, 1e-3, True),
            [
                ("mismatch_rate", 0.0, None, False, True),
                ("material_flips", 3.0, None, True, False),
                ("cosine", 0.5, "y", True, False),
                ("nonfinite_mismatch", 0.0, None, True, False),
                ("max_abs_diff", 1.0, "y", True, False),
            ],
        ),
    ],
)
def test_what_is_acceptable_follows_from_what_a_user_says(options, tolerance, limits):
    found = make_policy(**options)
    assert found.tolerance == tolerance
    assert bounds(found) == [(limit, 0.0, None, False, False) if isinstance(limit, str) else limit for limit in limits]
    assert found.preset == options.get("preset", "float32")


@pytest.mark.parametrize(
    ("preset", "absolute", "relative", "mean"),
    [
        ("float32", 1e-4, 1e-3, None),
        ("strict", 0.01, 0.0, 0.005),
        ("standard", 0.04, 0.0, 0.01),
        ("quantized", 0.06, 0.0, 0.02),
        ("exact", 0.0, 0.0, None),
    ],
)
def test_the_presets(preset, absolute, relative, mean):
    found = make_policy(preset=preset)
    assert (found.tolerance.absolute, found.tolerance.relative) == (absolute, relative)
    assert [limit.bound for limit in found.limits if limit.measure == "mean_abs_diff"] == (
        [] if mean is None else [mean]
    )
    assert ("max_ulp_diff" in {limit.measure for limit in found.limits}) is (preset == "exact")


def test_what_else_a_policy_holds():
    usual = make_policy()
    assert (usual.nan_equal, usual.confidence, usual.max_failure_rate, usual.fixed_batch, usual.allow_same) == (
        *(True, 0.95, None),
        *(False, False),
    )
    other = make_policy(nan_equal=False, confidence=0.5, max_failure_rate=0.25, fixed_batch=True, allow_same=True)
    assert (other.nan_equal, other.confidence, other.max_failure_rate, other.fixed_batch, other.allow_same) == (
        *(False, 0.5, 0.25),
        *(True, True),
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"abs_tol": -1e-9}, "--abs-tol is -1e-09"),
        ({"rel_tol": math.inf}, "--rel-tol is inf"),
        ({"mean_tol": math.nan}, "--mean-tol is nan"),
        ({"confidence": 0}, "--confidence is 0"),
        ({"confidence": 1}, "--confidence is 1"),
        ({"max_failure_rate": 0.0}, "--max-failure-rate is 0.0"),
        ({"max_failure_rate": 1.0}, "--max-failure-rate is 1.0"),
        ({"preset": "strikt"}, "unknown preset 'strikt'; did you mean 'strict'?"),
        ({"limits": {"y.cosin": 1.0}}, "there is no measure 'cosin'; did you mean 'cosine'?"),
        ({"limits": {"y.max_abs_diff": -0.5}}, "the limit on y.max_abs_diff is -0.5"),
        ({"limits": {"cosine": math.inf}}, "the limit on cosine is inf"),
    ],
)
def test_what_makes_no_sense_is_refused(options, message):
    with pytest.raises(UsageError) as failure:
        make_policy(**options)
    assert failure.value.message == message
    assert make_policy(limits={"cosine": -0.5, "max_abs_diff": 0}).limits


# The whole verdict


def compared(*outputs, rows=100, **facts):
    return Comparison(rows=rows, outputs=outputs, **{"tolerance": LOOSE, **facts})


FINE = output(max_abs_diff=0.0, nonfinite_mismatch=0.0)
STRICT = policy(Limit("max_abs_diff", 0.125))


@pytest.mark.parametrize(
    ("limit", "message", "remedy"),
    [
        (Limit("cosine", 0.5, explicit=True), "cosine", "Measured: max_abs_diff, nonfinite_mismatch"),
        (Limit("cosine", 0.5, "y", explicit=True), "y.cosine", "Measured: max_abs_diff, nonfinite_mismatch"),
        (
            Limit("cosine", 0.5, "yy", explicit=True),
            "yy.cosine; there is no output 'yy'",
            "Outputs: y, other",
        ),
        (Limit("cosine", 0.5), None, ""),
        (Limit("max_abs_diff", 0.5, explicit=True), None, ""),
    ],
)
def test_a_limit_that_nothing_was_measured_against(limit, message, remedy):
    found = judge(compared(FINE, output("other", max_abs_diff=0.0)), policy(Limit("max_abs_diff", 0.125), limit))
    told = [(one.message, one.remedy) for one in found.findings if one.code == "limit-unmeasured"]
    assert told == ([(f"nothing was measured against the limit on {message}", remedy)] if message else [])
    assert found.outcome == ("INCONCLUSIVE" if message else "PASS")


def test_a_limit_on_numbers_asks_nothing_of_labels_but_of_outputs_that_are_not_there():
    labels = output("label", Kind.LABEL, label_flips=0.0, material_flips=0.0)
    for name, told in ((None, 0), ("label", 0), ("z", 1)):
        asked = policy(Limit("label_flips", 0.0), Limit("max_abs_diff", 0.5, name, explicit=True, of_numbers=True))
        codes = [finding.code for finding in judge(compared(labels), asked).findings]
        assert codes.count("limit-unmeasured") == told, name
    nothing = judge(compared(output("y")), policy(Limit("max_abs_diff", 0.5, explicit=True)))
    assert "Measured: nothing" in [finding.remedy for finding in nothing.findings]


@pytest.mark.parametrize(
    ("same_model", "same_bytes", "allow", "severity"),
    [
        (True, False, False, Severity.INCONCLUSIVE),
        (True, True, False, Severity.INCONCLUSIVE),
        (False, True, False, Severity.WARNING),
        (False, False, False, None),
        (True, True, True, None),
        (False, True, True, None),
    ],
)
def test_a_model_beside_itself(same_model, same_bytes, allow, severity):
    asked = policy(Limit("max_abs_diff", 0.125), allow_same=allow)
    found = judge(compared(FINE, same_model=same_model, same_bytes=same_bytes), asked)
    told = [one.severity for one in found.findings if one.code == "same-model"]
    assert told == ([] if severity is None else [severity])


@pytest.mark.parametrize(
    ("rows", "beyond", "rate", "message"),
    [
        (100, 0, 0.05, None),
        (59, 0, 0.05, None),
        (58, 0, 0.05, "58 rows cannot show that fewer than 5% are beyond tolerance"),
        (100, 1, 0.01, "1 of 100 rows is beyond tolerance, which does not rule out 1%"),
        (1_000, 2, 0.001, "2 of 1,000 rows are beyond tolerance, which does not rule out 0.1%"),
        (100, 100, None, None),
    ],
)
def test_rows_that_do_not_rule_out_a_rate(rows, beyond, rate, message):
    asked = policy(Limit("max_abs_diff", 0.125), max_failure_rate=rate)
    found = judge(compared(FINE, rows=rows, rows_beyond=beyond), asked)
    told = [one.message for one in found.findings if one.code == "too-few-rows"]
    assert told == ([] if message is None else [message])
    needed = {0.05: "59", 0.01: "299", 0.001: "2,995", None: ""}
    remedies = [one.remedy for one in found.findings if one.code == "too-few-rows"]
    assert remedies == [f"It takes {needed[rate]} rows, none beyond tolerance, at 95% confidence"] * len(told)
    unknown = judge(compared(output(max_abs_diff=0.0), rows_beyond=1), replace(asked, tolerance=EXACTLY))
    codes = [one.code for one in unknown.findings]
    assert ("undecided" in codes) is (rate is not None)
    assert unknown.confidence is None


def test_where_not_all_was_compared_what_broke_a_limit_decides_nothing():
    broken = output(max_abs_diff=0.5, nonfinite_mismatch=0.0)
    found = judge(compared(broken, incidents=(Incident("data", "torn", "Mend it"),)), STRICT)
    assert (found.outcome, found.headline) == ("INCONCLUSIVE", "torn")
    assert [(one.code, one.severity, one.remedy) for one in found.findings[:2]] == [
        ("data", Severity.INCONCLUSIVE, "Mend it"),
        ("max_abs_diff", Severity.WARNING, ""),
    ]
    assert judge(compared(broken), STRICT).findings[0].severity is Severity.FAILURE
    # A failure outweighs a doubt that is no incident.
    both = judge(compared(broken, same_model=True), STRICT)
    assert (both.outcome, both.findings[0].severity) == ("FAIL", Severity.FAILURE)


@pytest.mark.parametrize(
    ("code", "start"),
    [
        ("extra-output", "Use --pair candidate_output=reference_output"),
        ("row-count", "Every output needs one answer per row"),
        ("classes", "Export the model that was trained on these classes"),
        ("unstable", "Look for dropout"),
        ("shape", ""),
    ],
)
def test_what_to_do_about_another_structure(code, start):
    found = judge(compared(FINE, mismatches=(Mismatch(code, "it is another", "y"),)), STRICT)
    (told,) = [one for one in found.findings if one.code == code]
    assert (told.message, told.output, told.severity) == ("it is another", "y", Severity.FAILURE)
    assert told.remedy.startswith(start)
    assert bool(told.remedy) is bool(start)
    assert found.headline == "it is another"


def test_suites_are_judged_each_by_itself():
    broken = compared(output(max_abs_diff=0.5, nonfinite_mismatch=0.0), rows=3)
    suites = (
        SuiteFacts("edge", "fine", "Fine", compared(FINE, rows=5), blocks=True),
        SuiteFacts("edge", "broken", "Broken", broken, blocks=True, refused=2),
        SuiteFacts("edge", "left", "Left", Comparison(), not_covered="no time"),
    )
    found = judge(compared(FINE, suites=suites), STRICT)
    assert [(one.name, one.outcome, one.rows, one.refused, one.blocks) for one in found.suites] == [
        ("fine", "PASS", 5, 0, True),
        ("broken", "FAIL", 3, 2, True),
        ("left", "INCONCLUSIVE", 0, 0, False),
    ]
    assert found.suites[2].headline == "no time"
    assert found.outcome == "FAIL"
    assert "edge-suite" in [finding.code for finding in found.findings]


def test_casts_of_one_kind_are_told_together():
    casts = tuple(
        Cast(side, "x", column, "float64", "float32", 10, 1, change)
        for side, column, change in (("candidate", "a", 1e-6), ("candidate", "b", 1.1e-6), ("reference", "c", 1e-6))
    )
    told = [(one.code, one.severity) for one in judge(compared(FINE, casts=casts), STRICT).findings]
    assert told == [("lossy-input", Severity.WARNING), ("cast-input", Severity.NOTE), ("cast-input", Severity.NOTE)]


# Bounds


def test_the_rows_that_rule_out_a_rate():
    assert rows_needed(0.05, 0.95) == 59
    assert rows_needed(0.5, 0.75) == 2
    assert rows_needed(0.5, 0.74) == 2
    assert rows_needed(0.5, 0.5) == 1
    assert rows_needed(0.05, 0.95, 1) == 93
    assert rows_needed(0.05, 0.95, 2) == 124


def test_the_rate_that_rows_do_not_rule_out():
    assert upper_bound(0, 1, 0.75) == pytest.approx(0.75)
    assert upper_bound(0, 2, 0.75) == pytest.approx(0.5)
    assert upper_bound(1, 2, 0.75) == pytest.approx(math.sqrt(0.75))
    assert upper_bound(2, 2, 0.75) == 1.0
    assert upper_bound(3, 2, 0.75) == 1.0
    assert upper_bound(20_000, 20_000, 0.95) == 1.0
    assert upper_bound(9_999, 10_000, 0.95) == pytest.approx(0.95 ** (1 / 10_000), rel=1e-9)


def test_of_few_rows_no_other_library_is_asked(monkeypatch):
    known = SimpleNamespace(betaincinv=lambda *given: sum(given))
    monkeypatch.setitem(sys.modules, "scipy.special", known)
    assert upper_bound(1, 10_000, 0.95) < 0.01
    assert upper_bound(3, 10_001, 0.25) == 4 + 9_998 + 0.25


def test_a_rate_that_is_just_ruled_out():
    rate = upper_bound(0, 1, 0.75)
    asked = policy(Limit("max_abs_diff", 0.125), max_failure_rate=rate, confidence=0.75)
    assert judge(compared(FINE, rows=1), asked).outcome == "PASS"


def test_other_batches_times_and_settings_are_judged_too():
    moved = output(max_abs_diff=0.5, nonfinite_mismatch=0.0, rows_beyond=3.0)
    found = judge(compared(FINE, batch_sizes=(at(8, moved), at(1, FINE))), STRICT)
    assert found.outcome == "FAIL"
    assert found.headline == "at batch size 8: 3 of 100 rows differ by more than 0.125 in 'y'"
    both = judge(
        compared(replace(moved, measures={**moved.measures, "rows_beyond": 2.0}), batch_sizes=(at(8, moved),)), STRICT
    )
    assert both.headline == "2 of 100 rows differ by more than 0.125 in 'y'"
    timed = judge(compared(FINE, timeline=Timeline(90, 10, None, None)), STRICT)
    assert [one.code for one in timed.findings] == ["untimed"]
    untried = judge(compared(FINE, untried=(Untried("edge", ("zeros",)),)), STRICT)
    assert [one.code for one in untried.findings] == ["untried"]
    setting = SuiteFacts("setting", "threads=1", "Threads", Comparison(), not_covered="no such thing")
    assert [one.code for one in judge(compared(FINE, suites=(setting,)), STRICT).findings] == ["setting-not-covered"]


@pytest.mark.parametrize(("violations", "rows", "rate"), [(1, 3, 0.5), (2, 3, 0.75), (2, 5, 0.5), (4, 5, 0.9)])
def test_so_many_violations_or_fewer(violations, rows, rate):
    wanted = math.fsum(math.comb(rows, k) * rate**k * (1 - rate) ** (rows - k) for k in range(violations + 1))
    ways = math.log(math.comb(rows, violations))
    assert verdict._at_most(violations, rows, rate, ways) == pytest.approx(wanted, rel=1e-12)


# Held against an accepted run


def report(*found, outcome=Outcome.PASS, checks=(), settings=None, mismatches=()):
    artefact = Artefact("it", "function", "1")
    origin = Origin(artefact, artefact, artefact, "", {}, {}, settings or {}, {})
    made = judge(compared(FINE), STRICT)
    made = replace(made, outcome=outcome, headline="as it was", findings=tuple(found), checks=tuple(checks))
    return Report(compared(FINE, mismatches=mismatches), STRICT, made, origin)


def finding(code, severity, message="", output=None, remedy=""):
    return Finding(code, severity, message, output, remedy)


DOUBT, FAILURE, WARNING = Severity.INCONCLUSIVE, Severity.FAILURE, Severity.WARNING


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (report(finding("same-model", DOUBT)), True),
        (report(finding("baseline", FAILURE), finding("too-few-rows", DOUBT), finding("any", WARNING)), True),
        (report(finding("same-model", DOUBT), finding("shape", FAILURE)), False),
        (report(finding("ended-early", DOUBT), checks=[replace(passing(), outcome=Outcome.FAIL)]), False),
        (report(finding("limit-unmeasured", DOUBT), checks=[passing()]), True),
        (report(finding("limit-unmeasured", DOUBT), mismatches=(Mismatch("shape", "another"),)), False),
        (report(finding("any", WARNING)), False),
        (report(), False),
    ],
)
def test_what_leaves_nothing_to_explain(report, expected):
    assert nothing_to_explain(report) is expected


def test_settings_name_the_baseline():
    known = report(settings={"baseline": "old.json", "baseline_sha256": "abc", "max_worse": 5.0})
    assert with_baseline(known, max_worse=7.0).origin.settings == {
        "baseline": "old.json",
        "baseline_sha256": "abc",
        "max_worse": 7.0,
    }
    other = with_baseline(known, baseline="new.json").origin.settings
    assert other == {"baseline": "new.json", "max_worse": 5.0}, "the hash was that of another file"


@pytest.mark.parametrize(
    ("outcome", "after", "headline"),
    [
        (Outcome.PASS, Outcome.INCONCLUSIVE, "baseline: it is torn"),
        (Outcome.FAIL, Outcome.FAIL, "as it was"),
        (Outcome.INCONCLUSIVE, Outcome.INCONCLUSIVE, "as it was"),
    ],
)
def test_a_baseline_that_cannot_be_used_is_a_doubt(outcome, after, headline):
    found = baseline_undecided(report(finding("any", WARNING), outcome=outcome), "it is torn")
    assert (found.outcome, found.headline) == (after, headline)
    assert [(one.code, one.severity, one.message) for one in found.verdict.findings] == [
        ("baseline", DOUBT, "baseline: it is torn"),
        ("any", WARNING, ""),
    ]
    assert found.verdict.findings[0].remedy == "Give the JSON report of an accepted run: --baseline FILE"


def test_another_file_than_before_is_a_doubt():
    known = report(settings={"baseline": "old.json", "baseline_sha256": "abc"})
    found = held_against(known, known, "def")
    assert found.headline == "baseline: old.json is not the file that this run was held against before"
    for settings, allowed in (({}, 10.0), ({"baseline_sha256": "abc", "max_worse": "5"}, 5.0)):
        found = held_against(report(settings=settings), report(), "abc")
        assert found.outcome is Outcome.PASS
        assert found.origin.settings == {"baseline_sha256": "abc", "max_worse": allowed}
    undecided = held_against(report(outcome=Outcome.INCONCLUSIVE, settings={}), report(), "abc")
    assert (undecided.outcome, undecided.verdict.findings) == (Outcome.INCONCLUSIVE, ())


def line(direction, message, subject="measure", blocks=True, output="y"):
    return Told(Change(subject, "it", direction, message, output=output, blocks=blocks), message)


def differing(*lines, doubts=()):
    return Diff(Outcome.PASS, "", "old", "new", 10.0, (), doubts, told=lines)


def test_what_is_worse_than_in_an_accepted_run():
    found = verdict._findings_against(
        differing(
            line(Direction.UNKNOWN, "cannot be told"),
            line(Direction.WORSE, "is worse"),
            line(Direction.WORSE, "is worse beside", blocks=False),
            line(Direction.WORSE, "FAIL", subject="outcome"),
            line(Direction.WORSE, "more findings", subject="finding"),
            line(Direction.BETTER, "is better"),
        ),
        report(),
    )
    remedy = "If that is intended, accept this run as the new baseline"
    assert found == [
        Finding("baseline", FAILURE, "baseline: is worse", "y", remedy),
        Finding("baseline", WARNING, "baseline: is worse beside", "y", ""),
        Finding("baseline", DOUBT, "baseline: cannot be told", "y", ""),
    ]


def test_an_accepted_run_that_fails_and_one_of_another_question():
    worse = differing(line(Direction.WORSE, "is worse"), line(Direction.WORSE, "too"))
    found = verdict._findings_against(worse, report(outcome=Outcome.FAIL))
    assert [(one.severity, one.message, one.remedy) for one in found] == [
        (WARNING, "baseline: the accepted run is a FAIL itself", "Accept a run that passes"),
        (
            FAILURE,
            "baseline, a FAIL itself: is worse",
            "If that is intended, accept this run as the new baseline",
        ),
        (FAILURE, "baseline: too", ""),
    ]
    found = verdict._findings_against(differing(line(Direction.WORSE, "is worse"), doubts=("other", "rows")), report())
    assert [(one.code, one.severity, one.message) for one in found] == [
        ("baseline", DOUBT, "baseline: other"),
        ("baseline", DOUBT, "baseline: rows"),
    ]
    assert all(one.remedy == "If that is intended, accept this run as the new baseline" for one in found)


@pytest.mark.parametrize(
    ("before", "added", "after", "headline"),
    [
        (Outcome.PASS, [DOUBT, FAILURE], Outcome.FAIL, "m-failure"),
        (Outcome.PASS, [DOUBT, WARNING], Outcome.INCONCLUSIVE, "m-inconclusive"),
        (Outcome.PASS, [WARNING], Outcome.PASS, "as it was"),
        (Outcome.FAIL, [DOUBT], Outcome.FAIL, "as it was"),
        (Outcome.INCONCLUSIVE, [FAILURE], Outcome.INCONCLUSIVE, "as it was"),
    ],
)
def test_more_findings_and_the_outcome_they_leave(before, added, after, headline):
    more = [finding("new", severity, f"m-{severity}") for severity in added]
    found = verdict._with_findings(report(finding("old", Severity.NOTE), outcome=before), more)
    assert (found.outcome, found.headline) == (after, headline)
    order = [one.severity for one in found.verdict.findings]
    assert order == sorted([*added, Severity.NOTE], key=list(Severity).index)
