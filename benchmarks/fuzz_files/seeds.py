"""A valid file of every kind that likewise reads, made with real small models, and how each is read without it."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import pickle
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROWS, COLUMNS = 24, ("a", "b", "c")

Answers = Callable[[Path], np.ndarray]

UNPACKED: dict[bytes, Callable[[bytes], bytes]] = {
    b"x": zlib.decompress,
    b"\x1f\x8b": gzip.decompress,
    b"BZ": bz2.decompress,
    b"\xfd7zXZ": lzma.decompress,
}


@dataclass(frozen=True)
class Seed:
    """A kind of file: how one is made, what it is to likewise, and how somebody else reads it.

    `role` is `model`, `data`, `recorded`, `report` or `config`; `form` is what mutations know of its structure.
    `crashes`: a library reads it that may take the process with it.
    """

    name: str
    role: str
    form: str
    make: Callable[[Path], Any]
    read: Answers | None = None
    crashes: bool = False


def table() -> Any:
    import pandas as pd

    values = np.random.default_rng(0).normal(size=(ROWS, len(COLUMNS))).astype(np.float32)
    return pd.DataFrame(values, columns=list(COLUMNS))


def target() -> np.ndarray:
    values = table().to_numpy(np.float64)
    return values @ [1.0, -2.0, 0.5] + 3.0


def linear() -> Any:
    from sklearn.linear_model import LinearRegression

    return LinearRegression().fit(table(), target())


def forest() -> Any:
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(n_estimators=3, max_depth=3, random_state=0).fit(table(), target())


def network() -> Any:
    import torch
    from torch import nn

    layer = nn.Linear(3, 1)
    with torch.no_grad():
        layer.weight[:] = torch.tensor([[1.0, -2.0, 0.5]])
        layer.bias[:] = 3.0
    return nn.Sequential(layer, nn.Identity()).eval()


# How each is made.


def onnx_graph() -> Any:
    from onnx import TensorProto, helper, numpy_helper

    weights = {"w": np.array([[1.0], [-2.0], [0.5]], np.float32), "v": np.array([3.0], np.float32)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Add", ["h", "v"], ["s"], name="sum"),
        helper.make_node("Cast", ["s"], ["d"], name="wide", to=TensorProto.DOUBLE),
        helper.make_node("Cast", ["d"], ["y"], name="narrow", to=TensorProto.FLOAT),
    ]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])]
    got = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])]
    held = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "seed", given, got, initializer=held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def save_onnx(path: Path) -> None:
    import onnx

    onnx.save(onnx_graph(), path)


def save_external(path: Path) -> None:
    import onnx

    onnx.save(onnx_graph(), path, save_as_external_data=True, location="weights.bin", size_threshold=0)


def save_trees_onnx(path: Path) -> None:
    from skl2onnx import to_onnx

    path.write_bytes(to_onnx(forest(), table().to_numpy()[:1]).SerializeToString())


def save_script(path: Path) -> None:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(network()).save(str(path))


def save_program(path: Path) -> None:
    import torch

    free = ({0: torch.export.Dim("batch")},)
    torch.export.save(torch.export.export(network(), (torch.zeros(4, 3),), dynamic_shapes=free), path)


def save_joblib(compress: int) -> Callable[[Path], Any]:
    def save(path: Path) -> None:
        import joblib

        joblib.dump(forest() if compress else linear(), path, compress=compress)

    return save


def save_skops(path: Path) -> None:
    import skops.io

    skops.io.dump(linear(), path)


def save_xgboost(path: Path) -> None:
    import xgboost

    xgboost.XGBRegressor(n_estimators=4, max_depth=3, n_jobs=1).fit(table(), target()).save_model(path)


def save_lightgbm(path: Path) -> None:
    import lightgbm

    model = lightgbm.LGBMRegressor(n_estimators=4, min_child_samples=2, n_jobs=1, verbose=-1).fit(table(), target())
    model.booster_.save_model(path)


def save_catboost(path: Path) -> None:
    import catboost

    options = {"iterations": 4, "depth": 3, "verbose": False, "allow_writing_files": False, "thread_count": 1}
    catboost.CatBoostRegressor(**options).fit(table(), target()).save_model(str(path))


def save_recorded(path: Path) -> None:
    import likewise

    likewise.record(linear(), table(), path)


def save_stream(path: Path) -> None:
    import pyarrow as pa

    rows = pa.Table.from_pandas(table())
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, rows.schema) as stream:
        stream.write_table(rows)


def save_tensors(folder: Path) -> None:
    """A model and a folder of a test case as ONNX's backend suite has them."""
    from onnx import numpy_helper

    folder.mkdir()
    tensor = numpy_helper.from_array(table().to_numpy(), "x")
    (folder / "input_0.pb").write_bytes(tensor.SerializeToString())
    answer = numpy_helper.from_array(target().astype(np.float32)[:, None], "y")
    (folder / "output_0.pb").write_bytes(answer.SerializeToString())


def save_report(path: Path) -> None:
    import likewise

    shifted = linear()
    shifted.intercept_ = shifted.intercept_ + 1e-3
    likewise.check(linear(), shifted, table(), report=str(path), explain=False, edge="off", batch_sizes=(), shapes={})


def save_config(path: Path) -> None:
    path.write_text(
        'data = "rows.npz"\n\n[gates.one]\nreference = "r.onnx"\ncandidate = "m.onnx"\nreport = "one.json"\n'
        "abs_tol = 1e-3\nrel_tol = 1e-3\nsamples = 10\nexplain = false\nbatch_sizes = [1, 2]\n"
        'edge = "off"\n\n[gates.one.limits]\nmax_abs_diff = 0.01\n"p99_abs_diff" = 0.01\n'
    )
    save_onnx(path.parent / "m.onnx")
    other = onnx_graph()
    other.doc_string = "another file"
    (path.parent / "r.onnx").write_bytes(other.SerializeToString())
    np.savez(path.parent / "rows.npz", x=table().to_numpy())


# How each is read by its own library: a file that passes has to say the same there.


def by_onnxruntime(path: Path) -> np.ndarray:
    import onnxruntime

    session = onnxruntime.InferenceSession(path)
    given = session.get_inputs()[0]
    rows = table().to_numpy(np.float64 if given.type == "tensor(double)" else np.float32)
    return np.asarray(session.run(None, {given.name: rows})[0])


def by_joblib(path: Path) -> np.ndarray:
    import joblib

    return np.asarray(joblib.load(path).predict(table()))


def by_pickle(path: Path) -> np.ndarray:
    """By the reader in C; likewise reads compressed files too."""
    content = path.read_bytes()
    for start, unpack in UNPACKED.items():
        content = unpack(content) if content.startswith(start) else content
    return np.asarray(pickle.loads(content).predict(table()))


def by_skops(path: Path) -> np.ndarray:
    import skops.io

    return np.asarray(skops.io.load(path, trusted=skops.io.get_untrusted_types(file=path)).predict(table()))


def by_torchscript(path: Path) -> np.ndarray:
    import torch

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(torch.jit.load(str(path))(torch.tensor(table().to_numpy())))


def by_torch_export(path: Path) -> np.ndarray:
    import torch

    with torch.no_grad():
        return np.asarray(torch.export.load(path).module()(torch.tensor(table().to_numpy())))


def by_xgboost(path: Path) -> np.ndarray:
    import xgboost

    return np.asarray(xgboost.Booster(model_file=path).predict(xgboost.DMatrix(table())))


def by_lightgbm(path: Path) -> np.ndarray:
    import lightgbm

    return np.asarray(lightgbm.Booster(model_file=path).predict(table()))


def by_catboost(path: Path) -> np.ndarray:
    import catboost

    return np.asarray(catboost.CatBoost().load_model(str(path)).predict(table()))


def by_parquet(path: Path) -> np.ndarray:
    import pyarrow.parquet as pq

    return column_values(pq.ParquetFile(path).read())


def column_values(rows: Any) -> np.ndarray:
    columns = [column.cast("double", safe=False).to_numpy() for column in rows.columns]
    return np.stack(columns, axis=1)


def frame_values(frame: Any) -> np.ndarray:
    return np.asarray(frame.to_numpy(np.float64))


def by_pandas(path: Path) -> np.ndarray:
    import pandas as pd

    return frame_values(pd.read_csv(path))


def by_arrow(path: Path) -> np.ndarray:
    import pyarrow as pa

    opened = pa.ipc.open_file if path.read_bytes()[:5] == b"ARROW" else pa.ipc.open_stream
    return column_values(opened(path.read_bytes()).read_all())


def by_json(path: Path) -> np.ndarray:
    rows = [json.loads(line) or {} for line in path.read_text().splitlines() if line.strip()]  # null is a row of gaps
    values = [[row.get(name) for name in dict.fromkeys(name for row in rows for name in row)] for row in rows]
    return np.array([[np.nan if value is None else value for value in row] for row in values], np.float64)


def by_numpy(path: Path) -> np.ndarray:
    loaded = np.load(path, allow_pickle=False)
    return np.asarray(loaded if isinstance(loaded, np.ndarray) else loaded[loaded.files[0]])


def by_tensor(folder: Path) -> np.ndarray:
    from onnx import TensorProto, numpy_helper

    tensor = TensorProto()
    tensor.ParseFromString((folder / "input_0.pb").read_bytes())
    return np.asarray(numpy_helper.to_array(tensor))


def recorded_answers(path: Path) -> np.ndarray:
    import pyarrow.parquet as pq

    frame = pq.ParquetFile(path).read().to_pandas(ignore_metadata=True)
    return np.asarray(frame["output.value"].to_numpy(np.float64))


def arrays(path: Path) -> None:
    np.savez(path, X=table().to_numpy())


def packed_arrays(path: Path) -> None:
    np.savez_compressed(path, X=table().to_numpy())


SEEDS = (
    Seed("m.onnx", "model", "onnx", save_onnx, by_onnxruntime),
    Seed("external.onnx", "model", "onnx", save_external, by_onnxruntime),
    Seed("trees.onnx", "model", "onnx", save_trees_onnx, by_onnxruntime),
    Seed("m.joblib", "model", "pickle", save_joblib(0), by_joblib),
    Seed("packed.joblib", "model", "pickle", save_joblib(3), by_joblib),
    Seed("m.pkl", "model", "pickle", lambda path: path.write_bytes(pickle.dumps(linear())), by_pickle),
    Seed("m.skops", "model", "zip", save_skops, by_skops),
    Seed("script.pt", "model", "zip", save_script, by_torchscript),
    Seed("program.pt2", "model", "zip", save_program, by_torch_export),
    Seed("x.json", "model", "json", save_xgboost, by_xgboost, crashes=True),
    Seed("x.ubj", "model", "bytes", save_xgboost, by_xgboost, crashes=True),
    Seed("l.txt", "model", "lines", save_lightgbm, by_lightgbm, crashes=True),
    Seed("c.cbm", "model", "bytes", save_catboost, by_catboost, crashes=True),
    Seed("golden.parquet", "recorded", "table", save_recorded, recorded_answers),
    Seed("rows.parquet", "data", "table", lambda path: table().to_parquet(path), by_parquet),
    Seed("rows.csv", "data", "lines", lambda path: table().to_csv(path, index=False), by_pandas),
    Seed("rows.feather", "data", "table", lambda path: table().to_feather(path), by_arrow),
    Seed("rows.arrow", "data", "table", save_stream, by_arrow),
    Seed("rows.jsonl", "data", "lines", lambda path: table().to_json(path, orient="records", lines=True), by_json),
    Seed("rows.npy", "data", "npy", lambda path: np.save(path, table().to_numpy()), by_numpy),
    Seed("rows.npz", "data", "zip", arrays, by_numpy),
    Seed("packed.npz", "data", "zip", packed_arrays, by_numpy),
    Seed("test_data_set_0", "data", "tensors", save_tensors, by_tensor),
    Seed("report.json", "report", "json", save_report),
    Seed("likewise.toml", "config", "lines", save_config),
)
