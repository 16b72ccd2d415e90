"""Do verified remedies help? `make remedies`, or `python benchmarks/remedies.py`.

Explains every fault of tests/explain/faults, does again by hand what the first diagnosis says was verified (exports,
options, attributes, lines of code), and checks the pair anew. Exit code 1 where one does not do what it says, or where
nobody knows how to do it.

    --only trees              faults with this in their name
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "explain")]


def main() -> None:
    """One fault after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only those with this in their name")
    chosen = parser.parse_args()
    from applying import helps
    from faults import FAULTS

    import likewise

    counts: Counter[str] = Counter()
    false = []
    for name, make in FAULTS.items():
        if chosen.only not in name:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fault = make()
            report = likewise.explain(fault.reference, fault.candidate, fault.data, **fault.options)
            first = report.diagnoses[0] if report.diagnoses else None
            kind = "no diagnosis" if first is None else "verified" if first.remedy_verified else "suggestion"
            wrong = helps(fault, report) if first is not None and first.remedy_verified else ""
        counts["does not help" if wrong else kind] += 1
        print(f"{'-' if wrong else '+'} {name}: {kind}: {wrong or (first.remedy if first else '')}", flush=True)
        false += [f"{name}: {wrong}"] if wrong else []
    print(", ".join(f"{kind}: {count}" for kind, count in counts.most_common()))
    if false:
        raise SystemExit("\n".join(("", *false)))


if __name__ == "__main__":
    main()
