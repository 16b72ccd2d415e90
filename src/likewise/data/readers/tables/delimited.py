"""CSV and TSV, read as `pandas.read_csv` would, a block at a time."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

from likewise.data.readers.tables.files import BLOCK_BYTES, Facts, open_bytes, reading
from likewise.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


MISSING = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"),
    *("<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
"""The words that `pandas.read_csv` takes for a missing value."""

PEEK_BYTES = 1 << 12
"""How far to look for the first row."""

REMEDY = "Correct or write the file again; Parquet is safer"
_CONVERSION = re.compile(r"In CSV column #(\d+): .*conversion error to (\S+): (.*)", re.DOTALL)
_FIELDS = re.compile(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+): (.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Delimited:
    """Text with a header and one row a line."""

    delimiter: str

    def inspect(self, path: str, like: pa.Schema | None) -> Facts:
        import pyarrow as pa

        with reading(path, remedy=REMEDY), _Text(path, self.delimiter) as text:
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

    def read(self, path: str, schema: pa.Schema, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        first = 0
        with reading(path, remedy=REMEDY), _Text(path, self.delimiter) as text:
            with self._rows(path, text, schema) as rows:
                for batch in rows or ():
                    yield first, batch
                    first += batch.num_rows
            if text.quotes % 2 and _ends_in_quotes(path, self.delimiter):
                raise DataError(
                    f"{path} has a quotation mark that is never closed: what follows it was read as one value",
                    remedy="Write the file again: its end may be missing, or a quotation mark is not doubled",
                )

    @contextmanager
    def _rows(self, path: str, text: _Text, schema: pa.Schema | None) -> Iterator[Any]:
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
                ),
            ) as rows:
                yield rows
        except pa.ArrowInvalid as error:
            raise _explained(path, str(error), text.names) from error


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
        lines = (line.decode("utf-8-sig") for line in file)
        row = next((row for row in csv.reader(lines, delimiter=delimiter) if row), None)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} has a header that cannot be read: {error}", remedy=REMEDY) from error
    if row is None:
        raise DataError(f"{path} has no header, only empty lines", remedy=REMEDY)
    return [name or f"Unnamed: {position}" for position, name in enumerate(row)]


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


def _explained(path: str, message: str, names: list[str]) -> DataError:
    """What pyarrow says of a row or a value, with the name of the column."""
    if found := _CONVERSION.search(message):
        name = names[int(found[1])]
        return DataError(
            f"{path} changes type on the way: column {name!r} began as {found[2]}, then came {found[3]}",
            remedy="Settle the types once, with pandas.read_csv(...).to_parquet(...), and give the Parquet file",
        )
    if found := _FIELDS.search(message):
        where = f"row {int(found[1]) - 1:,} (the first is 0)" if found[1] else "a row"
        return DataError(
            f"{path}: {where} has {found[3]} fields where the header has {found[2]}: {found[4][:80]!r}",
            remedy="Correct the row; a value that holds the delimiter must be quoted",
        )
    return DataError(f"{path} cannot be read: {message}", remedy=REMEDY)
