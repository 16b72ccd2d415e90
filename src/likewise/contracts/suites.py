"""Inputs made to find trouble: what production will send sooner or later and the data does not hold.

A suite makes rows from real ones and from what the models say about themselves. It does not run
anything: both models are asked by `trying`, and the answers are judged apart from the data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from likewise.contracts.data import Batch, Tensors
from likewise.contracts.measuring import PairSpec
from likewise.contracts.models import Runner

Fed: TypeAlias = tuple[tuple[str, int | None], ...]
"""The features that one input of a model is made of, in order: a column, and a position where it is an array."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a suite may look at: the first rows on which both agree, their answers to them, and the open models.

    `runners` are by side. The native object of a runner may be None, as where a model runs in another
    process or has only recorded answers. `columns` are those that at least one of the models takes, and
    `fed` tells by side and input what each input is made of. `memory` keeps what is dear to find out.
    """

    batch: Batch
    reference: Tensors
    candidate: Tensors
    pairs: tuple[PairSpec, ...]
    runners: Mapping[str, Runner]
    columns: tuple[str, ...]
    seed: int = 0
    fed: Mapping[str, Mapping[str, Fed]] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)


class Suite(Protocol):
    """One named kind of trouble. `title` says in a sentence what its rows are.

    A suite with `by_column = True` goes through the columns one by one; of very many it takes a sample. One
    with `about_batches = True` is about the rows of a batch together; the rows of others stand for themselves.
    """

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    def batches(self, seen: Seen) -> Iterable[Batch]:
        """Rows in the form of the data, each named after what was done to it; none where that makes no sense."""
        ...
