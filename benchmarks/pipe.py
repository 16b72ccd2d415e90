"""What a reference in another Python costs: `make pipe`, or `python benchmarks/pipe.py`.

The same check of a million rows with the reference opened in process and by another Python, in turns; CPU time of
all processes and wall, the least of each. Without walls: behind them nobody waits for the other Python and counts what
it spent.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tables import build

MODELS = ("logistic", "forest", "histgb")


def main() -> None:
    """Build the tables, check each model both ways in turns, print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        build(folder, chosen.rows)
        for name in MODELS:
            measure(folder, name, chosen.repeats)


def measure(folder: Path, name: str, repeats: int) -> None:
    """One model, in process and over the pipe: the facts are the same, the cost is printed."""
    plain = [sys.executable, "-m", "likewise", "check", str(folder / f"{name}.joblib"), str(folder / f"{name}.onnx")]
    plain += ["--data", str(folder / "test.parquet"), "--report", str(folder / "report.json"), "--json"]
    plain += ["--no-explain", "--edge", "off", "--no-sandbox", "--trust"]
    ways = {"in process": plain, "over the pipe": [*plain, "--reference-python", sys.executable]}
    cost: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    facts = {}
    for _ in range(repeats):
        for way, command in ways.items():
            before, began = cpu_of_children(), time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            cost[way].append((cpu_of_children() - before, time.perf_counter() - began))
            facts[way] = [json.loads(done.stdout)[fact] for fact in ("samples", "max_abs_diff", "mean_abs_diff")]
    assert facts["in process"] == facts["over the pipe"], facts
    for part, unit in enumerate(("CPU", "wall")):
        here, far = (min(entry[part] for entry in cost[way]) for way in ways)
        print(
            f"{name:9} {unit:4} in process {here:6.2f} s  over the pipe {far:6.2f} s  ratio {far / here:.3f}",
            flush=True,
        )


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
