"""Faults in scikit-learn models of nested estimators: one nested part is another one in the file.

Most are planted in a copy of the model before it is exported, as a part that was fitted again or read from an older
file would be; the others in the graph.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
from sklearn.base import is_classifier

from locate_faults.corpus import WORDS, Built, beyond, truth_of
from locate_faults.estimators import CONSTRUCTIONS
from locate_faults.slips import Construction, Slip, targets


def fitted(case: Construction) -> tuple[Any, pd.DataFrame]:
    rows = case.rows()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return case.make().fit(rows, targets()[case.target]), rows


def export(model: Any, rows: pd.DataFrame, path: Path) -> onnx.ModelProto:
    import likewise

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        likewise.export(model, rows, path, check=False)
    return onnx.load(str(path))


def ask(path: Path, rows: pd.DataFrame) -> list[np.ndarray]:
    """The file's answers by plain onnxruntime: one input a column, or all of them as a matrix."""
    import onnxruntime as ort

    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    taken = session.get_inputs()
    if len(taken) == 1 and len(rows.columns) > 1:
        kind = np.float64 if "double" in taken[0].type else np.float32
        return session.run(None, {taken[0].name: rows.to_numpy(kind)})
    feeds = {}
    for one in taken:
        value = rows[[one.name]].to_numpy()
        kind = {"tensor(string)": object, "tensor(double)": np.float64, "tensor(float)": np.float32}.get(one.type)
        feeds[one.name] = value.astype(kind) if kind else value
    return session.run(None, feeds)


def makers(store: Any) -> Iterator[tuple[str, Callable[[Path], Built]]]:
    for case in CONSTRUCTIONS:
        for slip in case.slips:
            yield f"{case.name}-{slip.name}", partial(plant, case, slip)
    for case in CONSTRUCTIONS[::3]:
        yield f"clean-{case.name}", partial(plant, case, None)


def plant(case: Construction, slip: Slip | None, place: Path) -> Built:
    """The model as a joblib file, its rows, and the file that differs from a sound export by one slip."""
    import joblib

    model, rows = fitted(case)
    joblib.dump(model, place / "model.joblib")
    rows.to_parquet(place / "rows.parquet")
    sound = export(model, rows, place / "sound.onnx")
    expected = ask(place / "sound.onnx", rows)
    if not is_classifier(model) and hasattr(model, "predict") and case.name != "isolation":
        own = np.asarray(model.predict(rows), float)
        assert not beyond([own.reshape(len(rows), -1)], [np.asarray(expected[0]).reshape(len(rows), -1)]), "unsound"
    elif is_classifier(model) and case.target != "labels":
        wrong = (np.asarray(model.predict(rows)).astype(str) != np.asarray(expected[0]).astype(str)).mean()
        assert wrong < 0.01, f"unsound: {wrong}"
    path = place / "candidate.onnx"
    paths = str(place / "model.joblib"), str(path), str(place / "rows.parquet")
    if slip is None:
        (place / "sound.onnx").rename(path)
        return Built(f"clean-{case.name}", "clean", *paths)
    if slip.model is not None:
        other = copy.deepcopy(model)
        slip.model(other)
        faulty = export(other, rows, path)
    else:
        assert slip.file is not None
        faulty = copy.deepcopy(sound)
        slip.file(faulty)
        onnx.save(faulty, str(path))
    failing = beyond(expected, ask(path, rows))
    assert failing, f"{case.name}-{slip.name}: no row is beyond the tolerance"
    truth = truth_of(sound, faulty)
    if len(truth.nodes) > 12:  # names have moved: the place is told by the model's own names
        truth.nodes.clear()
        truth.tensors.clear()
    return Built(
        f"{case.name}-{slip.name}", "scikit-learn", *paths, slip.word, (*WORDS[slip.word], *slip.also),
        tuple(sorted(truth.nodes)), tuple(sorted(truth.tensors)), slip.tells, {},
        f"{slip.word} in a part of {type(model).__name__}, reference scikit-learn",
    )  # fmt: skip
