"""Reads pickled models without running code from the file.

A pickle can run anything. This reader asks before it imports, calls or changes anything: it lets a file use only what
scikit-learn models are made of (`rights` says what that is) and puts an inert object in the place of everything else;
if there was anything to replace, the file is refused with the full list. Compressed files are read too, and the arrays
that joblib writes between the pickled parts.
"""

from __future__ import annotations

import copyreg
import inspect
import io
import os
import pickle
import shlex
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

from likewise.errors import ModelError, UntrustedModelError, one_line
from likewise.models.pickles import given, rights
from likewise.models.pickles.gate import Gate, Inert
from likewise.models.pickles.graph import refuse_what_no_model_holds
from likewise.models.pickles.rights import Right
from likewise.models.pickles.streams import ArrayOnDisk, decompressed

__all__ = ["Gate", "known", "known_to_build", "load", "read", "refusal", "refuse_what_no_model_holds"]

_MOST_NAMES_SHOWN = 20
DEEPEST = 500
"""Tuples within each other that a key may be made of."""

SHARING = frozenset(("numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer", "pyarrow.lib.py_buffer"))
"""What makes an array of memory that is there already."""

_SAVE_AGAIN = "Copy it again, or save the model again with joblib.dump(model, path)"


def load(path: str | os.PathLike[str], *, trusted: Sequence[str] = ()) -> object:
    """Read a .joblib, .pkl or .pickle file. `trusted` holds patterns of code it may run, such as `mypackage.*`."""
    return read(path, trusted=trusted)[0]


def read(path: str | os.PathLike[str], *, trusted: Sequence[str] = ()) -> tuple[object, list[str]]:
    """Read a file like `load`, with the versions of scikit-learn it says it was written with."""
    name = os.fspath(path)
    if not os.path.isfile(path):
        raise ModelError(f"there is no file {name}", remedy="Check the path of the model")
    gate = Gate(trusted)
    try:
        with open(path, "rb") as raw:
            stream = decompressed(raw)
            value = Reader(stream, gate).load()
            if stream.read(1):
                raise ValueError("something follows the model in it, and readers may take that for the model")
    except Exception as error:
        if gate.refused:  # the inert objects may well be what broke it
            raise refusal(name, gate.refused) from error
        if isinstance(error, Warning):
            raise
        raise _unreadable(name, error) from error
    if gate.refused:
        raise refusal(name, gate.refused)
    refuse_what_no_model_holds(name, value, trusted)
    return value, sorted(gate.sklearn_versions)


def known(reference: str) -> bool:
    """Is this part of scikit-learn, scipy or numpy, and safe to be given a state at which nobody looks before?"""
    module, _, name = reference.rpartition(".")
    if module.partition(".")[0] not in ("sklearn", "scipy", "numpy") or not rights.importable(module, name):
        return False
    try:
        found = rights.resolve(module, name)
    except (ImportError, AttributeError):
        return False
    kept = not isinstance(found, type) or given.keeps_any_state(found)
    return kept and rights.right_to(reference, found) is not None


def known_to_build(module: str, name: str) -> bool:
    """Is this a class that may be called with what a file holds: a container, an array, or what rebuilds itself?"""
    import numpy as np

    if not rights.importable(module, name):
        return False
    try:
        found = rights.resolve(module, name)
    except (ImportError, AttributeError):
        return False
    if not isinstance(found, type) or (right := rights.right_to(f"{module}.{name}", found)) is None:
        return False
    keeps = issubclass(found, dict | list | set | frozenset | tuple | np.ndarray)
    return right is Right.CALL or keeps or found.__module__.startswith("scipy.sparse.")


def refusal(name: str, refused: Iterable[str]) -> UntrustedModelError:
    """The error for a file that refers to code which is not known to be safe."""
    listed = sorted(refused)
    shown = ", ".join(listed[:_MOST_NAMES_SHOWN])
    more = f" and {len(listed) - _MOST_NAMES_SHOWN} more" if len(listed) > _MOST_NAMES_SHOWN else ""
    return UntrustedModelError(
        f"{name} refers to code that is not known to be safe, and none of it was run: {shown}{more}",
        remedy=_remedy({entry.rpartition(" ")[2] for entry in listed}),
    )


def _remedy(references: set[str]) -> str:
    packages = sorted({reference.partition(".")[0] for reference in references})
    if "__main__" in packages:
        return (
            "What was defined in a script or notebook (__main__) cannot be found again: move it into a module "
            "that can be imported, and save the model again from there"
        )
    alien = [package for package in packages if package in sys.stdlib_module_names]
    if alien:
        return (
            f"A model has no business with {', '.join(alien)}: find out where the file comes from. "
            "Only if you would run a program from the same hand, allow everything with --trust '*', "
            'or trusted=["*"] in Python and likewise.toml: that runs the file\'s code'
        )
    options = " ".join(f"--trust {shlex.quote(f'{package}.*')}" for package in packages)
    setting = ", ".join(f'"{package}.*"' for package in packages)
    return (
        f"If you trust whoever made the file, allow it with {options}, or trusted=[{setting}] in Python and "
        "likewise.toml: that runs the file's code"
    )


def _unreadable(name: str, error: Exception) -> ModelError:
    if isinstance(error, ModelError):
        return ModelError(f"{name} cannot be loaded: {error.message}", remedy=error.remedy or _SAVE_AGAIN)
    cut = isinstance(error, EOFError) or "truncated" in str(error) or "Ran out of input" in str(error)
    reason = "it ends early" if cut else f"it is damaged or not a pickle ({one_line(error)})"
    return ModelError(f"{name} cannot be loaded: {reason}", remedy=_SAVE_AGAIN)


if TYPE_CHECKING:
    _Unpickler: Any
else:
    _Unpickler = pickle._Unpickler  # the one in C cannot be asked about calls


def _require_shallow(keys: Sequence[Any]) -> None:
    """An error for tuples within tuples without end: Python hashes one within the other, and has no end of its own."""
    waiting, seen = [(key, 0) for key in keys if isinstance(key, tuple | frozenset)], set[int]()
    while waiting:
        value, depth = waiting.pop()
        if depth > DEEPEST:
            raise pickle.UnpicklingError(f"a key of more than {DEEPEST} tuples within each other")
        if id(value) not in seen:
            seen.add(id(value))
            waiting += [(entry, depth + 1) for entry in value if isinstance(entry, tuple | frozenset)]


class Reader(_Unpickler):  # type: ignore[misc]
    """Reads a pickle, or joblib's mixture of pickle and raw arrays, under a gate."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(_Unpickler.dispatch)

    def __init__(self, stream: BinaryIO, gate: Gate) -> None:
        super().__init__(stream)
        self._stream = stream
        self._gate = gate

    def find_class(self, module: str, name: str) -> Any:
        module, name = _modern_name(module, name, python2=self.proto < 3)
        replacement = {
            "joblib.numpy_pickle.NumpyArrayWrapper": ArrayOnDisk,
            "copyreg._reconstructor": self._reconstruct,
            "copyreg.__newobj__": self._make,
            "copyreg.__newobj_ex__": self._made,
            "builtins.getattr": self._method,
        }.get(f"{module}.{name}")
        if replacement is None or (self._gate.open and replacement is not ArrayOnDisk):
            return self._gate.find(module, name)
        if replacement is ArrayOnDisk:
            return self._gate.grant(replacement, Right.MAKE)
        return self._gate.own(replacement)

    def get_extension(self, code: int) -> None:
        # The original keeps what it found for the whole process and hands it out without asking.
        registered = copyreg._inverted_registry.get(code)  # type: ignore[attr-defined]
        if registered is None:
            raise pickle.UnpicklingError(f"unregistered extension code {code}")
        self.append(self.find_class(*registered))

    def _call(self, function: Any, arguments: tuple[Any, ...]) -> Any:
        gate = self._gate
        if isinstance(function, Inert):
            return function
        if type(arguments) is not tuple:  # whatever else it is would be unpacked
            return gate.refuse(_describe(function), "calling")()
        own = gate.is_own(function) or gate.trusts(rights.identity(function))
        allowed = gate.has(function, Right.CALL) and (own or given.calling_allowed(function, arguments, gate.held))
        allowed = allowed and (own or given.of_its_family(function, arguments, gate.may_make))
        if not allowed and not gate.open:
            return gate.refuse(_describe(function), "calling")()
        if rights.identity(function) in SHARING:
            arguments = (*map(gate.alone, arguments[:1]), *arguments[1:])
        made = function(*arguments)
        if type(made).__module__ == "pyarrow.lib" and hasattr(type(made), "validate"):
            made.validate(full=True)  # offsets and lengths are believed by whoever reads it next
        return made

    def _make(self, cls: Any, *arguments: Any, **options: Any) -> Any:
        gate = self._gate
        if isinstance(cls, Inert):
            return cls
        if isinstance(cls, type) and cls.__bases__ == (tuple,) and gate.has(cls, Right.MAKE) and not options:
            return tuple.__new__(cls, arguments)  # a named tuple, which keeps what it is given
        named = rights.identity(cls)
        data = given.inert(arguments, options, held=gate.held) and given.arguments_allowed(named, arguments)
        allowed = isinstance(cls, type) and gate.has(cls, Right.MAKE) and (data or gate.trusts(named))
        if not allowed and not gate.open:
            return gate.refuse(_describe(cls), "making")()
        return cls.__new__(cls, *arguments, **options)

    def _reconstruct(self, cls: Any, base: Any, state: Any) -> Any:
        """How protocols 0 and 1 make an object: `copyreg._reconstructor`, with a check."""
        if base is object or cls is Inert:
            return self._make(cls)
        for made in (cls, base):
            if not (isinstance(made, type) and self._gate.has(made, Right.MAKE)):
                return self._gate.refuse(_describe(made), "making")()
        keeps = base in (dict, list) and type(state) is base
        data = given.inert(state, plain=True) and given.arguments_allowed(rights.identity(base), (state,))
        if not (keeps or data) or base.__module__ != "builtins":
            return self._gate.refuse(_describe(cls), "making")()
        made = base.__new__(cls, state)
        base.__init__(made, state)
        return made

    def _method(self, owner: Any, name: Any) -> Any:
        if isinstance(owner, Inert) or owner is Inert:
            return Inert
        if type(name) is not str or not rights.method_allowed(owner, name):
            return self._gate.refuse(f"{_describe(owner)}.{name if type(name) is str else type(name).__name__}")
        return getattr(owner, name)

    def _instantiate(self, cls: Any, arguments: list[Any]) -> None:
        self.append(self._call(cls, tuple(arguments)))

    def load_reduce(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = self._call(self.stack[-1], arguments)

    def load_newobj(self) -> None:
        arguments = self.stack.pop()
        self.stack[-1] = self._made(self.stack[-1], arguments, {})

    def load_newobj_ex(self) -> None:
        options, arguments = self.stack.pop(), self.stack.pop()
        self.stack[-1] = self._made(self.stack[-1], arguments, options)

    def _made(self, cls: Any, arguments: Any, options: Any) -> Any:
        if type(arguments) is not tuple or type(options) is not dict:
            return self._gate.refuse(_describe(cls), "making")()
        return self._make(cls, *arguments, **options)

    def load_build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        gate = self._gate
        if isinstance(target, Inert) or target is Inert:
            return
        allowed = not gate.has(target, Right.VALUE) and not gate.was_filled(target)
        allowed = allowed and (not isinstance(target, ArrayOnDisk) or given.inert(state))
        trusted = gate.trusts(rights.identity(type(target)))
        allowed = allowed and (trusted or given.state_allowed(target, state, gate.held))
        if not allowed and not gate.open:
            gate.refuse(_describe(target), "changing")
            return
        if given.is_dtype(target):
            self._replace(target, given.built_dtype(target, state))
            return
        if isinstance(state, dict) and isinstance(version := dict.get(state, "_sklearn_version"), str):
            gate.sklearn_versions.add(version)
        if given.is_array(target) and type(state) is tuple:
            state = tuple(gate.alone(part) if isinstance(part, bytes | bytearray) else part for part in state)
        _set_state(target, state)
        if isinstance(target, ArrayOnDisk):
            self.stack[-1] = target.read(self._stream, lambda: Reader(self._stream, gate).load())

    def _replace(self, target: Any, built: Any) -> None:
        """Leave what may already be part of arrays as it is, and put what was built in its place from here on."""
        self.stack[-1] = built
        self.memo.update({key: built for key, held in self.memo.items() if held is target})

    def _extend(self, kind: tuple[type, ...], method: str, items: Sequence[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, deque) and any(isinstance(item, deque) for item in items):
            raise pickle.UnpicklingError("a deque within a deque")  # Python frees one within the other
        if isinstance(target, kind) and id(target) not in self._gate.held:
            getattr(type(target), method)(target, items)
        elif not isinstance(target, Inert):
            self._gate.refuse(_describe(target), "changing")

    def load_append(self) -> None:
        value = self.stack.pop()
        self._extend((list, deque), "extend", [value])

    def load_appends(self) -> None:
        items = self.pop_mark()
        self._extend((list, deque), "extend", items)

    def load_additems(self) -> None:
        items = self.pop_mark()
        self._extend((set,), "update", self._hashed(items))

    def load_frozenset(self) -> None:
        items = self.pop_mark()  # changes where `append` appends to
        self.append(frozenset(self._hashed(items)))

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._set_items(items)

    def _hashed(self, keys: Sequence[Any]) -> Sequence[Any]:
        """Keys that may be hashed and compared, which objects do as their class says: data, and what is trusted."""
        gate = self._gate
        _require_shallow(keys)
        others = (key for key in keys if type(key) is not str and not gate.trusts(rights.identity(type(key))))
        if gate.open or given.inert(*others):
            return keys
        self._gate.refuse("an object as a key", "hashing")
        return []

    def load_setitem(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_items([key, value])

    def load_setitems(self) -> None:
        self._set_items(self.pop_mark())

    def _set_items(self, items: list[Any]) -> None:
        if len(items) % 2:
            raise pickle.UnpicklingError("a key without a value")
        target = self.stack[-1]
        if isinstance(target, dict) and id(target) not in self._gate.held:
            for key, value in zip(self._hashed(items[::2]), items[1::2], strict=False):
                dict.__setitem__(target, key, value)
        elif not isinstance(target, Inert):
            self._gate.refuse(_describe(target), "changing")

    def load_frame(self) -> None:
        # The original takes what there is for the whole of it.
        size = int.from_bytes(self.read(8), "little")
        if len(frame := self._unframer.file_read(size)) != size:
            raise EOFError("a part of the file ends early")
        self._unframer.current_frame = io.BytesIO(frame)

    def load_bytearray8(self) -> None:
        # The original makes room for as many bytes as the file claims to have before it looks.
        self.append(bytearray(self.read(int.from_bytes(self.read(8), "little"))))

    dispatch.update(
        {
            pickle.BYTEARRAY8[0]: load_bytearray8,
            pickle.FRAME[0]: load_frame,
            pickle.REDUCE[0]: load_reduce,
            pickle.NEWOBJ[0]: load_newobj,
            pickle.NEWOBJ_EX[0]: load_newobj_ex,
            pickle.BUILD[0]: load_build,
            pickle.APPEND[0]: load_append,
            pickle.APPENDS[0]: load_appends,
            pickle.ADDITEMS[0]: load_additems,
            pickle.FROZENSET[0]: load_frozenset,
            pickle.DICT[0]: load_dict,
            pickle.SETITEM[0]: load_setitem,
            pickle.SETITEMS[0]: load_setitems,
        }
    )


def _set_state(target: Any, state: Any) -> None:
    """What pickle does, with the setter looked up on the class: the object's own could be any callable of the file."""
    setter = getattr(type(target), "__setstate__", None)
    if setter is not None:
        setter(target, state)
        return
    attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    for name, value in dict.items({} if attributes is None else attributes):
        target.__dict__[sys.intern(name) if type(name) is str else name] = value
    for name, value in dict.items({} if slots is None else slots):
        if not isinstance(inspect.getattr_static(type(target), name, None), MemberDescriptorType):
            raise TypeError(f"{type(target).__name__} has no slot {name!r}")  # a property would run its setter
        setattr(target, name, value)


def _modern_name(module: str, name: str, *, python2: bool) -> tuple[str, str]:
    """Names of Python 2, which protocols up to 2 write, and of numpy 1, whose old paths warn in numpy 2."""
    import _compat_pickle

    import numpy as np

    if python2 and (module, name) in _compat_pickle.NAME_MAPPING:
        return _compat_pickle.NAME_MAPPING[module, name]
    if python2:
        module = _compat_pickle.IMPORT_MAPPING.get(module, module)
    if module.startswith("numpy.core.") and not np.__version__.startswith("1."):
        module = f"numpy._core.{module.removeprefix('numpy.core.')}"
    return module, name


def _describe(found: Any) -> str:
    return rights.identity(found) or rights.identity(type(found)) or type(found).__name__
