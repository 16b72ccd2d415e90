"""A branch on the data that a recording has frozen is told by the modules that the reference calls."""

from __future__ import annotations

import numpy as np
import pytest
import small_graphs as sg
import torch
from torch import nn

import data_only


class Branching(nn.Module):
    """Rows are loud or calm; a loud call goes through a layer of its own, or through one more."""

    def __init__(self, *, more: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.calm, self.loud, self.more = nn.Linear(8, 4), nn.Linear(4 if more else 8, 4), more

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.abs().mean() <= 0.8:
            return self.calm(x)
        return self.loud(self.calm(x)) if self.more else self.loud(x)


def recorded(module: nn.Module) -> object:
    """What an exporter makes of it that is shown calm rows."""
    stored = {name: value.detach().numpy() for name, value in module.calm.named_parameters(prefix="calm")}
    node = sg.node("Gemm", "x calm.weight calm.bias", "output", transB=1)
    node.name = "/calm/Gemm"
    return sg.graph([node], stored, inputs={"x": (8,)}, output=("output", ["n", 4]))


@pytest.mark.parametrize(("more", "culprit"), [(False, "'calm' always called"), (True, "'loud' never called")])
def test_a_branch_that_was_frozen(more, culprit):
    module = Branching(more=more).eval()
    rows = sg.rows() * 2
    rows[np.random.default_rng(1).random(len(rows)) < 0.4] *= 0.2
    best = sg.explained(module, recorded(module), {"x": rows})
    assert best.cause == "traced-branch"
    assert best.culprit == culprit
    assert "depends on what it is given" in best.evidence


def test_a_layer_that_is_missing_is_no_branch():
    class Always(Branching):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.loud(self.calm(x))

    module = Always(more=True).eval()
    report = data_only.explain(module, recorded(module), {"x": sg.rows()})
    assert "traced-branch" not in {found.cause for found in report.diagnoses}
