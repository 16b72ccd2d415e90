"""How the differences are spread: quantiles from a fixed histogram, at most 0.8% too large."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from likewise.compare.differences import blocks_of
from likewise.compare.sums import BUCKET_ERROR, LogHistogram
from likewise.contracts.comparison import Json, Pair, PairSpec
from likewise.contracts.models import Kind

QUANTILES = {
    "p50_abs_diff": 0.5,
    "p90_abs_diff": 0.9,
    "p95_abs_diff": 0.95,
    "p99_abs_diff": 0.99,
    "p99_9_abs_diff": 0.999,
}


@dataclass(frozen=True, slots=True)
class Distribution:
    """The absolute differences of all finite elements, counted by size."""

    histogram: LogHistogram = field(default_factory=LogHistogram)

    def merge(self, other: Distribution, /) -> Distribution:
        return Distribution(self.histogram.merge(other.histogram))

    def measurements(self) -> Mapping[str, float]:
        if not self.histogram.count:
            return {}
        return {name: self.histogram.quantile(share) for name, share in QUANTILES.items()}

    def details(self) -> Mapping[str, Json]:
        return {
            "values": self.histogram.count,
            "histogram": self.histogram.quarter_decades(),
            "quantile_error": BUCKET_ERROR,
        }


class DistributionMetric:
    """Quantiles of the absolute difference."""

    name = "distribution"

    def applies_to(self, spec: PairSpec, *, numeric: bool) -> bool:
        return numeric and spec.kind is not Kind.LABEL

    def empty(self) -> Distribution:
        return Distribution()

    def observe(self, pair: Pair) -> Distribution:
        return Distribution(LogHistogram.of_blocks(found.distances for found in blocks_of(pair)))


EXTENSION = DistributionMetric()
