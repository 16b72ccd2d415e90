"""A framework each: a folder with the same files (how its models are opened, described, exported …), or one file.

Here is what all of them do in the same way.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

from likewise.contracts.models import Model
from likewise.errors import UsageError, nearest


def require_known(model: Model, options: Collection[str] = ()) -> None:
    """Refuse an option that the adapter would not obey: none is ever ignored."""
    known = (*options, "trusted")
    for key in model.options:
        if key not in known:
            listed = ", ".join(options) or "none"
            raise UsageError(
                f"the {model.framework} adapter has no option {key!r}{nearest(key, known)}",
                remedy=f"Its options: {listed}",
            )


@contextmanager
def quietly() -> Iterator[None]:
    """Without what converters tell their own developers: no warning, no log below an error; what is raised still is."""
    root = logging.getLogger()
    # A root logger without handlers is given one that prints by the first `logging.warning`.
    placeholder = logging.NullHandler()
    level = root.manager.disable
    root.addHandler(placeholder)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        root.removeHandler(placeholder)


@contextmanager
def silently() -> Iterator[None]:
    """The same without progress and advice that go to the terminal directly."""
    with quietly(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        yield


@contextmanager
def unheard() -> Iterator[None]:
    """The same without what is printed from C++, past Python's streams."""
    with silently(), open(os.devnull, "w") as nothing:
        kept = [os.dup(number) for number in (1, 2)]
        try:
            for number in (1, 2):
                os.dup2(nothing.fileno(), number)
            yield
        finally:
            for number, before in zip((1, 2), kept, strict=True):
                os.dup2(before, number)
                os.close(before)


@contextmanager
def flags_as_integers() -> Iterator[None]:
    """Converters list flags of trees as booleans where ONNX has integers, and protobuf 7 minds."""
    import numpy as np
    from onnx import helper

    make = helper.make_attribute

    def make_plain(key: str, value: Any, *more: Any, **options: Any) -> Any:
        if isinstance(value, list | tuple) and any(isinstance(entry, bool | np.bool_) for entry in value):
            value = [int(entry) if isinstance(entry, bool | np.bool_) else entry for entry in value]
        return make(key, value, *more, **options)

    helper.make_attribute = make_plain
    try:
        yield
    finally:
        helper.make_attribute = make
