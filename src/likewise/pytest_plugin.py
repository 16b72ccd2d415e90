"""Parity in a test suite: `assert_parity(model, "model.onnx", rows)` and the fixture `parity`.

A failure shows what the command line shows, and nothing of our own frames. The report lies beside the
test's other files.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from likewise.contracts.report import Report


WIDTH = 100
"""Columns of the summary in a failure: pytest indents it."""

_running: list[pytest.Item] = []
"""The test that is being run, so that a plain function knows where its files belong."""

_COUNT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the command line of pytest."""
    group = parser.getgroup("likewise", "does the deployed model answer like the trained one?")
    group.addoption(
        "--likewise-reports",
        metavar="FOLDER",
        default=None,
        help="Where the reports of parity checks go, one folder per test.  [default: the test's tmp_path]",
    )
    group.addoption(
        "--likewise-html", action="store_true", default=False, help="Write every report as a page (HTML) too."
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Remember which test is being run."""
    _running.append(item)
    try:
        return (yield)
    finally:
        _running.pop()


def assert_parity(reference: Any, candidate: Any, data: Any, **options: Any) -> Report:
    """Fail unless the candidate answers like the reference. Options are those of `likewise.check`."""
    __tracebackhide__ = True
    from likewise.tasks.check import check

    report = check(reference, candidate, data, **options)
    saved, page = _keep(report, _running[-1]) if _running else ("", "")
    if not report.passed:
        from likewise.report import render

        told = str(options.get("report") or saved)
        pytest.fail(render(report, "terminal", width=WIDTH, saved=told, written=page), pytrace=False)
    return report


@pytest.fixture
def parity() -> Callable[..., Report]:
    """`parity(reference, candidate, data, **options)`: `assert_parity`, as a fixture."""
    return assert_parity


def _keep(report: Report, item: pytest.Item) -> tuple[str, str]:
    """Write the report, and the page if asked for, beside the files of the test; the second of a test has a number."""
    from likewise.data.files import require_writable
    from likewise.errors import UsageError
    from likewise.report import save

    count = item.stash[_COUNT] = item.stash.get(_COUNT, 0) + 1
    saved = _folder(item) / (f"parity_report.{count}.json" if count > 1 else "parity_report.json")
    page = saved.with_suffix(".html") if item.config.getoption("--likewise-html") else None
    try:
        require_writable([saved, page])
    except UsageError as error:
        pytest.fail(str(error), pytrace=False)
    save(report, saved)
    item.user_properties.append(("likewise", f"{report.outcome}: {report.verdict.headline}"))
    if page is not None:
        save(report, page)
    return str(saved), str(page or "")


def _folder(item: pytest.Item) -> Path:
    named = item.config.getoption("--likewise-reports")
    if named is not None:
        return Path(named) / "".join(c if c.isalnum() or c in "-_." else "_" for c in item.nodeid)
    request = getattr(item, "_request", None)
    if request is None:
        return Path()
    folder: Path = request.getfixturevalue("tmp_path")
    return folder
