"""Score the test flights on the CPU with the scikit-learn or the ONNX model, as a service would."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pandas as pd
from src.data import ROOT, config, load

Scorer = Callable[[pd.DataFrame], np.ndarray]


def with_sklearn(artifacts: dict[str, Path]) -> Scorer:
    import joblib

    model = joblib.load(artifacts["model"])
    return lambda rows: model.predict_proba(rows)[:, 1]


def with_onnx(artifacts: dict[str, Path], path: Path) -> Scorer:
    import onnxruntime

    inputs = json.loads(artifacts["features"].read_text())["features"]
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    _, probabilities = session.get_outputs()

    def score(rows: pd.DataFrame) -> np.ndarray:
        answer = session.run([probabilities.name], {entry["name"]: tensor(rows, entry) for entry in inputs})[0]
        # A ZipMap gives one dictionary a row, anything else a column a class.
        return np.array([row[1] for row in answer]) if isinstance(answer, list) else answer[:, 1]

    return score


def tensor(rows: pd.DataFrame, entry: dict[str, str]) -> np.ndarray:
    """A column as the input of the same name takes it; missing text is the empty string."""
    column = rows[entry["name"]]
    if entry["dtype"] == "string":
        return column.fillna("").to_numpy(object).reshape(-1, 1)
    return column.to_numpy(entry["dtype"]).reshape(-1, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=["sklearn", "onnx"], default="onnx")
    parser.add_argument("--model", type=Path, help="another ONNX model, such as artifacts/model.int8.onnx")
    parser.add_argument("--batch-size", type=int, default=256, help="rows a call (default 256)")
    chosen = parser.parse_args()
    artifacts = config()["artifacts"]
    rows, target, _ = load("test")
    path = ROOT / chosen.model if chosen.model else artifacts["onnx"]
    score = with_sklearn(artifacts) if chosen.backend == "sklearn" else with_onnx(artifacts, path)
    began = time.perf_counter()
    parts = [score(rows.iloc[start : start + chosen.batch_size]) for start in range(0, len(rows), chosen.batch_size)]
    seconds = time.perf_counter() - began
    late = np.concatenate(parts) >= float(artifacts["threshold"].read_text())
    found = {
        "backend": chosen.backend,
        "rows": len(rows),
        "called_late": int(late.sum()),
        "precision": round(float(target[late].mean()), 4),
        "recall": round(float(late[target == 1].mean()), 4),
        "rows_per_second": round(len(rows) / seconds),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
