"""The smallest piece of a candidate that still shows a difference, ready to be handed to whoever can mend it.

A folder with a model, its inputs and the values that are expected, a script that needs only ONNX Runtime and numpy, and
a text for an issue. Where a remedy is known, it says what is expected inside the graph: the first node that gives
something else is cut out. Where the runtime's optimiser is at fault, it is the few nodes that it changes. Else it is
the candidate itself with the reference's answers.
"""

from __future__ import annotations

import io
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import numpy as np

from likewise.compare.observe import rows_beyond
from likewise.contracts.comparison import Pair
from likewise.contracts.data import Array
from likewise.contracts.models import Model
from likewise.models.arrays import RowLayout
from likewise.models.onnx import describe, edits, standard
from likewise.report.formats.markdown import text

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

    from likewise.contracts.report import Report
    from likewise.explain.case import Case, Explained
    from likewise.explain.driver import Investigation

ROWS = 3
"""Failing rows that are handed over."""

LARGEST = 64 * 2**20
"""Bytes of a model beyond which it is not copied."""

MOST_CUTS = 48
"""Cuts of a graph that are tried to find the nodes that an optimiser changes."""

SHOWS = 1e-5
"""A value shows a difference that is larger than this part of the largest value expected."""

SHOWN = 6
"""Numbers of a value, and nodes, that are written out in the text."""

FILES = ("model.onnx", "inputs.npz", "repro.py", "issue.md")
"""What is in the folder."""

Values = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Piece:
    """A graph, what it is given, and what it should give; `by` says who says so."""

    proto: ModelProto
    inputs: Values
    expected: Values
    by: str
    optimiser: bool = False

    def got(self) -> Values | None:
        return _answers(self.proto, self.inputs)

    def shows(self) -> bool:
        """Does the graph, opened anew, give something else?"""
        got = self.got()
        return got is not None and any(_apart(got[name], value) for name, value in self.expected.items() if name in got)


def files(report: Report, found: Investigation | None) -> dict[str, bytes]:
    """The files of the folder by their names; none where the candidate is no ONNX graph or gives no answers."""
    case = None if found is None else found.case
    if case is None or found is None or case.graph() is None or case.sample is None or not case.sample.failing.any():
        return {}
    rows = _worst(case)
    given, best = _fed(case, rows), found.best[0] if found.best else None
    proto = case.editable()
    piece = None
    if proto is not None and best is not None:
        piece = next((one for one in _pieces(case, proto, best, given) if one is not None and one.shows()), None)
    if piece is None:
        piece = Piece(case.graph(), given, _answered(case, rows), "the reference's answers")
    if describe.size(piece.proto) > LARGEST:
        return {}
    arrays = {f"in{number}": _plain(value) for number, value in enumerate(piece.inputs.values())}
    arrays |= {f"out{number}": _plain(value) for number, value in enumerate(piece.expected.values())}
    held = io.BytesIO()
    np.savez(held, **arrays)  # type: ignore[arg-type]
    model = describe.whole(piece.proto).SerializeToString(deterministic=True)
    script, told = _script(piece), "\n".join(_issue(report, case, best, piece)) + "\n"
    return dict(zip(FILES, (bytes(model), held.getvalue(), script.encode(), told.encode()), strict=True))


def _worst(case: Case) -> Array:
    """The failing rows that are furthest off, in order; a sample without rows is taken whole."""
    sample = case.required
    if not sample.batch.stacked:
        return np.arange(len(sample))
    apart = np.zeros(len(sample))
    for pair in sample.pairs:
        if pair.reference.dtype.kind == "f" and pair.candidate.dtype.kind == "f":
            with np.errstate(invalid="ignore", over="ignore"):
                off = np.abs(pair.candidate.astype(np.float64) - pair.reference).reshape(len(sample), -1).max(axis=1)
            apart = np.maximum(apart, np.nan_to_num(off, nan=np.inf))
        apart = np.maximum(apart, np.where(rows_beyond(pair), 1e-300, 0.0))
    failing = np.flatnonzero(sample.failing)
    return np.sort(failing[np.argsort(-apart[failing], kind="stable")[:ROWS]])


def _fed(case: Case, rows: Array) -> Values:
    """Rows as the graph itself takes them."""
    proto, model = case.graph(), case.model("candidate")
    layout = RowLayout(Model("onnx", proto, batch_axis=model.batch_axis), describe.inputs(proto), ())
    fed, _ = case.side("candidate").feed(case.rows(rows))
    return layout.feed(fed)


def _answered(case: Case, rows: Array) -> Values:
    """What the reference answers to the rows, under the names and in the order of columns of the candidate."""
    found: dict[str, Array] = {}
    for pair in case.required.pairs:
        expected = pair.reference[rows]
        if pair.spec.columns is not None:
            expected = expected[:, np.argsort(pair.spec.columns)]
        if isinstance(pair, Pair) and rows_beyond(pair)[rows].any():
            found[pair.spec.candidate] = expected
    return found


def _pieces(case: Case, proto: ModelProto, best: Explained, given: Values) -> Iterator[Piece | None]:
    """Cuts of the graph that may show the difference, by who says what is expected."""
    for fix in best.fixes:
        if fix.options:
            yield _optimised(proto, given)
            return
        right = fix.make()
        if right is not None:
            yield _against(proto, edits.editable(right), given, f"the graph with this put right: {fix.told}")
    named = [node for node in proto.graph.node if node.name in best.culprit.nodes]
    if len(named) == 1 and not best.fixes:
        yield _by_the_standard(proto, named[0], given)


def _against(proto: ModelProto, right: ModelProto | None, given: Values, by: str) -> Piece | None:
    """The first node that gives something else than in a graph that is right, with all it takes to show it."""
    names = [name for node in proto.graph.node for name in node.output if name]
    if right is None:
        return None
    called = _called(proto, right)
    theirs = _inside(proto, names, given)
    told = _inside(right, list(dict.fromkeys(called[name] for name in names if name in called)), given)
    if told is None or theirs is None:
        return None
    ours = {name: told[called[name]] for name in names if called.get(name) in told}
    known = {name for name in ours.keys() & theirs.keys() if ours[name].dtype == theirs[name].dtype}
    same = {name for name in known if _equal(ours[name], theirs[name])} | set(given)
    wrong = next((name for name in names if name in known and name not in same), None)
    if wrong is None:
        return None
    values = {**theirs, **given}
    inputs = {name: values[name] for name in _edge(proto, wrong, lambda name: name in same) if name in values}
    return Piece(edits.extracted(proto, inputs, {wrong: theirs[wrong]}), inputs, {wrong: ours[wrong]}, by)


def _called(proto: ModelProto, right: ModelProto) -> dict[str, str]:
    """What the tensors of a graph are called in one that was put right: as before, or what is read in their place."""
    made = {name for node in right.graph.node for name in node.output}
    found = {name: name for node in proto.graph.node for name in node.output if name in made}
    there = {node.name: node for node in right.graph.node}
    for node in proto.graph.node:
        other = there.get(node.name)
        for name, instead in zip(node.input, () if other is None else other.input, strict=False):
            if name != instead and instead in made:
                found[name] = instead
    return found


def _edge(proto: ModelProto, output: str, known: Callable[[str], bool]) -> list[str]:
    """The tensors from which on an output is computed: the nearest before its node that are known."""
    makers = {name: node for node in proto.graph.node for name in node.output}
    stored = set(edits.tensors(proto.graph))
    waiting, seen, found = list(edits.reads(makers[output])), {output}, dict[str, None]()
    while waiting:
        name = waiting.pop(0)
        if name in seen or name in stored:
            continue
        seen.add(name)
        if known(name) or name not in makers:
            found[name] = None
        else:
            waiting.extend(edits.reads(makers[name]))
    return list(found)


def _optimised(proto: ModelProto, given: Values) -> Piece | None:
    """The few nodes that give something else once they are optimised: the graph cut off behind, then in front."""
    names = [name for node in proto.graph.node for name in node.output if name]
    values = _inside(proto, names, given)
    if values is None:
        return None
    values = {**given, **values}
    by = "the same file, not optimised"

    def piece(first: int, last: int) -> Piece | None:
        outputs = [name for name in proto.graph.node[last].output if name in values]
        inside = {name for node in proto.graph.node[first : last + 1] for name in node.output}
        inputs = _edge(proto, outputs[0], lambda name: name not in inside) if outputs else []
        if not outputs or any(name not in values for name in inputs):
            return None
        taken, wanted = {name: values[name] for name in inputs}, {outputs[0]: values[outputs[0]]}
        return Piece(edits.extracted(proto, taken, wanted), taken, wanted, by, optimiser=True)

    count = len(proto.graph.node)
    ends = np.unique(np.linspace(0, count - 1, MOST_CUTS).astype(int)).tolist()
    last = next((end for end in ends if (one := piece(0, end)) is not None and one.shows()), None)
    if last is None:
        return None
    starts = range(last, max(-1, last - MOST_CUTS), -1)
    return next((one for start in starts if (one := piece(start, last)) is not None and one.shows()), piece(0, last))


def _by_the_standard(proto: ModelProto, node: NodeProto, given: Values) -> Piece | None:
    """One node on what it is given, beside onnx's own evaluator."""
    names = [name for each in proto.graph.node for name in each.output if name]
    values = _inside(proto, names, given)
    if values is None or node.output[0] not in values:
        return None
    known = {**given, **values}
    inputs = {name: known[name] for name in _edge(proto, node.output[0], lambda _: True) if name in known}
    cut = edits.extracted(proto, inputs, {node.output[0]: values[node.output[0]]})
    try:
        expected = next(iter(standard.evaluator(cut).run(None, dict(inputs))))
    except Exception:  # noqa: BLE001 - it raises what it likes, and has not every operator
        return None
    return Piece(cut, inputs, {node.output[0]: np.asarray(expected)}, "onnx.reference, the standard's own evaluator")


def _inside(proto: ModelProto | None, names: Sequence[str], given: Values) -> dict[str, Array] | None:
    """The values of tensors of a graph as it is written."""
    return None if proto is None else _answers(edits.exposed(proto, names), given, names, optimised=False)


def _answers(
    proto: ModelProto, given: Values, names: Sequence[str] | None = None, *, optimised: bool = True
) -> dict[str, Array] | None:
    """What a session of its own gives; None where it does not open or refuses. What is no array is left out."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.log_severity_level = 4
    if not optimised:
        settings.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        content = describe.whole(proto).SerializeToString()
        session = ort.InferenceSession(content, settings, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_outputs()] if names is None else list(names)
        taken = {value.name for value in session.get_inputs()}
        values = session.run(names, {name: array for name, array in given.items() if name in taken})
    except Exception:  # noqa: BLE001 - the runtime raises many types
        return None
    rows = [_as_array(value) for value in values]
    return {name: value for name, value in zip(names, rows, strict=True) if value is not None}


def _as_array(value: Any) -> Array | None:
    if isinstance(value, list):
        return np.array([list(row.values()) for row in value]) if value and isinstance(value[0], dict) else None
    return np.asarray(value) if isinstance(value, np.ndarray) else None


def _equal(one: Array, other: Array) -> bool:
    return one.shape == other.shape and bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))


def _apart(got: Array, expected: Array) -> bool:
    """Is one value not the other, by more than rounding?"""
    if got.size != expected.size:
        return True
    got = got.reshape(expected.shape)
    if got.dtype.kind not in "fiub" or expected.dtype.kind not in "fiub":
        return bool((got.astype(str) != expected.astype(str)).any())
    mine, wanted = got.astype(np.float64), expected.astype(np.float64)
    scale = float(np.max(np.abs(wanted[np.isfinite(wanted)]), initial=0.0))
    return not np.allclose(mine, wanted, rtol=0, atol=SHOWS * scale, equal_nan=True)


def _plain(value: Array) -> Array:
    """An array that a file holds without objects."""
    return value.astype(str) if value.dtype.kind == "O" else value


def _script(piece: Piece) -> str:
    def held(values: Values, prefix: str) -> str:
        texts = {name: ".astype(object)" if value.dtype.kind in "OU" else "" for name, value in values.items()}
        return ", ".join(f'{name!r}: held["{prefix}{n}"]{texts[name]}' for n, name in enumerate(values))

    plain = 'ort.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])'
    lines = [
        '"""Shows what model.onnx gives and what is expected; written by likewise --repro."""',
        "from pathlib import Path",
        "",
        "import numpy as np",
        "import onnxruntime as ort",
        "",
        "folder = Path(__file__).parent",
        'held = np.load(folder / "inputs.npz")',
        f"inputs = {{{held(piece.inputs, 'in')}}}",
    ]
    if piece.optimiser:
        lines += [
            "plain = ort.SessionOptions()",
            "plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL",
            f"names = {list(piece.expected)!r}",
            f"expected = dict(zip(names, {plain.replace('providers', 'plain, providers')}.run(names, inputs)))",
        ]
    else:
        lines += [f"expected = {{{held(piece.expected, 'out')}}}"]
    lines += [
        f"session = {plain}",
        'print("onnxruntime", ort.__version__, "numpy", np.__version__)',
        "for name, wanted in expected.items():",
        "    got = session.run([name], inputs)[0]",
        "    got = np.array([list(row.values()) for row in got]) if isinstance(got, list) else np.asarray(got)",
        '    print(f"{name!r}: expected {wanted.ravel()[:5]}, got {got.ravel()[:5]}")',
        "    if got.size != wanted.size:",
        '        print("  shape expected", wanted.shape, "got", got.shape)',
        '    elif got.dtype.kind in "fiu":',
        "        apart = np.abs(got.reshape(wanted.shape).astype(float) - wanted.astype(float))",
        '        print("  largest difference", apart.max())',
        "    else:",
        '        print("  values that differ", int((got.astype(str).ravel() != wanted.astype(str).ravel()).sum()))',
    ]
    return "\n".join([*lines, ""])


def _issue(report: Report, case: Case, best: Explained | None, piece: Piece) -> Iterator[str]:
    """The text, in which no name of a model is read as anything but text."""
    from onnx import helper

    place = text(str(best.culprit)) if best is not None else text(case.model("candidate").name)
    yield f"# {text(best.cause) if best is not None else 'Answers differ'}: {place}"
    yield ""
    yield "Made by likewise --repro. `python repro.py` shows it; `inputs.npz` holds values of rows that were compared."
    yield ""
    if best is not None:
        yield from (f"{text(best.evidence, limit=2_000)}.", "")
    yield f"Expected by: {text(piece.by, limit=500)}."
    yield ""
    got = piece.got() or {}
    yield "| output | expected | got |"
    yield "|---|---|---|"
    for name, value in piece.expected.items():
        yield f"| {text(name)} | {_numbers(value)} | {_numbers(got.get(name))} |"
    yield ""
    nodes = list(piece.proto.graph.node)
    yield f"Nodes ({len(nodes)}):"
    yield ""
    for node in nodes[:SHOWN]:
        said = ", ".join(
            f"{text(one.name)}={text(str(helper.get_attribute_value(one)), limit=60)}" for one in node.attribute
        )
        operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        yield f"- {text(operator)} {text(node.name)} {said}".rstrip()
    yield from ["- …"] if len(nodes) > SHOWN else []
    yield ""
    yield "| | |"
    yield "|---|---|"
    opsets = dict.fromkeys(f"{entry.domain or 'ai.onnx'} {entry.version}" for entry in piece.proto.opset_import)
    yield f"| opsets | {text(', '.join(opsets))} |"
    yield f"| producer | {text(f'{piece.proto.producer_name} {piece.proto.producer_version}'.strip())} |"
    for name in ("onnxruntime", "onnx", "numpy"):
        yield f"| {name} | {metadata.version(name)} |"
    yield f"| Python, system | {platform.python_version()}, {platform.system()} {platform.machine()} |"
    options = {name: value for name, value in case.model("candidate").options.items() if name != "trusted"}
    yield f"| settings of the session | {text(str(options or 'none'))} |"
    yield f"| the whole comparison | {text(report.headline, limit=500)} |"


def _numbers(value: Array | None) -> str:
    """The shape, the type and the first values."""
    if value is None:
        return "nothing"
    first = ", ".join(text(entry) for entry in value.ravel()[:SHOWN].tolist())
    return f"{first}{', …' if value.size > SHOWN else ''} ({value.dtype}, {list(value.shape)})"
