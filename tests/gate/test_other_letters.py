"""The fifteenth attempt: records by other letters, types of other packages, tuples without end. Each got through."""

from __future__ import annotations

import pickle
import zipfile
from collections import deque

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from likewise.contracts.models import Model
from likewise.errors import DataError, ModelError
from likewise.models import pickles
from likewise.registry import adapter, open_source


def nested(depth, wrap):
    """The bytes of a pickle of tuples within each other, under a key or in a set."""
    inside = b")" + b"\x85" * depth
    around = {"key": (b"}", b"Ns."), "set": (b"\x8f(", b"\x90."), "frozen": (b"(", b"\x91.")}[wrap]
    return b"\x80\x04" + inside.join(around)


@pytest.mark.parametrize("wrap", ["key", "set", "frozen"])
def test_tuples_within_tuples_without_end_are_not_hashed(tmp_path, wrap):
    """Python hashes one within the other, and ended by a signal."""
    (tmp_path / "m.pkl").write_bytes(nested(300_000, wrap))
    with pytest.raises(ModelError, match="within each other"):
        pickles.read(tmp_path / "m.pkl")
    (tmp_path / "m.pkl").write_bytes(nested(20, wrap))
    assert pickles.read(tmp_path / "m.pkl")[0]


def test_queues_within_queues_are_no_part_of_a_model(tmp_path):
    (tmp_path / "m.pkl").write_bytes(pickle.dumps(deque([deque([1])])))
    with pytest.raises(ModelError, match="a deque within a deque"):
        pickles.read(tmp_path / "m.pkl")
    (tmp_path / "m.pkl").write_bytes(pickle.dumps([deque([1])]))
    assert pickles.read(tmp_path / "m.pkl")[0] == [deque([1])]


def renamed(source, target, names):
    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(target, "w") as made:
        for entry in archive.namelist():
            root, _, name = entry.partition("/")
            made.writestr(f"{root}/{names(name)}", archive.read(entry))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize(
    ("kind", "was", "now"),
    [
        ("script", "code/", "CODE/"),
        ("script", "code/", "code\\"),
        ("script", "code/", "./code/"),
        ("script", "data.pkl", "DATA.PKL"),
        ("script", "constants.pkl", "Constants.pkl"),
        ("weights", "data.pkl", "DATA.PKL"),
        ("weights", "data.pkl", "data.Pkl"),
    ],
)
def test_records_that_torch_finds_by_other_letters_are_refused(tmp_path, kind, was, now):
    """torch looks for no case of letters: what was called `CODE/…` ran while it was loaded, and nobody had read it."""
    net = torch.nn.Linear(3, 1)
    if kind == "script":
        torch.jit.script(net).save(str(tmp_path / "good.pt"))
    else:
        torch.save(net.state_dict(), tmp_path / "good.pt")
    renamed(tmp_path / "good.pt", tmp_path / "bad.pt", lambda name: name.replace(was, now))
    options = {} if kind == "script" else {"factory": lambda: torch.nn.Linear(3, 1)}
    with adapter("torch").open(Model("torch", tmp_path / "good.pt", options)):
        pass
    with (
        pytest.raises(ModelError, match="which torch takes for"),
        adapter("torch").open(Model("torch", tmp_path / "bad.pt", options)),
    ):
        pass


class Foreign(pa.ExtensionType):
    """A type of another package, whose values are made by code of its own."""

    def __init__(self):
        super().__init__(pa.binary(), "other.package")

    def __arrow_ext_serialize__(self):
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage, serialized):
        return cls()

    def __arrow_ext_scalar_class__(self):
        raise AssertionError("asked")

    def to_pandas_dtype(self):
        raise AssertionError("asked")


def test_types_of_other_packages_are_read_as_what_they_are_stored_as(tmp_path):
    """ray.data, where it was imported, unpickles the values of a column of its own type."""
    column = pa.ExtensionArray.from_storage(Foreign(), pa.array([b"a", b"b"]))
    pa.register_extension_type(Foreign())
    try:
        pq.write_table(pa.table({"x": column, "y": [1.0, 2.0]}), tmp_path / "rows.parquet")
        (batch,) = open_source(tmp_path / "rows.parquet").batches(8)
        assert batch.inputs.frame()["x"].tolist() == [b"a", b"b"]
        assert batch.inputs["x"].tolist() == [b"a", b"b"]
        nested = pa.table({"x": pa.StructArray.from_arrays([column], ["inner"])})
        pq.write_table(nested, tmp_path / "nested.parquet")
        with pytest.raises(DataError, match="another package"):
            next(iter(open_source(tmp_path / "nested.parquet").batches(8)))
    finally:
        pa.unregister_extension_type("other.package")


def test_tensors_that_lie_in_another_order_of_axes_are_refused(tmp_path):
    kind = pa.fixed_shape_tensor(pa.float64(), [2, 3], permutation=[1, 0])
    stored = pa.array(np.arange(12.0).reshape(2, 6).tolist(), pa.list_(pa.float64(), 6))
    pq.write_table(pa.table({"x": pa.ExtensionArray.from_storage(kind, stored)}), tmp_path / "rows.parquet")
    (batch,) = open_source(tmp_path / "rows.parquet").batches(8)
    with pytest.raises(DataError, match="stored in another order"):
        batch.inputs["x"]
