"""Where a plan is carried out, one place a file; here, what every engine is given and what it hands on.

An engine is given a plan and a session, in which both models are opened once for everything that is asked of them. It
returns a `Run`: the facts, and a bounded part of the rows with the answers of both models, so that what follows
(variations, explaining) asks for nothing that is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import field
from os import PathLike
from typing import Protocol, Self

import numpy as np

from likewise.compare.observe import CANDIDATE, REFERENCE, Prepared
from likewise.contracts.comparison import Comparison, Plan, Progress, RunFacts
from likewise.contracts.data import Array, Batch, Tensors
from likewise.contracts.models import Model, Runner
from likewise.contracts.values import dataclass
from likewise.errors import LikewiseError
from likewise.models.remote import RemoteRunner, open_elsewhere
from likewise.registry import adapter, open_model

HEAD_ROWS = 256
"""The first rows, on which variations are tried."""

FIRST_ROWS, FAILING_ROWS = 8_192, 2_048
"""Rows that are kept with their answers: the first ones as they come, and of later ones those that differ."""

KEPT_BYTES = 64 * 2**20


class Session:
    """Two models, opened when they are first needed and closed together.

    `apart`: a reference that holds Python's lock may run in a process of its own.
    """

    def __init__(
        self,
        reference: Model,
        candidate: Model,
        *,
        apart: bool = False,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.models = {REFERENCE: reference, CANDIDATE: candidate}
        self.refused: dict[str, str] = {}
        """Why a model could not be opened, by side."""

        self._apart = apart
        self._progress = progress
        self._open: dict[str, Runner] = {}
        self._stack = ExitStack()
        self._elsewhere = self._stack.enter_context(ExitStack())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def both(self) -> tuple[Runner, Runner]:
        """Both models; one that goes apart is opened while the other is. The reference's error counts first."""
        if REFERENCE not in self._open and adapter(self.models[REFERENCE].framework).elsewhere:
            with ThreadPoolExecutor(1, "likewise-open") as pool:
                far = pool.submit(self._opened, REFERENCE)
                try:
                    candidate = self._opened(CANDIDATE)
                finally:
                    reference = far.result()
            return reference, candidate
        if REFERENCE in self._open or not self._goes_apart():
            return self._opened(REFERENCE), self._opened(CANDIDATE)
        reference = self._elsewhere.enter_context(open_elsewhere(self.models[REFERENCE], REFERENCE))
        try:
            candidate = self._opened(CANDIDATE)
        finally:
            with self._opening(REFERENCE):
                reference.arrive()
        self._open[REFERENCE] = reference
        return reference, candidate

    def here(self, side: str) -> Runner:
        """A model in this process, with the framework's own object; one that lives in another moves here."""
        if isinstance(self._open.get(side), RemoteRunner):
            del self._open[side]
            self._elsewhere.close()
        return self._opened(side)

    def beside(self, candidate: Model) -> Session:
        """The same open reference with another candidate, to be entered and left within this one."""
        other = Session(self.models[REFERENCE], candidate, progress=self._progress)
        other.refused.update({side: why for side, why in self.refused.items() if side == REFERENCE})
        if REFERENCE not in self.refused:
            other._open[REFERENCE] = self.here(REFERENCE)
        return other

    def _goes_apart(self) -> bool:
        """Can the reference be opened anywhere, and would it keep the candidate waiting for Python's lock?"""
        model = self.models[REFERENCE]
        stored = isinstance(model.target, str | PathLike)
        return self._apart and stored and adapter(model.framework).holds_interpreter

    def _opened(self, side: str) -> Runner:
        if side not in self._open:
            model = self.models[side]
            with self._opening(side):
                # They take turns: one that keeps its cores busy while it waits takes them from the other.
                shared = adapter(model.framework).sharing(model)
                self._open[side] = self._stack.enter_context(open_model(shared))
        return self._open[side]

    @contextmanager
    def _opening(self, side: str) -> Iterator[None]:
        """Progress is told, and errors say which of the two could not be opened."""
        if self._progress is not None:
            self._progress(Progress(f"loading the {side}", side))
        try:
            yield
        except LikewiseError as error:
            self.refused[side] = error.message
            error.side = side
            error.message = f"the {side} cannot be opened: {error.message}"
            raise


@dataclass(frozen=True, slots=True)
class Head:
    """The first rows and what both models answered to them in the main run."""

    batch: Batch
    reference: Tensors
    candidate: Tensors

    def slice(self, stop: int) -> Head:
        return Head(
            self.batch.slice(0, stop),
            {name: array[:stop] for name, array in self.reference.items()},
            {name: array[:stop] for name, array in self.candidate.items()},
        )

    def at(self, positions: Array) -> Head:
        """Some of the rows, in the order of the positions."""
        return Head(
            self.batch.at(positions),
            {name: array[positions] for name, array in self.reference.items()},
            {name: array[positions] for name, array in self.candidate.items()},
        )


@dataclass(slots=True)
class Kept:
    """Rows of a run with the answers of both models: the first ones, and further on those that differ.

    `full`: there are as many first rows as are ever kept. `failing` counts the later ones.
    """

    row_bytes: int
    parts: list[Head] = field(default_factory=list)
    rows: int = 0
    failing: int = 0
    size: int = 0

    @property
    def full(self) -> bool:
        return self.rows - self.failing >= FIRST_ROWS

    def add(self, answered: Head, beyond: Array) -> None:
        """Keep of the next rows what there is room for; `beyond` marks those that differ."""
        if not answered.batch.stacked or self.size >= KEPT_BYTES:
            return
        if not self.full:
            first = answered.slice(min(len(answered.batch), FIRST_ROWS - self.rows))
            self._keep(first)
            beyond = beyond.copy()
            beyond[: len(first.batch)] = False
        later = np.flatnonzero(beyond)[: FAILING_ROWS - self.failing]
        if len(later):
            self.failing += len(later)
            self._keep(answered.at(later))

    def _keep(self, part: Head) -> None:
        self.parts.append(part)
        self.rows += len(part.batch)
        answers = (*part.reference.values(), *part.candidate.values())
        self.size += len(part.batch) * self.row_bytes + sum(array.nbytes for array in answers)


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a plan. `prepared` is None where the models could not be opened, fed or paired.

    `row_seconds` is by side what a row of the data took at least.
    """

    comparison: Comparison
    facts: RunFacts = field(default_factory=RunFacts)
    prepared: Prepared | None = None
    head: Head | None = None
    kept: Kept | None = None
    row_seconds: Mapping[str, float] = field(default_factory=dict)


class Engine(Protocol):
    """Where a plan is carried out. Every engine gives the same comparison."""

    @property
    def name(self) -> str: ...

    def run(self, plan: Plan, session: Session) -> Run: ...
