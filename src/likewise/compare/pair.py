"""Which output of the reference is compared with which of the candidate.

By kind, then by name, then by shape; by position where nothing else is left, which is a finding. Every decision is
written down. What cannot be decided is an incident (inconclusive); an output of the candidate that has no
counterpart is a mismatch (failure).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from likewise.contracts.comparison import POSITION, Incident, Mismatch, PairSpec
from likewise.contracts.data import Tensors
from likewise.contracts.models import Kind, Label, OutputSpec, Shape, Signature
from likewise.contracts.values import dataclass
from likewise.errors import PairingError, nearest
from likewise.models.arrays import kind_of

Match: TypeAlias = Callable[[OutputSpec, OutputSpec, str], None]

UNNAMED = re.compile(r"(output|out|getitem|y)?[._]?\d*")
"""What a tuple's entries, or outputs that nobody named, are called."""

PREFERENCE = (Kind.PROBABILITY, Kind.SCORE, Kind.DISTANCE, Kind.VALUE, Kind.EMBEDDING, Kind.LABEL)
"""Of several views of one model, the one that an output of undeclared kind is compared with."""


@dataclass(frozen=True, slots=True)
class Pairing:
    """The pairs, and what is left over."""

    pairs: tuple[PairSpec, ...]
    not_compared: tuple[str, ...] = ()
    mismatches: tuple[Mismatch, ...] = ()
    incidents: tuple[Incident, ...] = ()

    @property
    def reference_outputs(self) -> frozenset[str]:
        """What the reference has to be asked for."""
        margins = {spec.margin_from for spec in self.pairs if spec.margin_from is not None}
        return frozenset({spec.reference for spec in self.pairs} | margins)


def observed(signature: Signature, tensors: Tensors) -> tuple[OutputSpec, ...]:
    """What a model declares, corrected by what it really gave."""
    declared = {spec.name: spec for spec in signature.outputs or ()}
    specs = []
    for name, array in tensors.items():
        dtype = "string" if array.dtype.kind in "OUST" else str(array.dtype)
        spec = declared.get(name) or OutputSpec(name, kind_of(name, dtype) or Kind.VALUE)
        row_axis = signature.row_axes.get(name, spec.row_axis)
        specs.append(replace(spec, dtype=dtype, shape=(None, *array.shape[1:]), row_axis=row_axis))
    return tuple(specs)


def pair(
    reference: Sequence[OutputSpec],
    candidate: Sequence[OutputSpec],
    *,
    overrides: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (),
) -> Pairing:
    """Decide which outputs belong together."""
    _require_known(ignore, [*reference, *candidate], "to be ignored")
    left_reference = {spec.name: spec for spec in reference if spec.name not in ignore}
    left_candidate = {spec.name: spec for spec in candidate if spec.name not in ignore}
    found: list[tuple[OutputSpec, OutputSpec, str]] = []

    def match(ours: OutputSpec, theirs: OutputSpec, how: str) -> None:
        found.append((ours, theirs, how))
        left_reference.pop(ours.name, None)
        left_candidate.pop(theirs.name, None)

    for theirs_name, ours_name in (overrides or {}).items():
        _require_known([theirs_name], candidate, "of the candidate")
        _require_known([ours_name], reference, "of the reference")
        if {theirs_name, ours_name} & set(ignore):
            raise PairingError(
                f"{theirs_name!r} is to be paired with {ours_name!r}, and one of them to be ignored",
                remedy="Use --pair or --ignore, not both",
            )
        ours = next(spec for spec in reference if spec.name == ours_name)
        match(ours, left_candidate[theirs_name], "the user")
    for kind in Kind:
        _within(
            [spec for spec in left_reference.values() if spec.kind is kind],
            [spec for spec in left_candidate.values() if spec.kind is kind],
            match,
        )
    by_class = _one_output_a_class(left_reference, left_candidate)
    _across(left_reference, left_candidate, match)
    _in_order([spec for spec in left_reference.values() if not spec.view], list(left_candidate.values()), match)

    mismatches: list[Mismatch] = []
    pairs = [*by_class]
    order = _other_order(found, reference, candidate)
    for ours, theirs, how in found:
        spec, mismatch = _columns(ours, theirs, how)
        pairs.append(replace(spec, notes=(*spec.notes, *order)) if ours is found[0][0] else spec)
        mismatches.extend([mismatch] if mismatch else [])
    pairs = [_with_margin(spec, pairs, reference) for spec in pairs]
    mismatches += [
        Mismatch(
            "extra-output",
            f"output {spec.name!r} of the candidate ({_text(spec)}) has no counterpart in the reference, "
            f"which gives {_listed(reference)}",
            spec.name,
        )
        for spec in left_candidate.values()
    ]
    return Pairing(
        pairs=tuple(sorted(pairs, key=lambda spec: (spec.reference, spec.candidate))),
        not_compared=tuple(spec.name for spec in left_reference.values() if spec.view) if pairs else (),
        mismatches=tuple(mismatches),
        incidents=_unpaired(left_reference, candidate, some=bool(pairs)),
    )


def _within(ours: list[OutputSpec], theirs: list[OutputSpec], match: Match) -> None:
    """Outputs of one kind: the only one, then those of equal name, then those of a unique shape."""
    if len(ours) == len(theirs) == 1:
        match(ours[0], theirs[0], "kind")
        return
    for alike, how in ((_same_name, "kind and name"), (_similar_name, "kind and similar name")):
        for spec in list(theirs):
            same = [other for other in ours if alike(other, spec)]
            if len(same) == 1:
                match(same[0], spec, how)
                ours.remove(same[0])
                theirs.remove(spec)
    for spec in list(theirs):
        same = [other for other in ours if _fits(other, spec)]
        rivals = [other for other in theirs if same and _fits(same[0], other)]
        if len(same) == len(rivals) == 1:
            match(same[0], spec, "kind and shape")


def _across(reference: dict[str, OutputSpec], candidate: dict[str, OutputSpec], match: Match) -> None:
    """Outputs whose kinds differ, as an undeclared kind is only a guess: by name, then by shape."""
    for spec in list(candidate.values()):
        ours = reference.get(spec.name)
        if ours is not None and _comparable(ours, spec):
            match(ours, spec, "name")
    for spec in list(candidate.values()):
        fitting = [ours for ours in reference.values() if _comparable(ours, spec) and _fits(ours, spec)]
        if all(ours.view for ours in fitting):
            fitting = sorted(fitting, key=lambda ours: _preference(ours, spec))[:1]
        rivals = [other for other in candidate.values() if fitting and _fits(fitting[0], other)]
        if len(fitting) == len(rivals) == 1:
            match(fitting[0], spec, "shape")
    # Labels may be given as floats: 1.0 is 1. Nothing but the name says so, and only where nothing else fits.
    for spec in list(candidate.values()):
        ours = reference.get(spec.name)
        if ours is not None and _numeric(ours) and _numeric(spec):
            match(ours, spec, "name")


def _preference(view: OutputSpec, spec: OutputSpec) -> int:
    """Where a view stands among those that an output may be; whole numbers and booleans are labels before all else."""
    if view.kind is Kind.LABEL and not _floating(spec):
        return -1
    return PREFERENCE.index(view.kind)


def _in_order(ours: Sequence[OutputSpec], theirs: Sequence[OutputSpec], match: Match) -> None:
    """What is left of both, by position, where there is as much of it and each fits: a tuple names nothing."""
    fitting = [_comparable(one, other) and _fits(one, other) for one, other in zip(ours, theirs, strict=False)]
    unnamed = any(
        specs and all(spec.unnamed or UNNAMED.fullmatch(spec.name) for spec in specs) for specs in (ours, theirs)
    )
    if unnamed and len(ours) == len(theirs) and all(fitting):
        for one, other in zip(ours, theirs, strict=True):
            match(one, other, POSITION)


def _other_order(
    found: Sequence[tuple[OutputSpec, OutputSpec, str]],
    reference: Sequence[OutputSpec],
    candidate: Sequence[OutputSpec],
) -> Sequence[str]:
    """Told where who takes the candidate's outputs by their position gets others than from the reference."""
    places = {spec.name: place for place, spec in enumerate(reference)}
    counterparts = {theirs.name: ours for ours, theirs, _ in found if not ours.view}
    ours = [counterparts[spec.name] for spec in candidate if spec.name in counterparts]
    if [places[spec.name] for spec in ours] == sorted(places[spec.name] for spec in ours):
        return ()
    return [f"the candidate gives its outputs in another order: {', '.join(repr(spec.name) for spec in ours)}"]


def _one_output_a_class(reference: dict[str, OutputSpec], candidate: dict[str, OutputSpec]) -> list[PairSpec]:
    """A candidate that gives each class as an output of its own, named after the class."""
    for ours in list(reference.values()):
        if ours.kind not in (Kind.PROBABILITY, Kind.SCORE) or not ours.classes:
            continue
        single = [spec for spec in candidate.values() if _numeric(spec) and _columns_of(spec) == 1]
        chosen = _named_after(ours.classes, single)
        if len(single) != len(ours.classes) or len(chosen) != len(ours.classes):
            continue
        del reference[ours.name]
        for found in chosen:
            del candidate[found.name]
        other = "complement" if ours.kind is Kind.PROBABILITY else "negate"
        return [
            PairSpec(
                ours.name,
                found.name,
                ours.kind,
                "the class in its name",
                ours.classes,
                reference_column=index,
                expand=other if _columns_of(ours) == 1 else None,
            )
            for index, found in enumerate(chosen)
        ]
    return []


def _named_after(classes: Sequence[Label], outputs: Sequence[OutputSpec]) -> list[OutputSpec]:
    """The output that ends in each class; the longest first, as `i-1` also ends in 1. Nothing if one is not clear."""
    left, chosen = list(outputs), dict[Label, OutputSpec]()
    for label in sorted(classes, key=lambda label: -len(str(label))):
        # ONNX has no booleans among its classes: True is written 1.
        endings = (str(label), str(int(label))) if isinstance(label, bool) else (str(label),)
        found = [spec for spec in left if spec.name.endswith(endings)]
        if len(found) != 1:
            return []
        chosen[label] = found[0]
        left.remove(found[0])
    return [chosen[label] for label in classes]


def _columns(ours: OutputSpec, theirs: OutputSpec, how: str) -> tuple[PairSpec, Mismatch | None]:
    """How the columns of two outputs correspond: by class where both name their classes."""
    kind = ours.kind if ours.kind is not Kind.VALUE else theirs.kind
    both_exact = not _floating(ours) and not _floating(theirs)
    # Classes may be floats; a number that only one side calls a label may be any number.
    if ours.kind is not theirs.kind and Kind.LABEL in (ours.kind, theirs.kind):
        kind = Kind.LABEL if both_exact else Kind.VALUE
    spec = PairSpec(
        ours.name,
        theirs.name,
        kind,
        how,
        ours.classes,
        row_axes=(ours.row_axis, theirs.row_axis),
        column_for_vector=ours.view and ours.shape == (None,) and theirs.shape == (None, 1) and not theirs.row_axis,
    )
    kinds = {ours.kind, theirs.kind}
    # A mere value is what nothing is known of: it denies no other kind but a label, which is compared in another way.
    denied = len(kinds) == 2 and (Kind.VALUE not in kinds or Kind.LABEL in kinds)
    notes = [f"its kind differs: {ours.kind} in the reference, {theirs.kind} in the candidate"] if denied else []
    if kind is Kind.LABEL:
        return replace(spec, notes=tuple(notes)), None
    wide, narrow = _columns_of(ours), _columns_of(theirs)
    binary = _binary(ours, theirs, kind)
    if binary and narrow == 1 and wide == 2:
        notes.append("the candidate gives the positive class only; the other column is taken to follow from it")
        return replace(spec, reference_column=1, other_follows=True, notes=tuple(notes)), None
    if binary and narrow == 2 and wide == 1:
        other = "complement" if kind is Kind.PROBABILITY else "negate"
        notes.append("the reference gives the positive class only; the other column is taken as its " + other)
        return replace(spec, expand=other, notes=tuple(notes)), None
    if kind not in (Kind.PROBABILITY, Kind.SCORE) or not wide or wide == narrow == 1:
        return replace(spec, notes=tuple(notes)), None
    if wide != narrow:
        differ = bool(ours.classes and theirs.classes) and len(ours.classes or ()) != len(theirs.classes or ())
        return replace(spec, notes=tuple(notes)), _other_classes(ours, theirs) if differ else None
    return _by_class(spec, ours, theirs, notes)


def _binary(ours: OutputSpec, theirs: OutputSpec, kind: Kind) -> bool:
    """May one column stand for two? Those of two declared classes, or what is called probabilities and adds up to one.

    Two labels, two targets and two logits are two things. What adds up is seen in the answers.
    """
    declared = [spec.classes for spec in (ours, theirs) if spec.classes is not None]
    if declared:
        return kind in (Kind.PROBABILITY, Kind.SCORE) and all(len(classes) == 2 for classes in declared)
    return kind is Kind.PROBABILITY


def _by_class(
    spec: PairSpec, ours: OutputSpec, theirs: OutputSpec, notes: list[str]
) -> tuple[PairSpec, Mismatch | None]:
    if not ours.classes or not theirs.classes or len(ours.classes) != len(theirs.classes):
        if ours.classes or theirs.classes:
            silent = "reference" if not ours.classes else "candidate"
            notes.append(f"the {silent} does not name its classes; columns are compared in order")
        return replace(spec, notes=tuple(notes)), None
    if set(ours.classes) == set(theirs.classes):
        columns = tuple(theirs.classes.index(label) for label in ours.classes)
        if columns != tuple(range(len(columns))):
            notes.append(f"the candidate's class columns are in another order: {list(theirs.classes)}")
            spec = replace(spec, columns=columns)
        return replace(spec, notes=tuple(notes)), None
    if theirs.classes == tuple(range(len(ours.classes))):
        notes.append(f"the candidate numbers its classes; its columns are taken as {list(ours.classes)}")
        return replace(spec, notes=tuple(notes)), None
    return replace(spec, notes=tuple(notes)), _other_classes(ours, theirs)


def _other_classes(ours: OutputSpec, theirs: OutputSpec) -> Mismatch:
    message = (
        f"the classes of {ours.name!r} differ: reference {list(ours.classes or ())}, "
        f"candidate {list(theirs.classes or ())}"
    )
    return Mismatch("classes", message, ours.name)


def _with_margin(spec: PairSpec, pairs: Sequence[PairSpec], reference: Sequence[OutputSpec]) -> PairSpec:
    """Add what says how sure the reference is of a label, if it gives one a row, and what may explain another one."""
    label = next(ours for ours in reference if ours.name == spec.reference)
    if spec.kind is not Kind.LABEL or _columns_of(label) != 1:
        return spec
    kinds = (Kind.PROBABILITY, Kind.SCORE, Kind.DISTANCE)
    telling = [ours for ours in reference if ours.kind in kinds and ours.shape is not None and len(ours.shape) <= 2]
    # Scores without classes may be one a pair of classes: their order says nothing about the label.
    telling = [o for o in telling if o.classes is not None or o.kind is not Kind.SCORE or _columns_of(o) == 1]
    # What the label is really picked from comes first: probabilities may tie where scores are far apart.
    telling = sorted(telling, key=lambda other: (other.name != label.decided_by, kinds.index(other.kind)))
    compared = [ours.name for ours in telling if any(other.reference == ours.name for other in pairs)]
    if not compared:
        return spec
    scores = tuple(other for other in pairs if other.reference == compared[0])
    return replace(spec, margin_from=telling[0].name, margin_kind=telling[0].kind, scores=scores)


def _unpaired(left: Mapping[str, OutputSpec], candidate: Sequence[OutputSpec], *, some: bool) -> tuple[Incident, ...]:
    if not some:
        return (
            Incident(
                "nothing-paired",
                f"no output of the candidate ({_listed(candidate)}) can be paired with one of the reference "
                f"({_listed(left.values())})",
                "Say which belong together: --pair candidate_output=reference_output",
            ),
        )
    return tuple(
        Incident(
            "missing-output",
            f"output {spec.name!r} of the reference ({_text(spec)}) has no counterpart in the candidate, "
            f"which gives {_listed(candidate)}",
            f"Use --pair candidate_output={shlex.quote(spec.name)}, or leave it out with "
            f"--ignore {shlex.quote(spec.name)}",
        )
        for spec in left.values()
        if not spec.view
    )


def _require_known(names: Sequence[str], specs: Sequence[OutputSpec], role: str) -> None:
    known = [spec.name for spec in specs]
    for name in names:
        if name not in known:
            raise PairingError(
                f"there is no output {name!r} {role}{nearest(name, known)}", remedy=f"Outputs: {_listed(specs)}"
            )


def _columns_of(spec: OutputSpec) -> int | None:
    """How many columns a row has; None where a row is a tensor."""
    shape = spec.shape or (None,)
    if len(shape) == 1:
        return 1
    return shape[1] if len(shape) == 2 and isinstance(shape[1], int) else None


def _fits(ours: OutputSpec, theirs: OutputSpec) -> bool:
    """May these two be the same thing, going by the shape of a row?"""
    if _real_shape(ours) == _real_shape(theirs):
        return True
    columns = (_columns_of(ours), _columns_of(theirs))
    one_of_two_classes = {ours.kind, theirs.kind} & {Kind.PROBABILITY, Kind.SCORE}
    return columns == (1, 1) or (columns in ((1, 2), (2, 1)) and bool(one_of_two_classes))


def _real_shape(spec: OutputSpec) -> Shape:
    """The shape, of complex numbers as ONNX writes them: real and imaginary part along a last axis."""
    return (*(spec.shape or ()), *((2,) if (spec.dtype or "").startswith("complex") else ()))


def _comparable(ours: OutputSpec, theirs: OutputSpec) -> bool:
    if Kind.LABEL in (ours.kind, theirs.kind):
        return not _floating(ours) and not _floating(theirs)
    return _numeric(ours) and _numeric(theirs)


def _numeric(spec: OutputSpec) -> bool:
    return spec.dtype != "string"


def _floating(spec: OutputSpec) -> bool:
    return (spec.dtype or "float").startswith(("float", "bfloat"))


def _same_name(ours: OutputSpec, theirs: OutputSpec) -> bool:
    return ours.name == theirs.name


def _similar_name(ours: OutputSpec, theirs: OutputSpec) -> bool:
    first, second = ("".join(filter(str.isalnum, spec.name.casefold())) for spec in (ours, theirs))
    return first == second


def _text(spec: OutputSpec) -> str:
    shape = ", ".join("n" if dim is None else str(dim) for dim in spec.shape or ("?",))
    return f"{spec.kind} {spec.dtype or 'of unknown type'} ({shape})"


def _listed(specs: Iterable[OutputSpec]) -> str:
    return ", ".join(dict.fromkeys(f"{spec.name!r} ({spec.kind})" for spec in specs)) or "nothing"
