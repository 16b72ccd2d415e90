"""Export a small network to ONNX and verify that the file answers like the network, at several batch sizes.

python verify_export.py             # ✓, exit 0
python verify_export.py --broken    # what a failure looks like: ✗, exit 1
"""

from __future__ import annotations

import argparse
import copy
import logging
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

import likewise

ABS_TOL, REL_TOL = 1e-4, 1e-3
BATCHES = (1, 2, 4, 16, 100)


class Network(nn.Module):
    """Small images in, three scores out."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
        )
        self.head = nn.Sequential(nn.Linear(128, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, 3))

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(pixels))


def export(network: nn.Module, path: Path) -> None:
    """What most projects have in a script of their own."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sample = torch.zeros(2, 3, 12, 12)
        rows = {0: torch.export.Dim("batch")}
        torch.onnx.export(network, (sample,), path, dynamo=True, dynamic_shapes=(rows,), verbose=False)


def verify(network: nn.Module, path: Path) -> bool:
    """One test a batch size; True if all pass."""
    rng = np.random.default_rng(0)
    reports = []
    for size in BATCHES:
        pixels = rng.normal(size=(size, 3, 12, 12)).astype(np.float32)
        report = likewise.check(
            network, path, {"pixels": pixels}, abs_tol=ABS_TOL, rel_tol=REL_TOL, batch_size=size, batch_sizes=()
        )
        reports.append(report)
        print(f"{'✓' if report else '✗'} input {pixels.shape}: {errors([report])}")
        if not report:
            show_divergence(report)
    print(f"over all {len(reports)} tests: {errors(reports)}; allowed {ABS_TOL:g} + {REL_TOL:g}·|reference|")
    return all(reports)


def errors(reports: list[likewise.Report]) -> str:
    """The largest differences of all outputs."""
    measures = [output.measures for report in reports for output in report.comparison.outputs]
    if not measures:
        return "nothing could be compared"
    absolute, relative = (max(found[name] for found in measures) for name in ("max_abs_diff", "max_rel_diff"))
    return f"absolute error {absolute:.2e}, relative error {relative:.2e}"


def show_divergence(report: likewise.Report) -> None:
    """The headline, and the rows that differ most with the answers of both sides."""
    print(f"    DIVERGES: {report.verdict.headline}")
    for output in report.comparison.outputs:
        for row in output.details["worst_rows"]["rows"][:2]:
            print(
                f"    row {row['row']} of {output.name}: {rounded(row['reference'])} became {rounded(row['candidate'])}"
            )


def rounded(answer: list[float]) -> list[float]:
    return [round(value, 4) for value in answer]


def main() -> int:
    parser = argparse.ArgumentParser(description="Export a small network and verify the export.")
    parser.add_argument("--broken", action="store_true", help="export other weights than those of the network")
    broken = parser.parse_args().broken
    torch.manual_seed(0)
    network = Network().eval()
    exported = copy.deepcopy(network)
    if broken:
        # The file of last week: one bias has been trained further since.
        with torch.no_grad():
            exported.head[-1].bias[1] += 0.02
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.onnx"
        export(exported, path)
        agrees = verify(network, path)
    print("✓ the export answers like the network" if agrees else "✗ the export does not answer like the network")
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
