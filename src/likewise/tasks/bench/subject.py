"""The memory of this process, as the system counts it; None where the system does not say.

One open model under measurement: opened, given its rows, called, timed.
"""

from __future__ import annotations

import gc
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from likewise.contracts.data import Batch, Tensors
from likewise.contracts.models import Model, Runner, Signature
from likewise.data.columns import ArrayColumns, FrameColumns
from likewise.registry import adapter


def current() -> int | None:
    """Resident bytes now; where only a peak is known, that."""
    found = _status("VmRSS")
    return _largest_ever() if found is None else found


def growth(before: int | None) -> int | None:
    """Bytes beyond an earlier figure."""
    now = current()
    return None if now is None or before is None else max(0, now - before)


def forget_peak() -> None:
    """Let the peak start anew, where Linux allows it."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def peak_growth(before: int | None) -> int | None:
    """Bytes between an earlier figure and the highest since the peak was forgotten."""
    peak = _status("VmHWM")
    peak = _largest_ever() if peak is None else peak
    return None if peak is None or before is None else max(0, peak - before)


def _status(field: str) -> int | None:
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = re.search(rf"^{field}:\s+(\d+) kB", text, re.M)
    return None if found is None else int(found[1]) * 1024


def _largest_ever() -> int | None:
    try:
        import resource
    except ImportError:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


SETTLE_NS = 5_000_000
"""Untimed calls at the start of a turn: caches fill again, and the other model's idle threads stop spinning."""

WARM_UP_NS = 50_000_000
REOPENED = 3
"""How often a model is opened again to see how long that takes without importing its framework."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What opening a model showed."""

    signature: Signature
    details: Mapping[str, Any]
    nanoseconds: int
    memory: int | None


class Subject:
    """An open model that can be timed. The same object serves in this process and in one of its own."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._pieces: dict[int, list[Batch]] = {}
        self._outputs: frozenset[str] | None = None
        self._peak: int | None = None

    def open(self, model: Model) -> Opened:
        """Open the model for the first time in this process."""
        self._model = model
        before = current()
        began = time.perf_counter_ns()
        self._runner: Runner = self._stack.enter_context(adapter(model.framework).open(model))
        taken = time.perf_counter_ns() - began
        return Opened(self._runner.signature, dict(self._runner.details), taken, growth(before))

    def take(self, batch: Batch, sizes: Sequence[int]) -> None:
        """Cut the rows, already fed, to the batch sizes; each size goes through different rows."""
        for size in sizes:
            starts = range(0, len(batch) - size + 1, size) if batch.stacked else range(1)
            cut = (batch.slice(start, start + size) if batch.stacked else batch for start in starts)
            self._pieces[size] = [self._ready(piece) for piece in cut]

    def answer(self) -> tuple[Signature, Tensors]:
        """The answers to the first rows, with what the model declares once it has answered."""
        return self._runner.signature, self._runner.run(self._pieces[max(self._pieces)][0])

    def ask_for(self, outputs: frozenset[str] | None) -> None:
        """From now on compute these outputs only."""
        self._outputs = outputs

    def warm_up(self, size: int) -> int:
        """Nanoseconds a call once the first calls are over."""
        times: list[int] = []
        while len(times) < 2 or sum(times) < WARM_UP_NS:
            times += self._timed(size, 1)
        return sorted(times[1:])[(len(times) - 1) // 2]

    def turn(self, size: int, calls: int) -> list[int]:
        """Nanoseconds of each of some calls after untimed ones, with the garbage collector off."""
        deadline = time.perf_counter_ns() + SETTLE_NS
        while True:
            self._timed(size, 1)
            if time.perf_counter_ns() >= deadline:
                break
        return self._timed(size, calls)

    def watch_memory(self) -> None:
        """Start to measure the peak of the calls."""
        gc.collect()
        self._before_calls = current()
        forget_peak()

    def peak_memory(self) -> int | None:
        """How far the calls since then raised the memory of the process."""
        return peak_growth(self._before_calls)

    def reopen(self) -> list[int]:
        """Nanoseconds of opening the model again, several times."""
        times = []
        for _ in range(REOPENED):
            began = time.perf_counter_ns()
            with adapter(self._model.framework).open(self._model):
                times.append(time.perf_counter_ns() - began)
        return times

    def close(self) -> None:
        self._stack.close()

    def _timed(self, size: int, calls: int) -> list[int]:
        run, outputs, clock = self._runner.run, self._outputs, time.perf_counter_ns
        pieces = self._pieces[size]
        chosen = [pieces[index % len(pieces)] for index in range(calls)]
        times = []
        collecting = gc.isenabled()
        gc.disable()
        try:
            for piece in chosen:
                began = clock()
                run(piece, outputs=outputs)
                times.append(clock() - began)
        finally:
            if collecting:
                gc.enable()
        return times

    def _ready(self, piece: Batch) -> Batch:
        """A batch from which the model's own argument is one lookup away: building it is not timed."""
        inputs = piece.inputs
        if self._runner.signature.table or not isinstance(inputs, ArrayColumns):
            return Batch(piece.rows, FrameColumns(inputs.frame()), piece.stacked)
        if not piece.stacked:
            return piece
        return Batch(piece.rows, ArrayColumns(dict(inputs)), piece.stacked)
