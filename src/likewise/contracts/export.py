"""From a trained model to a file that can be deployed.

An exporter knows one framework's converter. It gets the live model and the first rows of the data,
because the honest types of a model's inputs stand in the data and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from likewise.contracts.comparison import Json
from likewise.contracts.data import Batch
from likewise.contracts.models import BatchAxis, Signature
from likewise.contracts.report import Report

if TYPE_CHECKING:
    from onnx import ModelProto


NOTE = "likewise.note"
"""The metadata entry of an exported model that says what was decided for it."""


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What is to be exported and how.

    `sample` holds rows as the model takes them (already fed), first in every array; `batch_axis` says
    where the model has them. `details` is what the open model says about itself. `double` asks for
    float64 inputs and arithmetic, `zipmap` for one dictionary a row, `dynamic` names the free axes of inputs.
    """

    model: Any
    signature: Signature
    sample: Batch
    details: Mapping[str, Any] = field(default_factory=dict)
    batch_axis: BatchAxis | None = None
    opset: int | None = None
    double: bool = False
    zipmap: bool = False
    dynamic: Mapping[str, tuple[int, ...]] | None = None


class Exporter(Protocol):
    """All knowledge of one framework's way to ONNX."""

    @property
    def framework(self) -> str: ...

    def claims(self, model: object) -> bool:
        """Can this live model be exported here? Answered without importing the framework."""
        ...

    def export(self, request: ExportRequest) -> ModelProto:
        """The ONNX model, or a ModelError that names the step which cannot be converted.

        A sentence that a user should read goes into the metadata of the model under `NOTE`.
        """
        ...


@dataclass(frozen=True, slots=True)
class Export:
    """A file that was written, with the verdict on it; its truth value is that verdict, false where it was not checked.

    `features` says what each input takes, `notes` are sentences on what was decided on the way.
    """

    source: str
    output: str
    sha256: str
    bytes: int
    features: tuple[Mapping[str, Json], ...]
    notes: tuple[str, ...] = ()
    report: Report | None = None

    def __bool__(self) -> bool:
        return self.report is not None and self.report.passed
