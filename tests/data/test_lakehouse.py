"""A folder of a Delta or an Iceberg table is never taken for one of Parquet files: it also holds those of the past.

Real tables are read by `benchmarks/lakehouse.py`, where their packages are installed.
"""

from __future__ import annotations

import gzip
import json
import sys
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from likewise.data import stores
from likewise.data.readers import lakehouse
from likewise.errors import DataError, MissingExtraError
from likewise.registry import open_source


@pytest.fixture
def delta(tmp_path):
    """A table whose log has one of two files, as it is after an overwrite."""
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    for number in range(2):
        pq.write_table(pa.table({"x": [float(number)]}), tmp_path / "delta" / f"part-{number}.parquet")
    log = [{"add": {"path": "part-1.parquet", "dataChange": True}}]
    (tmp_path / "delta" / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, log)))
    return tmp_path / "delta"


@pytest.fixture
def iceberg(tmp_path):
    folder = tmp_path / "iceberg" / "metadata"
    folder.mkdir(parents=True)
    for name in ("00002-b.metadata.json", "00010-a.metadata.json", "v9.metadata.json"):
        (folder / name).write_text("{}")
    return tmp_path / "iceberg"


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_without_its_package_it_is_refused_with_the_line_that_installs_it(kind, request, monkeypatch):
    for name in ("deltalake", "pyiceberg", "pyiceberg.table"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError) as raised:
        open_source(str(request.getfixturevalue(kind)))
    assert raised.value.remedy == f"Run: pip install 'likewise[{kind}]'"


def test_a_store_does_not_copy_half_a_table(delta, tmp_path):
    with pytest.raises(DataError, match="is a Delta table"):
        stores.copy(delta.as_uri(), str(tmp_path / "copy"))


def test_the_newest_metadata_counts(iceberg):
    assert lakehouse._metadata(str(iceberg)).endswith("00010-a.metadata.json")
    (iceberg / "metadata" / "version-hint.text").write_text("9")
    assert lakehouse._metadata(str(iceberg)).endswith("v9.metadata.json")


def test_files_outside_the_folder_are_refused(tmp_path):
    (tmp_path / "table").mkdir()
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match="outside its folder"):
        lakehouse._source(str(tmp_path / "table"), [str(tmp_path / "other.parquet")], pa.schema([]), [{}])


PROPERTIES = [{"py-io-impl": "subprocess.Popen"}, {"s3.endpoint": "http://elsewhere"}, {"warehouse": "s3://elsewhere"}]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("said", [*({"properties": table} for table in PROPERTIES), {"snapshots": "/etc/passwd"}])
def test_a_table_does_not_say_by_which_code_it_is_read(iceberg, monkeypatch, said, packed):
    """The package imports what the properties name, and calls it with them: `subprocess.Popen` runs their names."""
    package = ModuleType("pyiceberg.table")
    package.StaticTable = None
    monkeypatch.setitem(sys.modules, "pyiceberg", ModuleType("pyiceberg"))
    monkeypatch.setitem(sys.modules, "pyiceberg.table", package)
    if "snapshots" in said:
        said = {"snapshots": [{"manifest-list": said["snapshots"]}]}
    path = iceberg / "metadata" / f"00011-c{'.gz' if packed else ''}.metadata.json"
    path.write_bytes(gzip.compress(json.dumps(said).encode()) if packed else json.dumps(said).encode())
    with pytest.raises(DataError, match=r"by which code or from where|outside its folder"):
        open_source(str(iceberg))
