"""ONNX's own backend suite through the gate, beside an oracle that shares no code with it.

A part of the cases here; all of them by `make conformance`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import likewise
from conformance import backend
from likewise import Outcome

STEP = 1 if os.environ.get("LIKEWISE_CONFORMANCE") == "all" else 24
MOST_UNDECIDED = 0.02
"""The share of the cases decided by the oracle that the gate may leave undecided."""

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[backend.Case, Path, bool]]:
    """The cases that the oracle decides, written to files."""
    place = tmp_path_factory.mktemp("backend")
    some = [(case, backend.decide(case)) for case in backend.cases()[::STEP]]
    return [(case, case.written(place), found) for case, found in some if found is not None]


def outcome(recorded: Path, model: Path, data: Path) -> likewise.Report:
    return likewise.check(str(recorded), str(model), str(data), explain=False)


def test_no_case_is_decided_wrongly_and_few_are_left_open(decided: list[tuple[backend.Case, Path, bool]]) -> None:
    assert len(decided) > (1500 if STEP == 1 else 50)
    passed, failed, undecided = [], [], []
    for case, folder, agrees in decided:
        found = outcome(folder, folder / "model.onnx", folder).outcome
        if found is Outcome.INCONCLUSIVE:
            undecided.append(case.name)
        elif found is Outcome.PASS and not agrees:
            passed.append(case.name)
        elif found is Outcome.FAIL and agrees:
            failed.append(case.name)
    assert not passed, f"false passes: {passed}"
    assert not failed, f"false failures: {failed}"
    assert len(undecided) <= MOST_UNDECIDED * len(decided), f"undecided: {undecided}"


def test_no_mutated_answer_passes_in_silence(decided: list[tuple[backend.Case, Path, bool]], tmp_path: Path) -> None:
    silent, tried = [], set()
    for case, folder, agrees in decided:
        if not agrees:
            continue
        for what, outputs in mutations(case.sets[0][1]):
            changed = tmp_path / "changed"
            shutil.rmtree(changed, ignore_errors=True)
            written(case, outputs, changed)
            report = outcome(changed, folder / "model.onnx", changed)
            told = {finding.code for finding in report.verdict.findings}
            # Values decide the verdict; another type or rank of equal values has to be told.
            if report.passed and not (what in ("dtype", "rank") and told & {"dtype-mismatch", "rank-mismatch"}):
                silent.append(f"{case.name}: {what}")
            tried.add(what)
    assert not silent, silent
    assert tried == {"element", "nan", "swap", "transpose", "missing", "extra", "dtype", "rank"}


def written(case: backend.Case, outputs: tuple[Any, ...], folder: Path) -> None:
    """The case with other recorded outputs, one data set of it."""
    backend.Case(case.name, case.model, ((case.sets[0][0], ()),)).written(folder.parent)
    shutil.move(folder.parent / case.name, folder)
    for index, value in enumerate(outputs):
        array = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
        name = case.model.graph.output[index].name if index < len(case.model.graph.output) else "another"
        proto = numpy_helper.from_array(array, name)
        (folder / "test_data_set_0" / f"output_{index}.pb").write_bytes(proto.SerializeToString())


def mutations(outputs: tuple[Any, ...]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """What may happen to an answer between two models, each in the first output that it can happen to."""
    arrays = [numpy_helper.to_array(o) if isinstance(o, onnx.TensorProto) else o for o in outputs]
    if not all(isinstance(array, np.ndarray) and array.dtype.kind in "biuf" for array in arrays):
        return
    first = arrays[0]
    if first.size:
        yield "element", (_other(first), *arrays[1:])
    if first.size and first.dtype.kind == "f" and not np.isnan(first.ravel()[-1]):
        yield "nan", (_with_last(first, np.nan), *arrays[1:])
    if len(arrays) > 1 and first.shape == arrays[1].shape and not backend.alike(first, arrays[1]):
        yield "swap", (arrays[1], first, *arrays[2:])
    if first.ndim > 1 and not backend.alike(first, np.swapaxes(first, -1, -2)):
        yield "transpose", (np.ascontiguousarray(np.swapaxes(first, -1, -2)), *arrays[1:])
    if len(arrays) > 1:
        yield "missing", tuple(arrays[:-1])
    yield "extra", (*arrays, np.zeros(3, np.float32))
    if not (first.dtype.kind == "f" and first.dtype.itemsize == 8):
        yield "dtype", (first.astype(np.uint8 if first.dtype.kind == "b" else np.float64), *arrays[1:])
    yield "rank", (first[None], *arrays[1:])


def _other(array: Any) -> Any:
    last = array.ravel()[-1]
    if array.dtype.kind == "b":
        return _with_last(array, not last)
    return _with_last(array, 1 if not np.isfinite(last) or abs(last) < 0.5 else 0)


def _with_last(array: Any, value: Any) -> Any:
    changed = array.copy()
    changed.reshape(-1)[-1] = value
    return changed
