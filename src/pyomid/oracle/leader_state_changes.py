"""Several changes of the leader state as one: of two changes of a lease or a pending record the later one counts."""

from __future__ import annotations

from collections.abc import Iterable

from pyomid.types import LeaderStateChanges, PendingCommit


def merged(changes: Iterable[LeaderStateChanges]) -> LeaderStateChanges:
    """One atomic change with the effect of all changes in their order. Ceiling, W and H only rise."""
    ceiling: int | None = None
    watermark: int | None = None
    horizon: int | None = None
    leases: dict[int, bool] = {}
    pending: dict[int, PendingCommit | None] = {}
    for change in changes:
        ceiling = _higher(ceiling, change.ceiling)
        watermark = _higher(watermark, change.watermark)
        horizon = _higher(horizon, change.horizon)
        leases.update(dict.fromkeys(change.leases_removed, False))
        leases.update(dict.fromkeys(change.leases_added, True))
        pending.update(dict.fromkeys(change.pending_removed))
        pending.update({record.start_ts: record for record in change.pending_added})
    return LeaderStateChanges(
        ceiling=ceiling,
        watermark=watermark,
        horizon=horizon,
        leases_added=tuple(start for start, there in leases.items() if there),
        leases_removed=tuple(start for start, there in leases.items() if not there),
        pending_added=tuple(record for record in pending.values() if record is not None),
        pending_removed=tuple(start for start, record in pending.items() if record is None),
    )


def _higher(one: int | None, other: int | None) -> int | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)
