"""HTTP port for Prometheus (/metrics) and health checks: /health (is the process well?), /ready (does it serve?) and
/ready?standby=yes (does it serve, or could it at once?)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from pyomid.errors import Misuse, Unavailable
from pyomid.server.service import TsoService

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class UpkeepReport(Protocol):
    """Counts of the upkeep of a folder's TSO since the process started."""

    passes: int
    versions_dropped: int
    entries_deleted: int
    failures: int
    busy_seconds: float


class Watched:
    """The reported process: it stands by, and has a service from the moment it leads."""

    def __init__(self) -> None:
        self.service: TsoService | None = None
        self.upkeep: UpkeepReport | None = None
        self.is_prepared: Callable[[], bool] = lambda: False
        """Returns whether a standby could lead at once: its code and memory are loaded."""

    @property
    def state(self) -> str:
        """Return "serving", "standing by" (alive, may lead later), or "not serving" (ending or dead)."""
        if self.service is None:
            return "standing by"
        return "serving" if self.service.is_serving else "not serving"


log = logging.getLogger(__name__)

REQUEST_BYTES_MAX: Final = 8192
REQUEST_S_MAX: Final = 5.0
CONNECTIONS_MAX: Final = 32
"""Open connections; beyond it the oldest is closed, so that idle connections cannot block a health check."""
REST_S: Final = 0.01
"""Pause between two replies: each delays the TSO's clients by some milliseconds, and the peers choose the rate."""


async def serve_metrics(watched: Watched, address: str) -> asyncio.Server:
    """Listen on HOST:PORT and serve GET /metrics, /health and /ready[?standby=yes]."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise Misuse(f"--metrics {address!r} is not HOST:PORT")
    registry = _registry(watched)

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
            pass  # headers are ignored, but unread bytes would reset the connection before the reply arrives
        async with one_at_a_time:
            if writer.transport.is_closing():
                return  # the peer or the limit closed it meanwhile
            writer.write(_response(line[:REQUEST_BYTES_MAX], watched, registry))
            await asyncio.sleep(REST_S)
        await writer.drain()

    try:
        server = await asyncio.start_server(answer, host or "127.0.0.1", int(port), limit=REQUEST_BYTES_MAX)
    except OSError as error:
        raise Unavailable(f"cannot listen on {address} for metrics: {error.strerror}", address=address) from error
    log.info("metrics and health", extra={"port": server.sockets[0].getsockname()[1]})
    return server


def _registry(watched: Watched) -> CollectorRegistry:
    try:
        from pyomid.server.metric_families import registry_of
    except ModuleNotFoundError as error:
        raise Misuse(
            "--metrics needs the package prometheus-client, which is not installed: pip install 'pyomid[server]'"
        ) from error
    return registry_of(watched)


def _response(line: bytes, watched: Watched, registry: CollectorRegistry) -> bytes:
    path, _, query = line.split(b" ")[1].partition(b"?") if line.count(b" ") >= 2 else (b"", b"", b"")
    state = watched.state
    match path:
        case b"/metrics":
            from prometheus_client import generate_latest

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
