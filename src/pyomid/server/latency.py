"""Durations counted in fixed buckets: cheap enough for every flush, enough for percentiles."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

from prometheus_client.metrics_core import HistogramMetricFamily

BOUNDS_S: Final = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class Durations:
    """Not thread-safe: counted on the event loop."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def add(self, duration_s: float) -> None:
        self._counts[bisect_left(BOUNDS_S, duration_s)] += 1
        self._sum_s += duration_s

    def metric(self, name: str, text: str) -> HistogramMetricFamily:
        """As Prometheus wants it: cumulative."""
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, BOUNDS_S), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        return HistogramMetricFamily(name, text, buckets=buckets, sum_value=self._sum_s)
