"""What the moves know of models: trees, gradients, tensors; and what rows under change keep of the data."""

from __future__ import annotations

import numpy as np
import onnx
import pandas as pd
import pyarrow as pa
import pytest
from onnx import numpy_helper

import data_only
import likewise
from likewise.contracts.verdict import Outcome
from likewise.registry import open_source
from likewise.tasks.stress import space as pools
from likewise.tasks.stress.moves import trees as forests
from likewise.tasks.stress.space import number_column


def moved(found, name):
    """What one move brought."""
    return next(move for move in found.moves if move.name == name)


@pytest.fixture(scope="module")
def numbers():
    random = np.random.default_rng(5)
    return pd.DataFrame(random.normal(0, [1, 10, 100, 0.1, 5], (1_200, 5)), columns=list("abcde"))


@pytest.fixture(scope="module")
def trees(numbers):
    from sklearn.ensemble import GradientBoostingRegressor

    y = np.sin(numbers["a"] * 3) + numbers["b"] / 10 * (numbers["c"] > 0) + 20 * numbers["d"] * numbers["e"] / 5
    return GradientBoostingRegressor(n_estimators=25, max_depth=5, random_state=0).fit(numbers, y)


def exported(model, columns):
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import FloatTensorType

    shape = [("X", FloatTensorType([None, columns]))]
    return to_onnx(model, initial_types=shape, target_opset={"": 18, "ai.onnx.ml": 3})


def test_a_leaf_that_no_real_row_reaches_is_reached(numbers, trees):
    proto = exported(trees, 5)
    real, random = numbers.to_numpy(np.float32)[:400], np.random.default_rng(9)
    within = np.column_stack([random.choice(real[:, column], 40_000) for column in range(5)])
    visited = [set(tree[0].apply(real).tolist()) for tree in trees.estimators_]
    possible = [set(tree[0].apply(within).tolist()) for tree in trees.estimators_]
    attributes = {entry.name: entry for entry in proto.graph.node[0].attribute}
    places = list(zip(attributes["target_treeids"].ints, attributes["target_nodeids"].ints, strict=True))
    unseen = next(place for place, (tree, node) in enumerate(places) if node in possible[tree] - visited[tree])
    attributes["target_weights"].floats[unseen] += 4.0
    assert data_only.check(trees, proto, numbers[:400])
    found = likewise.stress(trees, proto, numbers[:400], calls=30)
    assert found.outcome is Outcome.FAIL
    assert found.rows[0].abs_diff == pytest.approx(4.0, abs=1e-4)
    assert moved(found, "tree paths").rows > 0
    written = numbers.iloc[[int(found.rows[0].base)]].copy()
    for change in found.rows[0].changes:
        written[change.column] = change.after
    tree, node = places[unseen]
    assert trees.estimators_[tree][0].apply(written.to_numpy(np.float32))[0] == node


def test_rows_made_for_a_node_reach_it(numbers, trees):
    """scikit-learn itself says where the rows end."""
    pool = pools.read_pool(open_source(numbers))
    space = pools.space_for(pool, list(numbers), widen=0.0)
    sample = pools.batch_of(pool, space, space.real(np.arange(600)))
    case = _case(trees, sample)
    (forest,) = forests.read(case, space, np.arange(600))
    random = np.random.default_rng(0)
    leaves = forest.leaves()
    made = {int(leaf): forest.reaching(int(leaf), random) for leaf in leaves}
    known = {leaf: recipe for leaf, recipe in made.items() if recipe is not None}
    assert len(known) > 0.9 * len(made)
    rows = forests.rows_of(list(known.values()), space)
    values = pools.batch_of(pool, space, rows).inputs.frame().to_numpy(np.float32)
    trees_of = forest.ensemble.tree[list(known)]
    starts = forest.ensemble.roots
    arrived = [
        trees.estimators_[tree][0].apply(values[[place]])[0] + starts[tree] for place, tree in enumerate(trees_of)
    ]
    assert np.mean(np.array(arrived) == np.array(list(known))) > 0.97


def _case(model, sample):
    from contextlib import ExitStack

    from likewise.compare.call import Side
    from likewise.compare.feed import plan as feeding
    from likewise.contracts.comparison import Comparison, Plan, Tolerance
    from likewise.contracts.verdict import Verdict
    from likewise.explain.case import Case, Sample
    from likewise.registry import adapter, describe_model

    described = describe_model(model)
    stack = ExitStack()
    runner = stack.enter_context(adapter(described.framework).open(described))
    side = Side("reference", "trees", runner, feeding(sample, runner.signature, side="reference"))
    source = open_source(pd.DataFrame({"a": [0.0]}))
    plan = Plan(described, describe_model(lambda rows: rows), source, Tolerance(0.0, 0.0))
    rows = Sample(sample, {}, {}, (), np.zeros(len(sample), dtype=bool), complete=False)
    verdict = Verdict(Outcome.INCONCLUSIVE, "", (), (), None)
    return Case(plan, Comparison(), verdict, float("inf"), plan.tolerance, {"reference": runner}, side, None, (), rows)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A network with a unit that no real row uses, and an export with another weight behind it."""
    torch = pytest.importorskip("torch")

    torch.manual_seed(2)
    random = np.random.default_rng(2)
    x = random.normal(0, 1, (1_000, 12)).astype(np.float32)
    module = torch.nn.Sequential(
        torch.nn.Linear(12, 24), torch.nn.ReLU(), torch.nn.Linear(24, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)
    ).eval()
    with torch.no_grad():
        module[2].bias[3] -= float(module[:3](torch.tensor(x))[:, 3].max()) + 0.2
    path = tmp_path_factory.mktemp("network") / "network.onnx"
    likewise.export(module, {"x": x[:32]}, str(path), check=False)
    proto = onnx.load(str(path))
    last = module[4].weight.detach().numpy()
    tensor = next(
        entry
        for entry in proto.graph.initializer
        if (values := numpy_helper.to_array(entry)).size == 8 and np.allclose(values.ravel(), last.ravel())
    )
    values = numpy_helper.to_array(tensor).copy()
    values.ravel()[3] += 5.0
    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
    return module, proto, {"x": x}


def test_a_unit_that_no_real_row_uses_is_reached_by_gradients(network, tmp_path):
    module, proto, data = network
    assert data_only.check(module, proto, data)
    output = str(tmp_path / "stress.npz")
    found = likewise.stress(module, proto, data, calls=60, output=output)
    assert found.outcome is Outcome.FAIL
    assert moved(found, "gradients").gains >= 1
    with np.load(output) as stored:
        assert stored["x"].dtype == np.float32
        assert (stored["x"] >= data["x"].min(axis=0)).all()
        assert (stored["x"] <= data["x"].max(axis=0)).all()
    report = data_only.check(module, proto, output)
    assert report.max_abs_diff == found.max_abs_diff > 100 * found.data_max_abs_diff
    assert found.rows[0].changes[0].column.startswith("x[")


def test_images_are_searched_and_stay_images(tmp_path):
    random = np.random.default_rng(0)
    images = random.integers(20, 200, (64, 3, 8, 8)).astype(np.uint8)

    def bright(image):
        return image.astype(np.float64).mean(axis=(1, 2, 3))

    def other(image):
        wrong = (image[:, 0, :4, :4] > 180).all(axis=(1, 2))
        return bright(image) + np.where(wrong, 9.0, 0.0)

    output = str(tmp_path / "stress.npz")
    found = likewise.stress(bright, other, {"image": images}, calls=60, output=output, abs_tol=0.1)
    assert found.outcome is Outcome.FAIL
    with np.load(output) as stored:
        worst = stored["image"]
    assert worst.dtype == np.uint8
    assert worst.shape[1:] == (3, 8, 8)
    assert worst.min() >= images.min()
    assert worst.max() <= images.max()
    # Sixteen elements have to be bright; nothing else needs to change.
    assert found.rows[0].changed <= 16
    assert all(change.column.startswith("image[0,") for change in found.rows[0].changes)


def test_token_ids_stay_ids_that_were_seen_in_their_place():
    random = np.random.default_rng(1)
    tokens = random.choice(np.array([5, 9, 12, 40, 77, 300]), (500, 12))
    tokens[:, 0] = 1

    def total(ids):
        return ids.sum(axis=1).astype(np.float64)

    def other(ids):
        assert set(np.unique(ids).tolist()) <= {1, 5, 9, 12, 40, 77, 300}
        assert (ids[:, 0] == 1).all()
        return total(ids) + np.where((ids[:, 3] == 300) & (ids[:, 4] == 300) & (ids[:, 5] == 300), 1.0, 0.0)

    rows = tokens[~((tokens[:, 3] == 300) & (tokens[:, 4] == 300) & (tokens[:, 5] == 300))]
    found = likewise.stress(total, other, {"ids": rows}, calls=40, abs_tol=0.01)
    assert found.outcome is Outcome.FAIL
    assert {change.column for change in found.rows[0].changes} <= {"ids[3]", "ids[4]", "ids[5]"}


def test_whole_numbers_are_searched_where_floats_stop_to_hold_them():
    frame = pd.DataFrame({"n": np.random.default_rng(0).integers(0, 2**26, 300) // 64 * 64, "m": np.arange(300.0)})

    def exact(rows):
        return rows["n"].to_numpy().astype(np.float64)

    def single(rows):
        return rows["n"].to_numpy().astype(np.float32).astype(np.float64)

    assert data_only.check(exact, single, frame, preset="exact")
    found = likewise.stress(exact, single, frame, calls=30, abs_tol=0.5)
    assert found.outcome is Outcome.FAIL
    assert found.rows[0].changes[0].column == "n"
    assert isinstance(found.rows[0].changes[0].after, int)


@pytest.fixture(scope="module")
def odd_table():
    """Types that do not survive a way through numpy."""
    return pa.table(
        {
            "nullable": pa.array([1, None, 3, 2**60] * 30, pa.int64()),
            "small": pa.array([1, 2, None, 4] * 30, pa.int8()),
            "word": pa.array(["a", "b", None, "c"] * 30).dictionary_encode(),
            "day": pa.array([1, 2, 3, 4] * 30, pa.date32()),
            "money": pa.array([1, 2, 3, 4] * 30).cast(pa.decimal128(21, 2)),
            "vector": pa.array([[1.0, 2.0], [3.0, 4.0]] * 60, pa.list_(pa.float32())),
            "truth": pa.array([True, None, False, True] * 30),
            "real": pa.array(np.linspace(0, 1, 120), pa.float32()),
        }
    )


def test_rows_taken_apart_come_back_as_they_were(odd_table):
    pool = pools.read_pool(open_source(odd_table))
    space = pools.space_for(pool, odd_table.column_names, widen=0.0)
    again = pools.batch_of(pool, space, space.real(np.arange(120))).inputs.table
    assert again.schema == odd_table.schema
    assert again.to_pylist() == odd_table.to_pylist()
    # Doubles cannot hold 2**60 + 1: such a column is only exchanged, never computed with.
    kinds = {column.name: column.is_number for column in space.columns}
    assert kinds["vector"]
    assert kinds["real"]
    assert kinds["small"]
    assert not kinds["word"]
    assert not kinds["money"]


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.uint8])
def test_numbers_conform_to_range_and_type(dtype):
    random = np.random.default_rng(0)
    values = (random.random((200, 3)) * 100).astype(dtype)
    column = number_column("x", values)
    elements = random.integers(0, 3, 5_000)
    wild = random.normal(0, 1e3, 5_000)
    wild[::7], wild[1::7], wild[2::7] = np.nan, np.inf, -1e300
    found = column.conform(wild, elements)
    assert found.dtype == dtype
    assert (found >= values.min(axis=0)[elements]).all()
    assert (found <= values.max(axis=0)[elements]).all()
