"""The graph is right, and what runs it is not: its optimiser, or one of its operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.data import Array
from likewise.explain import experiment
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Change, Effect, Trial
from likewise.models.onnx import edits

if TYPE_CHECKING:
    from onnx import NodeProto


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

SLOWEST = 10.0
"""Seconds that the standard's own evaluator may take for its rows."""

LOCAL_ERROR = 1e-4
"""An operator is wrong if it differs from the standard by more than this part of its largest value."""

APPROXIMATED = {"Gelu", "FastGelu", "QuickGelu", "Erf", "Tanh", "Sigmoid", "Exp", "Softmax", "LogSoftmax", "Softplus"}
"""Operators that are computed by formulas of limited accuracy."""


class Runtime:
    """Run without the optimiser, then with single passes off; run by the standard's own evaluator."""

    causes = ("runtime-optimization", "operator-semantics", "approximation")
    needs_answers = True
    slow = True

    def plausible(self, case: Case) -> bool:
        return case.graph() is not None

    def test(self, case: Case) -> Sequence[Explained]:
        effect = self._unoptimised(case)
        if effect is not None and effect.explains:
            return [self._optimiser(case, effect)]
        return self._operator(case)

    def _unoptimised(self, case: Case) -> Effect | None:
        return case.once(experiment.unoptimised)

    def _optimiser(self, case: Case, effect: Effect) -> Explained:
        passes = self._bisected(case, effect)
        told = ", ".join(passes) if passes else "graph optimisation"
        switch = (
            f"--candidate-option disabled_optimizers={','.join(passes)}"
            if passes
            else "--candidate-option optimization=disable"
        )
        evidence = (
            f"without graph optimisation the candidate agrees with the reference on {int(effect.covered.sum())} of "
            f"{int(effect.failing.sum())} failing rows"
        )
        if passes:
            evidence += f"; so it does with {told} alone switched off"
        return Explained(
            "runtime-optimization",
            told,
            evidence,
            f"Deploy with it switched off (InferenceSession(..., disabled_optimizers=[...])), and check so: {switch}",
            covered=effect.covered,
            simplicity=2 if passes and len(passes) == 1 else 3,
        )

    def _bisected(self, case: Case, effect: Effect) -> list[str]:
        """The fewest passes that have to be off, found by halving; none where switching them off is not enough."""

        def cures(passes: Sequence[str]) -> bool:
            tried = experiment.run(case, Change(options={"disabled_optimizers": ",".join(passes)}))
            return tried is not None and tried.explains and tried.share >= 0.9 * effect.share

        left = list(PASSES)
        if not cures(left):
            left = [*COLLECTIONS, *PASSES]
            if not cures(left):
                return []
        size = len(left) // 2
        while size:
            start = 0
            while start < len(left):
                fewer = left[:start] + left[start + size :]
                if fewer and cures(fewer):
                    left = fewer
                else:
                    start += size
            size //= 2
        return left

    def _operator(self, case: Case) -> list[Explained]:
        """Does the standard's own evaluator agree with the reference, where the runtime does not?"""
        options = {"runtime": "reference"}
        seconds = experiment.seconds_for(case, experiment.FEW, Change(options=options))
        if seconds is None or seconds > min(SLOWEST, case.seconds_left() / 3):
            return []
        positions = Trial.few(case).positions
        answers = case.ask_changed("candidate", options=options, batch=case.rows(positions))
        if answers is None:
            return []
        effect = Trial(case, positions).effect(candidate=answers)
        node = self._wrong_node(case, positions) if effect.explains else None
        if node is None:
            return []
        place = edits.place(node)
        return [
            Explained(
                "approximation" if node.op_type in APPROXIMATED else "operator-semantics",
                place,
                "run by onnx's own evaluator, the candidate agrees with the reference on "
                f"{int(effect.covered.sum())} of {int(effect.failing.sum())} failing rows: the graph is right, and "
                f"ONNX Runtime computes {place} differently",
                "Report it to ONNX Runtime, and export with other operators (another opset) until it is fixed",
                covered=Trial(case, positions).mask(effect.covered),
                share=effect.share,
                simplicity=2,
            )
        ]

    def _wrong_node(self, case: Case, positions: Array) -> NodeProto | None:
        """The first node that the runtime computes differently although it is given the same."""
        proto = case.editable()
        if proto is None:
            return None
        rows = positions[case.required.failing[positions]]
        types = case.tensor_types()
        names = [name for node in proto.graph.node for name in node.output if name in types]
        ours = experiment.seen_inside(case, "candidate", proto, names, rows)
        theirs = experiment.seen_inside(case, "candidate", proto, names, rows, {"runtime": "reference"})
        if ours is None or theirs is None:
            return None
        same: dict[str, bool] = {}
        for node in proto.graph.node:
            for name in node.output:
                mine, yours = ours.get(name), theirs.get(name)
                if mine is None or yours is None:
                    continue
                if mine.shape != yours.shape:
                    return None
                if mine.dtype.kind in "iufb" and yours.dtype.kind in "iufb":
                    wide, other = mine.astype(np.float64), yours.astype(np.float64)
                    scale = float(np.nanmax(np.abs(np.where(np.isfinite(other), other, 0)), initial=0.0))
                    same[name] = bool(np.allclose(wide, other, rtol=0, atol=LOCAL_ERROR * scale, equal_nan=True))
                else:
                    same[name] = bool(np.array_equal(mine.astype(str), yours.astype(str)))
            if any(not same.get(name, True) for name in node.output):
                return node if all(same.get(name, True) for name in node.input) else None
        return None


EXTENSION = Runtime()
