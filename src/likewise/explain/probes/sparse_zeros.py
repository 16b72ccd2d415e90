"""A booster behind a sparse step takes zeros for missing values; its export is given the zeros."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from likewise.explain.case import Case, Explained
from likewise.explain.experiment import Change, Trial

BOOSTERS = ("XGB", "LGBM", "Booster", "CatBoost")


class SparseZeros:
    """Hand the last step of the reference its input dense, and see whether it then answers like the candidate."""

    causes = ("missing-value-handling",)
    needs_answers = True

    def plausible(self, case: Case) -> bool:
        return _pipeline(case) is not None

    def test(self, case: Case) -> Sequence[Explained]:
        from sklearn.pipeline import Pipeline
        from sklearn.preprocessing import FunctionTransformer

        pipeline = _pipeline(case)
        steps = [*pipeline.steps[:-1], ("dense", FunctionTransformer(_dense, accept_sparse=True)), pipeline.steps[-1]]
        effect = Trial.whole(case).run(Change("reference", target=Pipeline(steps)))
        if effect is None or not effect.explains:
            return []
        name, before = pipeline.steps[-1][0], pipeline.steps[-2][0]
        return [
            Explained(
                "missing-value-handling",
                f"{name} (after the sparse step {before!r})",
                f"step {before!r} gives a sparse matrix, in which {type(pipeline.steps[-1][1]).__name__} takes every "
                f"zero for missing; given the same matrix dense, the reference agrees with the candidate on "
                f"{int(effect.covered.sum()):,} of {int(effect.failing.sum()):,} failing rows",
                f"Make {before!r} dense (OneHotEncoder(sparse_output=False), ColumnTransformer(sparse_threshold=0)), "
                "fit again and export that",
                covered=effect.covered,
                simplicity=1,
            )
        ]


def _pipeline(case: Case) -> Any:
    """The reference, if it is a pipeline that ends in a booster; None otherwise."""
    model = case.native("reference")
    model = getattr(model, "best_estimator_", model)
    if "sklearn" not in sys.modules or not hasattr(model, "steps") or len(model.steps) < 2:
        return None
    return model if any(word in type(model.steps[-1][1]).__name__ for word in BOOSTERS) else None


def _dense(matrix: Any) -> Any:
    return matrix.toarray() if hasattr(matrix, "toarray") else matrix


EXTENSION = SparseZeros()
