"""Files that are written whole or not at all, and the SHA-256 of what was read, so that a report says exactly which."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from likewise.contracts.data import Array
from likewise.data.arrow import decoded, series_to_arrow, without_views
from likewise.errors import DataError, UsageError, require_file

if TYPE_CHECKING:
    import pyarrow as pa


kept_in: Path | None = None
"""Where files are written instead of in their folders: those of a process that may write nowhere else."""

BLOCK = 1 << 16
"""Rows hashed at a time."""


REPLACE: ContextVar[bool] = ContextVar("replace", default=False)
"""Did the user say that files which are none of ours may be replaced? `--force` does."""

MARKED = "(?:✅|❌|⚠️)".encode()
OURS = (
    rb"\A## " + MARKED + rb" [A-Z][A-Za-z ]+: |\A# " + MARKED + rb" [^\n]+\n\n\| \| gate \| verdict "
    rb'|<testsuites name="likewise"|name="generator" content="likewise"|"driver": \{\s*"name": "likewise"'
    rb'|\A\{\s*"samples": \d+,\s*"max_abs_diff": '
    rb'|\A\{\s*"passed": (?:true|false),\s*"outcome": "[A-Z]+",\s*"headline": '
    rb'|\A\{\s*"_type": "https://in-toto.io/Statement/v1"[\s\S]*"name": "likewise"'
    rb'|\A\{\s*"reference": \{\s*"name": "[\s\S]*"first_load": |\A\{\s*"outcome": "[A-Z]+",\s*"headline": '
    rb'|\A<svg (?>[^>]*?aria-labelledby="title description")[^>]*>\s*<title id="title">Speed of '
    rb'|\A\{\s*"features": \[[\s\S]*\]\s*\}\s*\Z|\A\{(?>[\s\S]*?"outputs": )(?>[\s\S]*?"opsets": \{)[\s\S]*"note": "'
    rb'|\A"""Shows what model.onnx gives [^\n]* by likewise --repro|Made by likewise --repro\. '
)
"""How the files that we write as text begin or end, in every format: what only looks a little like one is not ours.

What was found stays found (`(?>`): a file that repeats itself would otherwise be looked through without an end."""

KINDS = {
    ".onnx": rb"\x08[\x03-\x1f][\x12\x1a\x22\x28\x32\x3a\x42]",
    ".parquet": b"PAR1",
    ".npz": b"PK",
    ".npy": b"\x93NUMPY",
}
"""How models and rows begin: a file that is named for them takes the place of one of its kind only."""

CHECKPOINT = b"likewise checkpoint 1\n"
"""Begins the file in which a run keeps what it has reached."""

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


def atomically(path: Path, content: bytes) -> None:
    """Replace a file so that a crash leaves either the old one or the new one; a device or a pipe is written to."""
    if path.exists() and not path.is_file():
        try:
            # A pipe that nobody reads would be waited for without an end.
            with open(os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0)), "wb") as file:
                if os.name == "posix":
                    os.set_blocking(file.fileno(), True)
                file.write(content)
        except OSError as error:
            raise DataError(f"{path} cannot be written: {error.strerror}") from error
        return
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def require_writable(paths: Iterable[str | os.PathLike[str] | None]) -> None:
    """A usage error, before anything is run, for a file that cannot be written or is somebody else's."""
    for path in paths:
        if path is None or path == "-":
            continue
        if why := unwritable(Path(path)):
            raise UsageError(
                f"{path} cannot be written: {why}", remedy="Name a file in a folder that can be written to"
            )
        if not REPLACE.get() and (whose := another(Path(path))):
            raise UsageError(
                f"{path} is not replaced: {whose}", remedy="Name another file, delete this one, or say --force"
            )


def unwritable(path: Path) -> str | None:
    """Why a file cannot be written, as far as that can be known without writing it."""
    try:
        if path.is_dir():
            return "it is a folder"
        if path.exists() and not path.is_file():
            return None if os.access(path, os.W_OK) else os.strerror(errno.EACCES)
        folder = next(above for above in (*path.parents, Path()) if above.exists())
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        return error.strerror
    return None


def another(path: Path) -> str | None:
    """Why a file is not ours to write: it holds something else, or a link leads out of the folder."""
    here = os.path.realpath(".")
    inside = os.path.abspath(path).startswith(os.path.join(os.path.abspath("."), ""))
    folder = os.path.realpath(path.parent)
    if inside and folder != here and not folder.startswith(os.path.join(here, "")):
        return f"a link leads out of this folder, to {folder}"
    if path.is_symlink() and (path.is_file() or not path.exists()):
        return f"it is a link to {os.path.realpath(path)}"
    try:
        if not path.is_file() or not path.stat().st_size:
            return None
        with path.open("rb") as file:
            start = file.read(BLOCK)
            file.seek(max(len(start), path.stat().st_size - BLOCK))
            whole = start + file.read(BLOCK)
    except OSError as error:
        return error.strerror
    kind = KINDS.get(path.suffix.lower())
    known = re.match(kind, start) is not None if kind is not None else re.search(OURS, whole) is not None
    return None if known else "what it holds was not written by likewise"


@contextmanager
def strangers_file(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """A file in a folder that others write to, open: no link is followed, no pipe or device waited for."""
    kept_out = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, os.O_RDONLY | kept_out), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        yield file


def is_checkpoint(path: Path) -> bool:
    """Is this a file of ours that holds what a run has reached?"""
    with contextlib.suppress(OSError), strangers_file(path) as file:
        return file.read(len(CHECKPOINT)) == CHECKPOINT
    return False


def written_at(path: Path) -> Path:
    """Where a file that is written lies, until somebody else puts it in its place."""
    return path if kept_in is None else kept_in / path.name


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file in the same folder that takes the place of `path` if all goes well.

    Nobody may read it whom the umask keeps out, nor whom the file that it replaces kept out.
    """
    place = written_at(path)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary = place.parent / f".{path.name[:100]}.{secrets.token_hex(4)}.tmp"
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}") from error
    try:
        if path.is_file():
            os.chmod(temporary, temporary.stat().st_mode & path.stat().st_mode & 0o777)
        yield temporary
        _settle(temporary)
        os.replace(temporary, place)
        _settle(place.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno in FULL:
            raise DataError(f"{path} cannot be written: {error.strerror}") from error
        raise


def remove(folder: str, last: str = "") -> None:
    """Remove a folder with all that a stranger made in it, as far as that can be done; links are not followed.

    However deep it is: what would be done within itself ends in Python's own limit, so each folder is emptied into the
    first one. The file `last` goes last, so that what is left of it, if we are killed, can still be told by it.
    """
    if not shutil.rmtree.avoids_symlink_attacks:
        shutil.rmtree(folder, ignore_errors=True)
        return
    with contextlib.suppress(OSError):
        top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            while _emptied(top, last):
                pass
            if last:
                os.unlink(last, dir_fd=top)
        finally:
            os.close(top)
        os.rmdir(folder)


def _emptied(top: int, last: str) -> bool:
    """Remove what lies in a folder, and put what lies in the folders there in their place; was there anything?"""
    with os.scandir(top) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries if entry.name != last]
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=top)
            continue
        os.chmod(name, 0o700, dir_fd=top)
        inside = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top)
        try:
            with os.scandir(inside) as parts:
                for part in parts:
                    if part.is_dir(follow_symlinks=False):
                        os.chmod(part.name, 0o700, dir_fd=inside)
                        os.rename(part.name, f"up.{secrets.token_hex(8)}", src_dir_fd=inside, dst_dir_fd=top)
                    else:
                        os.unlink(part.name, dir_fd=inside)
        finally:
            os.close(inside)
        os.rmdir(name, dir_fd=top)
    return bool(found)


def _settle(path: Path) -> None:
    """Have a file or a folder on the disk, as far as the system can do that: Windows cannot for folders."""
    with contextlib.suppress(PermissionError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def each_once(paths: Iterable[str]) -> list[str]:
    """Files in the order of their names, without those that are links to others of them: no row counts twice.

    A link to a folder above would otherwise give the same rows again and again.
    """

    def plainness(pair: tuple[str, str]) -> tuple[bool, int, str]:
        place, path = pair
        return os.path.basename(place) != os.path.basename(path), len(path), path

    found = sorted(((os.path.realpath(path), path) for path in paths), key=plainness, reverse=True)
    once = sorted(dict(found).values())
    for path in once:
        require_file(path, DataError)
    return once


def content_of(path: str | os.PathLike[str]) -> bytes:
    """All of a file; an error that says why it cannot be read."""
    require_file(path, DataError)
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON that names nothing twice: readers do not agree on which of the two counts."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it names something twice in one place")
    return found


SETTLED = 2 * 10**9
"""Nanoseconds after which a file that is written again shows it by its time, whatever the file system."""


def hash_file(path: str) -> str:
    """What `sha256sum FILE` prints; a file that has not changed since is not read again."""
    require_file(path, DataError)
    told = os.stat(path)
    # A file can be given any time of writing, but not any time of its last change.
    if time.time_ns() - max(told.st_mtime_ns, told.st_ctime_ns) < SETTLED:
        return _hash_of.__wrapped__(path)
    return _hash_of(path, *version_of(path), told.st_ctime_ns)


def version_of(path: str) -> tuple[int, ...]:
    """What changes where a file is written again, or another one takes its place."""
    told = os.stat(path)
    return told.st_dev, told.st_ino, told.st_size, told.st_mtime_ns


@lru_cache(maxsize=256)
def _hash_of(path: str, *version: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_files(paths: Iterable[str]) -> str:
    """One file as `hash_file`; several as `sha256sum * | sha256sum` in the folder that holds them."""
    paths = sorted(paths)
    if len(paths) == 1:
        return hash_file(paths[0])
    folder = os.path.commonpath([os.path.dirname(os.path.abspath(path)) for path in paths] or ["."])
    digest = hashlib.sha256()
    for path in paths:
        name = os.path.relpath(path, folder).replace(os.sep, "/")
        digest.update(f"{hash_file(path)}  {name}\n".encode())
    return digest.hexdigest()


def hash_arrays(arrays: Mapping[str, Array]) -> str:
    """Names, types, shapes and values, in their order."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(repr((name, array.dtype.str, array.shape)).encode())
        rows = array.reshape(1) if array.ndim == 0 else array
        for start in range(0, len(rows), BLOCK):
            digest.update(_bytes(rows[start : start + BLOCK]))
    return digest.hexdigest()


def hash_series(columns: Iterable[Any]) -> str:
    """Names, types and values of the columns of a DataFrame (narwhals Series), in their order."""
    digest = hashlib.sha256()
    for series in columns:
        native_type = getattr(series.to_native(), "dtype", series.dtype)
        # Categories steer models that take their codes, and the text of the type leaves them out.
        categories = getattr(native_type, "categories", None)
        known = list(categories) if categories is not None else None
        digest.update(repr((str(series.name), str(native_type), known, len(series))).encode())
        for start in range(0, len(series), BLOCK):
            block = series[start : start + BLOCK]
            arrow = series_to_arrow(block)
            digest.update(repr(block.to_list()).encode() if arrow is None else _arrow_bytes(arrow))
    return digest.hexdigest()


def hash_table(table: pa.Table) -> str:
    """Names, types and values of an Arrow table, however it is cut into chunks."""
    digest = hashlib.sha256()
    for name, column in zip(table.column_names, table.columns, strict=True):
        digest.update(repr((name, str(column.type), len(column))).encode())
        for start in range(0, len(column), BLOCK):
            digest.update(_arrow_bytes(column.slice(start, BLOCK)))
    return digest.hexdigest()


def hash_rows(arrays: Iterable[Array]) -> Array:
    """One number a row for the values that it holds in these arrays, the same whatever file they were read from.

    Numbers of every type count by their value in float64, and missing ones are alike; text counts as text.
    """
    import numpy as np

    parts = [_row_bytes(array) for array in arrays]
    digests = []
    for values in zip(*parts, strict=True):
        digest = hashlib.blake2b(digest_size=8)
        for value in values:
            digest.update(value)
        digests.append(digest.digest())
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def _row_bytes(array: Array) -> list[bytes]:
    import numpy as np

    flat = array.reshape(len(array), -1)
    if array.dtype.kind not in "biufc":
        return [repr([_cell(cell) for cell in row]).encode() for row in flat.tolist()]
    # Adding zero makes one of the two zeros, and the assignment one of the many NaN.
    numbers = flat.astype(np.complex128 if array.dtype.kind == "c" else np.float64) + 0.0
    numbers[np.isnan(numbers)] = np.nan
    return [row.tobytes() for row in numbers]


def _cell(value: Any) -> Any:
    """A cell in a form whose text is the same for the same value."""
    if value is None or value != value or str(value) in ("NaT", "<NA>"):
        return None
    return float(value) if isinstance(value, int | float) else value.tolist() if hasattr(value, "tolist") else value


def _bytes(array: Array) -> bytes:
    return repr(array.tolist()).encode() if array.dtype.kind == "O" else array.tobytes()


def _arrow_bytes(block: pa.ChunkedArray | pa.Array) -> bytes:
    """The same bytes for the same values: a slice, a spare bitmap or what lies under a null make no difference."""
    import numpy as np
    import pyarrow as pa

    block = decoded(block) if pa.types.is_dictionary(block.type) else without_views(block)
    block = pa.concat_arrays(block.chunks if isinstance(block, pa.ChunkedArray) else [block])
    # `take` writes the values anew, from offset 0 and with zeros under nulls.
    fresh = block.take(pa.array(np.arange(len(block))))
    batch = pa.record_batch([fresh], names=["values"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(memoryview(sink.getvalue()))
