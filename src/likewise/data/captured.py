"""Recorded requests and responses of a service, one a line of JSON: what was asked, what was answered, and when.

Bodies are those of the Open Inference Protocol, of MLflow's `/invocations` or of `{"instances": …}`. A line holds both
(`request` and `response`), or either as an event of its own with the same id, as KServe's logger writes them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from likewise.contracts.values import dataclass
from likewise.data.files import named_once
from likewise.errors import DataError

ASKED, ANSWERED = ("request", "request_body", "input"), ("response", "response_body", "output")
STATUS = ("status", "status_code")
TIMES = ("time", "timestamp", "datetime", "date", "@timestamp")
BODIES = ("inputs", "dataframe_split", "dataframe_records", "instances")
"""One of these is in every body of a request."""

DTYPES = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16", "FP32": "float32", "FP64": "float64",
    "BYTES": "string",
}  # fmt: skip
"""The types of the Open Inference Protocol."""

HEAD = 1 << 16


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that was answered; `line` is where it stands in the file."""

    line: int
    request: Mapping[str, Any]
    response: Any
    time: str | None


def is_captured(path: str | Path) -> bool:
    """Does a file begin like recorded traffic?"""
    if not str(path).lower().endswith((".jsonl", ".ndjson")):
        return False
    try:
        with open(path, encoding="utf-8") as file:
            entry = json.loads(file.readline(HEAD))
        return isinstance(entry, dict) and (_body(_opened(entry), ASKED) is not None or _event(entry) is not None)
    except (OSError, ValueError, RecursionError):
        return False


def exchanges(path: str | Path) -> tuple[tuple[Exchange, ...], int]:
    """The requests of a file that were answered, in the order they were sent in, and how many were not."""
    told = Path(path).stat()
    return _read(str(path), told.st_mtime_ns, told.st_size)


@lru_cache(maxsize=2)
def _read(path: str, _changed: int, _size: int) -> tuple[tuple[Exchange, ...], int]:
    # By the id of an event, or the number of a line: an id may be any text, `line 3` too.
    asked: dict[str | int, tuple[int, Mapping[str, Any], str | None]] = {}
    answered: dict[str | int, Any] = {}
    for line, entry in _lines(path):
        _require_one_reading(path, line, entry)
        event = _event(entry)
        if event is not None:
            name, is_request, body = event
            if name in (asked if is_request else answered):
                what = "request" if is_request else "response"
                told = f"{path}, line {line}: there is a {what} of id {name!r} before it"
                raise DataError(told, remedy="Keep one of the two: which request it answers cannot be told")
            if not is_request:
                answered[name] = body
            elif isinstance(body, Mapping):
                asked[name] = line, body, _time(entry)
            continue
        request = _body(entry, ASKED)
        if request is None:
            raise DataError(f"{path}, line {line}: there is no request in it", remedy=f"One of: {', '.join(ASKED)}")
        asked[line] = line, request, _time(entry)
        response = next((entry[name] for name in ANSWERED if name in entry), None)
        if response is not None and _succeeded(path, line, entry):
            answered[line] = response
    found = tuple(Exchange(*asked[name][:2], answered[name], asked[name][2]) for name in asked if name in answered)
    return found, len(asked) - len(found)


def _lines(path: str) -> Iterator[tuple[int, dict[str, Any]]]:
    with open(path, encoding="utf-8") as file:
        for number, text in enumerate(file, start=1):
            if not text.strip():
                continue
            try:
                entry = _opened(json.loads(text, object_pairs_hook=named_once))
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {number} is not JSON: {error}", remedy="Write it again") from error
            if not isinstance(entry, dict):
                raise DataError(f"{path}, line {number} is not an object", remedy="A line has a request and a response")
            yield number, entry


def _require_one_reading(path: str, line: int, entry: Mapping[str, Any]) -> None:
    """A line has one request, one response and one status, whatever they are called, or it is an event by itself."""
    event = ("data",) if _event(entry) is not None else ()
    for names in ((*ASKED, *event), (*ANSWERED, *event), STATUS):
        if len(named := [name for name in names if name in entry]) > 1:
            told = f"{path}, line {line} has both {named[0]!r} and {named[1]!r}"
            raise DataError(told, remedy="Keep one of the two: which of them was meant cannot be told")


def _event(entry: Mapping[str, Any]) -> tuple[str, bool, Any] | None:
    """An event of KServe's logger: whose it is, whether it is a request, and the body."""
    kind = entry.get("type")
    if not isinstance(kind, str) or "id" not in entry or not kind.endswith((".request", ".response")):
        return None
    return str(entry["id"]), kind.endswith(".request"), entry.get("data")


def _body(entry: Mapping[str, Any], names: tuple[str, ...]) -> Mapping[str, Any] | None:
    found = next((entry[name] for name in names if name in entry), None)
    return found if isinstance(found, dict) and any(name in found for name in BODIES) else None


def _opened(entry: Any) -> Any:
    """A line in which a body that was logged as text is the document in it, or nothing where that is none."""
    for name in (*ASKED, *ANSWERED, "data") if isinstance(entry, dict) else ():
        if isinstance(entry.get(name), str):
            try:
                entry[name] = json.loads(entry[name], object_pairs_hook=named_once)
            except json.JSONDecodeError:
                entry[name] = None
    return entry


def _succeeded(path: str, line: int, entry: Mapping[str, Any]) -> bool:
    """Does a line say that its request was answered? A status may have been logged as text."""
    status = next((entry[name] for name in STATUS if name in entry), None)
    told = str(status) if type(status) in (int, str) else ""
    if status is not None and not (told.isascii() and told.isdecimal()):
        raise DataError(f"{path}, line {line} has a status that is no number: {status!r:.60}", remedy="Such as 200")
    return status is None or 200 <= int(told[:9]) < 300


def _time(entry: Mapping[str, Any]) -> str | None:
    return next((str(entry[name]) for name in TIMES if entry.get(name) is not None), None)


def rows_of(exchange: Exchange) -> tuple[int, dict[str, Any]]:
    """How many rows a request has, and its columns: lists of cells, or arrays where the body declares their types."""
    import numpy as np

    body, where = exchange.request, f"the request in line {exchange.line}"
    try:
        if len(held := [name for name in BODIES if name in body]) > 1:
            raise ValueError(f"it has both {held[0]!r} and {held[1]!r}")
        if "dataframe_split" in body:
            names = [str(name) for name in body["dataframe_split"]["columns"]]
            named_once([(name, None) for name in names])
            rows = [dict(zip(names, row, strict=True)) for row in body["dataframe_split"]["data"]]
            return len(rows), {name: [row[name] for row in rows] for name in names}
        if "dataframe_records" in body or "instances" in body:
            rows = body.get("dataframe_records", body.get("instances"))
            if all(isinstance(row, dict) for row in rows):
                if other := next((place for place, row in enumerate(rows) if row.keys() != rows[0].keys()), 0):
                    raise ValueError(f"its row {other} has other fields than the first")
                return len(rows), {str(name): [row[name] for row in rows] for name in rows[0]}
            return len(rows), {"X": np.asarray(rows)}
        tensors = body["inputs"]
        if isinstance(tensors, list) and all(isinstance(entry, dict) and "datatype" in entry for entry in tensors):
            found = named_once([(str(entry["name"]), _tensor(entry)) for entry in tensors])
        elif isinstance(tensors, dict):
            found = {str(name): np.asarray(values) for name, values in tensors.items()}
        else:
            found = {"X": np.asarray(tensors)}
        counts = {len(array) for array in found.values()}
        if len(counts) != 1:
            raise ValueError("its inputs have different numbers of rows")
        return counts.pop(), found
    except (ArithmeticError, AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        told = f"{where} cannot be read: {type(error).__name__} {error}"
        raise DataError(told, remedy="Leave that line out, or write it as it was sent") from error


def _tensor(entry: Mapping[str, Any]) -> Any:
    import numpy as np

    named = DTYPES[entry["datatype"]]
    dtype = np.dtype(object if named == "string" else named)
    shape = [int(size) for size in entry["shape"]]
    given = [float("nan") if value is None and dtype.kind == "f" else value for value in _flat(entry["data"], shape)]
    values = np.array(given, dtype)
    # Of 1.9 numpy makes the whole number 1, and of any text a truth.
    if dtype.kind in "biu" and values.tolist() != given:
        raise ValueError(f"{entry['name']!r} holds what {entry['datatype']} does not")
    array = values.reshape(shape)
    # A column of a table, as servers of tables are sent it.
    return array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array


def _flat(data: list[Any], shape: list[int]) -> list[Any]:
    """The values of a tensor, which stand in one list, or in lists that are what its shape says."""
    nested = [len(data)]
    while data and all(isinstance(entry, list) for entry in data):
        if any(len(entry) != len(data[0]) for entry in data):
            raise ValueError("its lists are of different lengths")
        nested.append(len(data[0]))
        data = [value for entry in data for value in entry]
    if len(nested) > 1 and nested != shape:
        raise ValueError(f"its lists are of shape {nested}, and it says {shape}")
    return data
