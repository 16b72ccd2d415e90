"""What many tests share: the embedded example, small enough to build once a session."""

from __future__ import annotations

import os

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(scope="session")
def example_folder(tmp_path_factory):
    """The example of `likewise demo` with 3,000 rows to check on. Read it; do not write into it."""
    from likewise.tasks import demo

    folder = tmp_path_factory.mktemp("example")
    demo.write_data(folder, rows=3_000)
    demo.train(folder)
    demo.export(folder)
    demo.quantize(folder)
    return folder


@pytest.fixture(autouse=True, scope="session")
def _what_takes_long_runs_only_where_it_is_the_subject():
    """Hundreds of tests check in this process: causes, edge suites and other lengths are looked for only in their own.

    For a session, because fixtures of a session or module check too. Lengths that are asked for are always tried.
    """
    from likewise.compare.variations import edge, lengths
    from likewise.contracts.report import Explanation
    from likewise.explain import driver

    switched = [
        (driver, "explain", "tests/explain/", ((), Explanation())),
        (edge, "run", "tests/edge/", ()),
        (lengths, "applies", "tests/test_shapes.py", False),
    ]
    with pytest.MonkeyPatch.context() as patch:
        for module, name, subject, nothing in switched:
            patch.setattr(module, name, _only_in(subject, getattr(module, name), nothing))
        yield


def _only_in(subject, function, nothing):
    def called(*arguments, **options):
        # pytest names the test for which a fixture is being made, too.
        return function(*arguments, **options) if subject in os.environ["PYTEST_CURRENT_TEST"] else nothing

    return called
