"""What the documents say is true: their tables match the code, their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from likewise.contracts.verdict import AT_LEAST, AT_MOST
from likewise.judge.policy import PRESETS

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


def test_every_measure_and_preset_is_described():
    text = (ROOT / "docs" / "measures.md").read_text()
    described = set(re.findall(r"`([a-z0-9_]+)`", text))
    assert described >= AT_LEAST | AT_MOST
    readme = (ROOT / "README.md").read_text()
    assert all(f"| `{name}`" in readme for name in PRESETS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_readme_maps_every_room_and_only_what_there_is():
    house = ROOT / "src" / "likewise"
    table = (ROOT / "README.md").read_text().split("## Where things are")[1].split("\n## ")[0]
    rows = [re.findall(r"`(\w+)/`", row) for row in table.splitlines()[4:] if row.startswith("|")]
    assert {room for room, *_ in rows} == {path.parent.name for path in house.glob("*/__init__.py")}
    for room, *inside in rows:
        for name in inside:
            assert (house / room / name).is_dir(), f"{room}/{name}"
