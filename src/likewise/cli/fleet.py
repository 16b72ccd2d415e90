"""Many gates at a time: each in a process of its own, as many as there are cores and memory for."""

from __future__ import annotations

import contextlib
import contextvars
import glob
import os
import queue
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from likewise.cli import INCONCLUSIVE
from likewise.cli.gates import Carried, answered, carry_out, colour, could_not_carry_out, read_back, width, write
from likewise.contracts.values import dataclass
from likewise.contracts.verdict import Outcome
from likewise.data.files import replacing, require_writable
from likewise.errors import LikewiseError, one_line
from likewise.report.console import printable, quoted
from likewise.tasks.fleet import stem
from likewise.tasks.isolation import nursery, supervisor
from likewise.tasks.isolation.supervisor import WorkerError, job_of
from likewise.tasks.settings import default_report

if TYPE_CHECKING:
    from xml.etree import ElementTree as ET

    from likewise.report.formats.html import Entry
    from likewise.tasks.settings import Settings

INDEX, DOCUMENT, JUNIT = "index.html", "fleet.json", "fleet.junit.xml"
"""What tells of all gates, in the folder with what each of them wrote."""

PROCESS_BYTES, MODEL_TIMES = 300 << 20, 3
"""What the process of a gate takes, and how many times the files of its models are in memory at most."""

SPARED = 0.8
"""The part of the memory that is free in the beginning which gates may take."""

SHOWN = 40
"""Gates in the table at the end; of more, those that pass are counted."""


@dataclass(frozen=True, slots=True)
class Ended:
    """What is kept of a gate that came to its end: its texts are in their files."""

    outcome: Outcome
    headline: str
    remedy: str
    code: int
    kept: bool
    suites: list[ET.Element]


class Fleet:
    """Gates that are carried out, and what is known of those that ended.

    `old` are reports that stand if nothing has changed; of the `retried` gates only if they were conclusive.
    """

    def __init__(
        self,
        gates: Mapping[str, Settings],
        folder: Path,
        old: Mapping[str, Path],
        *,
        retried: Collection[str],
        jobs: int,
    ) -> None:
        self._gates = {name: self._placed(folder, name, gate) for name, gate in gates.items()}
        self._folder, self._old, self._retried, self._jobs = folder, old, retried, jobs
        self.ended: dict[str, Ended] = {}
        self._stopped = threading.Event()

    def _placed(self, folder: Path, name: str, gate: Settings) -> Settings:
        """The gate with its report and its page in the folder; where else it says that it writes, it still does."""
        own = str(folder / f"{stem(name)}.json")
        also = {} if gate.report in (None, own, default_report(name)) else {"json": gate.report}
        return replace(gate, report=own, formats={**also, **gate.formats, "html": str(folder / f"{stem(name)}.html")})

    def carry_out(self, *, quiet: bool, debug: bool, tell: Callable[[str], None]) -> None:
        """Every gate to its end; what was begun is given up when somebody interrupts."""
        for gate in self._gates.values():
            gate.policy()
            require_writable((gate.report, *gate.formats.values()))
        targets = {value for gate in self._gates.values() for value in (gate.reference, gate.candidate)}
        done: queue.SimpleQueue[tuple[str, Carried | BaseException, bool]] = queue.SimpleQueue()
        waiting, running = dict(self._gates), dict[str, threading.Thread]()
        with nursery.warmed(sorted(targets)), _interruptible():
            memory = Memory()
            try:
                while waiting or running:
                    while waiting and len(running) < self._jobs:
                        name = memory.next(waiting, running)
                        if name is None:
                            break
                        del waiting[name]
                        running[name] = self._begin(name, done, debug=debug)
                    name, found, kept = done.get()
                    memory.free(name)
                    running.pop(name).join()
                    if isinstance(found, BaseException):
                        raise found
                    self._end(name, found, kept=kept)
                    if not quiet:
                        tell(_line(len(self.ended), len(self._gates), name, self.ended[name]))
            finally:
                self._stopped.set()
                for thread in running.values():
                    thread.join()

    def _begin(self, name: str, done: queue.SimpleQueue[Any], *, debug: bool) -> threading.Thread:
        def work() -> None:
            try:
                kept = self._kept(name)
                found: Any = kept or self._carried(name, debug=debug)
                done.put((name, found, kept is not None))
            except BaseException as error:  # noqa: BLE001 - the main thread is where it is handled
                done.put((name, error, False))

        # What a command said (no walls, files that may be replaced) holds in this thread too.
        said = contextvars.copy_context()
        thread = threading.Thread(target=said.run, args=(work,), name=f"likewise-{name}", daemon=True)
        thread.start()
        return thread

    def _carried(self, name: str, *, debug: bool) -> Carried:
        gate = self._gates[name]
        try:
            return carry_out(gate, as_json=True, quiet=True, debug=debug, summary=False, watch=self._watch)
        except Exception as error:  # noqa: BLE001 - whatever happens to one gate, it is told as its verdict
            known = error if isinstance(error, LikewiseError) else WorkerError(f"unforeseen: {one_line(error)}")
            carried = could_not_carry_out(gate, known)
            write({str(gate.report): carried.json})
            return carried

    def _kept(self, name: str) -> Carried | None:
        """The report of an earlier run, if a run would be made from the same files, settings and tools."""
        if (old := self._old.get(name)) is None:
            return None
        gate = self._gates[name]
        formats = list(gate.formats.items())
        job = {**job_of(replace(gate, report=str(old)), formats=formats), "do": "keep"}
        try:
            found = self._watch(job, shown=False, timeout=gate.timeout, debug=False)
            if not isinstance(found, Mapping) or found.get("changed"):
                return None
            carried, _ = answered(found, formats)
            if name in self._retried and carried.outcome is Outcome.INCONCLUSIVE:
                return None
            write({**carried.files, str(gate.report): carried.json})
        except (LikewiseError, OSError):
            # A report that cannot be read is as good as none.
            return None
        return carried

    def _watch(self, job: Mapping[str, Any], *, shown: bool, timeout: float | None, debug: bool) -> Any:
        """Follow a job until it ends or somebody interrupts; the other cores are for other gates."""

        def tick() -> None:
            if self._stopped.is_set():
                raise KeyboardInterrupt

        tick()
        own = {"apart": False} if self._jobs > 1 else {}
        return supervisor.supervise(
            {**job, **own}, timeout=timeout, on_tick=tick, on_progress=lambda _: tick(), debug=debug
        )

    def _end(self, name: str, carried: Carried, *, kept: bool) -> None:
        from likewise.report.formats import junit
        from likewise.report.words import titled

        carried, report = read_back(carried, self._gates[name])
        code = carried.exit_code
        told = carried.outcome, carried.headline, carried.remedy
        self.ended[name] = Ended(*told, code, kept, junit.suites(report, titled(report, name)))

    def conclude(self, *, as_json: bool) -> int:
        """Write what tells of all gates; the worst exit code."""
        from likewise.report.formats import html, junit
        from likewise.report.formats.json import gates_written

        found = {name: self.ended[name] for name in self._gates}
        outcomes = {name: ended.outcome for name, ended in found.items()}
        code = max(ended.code for ended in found.values())
        try:
            with (
                replacing(self._folder / DOCUMENT) as place,
                place.open("w", encoding="utf-8", errors="replace") as file,
            ):
                file.writelines(gates_written(outcomes, self._documents()))
            write({str(self._folder / JUNIT): junit.document([s for ended in found.values() for s in ended.suites])})
            write({str(self._folder / INDEX): html.index(self._entries(found))})
        except (LikewiseError, OSError) as error:
            click.echo(printable(f"Error: {one_line(error)}"), err=True)
            code = code or INCONCLUSIVE
        if as_json:
            for piece in gates_written(outcomes, self._documents()):
                click.echo(quoted(piece), nl=False)
        else:
            self._show(found, outcomes)
        return code

    def _show(self, found: Mapping[str, Ended], outcomes: Mapping[str, Outcome]) -> None:
        from likewise.report.formats.terminal import summary
        from likewise.report.words import gates_counted

        few = len(found) <= SHOWN
        lines = [
            (name, ended.outcome, f"{ended.headline}. {ended.remedy}" if ended.remedy else ended.headline)
            for name, ended in found.items()
            if few or ended.outcome is not Outcome.PASS
        ]
        told, kept = gates_counted(outcomes), sum(ended.kept for ended in found.values())
        told += f"; {kept} unchanged since an earlier run" if kept else ""
        saved = str(self._folder / INDEX)
        click.echo(summary(lines, told=told, width=width(), colour=colour(), saved=saved), nl=False)

    def _documents(self) -> Iterator[str]:
        for gate in self._gates.values():
            yield Path(str(gate.report)).read_text(encoding="utf-8")

    def _entries(self, found: Mapping[str, Ended]) -> list[Entry]:
        from likewise.report.formats.html import Entry

        def entry(name: str, ended: Ended) -> Entry:
            page = self._folder / f"{stem(name)}.html"
            note = "unchanged since an earlier run" if ended.kept else ""
            return Entry(
                name, ended.outcome, ended.headline, page.name if page.is_file() else f"{stem(name)}.json", note
            )

        return [entry(name, ended) for name, ended in found.items()]


class Memory:
    """Which gate may begin, so that those that run together fit into what is free."""

    def __init__(self, room: float | None = None) -> None:
        self._room = SPARED * _available() if room is None else room
        self._taken: dict[str, int] = {}

    def next(self, waiting: Mapping[str, Settings], running: Mapping[str, object]) -> str | None:
        """The first gate that there is room for; where nothing runs, the first of all: it may fit after all."""
        left = self._room - sum(self._taken.values())
        name = next((name for name, gate in waiting.items() if need(gate) <= left), None)
        if name is None and not running:
            name = next(iter(waiting))
        if name is not None:
            self._taken[name] = need(waiting[name])
        return name

    def free(self, name: str) -> None:
        """A gate ended."""
        self._taken.pop(name, None)


def need(gate: Settings) -> int:
    """The bytes of memory that a gate takes, by the files of its models and the weights that lie beside them."""
    paths = {path for side in (gate.reference, gate.candidate) for path in glob.glob(f"{glob.escape(str(side))}*")}
    return PROCESS_BYTES + MODEL_TIMES * sum(os.path.getsize(path) for path in paths if os.path.isfile(path))


def _available() -> float:
    """Bytes that are free, as far as the system tells; a container may have fewer than its machine."""
    found = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024.0 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:"))))
    with contextlib.suppress(OSError, ValueError):
        most, used = (int(Path(f"/sys/fs/cgroup/memory.{name}").read_text()) for name in ("max", "current"))
        found.append(float(most - used))
    return min(found, default=float("inf"))


@contextmanager
def _interruptible() -> Iterator[None]:
    """Somebody who ends us politely interrupts: what was begun is ended with us."""

    def stop(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _line(place: int, of: int, name: str, ended: Ended) -> str:
    """What is told of a gate as soon as it has ended."""
    kept = ", unchanged" if ended.kept else ""
    # On one line, whatever a folder is called: another line would be that of another gate.
    told = " ".join(f"{name}: {ended.headline}".split())
    return printable(f"[{place:>{len(str(of))}}/{of}] {ended.outcome}{kept}  {told}")[: width()]
