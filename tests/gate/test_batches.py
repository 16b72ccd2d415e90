"""A candidate must answer alike whatever the batch, and every time it is asked."""

from __future__ import annotations

import numpy as np
import pytest

import data_only
import likewise
from likewise import report as report_files
from likewise.compare.variations import batches
from likewise.report.formats.json import EXTENSION as JSON
from likewise.report.formats.json import loads
from planting import FLOAT, INT64, codes, expect, graph, measures, planted, rows, worst

COUNT = 100
TABLE = np.random.default_rng(3).normal(size=(COUNT, 3)).astype(np.float32)
WEIGHTS = np.array([[1.0, -1.0], [0.5, 2.0], [-2.0, 0.25]], dtype=np.float32)
DATA = {"X": TABLE}


def reference(X):
    return {"value": X.astype(np.float64) @ WEIGHTS.astype(np.float64)}


def product(batch, weights=WEIGHTS):
    """The reference as an ONNX graph, with this first dimension."""
    return graph(
        [("MatMul", ["X", "w"], ["value"], {})],
        {"X": (FLOAT, [batch, 3])},
        {"value": (FLOAT, [batch, 2])},
        w=weights,
    )


def test_a_graph_with_a_free_batch_axis_passes_at_every_size():
    report = expect(data_only.check(reference, product(None), DATA), "PASS")
    assert [facts.size for facts in report.comparison.batch_sizes] == [1, 2, 3, 4, 7, 8, 9, 31, 32, 33, 100]
    assert all(facts.rows for facts in report.comparison.batch_sizes)


def test_a_graph_that_runs_at_batch_1_only_is_inconclusive_and_says_so():
    # Traced with one sample: the reshape fixes the batch although the input says it is free.
    candidate = graph(
        [("Reshape", ["X", "shape"], ["row"], {}), ("MatMul", ["row", "w"], ["value"], {})],
        {"X": (FLOAT, [None, 3])},
        {"value": (FLOAT, [None, 2])},
        shape=np.array([1, 3]),
        w=WEIGHTS,
    )
    report = data_only.check(reference, candidate, DATA)
    expect(report, "INCONCLUSIVE", "the candidate", "rows 0 to 31", "It answers each of them alone", "--fixed-batch")
    two = data_only.check(reference, candidate, {"X": DATA["X"][:2]})
    expect(two, "INCONCLUSIVE", "rows 0 to 1", "It answers each of them alone")
    intended = data_only.check(reference, candidate, DATA, batch_size=1, fixed_batch=True)
    expect(intended, "PASS", "100 rows")


def test_a_graph_that_is_right_at_batch_1_only_fails():
    # Right for one row; for more it runs, and lays all rows end to end.
    candidate = graph(
        [("Reshape", ["X", "shape"], ["value"], {})],
        {"X": (FLOAT, [None, 3])},
        {"value": (FLOAT, [None, None])},
        shape=np.array([1, -1]),
    )
    report = data_only.check(lambda X: {"value": X}, candidate, DATA)
    expect(report, "FAIL", "the candidate", "was given 32 rows and answered 1 in output 'value'")


def test_a_graph_that_is_wrong_at_batch_1_only_fails_and_the_size_is_named():
    # Squeezing without axes also removes a batch of one.
    candidate = graph(
        [
            ("Unsqueeze", ["X", "last"], ["wide"], {}),
            ("Squeeze", ["wide"], ["flat"], {}),
            ("ReduceMean", ["flat"], ["value"], {"axes": [0], "keepdims": 0}),
            ("Add", ["X", "value"], ["moved"], {}),
            ("Sub", ["moved", "value"], ["same"], {}),
            ("Shape", ["flat"], ["dims"], {}),
            ("Size", ["dims"], ["rank"], {}),
            ("Cast", ["rank"], ["number"], {"to": FLOAT}),
            ("Mul", ["same", "number"], ["result"], {}),
        ],
        {"X": (FLOAT, [None, 3])},
        {"result": (FLOAT, [None, 3])},
        last=np.array([2]),
    )
    # At batch n the rank is 2, at batch 1 it is 1.
    report = data_only.check(lambda X: {"result": 2.0 * X}, candidate, DATA)
    expect(report, "FAIL", "result.mismatch_rate is 1 at batch size 1")
    assert "at batch size 2" not in " ".join(f.message for f in report.verdict.findings)


def test_a_fixed_batch_is_inconclusive_unless_it_is_intended():
    candidate = product(8)
    report = data_only.check(reference, candidate, DATA)
    expect(report, "INCONCLUSIVE", "only takes batches of 8", "--fixed-batch")
    report = expect(data_only.check(reference, candidate, DATA, fixed_batch=True), "PASS", "100 rows")
    # 100 is no multiple of 8: the last call is filled up, and what was filled in is not compared.
    assert report.samples == COUNT
    assert measures(report, "value")["max_abs_diff"] < 1e-5


def test_a_wrong_answer_in_the_last_short_call_of_a_fixed_batch_fails():
    wrong = WEIGHTS.copy()
    wrong[0, 0] += 10
    report = data_only.check(reference, product(8), {"X": np.where(np.arange(COUNT)[:, None] < 99, TABLE, 0.0)})
    assert "fixed-batch" in codes(report, "inconclusive")
    candidate = graph(
        [("MatMul", ["X", "w"], ["value"], {})], {"X": (FLOAT, [8, 3])}, {"value": (FLOAT, [8, 2])}, w=wrong
    )
    data = np.zeros_like(TABLE)
    data[99] = 1.0
    report = data_only.check(reference, candidate, {"X": data}, fixed_batch=True)
    expect(report, "FAIL", "1 of 100 rows differs by more than 0.0001")
    assert worst(report, "value")[0]["row"] == 99


def test_a_candidate_that_subtracts_the_batch_mean_fails():
    nodes = [("ReduceMean", ["X"], ["mean"], {"axes": [0]}), ("Sub", ["X", "mean"], ["value"], {})]
    candidate = graph(nodes, {"X": (FLOAT, [None, 3])}, {"value": (FLOAT, [None, 3])})
    centred = TABLE - TABLE.mean(axis=0)
    number_of = {tuple(row): number for number, row in enumerate(TABLE.tolist())}

    def exact_on_all(X):
        return {"value": centred[[number_of[tuple(row)] for row in X.tolist()]]}

    # Right on all rows at once, as an offline test would run it; wrong in smaller batches.
    report = data_only.check(exact_on_all, candidate, DATA)
    expect(report, "FAIL", "value.mismatch_rate is 1 at batch size 1")
    # At batch 1 the answer is zero: the drift is the largest centred value.
    assert measures(report, "value")["batch_drift"] == pytest.approx(np.abs(centred).max(), rel=1e-5)


def test_batch_drift_within_tolerance_can_be_limited():
    def drifting(X):
        return {"value": X + 1e-6 * len(X)}

    data = {"X": np.linspace(1, 2, COUNT)}
    plain = expect(data_only.check(lambda X: {"value": X}, drifting, data), "PASS")
    # 100 rows per call in the main run, 1 in the sweep.
    assert measures(plain, "value")["batch_drift"] == pytest.approx(99e-6, rel=1e-3)
    report = data_only.check(lambda X: {"value": X}, drifting, data, limits={"batch_drift": 1e-6})
    expect(report, "FAIL", "value.batch_drift")


def test_a_nondeterministic_candidate_fails():
    nodes = [("RandomNormalLike", ["X"], ["noise"], {"scale": 0.1}), ("Add", ["X", "noise"], ["value"], {})]
    candidate = graph(nodes, {"X": (FLOAT, [None, 3])}, {"value": (FLOAT, [None, 3])})
    report = data_only.check(lambda X: {"value": X}, candidate, DATA)
    expect(report, "FAIL", "value.mismatch_rate")
    assert measures(report, "value")["batch_drift"] > 0


def counting(changed_after):
    """A model that answers something else from some call on."""
    calls = []

    def model(X):
        calls.append(len(X))
        return {"value": X + (1.0 if len(calls) > changed_after else 0.0)}

    return model


@pytest.mark.parametrize("after", [1, 2, 5])
def test_a_candidate_that_changes_its_mind_after_the_first_answers_fails_and_is_told_apart(after):
    report = data_only.check(lambda X: {"value": X}, counting(after), rows(COUNT))
    expect(report, "FAIL", "the candidate changes its answers from call to call", "'value'", "moves by up to 1")
    assert "unstable" in codes(report, "failure")


@pytest.mark.parametrize("after", [1, 2])
def test_a_reference_that_changes_its_mind_decides_nothing(after):
    report = data_only.check(counting(after), lambda X: {"value": X}, rows(COUNT))
    expect(report, "INCONCLUSIVE", "the reference changes its answers from call to call", "eval()")
    assert "unstable" in codes(report, "inconclusive")


def test_dropout_that_stays_on_is_told_apart_from_a_difference():
    torch = pytest.importorskip("torch")

    class Live(torch.nn.Module):
        def forward(self, X):
            return {"value": torch.nn.functional.dropout(X, 0.5, training=True)}

    expect(
        data_only.check(Live(), lambda X: {"value": X}, DATA), "INCONCLUSIVE", "changes its answers from call to call"
    )
    expect(data_only.check(lambda X: {"value": X}, Live(), DATA), "FAIL", "the candidate changes its answers")


def test_a_model_that_merely_differs_or_depends_on_the_batch_is_not_called_unstable():
    def centred(X):
        return {"value": X - X.mean(axis=0)}

    plain = data_only.check(lambda X: {"value": X}, lambda X: {"value": X + 1.0}, DATA)
    assert "unstable" not in codes(expect(plain, "FAIL"))
    batch = data_only.check(lambda X: {"value": X}, centred, DATA)
    assert "unstable" not in codes(expect(batch, "FAIL"))
    assert "unstable" not in codes(expect(data_only.check(centred, centred, DATA), "PASS"))


def test_models_that_agree_are_not_asked_again():
    asked = {"reference": [], "candidate": []}

    def model(side):
        return lambda X: [asked[side].append(len(X)), {"value": X}][1]

    expect(data_only.check(model("reference"), model("candidate"), rows(COUNT), batch_sizes=()), "PASS")
    assert asked == {"reference": [32, COUNT], "candidate": [32, COUNT]}


def test_answers_that_a_module_keeps_in_one_buffer_are_not_overwritten_by_the_next_call():
    torch = pytest.importorskip("torch")

    class Reusing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.kept = torch.zeros(COUNT, 3)

        def forward(self, X):
            self.kept[: len(X)] = 2.0 * X
            return {"value": self.kept[: len(X)]}

    def clean(X):
        return {"value": 2.0 * X}

    for pair in ((Reusing().eval(), clean), (clean, Reusing().eval())):
        expect(data_only.check(*pair, DATA, batch_size=10), "PASS")


def test_a_label_that_depends_on_the_batch_fails():
    def candidate(X):
        return {"label": (X.astype(int) + (len(X) == 4)) % 3}

    report = data_only.check(planted(label=np.arange(COUNT) % 3), candidate, rows(COUNT))
    expect(report, "FAIL", "label.material_flips", "at batch size 4")
    assert measures(report, "label")["batch_drift"] == 1.0


def test_a_candidate_that_fails_at_one_size_is_inconclusive_and_the_size_is_named():
    def candidate(X):
        if len(X) == 2:
            raise RuntimeError("no kernel for two rows")
        return {"value": X}

    report = data_only.check(lambda X: {"value": X}, candidate, rows(COUNT))
    expect(report, "INCONCLUSIVE", "at batch size 2", "the candidate", "no kernel for two rows")


def test_an_output_that_loses_its_batch_axis_at_size_1_fails():
    def candidate(X):
        return {"value": np.squeeze(np.stack([X, X], axis=1))}

    report = data_only.check(lambda X: {"value": np.stack([X, X], axis=1)}, candidate, rows(COUNT))
    expect(report, "FAIL", "at batch size 1", "'value'", "of shape (2,)")


def test_without_a_sweep_no_other_size_is_claimed():
    report = expect(data_only.check(reference, product(None), DATA, batch_sizes=()), "PASS")
    assert report.comparison.batch_sizes == ()
    assert "batch_drift" not in measures(report, "value")
    limited = data_only.check(reference, product(None), DATA, batch_sizes=(), limits={"batch_drift": 0.1})
    expect(limited, "INCONCLUSIVE", "nothing was measured against the limit on batch_drift")


@pytest.mark.parametrize("size", [1, 7, 64, 100, 1000])
def test_the_verdict_and_the_figures_are_the_same_at_every_call_size(size):
    wrong = np.linspace(0, 1, COUNT)
    pair = planted(value=np.zeros(COUNT)), planted(value=wrong)
    report = data_only.check(*pair, rows(COUNT), batch_size=size, batch_sizes=())
    expect(report, "FAIL", "value.mismatch_rate is 0.99")
    assert measures(report, "value")["mean_abs_diff"] == pytest.approx(wrong.mean(), rel=1e-15)
    everything = data_only.check(*pair, rows(COUNT), batch_sizes=())
    assert report.comparison == everything.comparison


def test_a_fixed_inner_dimension_that_the_data_does_not_have_is_inconclusive():
    report = data_only.check(lambda X: {"value": X}, product(None), {"X": np.zeros((COUNT, 4), np.float32)})
    expect(report, "INCONCLUSIVE", "input 'X' of the candidate takes shape (n, 3), the data has (n, 4)")


def test_a_fixed_batch_of_one_with_a_free_length_is_told_by_its_input():
    # What tracing one sentence gives: a batch of one, any number of tokens.
    candidate = graph(
        [("Cast", ["ids"], ["value"], {"to": FLOAT})], {"ids": (INT64, [1, None])}, {"value": (FLOAT, [1, None])}
    )
    data = {"ids": np.arange(20).reshape(10, 2)}
    expect(data_only.check(lambda X: {"value": X}, candidate, data), "INCONCLUSIVE", "only takes batches of 1")
    expect(data_only.check(lambda X: {"value": X}, candidate, data, fixed_batch=True), "PASS")


def sorting():
    """A graph that sorts the rows of a batch, as packed sequences are, and does not put them back."""
    return graph(
        [
            ("Slice", ["X", "zero", "one", "last"], ["key"], {}),
            ("Squeeze", ["key", "last"], ["flat"], {}),
            ("Shape", ["flat"], ["count"], {}),
            ("TopK", ["flat", "count"], ["_", "order"], {"largest": 0}),
            ("Gather", ["X", "order"], ["value"], {}),
        ],
        {"X": (FLOAT, [None, 3])},
        {"value": (FLOAT, [None, 3])},
        zero=np.array([0]),
        one=np.array([1]),
        last=np.array([1]),
    )


def test_a_candidate_whose_answers_do_not_follow_their_rows_fails_although_every_size_agrees():
    data = {"X": TABLE[np.argsort(TABLE[:, 0])]}
    report = data_only.check(lambda X: {"value": X}, sorting(), data)
    expect(report, "FAIL", "rows reversed: value.mismatch_rate", "at batch size 32")
    # Sorted rows stay where they are, so that no size shows it.
    assert all(check.outcome == "PASS" for check in report.verdict.checks)
    assert measures(report, "value")["batch_drift"] == 0.0
    turned = data["X"][:32][::-1]
    by_hand = np.abs(turned - turned[::-1]).max()
    assert measures(report, "value")["position_drift"] >= by_hand
    assert {"batch-position"} <= codes(report, "failure")


def test_the_largest_move_in_another_place_is_published_and_can_be_limited():
    def drifting(X):
        return {"value": X + 1e-6 * np.arange(len(X))}

    data = {"X": np.linspace(1, 2, COUNT)}
    plain = expect(data_only.check(lambda X: {"value": X}, drifting, data), "PASS")
    # Of 100 rows, 32 are spread three apart; row 96 was in place 96 and is in place 31.
    moved = [[31 - 2 * place for place in range(32)], [16] * 32]
    spread = [place * COUNT // 32 for place in range(32)]
    moved.append([place - row for place, row in enumerate([*spread[::2], *spread[1::2]])])
    largest = 1e-6 * max(abs(step) for steps in moved for step in steps)
    assert measures(plain, "value")["position_drift"] == pytest.approx(largest, rel=1e-3)
    limited = data_only.check(lambda X: {"value": X}, drifting, data, limits={"position_drift": 1e-6})
    expect(limited, "FAIL", "value.position_drift")


@pytest.mark.parametrize("fault", ["index", "reversed"])
def test_a_candidate_that_is_right_row_by_row_and_wrong_in_a_batch_fails(fault):
    nodes = [("Shape", ["X"], ["shape"], {}), ("Gather", ["shape", "first"], ["count"], {})]
    nodes.append(("Range", ["start", "count", "step"], ["places"], {}))
    if fault == "index":
        nodes += [("Unsqueeze", ["places", "axis"], ["column"], {}), ("Cast", ["column"], ["added"], {"to": FLOAT})]
        nodes.append(("Add", ["X", "added"], ["value"], {}))
    else:
        nodes += [("Sub", ["count", "step"], ["end"], {}), ("Sub", ["end", "places"], ["order"], {})]
        nodes.append(("Gather", ["X", "order"], ["value"], {}))
    numbers = {"first": np.array(0), "start": np.array(0), "step": np.array(1), "axis": np.array([1])}
    used = {name for _, taken, *_ in nodes for name in taken}
    constants = {name: value for name, value in numbers.items() if name in used}
    candidate = graph(nodes, {"X": (FLOAT, [None, 3])}, {"value": (FLOAT, [None, 3])}, **constants)
    report = data_only.check(lambda X: {"value": X}, candidate, DATA, batch_size=1)
    expect(report, "FAIL", "at batch size 2")
    assert "at batch size 1," not in report.verdict.headline


def test_a_fault_of_batches_that_are_no_multiple_of_four_shows_beside_the_powers_of_two():
    # Filled up to a multiple of four, and divided by the rows that were there.
    candidate = graph(
        [
            ("Shape", ["X"], ["shape"], {}),
            ("Gather", ["shape", "first"], ["count"], {}),
            ("Cast", ["count"], ["rows"], {"to": FLOAT}),
            ("Div", ["rows", "four"], ["quarters"], {}),
            ("Ceil", ["quarters"], ["whole"], {}),
            ("Mul", ["whole", "four"], ["filled"], {}),
            ("Div", ["filled", "rows"], ["factor"], {}),
            ("Mul", ["X", "factor"], ["value"], {}),
        ],
        {"X": (FLOAT, [None, 3])},
        {"value": (FLOAT, [None, 3])},
        first=np.array(0),
        four=np.array(4.0, dtype=np.float32),
    )
    report = data_only.check(lambda X: {"value": X}, candidate, DATA)
    wrong = {check.batch_size for check in report.verdict.checks if check.outcome == "FAIL"}
    assert wrong == {size for size in (1, 2, 3, 4, 7, 8, 9, 31, 32, 33, 100) if size % 4}
    # At full batches of four all is well; the row that is left over is alone in the last call.
    short = data_only.check(lambda X: {"value": X}, candidate, DATA, batch_sizes=(4,))
    expect(short, "FAIL", "one row left over: value.mismatch_rate is 0.2 at batch size 4")


def test_a_reference_that_depends_on_the_batch_is_found_and_not_blamed_on_the_candidate():
    torch = pytest.importorskip("torch")

    class Centred(torch.nn.Module):
        def forward(self, X):
            return X - X.mean(0)

    def candidate(X):
        return {"output": X - X.mean(0)}

    report = data_only.check(Centred(), candidate, DATA)
    expect(report, "PASS", "the reference's own 'output' depends on the batch", "BatchNorm", "not to blame")
    assert all(facts.same_batch for facts in report.comparison.batch_sizes if facts.size < 33)
    (found,) = [entry for entry in report.verdict.findings if entry.code == "reference-batch"]
    assert found.severity == "warning"
    whole = TABLE - TABLE.mean(0)
    moved = {size: np.abs(TABLE[:size] - TABLE[:size].mean(0) - whole[:size]).max() for size in (2, 3, 4, 33)}
    moved[1] = np.abs(whole[:16]).max()
    swept = {facts.size: facts.outputs[0].measures["reference_drift"] for facts in report.comparison.batch_sizes}
    for size, by_hand in moved.items():
        assert swept[size] == pytest.approx(by_hand, rel=1e-5)
    assert measures(report, "output")["reference_drift"] == max(swept.values())
    assert swept[100] < 1e-6


def across_the_batch(axis):
    torch = pytest.importorskip("torch")

    class Weighted(torch.nn.Module):
        def forward(self, X):
            return {"value": torch.softmax(X, axis)}

    return Weighted().eval()


def softmax(axis):
    return graph(
        [("Softmax", ["X"], ["value"], {"axis": axis})], {"X": (FLOAT, [None, 3])}, {"value": (FLOAT, [None, 3])}
    )


@pytest.mark.parametrize("options", [{}, {"preset": "exact"}], ids=["float32", "exact"])
def test_a_softmax_over_the_batch_passes_against_itself_and_is_warned_about(options):
    module = across_the_batch(0)
    for candidate in (module, softmax(0)) if not options else (module,):
        report = expect(data_only.check(module, candidate, DATA, **options), "PASS", "depends on the batch")
        assert codes(report, "warning") >= {"reference-batch"}


def test_a_candidate_that_is_wrong_in_small_batches_fails_also_where_the_reference_moves():
    module = across_the_batch(0)

    def wrong(X):
        given = np.exp(X) / np.exp(X).sum(axis=0)
        return {"value": given * (1.5 if len(X) == 7 else 1.0)}

    report = data_only.check(module, wrong, DATA)
    expect(report, "FAIL", "at batch size 7", "the reference's own 'value' depends on the batch")
    assert {check.batch_size for check in report.verdict.checks if check.outcome == "FAIL"} == {7}
    expect(data_only.check(module, softmax(1), DATA), "FAIL")


@pytest.mark.parametrize("beside", [{}, {"beside_budget": "0x"}], ids=["everything", "most telling"])
def test_a_candidate_that_stays_where_the_reference_moves_fails(beside):
    torch = pytest.importorskip("torch")

    class Branched(torch.nn.Module):
        """What tracing makes one branch of: right on the data, and for no single row below zero."""

        def forward(self, X):
            return {"value": X if X.sum() > 0 else -X}

    rows = np.abs(TABLE)
    rows[1::3] *= -1
    above = {"X": rows}
    report = data_only.check(Branched().eval(), lambda X: {"value": X}, above, **beside)
    expect(report, "FAIL", "at batch size 1", "compared with its answers in the same batch")
    assert "mismatch_rate" in codes(report, "failure")
    told = data_only.check(Branched().eval(), lambda X: {"value": X if X.sum() > 0 else -X}, above, **beside)
    expect(told, "PASS", "depends on the batch")


def test_the_headline_claims_no_more_rows_than_were_asked_in_other_batches():
    def candidate(X):
        return {"value": X + (X[:, :1] > 0) * (len(X) < 9), "label": (X[:, 0] > 0) ^ (len(X) == 1)}

    report = data_only.check(lambda X: {"value": X, "label": X[:, 0] > 0}, candidate, DATA)
    most = max(int((TABLE[:rows, 0] > 0).sum()) for rows in (16, 32))
    expect(report, "FAIL", f"up to {most} of 32 rows differ", "16 of 16 labels changed")
    everywhere = data_only.check(lambda X: {"value": X}, lambda X: {"value": X + (len(X) < 9)}, DATA)
    expect(everywhere, "FAIL", "at batch sizes 1–4, 7, 8: all rows differ")


@pytest.mark.parametrize("options", [{"preset": "exact"}, {"abs_tol": 0.0}], ids=["exact", "abs_tol"])
def test_bit_equality_on_the_data_judges_other_batches_too(options):
    def threefold(X):
        return {"value": X * (3.0 if len(X) < 41 else 1.0)}

    def relabelled(X):
        return {"label": (X[:, 0] > 0).astype(int) ^ (len(X) < 41)}

    report = data_only.check(lambda X: {"value": X}, threefold, DATA, **options)
    expect(report, "FAIL", "value.mismatch_rate is 1 at batch size 1")
    labels = data_only.check(lambda X: {"label": (X[:, 0] > 0).astype(int)}, relabelled, DATA, **options)
    expect(labels, "FAIL", "at batch size")
    assert likewise.judge(report, preset="exact").outcome == "FAIL"


@pytest.mark.parametrize("options", [{"preset": "exact"}, {"abs_tol": 0.0}], ids=["exact", "abs_tol"])
def test_another_order_of_summation_is_no_fault_where_bit_equality_is_asked_for(options):
    weights = np.random.default_rng(4).normal(size=(300, 5)).astype(np.float32)
    wide = np.random.default_rng(5).normal(size=(COUNT, 300)).astype(np.float32)

    def product(X):
        # The rows of a call decide how a product is summed, as kernels do.
        step = 100 if len(X) > 40 else 7
        return {"value": sum(X[:, at : at + step] @ weights[at : at + step] for at in range(0, 300, step))}

    report = expect(data_only.check(product, product, {"X": wide}, **options), "PASS")
    assert 0 < measures(report, "value")["batch_drift"] < 1e-4
    assert "reference-batch" not in codes(report)
    # Also of a run under another tolerance that is judged again.
    assert likewise.judge(data_only.check(product, product, {"X": wide}), preset="exact").outcome == "PASS"


def test_a_fixed_batch_is_decided_on_data_of_that_size():
    report = expect(
        data_only.check(reference, product(COUNT), DATA), "PASS", "only takes batches of 100", "dynamic batch axis"
    )
    assert codes(report, "warning") == {"fixed-batch"}
    assert report.comparison.batch_sizes == ()
    expect(data_only.check(reference, product(COUNT, 2 * WEIGHTS), DATA), "FAIL")
    # Other sizes cannot be shown, and were asked for.
    asked = data_only.check(reference, product(COUNT), DATA, batch_sizes=(1, 2, COUNT))
    expect(asked, "INCONCLUSIVE", "batch sizes 1, 2 were asked for, and the candidate takes batches of 100 only")


def test_batch_statistics_of_a_reference_that_stays_in_training_mode_are_found():
    torch = pytest.importorskip("torch")

    class Stubborn(torch.nn.BatchNorm1d):
        def train(self, mode=True):
            return super().train(True)

    normal = Stubborn(3)
    mean, deviation = TABLE.mean(0), TABLE.std(0)

    def candidate(X):
        return {"output": (X - mean) / np.sqrt(deviation**2 + normal.eps)}

    report = data_only.check(normal, candidate, DATA)
    # As a candidate should be: it answers row by row what the reference answers on all rows.
    expect(report, "PASS", "the reference's own 'output' depends on the batch", "training mode")
    expect(report, "PASS", "at batch size 1 the reference", "more than 1 value per channel")
    assert measures(report, "output")["batch_drift"] < 1e-6 < 0.1 < measures(report, "output")["reference_drift"]


def test_a_reference_that_answers_row_by_row_is_not_mentioned():
    report = expect(data_only.check(reference, product(None), DATA), "PASS")
    assert measures(report, "value")["reference_drift"] < 1e-12
    assert "reference-batch" not in codes(report)
    assert {facts.order for facts in report.comparison.batch_orders} == {
        "rows reversed",
        "rows turned by half",
        "rows mixed with others",
        "one row left over",
    }


def test_recorded_answers_are_not_asked_at_other_sizes(tmp_path):
    np.savez(tmp_path / "rows.npz", **DATA)
    golden = tmp_path / "golden.parquet"
    likewise.record(product(None), str(tmp_path / "rows.npz"), golden)
    report = expect(data_only.check(str(golden), product(None), str(tmp_path / "rows.npz")), "PASS")
    assert "reference_drift" not in measures(report, "value")
    assert "batch_drift" in measures(report, "value")


def test_a_few_rows_are_one_batch_of_all_of_them():
    report = expect(data_only.check(reference, product(None), {"X": TABLE[:5]}), "PASS")
    assert [(facts.size, facts.rows) for facts in report.comparison.batch_sizes] == [
        (1, 5),
        (2, 4),
        (3, 3),
        (4, 4),
        (5, 5),
    ]
    alone = expect(data_only.check(reference, product(None), {"X": TABLE[:1]}), "PASS")
    assert [facts.size for facts in alone.comparison.batch_sizes] == [1]
    assert alone.comparison.batch_orders == ()


def test_rows_that_are_answered_as_before_are_measured_once_for_all_batches(monkeypatch):
    measured = []
    observe = batches.observe
    monkeypatch.setattr(batches, "observe", lambda *a, **k: measured.append(len(a[1])) or observe(*a, **k))
    given = np.vstack([TABLE, [[np.nan, -0.0, np.inf]]]).astype(np.float32)
    report = data_only.check(lambda X: {"value": X}, lambda X: {"value": X * np.float32(1.01)}, {"X": given})
    assert sum(measured) == len(given) + 32, "all rows, and those that were mixed with others"
    with np.errstate(invalid="ignore"):
        apart = np.abs((given * np.float32(1.01)).astype(np.float64) - given)
    beyond = apart > report.comparison.tolerance.in_other_batches.absolute + 0.001 * np.abs(given)
    for facts in (*report.comparison.batch_sizes, *report.comparison.batch_orders):
        chosen = np.arange(32) * len(given) // 32 if "mixed" in facts.order else np.arange(facts.rows)
        (found,) = facts.outputs
        assert found.measures["max_abs_diff"] == np.nanmax(apart[chosen])
        assert found.measures["mean_abs_diff"] == pytest.approx(np.nanmean(apart[chosen]), rel=1e-14)
        assert found.measures["rows_beyond"] == np.count_nonzero(beyond[chosen].any(axis=1))
        assert found.measures["nan_both"] == np.count_nonzero(np.isnan(given[chosen]))


def test_a_report_keeps_what_was_seen_in_other_batches():
    report = data_only.check(lambda X: {"value": X}, sorting(), {"X": TABLE[np.argsort(TABLE[:, 0])]})
    read = loads(JSON.render(report), name="report")
    assert read.comparison.batch_orders == report.comparison.batch_orders
    again = likewise.judge(read, abs_tol=100.0)
    assert again.outcome == "PASS"
    assert likewise.judge(read, abs_tol=1e-3).outcome == "FAIL"


def test_the_sizes_are_told_in_short():
    report = data_only.check(reference, product(None), {"X": np.tile(TABLE, (3, 1))})
    told = " ".join(report_files.render(report, "terminal", full=True).split())
    assert "batch sizes 1–4, 7–9, 31–33, 127, 128 too, and rows in other places" in told


def test_a_batch_that_no_memory_holds_is_inconclusive(tmp_path):
    from onnx import TensorProto, helper, save

    size = 2**40
    given, got = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, 3]) for name in ("X", "y"))
    graph = helper.make_graph([helper.make_node("Abs", ["X"], ["y"])], "huge", [given], [got])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), tmp_path / "huge.onnx")
    report = data_only.check(np.abs, tmp_path / "huge.onnx", np.ones((5, 3), np.float32))
    assert report.outcome == "INCONCLUSIVE"
    assert f"takes {size:,} rows in every call" in report.verdict.headline
