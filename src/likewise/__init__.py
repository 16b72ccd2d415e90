"""Does the model you are about to deploy give the same answers as the model you trained?

report = likewise.check(model, "model.onnx", test_data)
report.raise_for_verdict()
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from likewise.contracts.report import ParityError as ParityError
    from likewise.contracts.report import Report as Report
    from likewise.contracts.verdict import Outcome as Outcome
    from likewise.contracts.verdict import Policy as Policy
    from likewise.errors import LikewiseError as LikewiseError
    from likewise.models.environments.open import elsewhere as elsewhere
    from likewise.report import load as load
    from likewise.tasks.bench import bench as bench
    from likewise.tasks.bisect import bisect as bisect
    from likewise.tasks.check import check as check
    from likewise.tasks.check import explain as explain
    from likewise.tasks.export import export as export
    from likewise.tasks.fix import fix as fix
    from likewise.tasks.judge import judge as judge
    from likewise.tasks.noise import noise as noise
    from likewise.tasks.quantize import quantize as quantize
    from likewise.tasks.record import inspect as inspect
    from likewise.tasks.record import record as record
    from likewise.tasks.stress import stress as stress
    from likewise.tasks.verify import verify as verify

__version__ = "0.1.0"

_HOMES = {
    "LikewiseError": "likewise.errors",
    "Outcome": "likewise.contracts.verdict",
    "ParityError": "likewise.contracts.report",
    "Policy": "likewise.contracts.verdict",
    "Report": "likewise.contracts.report",
    "bench": "likewise.tasks.bench",
    "bisect": "likewise.tasks.bisect",
    "check": "likewise.tasks.check",
    "elsewhere": "likewise.models.environments.open",
    "explain": "likewise.tasks.check",
    "export": "likewise.tasks.export",
    "fix": "likewise.tasks.fix",
    "inspect": "likewise.tasks.record",
    "judge": "likewise.tasks.judge",
    "load": "likewise.report",
    "noise": "likewise.tasks.noise",
    "quantize": "likewise.tasks.quantize",
    "record": "likewise.tasks.record",
    "stress": "likewise.tasks.stress",
    "verify": "likewise.tasks.verify",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    # Imported when used, so that `import likewise` costs next to nothing.
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'likewise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


class _Door(ModuleType):
    """Two rooms are called as functions that people use: here `explain` and `judge` are always the functions."""

    def __setattr__(self, name: str, value: object) -> None:
        # The import system would put a room in the place of the function as soon as something in it is imported.
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Door
