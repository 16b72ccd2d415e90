"""Laws that every metric found in the folder keeps, whatever the data and however it is cut."""

import json
import pickle
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making_pairs import applicable, label_pairs, make_pair, numeric_pairs, take, text

from likewise.contracts.models import Kind
from likewise.registry import extensions

METRICS = extensions("compare.metrics")
LARGEST_SUMMARY = 600_000


@pytest.fixture(params=METRICS, ids=lambda metric: metric.name)
def metric(request):
    return request.param


def bits(summary):
    return {name: struct.pack("<d", value) for name, value in summary.measurements().items()}


def stated(summary):
    return json.dumps(summary.details(), sort_keys=True)


def assert_same(one, other):
    assert one == other
    assert bits(one) == bits(other)
    assert stated(one) == stated(other)


def merged_in_any_order(draw_index, summaries):
    """Merge two neighbours or strangers at a time until one is left."""
    summaries = list(summaries)
    while len(summaries) > 1:
        first = summaries.pop(draw_index(len(summaries)))
        second = summaries.pop(draw_index(len(summaries)))
        summaries.append(first.merge(second))
    return summaries[0]


@settings(max_examples=60, deadline=None)
@given(pair=st.one_of(numeric_pairs(), label_pairs()), data=st.data())
def test_cuts_and_orders_do_not_matter(pair, data):
    order = data.draw(st.permutations(range(len(pair.reference))), label="order")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(order)), max_size=4), label="cuts"))
    batches = [order[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(order)], strict=True)]
    for metric in METRICS:
        if not applicable(metric, pair):
            continue
        whole = metric.observe(pair)
        parts = [metric.observe(take(pair, batch)) for batch in batches]
        merged = merged_in_any_order(lambda size: data.draw(st.integers(0, size - 1)), [metric.empty(), *parts])
        assert_same(merged, whole)
        assert_same(whole.merge(metric.empty()), whole)
        assert_same(metric.empty().merge(whole), whole)
        assert_same(pickle.loads(pickle.dumps(whole)), whole)


@settings(max_examples=40, deadline=None)
@given(pair=st.one_of(numeric_pairs(), label_pairs()))
def test_figures_are_floats_and_details_are_json(pair):
    for metric in METRICS:
        if applicable(metric, pair):
            summary = metric.observe(pair)
            assert all(type(value) is float for value in summary.measurements().values())
            assert not any(value != value for value in summary.measurements().values())
            json.dumps(summary.details())


def test_nothing_observed_gives_no_figures(metric):
    assert dict(metric.empty().measurements()) == {}
    json.dumps(metric.empty().details())


def test_nothing_observed_adds_nothing(metric):
    """Also where all figures are zero, which are the least that there are."""
    same, other = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.5, 2.0], [3.0, 4.25]])
    labels = np.array([0, 1])
    pairs = [make_pair(same, same), make_pair(same, other), make_pair(labels, labels, Kind.LABEL)]
    for pair in pairs:
        if applicable(metric, pair):
            found = metric.observe(pair)
            assert_same(metric.empty().merge(found), found)
            assert_same(found.merge(metric.empty()), found)


def large_pairs():
    rng = np.random.default_rng(7)
    rows = 40_000
    scores = rng.standard_normal((rows, 2)) * 10.0 ** rng.integers(-12, 3, (rows, 2))
    labels = rng.integers(0, 4, rows)
    flipped = np.where(rng.random(rows) < 0.01, 0, labels)
    names = text([f"class {label}" for label in range(rows)])
    yield "scores", make_pair(scores, scores.astype(np.float32), Kind.SCORE)
    yield "wide", make_pair(scores.reshape(800, 100), scores.reshape(800, 100) + 1e-5, Kind.EMBEDDING)
    yield "wide scores", make_pair(scores.reshape(1250, 64), scores.reshape(1250, 64) + 1e-5, Kind.SCORE)
    yield "labels", make_pair(labels, flipped, Kind.LABEL, margin=rng.random(rows), noise=np.full(rows, 0.1))
    yield "many names", make_pair(names, names[::-1].copy(), Kind.LABEL)
    yield "unlimited labels", make_pair(scores[:, 0], scores[:, 1], Kind.LABEL, margin=rng.random(rows))


LARGE = dict(large_pairs())


@pytest.mark.parametrize(
    ("metric", "pair"),
    [
        pytest.param(metric, pair, id=f"{metric.name}-{name}")
        for metric in METRICS
        for name, pair in LARGE.items()
        if applicable(metric, pair)
    ],
)
def test_large_batches_agree_with_small_ones_and_stay_bounded(metric, pair):
    rows = len(pair.reference)
    whole = metric.observe(pair)
    order = np.random.default_rng(3).permutation(rows)
    merged = metric.empty()
    for batch in np.array_split(order, [rows // 7, rows // 3 + 1, rows - 5]):
        merged = metric.observe(take(pair, batch)).merge(merged)
    assert_same(merged, whole)
    assert len(pickle.dumps(whole)) < LARGEST_SUMMARY
    assert len(stated(whole)) < LARGEST_SUMMARY


def test_a_summary_does_not_grow_with_rows(metric):
    rng = np.random.default_rng(1)
    reference = rng.random((30_000, 2))
    pair = make_pair(reference, reference.astype(np.float32), Kind.PROBABILITY)
    if not applicable(metric, pair):
        pair = make_pair(reference[:, 0] > 0.5, reference[:, 0] > 0.501, Kind.LABEL)
    some = len(pickle.dumps(metric.observe(take(pair, range(3_000)))))
    every = len(pickle.dumps(metric.observe(pair)))
    assert every < 2 * some + 2_000
