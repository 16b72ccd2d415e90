"""What the difference looks like, in sentences."""

from __future__ import annotations

from likewise.cases import Case


def describe(case: Case) -> tuple[str, ...]:
    return ()
