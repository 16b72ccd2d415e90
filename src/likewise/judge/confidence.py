"""What rows without a violation allow us to say about rows like them."""

from __future__ import annotations

import math

from likewise.contracts.verdict import Confidence


def upper_bound(violations: int, rows: int, level: float) -> float:
    """The Clopper–Pearson upper bound: the largest failure rate that the rows do not rule out."""
    from scipy.special import betaincinv

    if violations >= rows:
        return 1.0
    return float(betaincinv(violations + 1, rows - violations, level))


def rows_needed(rate: float, level: float, violations: int = 0) -> int:
    """How many rows with so many violations it takes to rule out a failure rate."""
    if not violations:
        return math.ceil(math.log(1.0 - level) / math.log1p(-rate))
    low, high = violations + 1, violations + 2
    while upper_bound(violations, high, level) > rate:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if upper_bound(violations, middle, level) > rate else (low, middle)
    return high


def confidence(violations: int, rows: int, level: float) -> Confidence | None:
    """The bound and the sentence that states it; None where there are no rows to speak of."""
    if rows == 0:
        return None
    bound = upper_bound(violations, rows, level)
    statement = (
        f"{violations:,} of {rows:,} rows beyond tolerance: at {level:.4g} confidence fewer than "
        f"{percent(bound)} of rows like these are"
    ).replace(f"{level:.4g} confidence", f"{100 * level:.4g}% confidence")
    return Confidence(level, rows, violations, bound, statement)


def percent(share: float) -> str:
    """A share in percent, rounded up to two digits so that it stays an upper bound."""
    if share <= 0 or share >= 1:
        return f"{100 * share:.0f}%"
    digits = 1 - math.floor(math.log10(100 * share))
    scale = 10.0**digits
    return f"{math.ceil(100 * share * scale - 1e-9) / scale:.{max(digits, 0)}f}%"
