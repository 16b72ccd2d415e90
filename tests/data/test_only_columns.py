"""Columns that no model takes are not read, where there are many of them."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from onnx import TensorProto, helper, numpy_helper

import data_only
from likewise.data.readers.tables import filtered
from likewise.data.selection import only_columns, select
from likewise.registry import open_source
from likewise.report.formats.json import EXTENSION as JSON

ROWS, WIDE = 4_000, 40


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(0)
    made = pd.DataFrame({f"c{number}": rng.normal(size=ROWS).round(3) for number in range(WIDE)})
    made["group"] = rng.choice(["ant", "bee"], ROWS)
    made["name"] = [f"row-{number}" for number in range(ROWS)]
    return made


def stored(frame, folder, suffix):
    path = folder / f"rows.{suffix}"
    if suffix == "parquet":
        frame.to_parquet(path, row_group_size=1_500)
    elif suffix == "csv":
        frame.to_csv(path, index=False)
    elif suffix == "arrow":
        pa.feather.write_feather(pa.Table.from_pandas(frame), path, chunksize=1_500)
    else:
        frame.to_json(path, orient="records", lines=True)
    return path


def read(source):
    batches = list(source.batches(700))
    names = {tuple(batch.inputs) for batch in batches}
    assert len(names) == 1
    return names.pop(), pd.concat([batch.inputs.frame() for batch in batches]), batches


@pytest.mark.parametrize("suffix", ["parquet", "csv", "arrow", "jsonl"])
def test_the_columns_that_are_read_hold_what_they_held(frame, tmp_path, suffix):
    path = stored(frame, tmp_path, suffix)
    source = filtered(open_source(path), "c7 > 0.5 and group = 'bee'")
    names, found, batches = read(source.only(["c3", "name"]))
    kept = frame[(frame.c7 > 0.5) & (frame.group == "bee")]
    assert names == ("c3", "name")
    assert found.c3.tolist() == kept.c3.tolist()
    assert np.concatenate([batch.rows.numbers for batch in batches]).tolist() == kept.index.tolist()


def test_an_index_of_pandas_and_the_names_of_folders_stay(frame, tmp_path):
    frame.set_index("name").to_parquet(tmp_path / "indexed.parquet")
    _, found, _ = read(open_source(tmp_path / "indexed.parquet").only(["c3"]))
    assert found.index.tolist() == frame.name.tolist()
    pq.write_to_dataset(pa.Table.from_pandas(frame), tmp_path / "parts", partition_cols=["group"])
    source = open_source(tmp_path / "parts")
    assert read(source.only(["group", "c1"]))[1].groupby("group").c1.sum().round(6).to_dict() == (
        frame.groupby("group").c1.sum().round(6).to_dict()
    )
    assert len(read(source.only(["group"]))[1]) == ROWS


def test_ids_strata_and_dropped_columns_do_not_get_in_the_way(frame, tmp_path):
    source = open_source(stored(frame, tmp_path, "parquet"))
    narrow = only_columns(select(source, id="name", stratify="group", drop=("c9",), samples=200), ["c3"])
    whole = select(source, id="name", stratify="group", drop=("c9",), samples=200)
    (names, found, batches), (_, wide, others) = read(narrow), read(whole)
    assert set(names) == {"c3", "group"}
    assert found.c3.tolist() == wide.c3.tolist()
    for part, other in zip(batches, others, strict=True):
        assert part.rows.names.tolist() == other.rows.names.tolist()
        assert part.rows.strata.tolist() == other.rows.strata.tolist()


@pytest.fixture
def models(tmp_path):
    """The sum of two columns, and one that has a little more of the first."""
    ends = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["n"]) for name in ("c0", "c1", "sum")]
    for name, factor in (("right", 1.0), ("wrong", 1.01)):
        nodes = [helper.make_node("Mul", ["c0", "k"], ["more"]), helper.make_node("Add", ["more", "c1"], ["sum"])]
        weights = [numpy_helper.from_array(np.array([factor]), "k")]
        graph = helper.make_graph(nodes, name, ends[:2], ends[2:], weights)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.save(made, tmp_path / f"{name}.onnx")
    return [tmp_path / f"{name}.onnx" for name in ("right", "wrong")]


def damaged(path, column):
    """The same file with the pages of a column in its last row group overwritten."""
    metadata = pq.read_metadata(path)
    group = metadata.row_group(metadata.num_row_groups - 1)
    place = next(group.column(n) for n in range(group.num_columns) if group.column(n).path_in_schema == column)
    content = bytearray(path.read_bytes())
    start = place.dictionary_page_offset or place.data_page_offset
    content[start : start + place.total_compressed_size] = b"\xff" * place.total_compressed_size
    path.write_bytes(content)


def test_a_damaged_column_that_no_model_takes_is_never_met(frame, tmp_path, models):
    path = stored(frame, tmp_path, "parquet")
    damaged(path, "c20")
    report = data_only.check(models[0], models[0], path, batch_sizes=())
    assert (report.outcome, report.samples) == ("PASS", ROWS)
    assert any(
        "40 columns that neither model takes were read in the first rows only" in n for n in report.comparison.notes
    )
    few = tmp_path / "few.parquet"
    frame[["c0", "c1", "c20"]].to_parquet(few, row_group_size=1_500)
    damaged(few, "c20")
    assert data_only.check(models[0], models[0], few, batch_sizes=()).outcome == "INCONCLUSIVE"


@pytest.mark.parametrize("options", [{}, {"workers": 2}], ids=["local", "workers"])
def test_the_report_is_that_of_a_narrow_file_but_for_what_it_says_of_the_rest(frame, tmp_path, models, options):
    frame.to_parquet(tmp_path / "wide.parquet", row_group_size=1_500)
    frame[["c0", "c1"]].to_parquet(tmp_path / "narrow.parquet", row_group_size=1_500)
    wide, narrow = (
        data_only.check(*models, tmp_path / f"{name}.parquet", batch_sizes=(), batch_size=50, **options)
        for name in ("wide", "narrow")
    )
    assert wide.outcome == "FAIL"
    facts = [json.loads(JSON.render(report)) for report in (wide, narrow)]
    assert facts[0]["outputs"] == facts[1]["outputs"]


def test_a_model_that_takes_all_columns_gets_them(frame, tmp_path):
    code = "def all_of_it(frame):\n    return frame.drop(columns=['group', 'name']).sum(axis=1).to_numpy()\n"
    (tmp_path / "models.py").write_text(code, encoding="utf-8")
    path = stored(frame, tmp_path, "parquet")
    report = data_only.check(*[f"{tmp_path / 'models.py'}:all_of_it"] * 2, path, batch_sizes=())
    assert report.outcome == "PASS"
