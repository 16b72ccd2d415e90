"""How pickles lie in files: compressed or not, and the arrays that joblib writes between the pickled parts."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any, BinaryIO, cast

from likewise.contracts.data import Array
from likewise.errors import ModelError

_FOREIGN = (
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"PK\x03\x04", "a zip archive, like .skops, .npz and torch files"),
    (b"\x89HDF", "an HDF5 file"),
    (b"PAR1", "a Parquet file"),
    (b"\x93NUMPY", "a .npy array"),
    (b"%PDF", "a PDF document"),
    (b"<", "HTML or XML text"),
    (b"{", "JSON text"),
    (b"version https://git-lfs", "a Git LFS pointer instead of the file (run `git lfs pull`)"),
    (b"ZF", "a file of joblib 0.9 or older, which has to be saved again"),
)


class _Unpacked(io.RawIOBase):
    """What one compressed stream holds, read piece by piece; nothing may follow it."""

    def __init__(self, raw: BinaryIO, stream: Any) -> None:
        self._raw = raw
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = b""
        while not data and not self._stream.eof:
            data = self._stream.decompress(self._packed(), len(buffer))
        if not data and (self._stream.unused_data or self._raw.read(1)):
            raise ValueError("something follows the model in it, behind what is compressed")
        buffer[: len(data)] = data
        return len(data)

    def _packed(self) -> bytes:
        """What is unpacked next: zlib hands back what it has not used, bz2 and lzma keep it."""
        if left := getattr(self._stream, "unconsumed_tail", b""):
            return bytes(left)
        if not getattr(self._stream, "needs_input", True):
            return b""
        packed = self._raw.read(io.DEFAULT_BUFFER_SIZE)
        if not packed:
            raise EOFError("the compressed data ends early")
        return packed


def _unpacking(make: Callable[[], Any]) -> Callable[[BinaryIO], Any]:
    return lambda raw: io.BufferedReader(_Unpacked(raw, make()), 1 << 20)


def _lz4(raw: BinaryIO) -> BinaryIO:
    try:
        lz4 = import_module("lz4.frame")
    except ImportError as error:
        raise ModelError("it is compressed with lz4, which is not installed", remedy="Run: pip install lz4") from error
    return cast(BinaryIO, lz4.LZ4FrameFile(raw))


GZIP = 16 + zlib.MAX_WBITS
"""What tells zlib that there is a header of gzip around it."""

_COMPRESSIONS: tuple[tuple[bytes, Callable[[BinaryIO], Any]], ...] = (
    (b"x", _unpacking(zlib.decompressobj)),
    (b"\x1f\x8b", _unpacking(lambda: zlib.decompressobj(GZIP))),
    (b"BZ", _unpacking(bz2.BZ2Decompressor)),
    (b"\xfd7zXZ", _unpacking(lzma.LZMADecompressor)),
    (b"\x5d\x00", _unpacking(lzma.LZMADecompressor)),
    (b"\x04\x22\x4d\x18", _lz4),
)


def decompressed(raw: io.BufferedReader) -> BinaryIO:
    """The stream of pickle opcodes in an open file, or an error that says what the file is instead."""
    start = raw.peek(32)[:32]
    if not start:
        raise ModelError("it is empty")
    for prefix, kind in _FOREIGN:
        if start.startswith(prefix):
            raise ModelError(f"it is {kind}")
    for prefix, opened in _COMPRESSIONS:
        if start.startswith(prefix):
            return cast(BinaryIO, opened(raw))
    return raw


class ArrayOnDisk:
    """What joblib writes in place of an array: its type and shape; the values follow in the stream.

    Stands in for `joblib.numpy_pickle.NumpyArrayWrapper`, which reads arrays of objects with an
    unpickler of its own that knows nothing of our restrictions.
    """

    shape: tuple[int, ...]
    order: str
    dtype: Any
    numpy_array_alignment_bytes: int | None = None

    def read(self, stream: BinaryIO, nested: Callable[[], object]) -> Array:
        """The array. `nested` reads a pickle at the present position, for arrays of objects."""
        import numpy as np

        if not isinstance(self.dtype, np.dtype):
            raise TypeError("an array without a dtype")
        if self.dtype.hasobject:
            return cast(Array, nested())
        if self.numpy_array_alignment_bytes is not None:
            stream.read(stream.read(1)[0])
        array = np.empty(int(np.prod(self.shape, dtype=np.int64)), dtype=self.dtype)
        if array.nbytes:
            _fill(array.view(np.uint8).data, stream)
        if not self.dtype.isnative:
            array = array.astype(self.dtype.newbyteorder("="))
        return array.reshape(self.shape[::-1]).transpose() if self.order == "F" else array.reshape(self.shape)


def _fill(target: memoryview, stream: Any) -> None:
    position = 0
    while position < len(target):
        count = stream.readinto(target[position:])
        if not count:
            raise EOFError("the values of an array end early")
        position += count
