"""Grant, renew and end leases when peers ask for it, and expire leases. The lease of an unfinished large commit ends
when the commit's record goes."""

from __future__ import annotations

import math
from collections.abc import Hashable

from pyomid.errors import Misuse, SnapshotTooOld, Unavailable
from pyomid.omid.oracle import begins, watermarks
from pyomid.omid.oracle.leases import TERM_S_MAX, LeaseState, cleaned
from pyomid.omid.oracle.outgoing import EpochWrite
from pyomid.omid.oracle.state import TsoState
from pyomid.omid.wire.messages import Done, GrantLease, LeaseReply
from pyomid.protocol.timestamps import dated
from pyomid.types import LeaderStateChanges


def expire(tso: TsoState) -> None:
    for start_ts in tso.leases.expire(tso.step.now_s):
        tso.step.counters["leases_expired"] += 1
        tso.store.run(_remove(tso, start_ts))


# ── grants ───────────────────────────────────────────────────────────────────────────────────────────────────


def grant(tso: TsoState, peer: Hashable, tag: int, request: GrantLease) -> None:
    start_ts = request.start_ts
    if not 0 <= request.term_s < math.inf:
        tso.step.refuse(peer, tag, Misuse(
            f"the lease term of {request.term_s} s is invalid: it must be finite and 0 or more", start_ts=start_ts
        ))  # fmt: skip
        return
    term_s = min(request.term_s or tso.settings.lease_seconds, TERM_S_MAX)
    if not begins.is_issued(tso, start_ts):
        tso.step.refuse(peer, tag, begins.not_a_start(tso, start_ts))
    elif watermarks.may_have_passed(tso, start_ts):
        tso.step.refuse(peer, tag, _too_old(tso, start_ts))
    elif not _adds_none(tso, request, term_s) and (why := _why_no_lease(tso, request.holder)):
        tso.step.refuse(peer, tag, Unavailable(why, leases_max=tso.settings.leases_max))
    else:
        procedure = _share if request.shared else _grant
        tso.store.run(procedure(tso, peer, tag, request, term_s))


def _adds_none(tso: TsoState, request: GrantLease, term_s: float) -> bool:
    if request.shared:
        return tso.leases.find_shared(request.start_ts, term_s, tso.step.now_s) is not None
    return request.start_ts in tso.leases


def _why_no_lease(tso: TsoState, holder: str) -> str:
    """Return why the holder gets no lease, or "" if it gets one. No holder may have more leases than are still free. So
    a new holder gets a lease as long as there are few holders."""
    left, held = tso.settings.leases_max - len(tso.leases), tso.leases.held_by(holder)
    if left <= 0:
        return f"all {len(tso.leases)} leases are taken ({tso.leases.most_held_by()}): end some"
    if held >= left:
        return (
            f"{cleaned(holder) or 'an unnamed client'} has {held} leases already, and the remaining {left} are "
            "reserved for other clients; end some leases"
        )
    return ""


async def _grant(tso: TsoState, peer: Hashable, tag: int, request: GrantLease, term_s: float) -> None:
    """Grant a lease. The lease holds W back from this moment on. The reply is sent once the row of the lease is
    durable."""
    lease = tso.leases.grant(request.start_ts, term_s, tso.step.now_s, request.holder)
    await EpochWrite(LeaderStateChanges(leases_added=(request.start_ts,)))
    if lease.state is LeaseState.GRANTING:
        lease.state = LeaseState.LIVE
    tso.step.counters["leases_granted"] += 1
    tso.step.reply(peer, tag, LeaseReply(request.start_ts, lease.term_s))


async def _share(tso: TsoState, peer: Hashable, tag: int, request: GrantLease, term_s: float) -> None:
    """Grant a shared lease. Nothing is written if the row of the lease that is shared is durable already."""
    lease = tso.leases.share(request.start_ts, term_s, tso.step.now_s, request.holder)
    if lease.state is not LeaseState.LIVE:
        await EpochWrite(LeaderStateChanges(leases_added=(lease.start_ts,)))
        if lease.state is LeaseState.GRANTING:
            lease.state = LeaseState.LIVE
            tso.step.counters["leases_granted"] += 1
    tso.step.counters["leases_shared"] += 1
    tso.step.reply(peer, tag, LeaseReply(lease.start_ts, term_s))


# ── renewals and ends ────────────────────────────────────────────────────────────────────────────────────────


def renew(tso: TsoState, peer: Hashable, tag: int, start_ts: int) -> None:
    lease = tso.leases.renew(start_ts, tso.step.now_s)
    if lease is None:
        tso.step.refuse(peer, tag, _too_old(tso, start_ts))
    else:
        tso.step.reply(peer, tag, LeaseReply(start_ts, lease.term_s))


def end(tso: TsoState, peer: Hashable, tag: int, start_ts: int, shared: bool) -> None:
    if start_ts not in tso.leases or start_ts in tso.pending:
        tso.step.reply(peer, tag, Done())
    elif tso.leases.end(start_ts, tso.step.now_s, sharers=shared):
        tso.store.run(_end(tso, peer, tag, start_ts))
    else:
        tso.step.reply(peer, tag, Done())


async def _end(tso: TsoState, peer: Hashable, tag: int, start_ts: int) -> None:
    await _remove(tso, start_ts)
    tso.step.reply(peer, tag, Done())


async def _remove(tso: TsoState, start_ts: int) -> None:
    """Remove a lease that ended. By law 9 it holds W back until its row is durably deleted."""
    await EpochWrite(LeaderStateChanges(leases_removed=(start_ts,)))
    tso.leases.forget(start_ts)


def _too_old(tso: TsoState, start_ts: int) -> SnapshotTooOld:
    return SnapshotTooOld(
        f"start_ts {dated(start_ts)} has no lease, and the published low watermark is {dated(tso.watermarks.sent)}; "
        "begin a new transaction",
        start_ts=start_ts,
        watermark=tso.watermarks.sent,
    )
