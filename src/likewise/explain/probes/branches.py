"""A branch that depends on the data was frozen when the model was traced: the candidate always goes one way.

The reference is asked about a few rows at a time, and which of its modules it calls is noted. Where that changes with
the rows, and the candidate agrees just where the reference goes one of its ways, the file holds that way only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import chain

import numpy as np

from likewise.compare.call import answers
from likewise.contracts.data import Batch
from likewise.contracts.report import Place
from likewise.data.cells import listed
from likewise.explain import trace
from likewise.explain.case import Case, Explained, probe
from likewise.explain.counterparts import parts_of
from likewise.explain.experiment import Trial
from likewise.models.onnx import edits

GROUPS = 12
"""Rows that are asked alone, spread over those that fail and those that agree; and groups of a few of them."""

FEW = 4
"""Rows of a group."""

EVIDENCE = 2
"""Groups of each way that it takes to tell that this is what the candidate depends on."""

REWRITE = "Write the branch with torch.where or torch.cond, or export one file for each way, and export again"


@probe("traced-branch", when=lambda case: case.graph() is not None and _is_module(case) and _several(case))
def frozen_branch(case: Case) -> Explained | None:
    """Ask about few rows at a time: is the candidate right wherever the reference goes one of several ways?"""
    groups = list(_groups(case))
    called = [_called(case, batch) for batch in groups]
    ways = list(dict.fromkeys(called))
    if len(ways) < 2:
        return None
    seen = [(way, _agree(case, batch)) for way, batch in zip(called, groups, strict=True)]
    right = [way for way in ways if all(agrees for found, agrees in seen if found == way)]
    wrong = [way for way in ways if not any(agrees for found, agrees in seen if found == way)]
    told = [sum(found in some for found, _ in seen) for some in (right, wrong)]
    if len(right) != 1 or len(right) + len(wrong) < len(ways) or min(told) < EVIDENCE:
        return None
    taken = [name for name in right[0] if not all(name in way for way in wrong)]
    missing = list(dict.fromkeys(name for way in wrong for name in way if name not in right[0]))
    proto = case.editable()
    nodes = [] if proto is None else [node for node in proto.graph.node if edits.module_of(node) in taken]
    named = [f"'{name}'" for name in (taken or missing)]
    frozen = f"{listed(named, trace.MOST_NAMED)} {'always' if taken else 'never'} called"
    ours, theirs = (listed([f"'{n}'" for n in some], trace.MOST_NAMED) or "nothing else" for some in (missing, taken))
    asked = "groups of rows" if case.required.batch.stacked else "samples"
    return Explained(
        "traced-branch",
        Place(frozen, path=(taken or missing)[0], nodes=tuple(n.name for n in nodes[: trace.MOST_NAMED] if n.name)),
        f"which modules the reference calls depends on what it is given: of {len(seen)} {asked}, it calls {ours} for "
        f"{told[1]}, where the candidate is wrong, and {theirs} for {told[0]}, where the candidate agrees",
        REWRITE,
        covered=case.required.failing,
        simplicity=1,
    )


def _is_module(case: Case) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(case.native("reference"), torch.nn.Module)


def _several(case: Case) -> bool:
    if not case.required.batch.stacked:
        return bool(case.others)
    return len(case.required) > 1 and case.side("candidate").fixed_batch is None


def _called(case: Case, batch: Batch) -> tuple[str, ...]:
    """The modules that the reference calls for these rows."""
    case.require_time()
    return tuple(part.path for part in parts_of(case, batch))


def _agree(case: Case, batch: Batch) -> bool:
    """Do both agree on all of these rows, asked about them alone?"""
    case.require_time()
    ours, theirs = (answers(case.side(side), batch)[0] for side in ("reference", "candidate"))
    return bool(case.agreeing(batch, ours, theirs).all())


def _groups(case: Case) -> Iterator[Batch]:
    """Rows alone and some at a time; samples without rows as they are."""
    if not case.required.batch.stacked:
        yield case.required.batch
        yield from (other.batch for other in case.others)
        return
    trial = Trial.few(case, GROUPS)
    alone = (trial.positions[place : place + 1] for place in range(len(trial)))
    some = (np.sort(trial.positions[place :: GROUPS // FEW]) for place in range(min(GROUPS // FEW, len(trial))))
    yield from (case.rows(positions) for positions in chain(alone, some))


EXTENSIONS = (frozen_branch,)
