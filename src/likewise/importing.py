"""Objects that a user names: `module:attribute` or `file.py:attribute`. Naming code means running it."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

from likewise.errors import ModelError, nearest, one_line

SPECIFICATION = re.compile(r"^(?P<place>.+\.py|[A-Za-z_][\w.]*):(?P<attribute>[A-Za-z_][\w.]*)$")


def load(specification: str) -> Any:
    """The object that `module:attribute` or `file.py:attribute` names."""
    match = SPECIFICATION.match(specification)
    if match is None:
        raise ModelError(
            f"{specification!r} names no Python object", remedy="Write `module:attribute` or `file.py:attribute`"
        )
    place, attribute = match["place"], match["attribute"]
    try:
        module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    except ModelError:
        raise
    except (Exception, SystemExit) as error:
        raise ModelError(f"importing {place} failed: {one_line(error)}") from error
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            names = [name for name in vars(found) if not name.startswith("_")] if hasattr(found, "__dict__") else []
            raise ModelError(f"{place} has no {part!r}{nearest(part, names)}", remedy="Check the name after the colon")
        found = getattr(found, part)
    return found


def _load_module(name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return importlib.import_module(name)


def _load_file(path: Path) -> Any:
    path = path.resolve()
    if not path.is_file():
        raise ModelError(f"there is no file {path}", remedy="Check the path before the colon")
    name = f"likewise_user_{path.stem}_{abs(hash(path)):x}"
    if name in sys.modules:
        return sys.modules[name]
    if str(path.parent) not in sys.path:
        # The file may import its neighbours, as it could when run as a script.
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
