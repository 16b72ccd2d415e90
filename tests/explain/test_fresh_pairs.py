"""Faults of the kinds that people ship, on which explanations were silent or wrong when they were first seen."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
import small_graphs as sg
import torch
from onnx import helper, numpy_helper
from onnxruntime.transformers.float16 import convert_float_to_float16
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import Ridge
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, OrdinalEncoder, QuantileTransformer
from torch import nn

import likewise

RANDOM = np.random.default_rng(0)


def exported(module: nn.Module, example: torch.Tensor, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        axes = {"x": {0: "n"}}
        torch.onnx.export(module, (example,), path, dynamo=False, input_names=["x"], dynamic_axes=axes)
    return path


def scripted(module: nn.Module, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(module).save(path)


def captured(module: nn.Module, example: torch.Tensor, path: Path) -> Path:
    rows = torch.export.Dim("rows", min=2, max=64)
    torch.export.save(torch.export.export(module, (example,), dynamic_shapes=({0: rows},)), path)
    return path


class Attention(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.o = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, time, width = x.shape
        q, k, v = self.qkv(x).reshape(n, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        weights = (q @ k.transpose(-1, -2) * (width // self.heads) ** -0.5).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).reshape(n, time, width))


class Encoder(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attn = nn.ModuleList(Attention(heads) for _ in range(2))
        self.last = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.attn:
            x = x + part(x)
        return self.last(x.mean(1))


def test_another_number_of_heads_in_every_layer(tmp_path):
    rows = RANDOM.normal(size=(24, 5, 16)).astype(np.float32)
    reference = captured(Encoder(4).eval(), torch.zeros(3, 5, 16), tmp_path / "four.pt2")
    candidate = exported(Encoder(2).eval(), torch.zeros(3, 5, 16), tmp_path / "two.onnx")
    report = likewise.check(str(reference), str(candidate), {"x": rows}, edge="off", batch_sizes=(), explain_budget=90)
    best = report.diagnoses[0]
    assert best.cause == "operator-semantics"
    assert "attn.0 (Reshape" in best.culprit
    assert "attn.1 (Reshape" in best.culprit
    assert best.explained_share == 1.0


class Neighbours(nn.Module):
    """Sums messages along edges and divides them by how many there are."""

    def __init__(self, *, mean: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.mean, self.own, self.other = mean, nn.Linear(4, 8), nn.Linear(4, 8)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        sent = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
        if self.mean:
            count = torch.zeros(x.shape[0], 1).index_add(0, edges[1], torch.ones(edges.shape[1], 1))
            sent = sent / count.clamp(min=1.0)
        return torch.relu(self.own(x) + self.other(sent))


def test_a_part_that_is_missing_from_a_graph_whose_inputs_have_no_rows(tmp_path):
    given = torch.randn(7, 4), torch.randint(0, 7, (2, 20))
    shapes = ({0: torch.export.Dim("nodes", min=2)}, {1: torch.export.Dim("edges", min=2)})
    program = torch.export.export(Neighbours(mean=True).eval(), given, dynamic_shapes=shapes)
    torch.export.save(program, tmp_path / "mean.pt2")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        candidate = torch.onnx.export(Neighbours(mean=False).eval(), given, dynamo=True, dynamic_shapes=shapes)
    candidate.save(tmp_path / "sum.onnx")
    data = {"x": RANDOM.normal(size=(9, 4)).astype(np.float32), "edges": RANDOM.integers(0, 9, (2, 30))}
    paths = str(tmp_path / "mean.pt2"), str(tmp_path / "sum.onnx")
    report = likewise.check(*paths, data, batch_axis="none", edge="off", explain_budget=90)
    best = report.diagnoses[0]
    assert best.cause == "model-part-dropped"
    assert "ScatterND" in best.culprit


class Buckets(nn.Module):
    """Looks up a number by the logarithm of an input: the least change may lead to another one."""

    def __init__(self, shift: float) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.shift, self.scale, self.table = shift, nn.Parameter(torch.tensor(8.0)), nn.Embedding(64, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = (torch.log(x.abs() + 1.0) * self.scale + self.shift).to(torch.int64).clamp(0, 63)
        return self.table(places).sum(1)


def test_jumps_of_a_network_are_no_lack_of_digits(tmp_path):
    rows = (np.exp(np.arange(200).reshape(20, 10) / 80) - 1).astype(np.float32)
    scripted(Buckets(0.0).eval(), tmp_path / "model.pt")
    candidate = exported(Buckets(1.0).eval(), torch.zeros(2, 10), tmp_path / "model.onnx")
    report = likewise.check(
        str(tmp_path / "model.pt"), str(candidate), {"x": rows}, edge="off", batch_sizes=(), explain_budget=60
    )
    assert report.outcome == "FAIL"
    assert not [found for found in report.diagnoses if found.cause == "float32-compute"]


def test_what_heals_only_in_company_is_no_cause():
    """The least of what a Relu gives is zero in any batch that is large enough, and in no small one."""
    weights = {"w": RANDOM.normal(size=(8, 3)).astype(np.float32), "rows": np.array([0])}
    mixed = [
        sg.node("MatMul", "x w", "product"),
        sg.node("Relu", "product", "kept"),
        sg.node("ReduceMean", "kept rows", "mean"),
        sg.node("Sub", "kept mean", "output"),
    ]
    candidate = sg.graph(mixed, weights, inputs={"x": (8,)}, output=("output", ["n", 3]))
    reference = sg.Function(lambda x: torch.relu(x @ torch.tensor(weights["w"])))
    report = likewise.check(reference, candidate, {"x": sg.rows()}, edge="off", explain_budget=60)
    best = report.diagnoses[0]
    assert best.cause == "batch-dependence"
    assert "ReduceMean" in best.culprit


def test_batch_norm_as_in_training_is_called_that(tmp_path):
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 2))
    module[1].running_mean += torch.randn(12)
    scripted(module.eval(), tmp_path / "model.pt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.train(),
            (torch.randn(8, 6),),
            tmp_path / "model.onnx",
            dynamo=False,
            input_names=["x"],
            dynamic_axes={"x": {0: "n"}},
            training=torch.onnx.TrainingMode.TRAINING,
        )
    rows = RANDOM.normal(size=(64, 6)).astype(np.float32)
    report = likewise.check(
        str(tmp_path / "model.pt"), str(tmp_path / "model.onnx"), {"x": rows}, edge="off", explain_budget=60
    )
    assert report.diagnoses[0].cause == "training-mode"
    assert "BatchNormalization" in report.diagnoses[0].culprit or report.diagnoses[0].culprit.startswith("1")


def test_an_epsilon_that_half_precision_cannot_hold():
    weights = {"eps": np.array(1e-10, np.float32), "axes": np.array([1]), "w": np.eye(8, 3, dtype=np.float32)}
    nodes = [
        sg.node("ReduceMean", "x axes", "mean"),
        sg.node("Sub", "x mean", "apart"),
        sg.node("Mul", "apart apart", "square"),
        sg.node("ReduceMean", "square axes", "variance"),
        sg.node("Add", "variance eps", "more"),
        sg.node("Sqrt", "more", "root"),
        sg.node("Div", "apart root", "scaled"),
        sg.node("MatMul", "scaled w", "output"),
    ]
    reference = sg.graph(nodes, weights, inputs={"x": (8,)}, output=("output", ["n", 3]))
    candidate = convert_float_to_float16(onnx.ModelProto.FromString(reference.SerializeToString()), keep_io_types=True)
    assert [t for t in candidate.graph.initializer if t.name == "eps" and numpy_helper.to_array(t) > 1e-9]
    rows = sg.rows().astype(np.float32)
    rows[::5] = rows[::5, :1] + np.arange(8, dtype=np.float32) * 1e-5
    report = likewise.check(
        reference, candidate, {"x": rows}, edge="off", batch_sizes=(), preset="standard", explain_budget=60
    )
    assert report.outcome == "FAIL"
    assert report.diagnoses[0].cause == "precision-reduction"


@pytest.mark.parametrize("pads", [[0, 0], [1, 1]], ids=["innocent", "both"])
def test_of_nodes_that_differ_alike_those_are_named_that_matter(pads):
    def made(included: int) -> onnx.ModelProto:
        pools = [
            sg.node("AveragePool", "x", "first", kernel_shape=[3], pads=[1, 1], count_include_pad=included),
            sg.node("AveragePool", "first", "output", kernel_shape=[2], pads=pads, count_include_pad=included),
        ]
        for number, pool in enumerate(pools):
            pool.name = f"pool{number}"
        graph = helper.make_graph(
            pools,
            "pools",
            [helper.make_tensor_value_info("x", sg.FLOAT, ["n", 2, 8])],
            [helper.make_tensor_value_info("output", sg.FLOAT, None)],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)

    rows = {"x": RANDOM.normal(size=(30, 2, 8)).astype(np.float32)}
    report = likewise.check(made(1), made(0), rows, edge="off", batch_sizes=(), explain_budget=60)
    best = report.diagnoses[0]
    assert best.cause == "operator-attribute"
    assert best.nodes == (("pool0",) if pads == [0, 0] else ("pool0", "pool1"))


def seasons(rows: pd.DataFrame, *, day: int) -> np.ndarray:
    """By the day and the month of a date, the day at a place of it; where that cannot be, at the other."""
    parts = rows["date"].str.extract(r"(\d+)\D(\d+)\D\d+").astype(int).to_numpy()
    days, months = parts[:, day], parts[:, 1 - day]
    days, months = np.where(months > 12, months, days), np.where(months > 12, days, months)
    return rows["price"].to_numpy() + 3.0 * months + 0.1 * days


@pytest.mark.parametrize("written", ["%d/%m/%Y", "%d.%m.%Y"])
def test_dates_that_are_read_the_other_way_round(written):
    days = pd.date_range("2024-01-01", periods=300, freq="D")
    rows = pd.DataFrame({"date": days.strftime(written), "price": RANDOM.normal(50, 5, 300).round(2)})

    def reference(frame: pd.DataFrame) -> np.ndarray:
        return seasons(frame, day=0)

    def candidate(frame: pd.DataFrame) -> np.ndarray:
        return seasons(frame, day=1)

    report = likewise.check(reference, candidate, rows, edge="off", batch_sizes=(), explain_budget=60)
    assert report.outcome == "FAIL", report.headline
    assert (report.diagnoses[0].cause, report.diagnoses[0].culprit) == ("preprocessing-differs", "date")
    assert "day and month" in report.diagnoses[0].evidence


@pytest.mark.parametrize(("told", "bounds"), [("at most 60", (None, 60.0)), ("at least 45", (45.0, None))])
def test_numbers_that_a_service_bounds(told, bounds):
    rows = pd.DataFrame({"price": RANDOM.normal(50, 8, 300).round(1), "size": RANDOM.normal(3, 1, 300)})

    def reference(frame: pd.DataFrame) -> np.ndarray:
        return (0.3 * frame["price"] - frame["size"] ** 2).to_numpy()

    def candidate(frame: pd.DataFrame) -> np.ndarray:
        return reference(frame.assign(price=frame["price"].clip(*bounds)))

    report = likewise.check(reference, candidate, rows, edge="off", batch_sizes=(), explain_budget=60)
    assert (report.diagnoses[0].cause, report.diagnoses[0].culprit) == ("preprocessing-differs", "price")
    assert told in report.diagnoses[0].evidence


def test_inputs_that_are_exchanged_with_a_constant():
    """A mask by which the numbers are replaced that were to be kept."""
    constants = {"w": RANDOM.normal(size=(8, 3)).astype(np.float32), "zero": np.float32(0), "low": np.float32(-7)}

    def made(*chosen: str) -> onnx.ModelProto:
        nodes = [
            sg.node("MatMul", "x w", "product"),
            sg.node("Greater", "product zero", "kept"),
            sg.node("Where", " ".join(["kept", *chosen]), "output"),
        ]
        return sg.graph(nodes, constants, inputs={"x": (8,)}, output=("output", ["n", 3]))

    pair = made("product", "low"), made("low", "product")
    report = likewise.check(*pair, {"x": sg.rows()}, edge="off", batch_sizes=(), explain_budget=60)
    assert report.diagnoses[0].cause == "wrong-wiring"
    assert "Where" in report.diagnoses[0].culprit


def fitted(rows: pd.DataFrame, target: np.ndarray, order: list[str], quantiles: int) -> Pipeline:
    columns = ColumnTransformer(
        [
            ("city", OrdinalEncoder(categories=[order]), ["city"]),
            ("price", QuantileTransformer(n_quantiles=quantiles), ["price"]),
            ("size", FunctionTransformer(np.log1p), ["size"]),
        ]
    )
    return Pipeline([("columns", columns), ("model", Ridge())]).fit(rows, target)


CITIES = ["Dublin", "Amsterdam", "Copenhagen", "Berlin"]
SOLD = pd.DataFrame(
    {
        "city": RANDOM.choice(CITIES, 400),
        "price": RANDOM.gamma(3, 20, 400),
        "size": RANDOM.gamma(2, 2, 400) + 0.01,
    }
)
BOUGHT = SOLD["city"].map(CITIES.index) * 2.0 + np.log(SOLD["price"]) - np.log1p(SOLD["size"])


@pytest.mark.parametrize(
    ("order", "quantiles", "part"),
    [(sorted(CITIES), 100, "columns.city"), (CITIES, 6, "columns.price")],
    ids=["categories", "quantiles"],
)
def test_two_pipelines_of_which_one_has_a_part_fitted_otherwise(order, quantiles, part):
    reference, candidate = fitted(SOLD, BOUGHT, CITIES, 100), fitted(SOLD, BOUGHT, CITIES, 100)
    name = part.rpartition(".")[2]
    other = fitted(SOLD, BOUGHT, order, quantiles)["columns"].named_transformers_[name]
    steps = candidate["columns"].transformers_
    candidate["columns"].transformers_ = [(n, other if n == name else t, c) for n, t, c in steps]
    report = likewise.check(reference, candidate, SOLD, edge="off", batch_sizes=(), explain_budget=60)
    best = report.diagnoses[0]
    assert best.cause == "preprocessing-differs"
    assert best.culprit.startswith(part)
    assert best.explained_share == 1.0


def test_two_pipelines_of_which_one_was_trained_otherwise():
    reference, candidate = fitted(SOLD, BOUGHT, CITIES, 100), fitted(SOLD, BOUGHT, CITIES, 100)
    candidate["model"].coef_ = candidate["model"].coef_ + np.array([0.1, 0.3, -0.2])
    report = likewise.check(reference, candidate, SOLD, edge="off", batch_sizes=(), explain_budget=60)
    assert (report.diagnoses[0].cause, report.diagnoses[0].culprit) == ("stale-weights", "model (coef_)")


def test_a_function_that_is_taken_for_another():
    reference = fitted(SOLD, BOUGHT, CITIES, 100)

    def service(rows: pd.DataFrame) -> np.ndarray:
        return reference.predict(rows.assign(size=np.expm1(np.log(rows["size"]))))

    report = likewise.check(reference, service, SOLD, edge="off", batch_sizes=(), explain_budget=60)
    assert report.diagnoses[0].cause == "preprocessing-differs"
    assert "np.log in the place of np.log1p" in report.diagnoses[0].evidence


BUILT = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(8)
    norm.running_mean, norm.running_var = torch.randn(8), torch.rand(8) + 0.5
    return nn.Sequential(nn.Linear(4, 8), norm, nn.ReLU(), nn.Linear(8, 3))
"""


def test_a_network_that_code_builds_is_known_for_what_it_is(tmp_path):
    (tmp_path / "network.py").write_text(BUILT)
    known: dict[str, object] = {}
    exec(BUILT, known)
    module = known["build"]()
    rows = RANDOM.normal(size=(48, 4)).astype(np.float32)
    module.train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Running the example moves the statistics, so that switching the node to inference does not bring it back.
        mode = torch.onnx.TrainingMode.TRAINING
        options = {"dynamo": False, "input_names": ["x"], "dynamic_axes": {"x": {0: "n"}}, "training": mode}
        torch.onnx.export(module, (torch.tensor(rows),), tmp_path / "training.onnx", **options)
    reference, candidate = f"{tmp_path / 'network.py'}:build", str(tmp_path / "training.onnx")
    report = likewise.check(reference, candidate, {"x": rows}, edge="off", explain_budget=60)
    assert report.diagnoses[0].cause == "training-mode"
    assert "1" in report.diagnoses[0].culprit


class Masked(nn.Module):
    """Sums what a mask says is there; the rest is pushed away by a large number."""

    def __init__(self, away: float) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.away, self.score, self.last = away, nn.Linear(6, 1), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        weights = (self.score(x).squeeze(-1) + (1 - mask) * self.away).softmax(-1)
        return self.last((weights.unsqueeze(-1) * x).sum(1))


def test_a_mask_is_not_a_picture_in_another_range(tmp_path):
    rows = {"x": RANDOM.normal(size=(40, 20, 6)).astype(np.float32)}
    rows["mask"] = (np.arange(20) < RANDOM.integers(5, 20, (40, 1))).astype(np.float32)
    example = tuple(torch.tensor(array[:3]) for array in rows.values())
    dims = {"x": {0: "n"}, "mask": {0: "n"}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, away in (("right", -10_000.0), ("wrong", -1.0)):
            options = {"dynamo": False, "input_names": ["x", "mask"], "dynamic_axes": dims}
            torch.onnx.export(Masked(away).eval(), example, tmp_path / f"{name}.onnx", **options)
    report = likewise.check(str(tmp_path / "right.onnx"), str(tmp_path / "wrong.onnx"), rows, edge="off")
    assert report.diagnoses[0].cause == "operator-attribute"
    assert "Mul" in report.diagnoses[0].culprit


class Turned(nn.Module):
    """Turns pairs of numbers by angles that are worked out when it is built."""

    def __init__(self, base: float) -> None:
        super().__init__()
        torch.manual_seed(3)
        angles = torch.outer(torch.arange(5.0), base ** -torch.arange(0.0, 1.0, 0.25))
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, other = self.first(x).chunk(2, -1)
        return self.last(torch.cat([one * self.cos - other * self.sin, one * self.sin + other * self.cos], -1))


def test_tables_that_no_training_changes_are_not_of_another_training(tmp_path):
    rows = RANDOM.normal(size=(30, 5, 8)).astype(np.float32)
    candidate = tmp_path / "wrong.onnx"
    shapes = {"x": {0: torch.export.Dim("n")}}
    example = (torch.zeros(3, 5, 8),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(Turned(9.0).eval(), example, candidate, dynamo=True, dynamic_shapes=shapes, verbose=False)
    report = likewise.check(Turned(100.0).eval(), str(candidate), {"x": rows}, edge="off", explain_budget=60)
    assert report.diagnoses[0].cause == "weight-corruption"
    assert {"cos", "sin"} <= set(report.diagnoses[0].tensors)


def test_a_scale_that_calibration_found_is_a_matter_of_quantising(tmp_path):
    weights = {name: RANDOM.normal(size=(6, 6)).astype(np.float32) for name in ("w", "v")}
    for name, scale in (("right", 0.05), ("wrong", 0.0125)):
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["a"], "first"),
            helper.make_node("Relu", ["a"], ["b"], "relu"),
            helper.make_node("QuantizeLinear", ["b", "scale", "zero"], ["c"], "rounded"),
            helper.make_node("DequantizeLinear", ["c", "scale", "zero"], ["d"], "back"),
            helper.make_node("MatMul", ["d", "v"], ["y"], "last"),
        ]
        stored = {**weights, "scale": np.array(scale, np.float32), "zero": np.array(0, np.uint8)}
        graph = helper.make_graph(
            nodes,
            "quantised",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 6])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 6])],
            [numpy_helper.from_array(array, key) for key, array in stored.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, tmp_path / f"{name}.onnx")
    rows = {"x": RANDOM.normal(size=(60, 6)).astype(np.float32)}
    report = likewise.check(str(tmp_path / "right.onnx"), str(tmp_path / "wrong.onnx"), rows, edge="off")
    assert report.diagnoses[0].cause == "quantization"
    assert "scale" in report.diagnoses[0].culprit


def test_a_table_of_indices_is_stored_like_weights(tmp_path):
    index = np.subtract.outer(np.arange(5), np.arange(5)) + 4
    biases, weights = RANDOM.normal(size=9).astype(np.float32), RANDOM.normal(size=(5, 3)).astype(np.float32)
    for name, held in (("right", index), ("wrong", index.T.copy())):
        nodes = [
            helper.make_node("Gather", ["biases", "index"], ["b"], "positions"),
            helper.make_node("Add", ["x", "b"], ["a"], "add"),
            helper.make_node("Softmax", ["a"], ["s"], "softmax"),
            helper.make_node("MatMul", ["s", "w"], ["y"], "last"),
        ]
        stored = {"biases": biases, "index": held, "w": weights}
        graph = helper.make_graph(
            nodes,
            "attention",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 5, 5])],
            [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["n", 5, 3])],
            [numpy_helper.from_array(array, key) for key, array in stored.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, tmp_path / f"{name}.onnx")
    rows = {"x": RANDOM.normal(size=(40, 5, 5)).astype(np.float32)}
    report = likewise.check(str(tmp_path / "right.onnx"), str(tmp_path / "wrong.onnx"), rows, edge="off")
    assert report.diagnoses[0].cause == "weight-corruption"
    assert "index" in report.diagnoses[0].culprit + report.diagnoses[0].evidence


class Block(nn.Module):
    """A block that norms what its feed-forward reads, or what it gives."""

    def __init__(self, *, behind: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.up, self.down, self.behind = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8), behind
        self.last = nn.Linear(8, 3)
        nn.init.normal_(self.norm.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = x + self.down(torch.tanh(self.up(x if self.behind else self.norm(x))))
        return self.last(self.norm(given) if self.behind else given)


def test_a_part_that_stands_elsewhere_was_not_dropped(tmp_path):
    reference = captured(Block(behind=False).eval(), torch.zeros(3, 8), tmp_path / "before.pt2")
    candidate = exported(Block(behind=True).eval(), torch.zeros(3, 8), tmp_path / "behind.onnx")
    rows = RANDOM.normal(size=(24, 8)).astype(np.float32)
    report = likewise.check(str(reference), str(candidate), {"x": rows}, edge="off", batch_sizes=(), explain_budget=60)
    best = report.diagnoses[0]
    assert best.cause == "wrong-wiring"
    assert "LayerNormalization" in best.culprit


class Steps(nn.Module):
    """A cell that is gone through again and again, with a gate that lets in what is new or what is old."""

    def __init__(self, *, turned: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.gate, self.cell, self.turned = nn.Linear(6, 6), nn.Linear(6, 6), turned

    def forward(self, x: torch.Tensor, count: int) -> torch.Tensor:
        for _ in range(count):
            open_, new = torch.sigmoid(self.gate(x)), torch.tanh(self.cell(x))
            x = (1 - open_) * new + open_ * x if self.turned else (1 - open_) * x + open_ * new
        return x


class Counted(nn.Module):
    def __init__(self, *, turned: bool) -> None:
        super().__init__()
        self.steps = torch.jit.script(Steps(turned=turned))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.steps(x, x.shape[1] - 2)


def test_what_hangs_together_otherwise_in_a_loop_is_not_missing(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for turned, name in ((False, "reference"), (True, "candidate")):
            module = torch.jit.script(Counted(turned=turned))
            torch.onnx.export(module, (torch.zeros(3, 6),), tmp_path / f"{name}.onnx", dynamo=False)
    assert any(node.op_type == "Loop" for node in onnx.load(tmp_path / "candidate.onnx").graph.node)
    rows = RANDOM.normal(size=(24, 6)).astype(np.float32)[:3]
    files = [str(tmp_path / f"{name}.onnx") for name in ("reference", "candidate")]
    report = likewise.check(*files, rows, edge="off", batch_sizes=(), fixed_batch=True, explain_budget=60)
    best = report.diagnoses[0]
    assert (best.cause, report.outcome) == ("wrong-wiring", "FAIL")
    assert "inside" in best.culprit


class Fields(nn.Module):
    """Fields of a row looked up in one table, each from where its part begins."""

    def __init__(self, starts: list[int]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("starts", torch.tensor(starts))
        self.table, self.last = nn.Embedding(60, 4), nn.Linear(12, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.table(x + self.starts).flatten(1))


def test_whole_numbers_that_are_computed_with_are_stored_like_weights(tmp_path):
    example = torch.zeros(3, 3, dtype=torch.int64)
    files = [
        str(exported(Fields(starts).eval(), example, tmp_path / f"{name}.onnx"))
        for name, starts in (("right", [0, 20, 40]), ("wrong", [0, 19, 39]))
    ]
    report = likewise.check(*files, {"x": RANDOM.integers(1, 20, (30, 3))}, edge="off", batch_sizes=())
    assert report.diagnoses[0].cause == "weight-corruption"


class Gained(nn.Module):
    """A convolution whose weight is made of a direction and a gain when it is exported."""

    def __init__(self, *, gain: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.gain = nn.Conv1d(4, 6, 3), gain
        self.lengths, self.last = nn.Parameter(torch.rand(6, 1, 1) + 0.5), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.conv.weight / self.conv.weight.flatten(1).norm(dim=1)[:, None, None]
        weight = weight * self.lengths if self.gain else weight + 0 * self.lengths
        return self.last(torch.nn.functional.conv1d(x, weight, self.conv.bias).mean(-1))


def test_a_weight_that_is_computed_when_it_is_exported_is_a_weight(tmp_path):
    example = torch.zeros(3, 4, 8)
    path = tmp_path / "plain.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = torch.export.Dim("rows", min=2, max=64)
        program = torch.export.export(Gained(gain=False).eval(), (example,), dynamic_shapes=({0: rows},))
        torch.onnx.export(program, dynamo=True).save(path)
    reference = captured(Gained(gain=True).eval(), example, tmp_path / "gained.pt2")
    data = {"x": RANDOM.normal(size=(30, 4, 8)).astype(np.float32)}
    report = likewise.check(str(reference), str(path), data, edge="off", batch_sizes=(), explain_budget=60)
    best = report.diagnoses[0]
    assert best.cause == "weight-corruption"
    assert "Conv" in best.culprit


def test_what_is_not_finite_does_not_stand_for_missing():
    """Rows without anything in them are divided by their length, of which half precision leaves nothing."""

    def scaled(least):
        least = helper.make_tensor("least", 1, [1], [least])
        nodes = [
            helper.make_node("ReduceL2", ["x", "axes"], ["length"], keepdims=1),
            helper.make_node("Add", ["length", "least"], ["some"]),
            helper.make_node("Div", ["x", "some"], ["y"]),
        ]
        ends = [helper.make_tensor_value_info(name, 1, [None, 3]) for name in ("x", "y")]
        axes = numpy_helper.from_array(np.array([1]), "axes")
        graph = helper.make_graph(nodes, "scaled", ends[:1], ends[1:], [least, axes])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

    rows = RANDOM.normal(size=(60, 3)).astype(np.float32)
    rows[::6] = 0
    report = likewise.check(scaled(1e-8), scaled(0.0), {"x": rows}, edge="off", batch_sizes=())
    assert report.diagnoses[0].cause != "missing-value-handling"
    assert "Div" in report.diagnoses[0].culprit or "least" in report.diagnoses[0].culprit
