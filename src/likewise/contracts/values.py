"""`dataclass` of the standard library, but that nothing is compiled before it is used.

A short check imports over a hundred classes and makes values of a third of them: writing and compiling six methods for
each was a fifth of what it takes. Here `__init__` is compiled when the first value is made, and all classes share the
others.
"""

from __future__ import annotations

import dataclasses
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen: bool = False, eq: bool = True, **options: Any) -> Any:
        """The decorator: options are those of the standard library."""

        def decorate(plain: type) -> type:
            # Without one, the standard library writes a signature there, which takes longer than all the rest.
            plain.__doc__ = plain.__doc__ or plain.__name__
            made = dataclasses.dataclass(init=False, repr=False, eq=False, **options)(plain)
            methods = {"__init__": _compiled_at_first(made, frozen=frozen), "__repr__": _repr}
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


def _compiled_at_first(cls: Any, *, frozen: bool) -> Any:
    def first(self: Any, *args: Any, **named: Any) -> None:
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
