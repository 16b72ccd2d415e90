"""Warm processes for many gates: what is imported once serves all.

A process that has imported what they need is copied for each. It opens no model and reads no data; every copy raises
its own walls before it does. Its copies are children of the process that asks for them, as if that had made them
itself: it is told how they end, and they end with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import struct
import sys
import threading
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

from likewise.contracts.models import Adapter
from likewise.models.remote import Copy, become, die_with_parent, wait_asleep
from likewise.registry import opener
from likewise.tasks.isolation.starting import MAKERS, WORKER, light, work

NEEDED = (
    *("likewise.tasks.check", "likewise.compare.engines.local", "likewise.compare.variations.edge.rows"),
    *("likewise.compare.variations.edge.values", "likewise.models.trees.read", "likewise.models.onnx.trees"),
    *("likewise.report.formats.json", "likewise.report.formats.html", "likewise.cli.gates"),
    *("narwhals", "pandas", "pyarrow.pandas_compat", "pyarrow.parquet", "pyarrow.vendored.version"),
)
"""What a gate imports, whatever its models are."""

ADOPT = 36
"""Asks the system that processes whose parent ends become ours."""

BORN = 60.0
"""Seconds in which a copy is made, on the busiest of machines, once all is imported; else it is done without."""


class Nursery:
    """Makes warm processes; used by several threads, one at a time. `close` ends it, not what it made."""

    def __init__(self, imported: Collection[str]) -> None:
        self._turn = threading.Lock()
        ours, theirs = socket.socketpair()
        nothing = os.open(os.devnull, os.O_RDWR)
        try:
            if ctypes.CDLL(None).prctl(ADOPT, 1, 0, 0, 0):
                raise OSError("processes cannot be adopted here")
            self._pid = os.fork()
            if not self._pid:
                become(partial(_keep, theirs, imported), (nothing, nothing), apart=True, kept=(theirs.fileno(),))
        finally:
            os.close(nothing)
            theirs.close()
        self._line = ours
        self._line.settimeout(BORN)

    def copy(self) -> Copy:
        """A process that is ready to be given a job; an `OSError` if there is none to be had."""
        return Copy(work, apart=True, fork=self._born)

    def _born(self, pipes: Sequence[int]) -> int:
        with self._turn:
            try:
                socket.send_fds(self._line, [b"\n"], pipes)
                told = self._line.recv(4)
                return int(struct.unpack("=i", told)[0])
            except (OSError, struct.error) as error:
                # Half an answer may still come: nobody is to take it for that to the next question.
                self._line.close()
                raise OSError("no process was made") from error

    def close(self) -> None:
        """End what makes processes."""
        self._line.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)


def imported(adapter: Adapter) -> tuple[str, ...]:
    """What models of a framework need, whichever they are: what each gate imported by itself took half of its time."""
    return (type(adapter).__module__, *adapter.modules, *adapter.families)


@contextmanager
def warmed(targets: Iterable[Any]) -> Iterator[None]:
    """Processes begin warm for gates with these models, where this system can copy processes and this one may be."""
    if not light():
        yield
        return
    found = [found for found in map(opener, targets) if found is not None]
    adapted = dict.fromkeys(name for entry in found for name in imported(entry))
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            MAKERS.append(stack.enter_context(contextlib.closing(Nursery((*NEEDED, *adapted)))))
            stack.callback(MAKERS.clear)
        yield


def _keep(line: socket.socket, imported: Collection[str]) -> None:
    """Import, then make a process whenever one is asked for, until nobody does any more."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wait_asleep()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in (*imported, WORKER):
            # What cannot be imported is missed by the gate that needs it, in words.
            with contextlib.suppress(Exception):
                import_module(name)
        with contextlib.suppress(Exception):
            _settle()
    os.register_at_fork(after_in_child=_forget_chances)
    gc.collect()
    gc.freeze()
    while True:
        asked, pipes, *_ = socket.recv_fds(line, 1, 3)
        if not asked:
            return
        between = os.fork()
        if not between:
            _beget(line, pipes)
        for pipe in pipes:
            os.close(pipe)
        os.waitpid(between, 0)


def _settle() -> None:
    """What is done once in every process that carries out a gate, and is the same in all."""
    import narwhals
    import pandas

    from likewise.registry import extensions
    from likewise.report.formats import html

    for folder in ("data.readers", "compare.metrics"):
        extensions(folder)
    for page in ("page.html", "macros.html"):
        html.template(page)
    # The second looks for plugins among all packages that are installed.
    narwhals.from_native(pandas.DataFrame())
    narwhals.from_native(None, pass_through=True)


def _beget(line: socket.socket, pipes: Sequence[int]) -> NoReturn:
    """Make a process and end: it becomes the child of whoever adopts."""
    try:
        between = os.getpid()
        if not os.fork():
            while os.getppid() == between:
                os.sched_yield()
            os.setpgid(0, 0)
            line.sendall(struct.pack("=i", os.getpid()))
            signal.signal(signal.SIGINT, signal.default_int_handler)
            become(work, pipes, apart=True)
    finally:
        os._exit(0)


def _forget_chances() -> None:
    """Two processes must not draw the same numbers: a model that rolls dice would agree with itself."""
    sys.modules["numpy"].random.seed()
