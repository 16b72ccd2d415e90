"""Broken deployments with known causes, and sound ones: what explanations are scored on.

Written without looking at how explanations are found. A fault is *planted* (the export was edited, or the
wrong variant was exported) or *natural* (a converter or runtime does this by itself, with the versions of
constraints.txt). Nothing is fitted before it is asked for.
"""

from __future__ import annotations

from faults import controls, inputs, outputs, precision, refusals, runtime, steps, trees, unexplained, weights
from faults.registry import CONTROLS, FAULTS, UNEXPLAINED, Entry, Fault, named

_MODULES = (outputs, inputs, trees, weights, steps, precision, runtime, refusals)
FAMILIES = tuple(module.__name__.rpartition(".")[2] for module in _MODULES)

__all__ = ["CONTROLS", "FAMILIES", "FAULTS", "UNEXPLAINED", "Entry", "Fault", "controls", "named", "unexplained"]
