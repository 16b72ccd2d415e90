"""Recorded traffic as data: the rows that a service was asked about, in their order and named by their time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from likewise.contracts.data import Batch, Columns, Provenance, RowIds, Source
from likewise.contracts.values import dataclass
from likewise.data import files
from likewise.data.captured import exchanges, is_captured, rows_of
from likewise.data.columns import ArrayColumns, ArrowColumns
from likewise.data.readers import Span
from likewise.data.times import moment
from likewise.errors import DataError


@dataclass(frozen=True)
class CapturedSource(Span):
    """Rows of recorded requests that were answered."""

    location: str
    columns: Columns
    names: Any
    times: Any

    @property
    def provenance(self) -> Provenance:
        return Provenance.RECORDED

    @cached_property
    def fingerprint(self) -> str:
        return files.hash_file(self.location)

    def batches(self, size: int) -> Iterator[Batch]:
        for batch in self.cut(self.columns, size):
            numbers = batch.rows.numbers
            times = None if self.times is None else self.times[numbers]
            yield replace(batch, rows=RowIds(numbers, self.names[numbers], times=times))


class CapturedReader:
    """Takes `.jsonl` files that begin with a request."""

    name = "captured"

    def claims(self, target: object) -> bool:
        return isinstance(target, str | os.PathLike) and is_captured(Path(target))

    def open(self, target: object) -> Source:
        import numpy as np

        path = str(target)
        found, _ = exchanges(path)
        parts = [rows_of(exchange) for exchange in found]
        if not sum(rows for rows, _ in parts):
            raise DataError(f"{path} holds no request that was answered", remedy="Record some traffic first")
        columns = list(parts[0][1])
        for exchange, (_, part) in zip(found, parts, strict=True):
            if list(part) != columns:
                told = f"{path}, line {exchange.line} has other columns than line {found[0].line}"
                raise DataError(told, remedy="Keep requests to one model in a file of their own")
        names: list[str] = []
        for exchange, (rows, _) in zip(found, parts, strict=True):
            told = exchange.time or f"line {exchange.line}"
            names += [told if rows == 1 else f"{told} row {row}" for row in range(rows)]
        listed = np.array(names, dtype=object)
        times = None
        if any(exchange.time is not None for exchange in found):
            times = np.repeat([moment(exchange.time) for exchange in found], [rows for rows, _ in parts])
        return CapturedSource(path, _together([part for _, part in parts]), listed, times, stop=len(listed))


def _together(parts: list[dict[str, Any]]) -> Columns:
    """All rows: a table of the types that JSON has, or tensors of those that were declared."""
    import numpy as np

    if all(isinstance(cells, list) for cells in parts[0].values()):
        import pyarrow as pa

        try:
            lists = {name: [cell for part in parts for cell in part[name]] for name in parts[0]}
            return ArrowColumns(pa.table({name: pa.array(cells) for name, cells in lists.items()}))
        except (pa.ArrowException, TypeError) as error:
            told = f"a column holds values of several types: {error}"
            raise DataError(told, remedy="Write every column in one type") from error
    try:
        return ArrayColumns({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    except ValueError as error:
        raise DataError(
            f"requests have tensors of different shapes: {error}", remedy="Split the file by shape"
        ) from error


EXTENSION = CapturedReader()
