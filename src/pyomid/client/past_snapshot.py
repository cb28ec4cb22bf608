"""Snapshots below the present: which start, and held by a lease before anything is read.

The order is that of every lease (K7): the TSO grants it only above every W that it ever sent, and W stays below it from
then on. So what the snapshot needs is still there, and stays. A start that was drawn before tells that every commit
below the snapshot is durable (law 3), and the epoch to read by (T6).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from pyomid.client.drive import Blocking
from pyomid.client.session.leases import Lease, LeaseKeeper
from pyomid.errors import Misuse, MisuseType, SnapshotTooOld
from pyomid.ports import Deployment
from pyomid.protocol.effects import Begin, Steps
from pyomid.protocol.time_points import newest_at, snapshot_after
from pyomid.types import BeginReply

L = TypeVar("L")


def past_steps(
    deployment: Deployment, leases: LeaseKeeper, at: int | datetime, not_before: int = 0
) -> Steps[tuple[BeginReply, Lease]]:
    """The reply to a begin that reads at `at`, and the lease that holds that. `at`: as of `Database.begin`."""
    if not_before:
        raise Misuse("at names the snapshot: do not give not_before too")
    check_time(at)
    begun: BeginReply = yield Begin(is_held=False)
    keep = partial(leases.share, term_s=deployment.settings.lease_seconds)
    found: tuple[BeginReply, Lease] = yield Blocking(partial(past_begin, deployment, at, begun, keep))
    return found


def past_begin(
    deployment: Deployment, at: int | datetime, begun: BeginReply, keep: Callable[[int], L]
) -> tuple[BeginReply, L]:
    """`begun` was drawn for it. `keep` takes a lease on the snapshot's start. Blocking."""
    if not deployment.tso.extended:
        raise Misuse("Apache Omid's TSO, which leads, keeps no snapshot below the present: `pyomid tso` does")
    start_ts = _start_of(deployment, at, check_time(at))
    if start_ts > begun.start_ts:
        raise Misuse(f"at={at} is in the future: the newest start is {begun.start_ts}", at=str(at))
    try:
        lease = keep(start_ts)
    except SnapshotTooOld as error:
        raise _too_old(deployment, at) from error
    return replace(begun, read_at=start_ts), lease


def check_time(at: int | datetime) -> int:
    """`at` in milliseconds since 1970; 0 for a timestamp."""
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise Misuse(f"at={at} has no time zone: give a datetime with one (at.astimezone() takes it as local time)")
        wall_ms = int(at.timestamp() * 1000)
        if wall_ms > time.time() * 1000:
            raise Misuse(f"at={at} is in the future", at=str(at))
        return wall_ms
    if isinstance(at, bool) or not isinstance(at, int):
        raise MisuseType(f"at={at!r} is {type(at).__name__}: a timestamp (int) or a datetime with its time zone")
    if at <= 0:
        raise Misuse(f"at={at} is no timestamp: those are above 0", at=at)
    return 0


def _start_of(deployment: Deployment, at: int | datetime, wall_ms: int) -> int:
    if isinstance(at, int):
        return snapshot_after(at)
    point = newest_at(deployment.leader_state.time_points(), wall_ms)
    if point is None:
        raise _too_old(deployment, at)
    return snapshot_after(point.start_ts)


def _too_old(deployment: Deployment, at: int | datetime) -> SnapshotTooOld:
    watermark, _ = deployment.leader_state.read_watermarks()
    kept = [point for point in deployment.leader_state.time_points() if snapshot_after(point.start_ts) > watermark]
    since = "nothing older than now is kept"
    if kept:
        told = datetime.fromtimestamp(kept[0].wall_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
        since = f"history is kept since {told}, timestamp {kept[0].start_ts}"
    return SnapshotTooOld(
        f"the snapshot at {at} is older than what is kept: {since} (`pyomid tso --retention`, URL option retention, "
        "keeps more from now on)",
        at=str(at),
        watermark=watermark,
    )
