"""What speaks with a Ray cluster for a process behind walls: made before they are raised, and it opens nothing.

The process that it works for has opened a stranger's model and may say anything. So what is asked and answered is
handed on unread, from one process behind walls to another; which files these may read was settled before; and files of
models are sent by whoever may read them, under the hash that they have.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from typing import IO, Any

from likewise.compare.engines.actors import Actors, Needs, Shipped, cluster
from likewise.compare.engines.processes import GoneError
from likewise.contracts.values import dataclass
from likewise.errors import LikewiseError, UnavailableError, one_line
from likewise.models.environments import wire
from likewise.models.remote import Copy, die_with_parent

MOST_ACTORS, MOST_CPUS = 4_096, 1_024
"""More than any cluster has room for: what is asked for has an end."""

GONE = "gone"
"""The code of an error that says that there is no actor any more."""


@dataclass(frozen=True, slots=True)
class Errand:
    """What a courier is made for: the cluster, and what the processes of its actors may read."""

    address: str | None
    models: tuple[str, ...]
    readable: tuple[str, ...]


class Courier:
    """Our end of it: actors, as if they were asked from here."""

    def __init__(self, process: Copy) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process, self._in, self._out = process, process.stdin, process.stdout
        self._sending, self._waiting = threading.Lock(), dict[int, Future[tuple[Any, list[bytearray]]]]()
        self._content: Callable[[str], Sequence[bytes]] = lambda _: ()
        self._closed = False
        self.count = 0

    def gather(
        self, count: int, needs: Needs, opening: Sequence[bytes], content: Callable[[str], Sequence[bytes]]
    ) -> None:
        """Have so many actors made, or as many as there is room for."""
        self._content = content
        threading.Thread(target=self._listen, name="likewise-courier", daemon=True).start()
        hashes = {model.path: dict(model.hashes) for model in needs.models}
        told = {"do": "gather", "count": count, "cpus": needs.cpus, "memory": needs.memory, "hashes": hashes}
        self.count = int(self._asked(told, opening)[0]["count"])

    def ask(self, number: int, parts: Sequence[bytes], what: str) -> list[bytes]:
        """What the actor of that number answers."""
        return [bytes(part) for part in self._asked({"do": "ask", "number": number, "what": what}, parts)[1]]

    def close(self) -> None:
        """End all actors, and what speaks with them: it cannot be killed from behind walls, but ends with its line."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(LikewiseError):
                self._asked({"do": "close"}, ())
            self._in.close()

    def _asked(self, header: dict[str, Any], parts: Sequence[bytes]) -> tuple[Any, list[bytearray]]:
        answer: Future[tuple[Any, list[bytearray]]] = Future()
        with self._sending:
            number = len(self._waiting)
            self._waiting[number] = answer
            if self._process.poll() is None:
                wire.send(self._in, {**header, "id": number}, list(parts))
            else:
                answer.set_exception(UnavailableError("what speaks with the Ray cluster has ended"))
        told, found = answer.result()
        if (error := told.get("error")) is not None:
            if error["code"] == GONE:
                raise GoneError
            raised = UnavailableError(error["message"], remedy=error["remedy"])
            raised.code = error["code"]
            raise raised
        return told, found

    def _listen(self) -> None:
        try:
            while True:
                told, parts = wire.receive(self._out)
                if "want" in told:
                    content = list(self._content(told["want"]))
                    with self._sending:
                        wire.send(self._in, {"do": "content", "key": told["want"], "id": -1}, content)
                else:
                    self._waiting[told["id"]].set_result((told, parts))
        except (EOFError, OSError, ValueError):
            for answer in list(self._waiting.values()):
                if not answer.done():
                    answer.set_exception(UnavailableError("what speaks with the Ray cluster has ended"))


def carry(address: str | None, models: Sequence[str], readable: Sequence[str]) -> None:
    """The other end: outside the walls, with the network, and without a look at what it carries."""
    paths = tuple(os.path.abspath(path) for path in models if os.path.isfile(path))
    errand = Errand(address, paths, tuple(map(os.path.abspath, readable)))
    questions, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    die_with_parent()
    _Carrier(errand, answers).carry(questions)
    os._exit(0)


class _Carrier:
    """Carries out what it is asked for, what is asked of actors in threads of their own."""

    def __init__(self, errand: Errand, answers: IO[bytes]) -> None:
        self._errand, self._answers = errand, answers
        self._sending, self._arrived = threading.Lock(), threading.Condition()
        self._contents: dict[str, list[bytes]] = {}
        self._actors: Actors | None = None
        self._open = ExitStack()

    def carry(self, questions: IO[bytes]) -> None:
        while True:
            try:
                told, parts = wire.receive(questions)
            except EOFError:
                self._open.close()
                return
            if told["do"] == "content":
                with self._arrived:
                    self._contents[str(told["key"])] = [bytes(part) for part in parts]
                    self._arrived.notify_all()
            elif told["do"] == "ask":
                threading.Thread(target=self._answer, args=(told, [bytes(part) for part in parts]), daemon=True).start()
            else:
                # A cluster that is started ends with the thread that started it.
                self._answer(told, [bytes(part) for part in parts])

    def _answer(self, told: dict[str, Any], parts: list[bytes]) -> None:
        reply: dict[str, Any] = {"id": int(told["id"])}
        found: list[bytes] = []
        try:
            if told["do"] == "gather":
                reply["count"] = self._gathered(told, parts)
            elif told["do"] == "ask":
                assert self._actors is not None
                found = self._actors.ask(int(told["number"]), parts, str(told["what"]))
            else:
                self._open.close()
        except GoneError:
            reply["error"] = {"code": GONE, "message": "", "remedy": ""}
        except LikewiseError as error:
            reply["error"] = {"code": error.code, "message": error.message, "remedy": error.remedy}
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told to whoever asked
            reply["error"] = {"code": "unavailable", "message": f"the Ray cluster: {one_line(error)}", "remedy": ""}
        with self._sending:
            wire.send(self._answers, reply, found)

    def _gathered(self, told: dict[str, Any], opening: list[bytes]) -> int:
        count, cpus = max(0, min(int(told["count"]), MOST_ACTORS)), max(1, min(int(told["cpus"]), MOST_CPUS))
        models = tuple(self._shipped(str(path), dict(hashes)) for path, hashes in told["hashes"].items())
        errand = self._errand
        needs = Needs(cpus, max(0, int(told["memory"])), models, errand.readable, walls=True, folder=os.getcwd())
        ray = self._open.enter_context(cluster(errand.address))
        self._actors = self._open.enter_context(_closing(Actors(ray, count, needs, opening, self._content)))
        return self._actors.count

    def _shipped(self, path: str, hashes: dict[str, str]) -> Shipped:
        """The files of a model, if it is one of those that the command named, under plain names below its folder."""
        plain = all(
            re.fullmatch(r"[0-9a-f]{64}", str(told)) and not os.path.isabs(name) and ".." not in name.split("/")
            for name, told in hashes.items()
        )
        if path not in self._errand.models or not plain:
            raise UnavailableError(f"{path} is no model of this run")
        return Shipped(path, hashes)

    def _content(self, key: str) -> list[bytes]:
        """The files of a model, from who may read them."""
        with self._sending:
            wire.send(self._answers, {"want": key}, [])
        with self._arrived:
            self._arrived.wait_for(lambda: key in self._contents)
            return self._contents.pop(key)


@contextmanager
def _closing(actors: Actors) -> Iterator[Actors]:
    try:
        yield actors
    finally:
        actors.close()
