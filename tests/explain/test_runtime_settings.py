"""Where only a runtime setting differs, the search for the cause looks at that setting."""

from __future__ import annotations

import numpy as np
import small_graphs as sg
from torch import nn

import data_only


def test_the_cause_is_that_of_the_setting_that_differs():
    nodes = [
        sg.node("Pad", "x pads", "padded"),
        sg.node("MaxPool", "padded", "pooled", kernel_shape=[2, 2], strides=[2, 2]),
        sg.node("Flatten", "pooled", "output"),
    ]
    pads = {"pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    candidate = sg.graph(nodes, pads, inputs={"x": (3, 6, 6)}, output=("output", ["n", 48]))
    data = {"x": -np.abs(np.random.default_rng(0).normal(size=(64, 3, 6, 6))).astype(np.float32)}

    def reference(x):
        return nn.functional.max_pool2d(nn.functional.pad(x, (1, 1, 1, 1)), 2).flatten(1)

    report = data_only.explain(
        sg.Function(reference),
        candidate,
        data,
        candidate_options={"optimization": "disable"},
        matrix={"optimization": ["disable", "all"]},
        explain_budget=60,
    )
    assert "differs at optimization=all; optimization=disable agrees" in report.verdict.headline
    assert (report.diagnoses[0].cause, report.diagnoses[0].culprit) == ("runtime-optimization", "Pad_Fusion")
