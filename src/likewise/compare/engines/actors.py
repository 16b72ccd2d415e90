"""Actors of a Ray cluster: bytes in, bytes out.

An actor opens no model. It starts a process that does, behind walls where the command has them, and hands on what it is
asked without a look at it. Files of models that its machine does not have come by their hash, once a machine.
Behind walls there is no network: a courier, which opens nothing either, is made before they are raised and speaks with
the cluster for us.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from likewise.compare.engines.processes import GoneError
from likewise.contracts.values import dataclass
from likewise.data.files import atomically, hash_file
from likewise.errors import LikewiseError, UnavailableError, extra, one_line
from likewise.models import confinement, remote
from likewise.models.environments import wire
from likewise.models.remote import die_with_parent, python, surroundings

LOST = 3
"""Actors, or processes of theirs, that may be lost in a row over one piece of work: a node may go, but not thrice."""

STARTED, REPLACED = 120.0, 10.0
"""Seconds in which the cluster has room for an actor, and for one in the place of another; else it is done without."""

ANSWERS = 10.0
"""Seconds in which a cluster answers."""

SERVING = "from likewise.compare.engines.actors import serve; serve()"


class LostError(LikewiseError):
    """A piece of work that nobody comes back from."""

    code = "lost-workers"


@dataclass(frozen=True, slots=True)
class Shipped:
    """The files of a model: where it is here, and the hashes of it and of what lies beside it, by their names."""

    path: str
    hashes: Mapping[str, str]

    @property
    def key(self) -> str:
        """What tells it from other models, whatever they are called."""
        return hashlib.sha256(json.dumps(sorted(self.hashes.items())).encode()).hexdigest()

    def there(self, folder: Path) -> bool:
        """Does a folder hold just these files?"""
        with contextlib.suppress(OSError, LikewiseError):
            return all(hash_file(str(folder / name)) == told for name, told in self.hashes.items())
        return False

    def contents(self) -> list[bytes]:
        """The files, in the order of their names."""
        return [Path(self.path).parent.joinpath(name).read_bytes() for name in sorted(self.hashes)]


def shipped(target: Any, beside: Sequence[str]) -> Shipped | None:
    """The files of a model that is a file; None for one that is code, which has to be where the actors are."""
    path = Path(os.path.abspath(target))
    if not path.is_file():
        return None
    more = [path.with_suffix(".bin").name] if path.suffix == ".xml" and path.with_suffix(".bin").is_file() else []
    names = (path.name, *beside, *more)
    return Shipped(str(path), {name: hash_file(str(path.parent / name)) for name in names})


@dataclass(frozen=True, slots=True)
class Needs:
    """What an actor is given: processors, bytes of memory, models, and walls around what its process may read."""

    cpus: int
    memory: int
    models: tuple[Shipped, ...]
    readable: tuple[str, ...] = ()
    walls: bool = False
    folder: str = ""


class _Remote:
    """What lives on a node."""

    def __init__(self, needs: Needs) -> None:
        self._needs = needs
        self._child: subprocess.Popen[bytes] | None = None
        self._over = False
        self._own = ""

    def lacks(self) -> list[str]:
        """The keys of models whose files are neither where they were nor kept on this machine."""
        return [model.key for model in self._needs.models if self._place(model) is None]

    def take(self, key: str, *contents: bytes) -> None:
        """Keep the files of a model on this machine, for whoever needs them next."""
        model = next(model for model in self._needs.models if model.key == key)
        for name, content in zip(sorted(model.hashes), contents, strict=True):
            if hashlib.sha256(content).hexdigest() != model.hashes[name]:
                raise UnavailableError(f"{name} of {model.path} did not arrive as it was sent")
            place = _kept() / key / name
            place.parent.mkdir(parents=True, exist_ok=True)
            atomically(place, content)

    def ask(self, *parts: bytes) -> list[bytes] | int | None:
        """What the process answers; or how it ended over this; None if it had ended before, over something else."""
        if self._over:
            return None
        child = self._child = self._child or self._started()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            wire.send(child.stdin, None, list(parts))
            return [bytes(part) for part in wire.receive(child.stdout)[1]]
        except (EOFError, BrokenPipeError):
            self._over = True
            return child.wait()

    def close(self) -> None:
        """End the process and remove what it wrote."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        if self._own:
            shutil.rmtree(self._own, ignore_errors=True)

    def _place(self, model: Shipped) -> Path | None:
        name = Path(model.path).name
        return next(
            (place / name for place in (Path(model.path).parent, _kept() / model.key) if model.there(place)), None
        )

    def _started(self) -> subprocess.Popen[bytes]:
        self._own = tempfile.mkdtemp(prefix="likewise-actor.")
        needs = self._needs
        copies = {model.path: str(self._place(model) or model.path) for model in needs.models}
        told = {
            "copies": copies,
            "readable": needs.readable,
            "walls": needs.walls,
            "folder": needs.folder,
            "own": self._own,
        }
        Path(self._own, "told.json").write_text(json.dumps(told), encoding="utf-8")
        words = python("-c", SERVING, str(Path(self._own, "told.json")))
        return subprocess.Popen(words, env=surroundings(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _kept() -> Path:
    """The folder of this machine that keeps models by their hash; nobody else may write to it."""
    folder = Path(tempfile.gettempdir(), f"likewise-models-{os.getuid() if hasattr(os, 'getuid') else 0}")
    folder.mkdir(mode=0o700, exist_ok=True)
    told = folder.lstat()
    if not stat.S_ISDIR(told.st_mode) or (
        hasattr(os, "getuid") and (told.st_uid, told.st_mode & 0o022) != (os.getuid(), 0)
    ):
        raise UnavailableError(f"{folder} is not a folder of ours alone", remedy="Remove it")
    return folder


COPIES: dict[str, str] = {}
"""In the process of an actor: where the files of models are, by where they were."""


def serve() -> None:
    """Over there: raise the walls, then open models and compare what is asked for."""
    die_with_parent()
    told = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with contextlib.suppress(OSError):
        os.chdir(told["folder"])
    COPIES.update(told["copies"])
    if told["walls"]:
        beside = (part for path in told["copies"].values() for part in confinement.beside(path))
        readable = (*told["readable"], *beside)
        confinement.confine(confinement.Walls((told["own"],), readable, shared=True))
    remote.serve()


class Actors:
    """So many actors of a cluster, each replaced by another when it is lost. Several threads may ask one of them."""

    def __init__(
        self, ray: Any, count: int, needs: Needs, opening: Sequence[bytes], content: Callable[[str], Any]
    ) -> None:
        self._ray, self._needs, self._opening, self._content = ray, needs, list(opening), content
        self._files: dict[str, list[Any]] = {}
        self._turn = threading.Lock()
        self._closed = False
        self.count = _room(ray, count, needs)
        self._actors = [self._begun() for _ in range(self.count)]
        self._ready: list[Any] = [None] * self.count
        self._changing = [threading.RLock() for _ in range(self.count)]

    def _begun(self) -> Any:
        resources = {"num_cpus": self._needs.cpus, "memory": self._needs.memory}
        return self._ray.remote(_Remote).options(**resources).remote(self._needs)

    def ask(self, number: int, parts: Sequence[bytes], what: str) -> list[bytes]:
        """What the actor of that number answers; `what` is told if nobody comes back from it."""
        turns, ended = 0, ""
        while turns < LOST:
            if self._closed:
                raise GoneError
            actor = None
            try:
                actor = self._opened(number, REPLACED if turns else STARTED)
                answer = self._ray.get(actor.ask.remote(*parts))
                if isinstance(answer, list):
                    return answer
                if answer is not None:
                    turns, ended = turns + 1, f"its process ended with {answer}"
            except self._ray.exceptions.RayTaskError as error:
                raise UnavailableError(f"an actor of Ray cannot do it: {one_line(error.cause)}") from error
            except self._ray.exceptions.RayError as error:
                turns, ended = turns + 1, one_line(error)
            if actor is not None:
                self._lose(number, actor)
        raise LostError(
            f"{LOST} actors in a row were lost over {what}: {ended}",
            remedy="Run these rows without --engine ray to see what happens to them",
        )

    def _opened(self, number: int, seconds: float) -> Any:
        """The actor of that number, when it has the files that it lacked and has opened the models."""
        get = self._ray.get
        with self._changing[number]:
            actor = self._actors[number]
            if self._ready[number] is actor:
                return actor
            try:
                lacking = get(actor.lacks.remote(), timeout=seconds)
                for key in lacking:
                    get(actor.take.remote(key, *self._stored(key)))
                if not isinstance(get(actor.ask.remote(*self._opening)), list):
                    raise self._ray.exceptions.WorkerCrashedError
            except self._ray.exceptions.GetTimeoutError:
                self._ray.kill(actor)
                raise GoneError from None
            except self._ray.exceptions.RayError:
                self._lose(number, actor)
                raise
            self._ready[number] = actor
            return actor

    def _stored(self, key: str) -> list[Any]:
        """The files of a model in the store of the cluster: put there once, and brought to a node once."""
        with self._turn:
            if key not in self._files:
                self._files[key] = [self._ray.put(content) for content in self._content(key)]
            return self._files[key]

    def _lose(self, number: int, actor: Any) -> None:
        """Have another in the place of an actor, unless somebody else who asked it did so already."""
        with self._changing[number]:
            if self._actors[number] is not actor:
                return
            with contextlib.suppress(Exception):
                self._ray.kill(actor)
            if not self._closed:
                self._actors[number] = self._begun()

    def close(self) -> None:
        """End all of them; who waits for one is told that it is gone."""
        self._closed = True
        with contextlib.suppress(Exception):
            self._ray.wait([actor.close.remote() for actor in self._actors], num_returns=self.count, timeout=1.0)
        for actor in self._actors:
            with contextlib.suppress(Exception):
                self._ray.kill(actor)


def _room(ray: Any, wanted: int, needs: Needs) -> int:
    """How many actors there is room for, at least one; an error where no node could ever hold one."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fits = [
        min(int(node.get("CPU", 0)) // needs.cpus, int(node.get("memory", 0)) // max(1, needs.memory)) for node in nodes
    ]
    if not any(fits):
        raise UnavailableError(
            f"no node of the Ray cluster has {needs.cpus} processors and {needs.memory >> 20:,} MB for a worker",
            remedy="Use a cluster with larger nodes, or leave --engine ray out",
        )
    return min(wanted or sum(fits), sum(fits))


@contextmanager
def cluster(address: str | None) -> Iterator[Any]:
    """Ray, connected; what we started or connected to is let go of afterwards."""
    with extra("ray", needed_for="the engine 'ray'"):
        import ray
    if ray.is_initialized():
        yield ray
        return
    try:
        _require_answer(address)
        quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        ray.init(address=address, **quiet) if address else ray.init(include_dashboard=False, **quiet)
    except Exception as error:
        told = f"there is no Ray cluster at {address}" if address else "Ray cannot be started here"
        raise UnavailableError(f"{told}: {one_line(error)}", remedy="Start one with `ray start --head`") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _require_answer(address: str | None) -> None:
    """An error where nobody listens: Ray itself would go on trying for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=ANSWERS).close()
