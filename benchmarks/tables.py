"""For `cost.py`: tables of mixed columns, three scikit-learn pipelines over them with exports, a hand-written loop."""

from __future__ import annotations

from pathlib import Path

LOOP = """
import sys, json
import joblib, numpy as np, onnxruntime as ort, pyarrow.parquet as pq
model_path, onnx_path, data = sys.argv[1:]
model, session = joblib.load(model_path), ort.InferenceSession(onnx_path)
kinds = {i.name: i.type for i in session.get_inputs()}
largest, total, count = 0.0, 0.0, 0
for batch in pq.ParquetFile(data).iter_batches(16384):
    frame = batch.to_pandas()
    reference = model.predict_proba(frame)
    feed = {
        name: frame[name].to_numpy(object if kind == "tensor(string)" else np.float32).reshape(-1, 1)
        for name, kind in kinds.items()
    }
    candidate = session.run(["probabilities"], feed)[0]
    difference = np.abs(candidate.astype(np.float64) - reference)
    largest = max(largest, float(difference.max()))
    total += float(difference.sum())
    count += difference.size
print(json.dumps({"max_abs_diff": largest, "mean_abs_diff": total / count}))
"""


def write_data(path: Path, rows: int, seed: int) -> None:
    """Mixed types: six numbers, one of them with missing values, an integer, two categories."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(seed)
    writer = None
    for start in range(0, rows, 100_000):
        n = min(100_000, rows - start)
        columns: dict[str, object] = {f"x{index}": rng.normal(size=n) for index in range(5)}
        columns["gap"] = np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n))
        columns["age"] = rng.integers(18, 90, size=n)
        columns["city"] = np.array(["Oslo", "Rome", "Lima", "Cairo", "Delhi"])[rng.integers(0, 5, n)]
        columns["plan"] = np.array(["free", "basic", "pro"])[rng.integers(0, 3, n)]
        signal = columns["x0"] + 0.5 * columns["x1"] + (columns["city"] == "Oslo")  # type: ignore[operator]
        columns["target"] = (signal + rng.normal(size=n) > 0.3).astype(np.int64)
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def build(folder: Path, rows: int) -> None:
    """Train on 20,000 rows, export, and write the data to compare on."""
    import joblib
    import pandas as pd
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType, StringTensorType
    from sklearn.compose import ColumnTransformer
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    write_data(folder / "train.parquet", 20_000, seed=1)
    train = pd.read_parquet(folder / "train.parquet")
    target = train.pop("target")
    numbers, texts = ["x0", "x1", "x2", "x3", "x4", "gap", "age"], ["city", "plan"]
    finals = {
        "logistic": LogisticRegression(max_iter=500),
        "forest": RandomForestClassifier(50, max_depth=10, random_state=0),
        "histgb": HistGradientBoostingClassifier(max_iter=50, random_state=0),
    }
    types = [(name, FloatTensorType([None, 1])) for name in numbers]
    types += [(name, StringTensorType([None, 1])) for name in texts]
    for name, final in finals.items():
        prepare = ColumnTransformer(
            [
                ("numbers", make_pipeline(SimpleImputer(), StandardScaler()), numbers),
                ("texts", OneHotEncoder(handle_unknown="ignore", sparse_output=False), texts),
            ]
        )
        model = make_pipeline(prepare, final).fit(train, target)
        joblib.dump(model, folder / f"{name}.joblib")
        onnx = to_onnx(model, initial_types=types, options={"zipmap": False})
        (folder / f"{name}.onnx").write_bytes(onnx.SerializeToString())
    write_data(folder / "test.parquet", rows, seed=2)
