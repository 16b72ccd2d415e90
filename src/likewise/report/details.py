"""What metrics keep in a report, as those who read it again rely on it: judging, comparing and showing.

A stored report may be damaged. Its layout is checked by its types; the details of the metrics are plain JSON there, and
are checked here, once, so that nobody who reads them has to doubt them. Those of other people's metrics are theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from likewise.contracts.comparison import OutputFacts

Shape = Any
"""A test and its name, a list of one shape, or the shapes of the fields; a name that ends in `?` may be left out.
A list that may be left out may also be none: labels too many to be kept."""


def _is_number(value: Any) -> bool:
    return _is_finite(value) or value in ("NaN", "Infinity", "-Infinity")


def _is_finite(value: Any) -> bool:
    return _is_count(value) or isinstance(value, float)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _or_nothing(test: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or test(value)


NUMBER: Shape = (_is_number, "a number")
COUNT: Shape = (_is_count, "a whole number")
FLAG: Shape = (lambda value: isinstance(value, bool), "true or false")
TEXT: Shape = (lambda value: isinstance(value, str), "text")
NAME: Shape = (lambda value: value is None or isinstance(value, str | int | float), "a name")
BOUNDS: Shape = (
    _or_nothing(lambda value: isinstance(value, list | tuple) and len(value) == 2 and all(map(_is_finite, value))),
    "two numbers",
)
SPAN: Shape = (
    lambda value: isinstance(value, list | tuple) and len(value) == 3 and all(map(_is_number, value)),
    "three numbers",
)
COLUMN: Shape = (
    lambda value: (
        isinstance(value, list | tuple) and len(value) == 4 and _is_count(value[0]) and all(map(_is_finite, value))
    ),
    "a column and three numbers",
)
MARGINS = {"unknown": COUNT, "spans": [SPAN]}

SHAPES: Mapping[str, Shape] = {
    "closeness": {
        "rows": COUNT,
        "values": COUNT,
        "integer_rounding?": (_or_nothing(_is_number), "a number"),
        "magnitudes": [
            {"exponent": (_or_nothing(_is_count), "a whole number"), "count": COUNT, "max_abs_diff": NUMBER}
        ],
        "constant_reference?": FLAG,
        "constant_candidate?": FLAG,
    },
    "distribution": {"histogram": [SPAN]},
    "deciles": {"groups": [{"from": NUMBER, "to": NUMBER, "values": COUNT, "beyond": COUNT, "max_abs_diff": NUMBER}]},
    "extremes": {
        "reference?": BOUNDS,
        "candidate?": BOUNDS,
        "widest?": BOUNDS,
        "columns?": {"count": COUNT, "narrowest": [COLUMN]},
    },
    "form": {"reference": [TEXT], "candidate": [TEXT]},
    "agreement": {
        "margins": MARGINS,
        "rows?": COUNT,
        "confusion?": [{"reference": NAME, "candidate": NAME, "count": COUNT}],
        "reference_labels?": [{"label": NAME, "count": COUNT}],
        "candidate_labels?": [{"label": NAME, "count": COUNT}],
        "types_differ?": FLAG,
        "constant_reference?": FLAG,
        "constant_candidate?": FLAG,
    },
    "top_class": {"rows": COUNT, "classes": COUNT, "margins": MARGINS},
    "scatter": {"rows_seen": COUNT, "row": [NAME], "element": [COUNT], "reference": [NUMBER], "candidate": [NUMBER]},
    "reference_drift": {"rows": COUNT, "rows_beyond": COUNT},
}

TELLS = {"nonfinite_mismatch": "closeness", "label_flips": "agreement", "top1_flips": "top_class"}
"""The metric whose details are there wherever a measure of it is."""


def fault_of(output: OutputFacts) -> str | None:
    """The first thing that is wrong with the details of an output, and where; None where nothing is."""
    return next(_faults(output), None)


def _faults(output: OutputFacts) -> Iterator[str]:
    details, where = output.details, f"details of {output.name!r}"
    for name, shape in SHAPES.items():
        # A metric that does not fit has nothing to keep.
        if name in details and details[name] != {}:
            yield from _beside(shape, details[name], f"{where}: {name}")
    for measure, name in TELLS.items():
        if details and measure in output.measures and not details.get(name):
            yield f"{where}: {name} is missing"
    if "scatter" in details and (sample := details["scatter"]):
        columns = [sample["row"], sample["reference"], sample["candidate"], *filter(None, [sample["element"]])]
        if len(set(map(len, columns))) > 1:
            yield f"{where}: scatter: its columns are not equally long"


def _beside(shape: Shape, value: Any, where: str) -> Iterator[str]:
    if isinstance(shape, tuple):
        test, words = shape
        if not test(value):
            yield f"{where} is not {words}"
    elif isinstance(shape, list):
        if not isinstance(value, list | tuple):
            yield f"{where} is not a list"
            return
        for place, entry in enumerate(value):
            yield from _beside(shape[0], entry, f"{where}.{place}")
    elif not isinstance(value, Mapping):
        yield f"{where} is not an object"
    else:
        for key, inner in shape.items():
            name = key.removesuffix("?")
            if name in value and not (value[name] is None and isinstance(inner, list) and key.endswith("?")):
                yield from _beside(inner, value[name], f"{where}.{name}")
            elif name == key:
                yield f"{where}.{name} is missing"
