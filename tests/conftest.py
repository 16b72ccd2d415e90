"""What many tests share: the embedded example, small enough to build once a session."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]


@pytest.fixture(scope="session")
def example_folder(tmp_path_factory):
    """The example of `likewise demo` with 3,000 rows to check on. Read it; do not write into it."""
    from likewise import example

    folder = tmp_path_factory.mktemp("example")
    example.write_data(folder, rows=3_000)
    example.train(folder)
    example.export(folder)
    example.quantize(folder)
    return folder


@pytest.fixture(autouse=True)
def _failures_are_explained_only_where_that_is_the_subject(request, monkeypatch):
    """Hundreds of tests let a gate fail on purpose, in this process; looking for the cause takes a second each."""
    if "explain" not in request.path.parts:
        from likewise.contracts.reporting import Explanation

        monkeypatch.setattr("likewise.explaining.explain", lambda *_, **__: ((), Explanation()))


@pytest.fixture(autouse=True)
def _edge_suites_run_only_where_they_are_the_subject(request, monkeypatch):
    """A dozen more calls of both models for each check in this process add up."""
    if "edge" not in request.path.parts:
        monkeypatch.setattr("likewise.suites.run", lambda *_, **__: ())


@pytest.fixture(autouse=True)
def _other_lengths_are_tried_only_where_they_are_the_subject(request, monkeypatch):
    """Networks with free axes would be run at four more lengths each; lengths that are asked for are always tried."""
    if request.path.name != "test_shapes.py":
        monkeypatch.setattr("likewise.shaping.applies", lambda *_: False)
