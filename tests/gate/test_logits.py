"""Scores of classes without a label: the class they pick is compared too, where somebody asks, and told where not."""

from __future__ import annotations

import numpy as np
import torch

import data_only
import likewise
from planting import FLOAT, codes, expect, graph, measures, planted, rows

COUNT = 400
TABLE = np.random.default_rng(0).normal(size=(COUNT, 6)).astype(np.float32)
torch.manual_seed(0)
NET = torch.nn.Linear(6, 10)
LOGITS = TABLE @ NET.weight.detach().numpy().T + NET.bias.detach().numpy()


def exported(moved=0.0):
    """The same layer as an ONNX file whose first class is ahead by a little."""
    weight, bias = NET.weight.detach().numpy().T.copy(), NET.bias.detach().numpy().copy()
    bias[0] += moved
    nodes = [("Gemm", ["X", "W", "b"], ["Y"], {})]
    return graph(nodes, {"X": (FLOAT, [None, 6])}, {"Y": (FLOAT, [None, 10])}, W=weight, b=bias)


def flips(moved):
    other = LOGITS + np.eye(10)[0] * moved
    return int((LOGITS.argmax(axis=1) != other.argmax(axis=1)).sum())


def test_another_best_class_is_told_and_fails_where_labels_are_limited():
    assert flips(0.04) > 0
    report = data_only.check(NET, exported(0.04), {"X": TABLE}, abs_tol=0.05)
    expect(report, "PASS", f"in {flips(0.04)} of 400 rows another of the 10 columns", "--limit label_flips=0")
    assert "top-class" in codes(report, "note")
    limited = data_only.check(NET, exported(0.04), {"X": TABLE}, abs_tol=0.05, limits={"label_flips": 0})
    expect(limited, "FAIL", f"label_flips is {flips(0.04)}")
    few = data_only.check(NET, exported(0.04), {"X": TABLE}, abs_tol=0.05, limits={"flip_rate": 0.1})
    expect(few, "PASS")
    expect(data_only.check(NET, exported(), {"X": TABLE}, limits={"label_flips": 0}), "PASS")
    assert "top-class" not in codes(data_only.check(NET, exported(), {"X": TABLE}))


def test_a_flip_by_more_than_noise_is_material_and_a_run_is_judged_again():
    report = data_only.check(NET, exported(0.5), {"X": TABLE}, abs_tol=0.6, limits={"material_flips": 0})
    expect(report, "PASS")
    again = likewise.judge(report, abs_tol=0.01, limits={"material_flips": 0})
    expect(again, "FAIL", "material_flips")
    direct = data_only.check(NET, exported(0.5), {"X": TABLE}, abs_tol=0.01, limits={"material_flips": 0})
    expect(direct, "FAIL", "material_flips")


def test_the_best_five_are_compared_as_a_set():
    scores = np.tile(np.arange(8.0), (COUNT, 1))
    other = scores.copy()
    other[:7, 2] = 3.5
    report = data_only.check(planted(logits=scores), planted(logits=other), rows(COUNT), limits={"top5_flips": 0})
    expect(report, "FAIL", "logits.top5_flips is 7")
    assert measures(report, "logits")["top1_flips"] == 0


def test_where_there_are_labels_these_are_asked():
    scores = np.random.default_rng(1).normal(size=(COUNT, 3))
    tied = scores.copy()
    tied[3] = 1.0
    other = tied.copy()
    other[3, 2] = 1.00001
    right, wrong = planted(label=np.arange(COUNT) % 3, logits=tied), planted(label=np.arange(COUNT) % 3, logits=other)
    expect(data_only.check(right, wrong, rows(COUNT), limits={"label_flips": 0}), "PASS")
    named = data_only.check(right, wrong, rows(COUNT), limits={"logits.label_flips": 0})
    expect(named, "FAIL", "logits.label_flips is 1")


def test_steps_of_a_sequence_have_their_own_best_class():
    scores = np.random.default_rng(2).normal(size=(COUNT, 5, 7))
    other = scores.copy()
    best = scores[9, 4].argmax()
    other[9, 4, (best + 1) % 7] = scores[9, 4, best] + 1e-6
    options = {"abs_tol": 10.0, "limits": {"label_flips": 0}}
    report = data_only.check(planted(logits=scores), planted(logits=other), rows(COUNT), **options)
    expect(report, "FAIL", "logits.label_flips is 1")


def test_one_column_has_no_best_class():
    model = planted(value=np.arange(float(COUNT)))
    report = data_only.check(model, model, rows(COUNT), limits={"label_flips": 0})
    expect(report, "INCONCLUSIVE", "nothing was measured against the limit on label_flips")


def test_other_settings_and_made_rows_tell_it_too():
    report = likewise.check(
        NET,
        exported(0.04),
        {"X": TABLE},
        abs_tol=0.05,
        explain=False,
        edge="fail",
        matrix={"optimization": ["disable"]},
    )
    assert {suite.kind for suite in report.verdict.suites} >= {"setting", "edge"}
    expect(report, "PASS", "another of the 10 columns")
