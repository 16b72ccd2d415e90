"""One thing changed in the trees of a real export: the cause is named, and the place."""

from __future__ import annotations

import numpy as np
import pytest
import tree_making as making
from threadpoolctl import threadpool_limits

import data_only


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Toy models: threads would only wait for each other."""
    with threadpool_limits(1):
        yield


def explained(name, candidate, rows=None):
    frame = making.rows_of(name)[0] if rows is None else rows
    report = data_only.explain(making.fitted(name), candidate, frame, explain_budget=60, causes=making.CAUSES)
    assert report.outcome == "FAIL"
    assert report.diagnoses, report.explanation
    return report.diagnoses[0]


@pytest.mark.parametrize("name", making.NAMES)
def test_a_sound_export_passes(name):
    report = data_only.check(making.fitted(name), making.exported(name), making.rows_of(name)[0])
    assert report.passed


@pytest.mark.parametrize(
    "name", ["tree", "forest_binary", "boosting_classes", "hist", "lgbm", "xgb_classes", "cat_binary"]
)
def test_one_leaf(name):
    proto = making.exported(name)
    weights = making.leaf_attribute(proto, "weights")
    place = int(np.argmax(np.abs(making.told(proto, weights))))
    broken = making.edited(proto, **{weights: lambda old: [*old[:place], -3 * old[place] - 1, *old[place + 1 :]]})
    tree = making.told(proto, making.leaf_attribute(proto, "treeids"))[place]
    node = making.told(proto, making.leaf_attribute(proto, "nodeids"))[place]
    found = explained(name, broken)
    assert found.cause == "weight-corruption"
    assert found.culprit == f"tree {tree}, leaf {node}"


@pytest.mark.parametrize("name", ["forest_classes", "boosting", "hist", "lgbm_classes", "xgb", "cat"])
def test_one_threshold(name):
    proto = making.exported(name)
    broken = making.edited(proto, nodes_values=lambda old: [old[0] + 1 + abs(old[0]), *old[1:]])
    found = explained(name, broken)
    assert found.cause == "weight-corruption"
    assert found.culprit == f"{making.COLUMNS[making.told(proto, 'nodes_featureids')[0]]} (tree 0, node 0)"


@pytest.mark.parametrize("name", ["forest", "lgbm", "cat"])
def test_one_column(name):
    proto = making.exported(name)
    meant = making.told(proto, "nodes_featureids")[0]
    broken = making.edited(proto, nodes_featureids=lambda old: [(old[0] + 1) % 4, *old[1:]])
    found = explained(name, broken)
    assert (found.cause, found.culprit) == ("weight-corruption", f"{making.COLUMNS[meant]} (tree 0, node 0)")


@pytest.mark.parametrize("name", ["forest_binary", "lgbm_classes", "xgb"])
def test_columns_in_another_order(name):
    found = explained(
        name, making.edited(making.exported(name), nodes_featureids=lambda old: [(1, 0, 2, 3)[one] for one in old])
    )
    assert (found.cause, found.culprit) == ("feature-order", "income, age")


@pytest.mark.parametrize("name", ["hist", "lgbm_classes", "xgb", "cat_binary"])
def test_missing_values_sent_the_other_way(name):
    proto = making.exported(name)
    leaves = [mode == b"LEAF" for mode in making.told(proto, "nodes_modes")]
    flip = lambda old: [flag if leaf else 1 - flag for flag, leaf in zip(old, leaves, strict=True)]  # noqa: E731
    found = explained(name, making.edited(proto, nodes_missing_value_tracks_true=flip))
    assert found.cause == "missing-value-handling"
    assert "(tree " in found.culprit


@pytest.mark.parametrize("name", ["lgbm", "xgb_classes", "cat"])
def test_missing_values_sent_the_other_way_in_one_node(name):
    proto = making.exported(name)
    found = explained(name, making.edited(proto, nodes_missing_value_tracks_true=lambda old: [1 - old[0], *old[1:]]))
    column = making.COLUMNS[making.told(proto, "nodes_featureids")[0]]
    assert (found.cause, found.culprit) == ("missing-value-handling", f"{column} (tree 0, node 0)")


@pytest.mark.parametrize("name", ["forest", "boosting", "xgb", "cat"])
def test_the_wrong_comparison(name):
    """Below instead of at most, or the other way round; rows lie on the thresholds."""
    proto = making.exported(name)
    other = {b"BRANCH_LEQ": b"BRANCH_LT", b"BRANCH_LT": b"BRANCH_LEQ", b"BRANCH_GT": b"BRANCH_GTE"}
    frame = making.rows_of(name)[0].copy()
    split = [index for index, mode in enumerate(making.told(proto, "nodes_modes")) if mode != b"LEAF"]
    for row, index in enumerate(split[: len(frame)]):
        column = making.told(proto, "nodes_featureids")[index]
        frame.iloc[row, column] = np.float64(making.told(proto, "nodes_values")[index])
    assert data_only.check(making.fitted(name), proto, frame).passed
    broken = making.edited(proto, nodes_modes=lambda old: [other.get(mode, mode) for mode in old])
    found = explained(name, broken, frame)
    assert found.cause == "operator-attribute"
    assert "nodes_modes" in found.culprit


@pytest.mark.parametrize("name", ["forest_binary", "boosting", "lgbm", "xgb_classes", "cat"])
@pytest.mark.parametrize("missing", [(3, 4, 5), (0, 1)], ids=["last", "first"])
def test_trees_that_are_missing(name, missing):
    proto = making.exported(name)
    count = len(set(making.told(proto, "nodes_treeids")))
    found = explained(name, making.without_trees(proto, missing))
    assert (found.cause, found.culprit) == ("tree-count", f"{count - len(missing)} of {count} trees")


@pytest.mark.parametrize("name", ["boosting", "hist", "xgb_binary", "cat"])
def test_no_base_score(name):
    found = explained(name, making.edited(making.exported(name), base_values=None))
    assert found.cause == "model-part-dropped"
    assert found.culprit.startswith("base score")


@pytest.mark.parametrize("name", ["forest", "lgbm_classes", "cat_binary"])
def test_every_leaf_scaled(name):
    proto = making.exported(name)
    broken = making.edited(proto, **{making.leaf_attribute(proto, "weights"): lambda old: [10 * one for one in old]})
    assert explained(name, broken).cause == "aggregation"


def test_leaves_in_half_precision():
    proto = making.exported("xgb")
    halved = making.edited(proto, target_weights=lambda old: [float(np.float16(one)) for one in old])
    report = data_only.explain(
        making.fitted("xgb"), halved, making.rows_of("xgb")[0], explain_budget=60, abs_tol=1e-5, rel_tol=1e-6
    )
    assert report.diagnoses[0].cause == "precision-reduction"


@pytest.mark.parametrize("name", ["forest_binary", "boosting", "lgbm", "xgb_classes", "cat"])
def test_another_training(name):
    from sklearn.base import clone

    frame, target = making.rows_of(name)
    binary, classes = (target > 0).astype(int), np.digitize(target, [-1, 1])
    wanted = binary if name.endswith("binary") else classes if name.endswith("classes") else target
    other = clone(making.fitted(name)).fit(frame[:150], wanted[:150])
    found = explained(name, making.export(other, 4))
    assert (found.cause, found.culprit) == ("stale-weights", "model")


@pytest.mark.parametrize("change", ["threshold", "missing", "count", "leaf"])
def test_two_graphs(change):
    """The reference is a graph itself."""
    proto, frame = making.exported("lgbm"), making.rows_of("lgbm")[0]
    leaves = [mode == b"LEAF" for mode in making.told(proto, "nodes_modes")]
    broken, cause = {
        "threshold": (making.edited(proto, nodes_values=lambda old: [old[0] + 1, *old[1:]]), "weight-corruption"),
        "missing": (
            making.edited(
                proto,
                nodes_missing_value_tracks_true=lambda old: [
                    flag if leaf else 1 - flag for flag, leaf in zip(old, leaves, strict=True)
                ],
            ),
            "missing-value-handling",
        ),
        "count": (making.without_trees(proto, (4, 5)), "tree-count"),
        "leaf": (making.edited(proto, target_weights=lambda old: [*old[:3], 9.0, *old[4:]]), "weight-corruption"),
    }[change]
    report = data_only.explain(proto, broken, frame, explain_budget=60)
    assert report.diagnoses[0].cause == cause
    if change == "missing":
        assert report.diagnoses[0].culprit.startswith(tuple(making.COLUMNS))


def test_the_newer_operator():
    model, frame = making.fitted("lgbm"), making.rows_of("lgbm")[0]
    proto = making.of_version_5(model.booster_, 4)
    assert data_only.check(model, proto, frame).passed
    from onnx import numpy_helper

    def raised(tensor):
        values = numpy_helper.to_array(tensor).copy()
        values[0] += 1
        return numpy_helper.from_array(values, tensor.name)

    found = explained("lgbm", making.edited(proto, nodes_splits=raised))
    assert found.cause == "weight-corruption"
    assert found.culprit.endswith("(tree 0, node 0)")
    found = explained("lgbm", making.edited(proto, leaf_weights=lambda old: raised(old)))
    assert (found.cause, found.culprit) == ("weight-corruption", "tree 0, leaf 0")


def test_what_is_not_the_trees_is_not_blamed_on_them():
    """A sum moved after the trees: their thresholds, leaves and flags are as they should be."""
    import onnx
    from onnx import helper, numpy_helper

    proto = onnx.ModelProto()
    proto.CopyFrom(making.exported("lgbm"))
    last = proto.graph.output[0].name
    for node in proto.graph.node:
        node.output[:] = ["before" if name == last else name for name in node.output]
    proto.graph.initializer.append(numpy_helper.from_array(np.array([7.0], np.float32), "seven"))
    proto.graph.node.append(helper.make_node("Mul", ["before", "seven"], [last]))
    report = data_only.explain(making.fitted("lgbm"), proto, making.rows_of("lgbm")[0], explain_budget=60)
    assert not any("tree " in entry.culprit or entry.culprit == "model" for entry in report.diagnoses)
