"""The fourth attempt: files that two readers read as two things, links that lead out, and what a few bytes unpack to.

Each was a success before it was refused: it ran, was read from outside, took the memory, or passed although another
reading of the same file says that the models differ.
"""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
import zipfile
from pathlib import Path

import lightgbm
import numpy as np
import onnx
import openvino as ov
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import skops.io
import torch
import xgboost
from onnx import TensorProto, helper, numpy_helper
from sklearn.linear_model import LogisticRegression

import likewise
from likewise.contracts.models import Model
from likewise.data.readers.arrays import StoredArrays
from likewise.errors import DataError, ModelError, UsageError
from likewise.models.environments import wire
from likewise.models.environments.open import _about
from likewise.models.environments.place import Place
from likewise.models.onnx import describe
from likewise.models.sklearn.open import read as read_estimator
from likewise.models.torch.load import load as load_network
from likewise.registry import adapter, describe_model, open_model, open_source
from likewise.report import load as load_report
from likewise.report import render
from likewise.tasks.fleet import find, require_stems
from likewise.tasks.harmless import require_harmless
from likewise.tasks.settings import load_gates

X = np.arange(30, dtype=np.float32).reshape(10, 3)


def directory(entries, base):
    """The files of an archive that begins at a place, the list of them, and how many there are."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    raw = held.getvalue()
    count, size, begin = struct.unpack("<10xHII", raw[-22:-2])
    listed, place = bytearray(raw[begin : begin + size]), 0
    while place < len(listed):
        name, extra, comment = struct.unpack_from("<HHH", listed, place + 28)
        (offset,) = struct.unpack_from("<I", listed, place + 42)
        struct.pack_into("<I", listed, place + 42, offset + base)
        place += 46 + name + extra + comment
    return raw[:begin], bytes(listed), count


def two_archives(seen_by_torch, seen_by_python):
    """One file: torch looks for the list where the end says it is, zipfile right before the end."""

    def end(count, listed, place):
        return struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, count, count, len(listed), place)

    files, listed, count = directory(seen_by_torch, 0)
    first = files + listed
    first_end = end(count, listed, len(files))
    files, listed, count = directory(seen_by_python, len(first) + len(first_end))
    second = files + listed
    second_end = end(count, listed, len(first) + len(first_end) + len(files))
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, len(first), 1)
    last = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return first + first_end + second + second_end + locator + last


def test_a_program_hidden_in_an_older_form_is_not_run(tmp_path):
    """torch.export.load tries another reader when the first refuses: what that one finds was never looked at."""
    from torch._export.serde.schema import SCHEMA_VERSION
    from torch._export.serde.serialize import serialize

    class Module(torch.nn.Module):
        def forward(self, x):
            return x + 1

    program = torch.export.export(Module(), (torch.ones(3, 2),), dynamic_shapes=({0: torch.export.Dim("b")},))
    artefact = serialize(program)
    ran = tmp_path / "ran"
    graph = json.loads(artefact.exported_program)
    code = f"__import__('pathlib').Path({str(ran)!r}).touch()"

    def planted(value):
        if isinstance(value, dict):
            return {key: code if key == "expr_str" else planted(entry) for key, entry in value.items()}
        return [planted(entry) for entry in value] if isinstance(value, list) else value

    plain = {"a/models/model.json": "{}", "a/version": "6\n", "a/.data/version": "6\n", "a/archive_format": "pt2"}
    hidden = {
        "version": ".".join(map(str, SCHEMA_VERSION)),
        "serialized_exported_program.json": json.dumps(planted(graph)),
        "serialized_state_dict.pt": artefact.state_dict,
        "serialized_constants.pt": artefact.constants,
        "serialized_example_inputs.pt": artefact.example_inputs,
    }
    (tmp_path / "m.pt2").write_bytes(two_archives(plain, hidden))
    with pytest.raises(ModelError, match=r"m\.pt2 cannot be loaded"):
        load_network(Model("torch", str(tmp_path / "m.pt2")))
    assert not ran.exists()


def test_weights_whose_imaginary_parts_would_be_left_out(tmp_path):
    network = torch.nn.Linear(3, 2)
    torch.save({name: value + 1j for name, value in network.state_dict().items()}, tmp_path / "m.pt")
    with pytest.raises(ModelError, match="'weight' is complex there alone"):
        load_network(Model("torch", str(tmp_path / "m.pt"), {"factory": network}))


def test_a_skops_file_that_holds_a_part_twice(tmp_path):
    skops.io.dump(LogisticRegression().fit(X, np.arange(10) % 2), tmp_path / "m.skops")
    with zipfile.ZipFile(tmp_path / "m.skops", "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("schema.json", archive.read("schema.json"))
    with pytest.raises(ModelError, match="two files of one name"):
        read_estimator(tmp_path / "m.skops", trusted=())


def graph(node="Identity", functions=(), initializers=()):
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 3]) for name in ("X", "Y")]
    nodes = [helper.make_node(node, ["X", *(tensor.name for tensor in initializers)], ["Y"])]
    made = helper.make_graph(nodes, "g", values[:1], values[1:], list(initializers))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(made, opset_imports=opsets, functions=list(functions), ir_version=8)


def test_a_booster_that_says_a_thing_twice(tmp_path):
    rows, labels = np.arange(40.0).reshape(20, 2), np.arange(20) % 2
    xgboost.train({"max_depth": 1}, xgboost.DMatrix(rows, labels), 1).save_model(tmp_path / "good.json")
    document = (tmp_path / "good.json").read_text()
    (tmp_path / "bad.json").write_text(document.replace('"base_score":', '"base_score":"[9E-1]","base_score":', 1))
    few = {"objective": "binary", "min_data_in_leaf": 1, "verbosity": -1}
    lightgbm.train(few, lightgbm.Dataset(rows, labels), 2).save_model(tmp_path / "good.lgb")
    text = (tmp_path / "good.lgb").read_text()
    (tmp_path / "bad.lgb").write_text(text.replace("num_class=1\n", "num_class=3\nnum_class=1\n"))
    (tmp_path / "more.lgb").write_text(f"{text}\nTree=0\nnum_leaves=1\nleaf_value=9\n")
    for name in ("good.json", "good.lgb"):
        with open_model(describe_model(tmp_path / name)):
            pass
    for name, told in (("bad.json", "twice"), ("bad.lgb", "'num_class' twice"), ("more.lgb", "behind its last")):
        with pytest.raises(ModelError, match=told), open_model(describe_model(tmp_path / name)):
            pass


@pytest.mark.parametrize("form", ["a file", "bytes", "a graph"])
def test_a_graph_that_the_runtime_takes_for_another_format(tmp_path, form):
    """Of 68 MB with a second graph where these four bytes say, one passed that does not as ONNX."""
    proto = graph()
    proto.producer_name = "ORTM"
    content = proto.SerializeToString()
    assert content[4:8] == b"ORTM"
    (tmp_path / "both.ort").write_bytes(content)
    target = {"a file": tmp_path / "both.ort", "bytes": content, "a graph": proto}[form]
    with pytest.raises(ModelError, match="in a format of its own"):
        describe.read(target)


def test_an_operator_that_a_graph_defines_itself():
    """ONNX Runtime runs its own, onnx's evaluator the model's: what passed answers otherwise in another runtime."""
    own = helper.make_function(
        "", "Identity", ["x"], ["y"], [helper.make_node("Neg", ["x"], ["y"])], [helper.make_opsetid("", 17)]
    )
    with pytest.raises(ModelError, match="defines the operator 'Identity' itself"):
        describe.read(graph(functions=[own]))
    own.domain = "own"
    assert describe.read(graph(functions=[own]))


@pytest.mark.parametrize("where", ["name", "sparse", "field", "file", "branch"])
def test_a_weight_that_has_two_values(where):
    """ONNX Runtime takes the last of a name and the raw bytes of a tensor; others take the first, or the numbers."""
    first, second = (numpy_helper.from_array(np.full((1, 3), value, np.float32), "W") for value in (1.0, 7.0))
    plain = graph("Add", initializers=[first])
    assert describe.read(plain)
    if where == "name":
        plain.graph.initializer.append(second)
    elif where == "sparse":
        places = numpy_helper.from_array(np.zeros(1, np.int64))
        value = numpy_helper.from_array(np.ones(1, np.float32), "W")
        plain.graph.sparse_initializer.append(helper.make_sparse_tensor(value, places, [1, 3]))
    elif where == "field":
        plain.graph.initializer[0].float_data.extend([7.0] * 3)
    elif where == "file":
        plain.graph.initializer[0].data_location = TensorProto.EXTERNAL
    else:
        inner = helper.make_graph([], "inner", [], [], [first, second])
        plain.graph.node.append(helper.make_node("If", ["c"], ["d"], then_branch=inner, else_branch=inner))
    with pytest.raises(ModelError, match="gives the weight 'W' two values"):
        describe.read(plain)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (r'(offset="0")', r'\1 offset="4"', "duplicate attribute"),
        (r'(<layer id="1".*?</layer>)', r"\1\1", "two layers have the id '1'"),
        (r"(<net .*</net>)", r"\1\1", "junk after document element"),
        (r"(<net )", r'<!DOCTYPE net [<!ENTITY e "x">]>\1', "declares what its text stands for"),
    ],
)
def test_a_graph_of_openvino_that_can_be_read_in_two_ways(tmp_path, old, new, told):
    proto = graph("Add", initializers=[numpy_helper.from_array(np.ones(3, np.float32), "w")])
    ov.save_model(ov.convert_model(_file(tmp_path, proto)), tmp_path / "good.xml", compress_to_fp16=False)
    with open_model(describe_model(tmp_path / "good.xml")):
        pass
    text, count = re.subn(old, new, (tmp_path / "good.xml").read_text(), count=1, flags=re.DOTALL)
    assert count
    (tmp_path / "bad.xml").write_text(text)
    (tmp_path / "bad.bin").write_bytes((tmp_path / "good.bin").read_bytes())
    with pytest.raises(ModelError, match=told), open_model(describe_model(tmp_path / "bad.xml")):
        pass


def _file(folder, proto):
    onnx.save(proto, folder / "model.onnx")
    return folder / "model.onnx"


def test_weights_of_openvino_that_lie_elsewhere(tmp_path):
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    weights = numpy_helper.from_array(np.ones((1, 3), np.float32), "W")
    onnx.save(graph("Add", initializers=[weights]), outside / "m.onnx")
    ov.save_model(ov.Core().read_model(outside / "m.onnx"), inside / "m.xml", compress_to_fp16=False)
    (inside / "m.bin").rename(outside / "m.bin")
    (inside / "m.bin").symlink_to(outside / "m.bin")
    tensor = graph("Add", initializers=[weights])
    onnx.save(tensor, outside / "w.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
    (inside / "w.onnx").write_bytes((outside / "w.onnx").read_bytes())
    (inside / "w.data").symlink_to(outside / "w.data")
    for name, told in (("m.xml", "leads out of its folder"), ("w.onnx", "outside its own folder")):
        with (
            pytest.raises(ModelError, match=told),
            adapter("openvino").open(Model("openvino", str(inside / name))),
        ):
            pass


def answers(tmp_path, change, **options):
    """Recorded answers that somebody changed, held against the function that gave them."""
    pd.DataFrame({"a": np.arange(8.0), "id": [f"r{row}" for row in range(8)]}).to_parquet(tmp_path / "d.parquet")

    def double(rows):
        return {"y": np.asarray(rows["a"]) * 2}

    data = str(tmp_path / "d.parquet")
    likewise.record(double, data, tmp_path / "g.parquet", **options)
    stored = pq.read_table(tmp_path / "g.parquet")
    pq.write_table(change(stored).replace_schema_metadata(stored.schema.metadata), tmp_path / "g.parquet")
    return likewise.check(tmp_path / "g.parquet", double, data, explain=False, **options)


def with_rows(table, rows):
    return table.set_column(0, "row", pa.array(rows, pa.int64()))


def doubled(table):
    """Every row once more, with another answer, beside the one that it has."""
    other = table.set_column(table.schema.get_field_index("output.y"), "output.y", pa.array(np.full(8, 99.0)))
    return pa.concat_tables([table, other]).take([place // 2 + 8 * (place % 2) for place in range(16)])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (doubled, "two for one row"),
        (lambda table: with_rows(table, [0, 1, 2, 3, 4, 5, 6, 6]), "two for one row"),
        (lambda table: with_rows(table, [0, 1, 2, 3, 4, 5, 6, None]), "two for one row"),
        (lambda table: table.append_column("output.y", pa.array(np.zeros(8))), "2 columns called 'output.y'"),
        (lambda table: table.set_column(0, "row", pa.array(np.arange(8.0))), "no whole numbers"),
    ],
    ids=["two answers", "a row missing", "no row", "two columns", "fractions"],
)
def test_recorded_answers_that_can_be_read_in_two_ways(tmp_path, change, told):
    report = answers(tmp_path, change)
    assert report.outcome == "INCONCLUSIVE"
    assert told in report.headline


def test_recorded_answers_of_two_rows_of_one_name(tmp_path):
    def renamed(table):
        return table.set_column(1, "name", pa.array(["r0", "r0", *(f"r{row}" for row in range(2, 8))]))

    assert answers(tmp_path, lambda table: table, id="id").outcome == "PASS"
    assert "two rows were recorded under one name" in answers(tmp_path, renamed, id="id").headline


def exchange(request, response):
    return json.dumps({"request": request, "response": response})


def tensor(name, kind, value):
    return {"name": name, "datatype": kind, "shape": [1], "data": [value]}


def event(kind, body):
    return json.dumps({"type": f"x.{kind}", "id": "1", "data": body})


ONE = {"dataframe_records": [{"a": 1.0}]}


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([exchange(ONE, 1).replace('"response"', '"response": {"predictions": [7.0]}, "response"')], "names something"),
        ([event("request", ONE), event("request", ONE), event("response", {"predictions": [1.0]})], "request of id"),
        ([event("request", ONE), *[event("response", {"predictions": [1.0]})] * 2], "response of id"),
        ([exchange({"dataframe_records": [{"a": 1.0}, {"a": 2.0, "b": 3}]}, [1.0, 2.0])], "other fields"),
        ([exchange({"inputs": [tensor("a", "FP64", 9.0), tensor("a", "FP64", 1.0)]}, [1.0])], "names something"),
        ([exchange({"inputs": [tensor("a", "INT8", 1.9)]}, [1.0])], "what INT8 does not"),
        ([exchange({"inputs": [tensor("a", "BOOL", "false")]}, [1.0])], "what BOOL does not"),
        ([exchange(ONE, {"outputs": [tensor("y", "FP64", 9.0), tensor("y", "FP64", 1.0)]})], "two called 'y'"),
        ([exchange(ONE, [2**53 + 1]), exchange(ONE, [0.5])], "beyond 2^53 beside fractions"),
        ([json.dumps({"request": ONE, "response": [1.0], "response_body": [7.0]})], "'response' and 'response_body'"),
        ([json.dumps({"request": ONE, "input": ONE, "response": [1.0]})], "'request' and 'input'"),
        ([json.dumps({"request": ONE, "response": [1.0], "status": 200, "status_code": 500})], "both 'status' and"),
        ([event("request", ONE)[:-1] + ', "response": [7.0]}', event("response", [1.0])], "'response' and 'data'"),
        ([exchange({**ONE, "instances": [{"a": 9.0}]}, [1.0])], "'dataframe_records' and 'instances'"),
        (
            [exchange({"dataframe_split": {"columns": ["a", "a"], "data": [[9.0, 1.0]]}}, [1.0])],
            "names something twice",
        ),
        ([exchange(ONE, {"outputs": [tensor("output", "FP64", 1.0)], "predictions": [7.0]})], "both 'outputs' and"),
    ],
)
def test_traffic_that_can_be_read_in_two_ways(tmp_path, lines, told):
    (tmp_path / "t.jsonl").write_text("".join(f"{line}\n" for line in lines))
    report = likewise.check(
        tmp_path / "t.jsonl", lambda rows: {"output": np.ones(len(rows))}, tmp_path / "t.jsonl", explain=False
    )
    assert report.outcome == "INCONCLUSIVE"
    assert told in report.headline


def test_a_report_that_names_its_verdict_twice(tmp_path):
    report = likewise.check(lambda rows: {"y": rows[:, 0]}, lambda rows: {"y": rows[:, 0] + 1}, X, explain=False)
    text = render(report, "json").replace('"passed": false', '"passed": true, "passed": false', 1)
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(DataError, match="names something twice"):
        load_report(tmp_path / "p.json")


def test_answers_without_a_byte_are_not_compared():
    report = likewise.check(*[lambda rows: {"y": np.zeros(len(rows), "V0")}] * 2, X, explain=False, allow_same=True)
    assert report.outcome == "INCONCLUSIVE"


def packed(path, *parts):
    with gzip.open(path, "wb", compresslevel=1) as file:
        for part in parts:
            file.write(part)
    return str(path)


def test_a_line_that_a_few_bytes_unpack_to(tmp_path):
    """As long a line took twenty times its length before it was refused."""
    long = [b"x" * (1 << 20)] * 48
    with pytest.raises(DataError, match="line 2 is longer than 32 MiB"):
        open_source(packed(tmp_path / "a.jsonl.gz", b'{"a": ""}\n{"a": "', *long, b'"}\n'))
    with pytest.raises(DataError, match="a line of more than 16 MiB"):
        open_source(packed(tmp_path / "a.csv.gz", *long, b"\n1\n"))
    with pytest.raises(DataError, match="columns, more than"):
        open_source(packed(tmp_path / "b.csv.gz", b"a," * (1 << 18), b"b\n1\n"))


def test_the_list_of_an_archive_is_read_once(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", **{f"x/{number}": np.full(2, number) for number in range(50)})
    opened, original = [], zipfile.ZipFile._RealGetContents
    monkeypatch.setattr(zipfile.ZipFile, "_RealGetContents", lambda self: (opened.append(1), original(self))[1])
    arrays = StoredArrays(str(tmp_path / "a.npz"))
    assert [arrays[name][0] for name in arrays] == list(range(50))
    assert len(opened) == 1


def test_noise_of_another_python_has_an_end(monkeypatch):
    monkeypatch.setattr(wire, "MOST_NOISE", 1 << 16)
    with pytest.raises(ValueError, match="of something else"):
        wire.receive(io.BytesIO(b"x" * (wire.MOST_NOISE + 100)))


def test_what_a_command_started_says_of_its_walls_is_not_believed():
    said = {"python": "3.11", "confinement": "landlock abi 7, no network, no exec"}
    assert _about(Place(command=("docker", "run")), said)["confinement"].startswith("none")
    assert _about(Place(python="python3"), said)["confinement"] == said["confinement"]


@pytest.fixture
def strangers(tmp_path, monkeypatch):
    """A folder that somebody else filled, and rows of yours beside it."""
    pd.DataFrame({"x": [1.0]}).to_parquet(tmp_path / "private.parquet")
    folder = tmp_path / "folder"
    (folder / "one").mkdir(parents=True)
    for name in ("r.pkl", "c.onnx"):
        (folder / "one" / name).touch()
    (folder / "one" / "rows.parquet").symlink_to(tmp_path / "private.parquet")
    monkeypatch.chdir(folder)
    return folder


def test_a_fleet_follows_no_link_out_of_its_folder(strangers):
    with pytest.raises(UsageError, match=r"rows\.parquet is a link that leads out"):
        find(strangers)
    assert find(strangers, trusting=True)


@pytest.mark.parametrize("rows", ["one/*.parquet", "one"])
def test_a_configuration_follows_no_link_that_a_pattern_matches(strangers, rows):
    Path("likewise.toml").write_text(f'[gates.g]\nreference = "r.onnx"\ncandidate = "c.onnx"\ndata = "{rows}"\n')
    with pytest.raises(UsageError, match="reads outside its repository"):
        require_harmless(load_gates(Path("likewise.toml")), trusted=False)


def test_a_configuration_follows_no_hidden_link_that_a_pattern_matches(strangers):
    """`*` passes over what is hidden, `.?` does not; nor does a folder behind such a link hide its files."""
    (strangers / "one" / ".h").symlink_to(strangers.parent)
    gate = '[gates.g]\nreference = "r.onnx"\ncandidate = "c.onnx"\ndata = "one/.?/private.parquet"\n'
    Path("likewise.toml").write_text(gate)
    with pytest.raises(UsageError, match="reads outside its repository"):
        require_harmless(load_gates(Path("likewise.toml")), trusted=False)


def test_a_fleet_follows_no_link_in_a_folder_of_tables(strangers):
    link = strangers / "one" / "rows.parquet"
    link.unlink()
    link.mkdir()
    pd.DataFrame({"x": [1.0]}).to_parquet(link / "own.parquet")
    assert find(strangers)
    (link / "more.parquet").symlink_to(strangers.parent / "private.parquet")
    with pytest.raises(UsageError, match=r"more\.parquet is a link that leads out"):
        find(strangers)


def test_a_file_is_no_code_whatever_it_is_called(strangers):
    """A folder of models held `x.py`, and beside it a reference called like something in it."""
    name = strangers / "one" / "x.py:load.lgb"
    (strangers / "one" / "x.py").write_text("def load(rows): ...\nload.lgb = load\n")
    assert adapter("python").claims(str(name))
    name.write_text("no model of LightGBM")
    assert not adapter("python").claims(str(name))
    with pytest.raises(ModelError, match="no framework recognises"):
        describe_model(str(name))


def test_a_gate_whose_report_would_be_that_of_all(strangers):
    with pytest.raises(UsageError, match=r"that of gate 'fleet' and the one of all would be one file"):
        require_stems({"fleet": next(iter(find(strangers, trusting=True).values()))})


@pytest.mark.parametrize("form", ["npy", "npz"])
@pytest.mark.parametrize("how", ["a shape twice", "values behind the last"])
def test_arrays_that_can_be_read_in_two_ways(tmp_path, form, how):
    packed = io.BytesIO()
    np.save(packed, np.arange(8.0).reshape(4, 2))
    content = packed.getvalue()
    if how == "a shape twice":
        # In the room that numpy leaves behind a header.
        said = b"'shape': (4, 2), "
        content = content.replace(said, b"'shape': (2, 2), " + said).replace(b" " * len(said) + b"\n", b"\n", 1)
    else:
        content += np.arange(2.0).tobytes()
    path = tmp_path / f"rows.{form}"
    if form == "npy":
        path.write_bytes(content)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", content)
    told = "says a thing twice" if how == "a shape twice" else "16 bytes behind its last value"
    with pytest.raises(DataError, match=told):
        StoredArrays(str(path))
