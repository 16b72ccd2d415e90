"""How often the place and the cause of a planted fault are found: `make locate`, or `python benchmarks/locate.py`.

The faults of benchmarks/locate_faults and, by other hands, benchmarks/locate_second and locate_third lie in networks of
many architectures (exported by both of torch's exporters, quantised, in half precision, with If, Loop and Scan, some
shipped in wheels) and in nested scikit-learn models. Nobody planted those of locate_natural. Each pair is checked as
`likewise check` does; of the report the first diagnosis counts. The *place* is right where it names the faulty node or
tensor, the module, or the step or nested estimator, and no more than three nodes; the *cause* is right where a fair
reader would accept it. On sound pairs any diagnosis is a false alarm.

    --only unet       pairs with this in their name
    --family fp16     one family
    --set second      the first, second, third or natural set only
    --every 4         one pair of four, for a quick look
    --budget 30       seconds for each explanation; likewise's own rule otherwise
    --cpu             these are seconds of the processor, not of the clock: on a machine that others use as well
    --parts FILE ...  check nothing: the results that --json kept of runs in parts
    --write           write the figures to docs/locate.md
    --how TEXT        what the page says about how they were made
    --peers           instead: time to the located place, against torch.onnx.verification and polygraphy
    --polygraphy FILE the polygraphy command, in an environment of its own
"""

from __future__ import annotations

import argparse
import importlib
import json
import multiprocessing
import pkgutil
import re
import statistics
import sys
import tempfile
import textwrap
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "locate.md"
sys.path.insert(0, str(HERE))

LATER = ("second", "third", "natural")
"""The sets by other hands."""
FEW_NODES = 3
"""A place of more nodes is a region: it does not tell where to look."""
PATIENCE = 180
"""Seconds beyond the explanation's own budget after which a check that does not come back counts as silent."""
BUSY = 20
"""How much longer it may be by the clock if its seconds are those of the processor."""


@dataclass(frozen=True)
class Result:
    """What was said about one pair."""

    name: str
    family: str
    kind: str
    outcome: str
    cause: str = ""
    culprit: str = ""
    wanted: tuple[str, ...] = ()
    place_right: bool = False
    cause_right: bool = False
    later: bool = False
    place: str = ""
    seconds: float = 0.0
    explaining: float = 0.0
    note: str = ""
    word: str = ""

    @property
    def clean(self) -> bool:
        return self.family == "clean"

    @property
    def right(self) -> bool:
        return not self.cause if self.clean else self.place_right and self.cause_right


def main() -> None:
    """Build what is missing, check every pair, print the table and the misses."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--family", default="")
    parser.add_argument("--set", choices=("first", *LATER, "all"), default="all")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--budget", type=float)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "locate")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--how", default="One run of `make locate`.")
    parser.add_argument("--json", type=Path, help="every result, for a closer look")
    parser.add_argument("--parts", type=Path, nargs="+")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--polygraphy", default="polygraphy")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    if chosen.peers:
        import locate_peers

        print(locate_peers.compare(chosen.folder, chosen.polygraphy))
        return
    if chosen.parts:
        kept = [Result(**entry) for part in chosen.parts for entry in json.loads(part.read_text())]
        results = list({entry.name: entry for entry in kept}.values())
    else:
        results = checked(chosen)
    text = f"{table(results)}\n\n{misses(results)}"
    print(text)
    if chosen.write:
        how = textwrap.fill(f"{date.today():%B %Y}. {chosen.how}", 120, break_on_hyphens=False)
        PAGE.write_text(f"# Faults: place and cause\n\n{how}\n\n{text.strip()}\n")


def checked(chosen: argparse.Namespace) -> list[Result]:
    """What is said about the pairs that were chosen."""
    pairs = (pair for pair in build(chosen.folder, chosen.only, chosen.set) if chosen.family in pair.family)
    results: list[Result] = []
    with Worker(cpu=chosen.cpu) as worker:
        for number, pair in enumerate(islice(pairs, chosen.offset, None, chosen.every), 1):
            result = score(pair, worker.check(pair, chosen.budget))
            results.append(result)
            mark = "ok " if result.right else "-- "
            print(
                f"{number:4} {mark}{result.name} ({result.seconds:.1f} s): {result.cause or result.note}"
                f" {result.culprit[:80]}",
                file=sys.stderr, flush=True,
            )  # fmt: skip
            if chosen.json:
                chosen.json.write_text(json.dumps([asdict(r) for r in results], indent=1))
    return results


def build(folder: Path, only: str, which: str) -> Iterator[Any]:
    """The corpus, from the folder where it is there already."""
    import locate_faults.build
    import locate_second.build

    if which in ("first", "all"):
        yield from locate_faults.build.corpus(folder, only)
    for later in LATER:
        if which in (later, "all"):
            yield from locate_second.build.corpus(folder, later, only)


class Worker:
    """A process that checks one pair after the other; one that hangs or dies is replaced."""

    def __init__(self, *, cpu: bool = False) -> None:
        self.context, self.cpu = multiprocessing.get_context("spawn"), cpu
        self.start()

    def start(self) -> None:
        self.pipe, other = self.context.Pipe()
        self.process = self.context.Process(target=serve, args=(other, self.cpu), daemon=True)
        self.process.start()
        other.close()

    def check(self, pair: Any, budget: float | None) -> dict[str, Any]:
        """The report as it is written, and the seconds it took."""
        self.pipe.send((pair, budget))
        try:
            if self.pipe.poll((PATIENCE + (budget or 0)) * (BUSY if self.cpu else 1)):
                answer: dict[str, Any] = self.pipe.recv()
                return answer
            said = "no answer"
        except EOFError:
            said = "the process died"
        self.process.kill()
        self.start()
        return {"report": {}, "seconds": float(PATIENCE), "note": said}

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()


def serve(pipe: Any, cpu: bool) -> None:  # noqa: FBT001 - what a process is started with
    """Check what comes through the pipe."""
    import likewise

    warnings.simplefilter("ignore")
    if cpu:
        clock_by_processor()
    while True:
        pair, budget = pipe.recv()
        started = time.perf_counter()
        options = {} if budget is None else {"explain_budget": budget}
        note, said = "", {}
        try:
            report = likewise.check(pair.reference, pair.candidate, pair.data, **pair.options, **options)
            seconds = time.perf_counter() - started
            with tempfile.TemporaryDirectory() as folder:
                report.save(Path(folder) / "report.json")
                said = json.loads((Path(folder) / "report.json").read_text())
        except Exception as error:  # noqa: BLE001 - a check that fails says nothing: that is its score
            seconds, note = time.perf_counter() - started, f"{type(error).__name__}: {error}"[:200]
        pipe.send({"report": said, "seconds": seconds, "note": note})


def clock_by_processor() -> None:
    """Explanations go by the time that the processor gave to this process, whatever else the machine does."""
    room = importlib.import_module("likewise.explain")

    clock = SimpleNamespace(**dict.fromkeys(("monotonic", "perf_counter", "process_time"), time.process_time))
    for found in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
        module = importlib.import_module(found.name)
        if getattr(module, "time", None) is time:
            module.time = clock  # type: ignore[attr-defined]


def score(pair: Any, answer: dict[str, Any]) -> Result:
    """The first diagnosis against the truth."""
    report = answer["report"]
    said = report.get("diagnoses") or []
    times = report.get("provenance", {}).get("run", {}).get("seconds", {})
    first = said[0] if said else {}
    wanted = tuple(pair.causes)
    return Result(
        pair.name, pair.family, pair.kind, report.get("outcome", "none"),
        first.get("cause", ""), first.get("culprit", ""), wanted,
        bool(said) and place_right(pair, first), first.get("cause") in wanted,
        any(place_right(pair, d) and d.get("cause") in wanted for d in said[1:]),
        ", ".join(first.get("nodes") or []), answer["seconds"], times.get("explaining") or 0.0, answer["note"],
        pair.word,
    )  # fmt: skip


def place_right(pair: Any, diagnosis: dict[str, Any]) -> bool:
    """A name of the truth is named as the place, and few others are."""
    nodes = diagnosis.get("nodes") or []
    text = diagnosis.get("culprit", "")
    told = len(nodes) or text.count("node '") + sum(map(int, re.findall(r"and (\d+) more", text)))
    if told > FEW_NODES and not (nodes and set(nodes) <= set(pair.nodes)):
        return False
    true = {*pair.nodes, *pair.tensors, *pair.paths} - {""}
    named = {*nodes, *(diagnosis.get("tensors") or [])}
    if named & true:
        return True
    texts = [text, diagnosis.get("path", "")]
    source = diagnosis.get("source", "")
    if any(name in source for name in true if ".py:" in name):
        return True
    nested = pair.family.endswith("scikit-learn")
    return any(names(text, name, nested=nested) for text in texts if text for name in true)


def names(text: str, name: str, *, nested: bool) -> bool:
    """Whether a text names a node, tensor or module as a whole; of a nested step (`prep__nums__scale`) its own name."""
    border = r"[A-Za-z0-9]" if nested else r"[\w./:]"
    if re.search(rf"(?<!{border}){re.escape(name)}(\.(weight|bias)\w*)?(?!{border})", text):
        return True
    member = re.fullmatch(r"(\w+)_\[(\d+)\]", name)  # estimators_[2]: also told as estimator 2, estimators_.2
    if member is None:
        return False
    word, number = member[1].rstrip("s"), member[2]
    return bool(re.search(rf"{word}s?_?\W{{0,2}}{number}(?!\d)", text))


def table(results: Sequence[Result]) -> str:
    """Figures by family, then by what went wrong."""
    faults = [r for r in results if not r.clean]
    clean = [r for r in results if r.clean]
    lines = [
        "| family | faults | place | cause | both | silent | median s | longest s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    groups = [(family, [r for r in faults if r.family == family]) for family in dict.fromkeys(r.family for r in faults)]
    groups.append(("**all**", faults))
    groups += [(word, [r for r in faults if r.word == word]) for word in sorted({r.word for r in faults})]
    for title, part in groups:
        times = [r.seconds for r in part] or [0.0]
        lines.append(
            f"| {title} | {len(part)} | {share(r.place_right for r in part)} | {share(r.cause_right for r in part)} |"
            f" {share(r.right for r in part)} | {sum(not r.cause for r in part)} | {statistics.median(times):.1f} |"
            f" {max(times):.1f} |"
        )
    if clean:
        alarms = [r for r in clean if r.cause]
        passed = sum(r.outcome == "PASS" for r in clean)
        lines.append(f"\nSound pairs: {len(clean)}, {passed} pass, {len(alarms)} false alarms.")
    explaining = [r.explaining for r in faults]
    if explaining:
        longest = max(explaining)
        lines.append(f"\nIn explanation: median {statistics.median(explaining):.1f} s, longest {longest:.1f} s.")
    return "\n".join(lines)


def share(values: Iterable[bool]) -> str:
    told = list(values)
    return f"{sum(told)} ({100 * sum(told) / max(len(told), 1):.0f}%)"


def misses(results: Sequence[Result]) -> str:
    """What was missed, grouped by what went wrong with it."""
    lines = []
    for title, wrong in (
        ("Nothing said", [r for r in results if not r.clean and not r.cause]),
        (
            "Place wrong, cause right",
            [r for r in results if not r.clean and r.cause and not r.place_right and r.cause_right],
        ),
        (
            "Cause wrong, place right",
            [r for r in results if not r.clean and r.cause and r.place_right and not r.cause_right],
        ),
        ("Both wrong", [r for r in results if not r.clean and r.cause and not r.place_right and not r.cause_right]),
        ("False alarms", [r for r in results if r.clean and r.cause]),
        ("Sound pairs that do not pass", [r for r in results if r.clean and r.outcome != "PASS"]),
    ):
        if not wrong:
            continue
        lines.append(f"## {title}: {len(wrong)}\n")
        told = Counter(f"{r.kind or r.name}: {said(r)}" for r in wrong)
        lines += [f"- {count} × {text}" if count > 1 else f"- {text}" for text, count in sorted(told.items())]
        lines.append("")
    return "\n".join(lines)


def said(result: Result) -> str:
    """What a miss was told to be."""
    if not result.cause:
        return f"{result.outcome} {result.note}".strip()
    return f"said {result.cause}" + (", the right one came later" if result.later else "")


if __name__ == "__main__":
    main()
