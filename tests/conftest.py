"""What many tests share: the embedded example, small enough to build once a session."""

from __future__ import annotations

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
