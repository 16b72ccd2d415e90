"""Which files a path, a glob or a folder stands for, and what the formats of tables have in common."""

from __future__ import annotations

import glob
import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

from likewise.data.readers.onnx_testdata import is_test_data
from likewise.errors import DataError, nearest, one_line

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

    def read(self, path: str, schema: pa.Schema, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Batches with the position of their first row in the file.

        Formats that can skip leave out batches outside `start` to `stop`; none cuts a batch.
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
        empty = f"there is no file {path}{_near(path)}"
    else:
        files = sorted(found for found in glob.glob(path, recursive=True) if _visible(found) and _format_of(found))
        empty = f"no file matches {path}"
    if not files:
        remedy = "Only local files are read: download it first" if "://" in path else "Check the path"
        raise DataError(empty, remedy=remedy)
    formats = sorted({str(_format_of(file)) for file in files})
    if len(formats) > 1:
        examples = ", ".join(next(os.path.basename(f) for f in files if _format_of(f) == kind) for kind in formats)
        raise DataError(
            f"{path} holds files of {len(formats)} formats ({', '.join(formats)}): {examples}",
            remedy=f"Choose one format with a glob, such as {os.path.join(path, '*' + _suffix(files[0]))}",
        )
    for file in files:
        if os.path.isfile(file) and os.path.getsize(file) == 0:
            raise DataError(f"{file} is empty (0 bytes)", remedy="Write it again: whatever made it did not finish")
    return formats[0], files


def _tables_in(folder: str) -> list[str]:
    paths = (os.path.join(folder, name) for name in sorted(os.listdir(folder)))
    return [path for path in paths if _visible(path) and _format_of(path) and os.path.isfile(path)]


def _visible(path: str) -> bool:
    return not os.path.basename(path).startswith((".", "_"))


def _suffix(path: str) -> str:
    return next(suffix for suffix in SUFFIXES if path.lower().endswith(suffix))


def _near(path: str) -> str:
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        return f"; there is no folder {folder} either"
    return nearest(os.path.basename(path), os.listdir(folder))
