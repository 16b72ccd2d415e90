"""Keeps what the quantiser prints and warns about, which concerns its own code, off the user's terminal."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout


@contextmanager
def quietly() -> Iterator[None]:
    """Without output, log lines and warnings; logging is left as it was."""
    root = logging.getLogger()
    # A root logger without handlers is given one that prints by the first `logging.warning`.
    placeholder = logging.NullHandler()
    level = root.manager.disable
    root.addHandler(placeholder)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        root.removeHandler(placeholder)
