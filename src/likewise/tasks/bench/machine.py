"""The machine a measurement was made on, and what else it was doing."""

from __future__ import annotations

import os
import platform
import sys
from importlib import metadata
from typing import Any

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
LIBRARIES = ("likewise", "numpy", "onnxruntime", "scikit-learn", "torch", "xgboost", "lightgbm", "catboost")


def load() -> float | None:
    """How many processes wanted to run in the last minute."""
    try:
        return round(os.getloadavg()[0], 2)
    except (OSError, AttributeError):
        return None


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe(*, load_before: float | None) -> dict[str, Any]:
    """What a reader needs to judge the figures."""
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "model": _processor(),
        "cores": cores(),
        "load_average": {"before": load_before, "after": load()},
        "environment": {name: os.environ[name] for name in THREADS if name in os.environ},
        "python": sys.version.split()[0],
        "versions": {name: found for name in LIBRARIES if (found := _version(name)) is not None},
    }


def warnings(load_before: float | None) -> tuple[str, ...]:
    """What makes the figures less certain."""
    if load_before is None or load_before < 0.5 * cores():
        return ()
    return (
        f"the machine was busy (load {load_before:g} on {cores()} cores): trust the ratios, not the absolute times",
    )


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
