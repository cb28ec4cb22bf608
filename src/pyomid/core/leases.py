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
    """All leases that hold W back, by start."""

    def __init__(self, survivors: Iterable[int], *, term_s: float, now_s: float) -> None:
        self._leases = {start: Lease(start, term_s, now_s + term_s, LeaseState.LIVE) for start in survivors}

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
        return min(self._leases, default=None)

    def find(self, start_ts: int) -> Lease | None:
        return self._leases.get(start_ts)

    def most_held_by(self) -> str:
        """Who has most of them, for whoever gets no more."""
        holders = Counter(lease.holder or "whoever does not say" for lease in self._leases.values())
        return ", ".join(f"{count} by {holder}" for holder, count in holders.most_common(_HOLDERS_NAMED))

    def grant(self, start_ts: int, term_s: float, now_s: float, holder: str = "") -> Lease:
        """Holds W back from now on; the promise may be made once its row is durable.

        A start that is leased already keeps the longer term, and the later end: another holder was promised them, and
        renews by them.
        """
        lease = self._leases.get(start_ts)
        if lease is None or lease.state is LeaseState.ENDING:
            lease = self._leases[start_ts] = Lease(start_ts, term_s, now_s + term_s)
        else:
            lease.term_s = max(lease.term_s, term_s)
            lease.expires_s = max(lease.expires_s, now_s + lease.term_s)
        lease.holder = "".join(filter(str.isprintable, holder[:_HOLDER_CHARS_MAX])) or lease.holder
        return lease

    def renew(self, start_ts: int, now_s: float) -> Lease | None:
        """A full term from now; None where the lease is gone or going."""
        lease = self._leases.get(start_ts)
        if lease is None or lease.state is LeaseState.ENDING:
            return None
        lease.expires_s = max(lease.expires_s, now_s + lease.term_s)
        return lease

    def expire(self, now_s: float) -> tuple[int, ...]:
        """The leases whose term has passed: they are ending now."""
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
