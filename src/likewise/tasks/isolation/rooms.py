"""Folders that a worker may write to: made for one job, gone afterwards, and swept up after a job that was killed."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import Any

from likewise.data.files import CHECKPOINT, REPLACE, is_checkpoint, remove, replacing, strangers_file
from likewise.errors import DataError, LikewiseError
from likewise.tasks.own_files import names_file

WRITING = ("export", "fix", "quantize", "record", "stress")
"""Jobs that make a file."""

ALWAYS, MODELS = ("export", "quantize", "record"), ("export", "fix", "quantize")
"""Those that always do, and those whose file is a model, which may have its weights beside it."""

DESCRIBED = {"export": ("features", "metadata")}
"""What else a job writes beside its file, of which the command has seen that it may."""

ROOM, NOTE = "likewise.", ".of-likewise"
"""How folders for one command are called, and the file in each that says whose it is."""

LONGEST_NOTE = 1_000
"""Bytes of such a note that are read."""

FORGOTTEN = 60.0
"""Seconds after which an empty folder of ours is nobody's: the note is written as soon as there is one."""

NO_SANDBOX: ContextVar[bool] = ContextVar("no_sandbox", default=False)
"""Did the user say that nothing is to confine models? `--no-sandbox` does."""


@contextmanager
def rooms(job: Mapping[str, Any]) -> Iterator[list[str]]:
    """The folders that a worker may write to, none where nothing confines it; what it made is put in its place."""
    if NO_SANDBOX.get() or job["do"] == "demo":
        yield []
        return
    _sweep(gettempdir(), ROOM)
    output = Path(job["arguments"]["output"]) if job["do"] in WRITING else None
    with ExitStack() as stack:
        own = [stack.enter_context(room(gettempdir(), ROOM))]
        if output is not None:
            # Where a file gets its place by a new name: in the same file system.
            near = next(above for above in output.absolute().parents if above.is_dir())
            _sweep(near, f".{ROOM}")
            own.append(stack.enter_context(room(near, f".{ROOM}")))
        yield own
        if output is not None:
            _put_in_place(job["do"], Path(own[-1]), output)


@contextmanager
def room(folder: str | Path, prefix: str) -> Iterator[str]:
    """A folder that is gone afterwards, with a note of the system whose process it belongs to.

    Another system has other processes of that number.
    """
    room = mkdtemp(prefix=f"{prefix}{os.getpid()}.", dir=folder)
    try:
        (Path(room) / NOTE).write_text(_system())
        yield room
    finally:
        remove(room, NOTE)


def _system() -> str:
    """What tells this system from others that may share a folder with it: the boot, and who sees which processes."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    return platform.node()


def _sweep(folder: str | Path, prefix: str) -> None:
    """Remove the folders of commands that were killed: those with our note, of processes that are no more."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            owner = entry.name.removeprefix(prefix).partition(".")[0]
            if not entry.name.startswith(prefix) or not owner.isdecimal() or not _our_folder(entry):
                continue
            if _runs(int(owner)):
                continue
            with contextlib.suppress(OSError), strangers_file(os.path.join(entry.path, NOTE)) as note:
                if note.read(LONGEST_NOTE) == _system().encode():
                    remove(entry.path, NOTE)
            with contextlib.suppress(OSError):
                # Killed before there was a note: nothing is in it.
                if time.time() - entry.stat(follow_symlinks=False).st_mtime > FORGOTTEN:
                    os.rmdir(entry.path)


def _our_folder(entry: os.DirEntry[str]) -> bool:
    """Is this no link, and nobody else's? Where files are temporary, others make what they like."""
    with contextlib.suppress(OSError):
        told = entry.stat(follow_symlinks=False)
        return stat.S_ISDIR(told.st_mode) and told.st_uid == getattr(os, "getuid", lambda: told.st_uid)()
    return False


def _runs(number: int) -> bool:
    try:
        os.kill(number, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _put_in_place(job: str, made: Path, output: Path) -> None:
    """Move what a worker wrote: the file that was asked for and what belongs to it by such a job, and nothing else."""
    described = [output.with_suffix(f".{what}.json").name for what in DESCRIBED.get(job, ())]
    weights = [f"{output.name}.data"] if job in MODELS else []
    # The model last: what it needs is there when it is.
    found = [path for name in (*weights, *described, output.name) if _plain(path := made / name)]
    if job in ALWAYS and output.name not in {path.name for path in found}:
        raise DataError(f"{output} is not written: the worker left nothing there")
    for path in found:
        place = output.parent / path.name
        if path.name in weights and not REPLACE.get() and os.path.lexists(place) and not names_file(output, place):
            told = f"{place} is not replaced: it is not known to belong to {output}"
            raise DataError(told, remedy="Name another file, move this one, or say --force")
    for path in found:
        with replacing(output.parent / path.name) as place:
            path.chmod(place.stat().st_mode)
            path.replace(place)


def _plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def put_checkpoint(made: Path, place: str) -> None:
    """Put what a worker has reached beside its report, if that can be done; a run does not end for it."""
    with contextlib.suppress(OSError, LikewiseError):
        # The worker lives, and may put something else there meanwhile: what was opened is looked at and copied.
        with strangers_file(made) as reached:
            ours = reached.read(len(CHECKPOINT)) == CHECKPOINT
            if ours and (not os.path.lexists(place) or is_checkpoint(Path(place))):
                with replacing(Path(place)) as file, file.open("wb") as kept:
                    kept.write(CHECKPOINT)
                    shutil.copyfileobj(reached, kept)
        made.unlink()
