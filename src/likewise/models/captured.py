"""What a service answered: the responses in recorded traffic, or columns of a table of rows and answers.

There is no model to ask, only its answers to these rows: they are found by the number of the row, and only for the
file they stand in.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Adapter, Kind, Model, OutputSpec, Signature
from likewise.contracts.verdict import counted
from likewise.data import files
from likewise.data.captured import exchanges, is_captured, rows_of
from likewise.errors import ModelError, RowCountError, UsageError, nearest, one_line
from likewise.models import require_known
from likewise.models.arrays import kind_of
from likewise.models.endpoints.protocols import EXACT, OpenInference, Tally, outputs_of
from likewise.models.endpoints.transport import EndpointError
from likewise.registry import open_source

TABLES = (".csv", ".tsv", ".jsonl", ".ndjson", ".arrow", ".feather")
ROWS = 65_536


class CapturedAdapter(Adapter):
    """Opens recorded traffic, and with the option `answers` tables that hold what was answered."""

    framework = "captured"
    holds_interpreter = False
    answers_only = True

    def claims(self, target: object) -> bool:
        return isinstance(target, str | os.PathLike) and str(target).lower().endswith(TABLES)

    @contextmanager
    def open(self, model: Model) -> Iterator[CapturedRunner]:
        require_known(model, ("answers", "previous", "batch_axis"))
        path = os.fspath(model.target)
        if not os.path.isfile(path):
            raise ModelError(f"there is no file {path}", remedy="Check the path of the model")
        if model.options.get("answers"):
            answers, told = _columns(path, model.options["answers"]), ""
        elif is_captured(path):
            answers, told = _responses(path)
        else:
            raise ModelError(
                f"{path} holds a table, and no option says which columns are the answers",
                remedy="To check against them, say it: --candidate-option answers=COLUMN,COLUMN; else name a model",
            )
        yield CapturedRunner(path, answers, told)


class CapturedRunner:
    """Answers by the number of the row."""

    native = None

    def __init__(self, path: str, answers: Mapping[str, Array], told: str) -> None:
        self._answers = answers
        specs = tuple(_observed(name, array) for name, array in answers.items())
        self.signature = Signature((), specs)
        rows = len(next(iter(answers.values()))) if answers else 0
        self.details: Mapping[str, Any] = {
            "rows": rows,
            "data_fingerprint": files.hash_file(path),
            **({"warnings": [told]} if told else {}),
        }

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        numbers = batch.rows.numbers
        if len(numbers) and int(numbers.max()) >= self.details["rows"]:
            raise ModelError(f"no answer is recorded for row {int(numbers.max())}", remedy="Check on the same file")
        return {name: array[numbers] for name, array in self._answers.items()}


def _responses(path: str) -> tuple[dict[str, Array], str]:
    """The outputs of all responses, and what was left out."""
    found, unanswered = exchanges(path)
    tally = Tally()
    parts: list[dict[str, Array]] = []
    for exchange in found:
        rows, _ = rows_of(exchange)
        try:
            outputs = _outputs(exchange.response, tally)
        except EndpointError as error:
            raise ModelError(f"{path}, line {exchange.line}: {error.message}") from error
        for name, array in outputs.items():
            if not array.ndim or len(array) != rows:
                got = f"{len(array):,}" if array.ndim else "a single number"
                raise RowCountError(
                    f"line {exchange.line}: it was asked about {counted(rows, 'rows')} and answers {got} in {name!r}"
                )
        if parts and list(outputs) != list(parts[0]):
            raise ModelError(f"{path}, line {exchange.line}: its outputs are not those of the first response")
        parts.append(outputs)
    together = {name: _joined(name, [part[name] for part in parts], path) for name in (parts[0] if parts else ())}
    notes = [f"{counted(unanswered, 'requests')} had no answer: left out"] if unanswered else []
    return together, "; ".join([*notes, *tally.told()])


def _joined(name: str, parts: Sequence[Array], path: str) -> Array:
    """One output of all responses. Beside fractions, whole numbers become floats: not those that no float holds."""
    import numpy as np

    try:
        joined = np.concatenate(parts)
    except ValueError as error:
        raise ModelError(f"{path}: {name!r} has other shapes in other responses: {one_line(error)}") from error
    whole = [part for part in parts if part.dtype.kind in "iu" and joined.dtype.kind == "f"]
    if any(np.any((part > EXACT) | (part < -EXACT)) for part in whole):
        told = f"{path}: {name!r} holds whole numbers beyond 2^53 beside fractions, and cannot be compared exactly"
        raise ModelError(told, remedy="Keep the responses of one type in a file of their own")
    return joined


def _outputs(response: Any, tally: Tally) -> dict[str, Array]:
    """Of either protocol: tensors by name, or predictions."""
    if isinstance(response, Mapping) and isinstance(response.get("outputs"), list):
        if "predictions" in response:
            raise EndpointError("it answers both 'outputs' and 'predictions'")
        return OpenInference().outputs(response, b"", tally)
    wrapped = isinstance(response, Mapping) and "predictions" in response
    return outputs_of(response["predictions"] if wrapped else response, tally)


def _columns(path: str, said: Any) -> dict[str, Array]:
    import numpy as np

    names = [name.strip() for name in said.split(",")] if isinstance(said, str) else [str(name) for name in said]
    parts: dict[str, list[Array]] = {name: [] for name in names}
    for batch in open_source(path).batches(ROWS):
        for name in names:
            if name not in batch.inputs:
                told = f"{path} has no column {name!r}{nearest(name, batch.inputs)}"
                raise UsageError(told, remedy="The option `answers` names columns that hold what was answered")
            parts[name].append(batch.inputs[name])
    return {name: np.concatenate(arrays) if arrays else np.zeros(0) for name, arrays in parts.items()}


def _observed(name: str, array: Array) -> OutputSpec:
    dtype = "string" if array.dtype.kind == "O" else str(array.dtype)
    return OutputSpec(name, kind_of(name, dtype) or Kind.VALUE, dtype, (None, *array.shape[1:]))


EXTENSION = CapturedAdapter()
