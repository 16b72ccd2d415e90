"""A model with features of its own, as many are: text is coded, numbers are scaled, a line is drawn through both.

It was written for pandas 2, where text in a table is of type `object`. pandas 3 has a type of its own for text, and the
line marked below finds no column any more. Nothing fails: the answers are just others.
"""

from __future__ import annotations

import zlib

import numpy as np
import pandas as pd

WEIGHTS = {"age": -0.02, "tenure": 0.15, "balance": 0.4}


def predict(rows: pd.DataFrame) -> np.ndarray:
    """The probability that a customer stays."""
    score = sum(weight * rows[name].fillna(0).to_numpy(dtype=float) for name, weight in WEIGHTS.items())
    for name in rows.columns:
        if rows[name].dtype == object:  # true of text until pandas 3
            score = score + rows[name].map(_code, na_action="ignore").fillna(0).to_numpy(dtype=float)
    return 1 / (1 + np.exp(-score))


def _code(text: str) -> float:
    return zlib.crc32(text.encode()) % 7 / 7 - 0.5
