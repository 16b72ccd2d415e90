"""What a verdict says, word for word, of facts written down by hand: no model is run here."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from scipy.stats import beta

from likewise.contracts.comparison import (
    FRACTIONS_UNTRIED,
    POSITION,
    Cast,
    Comparison,
    GeneratedColumn,
    Mismatch,
    OutputFacts,
    PairSpec,
    SuiteFacts,
)
from likewise.contracts.models import Kind
from likewise.contracts.verdict import Severity
from likewise.judge.findings import Judgement, mismatch_bounds, rows_beyond
from likewise.judge.policy import make_policy
from likewise.judge.verdict import confidence, decided, judge, percent, upper_bound

STRICT = make_policy(preset="strict")


def output(name="value", kind=Kind.VALUE, *, matched_by="kind", details=None, **measures):
    return OutputFacts(name, PairSpec(name, name, kind, matched_by), measures, details or {})


def numbers(name="value", largest=0.0, beyond=0, *, rows=100, **measures):
    """An output of so many rows, one value each, as the comparison describes it."""
    found = {"max_abs_diff": largest, "mean_abs_diff": largest / rows, "nonfinite_mismatch": 0.0, **measures}
    facts = {"rows": rows, "values": rows, "magnitudes": [{"exponent": 1, "max_abs_diff": largest}]}
    return output(name, rows_beyond=float(beyond), details={"closeness": facts}, **found)


def compared(*outputs, rows=100, **facts):
    facts = {"tolerance": STRICT.tolerance, "rows_beyond": 0, "varied": True, **facts}
    return Comparison(rows=rows, outputs=outputs, **facts)


def told(comparison, code, policy=STRICT):
    return [finding.message for finding in judge(comparison, policy).findings if finding.code == code]


# Headlines


@pytest.mark.parametrize(
    ("comparison", "headline"),
    [
        (compared(numbers(largest=0.001)), "100 rows agree, largest difference 0.001"),
        (compared(numbers("a", 0.001), numbers("b", 0.002)), "100 rows agree, largest difference 0.002"),
        (compared(numbers(rows=1), rows=1), "1 row agrees, largest difference 0"),
        (compared(numbers(rows=1), rows=1, unit="samples"), "1 sample agrees, largest difference 0"),
        (
            compared(numbers(nan_both=10.0, nan_share=0.1)),
            "100 rows agree, largest difference 0; 10% of 'value' is NaN on both sides",
        ),
        (compared(numbers(nan_both=9.0, nan_share=0.09)), "100 rows agree, largest difference 0"),
        (
            compared(numbers(largest=0.5, beyond=3)),
            "3 of 100 rows differ by more than 0.01 in 'value', the worst by 0.5",
        ),
        (
            compared(numbers(largest=0.5, beyond=1), rows_beyond=1),
            "1 of 100 rows differs by more than 0.01 in 'value', the worst by 0.5",
        ),
        (
            compared(numbers(largest=0.5, beyond=100)),
            "all 100 rows differ by more than 0.01 in 'value', the worst by 0.5",
        ),
        (
            compared(numbers(largest=0.5, beyond=2, rows=2), rows=2),
            "all 2 rows differ by more than 0.01 in 'value', the worst by 0.5",
        ),
        (
            compared(numbers(largest=0.5, beyond=1, rows=1), rows=1),
            "1 of 1 rows differs by more than 0.01 in 'value', the worst by 0.5",
        ),
        (
            compared(numbers("a", 0.5, 3), numbers("b", 0.25, 7)),
            "7 of 100 rows differ by more than 0.01 in 'b', the worst by 0.25; 3 in 'a'",
        ),
        (
            compared(*(numbers(name, 0.5, count) for name, count in zip("abc", (3, 7, 1), strict=True))),
            "7 of 100 rows differ by more than 0.01 in 'b', the worst by 0.5; 3 in 'a'; and in 1 more output",
        ),
        (
            compared(*(numbers(name, 0.5, count) for name, count in zip("abcd", (3, 7, 1, 2), strict=True))),
            "7 of 100 rows differ by more than 0.01 in 'b', the worst by 0.5; 3 in 'a'; and in 2 more outputs",
        ),
        (
            compared(numbers(mean_abs_diff=0.006)),
            "the mean difference in 'value' is 0.006, and 0.005 is allowed",
        ),
        (
            compared(numbers(nonfinite_mismatch=2.0, beyond=2)),
            "2 of 100 rows differ by more than 0.01 in 'value', the worst is NaN or infinite on one side only",
        ),
        (
            compared(output("label", Kind.LABEL, label_flips=5.0, material_flips=5.0)),
            "5 of 100 labels changed",
        ),
        (
            compared(
                output("label", Kind.LABEL, label_flips=5.0, material_flips=5.0, details={"agreement": {"rows": 200}})
            ),
            "5 of 200 labels changed",
        ),
        (
            compared(output("mood", Kind.LABEL, label_flips=5.0, material_flips=2.0)),
            "5 of 100 labels of 'mood' changed, 2 by more than noise",
        ),
        (
            compared(numbers(), mismatches=(Mismatch("shape", "it has another shape", "value"),), rows_beyond=2),
            "it has another shape; 2 of 100 rows are beyond tolerance",
        ),
        (
            compared(numbers(), mismatches=(Mismatch("shape", "it has another shape", "value"),), rows_beyond=1),
            "it has another shape; 1 of 100 rows is beyond tolerance",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_headline(comparison, headline):
    assert judge(comparison, STRICT).headline == headline


def test_a_headline_under_another_tolerance_counts_no_rows_that_nobody_counted():
    verdict = judge(compared(numbers(largest=0.005, beyond=0)), make_policy(preset="strict", abs_tol=0.001))
    assert (verdict.outcome, verdict.headline) == ("FAIL", "'value' differs by up to 0.005, and 0.001 is allowed")


def test_no_rows_and_no_outputs_are_told():
    verdict = judge(Comparison(), STRICT)
    assert (verdict.outcome, verdict.headline) == ("INCONCLUSIVE", "no rows were compared")
    assert judge(compared(), STRICT).headline == "nothing was judged"
    assert judge(compared(), STRICT).outcome == "INCONCLUSIVE"


# Inputs


def cast(column="a", changed=3, largest=0.25, *, side="candidate", note="", types=("float64", "float32")):
    return Cast(side, "X", column, *types, 100, changed, largest, note)


@pytest.mark.parametrize(
    ("casts", "code", "sentence"),
    [
        (
            [cast()],
            "lossy-input",
            "3 of 100 values of 'a' change on their way to the candidate, from float64 to float32, by up to 25%",
        ),
        (
            [cast(), cast("b", 4, 0.5)],
            "lossy-input",
            "7 of 200 values of 'a', 'b' change on their way to the candidate, from float64 to float32, "
            "by up to 50% in 'b'",
        ),
        (
            [cast(largest=0.0, note="text became a number")],
            "lossy-input",
            "3 of 100 values of 'a' change on their way to the candidate, from float64 to float32 "
            "(text became a number)",
        ),
        (
            [cast(largest=1e-9, types=("int64", "float32"))],
            "lossy-input",
            "3 of 100 values of 'a' change on their way to the candidate, from int64 to float32, by up to 1e-07%",
        ),
        (
            [cast(largest=1e-6)],
            "cast-input",
            "'a' was cast from float64 to float32 for the candidate: 3 of 100 values changed, by up to 0.0001%",
        ),
        (
            [cast(largest=1e-7), cast("b", 4, 2e-7)],
            "cast-input",
            "'a', 'b' were cast from float64 to float32 for the candidate: 7 of 200 values changed, by up to 2e-05%",
        ),
        (
            [cast(changed=0, largest=0.0, side="reference")],
            "cast-input",
            "'a' was cast from float64 to float32 for the reference: no value changed",
        ),
        ([cast(changed=0, note="as words")], "converted-input", "'a', fed to the candidate: as words"),
    ],
)
def test_what_happened_to_inputs(casts, code, sentence):
    found = [
        finding
        for finding in judge(compared(numbers(), casts=tuple(casts)), STRICT).findings
        if "input" in finding.code
    ]
    assert [(finding.code, finding.message) for finding in found] == [(code, sentence)]
    assert found[0].severity is (Severity.WARNING if code == "lossy-input" else Severity.NOTE)


def test_a_reference_that_is_given_other_whole_numbers_was_not_asked_what_the_data_asks():
    def judged(**facts):
        return judge(compared(numbers(), casts=(cast(**facts),)), STRICT)

    pixels = judged(side="reference", types=("float32", "uint8"))
    assert (pixels.outcome, pixels.findings[0].code) == ("INCONCLUSIVE", "lossy-input")
    assert pixels.headline.startswith(
        "3 of 100 values of 'a' change on their way to the reference, from float32 to uint8"
    )
    assert "0 to 255" in pixels.findings[0].remedy
    assert judged(side="reference", types=("int64", "int32")).outcome == "INCONCLUSIVE"
    # What is rounded is nearly the same question, and what a candidate makes of the data is seen in its answers.
    assert judged(side="reference").outcome == "PASS"
    assert judged(side="reference", changed=0, largest=0.0, types=("float32", "uint8")).outcome == "PASS"
    assert judged(types=("float32", "uint8")).outcome == "PASS"


def test_values_that_were_made_up_may_be_none_that_the_reference_takes():
    made = compared(numbers(), casts=(cast(side="reference", types=("float32", "uint8")),))
    facts = SuiteFacts("edge", "tiny-numbers", "", made, blocks=True)
    assert judge(replace(compared(numbers()), suites=(facts,)), STRICT).outcome == "PASS"


def test_a_cast_that_changes_nothing_for_the_candidate_is_not_told():
    assert not told(compared(numbers(), casts=(cast(changed=0, largest=0.0),)), "cast-input")


def test_columns_that_are_cast_otherwise_are_told_apart():
    casts = (cast(), cast("b", side="reference"), cast("c", types=("float64", "float16")), cast("d"))
    assert [text.partition(" change")[0] for text in told(compared(numbers(), casts=casts), "lossy-input")] == [
        "6 of 200 values of 'a', 'd'",
        "3 of 100 values of 'b'",
        "3 of 100 values of 'c'",
    ]


# Rows that were left out, outputs paired by their order, rows that nobody saw


@pytest.mark.parametrize(
    ("largest", "expected", "severity", "sentence"),
    [
        (0.5, 400, Severity.NOTE, "stopped after 100 of 400 rows: a limit could no longer hold (--fail-fast)"),
        (0.5, None, Severity.NOTE, "stopped after 100 rows: a limit could no longer hold (--fail-fast)"),
        (
            0.0,
            400,
            Severity.INCONCLUSIVE,
            "the run was stopped after 100 of 400 rows, and within these limits the others count",
        ),
    ],
)
def test_a_run_that_was_stopped(largest, expected, severity, sentence):
    verdict = judge(compared(numbers(largest=largest, beyond=1), stopped=True, expected_rows=expected), STRICT)
    assert [(f.severity, f.message) for f in verdict.findings if f.code == "stopped"] == [(severity, sentence)]
    assert verdict.outcome == ("FAIL" if largest else "INCONCLUSIVE")


@pytest.mark.parametrize(("count", "end"), [(1, "'a' with 'a'"), (6, "'f' with 'f'"), (7, "'f' with 'f', …")])
def test_outputs_that_were_paired_by_their_order(count, end):
    outputs = [replace(found, pair=replace(found.pair, matched_by=POSITION)) for found in map(numbers, "abcdefg")]
    (message,) = told(compared(*outputs[:count]), "paired-by-position")
    assert message.endswith(f"belong together: {end}" if count == 1 else f", {end}")


COLUMNS = (
    GeneratedColumn("a", "numbers", "the model says so", True),
    GeneratedColumn("b", "numbers", "nothing is known", False),
    GeneratedColumn("c", "numbers", "nothing is known", False),
)


def test_generated_rows_are_told_and_claim_nothing():
    comparison = compared(numbers(), generated=COLUMNS)
    start = "the rows are generated from what the models say about their inputs, none of them real"
    assert told(comparison, "generated-data") == [f"{start}; nothing is known about 2 of 3 columns: b, c"]
    assert told(replace(comparison, generated=COLUMNS[:1]), "generated-data") == [start]
    whole = GeneratedColumn("d", "numbers", f"its type{FRACTIONS_UNTRIED}", False)
    assert told(replace(comparison, generated=(COLUMNS[0], whole)), "generated-data") == [
        f"{start}; only whole numbers were tried, because the candidate takes no others, in d"
    ]
    verdict = judge(comparison, STRICT)
    assert verdict.headline == "100 generated rows agree, largest difference 0"
    assert verdict.confidence.upper_bound == 1.0
    assert (
        verdict.confidence.statement == "0 of 100 generated rows beyond tolerance: nothing is claimed about real ones"
    )
    assert not told(comparison, "generated-rate")
    rated = make_policy(preset="strict", max_failure_rate=0.1)
    assert judge(comparison, rated).outcome == "INCONCLUSIVE"
    assert told(comparison, "generated-rate", rated) == [
        "generated rows cannot show how many real ones are beyond tolerance"
    ]
    one = judge(compared(numbers(rows=1), rows=1, generated=COLUMNS), STRICT).confidence
    assert one.statement.startswith("0 of 1 generated rows beyond tolerance")
    assert judge(compared(rows=0, generated=COLUMNS), STRICT).confidence is None
    failed = compared(numbers(largest=0.5, beyond=3), generated=COLUMNS)
    assert judge(failed, STRICT).headline.startswith("3 of 100 generated rows differ by more than 0.01")


# Is it decided before the last row?


@pytest.mark.parametrize(
    ("limits", "measures", "expected"),
    [
        ({"max_abs_diff": 0.1}, {"max_abs_diff": 0.2}, True),
        ({"max_abs_diff": 0.1}, {"max_abs_diff": 0.1}, False),
        ({"mean_abs_diff": 0.1}, {"mean_abs_diff": 0.2}, False),
        ({"p99_abs_diff": 0.1}, {"p99_abs_diff": 0.2}, False),
        ({"mismatch_rate": 0.0}, {"mismatch_rate": 0.1}, True),
        ({"mismatch_rate": 0.05}, {"mismatch_rate": 0.1}, False),
        ({"flip_rate": 0.0}, {"flip_rate": 0.1}, True),
        ({"label_flips": 2}, {"label_flips": 3.0}, True),
        ({"label_flips": 3}, {"label_flips": 3.0}, False),
    ],
)
def test_only_what_further_rows_cannot_mend_is_decided(limits, measures, expected):
    policy = make_policy(preset="strict", abs_tol=100.0, mean_tol=100.0, limits=limits)
    found = numbers(**{"max_abs_diff": 0.0, **measures})
    comparison = compared(found, tolerance=policy.tolerance)
    assert decided(comparison, policy) is expected


# Figures


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0%"),
        (1.0, "100%"),
        (0.5, "50%"),
        (0.501, "51%"),
        (0.0301, "3.1%"),
        (0.03, "3%"),
        (0.00291, "0.3%"),
        (0.000123, "0.013%"),
        (0.999, "100%"),
        (0.00123, "0.13%"),
    ],
)
def test_a_share_is_rounded_up_to_two_digits(share, text):
    assert percent(share) == text


def test_what_rows_allow_to_claim():
    assert confidence(0, 0, 0.95) is None
    assert (
        confidence(0, 59, 0.95).statement == "at 95% confidence fewer than 5% of rows like these are beyond tolerance"
    )
    assert confidence(59, 59, 0.95).statement == "59 of 59 rows beyond tolerance"
    one = confidence(1, 100, 0.99, "samples")
    assert one.statement.startswith("1 of 100 samples beyond tolerance: at 99% confidence fewer than 6.")
    assert (one.level, one.rows, one.violations) == (0.99, 100, 1)


@pytest.mark.parametrize(
    ("exponent", "largest", "absolute", "relative", "expected"),
    [
        (1, 0.1, 0.1, 0.0, (False, False)),  # the reference lies in [1, 2)
        (1, 0.1, 0.099, 0.0, (True, True)),
        (1, 0.1, 0.0, 0.1, (False, False)),
        (1, 0.1, 0.0, 0.06, (False, True)),
        (1, 0.1, 0.0, 0.049, (True, True)),
        (None, 0.1, 0.0, 1e9, (True, True)),  # zero
        (None, 0.0, 0.0, 0.0, (False, False)),
        (-1100, 1e-320, 0.0, 0.5, (True, True)),  # nothing is known of the smallest
        (1024, 1.0e308, 0.0, 0.5, (True, True)),
        (1024, 0.8e308, 0.0, 0.5, (False, True)),
        (1, float("nan"), 1.0, 1.0, (True, True)),
        (1024, sys.float_info.max, sys.float_info.max, 0.0, (False, True)),  # it may stand for twice as much
    ],
)
def test_what_stored_facts_tell_under_another_tolerance(exponent, largest, absolute, relative, expected):
    facts = [{"exponent": exponent, "max_abs_diff": largest}]
    assert mismatch_bounds(facts, absolute, relative) == expected


def test_what_stored_facts_do_not_decide_is_told():
    """Of answers from 1 to 2, six per cent are 0.06 to 0.12, and the largest difference is 0.1."""
    policy = make_policy(abs_tol=0.0, rel_tol=0.06)
    verdict = judge(compared(numbers(largest=0.1, beyond=1, mismatch_rate=0.01)), policy)
    found = [finding for finding in verdict.findings if finding.code == "undecided"]
    assert [(finding.severity, finding.message, finding.output, finding.remedy) for finding in found] == [
        (
            Severity.INCONCLUSIVE,
            "value.mismatch_rate cannot be decided under the new tolerance from the stored facts",
            "value",
            "Run the check again with this tolerance",
        )
    ]
    assert verdict.outcome == "INCONCLUSIVE"
    anything = make_policy(abs_tol=0.0, rel_tol=0.06, limits={"mismatch_rate": 1.0})
    checks = judge(compared(numbers(largest=0.1, beyond=1, mismatch_rate=0.01)), anything).checks
    decided_by = [(check.value, check.outcome) for check in checks if check.measure == "mismatch_rate"]
    assert decided_by == [(1.0, "PASS")], "no more than all of them differ"


@pytest.mark.parametrize(
    ("tolerance", "value", "outcome"),
    [
        ({"abs_tol": 0.05}, 3.0, "FAIL"),  # twice that is noise: of five flips, two had margins up to 0.1
        ({"abs_tol": 0.04}, 3.0, "FAIL"),  # those two may be on either side of 0.08: three at least
        ({"abs_tol": 0.1}, 1.0, "FAIL"),  # only the one that nobody knows
        ({"abs_tol": 0.05, "rel_tol": 0.01}, None, "INCONCLUSIVE"),  # large scores may move by more
    ],
)
def test_flips_under_another_tolerance_are_counted_by_their_margins(tolerance, value, outcome):
    margins = {"unknown": 1, "spans": [[0.0, 0.1, 2], [0.1, 0.2, 2]]}
    facts = {"agreement": {"rows": 100, "margins": margins}}
    found = output("label", Kind.LABEL, label_flips=5.0, material_flips=5.0, details=facts)
    (check,) = judge(compared(found), make_policy(**tolerance)).checks
    assert (check.measure, check.value, check.outcome) == ("material_flips", value, outcome)


def test_rows_beyond_another_tolerance_are_told_where_the_facts_do():
    comparison = compared(numbers(largest=0.02, beyond=5, mismatch_rate=0.05), rows_beyond=5)
    assert rows_beyond(Judgement(comparison, STRICT)) == 5
    assert rows_beyond(Judgement(comparison, make_policy(preset="strict", abs_tol=0.5))) == 0
    assert rows_beyond(Judgement(comparison, make_policy(preset="strict", abs_tol=0.001))) is None
    broken = replace(comparison, mismatches=(Mismatch("shape", "other"),))
    assert rows_beyond(Judgement(broken, make_policy(preset="strict", abs_tol=0.5))) is None
    gaps = compared(numbers(nan_both=3.0, mismatch_rate=0.0))
    assert rows_beyond(Judgement(gaps, make_policy(preset="strict", nan_equal=False))) is None


@pytest.mark.parametrize(("violations", "rows"), [(1, 100), (50, 1_000), (3, 20_000), (200, 9_999)])
def test_the_bound_is_that_of_the_beta_distribution(violations, rows):
    """Clopper and Pearson's, as scipy has it."""
    wanted = beta.ppf(0.95, violations + 1, rows - violations)
    assert upper_bound(violations, rows, 0.95) == pytest.approx(wanted, rel=1e-9)


# What else a reader should know of an output


def noted(found, code, **facts):
    return [
        (finding.severity, finding.message, finding.remedy)
        for finding in judge(compared(found, **facts), STRICT).findings
        if finding.code == code
    ]


@pytest.mark.parametrize(("flips", "sentence"), [(1, "1 label changed"), (2, "2 labels changed, all")])
def test_labels_within_noise_are_a_note(flips, sentence):
    found = output("label", Kind.LABEL, label_flips=float(flips), material_flips=0.0)
    ((severity, message, _),) = noted(found, "label-flips")
    assert severity is Severity.NOTE
    assert message.startswith(sentence)
    assert message.endswith("within noise")


def test_labels_that_no_limit_is_on_are_told():
    numbers_only = replace(STRICT, limits=tuple(limit for limit in STRICT.limits if limit.of_numbers))
    changed = output("label", Kind.LABEL, label_flips=5.0, material_flips=2.0)
    ((severity, message),) = [
        (finding.severity, finding.message)
        for finding in judge(compared(numbers(), changed), numbers_only).findings
        if finding.code == "label-flips"
    ]
    assert severity is Severity.WARNING
    assert message == "5 of 100 labels of 'label' changed, 2 by more than noise, and no limit applies to them"
    alone = judge(compared(changed), numbers_only)
    (doubt,) = [finding for finding in alone.findings if finding.code == "not-judged"]
    assert alone.outcome == "INCONCLUSIVE"
    assert doubt.message == "output 'label' was not judged: no limit applies to it"
    assert doubt.remedy == "Set a limit that applies, such as --limit label_flips=0"


@pytest.mark.parametrize(
    ("bounds", "told_of"), [((-0.01, 1.01), False), ((-0.011, 1.0), True), ((0.0, 1.011), True), (None, False)]
)
def test_probabilities_that_are_none_are_told(bounds, told_of):
    found = replace(numbers("p"), pair=PairSpec("p", "q", Kind.PROBABILITY, "kind"))
    found = replace(found, details={**found.details, "extremes": {"candidate": bounds, "reference": (0.0, 1.0)}})
    warned = noted(found, "not-probabilities", not_compared=("decision_function", "embedding"))
    assert bool(warned) is told_of
    if warned:
        ((severity, message, remedy),) = warned
        assert severity is Severity.WARNING
        assert message == (
            f"'q' of the candidate goes from {bounds[0]:g} to {bounds[1]:g}: these are scores, not probabilities"
        )
        assert remedy.endswith("--pair q=decision_function")


@pytest.mark.parametrize(
    ("constant", "rows", "varied", "who"),
    [
        (("candidate",), 2, True, "the candidate gives"),
        (("reference", "candidate"), 2, True, "both models give"),
        (("candidate",), 1, True, None),
        (("candidate",), 2, False, None),
        ((), 2, True, None),
    ],
)
def test_the_same_answer_to_everything_is_told(constant, rows, varied, who):
    found = numbers(rows=rows)
    facts = {**found.details["closeness"], **{f"constant_{side}": True for side in constant}}
    warned = noted(replace(found, details={"closeness": facts}), "constant-output", rows=rows, varied=varied)
    told = [message for _, message, _ in warned]
    assert told == ([f"{who} the same 'value' for every one of {rows} rows of varied data"] if who else [])


@pytest.mark.parametrize(
    ("measures", "code", "severity"),
    [
        ({"rank_mismatch": 1.0}, "rank-mismatch", Severity.WARNING),
        ({"layout_mismatch": 1.0}, "layout-mismatch", Severity.WARNING),
        ({"rank_mismatch": 1.0, "layout_mismatch": 1.0}, "rank-mismatch", Severity.WARNING),
        ({"dtype_mismatch": 1.0}, "dtype-mismatch", Severity.NOTE),
        ({}, "rank-mismatch", Severity.NOTE),
    ],
)
def test_another_form_is_told(measures, code, severity):
    found = numbers(**measures)
    found = replace(
        found, details={**found.details, "form": {"reference": ["float32 (n,)"], "candidate": ["x (n, 1)"]}}
    )
    ((found_severity, message, _),) = noted(found, code)
    assert found_severity is severity
    assert message.startswith("'value' is float32 (n,) in the reference and x (n, 1) in the candidate")
    assert message.endswith("they were compared row by row") is (severity is Severity.WARNING)


def test_a_tolerance_below_the_models_own_noise_is_told():
    def warned(**measures):
        return [message for _, message, _ in noted(numbers(**measures), "below-noise-floor")]

    # The answers are below 2, so that up to 0.002 is noise; the tolerance is 0.01.
    tight = make_policy(preset="strict", abs_tol=1e-4)
    found = compared(numbers(batch_drift=0.001, reference_drift=0.0001), tolerance=tight.tolerance)
    assert told(found, "below-noise-floor", tight) == [
        "the tolerance of 'value', 0.0001, is below what the candidate's own answers move between batch sizes, 0.001: "
        "a failure of that size may be noise"
    ]
    assert told(compared(numbers(batch_drift=0.002), tolerance=tight.tolerance), "below-noise-floor", tight)
    assert not told(compared(numbers(batch_drift=0.0021), tolerance=tight.tolerance), "below-noise-floor", tight)
    assert not warned(batch_drift=0.001)
    nothing = numbers(batch_drift=0.0005)
    facts = {**nothing.details["closeness"], "magnitudes": [{"exponent": None, "max_abs_diff": 0.0}]}
    nothing = replace(nothing, details={"closeness": facts})
    assert not told(compared(nothing, tolerance=tight.tolerance), "below-noise-floor", tight), (
        "of zero, nothing is noise"
    )


@pytest.mark.parametrize(("rows", "severity"), [(9, Severity.WARNING), (10, Severity.INCONCLUSIVE)])
def test_nine_rows_may_lie_close_together_by_chance(rows, severity):
    found = numbers(largest=0.01, rows=rows)
    found = replace(found, details={**found.details, "extremes": {"widest": (0.0, 0.015)}})
    verdict = judge(compared(found, rows=rows), STRICT)
    assert [finding.severity for finding in verdict.findings if finding.code == "wide-tolerance"] == [severity]


def test_a_limit_on_labels_that_scores_break_is_told_as_it_is():
    found = output("scores", Kind.SCORE, top1_flips=3.0, top1_material_flips=3.0, max_abs_diff=0.0, mean_abs_diff=0.0)
    found = replace(found, details={"top_class": {"rows": 100, "classes": 4}})
    verdict = judge(compared(found), make_policy(preset="strict", limits={"label_flips": 0}))
    assert verdict.headline == "scores.label_flips is 3, above its limit of 0"


def test_whole_numbers_may_not_differ_at_all_and_their_mean_has_its_own_limit():
    found = numbers(largest=0.0)
    found = replace(found, details={"closeness": {**found.details["closeness"], "integer_rounding": 0.0}})
    bounds = {check.measure: check.bound for check in judge(compared(found), STRICT).checks}
    assert bounds == {"max_abs_diff": 0.0, "mean_abs_diff": 0.005, "nonfinite_mismatch": 0.0}


def test_a_tolerance_for_numbers_is_not_missed_where_there_are_only_labels():
    facts = {"agreement": {"rows": 100, "margins": {"unknown": 0, "spans": []}}}
    flips = {"label_flips": 0.0, "flip_rate": 0.0, "material_flips": 0.0}
    labels = compared(output("label", Kind.LABEL, details=facts, **flips))
    for tolerance in ({"abs_tol": 0.1}, {"abs_tol": 0.1, "rel_tol": 0.1}, {"mean_tol": 0.1}):
        assert not told(labels, "limit-unmeasured", make_policy(**tolerance)), tolerance


def test_where_rows_were_not_counted_the_largest_difference_is_told():
    verdict = judge(compared(output(max_abs_diff=0.5, nonfinite_mismatch=0.0)), STRICT)
    assert verdict.headline == "the largest difference in 'value' is 0.5, and 0.01 is allowed"


@pytest.mark.parametrize(
    ("narrowest", "count", "severity", "which"),
    [
        ([(2, 0.0, 0.015, 0.015)], 3, Severity.INCONCLUSIVE, "column 2 of 'value'"),
        ([(2, 0.0, 0.015, 0.015)], 64, Severity.INCONCLUSIVE, "column 2 of 'value'"),
        ([(2, 0.0, 0.015, 0.015)], 65, Severity.WARNING, "column 2 of 'value'"),
        ([(2, 0.0, 0.015, 0.0)], 3, Severity.NOTE, "column 2 of 'value'"),  # the candidate follows
        ([(2, 0.0, 0.015, 0.00375)], 3, Severity.NOTE, "column 2 of 'value'"),  # to a quarter of what it moves by
        ([(2, 0.0, 0.015, 0.0038)], 3, Severity.INCONCLUSIVE, "column 2 of 'value'"),
        # Of two, the one that the candidate does not follow; of two that it follows, the first, and there is another.
        ([(2, 0.0, 0.012, 0.0), (1, 0.0, 0.015, 0.015)], 3, Severity.INCONCLUSIVE, "column 1 of 'value'"),
        (
            [(2, 0.0, 0.015, 0.0), (1, 0.0, 0.015, 0.0)],
            3,
            Severity.NOTE,
            "column 2 of 'value' (as are 1 other columns or more)",
        ),
        (
            [(2, 0.0, 0.015, 0.015), (1, 0.0, 0.015, 0.015), (0, 0.0, 0.03, 0.03)],
            3,
            Severity.INCONCLUSIVE,
            "column 2 of 'value' (as are 1 other columns or more)",
        ),
        ([(2, 0.0, 0.021, 0.021)], 3, None, ""),  # more than 0.01 on either side of its middle
        ([(0, 0.0, 0.015, 0.015)], 1, None, ""),  # no other column
    ],
)
def test_a_column_that_the_tolerance_covers_is_told(narrowest, count, severity, which):
    extremes = {"widest": (-1000.0, 1000.0), "columns": {"count": count, "narrowest": narrowest}}
    found = numbers()
    found = replace(found, details={**found.details, "extremes": extremes})
    warned = [(severity, message) for severity, message, _ in noted(found, "wide-tolerance")]
    assert warned == (
        []
        if severity is None
        else [
            (
                severity,
                f"the reference's {which} goes from 0 to 0.015 and may differ by 0.01: "
                "a model that always answers the same would be within tolerance",
            )
        ]
    )
    classes = replace(found, pair=PairSpec("value", "value", Kind.PROBABILITY, "kind"))
    assert not noted(classes, "wide-tolerance")


def test_what_a_runner_warns_of_and_what_is_stale():
    verdict = judge(
        compared(numbers(), warnings=("it is slow",), lineage=("it is older",), notes=("by the way",)), STRICT
    )
    assert [(finding.code, finding.message) for finding in verdict.findings] == [
        ("runner-warning", "it is slow"),
        ("stale-artefact", "it is older"),
        ("note", "by the way"),
    ]


@pytest.mark.parametrize(("preset", "nodes", "hints"), [("strict", 7, 1), ("strict", 0, 0), ("quantized", 7, 0)])
def test_integers_are_pointed_out_only_under_limits_that_are_not_made_for_them(preset, nodes, hints):
    policy = make_policy(preset=preset)
    facts = {"tolerance": policy.tolerance, "quantized_nodes": nodes, "rows_beyond": 100}
    failing = compared(numbers(largest=50.0, beyond=100), **facts)
    assert len(told(failing, "quantized-candidate", policy)) == hints
