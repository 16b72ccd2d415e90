"""The same answers give the same report to the byte, however the rows were cut, ordered or spread.

The models answer every row by itself, so that no cut can change an answer: what may differ is only how
likewise reads, calls, observes and merges.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pandas as pd
import pytest
from fitted_pipelines import PIPELINES, classes_of, export
from sklearn.tree import DecisionTreeClassifier

import data_only
import likewise
from likewise.compare.call import answers
from likewise.compare.engines import Session, local
from likewise.compare.observe import Partial, finish, observe, prepare
from likewise.contracts.comparison import Comparison, Plan, Tolerance
from likewise.contracts.data import Batch, Source
from likewise.registry import adapter, describe_model, extensions, open_source
from likewise.report.formats import json as json_report
from likewise.report.formats.json import EXTENSION as JSON
from likewise.report.formats.json import loads, schema

ROWS = 700
NONFINITE = ('"NaN"', '"Infinity"', '"-Infinity"')
SCHEMA_FILE = Path(json_report.__file__).with_name("parity_report.schema.json")


def body(report: likewise.Report) -> str:
    """The document without its provenance: everything that the answers decide."""
    document = json.loads(JSON.render(report))
    del document["provenance"]
    return json.dumps(document, indent=2)


def rows() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "price": rng.lognormal(3, 2, ROWS),
            "weight": rng.normal(0, 1, ROWS),
            "count": rng.integers(-5, 6, ROWS),
            "kind": rng.choice(["ant", "bee", "cat"], ROWS),
        }
    )


def reference_answers(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """Arithmetic that is rounded the same way for every element, wherever in an array it stands."""
    price, weight = frame["price"].to_numpy(), frame["weight"].to_numpy()
    share = price / (price + 25.0)
    scores = np.stack([weight, share - 0.5, 0.1 * weight * weight], axis=1)
    ratio = np.where(frame["count"].to_numpy() == 3, np.nan, weight / 3.0)
    return {
        "label": np.array(["low", "middle", "high"], dtype=object)[scores.argmax(axis=1)],
        "scores": scores,
        "probability": np.stack([1.0 - share, share], axis=1),
        "amount": price * weight,
        "ratio": ratio,
        "kinds": frame["kind"].to_numpy(dtype=object),
    }


def candidate_answers(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """The same with errors of many sizes, changed labels, and values that are not finite."""
    given = reference_answers(frame)
    price, count = frame["price"].to_numpy(), frame["count"].to_numpy()
    error = np.where(count % 2 == 0, price * 1e-7, -1e-5)
    scores = given["scores"] + error[:, None] * np.array([1.0, -2.0, 3.0])
    amount = (given["amount"] * (1 + error)).astype(np.float32)
    amount = np.where(count == 5, np.float32(np.inf), amount)
    return {
        "label": np.array(["low", "middle", "high"], dtype=object)[
            (scores + 0.03 * (count == -5)[:, None] * [0, 1, 0]).argmax(axis=1)
        ],
        "scores": scores,
        "probability": given["probability"].astype(np.float32),
        "amount": amount,
        "ratio": np.where(count == -4, np.nan, given["ratio"] * (1 - error)),
        "kinds": np.where(count == 4, "dog", given["kinds"]).astype(object),
    }


def nothing(frame: pd.DataFrame) -> np.ndarray:
    raise RuntimeError("out of order")


def one_answer_in_all(frame: pd.DataFrame) -> np.ndarray:
    return np.zeros(1)


def never_a_number(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    return {"amount": np.full(len(frame), np.nan)}


def infinite(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    return {"amount": np.full(len(frame), np.inf), "other": np.full((len(frame), 2), 1e300)}


def opposite(frame: pd.DataFrame) -> dict[str, np.ndarray]:
    return {"amount": np.full(len(frame), -np.inf), "other": np.full((len(frame), 2), -1e300)}


@pytest.fixture(scope="session")
def frame() -> pd.DataFrame:
    return rows()


@pytest.fixture(scope="session")
def tree() -> tuple[Any, bytes, pd.DataFrame]:
    """One tree gives one leaf: unlike a forest it adds nothing up, in an order that depends on the batch."""
    data, y = classes_of(3, rows=ROWS)
    model = DecisionTreeClassifier(max_depth=6, random_state=0).fit(data, y)
    return model, export(model, data, zipmap=False), data


@pytest.fixture(scope="session", params=["functions", "tree"])
def models(request, frame, tree) -> tuple[Any, Any, pd.DataFrame]:
    return (reference_answers, candidate_answers, frame) if request.param == "functions" else tree


@pytest.fixture(scope="session")
def whole(models) -> str:
    """The report of one call for all rows."""
    return body(data_only.check(*models, batch_size=ROWS))


@pytest.fixture(scope="session")
def unswept(models) -> str:
    """The report without other batch sizes, whose sweep looks at the first rows of the first chunk."""
    return body(data_only.check(*models, batch_sizes=()))


@pytest.fixture(scope="session")
def local_facts(models) -> str:
    """What the local engine finds."""
    return facts(local_comparison(make_plan(models)))


def test_the_models_of_these_tests_answer_every_row_by_itself(models):
    report = data_only.check(*models)
    drifts = [output.measures["batch_drift"] for output in report.comparison.outputs]
    assert drifts == [0.0] * len(drifts)


@pytest.mark.parametrize("size", [1, 7, 256, None])
def test_the_batch_size_does_not_show_in_the_report(models, whole, size):
    assert body(data_only.check(*models, batch_size=size)) == whole


@pytest.mark.parametrize("chunk", [64, 333])
def test_how_many_rows_are_read_at_once_does_not_show_in_the_report(models, unswept, chunk, monkeypatch):
    monkeypatch.setattr(local, "CHUNK_ROWS", chunk)
    assert body(data_only.check(*models, batch_sizes=())) == unswept


@pytest.mark.parametrize("concurrent", [True, False])
def test_running_both_models_at_once_does_not_show_in_the_report(models, unswept, concurrent, monkeypatch):
    monkeypatch.setattr(local, "CHUNK_ROWS", 50)
    # The engine times two chunks one model after the other, then two with both at once, and keeps the faster way.
    timed = []
    monkeypatch.setattr(local, "_faster_at_once", lambda paces: [timed.append(paces), concurrent][1])
    report = data_only.check(*models, batch_sizes=())
    assert len(timed) == 1
    assert body(report) == unswept


def test_two_runs_in_a_row_give_the_same_report(models, whole):
    assert body(data_only.check(*models, batch_size=ROWS)) == whole


def test_a_parquet_file_with_many_row_groups_gives_the_report_of_the_frame(models, whole, tmp_path):
    reference, candidate, data = models
    data.to_parquet(tmp_path / "rows.parquet", row_group_size=93)
    assert body(data_only.check(reference, candidate, tmp_path / "rows.parquet")) == whole


def make_plan(models: tuple[Any, Any, Any]) -> Plan:
    reference, candidate, data = models
    return Plan(
        reference=describe_model(reference, {}),
        candidate=describe_model(candidate, {}),
        source=open_source(data),
        tolerance=Tolerance(1e-4, 1e-3),
        expected_rows=ROWS,
    )


def compared_in_shards(plan: Plan, count: int, *, size: int, seed: int) -> Comparison:
    """A small engine: every shard on its own, the partial results merged in pairs as they happen to arrive."""
    with ExitStack() as stack:
        reference, candidate = (
            stack.enter_context(adapter(model.framework).open(model)) for model in (plan.reference, plan.candidate)
        )
        prepared = prepare(plan, reference, candidate)
        partials = []
        for shard in plan.source.shards(count):
            for batch in shard.batches(size):
                ours, our_casts = answers(prepared.reference, batch)
                theirs, their_casts = answers(prepared.candidate, batch)
                partials.append(replace(observe(prepared, batch, ours, theirs), casts=(*our_casts, *their_casts)))
        chance = random.Random(seed)
        partials.append(Partial())
        while len(partials) > 1:
            chance.shuffle(partials)
            partials.append(partials.pop().merge(partials.pop()))
        return finish(prepared, partials[0], plan)


def facts(comparison: Comparison) -> str:
    return json.dumps(asdict(comparison), indent=2, default=str)


def local_comparison(plan: Plan) -> Comparison:
    engine = next(engine for engine in extensions("compare.engines") if engine.name == "local")
    with Session(plan.reference, plan.candidate) as session:
        return engine.run(plan, session).comparison


@pytest.mark.parametrize(("shards", "size", "seed"), [(1, ROWS, 0), (1, 90, 1), (5, ROWS, 2), (5, 41, 3)])
def test_shards_merged_in_any_order_give_the_comparison_of_the_local_engine(models, local_facts, shards, size, seed):
    plan = make_plan(models)
    assert len(plan.source.shards(shards)) == shards
    assert facts(compared_in_shards(plan, shards, size=size, seed=seed)) == local_facts


def test_single_rows_merged_in_any_order_give_the_comparison_of_the_local_engine(models):
    reference, candidate, data = models
    plan = replace(make_plan((reference, candidate, data[:60])), expected_rows=60)
    assert facts(compared_in_shards(plan, 5, size=1, seed=4)) == facts(local_comparison(plan))


@pytest.mark.parametrize("shards", [1, 5])
def test_shards_of_a_file_give_the_comparison_of_the_local_engine(models, shards, tmp_path):
    reference, candidate, data = models
    data.to_parquet(tmp_path / "rows.parquet", row_group_size=93)
    plan = make_plan((reference, candidate, tmp_path / "rows.parquet"))
    assert facts(compared_in_shards(plan, shards, size=50, seed=0)) == facts(local_comparison(plan))


@dataclass(frozen=True)
class Shuffled:
    """A source that gives its batches in another order; the ids of the rows stay."""

    source: Source
    seed: int

    @property
    def location(self) -> str:
        return self.source.location

    @property
    def fingerprint(self) -> str:
        return self.source.fingerprint

    @property
    def provenance(self) -> Any:
        return self.source.provenance

    @property
    def rows(self) -> int | None:
        return self.source.rows

    def batches(self, size: int) -> Iterator[Batch]:
        batches = list(self.source.batches(size))
        random.Random(self.seed).shuffle(batches)
        return iter(batches)

    def shards(self, count: int) -> Sequence[Source]:
        return [Shuffled(shard, self.seed) for shard in self.source.shards(count)]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_order_of_the_batches_does_not_show_in_the_comparison(models, local_facts, seed, monkeypatch):
    plan = make_plan(models)
    monkeypatch.setattr(local, "CHUNK_ROWS", 64)
    assert facts(local_comparison(replace(plan, source=Shuffled(plan.source, seed)))) == local_facts


REPORTS = {
    "passes": lambda frame, tree: data_only.check(*tree),
    "fails": lambda frame, tree: data_only.check(reference_answers, candidate_answers, frame),
    "with an id column": lambda frame, tree: data_only.check(
        reference_answers, candidate_answers, frame.assign(key=[f"row {i}" for i in range(ROWS)]), id="key"
    ),
    "text classes": lambda frame, tree: _of_pipeline("stale_export"),
    "an output for each target": lambda frame, tree: _of_pipeline("multi_label_forest"),
    "quantized": lambda frame, tree: _of_pipeline("int8_under_the_default_preset"),
    "missing inputs": lambda frame, tree: _of_pipeline("mixed_types"),
    "another limit": lambda frame, tree: data_only.check(*tree, limits={"cosine": 0.5, "sqnr_db": 3.0}),
    "a limit on nothing": lambda frame, tree: data_only.check(*tree, limits={"elsewhere.cosine": 0.5}),
    "a failure rate": lambda frame, tree: data_only.check(*tree, max_failure_rate=1e-6),
    "NaN on both sides": lambda frame, tree: data_only.check(never_a_number, never_a_number, frame),
    "NaN on one side": lambda frame, tree: data_only.check(reference_answers, never_a_number, frame),
    "infinity against its opposite": lambda frame, tree: data_only.check(infinite, opposite, frame),
    "no rows": lambda frame, tree: data_only.check(reference_answers, candidate_answers, frame[:0]),
    "a reference that fails": lambda frame, tree: data_only.check(nothing, candidate_answers, frame),
    "a candidate that fails": lambda frame, tree: data_only.check(reference_answers, nothing, frame),
    "too few answers": lambda frame, tree: data_only.check(reference_answers, one_answer_in_all, frame),
    "no file": lambda frame, tree: data_only.check("missing.joblib", "missing.onnx", frame),
    "a column that is not there": lambda frame, tree: data_only.check(*tree[:2], frame),
    "more rows than there are": lambda frame, tree: data_only.check(*tree, samples=10 * ROWS),
    "judged again": lambda frame, tree: likewise.judge(
        data_only.check(reference_answers, candidate_answers, frame), abs_tol=0.5
    ),
}


def _of_pipeline(name: str) -> likewise.Report:
    case = PIPELINES[name]()
    return data_only.check(case.reference, case.candidate, case.frame)


@pytest.fixture(scope="session")
def made(frame, tree) -> Callable[[str], likewise.Report]:
    return cache(lambda name: REPORTS[name](frame, tree))


@pytest.fixture(scope="session", params=list(REPORTS))
def report(request, made) -> likewise.Report:
    return made(request.param)


@pytest.fixture(scope="session")
def validator() -> jsonschema.Draft202012Validator:
    jsonschema.Draft202012Validator.check_schema(schema())
    return jsonschema.Draft202012Validator(schema())


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_the_report_is_strict_json(report):
    json.loads(JSON.render(report), parse_constant=refuse)


def test_every_report_follows_the_published_schema(report, validator):
    validator.validate(json.loads(JSON.render(report)))


def test_a_report_that_is_read_back_is_written_to_the_same_bytes(report):
    text = JSON.render(report)
    assert JSON.render(loads(text)) == text
    assert JSON.render(loads(text.encode())) == text


def test_a_report_that_is_read_back_is_the_same_report(report):
    text = JSON.render(report)
    again = loads(text)
    assert (again.verdict, again.policy, again.samples) == (report.verdict, report.policy, report.samples)
    # NaN differs from itself, and a row or detail that holds one keeps the text that stands for it.
    if not any(figure in text for figure in NONFINITE):
        assert again == report


def test_every_outcome_and_every_nonfinite_figure_is_among_these_reports(made):
    texts = [JSON.render(made(name)) for name in REPORTS]
    outcomes = {json.loads(text)["outcome"] for text in texts}
    assert outcomes == {"PASS", "FAIL", "INCONCLUSIVE"}
    assert all(any(figure in text for text in texts) for figure in NONFINITE)
    assert any(not any(figure in text for figure in NONFINITE) for text in texts)


def test_the_published_schema_is_the_one_the_code_makes():
    assert SCHEMA_FILE.read_text() == json.dumps(schema(), indent=2) + "\n"
