"""How often an explanation is right: `make explain-score`, or `python benchmarks/explain_score.py`.

Runs `likewise.explain` over the faults of tests/explain/faults, which were written without knowledge of
the probes. The first diagnosis counts: its cause has to be one that an experienced engineer would
accept, and its culprit has to name the column, step, tree, tensor or output. Sound deployments, and
failures to which no cause belongs, have to give no diagnosis at all.

    --family trees            one family only
    --name scaler             faults with this in their name
    --write                   write the figures to docs/accuracy.md

A run over all of them ends with exit code 1 where a figure is worse than the one kept in explain_score.toml.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
import tomllib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "accuracy.md"
KEPT = Path(__file__).with_suffix(".toml")
PACKAGES = (
    "scikit-learn", "skl2onnx", "onnxmltools", "xgboost-cpu", "lightgbm", "catboost", "torch", "onnx", "onnxruntime",
)  # fmt: skip
sys.path.insert(0, str(ROOT / "tests" / "explain"))


@dataclass(frozen=True)
class Result:
    """What was said about one deployment. `wanted` is empty where silence is right."""

    name: str
    family: str
    wanted: tuple[str, ...]
    culprit: str
    cause_right: bool
    culprit_right: bool
    preferred: bool
    said: tuple[str, ...]
    seconds: float
    natural: bool
    note: str = ""

    @property
    def right(self) -> bool:
        return self.cause_right and self.culprit_right


def main() -> None:
    """Score, print, and write the page if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", action="append", help="a family, 'controls' or 'unexplained'; may be repeated")
    parser.add_argument("--name", default="", help="only those with this in their name")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for each explanation")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    chosen = parser.parse_args()
    if chosen.write and (chosen.family or chosen.name):
        parser.error("--write takes all of them")
    entries = select(chosen.family, chosen.name)
    results = []
    for place, entry in enumerate(entries, 1):
        result = score(entry, chosen.budget)
        results.append(result)
        said = f": {result.said[0] if result.said else 'nothing'}"
        print(f"{place:4}/{len(entries)} {mark(result)} {result.name} ({result.seconds:.1f} s){said}", file=sys.stderr)
    print(table(results))
    print()
    print(misses(results))
    if chosen.write:
        PAGE.write_text(page(results, chosen.budget))
    if not chosen.family and not chosen.name and (worse := fallen(results, tomllib.loads(KEPT.read_text()))):
        raise SystemExit("\n".join(("", *worse)))


def select(families: Sequence[str] | None, name: str) -> list:  # type: ignore[type-arg]
    """The entries that were asked for."""
    from faults import CONTROLS, FAMILIES, FAULTS, UNEXPLAINED

    everything = [*FAULTS.values(), *UNEXPLAINED.values(), *CONTROLS.values()]
    known = {entry.family for entry in everything}
    if unknown := set(families or ()) - known:
        raise SystemExit(
            f"no family {', '.join(unknown)}; there are {', '.join((*FAMILIES, 'unexplained', 'controls'))}"
        )
    return [entry for entry in everything if name in entry.name and (not families or entry.family in families)]


def score(entry, budget: float) -> Result:  # type: ignore[no-untyped-def]  # noqa: ANN001
    """Build one deployment, have it explained, and compare with what is known about it."""
    from faults import named

    import likewise

    fault = entry()
    began, note, found = time.perf_counter(), "", ()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            options = {"explain_budget": budget, **fault.options}
            report = likewise.explain(fault.reference, fault.candidate, fault.data, **options)
        found = report.diagnoses
        if report.explanation is not None:
            failed = [text for text in report.explanation.not_tested if "experiment itself failed" in text]
            note = "; ".join(failed)
    except Exception as error:  # noqa: BLE001 - a crash is a miss, and the others still count
        note = f"raised {type(error).__name__}: {error}"
    seconds = time.perf_counter() - began
    top = found[0] if found else None
    cause_right = top is not None and top.cause in fault.causes if fault.causes else top is None and not note
    return Result(
        name=fault.name,
        family=fault.family,
        wanted=fault.causes,
        culprit=" | ".join(part if isinstance(part, str) else " + ".join(part) for part in fault.culprit),
        cause_right=cause_right,
        culprit_right=cause_right and (not fault.causes or named(top.culprit, fault.culprit)),
        preferred=bool(fault.causes) and top is not None and top.cause == fault.causes[0],
        said=tuple(f"{one.cause}: {one.culprit} ({100 * one.explained_share:.0f}%)" for one in found[:3]),
        seconds=seconds,
        natural=entry.natural,
        note=note,
    )


def mark(result: Result) -> str:
    """One sign for how it went: right, cause without culprit, wrong."""
    return "+" if result.right else "~" if result.cause_right else "-"


def figures(results: Iterable[Result]) -> dict[str, int]:
    """What is kept: how often the cause and the culprit are right, and how often something is said for nothing."""
    found = dict.fromkeys(
        ("causes_right", "culprits_right", "natural_right", "controls_diagnosed", "unexplained_diagnosed"), 0
    )
    for result in results:
        if result.wanted:
            found["causes_right"] += result.cause_right
            found["culprits_right"] += result.culprit_right
            found["natural_right"] += result.natural and result.cause_right
        else:
            found[f"{result.family}_diagnosed"] += not result.cause_right
    return found


def fallen(results: Iterable[Result], kept: Mapping[str, int]) -> list[str]:
    """Every figure that is worse than the one that is kept."""
    found = figures(results)
    return [
        f"{name} is {found[name]}, and {bound} is kept in benchmarks/{KEPT.name}"
        for name, bound in kept.items()
        if (found[name] < bound if name.endswith("_right") else found[name] > bound)
    ]


def table(results: Sequence[Result]) -> str:
    """Figures by family and overall."""
    faults = [result for result in results if result.wanted]
    lines = [
        "| family | faults | cause right | culprit right | median seconds |",
        "|---|---:|---:|---:|---:|",
    ]
    for family in dict.fromkeys(result.family for result in faults):
        lines.append(line(family, [result for result in faults if result.family == family]))
    if faults:
        lines.append(line("**all**", faults))
        lines.append(line("of which natural", [result for result in faults if result.natural]))
    for family in ("controls", "unexplained"):
        others = [result for result in results if result.family == family]
        if others:
            wrong = [result.name for result in others if result.said]
            lines.append(
                f"\n{family}: {len(wrong)} of {len(others)} with a diagnosis{': ' if wrong else ''}{', '.join(wrong)}"
            )
    if faults:
        preferred = sum(result.preferred for result in faults)
        lines.append(f"\nThe first diagnosis has the preferred cause in {share(preferred, len(faults))}.")
    return "\n".join(lines)


def line(name: str, results: Sequence[Result]) -> str:
    """One row of the table."""
    if not results:
        return f"| {name} | 0 | | | |"
    causes, culprits = sum(r.cause_right for r in results), sum(r.culprit_right for r in results)
    middle = statistics.median(result.seconds for result in results)
    return (
        f"| {name} | {len(results)} | {share(causes, len(results))} | {share(culprits, len(results))} | {middle:.1f} |"
    )


def share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.0f}%)"


def misses(results: Iterable[Result]) -> str:
    """Every miss with what was said instead."""
    lines = ["| miss | wanted | said |", "|---|---|---|"]
    for result in results:
        if result.right and not result.note:
            continue
        wanted = ", ".join(result.wanted) or "nothing"
        if result.cause_right and result.wanted:
            wanted += f" in {result.culprit.replace(' | ', ', ')}"
        said = "; ".join((*result.said, *([result.note] if result.note else []))) or "nothing"
        lines.append(f"| `{result.name}` | {wanted} | {said} |")
    return "\n".join(lines) if len(lines) > 2 else "No misses."


def page(results: Sequence[Result], budget: float) -> str:
    """The page for the documentation: what was measured and how."""
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    where = f"likewise {version('likewise')}, {os.cpu_count()} cores of {platform.machine()}"
    return f"""# How often an explanation is right

{table(results)}

{misses(results)}

| how it was made | |
|---|---|
| command | `make explain-score WRITE=1`; each explanation has at most {budget:.0f} seconds |
| when and where | {date.today():%B %Y}, {where} |
| with | {versions} |
| faults | deployments with known causes in `tests/explain/faults`: *planted* (the export was edited, or the wrong \
variant exported) or *natural* (a converter or a runtime does this by itself) |
| right | the first diagnosis names a cause that an experienced engineer would accept (a third of the faults have more \
than one right name), and the column, step, tree, tensor or output at fault |
| controls | sound deployments, some of them suspicious-looking: nothing may be diagnosed |
| unexplained | failures to which no cause belongs: nothing may be diagnosed |
| to keep in mind | those who work on the explanations know these faults; expect less on yours |
"""


if __name__ == "__main__":
    main()
