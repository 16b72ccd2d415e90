"""What got worse since the last run: measured against hand arithmetic, and never a pass where something is missing."""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import data_only
import likewise
from likewise import report as report_files
from likewise.cli.commands import diff as command_line
from likewise.contracts.comparison import Stratum, SuiteFacts, Tolerance
from likewise.contracts.verdict import AT_LEAST, AT_MOST, Change, Direction, Finding, Outcome, Severity
from likewise.errors import UsageError
from likewise.judge.diff import diff, told
from likewise.judge.diff.measures import Scale, moved, weigh
from likewise.judge.verdict import against_baseline
from likewise.report.diff import markdown, terminal
from likewise.report.formats.json import loads
from likewise.tasks import check as verify
from likewise.tasks import settings as config
from planting import here

ROWS = 400
TABLE = pd.DataFrame({"a": np.linspace(-1.0, 1.0, ROWS)})
PLAIN = {"explain": False, "edge": "off", "batch_sizes": (1, 32)}
LIMITS = {"abs_tol": 0.1, **PLAIN}


def right(rows):
    return {"value": rows["a"].to_numpy(), "other": rows["a"].to_numpy() ** 2}


def off_by(shift, *, names=("value", "other")):
    """Answers that are off by up to `shift`, the more the larger the input."""

    def model(rows):
        return {
            name: answer + shift * np.abs(rows["a"].to_numpy()) for name, answer in right(rows).items() if name in names
        }

    return model


def checked(shift, data=TABLE, **options):
    return data_only.check(right, off_by(shift), data, **{**LIMITS, **options})


@pytest.fixture(scope="module")
def runs():
    return {"old": checked(0.02), "worse": checked(0.03), "beyond": checked(0.2)}


def of(found, name, batch_size=None):
    wanted = ("measure", name, batch_size, "")
    (change,) = (c for c in found.changes if (c.subject, c.name, c.batch_size, c.place) == wanted)
    return change


def worse(found):
    return [change.message for change in found.of(Direction.WORSE)]


def test_a_run_is_not_worse_than_itself(runs):
    found = diff(runs["old"], runs["old"], allow=0.0)
    assert found.outcome is Outcome.PASS
    # A function has no hash: whether it is the same cannot be told.
    changes = [change for change in found.changes if change.subject not in ("reference", "candidate")]
    assert {change.direction for change in changes} == {Direction.SAME}


def test_a_measure_is_worse_by_what_arithmetic_says(runs):
    found = diff(runs["old"], runs["worse"])
    assert found.outcome is Outcome.FAIL
    assert runs["worse"].passed
    largest, mean = of(found, "value.max_abs_diff"), of(found, "value.mean_abs_diff")
    inputs = np.abs(TABLE["a"].to_numpy())
    assert largest.percent == pytest.approx(50, rel=1e-6)
    assert (largest.old, largest.new) == pytest.approx((0.02, 0.03))
    assert (mean.old, mean.new) == pytest.approx((0.02 * inputs.mean(), 0.03 * inputs.mean()))
    assert largest.direction is mean.direction is Direction.WORSE
    assert "value.max_abs_diff went from 0.02 to 0.03 (50% worse)" in worse(found)
    assert of(found, "value.max_abs_diff", 32).direction is Direction.WORSE
    # Distances near zero say nothing on their own: they are told, and count only where they have a limit.
    assert of(found, "value.max_ulp_diff").direction in (Direction.OTHER, Direction.SAME)


def test_what_is_allowed_is_not_worse_and_the_way_back_is_better(runs):
    assert diff(runs["old"], runs["worse"], allow=60).outcome is Outcome.PASS
    back = diff(runs["worse"], runs["old"])
    assert back.outcome is Outcome.PASS
    assert of(back, "value.max_abs_diff").direction is Direction.BETTER


def test_a_limited_measure_counts_also_where_it_would_not_without(runs):
    limited = {"limits": {"sqnr_db": 10.0}}
    found = diff(checked(0.02, **limited), checked(0.03, **limited))
    change = of(found, "value.sqnr_db")
    # Half as much again of the difference is 20·log10(1.5) decibels less.
    assert change.old - change.new == pytest.approx(20 * math.log10(1.5))
    assert change.percent == pytest.approx(50)
    assert change.direction is Direction.WORSE


SCALE = Scale(1000, 1000, Tolerance(0.01, 0.0), 1.0)


@pytest.mark.parametrize(
    ("measure", "old", "new", "bound", "direction"),
    [
        ("max_abs_diff", 1e-17, 2e-17, 0.0, "same"),  # the rounding of float64
        ("max_abs_diff", 1e-5, 9e-5, None, "same"),  # less than 1% of the tolerance of 0.01
        ("max_abs_diff", 1e-5, 1.2e-4, None, "worse"),
        ("mean_abs_diff", 1e-3, 1.09e-3, None, "same"),  # less than 10%
        ("mean_abs_diff", 1e-3, 1.2e-3, None, "worse"),
        ("mean_abs_diff", 1e-3, 1.2e-3, 0.03, "same"),  # less than 1% of its limit
        ("label_flips", 0, 1, None, "same"),  # one row in a thousand
        ("label_flips", 0, 2, None, "worse"),
        ("label_flips", 0, 1, 0.0, "worse"),
        ("material_flips", 0, 1, None, "worse"),
        ("mismatch_rate", 0.0, 1e-6, None, "worse"),
        ("rank_agreement", 0.9999, 0.9995, None, "same"),
        ("rank_agreement", 0.999, 0.99, None, "worse"),
        ("cosine", 0.9, 0.8, 0.5, "worse"),
        ("cosine", 0.8, 0.9, 0.5, "better"),
        ("sqnr_db", math.inf, 60.0, 20.0, "same"),  # a thousandth of the signal, where a tenth is allowed
        ("sqnr_db", math.inf, 30.0, 20.0, "worse"),
        ("max_abs_diff", 0.1, math.nan, None, "worse"),
        ("max_abs_diff", math.nan, 0.1, None, "better"),
        ("max_abs_diff", 0.1, math.inf, None, "worse"),
        ("max_abs_diff", math.nan, math.nan, None, "same"),
    ],
)
def test_noise_is_not_worse_and_everything_else_is(measure, old, new, bound, direction):
    assert weigh(measure, old, new, scale=SCALE, bound=bound, allow=10.0).direction == direction


@given(
    measure=st.sampled_from(sorted(AT_LEAST | AT_MOST)),
    values=st.tuples(*[st.floats(0, 1e6, allow_subnormal=False)] * 2),
    bound=st.one_of(st.none(), st.floats(0, 1)),
    allow=st.floats(0, 100),
)
def test_no_way_is_worse_in_both_directions_and_allowing_less_finds_no_less(measure, values, bound, allow):
    old, new = values
    there = weigh(measure, old, new, scale=SCALE, bound=bound, allow=allow).direction
    back = weigh(measure, new, old, scale=SCALE, bound=bound, allow=allow).direction
    assert not there == back == Direction.WORSE
    if there is Direction.WORSE:
        assert weigh(measure, old, new, scale=SCALE, bound=bound, allow=0.0).direction is Direction.WORSE
        assert back in (Direction.BETTER, Direction.SAME)


def without_output(report):
    return replace(report, comparison=replace(report.comparison, outputs=report.comparison.outputs[:1]))


def without_measure(report):
    first, *rest = report.comparison.outputs
    kept = {name: value for name, value in first.measures.items() if name != "p99_abs_diff"}
    return replace(report, comparison=replace(report.comparison, outputs=(replace(first, measures=kept), *rest)))


def without_batch_size(report):
    return replace(report, comparison=replace(report.comparison, batch_sizes=report.comparison.batch_sizes[:1]))


def without_limit(report):
    checks = tuple(check for check in report.verdict.checks if check.measure != "nonfinite_mismatch")
    return replace(report, verdict=replace(report.verdict, checks=checks))


def with_looser_limit(report):
    return likewise.judge(report, abs_tol=0.2)


def with_new_failure(report):
    found = Finding("extra-output", Severity.FAILURE, "output 'z' has no counterpart")
    return replace(report, verdict=replace(report.verdict, findings=(*report.verdict.findings, found)))


def with_policy(**changes):
    return lambda report: replace(report, policy=replace(report.policy, **changes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_output, "is no longer compared"),
        (without_measure, "value.p99_abs_diff is no longer measured"),
        (without_batch_size, "batch size 32 is no longer tried"),
        (without_limit, "the limit of 0 on value.nonfinite_mismatch is gone"),
        (with_looser_limit, "the limit on value.max_abs_diff was loosened from 0.1 to 0.2"),
        (with_looser_limit, "the tolerance was loosened from 0.1 to 0.2"),
        (with_policy(nan_equal=False), None),
        (with_policy(confidence=0.5), "confidence went from 0.95 to 0.5, which asks less"),
        (with_policy(fixed_batch=True), "fixed_batch went from false to true, which asks less"),
        (with_new_failure, "new failure: output 'z' has no counterpart"),
    ],
)
def test_less_than_before_is_worse_and_said(runs, change, message):
    ours = runs["old"]
    names = sorted(output.name for output in ours.comparison.outputs)
    assert names == ["other", "value"]
    outputs = sorted(ours.comparison.outputs, key=lambda output: output.name, reverse=True)
    ours = replace(ours, comparison=replace(ours.comparison, outputs=tuple(outputs)))
    found = diff(ours, change(ours))
    if message is None:
        assert found.outcome is Outcome.PASS
        return
    assert found.outcome is Outcome.FAIL
    assert any(message in told for told in worse(found)), worse(found)


def test_fewer_of_the_first_rows_are_worse_more_are_not(runs):
    fewer = checked(0.02, samples=200)
    assert any("200 rows compared, 400 before" in told for told in worse(diff(runs["old"], fewer)))
    assert diff(fewer, runs["old"], allow=200).outcome is Outcome.PASS


def asking(report, **settings):
    """The report as if these settings had been given, and edge suites not been switched off."""
    kept = {name: value for name, value in report.origin.settings.items() if name != "edge"}
    return replace(report, origin=replace(report.origin, settings={**kept, **settings}))


def suite(report, *, shift, blocks=False, name="extremes"):
    facts = SuiteFacts("edge", name, "Extremes", checked(shift).comparison, blocks=blocks)
    comparison = replace(report.comparison, suites=(*report.comparison.suites, facts))
    return likewise.judge(replace(report, comparison=comparison))


def test_a_suite_that_is_gone_or_fails_is_worse(runs):
    agreeing, failing = suite(runs["old"], shift=0.02), suite(runs["old"], shift=0.5)
    assert failing.passed
    left_out = "the suite edge extremes was not asked for this time (--edge off)"
    assert worse(diff(agreeing, runs["old"])) == [left_out]
    assert worse(diff(agreeing, asking(runs["old"]))) == ["the suite edge extremes is gone"]
    (told,) = worse(diff(agreeing, failing))
    assert told.startswith("the suite edge extremes is FAIL, it was PASS: ")
    assert worse(diff(failing, agreeing)) == []
    assert worse(diff(suite(runs["old"], shift=0.02, blocks=True), agreeing)) == [
        "the suite edge extremes no longer blocks"
    ]


NAMES = [f"extremes-{number}" for number in range(16)]


def with_suites(report, *, shift, kind="edge", names=NAMES, blocks=False):
    comparison = checked(shift).comparison
    facts = tuple(SuiteFacts(kind, name, "Extremes", comparison, blocks=blocks) for name in names)
    return likewise.judge(replace(report, comparison=replace(report.comparison, suites=facts)))


@pytest.mark.parametrize(
    ("kind", "settings", "said"),
    [
        ("edge", {"edge": "off"}, "16 edge suites were not asked for this time (--edge off): extremes-0, extremes-1, "),
        ("edge", {"skip_suites": NAMES}, "16 edge suites were not asked for this time (--skip-suite): extremes-0, "),
        ("setting", {}, "16 setting suites were not asked for this time (no --matrix): extremes-0, "),
        ("setting", {"matrix": {"threads": [1]}}, "16 setting suites are gone: extremes-0, "),
        ("edge", {}, "16 edge suites are gone: extremes-0, "),
    ],
)
def test_suites_that_are_not_there_are_one_line_that_says_why(runs, kind, settings, said):
    old, new = with_suites(runs["old"], shift=0.02, kind=kind), asking(runs["old"], **settings)
    found = diff(old, new)
    assert found.outcome is Outcome.FAIL
    assert len(worse(found)) == 16
    (line,) = told(found.changes, Direction.WORSE)
    assert line.message.startswith(said)
    assert all(name in line.message for name in NAMES)
    assert found.headline == said.partition(": ")[0]
    held = against_baseline(old, new, max_worse=10)
    (finding,) = held.verdict.findings
    assert held.passed
    assert (finding.severity, finding.message) == (Severity.WARNING, f"baseline: {line.message}")
    blocking = against_baseline(with_suites(runs["old"], shift=0.02, kind=kind, blocks=True), new, max_worse=10)
    assert blocking.outcome is Outcome.FAIL


def swept(report, *, values):
    """The report with other largest differences of `value` at batch sizes 1, 2, 3 and 32; all rows stay as they are."""
    known = report.comparison.batch_sizes[0]

    def at(size, largest):
        outputs = tuple(
            replace(o, measures={**o.measures, "max_abs_diff": largest}) if o.name == "value" else o
            for o in known.outputs
        )
        return replace(known, size=size, outputs=outputs)

    sizes = tuple(at(size, largest) for size, largest in zip((1, 2, 3, 32), values, strict=True))
    return likewise.judge(replace(report, comparison=replace(report.comparison, batch_sizes=sizes)))


def test_a_figure_that_moved_a_little_is_not_told_as_the_same(runs):
    old = runs["old"]
    outputs = tuple(
        replace(o, measures={**o.measures, "max_abs_diff": o.measures["max_abs_diff"] * 1.05})
        if o.name == "value"
        else o
        for o in old.comparison.outputs
    )
    moved_a_little = replace(old, comparison=replace(old.comparison, outputs=outputs))
    shown = {
        row.split()[0]: row for row in terminal(diff(old, moved_a_little), width=80, colour=False).splitlines() if row
    }
    assert "about as before" in shown["value.max_abs_diff"]
    assert "about" not in shown["value.mean_abs_diff"]


def test_batch_sizes_are_one_line_for_each_measure(runs):
    old = swept(runs["old"], values=[0.01, 0.011, 0.01, 0.012])
    everywhere = diff(old, swept(runs["old"], values=[0.02, 0.04, 0.03, 0.02]))
    assert len(worse(everywhere)) == 4
    (line,) = told(everywhere.changes, Direction.WORSE)
    assert line.message == "value.max_abs_diff at batch sizes 1–32 went at worst from 0.011 to 0.04 (264% worse)"
    rows = [row.split() for row in terminal(everywhere, width=80, colour=False).splitlines()]
    assert ["value.max_abs_diff", "at", "batch", "sizes", "1–32", "0.011", "0.04", "264%", "worse", "✗"] in rows
    some = diff(old, swept(runs["old"], values=[0.02, 0.011, 0.01, 0.03]))
    (line,) = told(some.changes, Direction.WORSE)
    assert line.where == "at batch sizes 1, 32"
    beyond = diff(old, swept(runs["old"], values=[0.2, 0.4, 0.3, 0.2]))
    # The outcome, four measures, and one failure for all of them.
    assert len(worse(beyond)) == 6
    assert [line.change.subject for line in told(beyond.changes, Direction.WORSE)] == ["outcome", "measure"]


def test_a_failure_that_nothing_else_tells_keeps_its_line(runs):
    """A limit that was tightened: no figure is worse, and the gate fails."""
    tightened = likewise.judge(runs["worse"], limits={"max_abs_diff": 0.025})
    found = diff(runs["worse"], tightened)
    assert found.outcome is Outcome.FAIL
    lines = [line.message for line in told(found.changes, Direction.WORSE)]
    assert any(line.startswith("new failure: value.max_abs_diff is 0.03, above its limit of 0.025") for line in lines)
    assert any("at batch size 1, above its limit of 0.025; at batch size 32 too" in line for line in lines), lines


@pytest.mark.parametrize("draw", [partial(terminal, width=80, colour=False), markdown])
def test_what_people_read_is_short_and_says_what_it_leaves_out(runs, draw):
    old, new = (with_suites(runs[name], shift=shift) for name, shift in (("old", 0.02), ("beyond", 0.5)))
    many = replace(diff(old, new), changes=diff(old, new).changes * 3)
    for found in (diff(old, new), many):
        text = draw(found)
        assert len(text.splitlines()) <= 36
        assert "new warning" not in text.lower()
    assert re.search(r"… and \d+ more", draw(many))
    assert draw(diff(old, new)).count("16 edge suites are FAIL, they were PASS: extremes-0") == 1


def test_more_is_better_is_told_by_what_is_missing():
    change = Change("measure", "p.rank_agreement", Direction.WORSE, "", 0.9742, 0.706, 1039.5, "p")
    assert moved(change, "") == "p.rank_agreement went from 0.9742 to 0.706 (lacks 0.294, lacked 0.0258)"
    assert "times" not in moved(replace(change, name="p.sqnr_db", old=60.0, new=20.0), "")


def test_terms_come_before_figures_and_nothing_beyond_a_wider_tolerance_is_not_told(runs, tmp_path):
    path = tmp_path / "accepted.json"
    report_files.save(runs["old"], path)
    wider = checked(0.03, abs_tol=0.2, baseline=path)
    assert wider.outcome is Outcome.FAIL
    assert wider.verdict.headline.endswith(".max_abs_diff was loosened from 0.1 to 0.2")
    found = diff(runs["old"], wider)
    (rate,) = (c for c in found.of(Direction.UNKNOWN) if (c.name, c.batch_size) == ("value.mismatch_rate", None))
    assert (rate.old, rate.new) == (0, 0)
    assert told(found.changes, Direction.UNKNOWN) == ()
    # Where nothing says that the tolerance is wider, it is told.
    unsaid = [change for change in found.changes if change.subject != "policy"]
    assert "what it would be under the old one is not known" in told(unsaid, Direction.UNKNOWN)[0].message


def test_a_headline_says_that_the_baseline_fails_itself(runs, tmp_path):
    path = tmp_path / "accepted.json"
    report_files.save(likewise.judge(runs["old"], limits={"cosine": 1.5}), path)
    report = checked(0.03, baseline=path)
    assert report.verdict.headline.startswith("baseline, a FAIL itself: ")


def test_values_of_a_column_that_fail_or_are_no_longer_told_apart_are_worse(runs):
    def told_apart(*beyond):
        strata = tuple(Stratum("country", name, 200, count) for name, count in zip("ab", beyond, strict=True))
        return replace(runs["old"], comparison=replace(runs["old"].comparison, strata=strata))

    assert worse(diff(told_apart(0, 3), runs["old"])) == ["the values of country are no longer told apart"]
    assert worse(diff(told_apart(0, 3), told_apart(2, 3))) == ["2 rows with country = a are beyond tolerance now"]
    assert worse(diff(told_apart(2, 3), told_apart(0, 3))) == []


@pytest.fixture(scope="module")
def stored(example_folder):
    """A stored report of real models that blocks on two settings, tells values of a column apart and has a suite."""
    settings = {"matrix": {"threads": ["1", "2"]}, "stratify": "purpose", "samples": 600, **PLAIN}
    files = [str(example_folder / name) for name in ("model.joblib", "model.onnx", "test.parquet")]
    report = data_only.check(*files, **settings)
    assert report.passed
    edge = tuple(
        replace(facts, kind="edge", name=f"made {facts.name}", blocks=False) for facts in report.comparison.suites
    )
    comparison = replace(report.comparison, suites=(*report.comparison.suites, *edge))
    return report_files.render(likewise.judge(replace(report, comparison=comparison)), "json")


def edited(text, edit):
    """The report after a change in its JSON."""
    document = json.loads(text)
    edit(document)
    return loads(json.dumps(document))


def drop_output_at_a_batch_size(document):
    del document["batch_sizes"][-1]["outputs"][0]


def drop_output_in_an_order(document):
    del document["batch_orders"][0]["outputs"][0]


def drop_output_in_a_setting(document):
    del document["suites"][0]["facts"]["comparison"]["outputs"][0]


def drop_values_of_a_column(document):
    del document["coverage"]["strata"][1:]


def make_a_value_rare(document):
    document["coverage"]["strata"][0]["rows"] = 1


def raise_differences(places):
    for place in places:
        for output in place["outputs"]:
            raised = {name: 9e-5 for name in output["measures"] if name.endswith("_abs_diff")}
            output["measures"].update(raised)


def worsen_a_setting(document):
    raise_differences([document["suites"][0]["facts"]["comparison"]])


def worsen_settings(document):
    raise_differences([suite["facts"]["comparison"] for suite in document["suites"]])


def worsen_orders(document):
    raise_differences(document["batch_orders"])


def leave_one_row(kind, *, of="facts"):
    def edit(document):
        for suite in (suite for suite in document["suites"] if suite["facts"]["kind"] == kind):
            (suite["facts"]["comparison"] if of == "facts" else suite["verdict"])["rows"] = 1

    return edit


def leave_one_row_at_batch_sizes(document):
    for size in document["batch_sizes"]:
        size["rows"] = 1


EDITS = [
    (drop_output_at_a_batch_size, r"output '\w+' is no longer compared at batch size 32"),
    (drop_output_in_an_order, r"output '\w+' is no longer compared at batch size \d+, rows reversed"),
    (drop_output_in_a_setting, r"output '\w+' is no longer compared in the suite setting threads=1"),
    (drop_values_of_a_column, r"\d values of purpose have no rows any more.*: \w+.*, \w+"),
    (make_a_value_rare, r"rows with purpose = .* went from \d+ to 1"),
    (worsen_a_setting, r"probabilities.max_abs_diff in the suite setting threads=1 went from \S+ to 9e-05 .*"),
    (worsen_settings, r"probabilities.max_abs_diff in 2 setting suites went at worst from .*: threads=1, threads=2"),
    (worsen_orders, r"probabilities.max_abs_diff with rows in other places went at worst from \S+ to 9e-05 .*"),
    (leave_one_row("setting"), r"rows compared in 2 setting suites went at worst from 600 to 1: threads=1, threads=2"),
    (leave_one_row("edge", of="verdict"), r"rows compared in 2 edge suites went at worst from 600 to 1: made .*"),
    (leave_one_row_at_batch_sizes, r"rows compared at batch sizes 1, 32 went at worst from \d+ to 1"),
]


@pytest.mark.parametrize(("edit", "message"), EDITS, ids=[message for _, message in EDITS])
def test_less_of_anything_in_a_stored_report_is_worse_and_short(stored, edit, message, tmp_path):
    old, new = loads(stored), edited(stored, edit)
    assert diff(old, old).outcome is Outcome.PASS
    found = diff(old, new)
    assert found.outcome is Outcome.FAIL
    lines = [line.message for line in told(found.changes, Direction.WORSE)]
    assert any(re.fullmatch(message, line) for line in lines), lines
    assert len(lines) <= 2
    assert diff(new, old, allow=10).outcome is Outcome.PASS
    assert len(terminal(found, width=80, colour=False).splitlines()) <= 36
    paths = [tmp_path / name for name in ("old.json", "new.json")]
    for report, path in zip((old, new), paths, strict=True):
        report_files.save(report, path)
    assert CliRunner().invoke(command_line.EXTENSION, [*map(str, paths)]).exit_code == 1
    # What the accepted run does not block on is a warning, and everything else fails.
    held = against_baseline(old, new, max_worse=10)
    assert held.outcome is (Outcome.PASS if "edge suites" in message else Outcome.FAIL)


def test_values_that_are_gone_count_on_other_data_and_how_many_rows_each_has_does_not(stored):
    old = loads(stored)
    gone = diff(old, edited(stored, drop_values_of_a_column), other_data=True)
    assert gone.outcome is Outcome.FAIL
    assert "have no rows any more, which counts on other data too" in gone.headline
    assert diff(old, edited(stored, make_a_value_rare), other_data=True).outcome is Outcome.PASS


def test_fewer_rows_in_all_tell_of_fewer_rows_elsewhere_unless_that_is_worse(stored):
    def drop_half(document, rows=300):
        document["samples"] = document["coverage"]["rows"] = 300
        for suite in document["suites"]:
            suite["facts"]["comparison"]["rows"] = suite["verdict"]["rows"] = rows

    halved, more = (diff(loads(stored), edited(stored, partial(drop_half, rows=rows))) for rows in (300, 1))
    assert len(told(halved.changes, Direction.WORSE)) == 1
    assert len(told(more.changes, Direction.WORSE)) == 3


def test_failing_where_it_passed_is_worse_and_failing_as_before_is_not(runs):
    assert "the outcome is FAIL, it was PASS" in worse(diff(runs["old"], runs["beyond"]))
    assert diff(runs["beyond"], runs["beyond"]).outcome is Outcome.PASS


def crash(rows):
    raise ValueError("no")


def test_what_does_not_answer_the_same_question_is_inconclusive(runs):
    old, inconclusive = runs["old"], data_only.check(right, crash, TABLE, **LIMITS)
    for pair in ((old, inconclusive), (inconclusive, old)):
        found = diff(*pair)
        assert found.outcome is Outcome.INCONCLUSIVE
        assert "is INCONCLUSIVE: " in found.headline
    elsewhere = checked(0.02, TABLE + 0.001)
    assert diff(old, elsewhere).outcome is Outcome.INCONCLUSIVE
    assert "other data" in diff(old, elsewhere).headline
    assert diff(old, elsewhere, other_data=True).outcome is Outcome.PASS
    drawn = [checked(0.02, samples=300, sample="random", seed=seed) for seed in (1, 2, 2)]
    assert diff(drawn[0], drawn[1]).outcome is Outcome.INCONCLUSIVE
    assert diff(drawn[1], drawn[2]).outcome is Outcome.PASS
    renamed = tuple(replace(output, name=f"new {output.name}") for output in old.comparison.outputs)
    stranger = replace(old, comparison=replace(old.comparison, outputs=renamed))
    assert diff(old, stranger).headline == "the two runs have no output in common"
    unknown = replace(old, origin=replace(old.origin, data=replace(old.origin.data, sha256=None)))
    assert diff(old, unknown).outcome is Outcome.INCONCLUSIVE


def test_what_was_counted_under_another_tolerance_is_compared_where_that_is_possible():
    options = {**PLAIN, "limits": {"mismatch_rate": 1.0}}
    at = {
        width: data_only.check(right, off_by(0.05), TABLE, abs_tol=width, rel_tol=0.0, **options)
        for width in (0.1, 0.04)
    }
    rates = {width: report.comparison.outputs[0].measures["mismatch_rate"] for width, report in at.items()}
    assert rates == {0.1: 0.0, 0.04: pytest.approx(np.mean(0.05 * np.abs(TABLE["a"]) > 0.04))}
    tightened = diff(at[0.1], replace(at[0.04], verdict=replace(at[0.04].verdict, outcome=Outcome.PASS, findings=())))
    assert of(tightened, "value.mismatch_rate").direction is Direction.UNKNOWN
    assert tightened.outcome is Outcome.INCONCLUSIVE
    same = (
        data_only.check(right, right, TABLE, abs_tol=0.1, **PLAIN),
        data_only.check(right, right, TABLE, abs_tol=0.04, **PLAIN),
    )
    assert diff(*same).outcome is Outcome.PASS
    assert diff(*reversed(same)).outcome is Outcome.FAIL


def test_the_same_files_are_known_by_their_hash_and_findings_without_their_figures(example_folder, monkeypatch):
    monkeypatch.chdir(example_folder)
    quick = {"preset": "quantized", "samples": 300, **PLAIN}
    old = data_only.check("model.joblib", "model.onnx", "test.parquet", **quick)
    new = data_only.check("model.joblib", "model.int8.onnx", "test.parquet", **quick)
    found = {
        change.name: change for change in diff(old, new).changes if change.subject in ("reference", "candidate", "data")
    }
    assert {name: str(change.direction) for name, change in found.items()} == {
        "reference": "same",
        "candidate": "other",
        "data": "same",
    }
    assert found["candidate"].new == hashlib.sha256((example_folder / "model.int8.onnx").read_bytes()).hexdigest()
    told = [c for c in diff(new, new).changes if c.subject == "finding"]
    flips = Finding("label-flips", Severity.WARNING, "7 of 300 labels changed", "label")
    other = Finding("label-flips", Severity.WARNING, "9 of 300 labels changed", "label")
    pair = [replace(new, verdict=replace(new.verdict, findings=(finding,))) for finding in (flips, other)]
    told += [c for c in diff(*pair).changes if c.subject == "finding"]
    assert told == []


@pytest.fixture
def baseline(runs, tmp_path):
    path = tmp_path / "accepted.json"
    report_files.save(runs["old"], path)
    return path


def test_a_gate_fails_when_it_is_worse_than_its_baseline_though_within_tolerance(baseline, tmp_path):
    report = checked(0.03, baseline=str(baseline), max_worse=20, report=str(tmp_path / "new.json"))
    assert report.outcome is Outcome.FAIL
    assert all(check.outcome is Outcome.PASS for check in report.verdict.checks)
    failures = [finding for finding in report.verdict.findings if finding.severity is Severity.FAILURE]
    assert {finding.code for finding in failures} == {"baseline"}
    assert any(f.message == "baseline: value.max_abs_diff went from 0.02 to 0.03 (50% worse)" for f in failures)
    stated = likewise.load(tmp_path / "new.json").origin.settings
    assert stated["baseline"] == str(baseline)
    assert stated["baseline_sha256"] == hashlib.sha256(baseline.read_bytes()).hexdigest()
    assert stated["max_worse"] == 20
    assert checked(0.03, baseline=baseline, max_worse=60).passed
    assert checked(0.0219, baseline=baseline).passed
    assert not checked(0.0221, baseline=baseline).passed
    failed = checked(0.2, baseline=baseline)
    told = [finding.message for finding in failed.verdict.findings if finding.code == "baseline"]
    assert any(message.startswith("baseline: value.max_abs_diff went from") for message in told)
    assert not any("outcome" in message for message in told), "that is in the verdict itself"


def test_the_verdict_that_is_told_before_anything_else_knows_the_baseline(baseline):
    told = []
    settings = verify.settings_of(right, off_by(0.03), TABLE, baseline=str(baseline), **{**LIMITS, "edge": "report"})
    report, _ = verify.investigate(settings, judged=lambda report, doing: told.append((report.outcome, doing)))
    assert told == [(Outcome.FAIL, verify.EDGE)]
    assert report.outcome is Outcome.FAIL


def test_suites_that_do_not_block_do_not_block_by_way_of_a_baseline(runs, tmp_path):
    path = tmp_path / "accepted.json"
    report_files.save(suite(runs["old"], shift=0.02), path)
    report = checked(0.02, baseline=path)
    assert report.passed
    assert [f.severity for f in report.verdict.findings if f.code == "baseline"] == [Severity.WARNING]
    report_files.save(suite(runs["old"], shift=0.02, blocks=True), path)
    assert checked(0.02, baseline=path).outcome is Outcome.FAIL


def test_a_baseline_that_cannot_be_used_is_never_ignored(runs, baseline, tmp_path):
    half = tmp_path / "half.json"
    half.write_text(baseline.read_text()[:1000])
    report = checked(0.02, baseline=half)
    assert report.outcome is Outcome.INCONCLUSIVE
    assert "half.json is not JSON" in report.verdict.headline
    assert checked(0.02, TABLE + 0.001, baseline=baseline).outcome is Outcome.INCONCLUSIVE
    assert checked(0.2, TABLE + 0.001, baseline=baseline).outcome is Outcome.FAIL
    broken = data_only.check(right, crash, TABLE, baseline=baseline, **LIMITS)
    assert broken.outcome is Outcome.INCONCLUSIVE
    assert not [finding for finding in broken.verdict.findings if finding.code == "baseline"], (
        "nothing to hold against it"
    )
    report_files.save(data_only.check(right, crash, TABLE, **LIMITS), half)
    assert checked(0.02, baseline=half).outcome is Outcome.INCONCLUSIVE
    report_files.save(runs["beyond"], half)
    told = [finding.message for finding in checked(0.02, baseline=half).verdict.findings]
    assert told == ["baseline: the accepted run is a FAIL itself"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"baseline": "nowhere.json"}, "there is no baseline nowhere.json"),
        ({"max_worse": 20}, "--max-worse without --baseline"),
        ({"baseline": "accepted.json", "max_worse": -1}, "--max-worse is -1"),
        ({"baseline": "accepted.json", "report": "./accepted.json"}, "it is the baseline of this run"),
    ],
)
def test_a_baseline_that_makes_no_sense_is_a_usage_error(baseline, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        checked(0.02, **options)


def test_judging_again_keeps_the_baseline_or_says_that_it_is_not_there(runs, baseline):
    report = checked(0.03, baseline=baseline)
    assert likewise.judge(report, limits={"cosine": 0.1}).outcome is Outcome.FAIL
    assert likewise.judge(report, max_worse=60).passed
    assert likewise.judge(runs["worse"], baseline=str(baseline)).outcome is Outcome.FAIL
    with pytest.raises(UsageError, match="without --baseline"):
        likewise.judge(runs["worse"], max_worse=5)
    report_files.save(runs["worse"], baseline)
    again = likewise.judge(report, limits={"cosine": 0.1})
    assert again.outcome is Outcome.INCONCLUSIVE
    assert "not the file" in again.verdict.headline
    baseline.unlink()
    assert likewise.judge(report, limits={"cosine": 0.1}).outcome is Outcome.INCONCLUSIVE


def test_a_configuration_names_its_baseline_beside_itself(baseline, tmp_path, monkeypatch):
    file = tmp_path / "likewise.toml"
    file.write_text("[gates.a]\nreference='r'\ncandidate='c'\ndata='d'\nbaseline='accepted.json'\nmax_worse=20\n")
    (gate,) = config.load_gates(file).values()
    assert (gate.baseline, gate.max_worse) == (baseline.name, 20)
    monkeypatch.chdir(tmp_path)
    gate.policy()


@pytest.fixture(scope="module")
def folder(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, report in runs.items():
        report_files.save(report, folder / f"{name}.json")
    report_files.save(checked(0.02, TABLE + 0.001), folder / "elsewhere.json")
    return folder


def test_the_command_tells_what_got_worse_in_eighty_columns(folder):
    done = here("diff", "old.json", "worse.json", folder=folder)
    assert done.returncode == 1
    assert done.stdout.startswith(" WORSE   old.json → worse.json\n")
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("value.max_abs_diff"))
    assert line.split() == ["value.max_abs_diff", "0.02", "0.03", "50%", "worse", "✗"]
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_the_command_leaves_with_0_1_2_or_3(folder):
    assert here("diff", "old.json", "worse.json", "--allow", "60%", folder=folder).returncode == 0
    told = here("diff", "old.json", "elsewhere.json", folder=folder)
    assert told.returncode == 3
    assert "--other-data" in told.stdout
    assert here("diff", "old.json", "elsewhere.json", "--other-data", folder=folder).returncode == 0
    assert here("diff", "old.json", "worse.json", "--allow", "much", folder=folder).returncode == 2
    gone = here("diff", "old.json", "nowhere.json", folder=folder)
    assert gone.returncode == 3
    assert "nowhere.json cannot be read" in gone.stderr


def test_the_command_speaks_json_and_markdown(folder):
    done = here("diff", "old.json", "worse.json", "--json", "--markdown", "diff.md", folder=folder)
    found = json.loads(done.stdout)
    assert found["outcome"] == "FAIL"
    measures = {change["name"]: change for change in found["changes"] if change["subject"] == "measure"}
    assert measures["value.max_abs_diff"]["new"] == pytest.approx(0.03)
    assert any(change["batch_size"] == 32 for change in found["changes"])
    text = (folder / "diff.md").read_text()
    assert text.startswith("## ❌ WORSE: old.json → worse.json\n")
    assert "| ✗ | value.max\\_abs\\_diff | 0.02 | 0.03 | 50% worse |" in text
    printed = here("diff", "old.json", "worse.json", "--markdown", "-", folder=folder)
    assert printed.stdout == text


def test_judge_takes_a_baseline_on_the_command_line(example_folder, tmp_path):
    words = ["model.onnx", "model.int8.onnx", "--data", "test.parquet", "--preset", "quantized", "--samples", "200"]
    quiet = [*data_only.FLAGS, "-q"]
    first = tmp_path / "first.json"
    assert here("check", *words, *quiet, "--report", first, folder=example_folder).returncode == 0
    # The first run, as if its differences had been half as large.
    document = json.loads(first.read_text())
    for output in document["outputs"]:
        if "max_abs_diff" in output["measures"]:
            output["measures"]["max_abs_diff"] /= 2
    accepted = tmp_path / "accepted.json"
    accepted.write_text(json.dumps(document))
    judged = here("judge", first, "--baseline", accepted, "--max-worse", "20%", "-q", folder=example_folder)
    assert judged.returncode == 1
    assert "probabilities.max_abs_diff went from" in judged.stdout
    assert "(100% worse)" in judged.stdout
    refused = here("judge", first, "--baseline", accepted, "-o", accepted, folder=example_folder)
    assert refused.returncode == 2


@pytest.mark.parametrize("format", ["terminal", "markdown", "junit", "sarif"])
def test_every_format_tells_what_the_baseline_says(baseline, format):
    report = checked(0.03, baseline=baseline)
    wide = {"width": 400} if format == "terminal" else {}
    text = " ".join(report_files.render(report, format, **wide).replace("\\", "").split())
    assert "baseline: value.max_abs_diff went from 0.02 to 0.03" in text.replace("Baseline", "baseline")
    assert "baseline: value.mean_abs_diff went from" in text.replace("Baseline", "baseline")
    if format in ("terminal", "markdown"):
        assert f"Compared with {baseline}, SHA-256 " in text.replace("&#8203;", "")
        assert "10% worse is allowed" in text
