"""How the process of a job begins: as a copy of this one, as a new one, or as a copy of a warm one (`nursery`)."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import threading
from importlib import import_module
from typing import Protocol

from likewise.errors import DataError
from likewise.models.remote import Copy, Process, python, surroundings

WORKER = "likewise.tasks.isolation.worker"


class Maker(Protocol):
    """Makes processes that wait for their jobs."""

    def copy(self) -> Copy:
        """One of them; an `OSError` if there is none to be had."""
        ...


MAKERS: list[Maker] = []
"""The one that makes processes now, if there is one."""


def copy_rows(address: str, folder: str) -> None:
    """Copy rows from an object store, by a process that does only that: it has the network, and opens nothing."""
    words = python("-m", "likewise.data.stores", address, folder)
    ended = subprocess.run(words, env=surroundings(), capture_output=True, check=False)
    if ended.returncode:
        told = ended.stderr.decode(errors="replace").strip().splitlines() or ["no reason was given"]
        raise DataError(f"{address.partition('?')[0]} cannot be copied: {told[-1][:300]}")


def begin() -> Process:
    """A process that waits for its job."""
    for maker in MAKERS:
        with contextlib.suppress(OSError):
            return maker.copy()
    if light():
        return Copy(work, apart=True)
    return subprocess.Popen(
        python("-m", WORKER),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=surroundings(),
        start_new_session=os.name == "posix",
    )


def light() -> bool:
    """May this process be copied? No thread of a library is lost, and no framework has begun to work in it."""
    return sys.platform == "linux" and threading.active_count() == 1 and "numpy" not in sys.modules


def work() -> None:
    """What a copy does."""
    # Nothing that is imported is garbage; it is looked for once a job begins.
    gc.disable()
    import_module(WORKER).main()
