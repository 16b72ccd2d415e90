"""What reaches a terminal or a path of the user's: no command hides in a name, no device is replaced by a file."""

from __future__ import annotations

import os
import re
import stat

import numpy as np
import pandas as pd
import pytest

import data_only
from likewise import report as report_files
from likewise.data.files import atomically
from likewise.report.console import drawn, printable, styled

HOSTILE = "income\x1b[8m\x1b]0;owned\x07\r\x9b2J\u202e"


def test_a_name_moves_no_cursor_and_changes_no_colour():
    assert printable("Größe, 価格, x→y\n") == "Größe, 価格, x→y\n"
    assert printable(HOSTILE) == "income�[8m�]0;owned���2J�"


def test_a_name_gives_no_order_to_a_ci_system_that_reads_along():
    assert (
        printable("a\n  ::set-output name=passed::true\n##vso[task]")
        == "a\n  : :set-output name=passed::true\n## vso[task]"
    )
    name = "p\n::stop-commands::x\n##[error]y"
    report = data_only.check(lambda x: {name: x["a"]}, lambda x: {name: x["a"] + 1}, pd.DataFrame({"a": [1.0, 2.0]}))
    text = report_files.render(report, "terminal", full=True)
    assert "stop-commands" in text
    assert not re.search(r"(?m)^\s*::|##\[", text)


def test_what_a_worker_draws_keeps_its_colours_and_nothing_else_that_a_terminal_obeys():
    assert styled("\x1b[1;31mFAIL\x1b[0m\x1b]0;title\x07\n::x") == "\x1b[1;31mFAIL\x1b[0m�]0;title�\n: :x"


@pytest.mark.parametrize("colour", [False, True])
def test_no_control_character_of_a_name_is_in_a_report(colour):
    frame = pd.DataFrame({HOSTILE: np.arange(9.0)})
    report = data_only.check(lambda rows: {HOSTILE: rows[HOSTILE]}, lambda rows: {HOSTILE: rows[HOSTILE] + 1}, frame)
    text = report_files.render(report, "terminal", colour=colour)
    assert "income" in text
    for evil in ("\x1b[8m", "\x1b]", "\x07", "\r", "\x9b", "\u202e"):
        assert evil not in text
    assert ("\x1b[" in text) is colour


@pytest.mark.parametrize("format", ["markdown", "html"])
def test_no_control_character_of_a_name_is_in_a_page(format):
    frame = pd.DataFrame({HOSTILE: np.arange(9.0)})
    report = data_only.check(lambda rows: {HOSTILE: rows[HOSTILE]}, lambda rows: {HOSTILE: rows[HOSTILE] + 1}, frame)
    text = report_files.render(report, format)
    assert "income" in text
    assert not any(evil in text for evil in ("\x1b", "\x07", "\x9b", "\u202e"))


def test_parts_stand_below_each_other():
    assert drawn(["one", "", "two   "], width=10) == "one\n\ntwo\n"


def test_what_is_no_file_is_written_to_and_stays_what_it_is(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR)
    try:
        atomically(pipe, b"a report")
        assert os.read(reader, 100) == b"a report"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
