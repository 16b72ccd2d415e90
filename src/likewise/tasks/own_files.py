"""Nothing that a run reads is replaced by what it writes: models by any name, code, files of a pattern, weights."""

from __future__ import annotations

import errno
import glob
import mmap
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from likewise.data.files import KINDS, another, require_writable
from likewise.data.patterns import matching
from likewise.errors import UsageError

FILE = "likewise.toml"

VERSIONS = (".git", ".hg", ".svn")
"""Folders that a repository brings along and nobody can put files into by publishing it: tokens and hooks lie there."""


def require_own_files(read: Mapping[str, Any], written: Iterable[tuple[str, str | None]]) -> None:
    """A usage error where what is written would replace what is read, or something else that is written.

    `read` has what a run is made from, by name; `written` where it goes, by format. The report and the format
    `json` are the same text, and may be one file.
    """
    sources = [(f"the {name}", value) for name, value in read.items() if isinstance(value, str | PathLike)]
    sources += [("the configuration", file) for file in (FILE, "pyproject.toml")]
    taken: dict[Path, str] = {}
    for name, path in written:
        if path is None or path == "-":
            continue
        used = next((told for told, value in sources if _reads(value, Path(path))), None)
        if used is not None or taken.setdefault(place_of(path), name) != name:
            raise UsageError(
                f"{path} cannot take the report as {name}: it is {used or taken[place_of(path)]} of this run",
                remedy="Write it somewhere else; a baseline changes when somebody accepts a run, not by running",
            )


def require_outputs(read: Mapping[str, Any], *written: str | None) -> None:
    """A usage error, before anything is run, for files that cannot be written or that the run is made from."""
    require_own_files(read, [(f"output {number}", path) for number, path in enumerate(written, start=1)])
    require_writable(written)


def _reads(source: str | PathLike[str], path: Path) -> bool:
    """Is a file one of those that a model, data or an option are read from, under whatever name?"""
    text, place = os.fspath(source), place_of(path)
    if not os.path.exists(path):
        return place_of(text) == place
    if os.path.isdir(text):  # a report that lies among the rows is none of them
        return place_of(text) in place.parents and (path.suffix.lower() in KINDS or another(path) is not None)
    named = [text, *_code(text), *(matching(text) if glob.has_magic(text) else ())]
    if any(os.path.exists(name) and os.path.samefile(name, path) for name in named):
        return True
    if text.lower().endswith(".xml"):  # OpenVINO's weights go by the name of their graph
        weights = Path(text).with_suffix(".bin")
        return weights.exists() and weights.samefile(path)
    return text.lower().endswith(".onnx") and names_file(Path(text), path)


def _code(text: str) -> Iterator[str]:
    """Where the code of `file.py:attribute` and `module:attribute` lies; nothing is imported."""
    source, colon, _ = text.rpartition(":")
    if not colon or not source:
        return
    yield source
    for folder in (".", *sys.path):
        yield from (
            os.path.join(folder, *source.split("."), "__init__.py"),
            f"{os.path.join(folder, *source.split('.'))}.py",
        )


def names_file(model: Path, path: Path) -> bool:
    """Does a graph speak of a file in its folder, as of weights that lie there?"""
    if not model.is_file() or model.parent.resolve() not in place_of(path).parents or not model.stat().st_size:
        return False
    told = os.path.relpath(place_of(path), model.parent.resolve()).replace(os.sep, "/")
    with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.find(told.encode()) >= 0


def is_within(place: Path, folder: Path) -> bool:
    """Is a place inside a folder, and not where that keeps its versions? Both as they are without links."""
    return folder in place.parents and not any(part.casefold() in VERSIONS for part in place.parts[len(folder.parts) :])


def place_of(path: str | PathLike[str]) -> Path:
    """Where a file really is, whatever links lead there."""
    # A link that leads in a circle has no place; what is wrong with it is said where it is opened.
    return Path(os.path.realpath(path))


def is_no_name(path: str) -> bool:
    """Can no file be called so: with a NUL in it, or too long?"""
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno == errno.ENAMETOOLONG
    except ValueError:
        return True
    return False
