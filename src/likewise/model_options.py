"""Options of a model that its adapter does not obey are refused, never ignored."""

from __future__ import annotations

from likewise.contracts.models import Model
from likewise.errors import UsageError, nearest


def require_known(model: Model, options: tuple[str, ...] = ()) -> None:
    """Refuse an option that the adapter would not obey."""
    known = (*options, "trusted")
    for key in model.options:
        if key not in known:
            listed = ", ".join(options) or "none"
            raise UsageError(
                f"the {model.framework} adapter has no option {key!r}{nearest(key, known)}",
                remedy=f"Its options: {listed}",
            )
