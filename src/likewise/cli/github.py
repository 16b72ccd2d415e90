"""What GitHub Actions shows of a gate: a summary of the job, and a line where people look first."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from likewise.contracts.judging import Outcome

SUMMARY = "GITHUB_STEP_SUMMARY"
"""Stands for the file of that variable: what is there already stays."""


def formats() -> Mapping[str, str]:
    """The forms of a report that the job asks for by its environment, by the file they go to."""
    return {"markdown": SUMMARY} if os.environ.get(SUMMARY) else {}


def add_to_summary(text: str) -> None:
    """Append to the summary of the job."""
    with Path(os.environ[SUMMARY]).open("a", encoding="utf-8") as summary:
        summary.write(text + "\n")


def annotate(outcome: Outcome, message: str) -> None:
    """Mark the job with what broke. On standard error: standard output may be read by a machine."""
    if os.environ.get("GITHUB_ACTIONS") == "true" and outcome is not Outcome.PASS:
        escaped = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
        sys.stderr.write(f"::error title=likewise {outcome}::{escaped}\n")
