"""Tables in object stores: `s3://`, `gs://`, `abfss://`. Their files are copied as they are, then read from disk.

What opens models and parses rows has no network, so that somebody else does the copying: a process that reads no
table, before the walls are raised. From Python it is this one.
"""

from __future__ import annotations

import atexit
import fnmatch
import os
import re
import sys
import tempfile
from pathlib import PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from likewise.data.files import remove
from likewise.errors import DataError, UsageError, one_line

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

SCHEMES = ("s3://", "gs://", "gcs://", "abfs://", "abfss://")

COPIES: dict[str, str] = {}
"""Folders with what was copied, by the address it came from."""

MAGIC = "*?["
SECRET = "(?i)key|token|secret|password|sas|sig"
"""What options of an address are called that nobody else should see."""


def is_stored(target: object) -> bool:
    """Is this an address in an object store?"""
    return isinstance(target, str) and target.lower().startswith(SCHEMES)


def require_no_secrets(target: object) -> None:
    """A usage error for an address with a password or a key in it: reports and lists of processes would show it."""
    if is_stored(target):
        address = urlsplit(str(target))
        named = [name for name, _ in parse_qsl(address.query, keep_blank_values=True)]
        keyed = address.scheme.startswith("s3") and address.username is not None
        if keyed or address.password is not None or any(re.search(SECRET, name) for name in named):
            raise UsageError(
                f"the address {address.scheme}://… holds a key or a password",
                remedy="Leave it to the environment, as with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
            )


def copied(address: str) -> str:
    """The folder with what lies at an address; where nobody copied it yet, that is done now."""
    if address not in COPIES:
        folder = tempfile.mkdtemp(prefix="likewise-copy.")
        atexit.register(remove, folder)
        copy(address, folder)
        COPIES[address] = folder
    return COPIES[address]


def copy(address: str, folder: str) -> None:
    """Copy the files at an address: one of them, all below it, or those that a pattern matches."""
    from pyarrow.fs import FileSystem, FileType, LocalFileSystem, copy_files

    where, _, options = address.partition("?")
    steps = where.split("/")
    plain = next((place for place, step in enumerate(steps) if place > 2 and any(sign in step for sign in MAGIC)), None)
    top = where if plain is None else "/".join(steps[:plain])
    store, path = FileSystem.from_uri(f"{top}?{options}" if options else top)
    found = store.get_file_info(path)
    if plain is None and found.type == FileType.File:
        names = {path: PurePosixPath(path).name}
    else:
        pattern = None if plain is None else "/".join(steps[plain:])
        names = dict(_below(store, path, pattern))
    if not names:
        raise DataError(f"there is nothing at {where}", remedy="Check the address, and whose credentials are in use")
    for stored, name in names.items():
        target = os.path.join(folder, *PurePosixPath(name).parts)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        copy_files(stored, target, store, LocalFileSystem())


def _below(store: FileSystem, top: str, pattern: str | None) -> list[tuple[str, str]]:
    """Everything below a place in a store, with its name from there on; hidden files and those of jobs left out."""
    from pyarrow.fs import FileSelector, FileType

    found = []
    for entry in store.get_file_info(FileSelector(top, allow_not_found=True, recursive=True)):
        name = PurePosixPath(entry.path).relative_to(top)
        if pattern is None and name.parts[0] == "_delta_log":
            # It also holds files of the past, and only its log tells them apart.
            raise DataError(f"{top} is a Delta table, which is read from a folder of this machine only")
        if entry.type != FileType.File or any(part.startswith((".", "_")) for part in name.parts):
            continue
        if pattern is None or fnmatch.fnmatchcase(str(name), pattern):
            found.append((entry.path, str(name)))
    return found


def _main() -> None:
    try:
        copy(*sys.argv[1:])
    except (DataError, UsageError) as error:
        sys.exit(error.message)
    except Exception as error:  # noqa: BLE001 - whatever a store says, it is told in one line
        sys.exit(one_line(error))


if __name__ == "__main__":
    _main()
