"""Pipelines are fitted and exported once a session."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib
import pytest
from fitted_pipelines import PIPELINES, Exported
from rederiving import Rederived

import data_only
import likewise


@dataclass(frozen=True)
class Checked:
    """A pipeline, its report from live objects, and the same figures by hand."""

    case: Exported
    report: likewise.Report
    by_hand: Rederived

    @property
    def outputs(self) -> dict[str, Any]:
        return {output.name: output for output in self.report.comparison.outputs}


@pytest.fixture(scope="session", params=sorted(PIPELINES))
def checked(request) -> Checked:
    case = PIPELINES[request.param]()
    # One call for all rows: the same call is then made by hand.
    options = {"preset": case.preset, "batch_size": len(case.frame), "explain": False}
    report = data_only.check(case.reference, case.candidate, case.frame, **options)
    return Checked(case, report, Rederived(case))


@pytest.fixture(scope="session")
def saved(checked, tmp_path_factory) -> tuple[Path, Path, Path]:
    """The same pipeline as the files a team would have: joblib (or ONNX), ONNX and parquet."""
    folder = tmp_path_factory.mktemp("saved")
    if isinstance(checked.case.reference, bytes):
        reference = folder / "reference.onnx"
        reference.write_bytes(checked.case.reference)
    else:
        reference = folder / "reference.joblib"
        joblib.dump(checked.case.reference, reference)
    candidate, data = folder / "candidate.onnx", folder / "rows.parquet"
    candidate.write_bytes(checked.case.candidate)
    checked.case.frame.to_parquet(data)
    return reference, candidate, data
