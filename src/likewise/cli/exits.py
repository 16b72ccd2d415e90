"""What an exit code means. Only zero deploys."""

from __future__ import annotations

from likewise.contracts.judging import Outcome

PASS, FAIL, USAGE, INCONCLUSIVE, INTERRUPTED = 0, 1, 2, 3, 130

CODES = {Outcome.PASS: PASS, Outcome.FAIL: FAIL, Outcome.INCONCLUSIVE: INCONCLUSIVE}
