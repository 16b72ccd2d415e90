"""From a batch to what a booster takes: a DataFrame in the model's order with the model's categories, or an array.

Boosters code a category by its place in the list of categories. A column that was categorical in training and
arrives as text or numbers gets the model's own list; the categories of a single batch would give other codes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from likewise.contracts.data import Batch
from likewise.contracts.models import InputSpec, Signature
from likewise.errors import ModelError


def inputs_of(names: Sequence[str] | None, count: int) -> tuple[tuple[InputSpec, ...], bool]:
    """The declared inputs, and whether they are columns of a table: only a model that knows names has columns."""
    if names:
        return tuple(InputSpec(name) for name in names), True
    return (InputSpec("X", None, (None, count)),), False


def data_of(batch: Batch, signature: Signature) -> Any:
    """The rows as pandas under the model's names, or as the array of a model without names."""
    if not signature.table:
        return batch.inputs["X"]
    assert signature.inputs is not None
    frame = batch.inputs.frame()
    if hasattr(frame, "to_pandas"):
        frame = frame.to_pandas()
    names = [spec.name for spec in signature.inputs]
    if list(frame.columns) == names:
        return frame
    frame = frame.copy(deep=False)
    frame.columns = names
    return frame


def with_categories(frame: Any, categories: Mapping[str, Sequence[Any]], *, refuse_unseen: bool) -> Any:
    """The frame with these columns categorical; those that are already stay as they are."""
    import pandas as pd

    changed = {
        name: _coded(frame[name], known, name, refuse_unseen=refuse_unseen)
        for name, known in categories.items()
        if not isinstance(frame[name].dtype, pd.CategoricalDtype)
    }
    return frame.assign(**changed) if changed else frame


def _coded(column: Any, known: Sequence[Any], name: str, *, refuse_unseen: bool) -> Any:
    import pandas as pd

    present = column[column.notna()]
    text = any(isinstance(value, str) for value in known)
    odd = next((value for value in present.unique() if isinstance(value, str) is not text), None)
    if odd is not None:
        was, now = ("text", "a number") if text else ("numbers", "text")
        raise ModelError(
            f"column {name!r} is categorical in the model, whose categories are {was} such as {known[0]!r}; "
            f"the data has {now}: {odd!r}",
            remedy="Give the column in the type it was trained in",
        )
    categories: Any = pd.Index(list(known))
    codes = categories.get_indexer(column)
    unseen = column[(codes < 0) & column.notna()]
    if refuse_unseen and len(unseen):
        raise ModelError(
            f"column {name!r} holds {unseen.iloc[0]!r}, a category the model was not trained on",
            remedy=f"It knows: {', '.join(repr(value) for value in list(known)[:12])}"
            + (" …" if len(known) > 12 else ""),
        )
    return pd.Series(pd.Categorical.from_codes(codes, categories), index=column.index)


def require_codes(name: str, known: Sequence[Any]) -> None:
    """Refuse to export categories under names of their own: ONNX trees compare codes, and no encoder is written."""
    if list(known) != list(range(len(known))):
        shown = ", ".join(repr(value) for value in list(known)[:3])
        raise ModelError(
            f"feature {name} is categorical ({shown} …), and onnxmltools converts only its codes, not its categories",
            remedy="Encode it before the model, for example with OrdinalEncoder, and train on the codes",
        )
