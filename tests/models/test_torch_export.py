"""Modules of the kinds people export: the file answers as eager PyTorch does, at other batches and lengths too."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from nets import Attention, Classifier, Image, Named, Perceptron, Shop, export, normal, opened, rng
from torch import nn
from torch.export import Dim
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import data_only
import likewise
from likewise.contracts.data import Batch, RowIds
from likewise.contracts.models import ExportRequest, Model
from likewise.data.columns import ArrayColumns
from likewise.errors import ModelError, UsageError
from likewise.models import silently
from likewise.models.onnx import edits
from likewise.models.torch.export import TorchExporter
from likewise.registry import open_model
from planting import here

ROWS = 8


class Applied(nn.Module):
    def __init__(self, function, *parts):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(parts)

    def forward(self, x):
        return self.function(*self.parts, x)


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.cells = kind(3, 5, batch_first=True, **options)
        self.head = nn.Linear(10 if self.cells.bidirectional else 5, 2)

    def forward(self, x):
        return self.head(self.cells(x)[0])


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(3, 5, batch_first=True, bidirectional=True)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(self.cells(packed)[0], batch_first=True, total_length=x.shape[1])[0]


class ByName(nn.Module):
    """A recurrent network whose second input can only be named, and whose answer is a dict with a gap."""

    def __init__(self):
        super().__init__()
        self.cells = nn.GRU(3, 5, num_layers=2, batch_first=True)

    def forward(self, x, *, bias):
        found = self.cells(x)[0]
        return {"last": found[:, -1] + bias, "nothing": None, "all": found}


class Steps(nn.Module):
    """A loop over time, which a recording unrolls."""

    def forward(self, x):
        state = torch.zeros_like(x[:, 0])
        for step in range(x.shape[1]):
            state = state * 0.5 + x[:, step]
        return state


class Chosen(nn.Module):
    """A branch on values, which a recording loses."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        found = self.layer(x)
        if bool(found.sum() > 0):
            found = found * 2
        return found


class Optional_(nn.Module):  # noqa: N801
    def forward(self, x, y: torch.Tensor | None = None, scale: float = 3.0):
        return {"b": x * scale, "a": x + 1}


@dataclass(frozen=True)
class Case:
    """A module with its rows; `lengths` names by input the axis of the free length."""

    make: object
    arrays: dict
    lengths: dict
    older: bool = False


def case(make, arrays, older=False, **lengths):
    return Case(make, arrays if isinstance(arrays, dict) else {"x": arrays}, lengths, older)


SEQUENCE, ROW = normal(ROWS, 6, 3), normal(ROWS, 4)
TOKENS = rng().integers(0, 10, (ROWS, 6))
CASES = {
    "images of any size": case(Image, {"pixels": normal(ROWS, 3, 6, 6)}, pixels=2),
    "convolution over time": case(lambda: nn.Conv1d(3, 2, 3), {"input": normal(ROWS, 3, 8)}, input=2),
    "embedding": case(lambda: nn.Embedding(10, 4), {"input": TOKENS}, input=1),
    "items and numbers": case(Shop, {"items": TOKENS, "x": normal(ROWS, 3)}, items=1),
    "with a mask": case(Shop, {"items": TOKENS, "x": normal(ROWS, 3), "mask": (TOKENS > 3).astype(np.float32)}),
    "dict with a tuple": case(Classifier, ROW),
    "named tuple": case(lambda: Applied(lambda x: Named(x * 2, {"more": x + 1})), ROW),
    "topk and flags": case(lambda: Applied(lambda x: (*x.topk(2), x > 0)), ROW),
    "whole numbers": case(lambda: Applied(lambda x: x * 2 + 1), TOKENS, x=1),
    "lstm": case(lambda: Recurrent(nn.LSTM), SEQUENCE, older=True, x=1),
    "lstm, deep": case(lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True), SEQUENCE, older=True, x=1),
    "gru, deep": case(lambda: Recurrent(nn.GRU, num_layers=2), SEQUENCE, older=True, x=1),
    "states of an lstm": case(lambda: nn.LSTM(3, 5, 2, batch_first=True), {"input": SEQUENCE}, older=True, input=1),
    "packed": case(Packed, {"x": SEQUENCE, "lengths": np.arange(ROWS) % 6 + 1}, older=True, x=1),
    "by name": case(ByName, {"x": SEQUENCE, "bias": normal(ROWS, 5)}, older=True, x=1),
    "cdist": case(lambda: Applied(lambda x: torch.cdist(x, x + 5)), SEQUENCE, older=True, x=1),
    "script of a loop": case(lambda: torch.jit.script(Steps()), SEQUENCE, older=True, x=1),
    "script of a branch": case(lambda: torch.jit.script(Chosen()), ROW, older=True),
    "script, recurrent": case(lambda: torch.jit.script(Recurrent(nn.GRU, num_layers=2)), SEQUENCE, older=True, x=1),
    "script with defaults": case(lambda: torch.jit.script(Optional_()), ROW, older=True),
    "script, frozen": case(lambda: torch.jit.freeze(torch.jit.script(Perceptron().eval())), ROW, older=True),
    "trace": case(lambda: torch.jit.trace(Perceptron().eval(), torch.zeros(2, 4)), ROW, older=True),
    "trace of whole numbers": case(
        lambda: torch.jit.trace(nn.Embedding(10, 4), torch.zeros(2, 3, dtype=torch.int64)),
        {"input": TOKENS}, older=True, input=1,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Toy models: threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def asked(module, arrays):
    """Eager PyTorch's answers, by a call of one's own."""
    named = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    with torch.no_grad():
        answer = module(*named.values()) if isinstance(module, torch.jit.ScriptModule) else module(**named)
    return [value.numpy() for value in flat(answer)]


def flat(answer):
    if answer is None or isinstance(answer, torch.Tensor):
        return [] if answer is None else [answer]
    return [value for entry in (answer.values() if isinstance(answer, dict) else answer) for value in flat(entry)]


def ran(proto, arrays):
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {value.name: arrays[value.name] for value in session.get_inputs()})


def same(module, proto, arrays):
    ours, theirs = asked(module, arrays), ran(proto, arrays)
    assert [value.shape for value in ours] == [value.shape for value in theirs]
    assert [value.dtype for value in ours] == [value.dtype for value in theirs]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)


def note(proto):
    return {entry.key: entry.value for entry in proto.metadata_props}.get("likewise.note", "")


def made(name, seed=3):
    torch.manual_seed(seed)
    made = CASES[name].make()
    return made.eval() if hasattr(made, "training") else made


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("name", CASES)
def test_the_file_answers_as_the_module_does_at_other_sizes(name, capfd):
    wanted, module = CASES[name], made(name)
    proto = export(module, wanted.arrays, dynamic={key: (axis,) for key, axis in wanted.lengths.items()})
    assert capfd.readouterr() == ("", "")
    assert ("dynamo=False" in note(proto)) is wanted.older
    for rows in (ROWS, 1, 2, 7):
        same(module, proto, {key: array[:rows] for key, array in wanted.arrays.items()})
    if wanted.lengths:
        longer = {
            key: np.concatenate([array, array], wanted.lengths[key]) if key in wanted.lengths else array
            for key, array in wanted.arrays.items()
        }
        same(module, proto, longer)


def halves(x):
    return {"pairs": x.reshape(-1, 2, 4).sum(1).repeat_interleave(2, 0)}


def shifted(x, y):
    return x[:, 1:] + y, None


class Both(nn.Module):
    """Two inputs, the second by name or one step shorter than the first."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, *, y):
        return self.function(x, y)


STEPS = Dim("steps", min=2, max=32)
PROGRAMS = {
    "bounded": (
        Perceptron, {"x": ROW}, {"x": {0: Dim("rows", min=2, max=16)}},
        "axis 0 of 'x' was captured for sizes of 2 to 16"
    ),
    "fixed": (Perceptron, {"x": ROW}, None, "takes 8 rows at a time"),
    "derived rows": (
        lambda: Applied(halves), {"x": ROW}, {"x": {0: 2 * Dim("pairs", max=64)}},
        "axis 0 of 'x' was captured for sizes of 0 to 128",
    ),
    "derived length": (
        lambda: Both(shifted), {"x": normal(ROWS, 7), "y": normal(ROWS, 6)},
        {"x": {0: Dim.DYNAMIC, 1: STEPS + 1}, "y": {0: Dim.DYNAMIC, 1: STEPS}},
        "axis 1 of 'y' was captured for sizes of 2 to 32",
    ),
    "bounded length": (Attention, {"x": normal(ROWS, 5, 8)}, {"x": {0: Dim("batch"), 1: STEPS}}, "axis 1"),
}  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The file of a captured module, and the module."""
    made = {}

    def get(name):
        if name not in made:
            torch.manual_seed(3)
            make, arrays, shapes, _ = PROGRAMS[name]
            module, tensors = make().eval(), {key: torch.from_numpy(array) for key, array in arrays.items()}
            captured = torch.export.export(module, (tensors.pop("x"),), tensors, dynamic_shapes=shapes)
            path = tmp_path_factory.mktemp("programs") / "model.pt2"
            torch.export.save(captured, path)
            made[name] = (module, path)
        return made[name]

    return get


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_exported_program_keeps_the_sizes_it_was_captured_for(name, program):
    (module, path), (_, arrays, shapes, told) = program(name), PROGRAMS[name]
    with opened(path) as runner:
        proto = export(runner.native, arrays)
    assert told in note(proto)
    same(module, proto, arrays)
    if shapes is None:
        assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value == ROWS
        return
    same(module, proto, {key: np.concatenate([array, array]) for key, array in arrays.items()})
    if len(shapes["x"]) > 1:
        same(module, proto, {key: np.concatenate([array, array[:, :3]], 1) for key, array in arrays.items()})


def test_what_an_exported_program_fixes_is_not_freed(program):
    _, path = program("fixed")
    with opened(path) as runner:
        with pytest.raises(ModelError, match=r"axis 1 of input 'x' is fixed at 4.*dynamic_shapes=\{'x': \{1: "):
            export(runner.native, {"x": ROW}, dynamic={"x": (1,)})
        with pytest.raises(UsageError, match=r"Capture model\.double\(\)"):
            export(runner.native, {"x": ROW}, double=True)


class Told(nn.Module):
    def forward(self, x):
        return {"y": x * 2, "temperature": 0.5}


class Fixed(nn.Module):
    def forward(self, x):
        return x.reshape(3, 4) * 2


REFUSED = {
    "a loop that a recording unrolls": (Steps, SEQUENCE, {"dynamic": {"x": (1,)}}, r"fixes x\.shape\[1\] at 6.*may be"),
    "a branch that a recording loses": (Chosen, ROW, {}, r"test_torch_export\.py:\d+: forward branches on values"),
    "a plain number": (Told, ROW, {}, r"'temperature' is no tensor.*torch\.tensor"),
    "an axis there is not": (Perceptron, ROW, {"dynamic": {"x": (2,)}}, "no axis 2. Its axes are 0 to 1"),
    "a script of three rows": (
        lambda: torch.jit.trace(Fixed(), torch.zeros(3, 4)), ROW, {}, "answers no other number of rows",
    ),
    "recurrent in float64": (
        lambda: Recurrent(nn.LSTM), SEQUENCE, {"dynamic": {"x": (1,)}, "double": True}, "leave out --double",
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_exported_names_the_thing_to_change(name, capfd):
    make, rows, options, told = REFUSED[name]
    with pytest.raises((ModelError, UsageError), match=told):
        export(make().eval(), {"x": rows}, **options)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("made", [lambda module: module, nn.Module.double], ids=["asked for", "as it is"])
def test_recurrent_layers_in_float64_are_not_written(made, tmp_path):
    """The file would load, and then refuse every row."""
    module, rows = made(Recurrent(nn.GRU).eval()), SEQUENCE.astype(np.float64)
    with pytest.raises(ModelError, match=r"GRU in float64.*leave out --double, export module\.float"):
        likewise.export(module, {"x": rows}, tmp_path / "model.onnx", double=True)
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_the_command_line_exports_a_file_of_torchscript_and_says_how(tmp_path):
    torch.manual_seed(3)
    module = Recurrent(nn.GRU, num_layers=2).eval()
    torch.jit.script(module).save(tmp_path / "model.pt")
    np.save(tmp_path / "x.npy", SEQUENCE)
    words = ["export", tmp_path / "model.pt", "--data", tmp_path / "x.npy", "-o", tmp_path / "model.onnx"]
    here(*words, "--dynamic", "x=1", folder=tmp_path).expect(0, "dynamo=False", "TorchScript", "PASS")
    same(module, onnx.load(tmp_path / "model.onnx"), {"x": normal(3, 11, 3)})


def test_the_command_line_says_how_a_program_for_few_rows_is_checked(program, tmp_path):
    _, path = program("bounded")
    np.save(tmp_path / "x.npy", normal(40, 4))
    words = ["export", path, "--data", tmp_path / "x.npy", "-o", tmp_path / "model.onnx"]
    here(*words, folder=tmp_path).expect(3, "captured for 2 to 16 rows", "--batch-size 16 --fixed-batch")
    here(*words, "--batch-size", "16", "--fixed-batch", folder=tmp_path).expect(0, "PASS")


def test_weights_that_one_file_cannot_hold_stand_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr("likewise.tasks.export.ONE_FILE", 10_000)
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(4, 800), nn.ReLU(), nn.Linear(800, 2)).eval()
    exported = data_only.export(module, {"input": ROW}, tmp_path / "large.onnx")
    assert exported.report.passed
    assert sorted(file.name for file in tmp_path.glob("large*")) == [
        "large.features.json", "large.metadata.json", "large.onnx", "large.onnx.data",
    ]  # fmt: skip
    weights = 4 * (4 * 800 + 800 + 800 * 2)
    assert (tmp_path / "large.onnx.data").stat().st_size >= weights
    assert (tmp_path / "large.onnx.data").stat().st_mode & 0o777 == 0o644
    assert exported.bytes == sum((tmp_path / f"large.onnx{end}").stat().st_size for end in ("", ".data"))
    session = ort.InferenceSession(tmp_path / "large.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(
        session.run(None, {"input": ROW})[0], asked(module, {"input": ROW})[0], rtol=1e-4, atol=1e-5
    )


class Nested(nn.Module):
    """Modules inside of others, sizes that are asked for on the way, one part called twice."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(6, 8), nn.GELU())
        self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8)) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = x + layer(x).view(x.shape[0], 2, 4).transpose(1, 2).reshape(x.shape[0], 8)
        return self.head(self.layers[0](x)) + torch.ones(x.shape[0], 3)


def test_a_captured_program_is_recorded_as_the_module_it_was_captured_from_would_be(tmp_path):
    torch.manual_seed(0)
    module = Nested().eval()
    rows = normal(ROWS, 6)
    example = (torch.from_numpy(rows[:3]),)
    program = torch.export.export(module, example, dynamic_shapes=({0: Dim("rows", min=2, max=64)},))
    torch.export.save(program, tmp_path / "module.pt2")
    with open_model(Model("torch", str(tmp_path / "module.pt2"))) as runner:
        sample = Batch(RowIds(np.arange(ROWS)), ArrayColumns({"x": rows}))
        request = ExportRequest(runner.native, runner.signature, sample, details=runner.details, recorded=True)
        recorded = TorchExporter().export(request)
    with silently():
        torch.onnx.export(module, example, tmp_path / "older.onnx", dynamo=False)
    older = onnx.load(tmp_path / "older.onnx")

    def parts(proto):
        names = {edits.module_of(node) for node in proto.graph.node if node.op_type in ("Gemm", "LayerNormalization")}
        return names | {node.op_type for node in proto.graph.node if node.op_type == "LayerNormalization"}

    assert parts(recorded) == parts(older)
    assert "layers.1.0" in parts(recorded)
    session = ort.InferenceSession(recorded.SerializeToString())
    for count in (1, 2, ROWS):
        expected = module(torch.from_numpy(rows[:count])).detach().numpy()
        (found,) = session.run(None, {session.get_inputs()[0].name: rows[:count]})
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
