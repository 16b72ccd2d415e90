"""The examples of the pages on frameworks run as they stand, one page after the other."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import pytest

PAGES = sorted((Path(__file__).parents[2] / "docs" / "frameworks").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_examples_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.S)
    assert blocks, "a page without an example"
    monkeypatch.chdir(tmp_path)
    known = {"__name__": "__main__"}
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # what frameworks warn of is not ours to fix, and a reader sees it too
        for block in blocks:
            exec(compile(block, str(page), "exec"), known)
