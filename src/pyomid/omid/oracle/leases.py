"""Leases: durable promises that a start timestamp is still in use. W stays below every leased start (protocol.md).

    granting --row durable--> live --expires or is ended--> ending --row deletion durable--> gone

In each state but `gone` the lease holds W back (law 9: the row is deleted before a W that passes the lease is sent).
Terms are measured by the machine's monotonic clock. A new TSO gives each lease that it finds a full term.

A lease has an owner, sharers, or both. The owner renews and ends the lease by its start; sharers never report their
end. A sharer asks the TSO to keep a start for a term. A lease on that start or an older one keeps it, because W stays
below the lease. So the TSO extends a recently opened shared lease at or below the start, and otherwise opens a new one:

    share 100 ─► lease on 100, until t + term
    share 150 ─► the same lease, longer        within a tenth of a term; 100 is kept that much too long
    share 900 ─► lease on 900                  later: so W follows the oldest sharer, in steps of a tenth of a term

Thus about eleven leases suffice for any number of sharers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

TERM_S_MAX: Final = 24 * 3600.0
"""The longest term in seconds. A request for a longer term gets this one."""

SHARED_TERM_PARTS: Final = 10
"""Younger starts may share a lease during the first tenth of its term."""

_NOBODY: Final = -math.inf
"""An end time in the past: the lease is not promised to anyone."""

_HOLDERS_NAMED: Final = 3
_HOLDER_CHARS_MAX: Final = 100
"""The longest holder text that is kept; it is bounded because the peer chooses it."""

_CHECKED_A_SECOND: Final = 100_000
"""How many leases are checked for expiry per second. The checks take a hundredth of the TSO's time."""


class LeaseState(Enum):
    GRANTING = auto()
    LIVE = auto()
    ENDING = auto()


@dataclass(slots=True)
class Lease:
    start_ts: int
    term_s: float
    """The owner's term."""
    expires_s: float
    """When the promise to the owner ends."""
    state: LeaseState = LeaseState.GRANTING
    holder: str = ""
    """The client that last asked for the lease, as text for people. It is not durable, so a new TSO does not know
    it."""
    shared_until_s: float = _NOBODY
    """When the promise to the sharers ends."""
    opened_s: float = _NOBODY
    """When a sharer opened the lease; a time in the past if the lease was granted to an owner."""

    @property
    def until_s(self) -> float:
        return max(self.expires_s, self.shared_until_s)


class Leases:
    """All leases that hold W back, by start. The cost of what the machine reads at each step does not grow with the
    number of leases."""

    def __init__(self, survivors: Iterable[int], *, term_s: float, now_s: float) -> None:
        self._leases = {start: Lease(start, term_s, now_s + term_s, LeaseState.LIVE) for start in survivors}
        self._lowest: int | None = None
        """None means that it must be computed anew."""
        self._lowest_above: tuple[int, int | None] | None = None
        """The last argument of `lowest_above` and its result. None means that it must be computed anew."""
        self._held = Counter({"": len(self._leases)})
        """The number of leases of each holder."""
        self._most = ""
        self._changes = len(self._leases)
        """The number of changes since `_most` was computed."""
        self._check_due_s = now_s
        self._shared: dict[int, Lease] = {}
        """The leases that sharers opened."""

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, start_ts: int) -> bool:
        return start_ts in self._leases

    @property
    def starts(self) -> tuple[int, ...]:
        return tuple(sorted(self._leases))

    @property
    def lowest(self) -> int | None:
        """The oldest leased start, or None if there is no lease."""
        if self._lowest is None:
            self._lowest = min(self._leases, default=None)
        return self._lowest

    def lowest_above(self, start_ts: int) -> int | None:
        """Return the oldest leased start above `start_ts`, or None."""
        lowest = self.lowest
        if lowest is None or lowest > start_ts:
            return lowest
        if self._lowest_above is None or self._lowest_above[0] != start_ts:
            above = min((leased for leased in self._leases if leased > start_ts), default=None)
            self._lowest_above = (start_ts, above)
        return self._lowest_above[1]

    def find(self, start_ts: int) -> Lease | None:
        return self._leases.get(start_ts)

    def holder_of(self, start_ts: int) -> str:
        """Return the holder of the start's lease; empty if unknown."""
        lease = self._leases.get(start_ts)
        return "" if lease is None else lease.holder

    def most_held_by(self) -> str:
        """Return the holders with the most leases, for the error that a client without a lease gets. With many leases
        the answer may be a few changes old."""
        if self._changes > len(self._leases) // 16:
            self._changes = 0
            most = self._held.most_common(_HOLDERS_NAMED)
            self._most = ", ".join(f"{count} by {holder or 'unnamed clients'}" for holder, count in most if count)
        return self._most

    def held_by(self, holder: str) -> int:
        """Return the number of the holder's leases. Leases that an earlier TSO granted have no holder."""
        return self._held[cleaned(holder)]

    def grant(self, start_ts: int, term_s: float, now_s: float, holder: str = "") -> Lease:
        """Return a lease that holds W back from now on. The TSO may promise it once its row is durable.

        If the start has a lease already, the longer term and the later end win: another holder was promised them, and
        renews by them.
        """
        lease = self._leases.get(start_ts)
        if lease is None or lease.state is LeaseState.ENDING:
            lease = self._add(Lease(start_ts, term_s, now_s + term_s))
        else:
            lease.term_s = max(lease.term_s, term_s)
            lease.expires_s = max(lease.expires_s, now_s + lease.term_s)
        self._set_holder(lease, cleaned(holder))
        return lease

    def _add(self, lease: Lease) -> Lease:
        """Add a lease. If it replaces one that is ending, it keeps that lease's holder until another is named."""
        before = self._leases.get(lease.start_ts)
        if before is None:
            self._held[""] += 1
        else:
            lease.holder = before.holder
        self._leases[lease.start_ts] = lease
        self._lowest_above = None
        self._shared.pop(lease.start_ts, None)
        if self._lowest is not None:
            self._lowest = min(self._lowest, lease.start_ts)
        return lease

    def _set_holder(self, lease: Lease, holder: str) -> None:
        if holder:
            self._drop_holder(lease.holder)
            self._held[holder] += 1
            lease.holder = holder
        self._changes += 1

    def _drop_holder(self, holder: str) -> None:
        self._held[holder] -= 1
        if not self._held[holder]:
            del self._held[holder]

    def share(self, start_ts: int, term_s: float, now_s: float, holder: str = "") -> Lease:
        """Return a lease on the start or an older one, kept for a term from now. If its state is not LIVE, the caller
        must make its row durable."""
        lease = self.find_shared(start_ts, term_s, now_s)
        if lease is None:
            lease = self._shared[start_ts] = self._add(Lease(start_ts, 0.0, _NOBODY, opened_s=now_s))
            self._set_holder(lease, cleaned(holder))
        lease.shared_until_s = max(lease.shared_until_s, now_s + term_s)
        return lease

    def find_shared(self, start_ts: int, term_s: float, now_s: float) -> Lease | None:
        """Return the lease that a sharer of the start may share, or None. It is a lease on the start itself, or the
        nearest one below it that a sharer opened recently."""
        own = self._leases.get(start_ts)
        if own is not None and own.state is not LeaseState.ENDING:
            return own
        since_s = now_s - term_s / SHARED_TERM_PARTS
        young = [
            lease
            for lease in self._shared.values()
            if lease.start_ts <= start_ts and lease.opened_s >= since_s and lease.state is not LeaseState.ENDING
        ]
        return max(young, key=lambda lease: lease.start_ts, default=None)

    def renew(self, start_ts: int, now_s: float) -> Lease | None:
        """Give the owner a full term from now, and return the lease. Returns None if the lease is gone or ending, or
        its owner ended it."""
        lease = self._leases.get(start_ts)
        if lease is None or lease.state is LeaseState.ENDING or lease.expires_s == _NOBODY:
            return None
        lease.expires_s = max(lease.expires_s, now_s + lease.term_s)
        return lease

    def end(self, start_ts: int, now_s: float, *, sharers: bool = False) -> bool:
        """End the owner's part; with `sharers`, end the sharers' part too. Returns True if the lease is now ending,
        False if it lives on until the sharers' terms are over."""
        lease = self._leases[start_ts]
        lease.expires_s = _NOBODY
        if sharers or lease.shared_until_s <= now_s:
            lease.state = LeaseState.ENDING
        return lease.state is LeaseState.ENDING

    def expire(self, now_s: float) -> tuple[int, ...]:
        """End the leases whose term is over, and return their starts. An end may be noticed a moment late."""
        if now_s < self._check_due_s:
            return ()
        self._check_due_s = now_s + len(self._leases) / _CHECKED_A_SECOND
        over = tuple(
            lease.start_ts
            for lease in self._leases.values()
            if lease.state is LeaseState.LIVE and lease.until_s <= now_s
        )
        for start_ts in over:
            self._leases[start_ts].state = LeaseState.ENDING
        return over

    def forget(self, start_ts: int) -> None:
        """Forget a lease whose row is durably deleted. A lease that was granted anew meanwhile stays."""
        lease = self._leases.get(start_ts)
        if lease is not None and lease.state is LeaseState.ENDING:
            del self._leases[start_ts]
            self._lowest_above = None
            self._drop_holder(lease.holder)
            self._shared.pop(start_ts, None)
            self._changes += 1
            if start_ts == self._lowest:
                self._lowest = None


def cleaned(holder: str) -> str:
    """Return a holder's text in the form that is shown: printable, and of bounded length."""
    return "".join(filter(str.isprintable, holder[:_HOLDER_CHARS_MAX]))
