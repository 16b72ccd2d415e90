"""Parquet, a row group at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from likewise.errors import DataError
from likewise.sources.tables.formats import BLOCK_BYTES, Facts, reading

if TYPE_CHECKING:
    import pyarrow as pa

REMEDY = "Write the file again: it is not whole, or not Parquet"


@dataclass(frozen=True, slots=True)
class Parquet:
    """Row groups outside the rows asked for are not read."""

    def inspect(self, path: str, like: pa.Schema | None) -> Facts:
        import pyarrow.parquet as pq

        with reading(path, remedy=REMEDY), pq.ParquetFile(path) as file:
            return Facts(file.schema_arrow, file.metadata.num_rows)

    def read(self, path: str, schema: pa.Schema, start: int, stop: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        import pyarrow.parquet as pq

        # Buffering ahead within one row group only: over the whole file it would hold the whole file.
        with reading(path, remedy=REMEDY), pq.ParquetFile(path, pre_buffer=True) as file:
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
                            remedy=REMEDY,
                        )
                first = end


def _rows_a_block(group: Any) -> int:
    """Many rows at once, but of wide rows fewer."""
    width = max(1, group.total_byte_size // max(1, group.num_rows))
    return int(min(max(4 * BLOCK_BYTES // width, 64), 65_536))
