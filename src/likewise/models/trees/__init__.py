"""Tree ensembles of every framework in one form: read, walked, laid side by side, and written into a graph again."""

from __future__ import annotations


def thinkable(native: object) -> bool:
    """May there be trees in an open model? Of a graph its operators tell, and what reads trees need not be imported."""
    nodes = getattr(getattr(native, "graph", None), "node", None)
    return nodes is None or any(node.op_type.startswith("TreeEnsemble") for node in nodes)
