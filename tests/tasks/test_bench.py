"""What a benchmark says follows from the samples it keeps; how long anything takes is never asserted."""

from __future__ import annotations

import gc
import json
import math
import statistics as plain_statistics
import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, replace

import joblib
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import likewise
from likewise.contracts.data import Batch, RowIds
from likewise.contracts.models import Model
from likewise.contracts.results import BenchResult, Round
from likewise.data.columns import ArrayColumns
from likewise.errors import DataError, LikewiseError, ModelError, UsageError
from likewise.report import tables
from likewise.report.formats.json import dumps, read
from likewise.tasks import bench as measuring
from likewise.tasks.bench import measure
from likewise.tasks.bench.subject import Subject
from planting import here


@pytest.fixture(scope="module")
def result(example_folder):
    return likewise.bench(
        str(example_folder / "model.joblib"),
        str(example_folder / "model.onnx"),
        str(example_folder / "test.parquet"),
        budget=1.0,
        batch_sizes=[1, 8],
    )


def test_the_result_holds_every_figure(result):
    assert [timing.batch_size for timing in result.timings] == [1, 8]
    assert (result.reference.framework, result.candidate.framework) == ("sklearn", "onnx")
    for model in (result.reference, result.candidate):
        assert model.file_bytes > 0
        assert model.first_load > 0
        assert model.load > 0
        assert model.memory_peak >= model.memory_loaded > 0
    assert result.machine["cores"] >= 1
    assert result.candidate.details["threads"] == 0
    assert any("not timed" in note for note in result.notes)
    assert result.data.endswith("test.parquet")


def percentile(values, share):
    """Linear between the two nearest ranks."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def test_the_statistics_are_those_of_the_samples_in_the_json(result):
    for timing in json.loads(dumps(result))["timings"]:
        medians = {}
        for side in ("reference", "candidate"):
            samples = [value for entry in timing["rounds"] for value in entry[side]]
            said = timing[side]
            assert min(samples) > 0
            assert said["calls"] == len(samples)
            assert said["p50"] == pytest.approx(plain_statistics.median(samples) / 1e6)
            assert said["p90"] == pytest.approx(percentile(samples, 0.9) / 1e6)
            if len(samples) < 100:
                assert said["p99"] is None
            else:
                assert said["p99"] == pytest.approx(percentile(samples, 0.99) / 1e6)
            assert said["rows_per_second"] == pytest.approx(timing["batch_size"] * len(samples) / (sum(samples) / 1e9))
            medians[side] = plain_statistics.median(samples)
        assert timing["ratio"] == pytest.approx(medians["reference"] / medians["candidate"])
        low, high = timing["interval"]
        assert low <= high


def rounds(count=20, calls=7, factor=2.0, seed=3):
    """A machine that is slow for whole rounds at a time, and a candidate that is `factor` times as fast."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        state = rng.lognormal(sigma=0.5)
        ours = 1e6 * factor * state * rng.lognormal(sigma=0.02, size=calls)
        theirs = 1e6 * state * rng.lognormal(sigma=0.02, size=calls)
        order = ("reference", "candidate")
        found.append(Round(order, tuple(ours.astype(int).tolist()), tuple(theirs.astype(int).tolist())))
    return found


def test_the_interval_is_a_seeded_bootstrap_over_rounds():
    taken = rounds()
    ours, theirs = [entry.reference for entry in taken], [entry.candidate for entry in taken]
    found = measuring.interval(ours, theirs, seed=5)
    assert found == measuring.interval(ours, theirs, seed=5)
    assert found != measuring.interval(ours, theirs, seed=6)
    generator = np.random.default_rng(5)
    ratios = []
    for _ in range(measuring.RESAMPLES):
        drawn = generator.integers(0, len(ours), size=len(ours)).tolist()
        numerator = plain_statistics.median(value for index in drawn for value in ours[index])
        denominator = plain_statistics.median(value for index in drawn for value in theirs[index])
        ratios.append(numerator / denominator)
    assert found == pytest.approx((percentile(ratios, 0.025), percentile(ratios, 0.975)))


def test_noise_that_hits_both_sides_does_not_hide_a_difference():
    timing = measuring.timed(16, rounds(factor=2.0), seed=0)
    low, high = timing.interval
    assert 1 < low <= 2 <= high < 4
    same = measuring.timed(16, rounds(factor=1.0), seed=0)
    assert same.interval[0] <= 1 <= same.interval[1]
    assert tables.faster(same) == "as fast"
    assert tables.summary_line(timing).startswith(f"{timing.ratio:.2f}× faster at batch 16 (")
    slower = measuring.timed(16, rounds(factor=0.5), seed=0)
    assert "slower" in tables.faster(slower)
    assert measuring.timed(1, rounds(count=2), seed=0).interval is None


class Clockwork:
    """A station that takes what time it is told, without taking any."""

    def __init__(self, side, log, pace):
        self.side, self.log, self.pace = side, log, pace

    def ask(self, what, *given):
        return getattr(self, what.__name__)(*given)

    def warm_up(self, size):
        return self.pace(size)

    def turn(self, size, calls):
        self.log.append((self.side, size))
        return [self.pace(size)] * calls


def clockwork(log, reference=lambda size: 10_000 * size, candidate=lambda size: 5_000 * size):
    return {"reference": Clockwork("reference", log, reference), "candidate": Clockwork("candidate", log, candidate)}


def test_both_models_take_a_turn_at_every_size_in_every_round_in_random_order():
    log = []
    measured = measure(clockwork(log), [1, 16], budget=0.5, seed=7)
    count = len(measured.rounds[1])
    assert count == len(measured.rounds[16]) == measuring.MOST_ROUNDS
    for number in range(count):
        turns = log[4 * number : 4 * number + 4]
        assert sorted(turns) == [("candidate", 1), ("candidate", 16), ("reference", 1), ("reference", 16)]
        # The two models follow each other at one size.
        assert turns[0][1] == turns[1][1]
    orders = [entry.order for size in (1, 16) for entry in measured.rounds[size]]
    assert 0.2 < orders.count(("reference", "candidate")) / len(orders) < 0.8
    again = []
    measure(clockwork(again), [1, 16], budget=0.5, seed=7)
    assert again == log
    other = []
    measure(clockwork(other), [1, 16], budget=0.5, seed=8)
    assert other != log


def test_the_order_in_the_record_is_the_order_taken():
    log = []
    measured = measure(clockwork(log), [4], budget=0.1, seed=0)
    taken = [tuple(side for side, _ in log[start : start + 2]) for start in range(0, len(log), 2)]
    assert [entry.order for entry in measured.rounds[4]] == taken


def test_sizes_that_do_not_fit_the_budget_are_left_out_and_a_slow_model_gets_the_least_rounds(monkeypatch):
    seconds = iter(range(10_000))
    monkeypatch.setattr(measuring.time, "monotonic", lambda: float(next(seconds)))
    log = []
    slow = clockwork(log, reference=lambda size: size * 400_000_000)
    measured = measure(slow, [1, 16, 256], budget=2.0, seed=0)
    assert measured.left_out == (16, 256)
    assert list(measured.rounds) == [1]
    assert len(measured.rounds[1]) == measuring.LEAST_ROUNDS


def test_the_collector_is_off_while_calls_are_timed_and_on_again_after():
    seen = []

    def model(x):
        seen.append(gc.isenabled())
        return x.sum(axis=1)

    subject = Subject()
    subject.open(Model("python", model))
    rows = RowIds(np.arange(10))
    subject.take(Batch(rows, ArrayColumns({"x": np.ones((10, 2))})), [1, 4])
    times = subject.turn(4, 5)
    assert len(times) == 5
    assert min(times) > 0
    assert not any(seen)
    assert gc.isenabled()
    subject.close()


def test_frames_are_built_before_the_timed_part(example_folder):
    import pandas as pd

    from likewise.registry import open_source

    subject = Subject()
    subject.open(Model("sklearn", joblib.load(example_folder / "model.joblib")))
    subject.take(next(open_source(str(example_folder / "test.parquet")).batches(8)), [4])
    pieces = subject._pieces[4]
    assert [len(piece) for piece in pieces] == [4, 4]
    assert all(isinstance(piece.inputs.frame(), pd.DataFrame) for piece in pieces)
    assert pieces[0].inputs.frame() is pieces[0].inputs.frame()


def test_a_live_object_that_cannot_travel_is_timed_here_without_memory():
    weights = np.ones(3)
    found = likewise.bench(
        lambda x: x @ weights,
        lambda x: (x * weights).sum(axis=1),
        {"x": np.ones((20, 3))},
        budget=0.2,
        batch_sizes=[1, 64],
    )
    assert [timing.batch_size for timing in found.timings] == [1, 20]
    assert found.reference.memory_peak is None
    assert found.reference.file_bytes is None
    assert sum("live object" in note for note in found.notes) == 2
    assert any("20 rows" in note for note in found.notes)
    assert "not measured" in tables.bench_table(found)


def test_a_live_model_that_can_travel_gets_a_process_of_its_own(example_folder):
    pipeline = joblib.load(example_folder / "model.joblib")
    content = (example_folder / "model.onnx").read_bytes()
    found = likewise.bench(pipeline, content, str(example_folder / "test.parquet"), budget=0.2, batch_sizes=[4])
    assert found.reference.memory_peak > 0
    assert found.candidate.file_bytes == len(content)


def test_the_reference_is_asked_only_what_the_candidate_answers(example_folder, tmp_path):
    model = onnx.load(example_folder / "model.onnx")
    for output in [value for value in model.graph.output if value.name == "label"]:
        model.graph.output.remove(output)
    onnx.save(model, tmp_path / "probabilities.onnx")
    found = likewise.bench(
        str(example_folder / "model.joblib"),
        str(tmp_path / "probabilities.onnx"),
        str(example_folder / "test.parquet"),
        budget=0.2,
        batch_sizes=[4],
    )
    assert any("is not asked for" in note and "label" in note for note in found.notes)


def fixed_batch(path, rows):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 2])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def test_a_model_of_one_batch_size_is_timed_at_that(tmp_path):
    data = {"x": np.ones((12, 2), dtype=np.float32)}
    fixed, free = fixed_batch(tmp_path / "fixed.onnx", 8), fixed_batch(tmp_path / "free.onnx", "n")
    found = likewise.bench(free, fixed, data, budget=0.2)
    assert [timing.batch_size for timing in found.timings] == [8]
    assert any("takes no other" in note for note in found.notes)
    with pytest.raises(ModelError, match="batches of 4 and of 8"):
        likewise.bench(fixed_batch(tmp_path / "other.onnx", 4), fixed, data)
    with pytest.raises(DataError, match="of 8 rows only"):
        likewise.bench(free, fixed, {"x": np.ones((3, 2), dtype=np.float32)})


def test_a_model_that_dies_is_named(tmp_path, example_folder):
    (tmp_path / "dying.py").write_text("import os\n\ndef model(frame):\n    os.kill(os.getpid(), 9)\n")
    with pytest.raises(ModelError, match=r"process of the candidate .*dying\.py.* was ended by SIGKILL") as caught:
        likewise.bench(
            str(example_folder / "model.onnx"), f"{tmp_path / 'dying.py'}:model", str(example_folder / "test.parquet")
        )
    assert caught.value.side == "candidate"


def test_a_process_that_is_killed_before_it_was_asked_is_named(monkeypatch):
    from likewise.tasks.bench import subject

    def killed(code):
        process = start("import time; time.sleep(60)")
        process.kill()
        process.wait()
        return process

    start = subject.start
    monkeypatch.setattr(subject, "start", killed)
    with pytest.raises(ModelError, match=r"the process of the reference \(m\.onnx\) was ended by SIGKILL"):
        subject.open_station("reference", Model("onnx", "m.onnx"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": 0}, "--budget is 0"),
        ({"batch_sizes": []}, "--batch-sizes"),
        ({"batch_sizes": [0]}, "--batch-sizes"),
        ({"reference": "golden.parquet"}, "recorded answers, which have no speed"),
        ({"drop": ["nowhere"]}, "no column 'nowhere'"),
    ],
)
def test_a_question_that_makes_no_sense_is_a_usage_error(example_folder, change, message):
    given = {"reference": str(example_folder / "model.onnx"), "data": str(example_folder / "test.parquet"), **change}
    with pytest.raises(UsageError, match=message):
        likewise.bench(given.pop("reference"), str(example_folder / "model.onnx"), given.pop("data"), **given)


def test_what_cannot_be_opened_or_fed_is_said_with_its_side(example_folder, tmp_path):
    with pytest.raises(LikewiseError, match="reference") as caught:
        likewise.bench(
            str(tmp_path / "no.onnx"), str(example_folder / "model.onnx"), str(example_folder / "test.parquet")
        )
    assert caught.value.side == "reference"
    with pytest.raises(LikewiseError, match="does not have"):
        likewise.bench(
            str(example_folder / "model.onnx"), str(example_folder / "model.onnx"), {"other": np.ones((3, 1))}
        )


def test_the_table_fits_eighty_columns_and_names_are_text(result):
    named = replace(result, reference=replace(result.reference, name="[red]a[/red].joblib"))
    text = tables.bench_table(named)
    assert max(map(len, text.splitlines())) <= 80
    assert "[red]a[/red].joblib → " in text
    assert "\x1b" not in text
    assert "\x1b[" in tables.bench_table(named, colour=True)
    for timing in result.timings:
        assert tables.faster(timing) in text


def test_the_plot_is_xml_with_a_title_and_a_line_for_every_size(result):
    named = replace(result, candidate=replace(result.candidate, name='a<b>&"c".onnx'))
    root = ElementTree.fromstring(tables.bench_plot(named))
    space = "{http://www.w3.org/2000/svg}"
    assert root.get("role") == "img"
    assert {root.find(f"{space}title").get("id"), root.find(f"{space}desc").get("id")} == set(
        root.get("aria-labelledby").split()
    )
    assert 'a<b>&"c".onnx' in root.find(f"{space}title").text
    circles = [float(circle.get("cx")) for circle in root.iter(f"{space}circle")]
    assert len(circles) == len(result.timings)
    assert all(tables.LEFT <= x <= tables.WIDTH - tables.RIGHT for x in circles)
    labels = [text.text for text in root.iter(f"{space}text")]
    assert {"batch 1", "batch 8", "1×"} <= set(labels)


def test_a_result_survives_json(result):
    plain = json.loads(dumps(result))
    assert read(BenchResult, plain) == read(BenchResult, asdict(result))
    assert plain["schema_version"] == 1


def test_the_command(example_folder, tmp_path):
    words = ["model.onnx", "model.int8.onnx", "--data", "test.parquet", "--budget", "0.5s", "--batch-sizes", "1,32"]
    files = ["--svg", tmp_path / "speed.svg", "-o", tmp_path / "speed.json"]
    done = here("bench", *words, *files, folder=example_folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("model.onnx → model.int8.onnx\n")
    assert max(map(len, done.stdout.splitlines())) <= 80
    ElementTree.parse(tmp_path / "speed.svg")
    kept = json.loads((tmp_path / "speed.json").read_text())
    assert [timing["batch_size"] for timing in kept["timings"]] == [1, 32]
    assert kept["settings"]["budget"] == 0.5
    missing = here("bench", "a.onnx", "b.onnx", folder=tmp_path)
    assert missing.returncode == 2
    assert "--data is missing" in missing.stderr


def test_times_are_read_as_people_write_them():
    from likewise.cli.options import seconds

    assert [seconds(None, None, text) for text in ("20", "20s", "1.5m")] == [20, 20, 90]
