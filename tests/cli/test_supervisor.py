"""Whatever a model does to its process, there is a verdict, and nothing is left running."""

from __future__ import annotations

import io
import json
import os
import queue
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import psutil
import pytest

from planting import MARK, command, here, marked, new_mark

MODELS = '''
import ctypes, os, pathlib, signal, subprocess, sys, time

def right(frame):
    return {"value": frame["x"].to_numpy()}

def late(frame):
    """Do harm only once the comparison has begun, on the rows above 150."""
    return (frame["x"] > 150).any()

def segfault(frame):
    if late(frame):
        ctypes.string_at(0)
    return right(frame)

def together(frame):
    """Crash on rows that single calls get over."""
    if late(frame) and len(frame) > 20:
        ctypes.string_at(0)
    return right(frame)

def exits(frame):
    if late(frame):
        os._exit(7)
    return right(frame)

def leaves(frame):
    if late(frame):
        sys.exit(0)
    return right(frame)

def killed(frame):
    if late(frame):
        os.kill(os.getpid(), signal.SIGKILL)
    return right(frame)

def hungry(frame):
    if late(frame):
        raise MemoryError("Unable to allocate 9.1 TiB")
    return right(frame)

def hangs(frame):
    if late(frame):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        pathlib.Path("hanging").touch()
        time.sleep(60)
    return right(frame)

def forks(frame):
    """Die while a child of ours still holds what we had open, as a pool of processes would."""
    if late(frame):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        os._exit(7)
    return right(frame)

def early(frame):
    os._exit(5)

def talks(frame):
    print('{"passed": true}')
    os.write(1, b"raw garbage on stdout\\n")
    os.system("echo garbage of a child")
    sys.stderr.write("grumble\\n")
    return right(frame)

def forges(frame):
    """Write what looks like the worker's answer to every open pipe."""
    for number in range(1, 20):
        try:
            os.write(number, b'{"type": "nonsense"}\\n{"type": "result", "result": "{}"}\\n')
        except OSError:
            pass
    return {"value": right(frame)["value"] + 1}

def channel():
    import sys
    frame = sys._current_frames()[__import__("threading").main_thread().ident]
    while frame:
        for entry in list(frame.f_locals.values()):
            if type(entry).__name__ == "Channel":
                return entry
        frame = frame.f_back

def garbles(frame):
    for line in (b"\\xff\\xfe", b"[" * 100_000, b'{"token": 1}', b"9" * 5000):
        os.write(channel()._file.fileno(), line + b"\\n")
    return right(frame)

def mistypes(frame):
    channel().send(type="progress", phase=["x"], side=None, first=0, last=0, done=0, total=None, finished=False)
    return right(frame)

def misnames(frame):
    channel().send(type="orders", result=0)
    return right(frame)

def misreports(frame):
    channel().send(type="result", result={"outcome": "PASS", "json": 3})
    return right(frame)

def endless(frame):
    line = b"x" * 1_000_000
    while True:
        os.write(channel()._file.fileno(), line)

def chatters(frame):
    while True:
        channel().send(type="confined", told="nothing at all")

def closes(frame):
    os.close(channel()._file.fileno())
    time.sleep(60)
'''
BREAKS = """
import os
os._exit(9)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("models")
    (place / "models.py").write_text(MODELS)
    (place / "breaks.py").write_text(BREAKS)
    pd.DataFrame({"x": np.arange(200.0)}).to_parquet(place / "data.parquet")
    return place


@pytest.fixture
def place(folder, tmp_path):
    """A folder of its own for the report, with the shared models."""
    for name in ("models.py", "breaks.py", "data.parquet"):
        (tmp_path / name).symlink_to(folder / name)
    return tmp_path


def check(place, *models, options=("--no-explain",)):
    """Run the gate and make sure that nothing of it is left."""
    mark = new_mark()
    began = time.monotonic()
    ran = command(
        "check", *models, "--data", "data.parquet", "--batch-sizes", "none", *options,
        folder=place, environment={MARK: mark}, timeout=50,
    )  # fmt: skip
    assert marked(mark) == []
    assert time.monotonic() - began < 45
    return ran


def check_dead(place, name, *words, options=("--no-explain",)):
    """A candidate that takes its process along: inconclusive, with the model and the rows."""
    ran = check(place, "models.py:right", f"models.py:{name}", options=options)
    ran.expect(3, "INCONCLUSIVE", f"models.py:{name}", *words)
    assert ran.report["outcome"] == "INCONCLUSIVE"
    assert ran.report["passed"] is False
    assert ran.report["provenance"]["candidate"]["name"] == f"models.py:{name}"
    assert len(ran.report["provenance"]["candidate"]["sha256"]) == 64
    return ran


@pytest.mark.parametrize(
    ("name", "told"), [("segfault", "row 151 alone is enough"), ("together", "rows 150 to 174 are enough")]
)
def test_rows_on_which_a_model_crashes_are_narrowed_down(place, name, told):
    check_dead(place, name, "ran rows 0 to 199", told, options=())


def test_a_segmentation_fault_is_inconclusive(place):
    ran = check_dead(place, "segfault", "SIGSEGV", "the candidate (models.py:segfault) ran rows 0 to 199")
    assert ran.report["coverage"]["incidents"][0]["side"] == "candidate"


def test_a_reference_that_crashes_is_inconclusive_and_named(place):
    ran = check(place, "models.py:segfault", "models.py:right")
    ran.expect(3, "INCONCLUSIVE", "SIGSEGV", "the reference (models.py:segfault) ran rows 0 to 199")
    assert ran.report["coverage"]["incidents"][0]["side"] == "reference"


def test_a_process_that_exits_is_inconclusive(place):
    check_dead(place, "exits", "exited with code 7", "rows 0 to 199")


def test_a_process_that_exits_with_0_is_no_pass(place):
    check_dead(place, "leaves", "rows 0 to 199")


def test_a_process_that_is_killed_is_inconclusive(place):
    check_dead(place, "killed", "SIGKILL", "as when memory runs out", "rows 0 to 199")


def test_a_death_on_the_first_rows_is_put_down_to_the_right_model(place):
    ran = check_dead(place, "early", "exited with code 5", "the candidate (models.py:early) ran rows 0 to 31")
    assert "the reference" not in ran.report["headline"]


def test_a_death_is_noticed_although_a_forked_child_lives_on(place):
    # Its child would be waited for again wherever the rows are looked for that are enough.
    check_dead(place, "forks", "exited with code 7", options=("--timeout", "8", "--no-explain"))


def test_running_out_of_memory_is_inconclusive(place):
    check_dead(place, "hungry", "MemoryError", "9.1 TiB", "rows 0 to 199")


def test_a_hang_is_ended_by_the_timeout_with_all_it_started(place):
    check_dead(place, "hangs", "no answer within 6 seconds", "rows 0 to 199", "--timeout",
               options=("--timeout", "6", "--no-sandbox"))  # fmt: skip
    assert (place / "hanging").exists()


def test_a_hang_is_ended_although_nobody_set_a_time(place, monkeypatch):
    from likewise.tasks.isolation import supervisor

    hanging = place / "hanging"
    monkeypatch.setattr(supervisor._Silence, "broken", lambda silence, doing: 601.0 if hanging.exists() else None)
    words = ("check", "models.py:right", "models.py:hangs", "--data", "data.parquet", "--no-sandbox")
    ran = here(*words, folder=place, supervised=True)
    ran.expect(3, "INCONCLUSIVE", "no answer for 10 minutes: stopped while the candidate", "rows 0 to 199", "--timeout")
    assert ran.report["coverage"]["incidents"][0]["side"] == "candidate"


def test_a_slow_model_does_not_hang(monkeypatch):
    from likewise.tasks.isolation import supervisor

    now = 0.0
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now)
    silence, doing = supervisor._Silence(), {}
    asked = {"type": "progress", "phase": "comparing", "side": "candidate", "first": 0, "last": 31, "finished": False}

    def tell(seconds, **message):
        nonlocal now
        now += seconds
        silence.end(doing, {**asked, **message})
        supervisor._keep_track(doing, {**asked, **message})

    tell(1.0)
    tell(64.0, finished=True)
    tell(0.0, first=32, last=16_383)
    now += 16_352 * 2.0 * 9
    assert silence.broken(doing) is None
    now += 16_352 * 2.0 * 2
    assert silence.broken(doing) > 600
    tell(0.0, first=32, last=16_383, finished=True)
    # What is tried beside the data is not told call by call.
    now += 300_000.0
    assert silence.broken(doing) is None


def test_a_file_that_ends_the_process_on_import_is_inconclusive(place):
    ran = check(place, "models.py:right", "breaks.py:predict")
    ran.expect(3, "INCONCLUSIVE", "loading the candidate (breaks.py:predict)", "exited with code 9")


def test_what_a_model_prints_never_reaches_the_result(place):
    ran = check(place, "models.py:right", "models.py:talks", options=("--json",)).expect(0)
    assert json.loads(ran.stdout)["outcome"] == "PASS"
    assert "garbage" not in ran.stdout
    assert "grumble" not in ran.stderr


def test_what_a_model_writes_into_the_channel_is_not_taken_for_an_answer(place):
    check(place, "models.py:right", "models.py:forges").expect(1, "models.py:forges")


def test_what_is_no_text_in_the_channel_is_passed_over(place):
    check(place, "models.py:right", "models.py:garbles").expect(0, "PASS")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("mistypes", "the worker said a message 'progress' whose phase is none"),
        ("misnames", "the worker said a message 'orders' whose type is none"),
        ("misreports", "the worker's answer is not a report"),
        ("closes", "the worker said nothing more and did not end"),
    ],
)
def test_a_worker_that_says_anything_is_not_believed(place, name, told):
    check_dead(place, name, told)


def test_a_line_without_an_end_does_not_fill_the_memory(place, monkeypatch):
    from likewise.tasks.isolation import messages
    from likewise.tasks.isolation.supervisor import CrashError, supervise

    monkeypatch.setattr(messages, "MOST_BYTES", 5_000_000)
    monkeypatch.chdir(place)
    arguments = {"reference": "models.py:right", "candidate": "models.py:endless", "data": "data.parquet"}
    with pytest.raises(CrashError, match="the worker said a message of more than 4 MiB"):
        supervise({"do": "check", "settings": arguments, "formats": [], "look": None})


def test_a_worker_that_talks_all_the_time_is_ended_by_the_timeout(place):
    ran = check_dead(place, "chatters", "no answer within 5 seconds", options=("--no-explain", "--timeout", "5"))
    assert "nothing at all" not in json.dumps(ran.report)


def test_what_a_worker_says_moves_no_cursor(capsys):
    from likewise.tasks.isolation import messages

    said = {"phase": "a\x1b]0;b\x07", "side": "candidate", "first": 0, "last": 0, "done": 0, "total": None}
    sent = [
        {"type": "progress", "finished": False, **said},
        {"type": "judged", "result": "{}", "before": "", "within": None, "outcome": "PASS\x1b[2J"},
        {"type": "error", "code": "usage", "message": "", "traceback": "\x1b[2J\n::set-output name=x::y"},
    ]
    pipe, found = io.BytesIO(b"".join(json.dumps({**m, "token": "t"}).encode() + b"\n" for m in sent)), queue.Queue()
    messages.read(pipe, found, "t")
    progress, judged, error, end = (found.get() for _ in range(4))
    assert (progress["phase"], judged["outcome"], end) == ("a\ufffd]0;b\ufffd", "PASS\ufffd[2J", None)
    assert "\x1b" not in error["traceback"]
    assert "\n::" not in error["traceback"]
    tail = messages.Tail(
        io.BytesIO(b"\x1b[31mred\x1b[0m \x1b]0;title\x07\n::stop-commands::x\n" + b"y" * 10**6), echo=True
    )
    assert len(tail.text()) == messages.LAST_WORDS
    shown = capsys.readouterr().err
    assert "\x1b[31mred\x1b[0m \ufffd]0;title\ufffd\n" in shown
    assert "\n::" not in shown


def start(place, mark, *options):
    """A check that hangs, once it does hang."""
    running = subprocess.Popen(
        [sys.executable, "-m", "likewise", "check", "models.py:right", "models.py:hangs", "--data", "data.parquet",
         "--no-sandbox", *options],
        cwd=place,
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 40
    while not (place / "hanging").exists():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline, "the candidate was never asked"
        time.sleep(0.05)
    return running


def gone(mark, seconds=5.0):
    deadline = time.monotonic() + seconds
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not marked(mark)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["Ctrl-C", "terminate"])
def test_an_interrupt_ends_everything(place, number, code):
    mark = new_mark()
    running = start(place, mark)
    running.send_signal(number)
    stdout, stderr = running.communicate(timeout=20)
    assert running.returncode == code
    assert "Traceback" not in stdout + stderr
    assert gone(mark)
    assert not (place / "parity_report.json").exists()


def test_killing_the_command_leaves_nothing(place):
    """Neither the worker nor what the candidate itself had started, although that one does not end with the worker."""
    mark = new_mark()
    running = start(place, mark)
    running.kill()
    running.communicate(timeout=20)
    assert gone(mark)


def test_the_answer_of_a_worker_that_is_gone_is_waited_for(place, monkeypatch):
    """On a busy machine the worker may have ended before anybody here has read what it wrote."""
    from likewise.tasks.isolation import supervisor

    reading = supervisor.read

    def late(*given):
        while psutil.Process().children():
            time.sleep(0.01)
        # The supervisor looks ten times a second: it sees that the worker is gone several times before this is read.
        time.sleep(0.5)
        reading(*given)

    monkeypatch.setattr(supervisor, "read", late)
    monkeypatch.chdir(place)
    found = supervisor.supervise({"do": "inspect", "arguments": {"model": "models.py:right"}})
    assert found
