"""Values decide, and every other form in which they come is told: type, rank, where the rows lie."""

from __future__ import annotations

import html

import numpy as np
import pytest
import torch
from skl2onnx import to_onnx
from sklearn.linear_model import LinearRegression

import data_only
import likewise
from likewise.registry import extensions
from planting import BOOL, DOUBLE, FLOAT, codes, expect, graph, measures, said

TABLE = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
X = {"X": (FLOAT, [None, 3])}


def same(kind, *, shape=(None, 3), axes=None):
    """What it is given, as another type, and with axes of one put in."""
    nodes = [("Cast", ["X"], ["cast"], {"to": kind})]
    nodes += [("Unsqueeze", ["cast", "axes"], ["Y"], {})] if axes else [("Identity", ["cast"], ["Y"], {})]
    return graph(nodes, X, {"Y": (kind, list(shape))}, **({"axes": np.array(axes)} if axes else {}))


def total(*, squeeze):
    nodes = [("ReduceSum", ["X", "one"], ["Y"], {"keepdims": int(not squeeze)})]
    return graph(nodes, X, {"Y": (FLOAT, [None] if squeeze else [None, 1])}, one=np.array([1]))


class Total(torch.nn.Module):
    def forward(self, X):
        return X.sum(dim=1)


def test_another_type_is_told_and_exact_does_not_accept_it():
    report = data_only.check(same(FLOAT), same(DOUBLE), {"X": TABLE})
    expect(report, "PASS", "'Y' is float32 (n, …) in the reference and float64 (n, …) in the candidate")
    assert "dtype-mismatch" in codes(report, "note")
    expect(data_only.check(same(FLOAT), same(DOUBLE), {"X": TABLE}, preset="exact"), "FAIL", "Y.dtype_mismatch is 1")
    limited = data_only.check(same(FLOAT), same(DOUBLE), {"X": TABLE}, limits={"dtype_mismatch": 0})
    expect(limited, "FAIL", "Y.dtype_mismatch is 1")
    expect(likewise.judge(report, limits={"dtype_mismatch": 0}), "FAIL", "Y.dtype_mismatch is 1")
    expect(data_only.check(same(FLOAT), same(FLOAT), {"X": TABLE.copy()}, preset="exact"), "PASS")


def test_yes_and_no_as_bytes_are_told():
    report = data_only.check(same(BOOL), lambda X: {"Y": (X != 0).astype(np.uint8)}, {"X": TABLE})
    expect(report, "PASS", "bool (n, …) in the reference and uint8 (n, …) in the candidate")


def test_another_rank_of_a_network_is_a_warning_and_exact_does_not_accept_it():
    report = data_only.check(Total(), total(squeeze=False), {"X": TABLE})
    expect(report, "PASS", "float32 (n,) in the reference and float32 (n, …) in the candidate")
    assert "rank-mismatch" in codes(report, "warning")
    assert measures(report, report.comparison.outputs[0].name)["rank_mismatch"] == 1
    expect(data_only.check(Total(), total(squeeze=False), {"X": TABLE}, preset="exact"), "FAIL", "rank_mismatch is 1")
    expect(data_only.check(Total(), total(squeeze=True), {"X": TABLE}, limits={"rank_mismatch": 0}), "PASS")
    deep = data_only.check(Total(), lambda X: {"Y": X.sum(axis=1)[:, None, None]}, {"X": TABLE})
    expect(deep, "PASS", "float32 (n, …, …) in the candidate")


def test_the_column_that_exporters_make_of_a_vector_is_a_plain_note():
    model = LinearRegression().fit(TABLE, TABLE @ [1, 2, 3])
    report = data_only.check(model, to_onnx(model, TABLE[:1]), TABLE, limits={"rank_mismatch": 0})
    expect(report, "PASS", "(n,) in the reference and float32 (n, …) in the candidate")
    assert codes(report, "warning") == set()


def test_rows_that_lie_elsewhere_are_told():
    nodes = [("Transpose", ["X"], ["Y"], {"perm": [1, 0]})]
    moved = graph(nodes, {"X": (FLOAT, ["batch", 3])}, {"Y": (FLOAT, [3, "batch"])})
    report = data_only.check(same(FLOAT, shape=("batch", 3)), moved, {"X": TABLE})
    expect(report, "PASS", "float32 (n, …) in the reference and float32 (…, n) in the candidate")
    assert "layout-mismatch" in codes(report, "warning")
    limited = data_only.check(same(FLOAT), moved, {"X": TABLE}, limits={"layout_mismatch": 0})
    expect(limited, "FAIL", "Y.layout_mismatch is 1")


@pytest.mark.parametrize("renderer", extensions("report.formats"), ids=lambda renderer: renderer.format)
def test_every_format_tells(renderer):
    report = data_only.check(same(FLOAT), same(DOUBLE), {"X": TABLE})
    text = html.unescape(renderer.render(report, full=True)).replace("\\u2026", "…").replace("\\", "")
    assert "float64 (n, …) in the candidate" in text, said(report)
