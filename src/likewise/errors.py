"""Errors that teach: what happened, where, and the next thing to do."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


confined = ""
"""The folder that stands for the user's own where walls stand around this process; what is denied, they may deny."""


class LikewiseError(Exception):
    """The root of every error likewise raises on purpose.

    `code` is for machines, `remedy` is the next thing to do, `side` is the model it concerns.
    """

    code = "error"

    def __init__(self, message: str, *, remedy: str = "", side: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.side = side

    def __str__(self) -> str:
        stop = "" if self.message.endswith((".", "?", "!")) else "."
        return f"{self.message}{stop} {self.remedy}" if self.remedy else self.message


class UsageError(LikewiseError):
    """The question itself makes no sense: an unknown preset, a negative tolerance."""

    code = "usage"


class ModelError(LikewiseError):
    """A model could not be opened or did not answer."""

    code = "model"


class UntrustedModelError(ModelError):
    """A file refers to code that is not known to be safe; nothing in it was executed."""

    code = "untrusted-model"


class MissingExtraError(ModelError):
    """An optional framework is not installed."""

    code = "missing-extra"


class UnavailableError(ModelError):
    """What a model was to be run with is known, and is not on this machine."""

    code = "unavailable"


class DataError(LikewiseError):
    """Data could not be read in full."""

    code = "data"


class FeedingError(LikewiseError):
    """The data does not fit what a model takes."""

    code = "feeding"


class PairingError(LikewiseError):
    """It cannot be told which outputs belong together."""

    code = "pairing"


class RowCountError(LikewiseError):
    """A model gave more or fewer answers than it was given rows."""

    code = "row-count"


ALIKE = 0.7
"""From this share of common letters on, a name is taken for a misspelt other one: a slip in four letters is 0.75."""


def require_file(target: object, kind: type[LikewiseError]) -> None:
    """An error for the path of a pipe, a device or a socket: who reads it may wait, or read, without an end."""
    if not isinstance(target, str | os.PathLike):
        return
    try:
        mode = os.stat(os.path.expanduser(target)).st_mode
    except (OSError, ValueError):
        return  # what is not there is told where it is missed
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        what = next((word for is_one, word in _NO_FILES if is_one(mode)), "special file")
        raise kind(f"{os.fspath(target)} is a {what}", remedy="Write what it gives into a file, and name that")


_NO_FILES = ((stat.S_ISFIFO, "pipe"), (stat.S_ISSOCK, "socket"), (stat.S_ISCHR, "device"), (stat.S_ISBLK, "device"))


def nearest(name: str, known: Iterable[str]) -> str:
    """'; did you mean ...?' for a misspelt name, or nothing."""
    import difflib

    folded = {entry.casefold().replace(" ", "_"): entry for entry in known}
    close = difflib.get_close_matches(name.casefold().replace(" ", "_"), folded, n=1, cutoff=ALIKE)
    return f"; did you mean {folded[close[0]]!r}?" if close else ""


@contextmanager
def extra(name: str, *, needed_for: str) -> Iterator[None]:
    """Turn the ImportError of an optional framework into one line that cures it."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(
            f"{needed_for} needs {error.name or name}, which is not installed",
            remedy=f"Run: pip install 'likewise[{name}]'",
        ) from error


@contextmanager
def foreign(kind: type[LikewiseError], message: str, *, remedy: str, side: str | None = None) -> Iterator[None]:
    """Turn whatever a library raises into an error of ours: a file that is damaged makes them raise anything."""
    try:
        yield
    except (LikewiseError, Warning):
        raise
    except Exception as error:
        raise kind(f"{message}: {one_line(error)}", remedy=remedy, side=side) from error


_DUMPS = r"(?s)\s*(?:--DEBUG-INFO--|---(?:VARS|OPERATORS|NODES)---|\battributes=\{|\bgraph \{).*"
"""Where other libraries begin to print a whole graph."""

_CODES = r"\[ONNXRuntimeError\] : \d+ : \w+ : "
"""What ONNX Runtime puts before its sentences; the name of the exception says as much."""

_LISTS = r"([\[({])([^\[\](){}]{120,})([\])}])"
"""Numbers or names between brackets, more than anybody reads."""


_REFUSED = "[Pp]ermission denied|[Oo]peration not permitted|name resolution"
"""How libraries say that the system let them do nothing."""

CONFINED_NOTE = " (models run without network, other programs and other folders; --no-sandbox lets them)"


def one_line(error: BaseException, *, limit: int = 500) -> str:
    """An exception of somebody else's, as one line a person can read: what it printed of its insides is left out."""
    whole = re.sub(_CODES, "", str(error))
    text = " ".join(re.sub(_DUMPS, "", whole).split()) or " ".join(whole.split()) or type(error).__name__
    text = re.sub(_LISTS, lambda found: f"{found[1]}{found[2][:40]}…{found[3]}", text)
    text = text if len(text) <= limit else text[: limit - 1].rpartition(" ")[0] + "…"
    if isinstance(error, LikewiseError):
        return text
    walls = CONFINED_NOTE if confined and (re.search(_REFUSED, text) or confined in text) else ""
    return f"{type(error).__name__}: {text}{walls}"
