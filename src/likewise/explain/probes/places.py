"""Answers that depend on where in a batch a row is: right at every size, and wrong in another order."""

from __future__ import annotations

from collections.abc import Sequence

from likewise.compare.variations.batches import LEFT_OVER
from likewise.explain.case import Case, Explained


class Places:
    """The sweep has put rows into other places of a batch; here is what that means."""

    causes = ("batch-dependence",)
    needs_answers = False

    def plausible(self, case: Case) -> bool:
        return any(finding.code == "batch-position" for finding in case.verdict.findings)

    def test(self, case: Case) -> Sequence[Explained]:
        told = next(finding.message for finding in case.verdict.findings if finding.code == "batch-position")
        return [
            Explained(
                "batch-dependence",
                "the last, short batch" if told.startswith(LEFT_OVER) else "the place of a row in its batch",
                "the candidate answers like the reference at every batch size, as long as rows keep their order and "
                f"batches are full; not so with {told}",
                "Look for rows that are sorted or moved within a batch and not put back, and for counters along it",
                share=1.0,
                simplicity=2,
            )
        ]


EXTENSION = Places()
