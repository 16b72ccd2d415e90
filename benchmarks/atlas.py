"""What converts, and what the gate says of it: `make atlas`, or `python benchmarks/atlas.py`.

Every estimator of scikit-learn that skl2onnx converts, and layers and small networks of torch, each run through the
gate with its defaults. Beside it stands an oracle that shares no code with it (tests/conformance/atlas_oracle.py): a
plain loop over the raw answers of both models, to the whole data and to one and seven rows of it.

    --part sklearn            or torch: one part only; the other part of the page stays as it is
    --only NAME               one entry; the page is not written

Ends with exit code 1 where a verdict contradicts the oracle.
"""

from __future__ import annotations

import argparse
import logging
import math
import re
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "atlas.md"
TITLES = {"sklearn": "scikit-learn", "torch": "torch"}
PACKAGES = ("scikit-learn", "skl2onnx", "torch", "onnxscript", "onnx", "onnxruntime")
WORDS = {True: "agrees", False: "differs", None: "cannot say"}
BUDGET = 15.0
"""Seconds to find out why an entry fails."""
sys.path.insert(0, str(ROOT / "tests"))

from conformance import atlas_oracle  # noqa: E402 - it lives with the tests
from likewise import Outcome, Report, check  # noqa: E402 - beside it


@dataclass(frozen=True)
class Result:
    """One line of the atlas."""

    name: str
    oracle: bool | None = None
    outcome: Outcome | None = None
    largest: float = 0.0
    why: str = ""

    @property
    def converts(self) -> bool:
        return self.outcome is not None

    @property
    def wrong(self) -> str:
        """How the verdict contradicts the oracle, if it does."""
        if self.oracle is False and self.outcome is Outcome.PASS:
            return "false pass"
        return "false fail" if self.oracle is True and self.outcome is Outcome.FAIL else ""

    @property
    def undecided(self) -> bool:
        return self.oracle is not None and self.outcome is Outcome.INCONCLUSIVE


def main() -> None:
    """Ask, print, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=sorted(TITLES), action="append")
    parser.add_argument("--only", action="append", default=[], help="an entry by its name; may be repeated")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    parts = chosen.part or list(TITLES)
    wrong = False
    for part in parts:
        results = list(run(part, chosen.only))
        wrong |= any(result.wrong for result in results)
        print(summary(results))
        if not chosen.only:
            write(part, results)
    if wrong:
        sys.exit(1)


def run(part: str, only: Sequence[str] = ()) -> Iterator[Result]:
    cases = [case for case in import_module(f"conformance.atlas_{part}").cases() if not only or case.name in only]
    for place, case in enumerate(cases, 1):
        start = time.perf_counter()
        result = ask(case)
        said = f"{result.outcome.name} {result.wrong}" if result.outcome else "no conversion"
        seconds = time.perf_counter() - start
        line = f"{place:4}/{len(cases)} {case.name}: oracle {WORDS[result.oracle]}, {said} ({seconds:.1f} s)"
        print(line, result.why, file=sys.stderr, flush=True)
        yield result


def ask(case: Any, **options: Any) -> Result:
    """One entry: the oracle, then the gate."""
    try:
        pair = case.make()
    except Exception as error:  # noqa: BLE001 - whatever the converter raises, it does not convert
        return Result(case.name, why=_line(f"{type(error).__name__}: {error}"))
    decided = atlas_oracle.decide(pair)
    wanted = {"explain_budget": BUDGET, "edge": "off", **pair.options, **options}
    report = check(pair.reference, pair.candidate, pair.data, **wanted)
    said = told(report, decided)
    asked = ", ".join(f"`{name}={value}`" for name, value in pair.options.items())
    why = f"asked with {asked}{': ' if said else ''}{said}" if asked else said
    return Result(case.name, decided.agrees, report.outcome, decided.largest, why)


def told(report: Report, decided: atlas_oracle.Decision) -> str:
    """Why it does not pass, by the first diagnosis; of what passes, nothing."""
    if report.outcome is Outcome.PASS:
        return _line(decided.why)
    if report.outcome is Outcome.FAIL and report.diagnoses:
        first = report.diagnoses[0]
        return _line(f"{first.cause}, {first.culprit} ({first.explained_share:.0%}): {first.evidence}")
    return _line(report.verdict.headline)


def summary(results: Sequence[Result]) -> str:
    converted = [result for result in results if result.converts]
    counted = {outcome: sum(result.outcome is outcome for result in converted) for outcome in Outcome}
    lines = [
        f"{len(converted)} of {len(results)} convert: {counted[Outcome.PASS]} PASS, {counted[Outcome.FAIL]} FAIL, "
        f"{counted[Outcome.INCONCLUSIVE]} INCONCLUSIVE. The oracle decides "
        f"{sum(result.oracle is not None for result in converted)} of them.",
        "",
    ]
    for kind in ("false pass", "false fail"):
        names = [f"`{result.name}`" for result in converted if result.wrong == kind]
        lines.append(f"- {kind}: {len(names)}{': ' + ', '.join(names) if names else ''}")
    open_ = [f"`{result.name}`" for result in converted if result.undecided]
    lines.append(
        f"- undecided by the gate, decided by the oracle: {len(open_)}{': ' + ', '.join(open_) if open_ else ''}"
    )
    return "\n".join(lines)


def section(part: str, results: Sequence[Result]) -> str:
    lines = [f"## {TITLES[part]}", "", summary(results), "",
             "| name | oracle | gate | largest difference | what diverges |", "|---|---|---|---:|---|"]  # fmt: skip
    for result in results:
        if result.converts:
            assert result.outcome is not None
            said = f"{result.outcome.name}{f' (**{result.wrong}**)' if result.wrong else ''}"
            lines.append(
                f"| {result.name} | {WORDS[result.oracle]} | {said} | {_figure(result.largest)} | {_cell(result.why)} |"
            )
    lost = [result for result in results if not result.converts]
    if lost:
        lines += ["", "Not converted, by what the converter said:", ""]
        reasons: dict[str, list[str]] = {}
        for result in lost:
            reason = "there is no converter" if "MissingShapeCalculator" in result.why else _cell(result.why)
            reasons.setdefault(reason, []).append(result.name)
        lines += [f"- {reason}: {', '.join(names)}" for reason, names in reasons.items()]
    return "\n".join(lines)


def write(part: str, results: Sequence[Result]) -> None:
    """The page with this part of it made anew."""
    old = PAGE.read_text().split("\n## ")[1:] if PAGE.exists() else []
    found = {text.partition("\n")[0]: f"## {text.strip()}" for text in old}
    found[TITLES[part]] = section(part, results)
    ordered = [found[title] for title in TITLES.values() if title in found]
    PAGE.write_text("\n\n".join([head(), *ordered]) + "\n")


def head() -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return f"""# Atlas

Every estimator of scikit-learn that `skl2onnx.to_onnx` converts, and layers and small networks of torch exported by
`torch.onnx.export(dynamo=True)`, run through `likewise.check` with its defaults (without edge suites). Made by
`make atlas`; `tests/conformance/test_atlas.py` asks a part of it.

The *oracle* shares no code with the gate: a plain loop over the raw answers of both models, to the whole data and to
one and to seven rows of it (for a free length also to twice the length), by the rule of the `float32` preset. A label
may differ where the two best scores are closer than the tolerance; where the export does not run, the oracle cannot
say. *What diverges* is the first diagnosis of a FAIL, with the share of the failing rows that it explains, and the
headline of what could not be decided.

{versions}"""


def _figure(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.1e}" if value else "0"


def _line(text: str) -> str:
    text = " ".join(re.sub(r"\x1b\[\d*m", "", text).split())
    return text if len(text) <= 220 else f"{text[:219]}…"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<")


if __name__ == "__main__":
    main()
