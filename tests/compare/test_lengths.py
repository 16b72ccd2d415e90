"""A network must answer alike at every length it leaves open, and whatever is padded and masked."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import data_only
import likewise
from likewise import report as report_files
from likewise.compare.variations.axes import Axis, at_length
from likewise.contracts.data import Batch, RowIds
from likewise.data.columns import ArrayColumns
from likewise.errors import UsageError
from likewise.report.formats.json import EXTENSION as JSON
from likewise.report.formats.json import loads
from planting import here

ROWS, LENGTH, WIDTH = 24, 6, 4
RNG = np.random.default_rng(5)
SERIES = RNG.normal(size=(ROWS, LENGTH, 3)).astype(np.float32)
TOKENS = RNG.integers(1, 20, size=(ROWS, LENGTH))
REAL = np.ones((ROWS, LENGTH), dtype=np.int64)
IMAGES = RNG.normal(size=(ROWS, 3, 8, 10)).astype(np.float32)


def checked(reference, candidate, data, **options):
    """Other lengths are tried, and nothing else beside the data."""
    return data_only.check(reference, candidate, data, **{"shapes": None, **options})


def said(report):
    return " | ".join(f"{f.severity} {f.code}: {f.message}" for f in report.verdict.findings)


def suites(report):
    """What was tried beside the data, by name."""
    return {suite.name: suite for suite in report.verdict.suites if suite.kind == "shape"}


def exported(module, arrays, axes, outputs=("value",)):
    """What the tracing exporter writes; it remembers what Python made of the shapes it saw."""
    file = io.BytesIO()
    named = {**axes, **{name: {0: "rows"} for name in outputs}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own, among them that a shape becomes a constant
        torch.onnx.export(
            module.eval(),
            tuple(torch.from_numpy(array[:4]) for array in arrays.values()),
            file,
            dynamo=False,
            input_names=list(arrays),
            output_names=list(outputs),
            dynamic_axes=named,
        )
    return file.getvalue()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(3, WIDTH, batch_first=True)

    def forward(self, x):
        return {"value": self.cell(x)[0][:, -1]}


class Averaged(nn.Module):
    """The mean along a sequence; `traced` divides by the length that was there when it was exported."""

    def __init__(self, *, traced=False):
        super().__init__()
        self.traced = traced

    def forward(self, x):
        return {"value": x.sum(1) / (float(int(x.shape[1])) if self.traced else x.shape[1])}


class Reshaped(nn.Module):
    """Flattens and unflattens by the length that was there when it was exported."""

    def forward(self, x):
        steps = int(x.shape[1])
        return {"value": x.reshape(-1, 3).reshape(-1, steps, 3).mean(1)}


class Encoder(nn.Module):
    """Self-attention over tokens under a mask. `pooled` says how positions become one: with the mask, or without."""

    def __init__(self, *, pooled="mask", inverted=False):
        super().__init__()
        self.pooled, self.inverted = pooled, inverted
        self.embed = nn.Embedding(20, WIDTH)
        self.query, self.key = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids, mask):
        real = (mask == 0 if self.inverted else mask != 0).to(torch.float32)
        x = self.embed(ids)
        scores = self.query(x) @ self.key(x).transpose(1, 2) + (real[:, None, :] - 1.0) * 1e9
        tokens = torch.softmax(scores, -1) @ x
        kept = tokens * real[:, :, None] if self.pooled == "mask" else tokens
        total = real.sum(1, keepdim=True) if self.pooled == "mask" else tokens.shape[1]
        return {"tokens": tokens, "pooled": kept.sum(1) / total}


class Named(nn.Module):
    """An encoder whose mask goes by another name."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, ids, key_padding_mask):
        return self.encoder(ids, key_padding_mask)


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.pool = nn.Conv2d(3, WIDTH, 3), nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        return {"value": self.pool(torch.relu(self.convolution(x))).flatten(1)}


def encoders():
    """Two encoders with the same weights: one pools under the mask, the other does not."""
    torch.manual_seed(1)
    right, wrong = Encoder(), Encoder(pooled="all")
    wrong.load_state_dict(right.state_dict())
    return right.eval(), wrong.eval()


@pytest.fixture(scope="module")
def nets():
    """Modules and their exports, made once."""
    torch.manual_seed(0)
    series, both = {"x": {0: "rows", 1: "seq"}}, {"ids": {0: "rows", 1: "seq"}, "mask": {0: "rows", 1: "seq"}}
    right, wrong = encoders()
    text, outputs = {"ids": TOKENS, "mask": REAL}, ("tokens", "pooled")
    recurrent, pictures = Recurrent().eval(), Pictures().eval()
    inverted = Encoder(inverted=True)
    inverted.load_state_dict(right.state_dict())
    padding = {"ids": both["ids"], "key_padding_mask": both["mask"]}
    return SimpleNamespace(
        recurrent=(recurrent, exported(recurrent, {"x": SERIES}, series)),
        traced=(Averaged(), exported(Averaged(traced=True), {"x": SERIES}, series)),
        reshaped=(Averaged(), exported(Reshaped(), {"x": SERIES}, series)),
        pictures=(pictures, exported(pictures, {"x": IMAGES}, {"x": {0: "rows", 2: "height", 3: "width"}})),
        right=right,
        wrong=wrong,
        encoder=exported(right, text, both, outputs),
        careless=exported(wrong, text, both, outputs),
        inverted=Named(inverted).eval(),
        inverted_encoder=exported(Named(inverted), {"ids": TOKENS, "key_padding_mask": 1 - REAL}, padding, outputs),
    )


def test_a_faithful_export_passes_at_every_length_and_says_which(nets):
    report = checked(*nets.recurrent, {"x": SERIES})
    assert report.passed, said(report)
    found = suites(report)
    assert list(found) == ["seq=1", "seq=5", "seq=7", "seq=12"]
    assert all(suite.outcome == "PASS" and suite.rows == 8 and suite.blocks for suite in found.values())
    # Several free axes: the batch is swept as ever.
    assert {facts.size for facts in report.comparison.batch_sizes} == {1, 2, 3, 4, 7, 8, 9, ROWS}


def test_the_rows_are_those_of_the_data_cut_or_repeated():
    batch = Batch(
        RowIds(np.arange(2)),
        ArrayColumns({"x": np.arange(6).reshape(2, 3), "lengths": np.array([3, 1]), "y": np.ones(2)}),
    )
    axis = Axis("seq", (("x", 1),), 3)
    shorter, longer = at_length(batch, axis, 2), at_length(batch, axis, 5)
    assert shorter.inputs["x"].tolist() == [[0, 1], [3, 4]]
    assert longer.inputs["x"].tolist() == [[0, 1, 2, 0, 1], [3, 4, 5, 3, 4]]
    # No row is longer than what is left of it.
    assert shorter.inputs["lengths"].tolist() == [2, 1]
    assert longer.inputs["lengths"].tolist() == [3, 1]
    assert shorter.rows.name(1) == "row 1, seq=2"


def test_a_length_that_became_a_constant_fails_within_what_the_file_declares(nets):
    # The file says `seq` may be anything, and is right at six alone.
    report = checked(*nets.traced, {"x": SERIES})
    assert report.outcome == "FAIL", said(report)
    found = suites(report)
    assert {name for name, suite in found.items() if suite.outcome == "FAIL"} == {"seq=1", "seq=5", "seq=7", "seq=12"}
    told = [finding for finding in report.verdict.findings if finding.code == "shape-suite"]
    assert {finding.severity for finding in told} == {"failure"}
    assert all("--shapes none" in finding.remedy for finding in told)
    # At length 1 the sum is divided by 6: off by five sixths of the value.
    facts = next(suite.comparison for suite in report.comparison.suites if suite.name == "seq=1")
    rows = SERIES[np.arange(8) * ROWS // 8, 0]
    assert facts.outputs[0].measures["max_abs_diff"] == pytest.approx(np.abs(rows).max() * 5 / 6, rel=1e-5)
    assert checked(*nets.traced, {"x": SERIES}, shapes={}).passed


def test_a_file_that_runs_at_the_traced_length_alone_although_it_declares_the_axis_free_fails(nets):
    report = checked(*nets.reshaped, {"x": SERIES})
    assert report.outcome == "FAIL", said(report)
    told = "seq=1, seq=5, seq=7, seq=12: the candidate refuses 8 of 8 rows that the reference answers"
    assert f"failure shape-suite: {told}" in said(report)
    assert checked(*nets.reshaped, {"x": SERIES}, shapes={}).passed


def test_lengths_that_a_file_was_not_captured_for_are_not_what_it_declares(nets):
    """What torch's exporter writes into the graph: a file that is right from two positions on, and says so."""
    reference, traced = nets.reshaped
    proto = onnx.load_from_string(traced)
    key = "pkg.torch.export.ExportedProgram.range_constraints"
    for told, covered, left in (
        ("{s0: VR[0, int_oo], seq: VR[6, 6]}", [], "seq=1, seq=5, seq=7, seq=12"),
        ("{s0: VR[0, int_oo], s1: VR[7, 64]}", [7, 12], "seq=1, seq=5"),
    ):
        del proto.graph.metadata_props[:]
        proto.graph.metadata_props.add(key=key, value=told)
        report = checked(reference, proto, {"x": SERIES})
        outcomes = {name: suite.outcome for name, suite in suites(report).items()}
        assert [name for name, outcome in outcomes.items() if outcome == "FAIL"] == [f"seq={n}" for n in covered]
        assert f"note shape-suite: {left}: the file was captured for " in said(report)
        assert report.passed is not bool(covered)
    assert checked(reference, proto, {"x": SERIES}, shapes={"seq": (5,)}).outcome == "FAIL"


def test_lengths_that_the_reference_alone_refuses_say_nothing_about_the_candidate(nets):
    def fussy(x):
        if x.shape[1] < LENGTH:
            raise ValueError("too short for the window")
        return {"value": x.mean(1)}

    candidate = exported(Averaged(), {"x": SERIES}, {"x": {0: "rows", 1: "seq"}})
    report = checked(fussy, candidate, {"x": SERIES})
    assert report.passed, said(report)
    outcomes = {name: (suite.outcome, suite.blocks) for name, suite in suites(report).items()}
    assert outcomes["seq=5"] == ("INCONCLUSIVE", False)
    assert outcomes["seq=7"] == ("PASS", True)
    assert "note shape-suite: seq=5: the reference refuses 8 of 8 rows" in said(report)
    # What was asked for and could not be compared decides nothing.
    asked = checked(fussy, candidate, {"x": SERIES}, shapes={"seq": (5, 7)})
    assert asked.outcome == "INCONCLUSIVE", said(asked)
    assert "inconclusive shape-suite: seq=5: the reference refuses" in said(asked)


def test_lengths_that_are_asked_for_block(nets):
    report = checked(*nets.traced, {"x": SERIES}, shapes={"seq": [6, 9]})
    assert report.outcome == "FAIL"
    found = suites(report)
    assert list(found) == ["seq=6", "seq=9"]
    assert found["seq=6"].outcome == "PASS"
    assert found["seq=9"].outcome == "FAIL"
    assert all(suite.blocks for suite in found.values())
    assert "failure shape-suite: seq=9: 8 of 8 rows differ" in said(report)
    assert checked(*nets.traced, {"x": SERIES}, shapes={"seq": (LENGTH,)}).passed


def test_a_candidate_that_refuses_what_the_reference_answers_differs(nets):
    report = checked(*nets.reshaped, {"x": SERIES}, shapes={"seq": (LENGTH, 5)})
    assert report.outcome == "FAIL"
    assert suites(report)["seq=6"].outcome == "PASS"
    assert "seq=5: the candidate refuses 8 of 8 rows that the reference answers" in said(report)


def test_a_length_that_both_refuse_is_inconclusive_where_it_was_asked_for(nets):
    # A kernel of 3 does not fit into an image that is 2 high.
    report = checked(*nets.pictures, {"x": IMAGES}, shapes={"height": (2,), "width": (3, 16)})
    assert report.outcome == "INCONCLUSIVE", said(report)
    assert "inconclusive shape-suite: height=2: both models refuse 8 of 8 rows" in said(report)
    found = suites(report)
    assert found["height=2"].refused == 8
    assert found["width=16"].outcome == "PASS"


def test_images_are_tried_at_other_heights_and_widths(nets):
    # One pixel is less than the kernel; both refuse it, and nobody has asked for it.
    report = checked(*nets.pictures, {"x": IMAGES})
    assert report.passed, said(report)
    assert suites(report)["height=1"].headline == "both models refuse all 8 rows"
    assert list(suites(report)) == [
        *("height=1", "height=7", "height=9", "height=16"),
        *("width=1", "width=9", "width=11", "width=20"),
    ]


class Cached(nn.Module):
    def forward(self, x, past):
        return torch.cat([past, x], dim=1).sum((1, 2))


def test_an_axis_of_which_the_data_has_nothing_is_not_covered():
    arrays = {"x": SERIES, "past": SERIES[:, :0]}
    file = exported(Cached(), arrays, {"x": {0: "rows"}, "past": {0: "rows", 1: "before"}})
    report = checked(Cached(), file, arrays)
    assert report.passed, said(report)
    assert list(suites(report)) == ["before"]
    assert "the data has length 0 along before" in suites(report)["before"].headline
    some = checked(Cached(), file, {"x": SERIES, "past": SERIES[:, :2]})
    assert list(suites(some)) == ["before=1", "before=3", "before=4"]


def test_an_axis_goes_by_its_input_and_place_too(nets):
    report = checked(*nets.pictures, {"x": IMAGES}, shapes={"x:2": (16,), "x:3": (12,)})
    assert report.passed, said(report)
    assert list(suites(report)) == ["x:2=16", "x:3=12"]


def test_inputs_that_share_an_axis_change_together(nets):
    report = checked(nets.right, nets.encoder, {"ids": TOKENS, "mask": REAL}, shapes={"seq": (1, 9)})
    assert report.passed, said(report)
    assert [suites(report)[name].rows for name in ("seq=1", "seq=9")] == [8, 8]
    # Also under the name of one of them.
    report = checked(nets.right, nets.encoder, {"ids": TOKENS, "mask": REAL}, shapes={"mask:1": (9,)})
    assert suites(report)["mask:1=9"].rows == 8


@pytest.mark.parametrize("names", [("s70", "s53"), ("ids_dynamic_axes_1", "mask_dynamic_axes_1")])
def test_names_that_an_exporter_made_up_do_not_tear_ids_and_their_mask_apart(nets, names):
    report = checked(nets.right, with_axes(nets.encoder, names), {"ids": TOKENS, "mask": REAL})
    assert report.passed, said(report)
    tried = suites(report)
    assert {name: tried[name].rows for name in tried if "=" in name} == {f"{names[0]}={n}": 8 for n in (1, 5, 7, 12)}
    # The other name means the same axis.
    asked = checked(nets.right, with_axes(nets.encoder, names), {"ids": TOKENS, "mask": REAL}, shapes={names[1]: (9,)})
    assert suites(asked)[f"{names[1]}=9"].rows == 8


def test_names_that_somebody_chose_are_lengths_of_their_own(nets):
    report = checked(nets.right, with_axes(nets.encoder, ("words", "marks")), {"ids": TOKENS, "mask": REAL})
    assert {"words=5", "marks=5"} <= suites(report).keys()


def with_axes(model, names):
    """The graph with other names for the axes of its ids and of its mask."""
    proto = onnx.ModelProto.FromString(model)
    for value, name in zip(proto.graph.input, names, strict=True):
        value.type.tensor_type.shape.dim[1].dim_param = name
    return proto


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"sequence": (3,)}, ("no axis 'sequence'", "seq (x:1)")),
        ({"x:0": (3,)}, ("axis 0 holds the rows", "--batch-sizes")),
        ({"x:7": (3,)}, ("no axis 'x:7'",)),
        ({"seq": (0,)}, ("--shapes seq",)),
        ({"seq": ()}, ("--shapes seq",)),
    ],
)
def test_an_axis_or_a_length_that_means_nothing_is_a_usage_error(nets, shapes, words):
    with pytest.raises(UsageError) as raised:
        checked(*nets.recurrent, {"x": SERIES}, shapes=shapes)
    for word in words:
        assert word in f"{raised.value.message} {raised.value.remedy}"


def test_a_name_that_means_nothing_is_refused_before_the_rows_are_compared(nets):
    calls = []

    def candidate(x):
        calls.append(len(x))
        return {"value": x}

    with pytest.raises(UsageError):
        checked(lambda x: {"value": x}, candidate, {"x": np.zeros((1_000, 3))}, shapes={"seq": (3,)})
    assert max(calls) == 32


def test_no_lengths_are_tried_where_none_is_wanted_or_known(nets):
    assert suites(checked(*nets.recurrent, {"x": SERIES}, shapes={})) == {}
    # A function says nothing about its axes; one that is named is tried all the same.
    mean, wrong = (lambda x: {"value": x.mean(1)}), (lambda x: {"value": x.sum(1) / LENGTH})
    assert suites(checked(mean, wrong, {"x": SERIES})) == {}
    assert checked(mean, wrong, {"x": SERIES}, shapes={"x:1": (7,)}).outcome == "FAIL"


def test_the_width_of_a_table_is_no_length():
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType
    from sklearn.linear_model import LinearRegression

    X = RNG.normal(size=(50, 4)).astype(np.float32)
    model = LinearRegression().fit(X, X.sum(1))
    candidate = to_onnx(model, initial_types=[("X", FloatTensorType([None, None]))]).SerializeToString()
    report = checked(model, candidate, {"X": X})
    assert report.passed, said(report)
    assert suites(report) == {}


def test_recorded_answers_have_no_other_lengths(nets, tmp_path):
    np.savez(tmp_path / "rows.npz", x=SERIES)
    data, golden = str(tmp_path / "rows.npz"), tmp_path / "golden.parquet"
    likewise.record(nets.recurrent[1], data, golden)
    report = checked(str(golden), nets.recurrent[1], data)
    assert report.passed, said(report)
    assert suites(report) == {}
    asked = checked(str(golden), nets.recurrent[1], data, shapes={"seq": (3,)})
    assert asked.outcome == "INCONCLUSIVE"
    assert "only recorded answers" in said(asked)


def test_padding_that_is_masked_changes_nothing(nets):
    report = checked(nets.right, nets.encoder, {"ids": TOKENS, "mask": REAL})
    assert report.passed, said(report)
    found = suites(report)["padding of mask"]
    assert (found.outcome, found.rows) == ("PASS", 8)
    assert not [name for name in suites(report) if name.endswith("in the reference")]


def test_a_candidate_that_pools_over_padding_is_found_although_the_data_has_none(nets):
    data = {"ids": TOKENS, "mask": REAL}
    report = checked(nets.right, nets.careless, data)
    assert report.outcome == "FAIL", said(report)
    assert {name for name, suite in suites(report).items() if suite.outcome == "FAIL"} == {"padding of mask"}
    assert "'pooled' of the candidate moves by up to" in said(report)
    # The tokens are masked as they should be, and only the pooled output is named.
    assert "'tokens' of the candidate" not in said(report)
    asked = checked(nets.right, nets.careless, data, shapes={"seq": (LENGTH,)})
    assert asked.outcome == "FAIL"
    # By hand: the mean over six positions and three of padding, against that over the six.
    with torch.inference_mode():
        rows = np.arange(8) * ROWS // 8
        ids, mask = (np.pad(a[rows], ((0, 0), (0, 3))) for a in (TOKENS, REAL))
        after = nets.wrong(torch.from_numpy(ids), torch.from_numpy(mask))["pooled"]
        before = nets.right(torch.from_numpy(TOKENS[rows]), torch.from_numpy(REAL[rows]))["pooled"]
    facts = next(suite.comparison for suite in asked.comparison.suites if suite.name == "padding of mask")
    pooled = next(output for output in facts.outputs if output.name == "pooled")
    assert re.fullmatch(r"row \d+, 3 positions of padding", pooled.worst_rows[0]["row"])
    assert pooled.measures["max_abs_diff"] == pytest.approx(float((after - before).abs().max()), rel=1e-4)


def test_a_reference_that_is_not_invariant_is_noted_and_the_candidate_is_not_blamed(nets):
    report = checked(nets.wrong, nets.careless, {"ids": TOKENS, "mask": REAL})
    assert report.passed, said(report)
    assert suites(report)["padding of mask"].outcome == "PASS"
    (noted,) = [finding for finding in report.verdict.findings if finding.code == "shape-suite"]
    assert noted.severity == "note"
    assert "of the reference itself moves by up to" in noted.message
    # A note it stays where padding was asked for.
    data = {"ids": TOKENS, "mask": REAL}
    assert checked(nets.wrong, nets.careless, data, shapes={"seq": (LENGTH,)}).passed


def test_a_mask_that_marks_padding_is_padded_with_marks(nets):
    data = {"ids": TOKENS, "key_padding_mask": 1 - REAL}
    report = checked(nets.inverted, nets.inverted_encoder, data)
    assert report.passed, said(report)
    assert suites(report)["padding of key_padding_mask"].outcome == "PASS"
    assert not [name for name in suites(report) if name.endswith("in the reference")]


def test_what_the_reference_ignores_tells_what_a_mask_marks(nets):
    # Named like a mask of real positions, and marking padding; half the rows are padded.
    padded = (np.arange(LENGTH)[None] >= np.where(np.arange(ROWS) % 2, LENGTH, 4)[:, None]).astype(np.int64)

    candidate = exported(
        nets.inverted.encoder,
        {"ids": TOKENS, "mask": padded},
        {"ids": {0: "rows", 1: "seq"}, "mask": {0: "rows", 1: "seq"}},
        ("tokens", "pooled"),
    )
    report = checked(nets.inverted.encoder, candidate, {"ids": TOKENS, "mask": padded})
    assert report.passed, said(report)
    assert suites(report)["padding of mask"].outcome == "PASS"
    assert not [name for name in suites(report) if name.endswith("in the reference")]


def test_rows_that_a_cut_leaves_without_a_real_position_are_left_out(nets):
    # Padded in front: at length 1 only the rows without padding have a position left.
    mask = (np.arange(LENGTH)[None] >= np.where(np.arange(ROWS) % 2, 2, 0)[:, None]).astype(np.int64)
    report = checked(nets.right, nets.encoder, {"ids": TOKENS, "mask": mask}, shapes={"seq": (1, 4)})
    assert report.passed, said(report)
    chosen = mask[np.arange(8) * ROWS // 8]
    assert suites(report)["seq=1"].rows == int(chosen[:, 0].sum())
    assert suites(report)["seq=4"].rows == 8


def test_shapes_are_kept_in_the_report_and_told(nets):
    report = checked(*nets.traced, {"x": SERIES}, shapes={"seq": (9,)})
    read = loads(JSON.render(report), name="report")
    assert suites(read)["seq=9"].headline == suites(report)["seq=9"].headline
    assert "seq=9" in report_files.render(report, "terminal")


def test_the_command_takes_lengths(nets, tmp_path):
    (tmp_path / "ours.onnx").write_bytes(nets.recurrent[1])
    (tmp_path / "theirs.onnx").write_bytes(nets.recurrent[1])
    np.savez(tmp_path / "rows.npz", x=SERIES)
    files = [str(tmp_path / name) for name in ("ours.onnx", "theirs.onnx")]
    common = ["check", *files, "--data", str(tmp_path / "rows.npz"), "--report", str(tmp_path / "report.json")]
    here(*common, "--shapes", "seq=3", "--shapes", "x:2=3", folder=tmp_path).expect(0)
    stored = json.loads((tmp_path / "report.json").read_text())
    named = [suite["facts"]["name"] for suite in stored["suites"] if suite["facts"]["kind"] == "shape"]
    assert named == ["seq=3", "x:2=3"]
    here(*common, "--shapes", "sequence=3", folder=tmp_path).expect(2, "sequence")
    here(*common, "--shapes", "seq=three", folder=tmp_path).expect(2)
    (tmp_path / "likewise.toml").write_text(
        "[gates.net]\nreference = 'ours.onnx'\ncandidate = 'theirs.onnx'\ndata = 'rows.npz'\nshapes = {seq = [2, 3]}\n"
    )
    from likewise.tasks.settings import load_gates

    assert load_gates(tmp_path / "likewise.toml")["net"].shapes == {"seq": (2, 3)}


def test_a_model_that_dies_at_another_length_decides_nothing_and_the_data_stays_in_the_report(nets, tmp_path):
    (tmp_path / "candidate.onnx").write_bytes(nets.traced[1])
    np.savez(tmp_path / "rows.npz", x=SERIES)
    (tmp_path / "dying.py").write_text(
        "import os\n\n\ndef model(x):\n    return {'value': x.mean(1)} if x.shape[1] == 6 else os._exit(7)\n"
    )
    words = ["check", "dying.py:model", "candidate.onnx", "--data", "rows.npz", "--trust", "--edge", "off"]

    def ran(*more):
        asked = [sys.executable, "-m", "likewise", *words, *more]
        return subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, check=False)

    unasked, asked = ran(), ran("--shapes", "seq=7")
    assert unasked.returncode == 3, unasked.stdout + unasked.stderr
    assert "exited with code 7 while trying seq=1" in " ".join(unasked.stdout.split())
    assert "24 rows of rows.npz" in unasked.stdout
    assert ran("--shapes", "none").returncode == 0
    assert asked.returncode == 3, asked.stdout + asked.stderr
    assert "trying seq=7" in " ".join(asked.stdout.split())
