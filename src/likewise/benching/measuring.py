"""The rounds: both models at every batch size, in random order, until the time is used up."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from likewise.benching.stations import Station
from likewise.benching.statistics import LEAST_ROUNDS
from likewise.contracts.benching import Round

SIDES = ("reference", "candidate")
ROUNDS = 30
"""Rounds the time is divided into."""

MOST_ROUNDS = 60
MOST_CALLS = 100
"""Calls a turn: enough for the percentiles, and the raw samples stay small."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The rounds of every batch size, and the sizes that would have taken too long."""

    rounds: Mapping[int, tuple[Round, ...]]
    left_out: tuple[int, ...]


def measure(
    stations: Mapping[str, Station],
    sizes: Sequence[int],
    *,
    budget: float,
    seed: int,
    on_progress: Callable[[float], None] | None = None,
) -> Measured:
    """Let both models take turns, at every size in every round, for about `budget` seconds."""
    began = time.monotonic()
    chooser = random.Random(seed)
    paces: dict[int, dict[str, int]] = {}
    left_out: list[int] = []
    for size in sorted(sizes):
        # A larger batch takes longer; what not even the smaller one has time for is not tried.
        if left_out:
            left_out.append(size)
            continue
        paces[size] = {side: stations[side].warm_up(size) for side in SIDES}
        if LEAST_ROUNDS * sum(paces[size].values()) > budget * 1e9 and len(paces) > 1:
            del paces[size]
            left_out.append(size)
    turn = budget * 1e9 / (ROUNDS * len(paces) * len(SIDES))
    calls = {
        size: {side: int(min(max(turn / pace, 1), MOST_CALLS)) for side, pace in of_sides.items()}
        for size, of_sides in paces.items()
    }
    rounds: dict[int, list[Round]] = {size: [] for size in paces}
    for number in range(MOST_ROUNDS):
        spent = time.monotonic() - began
        if number >= LEAST_ROUNDS and spent >= budget:
            break
        if on_progress is not None:
            on_progress(spent)
        for size in chooser.sample(sorted(paces), len(paces)):
            rounds[size].append(_round(stations, size, calls[size], chooser))
    return Measured({size: tuple(taken) for size, taken in rounds.items()}, tuple(left_out))


def _round(stations: Mapping[str, Station], size: int, calls: Mapping[str, int], chooser: random.Random) -> Round:
    first, second = chooser.sample(SIDES, 2)
    times = {side: tuple(stations[side].turn(size, calls[side])) for side in (first, second)}
    return Round((first, second), times["reference"], times["candidate"])
