"""Past snapshots: find the snapshot's start, and hold it by a lease before anything is read.

    a time ─► the TSO's moment at or after it ─► a start is drawn ─► lease ─► reads

The TSO grants the lease only above every W that it ever sent, and W stays below it from then on (K7). So everything
that the snapshot needs still exists, and stays. Because a start was drawn, every commit below the snapshot is durable
(law 3), and the reads have an epoch (T6). A table created, perhaps again, after the snapshot is unknown to it
(`validation.check_was_there`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from pyomid.client.drive import Blocking
from pyomid.client.session.lease_keeper import Lease, LeaseKeeper
from pyomid.errors import Misuse, MisuseType, SnapshotTooOld
from pyomid.ports import Deployment
from pyomid.protocol.effects import Begin, Steps
from pyomid.protocol.time_points import snapshot_after
from pyomid.types import BeginReply, Moment

L = TypeVar("L")


def past_steps(
    deployment: Deployment, leases: LeaseKeeper, at: int | datetime, not_before: int = 0
) -> Steps[tuple[BeginReply, Lease]]:
    """Return a begin reply that reads at `at`, and the lease that holds the snapshot. `at`: as of `Database.begin`."""
    if not_before:
        raise Misuse("give at or not_before, not both: at names the snapshot")
    moment: Moment = yield Blocking(partial(moment_of, deployment, at))
    begun: BeginReply = yield Begin(is_held=False)
    keep = partial(leases.share, term_s=deployment.settings.lease_seconds)
    found: tuple[BeginReply, Lease] = yield Blocking(partial(past_begin, deployment, at, moment, begun, keep))
    return found


def moment_of(deployment: Deployment, at: int | datetime) -> Moment:
    """Return the moment of `at`, with time 0 for a timestamp. Blocking; a begin must follow."""
    wall_ms = check_time(at)
    if not deployment.tso.extended:
        raise Misuse("Apache Omid's TSO leads, which cannot read the past: only `pyomid tso` can")
    if isinstance(at, int):
        return Moment(snapshot_after(at), 0)
    moment = deployment.tso.moment_at(wall_ms, _now_ms())
    if not moment.snapshot_ts:
        raise too_old(deployment, at)
    is_of_same_ms = moment.wall_ms == wall_ms - 1  # the TSO rounds its clock down, and `at` was rounded up
    return moment._replace(wall_ms=wall_ms) if is_of_same_ms else moment


def past_begin(
    deployment: Deployment, at: int | datetime, moment: Moment, begun: BeginReply, keep: Callable[[int], L]
) -> tuple[BeginReply, L]:
    """Return `begun`, set to read at `moment`, and the lease that `keep` takes on the snapshot's start. `begun` must
    have been drawn after `moment` was found. Blocking."""
    if moment.snapshot_ts > begun.start_ts:
        raise Misuse(f"at={at} is in the future: the newest start is {begun.start_ts}", at=str(at))
    try:
        lease = keep(moment.snapshot_ts)
    except SnapshotTooOld as error:
        raise too_old(deployment, at) from error
    return replace(begun, read_at=moment.snapshot_ts, moment_ms=moment.wall_ms), lease


def requested_moment(begun: BeginReply) -> datetime | None:
    """Return the moment of a snapshot that was requested by a time; otherwise None."""
    return datetime.fromtimestamp(begun.moment_ms / 1000, UTC) if begun.moment_ms else None


def _now_ms() -> int:
    return int(time.time() * 1000)


def check_time(at: int | datetime) -> int:
    """Return `at` in milliseconds since 1970; 0 for a timestamp."""
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise Misuse(f"at={at} has no time zone: give a datetime with one (at.astimezone() takes it as local time)")
        wall_ms = math.ceil(at.timestamp() * 1000)
        if at.timestamp() > time.time():
            raise Misuse(f"at={at} is in the future", at=str(at))
        return wall_ms
    if isinstance(at, bool) or not isinstance(at, int):
        raise MisuseType(f"at={at!r} is {type(at).__name__}, not a timestamp (int) or a datetime with a time zone")
    if at <= 0:
        raise Misuse(f"at={at} is not a valid timestamp: timestamps are above 0", at=at)
    return 0


def too_old(deployment: Deployment, at: int | datetime) -> SnapshotTooOld:
    watermark, _ = deployment.leader_state.read_watermarks()
    kept = [point for point in deployment.leader_state.time_points() if snapshot_after(point.start_ts) > watermark]
    since = "no history is kept"
    if kept:
        kept_since = datetime.fromtimestamp(kept[0].wall_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
        since = f"history is kept since {kept_since} (start {kept[0].start_ts})"
    return SnapshotTooOld(
        f"the snapshot at {at} is no longer kept: {since} (option retention in the URL of the folder, or "
        "over HBase of the TSO, keeps more from now on)",
        at=str(at),
        watermark=watermark,
    )
