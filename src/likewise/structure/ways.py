"""How a reference comes to its answer, as far as its object tells without being asked."""

from __future__ import annotations

import re

from likewise.cases import Case

_TREES = re.compile(r"Tree|Forest|Boost|LGBM|XGB")


def decided_by_trees(case: Case) -> bool:
    """Is the last estimator of the reference a tree, or many of them?"""
    if case.framework("reference") in ("xgboost", "lightgbm", "catboost"):
        return True
    model = case.native("reference")
    if model is None or case.framework("reference") != "sklearn":
        return False
    from likewise.estimators.views import innermost

    return _TREES.search(type(innermost(model)).__name__) is not None
