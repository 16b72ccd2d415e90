"""Which constant of a graph should hold what: by the graph that the reference gives today, by values, by order.

Nodes of the two graphs are put together where they come in the same order.

Where there is no twin, constants are held against fitted arrays: by what they hold first, by name and order for the
rest. Exporters rename, transpose, flatten, negate, invert and fold. Names therefore decide only between
arrays of which no value tells anything, and what is put back into a graph is always tried.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

import numpy as np

from likewise.contracts.data import Array
from likewise.explain.case import Case
from likewise.explain.weight_arrays import (
    RECURRENT,
    TELLING,
    Form,
    Marks,
    Match,
    derived,
    forms,
    is_float,
    is_text,
    match_of,
    parts,
    pattern,
    unequal,
)
from likewise.models.arrays import BUFFER, GRAPH, NETWORK, PACKED, PREPROCESSING, Parameter
from likewise.models.onnx import describe, edits
from likewise.models.onnx.inside import COMMUTATIVE, Constant, absent, constants, used_by

if TYPE_CHECKING:
    from onnx import ModelProto


MOST_NODES = 4_000

LABELS = ("classlabels", "class_ids")
"""Attributes that hold labels: they are no weights."""

TREES = {"TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"}
"""Their attributes belong together: they are never compared one by one."""

FEW_SHARED = 0.5
"""Of the thresholds of two ensembles, if one was made from the other."""

WHOLE_NUMBERS = {"LabelEncoder", "OneHotEncoder", "Imputer", "TfIdfVectorizer", "ArrayFeatureExtractor"}
WHOLE_NUMBERS |= {"SVMClassifier", "SVMRegressor"}
"""Operators whose whole numbers are learnt; those of others are shapes, axes and counts."""


def aligned(reference: ModelProto, candidate: ModelProto) -> list[tuple[int, int]]:
    """The nodes of two graphs that do the same: those with equal constants first, the others by their order."""
    ours, theirs = used_by(reference), used_by(candidate)
    if max(len(ours), len(theirs)) > MOST_NODES:
        return []
    if [reference.graph.node[i].op_type for i in ours] == [candidate.graph.node[i].op_type for i in theirs]:
        return list(zip(ours, theirs, strict=True))
    mine, yours, marks = _held(reference), _held(candidate), Marks()
    told = [_told(reference, index, mine, marks) for index in ours]
    heard = [_told(candidate, index, yours, marks) for index in theirs]
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


def alike(reference: ModelProto, candidate: ModelProto) -> list[tuple[int, int]]:
    """The nodes of two graphs that alone hold the same weights, in whatever order they come."""
    marks, sides = Marks(), []
    for proto in (reference, candidate):
        held = _held(proto)
        weighty = [i for i in used_by(proto) if any(one.values.size >= TELLING for one in held.get(i, {}).values())]
        sides.append({index: _told(proto, index, held, marks) for index in weighty[:MOST_NODES]})
    ours, theirs = (
        {told: index for index, told in side.items() if times[told] == 1}
        for side, times in ((side, Counter(side.values())) for side in sides)
    )
    return [(ours[told], theirs[told]) for told in ours if told in theirs]


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


def other_trees(reference: ModelProto, candidate: ModelProto) -> Iterator[list[tuple[Constant, Constant]]]:
    """All that an ensemble holds of which hardly a threshold is the reference's, each with its place there.

    The thresholds come first. Damage to a few of them is looked for elsewhere.
    """
    ours, theirs = _held(reference), _held(candidate)
    for mine, yours in aligned(reference, candidate):
        if reference.graph.node[mine].op_type not in TREES:
            continue
        held = theirs.get(yours, {})
        pairs = [(one, held.get(place) or absent(candidate, yours, place)) for place, one in ours[mine].items()]
        pairs.sort(key=lambda pair: not str(pair[0].place).startswith(("nodes_values", "nodes_splits")))
        wanted, there = (np.unique(side.values.astype(np.float32)) for side in pairs[0])
        emptied = not wanted.any() or len(there) < len(wanted) / 4
        if not emptied and np.isin(wanted[wanted != 0], there).mean() < FEW_SHARED:
            yield pairs


def labels(constant: Constant) -> bool:
    return isinstance(constant.place, str) and constant.place.startswith(LABELS)


def _learnt(constant: Constant) -> bool:
    if labels(constant):
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


def _told(proto: ModelProto, index: int, held: dict[int, dict[int | str, Constant]], marks: Marks) -> Hashable:
    """What a node is and holds, short."""
    parts = [proto.graph.node[index].op_type]
    for place, constant in sorted(held.get(index, {}).items(), key=lambda entry: str(entry[0])):
        values = constant.values
        if is_text(values):
            parts.append(f"{place}:{hash(tuple(values.ravel().tolist()))}")
        elif values.dtype.kind in "biuf":
            parts.append(f"{place}:{marks.of(values)}")
            describe.release(values)
    return tuple(parts)


def _blocks(ours: Sequence[Hashable], theirs: Sequence[Hashable]) -> Iterator[tuple[int, int, int, int, bool]]:
    for tag, first, last, start, stop in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        yield first, last, start, stop, tag == "equal"


PROBED = 512
"""Entries of large arrays that are looked at before all of them are."""

ALIKE = 0.5
"""An array is taken for a damaged copy of another if this part of it is equal."""

EXPORTED = (
    *("mean_", "center_", "scale_", "min_", "statistics_", "components_", "coef_", "intercept_", "coefs_"),
    *("intercepts_", "cluster_centers_", "theta_", "var_", "idf_", "lambdas_", "dual_coef_", "support_vectors_"),
)
"""What estimators compute their answers from, among all they keep: only these are looked for by order."""


def identified(
    case: Case, constants: Sequence[Constant], parameters: Sequence[Parameter], *, freely: bool = False
) -> dict[tuple[int, int | str], Match]:
    """The constants that hold exactly a fitted array, by their place.

    `freely`: they are known to be right and want a name only, so parts and whatever is computed will do.
    """
    found: dict[tuple[int, int | str], Match] = {}
    if not constants:
        return found
    by_size = _by_size(sorted(parameters, key=_kept_beside), freely=freely)
    used: set[str] = set()
    for constant in constants:
        # In a large graph each has many arrays to be compared with.
        case.require_time()
        if not _telling(constant):
            continue
        equal = [form for form in by_size[constant.values.size] if _share(constant, form, freely=freely) == 1.0]
        if equal:
            # Two steps may have learnt the same numbers: then they come in their own order.
            best = next((form for form in equal if form.parameter.path not in used), equal[0])
            used.add(best.parameter.path)
            found[constant.key] = match_of(best, constant)
    return found


def matched(case: Case, constants: Sequence[Constant], parameters: Sequence[Parameter]) -> list[Match]:
    """Constants and fitted arrays put together: equal ones, damaged ones, then those left over by name and order."""
    exact = identified(case, constants, parameters)
    taken = {match.parameter.path for match in exact.values() if match.parameter is not None}
    rest = [constant for constant in constants if constant.key not in exact and _telling(constant)]
    left = [parameter for parameter in parameters if parameter.path not in taken]
    found = list(exact.values())
    normalised = any(constant.operator == "BatchNormalization" for constant in constants)
    for stage in (partial(_damaged, case), partial(_in_order, normalised=normalised)):
        for match in stage(rest, left):
            assert match.parameter is not None
            found.append(match)
            taken.add(match.parameter.path)
        keys = {match.constant.key for match in found}
        rest = [constant for constant in rest if constant.key not in keys]
        left = [parameter for parameter in left if parameter.path not in taken]
    return found


def _damaged(case: Case, rest: Sequence[Constant], left: Sequence[Parameter]) -> Iterator[Match]:
    """Constants of which enough entries are equal, or that stand in a simple relation to an array."""
    by_size = _by_size(left)
    scored = []
    for constant in rest:
        case.require_time()
        for form in by_size[constant.values.size]:
            share = _share(constant, form)
            if share < ALIKE and form.plain and form.suits(constant) and constant.values.size > 2:
                share = ALIKE if _related(constant, form) else share
            if share >= ALIKE:
                scored.append((share, constant, form))
    scored.sort(key=lambda entry: -entry[0])
    done: set[tuple[int, int | str]] = set()
    stored: dict[str, str] = {}
    for _share_equal, constant, form in scored:
        tied = stored.get(form.parameter.path) in (None, constant.tensor)
        if constant.key not in done and tied:
            done.add(constant.key)
            stored[form.parameter.path] = constant.tensor
            yield match_of(form, constant)


def _in_order(rest: Sequence[Constant], left: Sequence[Parameter], *, normalised: bool) -> Iterator[Match]:
    """What no value tells apart: by name where both have it, else one after the other within a shape."""
    folded = set() if normalised else {p.folded for p in left if p.folded}
    likely = [p for p in left if p.step not in folded]
    waiting = _one_each([p for p in likely if _wanted(p, rest, normalised=normalised)])
    for constant in rest:
        fitting = [parameter for parameter in waiting if _fits(parameter, constant)]
        named = [parameter for parameter in fitting if parameter.path == constant.tensor]
        alike = [parameter for parameter in fitting if parameter.is_intercept == _added(constant)]
        chosen = next(iter(named or alike or fitting), None)
        lone = constant.values.size == 1 and constant.operator not in ("Add", "Gemm", "LinearRegressor")
        if chosen is not None and not is_text(constant.values) and not lone:
            waiting.remove(chosen)
            yield match_of(next(_suiting(chosen, constant)), constant)
        elif form := next((form for parameter in waiting for form in _first_rows(parameter, constant)), None):
            waiting.remove(form.parameter)
            yield match_of(form, constant)


def _first_rows(parameter: Parameter, constant: Constant) -> Iterator[Form]:
    """A table of which an exporter has kept the rows that were read: those of the places in a sentence."""
    values, shape = parameter.values, constant.values.shape
    rows = constant.values.size // shape[-1] if shape and shape[-1] else 0
    if values.ndim == 2 and len(shape) > 1 and shape[-1] == values.shape[1] and 1 < rows < len(values):
        yield Form(parameter, values[:rows], "as it is")


def _fits(parameter: Parameter, constant: Constant) -> bool:
    """Has an array the shape of a constant? Attributes are flat and tell the number of entries only."""
    if is_text(parameter.values) or not any(_suiting(parameter, constant)):
        return False
    return isinstance(constant.place, str) or _shape_of(parameter.values) == _shape_of(constant.values)


def _suiting(parameter: Parameter, constant: Constant) -> Iterator[Form]:
    size = constant.values.size
    return (form for form in forms(parameter) if form.array.size == size and form.suits(constant))


def _wanted(parameter: Parameter, rest: Sequence[Constant], *, normalised: bool) -> bool:
    """Is an array in this form likely in this graph: packed for a recurrent node, folded without batch norms?"""
    packed = parameter.kind == PACKED
    learnt_by_order = parameter.kind in (NETWORK, BUFFER, GRAPH) or bool(parameter.rounding) or packed
    if not learnt_by_order and _kept_beside(parameter):
        return False
    if packed or any(parameter.attribute.startswith(stem) for stem in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")):
        return packed and any(constant.operator in RECURRENT for constant in rest)
    return not (parameter.rounding and normalised)


def _kept_beside(parameter: Parameter) -> bool:
    """What an estimator keeps beside the arrays it computes with."""
    return not parameter.attribute.startswith(EXPORTED)


def _one_each(parameters: Sequence[Parameter]) -> list[Parameter]:
    """Of the forms of one array one, in the place of the first: folded goes before plain."""
    found: dict[str, Parameter] = {}
    for parameter in parameters:
        if parameter.path not in found or not found[parameter.path].rounding:
            found[parameter.path] = parameter
    return list(found.values())


def _added(constant: Constant) -> bool:
    """Does a node add the constant to what it computes?"""
    third = constant.place == 2 and constant.operator.endswith(("Gemm", "Conv", "ConvTranspose", "Normalization"))
    return third or constant.operator == "Add" or (constant.place == 3 and constant.operator in RECURRENT)


def _shape_of(values: Array) -> tuple[int, ...]:
    """A shape without its ones, and the same for a matrix and its transpose."""
    shape = [size for size in values.shape if size != 1]
    return tuple(sorted(shape)) if len(shape) == 2 else tuple(shape)


def _by_size(parameters: Sequence[Parameter], *, freely: bool = False) -> dict[int, list[Form]]:
    found: dict[int, list[Form]] = defaultdict(list)
    for look in (forms, parts, derived) if freely else (forms,):
        for parameter in parameters:
            for form in look(parameter):
                found[form.array.size].append(form)
    return found


def _telling(constant: Constant) -> bool:
    """Does a constant hold something that was learnt, rather than a shape or an axis?"""
    values = constant.values
    return values.size > 0 and (is_float(values) or is_text(values))


def _share(constant: Constant, form: Form, *, freely: bool = False) -> float:
    """The part of a constant that is as it should be, of those entries that are not zero in both."""
    values = constant.values.ravel()
    if is_text(values) != is_text(form.array) or not (freely or form.suits(constant)):
        return 0.0
    if values.size > PROBED and (part := _equal_part(*_glance(values, form), constant, form)) < ALIKE / 2:
        return part
    return _equal_part(values, form.array.ravel(), constant, form)


def _glance(values: Array, form: Form) -> tuple[Array, Array]:
    """Some entries of a large array, and what they should be."""
    probe = np.random.default_rng(0).integers(values.size, size=PROBED)
    return values[probe], form.array.flat[probe]


def _equal_part(values: Array, expected: Array, constant: Constant, form: Form) -> float:
    different = unequal(values, expected, rounding=constant.rounding, folded=form.parameter.rounding)
    if is_text(values):
        return float(1 - different.mean())
    if not different.any():
        return 1.0 if values.any() or expected.any() else float(form.parameter.is_intercept)
    told = (values != 0) | (expected != 0)
    return 1.0 - float(different[told].mean()) if told.any() else 0.0


def _related(constant: Constant, form: Form) -> bool:
    """Is a constant a multiple of an array, the array in another order, or what is left of it?"""
    values = constant.values.ravel()
    if is_text(values) or is_text(form.array):
        return False
    if values.size > PROBED:
        mine, yours = _glance(values, form)
        if not pattern(mine, yours, unequal(mine, yours)).regular and not _of_one_sum(values, form.array):
            return False
    match = match_of(form, constant)
    found = pattern(constant.values, match.expected, match.different)
    return found.regular and not found.zero and len(found.entries) > 0


def _of_one_sum(values: Array, expected: Array) -> bool:
    """Could one array be the other in another order, or with entries lost? Cheaper than sorting both."""
    mine, yours = float(np.abs(values).sum()), float(np.abs(expected).sum())
    return not np.isfinite(mine) or abs(mine - yours) <= 1e-5 * yours


def by_branch(graph: ModelProto, matches: Sequence[Match], known: Sequence[Parameter]) -> list[Match]:
    """The same with other names where several steps learnt the same numbers: by what follows, as each has its model."""
    alike: dict[tuple[str, bytes], list[Parameter]] = {}
    for parameter in known if any(p.role == PREPROCESSING for p in known) else ():
        alike.setdefault((parameter.attribute, np.ascontiguousarray(parameter.values).tobytes()), []).append(parameter)
    groups = {entry.path: group for group in alike.values() if len(group) > 1 for entry in group}
    names = [None if match.parameter is None else match.parameter.path for match in matches]
    shared = {place: groups[name] for place, name in enumerate(names) if name in groups}
    sure = {m.constant.node: m.parameter.step for m in matches if m.parameter and m.parameter.path not in groups}
    found: dict[int, Parameter] = {}
    for place, group in shared.items():
        step = next((sure[node] for node in after(graph, matches[place].constant.node) if node in sure), "")
        near = [_shared(entry.step, step) for entry in group]
        if near.count(max(near)) == 1 and max(near):
            found[place] = group[near.index(max(near))]
    told = {parameter.path for parameter in found.values()}
    for place, group in shared.items():
        # The others have what is left, in their own order.
        left = [entry for entry in group if entry.path not in told]
        if place not in found and left:
            found[place] = left[0]
            told.add(left[0].path)
    return [replace(m, parameter=found.get(place, m.parameter)) for place, m in enumerate(matches)]


def where_named(graph: ModelProto, matches: Sequence[Match], known: Sequence[Parameter]) -> list[Match]:
    """The same with weights that stand in each other's places, by the names that the file gives them, told apart.

    By what they hold all are found, and nothing would seem to be wrong. A name is believed where others are exchanged
    with it: exporters give folded and shared weights the names of their neighbours, too.
    """
    named = {(p.path, bool(p.rounding)): p for p in known if p.kind in (NETWORK, BUFFER)}
    meant: dict[int, tuple[Parameter, Parameter]] = {}
    for place, match in enumerate(matches):
        held, folded = match.parameter, match.parameter is not None and bool(match.parameter.rounding)
        if held is None or match.form is None or (held.path, folded) not in named or match.different.any():
            continue
        owner = edits.module_of(graph.graph.node[match.constant.node])
        names = (match.constant.tensor, f"{owner}.{held.attribute}")
        called = next((named[name, folded] for name in names if (name, folded) in named), held)
        if called.values.shape == held.values.shape and unequal(called.values, held.values).any():
            meant[place] = called, held
    exchanged = {called.path for called, _ in meant.values()} & {held.path for _, held in meant.values()}
    found = list(matches)
    for place, (called, held) in meant.items():
        match = matches[place]
        alike = [form for form in forms(called) if match.form is not None and form.way == match.form.way]
        if {called.path, held.path} <= exchanged and alike:
            found[place] = match_of(alike[0], match.constant)
    return found


def _shared(one: str, other: str) -> int:
    """How many names two paths have in common from their beginning."""
    names = zip(one.split("__"), other.split("__"), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], names))


def after(graph: ModelProto, start: int) -> Iterator[int]:
    """The nodes behind a node, in the order of the graph."""
    behind = set(graph.graph.node[start].output)
    for index, node in enumerate(graph.graph.node):
        if behind.intersection(node.input):
            behind.update(node.output)
            yield index


LEARNING = {"MatMul", "Gemm", "Conv", "ConvTranspose", "LSTM", "GRU", "RNN", "Scan", "Loop", "Attention"}
LEARNING |= {"LinearClassifier", "LinearRegressor", "SVMClassifier", "SVMRegressor", "Einsum"}
LEARNING |= {"TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor", "BatchNormalization"}
"""Operators that are the model: what comes before the first of them prepares its inputs."""

PREPARING = {"Scaler", "Imputer", "OneHotEncoder", "LabelEncoder", "TfIdfVectorizer", "Binarizer", "DictVectorizer"}

ADDED = {("Gemm", 2), ("Conv", 2), ("ConvTranspose", 2), ("Add", 0), ("Add", 1)}
"""Where nodes take what is added: a vector there is an intercept."""


def before_the_model(graph: ModelProto, model: Collection[int] = ()) -> set[int]:
    """The nodes that prepare the inputs: nothing of the model comes before them.

    `model` are nodes known to be the model; where none is, it begins with the first operator that learns.
    """
    nodes = graph.graph.node
    if not model and not any(node.op_type in LEARNING for node in nodes):
        return {index for index, node in enumerate(nodes) if node.op_type in PREPARING}
    stored = {tensor.name for tensor in graph.graph.initializer}
    learnt: set[str] = set()
    found: set[int] = set()
    for index, node in enumerate(nodes):
        embeds = node.op_type == "Gather" and node.input[0] in stored
        learns = index in model or node.op_type in TREES if model else node.op_type in LEARNING or embeds
        if learns or any(name in learnt for name in node.input):
            learnt.update(node.output)
        else:
            found.add(index)
    return found


def is_intercept(match: Match) -> bool:
    if match.parameter is not None and match.parameter.kind != GRAPH:
        return match.parameter.is_intercept
    constant = match.constant
    if isinstance(constant.place, str):
        return constant.place in ("intercepts", "rho")
    flat = match.expected.size == max(match.expected.shape, default=1)
    return flat and (constant.operator, constant.place) in ADDED
