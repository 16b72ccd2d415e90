"""Every command and every Python block of the pages runs, and what the pages show is what is printed today.

LIKEWISE_DOCS=write (`make docs`) runs everything in full and writes what is printed into the pages.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from pathlib import Path

import joblib
import pages
import pandas as pd
import pytest

import likewise
from planting import here

ROOT = Path(__file__).parents[2]
GUIDES = sorted((ROOT / "docs" / "guide").glob("*.md"))
FRAMEWORKS = sorted((ROOT / "docs" / "frameworks").glob("*.md"))
WRITING = os.environ.get("LIKEWISE_DOCS") == "write"


@pytest.fixture
def folder(example_folder, tmp_path):
    """What `likewise demo` leaves behind, with fewer rows."""
    return shutil.copytree(example_folder, tmp_path / "demo")


def known(folder):
    return {
        "likewise": likewise,
        "model": joblib.load(folder / "model.joblib"),
        "test_frame": pd.read_parquet(folder / "test.parquet"),
    }


def shows_what_is_printed(page, folder, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what frameworks warn of is not ours to fix
        screens = list(pages.play(page, folder, whole=WRITING, **more))
    if WRITING:
        text = page.read_text(encoding="utf-8")
        for screen in reversed(screens):
            text = text[: screen.block.start] + screen.today + text[screen.block.end :]
        page.write_text(text, encoding="utf-8")
    for screen in screens:
        assert WRITING or screen, f"{page.name} shows\n{screen.shown}\n`make docs` would write\n{screen.today}"
        assert all(len(line) <= 80 for line in screen.shown.splitlines()), f"{page.name}: wider than a terminal"


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.stem)
def test_a_guide_runs_and_shows_what_is_printed(page, folder):
    assert pages.commands(page.read_text()), "a guide without a command"
    shows_what_is_printed(page, folder, known=known(folder))


@pytest.mark.parametrize("page", FRAMEWORKS, ids=lambda page: page.stem)
def test_the_page_of_a_framework_runs(page, tmp_path):
    assert "```python" in page.read_text(), "a page without an example"
    shows_what_is_printed(page, tmp_path)


@pytest.mark.slow
def test_the_demo_shows_both_faces_which_are_those_of_the_readme(folder, demonstrated):
    printed = (demonstrated / "printed.txt").read_text()
    steps = ["Data: ", "Training ", "Exporting ", "Quantising ", "", "1. A faithful export"]
    assert all(map(str.startswith, printed.splitlines(), steps))
    place = demonstrated / "likewise-demo"
    reports = [json.loads((place / f"parity_report.{number}.json").read_text()) for number in range(1, 6)]
    assert [report["outcome"] for report in reports] == ["PASS", "FAIL", "PASS", "PASS", "FAIL"]
    assert reports[4]["samples"] == 350_000
    assert reports[4]["max_abs_diff"] > 0.1
    again = here("demo", folder=demonstrated)
    assert again.returncode == 2
    assert "not empty" in again.stderr
    # The demo prints each command before what it answers.
    said = re.sub(r"likewise-demo/", "", printed)
    answers = dict(re.findall(r"^\$ (likewise .*?)\n\n(.*?)\n(?=\n\d\. |\nThe last failure)", said, re.M | re.S))
    assert len(answers) == 5
    if WRITING:
        shows_what_is_printed(ROOT / "README.md", place, known=known(place))
    else:
        answers["likewise demo"] = printed
        shows_what_is_printed(ROOT / "README.md", folder, known=known(folder), answers=answers)


@pytest.mark.parametrize(
    ("shown", "agree"),
    [
        ("one 3.1 ms\n\ntwo\n\nthree", True),
        ("one\n9 ms\n\n…\n\nthree", True),
        ("…\n\ntwo\n\n…", True),
        ("one 3.1 ms\n\nthree", False),
        ("one 3.1 ms\n\ntwo", False),
        ("one 3.1 ms\n\ntwo\n\nfour", False),
        ("one 3.1 rows\n\n…", False),
        ("three\n\n…\n\none 3.1 ms", False),
    ],
)
def test_a_screen_is_compared_by_words_and_numbers(shown, agree):
    assert pages.agrees(shown, "one 1.2 ms\n\ntwo\n\nthree\n") is agree


def test_a_screen_is_brought_up_to_date_with_what_it_leaves_out():
    printed = " FAIL   a\nnew words.\n\nWhy: because\n\noutput  value\nlabel   4\n\nReport: x.json\n"
    shown = " FAIL   a\nold words.\n\n…\n\noutput  value\nlabel   3\n\n…\n"
    now = pages.brought_up(shown, printed)
    assert now == " FAIL   a\nnew words.\n\n…\n\noutput  value\nlabel   4\n\n…"
    assert pages.agrees(now, printed)
    assert not pages.agrees(shown, printed)
