"""The fifth attempt: what others leave where a command works, and text that keeps it busy.

Each was a success before: a command that never ended or always failed, a file copied that is nobody's business.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from likewise.cli import gates
from likewise.data.files import CHECKPOINT, another, strangers_file
from likewise.report.console import Line, printable
from likewise.tasks.isolation import rooms

NOBODY = 2**22 + 1
"""A process that there cannot be: Linux has no numbers beyond this."""


def test_folders_that_others_made_are_left_alone(tmp_path):
    """Where files are temporary, anybody can make a folder that looks like one of ours."""
    note = tmp_path / "note"
    note.write_text(rooms._system())
    running = tmp_path / f"likewise.{os.getpid()}.abc"
    by_link, by_note, never = (tmp_path / f"likewise.{NOBODY}.{name}" for name in ("link", "note", "never"))
    for folder in (running, by_note, never, tmp_path / "likewise.99999999999999999999.abc"):
        folder.mkdir()
    (running / rooms.NOTE).write_text(rooms._system())
    by_link.symlink_to(running)
    (by_note / rooms.NOTE).symlink_to(note)
    os.mkfifo(never / rooms.NOTE)
    rooms._sweep(tmp_path, "likewise.")
    assert (running / rooms.NOTE).exists()
    assert (by_note / rooms.NOTE).is_symlink()
    assert never.exists()


def test_folders_of_killed_commands_are_swept_up(tmp_path):
    killed = tmp_path / f"likewise.{NOBODY}.abc"
    (killed / "deep" / "er").mkdir(parents=True)
    (killed / rooms.NOTE).write_text(rooms._system())
    rooms._sweep(tmp_path, "likewise.")
    assert not killed.exists()


@pytest.mark.parametrize("what", ["link", "pipe", "device", "folder"])
def test_only_files_are_opened_where_others_write(tmp_path, what):
    place = tmp_path / "place"
    if what == "pipe":
        os.mkfifo(place)
    elif what == "folder":
        place.mkdir()
    else:
        place.symlink_to("/dev/zero" if what == "device" else __file__)
    with pytest.raises(OSError), strangers_file(place):  # noqa: PT011 - whatever the system says
        pass


def test_a_pipe_where_the_report_would_go_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("parity_report.json")
    assert not gates._tells_a_verdict(Path("parity_report.json"))


def test_a_worker_has_no_other_file_kept_as_a_checkpoint(tmp_path):
    """It lives while the command looks, and could put a link to anything in the place of what it was seen to write."""
    place, made = tmp_path / "report.json.checkpoint", tmp_path / "made"
    made.write_bytes(b"what somebody keeps for himself")
    rooms.put_checkpoint(made, str(place))
    assert not place.exists()
    made.write_bytes(CHECKPOINT + b"reached")
    rooms.put_checkpoint(made, str(place))
    assert place.read_bytes() == CHECKPOINT + b"reached"
    assert not made.exists()


@pytest.mark.parametrize(
    "content",
    [b"{" + b'"outputs": "opsets": {' * 5000, b"<svg " + b'aria-labelledby="title description"' * 3500],
    ids=["description", "drawing"],
)
def test_a_file_that_repeats_itself_is_looked_through_once(tmp_path, content):
    """What lies where a report goes is looked at by the command itself, which no `--timeout` ends."""
    place = tmp_path / "parity_report.json"
    place.write_bytes(content)
    assert another(place) == "what it holds was not written by likewise"


def test_long_names_are_shown_without_an_end_to_the_work():
    assert printable("\n" * 300_000 + "::error::x").endswith("\n: :error::x")
    wide = Line("名" * 30_000).wrapped(80, colour=False).splitlines()
    assert [len(line) for line in wide] == [40] * 750
