"""The graph is right, and what runs it is not: its optimiser, an operator, dice that it throws, or its mode.

Also operators that frameworks do not agree about (an approximation, a way of rounding, a mode of resizing), models
that act as in training, and models that answer differently each time they are asked the same.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Array
from likewise.contracts.report import Place
from likewise.data.cells import listed
from likewise.explain import experiment, rounding, trace
from likewise.explain.case import Case, Explained, Remedy, probe
from likewise.explain.experiment import ENOUGH, Change, Effect, Trial
from likewise.explain.wider import by_the_standard
from likewise.models.onnx import edits, rewrites
from likewise.models.onnx.rewrites import Alternative
from likewise.models.onnx.walk import RANDOM
from likewise.models.torch import inside

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

SIDES = ("candidate", "reference")

PASSES = (
    "ConstantFolding", "ConstantFoldingDQ", "ConstantSharing", "CommonSubexpressionElimination",
    "CastElimination", "CastChainElimination", "RemoveDuplicateCastTransformer", "NoopElimination",
    "EliminateIdentity", "EliminateSlice", "EliminateDropout", "ExpandElimination", "UnsqueezeElimination",
    "PreShapeNodeElimination", "DivMulFusion", "NotWhereFusion", "FuseReluClip", "LabelEncoderFusion",
    "ConvAddFusion", "ConvBNFusion", "ConvMulFusion", "Pad_Fusion", "MatMul_BatchNormalization_Fusion",
    "GemmSumFusion", "GemmTransposeFusion", "GemmActivationFusion", "MatMulAddFusion", "MatMulScaleFusion",
    "MatmulTransposeFusion", "MatMulActivationFusion", "ConvActivationFusion", "ConvAddActivationFusion",
    "ReshapeFusion", "GatherToSliceFusion", "GatherSliceToSplitFusion", "SliceConcatToSpaceToDepthFusion",
    "GeluFusionL1", "GeluFusionL2", "BiasGeluFusion", "FastGeluFusion", "QuickGeluFusion", "GeluApproximation",
    "LayerNormFusionL1", "LayerNormFusionL2", "SimplifiedLayerNormFusion", "SkipLayerNormFusion",
    "BiasSkipLayerNormFusion", "EmbedLayerNormFusion", "AttentionFusion", "GroupQueryAttentionFusion",
    "GroupQueryAttentionPreNormFusion", "BiasSoftmaxFusion", "BiasDropoutFusion",
    "DynamicQuantizeMatMulFusion", "MatMulIntegerToFloatFusion", "MatMulNBitsFusion", "DQMatMulNBitsFusion",
    "MatMulNBitsMlpFusion", "MatMulNBitsQkvFusion", "WeightBiasQuantization", "WhereDummyDq",
    "DoubleQDQPairsRemover", "EnsureUniqueDQForNodeUnit", "QDQPropagationTransformer", "QDQS8ToU8Transformer",
    "Avx2WeightS8ToU8Transformer", "QDQSelectorActionTransformer", "QDQFinalCleanupTransformer",
    "ClipQuantRewrite", "ReluQuantRewrite", "TransposeOptimizer", "TransposeOptimizer_CPUExecutionProvider",
    "NchwcTransformer", "NhwcTransformer", "GqaValueLayoutTransformer", "CastFloat16Transformer",
    "FuseFp16InitializerToFp32NodeTransformer", "FreeDimensionOverrideTransformer",
)  # fmt: skip
"""The passes of ONNX Runtime's optimiser, as its option `disabled_optimizers` calls them."""

COLLECTIONS = ("Level1_RuleBasedTransformer", "Level2_RuleBasedTransformer")
"""Passes that are made of several of the others, for what has no name here."""

LOCAL_ERROR = 1e-4
"""An operator is wrong if it differs from the standard by more than this part of its largest value."""

APPROXIMATED = {"Gelu", "FastGelu", "QuickGelu", "Erf", "Tanh", "Sigmoid", "Exp", "Softmax", "LogSoftmax", "Softplus"}
"""Operators that are computed by formulas of limited accuracy."""

MOST_ALTERNATIVES, PATIENCE = 80, 0.15
"""Other meanings of operators that are tried, and the part of the time left that this may take."""

LEFT = 0.2
"""The part of the difference that the right meaning may leave: rounding, and nothing else."""

MOST_NODES = 24
"""Nodes in training mode that are switched one at a time."""

REPEATS, ROWS = 4, 512
"""How often a model is asked the same, and about how many rows."""

EVAL = "Call model.eval() before torch.onnx.export, and export again"


@probe(
    "runtime-optimization", "operator-semantics", "approximation", when=lambda case: case.graph() is not None, slow=True
)
def runtime(case: Case) -> Explained | None:
    """Run without the optimiser, then with single passes off; run by the standard's own evaluator."""
    effect = experiment.unoptimised(case)
    return _optimiser(case, effect) if effect is not None and effect.explains else _wrong_operator(case)


@probe(
    "approximation", "operator-semantics", "operator-attribute", when=lambda case: case.graph() is not None, slow=True
)
def operators(case: Case) -> Explained | None:
    """Let the nodes of one operator do what else they could have been meant to do: all of them, then one at a time."""
    proto = case.editable()
    if proto is None:
        return None
    kinds: dict[str, list[Alternative]] = {}
    epsilons = inside.epsilons_of(case.native("reference")) if case.framework("reference") == "torch" else {}
    for found in rewrites.alternatives(proto, case.tensor_types()):
        # Another epsilon may do nearly the same: what the reference has is known.
        if found.attribute != "epsilon" or not epsilons or found.value in epsilons.values():
            kinds.setdefault(found.kind, []).append(found)
    together = [{entry.node: entry for entry in group} for group in kinds.values()]
    alone = [{entry.node: entry} for group in kinds.values() if len(group) > 1 for entry in group]
    best: tuple[Effect, Mapping[str, Alternative]] | None = None
    for chosen in experiment.searching(case, [*together, *alone][:MOST_ALTERNATIVES], patience=PATIENCE):
        try:
            change = Change(target=rewrites.changed(proto, chosen))
        except (ValueError, IndexError, KeyError):
            continue
        effect = experiment.run(case, change, left=LEFT)
        if effect is not None and effect.explains and (best is None or effect.share > best[0].share):
            best = effect, chosen
    if best is None:
        return None
    effect, meant = best
    concerned = experiment.telling(
        case, list(meant), lambda name: Change(target=rewrites.changed(proto, {name: meant[name]}))
    )
    return _other_meaning(proto, effect, {name: meant[name] for name in concerned})


@probe("training-mode")
def training_mode(case: Case) -> Explained | None:
    """Switch the layers that act as in training to inference, one side at a time."""
    return next((found for side in SIDES if (found := _in_training(case, side))), None) or _by_the_batch(case)


@probe("nondeterminism")
def nondeterminism(case: Case) -> Sequence[Explained]:
    """Ask both models the same several times."""
    found = []
    trial = Trial.few(case, ROWS)
    for side in SIDES:
        random = _random_nodes(case, side)
        changes = case.framework(side) != "recorded" and (random or experiment.answers_vary(case, side))
        apart = _answered_otherwise(trial, side) if changes else None
        if apart is None:
            continue
        # What is answered differently now need not fail now.
        effect = Effect(apart, trial.failing)
        if effect.share < ENOUGH:
            continue
        node = trace.place_of(random[0]) if len(random) == 1 else Place("")
        details = (str(node),) if node.name else ()
        found.append(
            Explained(
                "nondeterminism",
                Place(side, details, side, nodes=node.nodes, tensors=node.tensors),
                f"asked {REPEATS} times about the same rows, the {side} does not always answer alike: on {effect.told} "
                "it gave other answers than when they failed",
                "Export it for inference (model.eval()), or fix the seed of what is random in it",
                covered=trial.mask(effect.covered),
                share=effect.share,
                simplicity=2,
            )
        )
    return found


def _optimiser(case: Case, effect: Effect) -> Explained:
    passes = _passes_at_fault(case, effect)
    told = ", ".join(passes) or "graph optimisation"
    switch = f"disabled_optimizers={','.join(passes)}" if passes else "optimization=disable"
    how = f"InferenceSession(..., disabled_optimizers={list(passes)})" if passes else "ORT_DISABLE_ALL"
    return effect.explained(
        "runtime-optimization",
        Place(told),
        f"without graph optimisation the candidate agrees with the reference on {effect.told}"
        + (f"; so it does with {told} alone switched off" if passes else ""),
        Remedy(done=f"Deploy with it switched off ({how}), and check it that way: --candidate-option {switch}"),
        simplicity=2 if len(passes) == 1 else 3,
        fixes=Change(options=dict([switch.split("=", 1)])).fixes(f"{told} switched off"),
    )


def _passes_at_fault(case: Case, effect: Effect) -> tuple[str, ...]:
    """The fewest passes that have to be off, found by halving; none where switching them off is not enough."""

    def cures(passes: Sequence[str]) -> bool:
        tried = experiment.run(case, Change(options={"disabled_optimizers": ",".join(passes)}))
        return tried is not None and tried.explains and tried.share >= experiment.AS_MUCH * effect.share

    every = next((every for every in (PASSES, (*COLLECTIONS, *PASSES)) if cures(every)), ())
    return experiment.smallest(every, cures, alone=0) if every else ()


def _wrong_operator(case: Case) -> Explained | None:
    """Does the standard's own evaluator agree with the reference, where the runtime does not?"""
    trial = Trial.few(case)
    answers = by_the_standard(trial)
    effect = None if answers is None else trial.effect(candidate=answers)
    node = _first_wrong_node(case, trial) if effect is not None and effect.explains else None
    if effect is None or node is None:
        return None
    place = trace.place_of(node)
    return Explained(
        "approximation" if node.op_type in APPROXIMATED else "operator-semantics",
        place,
        f"run by onnx's own evaluator, the candidate agrees with the reference on {effect.told}: the graph is right, "
        f"and ONNX Runtime computes {place} differently",
        "Report it to ONNX Runtime, and export with other operators (another opset) until it is fixed",
        covered=trial.mask(effect.covered),
        share=effect.share,
        simplicity=2,
    )


def _first_wrong_node(case: Case, trial: Trial) -> NodeProto | None:
    """The first node that the runtime computes differently although it is given the same."""
    proto = case.editable()
    if proto is None:
        return None
    rows, types = trial.positions[trial.failing], case.tensor_types()
    names = [name for node in proto.graph.node for name in node.output if name in types]
    ours = trace.seen_inside(case, "candidate", proto, names, rows)
    theirs = trace.seen_inside(case, "candidate", proto, names, rows, {"runtime": "reference"})
    if ours is None or theirs is None:
        return None
    known = ours.keys() & theirs.keys()
    if any(ours[name].shape != theirs[name].shape for name in known):
        return None
    wrong = {name for name in known if not _same(ours[name], theirs[name])}
    first = next((node for node in proto.graph.node if wrong.intersection(node.output)), None)
    return None if first is None or wrong.intersection(first.input) else first


def _same(mine: Array, theirs: Array) -> bool:
    if mine.dtype.kind not in "iufb" or theirs.dtype.kind not in "iufb":
        return bool(np.array_equal(mine.astype(str), theirs.astype(str)))
    wide, other = mine.astype(np.float64), theirs.astype(np.float64)
    scale = float(np.max(np.abs(other[np.isfinite(other)]), initial=0.0))
    return bool(np.allclose(wide, other, rtol=0, atol=LOCAL_ERROR * scale, equal_nan=True))


def _other_meaning(proto: ModelProto, effect: Effect, chosen: Mapping[str, Alternative]) -> Explained:
    nodes = [node for node in proto.graph.node if node.name in chosen]
    first = next(iter(chosen.values()))
    place = trace.place_of(*nodes)
    attribute = (first.attribute,) if first.cause == rewrites.ATTRIBUTE else ()
    return effect.explained(
        first.cause,
        Place(str(place), attribute, path=place.path, nodes=place.nodes),
        f"with {first.told} in {place}, the candidate agrees with the reference on {effect.told}",
        "Make both compute it in one way, and export again: change the reference's layer, or this node of the graph",
        fixes=Change(target=rewrites.changed(proto, chosen)).fixes(f"{first.told} in {place}"),
    )


def _in_training(case: Case, side: str) -> Explained | None:
    """Layers of a graph that act as in training, if it agrees with them switched to inference."""
    proto = case.editable(side)
    live = [] if proto is None else _live(proto)
    if proto is None or not live:
        return None
    effect = experiment.run(case, Change(side, target=_at_rest(proto, live)))
    if effect is None or not effect.explains:
        return None
    alone = experiment.first(
        case,
        live if 1 < len(live) <= MOST_NODES else (),
        lambda trial, node: trial.run(Change(side, target=_at_rest(proto, [node]))),
        enough=experiment.AS_MUCH * effect.share,
    )
    place = trace.place_of(*(live if alone is None else alone[:1]), side=side)
    return effect.explained(
        "training-mode",
        place if side == "candidate" else Place(f"{place} of the reference", side=side, nodes=place.nodes),
        f"with {place} switched to inference the {side} agrees with the other on {effect.told}",
        EVAL,
        simplicity=1,
        fixes=Change(side, target=_at_rest(proto, live)).fixes(f"{place} switched to inference"),
    )


def _by_the_batch(case: Case) -> Explained | None:
    """Was batch norm written out as it acts in training? Then the reference does so too, made to."""
    torch, module = sys.modules.get("torch"), case.native("reference")
    if torch is None or case.framework("reference") != "torch" or not isinstance(module, torch.nn.Module):
        return None
    norms = [name for name, part in module.named_modules() if getattr(part, "running_mean", None) is not None]
    # Running an example in training, an exporter also moves the statistics: at rest the candidate is none the wiser.
    proto = case.editable()
    live = {} if proto is None else {edits.module_of(node): node.name for node in _live(proto)}
    named = [name for name in norms if name in live]
    choices = [tuple(norms), tuple(named), *((name,) for name in norms[:MOST_NODES])]
    for some in experiment.searching(case, dict.fromkeys(choice for choice in choices if choice), patience=PATIENCE):
        twin = _by_batch_statistics(case, module, some)
        # The rows of a call count: both are asked about all of them at once.
        changes = Change("reference", target=twin, whole=True), Change(whole=True)
        effect = None if twin is None else experiment.run(case, *changes)
        if effect is None or not effect.explains:
            continue
        told = listed(some, trace.MOST_NAMED)
        nodes = tuple(live[name] for name in some if name in live)
        return effect.explained(
            "training-mode",
            Place(told, path=some[0] if len(some) == 1 else "", nodes=nodes),
            f"normalising by the batch as in training ({told}), the reference answers like the candidate on "
            f"{effect.told}",
            EVAL,
            simplicity=1,
        )
    return None


def _by_batch_statistics(case: Case, module: Any, norms: Sequence[str]) -> Any:
    twin = rounding.copied_module(module, case.largest_copy)
    if twin is not None and hasattr(twin, "graph"):
        return inside.in_training(twin, frozenset(norms))
    parts = {} if twin is None else dict(twin.named_modules())
    for name in norms if parts else ():
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


def _acts_as_in_training(node: NodeProto, stored: Mapping[str, Array], opset: int) -> bool:
    if node.op_type not in ("Dropout", "BatchNormalization"):
        return False
    if node.op_type == "BatchNormalization":
        return len(node.output) > 1 if opset < 14 else bool(edits.attribute(node, "training_mode", 0) == 1)
    if opset < 12 or len(node.input) < 3 or not node.input[2]:
        return False
    given = stored.get(node.input[2])
    return given is None or bool(given.reshape(-1)[0])


def _at_rest(proto: ModelProto, live: Sequence[NodeProto]) -> ModelProto:
    """The graph with these nodes acting as in inference."""
    changed, opset = edits.copied(proto), _opset(proto)
    names = {node.name for node in live}
    outputs = {value.name for value in changed.graph.output}
    for node in changed.graph.node:
        if node.name not in names:
            continue
        if node.op_type == "Dropout":
            del node.input[2:]
            continue
        edits.set_attribute(node, "training_mode", 0 if opset >= 14 else None)
        if not outputs.intersection(node.output[1:]):
            del node.output[1:]
    return changed


def _random_nodes(case: Case, side: str) -> list[NodeProto]:
    proto = case.graph(side)
    return [] if proto is None else [node for node in edits.all_nodes(proto.graph) if node.op_type in RANDOM]


def _answered_otherwise(trial: Trial, side: str) -> Array | None:
    """The rows that were answered differently before, of a model whose answers change from call to call."""
    case, before = trial.case, trial.reference if side == "reference" else trial.candidate
    asked = [given for _ in range(REPEATS) if (given := case.ask(side, trial.batch)) is not None]
    if len(asked) < REPEATS:
        return None
    changes = any(experiment.rows_apart(case, side, asked[0], again).any() for again in asked[1:])
    return np.any([experiment.rows_apart(case, side, before, again) for again in asked], axis=0) if changes else None


EXTENSIONS = (runtime, operators, training_mode, nondeterminism)
