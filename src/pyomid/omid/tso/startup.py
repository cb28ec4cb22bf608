"""The life of a TSO process: it takes over, builds the machine, serves, and drains."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from pyomid.errors import Deposed, Unavailable, extra_missing
from pyomid.omid.oracle.machine import TsoMachine
from pyomid.omid.oracle.native.memory import CacheLineMap, populate
from pyomid.omid.oracle.outgoing import RETRY_DELAY_S, RETRY_DELAY_S_MAX
from pyomid.omid.oracle.settings import TsoSettings
from pyomid.omid.oracle.status_oracle import BucketMap, ConflictMap
from pyomid.omid.tso.leadership import Leadership, die_now
from pyomid.omid.tso.peer import PeerLimits
from pyomid.omid.tso.service import TsoService
from pyomid.omid.tso.store_calls import TsoStores, take_over, wait_for_clock
from pyomid.ports import boot_clock

log = logging.getLogger(__name__)

T = TypeVar("T")

Listener = tuple[socket.socket, ssl.SSLContext | None]

FILES_BESIDE_CONNECTIONS: Final = 128
"""File descriptors kept for stores, logs, listeners, late imports, and connections that are about to be refused."""

SWITCH_INTERVAL_S = 0.0005
"""The switch interval of the GIL. With Python's default of 5 ms, store threads would delay the event loop for that
long."""


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """All options of a TSO's service. `pyomid tso` sets some of them; the others keep their defaults."""

    settings: TsoSettings = field(default_factory=TsoSettings)
    limits: PeerLimits = field(default_factory=PeerLimits)
    connections_max: int = 10_000
    held_bytes_max: int = 1 << 30
    """The most memory for unfinished requests and unread replies of all connections together."""
    token: bytes = b""
    metrics: str = ""
    compiled: bool = True
    """If True, compiled code decides ordinary begins and commits; otherwise the reference implementation does."""


def connections_possible(wanted: int) -> int:
    """Return `wanted`, or fewer if the limit of open files permits only fewer connections. Raises that limit as far as
    possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + FILES_BESIDE_CONNECTIONS
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    possible = max(1, soft - FILES_BESIDE_CONNECTIONS)
    log.warning("limited to %d connections: this process may open only %d files (ulimit -n)", possible, soft)
    return possible


def empty_map(options: ServiceOptions) -> ConflictMap:
    """Return an empty conflict map. Blocks: allocating a compiled map of several gigabytes takes seconds, so a standby
    does it before the leader dies."""
    entries_max = options.settings.conflict_map_entries
    if not options.compiled:
        return BucketMap(entries_max)
    made = CacheLineMap(entries_max)
    populate(made.words)
    return made


def take_over_and_build(stores: TsoStores, settings: TsoSettings, conflict_map: ConflictMap) -> TsoMachine:
    """Take over and return the machine of the new leader. Blocks. Raises `Deposed` if another TSO was faster."""
    settings = replace(settings, ceiling_elsewhere=stores.ceiling is not None)
    taken_over = take_over(stores, settings, wall_ns=time.time_ns())
    wait_for_clock(taken_over.epoch)
    machine = TsoMachine(settings, taken_over, now_s=boot_clock(), conflict_map=conflict_map)
    machine.database_id = stores.leader_state.database_id()
    return machine


class Watched:
    """The state of the process, for metrics and health checks. It has a service once this process leads."""

    def __init__(self) -> None:
        self.service: TsoService | None = None
        self.is_prepared: Callable[[], bool] = lambda: False
        """Returns whether a standby could lead at once, because its memory is allocated."""

    @property
    def state(self) -> str:
        """The state: "serving", "standing by" (alive, and may lead later), or "not serving" (ending or dead)."""
        if self.service is None:
            return "standing by"
        return "serving" if self.service.is_serving else "not serving"


async def _serve_metrics(watched: Watched, address: str) -> asyncio.Server:
    try:
        from pyomid.omid.tso.metrics import serve_metrics
    except ModuleNotFoundError as error:
        raise extra_missing("--metrics needs the package prometheus-client", "server") from error
    return await serve_metrics(watched, address)


class LeaderTerm:
    """Until when this process leads. The thread that renews the lease extends the time; the event loop reads it."""

    def __init__(self, until_s: float = float("inf")) -> None:
        self._until_s = until_s

    def renewed(self, until_s: float) -> None:
        self._until_s = max(self._until_s, until_s)

    def until_s(self) -> float:
        return self._until_s


@dataclass(frozen=True, slots=True)
class _Setup:
    """The arguments of `serve`, and what it prepared for the time when this process leads."""

    stores: TsoStores
    options: ServiceOptions
    conflict_map: asyncio.Future[ConflictMap]
    """The empty conflict map, which a thread allocates from the start of the process on."""
    listeners: Sequence[Listener]
    ready: Callable[[], None]
    stop_signals: Sequence[signal.Signals]
    stop: threading.Event
    """Set by a stop signal that arrives before the service exists."""
    watched: Watched


async def serve(
    stores: TsoStores,
    options: ServiceOptions,
    listeners: Sequence[Listener],
    *,
    ready: Callable[[], None],
    stop_signals: Sequence[signal.Signals] = (),
    leadership: Leadership | None = None,
) -> None:
    """Serve until a stop signal. On return all decisions are durable and answered.

    With `leadership` (clusters only) the process stands by until it leads.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    loop = asyncio.get_running_loop()
    stop, watched = threading.Event(), Watched()
    for each in stop_signals:
        loop.add_signal_handler(each, stop.set)
    metrics = await _serve_metrics(watched, options.metrics) if options.metrics else None
    try:
        conflict_map = loop.run_in_executor(None, empty_map, options)
        setup = _Setup(stores, options, conflict_map, listeners, ready, stop_signals, stop, watched)
        if leadership is None:
            machine = await _take_over(setup)
            if machine is not None:
                await _lead(setup, machine, LeaderTerm(), announce=lambda epoch: None)
        else:
            await _stand_by_and_lead(setup, leadership)
    finally:
        if metrics is not None:
            metrics.close()


async def _stand_by_and_lead(setup: _Setup, leadership: Leadership) -> None:
    """Stand by until this process leads, then serve; return after `stop`. The lease is released in every case.

    At startup, an unavailable store is retried for `--store-retry` seconds; then `Unavailable` is raised. If a takeover
    fails for that long, the process releases the lease, so that another candidate may try. Then it waits without limit
    until the store answers, and stands by again.
    """
    loop, retry_s = asyncio.get_running_loop(), setup.options.settings.store_retry_s
    patience_s = retry_s
    while await loop.run_in_executor(None, retry_unavailable, setup.stores.check, setup.stop, patience_s):
        log.info("standing by")
        setup.watched.is_prepared = setup.conflict_map.done
        leading = await loop.run_in_executor(None, leadership.acquire, setup.stop)
        if leading is None:
            return
        term = LeaderTerm(leading)
        try:
            # Renew the lease from now on: the takeover may last longer than a lease, and a leader whose lease expires
            # exits.
            leadership.keep(term.renewed, die_now)
            try:
                machine = await _take_over(setup, retry_s)
            except Unavailable as error:
                log.warning("takeover failed; this process releases the lease and stands by again: %s", error)
                patience_s = float("inf")
                continue
            if machine is not None:
                await _lead(setup, machine, term, announce=leadership.announce)
            return
        finally:
            await loop.run_in_executor(None, leadership.release)


async def _take_over(setup: _Setup, retry_s: float = 0.0) -> TsoMachine | None:
    """Take over on a thread and return the new leader's machine, while the loop handles signals. Returns None if `stop`
    was set while the store did not answer. Raises `Unavailable` after `retry_s`, and `Deposed` if another TSO was
    faster.

    A takeover may fail at any point, as if the TSO had died there. The next attempt begins anew.
    """
    conflict_map = await setup.conflict_map
    gc.freeze()  # modules and the map live as long as the process: a collection that scans them only delays begins
    made: list[TsoMachine] = []

    def take_over() -> None:
        made.append(take_over_and_build(setup.stores, setup.options.settings, conflict_map))

    await asyncio.get_running_loop().run_in_executor(None, retry_unavailable, take_over, setup.stop, retry_s)
    return made[0] if made else None


def retry_unavailable(call: Callable[[], None], stop: threading.Event, patience_s: float) -> bool:
    """Make the call, and retry it for `patience_s` while it raises `Unavailable`. Blocks. Returns False if `stop` was
    set."""
    ends_s, pause_s = boot_clock() + patience_s, RETRY_DELAY_S
    while True:
        try:
            call()
            return True
        except Deposed:
            raise
        except Unavailable as error:
            if boot_clock() >= ends_s:
                raise
            if stop.is_set():
                return False
            log.warning("waiting for the store: %s", error)
        stop.wait(pause_s)
        pause_s = min(2 * pause_s, RETRY_DELAY_S_MAX)


async def _lead(setup: _Setup, machine: TsoMachine, term: LeaderTerm, *, announce: Callable[[int], object]) -> None:
    """Announce this TSO, serve until `stop`, then drain."""
    loop = asyncio.get_running_loop()
    options = setup.options
    service = TsoService(
        machine,
        setup.stores,
        clock=boot_clock,
        die=die_now,
        limits=options.limits,
        connections_max=connections_possible(options.connections_max),
        held_bytes_max=options.held_bytes_max,
        token=options.token,
        lease_until_s=term.until_s,
    )
    for each in setup.stop_signals:
        loop.add_signal_handler(each, service.stop)
    if setup.stop.is_set():
        service.stop()
    if options.compiled:
        service.switch_to_native(wait_for_memory=True)
    service.feed([])
    announce(machine.epoch)
    setup.watched.service = service
    report = machine.report()
    log.info("leads", extra={"epoch": report.epoch, "watermark": report.watermark, "horizon": report.horizon})
    await service.run(setup.listeners, ready=setup.ready)
    log.info("stops", extra={"epoch": machine.epoch, "connections": service.connections})
    drained = await service.drain()
    log.info("stopped", extra={"epoch": machine.epoch, "drained": drained})
