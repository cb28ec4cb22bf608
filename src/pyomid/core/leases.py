"""Durable promises that a start is still in use: W stays below every one of them (protocol.md, Leases).

    granting --row durable--> live --expires or is ended--> ending --row deletion durable--> gone

In every one of these states but the last the lease holds W back (law 9: the row is deleted before a W that passes
the lease is sent). Terms are judged by the monotonic clock the machine is given; each TSO grants the leases that it
finds a full term anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

_HOLDERS_NAMED: Final = 3
_HOLDER_CHARS_MAX: Final = 100
"""A peer chooses the words: they are bounded."""

_LOOKED_AT_A_SECOND: Final = 100_000
"""Leases judged for expiry: a hundredth of the time, however many there are."""


class LeaseState(Enum):
    GRANTING = auto()
    LIVE = auto()
    ENDING = auto()


@dataclass(slots=True)
class Lease:
    start_ts: int
    term_s: float
    expires_s: float
    state: LeaseState = LeaseState.GRANTING
    holder: str = ""
    """Who asked for it last, in words for people; not kept at rest: a TSO that took over does not know it."""


class Leases:
    """All leases that hold W back, by start. What the machine asks with each of its steps does not grow with them."""

    def __init__(self, survivors: Iterable[int], *, term_s: float, now_s: float) -> None:
        self._leases = {start: Lease(start, term_s, now_s + term_s, LeaseState.LIVE) for start in survivors}
        self._lowest: int | None = None
        """Known where it is not None."""
        self._held = Counter({"": len(self._leases)})
        """By holder."""
        self._most = ""
        self._changes = len(self._leases)
        """Since `_most` was written."""
        self._look_due_s = now_s

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, start_ts: int) -> bool:
        return start_ts in self._leases

    @property
    def starts(self) -> tuple[int, ...]:
        return tuple(sorted(self._leases))

    @property
    def lowest(self) -> int | None:
        """The oldest start that holds W back."""
        if self._lowest is None:
            self._lowest = min(self._leases, default=None)
        return self._lowest

    def find(self, start_ts: int) -> Lease | None:
        return self._leases.get(start_ts)

    def most_held_by(self) -> str:
        """Who has most of them, for whoever gets no more: as it was a few changes ago, where they are many."""
        if self._changes > len(self._leases) // 16:
            self._changes = 0
            most = self._held.most_common(_HOLDERS_NAMED)
            self._most = ", ".join(f"{count} by {holder or 'whoever does not say'}" for holder, count in most if count)
        return self._most

    def held_by(self, holder: str) -> int:
        """How many; those that a former TSO granted are nobody's."""
        return self._held[_cleaned(holder)]

    def grant(self, start_ts: int, term_s: float, now_s: float, holder: str = "") -> Lease:
        """Holds W back from now on; the promise may be made once its row is durable.

        A start that is leased already keeps the longer term, and the later end: another holder was promised them, and
        renews by them.
        """
        lease = self._leases.get(start_ts)
        if lease is None or lease.state is LeaseState.ENDING:
            before = "" if lease is None else lease.holder
            self._held[before] += lease is None
            lease = self._leases[start_ts] = Lease(start_ts, term_s, now_s + term_s, holder=before)
            if self._lowest is not None:
                self._lowest = min(self._lowest, start_ts)
        else:
            lease.term_s = max(lease.term_s, term_s)
            lease.expires_s = max(lease.expires_s, now_s + lease.term_s)
        self._is_held_by(lease, _cleaned(holder))
        return lease

    def _is_held_by(self, lease: Lease, holder: str) -> None:
        if holder:
            self._leave(lease.holder)
            self._held[holder] += 1
            lease.holder = holder
        self._changes += 1

    def _leave(self, holder: str) -> None:
        self._held[holder] -= 1
        if not self._held[holder]:
            del self._held[holder]

    def renew(self, start_ts: int, now_s: float) -> Lease | None:
        """A full term from now; None where the lease is gone or going."""
        lease = self._leases.get(start_ts)
        if lease is None or lease.state is LeaseState.ENDING:
            return None
        lease.expires_s = max(lease.expires_s, now_s + lease.term_s)
        return lease

    def expire(self, now_s: float) -> tuple[int, ...]:
        """The leases whose term has passed, perhaps a moment ago: they are ending now."""
        if now_s < self._look_due_s:
            return ()
        self._look_due_s = now_s + len(self._leases) / _LOOKED_AT_A_SECOND
        over = tuple(
            lease.start_ts
            for lease in self._leases.values()
            if lease.state is LeaseState.LIVE and lease.expires_s <= now_s
        )
        for start_ts in over:
            self._leases[start_ts].state = LeaseState.ENDING
        return over

    def forget(self, start_ts: int) -> None:
        """Its row is gone durably. One that was granted anew meanwhile stays."""
        lease = self._leases.get(start_ts)
        if lease is not None and lease.state is LeaseState.ENDING:
            del self._leases[start_ts]
            self._leave(lease.holder)
            self._changes += 1
            if start_ts == self._lowest:
                self._lowest = None


def _cleaned(holder: str) -> str:
    return "".join(filter(str.isprintable, holder[:_HOLDER_CHARS_MAX]))
