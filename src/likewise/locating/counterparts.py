"""Which tensor of a reference's graph stands in the place of which of the candidate's: by name, then by structure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from likewise.contracts.data import Array
from likewise.locating.opened import Opened
from likewise.structure.twins import aligned

QUANTIZED_NAME = re.compile(r"(_(DequantizeLinear|QuantizeLinear)_(Output|Input)|_dequantized)(_\d+)?$")
"""What quantisers put behind the name of a tensor that they write in whole numbers and back."""

KNOWN_BY_NAME = 0.5
"""If names tell of so many tensors, structure is not asked."""


def counterparts(reference: Opened, candidate: Opened) -> dict[str, str]:
    """For tensors of the candidate the name of the reference's."""
    theirs = candidate.tensors
    ours = {*reference.tensors, *reference.inputs}
    readers: dict[str, set[str]] = {}
    for index, names in enumerate(candidate.reads):
        for name in names:
            readers.setdefault(name, set()).add(candidate.node(index).op_type)
    named = {
        name: plain
        for name in theirs
        if (plain := QUANTIZED_NAME.sub("", name)) in ours
        and not (readers.get(name) == {"QuantizeLinear"} and _other_makers(reference, candidate, name))
    }
    if len(set(named.values())) >= KNOWN_BY_NAME * min(len(ours), len(theirs)):
        return named
    found = dict(named)
    taken = set(named.values())
    for mine, yours in aligned(reference.proto, candidate.proto):
        outputs = zip(reference.node(mine).output, candidate.node(yours).output, strict=False)
        found |= {other: name for name, other in outputs if name and other not in named and name not in taken}
    return found


def _other_makers(reference: Opened, candidate: Opened, name: str) -> bool:
    """Is a tensor made by another operator? A quantiser leaves out a Relu where writing in whole numbers does the same.

    Then the tensor is what its name says only behind that.
    """
    if name not in reference.makers:
        return False
    maker, other = candidate.node(candidate.makers[name]), reference.node(reference.makers[name])
    return maker.op_type != other.op_type


def comparable(found: Mapping[str, str], ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> dict[str, str]:
    """Those that hold the same kind of thing in the same shape, from the values of both on one row."""
    return {
        name: other
        for name, other in found.items()
        if name in theirs
        and other in ours
        and theirs[name].shape == ours[other].shape
        and _kind(theirs[name]) == _kind(ours[other])
    }


def _kind(values: Array) -> str:
    return {"f": "numbers", "i": "whole numbers", "u": "whole numbers", "b": "marks"}.get(values.dtype.kind, "text")
