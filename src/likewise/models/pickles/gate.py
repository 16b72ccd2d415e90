"""What one file may do, and what it was refused."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from likewise.errors import ModelError, one_line
from likewise.models.pickles import rights
from likewise.models.pickles.rights import Right
from likewise.models.pickles.streams import ArrayOnDisk


class Inert:
    """Stands in for what was refused: takes any call and any state, does nothing."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __new__(cls, *_: object, **__: object) -> Inert:
        return super().__new__(cls)


class Gate:
    """What one file may do, and what it was refused; shared by the pickles nested in it."""

    def __init__(self, trusted: Sequence[str]) -> None:
        self.open = "*" in trusted
        self.refused: dict[str, str] = {}
        self.sklearn_versions: set[str] = set()
        self._trusted = tuple(trusted)
        self._granted: dict[int, tuple[object, Right]] = {}
        self._own: dict[int, object] = {}
        self._filled: dict[int, object] = {}
        self._memory: dict[int, bytes] = {}
        self.held: dict[int, object] = {}
        """What code was given as data, and must stay it."""

        self.own(Inert)
        self.grant(ArrayOnDisk, Right.MAKE)

    def trusts(self, reference: str | None) -> bool:
        return reference is not None and rights.trusts(self._trusted, reference)

    def grant(self, found: Any, right: Right) -> Any:
        self._granted[id(found)] = (found, right)  # keeps it alive, so that its id stays its own
        return found

    def has(self, found: object, right: Right) -> bool:
        return self._granted.get(id(found), (None, 0))[1] >= right

    def own(self, found: Any) -> Any:
        """Something of ours that stands in for what a file names: it looks at what it is given itself."""
        self._own[id(found)] = found
        return self.grant(found, Right.CALL)

    def is_own(self, found: object) -> bool:
        return id(found) in self._own

    def was_filled(self, target: object) -> bool:
        """Was this given a state before? No file that pickle wrote does so: who holds it may have looked at it."""
        before = id(target) in self._filled or id(target) in self.held
        self._filled[id(target)] = target
        return before

    def may_make(self, kind: object) -> bool:
        return self.has(kind, Right.MAKE)

    def alone(self, memory: Any) -> Any:
        """The same in memory of its own: what was looked at in one array could be changed through another.

        numpy also writes into bytes that a state has given it: they are copied if something was made of them before.
        """
        if type(memory) is not bytes:
            return bytearray(memoryview(memory).cast("B"))
        if id(memory) in self._memory:
            return bytes(bytearray(memory))
        self._memory[id(memory)] = memory
        return memory

    def refuse(self, reference: str, action: str = "") -> type[Inert]:
        self.refused[f"{action} {reference}" if action else reference] = reference
        return Inert

    def find(self, module: str, name: str) -> Any:
        """The object of that name with the rights it has, or a stand-in."""
        reference = f"{module}.{name}"
        trusted = self.open or self.trusts(reference)
        if not trusted and not rights.importable(module, name):
            return self.refuse(reference)
        try:
            found = rights.resolve(module, name)
        except (ImportError, AttributeError) as error:
            raise _missing(module, name, error) from error
        own = rights.identity(found)
        # A trusted module may import anything: what it lends must be its own, or trusted as well.
        borrowed = isinstance(found, ModuleType) or (
            own is not None and own.partition(".")[0] != module.partition(".")[0]
        )
        if self.open or (trusted and (not borrowed or self.trusts(own))):
            return self.grant(found, Right.CALL)
        right = rights.right_to(reference, found)
        return self.refuse(own or reference) if right is None else self.grant(found, right)


def _missing(module: str, name: str, error: ImportError | AttributeError) -> ModelError:
    """The file may use it, but it is not here."""
    if module == "__main__":
        return ModelError(
            f"it needs {name}, which was defined in a script or notebook and is not in the file",
            remedy="Move it into a module that can be imported, and save the model again from there",
        )
    package = module.partition(".")[0]
    if package in sys.modules:
        return ModelError(
            f"it needs {module}.{name}, which the installed {package} does not have ({one_line(error)})",
            remedy=f"Install the version of {package} the model was saved with",
        )
    return ModelError(
        f"it needs the module {module}, which cannot be imported ({one_line(error)})",
        remedy=f"Install {package}, or put the folder that holds it on PYTHONPATH",
    )
