"""A model in a process of its own answers, fails and dies like one in this process."""

from __future__ import annotations

import pickle
import signal

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

from likewise.contracts.data import Batch, RowIds
from likewise.data.columns import ArrayColumns, ArrowColumns
from likewise.errors import ModelError
from likewise.models.remote import ModelProcessEnded, open_elsewhere
from likewise.registry import adapter, describe_model, open_source

FUNCTIONS = """
import os, sys, warnings

def right(frame):
    return frame["x"].to_numpy()

def complains(frame):
    warnings.warn("old habits")
    return frame["x"].to_numpy()

def raises(frame):
    raise ValueError("no such thing")

def leaves(frame):
    sys.exit(4)

def dies(frame):
    os.kill(os.getpid(), 11)

def babbles(frame):
    for number in range(1, 20):
        try:
            os.write(number, b"babble")
        except OSError:
            pass
    print("and more")
    return frame["x"].to_numpy()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("functions")
    (place / "functions.py").write_text(FUNCTIONS)
    pd.DataFrame({"x": np.arange(50_000.0), "word": ["a", None] * 25_000}).to_parquet(place / "data.parquet")
    return place


@pytest.fixture
def batch(folder):
    return next(open_source(str(folder / "data.parquet")).batches(50_000))


def opened(folder, name):
    return open_elsewhere(describe_model(f"{folder / 'functions.py'}:{name}"), "reference")


def test_it_answers_like_the_same_model_here(tmp_path, batch):
    data = pd.DataFrame({"x": np.arange(300.0), "y": np.arange(300.0)[::-1] ** 2})
    joblib.dump(LogisticRegression(max_iter=50).fit(data / 1e5, data["x"] > 100), tmp_path / "model.joblib")
    model = describe_model(str(tmp_path / "model.joblib"))
    rows = Batch(RowIds(np.arange(300)), ArrayColumns({name: data[name].to_numpy() for name in data}))
    with adapter("sklearn").open(model) as here, open_elsewhere(model, "reference") as there:
        there.arrive()
        assert there.signature == here.signature
        assert there.details == here.details
        expected, found = here.run(rows), there.run(rows)
        assert expected.keys() == found.keys()
        assert all(np.array_equal(expected[name], found[name]) for name in expected)


def test_several_questions_are_answered_in_order(folder, batch):
    from concurrent.futures import ThreadPoolExecutor

    with opened(folder, "right") as runner, ThreadPoolExecutor(3) as pool:
        runner.arrive()
        parts = [batch.slice(start, start + 1_000) for start in range(0, 50_000, 1_000)]
        for part, found in zip(parts, pool.map(runner.run, parts), strict=True):
            assert np.array_equal(next(iter(found.values())).ravel(), part.inputs["x"])


def test_a_slice_of_a_table_travels_alone(batch):
    whole, part = pickle.dumps(batch, protocol=5), pickle.dumps(batch.slice(7, 9), protocol=5)
    assert len(part) < len(whole) / 50
    found = pickle.loads(part)
    assert isinstance(found.inputs, ArrowColumns)
    assert found.inputs.row(0) == batch.inputs.row(7)
    assert list(found.rows.numbers) == [7, 8]


def test_what_it_raises_is_raised_here(folder, batch):
    with opened(folder, "raises") as runner:
        runner.arrive()
        with pytest.raises(ModelError, match="no such thing"):
            runner.run(batch)
    with opened(folder, "leaves") as runner:
        runner.arrive()
        with pytest.raises(SystemExit):
            runner.run(batch)
    with opened(folder, "right_or_wrong") as runner, pytest.raises(ModelError, match="right_or_wrong"):
        runner.arrive()


def test_its_warnings_are_heard_here(folder, batch):
    with opened(folder, "complains") as runner:
        runner.arrive()
        with pytest.warns(UserWarning, match="old habits"):
            runner.run(batch)


def test_its_death_tells_how_it_died(folder, batch):
    with opened(folder, "dies") as runner:
        runner.arrive()
        with pytest.raises(ModelProcessEnded) as caught:
            runner.run(batch)
        assert caught.value.code == -signal.SIGSEGV


def test_what_a_model_writes_is_no_answer(folder, batch):
    with opened(folder, "babbles") as runner:
        runner.arrive()
        found = next(iter(runner.run(batch).values()))
        assert np.array_equal(found.ravel(), batch.inputs["x"])
