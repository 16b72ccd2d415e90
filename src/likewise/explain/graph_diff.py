"""What two graphs that are laid out alike differ in, read off the files and proven by one experiment.

Nodes stand for one another by their names, or by their order where names tell nothing. Where few of them differ (an
operator, an attribute, a constant, what they read; a node too much or missing), the reference's are put in their place
all at once, and then as few as are enough. That takes milliseconds and one answer of the candidate, however long the
model takes; what cannot be told this way is looked for by values (`explain/splice.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from likewise.contracts.data import Array
from likewise.contracts.models import Model
from likewise.errors import ModelError
from likewise.explain import experiment, weight_matching
from likewise.explain.case import Case
from likewise.explain.experiment import Change, Effect, Trial
from likewise.explain.splice import Beside, Culprit, Graft, Sketch, sketch
from likewise.explain.trace import failing_positions, fed, inside
from likewise.explain.twins import Twin, twin
from likewise.models.onnx import edits, grafts
from likewise.models.onnx.inside import Constant, Opened, equal, rewritten

if TYPE_CHECKING:
    from onnx import ModelProto

MOST_DIFFERING = 12
"""If they differ in more ways than this, the graphs are not one with a fault: another training, precision or layout."""

FEW = 3
"""So many places are one fault; where there are more, they may be another way to write the same."""

ALIKE = 0.5
"""Names or order tell what stands for what if they do so of this part of the nodes."""

ONE_NODE = (1, 2)
"""One place, one node on either side: no way of laying graphs side by side leaves less."""

ORT = "onnxruntime"

CONSTANT, UNKNOWN = "(a constant)", "(not there)"
"""What stands for an input that is stored, and for one that the other graph has not."""

ROWS = 4
"""Failing rows on which it is seen whether one operator is nearly another."""


@dataclass(frozen=True, slots=True, eq=False)
class Laid:
    """Two graphs side by side. `nodes` and `tensors` are the twin's by the candidate's, `given` the other way round."""

    candidate: Opened
    twin: Opened
    nodes: Mapping[int, int]
    tensors: Mapping[str, str]
    given: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Spot:
    """One place where both differ: the twin's tensors by the candidate's that are put right there.

    `stored` is the constant that is all the difference; many nodes may read it. `readers` are those that read what
    stands before them.
    """

    how: str
    tensors: tuple[tuple[str, str], ...]
    nodes: tuple[int, ...]
    others: tuple[int, ...]
    stored: str = ""
    readers: tuple[int, ...] = ()

    def also(self, other: Spot) -> Spot:
        """The same, for the nodes of another spot too."""
        nodes, readers = dict.fromkeys([*self.nodes, *other.nodes]), dict.fromkeys([*self.readers, *other.readers])
        return replace(self, nodes=tuple(nodes), readers=tuple(readers))


SEEN = 3
"""Culprits of which is looked at what they give; the others differ likewise."""


@dataclass(frozen=True, slots=True)
class Diff:
    """All places; `whole`: there is nothing else in which the two graphs differ."""

    laid: Laid
    places: tuple[Spot, ...]
    whole: bool

    @property
    def size(self) -> tuple[int, int]:
        """In how many places they differ, and in how many nodes there."""
        return len(self.places), sum(len(spot.nodes) + len(spot.others) for spot in self.places)

    @property
    def groups(self) -> list[tuple[Spot, ...]]:
        """The places, those together that differ in one constant, or in equal ones, or all in the same way.

        What an exporter does to one layer, it does to every layer like it: each alone would take a run to be told.
        """
        found: dict[Hashable, list[Spot]] = {}
        for spot in self.places:
            found.setdefault(self._held(spot) if spot.stored else self._way(spot), []).append(spot)
        # An optimiser writes constants in other ways: what else differs is tried first.
        return sorted((tuple(group) for group in found.values()), key=lambda group: bool(group[0].stored))

    def _held(self, spot: Spot) -> Hashable:
        """The constant that is all the difference, and what stands for it in the twin."""
        both = self.laid.candidate.constants_of(spot.nodes[0]), self.laid.twin.constants_of(spot.others[0])
        slot = next(slot for slot, constant in both[0].items() if constant.tensor == spot.stored)
        sides = (constants.get(slot) for constants in both)
        return tuple(None if one is None else (one.values.shape, hash(one.values.tobytes())) for one in sides)

    def _way(self, spot: Spot) -> Hashable:
        """In which way both differ there: the operators and their attributes."""
        sides = ((self.laid.candidate, spot.nodes), (self.laid.twin, spot.others))
        return spot.how, *(
            tuple(
                (node.op_type, *sorted(a.SerializeToString() for a in node.attribute))
                for node in map(graph.node, nodes)
            )
            for graph, nodes in sides
        )


@dataclass(frozen=True, slots=True)
class Found:
    """The culprits, what putting them right does, and whether the graphs differ in nothing that was not looked at."""

    culprits: tuple[Culprit, ...]
    effect: Effect
    whole: bool


def found(case: Case) -> Found | None:
    """The few nodes that differ, if the reference's in their place take the difference away.

    Both graphs are read as they are written, then as the runtime simplifies them: what an optimiser has folded, merged
    or left out in one of the files is then the same in both.
    """
    known, proto = twin(case), case.editable()
    if known is None or proto is None:
        return None
    graph = Opened.of(proto, case.tensor_types())
    outputs = [(spec.candidate, known.outputs.get(spec.reference, "")) for spec in case.specs]
    written = diffed(graph, known.graph, outputs)
    if written is not None and not written.places and written.whole:
        return None
    few = written is not None and len(written.places) <= MOST_DIFFERING
    result = _proven(case, known, written) if written is not None and few else None
    scattered = result is not None and len(result.culprits) > FEW
    both = _simplified(case, graph, known) if result is None or scattered else None
    simple = None if both is None else diffed(*both, outputs)
    if scattered and simple is not None and len(simple.places) <= FEW:
        # A normalisation that one exporter merges differs in every layer; merged in both, what is left is the fault.
        return _proven(case, known, simple) or result
    # What differs alike in many places may be an optimiser's doing.
    left = [diff for diff in (None if few else written, simple) if diff is not None]
    for diff in sorted(left, key=lambda diff: len(diff.places)):
        result = result or _proven(case, known, diff)
    return result


def _simplified(case: Case, graph: Opened, known: Twin) -> tuple[Opened, Opened] | None:
    """Both graphs with constants folded, batch norms merged and what does nothing left out, all by the same rules."""
    if any(case.model(side).options.get("runtime", ORT) != ORT for side in ("candidate", known.side)):
        return None
    made = []
    for side in (graph, known.graph):
        case.require_time()
        try:
            simple = rewritten(Model("onnx", None, {"optimization": "basic"}), side.proto)
        except ModelError:
            return None
        made.append(Opened.of(simple, edits.tensor_types(simple)))
    return made[0], made[1]


def _proven(case: Case, known: Twin, diff: Diff) -> Found | None:
    """The places that are enough, if putting them right takes the difference away."""
    # What cannot be written in the candidate's opset may be nothing but another way to write the same.
    groups = [group for group in diff.groups if _put_right(diff.laid, group) is not None]
    if not groups:
        return None
    if len(groups) > 1:
        few = experiment.fewest(case, groups, lambda trial, some: _run(trial, diff.laid, [s for g in some for s in g]))
        if few is None:
            return None
        groups = [group for group in groups if group in few[0]]
    spots = [spot for group in groups for spot in group]
    # What differs alike need not matter alike.
    spots = experiment.telling(case, spots, lambda spot: Change(target=_put_right(diff.laid, [spot])))
    target = _put_right(diff.laid, spots)
    effect = None if target is None else experiment.run(case, Change(target=target))
    if target is None or effect is None or not effect.explains:
        return None
    laid = diff.laid
    told = Beside(laid.candidate, laid.twin, {}, {}, {name: (other,) for name, other in laid.tensors.items()})
    culprits = [Culprit(Graft(spot.how, target, spot.nodes, spot.others, spot.tensors[0][0]), told) for spot in spots]
    whole = diff.whole and not known.exported and case.plan.candidate.options == case.plan.reference.options
    # Of many in the same way, a few tell.
    seen = [_seen(case, known, one) for one in culprits[:SEEN]]
    return Found((*seen, *culprits[SEEN:]), effect, whole)


def diffed(candidate: Opened, other: Opened, outputs: Sequence[tuple[str, str]]) -> Diff | None:
    """Where two graphs differ, in the way of laying them side by side that leaves the least; else None.

    `outputs` are the names of outputs that are compared, the candidate's and the twin's.
    """
    best: Diff | None = None
    for pairs in (_by_names, _by_order, _by_weights):
        if best is not None and best.whole and best.size <= ONE_NODE:
            break
        laid = _laid(candidate, other, pairs(candidate, other))
        grown, by_weights = _grown(laid), pairs is _by_weights
        # Weights alone tell of few nodes, and what hangs between them follows: it has to leave less of both.
        known = grown if by_weights else laid
        if len(known.nodes) < ALIKE * max(len(candidate.computing), len(other.computing)):
            continue
        made = _diff(grown, outputs)
        if made is None:
            continue
        both = zip(made.size, (made if best is None else best).size, strict=True)
        less = all(mine < yours for mine, yours in both) if by_weights else best is None or made.size < best.size
        best = made if best is None or less else best
    return best


def _by_names(candidate: Opened, other: Opened) -> dict[int, int]:
    """Nodes of one name and operator; then those that give a tensor of the same name."""
    named = {other.node(index).name: index for index in other.computing if other.node(index).name}
    found: dict[int, int] = {}
    for index in candidate.computing:
        there = named.get(candidate.node(index).name)
        if there is not None and other.node(there).op_type == candidate.node(index).op_type:
            found[index] = there
    taken, computing = set(found.values()), set(other.computing)
    for index in candidate.computing:
        there = other.makers.get(candidate.node(index).output[0])
        if index not in found and there in computing and there not in taken:
            found[index] = there
            taken.add(there)
    return found


def _by_order(candidate: Opened, other: Opened) -> dict[int, int]:
    found = {mine: yours for yours, mine in weight_matching.aligned(other.proto, candidate.proto)}
    while True:
        # What reads a stranger may be one, too.
        laid = _laid(candidate, other, found)
        kept = {mine: yours for mine, yours in found.items() if not _strangers(laid, mine, yours)}
        if len(kept) == len(found):
            return found
        found = kept


def _by_weights(candidate: Opened, other: Opened) -> dict[int, int]:
    """Nodes of the same weights, as exporters come to branches in orders of their own; the rest grows between them."""
    return {mine: yours for yours, mine in weight_matching.alike(other.proto, candidate.proto)}


def _strangers(laid: Laid, index: int, there: int) -> bool:
    """Have two nodes nothing in common but their operator: other attributes, and nothing that both read?

    A shape is that of many tensors: one that is taken of another is another one.
    """
    mine, yours = laid.candidate.node(index), laid.twin.node(there)
    if (list(mine.attribute) == list(yours.attribute) and mine.op_type != "Shape") or not mine.input:
        return False
    held, wanted = laid.candidate.constants_of(index), laid.twin.constants_of(there)
    both = zip(mine.input, yours.input, strict=False)
    if any(_same(held[slot], wanted.get(slot)) for slot in held) or any(laid.tensors.get(a) == b for a, b in both):
        return False
    attributes = grafts.attributes(laid.candidate.proto, mine, laid.twin.proto, yours)
    return mine.op_type == "Shape" or any(True for _ in attributes)


def _laid(candidate: Opened, other: Opened, nodes: Mapping[int, int]) -> Laid:
    tensors = {
        name: there
        for mine, yours in nodes.items()
        for name, there in zip(candidate.node(mine).output, other.node(yours).output, strict=False)
        if name and there
    }
    ours, theirs = ([v.name for v in side.proto.graph.input if v.name in side.inputs] for side in (candidate, other))
    same = set(ours) == set(theirs)
    if same or len(ours) == len(theirs):
        tensors |= {name: name if same else there for name, there in zip(ours, theirs, strict=True)}
    return Laid(candidate, other, nodes, tensors, {there: name for name, there in tensors.items()})


def _grown(laid: Laid) -> Laid:
    """The same with nodes that neither name nor order told of: the same operator on the same tensors and constants."""
    free: dict[tuple[str, ...], list[int]] = {}
    taken, nodes, tensors = set(laid.nodes.values()), dict(laid.nodes), dict(laid.tensors)
    for there in laid.twin.computing:
        if there not in taken:
            free.setdefault(_question(laid.twin, there, None), []).append(there)
    for index in laid.candidate.computing if free else ():
        if index in nodes:
            continue
        held = laid.candidate.constants_of(index)
        for there in free.get(_question(laid.candidate, index, tensors), ()):
            wanted = laid.twin.constants_of(there)
            if there not in taken and all(_same(held.get(slot), wanted.get(slot)) for slot in held.keys() | wanted):
                nodes[index] = there
                taken.add(there)
                outputs = zip(laid.candidate.node(index).output, laid.twin.node(there).output, strict=False)
                tensors |= {name: other for name, other in outputs if name and other}
                break
    return laid if nodes == laid.nodes else _laid(laid.candidate, laid.twin, nodes)


def _question(graph: Opened, index: int, tensors: Mapping[str, str] | None) -> tuple[str, ...]:
    """The operator of a node and what it reads, by the twin's names."""
    node, held = graph.node(index), graph.constants_of(index)
    names = (CONSTANT if slot in held else name for slot, name in enumerate(node.input))
    read = (name if tensors is None or name in (CONSTANT, "") else tensors.get(name, UNKNOWN) for name in names)
    return (node.op_type, *read)


def _diff(laid: Laid, outputs: Sequence[tuple[str, str]]) -> Diff | None:
    found: dict[tuple[tuple[str, str], ...], Spot] = {}
    whole = True
    for index, there in laid.nodes.items():
        for place in _at(laid, index, there):
            known = found.get(place.tensors)
            # What several nodes read is one place.
            found[place.tensors] = place if known is None else known.also(place)
    for name, theirs in outputs:
        if laid.tensors.get(name) == theirs:
            continue
        between = _wired(laid, None, name, theirs)
        if between is None:
            whole = False
        else:
            found.setdefault(between.tensors, between)
    made = Diff(laid, tuple(found.values()), whole)
    return made if len(made.groups) <= MOST_DIFFERING else None


def _at(laid: Laid, index: int, there: int) -> Iterator[Spot]:
    """In what places two nodes differ that stand for one another: themselves, or what leads to them."""
    mine, yours = laid.candidate.node(index), laid.twin.node(there)
    held, wanted = laid.candidate.constants_of(index), laid.twin.constants_of(there)
    own = mine.op_type != yours.op_type or len(mine.input) != len(yours.input)
    if not own and list(mine.attribute) != list(yours.attribute):
        # Optimisers write attributes in another order, and defaults as well.
        own = any(True for _ in grafts.attributes(laid.candidate.proto, mine, laid.twin.proto, yours))
    stored: list[str] = []
    for slot, (name, other) in enumerate(zip(mine.input, yours.input, strict=False)):
        if slot in held or slot in wanted:
            if not _same(held.get(slot), wanted.get(slot)):
                stored.append(held[slot].tensor if slot in held else "")
        elif name in laid.tensors or other in laid.given or not (name and other):
            if laid.tensors.get(name, "") == other:
                continue
            before = None if own else _wired(laid, index, name, other)
            if before is None:
                own = True
            else:
                yield before
        elif name in laid.candidate.makers and other in laid.twin.makers and not own:
            place = _wired(laid, index, name, other)
            if place is not None:
                yield place
    if not own and not stored:
        return
    tensors = [(name, other) for name, other in zip(mine.output, yours.output, strict=False) if name and other]
    equal = {name: (other,) for name, other in laid.tensors.items()}
    wired = any(laid.tensors.get(a) != b for a, b in zip(mine.input, yours.input, strict=False) if a in laid.tensors)
    other_kind = mine.op_type != yours.op_type
    if other_kind or wired or any(True for _ in grafts.differing(laid.candidate, index, laid.twin, there, equal)):
        only = stored[0] if len(stored) == 1 and not own else ""
        yield Spot("replaced", tuple(tensors), (index,), (there,), only)


def _wired(laid: Laid, index: int | None, name: str, other: str) -> Spot | None:
    """What stands between two tensors that should be one: a node too much or missing, or others; None if neither."""
    here = () if name in laid.tensors else _before(laid.candidate, name, laid.tensors)
    there = () if other in laid.given else _before(laid.twin, other, laid.given)
    if here is None or there is None or (not here and not there):
        return None
    if index is None and not here and name not in laid.candidate.makers:
        return None
    tensors, readers = ((name, other),), () if index is None else (index,)
    if here:
        return Spot("replaced" if there else "bypassed", tensors, here, there, readers=readers)
    # The part of an output that is missing comes behind the node that gives it.
    return Spot(
        "inserted" if readers else "appended", tensors, readers or (laid.candidate.makers[name],), there, "", readers
    )


def _before(graph: Opened, name: str, known: Mapping[str, str]) -> tuple[int, ...] | None:
    """The nodes between a tensor and those that the other graph has too."""
    return graph.computing_in(graph.cone(name, known)) or None if name in graph.makers else None


def _same(one: Constant | None, other: Constant | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.values.dtype == other.values.dtype and equal(one.values, other.values)


def _run(trial: Trial, laid: Laid, places: Sequence[Spot]) -> Effect | None:
    target = _put_right(laid, places)
    return None if target is None else trial.run(Change(target=target))


def _put_right(laid: Laid, places: Sequence[Spot]) -> ModelProto | None:
    """The candidate with the twin's part in these places."""
    if len(places) == 1 and places[0].how == "inserted":
        tensors, readers = dict(places[0].tensors), places[0].readers
        return grafts.graft(laid.candidate, laid.twin, tensors, given=laid.given, readers=readers)
    tensors, times = {}, Counter(name for place in places for name, _ in place.tensors)
    for place in places:
        # What is one tensor here and several there is told apart by the nodes that read it, as is what is missing.
        apart = place.how == "inserted" or (place.readers and any(times[name] > 1 for name, _ in place.tensors))
        if not apart:
            tensors |= dict(place.tensors)
        for index in place.readers if apart else ():
            pairs = zip(laid.candidate.node(index).output, laid.twin.node(laid.nodes[index]).output, strict=False)
            tensors |= {name: there for name, there in pairs if name and there}
    behind = {name for place in places if place.how == "appended" for name, _ in place.tensors}
    given = {there: name for there, name in laid.given.items() if name not in tensors or name in behind}
    return grafts.graft(laid.candidate, laid.twin, tensors, given=given)


def _seen(case: Case, known: Twin, culprit: Culprit) -> Culprit:
    """The same with what both give there, where it is to be told whether that is nearly the same."""
    both = culprit.beside
    idle = all(both.candidate.node(index).op_type == "Identity" for index in culprit.graft.nodes)
    if culprit.graft.how != "replaced" or culprit.differing or idle:
        return culprit
    batch = case.rows(failing_positions(case, ROWS))
    wanted = both.twin.node(culprit.graft.others[-1]).output[0]
    ours = inside(case, "candidate", both.candidate, [culprit.graft.tensor], fed(case, "candidate", batch))
    theirs = inside(case, known.side, both.twin, [wanted], known.inputs(batch))
    return replace(culprit, beside=replace(both, ours=_sketched(ours), theirs=_sketched(theirs)))


def _sketched(values: Mapping[str, Array]) -> dict[str, Sketch]:
    return {name: sketch(array) for name, array in values.items()}
