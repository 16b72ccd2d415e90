"""Since when rows differ: a planted moment is found to the row, and failures at all times alike are told as nothing."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
import pytest

import likewise
from likewise.compare import timeline
from likewise.compare.timeline import ALWAYS, MOST_PERIODS, NEVER, Times, _gains
from likewise.contracts.timeline import Period, Timeline
from likewise.data.times import UNTIMED, moment, moments, told
from likewise.errors import UsageError
from likewise.report import render

START = moment("2026-11-03T10:00:00Z")
SECOND = 1_000_000


def seconds(count):
    return START + SECOND * np.arange(count)


def spell(times, beyond):
    return Times.of(np.asarray(times), np.asarray(beyond)).facts().spell


@pytest.mark.parametrize("rows", [40, 500, 20_000])
@pytest.mark.parametrize("part", [0.3, 0.9])
def test_a_switch_is_found_between_the_two_rows_around_it(rows, part):
    switch = int(rows * part)
    beyond = np.arange(rows) >= switch
    found = spell(seconds(rows), beyond)
    assert (found.before, found.since) == (told(seconds(rows)[switch - 1]), told(seconds(rows)[switch]))
    assert (found.until, found.after) == (None, None)
    assert (found.rows, found.rows_beyond, found.rows_outside, found.beyond_outside) == (
        rows - switch,
        rows - switch,
        switch,
        0,
    )
    ended = spell(seconds(rows), ~beyond)
    assert (ended.since, ended.until, ended.after) == (None, found.before, found.since)


@pytest.mark.parametrize("start", [300, 1_200, 2_400])
def test_an_incident_has_a_beginning_and_an_end(start):
    beyond = np.zeros(3_000, bool)
    beyond[start : start + 300] = True
    found = spell(seconds(3_000), beyond)
    assert (found.since, found.until) == (told(seconds(3_000)[start]), told(seconds(3_000)[start + 299]))
    assert (found.before, found.after) == (told(seconds(3_000)[start - 1]), told(seconds(3_000)[start + 300]))
    assert (found.rows, found.rows_beyond, found.beyond_outside) == (300, 300, 0)
    assert found.chance == 1 / 5_000, "no other order that was tried is as uneven, and its own is one of them"


def test_the_part_with_the_larger_share_is_told_though_more_rows_differ_in_the_other():
    """30 of 30, and then 11 of 220."""
    row = np.arange(250)
    found = spell(seconds(250), (row < 30) | (row % 20 == 5))
    assert (found.since, found.rows, found.rows_beyond, found.beyond_outside) == (None, 30, 30, 11)


@pytest.mark.parametrize("turned", [False, True])
def test_a_spell_that_fades_is_one_spell(turned):
    """All, then every second, then none: the end is where none begins, and there is no other."""
    row = np.arange(240)
    beyond = (row < 40) | ((row < 120) & (row % 2 == 0))
    found = spell(seconds(240), beyond[::-1] if turned else beyond)
    assert (found.rows_beyond, found.beyond_outside, found.rows) == (80, 0, 119)
    assert (found.until is None) is turned


def test_a_rate_that_rises_is_found_near_where_it_does():
    random = np.random.default_rng(0)
    rows, switch = 30_000, 21_000
    beyond = random.random(rows) < np.where(np.arange(rows) < switch, 0.01, 0.2)
    found = spell(seconds(rows), beyond)
    off = (moment(found.since) - seconds(rows)[switch]) / SECOND
    assert abs(off) <= 2 * rows / MOST_PERIODS
    assert found.beyond_outside
    assert found.chance <= 0.001


@pytest.mark.parametrize("rate", [0.003, 0.1, 0.7])
def test_failures_at_all_times_alike_are_not_called_a_change(rate):
    random = np.random.default_rng(1)
    found = [spell(seconds(2_000), random.random(2_000) < rate) for _ in range(25)]
    assert found == [None] * 25


def test_a_large_request_that_failed_is_one_event():
    """300 rows that fail together at one moment would be beyond all chance if each of them counted."""
    times = np.repeat(seconds(30), 100)
    failed = np.isin(times, seconds(30)[[17, 18, 19]])
    # Three of thirty requests next to each other, by their number of orders: 28 places for the three among 4,060.
    assert spell(times, failed) is None
    assert spell(np.repeat(seconds(4), 5_000), np.repeat([0, 0, 1, 1], 5_000).astype(bool)) is None


@pytest.mark.parametrize(("half", "told"), [(4, False), (5, False), (7, True)])
def test_how_many_requests_it_takes_follows_from_the_number_of_orders(half, told):
    """Of n that agree and n that do not, two orders are as uneven: 2 in 70, in 252, in 3,432."""
    found = spell(seconds(2 * half), np.arange(2 * half) >= half)
    assert (found is not None) is told
    if told:
        assert found.chance == pytest.approx(2 / 3_432, rel=0.8)


def test_all_or_none_beyond_is_no_change():
    assert spell(seconds(100), np.ones(100, bool)) is None
    assert spell(seconds(100), np.zeros(100, bool)) is None
    assert spell(np.repeat(START, 100), np.arange(100) < 50) is None, "one moment is neither before nor after"


@pytest.mark.parametrize("scale", [1, 997, 10**7])
def test_any_cuts_in_any_order_merge_to_the_same(scale):
    random = np.random.default_rng(scale)
    times = START + scale * random.integers(0, 50_000, 5_000)
    times[random.random(5_000) < 0.02] = UNTIMED
    times[0] = 0
    beyond = random.random(5_000) < 0.1
    whole = Times.of(times, beyond)
    assert len(whole.periods().T) <= MOST_PERIODS
    for _ in range(5):
        order = random.permutation(5_000)
        cuts = np.sort(random.integers(0, 5_000, 6))
        parts = [Times.of(times[part], beyond[part]) for part in np.split(order, cuts)]
        merged = Times()
        for place in random.permutation(len(parts)):
            merged = merged.merge(parts[place]) if random.random() < 0.5 else parts[place].merge(merged)
        assert merged == whole
    counted = whole.facts()
    assert counted.untimed == np.count_nonzero(times == UNTIMED)
    assert sum(period.rows_beyond for period in counted.periods) == np.count_nonzero(beyond & (times != UNTIMED))
    assert (counted.first, counted.last) == (told(0), told(times.max()))


@pytest.mark.parametrize(("count", "level"), [(1, 0), (MOST_PERIODS, 0), (MOST_PERIODS + 1, 1), (2 * MOST_PERIODS, 1)])
def test_periods_are_as_short_as_may_be(count, level):
    """So many microseconds next to each other, from an even one on: two of them are one period of the next length."""
    times, beyond = START + np.arange(count), np.arange(count) % 3 == 0
    found = Times.of(times, beyond)
    assert (found.level, len(found.periods().T)) == (level, -(-count // 2**level))
    assert Times().merge(found) == found.merge(Times()) == found
    untimed = Times.of(np.array([UNTIMED]), np.array([True]))
    assert untimed == Times(untimed=1)
    assert untimed.merge(found) == Times(found.level, found.table, 1)


@pytest.mark.parametrize(("count", "shown"), [(48, 48), (50, 25), (200, 25)])
def test_a_report_shows_neighbours_together_until_they_are_few(count, shown):
    listed = Times.of(START + np.arange(count), np.arange(count) < 10).facts().periods
    assert len(listed) == shown
    each = count // shown
    assert [period.rows for period in listed] == [each] * shown
    assert [period.rows_beyond for period in listed] == [min(max(10 - each * place, 0), each) for place in range(shown)]
    assert listed[1].start == told(START + each)


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-03T10:15:00Z", "2026-11-03 11:15:00+01:00", "2026-11-03T10:15:00.000", 1793700900, "1793700900",
        1793700900.0, 1793700900_000, 1793700900_000_000, 1793700900_000_000_000,
        datetime(2026, 11, 3, 10, 15, tzinfo=UTC), pd.Timestamp("2026-11-03T10:15"),
    ],
)  # fmt: skip
def test_moments_are_read_as_they_are_written(text):
    assert told(moment(text)) == "2026-11-03T10:15:00Z"


@pytest.mark.parametrize("text", ["", "yesterday", None, float("nan"), float("inf"), True, "12", [1]])
def test_what_is_no_moment_is_none(text):
    assert moment(text) == UNTIMED


def test_columns_of_dates_are_read_whatever_their_unit():
    expected = [START, UNTIMED]
    for unit in ("s", "ms", "ns"):
        assert moments(np.array(["2026-11-03T10:00:00", "NaT"], f"datetime64[{unit}]")).tolist() == expected


def model(rows):
    return rows["a"].to_numpy() * 2


@pytest.fixture(scope="module")
def stale(tmp_path_factory):
    """A log whose service answered by an older model from row 130 on, and a table of the same in another order."""
    folder = tmp_path_factory.mktemp("stale")
    rows = pd.DataFrame({"a": np.random.default_rng(0).normal(size=200)})
    answers = np.where(np.arange(200) < 130, model(rows), model(rows) + 0.25)
    times = [datetime(2026, 11, 3, 10, tzinfo=UTC) + timedelta(seconds=7 * row) for row in range(200)]
    with open(folder / "traffic.jsonl", "w") as log:
        for row in range(200):
            entry = {
                "request": {"dataframe_records": [{"a": rows["a"][row]}]},
                "response": {"predictions": [answers[row]]},
            }
            log.write(json.dumps({**entry, "time": times[row].isoformat()}) + "\n")
    table = rows.assign(asked=times, score=answers)
    table.sample(frac=1, random_state=0).to_parquet(folder / "answered.parquet", index=False)
    return folder, *(times[row].isoformat().replace("+00:00", "Z") for row in (129, 130))


QUICK = {"batch_sizes": (), "edge": "off", "explain": False}


def test_a_log_tells_since_when_the_service_is_another(stale):
    folder, before, since = stale
    report = likewise.check(model, folder / "traffic.jsonl", folder / "traffic.jsonl", **QUICK)
    assert report.outcome == "FAIL"
    found = report.comparison.timeline.spell
    assert (found.before, found.since, found.rows, found.rows_beyond, found.beyond_outside) == (
        before,
        since,
        70,
        70,
        0,
    )
    for shown in (render(report, name) for name in ("terminal", "markdown", "html")):
        assert f"since {since}" in " ".join(shown.split())
    assert report.to_frame("timeline")["rows_beyond"].sum() == 70
    written = json.loads(render(report, "json"))
    assert written["coverage"]["timeline"]["spell"]["since"] == since
    # Under another tolerance other rows differ: nothing is claimed about them.
    assert any(finding.code == "since-when" for finding in report.verdict.findings)
    assert not any(finding.code == "since-when" for finding in likewise.judge(report, abs_tol=0.1).verdict.findings)


def test_a_column_of_a_table_tells_the_times(stale):
    folder, before, since = stale
    table = folder / "answered.parquet"
    options = {"candidate_options": {"answers": "score"}, "drop": ["score"], **QUICK}
    report = likewise.check(model, table, table, time="asked", **options)
    assert (report.comparison.timeline.spell.before, report.comparison.timeline.spell.since) == (before, since)
    assert likewise.check(model, table, table, **options).comparison.timeline is None
    with pytest.raises(UsageError, match="no column 'askd'"):
        likewise.check(model, table, table, time="askd", **options)


def test_times_that_nobody_can_read_are_told(tmp_path):
    log = tmp_path / "log.jsonl"
    entry = {"request": {"dataframe_records": [{"a": 1.0}]}, "response": {"predictions": [2.0]}, "time": "noon"}
    log.write_text(json.dumps(entry) + "\n")
    report = likewise.check(model, log, log, **QUICK)
    assert "1 of 1 rows have no time that can be read" in [finding.message for finding in report.verdict.findings]


def test_how_much_better_two_shares_fit_than_one():
    """Of one row that agrees and one that does not, one share is a half for each: the logarithm of 4."""
    assert _gains(np.array([1, 1]), np.array([0, 1])) == pytest.approx([np.log(4)])
    # Three of four differ, then none of two, against three of six: 6 log 2 + 3 log 3/4 + log 1/4.
    expected = 6 * np.log(2) + 3 * np.log(0.75) + np.log(0.25)
    assert _gains(np.array([4, 2]), np.array([3, 0])) == pytest.approx([expected])


def period(key, agreeing=(), beyond=()):
    """A column for a period, from the moments of its rows."""
    ends = [end for part in (agreeing, beyond) for end in (min(part, default=NEVER), max(part, default=ALWAYS))]
    return np.array([key, len(agreeing), len(beyond), *ends])


def table(*periods):
    return np.stack(periods, axis=1)


def test_a_period_whose_rows_differ_before_or_after_the_others_is_two():
    before, after = period(1, [1, 2], [5, 6, 7]), period(2, [13, 14], [10, 11])
    mixed, touching, turned = period(3, [20, 24], [22]), period(4, [30], [30, 31]), period(5, [42], [40, 42])
    agreeing, differing = period(6, [50, 51]), period(7, [], [60])
    found = timeline._parts(table(before, after, mixed, touching, turned, agreeing, differing)).T.tolist()
    assert found == [
        one.tolist()
        for one in (
            *(period(1, [1, 2]), period(1, [], [5, 6, 7])),
            *(period(2, [], [10, 11]), period(2, [13, 14])),
            *(mixed, touching, turned, agreeing, differing),
        )
    ]


def test_periods_of_one_number_are_one():
    one, other = period(3, [1, 2], [4]), period(3, [9], [0, 7])
    (found,) = timeline._folded(table(one, other)).T.tolist()
    assert found == period(3, [1, 2, 9], [4, 0, 7]).tolist()
    kept = timeline._folded(table(one, period(4, [5]), period(5, [6])))
    assert kept.tolist() == table(one, period(4, [5]), period(5, [6])).tolist()
    assert timeline._folded(np.zeros((7, 0), np.int64)).shape == (7, 0)
    assert (timeline._first(period(0, [5, 7], [4, 6])), timeline._last(period(0, [5, 7], [4, 6]))) == (4, 7)
    assert (timeline._first(period(0, [3, 7], [4, 9])), timeline._last(period(0, [3, 7], [4, 9]))) == (3, 9)


def test_rows_of_one_batch_are_periods_of_a_microsecond():
    found = Times.of(np.array([12, 10, 12, UNTIMED, 12]), np.array([True, False, False, True, True]))
    assert found.periods().T.tolist() == [period(10, [10]).tolist(), period(12, [12], [12, 12]).tolist()]
    assert (found.level, found.untimed) == (0, 1)


def test_coarser_periods_are_merged_with_finer_ones():
    fine, coarse = (
        Times.of(np.array([8, 9, 12]), np.array([False, True, False])),
        Times(2, table(period(2, [9])).tobytes()),
    )
    for together in (fine.merge(coarse), coarse.merge(fine)):
        assert together.level == 2
        assert together.periods().T.tolist() == [period(2, [8, 9], [9]).tolist(), period(3, [12]).tolist()]
    assert Times(untimed=2).merge(Times(untimed=3)) == Times(untimed=5)


def test_what_a_report_says_of_few_rows():
    assert Times().facts() is None
    assert Times(untimed=3).facts() == Timeline(0, 3, None, None)
    found = Times.of(START + np.array([0, 0, SECOND]), np.array([True, False, False])).facts()
    assert found == Timeline(
        3,
        0,
        told(START),
        told(START + SECOND),
        (Period(told(START), 2, 1), Period(told(START + SECOND), 1, 0)),
    )


def test_how_often_chance_is_as_uneven():
    assert timeline._chance(table(period(1, [1]))) is None
    assert timeline._chance(table(period(1, [1]), period(2, [2]))) is None
    assert timeline._chance(table(period(1, [], [1]), period(2, [], [2]))) is None
    parts = table(*(period(key, [key]) for key in range(20)), *(period(key, [], [key]) for key in range(20, 40)))
    assert timeline._chance(parts) == 1 / 5_000
    assert timeline._most_telling(parts) == 20
    assert timeline._share(parts[:, 10:30]) == 0.5
    assert timeline._share(parts[:, 15:25]) == 0.5
    assert timeline._share(parts[:, 15:21]) == pytest.approx(1 / 6)


def test_chance_is_the_share_of_orders_that_are_as_uneven():
    """Fifteen requests, of which the last seven failed, in the same orders as are tried, and the order they came in."""
    parts = table(*(period(key, [key]) for key in range(8)), *(period(key, [], [key]) for key in range(8, 15)))
    beyond = np.arange(15) >= 8
    orders = np.random.default_rng(0).permuted(np.tile(np.arange(15), (4_999, 1)), axis=1)
    separated = [np.count_nonzero(np.diff(beyond[order])) == 1 for order in orders]
    assert timeline._chance(parts) == (1 + sum(separated)) / 5_000
