"""How files are damaged: by their structure where it is known, and byte by byte."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import json
import lzma
import pickletools
import random
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ODD_NUMBERS = (0, 1, -1, 2, 3, 127, 255, 65535, 2**31 - 1, -(2**31), 2**32, 2**53 + 1, 2**63 - 1, -(2**63), 10**30)
ODD_FLOATS = (0.0, -0.0, 0.5, 1e-320, 1e300, float("inf"), float("-inf"), float("nan"))
ODD_TEXTS = (
    "",
    "a",
    "x",
    "../x",
    "/etc/passwd",
    "os.system",
    "builtins.eval",
    "NaN",
    "null",
    "é\u0301\u202e",
    "%s{}",
    "0" * 5000,
)
DEEP = 2_000


def by_bytes(content: bytes, rng: random.Random) -> bytes:
    """One to four damages that know nothing of the format."""
    found = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        if not found:
            return rng.randbytes(rng.randrange(64))
        start = rng.randrange(len(found))
        stop = min(len(found), start + rng.choice((1, 2, 4, 8, 64, 512)))
        way = rng.randrange(8)
        if way <= 1:
            found[start] ^= 1 << rng.randrange(8)
        elif way == 2:
            del found[start:]
        elif way == 3:
            del found[start:stop]
        elif way == 4:
            found[start:start] = found[start:stop] * rng.choice((1, 2, 50))
        elif way == 5:
            found[start:stop] = rng.randbytes(stop - start)
        elif way == 6:
            size, code = rng.choice(((1, "b"), (2, "<h"), (4, "<i"), (8, "<q"), (4, "<f"), (8, "<d")))
            value = rng.choice(ODD_FLOATS if code[-1] in "fd" else ODD_NUMBERS)
            try:
                found[start : start + size] = struct.pack(code, value)
            except (struct.error, OverflowError):
                found[start : start + size] = b"\xff" * size
        else:
            other = rng.randrange(len(found))
            found[start:stop], found[other : other + stop - start] = (
                found[other : other + stop - start],
                found[start:stop],
            )
    return bytes(found)


def odd_value(rng: random.Random) -> Any:
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(ODD_NUMBERS)
    if kind == 1:
        return rng.choice(ODD_FLOATS)
    if kind == 2:
        return rng.choice(ODD_TEXTS)
    return rng.choice((None, True, False, [], {}, [None], {"a": []}))


def by_json(content: bytes, rng: random.Random) -> bytes:
    """Entries of a JSON document removed, doubled, swapped, renamed, nested or of another type."""
    document = json.loads(content)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            places.append((node, key))
            walk(node[key])

    walk(document)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        node, key = rng.choice(places)
        if (isinstance(node, dict) and key not in node) or (isinstance(node, list) and key >= len(node)):
            continue
        way = rng.randrange(7)
        if way == 0:
            del node[key]
        elif way == 1:
            node[key] = odd_value(rng)
        elif way == 2 and isinstance(node, list):
            node.insert(key, node[key])
        elif way == 3:
            other, where = rng.choice(places)
            if (isinstance(other, dict) and where in other) or (isinstance(other, list) and where < len(other)):
                node[key] = json.loads(json.dumps(other[where]))
        elif way == 4 and isinstance(node, dict):
            node[rng.choice(ODD_TEXTS)] = node.pop(key)
        elif way == 5:
            node[key] = [node[key]]
        elif isinstance(node[key], int | float) and not isinstance(node[key], bool):
            node[key] = rng.choice((node[key] + 1, node[key] - 1, -node[key], node[key] * 1e6))
        else:
            node[key] = str(node[key])
    text = json.dumps(document)
    if rng.random() < 0.03:
        text = "[" * DEEP * 20 + text + "]" * DEEP * 20
    return text.encode()


def by_lines(content: bytes, rng: random.Random) -> bytes:
    """Lines removed, doubled, swapped; words and numbers in them replaced."""
    lines = content.split(b"\n")
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(len(lines))
        way = rng.randrange(6)
        if way == 0:
            del lines[at]
        elif way == 1:
            lines.insert(at, lines[rng.randrange(len(lines))])
        elif way == 2:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        elif way == 3:
            lines[at] = lines[at][: rng.randrange(len(lines[at]) + 1)]
        else:
            mark = rng.choice((b",", b"=", b":", b" "))
            words = lines[at].split(mark)
            new = json.dumps(odd_value(rng)) if rng.random() < 0.7 else str(rng.choice(ODD_TEXTS))
            words[rng.randrange(len(words))] = new.encode()
            lines[at] = mark.join(words)
        if not lines:
            return b""
    return b"\n".join(lines)


def by_zip(content: bytes, rng: random.Random) -> bytes:
    """Members of an archive removed, renamed, doubled, exchanged, packed otherwise, or damaged in turn."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(entry.filename, archive.read(entry), entry.compress_type) for entry in archive.infolist()]
    at = rng.randrange(len(members))
    name, held, packing = members[at]
    way = rng.randrange(8)
    if way == 0:
        del members[at]
    elif way == 1:
        members[at] = (rng.choice(("../x", "/tmp/x", name + "x", name.upper(), "", members[0][0])), held, packing)
    elif way == 2:
        members.append((name, by_bytes(held, rng), packing))
    elif way == 3:
        other = rng.randrange(len(members))
        members[at], members[other] = (name, members[other][1], packing), (members[other][0], held, members[other][2])
    elif way == 4:
        packing = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
        members = [(name, held, packing) for name, held, _ in members]
    else:
        inner: Callable[[bytes, random.Random], bytes] = by_bytes
        if held[:1] in (b"{", b"["):
            inner = by_json
        elif held[:6] == b"\x93NUMPY":
            inner = by_npy
        elif held[:1] == b"\x80":
            inner = by_pickle
        members[at] = (name, structured(inner, held, rng), packing)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, held, packing in members:
            archive.writestr(zipfile.ZipInfo(name), held, packing)
    return packed.getvalue()


def by_npy(content: bytes, rng: random.Random) -> bytes:
    """The header of an array: other sizes, types, orders, or something that is no header."""
    start = content.index(b"{")
    stop = content.index(b"}", start) + 1
    header, values = content[start:stop].decode(), content[content.index(b"\n") + 1 :]
    dtype = rng.choice(("<f4", ">f4", "<f8", "<f2", "<i8", "|b1", "|O", "<U4", "|V4", "<c8", "<M8[s]", "|S0", "<f16"))
    shape = rng.choice(((24, 3), (3, 24), (72,), (0, 3), (24, 0), (24, 3, 1), (2**40, 3), (-1, 3), (1,) * 40, ()))
    header = rng.choice(
        (
            header.replace("<f4", dtype),
            header.replace("(24, 3)", str(shape)),
            header.replace("False", "True"),
            header.replace("'descr'", "'other'"),
            "{'descr': [('a', '<f4'), ('b', '<f8')], 'fortran_order': False, 'shape': (6,)}",
            "__import__('os').getpid()",
            "{" * 200,
        )
    )
    values = values if rng.random() < 0.7 else by_bytes(values, rng)
    line = header.encode().ljust(118)[:65000] + b"\n"
    return b"\x93NUMPY" + bytes([rng.choice((1, 1, 1, 2, 9)), 0]) + struct.pack("<H", len(line)) + line + values


PACKERS = (gzip.compress, bz2.compress, lzma.compress, zlib.compress)


def by_pickle(content: bytes, rng: random.Random) -> bytes:
    """Operations of a pickle removed, doubled, exchanged, or with another argument; then packed in any way."""
    plain = content
    for unpack in (gzip.decompress, bz2.decompress, lzma.decompress, zlib.decompress):
        try:
            plain = unpack(content)
            break
        except Exception:  # noqa: BLE001 - it is packed otherwise
            continue
    pieces: list[bytes] = []
    try:
        starts = [place for _, _, place in pickletools.genops(plain) if place is not None]
        pieces = [plain[start:stop] for start, stop in zip(starts, [*starts[1:], len(plain)], strict=True)]
    except ValueError:  # arrays of joblib lie between the operations
        pass
    if len(pieces) < 3:
        return by_bytes(plain, rng)
    at, other = rng.randrange(1, len(pieces) - 1), rng.randrange(1, len(pieces) - 1)
    way = rng.randrange(6)
    if way == 0:
        del pieces[at]
    elif way == 1:
        pieces.insert(at, pieces[other])
    elif way == 2:
        pieces[at], pieces[other] = pieces[other], pieces[at]
    elif way == 3:
        pieces[at:at] = rng.choice(
            ([b"("] * DEEP, [b"]"] * DEEP, [b"N", b"0"], [b"2"] * DEEP, [b"cos\nsystem\n", b"0"])
        )
    else:
        pieces[at] = pieces[at][:1] + by_bytes(pieces[at][1:], rng)
    changed = b"".join(pieces)
    return rng.choice(PACKERS)(changed) if rng.random() < 0.2 else changed


def by_onnx(content: bytes, rng: random.Random) -> bytes:
    """Nodes, weights, types and attributes of a graph that do not fit one another."""
    import onnx
    from onnx import TensorProto, helper

    model = onnx.ModelProto()
    model.ParseFromString(content)
    graph = model.graph
    for _ in range(rng.choice((1, 1, 2, 3))):
        node = rng.choice(graph.node) if graph.node else helper.make_node("Identity", ["x"], ["y"])
        way = rng.randrange(14)
        if way == 0 and graph.node:
            graph.node.remove(node)
        elif way == 1:
            graph.node.add().CopyFrom(node)
        elif way == 2:
            node.op_type = rng.choice(("Add", "Sub", "MatMul", "Relu", "Identity", "Loop", "If", "NoSuch", "", "Cast"))
        elif way == 3 and node.input:
            node.input[rng.randrange(len(node.input))] = rng.choice(("x", "y", "h", "w", "", "nowhere"))
        elif way == 4 and node.output:
            node.output[0] = rng.choice(("x", "y", "h", "s", "", "else"))
        elif way == 5 and node.attribute:
            attribute = rng.choice(node.attribute)
            attribute.i = max(-(2**63), min(2**63 - 1, rng.choice(ODD_NUMBERS)))
            for values in (attribute.ints, attribute.floats):
                if values:
                    at = rng.randrange(len(values))
                    values[at] = rng.choice((0, -1, 2**20, values[0], *values[at : at + 1]))
                    if rng.random() < 0.3:
                        del values[rng.randrange(len(values)) :]
        elif way == 6 and graph.initializer:
            held = rng.choice(graph.initializer)
            held.dims[:] = rng.choice(([3, 1], [1, 3], [3], [], [0], [2**40], [-1], [3, 1, 1], [2**33, 2**33]))
        elif way == 7 and graph.initializer:
            rng.choice(graph.initializer).data_type = rng.choice((*TensorProto.DataType.values(), 99))
        elif way == 8 and graph.initializer:
            held = rng.choice(graph.initializer)
            if held.external_data:
                entry = rng.choice(held.external_data)
                entry.value = rng.choice(
                    ("../weights.bin", "/etc/passwd", "0", "-4", "8", str(2**62), "", "weights.bin")
                )
            else:
                held.raw_data = by_bytes(held.raw_data, rng)
        elif way == 9 and graph.initializer:
            rng.choice(graph.initializer).name = rng.choice(("x", "w", "y", ""))
        elif way == 10:
            value = rng.choice((*graph.input, *graph.output))
            value.type.tensor_type.elem_type = rng.choice(TensorProto.DataType.values())
        elif way == 11:
            value = rng.choice((*graph.input, *graph.output))
            for axis in value.type.tensor_type.shape.dim:
                axis.dim_value = rng.choice((0, 1, 3, 24, -1, 2**40))
        elif way == 12 and model.opset_import:
            model.opset_import[0].version = rng.choice((0, 1, 7, 13, 19, 999, -1))
        else:
            model.ir_version = rng.choice((0, 1, 3, 8, 99))
    return bytes(model.SerializeToString())


def by_table(path: Path, rng: random.Random) -> None:
    """Columns of a table removed, doubled, renamed, of another type, with gaps; packed otherwise."""
    import pyarrow as pa
    import pyarrow.feather as feather
    import pyarrow.parquet as pq

    if path.suffix == ".parquet":
        rows = pq.ParquetFile(path).read()
    else:
        opened = pa.ipc.open_file if path.suffix == ".feather" else pa.ipc.open_stream
        rows = opened(path.read_bytes()).read_all()
    at = rng.randrange(rows.num_columns)
    name, column = rows.column_names[at], rows.column(at)
    way = rng.randrange(8)
    if way == 0:
        rows = rows.remove_column(at)
    elif way == 1:
        rows = rows.append_column(rng.choice((name, "extra", "")), column)
    elif way == 2:
        names = list(rows.column_names)
        names[at] = rng.choice(ODD_TEXTS)
        rows = rows.rename_columns(names)
    elif way == 3:
        kinds = (pa.float64(), pa.float16(), pa.string(), pa.int64(), pa.bool_(), pa.decimal128(30, 10), pa.binary())
        try:
            rows = rows.set_column(at, name, column.cast(rng.choice(kinds), safe=False))
        except pa.ArrowException:
            rows = rows.set_column(at, name, pa.nulls(len(rows)))
    elif way == 4:
        values = [None if rng.random() < 0.2 else value for value in column.to_pylist()]
        rows = rows.set_column(at, name, pa.array(values, column.type))
    elif way == 5:
        nested = rng.choice((pa.array([[1.0, 2.0]] * len(rows)), pa.array([{"a": 1}] * len(rows)), pa.nulls(len(rows))))
        rows = rows.set_column(at, name, nested)
    elif way == 6:
        rows = rows.slice(0, rng.choice((0, 1, 7)))
    else:
        rows = rows.take(pa.array([rng.randrange(len(rows)) for _ in range(len(rows))]))
    if rng.random() < 0.2:
        rows = rows.replace_schema_metadata({"pandas": rng.choice(ODD_TEXTS), "likewise": "{}"})
    if path.suffix == ".parquet":
        pq.write_table(rows, path, compression=rng.choice(("none", "snappy", "gzip", "zstd")), row_group_size=7)
    elif path.suffix == ".feather":
        feather.write_feather(rows, path, compression=rng.choice(("lz4", "zstd", "uncompressed")))
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, rows.schema) as stream:
            stream.write_table(rows)


def by_tensor(content: bytes, rng: random.Random) -> bytes:
    """The tensor of a test case: other sizes, types, names, too few or too many values."""
    from onnx import TensorProto

    tensor = TensorProto()
    tensor.ParseFromString(content)
    way = rng.randrange(5)
    if way == 0:
        tensor.dims[:] = rng.choice(([3, 24], [24], [24, 4], [0, 3], [2**40, 3], [-1, 3], []))
    elif way == 1:
        tensor.data_type = rng.choice((*TensorProto.DataType.values(), 77))
    elif way == 2:
        tensor.name = rng.choice(ODD_TEXTS)
    elif way == 3:
        tensor.raw_data = by_bytes(tensor.raw_data, rng)
    else:
        tensor.float_data.extend(np.arange(rng.randrange(200), dtype=float))
    return bytes(tensor.SerializeToString())


FORMS: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "onnx": by_onnx, "json": by_json, "lines": by_lines, "zip": by_zip, "npy": by_npy, "pickle": by_pickle,
}  # fmt: skip


def structured(way: Callable[[bytes, random.Random], bytes], content: bytes, rng: random.Random) -> bytes:
    """By structure where the file still has one."""
    try:
        return way(content, rng)
    except Exception:  # noqa: BLE001 - what cannot be changed by its structure is changed without
        return by_bytes(content, rng)


def mutate(whole: Path, folder: Path, form: str, rng: random.Random) -> Path:
    """A damaged copy of a file or folder, with what lies beside it."""
    for beside in whole.parent.iterdir():
        (shutil.copytree if beside.is_dir() else shutil.copyfile)(beside, folder / beside.name)
    path = folder / whole.name
    if form == "tensors":
        chosen = rng.choice(sorted(path.iterdir()))
        if rng.random() < 0.1:
            chosen.rename(chosen.with_name(rng.choice(("input_1.pb", "output_9.pb", "input_x.pb", "notes.txt"))))
        else:
            way = by_tensor if rng.random() < 0.6 else by_bytes
            chosen.write_bytes(structured(way, chosen.read_bytes(), rng))
        return path
    if form == "table" and rng.random() < 0.6:
        with contextlib.suppress(Exception):  # what no library reads any more is damaged without
            by_table(path, rng)
            return path
    beside = folder / "weights.bin"
    if form == "onnx" and beside.exists() and rng.random() < 0.2:
        beside.write_bytes(by_bytes(beside.read_bytes(), rng))
        return path
    way = FORMS.get(form, by_bytes) if rng.random() < 0.7 else by_bytes
    path.write_bytes(structured(way, path.read_bytes(), rng))
    return path
