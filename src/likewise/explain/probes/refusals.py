"""A model that does not load, does not answer at all, or refuses some of the rows."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from likewise.contracts.comparison import Incident
from likewise.contracts.data import Array
from likewise.contracts.models import Model
from likewise.contracts.report import Place
from likewise.data.cells import Field, missing_in, transplanted
from likewise.errors import LikewiseError, one_line
from likewise.explain.case import Case, Explained, Sample, probe
from likewise.explain.features import ROWS, agreement, fed_sides, fields_of, first_rows, known_categories
from likewise.models.onnx import edits
from likewise.models.onnx.describe import read
from likewise.registry import open_model

NO_DIAGNOSIS = ("untrusted-model", "missing-extra", "feeding", "pairing", "no-rows", "data", "usage")
"""Refusals that are not the model's: nothing is broken, or another hypothesis knows them."""


@dataclass(frozen=True, slots=True)
class Known:
    """A refusal in the words of the runtime, what it means, what it is about, and what to do."""

    pattern: str
    meaning: str
    culprit: str
    remedy: str


AGAIN = "Export it with likewise export, which writes only what ONNX Runtime loads"

MOST_ROWS = 8_192
"""Rows among which one that is refused is looked for."""

MOST_FIELDS = 200
"""Columns, and values of a column, that are tried one by one."""

NEARBY = 40
"""Rows among which one that is answered is looked for."""

KNOWN = (
    Known(
        r"keeps tensor '(?P<tensor>[^']*)' in '(?P<name>[^']*)', which does not exist",
        "its weights are in a file of their own, {name}, which is missing (tensor '{tensor}')",
        "{name}",
        "Copy the weights file next to the model",
    ),
    Known(
        r"(?:External data|external initializer|External initializer)[^.]*?(?P<name>[\w./-]+\.\w+)?",
        "the file with its weights is missing, too short or not its own",
        "{name}",
        "Copy the weights file that was written together with the model next to it",
    ),
    Known(
        r"cannot be read as ONNX|holds no ONNX graph|INVALID_PROTOBUF|Protobuf parsing failed",
        "the file is cut off or damaged",
        "",
        "Copy the file again and compare its size or SHA-256 on both ends, or export it again",
    ),
    Known(
        r"[Uu]nsupported model IR version: (?P<name>\d+), max supported IR version: (?P<tensor>\d+)",
        "it is written in version {name} of the ONNX format, and this runtime reads {tensor} at most",
        "IR version {name}",
        "Update onnxruntime, or save it with an older version: model.ir_version = {tensor}",
    ),
    Known(
        r"[Oo]pset (?P<name>\d+) (?:is under development|of domain)|"
        r"official released onnx opset versions\. Opset (?P<tensor>\d+)",
        "it is written for opset {name}{tensor}, which this runtime does not know",
        "opset {name}{tensor}",
        "Update onnxruntime, or export for an older opset (likewise export --opset N)",
    ),
    Known(
        r"(?P<name>[\w.]*:?\w+)\(-?\d+\) is not a registered function/op|No Op registered for (?P<tensor>\w+)",
        "it uses the operator {name}{tensor}, which this runtime does not have",
        "operator {name}{tensor}",
        "Register the library of the operator with the runtime, or export without it",
    ),
    Known(
        r"Could not find an implementation for (?P<name>\w+)\(\d+\) node with name '(?P<tensor>[^']*)'",
        "the runtime has no kernel for {name} with the types it has here (node '{tensor}')",
        "{name} (node '{tensor}')",
        "Export it in float32, or for another opset",
    ),
    Known(
        r"[Tt]ype [Ee]rror: (?P<meaning>.*?(?:[Oo]ptype|operator|node) ?\(?(?P<name>[\w./:]*)\)?.*?"
        r"(?:in node|node) \((?P<tensor>[^)]*)\))",
        "types do not fit inside the graph: {meaning}",
        "{name} (node '{tensor}')",
        "Export it again; if it was edited, cast to one type before this node",
    ),
    Known(
        r"Node input '(?P<name>[^']*)' is not a graph input, initializer, or output",
        "a node reads the tensor '{name}', which nothing in the graph gives",
        "tensor '{name}'",
        AGAIN,
    ),
    Known(
        r"In Node, ?\(\"(?P<tensor>[^\"]*)\", (?P<name>\w+)",
        "the graph is not valid at the node '{tensor}' ({name})",
        "{name} (node '{tensor}')",
        AGAIN,
    ),
    Known(
        r"Node \((?P<tensor>[^)]*)\) Op \((?P<name>\w+)\)",
        "shapes or types do not fit at the node '{tensor}' ({name})",
        "{name} (node '{tensor}')",
        AGAIN,
    ),
    Known(
        r"running (?P<name>\w+) node\. Name:'(?P<tensor>[^']*)'",
        "it fails when it runs, at the node '{tensor}' ({name})",
        "{name} (node '{tensor}')",
        "Export it again with the shapes and types of this data",
    ),
)


@probe("unloadable-model", when=lambda case: bool(_incidents(case)), needs_answers=False)
def refusals(case: Case) -> Explained | None:
    """Read what the model's refusal says, and what the file itself shows."""
    incident = _incidents(case)[0]
    side = incident.side or "candidate"
    model, opened = case.model(side), side in case.runners
    if opened and side == "reference":
        # A reference that loads and refuses the rows refuses the data.
        return None
    if not opened and _loads_unoptimised(case, model):
        meaning = "the file loads without graph optimisation, and not with it: the optimiser makes an invalid graph"
        about, remedy = (
            "graph optimisation",
            "Load it with the optimisation off (--candidate-option optimization=disable)",
        )
        return _explained(side, model, f"{meaning} of it", about, remedy)
    meaning, about, remedy = _read(incident, model)
    told = f"the {side} {'answers nothing' if opened else 'does not load'}: {meaning}"
    return _explained(side, model, told, about, remedy or incident.remedy or AGAIN, simplicity=3 if opened else 1)


def _explained(side: str, model: Model, told: str, about: str, remedy: str, simplicity: int = 1) -> Explained:
    name = _name(model) if side == "candidate" else f"the reference: {_name(model)}"
    place = Place(name, (about,) if about else (), side=side)
    return Explained("unloadable-model", place, told, remedy, simplicity=simplicity)


def _incidents(case: Case) -> list[Incident]:
    """What kept a model from answering."""
    return [
        incident
        for incident in case.comparison.incidents
        if incident.side in ("candidate", "reference") and incident.code not in NO_DIAGNOSIS
    ]


def _loads_unoptimised(case: Case, model: Model) -> bool:
    """Does it load if the runtime leaves the graph as it is? Then the optimiser breaks it."""
    if model.framework != "onnx" or model.options.get("optimization") == "disable":
        return False
    case.require_time()
    try:
        with open_model(replace(model, options={**model.options, "optimization": "disable"})):
            return True
    except LikewiseError:
        return False


def _read(incident: Incident, model: Model) -> tuple[str, str, str]:
    """What the refusal means, what in the file it is about, and what to do."""
    for known in KNOWN:
        found = re.search(known.pattern, incident.message)
        if found is None:
            continue
        parts = {"name": "", "tensor": "", "meaning": ""}
        parts |= {key: (value or "").strip() for key, value in found.groupdict().items()}
        told = known.culprit.format_map(parts).strip()
        about = "" if told in ("", "(node '')") or Path(told).name == _name(model) else told
        return known.meaning.format_map(parts), about, known.remedy.format_map(parts)
    in_file = _in_file(model)
    return (*in_file, AGAIN) if in_file is not None else (_shortened(incident.message), "", incident.remedy)


def _in_file(model: Model) -> tuple[str, str] | None:
    """What is wrong with the file by the rules of ONNX, and where, if the runtime only says that something is."""
    if model.framework != "onnx":
        return None
    import onnx

    try:
        proto = read(model.target)
    except LikewiseError:
        return None
    known = {entry.domain for entry in proto.opset_import}
    for node in edits.all_nodes(proto.graph):
        if node.domain not in known and not (node.domain == "ai.onnx" and "" in known):
            return f"the operator {node.domain}:{node.op_type} has no opset in the file", edits.place(node)
    try:
        # A path is checked where it lies: of a large file the weights are not in the message.
        stored = isinstance(model.target, str) or hasattr(model.target, "__fspath__")
        onnx.checker.check_model(str(model.target) if stored else proto)
    except Exception as error:  # noqa: BLE001 - the checker raises many types
        return _shortened(one_line(error)), "graph"
    return None


def _name(model: Model) -> str:
    stored = isinstance(model.target, str) or hasattr(model.target, "__fspath__")
    return Path(model.name).name if stored else model.name


def _shortened(message: str, limit: int = 240) -> str:
    return message if len(message) <= limit else message[: limit - 1] + "…"


@probe(
    "unknown-category",
    "missing-value-handling",
    when=lambda case: (
        case.sample is None
        and len(case.runners) == 2
        and any(incident.code == "model" and incident.side is not None for incident in case.comparison.incidents)
    ),
    needs_answers=False,
)
def refused_rows(case: Case) -> Explained | None:
    """Find a row that is refused, and the column that makes it so: with the value of an answered row it is answered."""
    batch = first_rows(case, MOST_ROWS)
    sides = None if batch is None else fed_sides(case, batch)
    if batch is None or sides is None:
        return None
    # Both are fed these rows, although they do not answer all of them.
    sample = Sample(batch, {}, {}, (), np.zeros(len(batch), dtype=bool), complete=False)
    opened = replace(case, reference=sides[0], candidate=sides[1], sample=sample, known=dict(case.known))
    return _refused_by(opened, "reference") or _refused_by(opened, "candidate")


def _refused_by(case: Case, side: str) -> Explained | None:
    """The column whose value a model refuses, and what is special about that value."""
    if _answers(case, side, np.arange(len(case.required))):
        return None
    border = _border(case, side)
    if border is None:
        return None
    two = case.rows(np.array(border))
    for field in fields_of(case)[:MOST_FIELDS]:
        # Is the refused row answered with the value of the answered one in this column?
        if case.ask(side, transplanted(two, {field: np.array([1, 1])})) is not None:
            found = _special(case, side, field, border[0])
            if found is not None:
                return found
    return None


def _border(case: Case, side: str) -> tuple[int, int] | None:
    """A row that is refused, by halving, and one that is answered."""
    low, high = 0, len(case.required)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _answers(case, side, np.arange(low, middle)) else (low, middle)
    if _answers(case, side, np.array([low])):
        return None
    others = dict.fromkeys([low - 1, low + 1, 0, len(case.required) - 1, *range(1, NEARBY)])
    rows = (row for row in others if 0 <= row < len(case.required) and row != low)
    return next(((low, row) for row in rows if _answers(case, side, np.array([row]))), None)


def _answers(case: Case, side: str, rows: Array) -> bool:
    return case.ask(side, case.rows(rows)) is not None


def _special(case: Case, side: str, field: Field, refused: int) -> Explained | None:
    """What is special about the refused value: it is missing, or not among the categories that others have."""
    values = field.of(case.required.batch.inputs)
    gone = missing_in(values)
    if gone[refused]:
        cause, rows = "missing-value-handling", gone
        what = f"in which {field.name} is missing"
        remedy = f"Impute {field.name} in the pipeline before it is exported, or before both models"
    else:
        known = known_categories(case, field)
        if known is None and not isinstance(values[refused], str):
            return None
        rows = _unknown(case, side, values, refused) if known is None else ~np.isin(values, list(known.values))
        if not rows[refused]:
            return None
        cause, rows = "unknown-category", rows & ~gone
        words = ", ".join(repr(word) for word in list(dict.fromkeys(values[rows].tolist()))[:3])
        what = f"with {words} in {field.name}" + ("" if known is None else f", unknown to {known.whose},")
        remedy = (
            f"Map unknown values of {field.name} to a known one, or fit with handle_unknown='ignore' and export that"
        )
    kept = np.flatnonzero(~rows & ~gone)[:ROWS]
    share = agreement(case, case.rows(kept)) if len(kept) else None
    also = "" if share is None else f"; without these rows both models agree on {share:.0%} of {len(kept):,} others"
    return Explained(
        cause,
        Place(field.name, columns=(field.name,), side=side),
        f"the {side} refuses rows {what} ({int(rows.sum()):,} of {len(values):,}) and answers them with a value of "
        f"another row{also}",
        remedy,
        simplicity=2,
    )


def _unknown(case: Case, side: str, values: Array, refused: int) -> Array:
    """The rows with a value that is refused, each distinct one tried where it stands first."""
    strange = np.zeros(len(values), dtype=bool)
    first = {value: row for row, value in reversed(list(enumerate(values.tolist())))}
    for value, row in list(first.items())[:MOST_FIELDS]:
        if value == values[refused] or not _answers(case, side, np.array([row])):
            strange |= np.asarray(values == value, dtype=bool)
    return strange


EXTENSIONS = (refusals, refused_rows)
