"""What networks of real size showed: programs out of a file, inputs that got lost, layers that all differ alike."""

from __future__ import annotations

import copy
import io

import numpy as np
import onnx
import pytest
import torch
from piped import ask_only
from torch import nn

import data_only
from likewise.explain import driver
from likewise.models.torch import inside

pytestmark = pytest.mark.filterwarnings("ignore")

ROWS = np.random.default_rng(5).normal(size=(24, 3, 8, 8)).astype(np.float32)


class Images(nn.Module):
    """Two blocks with statistics of their own."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3, bias=False), nn.BatchNorm2d(6, eps=1e-3)
        self.second, self.last = nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 4)

    def forward(self, x):
        x = torch.nn.functional.gelu(self.norm(self.first(x)))
        return self.head(torch.nn.functional.gelu(self.last(self.second(x))).mean((2, 3)))


@pytest.fixture(scope="module")
def images():
    torch.manual_seed(3)
    module = Images().train()
    for _ in range(5):
        module(torch.randn(16, 3, 8, 8) * 2 + 0.3)
    return module.eval()


@pytest.fixture(scope="module")
def program(images, tmp_path_factory):
    """The network as people keep it: a program in a file, whose layers are only names."""
    path = tmp_path_factory.mktemp("program") / "net.pt2"
    rows = torch.export.Dim("rows")
    torch.export.save(torch.export.export(images, (torch.from_numpy(ROWS[:4]),), dynamic_shapes=({0: rows},)), path)
    return path


def exported(module, path, **options):
    given = {"dynamo": False, "dynamic_axes": {"x": {0: "rows"}}, "input_names": ["x"], **options}
    torch.onnx.export(module, (torch.from_numpy(ROWS[:4]),), path, **given)
    return path


def told(reference, candidate, rows):
    report = data_only.explain(reference, candidate, rows, explain_budget=60)
    assert report.outcome == "FAIL"
    return [(diagnosis.cause, str(diagnosis.culprit)) for diagnosis in report.diagnoses]


def test_normalisations_of_a_program_are_folded_with_their_own_epsilon(images, program):
    native = torch.export.load(program).module()
    known = {entry.path: entry.values for entry in inside.parameters_of(images) if entry.folded}
    found = {entry.path: entry.values for entry in inside.parameters_of(native) if entry.folded}
    assert known.keys() == found.keys()
    for path, values in known.items():
        np.testing.assert_allclose(found[path], values, rtol=1e-12)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_cells_of_a_program_are_packed_as_those_of_a_layer(kind):
    module = kind(3, 5, num_layers=2, bidirectional=True, batch_first=True).eval()
    kept = io.BytesIO()
    torch.export.save(torch.export.export(nn.Sequential(module), (torch.zeros(2, 4, 3),)), kept)
    native = torch.export.load(io.BytesIO(kept.getvalue())).module()
    packed = {
        entry.path: entry.values for entry in inside.parameters_of(native) if entry.attribute.startswith("bias_l")
    }
    wanted = [entry.values for entry in inside.parameters_of(module) if entry.attribute.startswith("bias_l")]
    assert len(packed) == len(wanted) == 2
    for found, values in zip(packed.values(), wanted, strict=True):
        np.testing.assert_array_equal(found, values)


def test_a_stale_head_behind_batch_norms_of_a_program_is_found(images, program, tmp_path):
    other = copy.deepcopy(images)
    torch.manual_seed(4)
    other.head = nn.Linear(6, 4)
    cause, culprit = told(program, exported(other, tmp_path / "net.onnx"), {"x": ROWS})[0]
    assert cause == "stale-weights"
    assert "head.weight" in culprit


def test_an_export_in_training_mode_is_found_beside_a_program(images, program, tmp_path):
    mode = torch.onnx.TrainingMode.PRESERVE
    training = copy.deepcopy(images).train()
    path = exported(training, tmp_path / "net.onnx", training=mode, do_constant_folding=False)
    cause, culprit = told(program, path, {"x": ROWS})[0]
    assert cause == "training-mode"
    assert "norm" in culprit


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, ids, mask):
        held = self.table(ids) * mask[..., None]
        return self.head(held.sum(1) / mask.sum(1, keepdim=True))


def test_an_input_that_got_lost_is_named(tmp_path):
    torch.manual_seed(1)
    module = Masked().eval()
    rng = np.random.default_rng(2)
    data = {"ids": rng.integers(0, 20, (40, 7)), "mask": (rng.random((40, 7)) < 0.7).astype(np.float32)}
    data["mask"][:, 0] = 1.0

    class Alone(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = module

        def forward(self, ids):
            return self.inner(ids, torch.ones(ids.shape))

    path = tmp_path / "net.onnx"
    given = {"dynamic_axes": {"ids": {0: "rows"}}, "input_names": ["ids"], "dynamo": False}
    torch.onnx.export(Alone().eval(), (torch.from_numpy(data["ids"][:4]),), path, **given)
    assert [entry.name for entry in onnx.load(path).graph.input] == ["ids"]
    cause, culprit = told(module, path, data)[0]
    assert (cause, culprit) == ("model-part-dropped", "input 'mask' (the candidate does not take it)")


def test_slow_models_are_asked_about_fewer_rows(monkeypatch):
    monkeypatch.setattr(driver, "ASKED", 1e-9)
    report = data_only.explain(np.negative, np.positive, {"x": np.arange(1.0, 101.0)[:, None]}, explain_budget=10)
    worst = len(report.comparison.outputs[0].worst_rows)
    assert driver.ASKED_ROWS // 2 <= report.explanation.failing_rows <= driver.ASKED_ROWS // 2 + worst


LAYERS = 14


class Deep(nn.Module):
    """More layers than a graph with a fault has differences, each with a table that is computed when it is exported."""

    def __init__(self, epsilon=1e-6, base=10_000.0, quick=False):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(LAYERS))
        self.norms = nn.ModuleList(nn.LayerNorm(8, eps=epsilon) for _ in range(LAYERS))
        self.base, self.activation = base, Quick() if quick else nn.GELU()

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            angles = torch.outer(torch.arange(5.0), self.base ** (-torch.arange(8) / 8.0))
            x = x + self.activation(layer(norm(x) * angles.cos()))
        return x.mean(1)


class Quick(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


@pytest.mark.parametrize(
    ("made", "told"),
    [({"epsilon": 1e-2}, "epsilon=1e-06 instead of 0.01"), ({"base": 500.0}, "and 11 more")],
    ids=["an epsilon", "a table"],
)
def test_what_differs_alike_in_every_layer_of_a_deep_network_is_one_fault(made, told, tmp_path):
    best = of_layers({}, made, tmp_path)
    assert (best.cause, best.explained_share) == ("operator-attribute", 1.0)
    assert told in best.evidence


def of_layers(meant, made, folder, **options):
    torch.manual_seed(1)
    right, wrong = Deep(**meant).eval(), Deep(**made).eval()
    wrong.load_state_dict(right.state_dict())
    rows = np.random.default_rng(2).normal(size=(24, 5, 8)).astype(np.float32)
    given = {"dynamo": True, "dynamic_shapes": ({0: "rows"},), "input_names": ["x"], "verbose": False, **options}
    torch.onnx.export(wrong, (torch.from_numpy(rows[:4]),), folder / "net.onnx", **given)
    return data_only.explain(right, folder / "net.onnx", {"x": rows}).diagnoses[0]


def test_modules_that_differ_in_several_ways_at_once_compute_something_else(tmp_path, monkeypatch):
    ask_only(monkeypatch, "nodes")
    best = of_layers({"quick": True}, {}, tmp_path, opset_version=18)  # in which a Gelu is five nodes
    assert (best.cause, best.explained_share) == ("operator-semantics", 1.0)
