"""Arrow files and streams (Feather is an Arrow file), and Parquet, a row group at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from likewise.data.readers.tables.files import BLOCK_BYTES, Facts, reading
from likewise.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


REMEDY = "Write the file again and close its writer: it is not whole, or not Arrow"
PARQUET_REMEDY = "Write the file again: it is not whole, or not Parquet"
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


@dataclass(frozen=True, slots=True)
class Parquet:
    """Row groups outside the rows asked for are not read."""

    def inspect(self, path: str, like: pa.Schema | None) -> Facts:
        import pyarrow.parquet as pq

        with reading(path, remedy=PARQUET_REMEDY), pq.ParquetFile(path) as file:
            return Facts(file.schema_arrow, file.metadata.num_rows)

    def read(self, path: str, schema: pa.Schema, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        import pyarrow.parquet as pq

        # Buffering ahead within one row group only: over the whole file it would hold the whole file.
        with reading(path, remedy=PARQUET_REMEDY), pq.ParquetFile(path, pre_buffer=True) as file:
            first = 0
            for number in range(file.num_row_groups):
                group = file.metadata.row_group(number)
                end = first + group.num_rows
                position = first
                if end > start and first < stop:
                    for batch in file.iter_batches(_rows_a_block(group), row_groups=[number]):
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


def _rows_a_block(group: Any) -> int:
    """Many rows at once, but of wide rows fewer."""
    width = max(1, group.total_byte_size // max(1, group.num_rows))
    return int(min(max(4 * BLOCK_BYTES // width, 64), 65_536))
