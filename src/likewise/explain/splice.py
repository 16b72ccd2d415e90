"""Where a graph begins to differ from the reference's, found by values and proven by grafts.

The reference is taken as a graph (`explain/twins.py`). Both graphs run on failing rows; of every tensor a short sketch
is kept, so that a network never lies in memory as a whole. A tensor of the candidate whose sketch is found among the
reference's is right. The culprit is a node that is given right values and gives wrong ones, on a way that stays wrong
up to an output. What the reference has in its place is grafted there: if the failing rows agree then, nothing else is
at fault, and how the two differ is the cause.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Array, Batch
from likewise.explain import experiment, weight_matching
from likewise.explain.case import Case
from likewise.explain.counterparts import in_windows
from likewise.explain.experiment import Change, Effect, Trial
from likewise.explain.trace import failing_positions, fed
from likewise.explain.twins import Twin, twin
from likewise.models.onnx import edits, grafts
from likewise.models.onnx.inside import Opened

if TYPE_CHECKING:
    from onnx import ModelProto

ROWS = 12
"""Failing rows that both graphs are run on."""

CLOSE = (1e-5, 1e-4, 1e-3, 1e-2, 5e-2)
"""How far a tensor may be from the reference's, as a part of it, to be taken for the same: the strictest that tells."""

COARSE = (2e-1, 5e-2, 1e-2)
"""The same of a quantised graph: first what is beyond any rounding."""

MOST_BEGINNINGS = 6
"""If a difference begins at more nodes than this, it is noise that is seen."""

DEEPEST, MOST_NODES = 14, 32
"""How far behind the first wrong node a graft may end, and how many nodes it may take away or bring: from one product
with weights to the next, attention is that long."""

MOST_TRIED = 12
"""Grafts that are tried at a beginning."""

MOST_ROUNDS = 16
"""Culprits that are looked for one after the other: what is wrong in one layer may be so in each."""

SHAPES = 7
"""The type of ONNX in which shapes are computed, 64-bit integers."""

LEARNT = 16
"""Numbers of a constant from which on it is an array that was learnt, not a setting."""

PROJECTIONS, BLOCK = 4, 1 << 18

LARGE, MASKED, SAMPLED = 1e4, 1e3, 4_096
"""Larger numbers that are so many times as large as the small ones, by a sample of so many, stand for nothing: a mask
was laid on."""


@dataclass(frozen=True, slots=True, eq=False)
class Sketch:
    """A tensor in short: its shape, how large it is, and what is left of it in a few directions drawn at random."""

    shape: tuple[int, ...]
    size: float
    marks: Array


def sketch(array: Array) -> Sketch:
    if array.dtype.kind not in "biuf":
        words = array.astype(str)
        marks = np.array([hash(tuple(words.ravel().tolist())) % 2**40, 0, 0, 0], dtype=np.float64)
        return Sketch(array.shape, 1.0, marks)
    flat: Array = array.ravel().astype(
        np.float32 if array.dtype.itemsize <= 4 and array.dtype.kind == "f" else np.float64
    )
    flat = _tamed(flat)
    size = float(np.linalg.norm(flat))
    return Sketch(array.shape, size, _marks(flat))


def _tamed(flat: Array) -> Array:
    """Numbers of which none drowns the others, as infinities and the large numbers of masks would."""
    sampled = np.abs(flat[:: max(1, len(flat) // SAMPLED)])
    sampled = sampled[np.isfinite(sampled) & (sampled > 0)]
    small = float(np.quantile(sampled, 0.1)) if len(sampled) else 0.0
    with np.errstate(invalid="ignore"):
        ordinary = np.abs(flat) <= max(LARGE, MASKED * small)
    if ordinary.all():
        return flat if small < LARGE else flat.astype(np.float64)
    largest = float(np.abs(flat[ordinary]).max(initial=0.0)) or 1.0
    marked = np.where(np.isnan(flat), 3.0, 7.0 * np.sign(np.nan_to_num(flat)))
    return np.where(ordinary, flat, (largest * marked).astype(flat.dtype))


def _marks(flat: Array) -> Array:
    """What is left of numbers in each direction, a block at a time."""
    directions, found = _directions(flat.dtype), np.zeros(PROJECTIONS)
    for number, start in enumerate(range(0, len(flat), BLOCK)):
        part = flat[start : start + BLOCK]
        turned = 2 * np.random.default_rng(number).integers(0, 2, PROJECTIONS) - 1
        found += turned * (directions[:, : len(part)] @ part)
    return found


@lru_cache(maxsize=2)
def _directions(dtype: Any) -> Array:
    bits = np.random.default_rng(0).integers(0, 2, (PROJECTIONS, BLOCK), dtype=np.int8)
    return (2 * bits - 1).astype(dtype)


def apart(one: Sketch, other: Sketch) -> float:
    """The difference of two tensors as a part of the larger, by their sketches."""
    if one.shape != other.shape:
        return float("inf")
    size = max(one.size, other.size)
    return float(np.abs(one.marks - other.marks).max()) / size if size else 0.0


def sketches(case: Case, side: str, graph: Opened, inputs: Mapping[str, Array]) -> dict[str, Sketch]:
    """All tensors of a graph on some rows, some at a time."""
    found = {name: sketch(array) for name, array in inputs.items()}
    for seen in in_windows(case, side, graph, inputs):
        found |= {name: sketch(array) for name, array in seen.items()}
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Beside:
    """Both graphs with the sketches of their tensors. `equal`: the twin's tensors that hold the same as one of ours.

    `settled` are tensors of either graph, ours first, that the other one has as a constant.
    """

    candidate: Opened
    twin: Opened
    ours: Mapping[str, Sketch]
    theirs: Mapping[str, Sketch]
    equal: Mapping[str, tuple[str, ...]]
    settled: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())

    @property
    def given(self) -> dict[str, str]:
        """The twin's tensors that the candidate has too, with the name there: its own one first, then the earliest."""
        found: dict[str, str] = {}
        for name, others in self.equal.items():
            for other in others:
                if other == name or other not in found:
                    found[other] = name
        return found


def beside(
    candidate: Opened,
    known: Twin,
    ours: Mapping[str, Sketch],
    theirs: Mapping[str, Sketch],
    close: float,
) -> Beside:
    """Which tensors of both graphs hold the same."""
    shapes: dict[tuple[int, ...], list[str]] = {}
    for name, entry in theirs.items():
        shapes.setdefault(entry.shape, []).append(name)
    tables = {
        shape: (np.array([theirs[name].marks for name in names]), np.array([theirs[name].size for name in names]))
        for shape, names in shapes.items()
    }
    equal: dict[str, tuple[str, ...]] = {}
    for name, entry in ours.items():
        if entry.shape in tables:
            marks, sizes = tables[entry.shape]
            distance = np.abs(marks - entry.marks).max(axis=1)
            fitting = np.flatnonzero(distance <= close * np.maximum(sizes, entry.size))
            if len(fitting):
                nearest = fitting[np.argsort(distance[fitting], kind="stable")]
                equal[name] = tuple(shapes[entry.shape][place] for place in nearest)
    there = {other for others in equal.values() for other in others}
    for name in [name for name in equal if name in theirs and name not in there]:
        # What is called the same is to be found nowhere: that it holds what some other tensor does is chance.
        if candidate.made_by(name) == known.graph.made_by(name):
            del equal[name]
    settled = _settled(ours, known.graph, close), _settled(theirs, candidate, close)
    return Beside(candidate, known.graph, ours, theirs, equal, settled)


def _settled(tensors: Mapping[str, Sketch], other: Opened, close: float) -> frozenset[str]:
    """What one graph computes that the other one holds: tables and masks that an exporter works out in advance."""
    shapes: dict[tuple[int, ...], list[str]] = {}
    for name, entry in tensors.items():
        shapes.setdefault(entry.shape, []).append(name)
    held = {one.tensor: one.values for index in other.computing for one in other.constants_of(index).values()}
    found = set[str]()
    for values in held.values():
        if values.shape in shapes:
            stored = sketch(values)
            found.update(name for name in shapes[values.shape] if apart(tensors[name], stored) <= close)
    return frozenset(found)


def beginnings(graph: Opened, right: Collection[str], seen: Collection[str], outputs: Collection[str]) -> list[int]:
    """The nodes that are given right values and give wrong ones, on a way that stays wrong up to an output."""
    known, computed, shapes = set(right), set(graph.tensors), set[str]()
    for index in graph.computing:
        reads = [name for name in graph.reads[index] if name in computed or name in seen]
        # What could not be looked at is as right as what it is made from.
        if known.issuperset(reads):
            made = [name for name in graph.node(index).output if name]
            # So is the shape of what is right, whether the other graph asks for it or not, and what is made of shapes.
            if graph.node(index).op_type == "Shape" or (shapes.issuperset(reads) and _counts(graph, made)):
                shapes.update(made)
            known.update(name for name in made if name in shapes or name not in seen)
    readers, wrong = graph.readers, set[str]()
    at_fault: set[int] = set()
    for index in reversed(graph.computing):
        for name in graph.node(index).output:
            if name and name not in known and (name in outputs or at_fault.intersection(readers.get(name, ()))):
                wrong.add(name)
                at_fault.add(index)
    return [index for index in graph.computing if index in at_fault and not wrong.intersection(graph.reads[index])]


def _counts(graph: Opened, tensors: Sequence[str]) -> bool:
    return all(graph.types.get(name) == SHAPES for name in tensors)


@dataclass(frozen=True, slots=True, eq=False)
class Graft:
    """A part of the twin in the place of a part of the candidate.

    `how` is "replaced", "inserted" (before `nodes`), "appended" (behind them) or "bypassed"; `nodes` are the
    candidate's, `others` the twin's.
    """

    how: str
    target: ModelProto
    nodes: tuple[int, ...]
    others: tuple[int, ...]
    tensor: str


@dataclass(frozen=True, eq=False)
class Culprit:
    """A graft that takes the difference away, with both graphs as they were before it."""

    graft: Graft
    beside: Beside

    @cached_property
    def differing(self) -> tuple[grafts.Differing, ...]:
        """In what the two nodes differ, where one stands for one."""
        pair = self.pair
        if pair is None:
            return ()
        return tuple(grafts.differing(self.beside.candidate, pair[0], self.beside.twin, pair[1], self.beside.equal))

    @property
    def pair(self) -> tuple[int, int] | None:
        one = self.graft.how == "replaced" and len(self.graft.nodes) == len(self.graft.others) == 1
        if not one:
            return None
        mine, yours = self.graft.nodes[0], self.graft.others[0]
        same = self.beside.candidate.node(mine).op_type == self.beside.twin.node(yours).op_type
        return (mine, yours) if same else None


def culprits(case: Case) -> tuple[list[Culprit], Effect] | None:
    """The parts of the candidate that differ from the reference's, and what putting them right heals."""
    known = twin(case)
    written = case.editable()
    if known is None or written is None:
        return None
    graph = Opened.of(written, case.tensor_types())
    batch = _looked_at(case, graph)
    theirs = sketches(case, known.side, known.graph, known.inputs(batch))
    found: list[Culprit] = []
    gap = Trial.few(case).gap()
    for _ in range(MOST_ROUNDS):
        step = _next(case, graph, known, theirs, batch, gap)
        if step is None:
            return None
        culprit, gap, healed = step
        found.append(culprit)
        graph = Opened.of(culprit.graft.target, edits.tensor_types(culprit.graft.target))
        if healed:
            effect = experiment.run(case, Change(target=culprit.graft.target))
            return (found, effect) if effect is not None and effect.explains else None
    return None


def _looked_at(case: Case, graph: Opened) -> Batch:
    """Failing rows, as many as stay within bounds."""
    inputs = fed(case, "candidate", case.rows(failing_positions(case, 1)))
    windows = in_windows(case, "candidate", graph, inputs)
    bytes_a_row = sum(array.nbytes for seen in windows for array in seen.values())
    return case.rows(failing_positions(case, int(np.clip(case.looked_at // max(bytes_a_row, 1), 1, ROWS))))


def _next(
    case: Case,
    graph: Opened,
    known: Twin,
    theirs: Mapping[str, Sketch],
    batch: Batch,
    gap: float,
) -> tuple[Culprit, float, bool] | None:
    """The next culprit, how far both are apart without it, and whether that is the end; None if none is found."""
    ours = sketches(case, "candidate", graph, fed(case, "candidate", batch))
    outputs = {
        spec.candidate: known.outputs[spec.reference]
        for spec in (pair.spec for pair in case.failing_pairs())
        if spec.reference in known.outputs
    }
    landmarks = _landmarks(graph, known.graph)
    tried: set[tuple[Any, ...]] = set()
    partly: tuple[Culprit, float, bool] | None = None
    trial = Trial.few(case)
    for close in COARSE if case.comparison.quantized_nodes else CLOSE:
        both = beside(graph, known, ours, theirs, close)
        for graft in _grafts(both, outputs, landmarks):
            key = (graft.how, graft.nodes, graft.others, graft.tensor)
            if key in tried:
                continue
            tried.add(key)
            given = trial.ask(Change(target=graft.target))
            if given is None:
                continue
            effect = trial.effect(candidate=given)
            left = trial.gap(candidate=given)
            if effect.explains and (not gap or left <= experiment.NEARER * gap):
                return Culprit(graft, both), left, True
            found = Culprit(graft, both)
            if partly is None and (found.differing or _without_weights(found)):
                partly = found, left, False
        if partly is not None:
            return partly
    return None


def _without_weights(culprit: Culprit) -> bool:
    """Does a part compute the same tensor otherwise? Weights that are put in with it would make anything right."""
    graft, both = culprit.graft, culprit.beside
    sides = ((both.candidate, graft.nodes), (both.twin, graft.others))
    held = (one for graph, nodes in sides for index in nodes for one in graph.constants_of(index).values())
    return graft.how == "replaced" and all(one.values.size < LEARNT for one in held)


def _landmarks(graph: Opened, twin_graph: Opened) -> frozenset[tuple[str, str]]:
    """What nodes of the same weights are given in both graphs: it should be the same, however it was computed."""
    return frozenset(
        (name, wanted)
        for yours, mine in weight_matching.alike(twin_graph.proto, graph.proto)
        for name in graph.reads[mine]
        for wanted in twin_graph.reads[yours]
        if name in graph.makers and wanted in twin_graph.makers
    )


def _grafts(both: Beside, outputs: Mapping[str, str], landmarks: Collection[tuple[str, str]]) -> Iterator[Graft]:
    """What could be put right, the smallest change first."""
    right = both.settled[0].union(both.equal)
    theirs = both.settled[1].union(*both.equal.values())
    mine = beginnings(both.candidate, right, both.ours, outputs)
    yours = beginnings(both.twin, theirs, both.theirs, set(outputs.values()))
    if max(len(mine), len(yours)) > MOST_BEGINNINGS:
        # Every layer may have a mask of its own that is written in another way: what comes of the rows tells.
        mine = beginnings(both.candidate, right | _the_same_for_all(both.candidate), both.ours, outputs)
        yours = beginnings(both.twin, theirs | _the_same_for_all(both.twin), both.theirs, set(outputs.values()))
    if max(len(mine), len(yours)) > MOST_BEGINNINGS:
        return
    for index in mine:
        further = _further(both, index, yours, landmarks)
        yield from islice(chain(_at(both, index, yours), further), MOST_TRIED)


def _the_same_for_all(graph: Opened) -> set[str]:
    """The tensors that nothing but the shapes of the inputs goes into."""
    varying = set(graph.inputs)
    for index in graph.computing:
        node = graph.node(index)
        if node.op_type != "Shape" and varying.intersection(graph.reads[index]):
            varying.update(node.output)
    return varying.symmetric_difference([*graph.tensors, *graph.inputs])


def _at(both: Beside, index: int, yours: Sequence[int]) -> Iterator[Graft]:
    """What could be done where a difference begins."""
    graph, twin_graph, given = both.candidate, both.twin, both.given
    node = graph.node(index)
    # What the twin calls the same may be found among the candidate's tensors, in another place.
    called = [
        other
        for other in twin_graph.computing
        if node.name
        and twin_graph.node(other).name == node.name
        and all(name in given for name in twin_graph.reads[other] if both.theirs.get(name) is not None)
    ]
    both_named = dict.fromkeys([*called, *yours])
    named = [other for other in both_named if twin_graph.node(other).op_type == node.op_type]
    for other in named:
        yield from _replaced(both, index, other)
    read = {twin_name for other in yours for twin_name in twin_graph.reads[other]}
    for name in graph.reads[index]:
        if read.intersection(both.equal.get(name, ())):
            # The reference goes on from what this node is given: it has no such node, or another one before it.
            same = both.equal[name][0]
            for output in node.output:
                if _fit(both.ours.get(output), both.ours.get(name)):
                    yield from _written(both, "bypassed", {output: same}, (index,), (), given={same: name})
            readers = tuple(one for one in graph.computing if name in graph.reads[one] and _wrong(both, one))
            for other in yours:
                for output in twin_graph.node(other).output:
                    if _fit(both.ours.get(name), both.theirs.get(output)):
                        yield from _written(both, "inserted", {name: output}, readers, (other,), readers=readers)
    for other in yours:
        if other not in named:
            yield from _replaced(both, index, other)


def _written(
    both: Beside,
    how: str,
    tensors: Mapping[str, str],
    nodes: tuple[int, ...],
    others: tuple[int, ...],
    **how_given: Any,
) -> Iterator[Graft]:
    """A graft, if it can be written into the candidate."""
    target = grafts.graft(both.candidate, both.twin, tensors, **{"given": both.given, **how_given})
    if target is not None:
        yield Graft(how, target, nodes, others, next(iter(tensors)))


def _wrong(both: Beside, index: int) -> bool:
    return not any(name in both.equal for name in both.candidate.node(index).output)


def _fit(one: Sketch | None, other: Sketch | None) -> bool:
    return one is not None and other is not None and one.shape == other.shape


def _replaced(both: Beside, index: int, other: int) -> Iterator[Graft]:
    mine, yours = both.candidate.node(index), both.twin.node(other)
    # The same operator stands for it also where other inputs have given it another shape.
    alike = mine.op_type == yours.op_type
    tensors = {
        output: wanted
        for output, wanted in zip(mine.output, yours.output, strict=False)
        if output and wanted and (alike or _fit(both.ours.get(output), both.theirs.get(wanted)))
    }
    if tensors:
        yield from _written(both, "replaced", tensors, (index,), (other,))


def _further(both: Beside, index: int, yours: Sequence[int], landmarks: Collection[tuple[str, str]]) -> Iterator[Graft]:
    """Grafts that end behind the beginning: where one node was written as several, or several as one.

    Those come first that end where nodes of the same weights go on from: what lies between was written in other ways.
    """
    ours = _behind(both.candidate, [index])
    theirs = _behind(both.twin, yours)
    given = both.given
    pairs = []
    for name, deep in ours.items():
        for wanted, far in theirs.items():
            if name not in both.equal and _fit(both.ours.get(name), both.theirs.get(wanted)) and wanted not in given:
                here, there = both.candidate.node(both.candidate.makers[name]), both.twin.node(both.twin.makers[wanted])
                marked = (name, wanted) in landmarks
                pairs.append((not marked, deep + far, name != wanted, here.op_type != there.op_type, name, wanted))
    for _, _, _, _, name, wanted in sorted(pairs):
        mine = giving_numbers(both.candidate, both.candidate.computing_in(both.candidate.cone(name, both.equal)))
        others = giving_numbers(both.twin, both.twin.computing_in(both.twin.cone(wanted, given)))
        if len(mine) + len(others) <= MOST_NODES:
            yield from _written(both, "replaced", {name: wanted}, mine, others)


def giving_numbers(graph: Opened, nodes: Sequence[int]) -> tuple[int, ...]:
    """Those of some nodes that do not only compute shapes; all of them if each does."""
    found = tuple(i for i in nodes if not _counts(graph, graph.node(i).output))
    return found or tuple(nodes)


def _behind(graph: Opened, nodes: Sequence[int]) -> dict[str, int]:
    """The tensors behind some nodes, with how many nodes lie between."""
    found: dict[str, int] = {}
    level, readers = list(nodes), graph.readers
    for depth in range(DEEPEST):
        new = [name for index in level for name in graph.node(index).output if name and name not in found]
        found |= dict.fromkeys(new, depth)
        level = list(dict.fromkeys(index for name in new for index in readers.get(name, ())))
    return found
