"""The candidate, or the reference, does not load or does not answer at all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from likewise.contracts.comparison import Incident
from likewise.contracts.models import Model
from likewise.errors import LikewiseError, one_line
from likewise.explain.case import Case, Explained
from likewise.models.onnx import edits
from likewise.registry import adapter

if TYPE_CHECKING:
    from onnx import ModelProto


NO_DIAGNOSIS = ("untrusted-model", "missing-extra", "feeding", "pairing", "no-rows", "data", "usage")
"""Refusals that are not the model's: nothing is broken, or another hypothesis knows them."""


@dataclass(frozen=True, slots=True)
class Known:
    """A refusal in the words of the runtime, what it means, what it is about, and what to do."""

    pattern: re.Pattern[str]
    meaning: str
    culprit: str
    remedy: str


AGAIN = "Export it again"
KNOWN = (
    Known(
        re.compile(r"there is no file (?P<name>\S+)"),
        "the file does not exist",
        "{name}",
        "Check the path, or export the model first",
    ),
    Known(
        re.compile(r"keeps tensor '(?P<tensor>[^']*)' in '(?P<name>[^']*)', which does not exist"),
        "its weights are in a file of their own, {name}, which is missing (tensor '{tensor}')",
        "{name}",
        "Copy the weights file next to the model",
    ),
    Known(
        re.compile(r"(?:External data|external initializer|External initializer)[^.]*?(?P<name>[\w./-]+\.\w+)?"),
        "the file with its weights is missing, too short or not its own",
        "{name}",
        "Copy the weights file that was written together with the model next to it",
    ),
    Known(
        re.compile(r"cannot be read as ONNX|holds no ONNX graph|INVALID_PROTOBUF|Protobuf parsing failed"),
        "the file is cut off or damaged",
        "",
        "Copy the file again and compare its size or SHA-256 on both ends, or export it again",
    ),
    Known(
        re.compile(r"[Uu]nsupported model IR version: (?P<name>\d+), max supported IR version: (?P<tensor>\d+)"),
        "it is written in version {name} of the ONNX format, and this runtime reads {tensor} at most",
        "IR version {name}",
        "Update onnxruntime, or save it with an older version: model.ir_version = {tensor}",
    ),
    Known(
        re.compile(
            r"[Oo]pset (?P<name>\d+) (?:is under development|of domain)|"
            r"official released onnx opset versions\. Opset (?P<tensor>\d+)"
        ),
        "it is written for opset {name}{tensor}, which this runtime does not know",
        "opset {name}{tensor}",
        "Update onnxruntime, or export for an older opset (likewise export --opset N)",
    ),
    Known(
        re.compile(
            r"(?P<name>[\w.]*:?\w+)\(-?\d+\) is not a registered function/op|No Op registered for (?P<tensor>\w+)"
        ),
        "it uses the operator {name}{tensor}, which this runtime does not have",
        "operator {name}{tensor}",
        "Register the library of the operator with the runtime, or export without it",
    ),
    Known(
        re.compile(r"Could not find an implementation for (?P<name>\w+)\(\d+\) node with name '(?P<tensor>[^']*)'"),
        "the runtime has no kernel for {name} with the types it has here (node '{tensor}')",
        "{name} (node '{tensor}')",
        "Export it in float32, or for another opset",
    ),
    Known(
        re.compile(
            r"[Tt]ype [Ee]rror: (?P<meaning>.*?(?:[Oo]ptype|operator|node) ?\(?(?P<name>[\w./:]*)\)?.*?"
            r"(?:in node|node) \((?P<tensor>[^)]*)\))"
        ),
        "types do not fit inside the graph: {meaning}",
        "{name} (node '{tensor}')",
        "Export it again; if it was edited, cast to one type before this node",
    ),
    Known(
        re.compile(r"Node input '(?P<name>[^']*)' is not a graph input, initializer, or output"),
        "a node reads the tensor '{name}', which nothing in the graph gives",
        "tensor '{name}'",
        AGAIN,
    ),
    Known(
        re.compile(r"In Node, ?\(\"(?P<tensor>[^\"]*)\", (?P<name>\w+)"),
        "the graph is not valid at the node '{tensor}' ({name})",
        "{name} (node '{tensor}')",
        AGAIN,
    ),
    Known(
        re.compile(r"Node \((?P<tensor>[^)]*)\) Op \((?P<name>\w+)\)"),
        "shapes or types do not fit at the node '{tensor}' ({name})",
        "{name} (node '{tensor}')",
        AGAIN,
    ),
    Known(
        re.compile(r"running (?P<name>\w+) node\. Name:'(?P<tensor>[^']*)'"),
        "it fails when it runs, at the node '{tensor}' ({name})",
        "{name} (node '{tensor}')",
        "Export it again with the shapes and types of this data",
    ),
)


class Refusals:
    """Read what the model's refusal says, and what the file itself shows."""

    causes = ("unloadable-model",)
    needs_answers = False

    def plausible(self, case: Case) -> bool:
        return bool(self._incidents(case))

    def test(self, case: Case) -> Sequence[Explained]:
        incident = self._incidents(case)[0]
        side = incident.side or "candidate"
        model: Model = getattr(case.plan, side)
        opened = side in case.runners
        if opened and side == "reference":
            # A reference that loads and refuses the rows refuses the data.
            return []
        if not opened and (cured := self._without_optimiser(case, model)):
            return [cured]
        meaning, culprit, remedy = self._read(case, incident, model)
        what = "answers nothing" if opened else "does not load"
        return [
            Explained(
                "unloadable-model",
                culprit if side == "candidate" else f"the reference: {culprit}",
                f"the {side} {what}: {meaning}",
                remedy or incident.remedy or AGAIN,
                share=1.0,
                simplicity=3 if opened else 1,
            )
        ]

    def _incidents(self, case: Case) -> list[Incident]:
        """What kept a model from answering."""
        return [
            incident
            for incident in case.comparison.incidents
            if incident.side in ("candidate", "reference") and incident.code not in NO_DIAGNOSIS
        ]

    def _without_optimiser(self, case: Case, model: Model) -> Explained | None:
        """Does it load if the runtime leaves the graph as it is? Then the optimiser breaks it."""
        if model.framework != "onnx" or model.options.get("optimization") == "disable":
            return None
        case.require_time()
        try:
            with adapter("onnx").open(replace(model, options={**model.options, "optimization": "disable"})):
                pass
        except LikewiseError:
            return None
        name = _name(model)
        return Explained(
            "unloadable-model",
            f"{name} (graph optimisation)",
            "the file loads without graph optimisation, and not with it: the optimiser makes an invalid graph of it",
            "Load it with the optimisation off (--candidate-option optimization=disable)",
            share=1.0,
            simplicity=1,
        )

    def _read(self, case: Case, incident: Incident, model: Model) -> tuple[str, str, str]:
        """What the refusal means, what it is about, and what to do."""
        name = _name(model)
        for known in KNOWN:
            found = known.pattern.search(incident.message)
            if found is None:
                continue
            parts = {
                key: (value or "").strip() for key, value in {"name": "", "tensor": "", **found.groupdict()}.items()
            }
            told = known.culprit.format_map(_Blank(parts)).strip()
            same = told in ("", "(node '')") or Path(told).name == name
            where = name if same else f"{name} ({told})"
            return known.meaning.format_map(_Blank(parts)), where, known.remedy.format_map(_Blank(parts))
        for said, told in self._in_file(model):
            return said, f"{name} ({told})", AGAIN
        return _shortened(incident.message), name, incident.remedy

    def _in_file(self, model: Model) -> list[tuple[str, str]]:
        """What is wrong with the file by the rules of ONNX, where the runtime only says that it is."""
        if model.framework != "onnx":
            return []
        import onnx

        from likewise.models.onnx.describe import read

        try:
            proto: ModelProto = read(model.target)
        except LikewiseError:
            return []
        known = {entry.domain for entry in proto.opset_import}
        for node in edits.all_nodes(proto.graph):
            if node.domain not in known and not (node.domain == "ai.onnx" and "" in known):
                return [(f"the operator {node.domain}:{node.op_type} has no opset in the file", edits.place(node))]
        try:
            onnx.checker.check_model(proto)
        except Exception as error:  # noqa: BLE001 - the checker raises many types
            return [(_shortened(one_line(error)), "graph")]
        return []


def _name(model: Model) -> str:
    stored = isinstance(model.target, str) or hasattr(model.target, "__fspath__")
    return Path(model.name).name if stored else model.name


class _Blank(dict[str, Any]):
    def __missing__(self, key: str) -> str:
        return ""


def _shortened(message: str, limit: int = 240) -> str:
    return message if len(message) <= limit else message[: limit - 1] + "…"


EXTENSION = Refusals()
