"""Delta and Iceberg tables in a folder: their own packages say which files are part of the table now.

A folder of such a table also holds files of the past. Those that count are read like any Parquet files, so that parts,
conditions and columns work as for them; what their packages would have to put together (rows deleted by a list beside
the files, columns under other names) is refused.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from likewise.contracts.data import Source
from likewise.data.files import content_of, named_once
from likewise.data.readers.tables import TableSource, table_of
from likewise.errors import DataError, extra, one_line

if TYPE_CHECKING:
    import pyarrow as pa

DELTA = "_delta_log"
ICEBERG = ".metadata.json"
PACKED = f".gz{ICEBERG}"
FIELD_ID = b"PARQUET:field_id"
HINT = "version-hint.text"
STEERING = ("py-", "warehouse", "s3.", "adls.", "gcs.", "hdfs.", "hf.", "oss.", "client.")
"""Properties of an Iceberg table that choose the code, the server or the keys by which its files are read."""

REWRITE = "Rewrite the table once, so that its files hold what it holds (Delta: OPTIMIZE or PURGE; Iceberg: rewrite)"


class LakehouseReader:
    """Reads the folder of a Delta or an Iceberg table, or the metadata file of an Iceberg table."""

    name = "lakehouse"

    def claims(self, target: object) -> bool:
        if not isinstance(target, str | os.PathLike):
            return False
        path = os.path.expanduser(os.fspath(target))
        return isinstance(path, str) and (is_delta(path) or _metadata(path) is not None)

    def open(self, target: object) -> Source:
        path = os.path.expanduser(os.fspath(target))  # type: ignore[call-overload]
        return _delta(path) if is_delta(path) else _iceberg(path)


def is_delta(path: str) -> bool:
    """Is that the folder of a Delta table?"""
    return os.path.isdir(os.path.join(path, DELTA))


def _metadata(path: str) -> str | None:
    """The newest metadata of an Iceberg table: the file that is named, or of a folder the one with the last number."""
    if path.endswith(ICEBERG):
        return path if os.path.isfile(path) else None
    folder = Path(path, "metadata")
    found = [entry.name for entry in folder.glob(f"*{ICEBERG}")] if folder.is_dir() else []
    if not found:
        return None
    if (folder / HINT).is_file():
        said = (folder / HINT).read_text().strip()
        found = [name for name in found if name in (f"v{said}{ICEBERG}", f"{said}{ICEBERG}")] or found
    return str(folder / max(found, key=_number))


def _number(name: str) -> int:
    """The number that a metadata file begins with: `00003-…` or `v3`."""
    digits = name.removeprefix("v").partition("-")[0].partition(".")[0]
    return int(digits) if digits.isdecimal() else -1


def _delta(path: str) -> TableSource:
    with extra("delta", needed_for=f"{path}, a Delta table,"):
        from deltalake import DeltaTable
    import pyarrow.dataset as ds

    # Refuses what it cannot read in full, such as rows that are deleted by a list beside the files.
    dataset = DeltaTable(path).to_pyarrow_dataset()
    fragments = sorted(dataset.get_fragments(), key=lambda fragment: str(fragment.path))
    partitions = [ds.get_partition_keys(fragment.partition_expression) for fragment in fragments]
    paths = [os.path.join(path, unquote(str(fragment.path))) for fragment in fragments]
    return _source(path, paths, dataset.schema, partitions)


def _iceberg(path: str) -> TableSource:
    with extra("iceberg", needed_for=f"{path}, an Iceberg table,"):
        from pyiceberg.table import StaticTable
    metadata = _metadata(path)
    assert metadata is not None
    _require_plain_reader(path, metadata)
    table = StaticTable.from_metadata(metadata)
    tasks = list(table.scan().plan_files())
    if any(task.delete_files for task in tasks):
        raise DataError(f"{path} holds rows that are deleted by lists beside its files", remedy=REWRITE)
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    places = sorted(_local(task.file.file_path) for task in tasks)
    _require_inside(path, places)
    schema = schema_to_pyarrow(table.schema())
    for place in places:
        _require_ids(place, schema)
    return _source(path, places, schema, [{} for _ in places])


def _require_plain_reader(path: str, metadata: str) -> None:
    """An error for a table whose properties steer how it is read: its package runs the class that they name."""
    try:
        content = content_of(metadata)
        packed = metadata.endswith(PACKED)
        said = json.loads(gzip.decompress(content) if packed else content, object_pairs_hook=named_once)
        steering = [name for name in said.get("properties") or {} if name.startswith(STEERING)]
        lists = [one["manifest-list"] for one in said.get("snapshots") or () if "manifest-list" in one]
        _require_inside(path, [_local(address) for address in lists])
    except (OSError, EOFError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise DataError(f"{path} has metadata that cannot be read: {one_line(error)}", remedy=REWRITE) from error
    if steering:
        told = f"{path} says by which code or from where it is to be read ({steering[0]})"
        raise DataError(told, remedy="Take that out of the properties of the table, or give its Parquet files")


def _require_ids(path: str, schema: pa.Schema) -> None:
    """Columns are known by numbers: under a name of today, a file of yesterday may hold another column."""
    import pyarrow.parquet as pq

    for field in pq.read_schema(path):
        now = schema.field(field.name) if field.name in schema.names else None
        if now is not None and (now.metadata or {}).get(FIELD_ID) != (field.metadata or {}).get(FIELD_ID):
            raise DataError(f"{path} holds another column under the name {field.name!r}", remedy=REWRITE)


def _local(address: str) -> str:
    """The path of a file of this machine; files elsewhere are behind the walls."""
    told = urlparse(address)
    if told.scheme not in ("", "file"):
        raise DataError(
            f"{address} lies in an object store", remedy="Copy the table here, or write the rows as Parquet"
        )
    return unquote(told.path) if told.scheme else address


def _require_inside(location: str, paths: Sequence[str]) -> None:
    """An error where a table names files outside its folder, before any of them is opened."""
    top = os.path.realpath(location if os.path.isdir(location) else os.path.dirname(os.path.dirname(location)))
    if outside := next((path for path in paths if os.path.commonpath([top, os.path.realpath(path)]) != top), None):
        raise DataError(f"{location} names a file outside its folder: {outside}", remedy="Copy the table as a whole")


def _source(
    location: str, paths: Sequence[str], schema: pa.Schema, partitions: Sequence[Mapping[str, Any]]
) -> TableSource:
    """The files as one table, if they hold all that the table has under the names that it has now."""
    if not paths:
        raise DataError(f"{location} holds no rows", remedy="Give data to compare on")
    _require_inside(location, paths)
    found = table_of(location, "parquet", paths, partitions, schema)
    if others := sorted(set(found.schema.names) ^ set(schema.names)):
        told = f"the files of {location} have other columns than the table: {', '.join(others[:5])}"
        raise DataError(told, remedy=REWRITE)
    return found


EXTENSION = LakehouseReader()
