"""What an exit code means. Only zero deploys."""

from __future__ import annotations

PASS, FAIL, USAGE, INCONCLUSIVE, INTERRUPTED = 0, 1, 2, 3, 130

CODES = {"PASS": PASS, "FAIL": FAIL, "INCONCLUSIVE": INCONCLUSIVE}
"""By outcome, in plain text: `--help` needs no more than this."""
