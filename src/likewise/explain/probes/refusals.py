"""A model that does not load, does not answer at all, or cannot be given the data.

A reason that lies in the data is proven where the data, changed accordingly, feeds both models and they agree on it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import permutations
from pathlib import Path

import numpy as np

from likewise.contracts.comparison import Incident
from likewise.contracts.data import Array, Batch
from likewise.contracts.models import InputSpec, Model, Shape
from likewise.contracts.report import Place
from likewise.data.cells import listed, missing_in, with_columns
from likewise.data.columns import ArrayColumns
from likewise.errors import LikewiseError, one_line
from likewise.explain import features
from likewise.explain.case import Case, Explained, Remedy, probe
from likewise.explain.features import ROWS, agreement, first_rows
from likewise.models.onnx import edits
from likewise.models.onnx.describe import read
from likewise.registry import open_model

NO_DIAGNOSIS = (
    *("untrusted-model", "missing-extra", "feeding", "pairing", "no-rows", "data", "usage"),
    *("other-python", "missing-package", "environment", "endpoint", "unavailable"),
)
"""Refusals that are not the model's: nothing is broken, what stands between us and it is, or another hypothesis knows
them."""

ALIKE = 0.6
"""How similar two names must be for one to be the other renamed."""

PROVEN = 0.9
"""A change of the data is what was meant if both models agree on so many rows then."""

MOST_DROPPED = 64
"""Columns that are left out one after the other."""

NO_FEATURE = re.compile(r"(row_?|record_?|customer_?|user_?)?id|index|unnamed.*|target|label|y|class|split|fold", re.I)
"""Names that columns of a table have which are no features."""

MOST_ROWS = 65_536
"""A single missing value far down in the data is enough to be refused."""

AGAIN = "Export it with likewise export, which writes only what ONNX Runtime loads"
OF_ITS_OWN = "Put right what the message names, and see that the model loads by itself where this command runs"
"""What to do about a graph, and about another model, that does not load."""


@dataclass(frozen=True, slots=True)
class Known:
    """A refusal in the words of the runtime, what it means, what it is about, and what to do."""

    pattern: str
    meaning: str
    culprit: str = "{name} (node '{tensor}')"
    remedy: str = AGAIN


KNOWN = (
    Known(
        r"(?:keeps tensor .* in '|[Ee]xternal (?:data|initializer)[^.]*?)(?P<name>[\w./-]+\.\w+)?",
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
        r"[Tt]ype [Ee]rror: .*?node \((?P<tensor>[^)]*)\)",
        "types do not fit at the node '{tensor}'",
        "node '{tensor}'",
        "Export it again; if it was edited, cast to one type before this node",
    ),
    Known(
        r"Node input '(?P<name>[^']*)' is not a graph input, initializer, or output",
        "a node reads the tensor '{name}', which nothing in the graph gives",
        "tensor '{name}'",
    ),
    Known(
        r"In Node, ?\(\"(?P<tensor>[^\"]*)\", (?P<name>\w+)",
        "the graph is not valid at the node '{tensor}' ({name})",
    ),
    Known(
        r"Node \((?P<tensor>[^)]*)\) Op \((?P<name>\w+)\)",
        "shapes or types do not fit at the node '{tensor}' ({name})",
    ),
    Known(
        r"could not run it: (?P<name>\w+) '(?P<tensor>[^']*)': ",
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
        told = "the file loads without graph optimisation, and not with it: the optimiser makes an invalid graph of it"
        about = "graph optimisation"
        remedy = "Load it with the optimisation off (--candidate-option optimization=disable)"
    else:
        meaning, about, remedy = _read(incident, model)
        told = f"the {side} {'answers nothing' if opened else 'does not load'}: {meaning}"
    name = _name(model) if side == "candidate" else f"the reference: {_name(model)}"
    place = Place(name, (about,) if about else (), side=side)
    usual = remedy or (AGAIN if model.framework == "onnx" else OF_ITS_OWN)
    exports = opened and usual.startswith("Export")
    elsewhere = f"Serve the model with {case.framework('reference')}"
    advice = Remedy(elsewhere, again=usual) if exports else usual
    return Explained("unloadable-model", place, told, advice, simplicity=3 if opened else 1)


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
        parts = {"name": "", "tensor": ""} | {key: value or "" for key, value in found.groupdict().items()}
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
        onnx.checker.check_model(str(model.target) if _is_file(model) else proto)
    except Exception as error:  # noqa: BLE001 - the checker raises many types
        return _shortened(one_line(error)), "graph"
    return None


def _is_file(model: Model) -> bool:
    return isinstance(model.target, str) or hasattr(model.target, "__fspath__")


def _name(model: Model) -> str:
    return Path(model.name).name if _is_file(model) else model.name


def _shortened(message: str, limit: int = 240) -> str:
    return message if len(message) <= limit else message[: limit - 1] + "…"


def _proof(case: Case, batch: Batch, told: str) -> str:
    """What both models say to the changed data, where they can be asked about it."""
    share = agreement(case, batch) if len(batch) else None
    return "" if share is None else f"; {told}, and agree on {share:.0%} of {len(batch):,} rows"


@probe(
    "schema-mismatch",
    "missing-value-handling",
    "input-type",
    "input-layout",
    when=lambda case: (
        case.sample is None
        and len(case.runners) == 2
        and any(incident.code == "feeding" for incident in case.comparison.incidents)
    ),
    needs_answers=False,
)
def schema(case: Case) -> Explained | None:
    """Rename, leave out, read otherwise or turn round what does not fit: do both models then answer, and agree?"""
    batch = first_rows(case, MOST_ROWS)
    if batch is None:
        return None
    sides = features.unfed_sides(case, batch)
    # A column that is not there says more than one of another type.
    looks = (look(case, batch, side) for look in (_absent, _too_wide, _typed, _shaped) for side in sides)
    return next((found for look in looks for found in look), None)


def _unfit(
    name: str, evidence: str, remedy: Remedy | str, *, detail: str = "", cause: str = "schema-mismatch"
) -> Explained:
    return Explained(cause, Place(name, (detail,) if detail else ()), evidence, remedy, simplicity=1)


def _absent(case: Case, batch: Batch, side: str) -> Iterator[Explained]:
    """Columns that a model takes by name and the data does not have, or has under another name."""
    batch = batch.slice(0, ROWS)
    signature = case.runners[side].signature
    specs = [spec for spec in signature.inputs or () if not spec.optional]
    if not specs or (len(specs) == 1 and not signature.table) or len(batch.inputs) == 1 < len(specs):
        return
    wanted = [case.plan.feed.get(spec.name, spec.name) for spec in specs]
    absent = [name for name in wanted if name not in batch.inputs]
    if not absent:
        return
    free = [name for name in batch.inputs if name not in wanted]
    renamed = {absent[0]: free[0]} if len(absent) == len(free) == 1 else _matched(absent, free)
    share = agreement(case, features.with_added(batch, renamed)) if len(renamed) == len(absent) else None
    names, instead = listed(absent), listed(list(renamed.values()))
    lacks = f"the {side} takes {names}, which the data does not have"
    if share is None or share < PROVEN:
        evidence = f"{lacks}; what the {side} does not take: {listed(free)}" if free else lacks
        feed = "" if signature.table else f", or name its column: --feed {shlex.quote(f'{absent[0]}=COLUMN')}"
        yield _unfit(names, evidence, f"Add {names} to the data{feed}")
        return
    if signature.table:
        pairs = ", ".join(f"{column!r}: {name!r}" for name, column in renamed.items())
        remedy = Remedy(f"Rename the columns: data.rename(columns={{{pairs}}})")
    else:
        said = "Say so: " + " ".join(f"--feed {shlex.quote(f'{name}={column}')}" for name, column in renamed.items())
        remedy = Remedy(done=said) if share == 1 else Remedy(said)
    yield _unfit(
        names,
        f"{lacks}; with {instead} in its place both models answer, and agree on {share:.0%} of {len(batch):,} rows",
        remedy,
        detail=f"{instead} in the data",
    )


def _matched(absent: Sequence[str], free: Sequence[str]) -> dict[str, str]:
    """For each absent name the most similar one that is left."""
    left = {_plain(name): name for name in free}
    found: dict[str, str] = {}
    for name in absent:
        for close in get_close_matches(_plain(name), left, n=1, cutoff=ALIKE):
            found[name] = left.pop(close)
    return found


def _plain(name: str) -> str:
    return re.sub(r"[\W_]+", "", name).casefold()


def _too_wide(case: Case, batch: Batch, side: str) -> Iterator[Explained]:
    """One input of a fixed width, and more or fewer columns than that."""
    batch = batch.slice(0, ROWS)
    specs = case.runners[side].signature.inputs or ()
    if len(specs) != 1 or specs[0].shape is None or len(specs[0].shape) != 2 or not isinstance(specs[0].shape[1], int):
        return
    spec, width = specs[0], int(specs[0].shape[1])
    taken = features.columns_taken(case, batch, "reference") if side == "candidate" else None
    columns = taken or list(batch.inputs)
    if any(batch.inputs[name].ndim != 1 for name in columns) or len(columns) == width:
        return
    whose = "the reference takes" if taken else "the data has"
    said = f"input {spec.name} of the {side} takes {width} columns, {whose} {len(columns)}: {listed(columns, 12)}"
    if taken and len(columns) == width + 1:
        yield from _lacking(case, batch, columns)
    spare = [name for name in columns if NO_FEATURE.fullmatch(name)]
    spare += [name for name in columns if name not in spare and batch.inputs[name].dtype.kind not in "biuf"]
    if len(columns) - len(spare) == width:
        kept = batch.inputs.select([name for name in batch.inputs if name not in spare])
        proof = _proof(case, replace(batch, inputs=kept), f"without {listed(spare)} both models answer")
        yield _unfit(
            listed(spare), f"{said}{proof}", f"Leave out: {' '.join(f'--drop {shlex.quote(name)}' for name in spare)}"
        )
    else:
        remedy = "Leave out columns that are not features: --drop COLUMN"
        if len(columns) < width:
            remedy = "Export again from the model that is compared with, with the columns it was fitted with"
        yield _unfit(spec.name, said, remedy, detail=f"{width} columns instead of {len(columns)}")


def _lacking(case: Case, batch: Batch, columns: Sequence[str]) -> Iterator[Explained]:
    """The column that the reference takes and the candidate does not know: without it, they agree."""
    name = next(spec.name for spec in case.runners["candidate"].signature.inputs or ())
    if any(batch.inputs[column].dtype.kind not in "biuf" for column in columns):
        return
    shares = {}
    for column in columns[:MOST_DROPPED]:
        kept = [batch.inputs[other].astype(np.float64) for other in columns if other != column]
        arrays = {**{other: batch.inputs[other] for other in columns}, name: np.stack(kept, axis=1)}
        shares[column] = agreement(case, Batch(batch.rows, ArrayColumns(arrays))) or 0.0
    best = max(shares, key=lambda column: shares[column])
    if shares[best] >= PROVEN:
        yield _unfit(
            best,
            f"the reference takes {len(columns)} columns and the candidate {len(columns) - 1}; without {best} it "
            f"answers, and agrees with the reference on {shares[best]:.0%} of {len(batch):,} rows",
            f"Export again from the model that is compared with: the candidate was made without {best}",
        )


def _typed(case: Case, batch: Batch, side: str) -> Iterator[Explained]:
    """A column that cannot be cast to the type a model declares: text, or missing values for an integer."""
    for spec, column in _routes(case, batch, side):
        array = batch.inputs[column]
        if spec.dtype is None or array.ndim != 1 or array.dtype.kind not in "fO":
            continue
        gone = missing_in(array) | (~np.isfinite(array) if array.dtype.kind == "f" else False)
        texts = [value for value in array[~gone].tolist() if isinstance(value, str)]
        if spec.dtype.startswith(("int", "uint", "bool")) and gone.any() and not texts:
            kept = batch.at(np.flatnonzero(~gone)[:ROWS])
            yield _unfit(
                column,
                f"{column} is missing in {int(gone.sum()):,} of {len(array):,} rows, and the {side} takes it as "
                f"{spec.dtype}, which has no missing values"
                + _proof(case, kept, "without these rows both models answer"),
                f"Export with {column} as a float input, or impute it before both models",
                cause="missing-value-handling",
            )
        if spec.dtype not in ("string", "object") and texts:
            yield _text_as_number(case, batch, side, spec, column, texts[0])


def _routes(case: Case, batch: Batch, side: str) -> list[tuple[InputSpec, str]]:
    """Which column becomes which input, as far as it can be told from names."""
    signature = case.runners[side].signature
    specs = signature.inputs or ()
    if len(specs) == 1 and specs[0].name not in batch.inputs and not signature.table:
        order = features.columns_taken(case, batch, "reference") or list(batch.inputs)
        return [(specs[0], column) for column in order]
    named = [(spec, case.plan.feed.get(spec.name, spec.name)) for spec in specs]
    return [(spec, column) for spec, column in named if column in batch.inputs]


def _text_as_number(case: Case, batch: Batch, side: str, spec: InputSpec, column: str, example: str) -> Explained:
    told = f"{column} holds text in the data, such as {example!r}, and the {side} takes it as {spec.dtype}"
    remedy = f"Export with {column} as a text input, encoder included"
    parsed = _parsed(batch.inputs[column])
    if parsed is not None:
        numbers = Batch(batch.rows, with_columns(batch.inputs, {column: parsed})).slice(0, ROWS)
        told += _proof(case, numbers, "read as numbers, both models answer")
        remedy = f"Store {column} as numbers"
    return _unfit(column, told, remedy, cause="input-type")


def _parsed(array: Array) -> Array | None:
    """Text that spells numbers, as numbers; None if any does not."""
    try:
        return np.array([np.nan if value is None else float(value) for value in array.tolist()])
    except (TypeError, ValueError):
        return None


def _shaped(case: Case, batch: Batch, side: str) -> Iterator[Explained]:
    """A tensor whose axes are in another order than the input declares."""
    for spec, column in _routes(case, batch, side):
        array = batch.inputs[column]
        if spec.shape is None or array.ndim != len(spec.shape) or array.ndim < 3 or _fits(array.shape, spec.shape):
            continue
        orders = [(0, *axes) for axes in permutations(range(1, array.ndim))]
        fitting = [order for order in orders if _fits([array.shape[axis] for axis in order], spec.shape)]
        if not fitting:
            continue
        shares = {order: _agreement_turned(case, batch, side, spec, order) for order in fitting}
        best = max(fitting, key=lambda order: shares[order] or 0.0)
        share, turned = shares[best], ", ".join(map(str, best))
        proof = "" if share is None else f"; turned round, both models agree on {share:.0%} of the rows"
        yield _unfit(
            spec.name,
            f"the {side} takes {spec.name} as {_shape(spec.shape)}, the data has {_shape((None, *array.shape[1:]))}, "
            f"the same axes in another order{proof}",
            f"Turn the data round before it is fed: array.transpose({turned})",
            detail=f"its axes are {turned} of the data",
            cause="input-layout",
        )


def _agreement_turned(case: Case, batch: Batch, side: str, spec: InputSpec, order: tuple[int, ...]) -> float | None:
    """Do both models agree if this one gets the tensor turned round? Told where each has one input, of its own name."""
    others = case.runners["reference" if side == "candidate" else "candidate"].signature.inputs or ()
    if len(batch.inputs) != 1 or len(others) != 1 or others[0].name == spec.name:
        return None
    (array,) = batch.inputs.values()
    arrays = {others[0].name: array, spec.name: np.ascontiguousarray(array.transpose(order))}
    return agreement(case, Batch(batch.rows, ArrayColumns(arrays)).slice(0, ROWS))


def _fits(sizes: Sequence[int], shape: Shape) -> bool:
    pairs = zip(sizes[1:], shape[1:], strict=True)
    return all(not isinstance(want, int) or want == have for have, want in pairs)


def _shape(shape: Shape) -> str:
    return "(" + ", ".join("n" if dim is None else str(dim) for dim in shape) + ")"


EXTENSIONS = (refusals, schema)
