"""What raw samples say: percentiles, throughput, and the ratio of medians with its interval."""

from __future__ import annotations

from collections.abc import Sequence

from likewise.contracts.benching import BatchTiming, Latency, Round

CONFIDENCE = 0.95
RESAMPLES = 2_000
LEAST_ROUNDS = 3
LEAST_CALLS_FOR_P99 = 100


def timing(size: int, rounds: Sequence[Round], *, seed: int) -> BatchTiming:
    """Everything the rounds at one batch size say."""
    import numpy as np

    reference = [entry.reference for entry in rounds]
    candidate = [entry.candidate for entry in rounds]
    return BatchTiming(
        batch_size=size,
        reference=latency(reference, size),
        candidate=latency(candidate, size),
        ratio=float(np.median(np.concatenate(reference)) / np.median(np.concatenate(candidate))),
        interval=interval(reference, candidate, seed=seed),
        rounds=tuple(rounds),
    )


def latency(turns: Sequence[Sequence[int]], size: int) -> Latency:
    """Percentiles of all calls in milliseconds; throughput is all rows over all timed time."""
    import numpy as np

    calls = np.concatenate([np.asarray(turn, dtype=np.float64) for turn in turns])
    p50, p90, p99 = (float(value) for value in np.percentile(calls, [50, 90, 99]) / 1e6)
    return Latency(
        calls=len(calls),
        p50=p50,
        p90=p90,
        p99=p99 if len(calls) >= LEAST_CALLS_FOR_P99 else None,
        rows_per_second=float(size * len(calls) / (calls.sum() / 1e9)),
    )


def interval(
    reference: Sequence[Sequence[int]], candidate: Sequence[Sequence[int]], *, seed: int
) -> tuple[float, float] | None:
    """The bootstrap interval of the ratio of medians.

    Whole rounds are drawn again, both models' turns together: calls within a turn share the state of
    the machine and are not independent of each other. Every turn of a model has the same number of calls.
    """
    import numpy as np

    if len(reference) < LEAST_ROUNDS:
        return None
    ours, theirs = np.array(reference, dtype=np.float64), np.array(candidate, dtype=np.float64)
    random = np.random.default_rng(seed)
    ratios = np.empty(RESAMPLES)
    for index in range(RESAMPLES):
        drawn = random.integers(0, len(ours), size=len(ours))
        ratios[index] = np.median(ours[drawn]) / np.median(theirs[drawn])
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(ratios, [tail, 1 - tail])
    return float(low), float(high)
