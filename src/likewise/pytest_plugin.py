"""Parity in a test suite: `assert_parity(model, "model.onnx", rows)` and the fixture `parity`.

A failure shows what the command line shows, and nothing of our own frames. The report lies beside the
test's other files.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from likewise.contracts.reporting import Report

WIDTH = 100
"""Columns of the summary in a failure: pytest indents it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the command line of pytest."""
    group = parser.getgroup("likewise", "does the deployed model answer like the trained one?")
    group.addoption(
        "--likewise-reports",
        metavar="FOLDER",
        default=None,
        help="Where the reports of `parity` go, one folder a test.  [default: the test's tmp_path]",
    )


def assert_parity(reference: Any, candidate: Any, data: Any, **options: Any) -> Report:
    """Fail unless the candidate answers like the reference. Options are those of `likewise.check`."""
    __tracebackhide__ = True
    from likewise.verify import check

    report = check(reference, candidate, data, **options)
    _require(report, saved=options.get("report"))
    return report


@pytest.fixture
def parity(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Report]:
    """`parity(reference, candidate, data, **options)`: like `assert_parity`, and the report is kept."""
    folder = request.config.getoption("--likewise-reports")
    place = tmp_path if folder is None else Path(folder) / _name(request.node.nodeid)
    count = 0

    def checked(reference: Any, candidate: Any, data: Any, **options: Any) -> Report:
        __tracebackhide__ = True
        from likewise.verify import check, save

        nonlocal count
        count += 1
        place.mkdir(parents=True, exist_ok=True)
        saved = place / (f"parity_report.{count}.json" if count > 1 else "parity_report.json")
        report = check(reference, candidate, data, **options)
        save(report, saved)
        request.node.user_properties.append(("likewise", f"{report.outcome}: {report.verdict.headline}"))
        _require(report, saved=str(saved))
        return report

    return checked


def _require(report: Report, *, saved: str | None) -> None:
    __tracebackhide__ = True
    from likewise.verify import render

    if not report.passed:
        summary = render(report, "terminal", width=WIDTH, saved=saved)
        pytest.fail(summary, pytrace=False)


def _name(test: str) -> str:
    """A test as the name of a folder."""
    return "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in test)
