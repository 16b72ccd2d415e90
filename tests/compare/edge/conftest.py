"""Pairs of models that agree, opened once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from edge_pairs import doubled, exported, forest, opened, pipeline, pooled, table, total

from likewise.contracts.comparison import Seen


@pytest.fixture(scope="session")
def linear():
    """A pipeline that fills, scales and encodes, and its export."""
    model = pipeline()
    return model, exported(model)


@pytest.fixture(scope="session")
def trees():
    return forest()


def _worlds(linear: Any, trees: Any) -> dict[str, Callable[[], tuple[Any, Any, Any]]]:
    rng = np.random.default_rng(1)
    images = rng.random((40, 3, 6, 6)).astype(np.float32)
    ids = {"ids": rng.integers(2, 30, (40, 5)), "attention_mask": np.ones((40, 5), dtype=np.int64)}
    wide = {f"c{place}": rng.normal(size=50) for place in range(150)}
    return {
        "table": lambda: (*linear, table()),
        "trees": lambda: trees,
        "images": lambda: (doubled, doubled, {"x": images}),
        "ids": lambda: (pooled, pooled, ids),
        "wide": lambda: (total, total, wide),
    }


@pytest.fixture(scope="session")
def worlds(linear, trees) -> dict[str, Seen]:
    """What suites may look at, for several kinds of data."""
    found = {}
    for name, make in _worlds(linear, trees).items():
        with opened(*make()) as (_, _, _, seen):
            found[name] = seen
    return found
