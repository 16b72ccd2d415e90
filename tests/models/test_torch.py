"""PyTorch modules answer through likewise as they answer by themselves, and faults of their exports are seen."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import warnings
import zipfile
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd
import pytest
import torch
from nets import (
    ROWS,
    ZOO,
    Classifier,
    Nested,
    Perceptron,
    Shop,
    answers,
    batch,
    by_hand,
    export,
    export_plainly,
    normal,
    opened,
)
from torch import nn

import data_only
import likewise
from likewise.contracts.models import Kind, Model
from likewise.errors import MissingExtraError, ModelError, UntrustedModelError, UsageError
from likewise.models.torch.load import load
from likewise.registry import describe_model
from planting import codes, expect, here, script

CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 2)
    def forward(self, x):
        return self.last(torch.relu(self.first(x)))

def build():
    torch.manual_seed(0)
    return Net().eval()

def build_wide(width: int = 8) -> nn.Module:
    return build()

def fails():
    raise ValueError("no weights here")

def rows():
    return 3

model = build()
"""


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Toy models: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def zoo():
    """Every module with its rows and its export; made when first asked for."""
    made = {}

    def get(name):
        if name not in made:
            torch.manual_seed(3)
            module, arrays = ZOO[name]()
            made[name] = (module.eval(), arrays, export(module, arrays))
        return made[name]

    return get


@pytest.fixture(scope="session")
def program(zoo):
    module, arrays, _ = zoo("perceptron")
    return torch.export.export(
        module, (torch.from_numpy(arrays["x"]),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "nets_of_a_user.py"
    path.write_text(CODE)
    return path


@pytest.fixture
def network(file):
    with opened_by_name(f"{file}:build") as runner:
        return runner.native


def opened_by_name(target, **options):
    from likewise.contracts.models import Model
    from likewise.registry import adapter

    return adapter("python").open(Model("python", str(target), options))


def said(report):
    return " | ".join(f"{f.code}: {f.message}. {f.remedy}" for f in report.verdict.findings)


@pytest.mark.parametrize("name", ZOO)
def test_a_faithful_export_passes_with_the_figures_of_a_plain_script(zoo, name):
    module, arrays, proto = zoo(name)
    report = data_only.check(module, proto, arrays)
    assert report.passed, said(report)
    assert report.max_abs_diff == by_hand(module, proto, arrays)
    assert {size.size for size in report.comparison.batch_sizes} >= {1, 2, 3, 4, 7, 8, 9, 31, 32}
    assert not report.comparison.warnings


def test_outputs_are_paired_by_the_paths_that_lead_to_them(zoo):
    module, arrays, proto = zoo("classifier")
    report = data_only.check(module, proto, arrays)
    found = {o.pair.reference: (o.pair.candidate, o.pair.kind) for o in report.comparison.outputs}
    assert found == {
        "logits": ("logits", Kind.SCORE),
        "probabilities": ("probabilities", Kind.PROBABILITY),
        "label": ("label", Kind.LABEL),
        "hidden.0": ("hidden.0", Kind.VALUE),
        "hidden.1": ("hidden.1", Kind.VALUE),
    }


def test_an_export_of_a_users_own_script_passes_too(zoo):
    module, arrays, _ = zoo("perceptron")
    x = torch.from_numpy(arrays["x"][:2])
    proto = export_plainly(module, x, dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
    assert data_only.check(module, proto, arrays).passed


# Faults


def test_stale_weights_fail(zoo):
    module, arrays, proto = zoo("perceptron")
    trained_on = Perceptron()
    trained_on.load_state_dict(module.state_dict())
    with torch.no_grad():
        trained_on.last.weight[1, 3] += 0.05
    report = data_only.check(trained_on.eval(), proto, arrays)
    assert report.outcome == "FAIL"
    assert report.max_abs_diff == by_hand(trained_on, proto, arrays)


def test_another_activation_fails(zoo):
    module, arrays, proto = zoo("perceptron")
    other = Perceptron(nn.ELU)
    other.load_state_dict(module.state_dict())
    assert data_only.check(other.eval(), proto, arrays).outcome == "FAIL"


def test_dropout_that_was_exported_alive_fails(zoo):
    module, arrays, _ = zoo("perceptron")
    live = Perceptron()
    live.load_state_dict(module.state_dict())
    proto = export_plainly(
        live.train(), torch.from_numpy(arrays["x"][:2]), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)
    )
    assert "Dropout" in {node.op_type for node in proto.graph.node}
    # ONNX Runtime's optimiser happens to remove the node; a runtime that does not shows what the file says.
    report = data_only.check(live, proto, arrays, candidate_options={"optimization": "disable"})
    assert report.outcome == "FAIL"
    assert "was in training mode (Perceptron, first, activation and 2 more)" in said(report)


def test_a_batch_that_was_fixed_at_one_does_not_pass_unnoticed(zoo):
    module, arrays, _ = zoo("perceptron")
    proto = export_plainly(module, torch.from_numpy(arrays["x"][:1]))
    report = data_only.check(module, proto, arrays)
    assert report.outcome == "INCONCLUSIVE"
    assert "only takes batches of 1" in said(report)
    assert data_only.check(module, proto, arrays, fixed_batch=True).passed


def test_a_missing_output_does_not_pass(zoo):
    module, arrays, _ = zoo("classifier")

    class Shortened(nn.Module):
        def __init__(self):
            super().__init__()
            self.whole = module

        def forward(self, x):
            answer = self.whole(x)
            return {name: answer[name] for name in ("probabilities", "label")}

    report = data_only.check(module, export(Shortened().eval(), arrays), arrays)
    assert report.outcome == "INCONCLUSIVE"
    assert "output 'logits' of the reference" in said(report)


def test_swapped_inputs_fail():
    class Difference(nn.Module):
        def forward(self, a, b):
            return a - b

    class Swapped(nn.Module):
        def forward(self, a, b):
            return b - a

    arrays = {"a": normal(ROWS, 3), "b": normal(ROWS, 3) + 1}
    assert data_only.check(Difference(), export(Swapped().eval(), arrays), arrays).outcome == "FAIL"


# Modes


def test_a_module_in_training_mode_is_evaluated_in_eval_mode_and_put_back(zoo):
    module, arrays, proto = zoo("image")
    module.train()
    module.norm.eval()  # frozen on purpose
    before = {name: value.clone() for name, value in module.state_dict().items()}
    try:
        report = data_only.check(module, proto, arrays)
        modes = {name: part.training for name, part in module.named_modules()}
    finally:
        module.eval()
    assert report.passed
    assert modes == {"": True, "conv": True, "norm": False, "head": True}
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    warning = next(f for f in report.verdict.findings if f.code == "runner-warning")
    assert warning.severity == "warning"
    assert "the reference: Image was in training mode" in warning.message
    assert report.origin.reference.details["training_mode"] is True


def test_a_warning_survives_the_file(zoo, tmp_path):
    module, arrays, proto = zoo("image")
    module.train()
    try:
        report = data_only.check(module, proto, arrays, report=str(tmp_path / "report.json"))
    finally:
        module.eval()
    assert likewise.load(tmp_path / "report.json").comparison.warnings == report.comparison.warnings != ()


def test_the_mode_is_put_back_when_the_module_raises():
    class Broken(nn.Module):
        def forward(self, x):
            raise ValueError("no")

    module = Broken().train()
    report = data_only.check(module, module, normal(4, 2))
    assert report.outcome == "INCONCLUSIVE"
    assert "it raised ValueError: no; it was given x float32[4, 2]" in said(report)
    assert module.training


def test_a_module_that_refuses_eval_mode_is_reported():
    class Stubborn(nn.Dropout):
        def train(self, mode=True):
            return super().train(True)

    with opened(nn.Sequential(Stubborn(), nn.Linear(2, 2))) as runner:
        assert "0 of Sequential stays in training mode" in runner.details["warnings"][1]


def test_no_gradient_is_kept():
    seen = []

    class Watcher(nn.Linear):
        def forward(self, input):
            seen.append((torch.is_inference_mode_enabled(), self.training))
            return super().forward(input)

    answers(Watcher(2, 2), input=normal(4, 2))
    assert set(seen) == {(True, False)}


# Inputs


def test_fractions_take_the_type_of_the_weights_and_losses_are_counted(zoo):
    module, arrays, proto = zoo("perceptron")
    report = data_only.check(module, proto, {"x": rng_double()})
    assert report.passed
    casts = {cast.side: (cast.source_dtype, cast.target_dtype, cast.changed) for cast in report.comparison.casts}
    assert casts["reference"] == casts["candidate"] == ("float64", "float32", ROWS * 4)
    wider = data_only.check(zoo("double")[0], zoo("double")[2], arrays)
    assert wider.passed
    assert {cast.target_dtype for cast in wider.comparison.casts} == {"float64"}


def rng_double():
    return np.random.default_rng(7).normal(size=(ROWS, 4))


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_indices_stay_whole_numbers(dtype):
    module = Shop()
    found = answers(module, items=np.ones((3, 5), dtype), x=normal(3, 3))["output"]
    assert found.shape == (3, 2)
    with opened(module) as runner:
        assert [(spec.name, spec.dtype, spec.floating, spec.optional) for spec in runner.signature.inputs] == [
            ("items", "float32", True, False),
            ("x", "float32", True, False),
            ("mask", "float32", True, True),
        ]


def test_whole_numbers_become_fractions_where_they_cannot_be_indices(zoo):
    module, _, proto = zoo("perceptron")
    table = pd.DataFrame(np.arange(80).reshape(20, 4), columns=list("abcd"))
    report = data_only.check(module, proto, table)
    assert report.passed, said(report)
    assert "side by side, in the data's order: 'a', 'b', 'c', 'd'" in said(report)


def test_a_type_can_be_asked_for():
    class Width(nn.Module):
        def forward(self, x):
            return torch.full(x.shape[:1], x.element_size())

    module = Width()
    data = np.ones((4, 2), np.float16)
    for dtype, size in {"float32": 4, "float64": 8, "int8": 1, "data": 2, "bfloat16": 2}.items():
        report = data_only.check(
            module, lambda array, size=size: np.full(4, size), data, reference_options={"dtype": dtype}, batch_sizes=()
        )
        assert report.passed, (dtype, said(report))
    with pytest.raises(UsageError, match="dtype"), opened(module, dtype="flot32"):
        pass


def test_optional_inputs_are_left_out_or_fed(zoo):
    module, arrays, proto = zoo("shop")
    assert data_only.check(module, proto, arrays).passed
    mask = np.random.default_rng(0).random((ROWS, 5)) > 0.5
    with torch.no_grad():
        expected = module(*map(torch.from_numpy, arrays.values()), mask=torch.from_numpy(mask)).numpy()
    assert np.array_equal(answers(module, **arrays, mask=mask)["output"], expected)
    masked = export(module, {**arrays, "mask": mask})
    assert [value.name for value in masked.graph.input] == ["items", "x", "mask"]
    assert data_only.check(module, masked, {**arrays, "mask": mask}).passed
    assert data_only.check(module, proto, {**arrays, "mask": mask}).outcome == "FAIL"


def test_inputs_are_found_by_name_whatever_their_order(zoo):
    module, arrays, proto = zoo("shop")
    assert data_only.check(module, proto, dict(reversed(arrays.items()))).passed


def test_inputs_can_be_mapped(zoo):
    module, arrays, proto = zoo("shop")
    renamed = {"basket": arrays["items"], "x": arrays["x"]}
    assert data_only.check(module, proto, renamed, feed={"items": "basket"}).passed
    assert "--feed items=COLUMN" in said(data_only.check(module, proto, renamed))


def test_arrays_without_names_are_taken_in_order(zoo, tmp_path):
    module, arrays, proto = zoo("shop")
    np.savez(tmp_path / "rows.npz", *arrays.values())
    report = data_only.check(module, proto, tmp_path / "rows.npz")
    assert report.passed, said(report)
    assert "arrays without names are taken in order as 'items', 'x'" in said(report)


@pytest.mark.parametrize("kind", ["positional", "keyword", "any"])
def test_every_way_to_declare_an_input(kind):
    class Positional(nn.Module):
        def forward(self, x, /):
            return x * 2

    class Keyword(nn.Module):
        def forward(self, *, x):
            return x * 2

    class Whatever(nn.Module):
        def forward(self, *args, **kwargs):
            return args[0] * 2

    module = {"positional": Positional, "keyword": Keyword, "any": Whatever}[kind]()
    x = normal(3, 2)
    assert np.array_equal(answers(module, x=x)["output"], x * 2)


def test_columns_that_do_not_fit_are_shown(zoo):
    module, _, proto = zoo("perceptron")
    report = data_only.check(module, proto, pd.DataFrame(normal(20, 5), columns=list("abcde")))
    assert report.outcome == "INCONCLUSIVE"
    assert "5 columns: 'a', 'b', 'c', 'd', 'e'" in said(report)
    report = data_only.check(module, module, pd.DataFrame(normal(20, 5), columns=list("abcde")))
    assert report.outcome == "INCONCLUSIVE"
    assert "shapes cannot be multiplied (20x5 and 4x16); it was given x float32[20, 5]" in said(report)
    assert "--drop" in said(report)
    report = data_only.check(module, module, pd.DataFrame({"a": ["text"] * 4}))
    assert "column 'a' cannot be fed to the reference" in said(report)


def test_what_a_module_writes_into_its_input_reaches_nobody(zoo):
    class Scribbler(nn.Module):
        def forward(self, x):
            return x.mul_(2)

    x = normal(10, 3)
    before = x.copy()
    assert data_only.check(Scribbler(), lambda array: array * 2, x, preset="exact").passed
    assert np.array_equal(x, before)


# Types and shapes of answers


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_respected(dtype):
    torch.manual_seed(0)
    module = nn.Linear(4, 2).eval().to(dtype)
    x = normal(8, 4)
    with torch.no_grad():
        expected = module(torch.from_numpy(x).to(dtype)).float().numpy()
    report = data_only.check(module, lambda array: expected[: len(array)], {"input": x}, abs_tol=0, batch_sizes=())
    assert report.passed, said(report)
    (cast,) = report.comparison.casts
    assert cast.target_dtype == str(dtype).removeprefix("torch.")
    assert cast.changed == int((torch.from_numpy(x).to(dtype).float().numpy() != x).sum()) > 0


def test_tensors_of_bfloat16_are_data():
    x = torch.arange(6.0).reshape(3, 2).bfloat16()
    report = data_only.check(Nested("tensor"), lambda array: array, {"x": x})
    assert report.passed, said(report)


def test_booleans_stay_booleans():
    class Mask(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(2, 1)

        def forward(self, x, keep):
            return torch.where(keep, x, 0 * x), keep

    found = answers(Mask(), x=normal(4, 2), keep=np.array([[True, False]] * 4))
    assert found["output.1"].dtype == bool


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ("tensor", ["output"]),
        ("tuple", ["output.0", "output.1.0"]),
        ("dataclass", ["value", "parts.0", "parts.1"]),
        ("namedtuple", ["score", "extra.more"]),
        ("output", ["logits", "hidden.0", "hidden.1"]),
    ],
)
def test_nested_answers_have_stable_names(form, names):
    assert list(answers(Nested(form), x=normal(4, 2))) == names


@pytest.mark.parametrize(("form", "message"), [("twice", "'a.b' twice"), ("nothing", "nothing")])
def test_answers_that_cannot_be_compared_are_refused(form, message):
    with pytest.raises(ModelError, match=message):
        answers(Nested(form), x=normal(4, 2))


def test_what_is_no_tensor_is_refused_unless_it_is_left_out():
    """Language models answer with a cache beside their logits, of which an export knows nothing."""

    class Cached(torch.nn.Module):
        def __init__(self, cache):
            super().__init__()
            self.cache = cache

        def forward(self, x):
            return {"logits": 2 * x, "cache": self.cache}

    arrays = {"x": normal(40, 2)}
    for cache in (object(), "text", torch.device("cpu")):
        report = data_only.check(Cached(cache).eval(), lambda x: {"logits": 2 * x}, arrays)
        expect(report, "INCONCLUSIVE", f"'cache' holds objects of type {type(cache).__name__}", "--ignore cache")
        for factor, outcome in ((2, "PASS"), (2.1, "FAIL")):
            candidate = partial(lambda x, factor: {"logits": factor * x}, factor=factor)
            expect(data_only.check(Cached(cache).eval(), candidate, arrays, ignore=["cache"]), outcome)


def test_a_number_for_a_whole_call_beside_answers_for_rows_is_compared_call_by_call():
    assert answers(Nested("scalar"), x=normal(4, 2))["temperature"] == 0.5
    arrays = {"x": normal(40, 2)}
    reference = Nested("scalar")
    report = data_only.check(reference, Nested("scalar"), arrays)
    expect(report, "PASS", "40 rows agree")
    assert next(output for output in report.comparison.outputs if output.name == "temperature").pair.per_call
    assert "constant-output" not in codes(report, "warning")

    class Other(nn.Module):
        def __init__(self, temperature):
            super().__init__()
            self.temperature = temperature

        def forward(self, x):
            given = reference(x)
            return {**given, "temperature": self.temperature(given["temperature"], x)}

    colder = Other(lambda known, x: known - 0.01).eval()
    expect(data_only.check(reference, colder, arrays), "FAIL", "all 40 rows differ")
    for_rows = Other(lambda known, x: torch.full((len(x),), known)).eval()
    expect(data_only.check(reference, for_rows, arrays), "INCONCLUSIVE", "a single number", "temperature:none")
    expect(data_only.check(for_rows, reference, arrays), "FAIL", "the candidate", "a single number")


def test_a_loss_beside_answers_for_rows_does_not_cost_the_rows():
    """One call for all rows would not show what happens to a row alone."""

    class Trained(nn.Module):
        def __init__(self, alone):
            super().__init__()
            self.alone = alone

        def forward(self, x):
            return x + self.alone * (len(x) == 1), x.mean()

    arrays = {"x": normal(40, 2)}
    reference, candidate = Trained(0).eval(), Trained(1).eval()
    for options in ({}, {"batch_axis": "output.1:none"}, {"ignore": ["output.1"]}):
        expect(data_only.check(reference, candidate, arrays, **options), "FAIL", "at batch size 1: all 16 rows differ")
        expect(data_only.check(reference, Trained(0).eval(), arrays, **options), "PASS", "40 rows agree")
    assert "reference-batch" not in codes(data_only.check(reference, Trained(0).eval(), arrays), "warning")


@pytest.mark.parametrize("name", ["perceptron", "lstm", "image"])
def test_no_rows_get_no_answers(zoo, name):
    module, arrays, _ = zoo(name)
    with opened(module) as runner:
        full = runner.run(batch(**{n: a[:3] for n, a in arrays.items()}))
        empty = runner.run(batch(**{n: a[:0] for n, a in arrays.items()}))
    assert {n: (0, *a.shape[1:]) for n, a in full.items()} == {n: a.shape for n, a in empty.items()}


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_rows_of_hidden_states_are_found_also_where_sizes_coincide(rows):
    module = nn.LSTM(3, 2, num_layers=2, batch_first=True).eval()
    x = normal(rows, rows, 3)
    with torch.no_grad():
        out, (hidden, _) = module(torch.from_numpy(x))
    found = answers(module, input=x)
    assert np.array_equal(found["output.0"], out.numpy())
    assert np.array_equal(found["output.1.0"], hidden.numpy().swapaxes(0, 1))


@pytest.mark.parametrize("axis", [1, "1", "input:1", {"input": 1}])
def test_a_model_that_has_its_rows_along_another_axis(axis):
    torch.manual_seed(0)
    module = nn.GRU(3, 4).eval()
    x = normal(ROWS, 6, 3)
    with torch.no_grad():
        expected = module(torch.from_numpy(x.swapaxes(0, 1).copy()))[0].numpy().swapaxes(0, 1)
    found = answers(module, {"batch_axis": axis}, input=x)
    assert np.allclose(found["output.0"], expected, atol=1e-6)
    assert found["output.1"].shape == (ROWS, 1, 4)


@pytest.fixture(scope="module")
def time_first():
    """A model of (time, batch, feature), rows to ask it, and its export."""
    torch.manual_seed(0)
    module = nn.GRU(3, 4).eval()
    arrays = {"input": normal(ROWS, 6, 3)}
    return module, arrays, export(module, arrays, batch_axis=1)


@pytest.fixture(scope="module")
def time_first_elsewhere(time_first):
    """The same from another exporter, whose names say nothing."""
    module, arrays, proto = time_first
    proto = type(proto).FromString(proto.SerializeToString())
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[1].dim_param = "s1"
    return module, arrays, proto


def test_the_export_of_such_a_model_is_understood_by_its_axis_called_batch(time_first):
    module, arrays, proto = time_first
    report = data_only.check(module, proto, arrays, reference_options={"batch_axis": 1})
    assert report.passed, said(report)


@pytest.mark.parametrize("axis", [1, "1", {"input": 1, "output.0": 1, "output.1": 1}])
def test_the_axis_is_said_once_for_both_models(time_first_elsewhere, axis):
    module, arrays, proto = time_first_elsewhere
    report = data_only.check(module, proto, arrays, batch_axis=axis)
    assert report.passed, said(report)
    assert report.samples == ROWS
    assert report.origin.settings["batch_axis"] == axis
    assert not data_only.check(module, proto, arrays).passed
    # What is said of one model wins over what is said of both.
    both = {"reference_options": {"batch_axis": 1}, "candidate_options": {"batch_axis": "1"}}
    assert data_only.check(module, proto, arrays, batch_axis=0, **both).passed
    assert not data_only.check(module, proto, arrays, batch_axis=axis, candidate_options={"batch_axis": 0}).passed


class RowsFirst(nn.Module):
    """The same with its rows first."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, input):
        found, state = self.layer(input.transpose(0, 1))
        return found.transpose(0, 1), state


def test_where_a_file_has_its_rows_and_nobody_says_where_a_module_has_them(time_first):
    module, arrays, proto = time_first
    report = data_only.check(module, proto, arrays)
    assert report.outcome == "INCONCLUSIVE", said(report)
    assert "--batch-axis input:1 " in report.verdict.findings[0].remedy
    without = data_only.check(module, proto, arrays, ignore=("output.1",))
    assert without.verdict.headline.startswith("the candidate has the rows of 'input' along axis 1, and nothing says")
    assert "--batch-axis input:1 " in without.verdict.findings[0].remedy
    assert data_only.check(module, proto, arrays, batch_axis="input:1").passed
    assert data_only.check(nn.GRU(3, 4).eval(), proto, arrays, batch_axis="input:1").outcome == "FAIL"
    # Where they do lie first, equal answers show it; else it has to be said.
    assert data_only.check(RowsFirst(module).eval(), proto, arrays).passed
    other = RowsFirst(nn.GRU(3, 4)).eval()
    assert data_only.check(other, proto, arrays).outcome == "INCONCLUSIVE"
    assert data_only.check(other, proto, arrays, reference_options={"batch_axis": 0}).outcome == "FAIL"


def test_a_module_that_refuses_rows_first_is_told_where_the_file_has_them():
    module = nn.GRU(3, 4, batch_first=True).eval()
    arrays = {"input": normal(ROWS, 6, 3), "hx": normal(ROWS, 1, 4)}
    proto = export(module, arrays, batch_axis="hx:1")
    refused = data_only.check(module, proto, arrays)
    assert refused.outcome == "INCONCLUSIVE"
    assert "--batch-axis hx:1 " in refused.verdict.findings[0].remedy
    assert data_only.check(module, proto, arrays, batch_axis="hx:1").passed


def test_a_side_without_tensors_has_no_use_for_the_axis(time_first_elsewhere, tmp_path):
    module, arrays, proto = time_first_elsewhere
    np.savez(tmp_path / "rows.npz", **arrays)
    likewise.record(module, tmp_path / "rows.npz", tmp_path / "golden.parquet", options={"batch_axis": 1})
    report = data_only.check(tmp_path / "golden.parquet", proto, tmp_path / "rows.npz", batch_axis=1)
    assert report.passed, said(report)


@pytest.mark.parametrize("said_once", [{"batch_axis": 1}, {"reference_options": {"batch_axis": "input:1"}}])
def test_an_export_takes_the_axis_once(time_first, tmp_path, said_once):
    module, arrays, _ = time_first
    exported = data_only.export(module, arrays, tmp_path / "gru.onnx", **said_once)
    assert exported.report.passed, said(exported.report)
    assert exported.features[0]["shape"] == [6, "batch", 3]


def test_the_command_line_exports_with_the_axis(time_first, tmp_path):
    (tmp_path / "gru_of_a_user.py").write_text("import torch\nmodel = torch.nn.GRU(3, 4).eval()\n")
    np.savez(tmp_path / "rows.npz", **time_first[1])
    words = [
        "export", f"{tmp_path / 'gru_of_a_user.py'}:model", "--data", str(tmp_path / "rows.npz"),
        "-o", str(tmp_path / "gru.onnx"), "--batch-axis", "1", "--no-check",
    ]  # fmt: skip
    here(*words, folder=tmp_path).expect(0)
    assert likewise.inspect(tmp_path / "gru.onnx")["inputs"][0]["shape"] == ("batch", 6, 3)


@pytest.mark.parametrize("axis", ["one", -1, "x:", {"x": "rows"}, [1]])
def test_an_axis_that_is_none_is_a_usage_error(axis):
    with pytest.raises(UsageError, match="batch_axis"), opened(nn.GRU(3, 4), batch_axis=axis):
        pass
    with pytest.raises(UsageError, match="batch_axis"):
        data_only.check(len, len, normal(4, 2), batch_axis=axis)


# Files


def test_an_exported_program_is_a_reference(zoo, program, tmp_path):
    module, arrays, proto = zoo("perceptron")
    torch.export.save(program, tmp_path / "model.pt2")
    report = data_only.check(tmp_path / "model.pt2", proto, arrays)
    assert report.passed, said(report)
    assert report.max_abs_diff == by_hand(module, proto, arrays)
    assert report.origin.reference.details["form"] == "torch.export"
    assert data_only.check(program, proto, arrays).passed
    assert data_only.check(program.module(), proto, arrays).passed
    with opened(program) as runner:
        (spec,) = runner.signature.inputs
        assert (spec.name, spec.dtype, spec.shape) == ("x", "float32", (None, 4))


@pytest.mark.parametrize("name", ZOO)
def test_programs_of_every_kind_are_opened(zoo, tmp_path, name):
    module, arrays, _ = zoo(name)
    rows = {name: {0: torch.export.Dim("batch")} for name in arrays}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's own LSTM keeps tensors where capturing warns of them
        captured = torch.export.export(module, tuple(map(torch.from_numpy, arrays.values())), dynamic_shapes=rows)
    torch.export.save(captured, tmp_path / "model.pt2")
    report = data_only.check(tmp_path / "model.pt2", module, arrays)
    assert report.passed, said(report)


def test_a_program_captured_by_name_is_asked_by_name(zoo):
    module, arrays, _ = zoo("shop")
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    batch_axis = {0: torch.export.Dim("batch")}
    captured = torch.export.export(
        module, (tensors["items"],), {"x": tensors["x"]}, dynamic_shapes=dict.fromkeys(tensors, batch_axis)
    )
    assert np.array_equal(answers(captured, **arrays)["output"], answers(module, **arrays)["output"])


def test_a_program_that_was_captured_alive_is_reported(zoo):
    module = Perceptron().train()
    captured = torch.export.export(module, (torch.zeros(3, 4),))
    with opened(captured) as runner:
        assert runner.signature.batch == 3
        assert "was captured in training mode: dropout" in runner.details["warnings"][0]


@pytest.mark.parametrize("suffix", ["pt", "jit", "ts"])
def test_torchscript_is_a_reference(zoo, tmp_path, suffix):
    module, arrays, proto = zoo("perceptron")
    path = tmp_path / f"model.{suffix}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # such files are still deployed
        torch.jit.script(module).save(path)
    report = data_only.check(path, proto, arrays)
    assert report.passed, said(report)
    assert report.origin.reference.details["form"] == "TorchScript"
    assert report.max_abs_diff == by_hand(module, proto, arrays)


class Shifted(nn.Module):
    """Answers its input plus a number that is made while it answers, or was made while it was loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 1.0

    @torch.jit.export
    def __getstate__(self) -> tuple[float, bool]:
        return self.number, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[float, bool]):
        self.number = float(torch.ones([4]).sum())
        self.training = state[1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.ones([4]).sum() + self.number


def written_torchscript(folder, place, code):
    """A TorchScript archive in whose source the numbers of one method are made in another way."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(Shifted()).save(folder / "good.pt")
    name = "code/__torch__/test_torch.py"
    with zipfile.ZipFile(folder / "good.pt") as archive:
        source = archive.read(f"good/{name}").decode()
    start = source.index(f"def {place}")
    ones = re.search(r"torch\.ones\(\[4\][^)]*\)", source[start:])
    source = source[:start] + source[start:].replace(ones[0], code, 1)
    return tampered(folder / "good.pt", folder / "evil.pt", name, source)


@pytest.mark.parametrize("place", ["forward", "__setstate__"])
def test_torchscript_does_not_write_files(tmp_path, place):
    victim = tmp_path / "written"
    path = written_torchscript(tmp_path, place, f'torch.from_file("{victim}", True, 4)')
    with pytest.raises(UntrustedModelError, match=r"evil\.pt.*none of it was run: aten::from_file"), opened(path):
        pass
    assert not victim.exists()
    with opened(tmp_path / "good.pt") as runner:
        assert runner.run(batch(x=np.zeros((2, 3), np.float32)))
    with opened(path, trusted=["*"]) as runner:  # the attack itself
        runner.run(batch(x=np.zeros((2, 3), np.float32)))
    assert victim.exists()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ('ops.aten.save(1, "x")', "aten::save"),
        ('x.save("x")', "aten::save"),
        ("ops.c10d.barrier(x)", "operators of c10d"),
        ("ops.inductor._alloc_from_pool(x)", "operators of inductor"),
        ("torch._reshape_alias(x, [9], [9])", "aten::_reshape_alias"),
        ("torch.sparse_coo_tensor(torch.full([1, 1], 9, dtype=4), x, [1])", "aten::sparse_coo_tensor"),
        ('torch.segment_reduce(x, "sum", lengths=x, unsafe=True)', "aten::segment_reduce"),
        ("torch._convert_indices_from_csr_to_coo(x, x)", "aten::_convert_indices_from_csr_to_coo"),
        ('getattr(torch, "from_" "file")("x", True, 4)', "aten::from_file"),
        ("torch.fill_(torch._indices(torch.to_sparse(x)), 99999999)", "aten::_indices"),
        ("torch.fill_(torch.to_sparse_csr(x).crow_indices(), 99999999)", "aten::crow_indices"),
        ('getattr(torch.to_sparse_csr(x), "col_indices")()', "aten::col_indices"),
        ("annotate(__torch__.torch.classes.dist_c10d.Store, x)", "classes.dist_c10d.Store"),
    ],
)
def test_torchscript_uses_nothing_but_mathematics(tmp_path, code, said):
    path = written_torchscript(tmp_path, "forward", code)
    with pytest.raises(UntrustedModelError, match=re.escape(said)), opened(path):
        pass


class Sparse(nn.Module):
    """Computes with sparse tensors, and has values, keys and an attribute that are called like their parts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("row_indices", torch.tensor([0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, indices = torch.topk(x, 2)
        parts = {"indices": indices[self.row_indices], "values": values}
        for part in parts.values():
            x = x + part.sum()
        return torch.mm(x.to_sparse(), torch.ones(3, 3))


@pytest.mark.parametrize(
    ("old", "new"),
    [(rb"\(K\nt\(K\x01t", b"(K\1t(K\1t"), (rb"RtRK\x00t", b"RtRK\1t")],
    ids=["one scale for ten rows", "scales of another axis"],
)
def test_quantized_torchscript_has_a_scale_for_each_channel(tmp_path, old, new):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(torch.ao.nn.quantized.Embedding(10, 4)).save(tmp_path / "good.pt")
    with opened(tmp_path / "good.pt") as runner:
        assert runner.run(batch(indices=np.zeros((2, 3), np.int64)))
    with zipfile.ZipFile(tmp_path / "good.pt") as archive:
        content, count = re.subn(old, new, archive.read("good/data.pkl"), flags=re.DOTALL)
    assert count
    bad = tampered(tmp_path / "good.pt", tmp_path / "bad.pt", "data.pkl", content)
    with pytest.raises(ModelError, match="other scales than channels"), opened(bad):
        pass


def test_torchscript_may_compute_with_sparse_tensors(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(Sparse()).save(tmp_path / "good.pt")
    with opened(tmp_path / "good.pt") as runner:
        assert runner.run(batch(x=np.ones((2, 3), np.float32)))


def test_torchscript_is_read_as_torch_reads_it(tmp_path):
    """What torch takes for another format by its first bytes is not judged by the archive at its end."""
    good = written_torchscript(tmp_path, "forward", "torch.ones([4])").read_bytes()
    (tmp_path / "both.pt").write_bytes(b"\x18\0\0\0PTMF" + good)
    with pytest.raises(ModelError, match=r"both\.pt cannot be loaded as TorchScript"), opened(tmp_path / "both.pt"):
        pass


@pytest.mark.parametrize("factory", ["build", "Net", "model", "build_wide"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_weights_with_a_factory_are_a_reference(file, network, tmp_path, factory, wrapped):
    with torch.no_grad():
        network.last.bias += 1  # trained since it was built
    weights = network.state_dict()
    torch.save({"epoch": 3, "state_dict": weights} if wrapped else weights, tmp_path / "weights.pt")
    x = normal(ROWS, 4)
    with torch.no_grad():
        expected = network(torch.from_numpy(x)).numpy()
    found = answers(tmp_path / "weights.pt", {"factory": f"{file}:{factory}"}, x=x)
    assert np.array_equal(found["output"], expected)


def test_a_live_factory_is_named_in_the_report(network, tmp_path):
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    options = {"reference_options": {"factory": type(network)}, "report": str(tmp_path / "report.json")}
    assert data_only.check(tmp_path / "weights.pt", network, normal(9, 4), **options).passed
    assert json.loads((tmp_path / "report.json").read_text())["provenance"]["settings"]["reference_options"] == {
        "factory": "Net"
    }


def test_two_sets_of_weights_do_not_share_one_module(file, network, tmp_path):
    torch.save(network.state_dict(), tmp_path / "old.pt")
    with torch.no_grad():
        network.last.bias += 1
    torch.save(network.state_dict(), tmp_path / "new.pt")
    options = {"factory": f"{file}:model"}
    report = data_only.check(
        tmp_path / "old.pt", tmp_path / "new.pt", normal(9, 4), reference_options=options, candidate_options=options
    )
    assert report.outcome == "FAIL"
    assert report.max_abs_diff == pytest.approx(1, abs=1e-6)


def test_weights_that_do_not_fit_or_have_no_factory_are_refused(file, tmp_path):
    torch.save(Classifier().state_dict(), tmp_path / "other.pt")
    with (
        pytest.raises(ModelError, match=r"do not fit what .*:build builds"),
        opened(tmp_path / "other.pt", factory=f"{file}:build"),
    ):
        pass
    with pytest.raises(ModelError, match=r"'first\.weight'.*factory=file\.py:build"), opened(tmp_path / "other.pt"):
        pass
    with pytest.raises(ModelError, match="no weights here"), opened(tmp_path / "other.pt", factory=f"{file}:fails"):
        pass
    torch.save({"optimizer": {"lr": 0.1}}, tmp_path / "half.pt")
    with (
        pytest.raises(ModelError, match="entries called 'optimizer'"),
        opened(tmp_path / "half.pt", factory=f"{file}:build"),
    ):
        pass


@pytest.mark.parametrize("attribute", ["model", "build", "build_wide"])
def test_a_file_names_a_module_or_what_builds_it(file, network, attribute):
    target = f"{file}:{attribute}"
    assert describe_model(target).framework == "python"
    report = data_only.check(target, network, normal(ROWS, 4), preset="exact")
    assert report.passed, said(report)


@pytest.mark.parametrize(("attribute", "message"), [("fails", "it raised ValueError"), ("rows", "returned int")])
def test_a_factory_that_makes_no_model_is_refused(file, attribute, message):
    with pytest.raises(ModelError, match=message), opened_by_name(f"{file}:{attribute}"):
        pass


def test_a_callable_with_a_required_parameter_is_a_factory_on_request(file):
    with pytest.raises(ModelError, match="made no model"), opened_by_name(f"{file}:Net.forward", factory="true"):
        pass


# Files that could run code


class Canary:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickled_module_is_refused_with_what_it_refers_to(tmp_path, zipped):
    module = nn.Sequential(Perceptron())
    module.canary = Canary(tmp_path / "ran")
    torch.save(module, tmp_path / "model.pt", _use_new_zipfile_serialization=zipped)
    with pytest.raises(UntrustedModelError, match=r"none of it was run") as caught, opened(tmp_path / "model.pt"):
        pass
    assert "state_dict" in caught.value.remedy
    if zipped:
        assert "nets.Perceptron" in caught.value.message
        assert "pathlib" in caught.value.message
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("trusted", [("torch.nn.*", "nets.*"), ("*",)])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_pickled_module_answers_where_its_code_is_trusted(tmp_path, trusted, wrapped):
    module = nn.Sequential(Perceptron(), nn.GELU()).eval()
    torch.save({"epoch": 3, "model": module} if wrapped else module, tmp_path / "model.pt")
    rows = normal(7, 4)
    with opened(tmp_path / "model.pt", trusted=trusted) as runner:
        assert runner.details["form"] == "pickled module"
        with torch.inference_mode():
            expected = module(torch.from_numpy(rows)).numpy()
        np.testing.assert_array_equal(runner.run(batch(input=rows))["output"], expected)


def test_trust_in_some_code_is_no_trust_in_what_it_borrows(tmp_path):
    module = nn.Sequential(Perceptron())
    module.canary = Canary(tmp_path / "ran")
    torch.save(module, tmp_path / "model.pt")
    for trusted, named in ((("torch.nn.*", "nets.*"), "pathlib"), (("torch.nn.*", "pathlib*"), "nets.Perceptron")):
        with pytest.raises(UntrustedModelError, match=named), opened(tmp_path / "model.pt", trusted=trusted):
            pass
    torch.save(module[0], tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    trusted = ("torch.nn.*", "nets.*")
    with pytest.raises(ModelError, match="allow everything"), opened(tmp_path / "old.pt", trusted=trusted):
        pass
    assert not (tmp_path / "ran").exists()


def tampered(source, target, member, content):
    """The archive with one member replaced."""
    with zipfile.ZipFile(source) as before, zipfile.ZipFile(target, "w") as after:
        for name in before.namelist():
            after.writestr(name, content if name.endswith(member) else before.read(name))
    return target


def test_a_program_with_a_pickle_that_runs_is_refused(program, tmp_path):
    torch.export.save(program, tmp_path / "model.pt2")
    torch.save((Canary(tmp_path / "ran"),), tmp_path / "sample.pt")
    bad = tampered(
        tmp_path / "model.pt2", tmp_path / "bad.pt2", "sample_inputs/model.pt", (tmp_path / "sample.pt").read_bytes()
    )
    with pytest.raises(UntrustedModelError, match="none of it was run: getattr"), opened(bad):
        pass
    config = {"config": {"c": {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": True}}}
    bad = tampered(tmp_path / "model.pt2", tmp_path / "bad.pt2", "constants_config.json", json.dumps(config))
    with pytest.raises(UntrustedModelError, match="opaque_obj_0"), opened(bad):
        pass
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("torch.ops.aten.relu.default", "torch.os.system"),
        ("torch.ops.aten.relu.default", "torch.ops.aten.from_file.default"),
        ("Symbol('s77', positive=True, integer=True)", "__import__('os').system('true')"),
        ("Symbol('s77', positive=True, integer=True)", "().__class__.__mro__"),
        ("Symbol('s77', positive=True, integer=True)", "S('os.system')"),
        ("Symbol('s77', positive=True, integer=True)", "Lambda(Symbol('x'), Symbol('x'))"),
        ('guards_code": [', 'guards_code": ["print(1)"'),
        ('"name": "x', '"name": "x=print(1)'),
    ],
)
def test_a_program_that_hides_code_in_its_graph_is_refused(program, tmp_path, old, new):
    torch.export.save(program, tmp_path / "model.pt2")
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        name = next(name for name in archive.namelist() if name.endswith("models/model.json"))
        graph = archive.read(name).decode()
    symbol = next(part for part in graph.split('"') if part.startswith("Symbol("))
    old = symbol if old.startswith("Symbol") else old
    assert old in graph
    bad = tampered(tmp_path / "model.pt2", tmp_path / "bad.pt2", "models/model.json", graph.replace(old, new))
    with pytest.raises(UntrustedModelError, match=re.escape(new.strip('"').rpartition('"')[2])), opened(bad):
        pass


def calling(target, *arguments):
    """A node of a program that calls one of torch's operators of the higher order."""
    inputs = [{"name": "", "arg": argument, "kind": 1} for argument in arguments]
    told = {"outputs": [{"as_tensor": {"name": "more"}}], "metadata": {}, "is_hop_single_tensor_return": True}
    return {"target": f"torch.ops.higher_order.{target}", "inputs": inputs, "name": "more", **told}


def with_node(program, folder, node):
    """The program with one node more, whose answer nobody asks for."""
    torch.export.save(program, folder / "model.pt2")
    with zipfile.ZipFile(folder / "model.pt2") as archive:
        model = json.loads(archive.read("model/models/model.json"))
    graph = model["graph_module"]["graph"]
    graph["nodes"].append(node)
    graph["tensor_values"]["more"] = next(iter(graph["tensor_values"].values()))
    return tampered(folder / "model.pt2", folder / "bad.pt2", "models/model.json", json.dumps(model))


def test_a_program_hands_no_operator_on_to_be_called(zoo, program, tmp_path):
    victim = tmp_path / "written"
    by_another = {"as_operator": "torch.ops.aten.from_file.default"}, {"as_string": str(victim)}, {"as_bool": True}
    bad = with_node(
        program, tmp_path, calling("wrap_with_set_grad_enabled", {"as_bool": True}, *by_another, {"as_int": 4})
    )
    with pytest.raises(UntrustedModelError, match=r"as_operator 'torch\.ops\.aten\.from_file"), opened(bad):
        pass
    assert not victim.exists()
    with opened(bad, trusted=["*"]) as runner:  # the attack itself
        runner.run(batch(**zoo("perceptron")[1]))
    assert victim.exists()


def test_a_program_prints_nothing_of_the_process(program, tmp_path):
    """The text that `print` fills in leads from a tensor to the environment."""
    text = {"as_string": "{0.split.__globals__[torch].os.environ}"}
    bad = with_node(program, tmp_path, calling("print", text, {"as_tensor": {"name": "x"}}))
    with pytest.raises(UntrustedModelError, match=r"higher_order\.print"), opened(bad):
        pass


@pytest.mark.parametrize(
    "context",
    [
        {"default_factory_module": "antigravity", "default_factory_name": "x", "dict_context": []},
        json.dumps({"__enum__": True, "fqn": "antigravity", "name": "x"}),
        json.dumps([{"metadata": {"__enum__": "x", "fqn": "antigravity", "name": "x"}}]),
    ],
)
def test_a_program_imports_no_module(program, tmp_path, context):
    torch.export.save(program, tmp_path / "model.pt2")
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        model = json.loads(archive.read("model/models/model.json"))
    signature = model["graph_module"]["module_call_graph"][0]["signature"]
    spec = json.loads(signature["in_spec"])
    kind = "collections.defaultdict" if isinstance(context, dict) else "builtins.dict"
    spec[1]["children_spec"][1] = {"type": kind, "context": context, "children_spec": []}
    signature["in_spec"] = json.dumps(spec)
    bad = tampered(tmp_path / "model.pt2", tmp_path / "bad.pt2", "models/model.json", json.dumps(model))
    with pytest.raises(UntrustedModelError, match="in_spec"), opened(bad):
        pass
    assert "antigravity" not in sys.modules


def in_guards(model, run):
    model["guards_code"] = [f"1 == b'\"+str({run})+\"'"]


def in_a_constant(model, run):
    """What the program takes beside its input is called like it, and holds the end of a text and of a function."""
    held = {"as_string": f"a' #\n)\n{run}\ndef more():\n  (0, '"}
    model["graph_module"]["graph"]["inputs"].append(held)
    constant = {"constant_input": {"name": "y", "value": {"as_string": "x"}}}
    model["graph_module"]["signature"]["input_specs"].append(constant)
    signature = model["graph_module"]["module_call_graph"][0]["signature"]
    spec = json.loads(signature["in_spec"])
    leaves = spec[1]["children_spec"][0]["children_spec"]
    leaves.append(leaves[0])
    signature["in_spec"] = json.dumps(spec)
    signature["forward_arg_names"].append("y")


@pytest.mark.parametrize(
    ("hide", "examples", "told"),
    [
        (in_guards, lambda run: None, "none of it was run: guards_code"),
        (in_a_constant, lambda run: ((torch.zeros(2, 4), "x"), {}), "none of it was run: as_string"),
        (lambda model, run: None, lambda run: (({f'"+str({run})+"': torch.zeros(2, 4)},), {}), "other than one tensor"),
    ],
    ids=["guards", "a constant", "an example"],
)
def test_no_source_is_written_from_the_text_of_a_program(zoo, program, tmp_path, hide, examples, told):
    """torch writes the source of a function that holds inputs against what the file says of them."""
    torch.export.save(program, tmp_path / "model.pt2")
    with zipfile.ZipFile(tmp_path / "model.pt2") as archive:
        model = json.loads(archive.read("model/models/model.json"))
    run = f'__import__("pathlib").Path("{tmp_path / "ran"}").touch()'
    hide(model, run)
    bad = tampered(tmp_path / "model.pt2", tmp_path / "bad.pt2", "models/model.json", json.dumps(model))
    if (captured := examples(run)) is not None:
        torch.save(captured, tmp_path / "sample.pt")
        bad = tampered(bad, tmp_path / "worse.pt2", "sample_inputs/model.pt", (tmp_path / "sample.pt").read_bytes())
    with pytest.raises(ModelError, match=told), opened(bad) as runner:
        runner.run(batch(**zoo("perceptron")[1]))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["__getattr__", "add.__class__"])
def test_a_program_hands_on_operators_and_nothing_beside_them(program, tmp_path, name):
    handed = {"as_operator": f"torch.ops.aten.{name}"}, {"as_string": "from_file"}
    bad = with_node(program, tmp_path, calling("wrap_with_set_grad_enabled", {"as_bool": True}, *handed))
    with pytest.raises(UntrustedModelError, match=rf"as_operator 'torch\.ops\.aten\.{name}'"), opened(bad):
        pass


class Layers(nn.Module):
    """Two layers of different classes, of which a file can make one pass for the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


@pytest.mark.parametrize(
    ("member", "old", "new", "said"),
    [
        # Three numbers in a record of three: 65,536 of them, beginning at the 4,096th.
        ("data.pkl", rb"K\x03tQ(q.)K\x00", b"J\0\0\1\0tQ\\1J\0\x10\0\0", "in a record of another size"),
        ("data.pkl", rb"K\x03tQ(q.)K\x00", b"K\3tQ\\1K\1", "reaches beyond its record"),
        ("data.pkl", rb"_rebuild_tensor_v2", rb"_rebuild_sparse_tensor", "_rebuild_sparse_tensor"),
        ("test_torch.py", rb"first : [\w.]+", rb"first : __torch__.test_torch.Layers", "first is something else"),
        ("test_torch.py", rb"first = self\.first", rb"first = unchecked_cast(__torch__.torch.nn.modules.linear.Linear, "
         rb"self.second)", "unchecked_cast to __torch__"),
    ],
)  # fmt: skip
def test_torchscript_points_into_no_memory_but_its_own(tmp_path, member, old, new, said):
    """What torch believes: how many numbers are in a record, of which class an object in an attribute is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(Layers()).save(tmp_path / "good.pt")
    with opened(tmp_path / "good.pt") as runner:
        assert runner.run(batch(x=np.zeros((2, 3), np.float32)))
    with zipfile.ZipFile(tmp_path / "good.pt") as archive:
        name = next(name for name in archive.namelist() if name.endswith(member))
        content, count = re.subn(old, new, archive.read(name), flags=re.DOTALL)
    assert count
    bad = tampered(tmp_path / "good.pt", tmp_path / "bad.pt", member, content)
    with pytest.raises(ModelError, match=said), opened(bad):
        pass


@pytest.mark.parametrize("suffix", ["pt", "pt2", "pth", "jit"])
@pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n" + bytes(range(200)), b"", b"plain text", pickle.dumps([1])])
def test_a_file_of_another_kind_is_refused_by_name(tmp_path, suffix, content):
    path = tmp_path / f"model.{suffix}"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=rf"model\.{suffix}") as caught, opened(path):
        pass
    assert "\n" not in str(caught.value)


def test_half_a_program_is_refused(program, tmp_path):
    torch.export.save(program, tmp_path / "model.pt2")
    content = (tmp_path / "model.pt2").read_bytes()
    (tmp_path / "half.pt2").write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelError, match=r"half\.pt2"), opened(tmp_path / "half.pt2"):
        pass


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(ModelError, match=r"there is no file gone\.pt2"), opened("gone.pt2"):
        pass


def test_an_unknown_option_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"'factry'.*did you mean 'factory'"), opened(nn.Linear(1, 1), factry=1):
        pass


def test_without_torch_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'likewise\[torch\]'"), opened("model.pt2"):
        pass


# The exporter


def test_the_exporter_refuses_a_module_in_training_mode(zoo):
    _, arrays, _ = zoo("perceptron")
    with pytest.raises(ModelError, match=r"training mode \(Perceptron, first, activation\).*model\.eval\(\)"):
        export(Perceptron().train(), arrays)


@pytest.mark.parametrize("form", ["live", "file", "program"])
def test_an_export_of_a_module_in_training_mode_is_refused(file, tmp_path, form):
    file = file.with_name("nets_in_training.py")
    file.write_text(CODE.replace("Net().eval()", "Net().train()"))
    live = Perceptron().train()
    live.drop.eval()  # on purpose
    target = {"live": live, "file": f"{file}:model"}.get(form)
    if form == "program":
        target = torch.export.export(nn.Sequential(nn.Linear(4, 4), nn.Dropout()).train(), (torch.zeros(3, 4),))
    with pytest.raises(ModelError, match=r"in training mode.*model\.eval\(\)"):
        data_only.export(target, {"x": normal(ROWS, 4)}, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
    assert (live.training, live.first.training, live.drop.training) == (True, True, False)


def test_weights_are_exported_in_eval_mode_whatever_the_class_begins_with(file, network, tmp_path):
    file = file.with_name("nets_with_dropout.py")
    dropped = "nn.functional.dropout(torch.relu(self.first(x)), 0.9, self.training)"
    file.write_text(CODE.replace("torch.relu(self.first(x))", dropped))
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    options = {"factory": f"{file}:Net"}
    x = normal(ROWS, 4)
    assert data_only.export(
        tmp_path / "weights.pt", {"x": x}, tmp_path / "model.onnx", reference_options=options
    ).report.passed
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    with torch.no_grad():
        expected = network(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, atol=1e-6)


def test_the_command_line_refuses_it_too(file, tmp_path):
    file.write_text(CODE.replace("Net().eval()", "Net()"))
    np.save(tmp_path / "x.npy", normal(ROWS, 4))
    words = ["export", f"{file}:model", "--data", tmp_path / "x.npy", "-o", tmp_path / "model.onnx"]
    here(*words, folder=tmp_path).expect(3, "in training mode", "Call model.eval() first")
    assert not (tmp_path / "model.onnx").exists()


def test_the_exporter_refuses_a_batch_that_forward_fixes(capfd):
    class Fixed(nn.Module):
        def forward(self, x):
            return x.reshape(3, 4) * 2

    with pytest.raises(ModelError, match="fixes the number of rows at 3"):
        export(Fixed().eval(), {"x": normal(3, 4)})
    assert capfd.readouterr() == ("", "")


def test_the_exporter_names_the_line_that_branches_on_values():
    class Branching(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    line = Branching.forward.__code__.co_firstlineno + 1
    with pytest.raises(ModelError, match=rf"test_torch\.py:{line}"):
        export(Branching().eval(), {"x": normal(3, 4)})


def test_the_exporter_names_the_module_and_line_of_an_operator_it_does_not_know():
    class Inner(nn.Module):
        def forward(self, x):
            return torch.linalg.eigvals(x.T @ x).real.sum() + x

    line = Inner.forward.__code__.co_firstlineno + 1
    with pytest.raises(ModelError, match=rf"aten\.linalg_eig of module '0' at .*test_torch\.py:{line}"):
        export(nn.Sequential(Inner()).eval(), {"input": normal(3, 4)})


def test_more_axes_can_be_free(zoo):
    module, arrays, _ = zoo("attention")
    proto = export(module, arrays, dynamic={"x": (1,)})
    assert proto.graph.input[0].type.tensor_type.shape.dim[1].dim_param
    assert data_only.check(module, proto, {"x": normal(ROWS, 9, 8)}).passed
    with pytest.raises(UsageError, match=r"no input 'y'.*called: x"):
        export(module, arrays, dynamic={"y": (1,)})


def test_an_output_called_like_a_value_inside_gives_a_file_that_loads():
    class Unlucky(nn.Module):
        def forward(self, x):
            return {"relu": torch.relu(x) * 2}

    arrays = {"x": normal(ROWS, 4)}
    assert data_only.check(Unlucky(), export(Unlucky().eval(), arrays), arrays, preset="exact").passed


def test_a_double_export_computes_in_double(zoo):
    module, arrays, _ = zoo("perceptron")
    proto = export(module, arrays, double=True)
    assert proto.graph.input[0].type.tensor_type.elem_type == 11
    assert next(module.parameters()).dtype == torch.float32
    assert data_only.check(module, proto, arrays).passed


# The command line and the example


def test_the_command_line_checks_weights_with_a_factory(zoo, file, network, tmp_path):
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    x = normal(ROWS, 4)
    (tmp_path / "model.onnx").write_bytes(export(network, {"x": x}).SerializeToString())
    np.save(tmp_path / "x.npy", x)
    words = [
        "check", str(tmp_path / "weights.pt"), str(tmp_path / "model.onnx"), "--data", str(tmp_path / "x.npy"),
        "--reference-option", f"factory={file}:build", "--report", str(tmp_path / "report.json"),
    ]  # fmt: skip
    here(*words, folder=tmp_path).expect(0, "PASS")


@pytest.mark.parametrize(("words", "code", "last"), [([], 0, "✓"), (["--broken"], 1, "✗")])
def test_the_example_runs_and_shows_what_failure_looks_like(tmp_path, words, code, last):
    example = Path(__file__).parents[2] / "examples" / "pytorch" / "verify_export.py"
    done = script(example, *words, folder=tmp_path)
    lines = done.stdout.splitlines()
    assert done.returncode == code, done.stderr
    assert lines[-1].startswith(last)
    assert "over all 5 tests: absolute error" in lines[-2]
    for size in (1, 2, 4, 16, 100):
        assert any(line.startswith(f"{last} input ({size}, 3, 12, 12): absolute error") for line in lines)
    assert ("DIVERGES" in done.stdout) is ("became" in done.stdout) is bool(words)


def test_a_module_is_exported_and_checked_in_one_go(zoo, tmp_path):
    module, arrays, _ = zoo("shop")
    exported = data_only.export(module, arrays, tmp_path / "shop.onnx")
    assert exported.report.passed, said(exported.report)
    assert [feature["name"] for feature in exported.features] == ["items", "x"]


def test_files_are_recognised_without_loading_torch():
    code = (
        "import sys; from likewise.registry import describe_model\n"
        "print({describe_model(f'a.{s}').framework for s in ('pt', 'pt2', 'pth', 'jit', 'ts')}, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'torch'} False\n"


def _rezipped(path, change):
    """An archive with its records written anew, as pairs of a name without its root and content."""
    with zipfile.ZipFile(path) as archive:
        root = archive.namelist()[0].partition("/")[0]
        records = [(name.partition("/")[2], archive.read(name)) for name in archive.namelist()]
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")
        for name, content in change(records):
            archive.writestr(f"{root}/{name}", content)


def _again(records, spelt=str):
    """The last record of weights a second time, with other numbers."""
    name, content = next((n, c) for n, c in reversed(records) if re.match(r"data/(weights/weight_)?\d", n))
    return [*records, (spelt(name), bytes(len(content)))]


SAVED = {
    "state dict": lambda net, path: torch.save(net.state_dict(), path),
    "TorchScript": lambda net, path: torch.jit.save(torch.jit.trace(net, torch.zeros(2, 3)), path),
    "torch.export": lambda net, path: torch.export.save(torch.export.export(net, (torch.zeros(2, 3),)), path),
}


@pytest.mark.parametrize("spelt", [str, str.upper, lambda name: name.replace("/", "//"), lambda name: f"./{name}"])
@pytest.mark.parametrize("form", SAVED)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_record_that_stands_twice_in_an_archive_is_refused(tmp_path, form, spelt):
    path = tmp_path / ("net.pt2" if form == "torch.export" else "net.pt")
    SAVED[form](torch.nn.Linear(3, 2).eval(), path)
    options = {"factory": lambda: torch.nn.Linear(3, 2)} if form == "state dict" else {}
    load(Model("torch", path, options))
    _rezipped(path, lambda records: _again(records, spelt))
    with pytest.raises(ModelError, match="twice"):
        load(Model("torch", path, options))


@pytest.mark.parametrize("new", [True, False])
def test_what_stands_behind_the_weights_of_a_file_is_refused(tmp_path, new):
    path, other = tmp_path / "net.pt", tmp_path / "other.pt"
    for place in (path, other):
        torch.save(torch.nn.Linear(3, 2).state_dict(), place, _use_new_zipfile_serialization=new)
    options = {"factory": lambda: torch.nn.Linear(3, 2)}
    load(Model("torch", path, options))
    if new:
        _rezipped(path, lambda records: [(n, c * 2 if n == "data.pkl" else c) for n, c in records])
    else:
        path.write_bytes(path.read_bytes() + other.read_bytes())
    with pytest.raises(ModelError, match="behind"):
        load(Model("torch", path, options))
