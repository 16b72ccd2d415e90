"""Does the model you are about to deploy give the same answers as the model you trained?

report = likewise.check(model, "model.onnx", test_data)
report.raise_for_verdict()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from likewise.benching import bench
    from likewise.contracts.judging import Outcome, Policy
    from likewise.contracts.reporting import ParityError, Report
    from likewise.errors import LikewiseError
    from likewise.noising import noise
    from likewise.shipping import export
    from likewise.shrinking import quantize
    from likewise.stressing import stress
    from likewise.verify import check, explain, inspect, judge, load, record

__all__ = [
    "LikewiseError",
    "Outcome",
    "ParityError",
    "Policy",
    "Report",
    "bench",
    "check",
    "explain",
    "export",
    "inspect",
    "judge",
    "load",
    "noise",
    "quantize",
    "record",
    "stress",
]
__version__ = "0.1.0"

_HOMES = {
    "LikewiseError": "likewise.errors",
    "Outcome": "likewise.contracts.judging",
    "ParityError": "likewise.contracts.reporting",
    "Policy": "likewise.contracts.judging",
    "Report": "likewise.contracts.reporting",
    "bench": "likewise.benching",
    "export": "likewise.shipping",
    "noise": "likewise.noising",
    "quantize": "likewise.shrinking",
    "stress": "likewise.stressing",
}


def __getattr__(name: str) -> Any:
    # Imported when used, so that `import likewise` costs next to nothing.
    if name in __all__:
        return getattr(import_module(_HOMES.get(name, "likewise.verify")), name)
    raise AttributeError(f"module 'likewise' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
