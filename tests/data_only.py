"""Both models on the given rows and nothing beside them: what most tests are about, in a fraction of the time.

A test whose subject is something else asks for it: `edge="report"`, `shapes=None`, `explain=True`.
"""

from __future__ import annotations

from typing import Any

import likewise

OPTIONS: dict[str, Any] = {"explain": False, "edge": "off", "shapes": {}, "allow_same": True}
"""No edge suites, no other lengths, no search for causes; a planted model may stand on both sides."""

FLAGS = ("--no-explain", "--edge", "off", "--shapes", "none")
"""The same for a command line."""


def check(reference: Any, candidate: Any, data: Any, **options: Any) -> likewise.Report:
    return likewise.check(reference, candidate, data, **{**OPTIONS, **options})


def explain(reference: Any, candidate: Any, data: Any, **options: Any) -> likewise.Report:
    """Why the rows themselves differ; other batches are asked where they are named: `batch_sizes=None`.

    No experiment may fail itself: it would be told as one that was not tried, and nobody would miss it.
    """
    report = likewise.explain(reference, candidate, data, **{**OPTIONS, "batch_sizes": (), **options})
    told = report.explanation.not_tested if report.explanation is not None else ()
    broken = [text for text in told if "the experiment itself failed" in text]
    assert not broken, broken
    return report


def export(model: Any, data: Any, output: Any, **options: Any) -> Any:
    return likewise.export(model, data, output, **{**OPTIONS, **options})


def quantize(model: Any, output: Any, **options: Any) -> Any:
    return likewise.quantize(model, output, **{**OPTIONS, **options})
