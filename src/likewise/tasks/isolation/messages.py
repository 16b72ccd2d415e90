"""What a worker tells its parent. It has opened a stranger's file and may say anything: nothing here is believed.

Lines have an end, messages the types that they should have, and what is shown moves no cursor.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import threading
from collections.abc import Mapping
from typing import IO, Any, TypeAlias

from likewise.report.console import printable, styled

MOST_BYTES = 1 << 28
"""Of a message. The largest real one holds a piece of a model of 64 MiB as text, with its rows, and the pages."""

MOST_PARTS = 1 << 23
"""Values in a message, counted by what stands between them, in text too: an empty list takes 64 bytes in memory."""

AHEAD = 8
"""Messages that are read before somebody has time for them: as many as sent would fill the memory."""

LAST_WORDS = 16_000
"""Characters of the worker's own output that are kept to explain its death."""

PIECE = 1 << 16
"""Bytes of that output taken at a time: a line of it may have no end."""

TEXT, COUNT, OPTIONAL = (str,), (int,), (type(None),)
EDGE, SHAPES, EXPLAINING = "edge suites", "shapes", "explaining"
"""What may follow once the data was compared."""

KINDS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "progress": {
        "phase": TEXT,
        "side": TEXT + OPTIONAL,
        "first": COUNT,
        "last": COUNT,
        "done": COUNT,
        "total": COUNT + OPTIONAL,
        "finished": (bool,),
    },
    "confined": {"told": TEXT},
    "checkpoint": {"number": COUNT},
    "judged": {"result": TEXT, "before": TEXT, "outcome": TEXT, "within": (int, float, *OPTIONAL)},
    "result": {"result": (object,)},
    "error": {"code": TEXT, "message": TEXT},
}
"""What a message of each kind holds, and what that has to be."""

CHECKPOINT = "checkpoint."
"""How a worker calls what it has reached, before a number, in the folder that is its own."""

SHOWN = ("phase", "told", "outcome", "before", "traceback")
"""What is shown as it comes; the rest is shown by those who write reports and errors."""

SIDES = (None, "", "reference", "candidate")
Message: TypeAlias = dict[str, Any]


def read(pipe: IO[bytes], messages: queue.Queue[Message | ValueError | None], token: str) -> None:
    """Put the messages in a pipe into a queue, an error for what is none, and None at their end."""
    with contextlib.suppress(ValueError, OSError):
        while line := pipe.readline(MOST_BYTES):
            if len(line) == MOST_BYTES and not line.endswith(b"\n"):
                messages.put(ValueError(f"a message of more than {MOST_BYTES >> 20} MiB"))
                break
            if sum(map(line.count, (b"[", b"{", b","))) > MOST_PARTS:
                messages.put(ValueError("a message of more parts than anybody reads"))
                break
            # Whatever a model writes here is not a message of ours.
            with contextlib.suppress(ValueError, RecursionError):
                found = json.loads(line)
                if isinstance(found, dict) and found.get("token") == token:
                    messages.put(_message(found))
    messages.put(None)


def _message(found: Message) -> Message | ValueError:
    kind = str(found.get("type"))
    for name, types in KINDS.get(kind, {"type": ()}).items():
        value = found.get(name)
        fits = name in found and isinstance(value, types)
        if not fits or (isinstance(value, int | float) and not -(2**63) < value < 2**63):
            return ValueError(f"a message {kind[:20]!r} whose {name} is none")
    if found.get("side") not in SIDES:
        return ValueError("a message about a model that nobody named")
    return found | {name: printable(str(found[name])) for name in SHOWN if found.get(name) is not None}


class Tail:
    """The end of what the worker writes on its own account: models print, runtimes warn."""

    def __init__(self, pipe: IO[bytes], *, echo: bool) -> None:
        self._pipe, self._echo, self._text = pipe, echo, ""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(ValueError, OSError):
            while line := self._pipe.readline(PIECE):
                text = line.decode(errors="replace")
                self._text = (self._text + text)[-LAST_WORDS:]
                if self._echo:
                    # A piece ends its line, so that what follows it cannot turn it into something else.
                    sys.stderr.write(styled(text.rstrip("\r\n")) + "\n")

    def text(self) -> str:
        """What it said last."""
        self._thread.join(timeout=1)
        return self._text
