"""Where an explanation draws its lines: each of these numbers decides just where it says."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import small_graphs as sg

import data_only
from likewise.contracts.report import Place
from likewise.explain import counterparts, driver, experiment, rounding, splice
from likewise.explain.case import Explained, probe
from likewise.explain.clock import Clock
from likewise.explain.experiment import Effect, Trial
from likewise.models.onnx.inside import Opened


def effect(healed: int, harmed: int = 0, *, failing: int = 100, others: int = 100) -> Effect:
    """So many failing rows that agree now, and so many others that no longer do."""
    agrees = np.r_[np.arange(failing) < healed, np.arange(others) >= harmed]
    return Effect(agrees, np.arange(failing + others) < failing)


def sampled(failing: int, others: int = 0) -> SimpleNamespace:
    """A case of which nothing is known but which rows fail."""
    mask = np.arange(failing + others) < failing
    return SimpleNamespace(required=SimpleNamespace(failing=mask))


@pytest.mark.parametrize(
    ("healed", "harmed", "explains", "promising"),
    [(50, 2, True, True), (49, 0, False, True), (50, 3, False, True), (25, 20, False, True), (24, 0, False, False),
     (50, 21, False, False)],
)  # fmt: skip
def test_half_of_the_failing_rows_and_no_harm_explain(healed, harmed, explains, promising):
    seen = effect(healed, harmed)
    assert (seen.explains, seen.promising) == (explains, promising)


def test_a_few_rows_are_64_and_some_are_256_of_each():
    few = Trial.few(sampled(1000, 1000))
    assert (len(few), int(few.failing.sum())) == (64, 32)
    assert int(Trial.few(sampled(1000, 10)).failing.sum()) == 54, "where few agree, more that fail"
    some = Trial.some(sampled(1000, 1000))
    assert (len(some), int(some.failing.sum())) == (512, 256)


class Gaps(Trial):
    """A trial whose answers are how far they are off."""

    def gap(self, *, reference=None, candidate=None):
        return 1.0 if candidate is None else candidate


@pytest.mark.parametrize(("left", "nearer"), [(0.5, True), (0.51, False), (1.0, True), (2.0, False)])
def test_a_change_takes_half_of_a_difference_away_or_leaves_the_numbers_alone(left, nearer):
    assert Gaps(sampled(1), np.arange(1)).nearer(candidate=left) is nearer


@pytest.mark.parametrize(("share", "count"), [(95, 1), (94, 2)])
def test_fewer_changes_do_as_much_as_all(share, count, monkeypatch):
    case = sampled(100)
    monkeypatch.setattr(Trial, "whole", staticmethod(lambda case: Trial(case, np.arange(100))))
    found = experiment.fewest(case, ["most", "rest"], lambda _, some: effect({1: share, 2: 100}[len(some)], others=0))
    assert found is not None
    assert len(found[0]) == count


def test_the_first_64_are_tried_alone():
    asked: list[int] = []

    def does(some):
        asked.append(len(some))
        return {97, 98} <= set(some)

    assert experiment.smallest(range(100), does) == (97, 98)
    assert asked[:64] == [1] * 64
    assert asked[64] > 1


def test_a_search_ends_when_three_tenths_of_the_time_are_gone():
    left = iter([9.0, 8.0, 7.0, 6.9])
    case = SimpleNamespace(seconds_left=lambda: 10.0, lasts=lambda seconds: next(left) >= seconds)
    assert list(experiment.searching(case, "abcdef")) == ["a", "b", "c"]


@pytest.fixture
def seconds(monkeypatch):
    """What a probe has of sixty seconds after another one has explained some of a hundred rows; no time passes."""
    monkeypatch.setattr(Clock, "now", lambda _: 0.0)

    def left(covered: int, simplicity: int) -> float:
        seen: list[float] = []

        def find(case):
            mask = np.arange(len(case.required)) < covered
            yield Explained("tokenizer", Place("x"), "", "", covered=mask, simplicity=simplicity)

        probes = (probe("tokenizer")(find), probe("aggregation")(lambda case: seen.append(case.seconds_left())))
        monkeypatch.setattr(driver, "extensions", lambda kind: probes)
        data_only.explain(np.negative, np.positive, {"x": np.arange(1.0, 101.0)[:, None]}, explain_budget=60.0)
        return seen[0]

    return left


def test_one_hypothesis_has_two_fifths_of_what_is_not_kept_for_the_graph(seconds):
    assert seconds(94, 1) == seconds(100, 2) == pytest.approx(0.4 * (60 - 6))


def test_a_culprit_that_is_known_leaves_five_seconds_to_the_others(seconds):
    assert seconds(95, 1) == pytest.approx(0.4 * 5)


def test_rows_that_are_looked_at_are_bounded():
    rows = np.where(np.arange(20_000) % 2, 1.0, 0.0)[:, None]
    report = data_only.explain(np.negative, np.positive, {"x": rows}, causes=("tokenizer",))
    assert report.explanation is not None
    assert report.explanation.failing_rows == 2_048
    assert report.explanation.rows - report.explanation.failing_rows <= 6_144
    assert not report.explanation.complete


def test_numbers_of_few_digits_are_meant_as_they_stand():
    """2, 0.5 and 12 bits are; 13 bits of 24 may have been rounded."""
    stored = np.float32([2, 0.5, 4095, 8191, 0.1])
    proto = sg.graph(
        [sg.node("Add", "x few", "output")], {"few": stored}, inputs={"x": (5,)}, output=("output", ["n", 5])
    )
    assert (rounding.half_steps(proto)["few"] > 0).tolist() == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([65_504.0, 1.0], ""),
        ([65_505.0, 1.0], "50% of its values are beyond 65,504, up to 6.55e+04"),
        ([2.0**-14] * 20, ""),
        ([1e-5] + [1.0] * 19, "5% of its values are below 6.1e-05"),
        ([1e-5] + [1.0] * 20, ""),
        ([0.0, np.nan], ""),
    ],
)
def test_what_half_precision_cannot_hold(values, told):
    assert rounding.beyond_half(np.array(values)) == told


def test_values_that_vanish_in_half_precision_are_counted():
    """Numbers as small as these have few digits in float16, or none."""
    nodes = [sg.node("Cast", "x", "half", to=10), sg.node("Mul", "half small", "output")]
    nodes[1].name = "fading"
    sizes = {"inputs": {"x": (8,)}, "output": ("output", ["n", 8]), "kinds": (sg.FLOAT, 10)}
    candidate = sg.graph(nodes, {"small": np.float16([2.0**-20])}, **sizes)
    best = sg.explained(sg.Function(lambda x: x * 2.0**-20), candidate, {"x": sg.rows()}, abs_tol=1e-9)
    assert best.cause == "precision-reduction"
    assert "fading" in best.culprit
    assert "of 'output' 100% of its values are below 6.1e-05" in best.evidence


def test_tensors_of_unknown_size_are_asked_for_some_at_a_time(monkeypatch):
    nodes = [sg.node("Abs", "x" if not number else f"y{number - 1}", f"y{number}") for number in range(300)]
    proto = sg.graph(nodes, inputs={"x": (2,)}, output=("y299", ["n", 2]))
    graph = Opened.of(proto, {f"y{number}": sg.FLOAT for number in range(300)})
    asked: list[int] = []

    def inside(case, side, graph, names, inputs):
        asked.append(len(names))
        return {name: np.ones((1, 2), dtype=np.float32) for name in names}

    monkeypatch.setattr(counterparts, "inside", inside)
    known = counterparts.outlines(None, "candidate", graph, {})
    assert asked == [128, 128, 44]
    assert known["y0"].shape == (1, 2)
    assert known["y0"].nbytes == 8
    assert known["y0"].strides == (0, 0), "it takes no memory"


def test_a_weight_that_was_scaled_is_told_by_its_correlation():
    weight = np.random.default_rng(0).normal(size=12)
    noise = np.random.default_rng(1).normal(size=12)
    near, far = 3 * weight + 0.3 * noise, 3 * weight + 1.5 * noise
    related = [np.corrcoef(weight, other)[0, 1] for other in (near, far)]
    assert related[0] > 0.98 > related[1] > 0.8
    nothing = np.zeros(12)
    assert rounding.counterpart(near, nothing, [("weight", weight)]) is not None
    assert rounding.counterpart(far, nothing, [("weight", weight)]) is None
    assert rounding.counterpart(near[:11], nothing[:11], [("weight", weight[:11])]) is None, "too few to tell"
    assert rounding.counterpart(near, nothing, [("weight", weight)], alike=False) is None


@pytest.mark.parametrize(("off", "found"), [(0.019, True), (0.025, False)])
def test_a_bias_that_was_scaled_leaves_two_percent(off, found):
    bias = np.array([1.0, -1.0, 1.0, -1.0])
    values = 5 * (bias + off * np.array([1.0, 1.0, 1.0, 1.0]))
    assert (rounding.proportional(values, [("bias", bias)]) is not None) is found


def test_a_difference_that_begins_everywhere_is_noise():
    """Six nodes side by side may be at fault, and seven not."""
    for count, told in ((6, True), (7, False)):
        nodes = [sg.node("Abs", "x", f"y{number}") for number in range(count)]
        nodes.append(sg.node("Concat", " ".join(f"y{number}" for number in range(count)), "output", axis=1))
        proto = sg.graph(nodes, inputs={"x": (2,)}, output=("output", ["n", 2 * count]))
        graph = Opened.of(proto, dict.fromkeys(["x", "output", *(f"y{number}" for number in range(count))], sg.FLOAT))
        right = splice.sketch(np.ones((1, 2)))
        ours = {name: splice.sketch(np.full((1, 2), float(place))) for place, name in enumerate(graph.types, 2)}
        theirs = {name: splice.sketch(np.full((1, 2), -float(place))) for place, name in enumerate(graph.types, 2)}
        both = splice.Beside(graph, graph, {**ours, "x": right}, {**theirs, "x": right}, {"x": ("x",)})
        assert any(True for _ in splice._grafts(both, {"output": "output"}, ())) is told
