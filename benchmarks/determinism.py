"""Does one command give one report, also on a busy machine? `make determinism`, or `python benchmarks/determinism.py`.

Every gate below is run as a command, again and again, while other processes keep the cores busy. Reports are compared
as they are written, timings apart: when the run was made and how long it took. Half of the runs have no load, so that
an idle machine and a busy one are compared too. What differs is printed; the exit code is 1 if anything does.
Explanations are left out (`--no-explain`): they have a budget of time, and say what there was none for.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RUNS = 20
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"
"""Ends with the benchmark, however that ends."""

GATES = {
    "trees, blocking edge suites": ("booster.joblib", "shifted.onnx", "rows.parquet", "--edge", "fail"),
    "pipeline, edge suites reported": ("pipeline.joblib", "pipeline.onnx", "rows.parquet"),
    "dynamic INT8, 3,000 rows": ("net.onnx", "int8.onnx", "vectors.npz", "--preset", "quantized"),
    "a length that became a constant": ("average.onnx", "traced.onnx", "series.npz"),
}
"""Each as reference, candidate, data and options; the first and the last are to fail."""


def build(folder: Path) -> None:
    """Models that are fitted and exported the same way every time, and rows for them."""
    import joblib
    import numpy as np
    import onnx
    import pandas as pd
    from onnx import TensorProto, helper, numpy_helper
    from onnxruntime.quantization import quantize_dynamic
    from skl2onnx import to_onnx
    from sklearn.ensemble import GradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(600, 12)).astype(np.float32), columns=[f"x{place}" for place in range(12)])
    target = (rows["x0"] + rows["x1"] ** 2 > 0.7).astype(int)
    rows.to_parquet(folder / "rows.parquet", index=False)
    for name, model in {
        "booster": GradientBoostingClassifier(n_estimators=40, random_state=0),
        "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
    }.items():
        model.fit(rows, target)
        joblib.dump(model, folder / f"{name}.joblib")
        proto = to_onnx(model, rows[:1].to_numpy(), options={"zipmap": False})
        (folder / f"{name}.onnx").write_bytes(proto.SerializeToString())
    shifted = onnx.load(folder / "booster.onnx")
    for node in shifted.graph.node:
        for attribute in node.attribute:
            if attribute.name == "nodes_modes":
                # Below a threshold instead of at most: what lies on one goes the other way.
                attribute.strings[:] = [b"BRANCH_LT" if mode == b"BRANCH_LEQ" else mode for mode in attribute.strings]
    onnx.save(shifted, folder / "shifted.onnx")

    def write(name: str, nodes: list[Any], x: list[Any], y: list[Any], **constants: Any) -> None:
        held = [numpy_helper.from_array(array, key) for key, array in constants.items()]
        given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)]
        got = [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)]
        graph = helper.make_graph(nodes, name, given, got, initializer=held)
        opset = [helper.make_opsetid("", 18)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), folder / f"{name}.onnx")

    node = helper.make_node
    layers = [node("MatMul", ["x", "w"], ["h"]), node("Relu", ["h"], ["r"]), node("MatMul", ["r", "v"], ["y"])]
    weights = {"w": rng.normal(size=(64, 64)) / 80, "v": rng.normal(size=(64, 4)) / 8}
    write("net", layers, ["n", 64], ["n", 4], **{name: array.astype(np.float32) for name, array in weights.items()})
    quantize_dynamic(folder / "net.onnx", folder / "int8.onnx")
    np.savez(folder / "vectors.npz", x=rng.normal(size=(3_000, 64)).astype(np.float32))

    mean = [node("ReduceMean", ["x", "axis"], ["y"], keepdims=0)]
    write("average", mean, ["n", "seq", 3], ["n", 3], axis=np.array([1]))
    traced = [node("ReduceSum", ["x", "axis"], ["s"], keepdims=0), node("Div", ["s", "length"], ["y"])]
    write("traced", traced, ["n", "seq", 3], ["n", 3], axis=np.array([1]), length=np.array(6.0, dtype=np.float32))
    np.savez(folder / "series.npz", x=rng.normal(size=(200, 6, 3)).astype(np.float32))


@contextmanager
def load(processes: int) -> Iterator[None]:
    """So many processes that do nothing but keep a core busy."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def without_timings(text: str) -> dict[str, Any]:
    """The report but for when it was made and how long that took."""
    report: dict[str, Any] = json.loads(text)
    report["provenance"]["created"] = report["provenance"]["digest"] = ""
    report["provenance"]["run"]["seconds"] = {}
    return report


def differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """The places in which two reports differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            yield from differences(one.get(key), other.get(key), f"{where}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for place, (ours, theirs) in enumerate(zip(one, other, strict=True)):
            yield from differences(ours, theirs, f"{where}[{place}]")
    elif one != other:
        yield f"{where.lstrip('.')}: {str(one)[:80]} / {str(other)[:80]}"


def repeated(folder: Path, gate: tuple[str, ...], runs: int, processes: int) -> bool:
    """One gate, again and again, the first half of the runs idle; is there one report?"""
    reference, candidate, data, *options = gate
    words = [reference, candidate, "--data", data, "--report", "report.json", "--no-explain", *options]
    found: list[dict[str, Any]] = []
    codes: Counter[int] = Counter()
    for number in range(runs):
        with load(processes if number >= runs // 2 else 0):
            done = subprocess.run(
                [sys.executable, "-m", "likewise", "check", *words], cwd=folder, capture_output=True, check=False
            )
        codes[done.returncode] += 1
        found.append(without_timings((folder / "report.json").read_text()))
    digests = Counter(hashlib.sha256(json.dumps(report, sort_keys=True).encode()).hexdigest() for report in found)
    told = ", ".join(f"exit {code}: {count}" for code, count in sorted(codes.items()))
    print(f"  {runs} runs, {len(digests)} report{'s' * (len(digests) > 1)}; {told}", flush=True)
    for place in sorted({text for report in found[1:] for text in differences(found[0], report)})[:12]:
        print(f"    {place}")
    return len(digests) == 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of every gate, half of them under load")
    parser.add_argument("--load", type=int, default=2 * (os.cpu_count() or 1), help="busy processes")
    parser.add_argument("--gate", default="", help="only gates whose name holds this")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        build(folder)
        same = True
        for name, gate in GATES.items():
            if chosen.gate in name:
                print(f"{name}: likewise check {' '.join(gate)}")
                same &= repeated(folder, gate, chosen.runs, chosen.load)
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
