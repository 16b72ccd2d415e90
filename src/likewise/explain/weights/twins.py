"""The graph that a reference gives today, laid beside the candidate's, node by node.

A reference that is ONNX itself is its own twin; an estimator is converted once more, for the inputs that
the candidate declares. Nodes of the two graphs are put together where they come in the same order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.explain.case import Case
from likewise.explain.weights.arrays import is_float, is_text
from likewise.models import quietly
from likewise.models.onnx.inside import COMMUTATIVE, Constant, absent, constants, used_by

if TYPE_CHECKING:
    from onnx import ModelProto


SECONDS = 3.0
"""A conversion is not begun with less time left."""

MOST_NODES = 4_000

LABELS = ("classlabels", "class_ids")
"""Attributes that hold labels: they are no weights."""

TREES = {"TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"}
"""Their attributes belong together: they are never compared one by one."""

WHOLE_NUMBERS = {"LabelEncoder", "OneHotEncoder", "Imputer", "TfIdfVectorizer", "ArrayFeatureExtractor"}
WHOLE_NUMBERS |= {"SVMClassifier", "SVMRegressor"}
"""Operators whose whole numbers are learnt; those of others are shapes, axes and counts."""


def twin(case: Case) -> ModelProto | None:
    """The graph that the reference gives today, or None."""
    if case.framework("reference") == "onnx":
        graph: ModelProto | None = case.graph("reference")
        return graph
    return case.once(_exported_again)


def _exported_again(case: Case) -> ModelProto | None:
    candidate, native = case.graph("candidate"), case.native("reference")
    ready = candidate is not None and hasattr(native, "get_params") and case.seconds_left() > SECONDS
    return _converted(native, candidate) if ready else None


def _converted(model: Any, candidate: ModelProto) -> ModelProto | None:
    """An estimator converted for the candidate's inputs; of one that has no converter, the steps before it."""
    try:
        from skl2onnx import convert_sklearn, get_latest_tested_opset_version
        from sklearn.base import is_classifier
        from sklearn.pipeline import Pipeline
    except ImportError:
        return None
    model = getattr(model, "best_estimator_", model)
    types = _types(candidate)
    parts = [model, model[:-1]] if isinstance(model, Pipeline) and len(model) > 1 else [model]
    older = {"": get_latest_tested_opset_version(), "ai.onnx.ml": 3}
    for part in parts:
        options = {id(part): {"zipmap": False}} if is_classifier(part) else None
        for opset, given in ((None, options), (older, options), (None, None)):
            try:
                with quietly():
                    found: ModelProto = convert_sklearn(part, initial_types=types, target_opset=opset, options=given)
            except Exception:  # noqa: BLE001 - converters raise anything; without a twin there is less to compare
                continue
            return found
    return None


def _types(candidate: ModelProto) -> list[tuple[str, Any]]:
    from onnx import TensorProto
    from skl2onnx.common import data_types

    known = {
        TensorProto.FLOAT: data_types.FloatTensorType,
        TensorProto.DOUBLE: data_types.DoubleTensorType,
        TensorProto.INT64: data_types.Int64TensorType,
        TensorProto.INT32: data_types.Int32TensorType,
        TensorProto.BOOL: data_types.BooleanTensorType,
        TensorProto.STRING: data_types.StringTensorType,
    }
    stored = {tensor.name for tensor in candidate.graph.initializer}
    found = []
    for value in candidate.graph.input:
        if value.name not in stored:
            held = value.type.tensor_type
            shape = [dim.dim_value or None for dim in held.shape.dim]
            found.append((value.name, known.get(held.elem_type, data_types.FloatTensorType)([None, *shape[1:]])))
    return found


def aligned(reference: ModelProto, candidate: ModelProto) -> list[tuple[int, int]]:
    """The nodes of two graphs that do the same: those with equal constants first, the others by their order."""
    ours, theirs = used_by(reference), used_by(candidate)
    if max(len(ours), len(theirs)) > MOST_NODES:
        return []
    if [reference.graph.node[i].op_type for i in ours] == [candidate.graph.node[i].op_type for i in theirs]:
        return list(zip(ours, theirs, strict=True))
    mine, yours = _held(reference), _held(candidate)
    told = [_told(reference, index, mine) for index in ours]
    heard = [_told(candidate, index, yours) for index in theirs]
    found = []
    for first, last, start, stop, same in _blocks(told, heard):
        if same:
            found += list(zip(ours[first:last], theirs[start:stop], strict=True))
            continue
        names = [reference.graph.node[index].op_type for index in ours[first:last]]
        others = [candidate.graph.node[index].op_type for index in theirs[start:stop]]
        for low, high, begin, end, equal in _blocks(names, others):
            if equal:
                found += list(zip(ours[first + low : first + high], theirs[start + begin : start + end], strict=True))
    return found


def counterparts(reference: ModelProto, candidate: ModelProto) -> Iterator[tuple[Constant, Constant]]:
    """Every learnt constant of the reference's graph with the one in its place in the candidate's."""
    ours, theirs = _held(reference), _held(candidate)
    for mine, yours in aligned(reference, candidate):
        for place, constant in ours.get(mine, {}).items():
            if not _learnt(constant):
                continue
            held = theirs.get(yours, {})
            found = held.get(place)
            if found is None and constant.operator in COMMUTATIVE and len(held) == 1:
                found = next(iter(held.values()))
            node = candidate.graph.node[yours]
            missing = isinstance(place, str) or place >= len(node.input) or not node.input[place]
            if found is not None:
                yield constant, found
            elif missing:
                yield constant, absent(candidate, yours, place)


def ensembles(reference: ModelProto, candidate: ModelProto) -> Iterator[list[tuple[Constant, Constant]]]:
    """For every ensemble of trees all it holds, each with its place in the candidate's."""
    ours, theirs = _held(reference), _held(candidate)
    for mine, yours in aligned(reference, candidate):
        if reference.graph.node[mine].op_type in TREES:
            held = theirs.get(yours, {})
            yield [
                (constant, held[place] if place in held else absent(candidate, yours, place))
                for place, constant in ours[mine].items()
            ]


def holds_thresholds(constant: Constant) -> bool:
    return str(constant.place).startswith(("nodes_values", "nodes_splits")) and is_float(constant.values)


def shared_thresholds(pairs: Sequence[tuple[Constant, Constant]]) -> float:
    """The part of the reference's thresholds that the candidate has too, whatever their order."""
    for mine, yours in pairs:
        if holds_thresholds(mine):
            wanted, held = (np.unique(side.values.astype(np.float32)) for side in (mine, yours))
            if not wanted.any() or len(held) < len(wanted) / 4:
                return 1.0  # emptied rather than learnt anew
            return float(np.isin(wanted[wanted != 0], held).mean())
    return 1.0


def _learnt(constant: Constant) -> bool:
    if isinstance(constant.place, str) and constant.place.startswith(LABELS):
        return False
    values = constant.values
    return values.size > 0 and (
        is_float(values) or is_text(values) or (values.dtype.kind in "iu" and constant.operator in WHOLE_NUMBERS)
    )


def _held(proto: ModelProto) -> dict[int, dict[int | str, Constant]]:
    found: dict[int, dict[int | str, Constant]] = {}
    for constant in constants(proto):
        found.setdefault(constant.node, {})[constant.place] = constant
    return found


def _told(proto: ModelProto, index: int, held: dict[int, dict[int | str, Constant]]) -> Hashable:
    """What a node is and holds, short."""
    parts = [proto.graph.node[index].op_type]
    for place, constant in sorted(held.get(index, {}).items(), key=lambda entry: str(entry[0])):
        values = constant.values
        if is_text(values):
            parts.append(f"{place}:{hash(tuple(values.ravel().tolist()))}")
        elif values.dtype.kind in "biuf":
            parts.append(f"{place}:{hash(np.ascontiguousarray(values.astype(np.float32)).tobytes())}")
    return tuple(parts)


def _blocks(ours: Sequence[Hashable], theirs: Sequence[Hashable]) -> Iterator[tuple[int, int, int, int, bool]]:
    for tag, first, last, start, stop in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        yield first, last, start, stop, tag == "equal"
