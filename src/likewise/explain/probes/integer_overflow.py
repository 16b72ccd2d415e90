"""An integer of the graph is larger than its type holds, and wraps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.data import Array
from likewise.explain import experiment
from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Change
from likewise.models.onnx import edits, widen

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


UINT8, INT8, UINT16, INT16, INT32, INT64, UINT32 = 2, 3, 4, 5, 6, 7, 12
NARROW = frozenset({UINT8, INT8, UINT16, INT16, INT32, UINT32})


class IntegerOverflow:
    """Compute the same graph with 64-bit integers, and look for the values that did not fit before."""

    causes = ("integer-overflow",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return case.graph() is not None and not case.comparison.quantized_nodes

    def test(self, case: Case) -> Sequence[Explained]:
        proto = case.editable()
        types = case.tensor_types()
        made = {name for node in (() if proto is None else proto.graph.node) for name in node.output}
        narrow = [name for name, kind in types.items() if kind in NARROW and name in made]
        if proto is None or not narrow:
            return []
        plan = widen.Widening(types, NARROW, INT64, narrow_ops=frozenset())
        found = widen.runnable(proto, plan)
        if found is None:
            return []
        wide, _ = found
        effect = experiment.run(case, Change(target=wide))
        if effect is None or not effect.explains:
            return []
        culprit = self._wrapping(case, proto, wide, narrow, types, effect.covered)
        if culprit is None:
            return []
        node, largest, kind = culprit
        return [
            Explained(
                "integer-overflow",
                edits.place(node),
                f"its results reach {largest:,}, beyond {kind}, and wrap; with 64-bit integers the candidate agrees "
                f"with the reference on {int(effect.covered.sum())} of {int(effect.failing.sum())} failing rows",
                "Convert to int64 (or a float) before this node, and export again",
                covered=effect.covered,
                simplicity=1,
            )
        ]

    def _wrapping(
        self,
        case: Case,
        proto: ModelProto,
        wide: ModelProto,
        narrow: list[str],
        types: dict[str, int],
        rows: Array,
    ) -> tuple[NodeProto, int, str] | None:
        """The first node whose result does not fit, the result furthest from zero, and the type."""
        from onnx import helper

        widened = {name: INT64 if name in narrow else kind for name, kind in types.items()}
        seen = experiment.seen_inside(case, "candidate", wide, narrow, np.flatnonzero(rows)[:256], types=widened)
        for node in proto.graph.node:
            for name in node.output:
                values = None if seen is None or name not in narrow else seen.get(name)
                if values is None or not values.size:
                    continue
                dtype = helper.tensor_dtype_to_np_dtype(types[name])
                limits = np.iinfo(dtype)
                if values.min() < limits.min or values.max() > limits.max:
                    largest = int(values.max()) if values.max() > limits.max else int(values.min())
                    return node, largest, str(dtype)
        return None


EXTENSION = IntegerOverflow()
