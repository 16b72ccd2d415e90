"""What the documents say is true: their tables match the code, their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from likewise.cli import likewise
from likewise.contracts.verdict import AT_LEAST, AT_MOST
from likewise.judge.policy import PRESETS

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
OTHER_PROGRAMS = {"--rm", "--growth", "--write", "--likewise-html", "--likewise-reports", "--help"}
"""Options of docker, of benchmarks, of pytest, and the one that click adds."""


def options(command: str) -> set[str]:
    found = likewise.get_command(click.Context(likewise), command)
    return {
        name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts) if name[:2] == "--"
    }


def named(pages: list[Path]) -> set[str]:
    """The options that pages speak of."""
    return {name for page in pages for name in re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text())}


def test_every_measure_and_preset_is_described():
    text = (ROOT / "docs" / "measures.md").read_text()
    described = set(re.findall(r"`([a-z0-9_]+)`", text))
    assert described >= AT_LEAST | AT_MOST
    readme = (ROOT / "README.md").read_text()
    assert all(f"| `{name}`" in readme for name in PRESETS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
        there = page.parent / target if target else page
        assert there.exists(), target
        headings = re.findall(r"^#+ (.*)", there.read_text(), re.M) if anchor else ()
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}


def test_every_option_of_a_check_is_on_a_page_and_every_option_on_a_page_exists():
    pages = [page for page in PAGES if page.name != "CHANGELOG.md"]
    assert options("check") <= named(pages)
    every = {name for command in likewise.list_commands(click.Context(likewise)) for name in options(command)}
    assert named(pages) <= every | OTHER_PROGRAMS


def test_the_guides_can_be_read_in_half_an_hour():
    words = sum(len(page.read_text().split()) for page in (ROOT / "docs" / "guide").glob("*.md"))
    assert words <= 6500


def test_the_readme_maps_every_room_and_only_what_there_is():
    house = ROOT / "src" / "likewise"
    table = (ROOT / "README.md").read_text().split("## Where things are")[1].split("\n## ")[0]
    rows = [re.findall(r"`(\w+)/`", row) for row in table.splitlines()[4:] if row.startswith("|")]
    assert {room for room, *_ in rows} == {path.parent.name for path in house.glob("*/__init__.py")}
    for room, *inside in rows:
        for name in inside:
            assert (house / room / name).is_dir(), f"{room}/{name}"
