"""Parts of one graph put into another, and what tells two nodes of the same operator apart.

A graft takes the nodes that compute a tensor in one graph, lets them start from tensors of the other, and puts what
they give in the place of one of its tensors. What nothing reads then is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.contracts.data import Array
from likewise.data.cells import listed
from likewise.models.onnx import describe, edits
from likewise.models.onnx.inside import Constant, Opened, blocks

if TYPE_CHECKING:
    from onnx import AttributeProto, ModelProto, NodeProto

GRAFTED = "grafted."
"""Before the names of everything that comes from the other graph."""

REPLACED = "__replaced"
"""Behind the name of a tensor that a graft stands for."""

CLOSE = 1e-6
"""Two numbers of an attribute are one if they differ by no more than this part of the larger."""

MANY, ROUNDED_OFF = 4, 2.5e-7
"""Of so many numbers or more, two are one if they differ by no more than this part of the largest."""


HALF_ENDS, HALF_LEAST = (65_504.0, 10_000.0, np.inf), (0.0, 1e-7, 5.96e-8)
"""Where converters to float16 cut numbers off: at its largest, before, or nowhere, so that they are infinite; and what
they leave of the smallest."""


@dataclass(frozen=True, slots=True)
class Differing:
    """One thing in which two nodes differ: an attribute, a constant, or the tensor that an input comes from.

    `kind` is "attribute", "weights", "constant", "narrowed" (too large for half precision), "frozen" or "wiring",
    inside of branches also "missing" or "operator"; `told` says it of the first of them. `inner`: it is inside of a
    branch or loop, and `name` is the node there. `value` is what the twin has; of what is frozen or wired otherwise,
    its tensor.
    """

    kind: str
    name: str
    told: str
    value: Any = None
    constant: Constant | None = None
    inner: bool = False


BRANCHES = ("then_branch", "else_branch")

ARITHMETIC = {"Add", "Sub", "Mul", "Div", "Mod"}
"""Operators whose whole numbers are what is computed with: there is a table where there are several."""

LONGEST_SETTING = 16
"""Axes, sizes and pads are no longer than this; whole numbers beyond it are a table, such as one of indices."""

UNTOLD = {"allowzero"}
"""Attributes that exporters set as they please, as no shape that they write has a nought in it."""


def opset(proto: ModelProto, domain: str) -> int:
    names = ("", "ai.onnx") if domain in ("", "ai.onnx") else (domain,)
    return next((entry.version for entry in proto.opset_import if entry.domain in names), 0)


def same_operator(one: ModelProto, other: ModelProto, node: NodeProto) -> bool:
    """Does the operator of a node mean the same in both graphs? It may change from one opset to the next."""
    from onnx import defs

    first, second = (opset(proto, node.domain) for proto in (one, other))
    if first == second or not second:
        return True
    try:
        domain = "" if node.domain == "ai.onnx" else node.domain
        found = [defs.get_schema(node.op_type, version, domain).since_version for version in (first, second)]
    except Exception:  # noqa: BLE001 - an operator without a schema, known to the runtime alone
        return True
    return found[0] == found[1]


def graft(
    candidate: Opened,
    twin: Opened,
    tensors: Mapping[str, str],
    *,
    given: Mapping[str, str],
    readers: Collection[int] = (),
) -> ModelProto | None:
    """The candidate with what the twin computes in the place of some of its tensors, for some readers or for all.

    `tensors` are the twin's by the candidate's names, `given` the candidate's by the twin's: those that both have.
    None where that cannot be written.
    """
    copy = edits.copied(candidate.proto)
    put: dict[str, str] = {}
    planted: set[int] = set()
    for at, tensor in tensors.items():
        if tensor in given:
            put[at] = given[tensor]
            continue
        if not _plant(copy, candidate, twin, tensor, given, planted):
            return None
        put[at] = GRAFTED + tensor
        mine, theirs = candidate.types.get(at), twin.types.get(tensor)
        if mine is not None and theirs is not None and mine != theirs:
            put[at] += ".cast"
            copy.graph.node.append(edits.make_node("Cast", [GRAFTED + tensor], [put[at]], put[at], to=mine))
    if readers:
        for index in readers:
            edits.rename_reads(copy.graph.node[index], put)
    else:
        _put(copy, candidate, put)
    del copy.graph.value_info[:]
    return copy if _in_order(copy) else None


def _put(copy: ModelProto, candidate: Opened, put: Mapping[str, str]) -> None:
    """Let everything read other tensors instead, and give them as the outputs of the graph."""
    outputs = {value.name for value in copy.graph.output}.intersection(put)
    planted = [node for node in copy.graph.node if node.name.startswith(GRAFTED)]
    others = [node for node in copy.graph.node if not node.name.startswith(GRAFTED)]
    for at in outputs:
        maker = copy.graph.node[candidate.makers[at]]
        maker.output[list(maker.output).index(at)] = at + REPLACED
        copy.graph.node.append(edits.make_node("Identity", [put[at]], [at], GRAFTED + "out." + at))
    # What starts from an output comes behind it, and the rest of the graph reads what it has always read.
    behind = {at: at + REPLACED for node in planted for at in node.input if at in outputs}
    for node in planted:
        edits.rename_reads(node, behind)
    for node in others:
        edits.rename_reads(node, {**put, **behind})


def _plant(
    copy: ModelProto, candidate: Opened, twin: Opened, tensor: str, given: Mapping[str, str], planted: set[int]
) -> bool:
    """Add the nodes that compute a tensor, with their constants, under names of their own; none of them twice."""
    cone = twin.cone(tensor, given)
    if any(name not in given for name in cone.inputs):
        return False
    added = [index for index in cone.nodes if index not in planted]
    planted.update(added)
    nodes = [twin.node(index) for index in added]
    if not all(same_operator(twin.proto, candidate.proto, node) for node in nodes):
        return False
    renamed = {name: GRAFTED + name for index in cone.nodes for name in twin.node(index).output if name}
    needed = {name for index in cone.nodes for name in twin.reads[index]}
    there = {entry.name for entry in copy.graph.initializer}
    for entry in twin.proto.graph.initializer:
        if entry.name in needed:
            renamed[entry.name] = GRAFTED + entry.name
            if GRAFTED + entry.name not in there:
                copy.graph.initializer.add().CopyFrom(entry)
                copy.graph.initializer[-1].name = GRAFTED + entry.name
    for source in (*cone.sources, *cone.inputs):
        mine, theirs = candidate.types.get(given[source]), twin.types.get(source)
        renamed[source] = given[source]
        if mine is not None and theirs is not None and mine != theirs:
            renamed[source] = f"{GRAFTED}cast.{source}"
            if any(renamed[source] in node.output for node in copy.graph.node):
                continue
            cast = edits.make_node("Cast", [given[source]], [renamed[source]], renamed[source], to=theirs)
            copy.graph.node.append(cast)
    own = {entry.domain for entry in copy.opset_import}
    for node in nodes:
        made = copy.graph.node.add()
        made.CopyFrom(node)
        made.name = GRAFTED + node.name
        for slot, name in enumerate(made.output):
            made.output[slot] = renamed.get(name, name)
        edits.rename_reads(made, renamed)
        if node.domain not in own and not (node.domain in ("", "ai.onnx") and own & {"", "ai.onnx"}):
            copy.opset_import.add(domain=node.domain, version=opset(twin.proto, node.domain))
            own.add(node.domain)
    return True


def _in_order(proto: ModelProto) -> bool:
    """Keep what leads to an output, each node behind what it reads; False where they go round in a circle."""
    graph = proto.graph
    needed, read = edits.leading_to(graph, [value.name for value in graph.output])
    edits.replace_nodes(graph, [graph.node[index] for index in needed])
    try:
        edits.sort_nodes(graph)
    except ValueError:
        return False
    read |= {value.name for value in graph.input}
    for place in reversed(range(len(graph.initializer))):
        if graph.initializer[place].name not in read:
            del graph.initializer[place]
    return True


def differing(
    candidate: Opened, index: int, twin: Opened, other: int, equal: Mapping[str, Collection[str]]
) -> Iterator[Differing]:
    """In what a node of the candidate differs from one of the twin with the same operator.

    `equal` are, for the candidate's tensors, those of the twin that hold the same.
    """
    mine, yours = candidate.node(index), twin.node(other)
    yield from attributes(candidate.proto, mine, twin.proto, yours)
    held, wanted = candidate.constants_of(index), twin.constants_of(other)
    names, others = list(mine.input), list(yours.input)
    slots = range(max(len(names), len(others)))

    def same(here: int, there: int) -> bool:
        if here in held and there in wanted:
            return held[here].values.shape == wanted[there].values.shape and _same(
                held[here].values, wanted[there].values
            )
        return others[there] in equal.get(names[here], ())

    crossed = _crossed(names, len(others), same)
    if crossed:
        yield Differing("wiring", names[0], f"its inputs are in another order: {crossed}")
    for slot in () if crossed else slots:
        here, there = (some[slot] if slot < len(some) else "" for some in (names, others))
        if slot in held and slot in wanted:
            yield from _values(held[slot], wanted[slot], slot)
        elif slot in held and there:
            told = f"input {slot} is the constant {_short(held[slot].values)}, which the reference computes"
            yield Differing("frozen", here, told, there)
        elif bool(here) != bool(there):
            told = f"input {slot} is not there" if there else f"it reads '{here}' as well, which the reference does not"
            yield Differing("missing" if there else "wiring", there or here, told)
        elif here and slot not in wanted and there not in equal.get(here, ()) and here != there:
            yield Differing("wiring", here, f"it reads '{here}' where the reference reads '{there}'", there)
    yield from _captured(candidate, mine, twin, yours)


def _captured(candidate: Opened, mine: NodeProto, twin: Opened, yours: NodeProto) -> Iterator[Differing]:
    """Constants of the graph that branches and loops read."""
    read, wanted = ([name for name in edits.reads(node) if name not in node.input] for node in (mine, yours))
    if not read or not wanted:
        return
    held, known = edits.constants(candidate.proto.graph), edits.constants(twin.proto.graph)
    for here, there in zip(dict.fromkeys(read), dict.fromkeys(wanted), strict=False):
        if here in held and there in known:
            inner = next((n for g in edits.subgraphs(mine) for n in edits.all_nodes(g) if here in n.input), mine)
            for entry in _values(
                Constant(here, "", 0, 0, held[here], ""), Constant(there, "", 0, 0, known[there], ""), 0
            ):
                yield replace(entry, name=inner.name or inner.output[0], inner=True)


def _crossed(names: Sequence[str], count: int, same: Callable[[int, int], bool]) -> str:
    """The inputs, where they are the same ones in another order."""
    if len(names) != count or count < 2:
        return ""
    orders = [next((here for here in range(count) if same(here, there)), None) for there in range(count)]
    if None in orders or orders == sorted(orders, key=lambda place: place or 0) or len(set(orders)) < len(orders):
        return ""
    return f"{listed(names)} instead of {listed([names[place or 0] for place in orders])}"


def _values(held: Constant, wanted: Constant, slot: int) -> Iterator[Differing]:
    ours, theirs = held.values, wanted.values
    if ours.shape == theirs.shape and _same(ours, theirs):
        return
    floats = ours.dtype.kind == "f" and ours.size > 1
    table = floats or ours.size > LONGEST_SETTING or (ours.size > 1 and held.operator in ARITHMETIC)
    kind = "narrowed" if _cut_off(ours, theirs) else "weights" if table else "constant"
    if not floats and (ours.shape != theirs.shape or ours.size <= MOST_SHOWN or ours.dtype.kind not in "biu"):
        told = f"input {slot} ('{held.tensor}') is {_short(ours)}, in the reference {_short(theirs)}"
    elif ours.shape != theirs.shape:
        told = f"'{held.tensor}' has the shape {list(ours.shape)}, in the reference {list(theirs.shape)}"
    else:
        first, count = 0, 0
        for places in _apart(ours, theirs, CLOSE, 0.0):
            first, count = first if count else int(places[0]), count + len(places)
        at = tuple(int(i) for i in np.unravel_index(first, ours.shape))
        more = f" and {count - 1:,} more of {ours.size:,}" if count > 1 else ""
        told = f"'{held.tensor}'{list(at)} is {_short(ours[at].item())} instead of {_short(theirs[at].item())}{more}"
        square = ours.ndim == 2 and ours.shape[0] == ours.shape[1]
        if square and _same(ours[0], theirs[:, 0]) and _same(ours, theirs.T):
            told = f"'{held.tensor}' is transposed"
    told += ": cut off where float16 ends or its converter stops" if kind == "narrowed" else ""
    yield Differing(kind, held.tensor, told, theirs, held)


def _cut_off(ours: Array, theirs: Array) -> bool:
    """Are numbers in half precision the reference's, but for those that were too large or too small for it?"""
    # Where the runtime has no kernel for it, it widens what is in half precision as it is.
    if ours.dtype.name not in ("float16", "float32") or ours.shape != theirs.shape or theirs.dtype.kind != "f":
        return False
    held, wanted = ours.astype(np.float64), theirs.astype(np.float64)
    for most, least in product(HALF_ENDS, HALF_LEAST):
        raised = np.where((wanted != 0) & (np.abs(wanted) < least), np.copysign(least, wanted), wanted)
        with np.errstate(over="ignore"):
            narrow = np.clip(raised, -most, most).astype(np.float16).astype(np.float64)
        if _same(held, narrow):
            return True
    return False


def _same(ours: Array, theirs: Array) -> bool:
    if ours.dtype.kind not in "biuf" or theirs.dtype.kind not in "biuf":
        return bool(np.array_equal(ours.astype(str), theirs.astype(str)))
    # A narrower type holds the same numbers less exactly.
    widths = [np.finfo(side.dtype).eps for side in (ours, theirs) if side.dtype.kind == "f"]
    close = max([CLOSE, *(2 * float(width) for width in widths if width > 1e-5)])
    least = 1e-30
    if len(widths) == 2 and theirs.size >= MANY:
        # What folding a batch norm rounds off does not shrink with the number.
        least = max(least, ROUNDED_OFF * float(np.max(np.abs(theirs), where=np.isfinite(theirs), initial=0.0)))
    return ours.size == theirs.size and not any(True for _ in _apart(ours, theirs, close, least))


def _apart(ours: Array, theirs: Array, relative: float, least: float) -> Iterator[Array]:
    """The flat positions at which two arrays of one size differ by more than this, some at a time."""
    held, wanted = ours.reshape(-1), theirs.reshape(-1)
    for part in blocks(held, wanted):
        if not np.array_equal(held[part], wanted[part]):
            mine, yours = held[part].astype(np.float64), wanted[part].astype(np.float64)
            found = np.flatnonzero(~np.isclose(mine, yours, rtol=relative, atol=least, equal_nan=True))
            if len(found):
                yield part.start + found


def attributes(one: ModelProto, mine: NodeProto, other: ModelProto, yours: NodeProto) -> Iterator[Differing]:
    """The attributes in which two nodes differ; one that is left out has its default, and their order says nothing."""
    ours, theirs = _settings(one, mine), _settings(other, yours)
    if mine.op_type == yours.op_type == "If" and _exchanged(one, ours, other, theirs):
        yield Differing("wiring", mine.name or mine.output[0], "its branches are exchanged")
        return
    for name in sorted(ours.keys() | theirs.keys()):
        held, wanted = ours.get(name), theirs.get(name)
        if _graph(held) or _graph(wanted):
            if held is not None and wanted is not None and (inner := _inside(one, held, other, wanted)) is not None:
                yield replace(inner, inner=True)
        elif not _equal(held, wanted):
            told = f"{name}={_short(held)}, in the reference {_short(wanted)}"
            yield Differing("weights" if _learnt(mine, held, wanted) else "attribute", name, told, wanted)


def _exchanged(one: ModelProto, ours: Mapping[str, Any], other: ModelProto, theirs: Mapping[str, Any]) -> bool:
    """Is each branch the other one in the twin, and not the same?"""
    held, wanted = ([found[name] for name in BRANCHES] for found in (ours, theirs))
    straight, crossed = (
        [_inside(one, mine, other, yours) is None for mine, yours in zip(held, way, strict=True)]
        for way in (wanted, wanted[::-1])
    )
    return all(crossed) and not any(straight)


def _learnt(node: NodeProto, *values: Any) -> bool:
    """Are these the numbers of a model that is one node, such as coefficients, thresholds and vectors?"""
    return node.domain == "ai.onnx.ml" and any(isinstance(value, Sequence) and len(value) > 1 for value in values)


def _graph(value: Any) -> bool:
    return hasattr(value, "node") and hasattr(value, "initializer")


def _inside(one: ModelProto, held: Any, other: ModelProto, wanted: Any) -> Differing | None:
    """The first difference inside of a branch or loop; nodes are put together by their order."""
    stored, known = edits.constants(held), edits.constants(wanted)
    operators = [[node.op_type for node in graph.node] for graph in (held, wanted)]
    pairs: list[tuple[int, int]] = []
    changes = SequenceMatcher(None, operators[0], operators[1], autojunk=False).get_opcodes()
    if operators[0] != operators[1] and Counter(operators[0]) == Counter(operators[1]):
        # Nothing is missing: they are written in another order, or hang together otherwise.
        pairs, changes = _hanging_alike(held, wanted), []
        if (place := next((i for i in range(len(held.node)) if i not in dict(pairs)), None)) is not None:
            node = held.node[place]
            told = f"inside, {node.op_type} that gives '{node.output[0]}' reads something else than in the reference"
            return Differing("wiring", node.name or node.output[0], told)
    for tag, first, last, start, stop in changes:
        if tag == "equal":
            pairs += zip(range(first, last), range(start, stop), strict=True)
        elif tag == "insert":
            missing, before = wanted.node[start], held.node[min(first, len(held.node) - 1)]
            told = f"inside, before '{before.output[0]}', the reference has {missing.op_type}"
            return Differing("missing", before.name or before.output[0], told)
        else:
            node = held.node[first]
            instead = wanted.node[start].op_type if tag == "replace" else "nothing"
            told = f"inside, {node.op_type} that gives '{node.output[0]}' stands where the reference has {instead}"
            return Differing("operator", node.name or node.output[0], told)
    order, others = ({n: i for i, node in enumerate(g.node) for n in node.output} for g in (held, wanted))
    matched = dict(pairs)
    for place, there in pairs:
        mine, yours = held.node[place], wanted.node[there]
        name, said = mine.name or mine.output[0], f"inside, {mine.op_type} that gives '{mine.output[0]}'"
        for entry in attributes(one, mine, other, yours):
            return Differing(entry.kind, name, f"{said}: {entry.told}")
        for here, wanted_name in zip(mine.input, yours.input, strict=False):
            if here in stored and wanted_name in known:
                if not _same(stored[here], known[wanted_name]):
                    table = stored[here].dtype.kind == "f" or stored[here].size > LONGEST_SETTING
                    kind = "weights" if table else "constant"
                    values = f"'{here}' is {_short(stored[here])}, in the reference {_short(known[wanted_name])}"
                    return Differing(kind, name, f"{said}: {values}")
            elif matched.get(order.get(here, -1), order.get(here)) != others.get(wanted_name):
                return Differing("wiring", name, f"{said} reads '{here}' where the reference reads '{wanted_name}'")
    return None


def _hanging_alike(held: Any, wanted: Any) -> list[tuple[int, int]]:
    """The nodes of two graphs that are made of the same inputs by the same operators, in whatever order they stand."""
    made: list[dict[Any, list[int]]] = []
    for graph in (held, wanted):
        known: dict[str, Any] = {value.name: place for place, value in enumerate(graph.input)}
        known |= {name: array.shape for name, array in edits.constants(graph).items()}
        places: dict[Any, list[int]] = {}
        for index, node in enumerate(graph.node):
            # The way to a node that a graph holds many times over is long: a hash of it is not.
            way = hash((node.op_type, *(known.get(name) for name in node.input)))
            places.setdefault(way, []).append(index)
            known |= {name: (way, slot) for slot, name in enumerate(node.output)}
        made.append(places)
    ours, theirs = made
    return sorted(pair for way in ours for pair in zip(ours[way], theirs.get(way, ()), strict=False))


def _settings(proto: ModelProto, node: NodeProto) -> dict[str, Any]:
    """The attributes of a node, those among them that are left out and have a default."""
    from onnx import defs, helper

    found: dict[str, Any] = {}
    try:
        schema = defs.get_schema(
            node.op_type, opset(proto, node.domain), "" if node.domain == "ai.onnx" else node.domain
        )
        found = {name: _default(entry.default_value) for name, entry in schema.attributes.items()}
    except Exception:  # noqa: BLE001 - an operator without a schema has no defaults that are known
        pass
    given: dict[str, Any] = {entry.name: helper.get_attribute_value(entry) for entry in node.attribute}
    return {name: value for name, value in {**found, **given}.items() if value is not None and name not in UNTOLD}


def _default(value: AttributeProto) -> Any:
    from onnx import AttributeProto, helper

    return None if value.type == AttributeProto.UNDEFINED else helper.get_attribute_value(value)


def _equal(held: Any, wanted: Any) -> bool:
    if held is None or wanted is None:
        return held is wanted
    if hasattr(held, "dims") and hasattr(wanted, "dims"):
        ours, theirs = describe.array(held), describe.array(wanted)
        return ours.shape == theirs.shape and _same(ours, theirs)
    if isinstance(held, float) or (isinstance(held, Sequence) and len(held) and isinstance(held[0], float)):
        ours, theirs = np.asarray(held, dtype=np.float64), np.asarray(wanted, dtype=np.float64)
        return ours.shape == theirs.shape and bool(np.allclose(ours, theirs, rtol=CLOSE, atol=0, equal_nan=True))
    return bool(held == wanted)


MOST_SHOWN = 6


def _short(value: Any) -> str:
    """A value in a sentence."""
    if value is None:
        return "none"
    if hasattr(value, "dims"):
        value = describe.array(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, np.ndarray) and value.size == 1:
        return _short(value.item())
    if isinstance(value, np.ndarray):
        return _listed(value.ravel()[:MOST_SHOWN].tolist(), value.size)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return _listed(value[:MOST_SHOWN], len(value))
    return str(value)


def _listed(first: Sequence[Any], count: int) -> str:
    return f"[{', '.join(map(_short, first))}{f', … {count:,} in all' if count > len(first) else ''}]"
