"""Keeps what converters print for their own developers off a user's terminal."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quietly() -> Iterator[None]:
    """No warnings and no log below an error; what is raised still is."""
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
