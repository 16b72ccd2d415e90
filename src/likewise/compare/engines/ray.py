"""A Ray cluster, or one that Ray starts on this machine: actors with both models open, wherever there is room for them.

Each reads its own parts of the data and sends back summaries of a few kilobytes. Models, data and likewise itself must
be where the actors are, under the same paths. Ray talks over the network, which the walls around a worker close.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from likewise import errors
from likewise.compare.engines import Run, Session
from likewise.compare.engines.local import Crew, Observed, Work, carried_out
from likewise.compare.engines.processes import Hands, begin, observe, require_stored, told_to_others
from likewise.compare.observe import Prepared
from likewise.contracts.comparison import Plan
from likewise.errors import LikewiseError, UnavailableError, UsageError, extra, one_line
from likewise.models.remote import ModelProcessEnded

LOST = 2
"""Actors that may be lost over one piece of work before it is done here: a node may go, a model crashes everywhere."""


ANSWERS = 10.0
"""Seconds in which a cluster answers."""


class RayEngine:
    """Carries out a plan in as many actors as there are workers, or as the cluster has processors."""

    name = "ray"

    def run(self, plan: Plan, session: Session) -> Run:
        require_stored(session.models.values())
        if errors.confined:
            raise UsageError(
                "Ray talks over the network, which is closed around models",
                remedy="Add --no-sandbox to let them use it",
            )

        @contextmanager
        def gathered(prepared: Prepared, sizes: Mapping[str, int]) -> Iterator[Crew]:
            with _cluster(plan.address) as ray, ExitStack() as stack:
                count = plan.workers if plan.workers > 1 else max(1, int(ray.cluster_resources().get("CPU", 1)))
                opening = partial(begin, told_to_others(plan), prepared.first, sizes)
                yield Hands([stack.enter_context(contextlib.closing(_Actor(ray, opening))) for _ in range(count)])

        return carried_out(plan, session, gathered)


@contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """Ray, connected; what we started or connected to is let go of afterwards."""
    with extra("ray", needed_for="the engine 'ray'"):
        import ray
    if ray.is_initialized():
        yield ray
        return
    try:
        _require_answer(address)
        quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False}
        ray.init(address=address, **quiet) if address else ray.init(include_dashboard=False, **quiet)
    except Exception as error:
        told = f"there is no Ray cluster at {address}" if address else "Ray cannot be started here"
        raise UnavailableError(f"{told}: {one_line(error)}", remedy="Start one with `ray start --head`") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _require_answer(address: str | None) -> None:
    """An error where nobody listens: Ray itself would go on trying for minutes."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=ANSWERS).close()


class _Remote:
    """What lives over there."""

    def call(self, function: Any) -> Any:
        return function()


class _Actor:
    """One actor, and the next one when it is lost."""

    def __init__(self, ray: Any, opening: partial[None]) -> None:
        self._ray = ray
        self._opening = opening
        self._begin()

    def _begin(self) -> None:
        self._actor = self._ray.remote(_Remote).options(num_cpus=1).remote()
        self._ready: Any = self._actor.call.remote(self._opening)

    def observe(self, work: Work, *, whole: bool) -> Observed:
        for _ in range(LOST):
            try:
                self._ray.get(self._ready)
                found: Observed = self._ray.get(self._actor.call.remote(partial(observe, work, whole=whole)))
            except self._ray.exceptions.RayActorError:
                self._begin()
            except self._ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, LikewiseError):
                    raise error.cause from None
                raise UnavailableError(f"an actor of Ray cannot do it: {one_line(error.cause)}") from error
            else:
                return found
        raise ModelProcessEnded(-9)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self._ray.kill(self._actor)


EXTENSION = RayEngine()
