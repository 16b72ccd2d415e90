"""Our `dataclass` makes the values that the one of the standard library makes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import field
from typing import Any

import pytest

from likewise.contracts.values import dataclass


def _described(decorator: Any) -> Any:
    @decorator(frozen=True, slots=True)
    class Point:
        """A place."""

        x: float
        y: float = 2.0
        seen: list[int] = field(default_factory=list)
        note: str = field(default="", compare=False, repr=False)
        fixed: tuple[int, ...] = field(default=(1,), init=False)
        named: int = field(default=7, kw_only=True)

    return Point


OURS, THEIRS = _described(dataclass), _described(dataclasses.dataclass)


@pytest.mark.parametrize(
    ("given", "named"),
    [((1,), {}), ((1, 5), {"seen": [3]}), ((), {"x": 0, "note": "!"}), ((1, 2, [4], "?"), {"named": 8})],
)
def test_values_are_made_and_shown_as_by_the_standard_library(given, named):
    ours, theirs = OURS(*given, **named), THEIRS(*given, **named)
    assert dataclasses.asdict(ours) == dataclasses.asdict(theirs)
    assert repr(ours) == repr(theirs)
    assert dataclasses.replace(ours, y=9).y == 9
    assert copy.deepcopy(ours) == copy.copy(ours) == ours


@pytest.mark.parametrize(
    ("given", "named"), [((), {}), ((1,), {"x": 2}), ((1,), {"other": 2}), ((1, 2, [], "", 3), {})]
)
def test_what_the_standard_library_refuses_is_refused(given, named):
    for described in (OURS, THEIRS):
        with pytest.raises(TypeError, match=r"Point\.__init__"):
            described(*given, **named)


def test_equal_values_are_those_whose_compared_fields_are():
    assert OURS(1, note="a") == OURS(1, note="b")
    assert OURS(1) != OURS(2)
    assert OURS(1) != THEIRS(1)
    assert OURS(1).seen is not OURS(1).seen


@dataclass(frozen=True, slots=True)
class Held:
    """A value that can be sent to another process."""

    name: str
    parts: tuple[int, ...] = ()


@dataclass(slots=True)
class Counted:
    """A value that changes."""

    rows: int = 0


def test_values_hash_travel_and_cannot_be_changed():
    held = Held("a", (1, 2))
    assert {held: 1}[Held("a", (1, 2))] == 1
    assert pickle.loads(pickle.dumps(held)) == held
    for change in (lambda: setattr(held, "name", "b"), lambda: delattr(held, "name")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    counted = Counted()
    counted.rows += 1
    assert counted == Counted(1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(counted)
