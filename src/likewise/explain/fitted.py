"""What the fitted steps of a case's scikit-learn reference know about a feature: fill values, categories."""

from __future__ import annotations

from likewise.data.cells import Field
from likewise.explain.case import Case
from likewise.explain.fields import fields_of
from likewise.models.sklearn.inside import Known, Seat
from likewise.models.sklearn.walk import followed


def seats(case: Case, field: Field) -> tuple[Seat, ...]:
    """The steps that see a feature, in order, until one mixes it with others or makes several columns of it."""
    if case.framework("reference") != "sklearn" or case.native("reference") is None:
        return ()
    return tuple(case.once(_seats_by_name).get(field.name, ()))


def _seats_by_name(case: Case) -> dict[str, list[Seat]]:
    found: dict[str, list[Seat]] = {}
    for path, step, names in followed(case.native("reference"), _columns(case)):
        for position, name in enumerate(names):
            found.setdefault(name, []).append(Seat(path, step, position))
    return found


def _columns(case: Case) -> list[str]:
    """The features in the order in which the reference takes them."""
    fields = fields_of(case)
    feed = case.side("reference").feed
    if feed.routes is None:
        return [field.name for field in fields]
    by_column: dict[str, list[Field]] = {}
    for field in fields:
        by_column.setdefault(field.column, []).append(field)
    found: list[str] = []
    for route in feed.routes:
        for column in route.columns:
            chosen = by_column.get(column, ())
            found.extend(f.name for f in chosen if route.split in (None, f.index))
    return found


def imputed(case: Case, field: Field) -> float | str | None:
    """The value that an imputer of the reference was fitted to put in the place of a missing one."""
    for seat in seats(case, field):
        statistics = getattr(seat.step, "statistics_", None)
        if statistics is not None and len(statistics) > seat.position:
            value = statistics[seat.position]
            return value if isinstance(value, str) else float(value)
    return None


def known_categories(case: Case, field: Field) -> Known | None:
    """The categories that an encoder of the reference was fitted with for a feature; None if none reads it."""
    for seat in seats(case, field):
        categories = getattr(seat.step, "categories_", None)
        if not isinstance(categories, list) or len(categories) <= seat.position:
            continue
        rare = getattr(seat.step, "infrequent_categories_", None) or [None] * len(categories)
        of_this = rare[seat.position]
        return Known(
            frozenset(categories[seat.position].tolist()),
            frozenset(() if of_this is None else of_this.tolist()),
            f"{type(seat.step).__name__} (step {seat.path!r})" if seat.path else type(seat.step).__name__,
        )
    return None


def graph_words(case: Case) -> frozenset[str]:
    """Every text that the candidate's graph knows: the categories of its encoders, the keys of its look-ups."""
    graph = case.graph()
    if graph is None:
        return frozenset()
    from onnx import TensorProto

    words: set[bytes] = set()
    for node in graph.graph.node:
        for attribute in node.attribute:
            if attribute.name in ("cats_strings", "keys_strings", "classlabels_strings", "string_vocabulary"):
                words.update(attribute.strings)
            if attribute.HasField("t") and attribute.t.data_type == TensorProto.STRING:
                words.update(attribute.t.string_data)
    for tensor in graph.graph.initializer:
        if tensor.data_type == TensorProto.STRING:
            words.update(tensor.string_data)
    return frozenset(word.decode("utf-8", "replace") for word in words)
