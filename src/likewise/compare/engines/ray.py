"""A Ray cluster, or one that Ray starts on this machine: actors with both models open, wherever there is room for them.

Each reads its own parts of the data and sends back summaries of a few kilobytes. Files of models are sent where they
are missing; rows, code and likewise itself must be where the actors are, under the same paths.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from likewise import errors
from likewise.compare.call import answers, rows_text
from likewise.compare.engines import Run, Session
from likewise.compare.engines.actors import COPIES, Actors, Needs, cluster, shipped
from likewise.compare.engines.courier import Courier
from likewise.compare.engines.local import Crew, Observed, Work, carried_out
from likewise.compare.engines.processes import Hands, begin, observe, require_stored, told_to_others
from likewise.compare.observe import Prepared
from likewise.contracts.comparison import Plan
from likewise.contracts.data import Batch
from likewise.contracts.models import Model
from likewise.data.selection import Selection, Stratified
from likewise.errors import LikewiseError, UnavailableError, UsageError, one_line
from likewise.models.onnx.describe import EXTERNAL_DATA
from likewise.models.remote import COURIERS, cores, packed, resident, unpacked

ACTOR_BYTES = 200 << 20
"""What an actor takes beside the process in which its models are."""

IN_FLIGHT = 2
"""Pieces of work that an actor has at a time: the next waits there while what came of the last is on its way."""


class RayEngine:
    """Carries out a plan in as many actors as there are workers, or as the cluster has room for."""

    name = "ray"

    def run(self, plan: Plan, session: Session) -> Run:
        require_stored(session.models.values())
        carrier = Courier(COURIERS.pop()) if COURIERS else None
        if errors.confined and carrier is None:
            raise UsageError(
                "Ray talks over the network, which is closed around models",
                remedy="Add --no-sandbox to let them use it",
            )

        @contextmanager
        def gathered(prepared: Prepared, sizes: Mapping[str, int]) -> Iterator[Crew]:
            needs = _needs(prepared, session.models)
            known = {model.key: model for model in needs.models}
            opening = _message(partial(begin_there, told_to_others(plan), prepared.first, sizes))
            count = plan.workers if plan.workers > 1 else 0
            with ExitStack() as stack:
                if carrier is not None:
                    stack.enter_context(closing(carrier))
                    carrier.gather(count, needs, opening, lambda key: known[key].contents())
                    actors: Actors | Courier = carrier
                else:
                    ray = stack.enter_context(cluster(plan.address))
                    made = Actors(ray, count, needs, opening, lambda key: known[key].contents())
                    actors = stack.enter_context(closing(made))
                numbers = [*range(actors.count)] * IN_FLIGHT
                yield Hands([_Hand(actors, number) for number in numbers], actors.close)

        return carried_out(plan, session, gathered)


class _Hand:
    """One actor, or the one in its place."""

    def __init__(self, actors: Actors | Courier, number: int) -> None:
        self._actors, self._number = actors, number

    def observe(self, work: Work, *, whole: bool) -> Observed:
        asked = _message(partial(observe_there, work, whole=whole))
        answer, error, _ = unpacked(self._actors.ask(self._number, asked, _named(work)))
        if isinstance(error, LikewiseError):
            raise error
        if error is not None:
            raise UnavailableError(f"an actor of Ray cannot do it: {one_line(error)}")
        found: Observed = answer
        return found


def _message(call: partial[Any]) -> list[bytes]:
    return [bytes(part) for part in packed(("call", call))]


_REFUSED: list[LikewiseError] = []
"""In the process of an actor: why it could not open the models, which is told when it is asked for something."""


def begin_there(plan: Plan, first: Batch, sizes: Mapping[str, int]) -> None:
    """Over there: open both models, from where their files are."""
    try:
        begin(plan, first, sizes, Session(*map(_moved, (plan.reference, plan.candidate))))
    except LikewiseError as error:
        _REFUSED.append(error)


def observe_there(work: Work, *, whole: bool) -> Observed:
    """Over there: what comes of it."""
    for error in _REFUSED:
        raise error
    return observe(work, whole=whole)


def _moved(model: Model) -> Model:
    """The model where its file is on this machine."""
    return replace(model, target=COPIES.get(os.path.abspath(model.target), model.target))


def _named(work: Work) -> str:
    """Work for a person: which rows of what."""
    if isinstance(work, Batch):
        return rows_text(work)
    inner: Any = work
    while isinstance(inner, Selection | Stratified):
        inner = inner.source
    rows = inner.rows
    return f"rows {inner.start:,} to {inner.start + rows - 1:,} of {work.location}" if rows else work.location


def _needs(prepared: Prepared, models: Mapping[str, Model]) -> Needs:
    """What an actor needs, by what both models took here: the memory of this process, and the cores they kept busy."""
    began, busy = time.perf_counter(), time.process_time()
    sides = (prepared.reference, prepared.candidate)
    for side in sides:
        answers(side, prepared.first)
    share = (time.process_time() - busy) / max(1e-9, time.perf_counter() - began)
    files = [shipped(models[side.name].target, tuple(side.runner.details.get(EXTERNAL_DATA, ()))) for side in sides]
    return Needs(
        cpus=max(1, min(round(share), cores())),
        memory=ACTOR_BYTES + (resident() or ACTOR_BYTES),
        models=tuple({found.key: found for found in files if found is not None}.values()),
        folder=os.getcwd(),
    )


EXTENSION = RayEngine()
