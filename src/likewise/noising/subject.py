"""One open model and its answers to some rows, to be asked again in other ways."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from likewise import feeding
from likewise.calling import Side, answers
from likewise.contracts.data import Batch, Tensors
from likewise.contracts.models import Model
from likewise.discovery import adapter

NAME = "model"
"""What errors call it; there is no other side."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, the rows, and what it answered to them at first. `framework` is that of the open object.

    `notes` are what experiments leave to be told.
    """

    model: Model
    framework: str
    side: Side
    batch: Batch
    answers: Tensors
    mapping: Mapping[str, str]
    notes: list[str] = field(default_factory=list)

    def ask(self, batch: Batch | None = None, *, size: int | None = None) -> Tensors:
        """What it answers now, to the same rows or to others."""
        return answers(self.side, self.batch if batch is None else batch, size)[0]

    def ask_other(self, *, batch: Batch | None = None, target: Any = None, **options: Any) -> Tensors:
        """What the model answers when it is opened with other options, or in another form."""
        model = replace(self.model, options={**self.model.options, **options})
        if target is not None:
            model = Model(self.framework, target, options, self.model.batch_axis)
        given = self.batch if batch is None else batch
        with open_side(model, given, self.mapping) as side:
            return answers(side, given)[0]


@contextmanager
def open_side(model: Model, batch: Batch, mapping: Mapping[str, str]) -> Iterator[Side]:
    """A model, open and ready to be fed."""
    with adapter(model.framework).open(model) as runner:
        feed = feeding.plan(batch, runner.signature, side=NAME, mapping=mapping)
        yield Side(NAME, model.name, runner, feed)
