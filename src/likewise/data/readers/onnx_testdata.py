"""The test cases that ONNX models are published with: `test_data_set_0/input_0.pb, output_0.pb, ...`.

Each data set is one row, called by the name of its folder. Its tensors have the shapes they were
recorded in, with no common row axis, so every batch holds one data set and is run whole.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any

from likewise.contracts.data import Batch, Provenance, Source
from likewise.contracts.values import dataclass
from likewise.data import files
from likewise.data.columns import CaseColumns
from likewise.data.readers import Span
from likewise.errors import DataError, one_line

_SET = r"test_data_set_(\d+)"
_TENSOR = r"(input|output)_(\d+)\.pb"


def is_test_data(target: object) -> bool:
    """Is this a data set, or a folder of them? Judged by the names in it."""
    if not isinstance(target, str | os.PathLike) or not os.path.isdir(target):
        return False
    return any(re.fullmatch(_SET, str(name)) or re.fullmatch(_TENSOR, str(name)) for name in os.listdir(target))


def data_sets(folder: str) -> list[str]:
    """The folders of the test cases in their order; a folder may be a test case itself."""
    found = {name: re.fullmatch(_SET, name) for name in os.listdir(folder)}
    names = sorted((int(match[1]), name) for name, match in found.items() if match)
    return [os.path.join(folder, name) for _, name in names] or [folder]


def _tensor_files(data_set: str, role: str) -> list[str]:
    """The files of the inputs or the outputs of one test case, in their order."""
    matches = [match for name in os.listdir(data_set) if (match := re.fullmatch(_TENSOR, name)) and match[1] == role]
    numbers = sorted(int(match[2]) for match in matches)
    for expected, number in enumerate(numbers):
        if number != expected:
            raise DataError(
                f"{data_set} has {role}_{number}.pb and no {role}_{expected}.pb",
                remedy="Give the whole folder: inputs and outputs are numbered from 0",
            )
    return [os.path.join(data_set, f"{role}_{number}.pb") for number in numbers]


def recorded_outputs(folder: str) -> list[dict[str, Any]]:
    """The answers that were recorded with the test cases, a dict for each; `output_0` where a name is missing.

    A sequence is a list of arrays, an optional value that is not there None.
    """
    return [_values(data_set, "output") for data_set in data_sets(folder)]


def _values(data_set: str, role: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    kinds = _declared(data_set, role)
    for number, path in enumerate(_tensor_files(data_set, role)):
        name, value = _value(path, kinds[number] if number < len(kinds) else "")
        name = name or f"{role}_{number}"
        if name in values:
            raise DataError(f"{path} holds a second tensor called {name!r}", remedy="Give each tensor its own name")
        values[name] = value
    return values


@lru_cache(maxsize=64)
def _declared(data_set: str, role: str) -> tuple[str, ...]:
    """What the model beside a data set says its inputs or outputs are: tensors, sequences, optional values.

    The files do not tell: a sequence of one tensor and an optional tensor are the same bytes.
    """
    import onnx
    from google.protobuf.message import DecodeError

    beside = os.path.dirname(os.path.abspath(data_set))
    try:
        models = [name for name in os.listdir(beside) if name.endswith(".onnx")]
        if len(models) != 1:
            return ()
        graph = onnx.ModelProto.FromString(files.content_of(os.path.join(beside, models[0]))).graph
    except (DecodeError, DataError):
        return ()
    return tuple(str(value.type.WhichOneof("value")) for value in getattr(graph, role))


def _value(path: str, kind: str) -> tuple[str, Any]:
    import onnx
    from google.protobuf.message import DecodeError
    from onnx import numpy_helper

    content = files.content_of(path)
    try:
        if kind == "optional_type":
            optional = onnx.OptionalProto.FromString(content)
            _require_own_values(optional, path)
            return optional.name, _plain(numpy_helper.to_optional(optional), path)
        proto = onnx.TensorProto.FromString(content) if kind != "sequence_type" else None
        # Without a model beside it, a sequence parses as a tensor too: its values land in the field `segment`.
        if proto is None or proto.HasField("segment"):
            sequence = onnx.SequenceProto.FromString(content)
            _require_own_values(sequence, path)
            return sequence.name, _plain(numpy_helper.to_list(sequence), path)
        _require_own_values(proto, path)
        return proto.name, _plain(numpy_helper.to_array(proto), path)
    except (DecodeError, ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{path} holds no tensor: {one_line(error).rstrip('.')}", remedy="Write the file again"
        ) from error


def _require_own_values(proto: Any, path: str) -> None:
    """Every tensor in here holds its values itself, and once: onnx would look for a file where the command runs."""
    given = [field.name for field, _ in proto.ListFields() if field.name.endswith("_data")]
    if "external_data" in given or getattr(proto, "data_location", False):
        raise DataError(f"{path} keeps its values in another file", remedy="Store the values in the file itself")
    if len(given) > 1:
        raise DataError(f"{path} holds values twice ({' and '.join(given)})", remedy="Write the file again")
    for _, value in proto.ListFields():
        parts = [value] if hasattr(value, "ListFields") else value if hasattr(value, "add") else ()
        for part in parts:
            _require_own_values(part, path)


def _plain(value: Any, path: str) -> Any:
    """Arrays, lists of them, or None; text as objects."""
    if value is None:
        return None
    if isinstance(value, list):
        return [_plain(entry, path) for entry in value]
    if not hasattr(value, "dtype"):
        raise DataError(f"{path} holds a {type(value).__name__}", remedy="Only tensors and sequences can be compared")
    return value.astype(object) if value.dtype.kind == "U" else value


@dataclass(frozen=True)
class RecordedCases(Span):
    """Some data sets of a folder."""

    location: str
    sets: tuple[str, ...]

    @property
    def provenance(self) -> Provenance:
        return Provenance.RECORDED

    @cached_property
    def fingerprint(self) -> str:
        return files.hash_files(path for folder in self.sets for path in _tensor_files(folder, "input"))

    def batches(self, size: int) -> Iterator[Batch]:
        """One data set a batch, whatever the size asked for."""
        import numpy as np

        for rows in self.numbered(1):
            folder = self.sets[rows.numbers[0]]
            name = np.array([os.path.basename(os.path.abspath(folder))], dtype=object)
            yield Batch(replace(rows, names=name), CaseColumns(_values(folder, "input")), stacked=False)


class RecordedCasesReader:
    """Reads a folder of data sets, a single one, or the folder of a model with its data sets."""

    name = "onnx_testdata"

    def claims(self, target: object) -> bool:
        return is_test_data(target)

    def open(self, target: object) -> Source:
        location = os.fspath(target)  # type: ignore[call-overload]
        sets = tuple(data_sets(location))
        for folder in sets:
            if not _tensor_files(folder, "input") and not _tensor_files(folder, "output"):
                raise DataError(f"{folder} holds no input_0.pb", remedy="Give a folder with recorded tensors")
        return RecordedCases(str(location), sets, stop=len(sets))


EXTENSION = RecordedCasesReader()
