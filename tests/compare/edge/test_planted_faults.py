"""Faults that no row of the data shows: the verdict on the data is a PASS, and one suite says what is wrong."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from edge_pairs import ROWS, attribute, changed, exported, graph, opened, pipeline, table
from onnx import TensorProto, helper

import data_only
from likewise.compare.variations import edge
from likewise.contracts.verdict import Outcome, Severity


def check(reference, candidate, data, **options):
    return data_only.check(reference, candidate, data, **{"edge": "report", "batch_sizes": (), **options})


def differing(report) -> dict[str, str]:
    """The suites that differ, by name, with what they say."""
    return {suite.name: suite.headline for suite in report.verdict.suites if suite.outcome is Outcome.FAIL}


def verdict(report, name):
    return next(suite for suite in report.verdict.suites if suite.name == name)


def test_a_faithful_export_differs_only_in_what_is_refused(linear):
    report = check(*linear, table())
    assert report.passed
    # scikit-learn refuses infinity and ONNX Runtime does not: true of every such export.
    assert set(differing(report)) == {"nonfinite"}
    assert "the reference refuses 8 of 12 rows that the candidate answers, first row" in differing(report)["nonfinite"]
    assert all(suite.kind == "edge" and not suite.blocks for suite in report.verdict.suites)


def test_what_float32_cannot_hold_is_said_to_be_that():
    from skl2onnx import to_onnx
    from sklearn.linear_model import LinearRegression

    frame = table()[["income", "rate"]]
    model = LinearRegression().fit(frame, 0.3 * frame["income"] - 0.2 * frame["rate"])
    report = check(model, to_onnx(model, frame.to_numpy(np.float32)[:1]), frame)
    assert report.passed
    told = differing(report)["huge-numbers"]
    assert told.startswith("8 of 16 rows differ; row ")
    assert "became " in told
    assert told.endswith("float32, which the candidate takes, cannot hold such values of income, rate")


def test_a_faithful_export_of_trees_agrees_on_every_threshold(trees):
    model, proto, rows = trees
    report = check(model, proto, rows)
    assert report.passed
    assert verdict(report, "tree-thresholds").outcome is Outcome.PASS
    assert verdict(report, "tree-thresholds").rows > 50
    assert verdict(report, "beyond-range").outcome is Outcome.PASS


def test_another_fill_value(linear):
    model, proto = linear
    fills = list(attribute(proto, "Imputer", "imputed_value_floats"))
    broken = changed(proto, "Imputer", "imputed_value_floats", [fills[0] + 2, *fills[1:]])
    report = check(model, broken, table())
    assert report.passed
    told = differing(report)["missing-values"]
    # Of four columns and all at once, with two rows each, only income is filled with another value.
    assert told.startswith("4 of 10 rows differ; row ")
    assert "income missing" in told or "all missing" in told


def test_another_rule_for_unknown_categories():
    lenient, strict = pipeline(), pipeline(unknown="error")
    loose = exported(lenient)
    tight = changed(loose, "OneHotEncoder", "zeros", 0)
    assert "unseen-categories" not in differing(check(lenient, loose, table()))
    refused = check(lenient, tight, table())
    assert refused.passed
    assert "the candidate refuses 2 of 2 rows that the reference answers" in differing(refused)["unseen-categories"]
    answered = check(strict, loose, table())
    assert answered.passed
    assert "the reference refuses 2 of 2 rows that the candidate answers" in differing(answered)["unseen-categories"]
    both = verdict(check(strict, tight, table()), "unseen-categories")
    assert both.outcome is Outcome.PASS
    assert (both.rows, both.refused) == (0, 2)
    assert both.headline == "both models refuse all 2 rows"


def by_id(inputs):
    return (inputs % 97).astype(np.float64)


def test_ids_cast_to_float32():
    nodes = [
        helper.make_node("Cast", ["user"], ["narrow"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["narrow"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Mod", ["whole", "by"], ["left"]),
        helper.make_node("Cast", ["left"], ["value"], to=TensorProto.DOUBLE),
    ]
    given = [helper.make_tensor_value_info("user", TensorProto.INT64, ["n"])]
    told = [helper.make_tensor_value_info("value", TensorProto.DOUBLE, ["n"])]
    proto = graph(nodes, given, told, {"by": np.array(97)})
    ids = {"user": np.random.default_rng(0).integers(0, 2**20, ROWS)}
    report = check(by_id, proto, ids)
    assert report.passed
    # The graph takes whole numbers only, so that it also refuses a gap.
    assert set(differing(report)) == {"large-integers", "missing-values"}
    assert "user = " in differing(report)["large-integers"]


def test_less_instead_of_at_most(trees):
    model, proto, rows = trees
    modes = [b"BRANCH_LT" if mode == b"BRANCH_LEQ" else mode for mode in attribute(proto, TREES, "nodes_modes")]
    report = check(model, changed(proto, TREES, "nodes_modes", modes), rows)
    assert report.passed
    told = differing(report)["tree-thresholds"]
    assert "the threshold of tree" in told
    assert "above the threshold" not in told


TREES = "TreeEnsembleClassifier"


def test_thresholds_are_followed_back_through_a_scaler():
    """What the graph compares, told in years: computed here from the fitted scaler and tree."""
    from sklearn.tree import DecisionTreeClassifier

    frame = table()
    model = pipeline(final=DecisionTreeClassifier(max_depth=3, random_state=0), labels=frame["age"] > 40)
    scaler = model[0].named_transformers_["numbers"][-1]
    tree = model[-1].tree_
    (at,) = {float(t) for t, feature in zip(tree.threshold, tree.feature, strict=True) if feature == 2}
    years = at * scaler.scale_[2] + scaler.mean_[2]
    with opened(model, exported(model), frame) as (_, _, _, seen):
        (batch,) = next(suite for suite in edge.suites() if suite.name == "tree-thresholds").batches(seen)
    assert sorted(batch.inputs["age"].tolist()) == [np.floor(years), np.ceil(years)]


def test_ties_broken_the_other_way():
    from skl2onnx import to_onnx
    from sklearn.tree import DecisionTreeClassifier

    # In each of four groups as many of one class as of the other: every leaf is a tie.
    rows = np.repeat(np.arange(4, dtype=np.float32), 20)[:, None]
    model = DecisionTreeClassifier(random_state=0).fit(rows, np.tile([0, 1], 40))
    proto = to_onnx(model, rows[:1], options={"zipmap": False})
    faithful = check(model, proto, rows)
    assert faithful.passed
    assert "tied-scores" not in differing(faithful)
    last = onnx.ModelProto()
    last.CopyFrom(proto)
    for node in last.graph.node:
        names = ["spare" if name == "label" else name for name in node.output]
        del node.output[:]
        node.output.extend(names)
    last.graph.node.append(
        helper.make_node("ArgMax", ["probabilities"], ["label"], axis=1, keepdims=0, select_last_index=1)
    )
    report = check(model, last, rows)
    assert report.passed, "within noise, as far as the data goes"
    told = differing(report)["tied-scores"]
    assert "both models give two classes the same score, and the label is 0 in the reference and 1 in" in told


def values(inputs):
    return inputs.reshape(len(inputs), -1).astype(np.float64).sum(axis=1)


def clipped(inputs):
    return values(np.clip(inputs, 0.0, 1.0))


def flushed(inputs):
    return np.sign(np.where(np.abs(inputs) < 1e-37, 0.0, inputs)).astype(np.float64)


def signed(inputs):
    return np.sign(inputs).astype(np.float64)


def by_sign_bit(inputs):
    return np.where(np.signbit(inputs), -1.0, 1.0)


def by_comparison(inputs):
    return np.where(inputs < 0, -1.0, 1.0)


def without_nan(inputs):
    return values(np.nan_to_num(inputs, posinf=np.inf, neginf=-np.inf))


def of_several(inputs):
    if len(inputs) == 1:
        raise ValueError("a batch of one has no spread")
    return values(inputs)


def of_different(inputs):
    return values(inputs) / (1.0 if len(np.unique(inputs)) > 1 else 0.0)


def lengths(frame):
    return frame["city"].map(lambda text: float(len(text)) if isinstance(text, str) else -1.0).to_numpy()


def spelled(change):
    return lambda frame: lengths(frame.assign(city=frame["city"].map(lambda t: change(t) if isinstance(t, str) else t)))


def coded(frame):
    return frame["city"].map({"Oslo": 1.0, "Rome": 2.0, "Lima": 3.0}).fillna(-1.0).to_numpy(np.float64)


def coded_in_any_case(frame):
    known = {"oslo": 1.0, "rome": 2.0, "lima": 3.0}
    return (
        frame["city"]
        .astype("object")
        .map(lambda t: known.get(t.lower(), -1.0) if isinstance(t, str) else -1.0)
        .to_numpy()
    )


def refusing_empty(frame):
    if (frame["city"] == "").any():
        raise ValueError("no city")
    return lengths(frame)


def attended(inputs):
    mask = inputs["attention_mask"].astype(np.float64)
    return (inputs["x"] * mask).sum(axis=1) / np.maximum(mask.sum(axis=1), 1.0)


def attended_by_none(inputs):
    mask = inputs["attention_mask"].astype(np.float64)
    with np.errstate(all="ignore"):
        return (inputs["x"] * mask).sum(axis=1) / mask.sum(axis=1)


NUMBERS = {"x": np.random.default_rng(5).uniform(0.1, 0.9, ROWS)}
IMAGES = {"x": np.random.default_rng(5).uniform(0.1, 0.9, (40, 2, 4, 4)).astype(np.float32)}
MASKED = {"x": np.ones((60, 4)), "attention_mask": np.tile([1, 1, 1, 0], (60, 1))}


@pytest.mark.parametrize(
    ("suite", "reference", "candidate", "data"),
    [
        ("beyond-range", values, clipped, NUMBERS),
        ("beyond-range", values, clipped, IMAGES),
        ("tiny-numbers", signed, flushed, NUMBERS),
        ("zeros", by_comparison, by_sign_bit, NUMBERS),
        ("nonfinite", values, without_nan, NUMBERS),
        ("nonfinite", values, without_nan, IMAGES),
        ("missing-values", values, without_nan, NUMBERS),
        ("single-row", values, of_several, NUMBERS),
        ("duplicated-rows", values, of_different, NUMBERS),
        ("constant-columns", values, of_different, NUMBERS),
        ("huge-numbers", values, clipped, NUMBERS),
        ("letter-case", coded, coded_in_any_case, table()[["city"]]),
        ("blanks", lengths, spelled(str.strip), table()[["city"]]),
        ("accents", lengths, spelled(lambda text: text.encode("ascii", "ignore").decode()), table()[["city"]]),
        ("empty-text", lengths, refusing_empty, table()[["city"]]),
        ("masks", attended, attended_by_none, MASKED),
    ],
)
def test_a_fault_that_only_its_suite_shows(suite, reference, candidate, data):
    report = check(reference, candidate, data, batch_sizes=())
    assert report.passed, report.verdict.headline
    assert suite in differing(report)
    itself = check(reference, reference, data, batch_sizes=())
    assert itself.passed
    assert not differing(itself)


def test_a_composed_letter_and_its_parts_are_two_rows():
    import unicodedata

    report = check(lengths, spelled(lambda text: unicodedata.normalize("NFC", text)), table()[["city"]])
    assert report.passed
    assert set(differing(report)) == {"accents"}


def test_rows_that_already_differ_are_no_base_for_others():
    """Every tenth row differs, so that the data fails; the suites begin with the others and have nothing to add."""
    x = np.linspace(0.1, 1.0, ROWS)
    marked = {"x": x}
    report = check(values, lambda inputs: np.where(np.isin(inputs, x[::10]), 9.0, values(inputs)), marked)
    assert report.outcome is Outcome.FAIL
    assert not differing(report)
    assert all(suite.outcome is Outcome.PASS for suite in report.verdict.suites)


def test_without_a_row_that_agrees_nothing_is_covered():
    report = check(values, lambda inputs: values(inputs) + 1, NUMBERS)
    (only,) = report.verdict.suites
    assert only.outcome is Outcome.INCONCLUSIVE
    assert "no row on which the models agree" in only.headline


def test_a_suite_that_differs_warns_and_names_itself(linear):
    model, proto = linear
    report = check(model, proto, table())
    codes = [(finding.code, finding.severity) for finding in report.verdict.findings]
    # What every export of such a model does is a note; where it is asked for, a failure.
    assert codes.count(("usual-refusals", Severity.NOTE)) == 1
    clipped = check(values, lambda inputs: np.minimum(values(inputs), 3.0), {"x": np.linspace(0.0, 1.0, 60)})
    assert ("edge-suite", Severity.WARNING) in [(f.code, f.severity) for f in clipped.verdict.findings]
    assert check(model, proto, table(), edge="fail").passed
    blocked = check(model, proto, table(), edge="strict")
    assert blocked.outcome is Outcome.FAIL
    assert blocked.verdict.headline.startswith("nonfinite: the reference refuses")
    assert not check(model, proto, table(), edge="off").verdict.suites
