"""Trees of every framework read into one form, followed like the framework does, and written back unchanged."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
import tree_making as making

from likewise.models.onnx import tree_edits
from likewise.models.onnx import trees as onnx
from likewise.models.trees.ensemble import Gap, leaves
from likewise.models.trees.read import trees_of


def answers(proto, rows):
    session = onnxruntime.InferenceSession(proto.SerializeToString())
    return session.run(None, {session.get_inputs()[0].name: rows.astype(np.float32)})


def margins(model, frame):
    """What the framework itself says the trees add up to."""
    package = type(model).__module__.partition(".")[0]
    if package == "lightgbm":
        return model.predict(frame, raw_score=True)
    if package == "xgboost":
        return model.predict(frame, output_margin=True)
    if package == "catboost":
        return model.predict(frame, prediction_type="RawFormulaVal")
    for method in ("decision_function", "predict_proba"):
        if hasattr(model, method):
            return getattr(model, method)(frame)
    return model.predict(frame)


@pytest.mark.parametrize("name", making.NAMES)
def test_following_rows_gives_the_answer_of_the_framework(name):
    model, (frame, _) = making.fitted(name), making.rows_of(name)
    trees = trees_of(model)
    rows = frame.to_numpy()
    found = trees.values()[leaves(trees, rows)].sum(axis=1) + (trees.base if len(trees.base) else 0)
    wanted = np.asarray(margins(model, frame)).reshape(found.shape)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", making.NAMES)
def test_trees_written_back_answer_the_same(name):
    proto, (frame, _) = making.exported(name), making.rows_of(name)
    held = onnx.read(proto)
    moved = replace(held.ensemble, node_numbers=held.ensemble.node_numbers + 1)  # so that all of it is written
    for again in (tree_edits.written(proto, held, held.ensemble), tree_edits.written(proto, held, moved)):
        for one, other in zip(answers(proto, frame.to_numpy()), answers(again, frame.to_numpy()), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["forest", "lgbm_classes", "xgb", "cat_binary"])
def test_trees_can_be_shown_other_values_than_the_graph_is_fed(name):
    proto, (frame, _) = making.exported(name), making.rows_of(name)
    held = onnx.read(proto)
    rows = frame.to_numpy()
    other = rows[::-1].copy()
    shown = tree_edits.with_input(proto, held, other[:, : held.widths[held.sources[0]]])
    for one, two in zip(answers(proto, other), answers(shown, rows), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.fixture(scope="module")
def categories():
    from lightgbm import LGBMRegressor

    frame, target = making.table(300)
    frame["kind"] = np.random.default_rng(1).integers(0, 9, len(frame)).astype(float)
    target = target + np.isin(frame["kind"], [1, 4, 7]) * 3
    model = LGBMRegressor(n_estimators=5, verbose=-1, n_jobs=1, min_child_samples=5)
    return model.fit(frame, target, categorical_feature=["kind"]), frame


def test_a_chain_of_equalities_is_read_as_a_set(categories):
    model, frame = categories
    reference = trees_of(model)
    for proto in (making.export(model, 5), making.of_version_5(model.booster_, 5)):
        held = onnx.read(proto).ensemble
        sets = {tuple(group) for group in held.groups if len(group) > 1}
        assert {tuple(group) for group in reference.groups if len(group) > 1} <= sets
        found = held.values()[leaves(held, frame.to_numpy())].sum(axis=1)
        np.testing.assert_allclose(found[:, 0], model.predict(frame), rtol=1e-5, atol=1e-5)


def test_sets_are_written_into_either_operator(categories):
    model, frame = categories
    for proto in (making.export(model, 5), making.of_version_5(model.booster_, 5)):
        held = onnx.read(proto)
        (one,) = answers(proto, frame.to_numpy())
        (other,) = answers(tree_edits.written(proto, held, held.ensemble), frame.to_numpy())
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one[:, 0], model.predict(frame), rtol=1e-4, atol=1e-4)


def test_what_a_missing_value_does_is_read():
    lgbm = trees_of(making.fitted("lgbm"))
    assert {Gap(int(gap)) for gap in np.unique(lgbm.gap[~lgbm.is_leaf])} <= {Gap.LEFT, Gap.RIGHT, Gap.LIKE_ZERO}
    xgb = trees_of(making.fitted("xgb"))
    assert set(np.unique(xgb.gap[~xgb.is_leaf])) == {Gap.LEFT, Gap.RIGHT}


def test_nodes_that_lead_in_a_circle_are_given_up():
    proto = making.edited(making.exported("xgb"), nodes_truenodeids=lambda ids: [0 for _ in ids])
    held = onnx.read(proto)
    assert held is None or leaves(held.ensemble, np.zeros((2, 4))).shape == (2, held.ensemble.trees)


def test_a_node_that_does_not_exist_is_not_followed():
    assert onnx.read(making.edited(making.exported("xgb"), nodes_truenodeids=lambda ids: [99_999 for _ in ids])) is None
