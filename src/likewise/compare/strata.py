"""What was measured on the rows of each value of a column: counts and largest differences, which merge exactly."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from likewise.contracts.comparison import Pair, Stratum
from likewise.contracts.data import Array
from likewise.data.selection import require_few


def row_distances(pair: Pair) -> Array:
    """The largest difference of each row; infinite where one side alone is not finite."""
    import numpy as np

    from likewise.compare.differences import differences, row_max

    blocks = differences(pair.reference, pair.candidate)
    found = [row_max(block.by_row(np.abs(block.difference), broken=math.inf)) for block in blocks]
    return np.concatenate(found) if found else np.empty(0)


def counted(values: Array, beyond: Array, distances: Mapping[str, Array]) -> dict[str, Stratum]:
    """The rows of one batch by the value they hold."""
    import numpy as np

    names, places = np.unique(values.astype(str), return_inverse=True)
    found = {}
    for index, name in enumerate(names.tolist()):
        mine = places == index
        worst = {output: float(distance[mine].max()) for output, distance in distances.items()}
        found[name] = Stratum("", name, int(mine.sum()), int(beyond[mine].sum()), worst)
    return found


def merged(one: Mapping[str, Stratum], other: Mapping[str, Stratum]) -> dict[str, Stratum]:
    """The rows of both."""
    together = dict(one)
    for value, stratum in other.items():
        together[value] = _merged(together[value], stratum) if value in together else stratum
    require_few(together)
    return together


def listed(strata: Mapping[str, Stratum], column: str | None) -> tuple[Stratum, ...]:
    """Every value of the column, in order."""
    return tuple(replace(strata[value], column=column or "") for value in sorted(strata))


def _merged(one: Stratum, other: Stratum) -> Stratum:
    worst = {
        name: max(one.worst.get(name, 0.0), other.worst.get(name, 0.0))
        for name in sorted(one.worst.keys() | other.worst.keys())
    }
    return Stratum(one.column, one.value, one.rows + other.rows, one.rows_beyond + other.rows_beyond, worst)
