"""Tables in files: Parquet, CSV and TSV, Arrow and Feather, JSON Lines.

A path, a folder or a glob; all files of one format, read in the order of their names as one table.

How a CSV becomes columns follows `pandas.read_csv`, because that is how the model met its data: an
empty field and the usual words for it (NA, NaN, null, None, ...) are missing, in text columns
too, so an empty string cannot be told from a missing one; dates stay text, in JSON Lines as well.
Types are settled on the first 8 MB of a file and hold for the rest.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from likewise.contracts.data import Batch, Provenance, RowIds, Source
from likewise.contracts.values import dataclass
from likewise.data import files
from likewise.data.columns import ArrowColumns, require_unique
from likewise.data.files import each_once
from likewise.data.filters import Wanted, Where
from likewise.data.formats import Arrow, Delimited, Format, Parquet
from likewise.data.json_lines import JsonLines
from likewise.data.noted import index_columns
from likewise.data.patterns import matching
from likewise.data.readers import rebatched, split
from likewise.data.readers.onnx_testdata import is_test_data
from likewise.data.stores import copied, is_stored
from likewise.errors import DataError, UsageError, nearest

if TYPE_CHECKING:
    import pyarrow as pa


FORMATS: dict[str, Format] = {
    "parquet": Parquet(),
    "csv": Delimited(","),
    "tsv": Delimited("\t"),
    "arrow": Arrow(),
    "jsonl": JsonLines(),
}
TURN = 1024
"""Rows that one shard takes before the next has its turn, where the number of rows is not known."""

ENDLESS = 1 << 62
NUMBERS = "\0numbers"
"""What the numbers of rows are called among their columns, while some are chosen."""

_Begun: TypeAlias = "tuple[tuple[int, pa.RecordBatch], Iterator[tuple[int, pa.RecordBatch]]]"
"""The first batch of a table, and the rest of it."""


@dataclass(frozen=True)
class TableSource:
    """Rows of one or more table files, or the part of them that is one shard.

    `start` and `stop` bound the rows; of those, every `turns`-th block of rows from `turn` on, and of these the ones
    that `where` holds for. A folder may say in its name what a column holds in all rows below (`partitions`, by file).
    Only `columns` are read, where they are named, and what pandas wrote as the index.
    """

    location: str
    format: str
    paths: tuple[str, ...]
    schema: pa.Schema
    counts: tuple[int | None, ...]
    start: int = 0
    stop: int = ENDLESS
    turn: int = 0
    turns: int = 1
    where: Where | None = None
    partitions: tuple[Mapping[str, Any], ...] = ()
    columns: frozenset[str] | None = None
    _begun: list[_Begun] = field(default_factory=list, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_begun": []}

    @property
    def provenance(self) -> Provenance:
        return Provenance.REAL

    @cached_property
    def fingerprint(self) -> str:
        stored = files.hash_files(self.paths)
        if not self.partitions:
            return stored
        # What the names of folders say is in no file, and in every row.
        types = {name: str(self.schema.field(name).type) for name in self.partitions[0]}
        said = [sorted(part.items()) for part in self.partitions]
        return hashlib.sha256(repr((stored, types, said)).encode()).hexdigest()

    @property
    def rows(self) -> int | None:
        if None in self.counts or self.where is not None:
            return None
        return min(self.stop, sum(count or 0 for count in self.counts)) - self.start

    def batches(self, size: int) -> Iterator[Batch]:
        import numpy as np
        import pyarrow as pa

        def numbered() -> Iterator[Batch]:
            for first, piece in self._pieces():
                numbers = np.arange(first, first + piece.num_rows, dtype=np.int64)
                table = pa.Table.from_batches([piece])
                if self.where is not None:
                    counted = table.append_column(NUMBERS, pa.array(numbers)).filter(self.where.expression)
                    numbers, table = counted.column(NUMBERS).to_numpy(), counted.select(self._names())
                if len(numbers):
                    yield Batch(RowIds(numbers), ArrowColumns(table))

        return rebatched(numbered(), size)

    def shards(self, count: int) -> Sequence[Source]:
        """Ranges of rows where their number is known, else blocks of rows in turn."""
        total = self.rows
        if count <= 1 or self.turns > 1 or total == 0:
            return [self]
        if total is None:
            return [replace(self, turn=turn, turns=count) for turn in range(count)]
        ranges = split(self.start, self.start + total, count)
        return [replace(self, start=start, stop=stop) for start, stop in ranges]

    def only(self, names: Iterable[str]) -> TableSource:
        """The same rows with these columns; what was read of the others to look at the first rows is let go."""
        self._begun.clear()
        return replace(self, columns=frozenset(names))

    def _names(self, *more: str) -> list[str]:
        """The columns of a batch, and more that are read on the way."""
        if self.columns is None:
            return list(self.schema.names)
        taken = {*self.columns, *index_columns(self.schema), *more}
        return [name for name in self.schema.names if name in taken]

    def _pieces(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Batches with the number of their first row; where somebody only looked at the first, it is not read again."""
        first, rest = self._begun.pop() if self._begun else (None, self._stored())
        first = first or next(rest, None)
        if first is None:
            return
        try:
            yield first
        except GeneratorExit:
            self._begun.append((first, rest))
            raise
        yield from rest

    def _stored(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Batches as they are stored, cut to the rows of this shard, with the number of their first row."""
        import pyarrow as pa

        first = 0
        names = self._names(*(self.where.columns if self.where else ()))
        whole = pa.schema([self.schema.field(name) for name in names], self.schema.metadata)
        named = self.partitions or ({},) * len(self.paths)
        stored_here = [name for name in self.schema.names if name not in named[0]] if named else []
        schema = pa.schema([self.schema.field(name) for name in stored_here], self.schema.metadata)
        # A file is read for its rows even if all that is asked for stands in the names of its folders.
        few = None if self.columns is None else [name for name in stored_here if name in names] or stored_here[:1]
        for path, count, said in zip(self.paths, self.counts, named, strict=True):
            end = first if count is None else first + count
            if count is None or (end > self.start and first < self.stop):
                wanted = Wanted(self.where, self.schema, said) if self.where else None
                stored = FORMATS[self.format].read(path, schema, self.start - first, self.stop - first, wanted, few)
                for position, batch in stored:
                    end = max(end, first + position + batch.num_rows)
                    # The columns in the order of the first file, under its metadata.
                    columns = [
                        _repeated(said[name], self.schema.field(name).type, batch.num_rows)
                        if name in said
                        else batch.column(name)
                        for name in names
                    ]
                    yield from self._cut(first + position, pa.RecordBatch.from_arrays(columns, schema=whole))
            first = end

    def _cut(self, first: int, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        low, high = max(first, self.start), min(first + batch.num_rows, self.stop)
        while low < high:
            end = high if self.turns == 1 else min(high, (low // TURN + 1) * TURN)
            if self.turns == 1 or low // TURN % self.turns == self.turn:
                yield low, batch.slice(low - first, end - low)
            low = end


def _repeated(value: Any, kind: pa.DataType, rows: int) -> pa.Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(value, kind), rows)


def filtered(source: Source, text: str) -> Source:
    """The rows of a table for which a condition holds."""
    if not isinstance(source, TableSource):
        raise UsageError("--where chooses rows of tables", remedy="Give Parquet, CSV, Arrow or JSON Lines files")
    where = Where(text)
    where.require(source.schema)
    return replace(source, location=f"{source.location} where {text}", where=where)


def table_of(
    location: str,
    format_name: str,
    paths: Sequence[str],
    partitions: Sequence[Mapping[str, Any]] | None = None,
    types: pa.Schema | None = None,
) -> TableSource:
    """Look at every file, and refuse what is not one table.

    What a column holds in all rows of a file (`partitions`, of these `types`) is read from the names of folders unless
    somebody knows it.
    """
    import pyarrow as pa

    schema: pa.Schema | None = None
    counts: list[int | None] = []
    for path in paths:
        facts = FORMATS[format_name].inspect(path, schema)
        remedy = "Rename or remove the duplicates: inputs are found by name"
        require_unique(path, facts.schema.names, remedy=remedy)
        if schema is None:
            schema = pa.schema([(f.name, f.type) for f in facts.schema], metadata=facts.schema.metadata)
        else:
            _require_same(paths[0], schema, path, facts.schema)
        counts.append(facts.rows)
    assert schema is not None
    if partitions is not None and types is not None:
        for name in partitions[0]:
            schema = schema.append(types.field(name))
        known = tuple(partitions) if partitions[0] else ()
        return TableSource(location, format_name, tuple(paths), schema, tuple(counts), partitions=known)
    partitions = _partitions(location, paths, schema)
    for name in partitions[0] if partitions else ():
        kind = pa.int64() if all(isinstance(said[name], int | None) for said in partitions) else pa.string()
        partitions = [{**said, name: said[name] if kind == pa.int64() else _text(said[name])} for said in partitions]
        schema = schema.append(pa.field(name, kind))
    return TableSource(location, format_name, tuple(paths), schema, tuple(counts), partitions=tuple(partitions))


def _partitions(location: str, paths: Sequence[str], schema: pa.Schema) -> list[dict[str, Any]]:
    """What the folders between a table and its files say, as in `country=NL/part.parquet`; none where none does."""
    top = os.path.expanduser(location)
    found = []
    for path in paths:
        steps = os.path.relpath(os.path.dirname(path), top).split(os.sep) if os.path.isdir(top) else []
        named = [step.split("=", 1) for step in steps if "=" in step]
        found.append(dict(named))
        if len(found[-1]) != len(named):
            raise DataError(f"the folders of {path} name a column twice", remedy="Keep one folder for each column")
    if any(said.keys() != found[0].keys() for said in found):
        raise DataError(f"the folders of {location} do not all name the same columns", remedy="Choose some by a glob")
    if twice := next((name for name in found[0] if name in schema.names), None):
        raise DataError(f"column {twice!r} is in the files of {location} and in the names of their folders")
    return [{name: _said(value) for name, value in said.items()} for said in found] if found[0] else []


def _said(value: str) -> int | str | None:
    """What a folder says: a whole number as it is usually written, a missing value by its usual name, or text."""
    if value == "__HIVE_DEFAULT_PARTITION__":
        return None
    return int(value) if re.fullmatch(r"-?(0|[1-9]\d{0,17})", value) else unquote(value)


def _text(value: int | str | None) -> str | None:
    return None if value is None else str(value)


def _require_same(first: str, schema: pa.Schema, path: str, other: pa.Schema) -> None:
    types, others = ({field.name: field.type for field in found} for found in (schema, other))
    missing = [name for name in types if name not in others]
    more = [name for name in others if name not in types]
    differ = [name for name in types if name in others and types[name] != others[name]]
    parts = []
    if missing:
        parts.append(f"{path} lacks {', '.join(map(repr, missing[:5]))}")
    if more:
        parts.append(f"{path} also has {', '.join(map(repr, more[:5]))}")
    parts += [f"{name!r} is {schema.field(name).type}, then {other.field(name).type}" for name in differ[:5]]
    if parts:
        raise DataError(
            f"{first} and {path} are not parts of one table: {'; '.join(parts)}",
            remedy="Write the files with the same columns and types, or choose some of them with a glob",
        )


SUFFIXES = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".csv": "csv",
    ".csv.gz": "csv",
    ".tsv": "tsv",
    ".tsv.gz": "tsv",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonl.gz": "jsonl",
    ".ndjson.gz": "jsonl",
}


def _format_of(path: str) -> str | None:
    """The format a file name promises."""
    name = os.path.basename(path).lower()
    return next((found for suffix, found in SUFFIXES.items() if name.endswith(suffix)), None)


def is_table(target: object) -> bool:
    """Is this a path to tables, judged by names alone?"""
    if not isinstance(target, str | os.PathLike):
        return False
    path = os.fspath(target)
    if not isinstance(path, str):
        return False
    if _format_of(path):
        return True
    return os.path.isdir(path) and not is_test_data(path) and bool(_tables_in(path))


def resolve(path: str) -> tuple[str, list[str]]:
    """The format, and the files in the order in which their rows are numbered."""
    path = os.path.expanduser(path)
    if os.path.isdir(path):
        files = _tables_in(path)
        empty = f"folder {path} holds no table files"
    elif os.path.exists(path) or not glob.has_magic(path):
        files = [path] if os.path.exists(path) else []
        empty = "" if files else f"there is no file {path}{_near(path)}"
    else:
        files = each_once(found for found in matching(path) if _visible(found) and _format_of(found))
        empty = f"no file matches {path}"
    if not files:
        remedy = "Of addresses, s3://, gs:// and abfss:// are read" if "://" in path else "Check the path"
        raise DataError(empty, remedy=remedy)
    formats = sorted({str(_format_of(file)) for file in files})
    if len(formats) > 1:
        suffix = next(suffix for suffix in SUFFIXES if files[0].lower().endswith(suffix))
        examples = ", ".join(next(os.path.basename(f) for f in files if _format_of(f) == kind) for kind in formats)
        raise DataError(
            f"{path} holds files of {len(formats)} formats ({', '.join(formats)}): {examples}",
            remedy=f"Choose one format with a glob, such as {os.path.join(path, '*' + suffix)}",
        )
    for file in files:
        if os.path.isfile(file) and os.path.getsize(file) == 0:
            raise DataError(f"{file} is empty (0 bytes)", remedy="Write it again: whatever made it did not finish")
    return formats[0], files


def _tables_in(folder: str) -> list[str]:
    """The tables of a folder, and of those in it whose names say what a column holds there."""
    paths = [os.path.join(folder, name) for name in os.listdir(folder)]
    below = [path for path in paths if "=" in os.path.basename(path) and _visible(path) and os.path.isdir(path)]
    paths += [table for part in below for table in _tables_in(part)]
    return each_once(
        path
        for path in paths
        if _visible(path) and _format_of(path) and os.path.exists(path) and not os.path.isdir(path)
    )


def _visible(path: str) -> bool:
    return not os.path.basename(path).startswith((".", "_"))


def _near(path: str) -> str:
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        return f"; there is no folder {folder} either"
    with contextlib.suppress(OSError):
        return nearest(os.path.basename(path), os.listdir(folder))
    return ""


class TablesReader:
    """Reads table files through pyarrow."""

    name = "tables"

    def claims(self, target: object) -> bool:
        """A file, glob or folder by its suffix, a folder that holds table files, or an address in an object store."""
        return is_stored(target) or is_table(target)

    def open(self, target: object) -> Source:
        location = os.fspath(target)  # type: ignore[call-overload]
        if not is_stored(location):
            return table_of(location, *resolve(location))
        folder = copied(location)
        return replace(table_of(folder, *resolve(folder)), location=location.partition("?")[0])


EXTENSION = TablesReader()
