"""One command gives one report, on an idle machine and on a busy one: no clock chooses what is asked."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

import data_only
from likewise.compare.engines import local
from likewise.tasks.check import investigate, settings_of
from planting import FLOAT, graph

TENSORS = np.random.default_rng(8).normal(size=(3_000, 400)).astype(np.float32)


class Busy:
    """A model under a clock that it moves on by so many seconds a row: no test has to wait for it."""

    def __init__(self, monkeypatch):
        self.seconds = self.now = 0.0
        self.calls = []
        for name in ("monotonic", "perf_counter"):
            monkeypatch.setattr(time, name, lambda: self.now)

    def sums(self, x):
        """Depends on the rows of a call, as activations that are scaled by the largest of them do."""
        self.calls.append(len(x))
        self.now += self.seconds * len(x)
        return {"value": x.sum(axis=1) + 1e-5 * len(x)}


def compared(report):
    return report.comparison, report.verdict, report.origin.run["call_sizes"]


def test_the_rows_of_a_call_are_chosen_by_rule_and_told(monkeypatch):
    busy = Busy(monkeypatch)

    def asked(seconds):
        busy.seconds, busy.calls = seconds, []
        report = data_only.check(lambda x: {"value": x.sum(axis=1)}, busy.sums, {"x": TENSORS}, batch_sizes=())
        return report, list(busy.calls)

    (idle, calls), (slow, same) = asked(0.0), asked(0.1)
    assert calls == same
    assert compared(idle) == compared(slow)
    # 1 MiB of four hundred float32 numbers a row are 655 rows; the very first call is smaller, to be seen soon.
    assert idle.origin.run["call_sizes"] == {"reference": 655, "candidate": 655}
    # The first rows again at the end, because some are beyond tolerance.
    assert calls == [32, 256, *[655] * 4, 3_000 - 256 - 4 * 655, 32]


@pytest.mark.parametrize(
    ("width", "dtype", "rows"),
    [(1, "f4", 16_384), (40, "f4", 6_553), (1_000, "f4", 262), (128, "i8", 256), (100_000, "f4", 8)],
    ids=["few", "some", "many", "tokens", "images"],
)
def test_tensors_are_asked_by_their_bytes(width, dtype, rows):
    data = {"x": np.zeros((12, width), dtype=dtype)}
    report = data_only.check(lambda x: {"value": x[:, 0]}, lambda x: {"value": x[:, 0]}, data, batch_sizes=())
    assert report.origin.run["call_sizes"]["reference"] == rows


def test_columns_of_a_table_are_asked_a_chunk_at_a_time():
    data = {name: np.zeros(100) for name in "ab"}
    report = data_only.check(lambda x: x["a"], lambda x: x["a"], data, batch_sizes=())
    assert report.origin.run["call_sizes"] == {"reference": local.CHUNK_ROWS, "candidate": local.CHUNK_ROWS}


def test_both_models_are_asked_in_the_same_calls_also_where_one_takes_one_size_only():
    candidate = graph(
        [("ReduceMean", ["x"], ["mean"], {"axes": [0]}), ("Sub", ["x", "mean"], ["value"], {})],
        {"x": (FLOAT, [4, 400])},
        {"value": (FLOAT, [4, 400])},
    )
    # Both subtract the mean of the four rows of a call.
    report = data_only.check(lambda x: {"value": x - x.mean(axis=0)}, candidate, {"x": TENSORS[:100]}, fixed_batch=True)
    assert report.passed, report.verdict.headline
    assert report.origin.run["call_sizes"] == {"reference": 4, "candidate": 4}


def test_two_runs_differ_in_nothing_but_when_they_ran():
    def run():
        report = data_only.check(lambda x: {"value": x.sum(axis=1)}, lambda x: {"value": x.sum(axis=1)}, {"x": TENSORS})
        return replace(report, origin=replace(report.origin, created="", run={**report.origin.run, "seconds": {}}))

    assert run() == run()


def test_what_was_done_is_told_every_few_calls():
    told = []
    tokens = np.ones((10_000, 128), dtype=np.int64)

    def model(x):
        return {"value": x[:, 0]}

    settings = settings_of(model, model, {"x": tokens}, **data_only.OPTIONS, batch_sizes=())
    report, _ = investigate(settings, progress=told.append)
    assert report.passed
    done = sorted({event.done for event in told if event.phase == "comparing"})
    # Calls of 256 rows, sixteen a chunk.
    assert done == [0, 4_096, 8_192]
