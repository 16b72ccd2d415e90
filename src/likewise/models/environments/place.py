"""Where a model is opened, when that is not here: which Python it is, how it is started, and what is heard of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any

from likewise import errors
from likewise.contracts.models import PLACES
from likewise.contracts.values import dataclass
from likewise.errors import LikewiseError, ModelError, UsageError, one_line
from likewise.models import confinement
from likewise.models.environments import make
from likewise.models.environments.wire import receive, send
from likewise.models.remote import Line, roomy

BOOT = (
    # Two models share the cores: threads that keep one busy while they wait take it from the other.
    "import os,sys;os.environ.setdefault('OMP_WAIT_POLICY','PASSIVE');"
    "sys.version_info<(3,8) and sys.exit('Python %s is too old: 3.8 or later is needed'%sys.version.split()[0]);"
    "size=sys.stdin.buffer.readline() or sys.exit('its standard input is closed: docker run needs -i');"
    "exec(compile(sys.stdin.buffer.read(int(size)),'likewise','exec'))"
)
"""What a far Python is told to do: to read its program from the pipe."""

ABOUT = "import json,sys;print(json.dumps([sys.executable,sys.prefix,sys.base_prefix,sys.path]))"
LAST_WORDS = 2_000
KILLED = (-9, 137)
"""How a process ends that the system killed, and how a container or a shell tells it."""

DEAD = 5.0
"""Seconds after the end of its answers in which a process says how it ended."""


class MissingPackageError(ModelError):
    """The other Python has not what the model needs."""

    code = "missing-package"


class FarPythonError(ModelError):
    """The other Python did not start, died, or said something that is not an answer."""

    code = "other-python"


@dataclass(frozen=True, slots=True)
class Place:
    """Another Python: an interpreter, packages to be installed for it, or a command that starts one."""

    python: str | None = None
    packages: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    @staticmethod
    def of(options: Mapping[str, Any]) -> Place | None:
        """What the options of a model say; None where it is opened here."""
        python, packages, command = (options.get(name) for name in PLACES)
        if not (python or packages or command):
            return None
        for name, said in zip(PLACES, (python, packages, command), strict=True):
            # A table has words too, its names, and whoever looks for what is named would not look there.
            if said and not isinstance(said, str | (os.PathLike if name == "python" else list | tuple)):
                raise UsageError(
                    f"{name} is {said!r}", remedy="Give a path" if name == "python" else "Give text or a list"
                )
        if command and (python or packages):
            raise UsageError(
                "a model has both a command and a Python or packages",
                remedy="The command starts a Python of its own: leave the others out",
            )
        words = shlex.split(command) if isinstance(command, str) else [str(word) for word in command or ()]
        if words[-1:] == ["-"]:
            words.pop()  # `python -` reads its program from the pipe, and that is what we make it do
        return Place(
            None if not python else _found(os.path.expanduser(str(python))),
            make.requirements(packages or ()),
            tuple(words),
        )

    @property
    def name(self) -> str:
        """What a person would call it."""
        if self.command:
            return shlex.join(self.command)
        return ", ".join(filter(None, (self.python, " ".join(self.packages)))) or sys.executable

    def interpreter(self, *, tell: Callable[[str], None] = lambda text: None) -> str:
        """The Python to run; packages are installed first where that was not done before, which is told."""
        if self.packages:
            return make.python_with(self.packages, self.python or sys.executable, tell=tell)
        assert self.python is not None
        found = shutil.which(self.python)
        if found is None:
            raise FarPythonError(
                f"there is no Python at {self.python}", remedy="Give the path of an interpreter, such as env/bin/python"
            )
        return found

    def words(self) -> list[str]:
        """The command that starts it."""
        if not self.command:
            # Without PYTHONPATH and the packages of the user: they belong to the Python that runs us.
            return [self.interpreter(), "-I", "-c", BOOT]
        # A shell on the other machine reads the words again.
        far_shell = any(os.path.basename(word) == "ssh" for word in self.command)
        return [*self.command, "-c", shlex.quote(BOOT) if far_shell else BOOT]


def _found(python: str) -> str:
    """A path from here on, or a name that is looked for where programs are."""
    return os.path.abspath(python) if os.path.dirname(python) else python


class Connection(Line):
    """Questions to another Python and its answers. What it prints is kept for the moment when it dies."""

    def __init__(self, place: Place, process: subprocess.Popen[bytes]) -> None:
        super().__init__(process)
        self.place, self.kept, self.users, self.models, self.gone = place, False, 0, 0, False
        self._far, self._words = process, ""
        self._hello: Mapping[str, Any] = {}
        self._listening: threading.Thread | None = None

    def hello(self) -> Mapping[str, Any]:
        """What it says of itself, before it opens anything."""
        if self._listening is None:
            # Not before the walls stand: a thread that runs already would stay outside.
            self._listening = threading.Thread(target=self._listen, daemon=True)
            self._listening.start()
            self._posted += 1
            self._hello = self.collect(self._posted)
        return self._hello

    def ask(self, what: str, question: Mapping[str, Any], buffers: Sequence[Any] = ()) -> tuple[Any, list[Any]]:
        """An answer, with its buffers."""
        answer: tuple[Any, list[Any]] = self.collect(self.post(what, (question, buffers)))
        return answer

    def write(self, pipe: IO[bytes], what: str, question: Any) -> None:
        told, buffers = question
        send(pipe, {"do": what, **told}, list(buffers))

    def read(self, pipe: IO[bytes]) -> tuple[Any, BaseException | None, Sequence[str]]:
        try:
            message, buffers = receive(pipe)
            noted = [str(text) for text in message.get("noted", ())]
            if "answer" in message:
                first = "python" in message["answer"]
                return (message["answer"] if first else (message["answer"], buffers)), None, noted
            return None, _raised(message, self.place), noted
        except EOFError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError, MemoryError) as error:
            return (
                None,
                FarPythonError(f"{self.place.name} said something that is not an answer: {one_line(error)}"),
                (),
            )

    def ended(self) -> BaseException:
        self.gone = True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._far.wait(DEAD)
        if self._listening is not None:
            self._listening.join(timeout=1)
        code = self._far.returncode
        how = "closed its output" if code is None else f"ended with {'code' if code >= 0 else 'signal'} {abs(code)}"
        how += ", as when memory runs out" if code in KILLED else ""
        last = [line.strip() for line in self._words.strip().splitlines() if line.strip()]
        said = next((line for line in last if line.startswith("Fatal Python error")), last[-1] if last else "")
        return FarPythonError(
            f"the other Python ({self.place.name}) {how}" + (f"; its last output: {said[:200]}" if said else ""),
            remedy="Start it by hand and open the model there; --debug shows what it prints",
        )

    def close(self) -> None:
        self.gone = True
        for pipe in (self._far.stdin, self._far.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        # Behind walls no process can be ended, and needs not be: it ends with its questions.
        with contextlib.suppress(OSError):
            self._far.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._far.wait(DEAD)
        if self._far.stderr is not None and self._far.returncode is not None:
            self._far.stderr.close()

    def _listen(self) -> None:
        assert self._far.stderr is not None
        with contextlib.suppress(ValueError, OSError):
            while line := self._far.stderr.readline(LAST_WORDS):
                text = line.decode(errors="replace")
                self._words = (self._words + text)[-LAST_WORDS:]
                sys.stderr.write(text)


def _raised(message: Mapping[str, Any], place: Place) -> LikewiseError:
    """What went wrong over there, as an error of ours."""
    kind, told, missing = (message.get(name) for name in ("error", "told", "missing"))
    if missing:
        home = str(missing).partition(".")[0]
        return MissingPackageError(
            f"the other Python ({place.name}) has no module {missing!r}",
            remedy=f"Install the package that has {home!r} there, or name the packages: with = ...",
        )
    text = one_line(RuntimeError(str(told))).removeprefix("RuntimeError: ")
    return ModelError(f"{kind}: {text}" if kind else text)


_KEPT: list[Connection] = []
"""Started before the walls were raised, for whoever asks for such a place."""

_FAILED: dict[Place, LikewiseError] = {}
"""Why one could not be started then."""


@contextmanager
def connected(place: Place) -> Iterator[Connection]:
    """A connection to such a Python: one that was started ahead, or one of its own."""
    if place in _FAILED:
        raise _FAILED[place]
    waiting = [line for line in _KEPT if line.place == place and not line.gone]
    line = min(waiting, key=lambda line: line.users) if waiting else Connection(place, start(place))
    line.users += 1
    try:
        yield line
    finally:
        line.users -= 1
        if not line.kept:
            line.close()


def start(place: Place, walls: confinement.Walls | None = None) -> subprocess.Popen[bytes]:
    """Start it and give it its program; behind walls, where they are given and it is a Python of this machine."""
    words = place.words()
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=None if walls is None or place.command else _behind(walls, words[0]),
        )
    except (OSError, subprocess.SubprocessError) as error:
        told = f"{shlex.join(words[:1])} cannot be started: {one_line(error)}"
        remedy = "It ended before, and behind the walls no other is started" if errors.confined else "Check its path"
        raise FarPythonError(told, remedy=remedy) from error
    process.stdin, process.stdout = roomy(process.stdin), roomy(process.stdout)
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(b"%d\n" % len(program()) + program())
        process.stdin.flush()
    return process


def _behind(walls: confinement.Walls, python: str) -> Any:
    """What confines a process before it becomes that Python, which has itself and its packages left."""
    about = subprocess.run([python, "-I", "-c", ABOUT], capture_output=True, check=False, timeout=60)
    try:
        executable, *homes, path = json.loads(about.stdout)
    except ValueError as error:
        last = about.stderr.decode(errors="replace").strip().splitlines()
        told = f"{python} is not a Python that works: {last[-1] if last else 'it says nothing'}"
        raise FarPythonError(told, remedy="Give the path of an interpreter, such as env/bin/python") from error
    kept = confinement.Walls(
        walls.own, (*walls.readable, *homes, *path), walls.listed, shared=True, programs=(python, executable)
    )

    def confine() -> None:
        os.environ["LIKEWISE_CONFINEMENT"] = confinement.confine(kept)

    return confine


def start_ahead(options: Sequence[Mapping[str, Any]], walls: confinement.Walls) -> None:
    """Start the Pythons that models need while programs may be started; what fails is told when they are asked."""
    for number, place in enumerate(filter(None, map(Place.of, options))):
        own = Path(walls.own[0]) / f"python-{number}"
        own.mkdir(exist_ok=True)
        inside = confinement.Walls((str(own),), walls.readable, walls.listed)
        try:
            line = Connection(place, start(place, inside if sys.platform == "linux" else None))
        except LikewiseError as error:
            _FAILED[place] = error
        except subprocess.TimeoutExpired:
            _FAILED[place] = FarPythonError(f"{place.name} does not answer", remedy="Start it by hand")
        else:
            line.kept = True
            _KEPT.append(line)


@cache
def program() -> bytes:
    """What runs over there: four files of ours as one, which imports nothing of ours."""
    home = Path(__file__).parent
    files = [home / name for name in ("wire.py", "far_networks.py", "../sklearn/asking.py", "far_worker.py")]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    own = re.sub(r"^from (?:likewise|__future__)\b.*\n", "", text, flags=re.M)
    return f"from __future__ import annotations\n{own}".encode()
