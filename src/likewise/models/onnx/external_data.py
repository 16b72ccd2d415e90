"""Weights left where they are stored: in files beside an ONNX file, or in a large ONNX file itself.

A graph is read without its large tensors. Each of them names the file and the place in it as external data does, by
an absolute path: they are mapped where their values are wanted, and the runtime maps them itself. A copy of such a
graph costs nothing, however large the model is.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.contracts.data import Array
from likewise.errors import ModelError, one_line

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto


LARGE_FILE = 2**24
"""Bytes of a file from which on its large tensors are left in it."""

LARGE = 2**16
"""Bytes of a tensor from which on it is left in its file: shapes, axes and scales are always at hand."""

EXTERNAL_DATA = "external_data"
"""Where an open model lists the files beside its own that hold its weights."""

FOLDER = "session.model_external_initializers_file_folder_path"
"""How ONNX Runtime calls the folder that external data is looked for in."""

GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
"""The numbers that the ONNX format gives these fields, each within the one before."""


@cache
def messages() -> Any:
    """The messages of the ONNX format, without the rest of the package `onnx`: that takes longer to import than a small
    model takes to be asked about hundreds of rows. Who imports it later gets the same messages."""
    name = "onnx.onnx_ml_pb2"
    home = find_spec("onnx")
    file = os.path.join(next(iter(home.submodule_search_locations or ()), "") if home else "", "onnx_ml_pb2.py")
    found = spec_from_file_location(name, file) if os.path.isfile(file) else None
    if "onnx" in sys.modules or found is None or found.loader is None:
        import onnx

        return onnx
    # Not among the modules: protobuf has one class for a message, however often its module is run.
    messages = module_from_spec(found)
    found.loader.exec_module(messages)
    return messages


def read(path: Path) -> ModelProto:
    """A graph as it is stored; if the file is large, with its large tensors left in it."""
    if path.stat().st_size >= LARGE_FILE:
        try:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return parsed(b"".join(_without_data(content, 0, len(content), [GRAPH, INITIALIZER, RAW_DATA], path)))
        except (ValueError, IndexError):
            pass  # not the format: let protobuf say what is wrong with it
    return parsed(path.read_bytes())


def parsed(content: bytes) -> ModelProto:
    """A graph from the bytes of its file."""
    proto: ModelProto = messages().ModelProto.FromString(content)
    return proto


def beside(path: Path) -> list[str]:
    """The files that hold tensors of a graph, by their names from its folder on; the graph's own is not among them."""
    tensors = read(path).graph.initializer
    places = {str(entry.value) for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    return sorted(name for name in places if not path.samefile(path.parent / name))


def _without_data(content: mmap.mmap, at: int, end: int, fields: list[int], path: Path) -> Iterator[bytes]:
    """A message of the ONNX format in pieces, with a note in the place of what is large on this path of fields."""
    while at < end:
        begin = at
        key, at = _number(content, at)
        size = {0: 0, 1: 8, 5: 4}.get(key & 7, -1)
        if key & 7 == 0:
            _, at = _number(content, at)
        elif key & 7 == 2:
            size, at = _number(content, at)
        if size < 0 or at + size > end:
            raise ValueError("not a protobuf message")
        if key != fields[0] << 3 | 2 or size < LARGE:
            yield content[begin : at + size]
        elif len(fields) > 1:
            inner = b"".join(_without_data(content, at, at + size, fields[1:], path))
            yield _written(key) + _written(len(inner)) + inner
        else:
            yield _located(Path(path.name), at, size).SerializeToString()
        at += size


def _number(content: mmap.mmap, at: int) -> tuple[int, int]:
    """A whole number as protobuf writes it, and where the next thing stands."""
    found = shift = 0
    while True:
        byte = content[at]
        found |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return found, at


def _written(number: int) -> bytes:
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    return bytes((*parts, number))


def _located(path: Path, offset: int, size: int) -> TensorProto:
    """A tensor that only says where its values are."""
    tensor: TensorProto = messages().TensorProto(data_location=messages().TensorProto.EXTERNAL)
    for key, value in {"location": path, "offset": offset, "length": size}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def settle(proto: ModelProto, tensors: Iterable[TensorProto], folder: Path) -> None:
    """Name the files of large initializers by absolute paths, and read all other tensors, which come after them."""
    for number, tensor in enumerate(tensors):
        for entry in tensor.external_data if elsewhere(tensor) else ():
            if entry.key == "location":
                entry.value = os.path.join(os.path.abspath(folder), entry.value)
        if elsewhere(tensor) and (number >= len(proto.graph.initializer) or _spread(tensor) < LARGE):
            take_in(tensor)


def take_in(tensor: TensorProto) -> None:
    """Put the values of a tensor that are stored elsewhere into it."""
    if not elsewhere(tensor):
        return
    path, offset, size = _place(tensor)
    try:
        with path.open("rb") as file:
            file.seek(offset)
            tensor.raw_data = file.read(size)
    except Exception as error:
        raise _unreadable(path, error) from error
    if len(tensor.raw_data) != size:
        raise ModelError(f"{path} ends before tensor {tensor.name!r} does", remedy="Export or copy it again")
    del tensor.external_data[:]
    tensor.ClearField("data_location")


def whole(proto: ModelProto) -> ModelProto:
    """A copy of a graph that holds all its weights itself."""
    copy = type(proto)()
    copy.CopyFrom(proto)
    for tensor in copy.graph.initializer:
        take_in(tensor)
    return copy


def array(tensor: TensorProto) -> Array:
    """The values of a tensor; those that are left in a file are mapped, not read."""
    import numpy as np
    from onnx import helper, numpy_helper

    if not elsewhere(tensor):
        return numpy_helper.to_array(tensor)
    path, offset, _ = _place(tensor)
    dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
    try:
        return np.memmap(path, dtype, "r", offset, tuple(tensor.dims))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error


def tensor_of(values: Array, name: str) -> TensorProto:
    """A tensor with these values; those of a whole tensor that is left in a file stay there."""
    import numpy as np
    from onnx import helper, numpy_helper

    if not _mapped_whole(values):
        return numpy_helper.from_array(np.asarray(values), name)
    mapped: Any = values
    tensor = _located(Path(mapped.filename), mapped.offset, values.nbytes)
    tensor.name, tensor.data_type = name, helper.np_dtype_to_tensor_dtype(values.dtype)
    tensor.dims.extend(values.shape)
    return tensor


def release(values: Array) -> None:
    """Give back the memory that a mapped tensor has been read into; it can be read again."""
    import numpy as np

    held: Any = values
    while isinstance(held, np.ndarray) and not _mapped_whole(held):
        held = held.base
    if _mapped_whole(held) and hasattr(mmap, "MADV_DONTNEED"):
        held.base.madvise(mmap.MADV_DONTNEED)


def serialised(proto: ModelProto) -> tuple[bytes, str]:
    """A graph as ONNX Runtime takes it, and the folder from which on its tensors in files are named; empty if none."""
    if not any(elsewhere(tensor) for tensor in proto.graph.initializer):
        return bytes(proto.SerializeToString()), ""
    copy = type(proto)()
    copy.CopyFrom(proto)
    places = [e for t in copy.graph.initializer if elsewhere(t) for e in t.external_data if e.key == "location"]
    if not all(os.path.isabs(entry.value) for entry in places):
        return bytes(proto.SerializeToString()), ""
    folder = os.path.commonpath([os.path.dirname(entry.value) for entry in places])
    for entry in places:
        entry.value = os.path.relpath(entry.value, folder)
    return bytes(copy.SerializeToString()), folder


def size(proto: ModelProto) -> int:
    """The bytes of a graph and of the tensors that are left in files."""
    return int(proto.ByteSize()) + sum(_spread(tensor) for tensor in proto.graph.initializer if elsewhere(tensor))


def _unreadable(path: Path, error: Exception) -> ModelError:
    return ModelError(f"the weights in {path} cannot be read: {one_line(error)}", remedy="Export it again")


def elsewhere(tensor: TensorProto) -> bool:
    """Is a tensor left in a file?"""
    return bool(tensor.data_location == tensor.EXTERNAL)


def _spread(tensor: TensorProto) -> int:
    """The bytes of a tensor as numpy has it; none if a byte holds several of its values, or if it is text."""
    import numpy as np
    from onnx import TensorProto, helper

    packed = {"INT4", "UINT4", "INT2", "UINT2", "FLOAT4E2M1", "STRING", "UNDEFINED"}
    if TensorProto.DataType.Name(tensor.data_type) in packed:
        return 0
    return int(prod(tensor.dims)) * np.dtype(helper.tensor_dtype_to_np_dtype(tensor.data_type)).itemsize


def _place(tensor: TensorProto) -> tuple[Path, int, int]:
    """The file of a tensor, where in it the values begin, and their bytes."""
    told = {entry.key: entry.value for entry in tensor.external_data}
    path, offset = Path(told["location"]), int(told.get("offset") or 0)
    return path, offset, int(told.get("length") or 0) or path.stat().st_size - offset


def _mapped_whole(values: Any) -> bool:
    """Is this one of our own: all of a tensor, mapped to be read only?"""
    import numpy as np

    holder: Any = getattr(values, "base", None)
    return isinstance(values, np.memmap) and isinstance(holder, mmap.mmap) and values.mode == "r"
