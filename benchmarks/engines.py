"""What engines cost: rows a CPU second, memory of the driver, bytes and time of a part, and what 10⁹ rows would take.

    python benchmarks/engines.py run --rows 10000000 --engines local,workers,ray
    python benchmarks/engines.py merge --rows 1000000000 --workers 64
    python benchmarks/engines.py fleet --gates 200

`run` compares a logistic regression with its ONNX file, once per engine, each in a process of its own; CPU seconds are
those of all processes. `fleet` runs many small gates by a loop over their files, by one command in three ways and by a
few separate commands. `merge` compares a few parts for real, weighs what they send and times how it is merged, and
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
        "driver_mb": _largest_mb(),
    }


def _largest_mb() -> int:
    """The most memory of this process; `ru_maxrss` has that of the one that started it, too."""
    told = Path("/proc/self/status").read_text(encoding="ascii")
    return round(int(told.partition("VmHWM:")[2].split()[0]) / 1024)


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(entry.ru_utime + entry.ru_stime for entry in used)


def run(rows: int, engines: list[str]) -> None:
    """Every engine on the same rows, and on few of them: that is what it takes to start."""
    for count in (FEW, rows):
        with tempfile.TemporaryDirectory() as place:
            make(Path(place), count)
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


FEW = 20_000
"""Rows that take no time to speak of."""

ALONE = 4
"""Gates that are run by separate commands to see what one costs."""

FLEETS = {
    "as it is": (),
    "without edge cases": ("--edge", "off"),
    "the data only": ("--edge", "off", "--batch-sizes", "none", "--shapes", "none"),
}


def make_gates(folder: Path, count: int) -> None:
    """Small models of four kinds with their exports, and 600 rows for each."""
    import joblib
    import pandas as pd
    from skl2onnx import to_onnx
    from sklearn.ensemble import GradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    kinds = (
        lambda: make_pipeline(StandardScaler(), LogisticRegression()),
        lambda: RandomForestClassifier(20, max_depth=6, random_state=0),
        lambda: GradientBoostingClassifier(n_estimators=20, random_state=0),
        Ridge,
    )
    for number in range(count):
        rows = np.random.default_rng(number).normal(size=(600, COLUMNS)).astype(np.float32)
        model = kinds[number % len(kinds)]()
        model.fit(rows, rows[:, 0] + rows[:, 1] * rows[:, 2] > 0)
        place = folder / f"gate{number:03d}"
        place.mkdir(parents=True)
        joblib.dump(model, place / "model.joblib")
        options = {} if isinstance(model, Ridge) else {"options": {"zipmap": False}}
        (place / "model.onnx").write_bytes(to_onnx(model, rows[:1], **options).SerializeToString())
        named = {f"f{column}": rows[:, column] for column in range(COLUMNS)}
        pd.DataFrame(named).to_parquet(place / "rows.parquet")


def loop(folder: Path) -> dict[str, float]:
    """What somebody would write who trusts every file: open both, read the rows, ask both, take the difference."""
    began = _cpu()
    import joblib
    import onnxruntime
    import pandas as pd
    import sklearn.ensemble  # noqa: F401 - a pickle would import it within the loop

    imported = _cpu()
    gates = sorted(folder.iterdir())
    for gate in gates:
        model = joblib.load(gate / "model.joblib")
        session = onnxruntime.InferenceSession(gate / "model.onnx")
        rows = pd.read_parquet(gate / "rows.parquet").to_numpy()
        expected = [model.predict(rows), *([model.predict_proba(rows)] if hasattr(model, "predict_proba") else [])]
        given = session.run(None, {session.get_inputs()[0].name: rows})
        for ours, theirs in zip(expected, given, strict=True):
            assert np.abs(ours - theirs.reshape(ours.shape)).max() < 1e-3
    return {"imports": round(imported - began, 2), "a_gate": round((_cpu() - imported) / len(gates), 4)}


def fleet(count: int) -> None:
    """What a gate of a fleet costs beside a loop over the same files, and beside a command of its own."""
    likewise = str(Path(sys.executable).with_name("likewise"))
    with tempfile.TemporaryDirectory() as place:
        models = Path(place) / "models"
        make_gates(models, count)
        words = [sys.executable, __file__, "loop", "--folder", str(models)]
        own = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
        print("loop", own)
        for told, options in FLEETS.items():
            reports = Path(place) / told
            used = _used([likewise, "fleet", str(models), "--reports", str(reports), "--quiet", *options])
            times = used / count / own["a_gate"]
            print(f"fleet, {told}: {used / count:.3f} CPU s a gate, {times:.1f} times the loop's {own['a_gate']:.3f}")
        alone = 0.0
        for gate in sorted(models.iterdir())[:ALONE]:
            files = [str(gate / name) for name in ("model.joblib", "model.onnx")]
            alone += _used([likewise, "check", *files, "--data", str(gate / "rows.parquet"), "--html", f"{gate}.html"])
        print(f"separate commands: {alone / ALONE:.3f} CPU s a gate")


def _used(words: list[str]) -> float:
    """CPU seconds of a command and all that it started."""
    began = _cpu()
    subprocess.run(words, check=True, capture_output=True, cwd=tempfile.gettempdir())
    return _cpu() - began


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "one", "merge", "fleet", "loop"))
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--workers", type=int, default=64)
    parser.add_argument("--parts", type=int, default=6)
    parser.add_argument("--gates", type=int, default=200)
    parser.add_argument("--engines", default="local,workers,ray")
    parser.add_argument("--engine", default="local")
    parser.add_argument("--folder", default=".")
    given = parser.parse_args()
    if given.what == "run":
        run(given.rows, given.engines.split(","))
    elif given.what == "one":
        print(json.dumps(one(Path(given.folder), given.engine)))
    elif given.what == "loop":
        print(json.dumps(loop(Path(given.folder))))
    elif given.what == "fleet":
        fleet(given.gates)
    else:
        merge(given.rows, given.workers, given.parts)
