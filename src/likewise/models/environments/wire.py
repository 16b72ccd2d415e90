"""How rows and answers travel to another Python and back: a mark, a header in JSON, and raw buffers.

Arrays keep their exact types, tables theirs column by column. Both ends run this file, so that what is written and what
is read is described once; it needs Python 3.8 and numpy, and pandas where there are tables.
"""

from __future__ import annotations

import base64
import datetime
import json
import sys
import warnings
from typing import Any

MARK = b"\x93likewise\x00\x1b\x93"
"""Begins every message: whatever was printed before it is not one."""

MOST_HEADER = 1 << 28
"""Bytes of a header: whoever says more has lost count."""

MOST_NOISE = 1 << 22
"""Bytes that may come before a message: a banner, a progress bar. Whoever prints more will never stop."""

NONE, NAN = -1, -2
"""In the place of a length: there is no text."""

MASKED = ("boolean", *(word + bits for word in ("Int", "UInt", "Float") for bits in ("8", "16", "32", "64")))
"""Types of pandas with gaps of their own."""


def send(pipe: Any, header: Any, buffers: list[Any]) -> None:
    """One message; buffers are anything with a flat memory."""
    sizes = [memoryview(buffer).nbytes for buffer in buffers]
    text = json.dumps({"message": header, "sizes": sizes}).encode()
    pipe.write(MARK + len(text).to_bytes(8, "little") + text)
    for buffer in buffers:
        pipe.write(buffer)
    pipe.flush()


def receive(pipe: Any) -> tuple[Any, list[bytearray]]:
    """The next message; EOFError where there is none, ValueError where it is damaged."""
    seen, noise = _exactly(pipe, len(MARK)), 0
    while seen != MARK:
        # Noise: what a program printed where only messages belong.
        seen, noise = seen[1:] + _exactly(pipe, 1), noise + 1
        if noise > MOST_NOISE:
            raise ValueError(f"{MOST_NOISE >> 20} MiB of something else, such as {bytes(seen)!r}")
    size = int.from_bytes(_exactly(pipe, 8), "little")
    if size > MOST_HEADER:
        raise ValueError(f"a header of {size} bytes")
    header = json.loads(_exactly(pipe, size).decode())
    return header["message"], [_exactly(pipe, int(size)) for size in header["sizes"]]


def _exactly(pipe: Any, size: int) -> bytearray:
    found = bytearray(size)
    view, have = memoryview(found), 0
    while have < size:
        got = pipe.readinto(view[have:])
        if not got:
            raise EOFError
        have += got
    return found


class Numbers:
    """Columns of numbers by name that arrive as a table: without pandas, which whoever sends them may not have yet."""

    def __init__(self, columns: dict[str, Any]) -> None:
        self.columns = columns


def pack(value: Any, buffers: list[Any]) -> Any:
    """A value as JSON: arrays go to the buffers with their exact types, tables column by column."""
    import numpy as np

    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray):
        return _pack_array(value, buffers)
    if isinstance(value, Numbers):
        columns = [_pack_array(column, buffers) for column in value.columns.values()]
        index, rows = {"start": 0, "step": 1}, columns[0]["shape"][0]
        return {"frame": columns, "labels": list(value.columns), "rows": rows, "index": index}
    if isinstance(value, np.generic):
        return {"scalar": _pack_array(np.asarray(value), buffers)}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [pack(entry, buffers) for entry in value]}
    if isinstance(value, dict):
        return {"dict": [[pack(key, buffers), pack(entry, buffers)] for key, entry in value.items()]}
    if isinstance(value, (bytes, bytearray)):
        return {"bytes": base64.b64encode(value).decode()}
    decimal = sys.modules.get("decimal")
    if decimal is not None and isinstance(value, decimal.Decimal):
        return {"decimal": str(value)}
    pandas = sys.modules.get("pandas")
    if pandas is not None:
        if value is pandas.NaT or value is pandas.NA:
            return {"missing": "NaT" if value is pandas.NaT else "NA"}
        if isinstance(value, pandas.DataFrame):
            return _pack_frame(value, buffers)
        if isinstance(value, pandas.Series):
            return {"series": _pack_column(value, buffers)}
        if isinstance(value, pandas.Timestamp):
            return {"timestamp": value.isoformat(), "zone": None if value.tz is None else str(value.tz)}
    if isinstance(value, datetime.datetime):
        return {"datetime": value.isoformat()}
    if isinstance(value, datetime.date):
        return {"date": value.isoformat()}
    if isinstance(value, datetime.time):
        return {"time": value.isoformat()}
    if hasattr(value, "__array__"):
        return _pack_array(np.asarray(value), buffers)
    for plain in (int, float, str):
        if isinstance(value, plain):
            return plain(value)
    raise TypeError(f"a {type(value).__name__} cannot travel to another Python")


def _pack_array(array: Any, buffers: list[Any]) -> Any:
    import numpy as np

    kind = array.dtype.kind
    if array.dtype.fields is not None:
        raise TypeError("arrays of records cannot travel to another Python")
    if kind in "OUST":
        values = array.ravel().tolist()
        known = _texts(values)
        if known is None:
            return {"objects": [pack(value, buffers) for value in values], "shape": list(array.shape)}
        places = np.fromiter(map(known.__getitem__, values), np.int32, len(values))
        return _pack_text(list(known), places, array.shape, buffers)
    name = array.dtype.str if kind != "V" else array.dtype.name
    # Seen as bytes: not every type of number has a memory that Python can look at.
    buffers.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.size else b"")
    return {"array": len(buffers) - 1, "dtype": name, "shape": list(array.shape)}


def _pack_text(texts: list[Any], places: Any, shape: tuple[int, ...], buffers: list[Any]) -> Any:
    """Every text once, or a gap in the place of one, and which of them stands where."""
    import numpy as np

    encoded = [text.encode("utf-8", "surrogatepass") if isinstance(text, str) else b"" for text in texts]
    sizes = np.array([len(entry) for entry in encoded], np.int64)
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            sizes[place] = NONE if text is None else NAN
    buffers += [sizes, b"".join(encoded), places]
    return {"text": len(buffers) - 3, "shape": list(shape)}


def _texts(values: list[Any]) -> dict[Any, int] | None:
    """Every text once, with its place, and gaps of two kinds, None and NaN; None where there is anything else."""
    if not all(issubclass(kind, str) or kind in (type(None), float) for kind in set(map(type, values))):
        return None
    known = {text: place for place, text in enumerate(dict.fromkeys(values))}
    return None if any(isinstance(text, float) and text == text for text in known) else known


def _pack_column(column: Any, buffers: list[Any]) -> Any:
    """A Series or an Index, as pandas holds it."""
    import numpy as np
    import pandas as pd

    kind, values = column.dtype, column.array
    if isinstance(kind, np.dtype):
        packed = _pack_array(column.to_numpy(), buffers)
        # Before pandas 3 this is how text is held, whoever made the table.
        return {**packed, "plain": True} if "text" in packed and not _has_text_type() else packed
    if isinstance(kind, pd.CategoricalDtype):
        labels = _pack_column(kind.categories, buffers)
        return {"codes": _pack_array(values.codes, buffers), "categories": labels, "ordered": bool(kind.ordered)}
    if isinstance(kind, pd.DatetimeTZDtype):
        moments = np.asarray(values.tz_convert("UTC").tz_localize(None).to_numpy())
        return {"zoned": _pack_array(moments, buffers), "zone": str(kind.tz)}
    gaps = np.asarray(values.isna())
    if isinstance(kind, pd.StringDtype):
        missing = "NaN" if getattr(kind, "na_value", pd.NA) is not pd.NA else "NA"
        # Every text once, found by compiled code; a gap is the one behind them.
        places, known = values.factorize()
        places = np.asarray(places, np.int32)
        places[gaps] = len(known)
        texts = [str(text) for text in known] + [None] * bool(gaps.any())
        return {"strings": _pack_text(texts, places, places.shape, buffers), "missing": missing}
    if str(kind) in MASKED:
        numbers = values.to_numpy(dtype=kind.numpy_dtype, na_value=0)
        return {"masked": _pack_array(numbers, buffers), "gaps": _pack_array(gaps, buffers), "dtype": str(kind)}
    raise TypeError(f"a column of type {kind} cannot travel to another Python")


def _pack_frame(frame: Any, buffers: list[Any]) -> Any:
    import pandas as pd

    labels = [pack(label, buffers) for label in frame.columns]
    columns = [_pack_column(frame.iloc[:, place], buffers) for place in range(len(labels))]
    index: Any = frame.index
    if isinstance(index, pd.RangeIndex):
        told: Any = {"start": int(index.start), "step": int(index.step)}
    else:
        levels = [index.get_level_values(level) for level in range(index.nlevels)]
        told = {"levels": [_pack_column(level, buffers) for level in levels], "names": list(index.names)}
    return {"frame": columns, "labels": labels, "rows": len(frame), "index": told}


def unpack(node: Any, buffers: list[Any]) -> Any:
    """The value that `pack` wrote."""
    if not isinstance(node, dict):
        return node
    if "array" in node:
        return _unpack_array(node, buffers)
    if "text" in node or "objects" in node:
        return _unpack_objects(node, buffers)
    if "scalar" in node:
        return _unpack_array(node["scalar"], buffers)[()]
    if "list" in node or "tuple" in node:
        values = [unpack(entry, buffers) for entry in (node["list"] if "list" in node else node["tuple"])]
        return values if "list" in node else tuple(values)
    if "dict" in node:
        return {unpack(key, buffers): unpack(value, buffers) for key, value in node["dict"]}
    if "bytes" in node:
        return base64.b64decode(node["bytes"])
    if "decimal" in node:
        import decimal

        return decimal.Decimal(node["decimal"])
    if "date" in node:
        return datetime.date.fromisoformat(node["date"])
    if "time" in node:
        return datetime.time.fromisoformat(node["time"])
    if "datetime" in node:
        return datetime.datetime.fromisoformat(node["datetime"])
    import pandas as pd

    if "frame" in node:
        return _unpack_frame(node, buffers)
    if "series" in node:
        values = _unpack_column(node["series"], buffers)
        return pd.Series(values, dtype=_own(values))
    if "timestamp" in node:
        moment = pd.Timestamp(node["timestamp"])
        return moment if node["zone"] is None else moment.tz_convert(node["zone"])
    return {"NaT": pd.NaT, "NA": pd.NA}[node["missing"]]


def _unpack_array(node: Any, buffers: list[Any]) -> Any:
    import numpy as np

    try:
        dtype = np.dtype(node["dtype"])
    except TypeError:
        import ml_dtypes

        dtype = np.dtype(getattr(ml_dtypes, node["dtype"]))
    if dtype.hasobject:
        raise ValueError("a buffer of objects")
    return np.frombuffer(buffers[node["array"]], dtype).reshape(node["shape"])


def _unpack_objects(node: Any, buffers: list[Any]) -> Any:
    if "text" in node:
        found, places = _unpack_text(node, buffers)
        return found[places].reshape(node["shape"])
    return _objects([unpack(entry, buffers) for entry in node["objects"]]).reshape(node["shape"])


def _unpack_text(node: Any, buffers: list[Any]) -> tuple[Any, Any]:
    """Every text once, and which of them stands where."""
    import numpy as np

    first, blob, place, texts = node["text"], bytes(buffers[node["text"] + 1]), 0, []
    for size in np.frombuffer(buffers[first], np.int64).tolist():
        gap = None if size == NONE else float("nan")
        texts.append(blob[place : place + size].decode("utf-8", "surrogatepass") if size >= 0 else gap)
        place += max(size, 0)
    return _objects(texts), np.frombuffer(buffers[first + 2], np.int32)


def _objects(values: list[Any]) -> Any:
    import numpy as np

    found = np.empty(len(values), dtype=object)
    for place, value in enumerate(values):
        found[place] = value
    return found


def _unpack_column(node: Any, buffers: list[Any]) -> Any:
    """A column as this Python's pandas holds it; what it has no type for is told as a warning."""
    import numpy as np
    import pandas as pd

    if "codes" in node:
        labels = _unpack_column(node["categories"], buffers)
        labels, codes = pd.Index(labels, dtype=_own(labels)), unpack(node["codes"], buffers)
        return pd.Categorical.from_codes(codes, labels, ordered=node["ordered"])
    if "zoned" in node:
        return pd.DatetimeIndex(unpack(node["zoned"], buffers)).tz_localize("UTC").tz_convert(node["zone"])
    if "strings" in node:
        texts, places = _unpack_text(node["strings"], buffers)
        return _strings(texts, node["missing"]).take(places)
    if "masked" in node:
        column = pd.array(unpack(node["masked"], buffers), dtype=node["dtype"])
        column[unpack(node["gaps"], buffers)] = pd.NA
        return column
    values = unpack(node, buffers)
    if node.get("plain") and _has_text_type() and any(isinstance(value, str) for value in values):
        warnings.warn(f"text that was of type object is of type str in pandas {pd.__version__}", stacklevel=2)
        return pd.array(values, dtype="str")
    if values.dtype.kind in "mM" and pd.Series(values[:0]).dtype != values.dtype:
        warnings.warn(f"times of {values.dtype} are nanoseconds in pandas {pd.__version__}", stacklevel=2)
    return np.asarray(values)


def _has_text_type() -> bool:
    """Has this pandas a type of its own for text?"""
    import pandas as pd

    return int(pd.__version__.split(".")[0]) >= 3


def _own(values: Any) -> Any:
    """The type to say: of an array of objects newer versions of pandas would make text, and None would become NaN."""
    return object if values.dtype == object else None


def _strings(values: Any, missing: str) -> Any:
    import pandas as pd

    if missing == "NA":
        return pd.array(values, dtype="string")
    if _has_text_type():
        return pd.array(values, dtype="str")
    if any(value is None for value in values):
        warnings.warn(f"gaps in text are NaN among objects in pandas {pd.__version__}", stacklevel=2)
    return _objects([float("nan") if value is None else value for value in values])


def _unpack_frame(node: Any, buffers: list[Any]) -> Any:
    import pandas as pd

    told = node["index"]
    if "levels" in told:
        levels = [_unpack_column(level, buffers) for level in told["levels"]]
        kept = [pd.Index(level, dtype=_own(level)) for level in levels]
        index = pd.MultiIndex.from_arrays(kept, names=told["names"]) if len(kept) > 1 else kept[0]
        index.names = told["names"]
    else:
        index = pd.RangeIndex(told["start"], told["start"] + told["step"] * node["rows"], told["step"])
    columns = [_unpack_column(column, buffers) for column in node["frame"]]
    held = [pd.Series(column, index, dtype=_own(column)) for column in columns]
    frame = pd.DataFrame(dict(enumerate(held)), index=index)
    frame.columns = pd.Index([unpack(label, buffers) for label in node["labels"]])
    return frame
