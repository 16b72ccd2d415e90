"""What pandas notes of a table in the file that it writes, and how much of it is believed.

The note says again what Arrow's own types say, and anybody may write another one: pandas would read doubles as half
precision, call a column as its neighbour, or look for a time zone in a file of the note's choice. What agrees with
Arrow's types is kept, as models may have been fitted on it; elsewhere Arrow's types count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

WITH_GAPS = {f"{kind}{bits}": f"{kind}{bits}".lower() for kind in ("Int", "UInt") for bits in (8, 16, 32, 64)}
WITH_GAPS |= {"Float32": "float", "Float64": "double", "boolean": "bool"}
"""pandas' types of numbers that may be missing, and the type of Arrow's that each is."""

TEXTS = ("string", "large_string", "string_view")
TEXT = re.compile(r"str|string(\[\w+\])?|large_string\[pyarrow\]")
"""Arrow's types of text, and what pandas calls text."""

LABELS = re.compile(
    r"unicode|string|empty|u?int64|float64|integer|floating|boolean|bool|mixed[\w-]*|datetime(64\[\w+\])?"
)
LABELS_AS = re.compile(r"object|str|string|bool|u?int64|float64|datetime64\[(s|ms|us|ns)\]")
"""What the names of columns may be, and what numpy keeps them as."""


def index_columns(schema: pa.Schema) -> list[str]:
    """The columns that pandas wrote as the index of a DataFrame."""
    index = (schema.pandas_metadata or {}).get("index_columns", [])
    return [name for name in index if isinstance(name, str) and name in schema.names]


def believed(schema: pa.Schema, shown: Collection[str]) -> dict[bytes, bytes] | None:
    """The note to read a table by; None if there is none, or one that pandas never wrote. `shown` are no index."""
    noted = schema.pandas_metadata
    try:
        return None if not noted else {b"pandas": json.dumps(_agreeing(schema, noted, shown)).encode()}
    except (AttributeError, KeyError, TypeError):
        return None


def _agreeing(schema: pa.Schema, noted: dict[str, Any], shown: Collection[str]) -> dict[str, Any]:
    told = {entry.get("field_name") or entry["name"]: entry for entry in noted["columns"]}
    index = [name for name in index_columns(schema) if name not in shown]
    counted = [entry for entry in noted["index_columns"] if isinstance(entry, dict) and entry.get("kind") == "range"]
    labels = [entry for entry in noted.get("column_indexes", ()) if _plain(entry)]
    columns = []
    for field in schema:
        entry = told.get(field.name, {"name": field.name, "numpy_type": "object"})
        # Only an index may be called otherwise than its column; a column without a name is called None there.
        nameless = entry["name"] is None and field.name == "None"
        name = entry["name"] if field.name in index or nameless else field.name
        kind = entry["numpy_type"] if _agrees(entry["numpy_type"], str(field.type)) else "object"
        columns.append({"name": name, "field_name": field.name, "pandas_type": "object", "numpy_type": kind})
    whole = len(labels) == len(noted.get("column_indexes", ()))
    return {"index_columns": [*index, *counted], "columns": columns, "column_indexes": labels if whole else []}


def _agrees(noted: str, kind: str) -> bool:
    """Is what pandas noted a column as just another name for its type in Arrow?"""
    text = kind in TEXTS and TEXT.fullmatch(noted) is not None
    return text or WITH_GAPS.get(noted) == kind or noted == f"{kind}[pyarrow]"


def _plain(entry: dict[str, Any]) -> bool:
    told = LABELS.fullmatch(entry["pandas_type"]) and LABELS_AS.fullmatch(entry["numpy_type"])
    return told is not None and isinstance(entry["name"], str | int | None)
