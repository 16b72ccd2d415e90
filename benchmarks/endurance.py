"""Kills, crowds and long lives: `make endurance`, or `python benchmarks/endurance.py kills|crowd|life`.

kills: commands are killed, or their workers are, at random moments. A file that a command writes must be the old one or
a whole new one, no process may be left, and the folders that were in use are gone after the next command.
crowd: many commands at once in one folder, each with a report of its own, which must be the one it would write alone.
life: many checks in one process. Memory and open files must not grow once everything is warm.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

MARK = "LIKEWISE_ENDURANCE"
"""Carries what all processes of one command have in their environment, also after it ended."""

COMMANDS: dict[str, tuple[tuple[str, ...], str]] = {
    "check": (("check", "model.joblib", "model.onnx", "--data", "rows.parquet", "--report", "OUT"), "report.json"),
    "explain": (("explain", "model.joblib", "wrong.onnx", "--data", "rows.parquet", "--report", "OUT"), "report.json"),
    "export": (("export", "model.joblib", "--data", "rows.parquet", "-o", "OUT", "--force"), "out.onnx"),
    "quantize": (("quantize", "net.onnx", "-o", "OUT", "--data", "vectors.npz", "--no-speed", "--force"), "out.onnx"),
    "bench": (("bench", "net.onnx", "net2.onnx", "--data", "vectors.npz", "--budget", "1s", "-o", "OUT"), "bench.json"),
    "record": (("record", "model.joblib", "--data", "rows.parquet", "-o", "OUT", "--force"), "golden.parquet"),
}
"""What is run, and the file it writes in the place of OUT."""

WARM, GROWTH = 0.3, 1.05
"""The part of a long life after which nothing grows any more, by more than this."""


def build(folder: Path) -> None:
    """A fitted model with its export, one that is wrong, a network and its copy, and rows."""
    import joblib
    import numpy as np
    import onnx
    import pandas as pd
    from onnx import TensorProto, helper, numpy_helper
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    rows = pd.DataFrame(rng.normal(size=(400, 6)).astype(np.float32), columns=[f"x{place}" for place in range(6)])
    model = LogisticRegression().fit(rows, rows["x0"] > rows["x1"])
    rows.to_parquet(folder / "rows.parquet", index=False)
    joblib.dump(model, folder / "model.joblib")
    right = to_onnx(model, rows[:1].to_numpy(), options={"zipmap": False})
    (folder / "model.onnx").write_bytes(right.SerializeToString())
    for node in right.graph.node:
        for attribute in node.attribute:
            if attribute.name == "coefficients":
                attribute.floats[0] *= 2
    (folder / "wrong.onnx").write_bytes(right.SerializeToString())
    weights = [numpy_helper.from_array(rng.normal(size=(16, 16)).astype(np.float32), name) for name in ("w", "v")]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "v"], ["y"])]
    shape = [None, 16]
    given, got = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    graph = helper.make_graph(nodes, "net", [given], [got], initializer=weights)
    net = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(net, folder / "net.onnx")
    net.doc_string = "a copy"
    onnx.save(net, folder / "net2.onnx")
    np.savez(folder / "vectors.npz", x=rng.normal(size=(200, 16)).astype(np.float32))


def start(name: str, folder: Path, output: Path, mark: str) -> subprocess.Popen[bytes]:
    words = [str(output) if word == "OUT" else word for word in COMMANDS[name][0]]
    environment = {**os.environ, MARK: mark, "OMP_NUM_THREADS": "1"}
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-m", "likewise", *words], cwd=folder, env=environment, **silent)


def marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def whole(path: Path) -> bool:
    """Can the file be read to its end by somebody who is not us?"""
    import onnx
    import pyarrow.parquet as pq

    try:
        if path.suffix == ".json":
            json.loads(path.read_text())
        elif path.suffix == ".onnx":
            onnx.checker.check_model(onnx.load(path))
        else:
            pq.read_table(path)
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it is not whole
        return False
    return True


def left_behind(folder: Path, allowed: set[str]) -> list[str]:
    """What lies in the folder and in the one for temporary files that no command should leave there."""
    rooms = [path.name for path in Path(tempfile.gettempdir()).glob("likewise.*")]
    return rooms + [path.name for path in folder.iterdir() if path.name not in allowed]


def kills(count: int, seed: int) -> list[str]:
    """Kill commands or their workers at random moments; what is wrong then, in sentences."""
    rng = random.Random(seed)
    wrong: list[str] = []
    told: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        tempfile.tempdir = os.environ["TMPDIR"] = str(folder / "tmp")
        (folder / "tmp").mkdir()
        build(folder)
        seconds = {}
        for name, (_, file) in COMMANDS.items():
            began = time.monotonic()
            start(name, folder, folder / file, uuid.uuid4().hex).wait()
            seconds[name] = time.monotonic() - began
        known = {path.name for path in folder.iterdir()}
        for turn in range(count):
            name, who, mark = rng.choice(list(COMMANDS)), rng.choice(["parent", "worker"]), uuid.uuid4().hex
            output = folder / COMMANDS[name][1]
            before = output.read_bytes()
            process = start(name, folder, output, mark)
            time.sleep(rng.uniform(0, seconds[name]))
            victims = [process.pid] if who == "parent" else [p.pid for p in marked(mark) if p.pid != process.pid]
            for pid in victims:
                with_child = psutil.pid_exists(pid)
                if with_child:
                    os.kill(pid, signal.SIGKILL)
            code = process.wait(timeout=120)
            told[f"{who} killed, exit {code}"] += 1
            until = time.monotonic() + 10
            while marked(mark) and time.monotonic() < until:
                time.sleep(0.05)
            about = f"turn {turn}, {name}, {who} killed, exit {code}"
            if left := marked(mark):
                wrong.append(f"{about}: {len(left)} processes are left")
            if output.read_bytes() != before and not whole(output):
                wrong.append(f"{about}: {output.name} is torn")
            if who == "worker" and code not in (0, 1, 3):
                wrong.append(f"{about}: another exit code than 0, 1 or 3")
            output.write_bytes(before)
        start("check", folder, folder / "report.json", uuid.uuid4().hex).wait()
        start("export", folder, folder / "out.onnx", uuid.uuid4().hex).wait()
        if left_over := left_behind(folder, known | {"tmp"}):
            wrong.append(f"after the next command there are still {left_over}")
    print(f"{count} kills: {dict(told)}")
    return wrong


def crowd(count: int) -> list[str]:
    """So many commands at once in one folder; what their reports have wrong."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        build(folder)
        names = ["check", "explain"]

        def report_of(place: int) -> tuple[int, dict[str, Any]]:
            output = folder / f"report.{place}.json"
            code = start(names[place % 2], folder, output, uuid.uuid4().hex).wait()
            return code, json.loads(output.read_text())

        alone = [report_of(place) for place in (0, 1)]
        began = time.monotonic()
        with ThreadPoolExecutor(count) as pool:
            together = list(pool.map(report_of, range(2, count + 2)))
        wrong = []
        for place, (code, report) in enumerate(together):
            first_code, first = alone[place % 2]
            same = all(report[key] == first[key] for key in ("outcome", "samples", "max_abs_diff", "outputs"))
            if code != first_code or not same:
                wrong.append(f"command {place}: exit {code}, {report['outcome']}, not as alone")
    print(f"{count} commands at once: {time.monotonic() - began:.0f} s, {len(wrong)} not as alone")
    return wrong


def life(count: int) -> list[str]:
    """So many checks in one process; what grows, in sentences."""
    import likewise

    here = psutil.Process()
    seen: list[tuple[int, int]] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        build(folder)
        began = time.monotonic()
        for place in range(count):
            candidate = "wrong.onnx" if place % 10 == 9 else "model.onnx"
            report = likewise.check(
                folder / "model.joblib",
                folder / candidate,
                folder / "rows.parquet",
                samples=64,
                batch_sizes=(1,),
                edge="off",
                explain=False,
            )
            if report.outcome != ("FAIL" if place % 10 == 9 else "PASS"):
                return [f"check {place} is {report.outcome}: {report.headline}"]
            if place % max(1, count // 50) == 0:
                seen.append((here.memory_info().rss, here.num_fds()))
    warm = int(WARM * len(seen))
    first, last = seen[warm], seen[-1]
    mib = [round(memory / 2**20) for memory, _ in (first, last)]
    spent = time.monotonic() - began
    print(f"{count} checks in one process, {spent:.0f} s: {mib[0]} → {mib[1]} MiB, {first[1]} → {last[1]} open files")
    grown = [f"memory grew from {mib[0]} to {mib[1]} MiB"] if last[0] > GROWTH * first[0] else []
    return grown + ([f"open files grew from {first[1]} to {last[1]}"] if last[1] > first[1] else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["kills", "crowd", "life"])
    parser.add_argument("--count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    count = given.count or {"kills": 300, "crowd": 100, "life": 10_000}[given.part]
    wrong = (
        kills(count, given.seed) if given.part == "kills" else crowd(count) if given.part == "crowd" else life(count)
    )
    print("\n".join(wrong) or "nothing wrong")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
