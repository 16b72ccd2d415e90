"""Can a damaged file pass, raise, hang or crash? `make fuzz`, or `python benchmarks/fuzz.py`.

A valid file of every kind that is read (benchmarks/fuzz_files/seeds.py) is damaged by its structure or byte by byte
(mutations.py) and given to the gate. What has to hold of every file:

- the outcome is PASS, FAIL, INCONCLUSIVE or a usage error with a sentence of ours, and no exception of somebody else;
- it ends in time;
- what takes the process with it is INCONCLUSIVE on the command line, where a worker is supervised;
- a PASS is true: the library of the format reads the same file to the same answers, or the same rows.

Files are asked about in processes of their own, with bounded memory. What breaks a promise is kept in a folder with the
words that were said, `--repeat NUMBER` does it again, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import os
import random
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from fuzz_files.mutations import mutate  # noqa: E402
from fuzz_files.seeds import SEEDS, Seed, linear, save_joblib, table  # noqa: E402

COUNT = 1_000
SECONDS = 90.0
"""What one file may take, on a machine that has other things to do."""

MEMORY = 12 << 30
"""Address space of a worker: a size that was damaged must not take the machine's memory."""

DATA_ONLY: dict[str, Any] = {"explain": False, "edge": "off", "shapes": {}, "allow_same": True, "batch_sizes": ()}
UNFORESEEN = ("Traceback (most recent call last)", "--debug to see where", "unforeseen:")
"""What the last line of defence says: the outcome is safe, but nobody thought of it."""

OUTCOMES = {0: "PASS", 1: "FAIL", 2: "usage error", 3: "INCONCLUSIVE"}


@dataclass
class Told:
    """What became of one file."""

    number: int
    name: str
    outcome: str
    problem: str = ""


# One file, in a worker.


def whole_file(seed: Seed, seeds: Path) -> Path:
    """The valid file, made when it is first asked for."""
    path = seeds / seed.name.replace(".", "_") / seed.name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        seed.make(path)
    return path


def damaged(number: int, drawn: int, seeds: Path, folder: Path, only: str) -> tuple[Seed, Path]:
    chosen = [seed for seed in SEEDS if only in seed.name]
    seed = chosen[number % len(chosen)]
    rng = random.Random(f"{drawn} {number}")
    folder.mkdir(parents=True, exist_ok=True)
    return seed, mutate(whole_file(seed, seeds), folder, seed.form, rng)


def ask(seed: Seed, path: Path, whole: Path) -> tuple[str, str]:
    """The outcome, and what is wrong with it."""
    import likewise

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ROLES[seed.role](seed, path, whole)
        except likewise.LikewiseError as error:
            return "usage error", "" if str(error).strip() else f"{type(error).__name__} says nothing"
        except Exception:  # noqa: BLE001 - this is what is looked for
            return "exception", traceback.format_exc(limit=-4)


def about(report: Any) -> str:
    words = " ".join([report.verdict.headline, *(finding.message for finding in report.verdict.findings)])
    if not report.verdict.headline.strip():
        return "the report has no headline"
    return next((f"it says {mark!r}: {words[:500]}" for mark in UNFORESEEN if mark in words), "")


def close(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """The rule of the preset `float32`, written down a second time on purpose."""
    ours, theirs = (np.asarray(side, np.float64).reshape(len(side), -1) for side in (ours, theirs))
    return ours.shape == theirs.shape and bool(np.allclose(theirs, ours, rtol=1e-3, atol=1e-4, equal_nan=True))


@functools.cache
def answers(seed: Seed, whole: Path) -> np.ndarray:
    """What the valid file says, by the library of its format."""
    assert seed.read is not None
    return seed.read(whole)


@functools.cache
def remembered(seed: Seed, whole: Path) -> Any:
    """A model that knows the answers of the valid file by row."""
    rows = table().to_numpy()
    known = {row.tobytes(): answer for row, answer in zip(rows, answers(seed, whole).reshape(len(rows)), strict=True)}

    def reference(rows: Any) -> np.ndarray:
        return np.array([known[row.tobytes()] for row in np.asarray(rows, np.float32)])

    return reference


def ask_model(seed: Seed, path: Path, whole: Path) -> tuple[str, str]:
    import likewise

    report = likewise.check(remembered(seed, whole), path, table(), **DATA_ONLY)
    problem = about(report)
    if report.passed and not problem:
        problem = confirmed(seed, path, answers(seed, whole))
    return str(report.outcome), problem


def confirmed(seed: Seed, path: Path, wanted: np.ndarray) -> str:
    """Does the library of the format read the same file to the same values?"""
    assert seed.read is not None
    try:
        theirs = seed.read(path)
    except Exception as error:  # noqa: BLE001 - whatever it is, it cannot be read
        return f"PASS, and {seed.read.__name__} cannot read it: {type(error).__name__}: {str(error)[:300]}"
    if not close(wanted, theirs):
        return f"PASS, and {seed.read.__name__} reads {np.ravel(theirs)[:4]} for {np.ravel(wanted)[:4]} …"
    return ""


def ask_recorded(seed: Seed, path: Path, whole: Path) -> tuple[str, str]:
    import likewise

    report = likewise.check(path, linear(), table(), **DATA_ONLY)
    problem = about(report)
    if report.passed and not problem:
        problem = confirmed(seed, path, answers(seed, whole))
    return str(report.outcome), problem


def ask_data(seed: Seed, path: Path, whole: Path) -> tuple[str, str]:
    """Two models that answer alike, and remember what they were asked."""
    import likewise

    seen: list[np.ndarray] = []

    def reference(rows: Any) -> np.ndarray:
        seen.append(np.array(rows, np.float64))
        return seen[-1].reshape(len(rows), -1).sum(axis=1)

    def candidate(rows: Any) -> np.ndarray:
        return np.asarray(rows, np.float64).reshape(len(rows), -1).sum(axis=1)

    report = likewise.check(reference, candidate, path, **DATA_ONLY)
    problem = about(report)
    if report.passed and not problem:
        # Some rows are asked first, to see how the model takes them; then all.
        problem = confirmed(seed, path, next((rows for rows in seen if len(rows) == report.samples), seen[-1]))
    return str(report.outcome), problem


def ask_report(seed: Seed, path: Path, whole: Path) -> tuple[str, str]:
    """Shown, judged again, compared with another: by the command line, in this process."""
    outcome = "usage error"
    for words in (
        ("report", path, "--html", "r.html", "--junit", "r.xml", "--sarif", "r.sarif"),
        ("report", path, "--markdown", "-"),
        ("diff", whole, path),
        ("diff", path, whole),
        ("judge", path, "--abs-tol", "0.01"),
    ):
        code, said = called(*map(str, words), folder=path.parent)
        problem = in_order(code, said)
        if problem:
            return OUTCOMES.get(code, str(code)), f"likewise {words[0]}: {problem}"
        outcome = OUTCOMES[code]
    if outcome == "PASS":
        outputs = json.loads(path.read_text())["outputs"]
        far = [output["name"] for output in outputs if not output["measures"].get("max_abs_diff", 0) <= 0.01]
        odd = [output["name"] for output in outputs if not output["measures"].get("nonfinite_mismatch", 0) <= 0]
        if far or odd:
            return outcome, f"judged as PASS, and {far + odd} are beyond 0.01 in the file"
    return outcome, ""


def ask_config(seed: Seed, path: Path, whole: Path) -> tuple[str, str]:
    code, said = commanded("check", "--no-explain", folder=path.parent)
    problem = in_order(code, said)
    if code == 0 and not problem:
        try:
            tomllib.loads(path.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            problem = f"PASS, and tomllib cannot read the configuration: {error}"
    return OUTCOMES.get(code, str(code)), problem


ROLES = {"model": ask_model, "recorded": ask_recorded, "data": ask_data, "report": ask_report, "config": ask_config}


def in_order(code: int, said: str) -> str:
    """What is wrong with the end of a command, if anything."""
    if code not in OUTCOMES:
        return f"exit code {code}: {said[-500:]}"
    if mark := next((mark for mark in UNFORESEEN if mark in said), ""):
        return f"it says {mark!r}: {said[-700:]}"
    return "" if said.strip() else f"exit code {code} and not a word"


def called(*words: str, folder: Path) -> tuple[int, str]:
    """A command that opens no model, in this process."""
    from likewise.__main__ import main

    said, code, before = io.StringIO(), 0, sys.argv
    sys.argv = ["likewise", *words]
    with contextlib.chdir(folder), contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 0
        finally:
            sys.argv = before
    return code, said.getvalue()


def commanded(*words: str, folder: Path) -> tuple[int, str]:
    """A command as a user gives it, in a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "likewise", *words],
            cwd=folder, capture_output=True, timeout=SECONDS, check=False, text=True, errors="replace",
            env={**os.environ, "LIKEWISE_TRUST_CONFIG": "0"},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, f"no end after {SECONDS:.0f} s"
    return done.returncode, done.stdout + done.stderr


def serve(drawn: int, seeds: Path, cases: Path, only: str) -> None:
    """A worker: numbers of files in, what became of them out. What libraries print goes nowhere."""
    answers = os.fdopen(os.dup(1), "w")
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        number = int(line)
        seed, path = damaged(number, drawn, seeds, cases / str(number), only)
        outcome, problem = ask(seed, path, whole_file(seed, seeds))
        answers.write(json.dumps([seed.name, outcome, problem]) + "\n")
        answers.flush()


# Many files, in the parent.


@dataclass
class Campaign:
    count: int
    drawn: int
    only: str
    folder: Path
    """Where valid and damaged files lie while it runs."""

    kept: Path
    told: list[Told] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: Iterator[int] = field(default_factory=lambda: iter(()))

    def run(self, workers: int) -> list[Told]:
        for seed in SEEDS:
            if self.only in seed.name:
                whole_file(seed, self.folder / "seeds")
        self.waiting = iter(range(self.count))
        threads = [threading.Thread(target=self.work) for _ in range(workers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.told

    def started(self) -> subprocess.Popen[str]:
        words = [sys.executable, __file__, "--worker", str(self.folder), "--seed", str(self.drawn), "--only", self.only]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def work(self) -> None:
        worker = self.started()
        while True:
            with self.lock:
                number = next(self.waiting, None)
            if number is None:
                break
            found, alive = self.asked(worker, number)
            if not alive:
                worker.kill()
                worker.wait()
                worker = self.started()
            self.keep(found)
        assert worker.stdin is not None
        worker.stdin.close()
        worker.wait()

    def asked(self, worker: subprocess.Popen[str], number: int) -> tuple[Told, bool]:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(f"{number}\n")
        worker.stdin.flush()
        if select.select([worker.stdout], [], [], SECONDS)[0] and (line := worker.stdout.readline()):
            return Told(number, *json.loads(line)), True
        worker.kill()
        how = "crash" if worker.wait() != -9 else "hang or out of memory"
        return self.supervised(number, f"{how} ({worker.returncode})"), False

    def supervised(self, number: int, how: str) -> Told:
        """What took the worker with it, given to the command line."""
        chosen = [seed for seed in SEEDS if self.only in seed.name]
        seed = chosen[number % len(chosen)]
        path = self.folder / "cases" / str(number) / seed.name
        if not path.exists():
            return Told(number, seed.name, how, "the worker ended before the file was written")
        trained, rows = self.folder / "trained.joblib", self.folder / "rows.parquet"
        if not trained.exists():
            save_joblib(0)(trained)
            table().to_parquet(rows)
        words = ["check", str(trained), str(path), "--data", str(rows)]
        if seed.role == "data":
            words = ["check", str(trained), str(trained), "--allow-same", "--data", str(path)]
        elif seed.role in ("report", "config"):
            return Told(number, seed.name, how, f"{how} in the command itself")
        code, said = commanded(
            *words, "--no-explain", "--edge", "off", "--batch-sizes", "none", "--timeout", "45s", folder=path.parent
        )
        problem = in_order(code, said)
        if code == 0 and not problem:
            problem = f"PASS on the command line, and from Python it ends in a {how}"
        return Told(number, seed.name, f"{how}, supervised: {OUTCOMES.get(code, code)}", problem)

    def keep(self, told: Told) -> None:
        folder = self.folder / "cases" / str(told.number)
        with self.lock:
            self.told.append(told)
        if told.problem:
            place = self.kept / f"{self.drawn}-{told.number}-{told.name}"
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(folder, place, dirs_exist_ok=True)
            (place / "problem.txt").write_text(f"{told.outcome}\n{told.problem}\n")
            print(f"{told.number} {told.name}: {told.outcome}: {told.problem}\n", flush=True)
        shutil.rmtree(folder, ignore_errors=True)


def summary(told: list[Told]) -> str:
    """A line for every kind of file."""
    names = [seed.name for seed in SEEDS if any(one.name == seed.name for one in told)]
    lines = []
    for name in names:
        outcomes = Counter(one.outcome for one in told if one.name == name)
        lines.append(f"  {name:<16} " + ", ".join(f"{count} {outcome}" for outcome, count in outcomes.most_common()))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=COUNT, help="files")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="kinds of files with this in their name")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep", default=".fuzz", help="folder for what breaks a promise")
    parser.add_argument("--repeat", type=int, help="one file again, in this process")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        serve(chosen.seed, Path(chosen.worker) / "seeds", Path(chosen.worker) / "cases", chosen.only)
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if chosen.repeat is not None:
            kept = Path(chosen.keep).resolve() / "repeated"
            shutil.rmtree(kept, ignore_errors=True)
            seed, path = damaged(chosen.repeat, chosen.seed, folder / "seeds", kept, chosen.only)
            print(path, *ask(seed, path, whole_file(seed, folder / "seeds")), sep="\n")
            return
        began = time.perf_counter()
        told = Campaign(chosen.count, chosen.seed, chosen.only, folder, Path(chosen.keep).resolve()).run(chosen.workers)
    problems = [one for one in told if one.problem]
    print(summary(told))
    took = time.perf_counter() - began
    print(f"{len(told):,} files in {took:.0f} s, {len(problems)} break a promise, seed {chosen.seed}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
