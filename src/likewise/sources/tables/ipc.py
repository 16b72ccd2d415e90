"""Arrow files and streams; Feather is an Arrow file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from likewise.errors import DataError
from likewise.sources.tables.formats import Facts, reading

if TYPE_CHECKING:
    import pyarrow as pa

REMEDY = "Write the file again and close its writer: it is not whole, or not Arrow"
END_OF_STREAM = b"\x00\x00\x00\x00"


@dataclass(frozen=True, slots=True)
class Arrow:
    """Read through a memory map: what is not compressed is not copied."""

    def inspect(self, path: str, like: pa.Schema | None) -> Facts:
        with reading(path, remedy=REMEDY):
            if not _is_file(path):
                _require_end(path)
                with _stream(path) as stream:
                    return Facts(stream.schema, None)
            import pyarrow.dataset as ds

            with _file(path) as file:
                return Facts(file.schema, ds.dataset(path, format="ipc").count_rows())

    def read(self, path: str, schema: pa.Schema, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        first = 0
        with reading(path, remedy=REMEDY):
            for batch in self._batches(path):
                if first >= stop:
                    return
                batch.validate()
                if first + batch.num_rows > start:
                    yield first, batch
                first += batch.num_rows

    def _batches(self, path: str) -> Iterator[pa.RecordBatch]:
        if _is_file(path):
            with _file(path) as file:
                yield from (file.get_batch(number) for number in range(file.num_record_batches))
        else:
            with _stream(path) as stream:
                yield from stream


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
            raise DataError(f"{path} is an Arrow stream without its end marker, or no Arrow data", remedy=REMEDY)


@contextmanager
def _file(path: str) -> Iterator[Any]:
    import pyarrow as pa

    with pa.memory_map(path) as mapped, pa.ipc.open_file(mapped) as file:
        yield file


@contextmanager
def _stream(path: str) -> Iterator[Any]:
    import pyarrow as pa

    with pa.memory_map(path) as mapped, pa.ipc.open_stream(mapped) as stream:
        yield stream
