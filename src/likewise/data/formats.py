"""The formats that tables are stored in, each read a block at a time: Arrow and Feather, Parquet, CSV.

JSON Lines are in `json_lines`.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

from likewise.contracts.values import dataclass
from likewise.data.filters import Wanted
from likewise.errors import DataError, one_line

if TYPE_CHECKING:
    import pyarrow as pa


BLOCK_BYTES = 1 << 23
"""How much of a file is held at a time; types of text formats are settled on the first block."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a file before its rows are read."""

    schema: pa.Schema
    rows: int | None


class Format(Protocol):
    """All knowledge of one file format."""

    def inspect(self, path: str, like: pa.Schema | None) -> Facts:
        """The columns of a file. `like` is the schema of the first file, where types are inferred from it."""
        ...

    def read(
        self,
        path: str,
        schema: pa.Schema,
        start: int,
        stop: int,
        wanted: Wanted | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Batches with the position of their first row in the file.

        Formats that can skip leave out batches outside `start` to `stop`, and those that hold no row that is `wanted`
        by what the file says about them; none cuts a batch. Of `columns` alone, batches may hold others beside them.
        """
        ...


def open_bytes(path: str) -> BinaryIO:
    """The bytes of a text format, unpacked if the name says that they are packed."""
    return cast(BinaryIO, gzip.open(path)) if path.lower().endswith(".gz") else open(path, "rb")


@contextmanager
def reading(path: str, *, remedy: str) -> Iterator[None]:
    """Turn what Arrow says of a broken file into one line with the name of the file."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read: {one_line(error).rstrip('.')}", remedy=remedy) from error


ARROW_REMEDY = "Write the file again and close its writer: it is not whole, or not Arrow"
PARQUET_REMEDY = "Write the file again: it is not whole, or not Parquet"
END_OF_STREAM = b"\x00\x00\x00\x00"


@dataclass(frozen=True, slots=True)
class Arrow:
    """Read through a memory map: what is not compressed is not copied."""

    def inspect(self, path: str, like: pa.Schema | None) -> Facts:
        with reading(path, remedy=ARROW_REMEDY):
            import pyarrow.dataset as ds

            stored = _is_file(path)
            if not stored:
                _require_end(path)
            with _opened(path) as (found, _):
                if odd := next((field for field in found.schema if _is_odd(field.type)), None):
                    told = f"{path}: column {odd.name!r} is {str(odd.type)[:60]}, which no model takes"
                    raise DataError(told, remedy="Write its values as a plain column")
                return Facts(found.schema, ds.dataset(path, format="ipc").count_rows() if stored else None)

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
        with reading(path, remedy=ARROW_REMEDY):
            for batch in self._batches(path, columns):
                if first >= stop:
                    return
                if first + batch.num_rows > start:
                    # Offsets of text and lists are followed without a look later on: numbers cost nothing here, a
                    # million texts 0.03 s.
                    batch.validate(full=True)
                    yield first, batch
                first += batch.num_rows

    def _batches(self, path: str, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        with _opened(path, columns) as (found, mapped):
            if _is_file(path):
                yield from (found.get_batch(number) for number in range(found.num_record_batches))
            else:
                yield from found
                if mapped.tell() != mapped.size():
                    told = f"{path} holds something behind the end of its stream, which some readers read"
                    raise DataError(told, remedy=ARROW_REMEDY)


def _is_odd(kind: pa.DataType) -> bool:
    """Is this a type that Arrow itself can hardly read, such as a union, or does it hold one?"""
    import pyarrow as pa

    if pa.types.is_union(kind) or pa.types.is_run_end_encoded(kind):
        return True
    return any(_is_odd(kind.field(number).type) for number in range(kind.num_fields))


def _is_file(path: str) -> bool:
    with open(path, "rb") as file:
        magic = file.read(6)
    if magic.startswith(b"FEA1"):
        raise DataError(
            f"{path} is Feather version 1, which pyarrow no longer writes",
            remedy="Convert it: pandas.read_feather(...).to_parquet(...)",
        )
    return magic == b"ARROW1"


def _require_end(path: str) -> None:
    """A stream cut between two batches would otherwise look like a shorter one."""
    with open(path, "rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - len(END_OF_STREAM)))
        if file.read() != END_OF_STREAM:
            raise DataError(f"{path} is an Arrow stream without its end marker, or no Arrow data", remedy=ARROW_REMEDY)


@contextmanager
def _opened(path: str, columns: Sequence[str] | None = None) -> Iterator[Any]:
    import pyarrow as pa

    opened = pa.ipc.open_file if _is_file(path) else pa.ipc.open_stream
    options = None
    if columns is not None:
        with _opened(path) as (whole, _):
            options = pa.ipc.IpcReadOptions(included_fields=sorted(map(whole.schema.get_field_index, columns)))
    with pa.memory_map(path) as mapped, opened(mapped, options=options) as found:
        yield found, mapped


BUFFER_BYTES, LEAST_BUFFER = 1 << 20, 1 << 13
"""Of every column of a Parquet file, what is read at a time, and at least; of all together about a block."""


@dataclass(frozen=True, slots=True)
class Parquet:
    """Row groups outside the rows asked for are not read."""

    def inspect(self, path: str, like: pa.Schema | None) -> Facts:
        import pyarrow.parquet as pq

        with reading(path, remedy=PARQUET_REMEDY), pq.ParquetFile(path) as file:
            return Facts(file.schema_arrow, file.metadata.num_rows)

    def read(
        self,
        path: str,
        schema: pa.Schema,
        start: int,
        stop: int,
        wanted: Wanted | None = None,
        columns: Sequence[str] | None = None,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        import pyarrow.parquet as pq

        # Through a buffer: read ahead, a row group is held as a whole, two of them from one to the next, of any size.
        with ExitStack() as stack:
            stack.enter_context(reading(path, remedy=PARQUET_REMEDY))
            told = pq.read_metadata(path)
            width = told.num_columns if columns is None else len(columns)
            size = max(LEAST_BUFFER, min(BUFFER_BYTES, BLOCK_BYTES // max(1, width)))
            opened = pq.ParquetFile(path, metadata=told, pre_buffer=False, buffer_size=size)
            file = stack.enter_context(opened)
            first = 0
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                end = first + group.num_rows
                position = first
                if end > start and first < stop and (wanted is None or wanted.any_in(file, number)):
                    rows = _rows_a_block(group, columns)
                    for batch in file.iter_batches(rows, row_groups=[number], columns=columns):
                        yield position, batch
                        position += batch.num_rows
                        if position >= stop:
                            return
                    if position != end:
                        raise DataError(
                            f"{path} promises {group.num_rows:,} rows in row group {number} "
                            f"and delivers {position - first:,}",
                            remedy=PARQUET_REMEDY,
                        )
                first = end


def _rows_a_block(group: Any, columns: Sequence[str] | None) -> int:
    """Many rows at once, but of wide rows fewer."""
    size = group.total_byte_size
    if columns is not None:
        names, parts = set(columns), map(group.column, range(group.num_columns))
        # Of what lies within each other the way is noted, with dots, which may also be part of a name.
        mine = (part for part in parts if names & {part.path_in_schema, part.path_in_schema.partition(".")[0]})
        size = sum(part.total_uncompressed_size for part in mine)
    width = max(1, size // max(1, group.num_rows))
    return int(min(max(4 * BLOCK_BYTES // width, 64), 65_536))


MISSING = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
"""The words that `pandas.read_csv` takes for a missing value."""

HEADER_LINES, HEADER_BYTES = 1 << 16, 1 << 24
"""Lines in which a header is looked for, and how long one may be: a thousand of its bytes can be packed in one."""

MOST_COLUMNS = 1 << 17
"""Columns of a table of text: each takes 12 KB before there is a row."""

PEEK_BYTES = 1 << 12
"""How far to look for the first row."""

OTHER_DELIMITERS = (";", "\t", "|", ",")
"""What stands between the columns of a table whose header seems to be one name."""

CSV_REMEDY = "Correct or write the file again; Parquet is safer"
_CONVERSION = r"(?s)In CSV column #(\d+): .*conversion error to (\S+): (.*)"
_FIELDS = r"(?s)(?:Row #(\d+): )?Expected (\d+) columns, got (\d+): (.*)"


@dataclass(frozen=True, slots=True)
class Delimited:
    """Text with a header and one row a line."""

    delimiter: str

    def inspect(self, path: str, like: pa.Schema | None) -> Facts:
        import pyarrow as pa

        with reading(path, remedy=CSV_REMEDY), _Text(path, self.delimiter) as text:
            if like is not None:
                types = dict(zip(like.names, like.types, strict=True))
                return Facts(pa.schema([(name, types.get(name, pa.null())) for name in text.names]), None)
            with self._rows(path, text, None) as rows:
                inferred = rows.schema if rows else pa.schema([(name, pa.null()) for name in text.names])
        for field in inferred:
            if pa.types.is_binary(field.type):
                raise DataError(
                    f"{path} is not UTF-8 text: column {field.name!r} cannot be decoded",
                    remedy="Write the file again with encoding='utf-8'",
                )
        as_text = [field.with_type(pa.string()) if pa.types.is_temporal(field.type) else field for field in inferred]
        return Facts(pa.schema(as_text), None)

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
        with reading(path, remedy=CSV_REMEDY), _Text(path, self.delimiter) as text:
            with self._rows(path, text, schema, columns) as rows:
                for batch in rows or ():
                    yield first, batch
                    first += batch.num_rows
            if text.quotes % 2 and _ends_in_quotes(path, self.delimiter):
                raise DataError(
                    f"{path} has a quotation mark that is never closed: what follows it was read as one value",
                    remedy="Write the file again: its end may be missing, or a quotation mark is not doubled",
                )

    @contextmanager
    def _rows(
        self, path: str, text: _Text, schema: pa.Schema | None, columns: Sequence[str] | None = None
    ) -> Iterator[Any]:
        """Arrow's reader of the rows under the header, or None where there are none."""
        import pyarrow as pa
        import pyarrow.csv as pc

        if text.is_blank:
            yield None
            return
        try:
            with pc.open_csv(
                pa.PythonFile(text, mode="r"),
                # Without threads it is as fast, and can say in which row an error is.
                read_options=pc.ReadOptions(block_size=BLOCK_BYTES, column_names=text.names, use_threads=False),
                parse_options=pc.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
                convert_options=pc.ConvertOptions(
                    null_values=MISSING,
                    strings_can_be_null=True,
                    column_types=None if schema is None else {name: schema.field(name).type for name in text.names},
                    include_columns=columns,
                ),
            ) as rows:
                yield rows
        except pa.ArrowInvalid as error:
            raise _csv_error(path, str(error), text.names) from error


class _Text(io.RawIOBase):
    """The text under the header. It keeps count of quotation marks and always ends with a newline."""

    def __init__(self, path: str, delimiter: str) -> None:
        super().__init__()
        self.quotes = 0
        self._ended = False
        self._file = open_bytes(path)
        try:
            self.names = _header(path, self._file, delimiter)
            self._ahead = next(_without_leading_newlines(self._file), b"")
        except BaseException:
            self._file.close()
            raise
        self.is_blank = not self._ahead

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        block, self._ahead = (self._ahead, b"") if size < 0 else (self._ahead[:size], self._ahead[size:])
        block = block or self._file.read(size)
        self.quotes += block.count(b'"')
        if not block and not self._ended:
            self._ended = True
            return b"\n"
        return block

    def close(self) -> None:
        self._file.close()
        super().close()


def _without_leading_newlines(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(PEEK_BYTES):
        if block := block.lstrip(b"\r\n"):
            yield block


def _header(path: str, file: BinaryIO, delimiter: str) -> list[str]:
    """The names of the columns; one without a name, such as an index that pandas wrote, is called as pandas does."""
    try:
        lines = (line.decode("utf-8-sig") for line in islice(_short_lines(file), HEADER_LINES))
        row = next((row for row in csv.reader(lines, delimiter=delimiter) if row), None)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} has a header that cannot be read: {error}", remedy=CSV_REMEDY) from error
    if row is None:
        raise DataError(f"{path} has no header, only empty lines", remedy=CSV_REMEDY)
    if len(row) > MOST_COLUMNS:
        raise DataError(f"{path} has {len(row):,} columns, more than {MOST_COLUMNS:,}", remedy=CSV_REMEDY)
    if len(row) == 1 and (other := next((sign for sign in OTHER_DELIMITERS if sign in row[0]), None)):
        raise DataError(
            f"{path} seems to have {other!r} between its columns, not {delimiter!r}: its header is {row[0][:80]!r}",
            remedy=f"Give the Parquet file of pandas.read_csv(..., sep={other!r}).to_parquet(...)",
        )
    return [name or f"Unnamed: {position}" for position, name in enumerate(row)]


def _short_lines(file: BinaryIO) -> Iterator[bytes]:
    while line := file.readline(HEADER_BYTES):
        if len(line) == HEADER_BYTES:
            raise csv.Error(f"a line of more than {HEADER_BYTES >> 20} MiB")
        yield line


def _ends_in_quotes(path: str, delimiter: str) -> bool:
    """Read by the rules of the csv module, slowly: an odd mark may also stand for inches."""
    with open_bytes(path) as file:
        lines = (line.decode("utf-8-sig", errors="replace") for line in file)
        try:
            for _ in csv.reader(lines, delimiter=delimiter, strict=True):
                pass
        except csv.Error:
            return True
    return False


def _csv_error(path: str, message: str, names: list[str]) -> DataError:
    """What pyarrow says of a row or a value, with the name of the column."""
    if found := re.search(_CONVERSION, message):
        name = names[int(found[1])]
        return DataError(
            f"{path} changes type on the way: column {name!r} began as {found[2]}, then came {found[3]}",
            remedy="Settle the types once, with pandas.read_csv(...).to_parquet(...), and give the Parquet file",
        )
    if found := re.search(_FIELDS, message):
        where = f"row {int(found[1]) - 1:,} (the first is 0)" if found[1] else "a row"
        return DataError(
            f"{path}: {where} has {found[3]} fields where the header has {found[2]}: {found[4][:80]!r}",
            remedy="Correct the row; a value that holds the delimiter must be quoted",
        )
    return DataError(f"{path} cannot be read: {message}", remedy=CSV_REMEDY)
