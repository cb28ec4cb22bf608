"""A TSO's counters and gauges as metrics of Prometheus' client library; `metrics` serves them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pyomid.server.service import TsoService
from pyomid.types import AbortReason

if TYPE_CHECKING:
    from pyomid.server.metrics import Watched

PREFIX: Final = "pyomid_tso_"


def registry_of(watched: Watched) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(MachineCollector(watched))
    return registry


class MachineCollector(Collector):
    """Reads the machine's report at each scrape, so that no counter exists twice."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def collect(self) -> Iterator[Metric]:
        service = self._watched.service
        yield GaugeMetricFamily(f"{PREFIX}leads", "1 while this process serves", value=float(service is not None))
        if service is None:
            return
        service.count_up()
        yield from _counters(service)
        yield from _gauges(service)
        if self._watched.upkeep is not None:
            for name, text in UPKEEP.items():
                yield CounterMetricFamily(f"{PREFIX}upkeep_{name}", text, value=getattr(self._watched.upkeep, name))
        buckets, sum_s = service.flush_seconds.cumulative()
        text = "Time of one flush of the commit table"
        yield HistogramMetricFamily(f"{PREFIX}flush_seconds", text, buckets=buckets, sum_value=sum_s)


COUNTERS: Final = {
    "begins": "Start timestamps handed out",
    "commits": "Transactions committed",
    "commits_failed": "Commits whose cells could not be written",
    "begin_waits": "Begins that waited for a window",
    "flushes": "Flushes of the commit table",
    "fences": "Fences",
    "seals": "Starts sealed through the TSO",
    "ids_reported": "Conflict ids that tasks reported",
    "reports_refused": "Reports of conflict ids for which there was no room",
    "completions": "Entries deleted because their transactions are complete",
    "completions_left": "Entries of complete transactions left to the sanitizer",
    "stalls": "Stalls after which the leader state was read",
    "refused": "Requests refused with an error",
    "protocol_errors": "Peers closed for protocol errors",
    "slow_readers": "Peers closed because they did not read replies",
    "overdue_peers": "Peers closed for a missing handshake, frame or request",
    "memory_hogs": "Peers closed because they held most of the memory",
    "refused_connections": "Connections closed because there were too many",
    "store_failures": "Store calls that failed and were retried",
    "leases_granted": "Leases granted",
    "leases_shared": "Shared leases promised; one granted lease serves many promises",
    "leases_expired": "Leases expired",
    "retries_found": "Retries whose first attempt was found committed",
    "entries_sanitized": "Commit-table entries deleted below the horizon",
    "unknown_tables": "Marks of tables that are not registered",
}

UPKEEP: Final = {
    "passes": "Passes of background compaction over a folder",
    "versions_dropped": "Versions deleted by background compaction",
    "entries_deleted": "Commit-table entries deleted by background sanitizing",
    "failures": "Checks, compactions and sanitizings in the background that failed",
    "busy_seconds": "Working time of background upkeep, without its pauses",
}

GAUGES: Final = {
    "epoch": "Every timestamp at or below it is an earlier TSO's",
    "last_timestamp": "The latest timestamp handed out",
    "low_watermark": "LWM: no transaction at or below it can commit",
    "low_watermark_lag": "Timestamps between LWM and the latest: what the conflict map remembers",
    "watermark": "W: compaction may clean up to here",
    "retention_seconds": "How long history is kept; 0: only while a reader needs it",
    "horizon": "H: below it the commit table is not consulted",
    "leases": "Leases that hold W back",
    "pending_large_commits": "Large commits not yet finished",
    "commits_in_flight": "Commits being made durable",
    "connections": "Connections of clients",
    "conflict_map_entries_max": "Slots of the conflict map",
    "conflict_map_entries": "Slots of the conflict map that are filled",
}

WATERMARK_LAG: Final = "Timestamps between W and the latest, by what holds W back and by its holder"


def _counters(service: TsoService) -> Iterator[Metric]:
    counters = service.machine.report().counters
    aborts = CounterMetricFamily(f"{PREFIX}aborts", "Commits refused, by reason", labels=["reason"])
    for reason in AbortReason:
        aborts.add_metric([reason.value], counters[f"aborts_{reason.value}"])
    yield aborts
    for name, text in COUNTERS.items():
        yield CounterMetricFamily(PREFIX + name, text, value=counters[name])


def _gauges(service: TsoService) -> Iterator[Metric]:
    report = service.machine.report()
    gauges: dict[str, float] = {
        "epoch": report.epoch,
        "last_timestamp": report.last_ts,
        "low_watermark": report.low_watermark,
        "low_watermark_lag": report.last_ts - report.low_watermark,
        "watermark": report.watermark,
        "retention_seconds": report.retention_s,
        "horizon": report.horizon,
        "leases": report.leases,
        "pending_large_commits": report.pending,
        "commits_in_flight": report.in_flight,
        "connections": service.connections,
        "conflict_map_entries_max": report.conflict_map_entries_max,
        "conflict_map_entries": report.conflict_map_entries,
    }
    for name, text in GAUGES.items():
        yield GaugeMetricFamily(PREFIX + name, text, value=gauges[name])
    lag = GaugeMetricFamily(f"{PREFIX}watermark_lag", WATERMARK_LAG, labels=["by", "holder"])
    lag.add_metric([report.watermark_held, report.watermark_holder], report.last_ts - report.watermark)
    yield lag
