"""The second, the third and the natural set as folders, each made once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import locate_natural.networks
import locate_natural.tabular
import locate_third.networks
import locate_third.reduced
import locate_third.tabular
from locate_faults.corpus import Built

from locate_second import bases, networks, reduced, shipped, tabular


def corpus(folder: Path, which: str, only: str = "") -> Iterator[Built]:
    """Every pair of a set, built where it is not there yet."""
    rooms: Mapping[str, tuple[Any, ...]] = {
        "second": (networks, reduced, tabular, shipped),
        "third": (locate_third.networks, locate_third.reduced, locate_third.tabular),
        "natural": (locate_natural.networks, locate_natural.tabular),
    }
    store = bases.Store(folder) if which == "second" else locate_third.networks.store(folder)
    for room in rooms[which]:
        for name, make in room.makers(store):
            if only not in name:
                continue
            place = folder / "pairs" / name
            if not (place / "case.json").exists():
                place.mkdir(parents=True, exist_ok=True)
                make(place).save(place)
            yield Built.load(place)
