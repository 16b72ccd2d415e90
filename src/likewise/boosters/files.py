"""Model files of the boosters, recognised by their first bytes: `.json` and `.txt` may be anything."""

from __future__ import annotations

import os
import re

from likewise.errors import ModelError

_HEAD = 256


def begins(target: object, suffixes: tuple[str, ...], pattern: re.Pattern[bytes]) -> bool:
    """Is this a path with one of the suffixes to a file that begins so? One that is missing may be meant so."""
    if not isinstance(target, str | os.PathLike) or not str(target).lower().endswith(suffixes):
        return False
    if not os.path.exists(target):
        return True
    if not os.path.isfile(target):
        return False
    try:
        with open(target, "rb") as file:
            return pattern.match(file.read(_HEAD)) is not None
    except OSError:
        return False


def named(target: object, suffixes: tuple[str, ...]) -> bool:
    """Is this a path with a suffix that only one framework uses?"""
    return isinstance(target, str | os.PathLike) and str(target).lower().endswith(suffixes)


def content(path: str | os.PathLike[str]) -> bytes:
    """All of a model file, or an error that names it."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError as error:
        raise ModelError(f"there is no file {os.fspath(path)}", remedy="Check the path of the model") from error
    except OSError as error:
        raise ModelError(f"{os.fspath(path)} cannot be read: {error.strerror}") from error


def unreadable(path: str | os.PathLike[str], framework: str, reason: str) -> ModelError:
    """The error for a file that is not what its name says."""
    return ModelError(
        f"{os.fspath(path)} cannot be loaded as a {framework} model: {reason}",
        remedy="Copy it again, or save the model again with save_model",
    )
