"""Whether eight-bit weights are safe on this processor.

ONNX Runtime multiplies unsigned activations with signed weights. Without a dot-product instruction,
x86 adds two such products in 16 bits, where they can saturate: the result is wrong, not imprecise.
Seven-bit weights cannot saturate, anywhere, at the price of half the resolution.
"""

from __future__ import annotations

import platform
from pathlib import Path

DOT_PRODUCTS = ("avx512_vnni", "avx_vnni", "amx_int8")


def reduce_range(*, machine: str | None = None, cpuinfo: str | None = None) -> tuple[bool, str]:
    """Should weights have seven bits here? With the reason, as a sentence."""
    machine = (platform.machine() if machine is None else machine).lower()
    if machine in ("aarch64", "arm64"):
        kernels = "its dot-product kernels add" if "asimddp" in _flags(cpuinfo) else "its kernels add"
        return False, f"8-bit weights: this is an ARM processor, {kernels} products in 32 bits and cannot saturate"
    flags = _flags(cpuinfo)
    found = next((name for name in DOT_PRODUCTS if name in flags), None)
    if found is not None:
        return False, (
            f"8-bit weights: this processor has {found}, which does not saturate; "
            "for machines without VNNI give --reduce-range"
        )
    if not flags:
        return True, (
            "7-bit weights (reduce_range): it cannot be told whether this processor has VNNI, "
            "and without it 8-bit products can saturate"
        )
    return True, (
        "7-bit weights (reduce_range): this processor has no VNNI, and its 8-bit products can saturate; "
        "for machines with VNNI give --no-reduce-range"
    )


def _flags(cpuinfo: str | None) -> frozenset[str]:
    """The features the processor names, as Linux lists them; none where it does not."""
    if cpuinfo is None:
        try:
            cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return frozenset()
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    return frozenset(
        word for name, _, value in lines if name.strip().lower() in ("flags", "features") for word in value.split()
    )
