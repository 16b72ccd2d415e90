"""What a pair of models of the atlas is asked, and an oracle that decides it without any code of ours."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx

ABSOLUTE, RELATIVE = 1e-4, 1e-3
"""The rule of the gate's default preset, written down a second time on purpose."""

Ask = Callable[[Any], list[Any]]


@dataclass(frozen=True, slots=True)
class Pair:
    """A model and its export: the data for the gate, and the same as questions that each side is asked by itself.

    `scores` names the place among the outputs of the scores that a label, the first output, was made of.
    """

    reference: Any
    candidate: onnx.ModelProto
    data: Any
    questions: tuple[Any, ...]
    ask_reference: Ask
    ask_candidate: Ask
    scores: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Case:
    """One entry of the atlas: how the pair is made (raises where there is no conversion)."""

    name: str
    make: Callable[[], Pair]


@dataclass(frozen=True, slots=True)
class Decision:
    """Do both give the same answers? None where nobody can say; the largest difference, and a word about it."""

    agrees: bool | None
    largest: float = 0.0
    why: str = ""


def decide(pair: Pair) -> Decision:
    """Ask both models every question, and walk the values."""
    largest, why, differs = 0.0, "", False
    for question in pair.questions:
        try:
            ours, again = pair.ask_reference(question), pair.ask_reference(question)
        except Exception as error:  # noqa: BLE001 - the reference itself has no answer
            if question is not pair.questions[0]:
                continue  # what it refuses is no question
            return Decision(None, why=f"the reference does not answer: {_short(error)}")
        if not all(map(alike, ours, again)):
            return Decision(None, why="the reference answers differently each time")
        try:
            theirs = pair.ask_candidate(question)
        except Exception as error:  # noqa: BLE001 - whatever the runtime raises: it does not answer what the model does
            whole = question is pair.questions[0]
            return Decision(None if whole else False, math.nan, f"the export does not answer: {_short(error)}")
        if len(ours) != len(theirs):
            return Decision(False, math.nan, f"{len(theirs)} outputs for {len(ours)}")
        ties = near_ties(ours[pair.scores]) if pair.scores is not None else None
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            excused = ties if place == 0 else None
            found = compare(one, other, excused)
            if found.why:
                differs = True
                why = why or f"output {place}: {found.why}"
            if math.isnan(found.largest) or found.largest > largest:
                largest = found.largest
    return Decision(not differs, largest, why)


def near_ties(scores: Any) -> list[bool] | None:
    """The rows whose best two scores are so close that the tolerance may change places between them."""
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim > 2:
        return None
    if scores.ndim == 1 or scores.shape[1] == 1:
        return [abs(value) <= 2 * ABSOLUTE for value in scores.ravel().tolist()]
    tied = []
    for row in scores.tolist():
        best, second = sorted(row)[-1], sorted(row)[-2]
        tied.append(best - second <= 2 * (ABSOLUTE + RELATIVE * abs(best)))
    return tied


def compare(ours: Any, theirs: Any, excused: list[bool] | None = None) -> Decision:
    """One output against another, element by element; `why` is empty where they agree."""
    if ours is None or theirs is None:
        return Decision(True) if ours is theirs else Decision(False, math.nan, "nothing on one side")
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.shape != theirs.shape and not (ours.size == theirs.size and _squeezed(ours) == _squeezed(theirs)):
        return Decision(False, math.nan, f"shape {theirs.shape} for {ours.shape}")
    largest, beyond, first = 0.0, 0, ""
    for place, (one, other) in enumerate(zip(ours.ravel().tolist(), theirs.ravel().tolist(), strict=True)):
        gap = _apart(one, other)
        if gap > largest or math.isnan(gap):
            largest = gap
        if not _close(one, other) and not (excused is not None and excused[place]):
            beyond += 1
            first = first or f"{other} for {one}"
    return Decision(not beyond, largest, f"{beyond} of {ours.size} values, first {first}" if beyond else "")


def alike(ours: Any, theirs: Any) -> bool:
    return not compare(ours, theirs).why


def _squeezed(array: Any) -> tuple[int, ...]:
    return tuple(size for size in array.shape if size != 1)


def _apart(one: Any, other: Any) -> float:
    if isinstance(one, str | bytes) or isinstance(other, str | bytes):
        return 0.0 if str(one) == str(other) else math.nan
    gap = abs(other - one) if one != other else 0
    return 0.0 if isinstance(gap, float) and math.isnan(gap) and one != one and other != other else float(gap)


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, str | bytes) or isinstance(other, str | bytes):
        return str(one) == str(other)
    if isinstance(one, complex) or isinstance(other, complex):
        return _close(one.real, other.real) and _close(one.imag, other.imag)
    if isinstance(one, float) or isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        if math.isinf(one) or math.isinf(other):
            return one == other
        return abs(other - one) <= ABSOLUTE + RELATIVE * abs(one)
    return bool(one == other)


def runtime(model: onnx.ModelProto) -> Any:
    """The export in ONNX Runtime, as it would be deployed."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]
