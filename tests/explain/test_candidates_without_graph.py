"""Candidates that are no graph: a booster's own file, a pickled pipeline, the code of a service."""

from __future__ import annotations

import copy
import json

import numpy as np
import pandas as pd
import pytest
import xgboost as xgb
from catboost import CatBoostRegressor
from lightgbm import LGBMClassifier
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, PowerTransformer, StandardScaler

import data_only
import likewise
from likewise.explain.case import OUT_OF_TIME, OutOfTimeError
from likewise.explain.probes import trees

RNG = np.random.default_rng(3)
COUNT = 240
TABLE = pd.DataFrame(
    {
        "age": RNG.integers(18, 80, COUNT).astype(float),
        "income": RNG.lognormal(10, 0.6, COUNT).round(),
        "rate": RNG.normal(5, 2, COUNT).round(2),
        "region": RNG.choice(["north", "south", "east", "west"], COUNT),
    }
)
WORTH = TABLE["region"].map({"north": 3.0, "south": 0.0, "east": -2.0, "west": 5.0})
TARGET = TABLE["age"] / 20 + TABLE["income"] / 2e4 - TABLE["rate"] / 3 + WORTH
NUMBERS = TABLE[["age", "income", "rate"]]


def first(reference, candidate, rows, **options):
    report = data_only.explain(reference, candidate, rows, explain_budget=60, **options)
    assert report.outcome == "FAIL"
    assert report.diagnoses, report.explanation
    return report.diagnoses[0]


@pytest.fixture(scope="module")
def boosted(tmp_path_factory):
    """A booster's file and the rows it is asked about, some of them with gaps."""
    rows = NUMBERS.where(RNG.random(NUMBERS.shape) > 0.1)
    folder = tmp_path_factory.mktemp("boosted")
    xgb.XGBRegressor(n_estimators=12, max_depth=3).fit(rows, TARGET).save_model(folder / "model.json")
    return folder, rows


def edited(boosted, way):
    """The same file with its trees changed."""
    folder, _ = boosted
    model = json.loads((folder / "model.json").read_text())
    way(model["learner"]["gradient_booster"]["model"])
    (folder / "edited.json").write_text(json.dumps(model))
    return folder / "model.json", folder / "edited.json"


def test_gaps_that_go_the_other_way_in_the_file_of_a_booster(boosted):
    def turned(model):
        for tree in model["trees"]:
            tree["default_left"] = [1 - way for way in tree["default_left"]]

    found = first(*edited(boosted, turned), boosted[1])
    assert (found.cause, found.explained_share) == ("missing-value-handling", 1.0)
    assert "(tree " in found.culprit
    assert found.nodes == (), "nodes of an export that nobody has"


def test_a_threshold_that_was_changed_in_the_file_of_a_booster(boosted):
    def moved(model):
        model["trees"][4]["split_conditions"][0] *= 1.3

    found = first(*edited(boosted, moved), boosted[1])
    assert (found.cause, found.explained_share) == ("weight-corruption", 1.0)
    assert "tree 4, node 0" in found.culprit


def test_a_booster_with_fewer_trees():
    model = CatBoostRegressor(iterations=20, depth=3, verbose=0, allow_writing_files=False).fit(NUMBERS, TARGET)
    shorter = model.copy()
    shorter.shrink(14)
    found = first(model, shorter, NUMBERS)
    assert (found.cause, found.culprit) == ("tree-count", "14 of 20 trees")


def test_a_learning_rate_that_all_trees_but_the_first_lack(tmp_path):
    """LightGBM adds the average of the target to its first tree."""
    model = LGBMClassifier(n_estimators=8, num_leaves=5, verbose=-1).fit(NUMBERS, TARGET.median() < TARGET)
    head, first_tree, *trees = model.booster_.model_to_string().split("\nTree=")
    (said,) = (line for line in head.split("\n") if line.startswith("tree_sizes="))
    sizes, changed = list(map(int, said[11:].split(" "))), []
    for number, tree in enumerate(trees, start=1):
        (leaves,) = (line for line in tree.split("\n") if line.startswith("leaf_value="))
        tenfold = "leaf_value=" + " ".join(str(10 * float(value)) for value in leaves[11:].split(" "))
        changed.append(tree.replace(leaves, tenfold))
        sizes[number] += len(tenfold) - len(leaves)
    head = head.replace(said, "tree_sizes=" + " ".join(map(str, sizes)))
    (tmp_path / "model.txt").write_text("\nTree=".join([head, first_tree, *changed]))
    found = first(model, tmp_path / "model.txt", NUMBERS)
    assert (found.cause, found.explained_share) == ("aggregation", 1.0)
    assert "leaves hold 10 times their value" in found.evidence


@pytest.mark.parametrize(
    ("change", "cause", "told"),
    [
        (lambda model: model[0].lambdas_.__setitem__(1, 0.6), "preprocessing-differs", "powertransformer (lambdas_)"),
        (lambda model: model[1].coef_.__setitem__(2, 0.0), "weight-corruption", "ridge (coef_)"),
        (lambda model: setattr(model[1], "intercept_", 0.0), "model-part-dropped", "ridge (intercept_)"),
        (lambda model: model[1].fit(model[0].transform(NUMBERS), TARGET**2), "stale-weights", "ridge (coef_"),
    ],
)
def test_a_pickled_pipeline_of_which_a_part_was_changed(change, cause, told):
    model = make_pipeline(PowerTransformer(), Ridge()).fit(NUMBERS, TARGET)
    other = copy.deepcopy(model)
    change(other)
    found = first(model, other, NUMBERS)
    assert (found.cause, found.explained_share) == (cause, 1.0)
    assert told in found.culprit


def test_the_reference_in_the_candidates_place_is_no_proof():
    """A single estimator that takes -1 for missing: to put the other one in its place heals whatever it was."""
    rows = NUMBERS.assign(rate=NUMBERS["rate"].where(np.arange(COUNT) % 9 > 0, -1.0))
    model = xgb.XGBRegressor(n_estimators=12, max_depth=3, missing=-1.0).fit(rows, TARGET)
    other = copy.deepcopy(model).set_params(missing=np.nan)
    found = first(model, other, rows)
    assert (found.cause, found.culprit) == ("missing-value-handling", "rate")


ENCODED = make_pipeline(
    make_column_transformer((OrdinalEncoder(), ["region"]), remainder=StandardScaler()),
    xgb.XGBRegressor(n_estimators=9),
).fit(TABLE, TARGET)
KNOWN = make_pipeline(
    make_column_transformer((OneHotEncoder(handle_unknown="ignore"), ["region"]), remainder=StandardScaler()),
    LogisticRegression(),
).fit(TABLE, TARGET.median() < TARGET)
TURNED = {"north": "south", "south": "east", "east": "north", "west": "west"}


@pytest.mark.parametrize(
    ("model", "served", "told"),
    [
        (ENCODED, lambda rows: rows.assign(region=rows["region"].map(TURNED)), "'north' for 'south'"),
        (KNOWN, lambda rows: rows.replace({"region": {"east": "East"}}), "'east' for one never seen"),
        (KNOWN, lambda rows: rows.assign(income=rows["income"] / 12), "income divided by 12"),
        (ENCODED, lambda rows: rows.assign(rate=rows["rate"] * 2.54), "rate times 2."),
        (KNOWN, lambda rows: rows.assign(income=rows["income"].clip(upper=50_000)), "bounded to at most 50000"),
        (KNOWN, lambda rows: rows.assign(rate=rows["rate"].clip(lower=3.14159)), "bounded to at least 3.14"),
        (KNOWN, lambda rows: rows.assign(rate=(rows["rate"] - 32) / 1.8), "in Celsius instead of Fahrenheit"),
        (KNOWN, lambda rows: rows.assign(income=rows["income"] // 2_000 * 2_000), "rounded down to 2,000s"),
        (KNOWN, lambda rows: rows.assign(age=(rows["age"] / 10).round() * 10), "rounded to 10s"),
        (KNOWN, lambda rows: rows.assign(income=np.log1p(rows["income"])), "logarithm of one more"),
    ],
    ids=[
        *("numbered otherwise", "unknown", "unit", "unit of trees", "cap", "floor"),
        *("temperature", "rounded down", "rounded", "logarithm"),
    ],
)
def test_what_a_service_makes_of_a_column(model, served, told):
    answer = model.predict if model is ENCODED else lambda rows: model.predict_proba(rows)[:, 1]
    found = first(lambda rows: {"y": answer(rows)}, lambda rows: {"y": answer(served(rows))}, TABLE)
    assert found.cause == "preprocessing-differs"
    assert found.explained_share > 0.98, "a factor is found to some digits"
    assert told in found.evidence


@pytest.mark.parametrize(
    ("served", "told"),
    [
        (lambda rows: rows.fillna({"rate": 2.5}), "rate filled with 2.5 where it is missing"),
        (lambda rows: rows.assign(income=rows["income"] / 1000), "income divided by 1000"),
    ],
    ids=["gaps", "unit"],
)
def test_what_was_done_to_a_column_before_answers_were_recorded(served, told, tmp_path):
    rows = NUMBERS.assign(rate=NUMBERS["rate"].mask(RNG.random(COUNT) < 0.3))
    model = make_pipeline(SimpleImputer(strategy="median"), StandardScaler(), Ridge()).fit(rows, TARGET)
    likewise.record(lambda table: {"y": model.predict(served(table))}, rows, tmp_path / "golden.parquet")
    found = first(lambda table: {"y": model.predict(table)}, tmp_path / "golden.parquet", rows)
    assert found.cause == "preprocessing-differs"
    assert told in found.evidence


@pytest.mark.parametrize("written", [False, True], ids=["moments", "text"])
def test_moments_on_the_clock_of_another_time_zone(written):
    moments = pd.Timestamp("2024-05-01") + pd.to_timedelta(RNG.integers(0, 60_000, COUNT), unit="min")
    rows = pd.DataFrame({"when": moments.strftime("%Y-%m-%d %H:%M:%S") if written else moments})

    def answer(rows, hours=0):
        hour = (pd.to_datetime(rows["when"]) + pd.Timedelta(hours=hours)).dt.hour
        return {"y": np.cos(hour.to_numpy() / 24 * 2 * np.pi) + 0.3 * (hour.to_numpy() >= 22)}

    found = first(answer, lambda rows: answer(rows, hours=2), rows)
    assert (found.cause, found.culprit) == ("preprocessing-differs", "when")
    assert "+2 hours" in found.evidence


def test_trees_that_a_service_uses_although_training_stopped_before_them():
    half = COUNT // 2
    model = xgb.XGBRegressor(n_estimators=60, early_stopping_rounds=4, learning_rate=0.8)
    model.fit(NUMBERS[:half], TARGET[:half], eval_set=[(NUMBERS[half:], TARGET[half:])], verbose=False)
    uses, has = model.best_iteration + 1, model.get_booster().num_boosted_rounds()
    assert uses < has
    served = model.get_booster()
    found = first(model, lambda rows: {"value": served.predict(xgb.DMatrix(rows), iteration_range=(0, has))}, NUMBERS)
    assert (found.cause, found.culprit) == ("tree-count", f"{has} trees instead of {uses}")


def test_answers_that_a_service_bounds():
    def answer(rows):
        return {"y": KNOWN.predict_proba(rows)[:, 1]}

    found = first(answer, lambda rows: {"y": answer(rows)["y"].clip(0.1, 0.9)}, TABLE)
    assert (found.cause, found.culprit) == ("output-kind", "y (bounded by 0.1 and 0.9)")


def test_time_that_runs_out_while_an_export_is_looked_at_is_told_as_that(boosted, monkeypatch):
    def late(case):
        raise OutOfTimeError(OUT_OF_TIME)
        yield

    monkeypatch.setattr(trees, "_in_graph", late)
    files = edited(boosted, lambda model: model["trees"][4]["split_conditions"].__setitem__(0, 1e9))
    report = data_only.explain(*files, boosted[1], explain_budget=60, causes=["categorical-split"])
    assert "failed" not in " ".join(report.explanation.not_tested)
    assert any(OUT_OF_TIME in told for told in report.explanation.not_tested)
