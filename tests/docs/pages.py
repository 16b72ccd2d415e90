"""Pages that run: their commands and their Python in order, and the screens they show beside what is printed.

A block `console` is what the one command or the Python before it prints, or begins with `$ ` and its own command. A
paragraph `…` stands for paragraphs that are left out. A block `toml` that begins with a name is that file. Compared are
words and numbers; only what another machine or version changes (VOLATILE) and where lines break are not. `make docs`
writes what is printed today.
"""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import click

from planting import here

LEFT_OUT = "…"

VOLATILE = (
    r"\d[\d.,]*(?= (?:ns|µs|ms|s|bytes|KB|MB|KiB|MiB)\b)",  # how long it took, how large it is
    r"\d[\d.]*× (?:slower|faster|larger|smaller)|as fast(?= at)",
    r"\(\d[\d.]*–\d[\d.]*\)",  # an interval of a measured time
    r"\d[\d.]*% of it(?= in the models)",
    r"\d(?:\.\d+)?e-(?:0[5-9]|[1-9]\d)",  # the rounding of a float
    r"\b[0-9a-f]{12,}\b",  # a hash
    r"\b\d+\.\d+\.\d+\b",  # a version
    r"(?:/[\w.-]+)+/",  # an absolute path
)
"""What depends on the machine, the day and the versions."""

ILLUSTRATIONS = (
    *("net.pt2", "model.pt2", "traffic.jsonl", "answered.parquet", "old.txt"),
    *("old-env/bin/python", "scikit-learn==1.2.2,numpy<2", "--candidate-command"),
)
"""Models that no page makes, and Pythons that not everybody has: commands that name one are only parsed."""

QUICKLY = {
    "check": {"--edge=off": "--edge", "--no-explain": "--no-explain", "--batch-sizes=none": "batch|beside|thorough"},
    "fleet": {"--edge=off": "--edge", "--no-explain": "--no-explain", "--batch-sizes=none": "$^", "--jobs=1": "--jobs"},
    "quantize": {"--no-speed": "--no-speed"},
    "bench": {"--budget=0.5s": "$^"},  # also where it names a longer one: the last word counts
}
"""Added where nothing is shown of what a command prints, unless it speaks of that itself."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page and where its text stands."""

    language: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Screen:
    """What a page shows, and what is printed."""

    block: Block
    shown: str
    printed: str
    first: str = ""

    def __bool__(self) -> bool:
        return agrees(self.shown, self.printed)

    @property
    def today(self) -> str:
        return f"{self.first}{brought_up(self.shown, self.printed)}\n"


def blocks(text: str) -> list[Block]:
    found = re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S)
    return [Block(match[1], match[2], match.start(2), match.end(2)) for match in found]


def commands(text: str) -> list[list[str]]:
    """The arguments of every `likewise` in a block."""
    lines = text.replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("likewise ")]


def play(
    page: Path, folder: Path, *, known: Mapping[str, Any] = {}, answers: Mapping[str, str] = {}, whole: bool = False
) -> Iterator[Screen]:
    """Run a page in a folder. `answers` are screens that were seen elsewhere, by their command."""
    names: dict[str, Any] = {"__name__": "__main__", **known}

    def seen(words: list[str]) -> str | None:
        return answers.get(shlex.join(["likewise", *words]))

    printed = ""
    found = blocks(page.read_text(encoding="utf-8"))
    for block, after in zip(found, [*found[1:], None], strict=True):
        shown = after is not None and after.language == "console" and not after.text.startswith("$ ")
        if block.language == "bash":
            outputs = [seen(words) or run(words, folder, whole=whole or shown) for words in commands(block.text)]
            printed = "".join(outputs)
            assert not shown or len(outputs) == 1, f"{page.name}: whose screen is this?\n{after.text}"
        elif block.language == "python":
            into = io.StringIO()
            with contextlib.chdir(folder), contextlib.redirect_stdout(into):
                exec(compile(block.text, str(page), "exec"), names)
            printed = into.getvalue()
        elif block.language == "toml" and (named := re.match(r"# (\w+\.toml)\n", block.text)):
            (folder / named[1]).write_text(block.text)
        elif block.language == "console":
            first, text = "", block.text
            if text.startswith("$ "):
                command, _, text = text.partition("\n")
                first, command = f"{command}\n", command.removeprefix("$ ")
                words = shlex.split(command)[1:]
                printed = seen(words) or run(words, folder, whole=True)
            yield Screen(block, text, printed, first)


def run(words: list[str], folder: Path, *, whole: bool) -> str:
    """What a command prints on 80 columns."""
    from likewise.cli import likewise

    name, *rest = words
    told = " ".join(words)
    if any(word in ILLUSTRATIONS or word.startswith("http://") for word in words):
        likewise.get_command(click.Context(likewise), name).make_context(name, rest)
        return ""
    more = [flag for flag, own in QUICKLY.get(name, {}).items() if not whole and not re.search(own, told)]
    with mock.patch.dict("os.environ", COLUMNS="80"):
        done = here(*words, *more, folder=folder)
    assert done.returncode in (0, 1), f"likewise {told}\n{done.stdout}{done.stderr}"
    return done.stdout


def paragraphs(text: str) -> list[str]:
    return re.split(r"\n\s*\n", text.strip("\n")) if text.strip() else []


def plain(text: str) -> str:
    """Without what may change, and without line breaks."""
    text = " ".join(text.split())
    for pattern in VOLATILE:
        text = re.sub(pattern, "#", text)
    return text


def agrees(shown: str, printed: str) -> bool:
    """Whether every paragraph that is shown is printed, in order, and nothing else but where `…` says so."""
    rest, open_ended = [plain(text) for text in paragraphs(printed)], False
    for text in paragraphs(shown):
        if text.strip() == LEFT_OUT:
            open_ended = True
            continue
        wanted = plain(text)
        if wanted not in rest or (rest[0] != wanted and not open_ended):
            return False
        rest, open_ended = rest[rest.index(wanted) + 1 :], False
    return open_ended or not rest


def brought_up(shown: str, printed: str) -> str:
    """What is printed now, of the paragraphs that were chosen to be shown: each by what is most like it."""
    chosen, told = [text for text in paragraphs(shown) if text.strip() != LEFT_OUT], paragraphs(printed)
    if len(chosen) == len(paragraphs(shown)):
        return "\n\n".join(told)
    kept = []
    for place, text in enumerate(chosen):
        following = range(kept[-1] + 1 if kept else 0, len(told))
        if place == 0 and not shown.lstrip("\n").startswith(LEFT_OUT):
            kept.append(0)
        elif following:
            kept.append(max(following, key=lambda at: alike(text, told[at])))
    parts, before = [], -1
    for at in kept:
        parts += [LEFT_OUT, told[at]] if at != before + 1 else [told[at]]
        before = at
    return "\n\n".join([*parts, LEFT_OUT] if before != len(told) - 1 else parts)


def alike(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, plain(one), plain(other), autojunk=False).ratio()
