"""A run that was killed goes on from what it had reached, and ends with the report of one that was not."""

from __future__ import annotations

import json
import pickle

import numpy as np
import pandas as pd
import pytest

import likewise
from likewise.data.files import CHECKPOINT
from likewise.data.readers.arrays import StoredArrays
from likewise.errors import UsageError
from likewise.report import render
from likewise.tasks.check import investigate
from likewise.tasks.checkpoints import Checkpoint, _read
from likewise.tasks.settings import settings_from
from planting import command

ROWS = 120_000
CODE = """
import os
import pathlib

import numpy as np

def reference(rows):
    return {"value": np.asarray(rows["x"])}

def candidate(rows):
    x = np.asarray(rows["x"])
    if os.path.exists("stop") and x.max() >= 90_000:
        if pathlib.Path("stop").read_text() == "abort":
            os.abort()
        raise KeyboardInterrupt
    if os.path.exists("again") and 1_000 <= x.max() < 16_000:
        os._exit(9)
    return {"value": x + (x % 1_000 == 999) * (x + 1)}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    (folder / "code.py").write_text(CODE)
    rows = {"x": np.arange(float(ROWS)), "name": [f"row {n}" for n in range(ROWS)], "kind": np.arange(ROWS) % 3}
    pd.DataFrame(rows).to_parquet(folder / "rows.parquet")
    np.savez(folder / "rows.npz", x=rows["x"], kind=rows["kind"])
    return folder


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    yield folder
    for name in ("stop", "again"):
        (folder / name).unlink(missing_ok=True)


def settings(**other):
    table = {"reference": "code.py:reference", "candidate": "code.py:candidate", "data": "rows.parquet"}
    table |= {"edge": "off", "batch_sizes": [], "explain": False}
    return settings_from({**table, **other}, where="here")


def interrupted(place, chosen):
    """What was reached by a run that was interrupted after more than half of the rows."""
    with open("stop", "w"), pytest.raises(KeyboardInterrupt):
        investigate(chosen, checkpoint=Checkpoint(chosen, place.write_bytes, every=0))
    (place.parent / "stop").unlink(missing_ok=True)


def resumed(place, chosen):
    """The report of a run that goes on, and what was said of the checkpoint."""
    checkpoint = Checkpoint(chosen, lambda _: None, every=1e9, old=place)
    return investigate(chosen, checkpoint=checkpoint)[0], checkpoint.said


def without_times(report):
    plain = json.loads(render(report, "json"))
    for name in ("created", "digest", "run"):
        del plain["provenance"][name]
    return plain


@pytest.mark.parametrize(
    "other",
    [{}, {"id": "name", "stratify": "kind"}, {"data": "rows.npz"}, {"workers": 2}],
    ids=["table", "ids and strata", "arrays", "workers"],
)
def test_a_run_that_goes_on_ends_like_one_that_was_not_interrupted(here, other):
    chosen, place = settings(**other), here / "kept"
    whole, _ = investigate(chosen)
    if "workers" in other:
        # Other processes die of what they are told to; here only what they hand in counts.
        states = []
        investigate(chosen, checkpoint=Checkpoint(chosen, states.append, every=0))
        place.write_bytes(states[len(states) // 2])
    else:
        interrupted(here / "kept", chosen)
        # From now on the candidate ends the process that asks for the first rows.
        (here / "again").touch()
    report, said = resumed(place, chosen)
    assert "rows were compared already" in said
    assert without_times(report) == without_times(whole)
    assert whole.comparison.rows_beyond == ROWS / 1_000


def test_a_checkpoint_of_another_question_is_not_used(here):
    chosen, place = settings(samples=40_000), here / "kept"
    investigate(chosen, checkpoint=Checkpoint(chosen, place.write_bytes, every=0))
    assert "Resumed" in resumed(place, chosen)[1]
    other = settings(samples=40_000, abs_tol=0.9)
    report, said = resumed(place, other)
    assert "other files, settings or versions" in said
    assert "differ by more than 0.9" in report.headline
    (here / "code.py").write_text(CODE + "\n# changed\n")
    try:
        assert "other files, settings or versions" in resumed(place, chosen)[1]
    finally:
        (here / "code.py").write_text(CODE)
    content = place.read_bytes()
    place.write_bytes(content[:-20])
    assert "damaged" in resumed(place, chosen)[1]
    place.write_bytes(content.removeprefix(CHECKPOINT))
    assert "not a checkpoint" in resumed(place, chosen)[1]
    place.unlink()
    assert "There is no" in resumed(place, chosen)[1]


class _Attack:
    def __reduce__(self):
        return exec, ("open('owned', 'w').close()",)


def test_a_checkpoint_runs_nothing(here):
    chosen, place = settings(samples=40_000), here / "kept"
    investigate(chosen, checkpoint=Checkpoint(chosen, place.write_bytes, every=0))
    head = place.read_bytes()[: len(CHECKPOINT) + 64]
    place.write_bytes(head + pickle.dumps(_Attack()))
    assert "builtins.exec" in resumed(place, chosen)[1]
    assert not (here / "owned").exists()


class Made:
    """Has a function called and what it made filled, while it is read."""

    def __init__(self, *told):
        self.told = told

    def __reduce__(self):
        return self.told


def array(kind, length, content):
    return Made(np._core.multiarray._reconstruct, (np.ndarray, (0,), b"b"), (1, (length,), kind, False, content))


def record(fields, flags):
    return Made(np.dtype, ("V8", False, True), (3, "|", None, ("a",), fields, 8, 1, flags))


@pytest.mark.parametrize(
    "content",
    [
        array(record({"a": (np.dtype("O"), 0)}, 0), 1, b"A" * 8),
        array(record({"a": (np.dtype("f8"), 0), "b": (np.dtype("f8"), 10**9)}, 16), 1, bytes(8)),
        array(np.dtype("O"), 10**7, [1]),
    ],
    ids=["pointers", "a field beyond its end", "more objects than there are"],
)
def test_numbers_in_a_checkpoint_stay_inside_its_arrays(content):
    """The first and the last of these crashed Python."""
    with pytest.raises(pickle.UnpicklingError, match="it is changing numpy"):
        _read(pickle.dumps(content), "rows.npz")


def test_a_checkpoint_names_no_other_file(tmp_path):
    for name in ("rows", "private"):
        np.save(tmp_path / f"{name}.npy", np.arange(3))
    kept = pickle.dumps(StoredArrays(str(tmp_path / "rows.npy")))
    assert len(_read(kept, str(tmp_path / "rows.npy"))) == len(_read(kept, str(tmp_path / "ro*"))) == 1
    for data in (None, str(tmp_path / "private.npy")):
        with pytest.raises(pickle.UnpicklingError, match="none of the data's"):
            _read(kept, data)


def test_a_command_keeps_what_it_reached_beside_its_report(here):
    words = ["check", "code.py:reference", "code.py:candidate", "--data", "rows.parquet", "--edge", "off"]
    words += ["--batch-sizes", "none", "--no-explain", "--report", "out.json", "--checkpoint", "0s"]
    (here / "stop").write_text("abort")
    command(*words, folder=here, timeout=300).expect(3, "SIGABRT")
    assert (here / "out.json.checkpoint").read_bytes().startswith(CHECKPOINT)
    (here / "stop").unlink()
    (here / "again").touch()
    again = command(*words, "--resume", folder=here, timeout=300).expect(1, "120 of 120,000 rows")
    assert "Resumed from out.json.checkpoint" in again.stderr
    assert not (here / "out.json.checkpoint").exists()


@pytest.mark.parametrize("isolate", [False, True])
def test_python_goes_on_too(here, tmp_path, isolate):
    options = {"edge": "off", "batch_sizes": (), "explain": False, "report": tmp_path / "report.json"}
    chosen = settings(report=str(tmp_path / "report.json"))
    named = ("code.py:reference", "code.py:candidate", "rows.parquet")
    whole = likewise.check(*named, **options)
    place = tmp_path / "report.json.checkpoint"
    interrupted(place, chosen)
    (here / "stop").unlink(missing_ok=True)
    (here / "again").touch()
    report = likewise.check(*named, **options, isolate=isolate, resume=True)
    found, expected = without_times(report), without_times(whole)
    # A worker has other packages imported than this process.
    assert found.pop("provenance")["settings"] == expected.pop("provenance")["settings"]
    assert found == expected
    assert not place.exists()


def test_python_says_what_it_does_not_use(here, tmp_path):
    options = {"edge": "off", "batch_sizes": (), "explain": False, "samples": 100}
    named = ("code.py:reference", "code.py:candidate", "rows.parquet")
    with pytest.raises(UsageError, match="no file beside which to keep"):
        likewise.check(*named, **options, resume=True)
    interrupted(tmp_path / "report.json.checkpoint", settings())
    (here / "stop").unlink(missing_ok=True)
    with pytest.warns(UserWarning, match="belongs to other files, settings or versions"):
        report = likewise.check(*named, **options, report=tmp_path / "report.json", resume=True)
    assert report.samples == 100
