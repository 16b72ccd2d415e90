"""What every edge suite promises, whatever the data: the same rows for the same seed, named, few, and made apart."""

from __future__ import annotations

import time
import unicodedata
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from edge_pairs import opened, total

import likewise
from likewise.compare.variations import edge
from likewise.compare.variations.edge import COLUMNS, all_features
from likewise.contracts.comparison import Suite
from likewise.data.columns import FrameColumns

SUITES = {suite.name: suite for suite in edge.suites()}
WORLDS = ("table", "trees", "images", "ids", "wide")
APPLYING = {
    "table": set(SUITES) - {"masks", "tree-thresholds", "rounded-thresholds"},
    "trees": set(SUITES) & {"tree-thresholds", "zeros", "nonfinite", "tied-scores", "single-row", "beyond-range"},
    "images": {"zeros", "tiny-numbers", "huge-numbers", "nonfinite", "missing-values", "beyond-range"},
    "ids": {"masks", "beyond-range", "constant-columns", "duplicated-rows", "single-row"},
    "wide": {"zeros", "missing-values", "nonfinite", "beyond-range"},
}


def made(suite, seen):
    """The rows of a suite as plain values: the name of each, and what it holds."""
    return [
        (str(batch.rows.name(place)), {name: batch.inputs[name][place] for name in seen.columns})
        for batch in suite.batches(seen)
        for place in range(len(batch))
    ]


def same(one, other) -> bool:
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=np.asarray(one).dtype.kind == "f")
    return one is other or bool(one == other) or (one != one and other != other)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("name", SUITES)
def test_a_suite_is_deterministic_named_bounded_and_leaves_the_data_alone(name, world, worlds):
    seen = worlds[world]
    before = {column: seen.batch.inputs[column].copy() for column in seen.columns}
    first = made(SUITES[name], seen)
    again = made(SUITES[name], replace(seen))
    assert [row for row, _ in first] == [row for row, _ in again]
    assert all(same(a[column], b[column]) for (_, a), (_, b) in zip(first, again, strict=True) for column in a)
    for column, array in before.items():
        assert same(array, seen.batch.inputs[column]), "the data was changed"
    known = {f"row {seen.batch.rows.name(place)}, " for place in range(len(seen.batch))}
    assert all(any(row.startswith(start) for start in known) for row, _ in first)
    assert len(first) <= 8 * COLUMNS * 2
    assert bool(first) or name not in APPLYING[world]


@pytest.mark.parametrize("name", SUITES)
def test_columns_keep_their_order_and_their_types(name, worlds):
    seen = worlds["table"]
    for batch in SUITES[name].batches(seen):
        assert list(batch.inputs) == list(seen.batch.inputs)
        for column in seen.columns:
            was, now = seen.batch.inputs[column].dtype, batch.inputs[column].dtype
            widened = name == "missing-values" and was.kind == "i" and now == np.float64
            assert now == was or widened, (name, column, was, now)


def test_a_gap_in_a_whole_number_changes_the_type_of_no_other_column(worlds):
    seen = worlds["table"]
    for batch in SUITES["missing-values"].batches(seen):
        alone = [str(batch.rows.name(place)) for place in range(len(batch))]
        if batch.inputs["age"].dtype == np.float64:
            assert all(row.endswith(("age missing", "all missing")) for row in alone)


def test_another_seed_takes_other_rows(worlds):
    seen = worlds["table"]
    names = {tuple(row for row, _ in made(SUITES["zeros"], replace(seen, seed=seed))) for seed in range(5)}
    assert len(names) > 1


def test_wide_tables_are_sampled_and_that_is_said():
    rng = np.random.default_rng(1)
    wide = {f"c{place}": rng.normal(size=50) for place in range(150)}
    with opened(total, total, wide) as (plan, prepared, head, seen):
        assert len(all_features(seen)) == 150
        found = edge.run(plan, prepared, head, blocks=True, rows=50)[0]
    zeros = next(facts for facts in found if facts.name == "zeros")
    assert f"a sample: {COLUMNS} of 150 columns" in zeros.title
    assert zeros.comparison.rows == 2 * COLUMNS * 2
    alone = next(facts for facts in found if facts.name == "single-row")
    assert "sample" not in alone.title


def test_rows_are_not_converted_to_learn_how_large_they_are(monkeypatch):
    frame = pd.DataFrame({f"c{place}": np.arange(20.0) for place in range(30)})
    with opened(lambda rows: rows["c0"].to_numpy(), lambda rows: rows["c0"].to_numpy(), frame) as (
        plan,
        prepared,
        head,
        _,
    ):
        was, asked = FrameColumns._convert, []
        monkeypatch.setattr(FrameColumns, "_convert", lambda self, name: asked.append(name) or was(self, name))
        edge.run(plan, prepared, head, blocks=False, rows=20)
    assert not asked


def test_a_tensor_that_holds_nothing_is_no_feature():
    def model(inputs):
        return inputs["x"].sum(axis=1)

    data = {"x": np.arange(60.0).reshape(20, 3), "past": np.zeros((20, 2, 0, 4)), "ids": np.zeros((20, 0), np.int64)}
    with opened(model, lambda inputs: model(inputs), data) as (plan, prepared, head, seen):
        assert {field.column for field in all_features(seen)} == {"x"}
        found = edge.run(plan, prepared, head, blocks=True, rows=20)[0]
    assert not [facts.comparison.incidents for facts in found if facts.comparison.incidents]


def test_ids_stay_inside_what_was_seen_except_where_that_is_the_point(worlds):
    seen = worlds["ids"]
    observed = seen.batch.inputs["ids"]
    for name, suite in SUITES.items():
        for batch in suite.batches(seen):
            inside = (batch.inputs["ids"] >= observed.min()) & (batch.inputs["ids"] <= observed.max())
            assert inside.all() or name == "beyond-range", name


@pytest.mark.parametrize(
    ("name", "column", "expected"),
    [
        ("zeros", "income", {"0.0", "-0.0"}),
        ("zeros", "age", {"0"}),
        ("nonfinite", "rate", {"inf", "-inf", "nan"}),
        ("large-integers", "age", {str(sign * value) for value in (2**24 + 1, 2**53 + 1) for sign in (1, -1)}),
        ("unseen-categories", "city", {"never seen before"}),
        ("empty-text", "city", {""}),
    ],
)
def test_the_values_are_those_the_name_says(name, column, expected, worlds):
    values = {str(row[column]) for text, row in made(SUITES[name], worlds["table"]) if f", {column} = " in text}
    assert expected <= values


def test_every_row_says_what_was_done_to_it(worlds):
    for text, row in made(SUITES["zeros"], worlds["table"]):
        column, _, value = text.partition(", ")[2].partition(" = ")
        assert str(row[column]) == value


def test_beyond_range_is_beyond_what_was_observed(worlds):
    seen = worlds["table"]
    observed = seen.batch.inputs["income"]
    pushed = [row["income"] for text, row in made(SUITES["beyond-range"], seen) if ", income = " in text]
    assert len(pushed) == 8
    assert all(not observed.min() <= value <= observed.max() for value in pushed)


def test_thresholds_are_hit_to_the_last_digit(worlds, trees):
    """Every threshold near a root, read here from scikit-learn itself, has a float32 on or next to it on each side."""
    model, _, _ = trees
    roots = [(int(tree.tree_.feature[0]), float(tree.tree_.threshold[0])) for tree in model.estimators_]
    rows = [row for _, row in made(SUITES["tree-thresholds"], worlds["trees"])]
    column = next(iter(rows[0]))
    for feature, threshold in roots:
        values = {float(row[column][feature]) for row in rows}
        below = max(value for value in values if value <= threshold)
        above = min(value for value in values if value > threshold)
        step = float(np.spacing(np.float32(abs(threshold))))
        assert threshold - below <= step
        assert above - threshold <= step


@pytest.mark.parametrize("blocks", [True, False])
def test_a_busy_machine_tries_the_same_rows(blocks, monkeypatch):
    """A clock that a model moves on by a second a row: no test has to wait for it."""
    now, seconds = [0.0], [0.0]

    def model(rows):
        now[0] += seconds[0] * len(rows)
        return rows.sum(axis=1)

    rows = np.random.default_rng(0).normal(size=(50, 40))
    with opened(model, model, {"x": rows}, batch_sizes=()) as (plan, prepared, head, _):
        monkeypatch.setattr(time, "monotonic", lambda: now[0])
        idle = edge.run(plan, prepared, head, blocks=blocks, rows=50)[0]
        seconds[0] = 1.0
        busy = edge.run(plan, prepared, head, blocks=blocks, rows=50)[0]
    assert busy == idle
    assert not [facts.not_covered for facts in busy if facts.not_covered]


def test_what_blocks_is_tried_in_full_and_the_rest_by_the_rows_of_the_data():
    rows = np.random.default_rng(0).normal(size=(50, 40))
    with opened(lambda x: x.sum(axis=1), lambda x: x.sum(axis=1), {"x": rows}) as (plan, prepared, head, seen):
        made = {name: len(names) for name, suite in SUITES.items() if (names := made_by(suite, seen))}
        full = {facts.name: facts for facts in edge.run(plan, prepared, head, blocks=True, rows=50)[0]}
        few = {facts.name: facts for facts in edge.run(plan, prepared, head, blocks=False, rows=50)[0]}
    assert {name: facts.comparison.rows + facts.refused for name, facts in full.items()} == made
    assert made["beyond-range"] == 320
    assert few["beyond-range"].comparison.rows == 25
    assert few["beyond-range"].title.endswith("(a sample: 25 of 320 rows)")


def made_by(suite, seen):
    return [name for batch in suite.batches(seen) for name in map(batch.rows.name, range(len(batch)))]


def test_a_suite_that_breaks_takes_only_itself_along(monkeypatch):
    def buggy(seen):
        raise ZeroDivisionError("a bug")

    broken = Suite("broken", "A suite with a bug", buggy)
    monkeypatch.setattr(edge, "suites", lambda: (broken, SUITES["zeros"]))
    with opened(total, total, {"a": np.ones(9), "b": np.arange(9.0)}, batch_sizes=()) as (plan, prepared, head, _):
        broken, zeros = edge.run(plan, prepared, head, blocks=True, rows=9)[0]
    assert "the suite 'broken' broke: ZeroDivisionError: a bug" in broken.comparison.incidents[0].message
    assert zeros.comparison.rows


def test_no_suite_breaks_on_what_tables_hold():
    values = {
        "whole": pd.array([1, None, 3] * 6, dtype="Int64"),
        "flag": pd.array([True, None, False] * 6, dtype="boolean"),
        "name": pd.Categorical(["u", None, "v"] * 6),
        "time": pd.to_datetime(["2020-01-01", None, "2021-01-01"] * 6),
        "span": pd.to_timedelta([1, 2, None] * 6, unit="s"),
        "pair": [np.array([1, 2]), np.array([3, 4]), np.array([5, 6])] * 6,
        "list": [[1.0, 2.0], [3.0], []] * 6,
        "object": [{"a": 1}, {"a": 2}, None] * 6,
    }
    for name, column in values.items():
        frame = pd.DataFrame({name: column, "other": np.arange(18.0)})
        report = likewise.check(lambda X: X["other"], lambda X: X["other"] + 0.0, frame, edge="fail", explain=False)
        assert report.outcome == "PASS", (name, report.verdict.headline)


def test_texts_that_look_alike_are_told_by_their_signs():
    def spelled(form):
        return lambda X: [unicodedata.normalize(form, str(text)) for text in X]

    names = np.array(["Rome", "Paris", "Oslo"] * 5, dtype=object)
    report = likewise.check(spelled("NFC"), spelled("NFD"), names, explain=False)
    (accents,) = [suite for suite in report.verdict.suites if suite.name == "accents"]
    assert "\\u0301" in accents.headline


def test_nan_on_both_sides_that_fails_is_told_as_that():
    data = {"X": np.arange(40.0).reshape(10, 4)}
    report = likewise.check(
        lambda X: X.sum(axis=1), lambda X: X.sum(axis=1) + 1e-9, data, nan_equal=False, explain=False
    )
    (gaps,) = [suite for suite in report.verdict.suites if suite.name == "missing-values"]
    assert "NaN on both sides" in gaps.headline
    assert "became" not in gaps.headline


def test_answers_that_differ_in_late_digits_are_told_by_how_far():
    data = {"X": np.arange(40.0).reshape(10, 4)}
    sums = lambda X: X.sum(axis=1) + 1000.0  # noqa: E731
    off = lambda X: sums(X) + 2e-3 * (X.max(axis=1) > 39)  # noqa: E731 - only where values are beyond the data's
    report = likewise.check(sums, off, data, abs_tol=1e-6, explain=False)
    (beyond,) = [suite for suite in report.verdict.suites if suite.name == "beyond-range"]
    assert beyond.headline.endswith(" became 1474, 0.002 apart")
