"""Weights of networks are found by what they hold, whatever an exporter calls them and however it writes them."""

from __future__ import annotations

from copy import deepcopy
from functools import cache

import numpy as np
import pytest
import torch
from faults.editing import constants_of, copied, with_constants
from faults.nets import exported, traced
from faults.quiet import quietly
from onnx import numpy_helper
from torch import nn
from weighing import ask_about_weights, cleared, silent, times, top

import data_only


@pytest.fixture(autouse=True)
def _only_weights_are_suspected(monkeypatch):
    ask_about_weights(monkeypatch)


class Convolving(nn.Module):
    """Two convolutions with a batch norm each, which exporters fold."""

    def __init__(self, normalised=True):
        super().__init__()
        self.normalised = normalised
        self.conv1, self.bn1 = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 16, 3)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.conv2(x)
        return self.head(torch.relu(self.bn2(x) if self.normalised else x).flatten(1))


class Recurrent(nn.Module):
    """Looks up, remembers, answers; the layers pack their gates differently in ONNX."""

    def __init__(self):
        super().__init__()
        self.words, self.lstm = nn.Embedding(10, 4), nn.LSTM(4, 3, batch_first=True)
        self.gru, self.head = nn.GRU(3, 3, batch_first=True), nn.Linear(3, 5)

    def forward(self, x):
        hidden, _ = self.lstm(self.words(x))
        hidden, _ = self.gru(hidden)
        return self.head(hidden)[:, -1]


class Attending(nn.Module):
    """An encoder layer: weights packed by three, equal ones stored once, unnamed transposed constants."""

    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.layer(x)[:, 0])


class Placed(nn.Module):
    """Words and their places: exporters store the rows of the table that a sentence of this length reads."""

    def __init__(self):
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(10, 6), nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.words(x) + self.places(torch.arange(x.shape[1]))).mean(1))


def perceptron():
    layers = [nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)]
    return nn.Sequential(*layers)


NETWORKS = {
    "perceptron": (perceptron, (96, 4)),
    "convolving": (Convolving, (48, 1, 8, 8)),
    "recurrent": (Recurrent, (48, 5)),
    "attending": (Attending, (32, 5, 8)),
}


@cache
def rows(name):
    shape = NETWORKS[name][1]
    draw = np.random.default_rng(0)
    return draw.integers(0, 10, shape) if name == "recurrent" else draw.normal(size=shape).astype(np.float32)


@cache
def trained(name, seed=0):
    """A network with weights and statistics of its own."""
    torch.manual_seed(seed)
    module = NETWORKS[name][0]().train()
    with torch.no_grad():
        for _ in range(5):
            module(torch.from_numpy(rows(name)))
        for weights in module.parameters():
            weights.add_(torch.randn_like(weights) * 0.2)
    return module.eval()


@cache
def graph(name, exporter="dynamo"):
    return exported(trained(name), rows(name)) if exporter == "dynamo" else traced(trained(name), rows(name)[:4])


def data(name):
    return {"x": rows(name)} if name != "perceptron" else {"input": rows(name)}


@pytest.fixture(params=["dynamo", "traced"])
def exporter(request):
    return request.param


def skip_unknown(name, exporter):
    if (name, exporter) == ("attending", "traced"):
        pytest.skip("the older exporter cannot write attention")


@pytest.mark.parametrize("name", NETWORKS)
def test_a_faithful_export_passes_without_a_word(name, exporter):
    skip_unknown(name, exporter)
    report = data_only.explain(trained(name), graph(name, exporter), data(name))
    assert report.passed
    assert report.diagnoses == ()


def test_a_table_of_which_an_exporter_stores_the_rows_that_are_read_is_stale_with_the_rest():
    before, now = (torch.manual_seed(seed) and Placed().eval() for seed in (0, 1))
    ids = np.random.default_rng(0).integers(0, 10, (48, 5))
    assert top(now, exported(before, ids), {"x": ids}) == ("stale-weights", "model")


@pytest.mark.parametrize("name", NETWORKS)
def test_an_export_of_another_training_is_stale(name, exporter):
    skip_unknown(name, exporter)
    assert top(trained(name, 1), graph(name, exporter), data(name)) == ("stale-weights", "model")


@pytest.mark.parametrize("name", NETWORKS)
def test_every_matrix_is_named_when_one_entry_of_it_changes(name, exporter):
    skip_unknown(name, exporter)
    proto = graph(name, exporter)
    known = dict(trained(name).named_parameters())
    matrices = [key for key, held in constants_of(proto).items() if held.dtype == np.float32 and held.ndim > 1]
    # One after the other in turn: every kind of layer is hit, the suite stays quick.
    for number, key in enumerate(matrices[:: max(len(matrices) // 3, 1)]):
        place = int(np.abs(constants_of(proto)[key]).argmax())
        cause, told = top(trained(name), with_constants(proto, {key: times(place, -4.0)}), data(name))
        assert cause == "weight-corruption", (number, key)
        assert told.split(" ")[0].replace("bias_l0", "bias_ih_l0") in known, told


def test_a_square_matrix_that_is_transposed_is_named(exporter):
    broken = with_constants(graph("perceptron", exporter), {"2.weight": lambda old: old.T})
    assert top(trained("perceptron"), broken, data("perceptron")) == ("weight-corruption", "2.weight")


def test_an_unnamed_transposed_square_matrix_is_named():
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6)).eval()
    values = np.random.default_rng(0).normal(size=(16, 5, 6)).astype(np.float32)
    proto = exported(module, values)
    first, second = [key for key, held in constants_of(proto).items() if held.shape == (6, 6)]
    turned = with_constants(proto, {second: lambda old: old.T})
    assert data_only.check(module, proto, {"input": values}).passed
    assert top(module, turned, {"input": values})[1].split(" ")[0] == "2.weight"
    turned = with_constants(proto, {first: lambda old: old.T})
    assert top(module, turned, {"input": values})[1].split(" ")[0] == "0.weight"


@pytest.mark.parametrize("change", [cleared, lambda old: old + 1 + np.arange(old.size).reshape(old.shape) ** 2])
def test_a_folded_layer_is_named_when_all_of_it_changes(change, exporter):
    proto = graph("convolving", exporter)
    key = next(key for key, held in constants_of(proto).items() if held.shape == (4, 4, 3, 3))
    cause, told = top(trained("convolving"), with_constants(proto, {key: change}), data("convolving"))
    assert (cause, told.split(" ")[0]) == ("weight-corruption", "conv2.weight")


@pytest.mark.parametrize("key", ["0.bias", "2.bias", "4.bias"])
def test_a_bias_of_zeros_or_none_is_a_part_dropped(key, exporter):
    proto = graph("perceptron", exporter)
    without = copied(proto)
    for node in without.graph.node:
        if key in node.input:
            node.input.remove(key)
    for broken in (with_constants(proto, {key: cleared}), without):
        cause, told = top(trained("perceptron"), broken, data("perceptron"))
        assert cause == "model-part-dropped"
        assert key in told


def test_a_missing_batch_norm_is_named(exporter):
    without = deepcopy(trained("convolving"))
    without.normalised = False
    proto = exported(without, rows("convolving")) if exporter == "dynamo" else traced(without, rows("convolving")[:4])
    assert top(trained("convolving"), proto, data("convolving")) == ("model-part-dropped", "normalisation bn2")


def test_a_missing_activation_is_named():
    module = trained("perceptron")
    straight = nn.Sequential(module[0], module[1], module[2], nn.Identity(), module[4]).eval()
    cause, told = top(module, exported(straight, rows("perceptron")), data("perceptron"))
    assert cause == "model-part-dropped"
    assert told.startswith("activation Relu")


class Normalising(nn.Module):
    """Scales its input by numbers it keeps."""

    def __init__(self, scaling=True):
        super().__init__()
        self.scaling, self.layer = scaling, nn.Linear(4, 3)
        self.register_buffer("mean", torch.tensor([1.0, 2.0, -1.0, 0.5]))
        self.register_buffer("spread", torch.tensor([2.0, 0.5, 3.0, 1.5]))

    def forward(self, x):
        return self.layer((x - self.mean) / self.spread if self.scaling else x)


def test_a_normalisation_that_the_graph_has_not_is_named():
    module = Normalising().eval()
    without = deepcopy(module)
    without.scaling = False
    cause, told = top(module, exported(without, rows("perceptron")), {"x": rows("perceptron")})
    assert (cause, told) == ("preprocessing-dropped", "mean, spread (input 'x')")


def test_another_mean_of_a_normalisation_is_named():
    module = Normalising().eval()
    broken = with_constants(exported(module, rows("perceptron")), {"mean": times(1, 3.0)})
    cause, told = top(module, broken, {"x": rows("perceptron")})
    assert cause == "preprocessing-differs"
    assert "mean" in told


def test_weights_of_a_few_steps_before_are_stale():
    before = deepcopy(trained("perceptron"))
    torch.manual_seed(9)
    with torch.no_grad():
        for weights in before.parameters():
            weights.add_(torch.randn_like(weights) * 0.01)
    assert top(before, graph("perceptron"), data("perceptron")) == ("stale-weights", "model")


def test_a_head_of_another_training_is_told_from_the_whole():
    before = deepcopy(trained("perceptron"))
    torch.manual_seed(9)
    with torch.no_grad():
        for weights in before[4].parameters():
            weights.add_(torch.randn_like(weights))
    cause, told = top(before, graph("perceptron"), data("perceptron"))
    assert cause == "stale-weights"
    assert "4.weight" in told
    assert "2.weight" not in told


@pytest.mark.parametrize("narrow", [np.float16, "bfloat16"])
def test_weights_rounded_to_halves_are_not_damaged(narrow):
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if narrow == "bfloat16" else narrow
    proto = copied(graph("perceptron"))
    for tensor in proto.graph.initializer:
        held = numpy_helper.to_array(tensor).astype(kind).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(held, tensor.name))
    assert silent(trained("perceptron"), proto, data("perceptron"), abs_tol=1e-5, rel_tol=1e-5)


def test_quantised_weights_are_not_damaged(tmp_path):
    import onnx
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Rows(CalibrationDataReader):
        """The rows once."""

        def __init__(self):
            self.left = iter([{"x": rows("perceptron")}])

        def get_next(self):
            return next(self.left, None)

    onnx.save(graph("perceptron", "traced"), tmp_path / "whole.onnx")
    with quietly():
        quantize_static(tmp_path / "whole.onnx", tmp_path / "small.onnx", Rows(), quant_format=QuantFormat.QDQ)
    assert silent(trained("perceptron"), tmp_path / "small.onnx", data("perceptron"))


@pytest.mark.parametrize("only_first", [True, False])
def test_an_epsilon_that_was_folded_into_weights_is_told_as_that(only_first):
    given = deepcopy(trained("convolving"))
    for name, norm in (("bn1", given.bn1), ("bn2", given.bn2)):
        norm.eps = 1e-2 if name == "bn1" or not only_first else norm.eps
    cause, place = top(trained("convolving"), traced(given, rows("convolving")[:4]), data("convolving"))
    assert cause == "operator-attribute"
    assert place == ("epsilon of bn1" if only_first else "epsilon of bn1, bn2")


class Seeing(nn.Module):
    """A convolution of pictures, and a head."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.relu(self.conv(x)).mean((2, 3)))


@pytest.mark.parametrize("order", [[2, 1, 0], [1, 0, 2]])
def test_a_first_layer_for_channels_in_reverse_is_told_as_that_and_other_orders_as_damage(order):
    torch.manual_seed(0)
    made = Seeing().eval()
    pictures = np.random.default_rng(0).random((32, 3, 8, 8), dtype=np.float32)
    given = deepcopy(made)
    with torch.no_grad():
        given.conv.weight.copy_(made.conv.weight[:, order])
    cause, place = top(made, exported(given, pictures), {"x": pictures})
    assert cause == ("input-layout" if order == [2, 1, 0] else "weight-corruption")
    assert "conv.weight" in place


@pytest.mark.parametrize("order", [[0, 2, 1, 3], [3, 0, 1, 2]])
def test_gates_in_another_order_are_told_as_that_beside_a_recorded_module(order):
    rows_ = torch.from_numpy(rows("recurrent"))
    with quietly():
        recorded = torch.jit.trace(trained("recurrent"), rows_[:4])
    proto = copied(graph("recurrent", "traced"))
    node = next(node for node in proto.graph.node if node.op_type == "LSTM")

    def reordered(values):
        blocks = np.split(values, 4, axis=1)
        return np.concatenate([blocks[place] for place in order], axis=1)

    bad = with_constants(proto, {node.input[1]: reordered})
    found = data_only.explain(recorded, bad, data("recurrent"), explain_budget=60).diagnoses[0]
    assert (found.cause, "lstm.weight_ih_l0" in found.culprit) == ("weight-corruption", True)
    assert f"its 4 blocks in the order {', '.join(map(str, order))}" in found.evidence


class Layered(nn.Module):
    """Blocks of the same shape: every one of them fits into the place of another."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(4)
        )
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


@cache
def layered():
    torch.manual_seed(5)
    module = Layered().eval()
    with torch.no_grad():
        for weights in module.parameters():
            weights.add_(torch.randn_like(weights) * 0.3)
    return module, np.random.default_rng(0).normal(size=(32, 5, 8)).astype(np.float32)


@pytest.mark.parametrize("reference", ["module", "graph"])
def test_blocks_in_another_order_are_told_as_that(reference, exporter):
    module, values = layered()
    other = deepcopy(module)
    other.blocks[1], other.blocks[2] = other.blocks[2], other.blocks[1]
    write = exported if exporter == "dynamo" else traced
    trained_ = module if reference == "module" else write(module, values)
    report = data_only.explain(trained_, write(other, values), {"x": values}, explain_budget=60)
    found = report.diagnoses[0]
    assert (found.cause, found.culprit) == ("wrong-wiring", "order of blocks.1, blocks.2")
    assert "blocks.1 holds what is blocks.2 in the reference" in found.evidence


def test_two_layers_exchanged_are_weights_in_the_wrong_place():
    module, values = layered()
    other = deepcopy(module)
    other.blocks[0][1], other.blocks[3][1] = other.blocks[3][1], other.blocks[0][1]
    cause, place = top(module, exported(other, values), {"x": values})
    assert (cause, place) == ("weight-corruption", "order of blocks.0.1, blocks.3.1")
