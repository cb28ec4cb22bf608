"""From stores and settings to a service that answers: take over, make the machine, serve, drain."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyomid.core.conflict_map import BucketMap
from pyomid.core.instructions import LeaseRenewed
from pyomid.core.take_over import take_over_steps
from pyomid.core.tso_machine import TsoMachine, TsoSettings
from pyomid.tso.connection import PeerLimits
from pyomid.tso.leadership import Leadership, boot_clock, die_now
from pyomid.tso.metrics import serve_metrics
from pyomid.tso.service import TsoService
from pyomid.tso.store_calls import TsoStores, take_over

log = logging.getLogger(__name__)

Listener = tuple[socket.socket, ssl.SSLContext | None]

SWITCH_INTERVAL_S = 0.0005
"""A store thread that holds the interpreter must not keep the event loop waiting for Python's default 5 ms."""


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Everything a service is told, in the words of its rooms."""

    settings: TsoSettings = field(default_factory=TsoSettings)
    limits: PeerLimits = field(default_factory=PeerLimits)
    connections_max: int = 10_000
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
                flights_max=options["flights"],
                max_transaction_age_s=options["max-transaction-age"],
                lease_term_s=options["lease-term"],
                commit_retry_s=options["commit-retry"],
                store_retry_s=options["store-retry"],
                stall_s_max=options["stall"],
                world_time=options["timestamps"] == "world-time",
            ),
            PeerLimits(
                frame_bytes_max=options["frame-bytes"],
                requests_outstanding_max=options["outstanding"],
                unread_bytes_max=options["unread-bytes"],
                handshake_s_max=options["handshake-timeout"],
                frame_s_max=options["frame-timeout"],
            ),
            options["connections"],
            options["idle-exit"] or float("inf"),
            token,
            options["metrics"],
            options["kernel"] == "on",
            options["kernel"] == "auto" and is_compiled(),
        )


def is_compiled() -> bool:
    """Whether the kernel's machine code lies on disk (`make setup` puts it there): else its first use takes 20 s."""
    cache = Path(__file__).with_name("kernel") / "__pycache__"
    return any(cache.glob("decide_kernel.decide_chunk-*.nbi"))


def take_over_and_build(stores: TsoStores, settings: TsoSettings) -> TsoMachine:
    """The machine of a new leader; `Deposed` where another was faster. Blocking."""
    settings = replace(settings, ceiling_elsewhere=stores.ceiling is not None)
    steps = take_over_steps(ceiling_step=settings.ceiling_step, ceiling_elsewhere=settings.ceiling_elsewhere)
    taken_over = take_over(stores, steps)
    serve_epoch = getattr(stores.commit_table, "serve_epoch", None)
    if serve_epoch is not None:
        serve_epoch(taken_over.epoch)
    return TsoMachine(settings, taken_over, now_s=boot_clock(), conflict_map=BucketMap(settings.conflict_map_entries))


async def serve(
    stores: TsoStores,
    options: ServiceOptions,
    listeners: Sequence[Listener],
    *,
    ready: Callable[[], None],
    stop_signals: Sequence[signal.Signals] = (),
    leadership: Leadership | None = None,
) -> None:
    """Serves until a signal or idleness; on return everything decided is durable and answered.

    With a `leadership` (a cluster's; a folder's lock is held already) it waits as a standby until it leads.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    serve_until_s = float("inf")
    if leadership is not None:
        leading = await _stand_by(leadership, stop_signals)
        if leading is None:
            return
        serve_until_s = leading
    machine = take_over_and_build(stores, options.settings)
    service = TsoService(
        machine,
        stores,
        clock=boot_clock,
        die=die_now,
        limits=options.limits,
        connections_max=options.connections_max,
        idle_exit_s=options.idle_exit_s,
        token=options.token,
    )
    loop = asyncio.get_running_loop()
    for each in stop_signals:
        loop.add_signal_handler(each, service.stop)
    if options.kernel:
        if not is_compiled():
            log.warning("compiles its kernel before it serves, some 20 s; next time it is there")
        service.use_kernel(wait_for_memory=True)
    service.feed([LeaseRenewed(serve_until_s)])
    if leadership is not None:
        leadership.keep(lambda until_s: loop.call_soon_threadsafe(service.feed, [LeaseRenewed(until_s)]), die_now)
        leadership.announce(machine.epoch)
    log.info("leads", extra={"epoch": machine.epoch, "watermark": machine.watermark, "horizon": machine.horizon})
    metrics = await serve_metrics(service, options.metrics) if options.metrics else None
    ready()
    loading = asyncio.create_task(_use_kernel_soon(service)) if options.kernel_soon else None
    await service.run(listeners)
    if loading is not None:
        loading.cancel()
    log.info("stops", extra={"epoch": machine.epoch, "connections": service.connections})
    drained = await service.drain()
    if metrics is not None:
        metrics.close()
    if leadership is not None:
        leadership.release()
    log.info("stopped", extra={"epoch": machine.epoch, "drained": drained})


async def _use_kernel_soon(service: TsoService) -> None:
    """Loads beside the loop, takes over between two of its steps."""
    await asyncio.get_running_loop().run_in_executor(None, _load_kernel)
    service.use_kernel()


def _load_kernel() -> None:
    from pyomid.tso.kernel.decide_kernel import decide_chunk

    decide_chunk.compiled()


async def _stand_by(leadership: Leadership, stop_signals: Sequence[signal.Signals]) -> float | None:
    """Until when this process leads without a renewal; None where a signal came first."""
    loop = asyncio.get_running_loop()
    stop = threading.Event()
    for each in stop_signals:
        loop.add_signal_handler(each, stop.set)
    log.info("stands by")
    return await loop.run_in_executor(None, leadership.acquire, stop)
