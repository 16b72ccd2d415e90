"""The rows of the scikit-learn models, and the ways in which one nested part can be wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.pipeline import FeatureUnion

from locate_faults.corpus import Edit
from locate_faults.edits import graphs

NUMBERS = ["age", "income", "balance", "rate", "visits", "score"]
MIXED = ["age", "income", "balance", "rate", "city", "plan"]
Change = Callable[[Any], None]


@cache
def table() -> pd.DataFrame:
    """The rows of all models."""
    rng = np.random.default_rng(11)
    n = 240
    return pd.DataFrame(
        {
            "age": rng.integers(18, 80, n).astype(np.float32),
            "income": rng.gamma(2.0, 20.0, n).astype(np.float32),
            "balance": rng.normal(0, 3, n).astype(np.float32),
            "rate": rng.uniform(0, 1, n).astype(np.float32),
            "visits": rng.poisson(4, n).astype(np.float32),
            "score": rng.normal(5, 2, n).astype(np.float32),
            "city": rng.choice(["Bern", "Graz", "Lyon", "Porto"], n),
            "plan": rng.choice(["basic", "plus", "pro"], n),
        }
    )


def mixed() -> pd.DataFrame:
    frame = table()[MIXED].copy()
    rng = np.random.default_rng(12)
    for column in ("income", "balance"):
        frame.loc[rng.random(len(frame)) < 0.15, column] = np.nan
    return frame


def numbers() -> pd.DataFrame:
    return table()[NUMBERS].copy()


@cache
def targets() -> dict[str, np.ndarray]:
    f = table()
    rng = np.random.default_rng(13)
    value = (
        0.05 * f.age + 0.02 * f.income + np.sin(f.balance) + 2 * f.rate + (f.city == "Lyon") + 0.1 * f.score * f.rate
        + rng.normal(0, 0.2, len(f))
    ).to_numpy()  # fmt: skip
    cut = np.quantile(value, [0.33, 0.66])
    return {
        "value": value,
        "flag": (value > np.median(value)).astype(np.int64),
        "two": np.where(value > np.median(value), "yes", "no"),
        "three": np.array(["low", "mid", "top"])[np.digitize(value, cut)],
        "counts": rng.poisson(np.exp(value / 4)),
        "values": np.stack([value, value * f.rate.to_numpy(), f.age.to_numpy() / 10 - value], 1),
        "labels": np.stack([(value > cut[0]).astype(int), (value > cut[1]).astype(int), (f.rate > 0.5).astype(int)], 1),
    }


@dataclass(frozen=True)
class Slip:
    """One fault: a change of the model before its export, or of the file; `tells` names its place in the model."""

    name: str
    word: str
    tells: tuple[str, ...]
    model: Change | None = None
    file: Edit | None = None
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class Construction:
    """A model, what it is fitted to, and what goes wrong with it."""

    name: str
    make: Callable[[], BaseEstimator]
    target: str
    slips: Sequence[Slip]
    rows: Callable[[], pd.DataFrame] = numbers


def scaled(path: Callable[[Any], Any], name: str, factor: float = 1.2, where: Any = ...) -> Change:
    """A fitted array with other values."""

    def change(model: Any) -> None:
        part = path(model)
        value = np.array(getattr(part, name), copy=True)
        value[where] = value[where] * factor
        setattr(part, name, value)

    return change


def added(path: Callable[[Any], Any], name: str, amount: float, where: Any = ...) -> Change:
    def change(model: Any) -> None:
        part = path(model)
        value = np.array(getattr(part, name), copy=True)
        value[where] = value[where] + amount
        setattr(part, name, value)

    return change


def leaf(path: Callable[[Any], Any], amount: float = 0.4) -> Change:
    """The leaf of a tree that most rows reach has another value."""

    def change(model: Any) -> None:
        tree = path(model).tree_
        ends = np.flatnonzero(tree.children_left == -1)
        busy = ends[np.argmax(tree.n_node_samples[ends])]
        if tree.value.shape[2] > 1:
            tree.value[busy, 0, :] = np.roll(tree.value[busy, 0, :], 1)
        else:
            tree.value[busy] += amount

    return change


def threshold(path: Callable[[Any], Any], share: float = 0.2) -> Change:
    """The first split of a tree lies elsewhere."""

    def change(model: Any) -> None:
        tree = path(model).tree_
        tree.threshold[0] += share * max(abs(tree.threshold[0]), 1.0)

    return change


def step(*names: Any) -> Callable[[Any], Any]:
    """The nested estimator at the end of names, attributes and positions."""

    def walk(model: Any) -> Any:
        for name in names:
            if isinstance(name, int):
                model = model[name]
            elif hasattr(model, "named_steps") and name in model.named_steps:
                model = model.named_steps[name]
            elif hasattr(model, "named_transformers_") and name in model.named_transformers_:
                model = model.named_transformers_[name]
            elif isinstance(model, FeatureUnion) and name in dict(model.transformer_list):
                model = dict(model.transformer_list)[name]
            else:
                model = getattr(model, name)
        return model

    return walk


def swap_categories(path: Callable[[Any], Any]) -> Change:
    def change(model: Any) -> None:
        encoder = path(model)
        first = encoder.categories_[0].copy()
        first[[0, 1]] = first[[1, 0]]
        encoder.categories_ = [first, *encoder.categories_[1:]]

    return change


def identity(path: Callable[[Any], Any], **values: Any) -> Change:
    """A scaler that does nothing: as if it had been left out."""

    def change(model: Any) -> None:
        part = path(model)
        for name, value in values.items():
            setattr(part, name, np.full_like(getattr(part, name), value))

    return change


def attribute_of(operator: str, name: str, change: Callable[[list[Any]], Any]) -> Edit:
    """A list in an attribute of a node of ai.onnx.ml, edited."""

    def edit(model: onnx.ModelProto) -> None:
        node = next(n for g in graphs(model.graph) for n in g.node if n.op_type == operator)
        old = next(a for a in node.attribute if a.name == name)
        value = onnx.helper.get_attribute_value(old)
        new = change(list(value) if not isinstance(value, (int, float, bytes)) else value)
        node.attribute.remove(old)
        node.attribute.append(onnx.helper.make_attribute(name, new))

    return edit


def swapped(values: list[Any]) -> list[Any]:
    values[0], values[1] = values[1], values[0]
    return values
