"""A port for Prometheus (/metrics) and health checks: is the process well (/health), does it serve (/ready)?"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pyomid.errors import Misuse, Unavailable
from pyomid.oracle.instructions import FORMER_COUNTERS
from pyomid.server.service import TsoService
from pyomid.types import AbortReason

log = logging.getLogger(__name__)

PREFIX: Final = "pyomid_tso_"
REQUEST_BYTES_MAX: Final = 8192
REQUEST_S_MAX: Final = 5.0
CONNECTIONS_MAX: Final = 32
"""At once; beyond it the oldest is closed: an idle connection must not keep a health check from its answer."""
REST_S: Final = 0.01
"""Between two answers: writing one costs the TSO's clients some milliseconds, and the asking side chooses how often."""


class UpkeepFigures(Protocol):
    """Of the upkeep that runs beside a folder's service, since the process began."""

    passes: int
    versions_dropped: int
    entries_deleted: int
    failures: int
    busy_seconds: float


class Watched:
    """The process that the port reports: it stands by, and has a service from the moment it leads."""

    def __init__(self) -> None:
        self.service: TsoService | None = None
        self.upkeep: UpkeepFigures | None = None

    @property
    def state(self) -> str:
        """serving, standing by (alive, may lead later), or not serving (ends, or is dead)."""
        if self.service is None:
            return "standing by"
        return "serving" if self.service.is_serving else "not serving"


async def serve_metrics(watched: Watched, address: str) -> asyncio.Server:
    """Listens on HOST:PORT; answers GET /metrics, /health (is it well?) and /ready (does it serve?)."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise Misuse(f"--metrics {address!r} is not HOST:PORT")
    registry = CollectorRegistry()
    registry.register(MachineCollector(watched))

    askers: dict[asyncio.StreamWriter, None] = {}
    one_at_a_time = asyncio.Lock()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        askers[writer] = None
        if len(askers) > CONNECTIONS_MAX:
            oldest = next(iter(askers))
            del askers[oldest]
            oldest.transport.abort()
        try:
            await _answer(reader, writer)
        finally:
            askers.pop(writer, None)

    async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(TimeoutError, ConnectionError, ValueError):
            async with asyncio.timeout(REQUEST_S_MAX):
                await _answer_one(reader, writer)
        writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()

    async def _answer_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readline()
        while (await reader.readline()).strip():
            pass  # headers are ignored, but unread bytes would reset the connection under our answer
        async with one_at_a_time:
            if writer.transport.is_closing():
                return  # it was closed meanwhile
            writer.write(_response(line[:REQUEST_BYTES_MAX], watched, registry))
            await asyncio.sleep(REST_S)
        await writer.drain()

    try:
        server = await asyncio.start_server(answer, host or "127.0.0.1", int(port), limit=REQUEST_BYTES_MAX)
    except OSError as error:
        raise Unavailable(f"cannot listen on {address} for metrics: {error.strerror}", address=address) from error
    log.info("metrics and health", extra={"port": server.sockets[0].getsockname()[1]})
    return server


def _response(line: bytes, watched: Watched, registry: CollectorRegistry) -> bytes:
    path = line.split(b" ")[1].partition(b"?")[0] if line.count(b" ") >= 2 else b""
    state = watched.state
    match path:
        case b"/metrics":
            return _http("200 OK", "text/plain; version=0.0.4", generate_latest(registry))
        case b"/health":
            return _state_response(state, is_good=state != "not serving")
        case b"/ready":
            return _state_response(state, is_good=state == "serving")
    return _http("404 Not Found", "text/plain", b"/metrics, /health or /ready\n")


def _state_response(state: str, *, is_good: bool) -> bytes:
    return _http("200 OK" if is_good else "503 Service Unavailable", "text/plain", f"{state}\n".encode())


def _http(status: str, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


class MachineCollector(Collector):
    """Reads the machine's figures at each scrape; nothing is counted twice."""

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
        yield service.flush_seconds.metric(f"{PREFIX}flush_seconds", "Time of one flush of the commit table")


COUNTERS: Final = {
    "begins": "Start timestamps handed out",
    "commits": "Transactions committed",
    "begin_waits": "Begins that waited for a window",
    "flushes": "Flushes of the commit table",
    "fences": "Fences",
    "seals": "Starts sealed through the TSO",
    "completions": "Entries deleted because their transactions are complete",
    "completions_left": "Entries of complete transactions left to the sanitizer",
    "stalls": "Stalls after which the leader state was read",
    "refused": "Requests refused with an error",
    "protocol_errors": "Peers closed because they broke the rules of the wire",
    "slow_readers": "Peers cut off because they did not read their answers",
    "overdue_peers": "Peers cut off because they owed a handshake, half a frame, or any request at all",
    "memory_hogs": "Peers cut off because they held most of the memory",
    "refused_connections": "Connections closed because there were too many",
    "store_failures": "Store calls that failed and were repeated",
    "leases_granted": "Leases granted",
    "leases_shared": "Shared leases promised: many to a lease that is granted once",
    "leases_expired": "Leases expired",
    "retries_found": "Retries whose first try was found committed",
    "entries_sanitized": "Commit-table entries deleted below the horizon",
    "unknown_tables": "Marks of tables that are not registered",
}

UPKEEP: Final = {
    "passes": "Passes of a folder's compaction in the background",
    "versions_dropped": "Versions of rows that they dropped",
    "entries_deleted": "Commit-table entries that sanitizing in the background deleted",
    "failures": "Looks, passes and sanitizings in the background that failed",
    "busy_seconds": "Time that upkeep in the background worked, rests between its batches aside",
}

GAUGES: Final = {
    "epoch": "Every timestamp at or below it is of an earlier TSO",
    "last_timestamp": "The latest timestamp handed out",
    "low_watermark": "LWM: no transaction at or below it can commit",
    "low_watermark_lag": "Timestamps between LWM and the latest: what the conflict map remembers",
    "watermark": "W: compaction may clean up to here",
    "horizon": "H: the commit table says nothing below it",
    "leases": "Leases that hold W back",
    "pending_large_commits": "Large commits not yet finished",
    "commits_in_flight": "Commits being made durable",
    "connections": "Connections of clients",
    "conflict_map_entries_max": "Slots of the conflict map",
    "conflict_map_entries": "Slots of the conflict map that are filled",
}


def _counters(service: TsoService) -> Iterator[Metric]:
    counters = service.machine.figures().counters
    aborts = CounterMetricFamily(f"{PREFIX}aborts", "Commits refused, by reason", labels=["reason"])
    for reason in AbortReason:
        aborts.add_metric([reason.value], counters[f"aborts_{reason.value}"])
    yield aborts
    for name, text in COUNTERS.items():
        yield CounterMetricFamily(PREFIX + name, text, value=counters[name])
    for name, former in FORMER_COUNTERS.items():
        yield CounterMetricFamily(PREFIX + former, f"The former name of {name}", value=counters[name])


def _gauges(service: TsoService) -> Iterator[Metric]:
    figures = service.machine.figures()
    gauges: dict[str, float] = {
        "epoch": figures.epoch,
        "last_timestamp": figures.last_ts,
        "low_watermark": figures.low_watermark,
        "low_watermark_lag": figures.last_ts - figures.low_watermark,
        "watermark": figures.watermark,
        "horizon": figures.horizon,
        "leases": figures.leases,
        "pending_large_commits": figures.pending,
        "commits_in_flight": figures.in_flight,
        "connections": service.connections,
        "conflict_map_entries_max": figures.conflict_map_entries_max,
        "conflict_map_entries": figures.conflict_map_entries,
    }
    for name, text in GAUGES.items():
        yield GaugeMetricFamily(PREFIX + name, text, value=gauges[name])
