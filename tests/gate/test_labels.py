"""Labels are compared by what they are, classes by their name, never by their place."""

from __future__ import annotations

import warnings

import numpy as np
import onnx
import pytest
from onnx import helper
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

import data_only
from planting import FLOAT, INT64, codes, expect, graph, measures, planted, rows, worst

COUNT = 60
NUMBERS = np.arange(COUNT) % 3
NAMES = np.array(["blue", "green", "red"], dtype=object)
PROBABILITIES = np.random.default_rng(0).dirichlet([2, 2, 2], size=COUNT)


def linear(models, classes, *, zipmap):
    """The exported classifier by hand: scaled weights, softmax, and a dictionary a row in this order of classes."""
    scaler, logistic = models.fitted.classifier.named_steps.values()
    order = [list(logistic.classes_).index(name) for name in classes]
    weights = (logistic.coef_ / scaler.scale_)[order].astype(np.float32)
    offsets = (logistic.intercept_ - (logistic.coef_ / scaler.scale_) @ scaler.mean_)[order].astype(np.float32)
    nodes = [
        (
            "LinearClassifier",
            ["X"],
            ["label", "scores"],
            {
                "coefficients": weights.ravel().tolist(),
                "intercepts": offsets.tolist(),
                "classlabels_strings": list(classes),
                "post_transform": "SOFTMAX",
                "multi_class": 1,
            },
        )
    ]
    outputs = {"label": (onnx.TensorProto.STRING, [None])}
    if zipmap:
        nodes.append(("ZipMap", ["scores"], ["probabilities"], {"classlabels_strings": list(classes)}))
        kind = helper.make_map_type_proto(onnx.TensorProto.STRING, helper.make_tensor_type_proto(FLOAT, []))
        outputs["probabilities"] = helper.make_value_info("probabilities", helper.make_sequence_type_proto(kind))
    else:
        nodes.append(("Identity", ["scores"], ["probabilities"], {}))
        outputs["probabilities"] = (FLOAT, [None, 3])
    return graph(nodes, {"X": (FLOAT, [None, 3])}, outputs)


def dictionaries(models, change):
    """A candidate that gives one dictionary per row, after `change(row number, dictionary)`."""
    pipeline = models.fitted.classifier
    number_of = {value: number for number, value in enumerate(models.table["width"])}

    def candidate(frame):
        answers = pipeline.predict_proba(frame[list(models.table.columns)])
        rows = [dict(zip(map(str, pipeline.classes_), answer, strict=True)) for answer in answers.tolist()]
        for width, row in zip(frame["width"], rows, strict=True):
            change(number_of[width], row)
        return {"probabilities": rows}

    return candidate


@pytest.mark.parametrize("zipmap", [True, False], ids=["dictionaries", "columns"])
@pytest.mark.parametrize("classes", [("red", "blue", "green"), ("green", "red", "blue"), ("blue", "green", "red")])
def test_classes_in_another_order_are_paired_by_name(models, classes, zipmap):
    report = data_only.check(models.joblib.classifier, linear(models, classes, zipmap=zipmap), models.data)
    expect(report, "PASS")
    assert measures(report, "probabilities")["max_abs_diff"] < 1e-5
    assert measures(report, "label")["label_flips"] == 0


def test_columns_permuted_without_the_classes_saying_so_fail(models):
    pipeline = models.fitted.classifier

    def candidate(frame):
        return {"probabilities": pipeline.predict_proba(frame[list(models.table.columns)])[:, [1, 0, 2]]}

    report = data_only.check(models.joblib.classifier, candidate, models.data)
    expect(report, "FAIL", "probabilities.mismatch_rate")
    answers = pipeline.predict_proba(models.table)
    expected = np.abs(answers - answers[:, [1, 0, 2]]).max()
    assert measures(report, "probabilities")["max_abs_diff"] == pytest.approx(expected, abs=1e-12)


def test_a_graph_whose_classes_are_mislabelled_fails(models):
    good = onnx.load_from_string(linear(models, ("blue", "green", "red"), zipmap=False))
    for attribute in good.graph.node[0].attribute:
        if attribute.name == "classlabels_strings":
            attribute.strings[:] = [b"green", b"blue", b"red"]
    report = data_only.check(models.joblib.classifier, good.SerializeToString(), models.data)
    expect(report, "FAIL", "label.material_flips")
    assert "probabilities.mismatch_rate" in " ".join(f.message for f in report.verdict.findings)


@pytest.mark.parametrize("name", ["zipmap", "numbered_zipmap"])
def test_dictionaries_with_text_and_with_number_keys_are_read(models, name):
    reference = models.joblib.classifier if name == "zipmap" else models.joblib.numbered
    report = data_only.check(reference, getattr(models.onnx, name), models.data)
    expect(report, "PASS")
    classes = next(o.pair.classes for o in report.comparison.outputs if o.name == "probabilities")
    assert classes == (("blue", "green", "red") if name == "zipmap" else (0, 1))


def test_number_keys_written_as_text_are_other_classes(models):
    pipeline = models.fitted.numbered

    def candidate(frame):
        answers = pipeline.predict_proba(frame[list(models.table.columns)])
        return {"probabilities": [{"0": a, "1": b} for a, b in answers.tolist()]}

    report = data_only.check(models.joblib.numbered, candidate, models.data)
    expect(report, "FAIL", "the classes of 'probabilities' differ", "[0, 1]", "['0', '1']")


def test_a_class_missing_from_one_row_fails_and_is_not_taken_for_zero(models):
    # Row 5 is almost surely not red: taking the missing answer for 0.0 would pass.
    sure = int(models.fitted.classifier.predict_proba(models.table)[:, 2].argmin())
    assert models.fitted.classifier.predict_proba(models.table)[sure, 2] < 1e-4
    candidate = dictionaries(models, lambda number, row: row.pop("red") if number == sure else None)
    report = data_only.check(models.joblib.classifier, candidate, models.data)
    expect(report, "FAIL", "probabilities.nonfinite_mismatch is 1", "1 of 300 rows")
    first = worst(report, "probabilities")[0]
    assert (first["row"], first["label"]) == (sure, "red")


def test_a_class_missing_from_every_row_fails_and_is_named(models):
    candidate = dictionaries(models, lambda number, row: row.pop("red"))
    report = data_only.check(models.joblib.classifier, candidate, models.data)
    expect(report, "FAIL", "the classes of 'probabilities' differ", "candidate ['blue', 'green']")


def test_a_class_the_reference_lacks_fails_and_is_named(models):
    candidate = dictionaries(models, lambda number, row: row.update(pink=0.0))
    report = data_only.check(models.joblib.classifier, candidate, models.data)
    expect(report, "FAIL", "the classes of 'probabilities' differ", "'pink'")


def test_a_class_of_another_name_fails_and_is_named(models):
    candidate = dictionaries(models, lambda number, row: row.update(pink=row.pop("red")))
    report = data_only.check(models.joblib.classifier, candidate, models.data)
    expect(report, "FAIL", "the classes of 'probabilities' differ", "'pink'")


def test_a_class_that_turns_up_only_later_is_never_a_pass(models):
    candidate = dictionaries(models, lambda number, row: row.update(pink=0.0) if number > 250 else None)
    report = data_only.check(models.joblib.classifier, candidate, models.data)
    expect(report, "INCONCLUSIVE", "'pink'", "the candidate")


def test_the_probability_of_the_positive_class_alone_is_compared_with_that_class(models):
    pipeline = models.fitted.numbered

    def positive(frame):
        return {"probability": pipeline.predict_proba(frame[list(models.table.columns)])[:, 1]}

    report = data_only.check(models.joblib.numbered, positive, models.data)
    expect(report, "PASS")
    assert "positive class only" in " ".join(report.comparison.outputs[0].pair.notes)

    def negative(frame):
        return {"probability": pipeline.predict_proba(frame[list(models.table.columns)])[:, 0]}

    expect(data_only.check(models.joblib.numbered, negative, models.data), "FAIL", "probabilities", "mismatch_rate")


def test_a_reference_of_the_positive_class_alone_meets_both_columns():
    both = PROBABILITIES[:, :2] / PROBABILITIES[:, :2].sum(axis=1, keepdims=True)
    report = data_only.check(planted(probability=both[:, 1]), planted(probability=both), rows(COUNT))
    expect(report, "PASS")
    swapped = planted(probability=both[:, ::-1])
    expect(data_only.check(planted(probability=both[:, 1]), swapped, rows(COUNT)), "FAIL", "probability.mismatch_rate")


def test_decision_scores_are_compared_with_scores_not_with_probabilities(models):
    pipeline = models.fitted.classifier

    def scores(frame):
        return {"scores": pipeline.decision_function(frame[list(models.table.columns)])}

    report = data_only.check(models.joblib.classifier, scores, models.data)
    expect(report, "PASS")
    assert [(o.name, o.pair.kind) for o in report.comparison.outputs] == [("scores", "score")]

    def passed_off(frame):
        return {"probabilities": pipeline.decision_function(frame[list(models.table.columns)])}

    report = data_only.check(models.joblib.classifier, passed_off, models.data)
    expect(report, "FAIL", "probabilities.mismatch_rate")


def test_text_labels_against_their_positions_fail_and_say_why():
    report = data_only.check(planted(label=NAMES[NUMBERS]), planted(label=NUMBERS), rows(COUNT))
    expect(report, "FAIL", "label.material_flips is 60", "text on one side and numbers on the other")
    assert "label-types" in codes(report, "warning")


def test_the_text_of_a_number_is_not_the_number():
    report = data_only.check(planted(label=NUMBERS.astype(str).astype(object)), planted(label=NUMBERS), rows(COUNT))
    expect(report, "FAIL", "label.material_flips is 60")


def test_boolean_labels_equal_zero_and_one(models):
    report = data_only.check(models.joblib.boolean, models.onnx.boolean, models.data)
    expect(report, "PASS")
    assert measures(report, "label")["label_flips"] == 0


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_labels_given_as_floats_equal_the_same_numbers(dtype):
    for labels in (NUMBERS, NUMBERS > 0):
        floats = labels.astype(dtype)
        for ours, theirs in ((labels, floats), (floats, labels)):
            expect(data_only.check(planted(label=ours), planted(label=theirs), rows(COUNT)), "PASS")
            other = data_only.check(planted(label=ours), planted(label=theirs[::-1]), rows(COUNT))
            expect(other, "FAIL", "label.mismatch_rate is")


def test_boolean_labels_turned_round_fail():
    truth = NUMBERS > 0
    report = data_only.check(planted(label=truth), planted(label=(~truth).astype(np.int64)), rows(COUNT))
    expect(report, "FAIL", "label.material_flips is 60")


def test_one_changed_label_fails_and_the_row_is_named():
    changed = NUMBERS.copy()
    changed[41] = 0 if changed[41] else 1
    report = data_only.check(planted(label=NUMBERS), planted(label=changed), rows(COUNT))
    expect(report, "FAIL", "label.material_flips is 1", "1 of 60 labels changed")
    assert worst(report, "label")[0]["row"] == 41


def test_a_label_changed_at_a_tie_is_reported_and_not_fatal():
    tied = PROBABILITIES.copy()
    tied[7] = [0.4, 0.4, 0.2]
    label = tied.argmax(axis=1)
    other = label.copy()
    other[7] = 1
    report = data_only.check(
        planted(label=label, probabilities=tied), planted(label=other, probabilities=tied), rows(COUNT)
    )
    expect(report, "PASS")
    assert measures(report, "label")["label_flips"] == 1
    assert measures(report, "label")["material_flips"] == 0
    strict = data_only.check(
        planted(label=label, probabilities=tied),
        planted(label=other, probabilities=tied),
        rows(COUNT),
        limits={"label_flips": 0},
    )
    expect(strict, "FAIL", "label.label_flips is 1")


@pytest.mark.parametrize("preset", ["standard", "quantized"])
def test_labels_inverted_on_every_row_fail_under_every_preset(preset):
    right = planted(label=PROBABILITIES.argmax(axis=1), probabilities=PROBABILITIES)
    wrong = planted(label=PROBABILITIES.argmin(axis=1), probabilities=PROBABILITIES)
    expect(data_only.check(right, wrong, rows(COUNT), preset=preset), "FAIL", "label.material_flips is 60")
    text = planted(label=NAMES[PROBABILITIES.argmax(axis=1)], probabilities=PROBABILITIES)
    expect(
        data_only.check(right, text, rows(COUNT), preset=preset), "FAIL", "label.material_flips is 60", "text on one"
    )
    expect(data_only.check(right, right, rows(COUNT), preset=preset), "PASS")


def test_labels_alone_are_judged_under_every_preset_and_as_many_may_change_as_somebody_says():
    changed = NUMBERS.copy()
    changed[41] = 0 if changed[41] else 1
    model, other = planted(label=NUMBERS), planted(label=changed)
    for preset in ("standard", "quantized"):
        expect(data_only.check(model, model, rows(COUNT), preset=preset), "PASS")
        expect(data_only.check(model, other, rows(COUNT), preset=preset), "FAIL", "label.material_flips is 1", "=N")
        expect(data_only.check(model, other, rows(COUNT), preset=preset, limits={"flip_rate": 0.02}), "PASS")
        expect(data_only.check(model, other, rows(COUNT), preset=preset, limits={"label.flip_rate": 0.01}), "FAIL")


@pytest.fixture(scope="module")
def many():
    """A hundred classes: the best is hardly ever ahead of the next by more than what `strict` lets both move."""
    rng = np.random.default_rng(5)
    data = rng.normal(size=(1_000, 8))
    return LogisticRegression(C=0.01).fit(data, np.arange(1_000) % 100), data


def test_labels_without_scores_are_not_excused_by_a_tolerance_on_scores(many):
    model, data = many
    sure = np.sort(model.predict_proba(data), axis=1)
    assert ((sure[:, -1] - sure[:, -2]) < 0.02).all(), "what was taken for noise"
    wrong = lambda X: {"label": (model.predict(X) + 1) % 100}  # noqa: E731
    report = data_only.check(model, wrong, data, preset="strict")
    expect(report, "FAIL", "label.material_flips is 1,000", "no scores were compared")
    right = lambda X: {"label": model.predict(X)}  # noqa: E731
    expect(data_only.check(model, right, data, preset="strict"), "PASS")


def test_scores_that_say_what_the_reference_says_do_not_excuse_another_label(many):
    model, data = many
    wrong = lambda X: {"label": (model.predict(X) + 1) % 100, "probabilities": model.predict_proba(X)}  # noqa: E731
    expect(data_only.check(model, wrong, data, preset="strict"), "FAIL", "label.material_flips is 1,000")


def test_scores_that_moved_within_tolerance_excuse_the_label_they_pick_and_no_other(many):
    model, data = many
    noise = np.random.default_rng(0).uniform(-0.004, 0.004, size=(1_000, 100))
    place = {row.tobytes(): number for number, row in enumerate(data)}

    def moved(X):
        return model.predict_proba(X) + noise[[place[row.tobytes()] for row in X]]

    picked = lambda X: {"label": moved(X).argmax(axis=1), "probabilities": moved(X)}  # noqa: E731
    report = data_only.check(model, picked, data, abs_tol=0.01)
    expect(report, "PASS", "labels changed, all within noise")
    flips = int((model.predict(data) != moved(data).argmax(axis=1)).sum())
    assert measures(report, "label")["label_flips"] == flips > 100
    worst_class = lambda X: {"label": moved(X).argmin(axis=1), "probabilities": moved(X)}  # noqa: E731
    expect(data_only.check(model, worst_class, data, preset="strict"), "FAIL", "label.material_flips is 1,000")


@pytest.mark.parametrize(
    ("names", "picks", "outcome"),
    [
        ([0, 1, 2], 1, "PASS"),  # its scores put 1 first now
        ([0, 1, 2], 2, "FAIL"),  # they do not put 2 first
        (["a", "b", "c"], 1, "FAIL"),  # nobody says which column "b" is
        (["no", "yes"], 1, "PASS"),  # of two, it is the other one
        ([0, 1], 7, "FAIL"),  # no class at all
    ],
)
def test_at_a_tie_of_unnamed_classes_only_the_label_that_the_scores_pick_is_noise(names, picks, outcome):
    tied = PROBABILITIES[:, : len(names)].copy()
    tied[7] = [0.4001, 0.4, 0.1][: len(names)]
    moved = tied.copy()
    moved[7] = [0.4, 0.4001, 0.1][: len(names)]
    label = np.array(names, dtype=object if isinstance(names[0], str) else np.int64)[tied.argmax(axis=1)]
    other = label.copy()
    other[7] = names[picks] if picks < len(names) else picks
    report = data_only.check(
        planted(label=label, probabilities=tied), planted(label=other, probabilities=moved), rows(COUNT)
    )
    expect(report, outcome)
    assert measures(report, "label")["material_flips"] == (outcome == "FAIL")


def test_clusters_without_distances_are_not_excused():
    rng = np.random.default_rng(2)
    data = rng.normal(size=(600, 2))
    model = KMeans(5, n_init=1, random_state=0).fit(data)
    far = np.sort(model.transform(data), axis=1)
    close = (far[:, 1] - far[:, 0]) < 0.02
    second = model.transform(data).argsort(axis=1)[:, 1]
    wrong = np.where(close, second, model.predict(data))
    assert close.sum() > 5
    place = {row.tobytes(): number for number, row in enumerate(data)}
    candidate = lambda X: {"label": wrong[[place[row.tobytes()] for row in X]]}  # noqa: E731
    report = data_only.check(model, candidate, data, preset="strict")
    expect(report, "FAIL", f"label.material_flips is {int(close.sum())}")


def test_two_labels_or_two_logits_are_not_two_classes():
    rng = np.random.default_rng(1)
    data = rng.normal(size=(200, 4))
    both = np.stack([data[:, 0] > 0, data[:, 1] > 0], axis=1).astype(int)
    model = MLPClassifier((8,), max_iter=20, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(data, both)
    for place in (0, 1):
        lost = lambda X, place=place: {"probabilities": model.predict_proba(X)[:, place]}  # noqa: E731
        expect(data_only.check(model, lost, data), "FAIL", "shape (n, 2) in the reference")
    logits = np.random.default_rng(3).normal(size=(COUNT, 2))
    one = planted(logits=logits[:, 1])
    expect(data_only.check(planted(logits=logits), one, rows(COUNT)), "FAIL", "shape (n, 2) in the reference")
    expect(data_only.check(planted(logits=logits), planted(logits=logits[:, 1:]), rows(COUNT)), "FAIL")
    opposite = np.stack([-logits[:, 1], logits[:, 1]], axis=1)
    expect(data_only.check(planted(logits=opposite), one, rows(COUNT)), "FAIL", "shape")


def test_two_probabilities_that_stop_adding_up_are_not_two_classes():
    both = PROBABILITIES[:, :2] / PROBABILITIES[:, :2].sum(axis=1, keepdims=True)
    report = data_only.check(planted(probability=both), planted(probability=both[:, 1]), rows(COUNT))
    expect(report, "PASS", "the candidate gives the positive class only")
    assert "pairing" in codes(report, "note")
    both[50, 0] = 0.9
    report = data_only.check(planted(probability=both), planted(probability=both[:, 1]), rows(COUNT))
    expect(report, "FAIL", "shape (n, 2) in the reference")


def test_missing_labels_are_not_labels():
    gaps = NAMES[NUMBERS].copy()
    gaps[3] = None
    report = data_only.check(planted(label=NAMES[NUMBERS]), planted(label=gaps), rows(COUNT))
    expect(report, "FAIL", "label.material_flips is 1")


def test_a_graph_that_gives_positions_instead_of_labels_fails(models):
    nodes = [
        ("Identity", ["label_in"], ["label"], {}),
    ]
    candidate = graph(nodes, {"label_in": (INT64, [None])}, {"label": (INT64, [None])})
    report = data_only.check(
        lambda data: {"label": NAMES[data["label_in"]]}, candidate, {"label_in": NUMBERS, "unused": NUMBERS}
    )
    expect(report, "FAIL", "label", "text on one side and numbers on the other")
