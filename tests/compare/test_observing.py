"""From two models and rows to plain facts: what is decided on the first rows, what is observed, and what is told."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from likewise.compare import observe
from likewise.compare.call import Side
from likewise.compare.differences import Constancy
from likewise.compare.feed import Feed
from likewise.compare.observe import (
    Partial,
    Prepared,
    finish,
    finish_beside,
    needed_to_judge_again,
    observe_rows,
    prepare,
    without_ignored,
)
from likewise.compare.pair import Pairing
from likewise.contracts.comparison import (
    Cast,
    Incident,
    Mismatch,
    OutputFacts,
    PairSpec,
    Plan,
    Stratum,
    Tolerance,
)
from likewise.contracts.data import Batch, RowIds
from likewise.contracts.models import InputSpec, Kind, Model, OutputSpec, Signature
from likewise.data.columns import ArrayColumns
from likewise.errors import LikewiseError, ModelError, RowCountError
from likewise.registry import open_source

X = np.array([1.0, 2.0, 4.0, 8.0])
CLOSE = Tolerance(0.125, 0.0)


def moved(*by):
    return X + np.array(by)


def rows(stacked=True, names=None, strata=None, times=None, **columns):
    count = len(next(iter(columns.values()), ()))
    beside = (None if part is None else np.asarray(part) for part in (names, strata, times))
    return Batch(RowIds(np.arange(count if stacked else 1), *beside), ArrayColumns(columns), stacked)


class Told:
    """A model that answers as it is told."""

    def __init__(self, answer, *inputs, batch=None, outputs=None, details=None, **facts):
        specs = tuple(InputSpec(name) if isinstance(name, str) else name for name in inputs)
        self.signature = Signature(specs or None, outputs, batch=batch, **facts)
        self.details, self.answer, self.asked = details or {}, answer, []

    def run(self, batch, outputs=None):
        self.asked.append(len(batch))
        return self.answer(batch.inputs)


def planned(source=None, **given):
    models = (Model("python", lambda x: x, {}), Model("python", lambda x: x, {}))
    return Plan(*models, SimpleNamespace(location="rows.csv") if source is None else source, CLOSE, **given)


def first_half(inputs):
    return {"y": inputs["x"] / 2}


def prepared(ours=first_half, theirs=first_half, batch=None, **given):
    batch = rows(x=X) if batch is None else batch
    models = [model if isinstance(model, Told) else Told(model, "x") for model in (ours, theirs)]
    return prepare(planned(**given), *models, rows=batch)


# The first rows


def test_no_rows_are_an_incident():
    nothing = prepare(planned(), Told(first_half), Told(first_half), rows=rows(x=X[:0]))
    assert nothing == Incident("no-rows", "rows.csv holds no rows", "Give data to compare on")
    source = SimpleNamespace(location="rows.csv", batches=lambda size: iter(()))
    assert prepare(planned(source), Told(first_half), Told(first_half)) == nothing


@pytest.mark.parametrize(
    ("x", "shown"),
    [
        (np.zeros(40), 32),
        (np.zeros((40, 2)), 32),
        (np.zeros((40, 2, 2)), 8),
        (np.zeros((40, 2), np.int32), 8),
        (np.zeros((40, 2), np.uint8), 8),
        (np.zeros((40, 2), bool), 32),
        (np.zeros(40, np.int32), 32),
    ],
)
def test_a_few_of_the_first_rows_are_shown_to_both(x, shown):
    for source in (None, open_source({"x": x})):
        ours, theirs = (Told(lambda inputs: {"y": np.arange(float(len(inputs["x"])))}, "x") for _ in range(2))
        found = prepare(planned(source), ours, theirs, rows=rows(x=x) if source is None else None)
        assert (ours.asked, theirs.asked) == ([shown], [shown])
        assert len(found.first) == shown
        assert found.first.rows.numbers.tolist() == list(range(shown))


def test_a_sample_is_shown_whole_and_its_shapes_are_told():
    inputs = {name: np.zeros((2, 3, 4)) for name in "abcdefg"}
    answer = lambda given: {"y": given["a"].sum()[None]}  # noqa: E731
    for count, told in ((6, ""), (7, ", …")):
        names = "abcdefg"[:count]
        batch = rows(stacked=False, **{name: inputs[name] for name in names})
        found = prepare(planned(), Told(answer, *names), Told(answer, *names), rows=batch)
        shapes = ", ".join(f"{name} (2, 3, 4)" for name in names[:6])
        assert found.notes == (f"no rows: every call is one sample, as {shapes}{told}",)
        assert found.first is batch
    nothing = prepare(planned(), *(Told(lambda given: {"y": np.ones(1)}) for _ in range(2)), rows=rows(stacked=False))
    assert nothing.notes == ("no rows: every call is one sample, as no inputs",)
    assert observe._shapes(rows(stacked=False, a=[X, X])) == "a ()"


def test_what_both_models_are_and_answer_is_kept():
    ours = Told(lambda inputs: {"y": inputs["x"] / 2, "z": inputs["x"]}, "x")
    theirs = Told(lambda inputs: {"y": inputs["x"] / 2}, "x")
    plan = planned(ignore=("z",), nan_equal=False)
    found = prepare(plan, ours, theirs, rows=rows(x=X, spare=X))
    assert (found.reference.name, found.candidate.name) == ("reference", "candidate")
    assert (found.reference.model, found.candidate.model) == (plan.reference.name, plan.candidate.name)
    assert (found.reference.runner, found.candidate.runner) == (ours, theirs)
    assert found.reference.ignored == found.candidate.ignored == {"z"}
    assert (found.reference.outputs, found.candidate.outputs, found.outputs) == ({"y"}, None, {"y"})
    assert (found.tolerance, found.nan_equal) == (CLOSE, False)
    assert found.answered["reference"]["z"].tolist() == X.tolist()
    assert list(found.answered["candidate"]) == ["y"]
    assert found.notes == ("columns that neither model takes were ignored: 'spare'", "outputs left out on request: 'z'")
    assert prepared().nan_equal
    assert prepared().notes == ()


def test_of_many_columns_that_nobody_takes_some_are_named():
    spare = {f"s{number}": X for number in range(34)}
    (note,) = prepared(batch=rows(x=X, **spare)).notes
    assert note.endswith("'s31' and 2 more")


def test_a_candidate_takes_columns_side_by_side_in_the_order_of_a_table():
    ours = Told(lambda inputs: {"y": inputs["a"]}, "b", "a", table=True)
    theirs = Told(lambda inputs: {"y": inputs["x"][:, 1]}, InputSpec("x", "float64", (None, 2)))
    found = prepare(planned(), ours, theirs, rows=rows(a=X, b=2 * X))
    assert found.candidate.feed.columns == ("b", "a")
    assert found.answered["candidate"]["y"].tolist() == X.tolist()
    assert [note for note in found.notes if note.startswith("reference")] == [
        "reference: columns are taken by name, in the model's order and not in the data's"
    ]
    # Without a table the order of the reference's inputs is nobody's.
    ours = Told(lambda inputs: {"y": inputs["a"]}, "b", "a")
    found = prepare(planned(), ours, theirs, rows=rows(a=X, b=2 * X))
    assert found.candidate.feed.columns == ("a", "b")


def test_whoever_follows_the_run_is_told_of_the_first_rows():
    told = []
    prepared(progress=told.append)
    assert [(one.phase, one.side, one.first, one.last, one.finished) for one in told] == [
        ("first rows", "reference", 0, 3, False),
        ("first rows", "reference", 0, 3, True),
        ("first rows", "candidate", 0, 3, False),
        ("first rows", "candidate", 0, 3, True),
    ]


def test_what_the_rows_and_their_answers_take():
    found = prepared(batch=rows(x=X, z=X.astype(np.float32)))
    assert (found.row_bytes, found.answer_bytes) == (12, 16)
    little = replace(found, first=rows(x=np.zeros(4, "V0")))
    assert little.row_bytes == 1
    lists = replace(found, first=rows(stacked=False, x=[X, X]))
    assert lists.row_bytes == 1


def refusing(refused, message="no"):
    """A model that raises an error if it is asked about one of these numbers, or about more than one row at all."""

    def answer(inputs):
        if any(number in inputs["x"].tolist() for number in refused) or (not refused and len(inputs["x"]) > 1):
            raise ModelError(message, remedy="use --batch-size 2" if "size" in message else "")
        return {"y": inputs["x"]}

    return answer


ALONE = "It answers each of them alone; if it takes one row per call, use --batch-size 1 --fixed-batch"


@pytest.mark.parametrize(
    ("refused", "count", "remedy"),
    [
        ((), 4, ALONE),
        ((), 2, ALONE),
        ((4.0,), 4, "Row c is the first that it refuses by itself: mend or leave out such rows"),
        ((4.0, 2.0), 4, "Row b is the first that it refuses by itself: mend or leave out such rows"),
        ((1.0,), 4, "Both models have to answer every row: mend or leave out those it refuses"),
        ((1.0,), 1, "Both models have to answer every row: mend or leave out those it refuses"),
    ],
)
def test_the_first_row_that_a_model_refuses_is_told(refused, count, remedy):
    batch = rows(x=X[:count], names=["a", "b", "c", "d"][:count])
    with pytest.raises(ModelError) as failure:
        prepared(refusing(refused), batch=batch)
    assert failure.value.remedy == remedy
    assert failure.value.side == "reference"


def test_who_names_the_batch_size_and_a_sample_are_not_asked_row_by_row():
    model = Told(refusing((), "a size"), "x")
    with pytest.raises(ModelError) as failure:
        prepared(model)
    assert (failure.value.remedy, model.asked) == ("use --batch-size 2", [4])
    model = Told(refusing((1.0,)), "x")
    with pytest.raises(ModelError):
        prepared(model, batch=rows(stacked=False, x=X))
    assert len(model.asked) == 1


# One number for a whole call


def with_loss(inputs):
    return {"y": inputs["x"], "loss": np.array(0.5)}


def with_losses(inputs):
    return {"y": inputs["x"], "loss": np.full(len(inputs["x"]), 0.5)}


def test_one_number_for_a_call_is_compared_with_one_for_the_same_call():
    found = prepared(with_loss, with_loss)
    assert [(spec.name, spec.per_call) for spec in found.pairing.pairs] == [("loss", True), ("y", False)]
    assert not any(spec.per_call for spec in prepared(with_losses, with_losses).pairing.pairs)
    two = [Told(with_loss, "x", batch=2) for _ in range(2)]
    assert prepared(*two).pairing.pairs[0].per_call
    for models, side in (
        ((with_loss, with_losses), "reference"),
        ((with_losses, with_loss), "candidate"),
        ((Told(with_loss, "x", batch=2), with_loss), "reference"),
    ):
        with pytest.raises(RowCountError) as failure:
            prepared(*models)
        assert failure.value.side == side
        assert "was given 4 rows and answered a single number in output 'loss'" in failure.value.message


# Columns that nobody takes


@pytest.mark.parametrize(("spare", "fewer"), [(16, False), (17, True)])
def test_many_columns_that_nobody_takes_are_read_no_further(spare, fewer, tmp_path):
    table = pd.DataFrame({"x": X, **{f"s{number}": X for number in range(spare)}})
    table.to_parquet(tmp_path / "rows.parquet")
    plan = planned(open_source(str(tmp_path / "rows.parquet")))
    known = prepare(plan, Told(first_half, "x"), Told(first_half, "x"))
    less, told = without_ignored(plan, known)
    (batch,) = less.source.batches(10)
    assert len(batch.inputs) == (1 if fewer else 1 + spare)
    if fewer:
        note = "17 columns that neither model takes were read in the first rows only, and are not shown"
        assert told.notes == (*known.notes, note)
    else:
        assert (less, told) == (plan, known)


# What is observed


SPEC = PairSpec("y", "y", Kind.VALUE, "name")


def observed(reference, candidate, batch=None, pairs=(SPEC,), **given):
    batch = rows(x=X[: len(next(iter(reference.values())))]) if batch is None else batch
    side = Side("reference", "it", Told(first_half), Feed("reference", None))
    known = Prepared(side, side, Pairing(pairs), CLOSE, batch, (), frozenset({"y"}))
    return observe_rows(known, batch, reference, candidate, **given)


def test_every_row_is_beyond_or_within():
    found, beyond = observed({"y": X}, {"y": moved(0.0, 0.125, 0.25, 0.0)})
    assert beyond.tolist() == [False, False, True, False]
    assert (found.rows, found.rows_beyond, found.strata, found.mismatches) == (4, 1, {}, frozenset())
    assert found.inputs == Constancy(varied=True)
    assert sorted(found.summaries) == ["y"]
    assert {"closeness", "worst_rows"} < found.summaries["y"].keys()
    some, _ = observed({"y": X}, {"y": X}, metrics=frozenset({"closeness", "agreement"}))
    assert list(some.summaries["y"]) == ["closeness"]
    assert some.inputs == Constancy(), "rows as they come are not looked at"


def test_what_is_observed_of_a_batch_is_a_part():
    side = Side("reference", "it", Told(first_half), Feed("reference", None))
    known = Prepared(side, side, Pairing((SPEC,)), CLOSE, rows(x=X), (), frozenset({"y"}))
    found = observe.observe(known, rows(x=X), {"y": X}, {"y": moved(0, 0, 1.0, 0)}, metrics=frozenset({"closeness"}))
    assert (found.rows, found.rows_beyond, list(found.summaries["y"])) == (4, 1, ["closeness"])


def test_rows_of_several_outputs_are_beyond_if_one_of_them_is():
    pairs = (SPEC, PairSpec("z", "z", Kind.VALUE, "name"))
    theirs = {"y": moved(1.0, 0.0, 0.0, 0.0), "z": moved(0.0, 0.0, 1.0, 0.0)}
    assert observed({"y": X, "z": X}, theirs, pairs=pairs)[1].tolist() == [True, False, True, False]


def test_an_output_that_is_gone_or_of_another_shape_leaves_no_row_within():
    for reference, candidate, expected in (
        ({"y": X}, {}, Mismatch("missing-output", "output 'y' is no longer given", "y")),
        ({"z": X}, {"y": X}, Mismatch("missing-output", "output 'y' is no longer given", "y")),
    ):
        found, beyond = observed(reference, candidate)
        assert found.mismatches == {expected}
        assert beyond.all()
    found, beyond = observed({"y": X}, {"y": np.zeros((4, 2))})
    assert [mismatch.code for mismatch in found.mismatches] == ["shape"]
    assert (found.rows_beyond, found.summaries) == (4, {})
    names = PairSpec("ours", "theirs", Kind.VALUE, "kind")
    for reference, candidate, gone in (({}, {"theirs": X}, "ours"), ({"ours": X}, {}, "theirs"), ({}, {}, "theirs")):
        found, _ = observed({**reference, "y": X}, candidate, pairs=(names,))
        told = [mismatch for mismatch in found.mismatches if mismatch.code == "missing-output"]
        assert told == [Mismatch("missing-output", f"output {gone!r} is no longer given", "ours")]


def test_an_output_that_was_not_there_at_first_is_told():
    found, beyond = observed({"y": X}, {"y": X, "new": X})
    message = "output 'new' of the candidate was not there on the first rows: it has no counterpart"
    assert found.mismatches == {Mismatch("extra-output", message, "new")}
    assert not beyond.any()


def test_rows_are_counted_by_the_value_that_they_hold():
    batch = rows(x=X, strata=["b", "a", "b", "b"], times=[10, 20, 30, 40])
    found, _ = observed({"y": X}, {"y": moved(0.5, 0.25, 0.0, -1.0)}, batch)
    assert found.strata == {
        "a": Stratum("", "a", 1, 1, {"y": 0.25}),
        "b": Stratum("", "b", 3, 2, {"y": 1.0}),
    }
    assert found.times.facts().rows == 4
    assert [period.rows_beyond for period in found.times.facts().periods] == [1, 1, 0, 1]
    assert observed({"y": X}, {"y": X})[0].times.facts() is None
    text = np.array(["u", "v", "u", "v"], dtype=object)
    found, _ = observed({"y": text}, {"y": text}, batch)
    assert found.strata["b"] == Stratum("", "b", 3, 0, {}), "of text, no difference is a number"


@pytest.mark.parametrize("part", [1, 4, 6, 8, 9, 100])
def test_answers_are_observed_in_parts_of_a_size(part, monkeypatch):
    """Eight numbers: two of each row, or rows of one number beside them."""
    sizes = []
    monkeypatch.setattr(observe, "PART", part)
    monkeypatch.setattr(observe, "_constancy", lambda batch: sizes.append(len(batch)) or Constancy(varied=True))
    pairs = (SPEC, PairSpec("z", "z", Kind.VALUE, "name"))
    two = np.stack([X, X], axis=1)
    found, beyond = observed(
        {"z": X, "y": two},
        {"z": moved(0, 0, 0, 1.0), "y": two + moved(0, 1.0, 0, 0)[:, None] - X[:, None]},
        pairs=pairs,
    )
    assert sorted(sizes, reverse=True) == {1: [1] * 4, 4: [2, 2], 6: [3, 1], 8: [4], 9: [4], 100: [4]}[part]
    assert beyond.tolist() == [False, True, False, True]
    assert (found.rows, found.rows_beyond) == (4, 2)


def test_a_sample_is_never_observed_in_parts(monkeypatch):
    monkeypatch.setattr(observe, "PART", 1)
    batch = rows(stacked=False, x=X)
    found, beyond = observed({"y": X[None]}, {"y": X[None]}, batch)
    assert (found.rows, beyond.tolist(), found.inputs) == (1, [False], Constancy())


def test_equal_rows_are_told_from_varied_ones():
    alike = observe._constancy(rows(x=np.ones(3), z=np.zeros(3)))
    assert alike.constant
    assert alike == observe._constancy(rows(x=np.ones(2), z=np.zeros(2)))
    assert alike != observe._constancy(rows(x=np.ones(2), z=np.ones(2)))
    assert len(alike.answer) == 32
    assert observe._constancy(rows(x=np.ones(2), z=X[:2])) == Constancy(varied=True)
    assert observe._constancy(rows(x=X[:0])) == Constancy()


# Partials and what becomes of them


def test_partials_add_up():
    one, _ = observed({"y": X}, {"y": moved(0.5, 0, 0, 0)})
    other, _ = observed({"y": X}, {"y": moved(0, 0.75, 0, 0.25)}, metrics=frozenset({"closeness"}))
    together = one.merge(other)
    assert (together.rows, together.rows_beyond) == (8, 3)
    assert together.summaries["y"]["closeness"].measurements()["max_abs_diff"] == 0.75
    assert together.summaries["y"].keys() == one.summaries["y"].keys()
    assert Partial().merge(one).summaries == one.merge(Partial()).summaries == one.summaries


def cast(values):
    return Cast("candidate", "x", "x", "float64", "float32", values, 1, 0.5)


def finished(partial, *, sides=None, batch=None, pairing=None, decided=False, **given):
    ours, theirs = sides or (Told(first_half), Told(first_half))
    reference = Side("reference", "it", ours, Feed("reference", None))
    known = Prepared(
        reference,
        replace(reference, name="candidate", runner=theirs),
        pairing or Pairing((SPEC,)),
        CLOSE,
        rows(x=X) if batch is None else batch,
        ("as it is",),
    )
    return finish(known, partial, planned(**given), decided=decided)


def test_facts_are_those_of_all_rows():
    partial, _ = observed({"y": X}, {"y": moved(0.5, 0, 0, 0)}, rows(x=X, strata=list("abab"), times=[1, 2, 3, 4]))
    partial = replace(partial, casts=(cast(4), cast(3)))
    pairing = Pairing((SPEC, PairSpec("z", "z", Kind.VALUE, "name")), ("spare",))
    sides = (
        Told(first_half, details={"warnings": ["it is old"], "quantized_nodes": 3}),
        Told(first_half, details={"warnings": ["it is slow"], "quantized_nodes": 5}),
    )
    facts = finished(partial, sides=sides, pairing=pairing, stratify="city", nan_equal=False)
    assert (facts.rows, facts.expected_rows, facts.rows_beyond, facts.varied) == (4, None, 1, True)
    assert (facts.tolerance, facts.nan_equal, facts.not_compared) == (CLOSE, False, ("spare",))
    assert [fact.name for fact in facts.outputs] == ["y", "z"]
    assert facts.outputs[0].measures["max_abs_diff"] == 0.5
    assert (facts.outputs[1].measures, facts.outputs[1].details) == ({}, {})
    assert facts.casts == (replace(cast(7), changed=2),)
    assert (facts.notes, facts.warnings) == (("as it is",), ("the reference: it is old", "the candidate: it is slow"))
    assert facts.strata == (Stratum("city", "a", 2, 1, {"y": 0.5}), Stratum("city", "b", 2, 0, {"y": 0.0}))
    assert facts.timeline.rows == 4
    assert (facts.fixed_batch, facts.quantized_nodes, facts.unit, facts.stopped) == (None, 5, "rows", False)
    assert (facts.incidents, facts.mismatches) == ((), ())
    sample = finished(Partial(rows=1), batch=rows(stacked=False, x=X), sides=(sides[0], Told(first_half, batch=4)))
    assert (sample.unit, sample.fixed_batch, sample.quantized_nodes, sample.notes) == (
        "samples",
        None,
        0,
        ("as it is",),
    )


@pytest.mark.parametrize(
    ("partial", "expected", "decided", "told"),
    [
        (Partial(rows=3), 4, False, ["ended-early"]),
        (Partial(rows=4), 4, False, []),
        (Partial(rows=5), 4, False, []),
        (Partial(rows=3), None, False, []),
        (Partial(rows=3), 4, True, []),
        (Partial(rows=3, incidents=(Incident("data", "torn"),)), 4, False, ["data"]),
        (Partial(rows=3, mismatches=frozenset({Mismatch("row-count", "fewer")})), 4, False, []),
        (Partial(rows=3, mismatches=frozenset({Mismatch("shape", "another")})), 4, False, ["ended-early"]),
    ],
)
def test_rows_that_are_missing_without_a_reason_are_told(partial, expected, decided, told):
    facts = finished(partial, expected_rows=expected, decided=decided)
    assert [incident.code for incident in facts.incidents] == told
    assert (facts.expected_rows, facts.stopped) == (expected, decided)
    if told == ["ended-early"]:
        assert facts.incidents[0].message == "4 rows were expected and 3 were compared"


def test_what_pairing_found_stands_beside_what_rows_did():
    of_rows = Incident("data", "torn")
    of_pairs = Incident("missing-output", "gone")
    pairing = Pairing((), (), (Mismatch("b", "two", "y"), Mismatch("a", "three", "y")), (of_pairs,))
    partial = Partial(
        rows=1, incidents=(of_rows,), mismatches=frozenset({Mismatch("c", "one"), Mismatch("a", "1", "y")})
    )
    facts = finished(partial, pairing=pairing)
    assert facts.incidents == (of_rows, of_pairs)
    assert [(found.code, found.message) for found in facts.mismatches] == [
        ("c", "one"),
        ("a", "1"),
        ("a", "three"),
        ("b", "two"),
    ]


@pytest.mark.parametrize(("count", "over"), [(6, 0), (7, 1), (8, 2), (2, 2)])
def test_a_call_that_was_filled_up_is_told(count, over):
    facts = finished(Partial(rows=count), sides=(Told(first_half), Told(first_half, batch=3)))
    told = (
        f"candidate: it takes 3 rows per call; the last call had {over} and was filled up with copies of its last row, "
        "whose answers are left out"
    )
    assert facts.notes == ("as it is", *([told] if over else []))
    assert facts.fixed_batch == 3


def test_beside_the_data_nothing_is_said_of_the_whole():
    partial, _ = observed({"y": X}, {"y": X}, rows(x=X, times=[1, 2, 3, 4]))
    side = Side("reference", "it", Told(first_half, details={"warnings": ["old"]}), Feed("reference", None))
    known = Prepared(side, side, Pairing((SPEC,), ("spare",)), CLOSE, rows(x=X), ("as it is",))
    facts = finish_beside(known, partial, planned(expected_rows=100))
    assert (facts.notes, facts.warnings, facts.not_compared, facts.varied, facts.timeline) == ((), (), (), False, None)
    assert (facts.rows, facts.expected_rows, facts.incidents) == (4, None, ())


def test_what_is_kept_to_judge_again():
    closeness = dict.fromkeys(("rows", "values", "magnitudes", "integer_rounding", "finite"), 1)
    top = {"margins": 2, "rows": 3, "classes": 4, "best": 5}
    fact = OutputFacts("y", SPEC, {}, {"closeness": closeness, "top_class": top, "worst_rows": {"rows": []}})
    assert needed_to_judge_again(fact) == {
        "closeness": {"rows": 1, "values": 1, "magnitudes": 1, "integer_rounding": 1},
        "top_class": {"margins": 2, "rows": 3, "classes": 4},
    }
    labels = OutputFacts("y", SPEC, {}, {"agreement": {"margins": 1, "confusion": 2}})
    assert needed_to_judge_again(labels) == {"agreement": {"margins": 1}}


def test_outputs_are_paired_by_what_is_declared_of_them():
    ours = Told(
        lambda given: {"p": np.stack([X / 8, 1 - X / 8], axis=1)}, "x", outputs=(OutputSpec("p", Kind.PROBABILITY),)
    )
    theirs = Told(
        lambda given: {"q": np.stack([X / 8, 1 - X / 8], axis=1)}, "x", outputs=(OutputSpec("q", Kind.PROBABILITY),)
    )
    (spec,) = prepared(ours, theirs).pairing.pairs
    assert (spec.reference, spec.candidate, spec.kind) == ("p", "q", Kind.PROBABILITY)
    (spec,) = prepared(first_half, lambda inputs: {"a": inputs["x"], "b": inputs["x"]}, pair={"b": "y"}).pairing.pairs
    assert (spec.reference, spec.candidate, spec.matched_by) == ("y", "b", "the user")
    with pytest.raises(LikewiseError, match="no input 'nothing'"):
        prepared(feed={"nothing": "x"})
