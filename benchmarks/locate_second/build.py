"""The second set as folders, each made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from locate_faults.corpus import Built

from locate_second import bases, networks, reduced, shipped, tabular


def corpus(folder: Path, only: str = "") -> Iterator[Built]:
    """Every pair, built where it is not there yet."""
    store = bases.Store(folder)
    for room in (networks, reduced, tabular, shipped):
        for name, make in room.makers(store):
            if only not in name:
                continue
            place = folder / "pairs" / name
            if not (place / "case.json").exists():
                place.mkdir(parents=True, exist_ok=True)
                make(place).save(place)
            yield Built.load(place)
