"""The candidate reads a column otherwise: digits are lost, fractions cut, integers wrap, numbers become text, texts are
split into other words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.data.cells import Edit, Field, listed
from likewise.data.columns import numpy_dtype
from likewise.explain.case import DOUBLE, WHOLE_PIPELINE, Case, Explained, Remedy, probe
from likewise.explain.experiment import ENOUGH, Change, Effect, Trial, fewest, first
from likewise.explain.features import decided_by_trees, declared_types, fields_of, place_of, unaccented
from likewise.explain.first_wrong_step import WrongStep, first_wrong_step
from likewise.explain.rounding import rounded as rounded_reference
from likewise.explain.trace import columns_behind, reference_steps
from likewise.models.onnx import edits
from likewise.models.sklearn.walk import Step

HALVES = frozenset({"float16", "bfloat16"})
NARROW = ("float32", *sorted(HALVES))
WHOLE = ("int", "uint", "bool")
WIDE = ("float64", "int64", "int32", "uint64", "uint32")

HALF_ENOUGH = 0.9
"""Half precision at the inputs mostly comes with half precision inside, which is another cause."""

COINCIDENCE = 1e-3
"""A rounding this small against the spread of a feature matters to a tree only where a threshold happens to be."""

INTEGERS = frozenset({2, 3, 4, 5, 6, 7, 12, 13})
"""The codes of ONNX for the integer types of all sizes."""

PASSING = frozenset(
    [
        *("ArrayFeatureExtractor", "Concat", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Split"),
        *("Squeeze", "Transpose", "Unsqueeze"),
    ]
)
"""Operators that hand values on as they are."""

SPELLINGS: Mapping[str, Callable[[float], str]] = {
    "whole numbers without a point": lambda value: str(int(value)) if value == int(value) else str(value),
    "numbers with a point": lambda value: str(float(value)),
    "the shortest form": lambda value: f"{value:g}",
}

ASKED = Change("reference")
"""The reference as it is."""

Types = Mapping[Field, str]
"""The narrower type in which the candidate may have some features."""

BY_PATTERN = {
    "accents",
    "words with letters beyond a-z",
    "words of one letter",
    "underscores",
    "punctuation",
    "numbers",
}
"""Traits that are a matter of the pattern that words are found with."""


@probe("float32-input-cast", "float32-threshold", when=lambda case: bool(_declared(case, NARROW) or _wide(case)))
def narrow_inputs(case: Case) -> Explained | None:
    """Feed the reference what a float type leaves of each column: does it then answer like the candidate?"""
    declared = _declared(case, NARROW)
    return (
        _rounded(case, declared)
        or _rounded(case, _wide(case), ", inside its graph")
        or _rounded_with_constants(case, declared)
    )


@probe(
    "input-type",
    "integer-overflow",
    when=lambda case: bool(_declared(case, WHOLE) or _cut_inside(case) or _spelt(case)),
)
def input_types(case: Case) -> Explained | None:
    """Feed the reference what whole numbers leave of a column; or the candidate the text it may have meant."""
    return (
        _whole_numbers(case, _declared(case, WHOLE), inside=False)
        or _whole_numbers(case, _cut_inside(case), inside=True)
        or _as_text(case, _spelt(case))
    )


def _declared(case: Case, kinds: tuple[str, ...]) -> dict[Field, str]:
    """The features that the candidate declares in a type of these kinds that does not hold all of their values."""
    inputs = case.required.batch.inputs
    declared = declared_types(case, "candidate", fields_of(case))
    return {f: d for f, d in declared.items() if d.startswith(kinds) and _left_of(f.of(inputs), d) is not None}


def _wide(case: Case) -> dict[Field, str]:
    """The features that a graph takes in full, and may still cast before it uses them."""
    inputs = case.required.batch.inputs
    declared = declared_types(case, "candidate", fields_of(case)) if case.graph() is not None else {}
    return {f: "float32" for f, d in declared.items() if d in WIDE and _left_of(f.of(inputs), "float32") is not None}


def _cut_inside(case: Case) -> dict[Field, str]:
    """The features with fractions that a graph takes in full and casts to whole numbers before anything else."""
    graph = case.graph()
    cut = set() if graph is None else _inputs_cast_to_whole_numbers(graph)
    inputs = case.required.batch.inputs
    routes = case.side("candidate").feed.routes or ()
    taken = {column for route in routes if route.input.name in cut for column in route.columns}
    declared = _declared(case, WHOLE)
    open_ = [field for field in fields_of(case) if field.column in taken and field not in declared]
    return {field: "int64" for field in open_ if _left_of(field.of(inputs), "int64") is not None}


def _inputs_cast_to_whole_numbers(graph: Any) -> set[str]:
    """The inputs of a graph that reach a cast to integers without having been computed with."""
    carries: dict[str, set[str]] = {given.name: {given.name} for given in graph.graph.input}
    found: set[str] = set()
    for node in graph.graph.node:
        sources = set().union(*(carries.get(name, set()) for name in node.input))
        if node.op_type == "Cast" and edits.attribute(node, "to") in INTEGERS:
            found |= sources
        elif node.op_type in PASSING:
            carries |= dict.fromkeys(node.output, sources)
    return found


def _left_of(array: Array, dtype: str) -> Array | None:
    """The values after a cast there and back; None if all of them survive it, or the column holds no numbers."""
    if array.dtype.kind not in "biuf":
        return None
    finite = np.isfinite(array) if array.dtype.kind == "f" else np.ones(len(array), dtype=bool)
    back = array.copy()
    with np.errstate(all="ignore"):
        there = array[finite].astype(numpy_dtype(dtype))
        if array.dtype.kind in "iu" and there.dtype.kind not in "biu":
            limits = np.iinfo(array.dtype)
            # 2**63 as a float is one more than the largest integer.
            there = np.clip(there.astype(np.float64), limits.min, np.nextafter(float(limits.max), 0))
        back[finite] = there.astype(array.dtype)
    return None if np.array_equal(back[finite], array[finite]) else back


def _loss(values: Array, dtype: str) -> float:
    """The largest change by the cast, measured in the spread of the values."""
    left = _left_of(values, dtype)
    if left is None:
        return 0.0
    before = values.astype(np.float64)
    finite = np.isfinite(before)
    spread = float(np.std(before[finite])) if finite.any() else 0.0
    change = np.abs(left[finite].astype(np.float64) - before[finite])
    return float(change.max() / spread) if spread > 0 and change.size else float("inf")


def _given(types: Types, reference: Change, trial: Trial, fields: Sequence[Field]) -> Effect | None:
    """The reference given what the casts leave of some features."""
    cells = []
    for field in fields:
        values = trial.values(field)
        left = _left_of(values, types[field])
        if left is not None:
            cells.append(Edit(field, left != values, left))
    return trial.run(replace(reference, cells=cells)) if cells else None


def _cast(case: Case, types: Types, reference: Change = ASKED) -> tuple[tuple[Field, ...], Effect] | None:
    """The fewest features whose casts explain as much as all of them: those that lose most are tried first."""
    trial = Trial.some(case)
    fields = sorted(types, key=lambda field: -_loss(trial.values(field), types[field]))
    enough = HALF_ENOUGH if HALVES.intersection(types.values()) else ENOUGH
    return fewest(case, fields, partial(_given, types, reference), enough=enough)


def _rounded(case: Case, types: Types, where: str = "", reference: Change = ASKED) -> Explained | None:
    found = _cast(case, types, reference)
    if found is None:
        return None
    few, effect = found
    place, trial = place_of(few), Trial.some(case)
    worst = max(_loss(trial.values(field), types[field]) for field in few)
    by_chance = worst < COINCIDENCE and decided_by_trees(case)
    return effect.explained(
        "float32-threshold" if by_chance else "float32-input-cast",
        place,
        f"given {place} rounded to {types[few[0]]}, as the candidate has it{where}, the reference agrees with it on "
        + effect.told
        + ("; the rounded value is on the other side of a threshold of its trees" if by_chance else ""),
        Remedy("Subtract a constant from large values before the model is fitted", again=DOUBLE),
        simplicity=3 if by_chance else 2,
    )


def _rounded_with_constants(case: Case, types: Types) -> Explained | None:
    """The same with a reference whose own numbers are rounded too: what is taken off a large value is large itself."""
    twin = rounded_reference(case, "float32") if set(types.values()) == {"float32"} else None
    if twin is None:
        return None
    with case.opened("reference", target=twin) as opened:
        reference = replace(ASKED, opened=opened)
        alone = None if opened is None else Trial.some(case).run(reference)
        if alone is None or alone.share >= ENOUGH:
            return None
        return _rounded(case, types, ", and with its constants rounded as well", reference)


def _whole_numbers(case: Case, types: Types, *, inside: bool) -> Explained | None:
    found = _cast(case, types)
    if found is None:
        return None
    few, effect = found
    place, dtype = place_of(few), types[few[0]]
    wraps = all(_only_wraps(field.of(case.required.batch.inputs), types[field]) for field in few)
    how = f"the candidate casts {place} to whole numbers" if inside else f"the candidate takes {place} as {dtype}"
    return effect.explained(
        "integer-overflow" if wraps else "input-type",
        place,
        f"{how}; given what that leaves ({_example(case, few[0], dtype)}), the reference agrees with it on "
        + effect.told,
        f"Keep fractions out of {place}, which the exporter takes for whole numbers"
        if inside
        else Remedy(
            "Check the sample or the initial_types given to the exporter, where the type comes from",
            again=f"Export again with {place} as {'int64' if wraps else 'a float input'}",
        ),
    )


def _only_wraps(array: Array, dtype: str) -> bool:
    """Are all the values whole numbers, so that only their size can be what does not fit?"""
    if dtype == "bool":
        return False
    return array.dtype.kind in "iu" or bool(np.all((array == np.trunc(array)) | ~np.isfinite(array)))


def _example(case: Case, field: Field, dtype: str) -> str:
    """One value of a failing row, before and after."""
    values = field.of(case.required.batch.inputs)
    left = _left_of(values, dtype)
    if left is None:
        return "nothing"
    touched = np.flatnonzero((left != values) & np.isfinite(values))
    failing = touched[case.required.failing[touched]]
    row = int((failing if len(failing) else touched)[0])
    return f"{values[row]:.6g} becomes {left[row]:.6g}"


def _spelt(case: Case) -> list[Field]:
    """The features that are numbers in the data and text to the candidate."""
    inputs = case.required.batch.inputs
    declared = declared_types(case, "candidate", fields_of(case))
    return [f for f, dtype in declared.items() if dtype == "string" and f.of(inputs).dtype.kind in "biuf"]


def _as_text(case: Case, fields: Sequence[Field]) -> Explained | None:
    """The candidate fed the numbers in another spelling."""
    if not fields:
        return None
    way = first(case, SPELLINGS, lambda trial, told: _respelt(told, trial, fields))
    found = None if way is None else fewest(case, fields, partial(_respelt, way[0]))
    if way is None or found is None:
        return None
    place, effect = place_of(found[0]), found[1]
    return effect.explained(
        "input-type",
        place,
        f"the candidate takes {place} as text; fed as {way[0]}, it agrees with the reference on {effect.told}",
        Remedy(f"Store {place} as the text the model was fitted with", again=f"Export again with {place} as a number"),
    )


def _respelt(way: str, trial: Trial, fields: Sequence[Field]) -> Effect | None:
    cells, spell = [], SPELLINGS[way]
    for field in fields:
        values = trial.values(field)
        known = np.isfinite(values.astype(np.float64))
        text = [spell(value) if told else "" for value, told in zip(values.tolist(), known, strict=True)]
        cells.append(Edit(field, np.ones(len(values), dtype=bool), np.array(text, dtype=object)))
    return trial.run(Change(cells=cells))


@probe(
    "tokenizer",
    when=lambda case: case.required.batch.stacked and any(step.reads_text for step in reference_steps(case)),
)
def tokenizing(case: Case) -> Explained | None:
    """Take a trait (accents, capitals, punctuation …) out of the texts on both sides: does the difference go?"""
    wrong = first_wrong_step(case)
    if wrong is not None and (not wrong.step.reads_text or wrong.same_words):
        return None
    steps = [wrong.step] if wrong is not None else [step for step in reference_steps(case) if step.reads_text]
    texts = ((step, field) for step in steps for field in columns_behind(case, step, text=True))
    told = (_split_otherwise(case, step, field, wrong) for step, field in texts)
    return next((entry for entry in told if entry is not None), None)


def _split_otherwise(case: Case, step: Step, field: Field, wrong: WrongStep | None) -> Explained | None:
    """The fewest traits of a text without which the rows agree; the step alone is the proof where it was found."""
    traits = _traits(step)
    found = fewest(case, list(traits), lambda trial, some: _without(trial, field, [traits[name] for name in some]))
    if wrong is None and found is None:
        return None
    told, shown = "" if found is None else " and ".join(found[0]), [] if wrong is None else [_words(wrong)]
    if found is not None:
        shown.append(f"with {told} taken out of {field.name} on both sides, {found[1].agreeing}")
    details = (f"step '{step.path}'", f"column {field.name}", *([told] if told else []))
    return Explained(
        "tokenizer",
        Place(step.name, details, path=step.path, columns=(field.name,)),
        "; ".join(shown),
        _remedy(step, () if found is None else found[0]),
        covered=wrong.covered if wrong is not None else None if found is None else found[1].covered,
        share=None if wrong is None else wrong.share,
        simplicity=3 if wrong is None else 2,
    )


def _without(trial: Trial, field: Field, traits: Sequence[Callable[[str], str]]) -> Effect | None:
    """Both sides asked about the texts without these traits."""
    before = trial.values(field)
    after = np.empty(len(before), dtype=object)
    after[:] = before.tolist()
    for without in traits:
        after[:] = [without(text) if isinstance(text, str) else text for text in after.tolist()]
    marked = np.array([a is not b and a != b for a, b in zip(after.tolist(), before.tolist(), strict=True)], dtype=bool)
    if not (marked & trial.failing).any():
        return None
    cells = [Edit(field, marked, after)]
    effect = trial.run(Change("reference", cells=cells), Change("candidate", cells=cells))
    # Rows that keep their text keep failing, whatever is answered to the others.
    return None if effect is None else Effect(effect.agrees & (marked | ~trial.failing), trial.failing)


def _traits(step: Step) -> dict[str, Callable[[str], str]]:
    """What two tokenizers may treat in different ways, from the mildest to the strongest, and texts without it."""
    found: dict[str, Callable[[str], str]] = {
        "runs of white space": lambda text: " ".join(text.split()),
        "capital letters": str.lower,
        "accents": unaccented,
        "words with letters beyond a-z": lambda text: re.sub(r"\w*[^\W\x00-\x7f]\w*", " ", text),
        "words of one letter": lambda text: re.sub(r"\b\w\b", " ", text),
        "underscores": lambda text: text.replace("_", " "),
        "punctuation": lambda text: re.sub(r"[^\w\s]|_", " ", text),
        "numbers": lambda text: re.sub(r"\w*\d\w*", " ", text),
    }
    get = getattr(step.estimator, "get_stop_words", None)
    words = [word for word in (get() if get is not None else None) or () if isinstance(word, str) and word]
    if words:
        stop = re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(words)))})\b", re.IGNORECASE)
        found["stop words"] = lambda text: stop.sub(" ", text)
    return found


def _words(wrong: WrongStep) -> str:
    """The words that the graph overlooks, and those that it finds where they are not."""
    failing = wrong.trial.failing
    ours, theirs = wrong.expected[failing] != 0, wrong.found[failing] != 0
    told = []
    for verb, mask in (("overlooks", ours & ~theirs), ("finds words that are not there:", theirs & ~ours)):
        names = _most(wrong.step.estimator, mask)
        if names:
            told.append(f"{verb} {listed(names, 3)}")
    rows = int((ours != theirs).any(axis=1).sum())
    return (
        f"on {rows} of {int(failing.sum())} failing rows looked at the graph finds other words than "
        f"{type(wrong.step.estimator).__name__} '{wrong.step.path}'" + (f": it {' and '.join(told)}" if told else "")
    )


def _most(vectorizer: Any, mask: Array) -> list[str]:
    counts = mask.sum(axis=0)
    order = [int(column) for column in np.argsort(-counts, kind="stable") if counts[column]]
    names = getattr(vectorizer, "vocabulary_", None)
    if not isinstance(names, dict):
        return []
    known = {int(column): str(word) for word, column in names.items()}
    return [f"'{known[column]}' (in {int(counts[column])})" for column in order if column in known]


def _remedy(step: Step, traits: Sequence[str]) -> Remedy:
    estimator = step.estimator
    usual = getattr(estimator, "token_pattern", None) == r"(?u)\b\w\w+\b" and estimator.analyzer == "word"
    if usual and traits and BY_PATTERN.issuperset(traits):
        return Remedy(
            r"give it to the converter: to_onnx(model, options={id(step): {'tokenexp': r'[\p{L}\p{N}_]{2,}'}})",
            again="Export with scikit-learn's own token pattern (likewise export does)",
        )
    what = f"Take {' and '.join(traits)} out of" if traits else "Normalise"
    return Remedy(f"{what} the text before the model, in training and in production", again=WHOLE_PIPELINE)


EXTENSIONS = (narrow_inputs, input_types, tokenizing)
