"""The command, as `likewise` and as `python -m likewise`."""

from __future__ import annotations

import atexit
import gc
import os
import sys


def main() -> None:
    """Run the command line, and import nothing that lies in the folder where it runs."""
    code: list[int] = []
    # Where this is all that the process is for. What is registered first is called last; what is there before us, as of
    # a tool that measures coverage, is not cut off.
    if os.path.basename(sys.argv[0]) in ("likewise", "__main__.py") and not atexit._ncallbacks():
        atexit.register(_end, code)
    _leave_out_working_folder()
    # Nothing that is imported is garbage.
    gc.disable()
    from likewise.cli import main as run

    gc.freeze()
    gc.enable()
    try:
        run()
    except SystemExit as ending:
        code += [ending.code] if isinstance(ending.code, int) else []
        raise


def _end(code: list[int]) -> None:
    """End with the exit code that is known, if one is: to take everything down is a sixth of what `--help` takes."""
    if code:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except (OSError, ValueError, AttributeError):
            return
        os._exit(code[0])


def _leave_out_working_folder() -> None:
    """Take the folder where we are off the path on which modules are found, for us and for what we start.

    `python -m` puts it there, and so do empty and relative entries of PYTHONPATH, often by accident; a file `numpy.py`
    in somebody else's folder would be run. An absolute entry is what the user wants.
    """
    here = os.getcwd()
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", here):
        del sys.path[0]
    path = os.environ.pop("PYTHONPATH", "")
    entries = path.split(os.pathsep) if path else []
    wanted = [entry for entry in entries if os.path.isabs(entry)]
    unwanted = {os.path.abspath(entry) for entry in entries} - set(wanted)
    sys.path[:] = [entry for entry in sys.path if os.path.isabs(entry) and entry not in unwanted]
    os.environ.update({"PYTHONSAFEPATH": "1", **({"PYTHONPATH": os.pathsep.join(wanted)} if wanted else {})})


if __name__ == "__main__":
    main()
