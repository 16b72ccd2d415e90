"""Do remedies help? `make remedies`, or `python benchmarks/remedies.py`.

Has `likewise fix` repair every fault of tests/explain/faults, and checks each file that it wrote anew. What the first
diagnosis says was verified is also done again by hand, from its words (exports, options, attributes, lines of code).
Exit code 1 where such a remedy does not do what it says or nobody knows how to do it, where a file does not pass, or
where fewer than nine of ten faults that have a remedy to carry out end in a file.

    --only trees              faults with this in their name
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "explain")]

ENOUGH = 0.9
"""Of the faults with a remedy that can be carried out, so many end in a file that passes."""

ROWS_ALONE = {"edge": "off", "shapes": {}, "batch_sizes": ()}
"""Remedies are about the rows; only faults of how models are run are also looked for in other batches and lengths."""

KINDS = {"exported anew": "a new export", "nodes put": "nodes at the rim", "renamed": "nodes at the rim"}
"""What a remedy does, by a part of its words; others change the graph inside."""


def main() -> None:
    """One fault after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only those with this in their name")
    chosen = parser.parse_args()
    from faults import FAULTS

    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for name, make in FAULTS.items():
        if chosen.only in name:
            with warnings.catch_warnings(), TemporaryDirectory() as folder:
                warnings.simplefilter("ignore")
                options = {"edge": "off"} if name.startswith("runtime/") else ROWS_ALONE
                outcome, told, faults = repaired(make(), Path(folder) / "fixed.onnx", options)
            counts[outcome] += 1
            print(f"{'-' if faults else '+'} {name}: {outcome}: {told}", flush=True)
            wrong += [f"{name}: {fault}" for fault in faults]
    print(", ".join(f"{kind}: {count}" for kind, count in counts.most_common()))
    fixed = sum(count for kind, count in counts.items() if kind.startswith("fixed"))
    possible = fixed + counts["not fixed"]
    print(f"{fixed} of {possible} faults with a remedy that can be carried out end in a file that passes")
    if possible and fixed < ENOUGH * possible:
        wrong.append(f"fewer than {ENOUGH:.0%} are repaired")
    if wrong:
        raise SystemExit("\n".join(("", *wrong)))


def repaired(fault: Any, output: Path, options: dict[str, Any]) -> tuple[str, str, list[str]]:
    """What became of a fault, what was done, and what is not as it was told."""
    from applying import helps

    import data_only
    import likewise

    fault = replace(fault, options={**fault.options, **options})
    try:
        found = likewise.fix(fault.reference, fault.candidate, fault.data, output, speed=False, **fault.options)
    except likewise.LikewiseError as error:
        return "no ONNX file", error.message, []
    first = found.before.diagnoses[0] if found.before.diagnoses else None
    wrong = [helps(fault, found.before)] if first is not None and first.remedy_verified else []
    if found.output is not None:
        again = data_only.check(fault.reference, str(output), fault.data, **fault.options)
        wrong += [] if again.passed else [f"written and does not pass: {again.headline}"]
        told = "; ".join(step.told for step in found.done)
        kind = next((kind for part, kind in KINDS.items() if part in told), "the graph inside")
        return f"fixed by {kind}", told, [fault for fault in wrong if fault]
    outcome = "a setting" if found.settings else "not fixed" if found.tried else "no remedy to carry out"
    return outcome, found.before.headline, [fault for fault in wrong if fault]


if __name__ == "__main__":
    main()
