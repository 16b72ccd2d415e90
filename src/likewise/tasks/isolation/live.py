"""Live models and data of a caller, for a worker: what can be pickled, in a file of ours.

They are the caller's own, so that nothing is asked of what they name; a file that a stranger made is never read here.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from likewise.errors import UsageError, one_line
from likewise.tasks.isolation.rooms import ROOM, room

REMEDY = "Save it and give the file, name it as `module:attribute` or `file.py:attribute`, or leave isolate=True out"


@contextmanager
def sent(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """A job that travels as JSON: what is live in its settings is in a file while it is carried out."""
    settings = {name: os.fspath(v) if isinstance(v, os.PathLike) else v for name, v in job["settings"].items()}
    live = {name: settings.pop(name) for name in ("reference", "candidate", "data") if not _is_plain(settings[name])}
    if strange := next((name for name, value in settings.items() if not _is_plain(value)), None):
        raise UsageError(f"{strange} cannot be sent to a process of its own", remedy="Give plain values there")
    if not live:
        yield {**job, "settings": settings}
        return
    with room(gettempdir(), ROOM) as folder:
        file = Path(folder) / "live.pickle"
        file.write_bytes(_pickled(live))
        # Modules of the caller's are found from wherever they were found before.
        paths = [os.path.abspath(entry) for entry in sys.path]
        yield {**job, "settings": settings, "live": {"file": str(file), "paths": paths}}


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _pickled(live: Mapping[str, Any]) -> bytes:
    """All at once: what is one object on both sides stays one. A usage error names the one that cannot be pickled."""
    for name, value in live.items():
        try:
            pickle.dumps(value)
        except Exception as error:
            told = f"the {name} cannot be sent to a process of its own: {one_line(error)}"
            raise UsageError(told, remedy=REMEDY) from error
    return pickle.dumps(live, protocol=pickle.HIGHEST_PROTOCOL)


def taken_up(sent: Mapping[str, Any]) -> dict[str, Any]:
    """The live objects of the caller, in the worker."""
    sys.path += [entry for entry in sent["paths"] if entry not in sys.path]
    try:
        found: dict[str, Any] = pickle.loads(Path(sent["file"]).read_bytes())
    except Exception as error:
        told = f"what is live cannot be made again in a process of its own: {one_line(error)}"
        unknown = "What a script or a notebook defines is not known there. "
        raise UsageError(told, remedy=unknown + REMEDY) from error
    return found
