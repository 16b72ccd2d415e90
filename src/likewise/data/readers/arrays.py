"""Arrays: .npy and .npz files, folders and globs of .npz files, live arrays, dicts, lists of both, texts, a DataLoader.

A lone array is called `X`; rows lie along axis 0. Batches are views. Text arrays become object
arrays of `str`; arrays of Python objects are never unpickled from a file. Arrays that cannot share
rows are one sample, which is asked in one call; files, dicts, and members called `x/0001`, are many.
"""

from __future__ import annotations

import ast
import glob
import os
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import IO, Any

from likewise.contracts.data import Array, Batch, Source
from likewise.contracts.values import dataclass
from likewise.data import files
from likewise.data.archives import require_one_archive
from likewise.data.columns import ArrayColumns, CaseColumns
from likewise.data.patterns import matching
from likewise.data.readers import Span, are_records
from likewise.errors import DataError, nearest, one_line

SUFFIXES = (".npz", ".npy")

EMPTY_ROWS = 1 << 20
"""Rows without a value that a file may have: they take no room in it, and any number of them can be written down."""

BROKEN = (struct.error, zipfile.BadZipFile, zlib.error)
"""What an archive that is not whole raises."""

LONE = "X"
"""What an array without a name is called."""


class StoredArrays(Mapping[str, Array]):
    """The arrays of a .npy or .npz file, each read when it is first asked for; a .npy is mapped, not read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.headers, self._members = _headers(path)
        self._loaded: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self.headers:
            raise KeyError(name)
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def _load(self, name: str) -> Array:
        import numpy as np

        with _reading(self.path):
            if name in self._members:
                with open(self.path, "rb") as file, _member(file, self._members[name]) as content:
                    return _as_array(name, np.lib.format.read_array(content, allow_pickle=False))
            lone = np.load(self.path, mmap_mode="r", allow_pickle=False)
            return _as_array(name, lone if lone.dtype.names is None else lone[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.headers)

    def __len__(self) -> int:
        return len(self.headers)

    def __reduce__(self) -> tuple[Any, ...]:
        return StoredArrays, (self.path,)


@dataclass(frozen=True)
class ArraySource(Span):
    """Rows of arrays of one length."""

    location: str
    arrays: Mapping[str, Array]

    @property
    def stored(self) -> bool:
        """Are the arrays in a file, which anybody can open?"""
        return isinstance(self.arrays, StoredArrays)

    @cached_property
    def fingerprint(self) -> str:
        if isinstance(self.arrays, StoredArrays):
            return files.hash_file(self.arrays.path)
        return files.hash_arrays(self.arrays)

    def batches(self, size: int) -> Iterator[Batch]:
        return self.cut(ArrayColumns(self.arrays), size)


@dataclass(frozen=True)
class Samples(Span):
    """Arrays without a common axis of rows: each sample is asked in one call."""

    location: str
    calls: Sequence[Mapping[str, Array]]
    names: tuple[str, ...]

    @cached_property
    def fingerprint(self) -> str:
        stored = [call.path for call in self.calls if isinstance(call, StoredArrays)]
        if len(stored) == len(self.calls):
            return files.hash_files(stored)
        return files.hash_arrays(
            {f"{name}/{key}": a for name, c in zip(self.names, self.calls, strict=True) for key, a in c.items()}
        )

    def batches(self, size: int) -> Iterator[Batch]:
        """One sample a batch, whatever the size asked for."""
        import numpy as np

        for rows in self.numbered(1):
            number = int(rows.numbers[0])
            name = np.array([self.names[number]], dtype=object)
            yield Batch(replace(rows, names=name), CaseColumns(self.calls[number]), stacked=False)


def laid_along(source: Source, named: Mapping[str, int | None], *, rowless: bool) -> Source:
    """Arrays by where a user says their rows are: moved to the front, shared by all rows, or nowhere."""
    if isinstance(source, ArraySource):
        arrays = source.arrays
    elif isinstance(source, Samples) and len(source.calls) == 1:
        arrays = source.calls[0]
    elif rowless and source.rows and next(source.batches(1)).stacked:
        raise DataError(
            f"{source.location} is a table, which has rows", remedy="Leave --batch-axis none out, or give arrays (.npz)"
        )
    else:
        return source
    if rowless:
        return Samples(source.location, (arrays,), (os.path.basename(source.location),), stop=1)
    if not named.keys() & set(arrays):
        return source
    placed = _rows_first(arrays, named, source.location)
    return ArraySource(source.location, placed, stop=_length({n: a.shape for n, a in placed.items()}, source.location))


def _rows_first(arrays: Mapping[str, Array], named: Mapping[str, int | None], location: str) -> dict[str, Array]:
    import numpy as np

    axes = {name: named.get(name, 0) for name in arrays}
    known = sorted((axis, name) for name, axis in axes.items() if axis is not None and arrays[name].ndim > axis)
    if not known:
        raise DataError(f"no array of {location} has rows", remedy="Use --batch-axis none: every call is one sample")
    lead, named_first = known[0]
    rows_first = len({len(arrays[name]) for _, name in known}) == 1
    rows = arrays[named_first].shape[0 if rows_first else lead]
    placed = {}
    for name, axis in axes.items():
        array = arrays[name]
        if axis is None:
            array = np.broadcast_to(array, (rows, *array.shape))
        # Rows first is how data is given; what is laid out as the model takes it is moved there.
        elif axis and array.ndim > axis and array.shape[0] != rows == array.shape[axis]:
            array = np.moveaxis(array, axis, 0)
        placed[name] = array
    return placed


class ArraysReader:
    """Reads array files and takes live arrays."""

    name = "arrays"

    def claims(self, target: object) -> bool:
        if isinstance(target, str | os.PathLike):
            path = str(os.fspath(target))
            return path.lower().endswith(SUFFIXES) or bool(_array_files(path))
        if isinstance(target, list):
            if not target:
                return False
            texts = all(value is None or isinstance(value, str) for value in target)
            return (
                texts
                or all(isinstance(value, list | tuple) for value in target)
                or (all(isinstance(value, Mapping) for value in target) and not are_records(target))
            )
        return isinstance(target, Mapping) or _is_array(target) or _is_loader(target)

    def open(self, target: object) -> Source:
        if isinstance(target, str | os.PathLike):
            location = str(os.fspath(target))
            found = _array_files(location)
            if found:
                return Samples(
                    location,
                    [StoredArrays(path) for path in found],
                    tuple(map(os.path.basename, found)),
                    stop=len(found),
                )
            stored = StoredArrays(os.path.expanduser(location))
            return _by_member(stored) or _rows_or_sample(location, stored, stored.headers)
        if isinstance(target, list) and isinstance(target[0], Mapping):
            return _samples("list of samples", [_live(call) for call in target])
        if _is_loader(target):
            return _loaded(target)
        arrays = _live(target)
        nested = isinstance(target, list) and isinstance(target[0], list | tuple)
        if nested and arrays[LONE].dtype.kind not in "biuf":
            # As one array, numbers beside text would be text.
            raise DataError("a row of the list holds other things than numbers", remedy="Give a DataFrame, or dicts")
        location = "list of rows" if nested else "list of texts" if isinstance(target, list) else type(target).__name__
        return _rows_or_sample(location, arrays, {name: array.shape for name, array in arrays.items()})


def _samples(location: str, calls: Sequence[Mapping[str, Array]]) -> Samples:
    return Samples(location, calls, tuple(f"sample {number}" for number in range(len(calls))), stop=len(calls))


def _is_loader(target: object) -> bool:
    loading = sys.modules.get("torch.utils.data")
    return loading is not None and isinstance(target, loading.DataLoader)


def _loaded(loader: Any) -> Source:
    """What a DataLoader gives, gone through once: it may shuffle. Batches of other lengths are a sample each."""
    import numpy as np

    if not hasattr(loader.dataset, "__len__"):
        raise DataError(
            "the DataLoader does not say how much it gives, and might never end", remedy="Give some of it as arrays"
        )
    calls = [_batch(batch) for batch in loader]
    if not calls:
        raise DataError("the DataLoader gives nothing", remedy="Give data to compare on")
    forms = {tuple((name, array.shape[1:], array.ndim) for name, array in call.items()) for call in calls}
    if len(forms) > 1:
        return _samples("DataLoader", calls)
    arrays = {name: np.concatenate([np.atleast_1d(call[name]) for call in calls]) for name in calls[0]}
    return _rows_or_sample("DataLoader", arrays, {name: array.shape for name, array in arrays.items()})


def _batch(batch: Any) -> dict[str, Array]:
    """The arrays of a batch by name, or by number where they have none."""
    if isinstance(batch, list | tuple) and len(batch) > 1 and not isinstance(batch[0], str):
        return {str(place): _as_array(str(place), value) for place, value in enumerate(batch)}
    return _live(batch[0] if isinstance(batch, list | tuple) and len(batch) == 1 else batch)


def _rows_or_sample(location: str, arrays: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> Source:
    """Rows along the first axis of every array, where there are as many in each; else one sample."""
    if not shapes and isinstance(arrays, StoredArrays):
        raise DataError(f"{location} holds no arrays", remedy="Give at least one array")
    if shapes and all(shapes.values()) and len({shape[0] for shape in shapes.values()}) == 1:
        return ArraySource(location, arrays, stop=_length(shapes, location))
    return Samples(location, (arrays,), (os.path.basename(location),), stop=1)


def _array_files(path: str) -> list[str]:
    """The .npz and .npy files of a folder or a glob, in the order of their names."""
    path = os.path.expanduser(path)
    if os.path.isdir(path):
        names = [name for name in os.listdir(path) if not name.startswith(".")]
        arrays = all(name.lower().endswith(SUFFIXES) for name in names)
        return files.each_once([os.path.join(path, name) for name in names]) if arrays else []
    found = [name for name in matching(path) if name.lower().endswith(SUFFIXES)] if glob.has_magic(path) else []
    return files.each_once(found)


def _by_member(stored: StoredArrays) -> Samples | None:
    """Samples kept in one file, their arrays called `x/0001`, `x/0002`."""
    numbers = [name.rpartition("/")[2] for name in stored]
    if not numbers or not all("/" in name and number.isdigit() for name, number in zip(stored, numbers, strict=True)):
        return None
    names = tuple(sorted(set(numbers), key=int))
    calls: list[dict[str, Array]] = [{} for _ in names]
    places = {number: place for place, number in enumerate(names)}
    for name, number in zip(stored, numbers, strict=True):
        calls[places[number]][name.rpartition("/")[0]] = stored[name]
    return Samples(stored.path, calls, names, stop=len(names))


def _is_array(target: object) -> bool:
    """A numpy array or a tensor, without importing the library it comes from."""
    return type(target).__module__.split(".")[0] in ("numpy", "torch", "jax", "jaxlib") and hasattr(target, "__array__")


def _live(target: Any) -> dict[str, Array]:
    if isinstance(target, Mapping):
        return {str(name): _as_array(str(name), value) for name, value in target.items()}
    fields = getattr(getattr(target, "dtype", None), "names", None)
    if fields:
        return {field: _as_array(field, target[field]) for field in fields}
    return {LONE: _as_array(LONE, target)}


def _as_array(name: str, value: Any) -> Array:
    """Anything array-like as an array; text as objects."""
    import numpy as np

    # Nobody has a masked array without its module, which takes as long to import as half of numpy.
    if "numpy.ma" in sys.modules and isinstance(value, np.ma.MaskedArray):
        raise DataError(
            f"array {name!r} is masked, and a model does not see the mask",
            remedy="Fill it: array.filled(numpy.nan)",
        )
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu()
            # numpy has no bfloat16, and float32 holds all its values.
            value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{name!r} is not an array: {one_line(error).rstrip('.')}",
            remedy="Give arrays whose rows all have one shape",
        ) from error
    if array.dtype.names:
        raise DataError(
            f"array {name!r} is structured ({', '.join(array.dtype.names)})", remedy="Give each field as an array"
        )
    if array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8")
    return array.astype(object) if array.dtype.kind in "UT" else array


def _length(shapes: Mapping[str, tuple[int, ...]], location: str) -> int:
    """The number of rows, if every array has one axis at least and as many rows as the others."""
    listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
    if not shapes:
        raise DataError(f"{location} holds no arrays", remedy="Give at least one array")
    if any(not shape for shape in shapes.values()):
        raise DataError(f"{location} holds a scalar, which has no rows: {listed}", remedy="Give arrays of rows")
    if len({shape[0] for shape in shapes.values()}) > 1:
        raise DataError(
            f"the arrays of {location} do not have the same number of rows: {listed}",
            remedy="Rows lie along the first axis of every array; leave out what is not an input",
        )
    return next(iter(shapes.values()))[0]


def _headers(path: str) -> tuple[dict[str, tuple[int, ...]], dict[str, zipfile.ZipInfo]]:
    """The shapes of the arrays in a file, from their headers, and where they are in an archive."""
    with _reading(path):
        if not _is_zip(path):
            with open(path, "rb") as file:
                shape, dtype = _header(path, LONE, file)
                _require_whole("the array", shape, dtype, file.tell(), os.path.getsize(path))
            return dict.fromkeys(dtype.names or (LONE,), shape), {}
        with zipfile.ZipFile(path) as archive:
            require_one_archive(archive)
            headers: dict[str, tuple[int, ...]] = {}
            members: dict[str, zipfile.ZipInfo] = {}
            for member in archive.infolist():
                with archive.open(member) as file:
                    name = member.filename.removesuffix(".npy")
                    if name in headers:
                        raise ValueError(f"it holds two arrays {name!r}, and readers do not agree on which counts")
                    headers[name], dtype = _header(path, name, file)
                    members[name] = member
                    _require_whole(f"array {name!r}", headers[name], dtype, file.tell(), member.file_size)
            return headers, members


def _require_whole(what: str, shape: tuple[int, ...], dtype: Any, header: int, size: int) -> None:
    """An error unless the values of an array are all that follows its header.

    Room for all that is claimed would be made before anybody sees that it is not there.
    """
    if (found := prod(shape) * dtype.itemsize + header - size) != 0:
        told = f"is shorter than its shape {shape}" if found > 0 else f"has {-found:,} bytes behind its last value"
        raise ValueError(f"{what} {told}")


def _member(file: IO[bytes], member: zipfile.ZipInfo) -> zipfile.ZipExtFile:
    """The content of a part of an archive, which was opened before: the list of all parts is not read for each."""
    file.seek(member.header_offset)
    name, extra = struct.unpack("<26x2H", file.read(30))
    file.seek(name + extra, os.SEEK_CUR)
    return zipfile.ZipExtFile(file, "r", member)


def _header(path: str, name: str, file: IO[bytes]) -> tuple[tuple[int, ...], Any]:
    import numpy as np

    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    end = file.tell()
    file.seek(0)
    said = ast.parse("{" + file.read(end).partition(b"{")[2].decode("utf-8", "replace").strip(), mode="eval").body
    if isinstance(said, ast.Dict) and len(said.keys) != len({ast.dump(key) for key in said.keys if key is not None}):
        raise ValueError(f"the header of array {name!r} says a thing twice")
    if any(type(size) is not int or size < 0 for size in shape):
        raise ValueError(f"array {name!r} has the shape {shape}, which no array has")
    if shape and shape[0] > EMPTY_ROWS and not prod(shape) * dtype.itemsize:
        raise ValueError(f"array {name!r} has {shape[0]:,} rows and no value in any of them")
    if dtype.hasobject:
        raise DataError(
            f"{path}: array {name!r} holds Python objects, which are pickled: opening them could run code",
            remedy="Save text with array.astype(str), numbers with a number type",
        )
    return shape, dtype


def _is_zip(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"PK"


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        folder = os.path.dirname(path) or "."
        near = nearest(os.path.basename(path), os.listdir(folder)) if os.path.isdir(folder) else ""
        raise DataError(f"there is no file {path}{near}", remedy="Check the path") from error
    except (OSError, ValueError, EOFError, MemoryError, RuntimeError, *BROKEN) as error:
        raise DataError(
            f"{path} cannot be read: {one_line(error).rstrip('.')}",
            remedy="Write the file again: it is not whole, or not numpy's",
        ) from error


EXTENSION = ArraysReader()
