"""What a service counts, for Prometheus (/metrics), and whether it serves (/health), on a port of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pyomid.errors import Misuse, Unavailable
from pyomid.tso.service import TsoService

PREFIX: Final = "pyomid_tso_"
REQUEST_BYTES_MAX: Final = 8192
REQUEST_S_MAX: Final = 5.0


async def serve_metrics(service: TsoService, address: str) -> asyncio.Server:
    """Listens on HOST:PORT; answers GET /metrics and GET /health."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        raise Misuse(f"--metrics {address!r} is not HOST:PORT")
    registry = CollectorRegistry()
    registry.register(MachineCollector(service))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await asyncio.wait_for(reader.readline(), REQUEST_S_MAX)
            writer.write(_response(line[:REQUEST_BYTES_MAX], service, registry))
            await writer.drain()
        except (TimeoutError, ConnectionError, ValueError):
            pass
        finally:
            writer.close()

    try:
        return await asyncio.start_server(answer, host or "127.0.0.1", int(port), limit=REQUEST_BYTES_MAX)
    except OSError as error:
        raise Unavailable(f"cannot listen on {address} for metrics: {error.strerror}", address=address) from error


def _response(line: bytes, service: TsoService, registry: CollectorRegistry) -> bytes:
    path = line.split(b" ")[1] if line.count(b" ") >= 2 else b""
    if path.startswith(b"/metrics"):
        return _http("200 OK", "text/plain; version=0.0.4", generate_latest(registry))
    if path.startswith(b"/health"):
        if service.is_serving:
            return _http("200 OK", "text/plain", b"serving\n")
        return _http("503 Service Unavailable", "text/plain", b"not serving\n")
    return _http("404 Not Found", "text/plain", b"/metrics or /health\n")


def _http(status: str, kind: str, body: bytes) -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


class MachineCollector(Collector):
    """Reads the machine's counters when it is asked; nothing is counted twice."""

    def __init__(self, service: TsoService) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        self._service.count_up()
        yield from self._counters()
        yield from self._gauges()
        yield from self._flush_latency()

    def _counters(self) -> Iterator[Metric]:
        counters = self._service.machine.counters
        aborts = CounterMetricFamily(f"{PREFIX}aborts", "Commits refused, by reason", labels=["reason"])
        for name, count in sorted(counters.items()):
            if name.startswith("aborts_"):
                aborts.add_metric([name.removeprefix("aborts_")], count)
        yield aborts
        for name in ("begins", "commits", "begin_waits", "flushes", "fences", "seals", "completions", "stalls",
                     "refused", "protocol_errors", "slow_readers", "store_failures", "leases_granted",
                     "leases_expired", "retries_found", "entries_sanitised", "unknown_tables"):  # fmt: skip
            yield CounterMetricFamily(PREFIX + name, name.replace("_", " "), value=counters[name])

    def _gauges(self) -> Iterator[Metric]:
        status = self._service.machine.status()
        filled = self._service.machine.oracle.conflict_map
        gauges: dict[str, float] = {
            "epoch": status.epoch,
            "last_timestamp": status.last_ts,
            "low_watermark": status.low_watermark,
            "low_watermark_lag": status.last_ts - status.low_watermark,
            "watermark": status.watermark,
            "horizon": status.horizon,
            "leases": len(status.leases),
            "pending_large_commits": len(status.pending),
            "commits_in_flight": status.in_flight,
            "connections": self._service.connections,
            "conflict_map_entries_max": filled.entries_max,
            "conflict_map_entries": filled.entries,
        }
        for name, value in gauges.items():
            yield GaugeMetricFamily(PREFIX + name, name.replace("_", " "), value=value)

    def _flush_latency(self) -> Iterator[Metric]:
        yield self._service.flush_seconds.metric(f"{PREFIX}flush_seconds", "Time of one flush of the commit table")
