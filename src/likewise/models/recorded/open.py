"""Recorded answers: a file of `likewise record`, or the outputs of ONNX's `test_data_set_*` folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from likewise.contracts.data import Batch, Tensors
from likewise.contracts.models import Adapter, Model, Signature
from likewise.data.readers import onnx_testdata
from likewise.errors import ModelError
from likewise.models.recorded.store import RecordedAnswers


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
    def open(self, model: Model) -> Iterator[RecordedRunner | DataSetRunner]:
        path = Path(model.target)
        yield DataSetRunner(path) if onnx_testdata.is_test_data(path) else RecordedRunner(path)


class RecordedRunner:
    """Answers by looking them up."""

    native = None

    def __init__(self, path: Path) -> None:
        self._answers = RecordedAnswers(path)
        about = self._answers.about
        self.signature: Signature = self._answers.signature
        self.details: Mapping[str, Any] = {
            "recorded_model": about["model"],
            "recorded_sha256": about["sha256"],
            "data_fingerprint": None if about["keyed_by_name"] else about["data_fingerprint"],
        }

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        return self._answers.answers(batch.rows)


class DataSetRunner:
    """The outputs that came with an ONNX model, one data set a row."""

    native = None

    def __init__(self, path: Path) -> None:
        self._answers = onnx_testdata.recorded_outputs(str(path))
        self.signature = Signature(inputs=(), outputs=None)
        self.details: Mapping[str, Any] = {"data_sets": len(self._answers)}

    def run(self, batch: Batch, *, outputs: frozenset[str] | None = None) -> Tensors:
        number = int(batch.rows.numbers[0])
        if number >= len(self._answers) or not self._answers[number]:
            raise ModelError(f"there are no recorded outputs for {batch.rows.name(0)!r}")
        return self._answers[number]


EXTENSION = RecordedAdapter()
