"""What `likewise export` makes of everything that converts: `make exports`, or `python benchmarks/exports.py`.

Every estimator of scikit-learn that skl2onnx knows, as it comes and with `--double`, and torch modules of the atlas:
an export passes its own check, fails it with a cause, or ends in a sentence that names what to change. What passes in
double is held against the estimator once more, by a plain loop in ONNX Runtime: the answers are those of the estimator
within the rounding of the type in which they are given.

    --part sklearn            or torch
    --only KMeans             entries with this in their name

Ends with exit code 1 where an export ends in any other way.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import likewise
from likewise.errors import LikewiseError

ROUNDING = {np.dtype(np.float64): 1.5e-8, np.dtype(np.float32): 1e-5}
"""Of the largest answer, what sums in another order and digits that cancel may come to. What was worked out in float32
on the way is further off than the first."""

BRIEFLY = {"edge": "off", "explain_budget": 5}
"""How an export is checked here: the data, other batches and lengths, a short look for causes."""

PARTS = ("sklearn", "torch")


def entries(part: str) -> Iterator[tuple[str, Any]]:
    from conformance import atlas_sklearn, atlas_torch

    yield from ((case.name, case.make) for case in {"sklearn": atlas_sklearn, "torch": atlas_torch}[part].cases())


def tried(name: str, pair: Any, *, double: bool) -> tuple[str, str]:
    """How one export ends, in a word, and what is said of it."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        try:
            made = likewise.export(pair.reference, pair.data, path, double=double, **BRIEFLY, **pair.options)
        except LikewiseError as error:
            return ("told" if error.remedy else "untold"), str(error)
        report = made.report
        if report is None or not report.passed:
            causes = [str(diagnosis.cause) for diagnosis in report.diagnoses] if report is not None else []
            return "failed", f"{report.headline if report is not None else 'not checked'} {', '.join(causes)}"
        if not double:
            return "passed", ""
        far = beyond_rounding(pair, path)
        return ("beyond rounding", far) if far else ("passed", "")


def beyond_rounding(pair: Any, path: Path) -> str:
    """The first output whose numbers are further from the estimator's than rounding takes them, by a plain loop."""
    import onnxruntime as ort

    session = ort.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    rows = pair.data
    if hasattr(rows, "columns"):
        fed = {entry.name: rows[[entry.name]].to_numpy().astype(object) for entry in session.get_inputs()}
    else:
        types = {"tensor(double)": np.float64, "tensor(float)": np.float32, "tensor(int64)": np.int64}
        (entry,) = session.get_inputs()
        array = np.asarray(rows).astype(types.get(entry.type, object))
        fed = {entry.name: array[:, None] if len(entry.shape) > array.ndim else array}
    ours = pair.ask_reference(rows)
    theirs = session.run(None, fed)
    if len(ours) != len(theirs):
        return ""  # other outputs than those of the converter's own defaults: the gate's check has paired them
    for entry, one, other in zip(session.get_outputs(), ours, theirs, strict=True):
        one, other = np.asarray(one), np.asarray(other)
        if one.dtype.kind not in "fc" or other.dtype.kind != "f":
            continue
        size = max(1.0, float(np.abs(one[np.isfinite(one)]).max(initial=0.0)))
        room = ROUNDING[other.dtype] * size
        apart = float(np.nanmax(np.abs(one.reshape(other.shape) - other), initial=0.0))
        if not apart <= room:
            return f"{entry.name} ({other.dtype}) is {apart:.3g} away, {room:.3g} is rounding"
    return ""


def main() -> None:
    """Export one after the other, and count how that ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, help="one of the two")
    parser.add_argument("--only", default="", help="only those with this in their name")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    counted: Counter[tuple[str, str]] = Counter()
    for part in [chosen.part] if chosen.part else PARTS:
        for name, make in entries(part):
            if chosen.only not in name:
                continue
            try:
                pair = make()
            except Exception:  # noqa: BLE001 - what the converter itself refuses is not in question
                continue
            for double in (False, True) if part == "sklearn" else (False,):
                form = f"{part} in double" if double else part
                try:
                    ended, why = tried(name, pair, double=double)
                except Exception as error:  # noqa: BLE001 - it must not end in one
                    ended, why = "raised", f"{type(error).__name__}: {error}"
                counted[form, ended] += 1
                if ended != "passed":
                    print(f"{form:18} {ended:15} {name}: {' '.join(why.split())[:400]}", flush=True)
    for form in dict.fromkeys(form for form, _ in counted):
        told = ", ".join(f"{count} {ended}" for (one, ended), count in sorted(counted.items()) if one == form)
        print(f"{form}: {told}")
    sys.exit(1 if any(ended in ("raised", "untold", "beyond rounding") for _, ended in counted) else 0)


if __name__ == "__main__":
    main()
