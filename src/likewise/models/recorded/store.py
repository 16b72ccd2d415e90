"""Answers kept in a Parquet file, keyed by row: a reference for machines without its framework."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from likewise.contracts.data import Array, RowIds, Tensors
from likewise.contracts.models import InputSpec, Kind, OutputSpec, Signature
from likewise.errors import DataError, ModelError, one_line

KEY = b"likewise.recorded"
ROW, NAME = "row", "name"
OUTPUT = "output."
"""Columns of answers carry this prefix, so that no output can hide the row."""


def atomically(path: Path, content: bytes) -> None:
    """Replace a file so that a crash leaves either the old one or the new one; a device or a pipe is written to."""
    if path.exists() and not path.is_file():
        _write_to(path, content)
        return
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def _write_to(path: Path, content: bytes) -> None:
    """Into what is no file and must not be replaced by one, such as /dev/null."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file in the same folder that takes the place of `path` if all goes well."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


class Writer:
    """Writes answers batch by batch; the file appears only when `finish` was reached."""

    def __init__(
        self,
        path: Path,
        *,
        model: str,
        sha256: str | None,
        fingerprint: str,
        inputs: Sequence[str],
        keyed_by_name: bool,
    ) -> None:
        self._about = {"model": model, "sha256": sha256, "keyed_by_name": keyed_by_name, "inputs": list(inputs)}
        self._about["data_fingerprint"] = fingerprint
        self._replacing = replacing(path)
        self._keyed_by_name = keyed_by_name
        self._parquet: Any = None
        self.rows = 0

    def __enter__(self) -> Self:
        self._path = self._replacing.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._parquet is not None:
            self._parquet.close()
        self._replacing.__exit__(kind, error, trace)

    def write(self, rows: RowIds, tensors: Tensors, outputs: Sequence[OutputSpec]) -> None:
        """Add the answers to these rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns: dict[str, Any] = {ROW: pa.array(rows.numbers)}
        if self._keyed_by_name:
            columns[NAME] = pa.array([str(rows.name(position)) for position in range(len(rows))])
        for name, array in tensors.items():
            columns[OUTPUT + name] = _to_arrow(name, array)
        table = pa.table(columns)
        if self._parquet is None:
            specs = [{**asdict(spec), "shape": list(tensors[spec.name].shape[1:])} for spec in outputs]
            about = json.dumps({**self._about, "outputs": specs})
            schema = table.schema.with_metadata({KEY: about.encode()})
            self._parquet = pq.ParquetWriter(self._path, schema)
        self._parquet.write_table(table)
        self.rows += len(rows)


class RecordedAnswers:
    """Reads answers by row; a few row groups are in memory at a time."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            self._file = pq.ParquetFile(path)
        except FileNotFoundError as error:
            raise ModelError(f"there is no file {path}", remedy="Record the answers first: likewise record") from error
        except (pa.ArrowException, OSError) as error:
            raise ModelError(
                f"{path} cannot be read as Parquet: {one_line(error)}", remedy="Record it again"
            ) from error
        found = (self._file.schema_arrow.metadata or {}).get(KEY)
        if found is None:
            raise ModelError(
                f"{path} holds a table, not recorded answers",
                remedy="Write them with `likewise record MODEL --data FILE -o golden.parquet`",
            )
        self.about: dict[str, Any] = json.loads(found)
        self._group = lru_cache(maxsize=4)(self._read_group)
        self._ranges = self._row_ranges()
        self._places: dict[str, int] | None = None

    @property
    def signature(self) -> Signature:
        inputs = tuple(InputSpec(name) for name in self.about["inputs"])
        return Signature(inputs=inputs, outputs=tuple(_spec(entry) for entry in self.about["outputs"]), table=True)

    def answers(self, rows: RowIds) -> dict[str, Array]:
        """What was recorded for these rows, in their order."""
        import numpy as np

        if self.about["keyed_by_name"] and rows.names is None:
            raise ModelError(
                "the answers were recorded under names, and the rows of this data have none",
                remedy="Name the rows by the same column: --id COLUMN",
            )
        numbers = self._numbers(rows) if self.about["keyed_by_name"] else np.asarray(rows.numbers)
        outputs = self.signature.outputs or ()
        if not len(rows):
            return {name: array[:0] for name, array in self._group(0)[1].items()}
        parts: list[tuple[Array, dict[str, Array]]] = []
        for group, (low, high) in enumerate(self._ranges):
            wanted = np.flatnonzero((numbers >= low) & (numbers <= high))
            if not len(wanted):
                continue
            recorded, arrays = self._group(group)
            place = np.searchsorted(recorded, numbers[wanted])
            known = (place < len(recorded)) & (recorded[np.minimum(place, len(recorded) - 1)] == numbers[wanted])
            parts.append((wanted[known], {name: array[place[known]] for name, array in arrays.items()}))
        order = np.concatenate([where for where, _ in parts]) if parts else np.zeros(0, np.int64)
        if len(order) < len(rows):
            missing = sorted(set(range(len(rows))) - set(order.tolist()))
            raise ModelError(
                f"no answer is recorded for row {rows.name(missing[0])}"
                + (f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""),
                remedy="Record the answers again for this data",
            )
        back = np.argsort(order)
        return {spec.name: np.concatenate([arrays[spec.name] for _, arrays in parts])[back] for spec in outputs}

    def _numbers(self, rows: RowIds) -> Array:
        """The recorded row of each name; the index of names is the one thing here that grows with rows."""
        import numpy as np

        if self._places is None:
            table = self._file.read([ROW, NAME])
            self._places = dict(zip(table[NAME].to_pylist(), table[ROW].to_pylist(), strict=True))
        return np.array([self._places.get(str(rows.name(position)), -1) for position in range(len(rows))])

    def _row_ranges(self) -> list[tuple[int, int]]:
        ranges = []
        for group in range(self._file.num_row_groups):
            statistics = self._file.metadata.row_group(group).column(0).statistics
            ranges.append((statistics.min, statistics.max))
        return ranges

    def _read_group(self, group: int) -> tuple[Array, dict[str, Array]]:
        import pyarrow as pa

        try:
            table = self._file.read_row_group(group)
        except (pa.ArrowException, OSError) as error:
            raise ModelError(
                f"the recorded answers cannot be read: {one_line(error)}", remedy="Record again"
            ) from error
        arrays = {
            spec.name: _from_arrow(table.column(OUTPUT + spec.name), spec) for spec in self.signature.outputs or ()
        }
        return table.column(ROW).to_numpy(), arrays


def _to_arrow(name: str, array: Array) -> Any:
    import pyarrow as pa

    if array.dtype.kind not in "biufOU":
        raise ModelError(f"output {name!r} of type {array.dtype} cannot be recorded")
    try:
        flat = pa.array(array.reshape(-1))
    except (pa.ArrowException, TypeError) as error:
        raise ModelError(f"output {name!r} cannot be recorded: {one_line(error)}") from error
    width = 1
    for size in array.shape[1:]:
        width *= size
    return flat if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, width)


def _from_arrow(column: Any, spec: OutputSpec) -> Array:
    import numpy as np

    flat = column.combine_chunks()
    if spec.shape is not None and len(spec.shape) > 1:
        flat = flat.flatten()
    array = np.asarray(flat.to_numpy(zero_copy_only=False))
    return array.reshape(len(column), *[size for size in (spec.shape or ())[1:] if isinstance(size, int)])


def _spec(entry: dict[str, Any]) -> OutputSpec:
    classes = entry["classes"]
    return OutputSpec(
        entry["name"],
        Kind(entry["kind"]),
        entry["dtype"],
        (None, *entry["shape"]),
        None if classes is None else tuple(classes),
        entry["view"],
        entry["decided_by"],
    )
