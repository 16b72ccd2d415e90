"""What is special about the values of the worst rows."""

from __future__ import annotations

from likewise.cases import Case
from likewise.contracts.reporting import Unusual


def values(case: Case) -> tuple[Unusual, ...]:
    return ()
