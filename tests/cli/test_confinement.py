"""Whatever a model makes its process do, that process can do little: seen from outside, by what is there afterwards."""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import struct
import subprocess
import sys
import warnings

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import TensorProto

from likewise.cli import gates
from likewise.models import confinement, remote
from likewise.tasks.isolation import rooms
from planting import command, graph

landlock = pytest.mark.skipif(
    confinement._abi() < 6, reason="this system's kernel has no Landlock of version 6 or later: files are not confined"
)
QUICK = ("--quiet", "--batch-sizes", "none", "--edge", "off", "--no-explain")
ATTACK = """
import ctypes, fcntl, mmap, os, pathlib, socket, subprocess, sys, tempfile

NOT_RESERVED = 0x4000
OUT = pathlib.Path({outside!r})
X86 = os.uname().machine == "x86_64"

def in_a_child(attempt):
    if (child := os.fork()) == 0:
        try:
            attempt()
            os._exit(0)
        finally:
            os._exit(7)
    if os.waitpid(child, 0)[1]:
        raise PermissionError("it could not")

def mode_changed():
    before = (OUT / "secret").stat().st_mode
    os.chmod(OUT / "secret", 0o777)
    if (OUT / "secret").stat().st_mode == before:
        raise PermissionError("the mode is as it was")

def call(number, *arguments):
    if ctypes.CDLL(None, use_errno=True).syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "refused")

def may_read(path="notes/read.txt"):
    return os.open(path, os.O_RDONLY)

def rights_of_root():
    told = dict(line.split(":") for line in open("/proc/self/status") if line.startswith("Cap"))
    if any(int(rights, 16) & ~0x4 for name, rights in told.items() if name != "CapBnd") or int(told["CapBnd"], 16):
        return
    raise PermissionError("none but reading")

TRIES = {{
    "write": lambda: (OUT / "written").write_text("x"),
    "append": lambda: open(OUT / "secret", "a").close(),
    "truncate": lambda: os.truncate(OUT / "secret", 0),
    "delete": lambda: os.unlink(OUT / "secret"),
    "rename": lambda: os.rename(OUT / "secret", OUT / "renamed"),
    "link": lambda: os.link(OUT / "secret", pathlib.Path(tempfile.gettempdir()) / f"linked.{{os.getpid()}}"),
    "chmod": mode_changed,
    "chown": lambda: os.chown(OUT / "secret", os.getuid(), os.getgid()),
    "looking at attributes": lambda: fcntl.ioctl(may_read(), 0x80086601, bytes(8)),
    "attributes": lambda: fcntl.ioctl(may_read(), 0x40086602, bytes(8)),
    "attributes by another call": lambda: fcntl.ioctl(may_read(), 0x401C5820, bytes(28)),
    "version of a file": lambda: fcntl.ioctl(may_read(), 0x40087602, bytes(8)),
    "blocks of another file": lambda: fcntl.ioctl(may_read(), 0x40049409, may_read()),
    "stopping who writes": lambda: fcntl.fcntl(may_read(), 1024, fcntl.F_RDLCK),
    "looking on": lambda: fcntl.fcntl(may_read("notes"), 1026, 0x80000002),
    "signals by a file": lambda: fcntl.fcntl(os.pipe()[0], 8, {parent}),
    "read": lambda: (OUT / "secret").read_text(),
    "list": lambda: os.listdir(OUT),
    "read through a link": lambda: pathlib.Path("linked.txt").read_text(),
    "read what is hidden": lambda: pathlib.Path(".env").read_text(),
    "read what is hidden in a folder": lambda: pathlib.Path("notes/deep/.env").read_text(),
    "read in a hidden folder": lambda: pathlib.Path("notes/.git/config").read_text(),
    "write where we are": lambda: pathlib.Path("conftest.py").write_text("x"),
    "internet": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
    "datagrams": lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
    "local sockets": lambda: socket.socket(socket.AF_UNIX),
    "datagrams to a local name": lambda: socket.socketpair(type=socket.SOCK_DGRAM)[0].sendto(b"x", str(OUT / "daemon")),
    "queues of others": lambda: call(70 if X86 else 188, {queue}, ctypes.create_string_buffer(64), 32, 0, 0x800),
    "watching a folder": lambda: call(294 if X86 else 26, 0),
    "program": lambda: subprocess.run([sys.executable, "-c", ""]),
    "shell": lambda: subprocess.run("true", shell=True),
    "program in its place": lambda: in_a_child(lambda: os.execv(sys.executable, [sys.executable, "-c", ""])),
    "outliving us": lambda: in_a_child(os.setsid),
    "signal": lambda: os.kill({parent}, 0),
    "priority of others": lambda: os.setpriority(os.PRIO_PROCESS, {parent}, os.getpriority(os.PRIO_PROCESS, {parent})),
    "priority of its group": lambda: os.setpriority(os.PRIO_PGRP, 0, os.getpriority(os.PRIO_PROCESS, 0)),
    "scheduling of others": lambda: os.sched_setscheduler({parent}, os.SCHED_OTHER, os.sched_param(0)),
    "before all others": lambda: in_a_child(lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))),
    "sooner than others": lambda: in_a_child(lambda: os.nice(-1)),
    "rights of root": rights_of_root,
    "disk of others": lambda: call(251 if X86 else 30, 1, {parent}, 0),
    "environment of others": lambda: pathlib.Path("/proc/{parent}/environ").read_bytes(),
    "command of others": lambda: pathlib.Path("/proc/{parent}/cmdline").read_bytes(),
    "terminal": lambda: open("/dev/tty", "w"),
    "a process of its own that writes": lambda: in_a_child(lambda: (OUT / "forked").write_text("x")),
    "other calls": lambda: call(425, 8, ctypes.create_string_buffer(256)),
    "more memory than there is": lambda: mmap.mmap(-1, 1 << 44, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NOT_RESERVED),
    "not the first to go when memory runs out": lambda: pathlib.Path("/proc/self/oom_score_adj").write_text("0"),
    "namespaces": lambda: call(272 if os.uname().machine == "x86_64" else 97, 0x10000000),
}}

def escapes(frame):
    done = []
    for name, attempt in TRIES.items():
        try:
            attempt()
            done.append(name)
        except OSError:
            pass
    if done:
        raise RuntimeError("escaped: " + ", ".join(done))
    return {{"y": frame["x"].to_numpy()}}

def leaks(frame):
    return {{"y": frame["x"].to_numpy() + len((OUT / "secret").read_text())}}

def right(frame):
    os.nice(0)
    assert not os.isatty(may_read())
    assert fcntl.ioctl(os.pipe()[0], 0x541B, bytes(4)) == bytes(4)
    assert pathlib.Path("notes/read.txt").read_text() == pathlib.Path("notes/deep/read.txt").read_text() == "x"
    assert sorted(os.listdir("notes")) == [".git", "deep", "read.txt"]
    return {{"y": frame["x"].to_numpy()}}
"""


@pytest.fixture
def outside(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    (folder / "secret").write_text("the key")
    (folder / "secret").chmod(0o600)
    return folder


@pytest.fixture
def place(tmp_path, outside):
    libc = ctypes.CDLL(None)
    queue = libc.msgget(0, 0o1600)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(str(outside / "daemon"))
        for _ in range(8):  # one for every time that a model is asked
            libc.msgsnd(queue, ctypes.create_string_buffer(struct.pack("l", 1) + b"private"), 7, 0)
        words = {"outside": str(outside), "parent": os.getpid(), "queue": queue}
        yield filled(tmp_path, outside, ATTACK.format(**words))
    libc.msgctl(queue, 0, 0)


def filled(tmp_path, outside, attack):
    (tmp_path / "attack.py").write_text(attack)
    for path in (".env", "notes/deep/.env", "notes/.git/config", "notes/read.txt", "notes/deep/read.txt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x")
    (tmp_path / "linked.txt").symlink_to(outside / "secret")
    pd.DataFrame({"x": np.arange(8.0)}).to_parquet(tmp_path / "rows.parquet")
    return tmp_path


def confined(ran):
    return ran.report["provenance"]["run"]["confinement"]


@landlock
@pytest.mark.parametrize("models", ["escapes right", "right escapes"])
def test_code_of_a_model_reaches_nothing(place, outside, models):
    """On either side: the reference has a process of its own."""
    reference, candidate = (f"attack.py:{name}" for name in models.split())
    before = sorted(os.listdir(place))
    ran = command("check", reference, candidate, "--data", "rows.parquet", *QUICK, folder=place).expect(0, "PASS")
    assert confined(ran).startswith(f"landlock abi {confinement._abi()}, ")
    assert confined(ran).endswith("no network, no exec")
    assert sorted(os.listdir(place)) == sorted([*before, "parity_report.json"])
    assert sorted(os.listdir(outside)) == ["daemon", "secret"]
    assert (outside / "secret").read_text() == "the key"
    assert stat.S_IMODE((outside / "secret").stat().st_mode) == 0o600


def test_without_walls_it_would(place):
    """What the other tests forbid is possible, and the report says that nothing forbade it."""
    words = ("check", "attack.py:right", "attack.py:escapes", "--data", "rows.parquet", "--no-sandbox", *QUICK[1:])
    ran = command(*words, folder=place, environment={"TMPDIR": str(place)})
    ran.expect(3, "escaped: write, append, truncate, delete", "Confinement of the models: none")
    assert confined(ran) == "none: --no-sandbox"


@landlock
def test_what_a_model_may_not_do_names_the_way_to_let_it(place):
    words = ("check", "attack.py:right", "attack.py:leaks", "--data", "rows.parquet", *QUICK)
    command(*words, folder=place).expect(3, "Permission denied", "--no-sandbox")


@landlock
def test_a_folder_of_a_command_that_was_killed_is_removed_by_the_next(place, tmp_path_factory):
    temporary = tmp_path_factory.mktemp("tmp")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for owner in (gone.pid, os.getpid()):
        for room in (temporary / f"likewise.{owner}.abc", place / f".likewise.{owner}.abc"):
            room.mkdir()
            (room / rooms.NOTE).write_text(rooms._system())
    words = ("record", "attack.py:right", "--data", "rows.parquet", "-o", "deep/answers.parquet")
    command(*words, folder=place, environment={"TMPDIR": str(temporary)}).expect(0, "8 rows")
    assert os.listdir(temporary) == [f"likewise.{os.getpid()}.abc"]
    assert os.listdir(place / "deep") == ["answers.parquet"]
    assert [name for name in os.listdir(place) if name.startswith(".likewise")] == [f".likewise.{os.getpid()}.abc"]


def in_a_process(code):
    """What some code prints in a process of its own: walls do not come down again."""
    process = remote.start("from likewise.models import confinement\n" + code)
    told, _ = process.communicate(timeout=60)
    return told.decode().strip()


def test_a_wall_that_the_system_lacks_is_said_to_be_missing(tmp_path):
    lacks = "import os; confinement.CREATE_RULESET = 1023; confinement.SECCOMP = {os.uname().machine: 1023}\n"
    told = in_a_process(
        f"{lacks}confinement.enclose(); print(confinement.confine(confinement.Walls(({str(tmp_path)!r},))))"
    )
    assert told == (
        "files open: no landlock (Function not implemented), "
        "network and exec open: no seccomp (Function not implemented)"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
def test_without_landlock_there_is_no_network_and_no_program_all_the_same(tmp_path):
    told = in_a_process(
        f"confinement.CREATE_RULESET = 1023; print(confinement.confine(confinement.Walls(({str(tmp_path)!r},))))\n"
        "import os, socket\n"
        "for attempt in (socket.socket, lambda: os.execv('/bin/true', ['true'])):\n"
        "    try:\n        attempt()\n    except PermissionError:\n        print('denied')\n"
    )
    first, *others = told.splitlines()
    assert first == "files open: no landlock (Function not implemented), no network, no exec"
    assert others == ["denied", "denied"]


@landlock
@pytest.mark.parametrize("network", [False, True])
def test_whoever_is_confined_signals_nobody_outside(tmp_path, network):
    """Actors of a cluster, and what sends requests to a server, have no more to raise their walls by."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        told = in_a_process(
            f"confinement.confine(confinement.Walls(({str(tmp_path)!r},), network={network}))\n"
            "import os, socket\n"
            "for attempt in (\n"
            f"    lambda: os.kill({os.getpid()}, 0),\n"
            "    lambda: os.kill(os.getpid(), 0),\n"
            f"    lambda: socket.create_connection(('127.0.0.1', {server.getsockname()[1]})),\n"
            "):\n"
            "    try:\n        attempt()\n        print('done')\n    except PermissionError:\n        print('denied')\n"
        )
    assert told.split() == ["denied", "done", "done" if network else "denied"]


def test_what_lies_beside_a_model_is_read_with_it_unless_it_is_hidden_or_elsewhere(tmp_path, monkeypatch):
    models, cache = tmp_path / "models", tmp_path / "cache"
    for folder in (models, cache, models / "weights", models / ".git"):
        folder.mkdir()
    for path in (cache / "blob", cache / "blob2", models / "model.bin", models / ".env", tmp_path / "other"):
        path.touch()
    (models / "model.onnx").symlink_to(cache / "blob")
    (models / "stolen").symlink_to(tmp_path / "other")
    told = {os.path.relpath(path, tmp_path) for path in confinement.beside(str(models / "model.onnx"))}
    assert told == {"models/model.onnx", "models/model.bin", "models/weights", "cache/blob", "cache/blob2"}
    monkeypatch.setenv("HOME", str(models))
    told = {os.path.relpath(path, tmp_path) for path in confinement.beside(str(models / "model.bin"))}
    assert told == {"models/model.bin"}


def test_a_folder_with_something_hidden_is_read_in_parts(tmp_path, monkeypatch):
    for name in (
        "m.onnx",
        "clean/deep/a",
        "mixed/.env",
        "mixed/a",
        "mixed/clean/a",
        "mixed/other/.git/a",
        "mixed/other/b",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def told():
        return {os.path.relpath(path, tmp_path) for path in confinement.beside(str(tmp_path / "m.onnx"))}

    assert told() == {"m.onnx", "clean", "mixed/a", "mixed/clean", "mixed/other/b"}
    # What was not looked at may hide something: the folders above it are open in parts, and it is closed.
    monkeypatch.setattr(confinement, "MOST_LOOKED", 7)
    assert told() <= {"m.onnx", "mixed/a", "mixed/clean", "clean/deep"}
    monkeypatch.setattr(confinement, "MOST_BESIDE", 1)
    assert len(told()) <= 2


def test_the_parent_writes_only_what_it_was_asked_for(tmp_path, monkeypatch):
    """A worker that says where files go could have them written anywhere."""
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"x": [1.0]}).to_parquet("rows.parquet")
    files = {"page.html": "the page", "evil.py": "print()"}
    answer = {"outcome": "PASS", "headline": "", "json": "{}", "shown": "", "files": files}
    monkeypatch.setattr(gates, "watched", lambda job, **_: answer)
    from likewise.tasks.settings import settings_from

    table = {"reference": "a.onnx", "candidate": "b.onnx", "data": "rows.parquet", "formats": {"html": "page.html"}}
    gates.carry_out(settings_from(table, where="a test"), quiet=True, debug=False)
    assert sorted(os.listdir(tmp_path)) == ["page.html", "rows.parquet"]


@pytest.fixture(scope="module")
def frameworks(tmp_path_factory):
    """One small model of each framework, in its own file, and rows for all of them."""
    import joblib
    import lightgbm
    import openvino
    import torch
    import xgboost
    from catboost import CatBoostClassifier
    from sklearn.ensemble import BaggingClassifier
    from sklearn.linear_model import LogisticRegression

    place = tmp_path_factory.mktemp("frameworks")
    rows = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    frame, labels = pd.DataFrame(rows, columns=list("abcd")), (rows[:, 0] > 0).astype(int)
    frame.to_parquet(place / "rows.parquet")
    np.savez(place / "rows.npz", x=rows)
    # Asks for processes: there are threads instead.
    bagged = BaggingClassifier(LogisticRegression(), n_estimators=2, random_state=0).fit(frame, labels)
    joblib.dump(bagged.set_params(n_jobs=2), place / "bag.joblib")
    xgboost.XGBClassifier(n_estimators=2, n_jobs=1).fit(frame, labels).save_model(place / "x.ubj")
    booster = lightgbm.LGBMClassifier(n_estimators=2, verbose=-1, n_jobs=1).fit(frame, labels).booster_
    booster.save_model(place / "l.txt")
    forest = CatBoostClassifier(iterations=2, depth=2, verbose=False, allow_writing_files=False, thread_count=1)
    forest.fit(frame, labels).save_model(str(place / "c.cbm"))
    net = torch.nn.Linear(4, 2).eval()
    with warnings.catch_warnings(action="ignore"):
        scripted = torch.jit.script(net)
    scripted.save(str(place / "net.pt"))
    free = ({0: torch.export.Dim("n")},)
    torch.export.save(torch.export.export(net, (torch.from_numpy(rows[:4]),), dynamic_shapes=free), place / "net.pt2")
    torch.save(net.state_dict(), place / "weights.pt")
    (place / "net.py").write_text(
        "import torch\n\ndef make():\n    net = torch.nn.Linear(4, 2)\n"
        "    net.load_state_dict(torch.load('weights.pt'))\n    return net.eval()\n"
    )
    weight, bias = (array.detach().numpy() for array in (net.weight, net.bias))
    proto = graph(
        [("Gemm", ["x", "w", "b"], ["y"], {"transB": 1})],
        {"x": (TensorProto.FLOAT, (None, 4))},
        {"y": (TensorProto.FLOAT, (None, 2))},
        w=weight, b=bias,
    )  # fmt: skip
    (place / "net.onnx").write_bytes(proto)
    onnx.save(onnx.load_from_string(proto), place / "apart.onnx", save_as_external_data=True, size_threshold=0)
    openvino.save_model(openvino.convert_model(place / "net.onnx"), place / "net.xml", compress_to_fp16=False)
    return place


@landlock
@pytest.mark.parametrize(
    ("reference", "candidate", "rows", "code", "options"),
    [
        ("bag.joblib", "l.txt", "rows.parquet", 1, ()),
        ("x.ubj", "c.cbm", "*.parquet", 1, ()),
        ("net.pt2", "net.pt", "rows.npz", 0, ()),
        # Some processors have bfloat16, in which OpenVINO computes unless it is told otherwise.
        ("net.py:make", "net.xml", "rows.npz", 0, ("--candidate-option", "precision=f32")),
        ("net.onnx", "apart.onnx", "rows.npz", 0, ()),
    ],
)
def test_every_framework_answers_inside_the_walls(frameworks, reference, candidate, rows, code, options):
    """Two that were fitted alike answer, and differently; the same network in two formats answers the same."""
    ran = command("check", reference, candidate, "--data", rows, *QUICK, *options, folder=frameworks).expect(code)
    assert ran.report["samples"] == 64
    assert confined(ran).startswith("landlock")
    assert ran.report["provenance"]["warnings"] == []
