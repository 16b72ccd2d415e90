"""Real Delta and Iceberg tables, written, appended to, deleted from and overwritten by their own packages.

    pip install '.[delta,iceberg]' 'pyiceberg[sql-sqlite]' && python benchmarks/lakehouse.py

Every version of a table must give just the rows that its own package gives, and no file of the past; what cannot be
read by its files alone must be refused. Not part of the tests: the two packages are larger than likewise.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

import likewise
from likewise.errors import LikewiseError
from likewise.registry import open_source

RANDOM = np.random.default_rng(0)


def rows(count: int, start: int = 0) -> pa.Table:
    """Some rows with an id, numbers and a group."""
    return pa.table(
        {
            "id": np.arange(start, start + count),
            "x": RANDOM.normal(size=count),
            "group": RANDOM.choice(["ant", "bee"], count),
            "year": RANDOM.choice([2023, 2024], count).astype(np.int32),
        }
    )


def read(path: Path) -> Any:
    """What our reader makes of it, by id."""
    batches = [batch.inputs.frame() for batch in open_source(str(path)).batches(100)]
    import pandas as pd

    return pd.concat(batches)[["id", "x", "group", "year"]].sort_values("id").reset_index(drop=True)


def same(path: Path, expected: pa.Table) -> bool:
    frame = expected.select(["id", "x", "group", "year"]).to_pandas().sort_values("id").reset_index(drop=True)
    found = read(path)
    return len(found) == len(frame) and all(found[name].tolist() == frame[name].tolist() for name in frame)


def delta(folder: Path, told: Callable[[str, object], None]) -> None:
    place = folder / "delta"
    write_deltalake(place, rows(300), partition_by=["group", "year"])
    told("Delta, written by partitions", same(place, DeltaTable(place).to_pyarrow_table()))
    write_deltalake(place, rows(200, 300), mode="append")
    told("Delta, appended", same(place, DeltaTable(place).to_pyarrow_table()))
    DeltaTable(place).delete("x > 1")
    told("Delta, rows deleted", same(place, DeltaTable(place).to_pyarrow_table()))
    write_deltalake(place, rows(50), mode="overwrite")
    told("Delta, overwritten", same(place, DeltaTable(place).to_pyarrow_table()))
    few = open_source(str(place)).only(["x"])  # type: ignore[attr-defined]
    told("Delta, one column", {tuple(batch.inputs) for batch in few.batches(20)} == {("x",)})
    table = DeltaTable(place)
    from deltalake import TableFeatures

    table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    told("Delta, with deletion vectors, refused", refused(place))


def iceberg(folder: Path, told: Callable[[str, object], None]) -> None:
    house = folder / "house"
    house.mkdir()
    catalog = SqlCatalog("here", uri=f"sqlite:///{house}/catalog.db", warehouse=f"file://{house}")
    catalog.create_namespace("some")
    table = catalog.create_table("some.rows", schema=rows(1).schema)
    place = house / "some" / "rows"
    table.append(rows(300))
    told("Iceberg, written", same(place, table.scan().to_arrow()))
    table.append(rows(200, 300))
    table.delete("x > 1")
    told("Iceberg, appended and rows deleted", same(place, table.scan().to_arrow()))
    table.overwrite(rows(50))
    told("Iceberg, overwritten", same(place, table.scan().to_arrow()))
    told(
        "Iceberg, by its metadata file",
        same(Path(table.metadata_location.removeprefix("file://")), table.scan().to_arrow()),
    )
    with table.update_schema() as update:
        update.rename_column("x", "renamed")
    told("Iceberg, a column renamed, refused", refused(place))
    with table.update_schema() as update:
        update.rename_column("id", "x")
    with table.update_schema() as update:
        update.rename_column("renamed", "id")
    told("Iceberg, two columns under each other's names, refused", refused(place))


def refused(path: Path) -> bool:
    try:
        read(path)
    except LikewiseError as error:
        print(f"  {error.message}")
        return True
    return False


def main() -> int:
    wrong = []

    def told(what: str, right: object) -> None:
        print(f"{'right' if right else 'WRONG'}: {what}", flush=True)
        wrong.extend([] if right else [what])

    with TemporaryDirectory() as place:
        folder = Path(place)
        delta(folder, told)
        iceberg(folder, told)
        code = folder / "models.py"
        code.write_text(
            "def twice(frame):\n    return frame['x'].to_numpy() * 2\n\ndef again(frame):\n    return twice(frame)\n"
        )
        write_deltalake(folder / "checked", rows(400))
        report = likewise.check(f"{code}:twice", f"{code}:again", folder / "checked", isolate=True)
        told("a check behind walls", report.outcome == "PASS" and report.samples == 400)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
