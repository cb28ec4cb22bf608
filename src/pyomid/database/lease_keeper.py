"""The leases of this process. They are granted when transactions begin, renewed by one thread, and ended with their
transactions (K7).

Two kinds of leases expire at the end of their terms. The lease on a past snapshot is *shared*: other processes may read
at the same start, so this process only requests the lease again while it needs it. A *lasting* lease is on a position
to which a program may return after this process has died; it expires unless the program ends it.

A lease protects the versions that its snapshot needs from compaction. If the lease is lost, the transaction's next use
raises an error: reads never silently miss data.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from math import inf
from queue import Empty, SimpleQueue
from typing import Any

from pyomid.errors import Misuse, OmidError, SnapshotTooOld, Unavailable
from pyomid.ports import Clock, Tso

logger = logging.getLogger(__name__)

RENEWALS_PER_TERM = 3
"""Two renewals may fail before a lease can expire."""

RENEWAL_PAUSE_S_MAX = 100.0
"""After a takeover, all leases get the new TSO's own term (by default 5 minutes), whatever term they were granted
for."""


def renewal_pause_s(term_s: float, tso_term_s: float = inf) -> float:
    """Return the time between two renewals of a lease. `tso_term_s` is the TSO's own term, if known."""
    return min(min(term_s, tso_term_s) / RENEWALS_PER_TERM, RENEWAL_PAUSE_S_MAX)


class Lease:
    """A held lease. `lost` is the error that its owner must raise; None while the lease is valid."""

    __slots__ = ("__weakref__", "grant", "is_lasting", "is_shared", "lost", "renew_at_s", "start_ts", "term_s")

    def __init__(
        self,
        start_ts: int,
        term_s: float = 0.0,
        renew_at_s: float = inf,
        *,
        is_shared: bool = False,
        is_lasting: bool = False,
    ) -> None:
        self.start_ts = start_ts
        self.term_s = term_s
        self.is_shared = is_shared
        self.is_lasting = is_lasting
        """If True, the lease only expires if this object becomes garbage after `keep`."""
        self.renew_at_s = renew_at_s
        self.lost: OmidError | None = None
        self.grant: _Grant | None = None
        """None if no keeper of this process has the lease."""

    @classmethod
    def of_another(cls, start_ts: int) -> Lease:
        """Return a lease that was granted to another process. The code that works under the lease renews it; no keeper
        does."""
        return cls(start_ts)


class _Grant:
    """The keeper's record of a lease, which is registered before the request is sent."""

    __slots__ = ("ends", "is_asked", "is_given_back", "lease", "start_ts")

    def __init__(self, lease: Lease, forgotten: Callable[[object], object]) -> None:
        self.start_ts = lease.start_ts
        self.lease = weakref.ref(lease, forgotten)
        self.ends = not lease.is_shared
        """Whether the keeper ends the lease at the TSO once the lease object is garbage, because no other owner can use
        it."""
        self.is_asked = True
        """True while the request is in flight: an end that is sent now might overtake it."""
        self.is_given_back = False


class LeaseKeeper:
    """Renews leases, to which it has only weak references. If a transaction becomes garbage, or its caller is
    interrupted or cancelled before it gets the lease, the keeper's thread ends the lease.
    """

    def __init__(self, tso: Tso, clock: Clock, tso_term_s: float = inf) -> None:
        self._tso = tso
        self._clock = clock
        self._tso_term_s = tso_term_s
        self._grants: set[_Grant] = set()
        """Changed by atomic operations, without a lock."""
        self._starting = threading.RLock()
        self._wake: SimpleQueue[object] = SimpleQueue()
        """Wakes the thread. The weak references call its `put` when a lease becomes garbage; `put` is C code and may
        run anywhere."""
        self._closed = False
        self._thread: threading.Thread | None = None

    def grant(self, start_ts: int, term_s: float | None) -> Lease:
        """Return a lease, which is durable and renewed from now on. Raise `SnapshotTooOld` if W has passed the start,
        and `Unavailable` if the system cannot start the thread that renews leases. The lease is given back when it
        becomes garbage.
        """
        return self._granted(Lease(start_ts), lambda: self._tso.grant_lease(start_ts, term_s))

    def grant_lasting(self, start_ts: int, term_s: float | None) -> Lease:
        """Return a lease on a position that must outlive this process. After `keep`, only `end` ends the lease before
        its term."""
        return self._granted(Lease(start_ts, is_lasting=True), lambda: self._tso.grant_lease(start_ts, term_s))

    def share(self, start_ts: int, term_s: float | None) -> Lease:
        """Return a lease on a start at which others may read too. The lease is never ended, and only expires."""
        lease = Lease(start_ts, is_shared=True, is_lasting=True)
        return self._granted(lease, lambda: self._tso.share_lease(start_ts, term_s)[1])

    def _granted(self, lease: Lease, ask: Callable[[], float]) -> Lease:
        """Request and register a lease. `ask` may return after its caller has given up: an event loop cancels the
        caller, but the thread continues."""
        self._ensure_thread(lease)
        lease.grant = grant = _Grant(lease, self._wake.put)
        try:
            self._grants.add(grant)
            now_s = self._clock()
            lease.term_s = ask()
            lease.renew_at_s = self._renewal_s(now_s, lease.term_s)
            grant.is_asked = False
            self._wake.put(None)
            return lease
        except (SnapshotTooOld, Misuse):
            self._grants.discard(grant)
            raise
        except BaseException:  # the reply is lost: the TSO may have granted the lease
            grant.is_given_back = True
            grant.is_asked = False
            self._wake.put(None)
            raise

    def keep(self, lease: Lease) -> None:
        """Note that the owner of a lasting lease has it: from now on the lease only expires if the object becomes
        garbage."""
        if lease.grant is not None and lease.is_lasting:
            lease.grant.ends = False

    def give_back(self, lease: Lease) -> None:
        """End a lease, like `end`, but without waiting for the TSO."""
        if lease.grant is not None:
            lease.grant.ends = not lease.is_shared
            lease.grant.is_given_back = True
            self._wake.put(None)

    def _ensure_thread(self, lease: Lease) -> None:
        with self._starting:
            if self._thread is not None and self._thread.is_alive():
                return
            thread = threading.Thread(target=self._run, name="pyomid-leases", daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError) as error:
                raise Unavailable(
                    f"cannot start the thread that renews the lease of start_ts {lease.start_ts}: {error}"
                ) from error
            self._thread = thread

    def end(self, lease: Lease) -> None:
        """End a lease, so that W may pass it. An error is only logged, because the lease expires."""
        self.abandon(lease)
        if not lease.is_shared:
            self._quietly(self._tso.end_lease, lease.start_ts)

    def end_of(self, start_ts: int) -> None:
        """End the lease on a start, like `end`, whichever process has it."""
        self._quietly(self._tso.end_lease, start_ts)

    def abandon(self, lease: Lease) -> None:
        """Stop renewing a lease. It then expires, or ends with a commit that may still be decided."""
        if lease.grant is not None:
            self._grants.discard(lease.grant)

    def close(self) -> None:
        """Stop renewing leases. Leases that were given back are ended; leases that are still held expire."""
        self._closed = True
        self._wake.put(None)
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(self._JOIN_TIMEOUT_S)

    _JOIN_TIMEOUT_S = 1.0

    def _run(self) -> None:
        try:
            self._tend_all()
        except BaseException as error:
            logger.exception(
                "the thread that renews leases failed; the transactions with leases fail at their next use"
            )
            self._lose_all(error)

    def _lose_all(self, error: BaseException) -> None:
        """Mark all leases as lost: since they are no longer renewed, their owners must get an error instead of
        incomplete data."""
        for lease in self._live():
            if lease.lost is None:
                lease.lost = SnapshotTooOld(
                    f"the lease of start_ts {lease.start_ts} is no longer renewed, because the thread that renews it "
                    f"failed: {error!r}",
                    start_ts=lease.start_ts,
                )
        self._grants.clear()
        self._thread = None

    def _live(self) -> list[Lease]:
        return [lease for grant in self._grants.copy() if (lease := grant.lease()) is not None]

    def _tend_all(self) -> None:
        is_closed = False
        while not is_closed:
            is_closed = self._closed and not any(grant.is_asked for grant in self._grants.copy())
            for grant in self._grants.copy():
                self._tend(grant)
            with suppress(Empty):
                self._wake.get(timeout=0.0 if is_closed else self._pause_s())
                while True:
                    self._wake.get_nowait()

    def _tend(self, grant: _Grant) -> None:
        lease = grant.lease()
        if lease is None or grant.is_given_back:
            if not grant.is_asked and grant in self._grants:
                self._grants.discard(grant)
                if grant.ends:
                    self._quietly(self._tso.end_lease, grant.start_ts)
        elif not self._closed and lease.lost is None and self._clock() >= lease.renew_at_s:
            self._renew(lease)

    def _renew(self, lease: Lease) -> None:
        now_s = self._clock()
        try:
            if lease.is_shared:
                _, lease.term_s = self._tso.share_lease(lease.start_ts, lease.term_s)
            else:
                renewed_s = self._tso.renew_lease(lease.start_ts)
                # A new TSO's own term may be shorter than the promised term.
                if lease.is_lasting and renewed_s < lease.term_s:
                    renewed_s = self._tso.grant_lease(lease.start_ts, lease.term_s)
                lease.term_s = renewed_s
        except SnapshotTooOld as error:
            lease.lost = error
        except Exception as error:  # only this renewal failed: other leases are renewed, and this one is retried
            logger.warning("could not renew the lease of transaction %d; pyomid will retry: %r", lease.start_ts, error)
        lease.renew_at_s = self._renewal_s(now_s, lease.term_s)

    def _renewal_s(self, now_s: float, term_s: float) -> float:
        return now_s + renewal_pause_s(term_s, self._tso_term_s)

    def _pause_s(self) -> float | None:
        """Return the time until the next renewal."""
        due = [lease.renew_at_s for lease in self._live() if lease.lost is None]
        return max(0.0, min(min(due) - self._clock(), threading.TIMEOUT_MAX)) if due else None

    def _quietly(self, call: Callable[[int], Any], start_ts: int) -> None:
        try:
            call(start_ts)
        except Exception as error:
            logger.warning(
                "could not end the lease of transaction %d; the lease will expire by itself: %s", start_ts, error
            )
