"""Can a damaged file pass, raise, hang or crash? `make fuzz`, or `python benchmarks/fuzz.py`.

A valid file of every kind that is read (benchmarks/fuzz_files/seeds.py) is damaged by its structure or byte by byte
(mutations.py) and given to the gate. One that comes to lines of likewise to which none came before (lines.py) is
damaged further. What has to hold of every file:

- the outcome is PASS, FAIL, INCONCLUSIVE or a usage error with a sentence of ours, and no exception of somebody else;
- it ends in time;
- what takes the process with it is INCONCLUSIVE on the command line, where a worker is supervised;
- a PASS is true: the library of the format reads the same file to the same answers, or the same rows.

Files are asked about in copies of a process that has all libraries loaded, with bounded memory. What breaks a
promise is kept in a folder with the words that were said, `--repeat FOLDER` does it again, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import io
import json
import os
import random
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from fuzz_files.lines import Lines  # noqa: E402
from fuzz_files.mutations import mutate  # noqa: E402
from fuzz_files.seeds import SEEDS, Seed, linear, save_recorded, table  # noqa: E402

COUNT = 1_000
SECONDS, PATIENCE = 60.0, 20
"""What one file may take of the processor, and how many times as long by the clock, on a machine that has other things
to do."""

MEMORY = 12 << 30
"""Address space of a process: a size that was damaged must not take the machine's memory."""

FRESH = 50
"""Files after which a copy is replaced."""

SUPERVISED = 5
"""Of one kind of file that takes a process with it in one way, so many are given to the command line."""

FURTHER = 0.5
"""How often a file is damaged that came to new lines, instead of the valid one."""

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


# One file.


def chosen_seeds(only: str) -> list[Seed]:
    return [seed for seed in SEEDS if only in seed.name]


def whole_file(seed: Seed, seeds: Path) -> Path:
    """The valid file, made when it is first asked for."""
    path = seeds / seed.name.replace(".", "_") / seed.name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        seed.make(path)
    return path


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
        # Some rows are asked first, to see how the model takes them; then all, at once or in several calls; a test
        # case is one sample of many rows.
        at_once = (rows for rows in seen if len(rows) == report.samples)
        last = seen[-1] if report.comparison.unit == "samples" else np.concatenate(seen)[-report.samples :]
        problem = confirmed(seed, path, next(at_once, last))
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
    code, said = called("check", "--no-explain", folder=path.parent)
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
    """A command in this process; models are opened by its worker."""
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
            cwd=folder, capture_output=True, timeout=PATIENCE * SECONDS, check=False, text=True, errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return -1, f"no end after {PATIENCE * SECONDS:.0f} s"
    return done.returncode, done.stdout + done.stderr


# Many files.


class Copy:
    """A copy of this process, which has all libraries loaded: asked about one file after another."""

    def __init__(self, work: Callable[[int, str], str]) -> None:
        self.asked = 0
        (theirs, self.questions), (self.answers, mine) = os.pipe(), os.pipe()
        self.process = os.fork()
        if not self.process:
            try:
                os.setsid()  # what it starts ends with it
                quiet = os.open(os.devnull, os.O_RDWR)
                for stream in (0, 1, 2):
                    os.dup2(quiet, stream)
                os.close(self.questions)
                resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                for line in os.fdopen(theirs):
                    number, _, source = line.strip().partition(" ")
                    os.write(mine, work(int(number), source).encode() + b"\n")
            finally:
                os._exit(0)
        os.close(theirs)
        os.close(mine)

    def ask(self, number: int, source: Path) -> tuple[str, str]:
        """What it tells of a file; if that is nothing, how it ended."""
        self.asked += 1
        os.write(self.questions, f"{number} {source}\n".encode())
        told, began, spent = b"", time.monotonic(), self.spent()
        while not told.endswith(b"\n"):
            if not select.select([self.answers], [], [], 1.0)[0]:
                waited = time.monotonic() - began
                if self.spent() - spent > SECONDS or waited > PATIENCE * SECONDS:
                    os.kill(self.process, signal.SIGKILL)
                    self.end()
                    return "", f"no end after {waited:.0f} s"
                continue
            part = os.read(self.answers, 1 << 16)
            if not part:
                return "", f"crash ({self.end()})"
            told += part
        return told.decode(), ""

    def spent(self) -> float:
        """Seconds of the processor up to now; those by the clock say nothing on a busy machine."""
        try:
            times = psutil.Process(self.process).cpu_times()
        except psutil.Error:  # it has just ended, which is seen where its answers are read
            return 0.0
        return float(times.user + times.system)

    def end(self) -> int:
        """Its exit code. No more questions are its end, and that of whatever it started."""
        os.close(self.questions)
        os.close(self.answers)
        code = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        return code


@dataclass
class Campaign:
    count: int
    drawn: int
    only: str
    folder: Path
    """Where valid and damaged files lie while it runs."""

    kept: Path
    told: list[Told] = field(default_factory=list)
    lines: Lines = field(default_factory=Lines)
    further: dict[str, list[Path]] = field(default_factory=dict)
    """Damaged files that came to new lines, by kind."""

    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Kinds of files that took a copy with them, and how."""

    def run(self) -> list[Told]:
        self.warm()
        copy = Copy(self.damage_and_ask)
        for number in range(self.count):
            if copy.asked >= FRESH:
                copy.end()
                copy = Copy(self.damage_and_ask)
            seed, whole, _ = self.case(number)
            rng, further = random.Random(f"{self.drawn} {number} source"), self.further.get(seed.name)
            source = rng.choice(further) if further and rng.random() < FURTHER else whole
            text, how = copy.ask(number, source)
            if how:
                copy = Copy(self.damage_and_ask)
            self.take(number, text, how)
        copy.end()
        return self.told

    def warm(self) -> None:
        """Load what reads files, once; what may crash waits for a copy."""
        seeds = chosen_seeds(self.only)
        for seed in seeds:
            whole = whole_file(seed, self.folder / "seeds")
            if not seed.crashes and seed.role != "config":
                outcome, problem = ask(seed, whole, whole)
                assert outcome == "PASS", f"the valid {seed.name}: {outcome} {problem}"
        if any(seed.role in ("model", "data") for seed in seeds):
            save_recorded(self.folder / "recorded.parquet")
            table().to_parquet(self.folder / "rows.parquet")
        gc.collect()
        gc.freeze()  # else a copy would copy what it only counts

    def case(self, number: int) -> tuple[Seed, Path, Path]:
        """A kind of file, the valid one and the place of the one that is damaged."""
        seeds = chosen_seeds(self.only)
        seed = seeds[number % len(seeds)]
        whole = whole_file(seed, self.folder / "seeds")
        return seed, whole, self.folder / "cases" / str(number) / seed.name

    def damage_and_ask(self, number: int, source: str) -> str:
        """In the copy: the outcome, what is wrong with it, and the new lines that were reached."""
        seed, whole, path = self.case(number)
        path.parent.mkdir(parents=True)
        mutate(Path(source), path.parent, seed.form, random.Random(f"{self.drawn} {number}"))
        with self.lines.watched() as new:
            found = ask(seed, path, whole)
        self.lines.add(new)
        return json.dumps([*found, sorted(new)])

    def take(self, number: int, text: str, how: str) -> None:
        """Note what was told of a file, or what the command says of one that took the copy with it."""
        seed, _, path = self.case(number)
        if how:
            self.ends[seed.name, how] += 1
            asked = self.ends[seed.name, how] <= SUPERVISED
            outcome, problem = supervised(seed, path, self.folder) if asked else ("as those before", "")
            self.keep(Told(number, seed.name, f"{how}, supervised: {outcome}", problem))
            return
        outcome, problem, new = json.loads(text)
        if self.lines.add(new) and not problem:
            place = self.folder / "further" / str(number)
            shutil.copytree(path.parent, place)
            self.further.setdefault(seed.name, []).append(place / seed.name)
        self.keep(Told(number, seed.name, outcome, problem))

    def keep(self, told: Told) -> None:
        folder = self.folder / "cases" / str(told.number)
        self.told.append(told)
        if told.problem:
            place = self.kept / f"{self.drawn}-{told.number}-{told.name}"
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(folder, place, dirs_exist_ok=True)
            (place / "problem.txt").write_text(f"{told.outcome}\n{told.problem}\n")
            print(f"{told.number} {told.name}: {told.outcome}: {told.problem}\n", flush=True)
        shutil.rmtree(folder, ignore_errors=True)


def supervised(seed: Seed, path: Path, folder: Path) -> tuple[str, str]:
    """What took the process with it, given to the command line."""
    if seed.role not in ("model", "data", "recorded"):
        return "", "it took the command itself with it"
    recorded, rows = str(folder / "recorded.parquet"), str(folder / "rows.parquet")
    words = ["check", recorded, str(path), "--data", rows]
    if seed.role == "data":
        words = ["check", recorded, recorded, "--allow-same", "--data", str(path)]
    options = ["--no-explain", "--edge", "off", "--batch-sizes", "none", "--timeout", f"{SECONDS:.0f}s"]
    code, said = commanded(*words, *options, folder=path.parent)
    problem = in_order(code, said)
    if code == 0 and not problem:
        problem = "PASS on the command line, and from Python it takes the process with it"
    return OUTCOMES.get(code, str(code)), problem


def repeated(folder: Path) -> None:
    """One kept file again, in this process."""
    seed = next(seed for seed in SEEDS if folder.name.endswith(f"-{seed.name}"))
    with tempfile.TemporaryDirectory() as place:
        print(*ask(seed, folder / seed.name, whole_file(seed, Path(place))), sep="\n")


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
    parser.add_argument("--keep", default=".fuzz", help="folder for what breaks a promise")
    parser.add_argument("--repeat", type=Path, help="what was kept there again, in this process")
    chosen = parser.parse_args()
    # A process with threads of OpenMP cannot be copied.
    os.environ.update({"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "LIKEWISE_TRUST_CONFIG": "0"})
    if chosen.repeat is not None:
        repeated(chosen.repeat.resolve())
        return
    with tempfile.TemporaryDirectory() as place:
        began = time.perf_counter()
        campaign = Campaign(chosen.count, chosen.seed, chosen.only, Path(place), Path(chosen.keep).resolve())
        told = campaign.run()
    problems = [one for one in told if one.problem]
    print(summary(told))
    led = sum(map(len, campaign.further.values()))
    print(f"{len(campaign.lines):,} lines of likewise reached, {led:,} files led to new ones and were damaged further")
    took = time.perf_counter() - began
    print(f"{len(told):,} files in {took:.0f} s, {len(problems)} break a promise, seed {chosen.seed}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
