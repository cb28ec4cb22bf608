"""The HTTP port for Prometheus (/metrics) and for health checks.

/health answers whether the process is well, /ready whether it serves, and /ready?standby=yes whether it serves or could
lead at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from pyomid.errors import Misuse, Unavailable
from pyomid.types import AbortReason

if TYPE_CHECKING:
    from pyomid.omid.tso.service import TsoService
    from pyomid.omid.tso.startup import Watched

log = logging.getLogger(__name__)

REQUEST_BYTES_MAX: Final = 8192
REQUEST_S_MAX: Final = 5.0
CONNECTIONS_MAX: Final = 32
"""The most open connections. One more closes the oldest, so that idle connections cannot block a health check."""
PAUSE_S: Final = 0.01
"""The pause between two replies. Each reply delays the TSO's clients by some milliseconds, so peers must not set the
rate."""


async def serve_metrics(watched: Watched, address: str) -> asyncio.Server:
    """Listen on HOST:PORT and serve GET /metrics, /health and /ready[?standby=yes]."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise Misuse(f"--metrics {address!r} is not HOST:PORT")
    registry = CollectorRegistry()
    registry.register(MachineCollector(watched))
    open_connections: dict[asyncio.StreamWriter, None] = {}
    one_at_a_time = asyncio.Lock()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_connections[writer] = None
        if len(open_connections) > CONNECTIONS_MAX:
            oldest = next(iter(open_connections))
            del open_connections[oldest]
            oldest.transport.abort()
        try:
            await _answer(reader, writer)
        finally:
            open_connections.pop(writer, None)

    async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(TimeoutError, ConnectionError, ValueError):
            async with asyncio.timeout(REQUEST_S_MAX):
                await _answer_one(reader, writer)
        writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        while (await reader.readline()).strip():
            pass  # skip the headers: unread bytes would reset the connection before the reply arrives
        async with one_at_a_time:
            if writer.transport.is_closing():
                return  # closed meanwhile, by the peer or by the limit
            writer.write(_response(line[:REQUEST_BYTES_MAX], watched, registry))
            await asyncio.sleep(PAUSE_S)
        await writer.drain()

    try:
        server = await asyncio.start_server(answer, host or "127.0.0.1", int(port), limit=REQUEST_BYTES_MAX)
    except OSError as error:
        raise Unavailable(f"cannot listen on {address} for metrics: {error.strerror}", address=address) from error
    log.info("metrics and health", extra={"port": server.sockets[0].getsockname()[1]})
    return server


def _response(line: bytes, watched: Watched, registry: CollectorRegistry) -> bytes:
    path, _, query = line.split(b" ")[1].partition(b"?") if line.count(b" ") >= 2 else (b"", b"", b"")
    state = watched.state
    match path:
        case b"/metrics":
            return _http("200 OK", "text/plain; version=0.0.4", generate_latest(registry))
        case b"/health":
            return _state_response(state, is_good=state != "not serving")
        case b"/ready":
            could = query == b"standby=yes" and state == "standing by" and watched.is_prepared()
            return _state_response(state, is_good=could or state == "serving")
    return _http("404 Not Found", "text/plain", b"/metrics, /health or /ready\n")


def _state_response(state: str, *, is_good: bool) -> bytes:
    return _http("200 OK" if is_good else "503 Service Unavailable", "text/plain", f"{state}\n".encode())


def _http(status: str, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


# ── the metrics ────────────────────────────────────────────────────────────────────────────────────────────────────


PREFIX: Final = "pyomid_tso_"


class MachineCollector(Collector):
    """Collects the metrics from the machine's report at each scrape, so that no counter is kept twice."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched

    def collect(self) -> Iterator[Metric]:
        service = self._watched.service
        yield GaugeMetricFamily(f"{PREFIX}leads", "1 while this process serves", value=float(service is not None))
        if service is None:
            return
        yield from _counters(service)
        yield from _gauges(service)
        buckets, sum_s = service.flush_seconds.cumulative()
        text = "Time of one flush of the commit table"
        yield HistogramMetricFamily(f"{PREFIX}flush_seconds", text, buckets=buckets, sum_value=sum_s)


COUNTERS: Final = {
    "begins": "Start timestamps handed out",
    "commits": "Transactions committed",
    "begin_waits": "Begins that waited for a window",
    "flushes": "Flushes of the commit table",
    "fences": "Fences",
    "seals": "Starts sealed through the TSO",
    "ids_reported": "Conflict ids that tasks reported",
    "reports_refused": "Reports of conflict ids for which there was no room",
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

GAUGES: Final = {
    "epoch": "Timestamps at or below it were handed out by earlier TSOs",
    "last_timestamp": "The latest timestamp handed out",
    "low_watermark": "LWM: no transaction at or below it can commit",
    "low_watermark_lag": "Timestamps between LWM and the latest: the span of the conflict map",
    "watermark": "W: compaction may delete versions that only older snapshots need",
    "retention_seconds": "How long history is kept; 0: only while a reader needs it",
    "horizon": "H: below it no reader needs the commit table",
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
