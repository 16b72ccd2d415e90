"""How long the screens are: `make screens`, or `python benchmarks/screens.py`.

Full checks, edge cases and explanations included, of the faults and sound deployments of tests/explain/faults and of
the pairs of tests/conformance. A PASS has to fit 12 lines of 80 columns, anything else 40, and no sentence may say
nothing: exit code 1 where one does not.

    --part torch              faults, or the sklearn or torch pairs of the atlas
    --only trees              entries with this in their name
    --show                    print every screen
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "explain")]


def main() -> None:
    """Check, draw and measure one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["faults", "sklearn", "torch"], help="one of the three")
    parser.add_argument("--only", default="", help="only those with this in their name")
    parser.add_argument("--show", action="store_true", help="print every screen")
    chosen = parser.parse_args()
    import likewise
    import screens

    faulty, lengths = [], []
    for name, make in entries(chosen.part):
        if chosen.only not in name:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                made = make()
            except Exception as error:  # a converter refuses in many ways; faults of our own making are never left out
                if "/" in name:
                    raise
                print(f"  - not converted  {name}: {type(error).__name__}", flush=True)
                continue
            report = likewise.check(made.reference, made.candidate, made.data, **made.options)
        text = screens.screen(report)
        lengths.append(len(text.splitlines()))
        print(f"{lengths[-1]:3} {report.outcome:12} {name}", flush=True)
        if chosen.show:
            print(text)
        try:
            screens.fits(report)
        except AssertionError as error:
            faulty.append(f"{name}:\n{error}")
            print(f"  - does not fit  {name}", flush=True)
    print(f"{len(lengths)} screens, the longest of {max(lengths, default=0)} lines")
    if faulty:
        raise SystemExit("\n".join(("", *faulty)))


def entries(part: str | None) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Names, and what builds the pair."""
    from faults import CONTROLS, FAULTS, UNEXPLAINED

    from conformance import atlas_sklearn, atlas_torch

    if part in (None, "faults"):
        yield from {**CONTROLS, **FAULTS, **UNEXPLAINED}.items()
    for name, room in (("sklearn", atlas_sklearn), ("torch", atlas_torch)):
        if part in (None, name):
            yield from ((case.name, case.make) for case in room.cases())


if __name__ == "__main__":
    main()
