"""JSON Lines: a row a line, each an object with named fields, read a block at a time."""

from __future__ import annotations

import io
import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from likewise.contracts.values import dataclass
from likewise.data import formats
from likewise.data.filters import Wanted
from likewise.data.formats import Facts, open_bytes, reading
from likewise.errors import DataError, one_line

if TYPE_CHECKING:
    import pyarrow as pa


NEWLINE = b"\n"
JSON_REMEDY = "Correct the line, or write the file again: whatever made it may not have finished"
RETYPE = "Settle the types once, with pandas.read_json(..., lines=True).to_parquet(...), and give the Parquet file"

MOST_NESTED = 100
"""Lists and objects within each other: deeper than any row, and far less than fills the stack of Arrow's parser."""

LONGEST_LINE = 1 << 25
"""Bytes of a line of JSON: its reader takes many times as much, and a file of a few kilobytes may unpack to it."""

_STRING = rb'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"'


@dataclass(frozen=True, slots=True)
class JsonLines:
    """Fields may be left out of a line, where they are missing; a field that comes up later is an error."""

    def inspect(self, path: str, like: pa.Schema | None) -> Facts:
        import pyarrow as pa

        with reading(path, remedy=JSON_REMEDY):
            for _, block in _blocks(path):
                if like is not None:
                    return Facts(like, None)
                inferred = _parse(path, block, None, line=1).schema
                return Facts(pa.schema([field.with_type(_as_text(field.type)) for field in inferred]), None)
        raise DataError(f"{path} holds no lines", remedy=JSON_REMEDY)

    def read(
        self,
        path: str,
        schema: pa.Schema,
        start: int,
        stop: int,
        wanted: Wanted | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        first = 0
        with reading(path, remedy=JSON_REMEDY):
            for line, block in _blocks(path):
                for batch in _parse(path, block, schema, line=line).to_batches():
                    yield first, batch
                    first += batch.num_rows


def _blocks(path: str) -> Iterator[tuple[int, bytes]]:
    """Whole lines, with the number of the first."""
    line = 1
    with open_bytes(path) as file:
        while block := file.read(formats.BLOCK_BYTES):
            rest = file.readline(LONGEST_LINE)
            if len(rest) == LONGEST_LINE:
                told = f"{path}, line {line + block.count(NEWLINE)} is longer than {LONGEST_LINE >> 20} MiB"
                raise DataError(told, remedy="Write one row a line; large arrays belong into Parquet or .npz")
            block += rest
            if not block.isspace():
                yield line, block
            line += block.count(NEWLINE)


def _parse(path: str, block: bytes, schema: pa.Schema | None, *, line: int) -> pa.Table:
    import pyarrow as pa
    import pyarrow.json as pj

    plain = not _may_be_deep(block)
    if not plain and _depth(block) > MOST_NESTED:
        raise DataError(
            f"{path}, lines from {line} on: more than {MOST_NESTED} lists or objects within each other",
            remedy="Write flat rows: one object a line, with lists of numbers in it",
        )
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="infer" if schema is None else "error")
    try:
        whole = pj.ReadOptions(block_size=len(block) + 1, use_threads=False)
        found = pj.read_json(io.BytesIO(block), read_options=whole, parse_options=options)
    except pa.ArrowInvalid as error:
        raise _json_error(path, block, schema, line, one_line(error)) from error
    if not _a_row_a_line(block, found.num_rows, plain=plain):
        raise _json_error(path, block, schema, line, "rows and lines are not as many")
    return found


def _a_row_a_line(block: bytes, rows: int, *, plain: bool) -> bool:
    """Arrow also reads several objects in a line, and one over several lines; other readers do not."""
    if plain:
        return block.rstrip(NEWLINE).count(NEWLINE) + 1 == rows
    lines = [text for text in map(bytes.strip, block.removeprefix(BOM_UTF8).split(NEWLINE)) if text]
    # Between two parts of an object there is a comma or a colon.
    return len(lines) == rows and all(text[:1] == b"{" and text[-1:] == b"}" for text in lines)


def _may_be_deep(block: bytes) -> bool:
    """Not if every line is an object of its own and opens few others: quick, as nearly all blocks are like that."""
    import numpy as np

    block = block.replace(b"\r\n", b"\n") if b"\r" in block else block
    text = np.frombuffer(block, dtype=np.uint8, count=len(block.rstrip(b"\n")))
    ends = np.flatnonzero(text == ord("\n"))
    first, last = text[np.append(0, ends + 1)], text[np.append(ends - 1, len(text) - 1)]
    # An object that goes on in the next line would have a comma or a colon between the two.
    if (first != ord("{")).any() or (last != ord("}")).any():
        return True
    # One bit tells a bracket from a brace.
    openings = np.searchsorted(ends, np.flatnonzero(text | 0x20 == ord("{")))
    return bool((openings[MOST_NESTED:] == openings[:-MOST_NESTED]).any())


def _depth(block: bytes) -> int:
    """How many lists and objects lie within each other."""
    import numpy as np

    text = np.frombuffer(re.sub(_STRING, b"", block), dtype=np.uint8) | 0x20
    steps = (text == ord("{")).astype(np.int32) - (text == ord("}"))
    return int(np.cumsum(steps).max(initial=0))


def _as_text(kind: pa.DataType) -> pa.DataType:
    """JSON has no dates: what looks like one is text, as pandas and the json module read it."""
    import pyarrow as pa

    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_as_text(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_text(field.type)) for field in kind])
    return kind


def _json_error(path: str, block: bytes, schema: pa.Schema | None, line: int, message: str) -> DataError:
    """The line and field that Arrow refused, found by reading the block once more."""
    seen: dict[str, str] = {}
    known = None if schema is None else {field.name: str(field.type) for field in schema}
    for number, text in enumerate(block.splitlines(), start=line):
        if not text or text.isspace():
            continue
        try:
            row = json.loads(text)
        except ValueError as error:
            return DataError(f"{path}, line {number} is not JSON: {error}: {_shown(text)}", remedy=JSON_REMEDY)
        if not isinstance(row, dict):
            return DataError(
                f"{path}, line {number} is not an object with named fields: {_shown(text)}", remedy=JSON_REMEDY
            )
        for name, value in row.items():
            if known is not None and name not in known:
                return DataError(
                    f"{path}, line {number} brings a field {name!r} that the first lines do not have", remedy=RETYPE
                )
            expected = seen.get(name, "null") if known is None else known[name]
            if known is None and expected == "null":
                seen[name] = _kind(value)
                continue
            if not _fits(value, expected):
                return DataError(
                    f"{path} changes type on the way: field {name!r} began as {expected}, "
                    f"and is {json.dumps(value)[:80]} in line {number}",
                    remedy=RETYPE,
                )
    return DataError(f"{path}, lines from {line} on: {message}", remedy=JSON_REMEDY)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {bool: "bool", int: "double", float: "double", str: "string", list: "list", dict: "struct"}
    return kinds[type(value)]


def _fits(value: Any, expected: str) -> bool:
    kind = _kind(value)
    return kind == "null" or expected.startswith(kind) or (expected == "int64" and type(value) is int)


def _shown(text: bytes) -> str:
    return repr(text[:80].decode(errors="replace"))
