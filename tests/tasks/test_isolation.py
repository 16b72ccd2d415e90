"""`isolate=True`: the models of a Python caller in a worker, as those of a command."""

from __future__ import annotations

import pickle
import subprocess
import sys
from contextvars import Context

import numpy as np
import pytest

import data_only
import likewise
from likewise.errors import UsageError
from planting import codes, expect

MODELS = """
import ctypes, os, time
import numpy as np

OWN = os.getpid()

def double(x):
    return 2.0 * np.asarray(x)

def asleep(x):
    told = os.environ.get("OMP_WAIT_POLICY"), os.environ.get("OPENBLAS_THREAD_TIMEOUT")
    return double(x) if told == ("PASSIVE", "4") else np.zeros(len(x))

def crashes(x):
    if (np.asarray(x) == 30).any():
        ctypes.string_at(0)
    return double(x)

def killed(x):
    os.kill(os.getpid(), 9)

def waits(x):
    while len(np.asarray(x)):
        time.sleep(1)
"""
ROWS = {"x": np.arange(50.0)}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Functions of a module, as a caller has them."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "isolated_models.py").write_text(MODELS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        import isolated_models

        yield isolated_models
        del sys.modules["isolated_models"]


def test_live_models_and_data_give_the_report_that_they_give_here(models):
    def both():
        apart = data_only.check(models.double, models.double, ROWS, isolate=True, allow_same=True)
        return apart, data_only.check(models.double, models.double, ROWS, allow_same=True)

    apart, here = Context().run(both)  # commands that ran in this process have told of their own walls
    assert apart.outcome == here.outcome == "PASS"
    assert apart.comparison.outputs == here.comparison.outputs
    assert apart.origin.data == here.origin.data
    if sys.platform == "linux":
        assert "no network" in apart.origin.run["confinement"]
    assert "the caller's own process" in here.origin.run["confinement"], "what held there is not told of here"


def test_threads_that_wait_leave_the_cores_to_the_other_model_unless_a_user_says_so(models, monkeypatch):
    for name in ("OMP_WAIT_POLICY", "OPENBLAS_THREAD_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    assert data_only.check(models.double, models.asleep, ROWS, isolate=True).passed
    assert not data_only.check(models.double, models.asleep, ROWS).passed, "the caller's own process is left alone"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert not data_only.check(models.double, models.asleep, ROWS, isolate=True).passed


def test_a_crash_is_inconclusive_and_names_the_row(models):
    report = data_only.check(models.double, models.crashes, ROWS, isolate=True, explain=True)
    expect(report, "INCONCLUSIVE", "SIGSEGV", "while the candidate ran", "row 30 alone is enough")


def test_memory_that_ran_out_is_inconclusive(models):
    expect(data_only.check(models.double, models.killed, ROWS, isolate=True), "INCONCLUSIVE", "as when memory runs out")


def test_a_hang_ends_in_time_only_where_something_can_end_it(models):
    expect(
        data_only.check(models.double, models.waits, ROWS, isolate=True, timeout=6),
        "INCONCLUSIVE",
        "no answer within 6",
    )
    with pytest.raises(UsageError, match="isolate=True"):
        data_only.check(models.double, models.waits, ROWS, timeout=6)


class Runs:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return subprocess.check_call, (["touch", str(self.file)],)


def test_a_live_model_lends_no_trust_to_a_file(models, tmp_path):
    (tmp_path / "stranger.pkl").write_bytes(pickle.dumps(Runs(tmp_path / "ran")))
    report = data_only.check(models.double, tmp_path / "stranger.pkl", ROWS, isolate=True)
    assert codes(report) >= {"untrusted-model"}
    assert not (tmp_path / "ran").exists()


def test_what_cannot_be_sent_is_a_usage_error(models, tmp_path):
    with pytest.raises(UsageError, match=r"the candidate cannot be sent .* `module:attribute`"):
        likewise.check(models.double, lambda x: x, ROWS, isolate=True)
    with pytest.raises(UsageError, match="reference_options cannot be sent"):
        likewise.check(models.double, models.double, ROWS, isolate=True, reference_options={"factory": models.double})
