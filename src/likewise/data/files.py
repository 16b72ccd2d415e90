"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from likewise.errors import DataError


def atomically(path: Path, content: bytes) -> None:
    """Replace a file so that a crash leaves either the old one or the new one; a device or a pipe is written to."""
    if path.exists() and not path.is_file():
        _write_to(path, content)
        return
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def _write_to(path: Path, content: bytes) -> None:
    """Into what is no file and must not be replaced by one, such as /dev/null."""
    try:
        path.write_bytes(content)
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file in the same folder that takes the place of `path` if all goes well."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
