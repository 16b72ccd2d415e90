"""Live tables: pandas and polars DataFrames and Series, Arrow tables, lists of rows.

A frame stays what it is: a model that takes frames gets a slice of it, with its types and index.
Columns are called `str()` of their labels.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from likewise.contracts.data import Batch, Source
from likewise.contracts.values import dataclass
from likewise.data import files
from likewise.data.columns import ArrowColumns, FrameColumns, require_unique
from likewise.data.readers import Span, are_records
from likewise.errors import DataError

RENAME = "Rename or remove the duplicates: inputs are found by name, and 1 is called '1'"


@dataclass(frozen=True)
class FrameSource(Span):
    """Rows of a frame."""

    location: str
    frame: Any

    @cached_property
    def fingerprint(self) -> str:
        import narwhals as nw

        if _is_arrow(self.frame):
            return files.hash_table(self.frame)
        return files.hash_series(nw.from_native(self.frame, eager_only=True).iter_columns())

    def batches(self, size: int) -> Iterator[Batch]:
        return self.cut(ArrowColumns(self.frame) if _is_arrow(self.frame) else FrameColumns(self.frame), size)


class FramesReader:
    """Takes DataFrames of any library that narwhals knows, and Arrow tables."""

    name = "frames"

    def claims(self, target: object) -> bool:
        if isinstance(target, str | os.PathLike):
            return False
        if isinstance(target, list):
            return are_records(target)
        from narwhals import dependencies as known

        live = known.is_into_dataframe(target) or known.is_into_series(target) or _is_arrow(target)
        return live or _is_lazy(target) or _is_sparse(target)

    def open(self, target: object) -> Source:
        import narwhals as nw

        kind = type(target).__name__
        if _is_lazy(target):
            raise DataError(f"a {kind} is a query, not rows", remedy="Give its result: .collect()")
        if _is_sparse(target):
            remedy = "Give an array of as many rows as fit: [:1000].toarray(); or the table before it was encoded"
            raise DataError(f"a {kind} is sparse, and ONNX files take arrays in full", remedy=remedy)
        frame: Any = target
        if isinstance(target, list):
            import pandas as pd

            kind, frame = "list of rows", pd.DataFrame(target)
        if _is_arrow(frame):
            frame = sys.modules["pyarrow"].table(frame) if kind == "RecordBatch" else frame
            require_unique(f"the {kind}", frame.column_names, remedy=RENAME)
            return FrameSource(kind, frame, stop=frame.num_rows)
        if nw.dependencies.is_into_series(frame):
            series = nw.from_native(frame, series_only=True)
            frame = series.alias(str(series.name or "X")).to_frame().to_native()
        require_unique(f"the {kind}", [str(label) for label in frame.columns], remedy=RENAME)
        return FrameSource(kind, frame, stop=len(frame))


def _is_arrow(target: object) -> bool:
    arrow = sys.modules.get("pyarrow")
    return arrow is not None and isinstance(target, arrow.Table | arrow.RecordBatch)


def _is_lazy(target: object) -> bool:
    polars = sys.modules.get("polars")
    return polars is not None and isinstance(target, polars.LazyFrame)


def _is_sparse(target: object) -> bool:
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(target))


EXTENSION = FramesReader()
