"""Does `likewise bench` find the ratio that others find? `python benchmarks/bench_agreement.py`

A dense network and its INT8 copy are timed three ways at the same batch sizes:

- `likewise bench`;
- ONNX Runtime's own tool in the wheel, `python -m onnxruntime.tools.onnxruntime_test`: a process a
  run, the mean of its calls (`onnxruntime_perf_test` is not in the wheel);
- Python's `timeit` around `InferenceSession.run`: a process a run, the median of its calls.

The other two know nothing of likewise. Their runs alternate between the models in random order, so
that a noisy machine hits both; the interval is a bootstrap over pairs of runs. The network takes
floats only, because ONNX Runtime's tool makes up its own inputs. Nothing has to be installed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

WIDTH, LAYERS = 768, 4

TIMEIT = """
import json, statistics, sys, timeit
import numpy as np, onnxruntime as ort
path, size, calls = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
feed = {"x": np.random.default_rng(0).random((size, session.get_inputs()[0].shape[1]), dtype=np.float32)}
timeit.timeit(lambda: session.run(None, feed), number=max(3, calls // 5))
print(json.dumps(statistics.median(timeit.repeat(lambda: session.run(None, feed), number=1, repeat=calls))))
"""


def build(folder: Path) -> None:
    """The network, its INT8 copy and rows for it."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    import likewise

    rng = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for layer in range(LAYERS):
        matrix = rng.normal(scale=WIDTH**-0.5, size=(WIDTH, WIDTH)).astype(np.float32)
        weights.append(numpy_helper.from_array(matrix, f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{layer}"], [f"m{layer}"], name=f"dense{layer}"))
        last = "y" if layer == LAYERS - 1 else f"r{layer}"
        nodes.append(helper.make_node("Relu", [f"m{layer}"], [last], name=f"relu{layer}"))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in "xy")
    graph = helper.make_graph(nodes, "dense", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "net.onnx")
    np.savez(folder / "rows.npz", x=rng.random((512, WIDTH), dtype=np.float32))
    done = likewise.quantize(
        folder / "net.onnx", folder / "net.int8.onnx", data=str(folder / "rows.npz"), abs_tol=0.1, speed=False
    )
    assert done.report is not None
    before, after = done.quantized.bytes_before / 1e6, done.quantized.bytes_after / 1e6
    print(
        f"network: {before:.1f} MB → {after:.1f} MB, {done.report.outcome}, largest difference {done.report.max_abs_diff:.3g}"
    )


def by_tool(path: Path, size: int, calls: int) -> float:
    command = ["-m", "onnxruntime.tools.onnxruntime_test", str(path), str(calls), "--symbolic_dims", f"n={size}"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    found = re.search(r"avg latency: ([\d.e-]+) ms", done.stdout)
    assert found is not None, done.stdout
    return float(found[1])


def by_timeit(path: Path, size: int, calls: int) -> float:
    command = [sys.executable, "-c", TIMEIT, str(path), str(size), str(calls)]
    return 1e3 * float(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def alternating(measure: object, folder: Path, size: int, *, calls: int, runs: int) -> tuple[float, float, float]:
    """The ratio of the medians over runs, and its bootstrap interval."""
    import numpy as np

    chooser = random.Random(size)
    times: dict[str, list[float]] = {"net.onnx": [], "net.int8.onnx": []}
    for _ in range(runs):
        for name in chooser.sample(sorted(times), 2):
            times[name].append(measure(folder / name, size, calls))  # type: ignore[operator]
    ours, theirs = np.array(times["net.onnx"]), np.array(times["net.int8.onnx"])
    drawn = np.random.default_rng(0).integers(0, runs, size=(4_000, runs))
    ratios = np.median(ours[drawn], axis=1) / np.median(theirs[drawn], axis=1)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(np.median(ours) / np.median(theirs)), float(low), float(high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--runs", type=int, default=15, help="Runs of each model by each of the other tools.")
    parser.add_argument("--budget", type=float, default=30.0, help="Seconds for likewise bench.")
    options = parser.parse_args()
    import likewise

    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        build(folder)
        models = (str(folder / "net.onnx"), str(folder / "net.int8.onnx"))
        result = likewise.bench(*models, str(folder / "rows.npz"), batch_sizes=options.sizes, budget=options.budget)
        for timing in result.timings:
            assert timing.interval is not None
            size, (low, high) = timing.batch_size, timing.interval
            pace = max(timing.reference.p50, timing.candidate.p50)
            calls = max(20, min(400, int(400 / pace)))
            print(f"batch {size:4}  likewise bench    {timing.ratio:5.2f} ({low:.2f}–{high:.2f})", flush=True)
            for name, measure in (("onnxruntime_test", by_tool), ("timeit", by_timeit)):
                ratio, first, last = alternating(measure, folder, size, calls=calls, runs=options.runs)
                overlap = "intervals overlap" if max(low, first) <= min(high, last) else "intervals do NOT overlap"
                print(f"            {name:16}  {ratio:5.2f} ({first:.2f}–{last:.2f})  {overlap}", flush=True)
    print(f"load {os.getloadavg()[0]:.2f} at the end")


if __name__ == "__main__":
    main()
