"""What `likewise check` costs on top of the models: `make bench`, or `python benchmarks/overhead.py`.

Compares the command with a hand-written sequential loop over the same Parquet file and the same
models: calls of 16,384 rows, maximum and mean absolute difference of the probabilities. Both are
whole processes, run in turns (loop, likewise, loop, …) so that a noisy machine hits both; the figure
is the ratio of the medians. Edge suites (`--edge off`) and explanations (`--no-explain`) are left out: they
do not grow with the rows. Peak memory is that of the worker, at 300,000 and at 3,000,000 rows.
`--only pipe`: the same check with the reference opened by another Python, in turns with the plain
command; CPU of all processes and wall. Without walls, behind which nobody waits for the other Python and counts it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROWS = 1_000_000
MODELS = ("logistic", "forest", "histgb")

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


def timed(command: list[str]) -> tuple[float, str]:
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    elapsed = time.perf_counter() - began
    if done.returncode not in (0, 1):
        sys.exit(f"{command} exited with {done.returncode}: {done.stdout}{done.stderr}")
    return elapsed, done.stdout


def overhead(folder: Path, repeats: int) -> None:
    data = str(folder / "test.parquet")
    for name in MODELS:
        model, onnx = str(folder / f"{name}.joblib"), str(folder / f"{name}.onnx")
        loop = [sys.executable, "-W", "ignore", "-c", LOOP, model, onnx, data]
        ours = [sys.executable, "-m", "likewise", "check", model, onnx, "--data", data, "--json", "--no-explain"]
        ours += ["--edge", "off", "--report", str(folder / "report.json")]
        times: dict[str, list[float]] = {"loop": [], "likewise": []}
        for _ in range(repeats):
            elapsed, printed = timed(loop)
            times["loop"].append(elapsed)
            elapsed, report = timed(ours)
            times["likewise"].append(elapsed)
        plain, found = json.loads(printed), json.loads(report)
        assert abs(plain["max_abs_diff"] - found["max_abs_diff"]) <= 1e-6 + 1e-2 * plain["max_abs_diff"], printed
        medians = {who: statistics.median(values) for who, values in times.items()}
        ratio = medians["likewise"] / medians["loop"]
        run = found["provenance"]["run"]
        print(
            f"{name:9} loop {medians['loop']:6.2f} s  likewise {medians['likewise']:6.2f} s  ratio {ratio:.3f}"
            f"  (spread {min(times['loop']):.2f}–{max(times['loop']):.2f} / "
            f"{min(times['likewise']):.2f}–{max(times['likewise']):.2f})  {run}",
            flush=True,
        )


def pipe(folder: Path, repeats: int) -> None:
    data = str(folder / "test.parquet")
    for name in MODELS:
        plain = [
            sys.executable,
            "-m",
            "likewise",
            "check",
            str(folder / f"{name}.joblib"),
            str(folder / f"{name}.onnx"),
        ]
        plain += ["--data", data, "--json", "--no-explain", "--edge", "off", "--no-sandbox", "--trust"]
        plain += ["--report", str(folder / "report.json")]
        ways = {"in process": plain, "over the pipe": [*plain, "--reference-python", sys.executable]}
        cost: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        facts = {}
        for _ in range(repeats):
            for way, command in ways.items():
                before = cpu_of_children()
                elapsed, printed = timed(command)
                cost[way].append((cpu_of_children() - before, elapsed))
                facts[way] = [json.loads(printed)[fact] for fact in ("samples", "max_abs_diff", "mean_abs_diff")]
        assert facts["in process"] == facts["over the pipe"], facts
        for part, unit in enumerate(("CPU", "wall")):
            here, far = (statistics.median(entry[part] for entry in cost[way]) for way in ways)
            print(
                f"{name:9} {unit:4} in process {here:6.2f} s  over the pipe {far:6.2f} s  ratio {far / here:.3f}",
                flush=True,
            )


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def memory(folder: Path) -> None:
    peaks = {}
    for rows in (300_000, 3_000_000):
        data = folder / f"rows{rows}.parquet"
        write_data(data, rows, seed=3)
        report = folder / "memory.json"
        command = ["check", str(folder / "logistic.joblib"), str(folder / "logistic.onnx"), "--data", str(data)]
        script = (
            "import sys, resource, subprocess; "
            "subprocess.run([sys.executable, '-m', 'likewise', *sys.argv[1:]], stdout=subprocess.DEVNULL); "
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, *command, "--report", str(report)],
            capture_output=True,
            text=True,
            check=True,
        )
        peaks[rows] = int(done.stdout) / 1024
        assert json.loads(report.read_text())["samples"] == rows
        print(f"peak memory at {rows:9,} rows: {peaks[rows]:7.1f} MiB", flush=True)
    print(f"ratio {peaks[3_000_000] / peaks[300_000]:.3f}")


def start_up(repeats: int = 20) -> None:
    def cpu(command: list[str]) -> float:
        before = cpu_of_children()
        for _ in range(repeats):
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        return (cpu_of_children() - before) / repeats

    plain = cpu([sys.executable, "-c", "pass"])
    helped = cpu([sys.executable, "-m", "likewise", "--help"])
    print(
        f"CPU: python -c pass {1000 * plain:.1f} ms, likewise --help {1000 * helped:.1f} ms, {helped / plain:.1f} times"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["overhead", "pipe", "memory", "start"], help="One part only.")
    parser.add_argument("--folder", type=Path, help="Keep data and models here, and use what is there.")
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, {options.rows:,} rows")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if options.only in (None, "start"):
            start_up()
        if options.only != "start" and not (folder / "test.parquet").exists():
            build(folder, options.rows)
        if options.only in (None, "overhead"):
            overhead(folder, options.repeats)
        if options.only in (None, "pipe"):
            pipe(folder, options.repeats)
        if options.only in (None, "memory"):
            memory(folder)


if __name__ == "__main__":
    main()
