"""What the formats of tables have in common."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

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
