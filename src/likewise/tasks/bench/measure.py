"""Where a model is measured: in a process of its own, or here if it cannot be sent to one.

What raw samples say: percentiles, throughput, and the ratio of medians with its interval.

The rounds: both models at every batch size, in random order, until the time is used up.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from likewise.contracts.bench import BatchTiming, Latency, Round
from likewise.contracts.data import Batch, Tensors
from likewise.contracts.models import Model, Signature
from likewise.errors import LikewiseError, ModelError, one_line
from likewise.tasks.bench.subject import Opened, Subject


class Station(Protocol):
    """What can be asked of a model under measurement; `Subject` says what each means."""

    def open(self, model: Model) -> Opened: ...
    def take(self, batch: Batch, sizes: Sequence[int]) -> None: ...
    def answer(self) -> tuple[Signature, Tensors]: ...
    def ask_for(self, outputs: frozenset[str] | None) -> None: ...
    def warm_up(self, size: int) -> int: ...
    def turn(self, size: int, calls: int) -> list[int]: ...
    def watch_memory(self) -> None: ...
    def peak_memory(self) -> int | None: ...
    def reopen(self) -> list[int]: ...
    def close(self) -> None: ...


class UnpicklableError(Exception):
    """A live model cannot travel to another process."""


class ProcessStation:
    """A model in a process of its own: its memory is its own, and so are its threads."""

    def __init__(self, side: str) -> None:
        self._side = side
        self._process = subprocess.Popen(
            [sys.executable, "-m", "likewise.tasks.bench.child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._send(sys.path)

    def open(self, model: Model) -> Opened:
        self._name = model.name
        opened: Opened = self._call("open", model)
        return opened

    def take(self, batch: Batch, sizes: Sequence[int]) -> None:
        self._call("take", batch, tuple(sizes))

    def answer(self) -> tuple[Signature, Tensors]:
        signature, tensors = self._call("answer")
        return signature, tensors

    def ask_for(self, outputs: frozenset[str] | None) -> None:
        self._call("ask_for", outputs)

    def warm_up(self, size: int) -> int:
        return int(self._call("warm_up", size))

    def turn(self, size: int, calls: int) -> list[int]:
        return list(self._call("turn", size, calls))

    def watch_memory(self) -> None:
        self._call("watch_memory")

    def peak_memory(self) -> int | None:
        found: int | None = self._call("peak_memory")
        return found

    def reopen(self) -> list[int]:
        return list(self._call("reopen"))

    def close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            content = pickle.dumps(arguments)
        except Exception as error:
            raise UnpicklableError(one_line(error)) from error
        try:
            self._send((name, content))
            assert self._process.stdout is not None
            kind, result = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as error:
            raise self._death(name) from error
        if kind == "unpicklable":
            raise UnpicklableError(result)
        if kind == "error":
            code, message, remedy = result
            raise _error(code, f"the {self._side} ({self._name}): {message}", remedy, self._side)
        return result

    def _send(self, message: Any) -> None:
        assert self._process.stdin is not None
        pickle.dump(message, self._process.stdin)
        self._process.stdin.flush()

    def _death(self, doing: str) -> ModelError:
        code = self._process.wait()
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 and os.name == "posix" else f"ended with {code}"
        return ModelError(
            f"the process of the {self._side} ({self._name}) {how} during {doing.replace('_', ' ')!r}",
            remedy="Run the model alone on these rows to see it crash",
            side=self._side,
        )


def open_station(side: str, model: Model) -> tuple[Station, Opened, bool]:
    """An open model, where it stands, and whether it has a process of its own."""
    station = ProcessStation(side)
    try:
        return station, station.open(model), True
    except UnpicklableError:
        station.close()
    except BaseException:
        station.close()
        raise
    here = Subject()
    try:
        return here, here.open(model), False
    except LikewiseError as error:
        error.message = f"the {side} ({model.name}): {error.message}"
        error.side = side
        raise


def _error(code: str, message: str, remedy: str, side: str) -> LikewiseError:
    from likewise.errors import UsageError

    kind = UsageError if code == "usage" else ModelError
    error = kind(message, remedy=remedy, side=side)
    error.code = code
    return error


CONFIDENCE = 0.95
RESAMPLES = 2_000
LEAST_ROUNDS = 3
LEAST_CALLS_FOR_P99 = 100


def timing(size: int, rounds: Sequence[Round], *, seed: int) -> BatchTiming:
    """Everything the rounds at one batch size say."""
    import numpy as np

    reference = [entry.reference for entry in rounds]
    candidate = [entry.candidate for entry in rounds]
    return BatchTiming(
        batch_size=size,
        reference=latency(reference, size),
        candidate=latency(candidate, size),
        ratio=float(np.median(np.concatenate(reference)) / np.median(np.concatenate(candidate))),
        interval=interval(reference, candidate, seed=seed),
        rounds=tuple(rounds),
    )


def latency(turns: Sequence[Sequence[int]], size: int) -> Latency:
    """Percentiles of all calls in milliseconds; throughput is all rows over all timed time."""
    import numpy as np

    calls = np.concatenate([np.asarray(turn, dtype=np.float64) for turn in turns])
    p50, p90, p99 = (float(value) for value in np.percentile(calls, [50, 90, 99]) / 1e6)
    return Latency(
        calls=len(calls),
        p50=p50,
        p90=p90,
        p99=p99 if len(calls) >= LEAST_CALLS_FOR_P99 else None,
        rows_per_second=float(size * len(calls) / (calls.sum() / 1e9)),
    )


def interval(
    reference: Sequence[Sequence[int]], candidate: Sequence[Sequence[int]], *, seed: int
) -> tuple[float, float] | None:
    """The bootstrap interval of the ratio of medians.

    Whole rounds are drawn again, both models' turns together: calls within a turn share the state of
    the machine and are not independent of each other. Every turn of a model has the same number of calls.
    """
    import numpy as np

    if len(reference) < LEAST_ROUNDS:
        return None
    ours, theirs = np.array(reference, dtype=np.float64), np.array(candidate, dtype=np.float64)
    random = np.random.default_rng(seed)
    ratios = np.empty(RESAMPLES)
    for index in range(RESAMPLES):
        drawn = random.integers(0, len(ours), size=len(ours))
        ratios[index] = np.median(ours[drawn]) / np.median(theirs[drawn])
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return float(low), float(high)


SIDES = ("reference", "candidate")
ROUNDS = 30
"""Rounds the time is divided into."""

MOST_ROUNDS = 60
MOST_CALLS = 100
"""Calls a turn: enough for the percentiles, and the raw samples stay small."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The rounds of every batch size, and the sizes that would have taken too long."""

    rounds: Mapping[int, tuple[Round, ...]]
    left_out: tuple[int, ...]


def measure(
    stations: Mapping[str, Station],
    sizes: Sequence[int],
    *,
    budget: float,
    seed: int,
    on_progress: Callable[[float], None] | None = None,
) -> Measured:
    """Let both models take turns, at every size in every round, for about `budget` seconds."""
    began = time.monotonic()
    chooser = random.Random(seed)
    paces: dict[int, dict[str, int]] = {}
    left_out: list[int] = []
    for size in sorted(sizes):
        # A larger batch takes longer; what not even the smaller one has time for is not tried.
        if left_out:
            left_out.append(size)
            continue
        paces[size] = {side: stations[side].warm_up(size) for side in SIDES}
        if LEAST_ROUNDS * sum(paces[size].values()) > budget * 1e9 and len(paces) > 1:
            del paces[size]
            left_out.append(size)
    turn = budget * 1e9 / (ROUNDS * len(paces) * len(SIDES))
    calls = {
        size: {side: int(min(max(turn / pace, 1), MOST_CALLS)) for side, pace in of_sides.items()}
        for size, of_sides in paces.items()
    }
    rounds: dict[int, list[Round]] = {size: [] for size in paces}
    for number in range(MOST_ROUNDS):
        spent = time.monotonic() - began
        if number >= LEAST_ROUNDS and spent >= budget:
            break
        if on_progress is not None:
            on_progress(spent)
        for size in chooser.sample(sorted(paces), len(paces)):
            rounds[size].append(_round(stations, size, calls[size], chooser))
    return Measured({size: tuple(taken) for size, taken in rounds.items()}, tuple(left_out))


def _round(stations: Mapping[str, Station], size: int, calls: Mapping[str, int], chooser: random.Random) -> Round:
    first, second = chooser.sample(SIDES, 2)
    times = {side: tuple(stations[side].turn(size, calls[side])) for side in (first, second)}
    return Round((first, second), times["reference"], times["candidate"])
