"""`dataclass` of the standard library, but that little is done before it is needed.

A short check imports over a hundred classes and makes values of half of them, of most only a few: reading what they
declare and writing and compiling six methods for each was a fifth of what it takes. Here `__init__` is compiled once
many values are made, and all classes share the others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from inspect import get_annotations
from operator import attrgetter
from typing import TYPE_CHECKING, Any

MANY = 32
"""Values of a class from which on they are made by a method of their own: to compile it takes as long as making so many
without."""


@dataclasses.dataclass(init=False, repr=False, eq=False)
class _Template:
    """What the standard library notes of a class, and of a field that is none of its special ones."""

    field: int


TEMPLATE: Any = _Template


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool = False, eq: bool = True, **options: Any) -> Any:
        """The decorator: options are those of the standard library."""

        def decorate(plain: type) -> type:
            made = _with_fields(plain, **options)
            methods = {"__init__": _compiled_later(made, frozen=frozen), "__repr__": _repr}
            if eq:
                names = (entry.name for entry in dataclasses.fields(made) if entry.compare)
                made._compared = attrgetter("__class__", *names)
                methods |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
            if frozen:
                methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
            if frozen and options.get("slots"):
                methods |= {"__getstate__": _getstate, "__setstate__": _setstate}
            for name, method in methods.items():
                if name not in plain.__dict__:
                    setattr(made, name, method)
            return made

        return decorate


def _with_fields(plain: Any, *, slots: bool = False, weakref_slot: bool = False, kw_only: bool = False) -> Any:
    """The class with its fields where the standard library looks for them."""
    own = {name: _field(plain, name, told, kw_only=kw_only) for name, told in _annotated(plain)}
    inherited = [base.__dict__.get("__dataclass_fields__", {}) for base in plain.__mro__[-1:0:-1]]
    every = {name: entry for fields in (*inherited, own) for name, entry in fields.items()}
    positional = tuple(name for name, entry in every.items() if entry.init and not entry.kw_only)
    told = {
        "__dataclass_fields__": every,
        "__dataclass_params__": TEMPLATE.__dataclass_params__,
        "__match_args__": positional,
    }
    # Without a text, whoever asks for one is given a signature, and that takes long to write.
    told |= {"__doc__": plain.__doc__ or plain.__name__}
    if not slots:
        defaults = {name: entry.default for name, entry in own.items() if entry.default is not dataclasses.MISSING}
        for name in own.keys() & plain.__dict__.keys() - defaults.keys():
            delattr(plain, name)
        for name, value in {**told, **defaults}.items():
            setattr(plain, name, value)
        return plain
    known = {name for base in plain.__mro__[1:-1] for name in base.__dict__.get("__slots__", ())}
    left = {name: value for name, value in plain.__dict__.items() if name not in own}
    for name in ("__dict__", "__weakref__"):
        left.pop(name, None)
    left["__slots__"] = (*(name for name in own if name not in known), *(["__weakref__"] if weakref_slot else []))
    made = type(plain)(plain.__name__, plain.__bases__, {**left, **told})
    made.__qualname__ = plain.__qualname__
    return made


def _annotated(plain: type) -> Iterator[tuple[str, str]]:
    for name, told in get_annotations(plain).items():
        if told.startswith(("ClassVar", "InitVar", "KW_ONLY")):
            raise TypeError(f"{plain.__name__}.{name}: {told} is for the standard library's dataclass")
        yield name, told


def _field(plain: type, name: str, told: str, *, kw_only: bool) -> Any:
    """A field as the standard library describes it."""
    given = plain.__dict__.get(name, dataclasses.MISSING)
    entry: Any = given if isinstance(given, dataclasses.Field) else dataclasses.field(default=given)
    if type(entry.default).__hash__ is None:
        raise ValueError(f"{plain.__name__}.{name}: values would share their default; give a default_factory")
    entry.name, entry.type = name, told
    entry._field_type = TEMPLATE.__dataclass_fields__["field"]._field_type
    if entry.kw_only is dataclasses.MISSING:
        entry.kw_only = kw_only
    return entry


def _compiled_later(cls: Any, *, frozen: bool) -> Any:
    count, missing, put = 0, dataclasses.MISSING, object.__setattr__
    names, fields, follows = cls.__match_args__, cls.__dataclass_fields__, hasattr(cls, "__post_init__")

    def first(self: Any, *args: Any, **named: Any) -> None:
        nonlocal count
        count += 1
        left = {**named, **dict(zip(names, args, strict=False))} if args else named.copy()
        whole = count <= MANY and len(left) == len(args) + len(named)
        for name, entry in fields.items() if whole else ():
            value = left.pop(name, missing) if entry.init else missing
            if value is missing:
                value = entry.default
                if value is missing:
                    if entry.default_factory is missing:
                        whole = whole and not entry.init
                        continue
                    value = entry.default_factory()
            put(self, name, value)
        if whole and not left:
            if follows:
                self.__post_init__()
            return
        # There are many, or it is the compiled one that says what is wrong with what was given.
        cls.__init__ = _compiled(cls, frozen=frozen)
        cls.__init__(self, *args, **named)

    return first


def _compiled(cls: Any, *, frozen: bool) -> Any:
    """`__init__` as the standard library writes it."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_missing": dataclasses.MISSING}
    parameters: dict[bool, list[str]] = {False: ["self"], True: ["*"]}
    lines = []
    for field in dataclasses.fields(cls):
        name, default, value = field.name, "", field.name
        if field.default is not dataclasses.MISSING:
            known[f"_default_{name}"], default = field.default, f"=_default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            known[f"_make_{name}"], default = field.default_factory, "=_missing"
            value = f"_make_{name}() if {name} is _missing else {name}" if field.init else f"_make_{name}()"
        elif not field.init:
            continue
        if field.init:
            parameters[field.kw_only is True].append(name + default)
        elif not value.startswith("_make_"):
            value = f"_default_{name}"
        lines.append(f" _set(self, {name!r}, {value})" if frozen else f" self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    declared = [*parameters[False], *(parameters[True] if len(parameters[True]) > 1 else [])]
    exec("\n".join((f"def __init__({', '.join(declared)}):", *lines, " return None")), known)
    known["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    return known["__init__"]


def _eq(self: Any, other: Any) -> bool:
    if other.__class__ is not self.__class__:
        return NotImplemented  # type: ignore[no-any-return]
    return bool(self._compared(self) == self._compared(other))


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _repr(self: Any) -> str:
    shown = [f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr]
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse(self: Any, name: str, *_: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot change {name!r}")


def _getstate(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _setstate(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
