"""The process of one model under measurement: takes calls as pickles from its parent and answers them.

What the model prints goes to standard error, so that it can never be taken for an answer.
"""

from __future__ import annotations

import os
import pickle
import sys
from typing import Any

from likewise.errors import LikewiseError, one_line


def main() -> None:
    """Serve until the parent closes the pipe."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    calls = os.fdopen(os.dup(0), "rb")
    sys.path[:] = pickle.load(calls)
    from likewise.tasks.bench.subject import Subject

    subject = Subject()
    while True:
        try:
            name, content = pickle.load(calls)
        except EOFError:
            break
        pickle.dump(_answer(subject, name, content), answers)
        answers.flush()
    # A framework's threads may refuse to end; everything was answered.
    os._exit(0)


def _answer(subject: Any, name: str, content: bytes) -> tuple[str, Any]:
    try:
        arguments = pickle.loads(content)
    except Exception as error:  # noqa: BLE001 - a live object may fail to arrive in any way
        return "unpicklable", one_line(error)
    try:
        return "result", getattr(subject, name)(*arguments)
    except LikewiseError as error:
        return "error", (error.code, error.message, error.remedy)
    except MemoryError as error:
        return "error", ("memory", f"memory ran out: {one_line(error)}", "")
    except Exception as error:  # noqa: BLE001 - no traceback reaches a user
        return "error", ("internal", f"unforeseen: {one_line(error)}", "")


if __name__ == "__main__":
    main()
