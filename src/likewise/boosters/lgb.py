"""What a trained LightGBM booster says about itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from likewise.errors import ModelError

WRAPPERS = ("LGBMModel",)
BOOSTERS = ("Booster",)
_UNNAMED = re.compile(r"Column_\d+")


@dataclass(frozen=True, slots=True)
class Facts:
    """`objective` is as the model writes it, such as `binary sigmoid:1`; empty where it was a function."""

    objective: str
    classes: int
    rounds: int
    trees: int
    best_round: int | None
    averaged: bool
    features: int
    names: tuple[str, ...] | None
    categorical: tuple[str, ...]
    categories: tuple[Sequence[Any], ...]

    @property
    def task(self) -> str:
        """The first word of the objective."""
        return self.objective.partition(" ")[0]


def facts_of(booster: Any) -> Facts:
    """Read from the model itself: parameters may be synonyms, or those of another training."""
    header = booster.dump_model(num_iteration=1)
    names = tuple(header["feature_names"])
    infos = header.get("feature_infos") or {}
    best = booster.best_iteration
    return Facts(
        objective=header.get("objective", ""),
        classes=int(header["num_class"]),
        rounds=booster.current_iteration(),
        trees=booster.num_trees(),
        best_round=best if best and best > 0 else None,
        averaged=bool(header.get("average_output")),
        features=len(names),
        names=None if all(_UNNAMED.fullmatch(name) for name in names) else names,
        # Ranges are written for numbers, the codes themselves for categories.
        categorical=tuple(name for name in names if infos.get(name, {}).get("values")),
        categories=tuple(booster.pandas_categorical or ()),
    )


def categories_by_column(facts: Facts, frame: Any) -> Mapping[str, Sequence[Any]]:
    """Which column has which categories. The model keeps the lists in the order of the columns, without their names."""
    import pandas as pd

    if not facts.categories:
        return {}
    given = [name for name in frame.columns if isinstance(frame[name].dtype, pd.CategoricalDtype)]
    if len(given) == len(facts.categories):
        return dict(zip(given, facts.categories, strict=True))
    if len(facts.categorical) == len(facts.categories):
        return dict(zip(facts.categorical, facts.categories, strict=True))
    raise ModelError(
        f"the model was trained on {len(facts.categories)} categorical columns and does not say which; "
        f"the data has {len(given)}",
        remedy="Give the columns that were categorical in training as pandas categories",
    )


def nodes_of(booster: Any) -> Iterator[dict[str, Any]]:
    """Every split and leaf of every tree that predict uses."""
    stack = [tree["tree_structure"] for tree in booster.dump_model()["tree_info"]]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(node[side] for side in ("left_child", "right_child") if side in node)
