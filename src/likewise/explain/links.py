"""Functions that stand between what a model computes and what it answers.

Each is named so that a sentence can say which one is missing or too much. Those of a row (softmax, a norm)
work along the last axis, the others element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from likewise.contracts.data import Array

Function = Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Link:
    """A function and what undoes it; `inverse` is None where nothing does. `rows`: needs several columns."""

    name: str
    apply: Function
    inverse: Function | None = None
    rows: bool = False


def sigmoid(values: Array) -> Array:
    from scipy.special import expit

    made: Array = expit(values)
    return made


def logit(values: Array) -> Array:
    from scipy.special import logit as logit_of

    made: Array = logit_of(values)
    return made


def softmax(values: Array) -> Array:
    shifted = values - values.max(axis=-1, keepdims=True)
    powers = np.exp(shifted)
    made: Array = powers / powers.sum(axis=-1, keepdims=True)
    return made


def log_softmax(values: Array) -> Array:
    return np.asarray(np.log(softmax(values)))


def probabilities_before_softmax(values: Array) -> Array:
    """What the softmax was taken of, if that was probabilities: the only logs that add up to one."""
    logs = np.log(values)
    made: Array = logs + (1.0 - logs.sum(axis=-1, keepdims=True)) / values.shape[-1]
    return made


def normalized(values: Array) -> Array:
    """Each row divided by its sum."""
    made: Array = values / values.sum(axis=-1, keepdims=True)
    return made


def unit_length(values: Array) -> Array:
    made: Array = values / np.sqrt((values**2).sum(axis=-1, keepdims=True))
    return made


def signed_square(values: Array) -> Array:
    return np.asarray(np.sign(values) * values**2)


def signed_root(values: Array) -> Array:
    return np.asarray(np.sign(values) * np.sqrt(np.abs(values)))


LINKS = (
    # A softmax would turn log-probabilities into probabilities as well: the exact one comes first.
    Link("exp", np.exp, np.log),
    Link("sigmoid", sigmoid, logit),
    Link("softmax", softmax, probabilities_before_softmax, rows=True),
    Link("log-softmax", log_softmax, None, rows=True),
    Link("exp(x) - 1", np.expm1, np.log1p),
    Link("square", np.square, np.sqrt),
    Link("signed square", signed_square, signed_root),
    Link("reciprocal", np.reciprocal, np.reciprocal),
    Link("power of 10", lambda values: np.asarray(np.power(10.0, values)), np.log10),
    Link("power of 2", np.exp2, np.log2),
    Link("tanh", np.tanh, np.arctanh),
    Link("softplus", lambda values: np.asarray(np.logaddexp(0.0, values)), None),
    Link("sigmoid, normalised", lambda values: normalized(sigmoid(values)), None, rows=True),
)
"""Links of the models we know: of classifiers, of counts and positive targets, of ranks, of transformed targets."""


def of_one_column(link: Link, values: Array) -> Iterator[tuple[str, Callable[[], Array]]]:
    """Two classes of which only one column was made to be read: the other follows from it."""
    if values.ndim != 2 or values.shape[1] != 2 or link.rows:
        return

    def second() -> Array:
        made = link.apply(values[:, 1])
        return np.stack([1.0 - made, made], axis=1)

    def first() -> Array:
        made = link.apply(values[:, 0])
        return np.stack([made, 1.0 - made], axis=1)

    yield f"{link.name} of the second column", second
    yield f"{link.name} of the first column", first
