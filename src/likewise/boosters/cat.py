"""What a trained CatBoost model says about itself."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from likewise.errors import one_line

MODELS = ("CatBoost",)


@dataclass(frozen=True, slots=True)
class Facts:
    """`loss` is the training's loss without its parameters; `columns` is how many numbers a row has, None for one."""

    loss: str
    trees: int
    best_tree: int | None
    features: int
    names: tuple[str, ...] | None
    categorical: tuple[str, ...]
    text: tuple[str, ...]
    embedding: tuple[str, ...]
    scale: float
    bias: tuple[float, ...]

    @property
    def multilabel(self) -> bool:
        return self.loss in ("MultiLogloss", "MultiCrossEntropy")

    @property
    def columns(self) -> int | None:
        return len(self.bias) if len(self.bias) > 1 else None


def facts_of(model: Any) -> Facts:
    """Read from the model; one that was loaded from a file may know less about its training."""
    names = tuple(model.feature_names_)
    scale, bias = model.get_scale_and_bias()
    return Facts(
        loss=loss_of(model),
        trees=model.tree_count_,
        best_tree=model.best_iteration_,
        features=len(names),
        # What CatBoost writes where the training data had no names.
        names=None if names == tuple(map(str, range(len(names)))) else names,
        categorical=tuple(names[index] for index in model.get_cat_feature_indices()),
        text=tuple(names[index] for index in model.get_text_feature_indices()),
        embedding=tuple(names[index] for index in model.get_embedding_feature_indices()),
        scale=float(scale),
        bias=tuple(bias) if isinstance(bias, list | tuple) else (float(bias),),
    )


def loss_of(model: Any) -> str:
    """The loss function, as the model itself keeps it."""
    return str(model.get_all_params().get("loss_function", "")).partition(":")[0]


def reason(error: Exception) -> str:
    """What CatBoost said, without the place in its source."""
    return re.sub(r"^\w+: (\S+\.(cpp|h|pyx):\d+: )?", "", one_line(error)).rstrip(".")
