"""Follow README, guides and examples to the letter where nothing is pinned: `make newcomer`.

Two environments are made from a clone, in a temporary folder: one with whatever the index holds today, one with the
oldest versions that pyproject.toml allows. In each, every documented command and block of Python is run as it stands.
Its exit code must be the one that it has in the environment of the project (constraints.txt); a traceback, a usage
error or an exit by a signal is a fault wherever it occurs.

torch is installed first, as the variable TORCH says: left open it brings gigabytes of libraries for GPUs, and of its
oldest version there is no build without them on the default index. So both environments have the same torch.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH = os.environ.get("TORCH", "torch==2.13.0")
EXTRAS = "all,testing"
BESIDE = ("pytest", "pyyaml")
"""What a reader of the pages on pytest and of the example project has: neither is ours to require."""

READERS_OWN = ("old.txt", "request.json", "traffic.jsonl")
"""What only a reader's own upgrade or service leaves: such a command has to say that it is not there."""

BY_VERSION = "scikit-learn==1.2.2"
"""Opens what the oldest scikit-learn has pickled, and not what the newest has: either verdict is right."""

PROJECT = "project"

LIMIT = 900
"""Seconds for one command; the slowest documented one takes a tenth of it."""

ROWS = 40_000
"""Of the demo's 350,000, as many as it takes until one of the booster's differs; whole, the demo itself checks them."""

FEWER = f"import pandas as pd; pd.read_parquet('test.parquet').head({ROWS}).to_parquet('test.parquet')"

GIVEN = """\
import joblib, likewise, pandas as pd
model, test_frame = joblib.load("model.joblib"), pd.read_parquet("test.parquet")
"""
"""What README and guides take as given where they show live objects."""

NETWORKS = """
import numpy as np, torch
from torch import nn

class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 4)
    def forward(self, x):
        return torch.tanh(self.body(x)).mean(1)

class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    def forward(self, x):
        return self.body(x)

class Cell(nn.Module):
    def forward(self, x, state, rate):
        return torch.tanh(x.mean(1) + state.mean(0)) * rate

D = torch.export.Dim
rng = np.random.default_rng(0)
def made(stem, data, module, dims, **arrays):
    arrays = {name: np.asarray(array, "float32") for name, array in arrays.items()}
    inputs = tuple(torch.from_numpy(array) for array in arrays.values())
    program = torch.export.export(module.eval(), inputs, dynamic_shapes=dims)
    torch.export.save(program, stem + ".pt2")
    torch.onnx.export(module, inputs, stem + ".onnx", dynamo=True, dynamic_shapes=dims, verbose=False)
    np.savez(data, **arrays)
{made}
"""
"""Networks such as the guides speak of without showing them: made for the data that a command names."""

MADE = {
    "rows.npz": 'made("net", "rows.npz", Mean(), ({0: D("rows"), 1: D("seq")},), x=rng.normal(size=(40, 6, 3)))',
    "images.npz": (
        'made("net", "images.npz", Images(), ({0: D("rows"), 2: D("height"), 3: D("width")},), '
        "x=rng.normal(size=(20, 3, 32, 40)))"
    ),
    "clips.npz": (
        'made("model", "clips.npz", Cell(), ({0: D("rows")}, {1: D("rows")}, None), '
        "x=rng.normal(size=(30, 5, 4)), state=rng.normal(size=(2, 30, 4)), rate=[0.5])"
    ),
}


@dataclass(frozen=True)
class Step:
    """One thing that a page tells its reader to do."""

    page: str
    text: str
    """A command line, or a block of Python."""
    python: bool = False
    files: str = "demo"
    """What the folder starts with: the demo's files, a copy of an example, or nothing."""


def pages() -> list[tuple[str, str]]:
    """The documents, as their path and what they start with."""
    guides = [(str(path.relative_to(ROOT)), "demo") for path in sorted((ROOT / "docs").rglob("*.md"))]
    examples = [(str(path.relative_to(ROOT)), path.parent.name) for path in sorted(ROOT.glob("examples/*/README.md"))]
    return [("README.md", "demo"), *guides, *examples]


def steps() -> Iterator[Step]:
    """Every command and block of Python, page by page, in the order of the page."""
    for page, files in pages():
        for language, block in re.findall(r"```(bash|python|toml)\n(.*?)```", (ROOT / page).read_text("utf-8"), re.S):
            if language == "python":
                yield Step(page, block, python=True, files=files)
            elif language == "toml" and (named := re.match(r"# (\w+\.toml)\n", block)):
                yield Step(page, f"open({named[1]!r}, 'w').write({block!r})", python=True, files=files)
            if language != "bash":
                continue
            for line in block.replace("\\\n", " ").splitlines():
                if line.strip() and not line.startswith("#"):
                    yield Step(page, line, files=files)
    for line in _usage("pytorch/verify_export.py"):
        yield Step("examples/pytorch", f"python {line}", files="pytorch")
    for name in ("github.yml", "gitlab-ci.yml"):
        text = (ROOT / "examples" / "ci" / name).read_text("utf-8")
        for line in re.findall(r"(?:run: |- )(likewise .*)", text):  # what they install from is for the reader to name
            yield Step(f"examples/ci/{name}", line, files="ci")


def _usage(path: str) -> list[str]:
    """The command lines in the docstring of a script."""
    text = (ROOT / "examples" / path).read_text("utf-8")
    return re.findall(r"^python (\S+\.py[^#\n]*?) *(?:#|$)", text, re.M)


class Environment:
    """A Python with likewise in it, and what came of every step."""

    def __init__(self, name: str, binaries: Path, work: Path, clone: Path) -> None:
        self.name, self.binaries, self.work, self.clone = name, binaries, work / name, clone
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir()
        self.demo = (0, "")
        self.codes: dict[Step, int] = {}
        self.said: dict[Step, str] = {}

    def run(self, line: str, folder: Path) -> tuple[int, str]:
        """A command line as somebody would type it, with this environment activated."""
        path = f"{self.binaries}{os.pathsep}{os.environ['PATH']}"
        environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
        try:
            done = subprocess.run(
                ["bash", "-c", line],
                cwd=folder,
                env={**environment, "PATH": path, "PIP_QUIET": "1"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=LIMIT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 124, f"no end after {LIMIT} seconds"
        return done.returncode, done.stdout

    def follow(self, chosen: list[Step]) -> None:
        """All steps, each page in a folder of its own."""
        demo = self.work / "demo"
        self.demo = code, said = self.run(f"likewise demo {demo}", self.work)
        if code:
            raise SystemExit(f"{self.name}: likewise demo ended with {code}:\n{said}")
        self.run(f'python -c "{FEWER}"', demo)
        for page in dict.fromkeys(step.page for step in chosen):
            folder = self.work / re.sub(r"\W+", "-", page)
            known = ""
            for step in (step for step in chosen if step.page == page):
                self._furnish(folder, step, demo)
                began = time.monotonic()
                code, said = self._python(step, folder, known) if step.python else self._command(step, folder)
                known += step.text if step.python else ""
                self.codes[step], self.said[step] = code, said
                print(f"{self.name:>8} {code} {time.monotonic() - began:5.1f}s {page}: {_short(step)}", flush=True)

    def _furnish(self, folder: Path, step: Step, demo: Path) -> None:
        if not folder.exists():
            source = {"demo": demo, "ci": demo}.get(step.files, self.clone / "examples" / step.files)
            shutil.copytree(source, folder)
            if step.files == "ci":
                shutil.copy(self.clone / "examples" / "ci" / "likewise.toml", folder)
        data = re.search(r"--data (\S+)", step.text)
        if data and data[1] in MADE:
            (folder / "made.py").write_text(NETWORKS.replace("{made}", MADE[data[1]]))
            code, said = self.run("python made.py", folder)
            if code:
                print(said)

    def _command(self, step: Step, folder: Path) -> tuple[int, str]:
        if step.text.startswith("pip install") and self.name == PROJECT:
            return 0, ""  # installed already, and not ours to change
        if step.text == "likewise demo":
            return self.demo
        if step.text.startswith("pip install") and "'.[" in step.text:
            return self.run(step.text, self.clone)  # "from a clone"
        return self.run(step.text, folder)

    def _python(self, step: Step, folder: Path, known: str) -> tuple[int, str]:
        """A block after those before it on the page; a test of pytest by pytest."""
        given = GIVEN if step.page == "README.md" or "/guide/" in step.page else ""
        if "(parity)" in step.text:
            (folder / "test_page.py").write_text(given + step.text)
            return self.run("python -m pytest -q test_page.py", folder)
        (folder / "page.py").write_text(given + known + step.text)
        return self.run("python page.py", folder)


def _short(step: Step) -> str:
    lines = step.text.strip().splitlines()
    return lines[0] if not step.python else f"Python, {len(lines)} lines: {lines[-1].strip()}"


def faults(found: Environment, expected: Environment) -> Iterator[tuple[Step, str]]:
    """What went otherwise than in the environment of the project, or should go so nowhere."""
    for step, code in found.codes.items():
        if "Traceback (most recent call last)" in found.said[step]:
            yield step, f"a traceback, exit code {code}"
        elif code == 2 and any(f"no file {name}" in found.said[step] for name in READERS_OWN):
            continue
        elif code == 2 or not 0 <= code <= 3:
            yield step, f"exit code {code}"
        elif code != expected.codes.get(step, code) and BY_VERSION not in step.text:
            yield step, f"exit code {code}, not {expected.codes[step]}"


def oldest() -> list[str]:
    """The requirements of pyproject.toml, each at its lower bound; torch as it is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    pending, found = [*project["dependencies"], f"likewise[{EXTRAS}]"], []
    while pending:
        entry = pending.pop(0)
        extra = re.fullmatch(r"likewise\[(.+)\]", entry)
        if extra:
            pending += [need for name in extra[1].split(",") for need in project["optional-dependencies"][name]]
        elif not entry.startswith("torch"):
            found.append(re.sub(r">=([\w.]+).*", r"==\1", entry))
    return list(dict.fromkeys(found))


def environment(name: str, work: Path, clone: Path, pins: list[str]) -> Environment:
    """A virtual environment installed from the clone, without the constraints of the project."""
    place = work / f"env-{name}"
    pip = [place / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    installs = [[TORCH], [f"{clone}[{EXTRAS}]", *BESIDE, *pins]]
    if place.exists():  # in a folder that was kept: only likewise itself is renewed
        installs = [["--no-deps", "--force-reinstall", str(clone)]]
    else:
        subprocess.run([sys.executable, "-m", "venv", place], check=True)
    for wanted in installs:
        print(f"{name}: pip install {' '.join(wanted)}", flush=True)
        if subprocess.run([*pip, *wanted], check=False).returncode:
            raise SystemExit(f"{name}: this cannot be installed")
    return Environment(name, place / "bin", work, clone)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="pages whose path contains this")
    parser.add_argument("--environment", choices=["open", "oldest"], help="one of the two")
    parser.add_argument("--keep", help="a folder for clone, environments and files, kept afterwards")
    options = parser.parse_args()
    chosen = [step for step in steps() if options.only in step.page]
    work = Path(options.keep or tempfile.mkdtemp(prefix="newcomer-")).resolve()
    work.mkdir(parents=True, exist_ok=True)
    clone = work / "clone"
    failed = 0
    try:
        shutil.rmtree(clone, ignore_errors=True)
        subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
        own = Environment(PROJECT, Path(sys.executable).parent, work, clone)
        own.follow(chosen)
        compared = [own]
        for name, pins in (("open", []), ("oldest", oldest())):
            if options.environment in (None, name):
                compared.append(environment(name, work, clone, pins))
                compared[-1].follow(chosen)
        for one in compared:
            found = list(faults(one, own))
            failed += len(found)
            print(f"\n{one.name}: {len(one.codes)} steps, {len(found)} of them otherwise than documented ({TORCH})")
            for step, what in found:
                print(f"  {step.page}: {_short(step)}\n    {what}: {one.said[step].strip()[-600:]}")
    finally:
        if not options.keep:
            shutil.rmtree(work, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
