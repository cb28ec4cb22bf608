"""Leases of this process: granted at begin, renewed by one thread, ended with their transactions (K7).

A start that this process did not begin, that of a snapshot below the present, may be read by others too: its lease is
shared with them, asked for again while it is used, and ends by its term. So does the lease of a place to which somebody
may come back when this process is dead, unless it is ended.

A lease keeps the versions that its snapshot needs from compaction, for hours if need be. The loss of a lease is an
error that the transaction raises at its next use: never a silent hole.
"""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable
from math import inf
from typing import Any

from pyomid.errors import OmidError, SnapshotTooOld, Unavailable
from pyomid.ports import Clock, Tso

logger = logging.getLogger(__name__)

RENEWALS_PER_TERM = 3
"""Two renewals may fail before a lease is in danger."""

RENEWAL_PAUSE_S_MAX = 100.0
"""A TSO that took over gives all leases its own term, whatever they were granted for: 5 minutes, if it was not told
another."""


def renewal_pause_s(term_s: float, tso_term_s: float = inf) -> float:
    """From one renewal of a lease to the next. `tso_term_s`: the TSO's own term, as far as it is known here."""
    return min(min(term_s, tso_term_s) / RENEWALS_PER_TERM, RENEWAL_PAUSE_S_MAX)


class Lease:
    """A held lease. `lost` is the error that its owner must raise; None while it is good."""

    __slots__ = ("__weakref__", "is_lasting", "is_shared", "lost", "renew_at_s", "start_ts", "term_s")

    def __init__(
        self, start_ts: int, term_s: float, renew_at_s: float, *, is_shared: bool = False, is_lasting: bool = False
    ) -> None:
        self.start_ts = start_ts
        self.term_s = term_s
        self.is_shared = is_shared
        self.is_lasting = is_lasting
        """Forgotten, it ends by its term."""
        self.renew_at_s = renew_at_s
        self.lost: OmidError | None = None

    @classmethod
    def of_another(cls, start_ts: int) -> Lease:
        """A lease that was granted to another process. The code that works under it renews it, not a keeper here."""
        return cls(start_ts, 0.0, 0.0)


class LeaseKeeper:
    """Holds leases by weak reference: a transaction that was forgotten does not hold the watermark back for ever."""

    def __init__(self, tso: Tso, clock: Clock, tso_term_s: float = inf) -> None:
        self._tso = tso
        self._clock = clock
        self._tso_term_s = tso_term_s
        self._held: dict[int, weakref.ref[Lease]] = {}
        """Of this process alone, by start."""
        self._lasting: dict[int, weakref.ref[Lease]] = {}
        """Shared ones too, by the identity of the lease: several may be of one start."""
        self._lock = threading.RLock()
        """Acquired itself, not through its condition: that acquires it in Python, where an interrupt can come between.
        """
        self._changed = threading.Condition(self._lock)
        self._closed = False
        self._thread: threading.Thread | None = None

    def grant(self, start_ts: int, term_s: float | None) -> Lease:
        """Durable on return, and renewed from now on. `SnapshotTooOld` if W has passed the start, `Unavailable` if the
        system gives no thread to renew it. Where it fails the start is given up: W does not wait for it.
        """
        now_s = self._clock()
        try:
            granted_s = self._tso.grant_lease(start_ts, term_s)
            lease = Lease(start_ts, granted_s, self._renewal_s(now_s, granted_s))
            self._keep(lease, self._held, start_ts)
        except BaseException:
            self._tso.note_ended(start_ts)
            raise
        return lease

    def grant_lasting(self, start_ts: int, term_s: float | None) -> Lease:
        """As `grant`, for a place that counts when this process is gone: only who ends it ends it before its term."""
        now_s = self._clock()
        granted_s = self._tso.grant_lease(start_ts, term_s)
        lease = Lease(start_ts, granted_s, self._renewal_s(now_s, granted_s), is_lasting=True)
        self._keep(lease, self._lasting, id(lease))
        return lease

    def share(self, start_ts: int, term_s: float | None) -> Lease:
        """As `grant`, for a start that others may read at as well."""
        now_s = self._clock()
        _, kept_s = self._tso.share_lease(start_ts, term_s)
        lease = Lease(start_ts, kept_s, self._renewal_s(now_s, kept_s), is_shared=True, is_lasting=True)
        self._keep(lease, self._lasting, id(lease))
        return lease

    def _keep(self, lease: Lease, held: dict[int, weakref.ref[Lease]], key: int) -> None:
        with self._lock:
            held[key] = weakref.ref(lease)
            try:
                self._ensure_thread()
            except (RuntimeError, MemoryError) as error:
                self.end(lease)
                raise Unavailable(f"start_ts {lease.start_ts}: no thread to renew its lease: {error}") from error
            self._changed.notify_all()

    def _ensure_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._run, name="pyomid-leases", daemon=True)
            thread.start()
            self._thread = thread

    def end(self, lease: Lease) -> None:
        """The watermark may pass it. An error does no harm: the lease expires."""
        if lease.is_lasting:
            self.abandon(lease)
        if not lease.is_shared:
            self.end_of(lease.start_ts)

    def end_of(self, start_ts: int) -> None:
        """As `end`, for the lease on a start, whichever process it was granted to."""
        with self._lock:
            self._held.pop(start_ts, None)
        self._quietly(self._tso.end_lease, start_ts)

    def abandon(self, lease: Lease) -> None:
        """Renews it no more. It ends by its term, or by the commit that may still be decided."""
        with self._lock:
            if lease.is_lasting:
                self._lasting.pop(id(lease), None)
            else:
                self._held.pop(lease.start_ts, None)

    def close(self) -> None:
        """Renews nothing more. Leases still held expire by their terms."""
        with self._lock:
            self._closed = True
            self._held.clear()
            self._lasting.clear()
            self._changed.notify_all()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(self._JOIN_TIMEOUT_S)

    _JOIN_TIMEOUT_S = 1.0

    def _run(self) -> None:
        try:
            self._tend_all()
        except BaseException as error:
            logger.exception("leases are renewed no longer; their transactions fail at the next use")
            self._lose_all(error)

    def _lose_all(self, error: BaseException) -> None:
        """Leases that are not renewed must give their owners an error, not holes in what they read."""
        with self._lock:
            for lease in self._live():
                if lease.lost is None:
                    lease.lost = SnapshotTooOld(
                        f"start_ts {lease.start_ts}: its lease is renewed no more, the thread failed: {error!r}",
                        start_ts=lease.start_ts,
                    )
            self._held.clear()
            self._lasting.clear()
            self._thread = None

    def _live(self) -> list[Lease]:
        references = (*self._held.values(), *self._lasting.values())
        return [lease for reference in references if (lease := reference()) is not None]

    def _tend_all(self) -> None:
        while True:
            with self._lock:
                if self._closed:
                    return
                held = dict(self._held)
                self._lasting = {key: reference for key, reference in self._lasting.items() if reference() is not None}
                lasting = tuple(self._lasting.values())
            for start_ts, reference in held.items():
                self._tend(start_ts, reference())
            for reference in lasting:
                self._renew_if_due(reference())
            with self._lock:
                if not self._closed:
                    self._changed.wait(self._pause_s())

    def _tend(self, start_ts: int, lease: Lease | None) -> None:
        if lease is None:
            with self._lock:
                self._held.pop(start_ts, None)
            self._quietly(self._tso.end_lease, start_ts)
        else:
            self._renew_if_due(lease)

    def _renew_if_due(self, lease: Lease | None) -> None:
        if lease is not None and lease.lost is None and self._clock() >= lease.renew_at_s:
            self._renew(lease)

    def _renew(self, lease: Lease) -> None:
        now_s = self._clock()
        try:
            if lease.is_shared:
                _, lease.term_s = self._tso.share_lease(lease.start_ts, lease.term_s)
            else:
                renewed_s = self._tso.renew_lease(lease.start_ts)
                if lease.is_lasting and renewed_s < lease.term_s:  # by a TSO that took over: the promise was longer
                    renewed_s = self._tso.grant_lease(lease.start_ts, lease.term_s)
                lease.term_s = renewed_s
        except SnapshotTooOld as error:
            lease.lost = error
        except Exception as error:  # one lease, once: the others are renewed all the same, and this one again
            logger.warning("lease on %d not renewed, will be tried again: %r", lease.start_ts, error)
        lease.renew_at_s = self._renewal_s(now_s, lease.term_s)

    def _renewal_s(self, now_s: float, term_s: float) -> float:
        return now_s + renewal_pause_s(term_s, self._tso_term_s)

    def _pause_s(self) -> float | None:
        """Until the next renewal. Forgotten leases are noticed then."""
        due = [lease.renew_at_s for lease in self._live() if lease.lost is None]
        if not due:
            return 1.0 if self._held or self._lasting else None
        return max(0.0, min(due) - self._clock())

    def _quietly(self, call: Callable[[int], Any], start_ts: int) -> None:
        try:
            call(start_ts)
        except Exception as error:
            logger.warning("lease on %d not ended, expires by its term: %s", start_ts, error)
