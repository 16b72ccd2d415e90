"""Where a model is measured: in a process of its own, or here if it cannot be sent to one."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Protocol

from likewise.benching.subject import Opened, Subject
from likewise.contracts.data import Batch, Tensors
from likewise.contracts.models import Model, Signature
from likewise.errors import LikewiseError, ModelError, one_line


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
            [sys.executable, "-m", "likewise.benching.child"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
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
