"""Does `likewise bench` find the ratio that others find? `python benchmarks/bench_agreement.py`

A dense network and its INT8 copy are timed three ways at the same batch sizes:

- `likewise bench`;
- ONNX Runtime's own tool in the wheel, `python -m onnxruntime.tools.onnxruntime_test`: a process a
  run, the mean of its calls without warm-up (`onnxruntime_perf_test` is not in the wheel);
- Python's `timeit` around `InferenceSession.run`: a process a run, the median of its calls.

The other two know nothing of likewise. The ratio itself moves with what else the machine does: all
three are therefore run in every block, in random order, and compared within blocks. They agree at a
batch size if the 95% bootstrap interval of (ratio by likewise) / (ratio by the other), drawn over
blocks, holds 1. The network takes floats only, because ONNX Runtime's tool makes up its own inputs.
Nothing has to be installed; about a minute a block. `--one-core` binds everything to one core: one
thread a model, which other work on the machine disturbs less.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from likewise.contracts.results import BenchResult

WIDTH, LAYERS = 768, 4
MODELS = ("net.onnx", "net.int8.onnx")
BUDGET = 20.0
"""Seconds for `likewise bench` in every block: its default."""

Ratios: TypeAlias = dict[int, float]
INTERVALS: list[dict[int, tuple[float, float] | None]] = []

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
    print(f"network: {before:.1f} MB → {after:.1f} MB, largest difference {done.report.max_abs_diff:.3g}")


def by_tool(path: Path, size: int, calls: int) -> float:
    command = ["-m", "onnxruntime.tools.onnxruntime_test", str(path), str(calls), "--symbolic_dims", f"n={size}"]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    found = re.search(r"avg latency: ([\d.e-]+) ms", done.stdout)
    assert found is not None, done.stdout
    return float(found[1])


def by_timeit(path: Path, size: int, calls: int) -> float:
    command = [sys.executable, "-c", TIMEIT, str(path), str(size), str(calls)]
    return 1e3 * float(json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout))


def by_other(measure: Callable[[Path, int, int], float]) -> Callable[[Path, dict[int, int], random.Random], Ratios]:
    """The ratio at every size by a tool that times one model a process."""

    def ratios(folder: Path, calls: dict[int, int], chooser: random.Random) -> Ratios:
        found = {}
        for size, count in calls.items():
            times = {name: measure(folder / name, size, count) for name in chooser.sample(MODELS, 2)}
            found[size] = times[MODELS[0]] / times[MODELS[1]]
        return found

    return ratios


def by_likewise(folder: Path, calls: dict[int, int], chooser: random.Random) -> Ratios:
    result = bench(folder, calls, BUDGET, seed=chooser.randrange(1000))
    INTERVALS.append({timing.batch_size: timing.interval for timing in result.timings})
    return {timing.batch_size: timing.ratio for timing in result.timings}


def bench(folder: Path, sizes: Iterable[int], budget: float, seed: int = 0) -> BenchResult:
    import likewise

    reference, candidate = (str(folder / name) for name in MODELS)
    data = str(folder / "rows.npz")
    return likewise.bench(reference, candidate, data, batch_sizes=list(sizes), budget=budget, seed=seed)


def interval(values: list[float]) -> str:
    """The median and its bootstrap interval."""
    import numpy as np

    array = np.array(values)
    drawn = np.random.default_rng(0).integers(0, len(array), size=(4_000, len(array)))
    low, high = np.quantile(np.median(array[drawn], axis=1), [0.025, 0.975])
    return f"{np.median(array):5.2f} ({low:.2f}–{high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 16, 256])
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--one-core", action="store_true", help="Bind everything to the last core.")
    options = parser.parse_args()
    if options.one_core:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    methods = {"likewise": by_likewise, "onnxruntime_test": by_other(by_tool), "timeit": by_other(by_timeit)}
    used = len(os.sched_getaffinity(0))
    print(f"{used} of {os.cpu_count()} cores, load {os.getloadavg()[0]:.2f}, {options.blocks} blocks")
    chooser = random.Random(0)
    found: dict[str, list[Ratios]] = {name: [] for name in methods}
    loads = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        build(folder)
        first = bench(folder, options.sizes, budget=2.0)
        # As many calls as take about a second: ONNX Runtime's tool counts the slow first ones too.
        calls = {
            t.batch_size: max(20, min(4_000, int(1_000 / max(t.reference.p50, t.candidate.p50)))) for t in first.timings
        }
        for _ in range(options.blocks):
            loads.append(os.getloadavg()[0])
            for name in chooser.sample(sorted(methods), len(methods)):
                found[name].append(methods[name](folder, calls, chooser))
    for size in calls:
        ours = [ratios[size] for ratios in found["likewise"]]
        print(f"batch {size:3}  {'likewise':16} {interval(ours)}")
        for name in ("onnxruntime_test", "timeit"):
            theirs = [ratios[size] for ratios in found[name]]
            quotients = interval([one / other for one, other in zip(ours, theirs, strict=True)])
            print(f"           {name:16} {interval(theirs)}   likewise / {name}: {quotients}")
        middle = statistics.median(ours)
        held = sum(low <= middle <= high for low, high in (entry[size] or (0, 0) for entry in INTERVALS))
        print(f"           {held} of {options.blocks} single intervals of likewise hold the median of its own runs")
    print(f"load {min(loads):.1f} to {max(loads):.1f}")


if __name__ == "__main__":
    main()
