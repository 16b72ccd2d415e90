"""Our `dataclass` makes the values that the one of the standard library makes."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import field
from typing import Any

import pytest

from likewise.contracts.values import MANY, dataclass


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
@pytest.mark.parametrize("before", [0, MANY + 1], ids=["first values", "many"])
def test_values_are_made_and_shown_as_by_the_standard_library(given, named, before):
    for _ in range(before):
        OURS(0)
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


def test_fields_are_told_as_by_the_standard_library():
    told = ("name", "type", "default", "init", "repr", "compare", "kw_only")
    ours, theirs = (
        [[getattr(entry, part) for part in told] for entry in dataclasses.fields(of)] for of in (OURS, THEIRS)
    )
    assert ours == theirs
    assert OURS.__match_args__ == THEIRS.__match_args__
    assert OURS.__slots__ == THEIRS.__slots__


def test_fields_are_inherited_and_read_by_pydantic():
    from pydantic import TypeAdapter

    found = TypeAdapter(Nearer).validate_python({"name": "a", "far": False})
    assert found == Nearer("a", far=False)
    assert [entry.name for entry in dataclasses.fields(Nearer)] == ["name", "parts", "far"]
    assert Nearer.__slots__ == ("far",)
    assert not hasattr(found, "__dict__")


@pytest.mark.parametrize("default", [[], {}])
def test_a_default_that_values_would_share_is_refused(default):
    with pytest.raises(ValueError, match="default_factory"):
        dataclass()(type("Shared", (), {"__annotations__": {"rows": "Any"}, "rows": default}))


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


@dataclass(frozen=True, slots=True)
class Nearer(Held):
    """One with more to it."""

    far: bool = True


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
