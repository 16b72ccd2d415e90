"""What engines cost: rows a CPU second, memory of the driver, bytes and time of a part, and what 10⁹ rows would take.

    python benchmarks/engines.py run --rows 10000000 --engines local,workers,ray
    python benchmarks/engines.py merge --rows 1000000000 --workers 64

`run` compares a logistic regression with its ONNX file, once per engine, each in a process of its own; CPU seconds are
those of all processes. `merge` compares a few parts for real, weighs what they send and times how it is merged, and
from that works out a run that nobody made.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

COLUMNS = 8
BLOCK = 1 << 20
ENGINES = {
    "local": {},
    "workers": {"workers": 2},
    "ray": {"workers": 2, "engine": "ray"},
}


def make(folder: Path, rows: int) -> None:
    """A model, its export, and rows in row groups of 2²⁰."""
    import joblib
    import pyarrow as pa
    import pyarrow.parquet as pq
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression

    random = np.random.default_rng(0)
    first = random.normal(size=(2_000, COLUMNS)).astype(np.float32)
    model = LogisticRegression().fit(first, first[:, 0] + first[:, 1] > 0)
    joblib.dump(model, folder / "model.joblib")
    exported = to_onnx(model, first[:1], options={"zipmap": False})
    (folder / "model.onnx").write_bytes(exported.SerializeToString())
    schema = pa.schema([(f"f{number}", pa.float32()) for number in range(COLUMNS)])
    with pq.ParquetWriter(folder / "rows.parquet", schema) as writer:
        for start in range(0, rows, BLOCK):
            block = random.normal(size=(min(BLOCK, rows - start), COLUMNS)).astype(np.float32)
            writer.write_table(pa.table({f"f{n}": block[:, n] for n in range(COLUMNS)}, schema))


def one(folder: Path, engine: str) -> dict[str, float | None]:
    """One check in this process: start-up told apart, CPU of this process and of those it waited for."""
    import likewise

    files = (str(folder / name) for name in ("model.joblib", "model.onnx", "rows.parquet"))
    began, wall = _cpu(), time.perf_counter()
    report = likewise.check(*files, edge="off", batch_sizes=(), explain=False, **ENGINES[engine])
    assert report.passed, report.headline
    seconds = report.origin.run["seconds"]
    return {
        "rows": report.samples,
        "models_seconds": round(seconds["reference"] + seconds["candidate"], 2),
        # Actors are not children of this process: what they use is not counted, and so nothing is.
        "cpu_seconds": None if engine == "ray" else round(_cpu() - began, 2),
        "wall_seconds": round(time.perf_counter() - wall, 2),
        "driver_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(entry.ru_utime + entry.ru_stime for entry in used)


def run(rows: int, engines: list[str]) -> None:
    """Every engine on the same rows."""
    with tempfile.TemporaryDirectory() as place:
        make(Path(place), rows)
        for engine in engines:
            words = [sys.executable, __file__, "one", "--folder", place, "--engine", engine]
            print(engine, subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def merge(rows: int, workers: int, parts: int) -> None:
    """What parts weigh and how long it takes to merge them, and what follows from that for many more of them."""
    from likewise.compare.engines import Session
    from likewise.compare.engines.local import CHUNK_ROWS, LocalRun, call_sizes
    from likewise.compare.engines.processes import CHUNKS
    from likewise.compare.observe import Partial, prepare
    from likewise.contracts.comparison import Plan, Tolerance
    from likewise.registry import describe_model, open_source

    whole = CHUNK_ROWS * CHUNKS
    with tempfile.TemporaryDirectory() as place:
        make(Path(place), parts * whole)
        models = [describe_model(os.path.join(place, name)) for name in ("model.joblib", "model.onnx")]
        source = open_source(os.path.join(place, "rows.parquet"))
        for told, tolerance in (("all rows agree", Tolerance(1e-4, 1e-3)), ("all rows differ", Tolerance(0.0, 0.0))):
            plan = Plan(reference=models[0], candidate=models[1], source=source, tolerance=tolerance)
            with Session(*models) as session:
                prepared = prepare(plan, *session.both())
                engine = LocalRun(plan, prepared, call_sizes(plan, prepared))
                began = time.process_time()
                found = [engine.observed(part, whole=False) for part in source.shards(parts)]
                compare = (time.process_time() - began) / parts
            sent = [len(pickle.dumps(entry, protocol=5)) for entry in found]
            began, total = time.process_time(), Partial()
            for entry in found:
                total = total.merge(pickle.loads(pickle.dumps(entry.partial)))
            merging = (time.process_time() - began) / parts
            number = -(-rows // whole)
            figures = {
                "bytes a part": max(sent[1:]),
                "bytes merged at the end": len(pickle.dumps(total, protocol=5)),
                "CPU s to compare a part": round(compare, 3),
                "CPU s to merge a part": round(merging, 5),
                "parts": number,
                "MB to the driver": round(number * max(sent[1:]) / 1e6),
                "s of merging": round(number * merging, 1),
                "s on the workers": round(number * compare / workers),
                "workers that one driver keeps up with": round(compare / merging),
            }
            print(f"{told}: {json.dumps(figures)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "one", "merge"))
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--parts", type=int, default=6)
    parser.add_argument("--engines", default="local,workers,ray")
    parser.add_argument("--engine", default="local")
    parser.add_argument("--folder", default=".")
    given = parser.parse_args()
    if given.what == "run":
        run(given.rows, given.engines.split(","))
    elif given.what == "one":
        print(json.dumps(one(Path(given.folder), given.engine)))
    else:
        merge(given.rows, given.workers, given.parts)
