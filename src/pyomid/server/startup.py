"""From stores and settings to a service that answers: take over, make the machine, serve, drain."""

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast

from pyomid.errors import Deposed, OmidError, Unavailable
from pyomid.kernels.cache import cache_folders, python_tag
from pyomid.kernels.loading import are_kept, can_compile
from pyomid.oracle.machine import TsoMachine
from pyomid.oracle.outgoing import RETRY_DELAY_S, RETRY_DELAY_S_MAX
from pyomid.oracle.settings import TsoSettings
from pyomid.oracle.status_oracle import BucketMap, ConflictMap
from pyomid.oracle.takeover import take_over_steps
from pyomid.ports import boot_clock
from pyomid.server.leadership import FolderLock, Leadership, die_now
from pyomid.server.metrics import serve_metrics
from pyomid.server.peer import PeerLimits
from pyomid.server.service import TsoService
from pyomid.server.store_calls import TsoStores, take_over
from pyomid.server.watched import UpkeepReport, Watched

log = logging.getLogger(__name__)

T = TypeVar("T")

Listener = tuple[socket.socket, ssl.SSLContext | None]

FILES_BESIDE_CONNECTIONS: Final = 128
"""Stores, logs, listeners, modules that are loaded late, and connections that are about to be refused."""

FOLDER_LOOK_S = 0.5
"""How often the folder and its socket are looked at: so long a client may find no socket."""

UPKEEP_AFTER_S = 1.0

SWITCH_INTERVAL_S = 0.0005
"""A store thread that holds the interpreter must not keep the event loop waiting for Python's default 5 ms."""


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """All options of a service."""

    settings: TsoSettings = field(default_factory=TsoSettings)
    limits: PeerLimits = field(default_factory=PeerLimits)
    connections_max: int = 10_000
    held_bytes_max: int = 1 << 30
    """Unfinished requests and unread answers of all connections together."""
    idle_exit_s: float = float("inf")
    token: bytes = b""
    metrics: str = ""
    kernel: bool = False
    """Compiled decisions from the first request on."""
    kernel_soon: bool = False
    """Compiled decisions once they are loaded, a second later, while the first clients are served already."""

    @classmethod
    def from_options(cls, options: Mapping[str, Any], token: bytes) -> ServiceOptions:
        """From the command's options, by name."""
        return cls(
            TsoSettings(
                conflict_map_entries=options["conflict-map-entries"],
                window_starts=options["window-starts"],
                batch_entries_max=options["batch-entries"],
                flushes_in_flight_max=options["flushes-in-flight"],
                max_transaction_age_s=options["max-transaction-age"],
                lease_term_s=options["lease-term"],
                commit_retry_s=options["commit-retry"],
                store_retry_s=options["store-retry"],
                stall_s_max=options["stall"],
                world_time=options["timestamps"] == "world-time",
                unknown_tables_max=options["unknown-tables"],
                leases_max=options["leases"],
                retention_s=options["retention"],
                entries_kept_max=options["memory-entries"] if options["store"] == "memory" else 0,
            ),
            PeerLimits(
                frame_bytes_max=options["frame-bytes"],
                requests_outstanding_max=options["outstanding"],
                unread_bytes_max=options["unread-bytes"],
                handshake_s_max=options["handshake-timeout"],
                frame_s_max=options["frame-timeout"],
                idle_s_max=options["idle-timeout"] or float("inf"),
                keepalive_s=options["keepalive"],
            ),
            connections_max=options["connections"],
            held_bytes_max=options["held-bytes"],
            idle_exit_s=options["idle-exit"] or float("inf"),
            token=token,
            metrics=options["metrics"],
            kernel=options["kernel"] == "on" and can_compile(),
            kernel_soon=options["kernel"] == "auto" and can_compile(),
        )


def connections_possible(wanted: int) -> int:
    """So many, or as many as the system lets this process have files open; that limit is raised as far as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + FILES_BESIDE_CONNECTIONS
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    possible = max(1, soft - FILES_BESIDE_CONNECTIONS)
    log.warning("serves at most %d connections: this process may open %d files", possible, soft)
    return possible


def is_compiled() -> bool:
    """Whether a kernel's machine code for this Python lies on disk (`make setup` puts it there): else its first use
    takes 20 s. Whether it is this version's is told when it is loaded."""
    if not can_compile():
        return False
    folders = cache_folders(Path(__file__).parents[1] / "oracle" / "native" / "decide.py")
    return any(True for folder in folders for _ in folder.glob(f"decide.decide_chunk-*.{python_tag()}.nbi"))


def empty_map(options: ServiceOptions) -> ConflictMap:
    """The map of a TSO that begins. The kernel, if it is to decide from the first request on, is loaded (or compiled)
    here, and the map's memory taken: more than a second, which a standby has spent when the leader dies. Blocking."""
    entries_max = options.settings.conflict_map_entries
    if not options.kernel:
        return BucketMap(entries_max)
    if not is_compiled():
        log.warning("compiles its kernel before it serves, some 20 s; next time it is there")
    from pyomid.server.native.switch import ready_map

    return ready_map(entries_max)


def take_over_and_build(stores: TsoStores, settings: TsoSettings, conflict_map: ConflictMap) -> TsoMachine:
    """The machine of a new leader; `Deposed` where another was faster. Blocking."""
    flushes_in_flight_max = min(settings.flushes_in_flight_max, stores.commit_table.flushes_in_flight_max)
    settings = replace(
        settings, ceiling_elsewhere=stores.ceiling is not None, flushes_in_flight_max=flushes_in_flight_max
    )
    steps = take_over_steps(
        ceiling_step=settings.ceiling_step,
        ceiling_elsewhere=settings.ceiling_elsewhere,
        retention_s=settings.retention_s,
        wall_ms=time.time_ns() // 1_000_000,
    )
    taken_over = take_over(stores, steps)
    stores.commit_table.serve_epoch(taken_over.epoch)
    machine = TsoMachine(settings, taken_over, now_s=boot_clock(), conflict_map=conflict_map)
    machine.database_id = stores.leader_state.database_id()
    return machine


class LeaderTerm:
    """Until when this process leads, told by the thread that renews the lease. Law: never past what it last wrote."""

    def __init__(self, until_s: float = float("inf")) -> None:
        self._until_s = until_s

    def renewed(self, until_s: float) -> None:
        self._until_s = max(self._until_s, until_s)

    def until_s(self) -> float:
        return self._until_s


@dataclass(frozen=True, slots=True)
class _Duty:
    """What a process that wants to lead was told, handed from the standby to the leader."""

    stores: TsoStores
    options: ServiceOptions
    conflict_map: asyncio.Future[ConflictMap]
    """On its way since the process began."""
    listeners: Sequence[Listener]
    ready: Callable[[], None]
    stop_signals: Sequence[signal.Signals]
    stop: threading.Event
    """Set by a signal that came before the service was there."""
    watched: Watched
    folder_lock: FolderLock | None
    upkeep: MakeUpkeep | None


class Upkeep(Protocol):
    """`client.background_upkeep.BackgroundUpkeep`, as a service sees it."""

    @property
    def report(self) -> UpkeepReport: ...

    def start(
        self, timestamps: Callable[[], tuple[int, int]], announced_s: Callable[[], float], commits: Callable[[], int]
    ) -> None: ...

    def stop(self) -> None: ...


MakeUpkeep = Callable[[], Upkeep]
"""Called on a thread once the service serves: its modules take a tenth of a second to load."""


async def serve(
    stores: TsoStores,
    options: ServiceOptions,
    listeners: Sequence[Listener],
    *,
    ready: Callable[[], None],
    stop_signals: Sequence[signal.Signals] = (),
    leadership: Leadership | None = None,
    folder_lock: FolderLock | None = None,
    upkeep: MakeUpkeep | None = None,
) -> None:
    """Serves until a signal or idleness; on return everything decided is durable and answered. `folder_lock`: held,
    and listening as the last of `listeners`. What `upkeep` makes runs next to it while it leads.

    With a `leadership` (a cluster's; a folder's lock is held already) it waits as a standby until it leads.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    loop = asyncio.get_running_loop()
    stop, watched = threading.Event(), Watched()
    for each in stop_signals:
        loop.add_signal_handler(each, stop.set)
    metrics = await serve_metrics(watched, options.metrics) if options.metrics else None
    try:
        conflict_map = loop.run_in_executor(None, empty_map, options)
        duty = _Duty(stores, options, conflict_map, listeners, ready, stop_signals, stop, watched, folder_lock, upkeep)
        if leadership is None:
            machine = await _taken_over(duty)
            if machine is not None:
                await _lead(duty, machine, LeaderTerm(), announce=lambda epoch: None)
        else:
            await _lead_in_turn(duty, leadership)
    finally:
        if metrics is not None:
            metrics.close()


async def _lead_in_turn(duty: _Duty, leadership: Leadership) -> None:
    """Stands by until it leads (or is told to stop); gives the lease back at the end, however it comes.

    At its start it waits for a store that does not answer for `--store-retry` seconds; then `Unavailable`. One that
    fails the take-over for so long costs it the lease, which another candidate may do more with; it waits without an
    end for a store that answers, and stands by again.
    """
    loop, retry_s = asyncio.get_running_loop(), duty.options.settings.store_retry_s
    patience_s = retry_s
    while await loop.run_in_executor(None, patiently, duty.stores.check, duty.stop, patience_s):
        log.info("stands by")
        duty.watched.is_prepared = duty.conflict_map.done
        leading = await loop.run_in_executor(None, leadership.acquire, duty.stop)
        if leading is None:
            return
        term = LeaderTerm(leading)
        try:
            # From here on, not from the first request on: reading a large store, finishing jobs and loading the kernel
            # may last longer than a lease, and a leader that lets it end meanwhile dies as if it had been replaced.
            leadership.keep(term.renewed, die_now)
            try:
                machine = await _taken_over(duty, retry_s)
            except Unavailable as error:
                log.warning("could not take over: gives its lease back and stands by again: %s", error)
                patience_s = float("inf")
                continue
            if machine is not None:
                await _lead(duty, machine, term, announce=leadership.announce)
            return
        finally:
            await loop.run_in_executor(None, leadership.release)


async def _taken_over(duty: _Duty, retry_s: float = 0.0) -> TsoMachine | None:
    """The machine of a new leader; None if it was told to stop while the store did not answer. A take-over that failed
    halfway is like that of a TSO which died there: the next one begins anew. `Unavailable` after `retry_s`, or
    `Deposed`: another TSO is faster. Runs outside of the loop, which handles signals meanwhile.
    """
    conflict_map = await duty.conflict_map
    gc.freeze()  # what is loaded by now stays: looking through it again and again would hold up begins
    made: list[TsoMachine] = []

    def take_over() -> None:
        made.append(take_over_and_build(duty.stores, duty.options.settings, conflict_map))

    await asyncio.get_running_loop().run_in_executor(None, patiently, take_over, duty.stop, retry_s)
    return made[0] if made else None


def patiently(call: Callable[[], None], stop: threading.Event, patience_s: float) -> bool:
    """Makes the call; one that is `Unavailable` is repeated for `patience_s`. False if `stop` ended that. Blocking."""
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
            log.warning("waits for its store: %s", error)
        stop.wait(pause_s)
        pause_s = min(2 * pause_s, RETRY_DELAY_S_MAX)


async def _lead(duty: _Duty, machine: TsoMachine, term: LeaderTerm, *, announce: Callable[[int], object]) -> None:
    """Announces itself, serves, drains."""
    loop = asyncio.get_running_loop()
    options = duty.options
    service = TsoService(
        machine,
        duty.stores,
        clock=boot_clock,
        die=die_now,
        limits=options.limits,
        connections_max=connections_possible(options.connections_max),
        held_bytes_max=options.held_bytes_max,
        idle_exit_s=options.idle_exit_s,
        token=options.token,
        lease_until_s=term.until_s,
    )
    for each in duty.stop_signals:
        loop.add_signal_handler(each, service.stop)
    if duty.stop.is_set():
        service.stop()
    if options.kernel:
        service.switch_to_native(wait_for_memory=True)
    service.feed([])
    announce(machine.epoch)
    duty.watched.service = service
    report = machine.report()
    log.info("leads", extra={"epoch": report.epoch, "watermark": report.watermark, "horizon": report.horizon})
    beside = [asyncio.create_task(_switch_to_native_soon(service))] if options.kernel_soon else []
    if duty.folder_lock is not None:
        beside.append(asyncio.create_task(_keep_place(service, duty.folder_lock, duty.listeners[-1][0])))
    if duty.upkeep is not None:
        beside.append(asyncio.create_task(_keep_up(duty.upkeep, machine, duty.watched)))
    await service.run(duty.listeners, ready=duty.ready)
    for task in beside:
        task.cancel()
    if beside:
        await asyncio.wait(beside)
    log.info("stops", extra={"epoch": machine.epoch, "connections": service.connections})
    drained = await service.drain()
    log.info("stopped", extra={"epoch": machine.epoch, "drained": drained})


async def _keep_place(service: TsoService, lock: FolderLock, sock: socket.socket) -> None:
    """Clients find the service, or it ends: a folder that is gone, or another one under its path, is not served."""
    while True:
        await asyncio.sleep(FOLDER_LOOK_S)
        try:
            if not lock.is_in_place():
                log.error("ends at once: the folder %s was removed, moved or replaced", lock.folder)
                die_now("the folder is gone")
            if not lock.has_socket():
                log.warning("its socket in %s was removed, or replaced: listens at a new one", lock.folder)
                old, sock = sock, lock.listen()
                service.listen(sock)
                service.stop_listening(old)
        except (OSError, OmidError) as error:
            log.warning("cannot listen in %s: %s", lock.folder, error)
        except Exception as error:
            service.fail(error)


async def _keep_up(make: MakeUpkeep, machine: TsoMachine, watched: Watched) -> None:
    """Upkeep, from a moment after the first clients were served. When this is cancelled, it has ended on return."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(UPKEEP_AFTER_S)
    try:
        upkeep = await loop.run_in_executor(None, make)
    except Exception:  # no thread, no memory
        log.exception("no upkeep in the background")
        return
    watched.upkeep = upkeep.report
    upkeep.start(machine.progress, lambda: machine.longest_retry_s, lambda: machine.commits_counted)
    try:
        await asyncio.Event().wait()
    finally:
        await loop.run_in_executor(None, upkeep.stop)


async def _switch_to_native_soon(service: TsoService) -> None:
    """Loads the kernels on another thread, after a process has compiled those that are not kept, and switches between
    two steps of the loop."""
    try:
        is_loaded = await _by_a_daemon(_load_kept_kernels)
    except Exception:  # no thread, no memory
        log.exception("decides by the reference: its kernels could not be loaded")
        return
    if not is_loaded:
        log.warning("decides by the reference: its kernels are not kept; `pyomid warm-up` makes them")
        return
    try:
        service.switch_to_native()
    except Exception as error:
        service.fail(error)
    else:
        log.info("decides by compiled code")
    gc.freeze()


async def _by_a_daemon(call: Callable[[], T]) -> T:
    """The result of `call`, on a thread that the end of this process does not wait for: it may compile."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[T] = loop.create_future()

    def tell(result: T | None, error: Exception | None) -> None:
        if ended.done():  # cancelled
            return
        if error is not None:
            ended.set_exception(error)
        else:
            ended.set_result(cast("T", result))

    def work() -> None:
        result, failed = None, None
        try:
            result = call()
        except Exception as error:
            failed = error
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(tell, result, failed)

    threading.Thread(target=work, name="pyomid-kernels", daemon=True).start()
    return await ended


def _load_kept_kernels() -> bool:
    from pyomid.server.native.socket_loop import KERNELS, load_kernels

    if not are_kept(KERNELS):
        return False
    load_kernels()
    return True
