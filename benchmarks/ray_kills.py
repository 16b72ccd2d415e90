"""Actors and whole nodes of a Ray cluster, killed while they compare: the report must be that of one process.

    python benchmarks/ray_kills.py --count 30 --seed 0

A cluster of this machine with a node that stays and one that may go. In every turn a check runs on it; after a number
of pieces that is drawn, the process of an actor, the process that has its models open, or a node with all that is on it
is killed. What comes of the rows is compared, to the bit, with what one process found.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import ray
from ray.cluster_utils import Cluster

from likewise.compare.engines import Run, Session
from likewise.contracts.comparison import Plan, Progress, Tolerance
from likewise.registry import describe_model, extensions, open_source

ROWS, CALL = 24_000, 50
MEGABYTE = 1 << 20
CODE = """
import numpy as np

def right(frame):
    return {"value": frame["x"].to_numpy() / 3}

def wrong(frame):
    x = frame["x"].to_numpy()
    return {"value": np.where(x > 2.5, 0.0, x / 3).astype(np.float32)}
"""
WHAT = ("actor", "process", "node")


def make(folder: Path) -> None:
    """Two models that differ in some rows, and the rows."""
    folder.joinpath("models.py").write_text(CODE, encoding="utf-8")
    frame = pd.DataFrame({"x": np.random.default_rng(0).normal(size=ROWS)})
    frame.to_parquet(folder / "rows.parquet", row_group_size=5_000)


def started() -> Cluster:
    """A node that stays, connected to this process; others are added by whoever kills them."""
    head = {"num_cpus": 2, "memory": 4096 * MEGABYTE, "object_store_memory": 100 * MEGABYTE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
    return cluster


def add_node(cluster: Cluster) -> Any:
    """A node with room for one actor."""
    return cluster.add_node(num_cpus=1, memory=2048 * MEGABYTE, object_store_memory=100 * MEGABYTE)


def run(folder: Path, engine: str, *, workers: int = 1, progress: Callable[[Progress], None] | None = None) -> Run:
    """Compare both models on all rows."""
    models = [describe_model(f"{folder / 'models.py'}:{name}", {}) for name in ("right", "wrong")]
    engines = {found.name: found for found in extensions("compare.engines")}
    source = open_source(folder / "rows.parquet")
    plan = Plan(*models, source, Tolerance(1e-4, 1e-3), batch_size=CALL, workers=workers, progress=progress)
    with Session(*models) as session:
        found: Run = engines[engine].run(plan, session)
    return found


def kill(what: str, cluster: Cluster, node: Any) -> bool:
    """Kill one of these; was there one?"""
    if what == "node":
        cluster.remove_node(node, allow_graceful=False)
        return True
    actors = [entry for entry in ray._private.state.actors().values() if entry["State"] == "ALIVE"]
    pids = sorted(int(entry["Pid"]) for entry in actors)
    if what == "process":
        pids = sorted(child for pid in pids for child in _children(pid))
    for pid in pids[:1]:
        os.kill(pid, signal.SIGKILL)
    return bool(pids)


def _children(pid: int) -> list[int]:
    """The processes that a process started."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(word) for word in (task / "children").read_text().split()]
    return found


def turn(folder: Path, cluster: Cluster, what: str, after: int, expected: Run) -> str:
    """One run in which something is killed after so many pieces; what was wrong with it, or nothing."""
    node = add_node(cluster)
    done, killed = 0, False

    def follow(told: Progress) -> None:
        nonlocal done, killed
        done += told.finished
        if done > after and not killed:
            killed = kill(what, cluster, node)

    try:
        found = run(folder, "ray", workers=3, progress=follow)
    finally:
        if node in cluster.worker_nodes:
            cluster.remove_node(node)
    if not killed:
        return "nothing was there to be killed"
    return "" if found.comparison == expected.comparison else f"another comparison: {found.comparison.incidents}"


def main(count: int, seed: int) -> int:
    drawn, wrong = random.Random(seed), 0
    with TemporaryDirectory() as place:
        folder = Path(place)
        make(folder)
        expected = run(folder, "local")
        cluster = started()
        try:
            for number in range(count):
                what, after = drawn.choice(WHAT), drawn.randrange(2, 10)
                began = time.perf_counter()
                problem = turn(folder, cluster, what, after, expected)
                wrong += bool(problem)
                seconds = time.perf_counter() - began
                print(
                    f"{number + 1}/{count} {what} after {after}: {problem or 'the same'} ({seconds:.0f} s)", flush=True
                )
        finally:
            ray.shutdown()
            cluster.shutdown()
    print(f"{count - wrong} of {count} runs with a kill gave what one process gives")
    return int(wrong > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    sys.exit(main(given.count, given.seed))
