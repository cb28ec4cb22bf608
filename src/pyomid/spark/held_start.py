"""Start timestamps of reads and writes, and the leases that keep the versions which their snapshots need (K7).

Spark plans, runs and commits in separate processes, so a start timestamp ("start") must be leased before the process
that drew it ends.

                     shared()
    drawn() ─ PROCESS ─────────────► SHARED      a load: its end is never reported
                 │                     ▲  ▲
                 │ owned()    shared() │  └───── past()     a load of a past snapshot
                 └──────► OWN ─────────┘
                          a write, a stream, or a source whose use is not known yet

    given()  GIVEN: a transaction, a view or the caller named the start, and has the lease
    any      NOTHING: the TSO, Apache Omid's, grants no leases
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import Enum
from functools import partial
from typing import Final

from pyomid.database.open_database import past_begin
from pyomid.errors import Misuse, SnapshotTooOld
from pyomid.protocol.timestamps import dated
from pyomid.spark.connections import Connection
from pyomid.types import BeginReply


class Keeper(Enum):
    """The process or lease that keeps the versions which the snapshot of a start timestamp needs."""

    PROCESS = "the process that drew the start"
    OWN = "its own lease, which the work under the start renews and ends"
    SHARED = "a lease that loads share; it lapses two thirds of a term or more after the last request"
    GIVEN = "the lease of whoever named the start; the work under it renews the lease but does not end it"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class HeldStart:
    """A start timestamp and its keeper. Plans contain one; each transition returns a new `HeldStart`."""

    begun: BeginReply
    keeper: Keeper
    term_s: float | None = None
    """The lease's term in seconds; None for the TSO's default."""

    @classmethod
    def drawn(cls, conn: Connection, term_s: float | None = None) -> HeldStart:
        """Return a new start timestamp, above every acknowledged commit."""
        return cls(conn.deployment.tso.begin(), Keeper.PROCESS if conn.has_leases else Keeper.NOTHING, term_s)

    @classmethod
    def of_a_job(cls, conn: Connection, term_s: float | None = None) -> HeldStart:
        """Return a new start timestamp like `drawn`, for a transaction that writes (`Tso.begin_job`)."""
        return cls(conn.deployment.tso.begin_job(), Keeper.PROCESS if conn.has_leases else Keeper.NOTHING, term_s)

    @classmethod
    def given(cls, conn: Connection, start_ts: int, epoch: int | None, term_s: float | None = None) -> HeldStart:
        """Return a start timestamp that a lease holds already. `epoch`: the epoch of the TSO that issued it. If the
        epoch is unknown (None), the call checks that the start timestamp was issued, and renews its lease. If the lease
        has lapsed, but W has not passed the start timestamp, the call takes a new lease for one term."""
        keeper = Keeper.GIVEN if conn.has_leases else Keeper.NOTHING
        if epoch is None:
            with conn.begun() as newest:
                epoch = newest.epoch
            if start_ts > newest.start_ts:
                raise Misuse(
                    f"_snapshotVersion {start_ts} was never issued; the latest version is {dated(newest.start_ts)}"
                )
            if conn.has_leases:
                try:
                    conn.deployment.tso.renew_lease(start_ts)
                except SnapshotTooOld:  # the lease has lapsed; nobody ends the new lease, which lapses too
                    conn.deployment.tso.grant_lease(start_ts, term_s)
        return cls(BeginReply(start_ts, epoch), keeper, term_s)

    @classmethod
    def past(cls, conn: Connection, at: int | datetime, term_s: float | None = None) -> HeldStart:
        """Return the start timestamp of a past snapshot, under a shared lease before anything is read (C13): it may
        belong to another transaction. `at`: a value that `checked_at` returned."""
        with conn.begun(at=at) as begun:
            share = partial(conn.share_lease, term_s=term_s)
            found, _ = past_begin(conn.deployment, at, begun, share)
        return cls(found, Keeper.SHARED if conn.has_leases else Keeper.NOTHING, term_s)

    @classmethod
    def position(cls, conn: Connection, start_ts: int, term_s: float | None, *, is_own: bool = False) -> HeldStart:
        """Return the start timestamp below a read of changes. `is_own`: a stream's own lease holds it."""
        leased = Keeper.OWN if is_own else Keeper.SHARED
        return cls(BeginReply(start_ts), leased if conn.has_leases else Keeper.NOTHING, term_s)

    @property
    def start_ts(self) -> int:
        return self.begun.read_at or self.begun.start_ts

    @property
    def is_past(self) -> bool:
        return self.begun.read_at != 0

    def shared(self, conn: Connection) -> HeldStart:
        """Hold the start timestamp by a lease that loads share. Writes never share a lease, because it would hold W
        back for a whole term after they end."""
        if self.keeper in (Keeper.GIVEN, Keeper.NOTHING):
            return self
        leased_ts = conn.share_lease(self.start_ts, self.term_s)
        conn.end(self.begun)
        # A lease that is both own and shared must lapse: a new TSO would take the end of the own lease for the end of
        # both.
        if self.keeper is Keeper.OWN and leased_ts != self.start_ts:
            conn.leases.end_of(self.start_ts)
        return replace(self, keeper=Keeper.SHARED)

    def owned(self, conn: Connection) -> HeldStart:
        """Hold the start timestamp by its own lease until `end`, for work in other processes. If the lease is refused
        or the call is interrupted, nothing holds the start timestamp."""
        if self.keeper in (Keeper.OWN, Keeper.NOTHING):
            return self
        try:
            lease = conn.leases.grant_lasting(self.begun.start_ts, self.term_s)
            conn.end(self.begun)
            conn.leases.keep(lease)
        except BaseException:
            self.begun.end()
            raise
        return replace(self, keeper=Keeper.OWN)

    def renew(self, conn: Connection, *, at_once: bool = False) -> None:
        """Renew the lease during work under the start timestamp; `at_once`: even if this process renewed it a moment
        ago. Raises `SnapshotTooOld` if the lease has lapsed or was ended."""
        if self.keeper is Keeper.SHARED:
            conn.share_lease(self.start_ts, self.term_s)
        elif self.keeper is Keeper.OWN:
            conn.renew(self.start_ts, at_once=at_once)
        elif self.keeper is Keeper.GIVEN:
            try:
                conn.renew(self.start_ts, at_once=at_once)
            except SnapshotTooOld as gone:
                raise SnapshotTooOld(
                    f"nothing holds snapshot {dated(self.start_ts)} any more: the snapshot's transaction has ended, or "
                    "could not renew its lease. Use a transaction's frames before the transaction ends; afterwards, "
                    "load the table again",
                    **gone.values,
                ) from gone

    def end(self, conn: Connection) -> None:
        """End this process's hold on the start timestamp, and the own lease of the start timestamp, if it has one."""
        conn.end(self.begun)
        if self.keeper is Keeper.OWN:
            conn.leases.end_of(self.start_ts)


UNHELD: Final = HeldStart(BeginReply(0), Keeper.NOTHING)
"""Held start of a read whose caller keeps the snapshot readable."""
