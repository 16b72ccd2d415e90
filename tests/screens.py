"""What a person reads on a terminal of 80 columns: a PASS in 12 lines, anything else in 40."""

from __future__ import annotations

import re

from likewise import Report
from likewise.report import render

SAYS_NOTHING = re.compile(
    r"fewer than 100%|\b0 of [\d,]+ rows|\b0 rows|\b1 (rows|labels|values|notes|warnings)\b|\ball 1\b|\(real\)"
)
"""Sentences that tell nobody anything, and a plural of one."""


def screen(report: Report, **options: object) -> str:
    """The report as a command shows it."""
    return render(report, "terminal", **{"width": 80, "saved": "parity_report.json", **options})


def fits(report: Report) -> str:
    """The screen, which is short, not too wide, and says something in every sentence."""
    text = screen(report)
    assert len(text.splitlines()) <= (12 if report.passed else 40), text
    assert max(map(len, text.splitlines())) <= 80, text
    assert SAYS_NOTHING.search(text) is None, text
    return text
