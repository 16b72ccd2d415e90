"""Environments with given packages: made by uv where it is installed, else by venv and pip, and kept."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from likewise.errors import ModelError, UsageError

DONE = "likewise.json"
"""The file in an environment that says that it is complete, and what is in it."""

NEEDED = ("numpy", "pandas")
"""What rows travel as; installed too, in a version that goes with the others."""

MOST_NAMED = 6
"""Packages that are told one by one."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class EnvironmentFailedError(ModelError):
    """Packages could not be installed."""

    code = "environment"


def requirements(given: str | Sequence[Any]) -> tuple[str, ...]:
    """`scikit-learn==1.2.2,numpy>=1.20,<2` as two requirements; a usage error for what is none."""
    parts = [part.strip() for part in given.split(",")] if isinstance(given, str) else [str(part) for part in given]
    found: list[str] = []
    for part in filter(None, parts):
        if found and part[0] in "<>=!~":
            found[-1] += f",{part}"  # a second bound of the same package
        else:
            found.append(part)
    for entry in found:
        if not _NAME.match(entry):
            told = f"{entry!r} names no package"
            raise UsageError(told, remedy="Write requirements such as scikit-learn==1.2.2,numpy<2")
    return tuple(found)


def name_of(requirement: str) -> str:
    """The package that a requirement is about, as people write it."""
    found = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", found[0] if found else requirement).lower()


def python_with(packages: Sequence[str], python: str, *, tell: Callable[[str], None] = lambda text: None) -> str:
    """The interpreter of an environment that has these packages, made now unless it was made before."""
    there = {name_of(entry) for entry in packages}
    wanted = sorted([*packages, *(name for name in NEEDED if name not in there)])
    version = _version(python)
    key = hashlib.sha256(json.dumps([version, os.path.realpath(python), wanted]).encode()).hexdigest()[:16]
    folder = cache_folder("environments") / key
    found = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    if (folder / DONE).is_file():
        return str(found)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            if not (folder / DONE).is_file():
                named = " ".join(packages) if len(packages) <= MOST_NAMED else f"{len(packages)} packages"
                tell(f"Making an environment with {named} for Python {version}; it is kept")
                shutil.rmtree(folder, ignore_errors=True)
                _install(folder, str(found), wanted, python)
                (folder / DONE).write_text(json.dumps({"python": version, "packages": wanted}) + "\n")
    except OSError as error:
        told = f"no environment can be made in {folder.parent}: {error.strerror or error}"
        raise EnvironmentFailedError(told, remedy="Set LIKEWISE_CACHE to a folder that can be written to") from error
    return str(found)


def cache_folder(kind: str) -> Path:
    """Where things of a kind are kept: environments, requests that failed."""
    if named := os.environ.get("LIKEWISE_CACHE"):
        return Path(named).absolute() / kind
    usual = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    return (Path(usual) if usual else Path.home() / ".cache") / "likewise" / kind


def _version(python: str) -> str:
    words = [python, "-I", "-c", "import platform; print(platform.python_version())"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        told = f"{python} is not a Python that works"
        raise EnvironmentFailedError(told, remedy="Give the path of an interpreter, such as env/bin/python") from error
    return done.stdout.strip()


def _install(folder: Path, made: str, wanted: Sequence[str], python: str) -> None:
    uv = shutil.which("uv")
    if uv is not None:
        steps = [
            [uv, "venv", "--quiet", "--python", python, str(folder)],
            [uv, "pip", "install", "--quiet", "--python", made, *wanted],
        ]
    else:
        steps = [
            [python, "-m", "venv", str(folder)],
            [made, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", *wanted],
        ]
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    for words in steps:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False, env=surroundings)
        if done.returncode:
            shutil.rmtree(folder, ignore_errors=True)
            named = " ".join(wanted) if len(wanted) <= MOST_NAMED else f"{len(wanted)} packages"
            raise EnvironmentFailedError(
                f"no environment with {named}: {_reason(done.stdout + done.stderr)}",
                remedy="Try versions that exist for this Python, or another one: python = ...",
            )


def _reason(text: str) -> str:
    """Why an installer gave up: its first line of an error, or its last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = [line for line in lines if re.match(r"(?i)error\b|×|no solution", line)]
    return (told[:1] or lines[-1:] or ["it does not say why"])[0][:300]


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """While nobody else makes the same one, where the system can tell."""
    with open(folder.with_suffix(".lock"), "w") as lock:
        if sys.platform != "win32":
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
