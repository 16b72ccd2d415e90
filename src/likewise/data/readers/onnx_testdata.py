"""The folders in which ONNX models carry their test cases: `test_data_set_0/input_0.pb, output_0.pb, ...`.

The test cases that ONNX models are published with: folders `test_data_set_*` of tensors.

Each data set is one row, called by the name of its folder. Its tensors have the shapes they were
recorded in, with no common row axis, so every batch holds one data set and is run whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from likewise.contracts.data import Batch, Provenance, RowIds, Source
from likewise.data import fingerprints
from likewise.data.columns import CaseColumns
from likewise.data.onnx_testdata import data_sets, is_test_data, recorded_inputs, tensor_files
from likewise.data.rows import split
from likewise.errors import DataError


@dataclass(frozen=True)
class RecordedCases:
    """Data sets from `start` to `stop` of a folder."""

    location: str
    sets: tuple[str, ...]
    start: int
    stop: int

    @property
    def provenance(self) -> Provenance:
        return Provenance.RECORDED

    @cached_property
    def fingerprint(self) -> str:
        return fingerprints.of_files(path for folder in self.sets for path in tensor_files(folder, "input"))

    @property
    def rows(self) -> int | None:
        return self.stop - self.start

    def batches(self, size: int) -> Iterator[Batch]:
        """One data set a batch, whatever the size asked for."""
        import numpy as np

        for number in range(self.start, self.stop):
            folder = self.sets[number]
            name = np.array([os.path.basename(os.path.abspath(folder))], dtype=object)
            rows = RowIds(np.array([number], dtype=np.int64), name)
            yield Batch(rows, CaseColumns(recorded_inputs(folder)), stacked=False)

    def shards(self, count: int) -> Sequence[Source]:
        return [replace(self, start=start, stop=stop) for start, stop in split(self.start, self.stop, count)]


class RecordedCasesReader:
    """Reads a folder of data sets, a single one, or the folder of a model with its data sets."""

    name = "onnx_testdata"

    def claims(self, target: object) -> bool:
        return is_test_data(target)

    def open(self, target: object) -> Source:
        location = os.fspath(target)  # type: ignore[call-overload]
        sets = tuple(data_sets(location))
        for folder in sets:
            if not tensor_files(folder, "input") and not tensor_files(folder, "output"):
                raise DataError(f"{folder} holds no input_0.pb", remedy="Give a folder with recorded tensors")
        return RecordedCases(str(location), sets, 0, len(sets))


EXTENSION = RecordedCasesReader()
