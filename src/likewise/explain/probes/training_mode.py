"""A model that acts as in training: it drops values at random, or normalises by the batch it is given."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from likewise.explain import experiment
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Trial
from likewise.models.onnx import edits

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


MOST_NODES = 24


class TrainingMode:
    """Switch the layers that act as in training to inference, one side at a time."""

    causes = ("training-mode",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return True

    def test(self, case: Case) -> Sequence[Explained]:
        for side in ("candidate", "reference"):
            if found := self._in_graph(case, side):
                return [found]
        if found := self._by_the_batch(case):
            return [found]
        return []

    def _in_graph(self, case: Case, side: str) -> Explained | None:
        proto = case.editable(side)
        live = [] if proto is None else _live(proto)
        if proto is None or not live:
            return None
        answers = case.ask_changed(side, target=_at_rest(proto, live))
        effect = None if answers is None else Trial.whole(case).effect(**{side: answers})
        if answers is None or effect is None or not effect.explains or not Trial.whole(case).nearer(**{side: answers}):
            return None
        culprits = [edits.place(node) for node in self._needed(case, side, proto, live, effect.share)]
        some = ", ".join(culprits[:3]) + (f" and {len(culprits) - 3} more" if len(culprits) > 3 else "")
        return Explained(
            "training-mode",
            some if side == "candidate" else f"{some} of the reference",
            f"with {some} switched to inference the {side} agrees with the other on {int(effect.covered.sum())} of "
            f"{int(effect.failing.sum())} failing rows",
            "Call model.eval() before torch.onnx.export, and export again",
            covered=effect.covered,
            simplicity=1,
        )

    def _needed(
        self, case: Case, side: str, proto: ModelProto, live: Sequence[NodeProto], share: float
    ) -> Sequence[NodeProto]:
        """The one node that matters, where there is one."""
        if len(live) == 1 or len(live) > MOST_NODES:
            return live
        for node in experiment.searching(case, live):
            answers = case.ask_changed(side, target=_at_rest(proto, [node]))
            effect = None if answers is None else Trial.whole(case).effect(**{side: answers})
            if effect is not None and effect.explains and effect.share >= 0.9 * share:
                return [node]
        return live

    def _by_the_batch(self, case: Case) -> Explained | None:
        """Was batch norm written out as it acts in training? Then the reference does so too, made to."""
        torch, module = sys.modules.get("torch"), case.native("reference")
        if torch is None or case.framework("reference") != "torch" or not isinstance(module, torch.nn.Module):
            return None
        norms = [name for name, part in module.named_modules() if getattr(part, "running_mean", None) is not None]
        if not norms:
            return None
        twin = _by_batch_statistics(module, norms)
        ours = None if twin is None else case.ask_changed("reference", target=twin)
        theirs = case.ask("candidate")
        if ours is None or theirs is None:
            return None
        effect = Trial.whole(case).effect(reference=ours, candidate=theirs)
        if not effect.explains or not Trial.whole(case).nearer(reference=ours, candidate=theirs):
            return None
        some = ", ".join(norms[:3]) + (f" and {len(norms) - 3} more" if len(norms) > 3 else "")
        return Explained(
            "training-mode",
            some,
            f"normalising by the batch as in training ({some}), the reference answers like the candidate on "
            f"{int(effect.covered.sum())} of {int(effect.failing.sum())} failing rows",
            "Call model.eval() before torch.onnx.export, and export again",
            covered=effect.covered,
            simplicity=1,
        )


def _by_batch_statistics(module: Any, norms: Sequence[str]) -> Any:
    try:
        twin = copy.deepcopy(module)
    except Exception:  # noqa: BLE001 - modules of users raise anything; without a copy there is no experiment
        return None
    parts = dict(twin.named_modules())
    for name in norms:
        # Without statistics of its own, a normalisation takes those of the batch, in eval mode too.
        parts[name].running_mean = parts[name].running_var = None
        parts[name].track_running_stats = False
    return twin


def _live(proto: ModelProto) -> list[NodeProto]:
    """The nodes that act as in training."""
    stored = edits.constants(proto.graph)
    return [node for node in proto.graph.node if _acts_as_in_training(node, stored, _opset(proto))]


def _opset(proto: ModelProto) -> int:
    return next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), 0)


def _acts_as_in_training(node: NodeProto, stored: dict[str, Any], opset: int) -> bool:
    if node.op_type == "Dropout":
        if opset < 7:
            return bool(edits.attribute(node, "is_test", 0) == 0)
        if opset < 12 or len(node.input) < 3 or not node.input[2]:
            return False
        given = stored.get(node.input[2])
        return given is None or bool(given.reshape(-1)[0])
    if node.op_type == "BatchNormalization":
        if opset < 7:
            return bool(edits.attribute(node, "is_test", 0) == 0)
        if opset < 14:
            return len(node.output) > 1
        return bool(edits.attribute(node, "training_mode", 0) == 1)
    return False


def _at_rest(proto: ModelProto, live: Sequence[NodeProto]) -> ModelProto:
    """The graph with these nodes acting as in inference."""
    changed = edits.copied(proto)
    names = {node.name for node in live}
    outputs = {value.name for value in changed.graph.output}
    for node in changed.graph.node:
        if node.name not in names:
            continue
        if node.op_type == "Dropout":
            edits.set_attribute(node, "is_test", 1 if _opset(proto) < 7 else None)
            del node.input[2:]
        else:
            old = _opset(proto)
            edits.set_attribute(node, "training_mode", 0 if old >= 14 else None)
            edits.set_attribute(node, "is_test", 1 if old < 7 else None)
            kept = [name for name in node.output[1:] if name in outputs]
            if not kept:
                del node.output[1:]
    return changed


EXTENSION = TrainingMode()
