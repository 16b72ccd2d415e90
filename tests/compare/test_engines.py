"""Several processes, or a cluster, compare what one process does: the same report to the bit, whoever answered."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import quantize_dynamic

import data_only
from likewise.compare.engines import Session, actors, processes
from likewise.compare.engines.actors import Actors, Needs, Shipped, shipped
from likewise.compare.engines.ray import begin_there, observe_there
from likewise.contracts.comparison import Plan, Tolerance
from likewise.errors import UsageError
from likewise.models import confinement
from likewise.models.remote import packed, unpacked
from likewise.registry import describe_model, extensions, open_source
from likewise.report.formats.json import EXTENSION as JSON
from planting import command

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import ray_kills

ROWS = 12_000
CODE = """
import os
import numpy as np

def right(frame):
    return {"value": frame["x"].to_numpy() / 3, "kind": frame["kind"].to_numpy()}

def wrong(frame):
    x = frame["x"].to_numpy()
    return {"value": np.where(x > 2.5, 0.0, x / 3).astype(np.float32), "kind": frame["kind"].to_numpy()}

def dies_elsewhere(frame):
    if os.environ["MAIN"] != str(os.getpid()):
        os._exit(9)
    return wrong(frame)

def dies_late(frame):
    if os.environ.get("MAIN") != str(os.getpid()) and (frame["number"] > 11_900).any():
        os._exit(9)
    return wrong(frame)

def refuses_late(frame):
    if (frame["number"] > 9_000).any():
        raise ValueError("too many")
    return right(frame)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=ROWS), "kind": rng.choice(["ant", "bee"], ROWS)})
    frame["number"] = np.arange(ROWS)
    frame["name"] = [f"row-{number}" for number in range(ROWS)]
    frame.to_parquet(folder / "rows.parquet", row_group_size=2_500)
    (folder / "models.py").write_text(CODE, encoding="utf-8")
    weights = [numpy_helper.from_array(rng.normal(size=(8, 8)).astype(np.float32), f"w{n}") for n in range(2)]
    nodes = [helper.make_node("MatMul", ["x", "w0"], ["h"]), helper.make_node("MatMul", ["h", "w1"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "net.onnx")
    quantize_dynamic(folder / "net.onnx", folder / "int8.onnx")
    np.savez(folder / "vectors.npz", x=rng.normal(size=(3_000, 8)).astype(np.float32))
    return folder


@pytest.fixture(scope="module")
def cluster():
    """A node of Ray's with two processors, which the tests share."""
    made = ray_kills.started()
    yield made
    ray_kills.ray.shutdown()
    made.shutdown()


@pytest.fixture(params=["processes", "ray"])
def shared_out(request):
    """Options that make others do the work."""
    if request.param == "processes":
        return {"workers": 2}
    request.getfixturevalue("cluster")
    return {"workers": 2, "engine": "ray"}


def body(report):
    document = json.loads(JSON.render(report))
    del document["provenance"]
    return document


def functions(place, candidate="wrong", **options):
    named = (f"{place / 'models.py'}:right", f"{place / 'models.py'}:{candidate}", place / "rows.parquet")
    return data_only.check(*named, batch_sizes=(), batch_size=50, **options)


def test_the_report_is_that_of_one_process(place):
    one, many = functions(place, stratify="kind"), functions(place, stratify="kind", workers=2)
    assert one.outcome == "FAIL"
    assert body(many) == body(one)


@pytest.mark.parametrize(
    "options",
    [{"id": "name"}, {"samples": 9_000, "sample": "random", "seed": 3}, {"samples": 4_321}],
    ids=lambda options: "-".join(options),
)
def test_rows_that_are_chosen_or_named_are_read_once_and_handed_out(place, options):
    assert body(functions(place, workers=2, **options)) == body(functions(place, **options))


@pytest.mark.parametrize("count", [1, 2, 7])
def test_parts_of_any_number_in_any_order_give_one_report(place, shared_out, monkeypatch, count):
    one = functions(place, stratify="kind")
    handed = []

    def cut(source, workers, size):
        parts = list(source.shards(count))
        random.Random(count).shuffle(parts)
        handed.extend(parts)
        return parts

    monkeypatch.setattr(processes, "parts_of", cut)
    assert body(functions(place, stratify="kind", **shared_out)) == body(one)
    assert len(handed) == count


def test_there_may_be_more_processes_than_chunks(place):
    options = {"samples": 600, "drop": ("name", "number")}
    assert body(functions(place, workers=3, **options)) == body(functions(place, **options))


def test_answers_that_depend_on_the_rows_of_a_call_stay_the_same(place, shared_out):
    """Dynamic INT8 scales activations by all rows of a call: cut elsewhere, the figures would be others."""
    named = (place / "net.onnx", place / "int8.onnx", place / "vectors.npz")
    one, many, cut = (
        data_only.check(*named, batch_sizes=(), **options)
        for options in ({"batch_size": 70}, {"batch_size": 70, **shared_out}, {"batch_size": 71})
    )
    assert body(many) == body(one) != body(cut)


def test_the_same_rows_are_kept_for_explaining(place):
    named = [f"{place / 'models.py'}:{name}" for name in ("right", "wrong")]
    reference, candidate = (describe_model(name, {}) for name in named)
    engines = {engine.name: engine for engine in extensions("compare.engines")}
    found = {}
    for name in ("local", "processes"):
        source = open_source(place / "rows.parquet")
        plan = Plan(reference, candidate, source, Tolerance(1e-4, 1e-3), batch_size=50, workers=2)
        with Session(reference, candidate) as session:
            ran = engines[name].run(plan, session)
        rows = np.concatenate([part.batch.rows.numbers for part in ran.kept.parts])
        values = np.concatenate([part.candidate["value"] for part in ran.kept.parts])
        found[name] = (rows.tolist(), values.tolist(), ran.head.candidate["value"].tolist(), ran.comparison)
    assert found["processes"] == found["local"]
    assert 8_192 < len(found["local"][0]) < ROWS


def test_what_a_process_died_over_is_done_here(place, monkeypatch):
    monkeypatch.setenv("MAIN", str(os.getpid()))
    one = functions(place, "dies_elsewhere", drop=("name", "number"))
    many = functions(place, "dies_elsewhere", drop=("name", "number"), workers=2)
    assert body(many) == body(one)


def test_an_error_is_told_as_by_one_process(place, shared_out):
    one, many = (functions(place, "refuses_late", drop=("name",), **options) for options in ({}, shared_out))
    assert one.outcome == "INCONCLUSIVE"
    assert body(many) == body(one)


def test_rows_that_nobody_comes_back_from_are_named(place, cluster, monkeypatch):
    monkeypatch.setenv("MAIN", str(os.getpid()))
    monkeypatch.setattr(actors, "LOST", 2)
    report = functions(place, "dies_late", drop=("name",), workers=2, engine="ray")
    assert report.outcome == "INCONCLUSIVE"
    (incident,) = report.comparison.incidents
    assert incident.code == "lost-workers"
    words = re.search(r"2 actors in a row were lost over rows ([\d,]+) to ([\d,]+) of .*rows.parquet", incident.message)
    first, last = (int(word.replace(",", "")) for word in words.groups())
    assert first <= 11_901 <= last < ROWS


def test_work_that_waits_behind_what_ended_a_process_is_not_blamed_for_it(monkeypatch):
    actor = actors._Remote(Needs(cpus=1, memory=0, models=()))
    dying = [sys.executable, "-c", "import sys; sys.stdin.buffer.read(1); sys.exit(3)"]
    with subprocess.Popen(dying, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        monkeypatch.setattr(actor, "_started", lambda: process)
        assert actor.ask(b"deadly") == 3
        assert actor.ask(b"harmless") is None


def test_an_actor_that_is_killed_while_it_works_changes_nothing(cluster, tmp_path):
    """Processes of actors and whole nodes, which take long to come back, are killed by `make ray-kills`."""
    ray_kills.make(tmp_path)
    assert ray_kills.turn(tmp_path, cluster, "actor", 3, ray_kills.run(tmp_path, "local")) == ""


def test_who_interrupts_ends_all_actors(cluster, tmp_path):
    ray_kills.make(tmp_path)

    def interrupt(told):
        if told.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ray_kills.run(tmp_path, "ray", workers=2, progress=interrupt)
    states = {entry["State"] for entry in ray_kills.ray._private.state.actors().values()}
    assert states == {"DEAD"}


def test_files_that_a_machine_lacks_come_by_their_hash_once(cluster, place, tmp_path, request):
    """The model and the weights beside it are sent, kept, and opened from there; another actor asks for none."""
    net = onnx.load(place / "net.onnx")
    onnx.save(net, tmp_path / "net.onnx", save_as_external_data=True, location="net.weights", size_threshold=0)
    here = shipped(tmp_path / "net.onnx", ["net.weights"])
    kept = actors._kept() / here.key
    shutil.rmtree(kept, ignore_errors=True)
    request.addfinalizer(partial(shutil.rmtree, kept, ignore_errors=True))
    contents = dict(zip(sorted(here.hashes), here.contents(), strict=True))
    sent = []

    def content(key):
        sent.append(key)
        return [contents[name] for name in sorted(here.hashes)]

    gone = tmp_path / "only-there" / "net.onnx"
    needs = Needs(1, 100 << 20, (Shipped(str(gone), here.hashes),))
    models = [
        describe_model(str(place / "net.onnx"), {}),
        replace(describe_model(str(place / "net.onnx"), {}), target=str(gone)),
    ]
    source = open_source(place / "vectors.npz")
    plan = Plan(*models, source, Tolerance(0.0, 0.0), batch_size=500)
    first = next(source.batches(500))
    opening = [
        bytes(part)
        for part in packed(("call", partial(begin_there, plan, first, {"reference": 500, "candidate": 500})))
    ]
    asked = [bytes(part) for part in packed(("call", partial(observe_there, first, whole=True)))]
    for _ in range(2):
        made = Actors(ray_kills.ray, 1, needs, opening, content)
        answer, error, _ = unpacked(made.ask(0, asked, "rows"))
        made.close()
        assert error is None
        assert (answer.partial.rows, answer.partial.rows_beyond) == (500, 0)
    assert sent == [here.key]


def test_an_object_of_this_process_is_refused(place):
    with pytest.raises(UsageError, match="an object of this process"):
        data_only.check(lambda x: x, place / "net.onnx", place / "vectors.npz", workers=2)


@pytest.mark.parametrize("elsewhere", ["served", "another Python"])
def test_a_model_that_is_asked_over_one_line_is_refused(place, elsewhere):
    candidate = "http://127.0.0.1:9/v2/models/m" if elsewhere == "served" else place / "net.onnx"
    options = {} if elsewhere == "served" else {"candidate_options": {"python": "python3"}}
    with pytest.raises(UsageError, match="over one connection"):
        data_only.check(place / "net.onnx", candidate, place / "vectors.npz", workers=2, **options)


def test_a_cluster_that_is_not_there(place):
    arguments = ("check", "net.onnx", "int8.onnx", "--data", "vectors.npz", *data_only.FLAGS, "--engine", "ray")
    for walls in ((), ("--no-sandbox",)):
        ran = command(*arguments, "--address", "127.0.0.1:1", *walls, folder=place)
        ran.expect(3, "INCONCLUSIVE", "there is no Ray cluster at 127.0.0.1:1")


def test_actors_of_a_command_work_behind_walls(place, cluster, tmp_path):
    """Code in the place of a model tries four ways out wherever it is asked, and answers how many led there."""
    code = f"""
import os, socket

def nothing(frame):
    return frame["x"].to_numpy() * 0

def ways_out(frame):
    found = nothing(frame)
    for tried in (socket.socket, lambda: open("/etc/shadow").read(), lambda: open("/var/tmp/likewise-was-here", "w"),
                  lambda: os.kill({os.getpid()}, 0) if {confinement._abi() >= 6} else open("/etc/shadow")):
        try:
            tried()
            found += 1
        except OSError:
            pass
    return found
"""
    (tmp_path / "told.py").write_text(code, encoding="utf-8")
    (tmp_path / "rows.parquet").write_bytes((place / "rows.parquet").read_bytes())
    files = ("told.py:nothing", "told.py:ways_out", "--data", "rows.parquet", "--batch-sizes", "none")
    arguments = ("check", *files, *data_only.FLAGS, "--batch-size", "50")
    there = ("--engine", "ray", "--workers", "2", "--address", cluster.address)
    for report, options in (("here.json", ()), ("there.json", there)):
        command(*arguments, *options, "--report", report, folder=tmp_path).expect(0, "PASS")
    command(*arguments, *there, "--no-sandbox", "--report", "open.json", folder=tmp_path).expect(1, "FAIL")
    found = [json.loads((tmp_path / name).read_text("utf-8")) for name in ("here.json", "there.json")]
    assert [report.pop("provenance")["settings"].get("engine", "local") for report in found] == ["local", "ray"]
    assert found[0] == found[1]


def test_no_workers_at_all_is_refused(place):
    with pytest.raises(UsageError, match="--workers is 0"):
        functions(place, workers=0)


def test_the_command_has_its_processes_within_the_walls(place):
    arguments = ("check", "net.onnx", "int8.onnx", "--data", "vectors.npz", "--preset", "quantized", *data_only.FLAGS)
    one = command(*arguments, "--report", "one.json", folder=place)
    many = command(*arguments, "--report", "many.json", "--workers", "2", folder=place)
    assert one.returncode == many.returncode == 1, many.stderr
    facts = [json.loads((place / name).read_text("utf-8")) for name in ("one.json", "many.json")]
    assert facts[1].pop("provenance")["settings"]["workers"] == 2
    del facts[0]["provenance"]
    assert facts[0] == facts[1]
