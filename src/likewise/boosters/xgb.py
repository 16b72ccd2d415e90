"""What a trained XGBoost booster says about itself."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from likewise.errors import one_line

WRAPPERS = ("XGBModel",)
BOOSTERS = ("Booster",)


@dataclass(frozen=True, slots=True)
class Facts:
    """`classes` is 0 unless the objective has classes; `best_round` is set where training stopped early.

    `threads` is 0 where XGBoost takes as many as there are.
    """

    objective: str
    kind: str
    classes: int
    targets: int
    base_score: tuple[float, ...]
    parallel_trees: int
    rounds: int
    best_round: int | None
    features: int
    names: tuple[str, ...] | None
    categorical: tuple[str, ...]
    threads: int

    @property
    def multilabel(self) -> bool:
        return self.targets > 1 and self.objective.startswith("binary:")


def facts_of(booster: Any) -> Facts:
    """Read from the configuration the booster carries, as its parameters may say something else."""
    learner = json.loads(booster.save_config())["learner"]
    shape, trees = learner["learner_model_param"], learner["gradient_booster"]
    trees = trees.get("gbtree", trees)
    objective = learner["objective"]["name"]
    classes = int(shape["num_class"])
    base = json.loads(shape["base_score"])
    best = booster.attr("best_iteration")
    names, types = booster.feature_names, booster.feature_types or ()
    return Facts(
        objective=objective,
        kind=learner["gradient_booster"]["name"],
        classes=2 if classes == 0 and objective.startswith("binary:") else classes,
        targets=int(shape.get("num_target", 1)),
        base_score=tuple(base) if isinstance(base, list) else (float(base),),
        parallel_trees=int(trees.get("gbtree_model_param", {}).get("num_parallel_tree", 1)),
        rounds=booster.num_boosted_rounds(),
        best_round=None if best is None else int(best),
        features=booster.num_features(),
        names=None if names is None else tuple(map(str, names)),
        categorical=tuple(
            str(names[index] if names else index) for index, kind in enumerate(types) if str(kind).startswith("c")
        ),
        threads=int(learner.get("generic_param", {}).get("nthread", 0)),
    )


def categories_of(booster: Any) -> Mapping[str, Sequence[Any]]:
    """The categories of each column that was trained from a DataFrame; models from before XGBoost 3.1 keep none."""
    if not any(str(kind).startswith("c") for kind in booster.feature_types or ()):
        return {}  # not asked, as a linear booster refuses the question
    if not hasattr(booster, "get_categories"):
        return {}
    kept = booster.get_categories(export_to_arrow=True).to_arrow() or ()
    return {str(name): values.to_pylist() for name, values in kept if values is not None}


def reason(error: Exception) -> str:
    """What XGBoost said, without the place in its source and the addresses of its stack."""
    text = re.sub(r"^\w+: \[[\d:]+\] \S+:\d+:\s*", "", one_line(error, limit=10_000).partition("Stack trace:")[0])
    return text.strip()[:500].rstrip(".")
