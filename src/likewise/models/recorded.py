"""Recorded answers: a file of `likewise record`, or the outputs of ONNX's `test_data_set_*` folders.

Answers are kept in a Parquet file, keyed by row: a reference for machines without its framework. Where rows are keyed
by name, each has the fingerprint of the values it was answered for: other values under the same name have no answer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import lru_cache
from itertools import pairwise
from math import prod
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from likewise.contracts.data import Array, Batch, RowIds, Tensors
from likewise.contracts.models import Adapter, InputSpec, Kind, Model, OutputSpec, Runner, Signature
from likewise.data.files import hash_rows, named_once, replacing
from likewise.data.readers import onnx_testdata
from likewise.errors import DataError, ModelError, foreign, one_line
from likewise.models.arrays import arrays_of_sequence, kind_of, of_objects, put_together, widened
from likewise.registry import adapter

KEY = b"likewise.recorded"
ROW, NAME, INPUTS = "row", "name", "inputs"
OUTPUT = "output."
"""Columns of answers carry this prefix, so that no output can hide the row."""

UNKNOWN_INPUTS = (
    "its answers were recorded without the fingerprints of their inputs: that these rows hold the values that were "
    "answered could not be compared; record them again"
)


class RecordedAdapter(Adapter):
    """Opens answers that some model gave before."""

    framework = "recorded"
    holds_interpreter = False
    answers_only = True

    def claims(self, target: object) -> bool:
        if not isinstance(target, str | PathLike):
            return False
        path = Path(target)
        return path.suffix.lower() in (".parquet", ".pq") or onnx_testdata.is_test_data(path)

    @contextmanager
    def open(self, model: Model) -> Iterator[Runner]:
        path = Path(model.target)
        if model.options.get("answers"):
            with adapter("captured").open(replace(model, framework="captured")) as runner:
                yield runner
            return
        yield DataSetRunner(path) if onnx_testdata.is_test_data(path) else RecordedRunner(path)


class DataSetRunner:
    """The outputs that came with an ONNX model, one data set a row."""

    native = None

    def __init__(self, path: Path) -> None:
        recorded = onnx_testdata.recorded_outputs(str(path))
        self._answers = [_answers(values) for values in recorded]
        specs = [_observed(name, value) for name, value in (recorded[0] if recorded else {}).items()]
        self.signature = Signature(inputs=(), outputs=tuple(specs))
        self.details: Mapping[str, Any] = {"data_sets": len(self._answers)}

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        number = int(batch.rows.numbers[0])
        if number >= len(self._answers) or not self._answers[number]:
            raise ModelError(f"there are no recorded outputs for {batch.rows.name(0)!r}")
        return self._answers[number]


def _answers(values: Mapping[str, Any]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for name, value in values.items():
        plain = value is not None and not isinstance(value, list)
        put_together(found, {name: widened(value)} if plain else arrays_of_sequence(name, value))
    return found


def _observed(name: str, value: Any) -> OutputSpec:
    """What is recorded, by the type it was recorded in."""
    dtype = str(getattr(value, "dtype", "")) or None
    return OutputSpec(name, kind_of(name, dtype) or Kind.VALUE, dtype)


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
        fingerprinted: Sequence[str],
        keyed_by_name: bool,
    ) -> None:
        self._about = {"model": model, "sha256": sha256, "keyed_by_name": keyed_by_name, "inputs": list(inputs)}
        self._about["data_fingerprint"] = fingerprint
        if keyed_by_name:
            self._about["fingerprinted"] = list(fingerprinted)
        self._fingerprinted = tuple(fingerprinted)
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

    def write(self, batch: Batch, tensors: Tensors, outputs: Sequence[OutputSpec]) -> None:
        """Add the answers to these rows."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = batch.rows
        columns: dict[str, Any] = {ROW: pa.array(rows.numbers)}
        if self._keyed_by_name:
            columns[NAME] = pa.array([str(rows.name(position)) for position in range(len(rows))])
            columns[INPUTS] = pa.array(hash_rows(batch.inputs[name] for name in self._fingerprinted))
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


class RecordedRunner:
    """Answers by looking them up; a few row groups are in memory at a time."""

    native = None

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
                remedy="Write them with `likewise record MODEL --data FILE -o golden.parquet`, or name columns "
                "that hold them: option answers=COLUMN",
            )
        with foreign(ModelError, f"{path} does not say what was recorded in it", remedy="Record it again"):
            about: dict[str, Any] = json.loads(found, object_pairs_hook=named_once)
            self._keyed_by_name = bool(about["keyed_by_name"])
            self._fingerprinted = _names(about.get("fingerprinted", ()))
            inputs = tuple(InputSpec(name) for name in self._fingerprinted or _names(about["inputs"]))
            self._outputs = tuple(_spec(entry) for entry in about["outputs"])
            named = [ROW, *([NAME] if self._keyed_by_name else []), *([INPUTS] if self._fingerprinted else [])]
            self._require_columns([*named, *(OUTPUT + spec.name for spec in self._outputs)])
            self.details: Mapping[str, Any] = {
                "recorded_model": about["model"],
                "recorded_sha256": about["sha256"],
                "data_fingerprint": None if self._keyed_by_name else str(about["data_fingerprint"]),
                "warnings": [UNKNOWN_INPUTS] if self._keyed_by_name and not self._fingerprinted else [],
            }
        self.signature = Signature(inputs, self._outputs, table=True)
        self._group = lru_cache(maxsize=4)(self._read_group)
        self._ranges = self._spans()
        self._places: dict[str, int] | None = None

    def _require_columns(self, names: Sequence[str]) -> None:
        """Every column that is read is there once, and rows have whole numbers."""
        import pyarrow as pa

        found = self._file.schema_arrow
        for name in names:
            if (count := len(found.get_all_field_indices(name))) != 1:
                raise ValueError(f"it has {count or 'no'} columns called {name!r}")
        if not pa.types.is_integer(found.field(ROW).type):
            raise ValueError(f"its column {ROW!r} holds no whole numbers")
        if len({*names}) != len(names):
            raise ValueError("it names an output twice")
        if unsaid := next((name for name in found.names if name.startswith(OUTPUT) and name not in names), None):
            raise ValueError(f"it has answers {unsaid!r} that it does not describe")
        if INPUTS in names and found.field(INPUTS).type != pa.uint64():
            raise ValueError(f"its column {INPUTS!r} holds no fingerprints")

    def _spans(self) -> list[tuple[int, int]]:
        """The first and the last row of each group: rows stand in their order, and each of them once."""
        spans: list[tuple[int, int]] = []
        for group in range(self._file.num_row_groups):
            # Read, though the file says of each group what its least and largest values are: that may be wrong.
            rows = self._file.read_row_group(group, [ROW]).column(ROW)
            spans.append((rows[0].as_py(), rows[-1].as_py()) if len(rows) else (0, -1))
        if any(None in span for span in spans):
            raise _disordered()
        held = [span for span in spans if span != (0, -1)]
        if any(before[1] >= after[0] for before, after in pairwise(held)):
            raise _disordered()
        return spans

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        found = self._answers(batch.rows)
        recorded = found.pop(INPUTS, None)
        if recorded is not None and len(batch):
            self._require_same(batch, recorded)
        return {name.removeprefix(OUTPUT): array for name, array in found.items()}

    def _require_same(self, batch: Batch, recorded: Array) -> None:
        """Refuse to answer for rows whose values are others than those that were answered."""
        import numpy as np

        differ = np.flatnonzero(hash_rows(batch.inputs[name] for name in self._fingerprinted) != recorded)
        if len(differ):
            more = f" and {len(differ) - 1:,} more" if len(differ) > 1 else ""
            raise DataError(
                f"the answers were recorded for other values than the data holds in row {batch.rows.name(differ[0])}"
                f"{more} of {len(batch):,} rows (columns {', '.join(map(repr, self._fingerprinted[:6]))}"
                f"{' …' if len(self._fingerprinted) > 6 else ''})",
                remedy="Check on the rows that were recorded, or record the answers again: likewise record",
            )

    def _answers(self, rows: RowIds) -> dict[str, Array]:
        """The columns that were recorded for these rows, in their order."""
        import numpy as np

        if self._keyed_by_name and rows.names is None:
            raise ModelError(
                "the answers were recorded under names, and the rows of this data have none",
                remedy="Name the rows by the same column: --id COLUMN",
            )
        numbers = self._numbers(rows) if self._keyed_by_name else np.asarray(rows.numbers)
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
            raise _unanswered(rows, sorted(set(range(len(rows))) - set(order.tolist())))
        back = np.argsort(order)
        return {name: np.concatenate([arrays[name] for _, arrays in parts])[back] for name in parts[0][1]}

    def _numbers(self, rows: RowIds) -> Array:
        """The recorded row of each name; the index of names is the one thing here that grows with rows."""
        import numpy as np

        if self._places is None:
            table = self._file.read([ROW, NAME])
            names = table[NAME].to_pylist()
            self._places = dict(zip(names, table[ROW].to_pylist(), strict=True))
            if len(self._places) != len(names):
                raise ModelError("two rows were recorded under one name", remedy="Record the answers again")
        found = [self._places.get(str(rows.name(position))) for position in range(len(rows))]
        if missing := [position for position, place in enumerate(found) if place is None]:
            raise _unanswered(rows, missing)
        return np.array(found, dtype=np.int64)

    def _read_group(self, group: int) -> tuple[Array, dict[str, Array]]:
        import numpy as np
        import pyarrow as pa

        try:
            table = self._file.read_row_group(group)
        except (pa.ArrowException, OSError) as error:
            raise ModelError(
                f"the recorded answers cannot be read: {one_line(error)}", remedy="Record again"
            ) from error
        arrays = {OUTPUT + spec.name: _from_arrow(table.column(OUTPUT + spec.name), spec) for spec in self._outputs}
        if self._fingerprinted:
            arrays[INPUTS] = table.column(INPUTS).to_numpy()
        rows = np.asarray(table.column(ROW).to_numpy())
        ends = (rows[0], rows[-1]) if len(rows) else (0, -1)
        if table.column(ROW).null_count or np.any(np.diff(rows) <= 0) or ends != self._ranges[group]:
            raise _disordered()
        return rows, arrays


def _unanswered(rows: RowIds, missing: Sequence[int]) -> ModelError:
    return ModelError(
        f"no answer is recorded for row {rows.name(missing[0])}"
        + (f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""),
        remedy="Record the answers again for this data",
    )


def _disordered() -> ModelError:
    told = "the recorded answers are not in the order of their rows, or there are two for one row"
    return ModelError(told, remedy="Record them again: likewise record")


def _to_arrow(name: str, array: Array) -> Any:
    import pyarrow as pa

    if array.dtype.kind not in "biufOU":
        raise ModelError(f"output {name!r} of type {array.dtype} cannot be recorded")
    try:
        flat = pa.array(array.reshape(-1))
    except (pa.ArrowException, TypeError) as error:
        raise ModelError(f"output {name!r} cannot be recorded: {one_line(error)}") from error
    return flat if array.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, prod(array.shape[1:]))


def _from_arrow(column: Any, spec: OutputSpec) -> Array:
    import numpy as np
    import pyarrow as pa

    flat = column.combine_chunks()
    each = [size for size in (spec.shape or ())[1:] if isinstance(size, int)]
    kind = flat.type
    if (
        kind.num_fields != int(bool(each))
        or (each and not pa.types.is_fixed_size_list(kind))
        or _size(kind) != prod(each)
    ):
        raise ModelError(f"the answers of {spec.name!r} are no arrays of shape {each}", remedy="Record them again")
    if each:
        if flat.null_count:
            raise ModelError(f"an answer of {spec.name!r} is missing", remedy="Record them again")
        flat = flat.flatten()
    # Of whole numbers with gaps numpy would make floats, and names would be close to their neighbours.
    whole = flat.null_count and (pa.types.is_integer(flat.type) or pa.types.is_boolean(flat.type))
    array = of_objects(flat.to_pylist()) if whole else np.asarray(flat.to_numpy(zero_copy_only=False))
    return array.reshape(len(column), *each)


def _size(kind: Any) -> int:
    """How many values an entry of a column has."""
    import pyarrow as pa

    return int(kind.list_size) if pa.types.is_fixed_size_list(kind) else 1


def _names(said: Any) -> tuple[str, ...]:
    if not isinstance(said, list | tuple) or not all(isinstance(name, str) for name in said):
        raise ValueError("names of columns are text")
    return tuple(said)


def _spec(entry: dict[str, Any]) -> OutputSpec:
    classes = entry["classes"]
    if classes is not None and not all(isinstance(label, bool | int | float | str) for label in classes):
        raise ValueError("classes are numbers or text")
    return OutputSpec(
        _names([entry["name"]])[0],
        Kind(entry["kind"]),
        entry["dtype"],
        (None, *entry["shape"]),
        None if classes is None else tuple(classes),
        entry["view"],
        entry["decided_by"],
    )


EXTENSION = RecordedAdapter()
