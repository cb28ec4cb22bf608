"""A process's session with a folder: the port `Tso` without a TSO (folder.md). Begins read the clock. Commits are
decided in LMDB's write transaction, by the process that has the turn (`decision`).

    begin    the open start is noted, in this process and in the shared file; then the clock is read
    W        the clock is read; then the open starts of all processes, and the leases; then W is raised to below all

In this order W never passes a snapshot of a process that has a place in the shared file. A transaction that begins
after the open starts were read finds a clock at or above the one from which W was computed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyomid.errors import Misuse, OmidError, SnapshotTooOld
from pyomid.folder import branches, folder_state, watermark
from pyomid.folder.branches import Branch
from pyomid.folder.environment import Environment, Transaction
from pyomid.folder.layout import BRANCHES, EPOCH
from pyomid.ports import Clock, Tso, boot_clock
from pyomid.protocol.commit import abort_error
from pyomid.protocol.timestamps import AHEAD_MS, NS_PER_MS, NS_PER_S, REFUSED_MS
from pyomid.system import here, process_text
from pyomid.types import (
    UNCHECKED,
    AbortReason,
    BeginReply,
    CommitReply,
    CommitRequest,
    SealOutcome,
    Status,
)

PACKED_BYTES_MAX: Final = 256 << 10
"""The most bytes of cells in a commit request. More would delay all other commits."""
_LATE_NS: Final = 100_000_000
"""How far the clock may be behind the wall clock if values expire. A begin that moves the clock is a write."""


@dataclass(frozen=True, slots=True)
class FolderOptions:
    """The options of a database that concern W and leases."""

    max_transaction_age_s: float = 3600.0
    lease_s: float = 300.0


class FolderSession(Tso):
    """A session with one folder. Thread-safe; a forked child must open its own (C5)."""

    extended = True
    write_set_ids_max = 0
    packed_bytes_max = PACKED_BYTES_MAX

    def __init__(self, environment: Environment, options: FolderOptions, *, clock: Clock = boot_clock) -> None:
        """`clock` is used for leases only; timestamps follow the system's wall clock."""
        self._environment = environment
        self._clock = clock
        self.options = options
        self._closed = False
        self.unchecked: Callable[[], int] = lambda: 0
        """Returns how many records upkeep has not checked, for `status`."""

    def _state(self) -> folder_state.State:
        return self._environment.read(folder_state.read_state, self._environment.databases[EPOCH])

    def _write(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return self._environment.write(lambda transaction: work(transaction, *arguments))

    # Begin

    def begin(self, *, not_before: int = 0) -> BeginReply:
        """Return a snapshot of everything committed so far. Several snapshots may have the same start."""
        if self._closed:
            raise closed_session()
        starts = self._environment.starts
        held = starts.begin()
        try:
            state = self._state()
            if state.may_expire and self._environment.wall.now_ns(state.clock) > state.clock + _LATE_NS:
                self._draw()
                state = self._state()
            snapshot = state.snapshot
            if not_before > snapshot:
                raise Misuse(
                    f"not_before {not_before} is above every timestamp issued so far (the newest is {snapshot})",
                    not_before=not_before,
                )
            starts.begun(held, snapshot)
            return BeginReply(snapshot, fenced_ts=state.changed, hold=held)
        except BaseException:
            held.end()
            raise

    def reach(self, timestamp: int) -> bool:
        if not self._state().snapshot < timestamp <= time.time_ns():
            return False
        return self._draw() and self._state().snapshot >= timestamp

    def _draw(self) -> bool:
        """Move the clock to the wall clock. Returns False, and does nothing, if another writer is writing, which moves
        the clock too, or if nothing can be written."""
        try:
            self._environment.write_at_once(lambda transaction: folder_state.draw(transaction, self._environment))
        except OmidError:
            return False
        return True

    def draw(self) -> int:
        if self._closed:
            raise closed_session()
        drawn: int = self._write(folder_state.draw, self._environment)
        return drawn

    def newest_ts(self) -> int:
        """Return the newest timestamp."""
        return self._state().clock

    def newest_commit(self) -> int:
        """Return the newest commit to any table, or 0."""
        return self._environment.read(folder_state.newest_commit_of_all, self._environment.databases[EPOCH])

    def begin_job(self, *, not_before: int = 0) -> BeginReply:
        """Draw a start that is also a branch. It is held open like any other start, by a begin that precedes it."""
        begun = self.begin(not_before=not_before)
        try:
            start_ts = self._write(self._draw_job)
        except BaseException:
            begun.end()
            raise
        return replace(begun, start_ts=start_ts)

    def _draw_job(self, transaction: Transaction) -> int:
        databases = self._environment.databases
        start_ts = folder_state.draw(transaction, self._environment)
        branches.put_branch(transaction, databases[BRANCHES], start_ts, Branch(start_ts, start_ts))
        return start_ts

    def branch(self, start_ts: int) -> int:
        version: int = self._write(self._draw_branch, start_ts, start_ts)
        return version

    def version_of(self, start_ts: int) -> int:
        version: int = self._write(self._draw_branch, start_ts, 0)
        return version

    def _draw_branch(self, transaction: Transaction, snapshot: int, job: int) -> int:
        databases = self._environment.databases
        version = folder_state.draw(transaction, self._environment)
        branches.put_branch(transaction, databases[BRANCHES], version, Branch(snapshot, job or version))
        return version

    def report_open_starts(self) -> None:
        self._environment.starts.tidy()

    # Commit

    def commit(self, request: CommitRequest) -> CommitReply:
        watermark.look_if_due(self._environment, self.options.max_transaction_age_s)
        return self._environment.request(request.packed)  # type: ignore[no-any-return]

    def fence(self, table_id: int) -> int:
        fence: int = self._write(folder_state.put_fence, self._environment, table_id)
        return fence

    def report_ids(self, start_ts: int, table_id: int, branch: int, part: int, ids: bytes) -> None:
        """Report nothing, because a branch's rows are compared as they are written. Raises `ConflictError` if one of
        them conflicts with a commit."""
        found = self._environment.read(branches.branch_of, self._environment.databases[BRANCHES], branch)
        if found is not None and found.conflict:
            raise abort_error(CommitReply(start_ts, 0, AbortReason.CONFLICT, found.conflict))

    def seal(self, starts: Sequence[int]) -> list[SealOutcome]:
        if not starts:
            return []
        outcomes: list[SealOutcome] = self._write(branches.seal, self._environment.databases[BRANCHES], tuple(starts))
        return outcomes

    # Leases

    def grant_lease(self, start_ts: int, term_s: float | None = None) -> float:
        return self._leased(start_ts, term_s, owners=1)

    def share_lease(self, start_ts: int, term_s: float | None = None) -> tuple[int, float]:
        return start_ts, self._leased(start_ts, term_s, is_shared=True)

    def renew_lease(self, start_ts: int) -> float:
        return self._leased(start_ts, None, is_renewed=True)

    def end_lease(self, start_ts: int, *, shared: bool = False) -> None:
        def end(transaction: Transaction) -> None:
            database, now_ms = self._environment.databases[EPOCH], self._now_ms()
            lease = folder_state.lease_of(transaction, database, start_ts, now_ms)
            lease = lease._replace(owners=max(0, lease.owners - 1))
            if shared:
                lease = lease._replace(owners=0, shared_until_ms=0, shared_term_ms=0)
            folder_state.put_lease(transaction, database, start_ts, lease, now_ms)

        self._environment.write(end)

    def _leased(
        self,
        start_ts: int,
        term_s: float | None,
        *,
        owners: int = 0,
        is_shared: bool = False,
        is_renewed: bool = False,
    ) -> float:
        term = term_s or self.options.lease_s

        def grant(transaction: Transaction, owners: int = owners) -> None:
            database, now_ms = self._environment.databases[EPOCH], self._now_ms()
            state = folder_state.read_state(transaction, database)
            lease = folder_state.lease_of(transaction, database, start_ts, now_ms)
            is_owned = lease.owners > 0 and lease.lives_at(now_ms)  # the end of its owner ends the work that renews it
            if start_ts <= state.watermark or (is_renewed and not is_owned):
                raise SnapshotTooOld(
                    f"start {start_ts} cannot be leased, because it is not above the low watermark {state.watermark} "
                    "or its lease has ended",
                    start_ts=start_ts,
                    watermark=state.watermark,
                )
            term_ms = int(term * 1000)
            until_ms = now_ms + term_ms
            if is_shared:
                until_ms = max(lease.shared_until_ms, until_ms)
                lease = lease._replace(shared_until_ms=until_ms, shared_term_ms=max(lease.shared_term_ms, term_ms))
            else:
                until_ms = max(lease.owned_until_ms, until_ms)
                term_ms = max(lease.owned_term_ms, term_ms)
                owners += lease.owners
                lease = lease._replace(owners=owners, owned_until_ms=until_ms, owned_term_ms=term_ms)
            folder_state.put_lease(transaction, database, start_ts, lease, now_ms)

        self._environment.write(grant)
        return term

    # W and H

    def raise_watermark(self) -> int:
        """Raise W to below every snapshot that is open or leased, and return W."""

        def raise_it(transaction: Transaction) -> int:
            database = self._environment.databases[EPOCH]
            state = folder_state.read_state(transaction, database)
            new = watermark.raised(transaction, self._environment, state, self._now_ms())
            if new != state:
                folder_state.put_state(transaction, database, new)
            return new.watermark

        bound, present = watermark.look(self._environment, self.options.max_transaction_age_s), self._state().watermark
        return self._environment.write(raise_it) if bound > present else present

    def keep_history(self, retention_s: float) -> None:
        """Keep W at least this far behind the clock from now on, for all processes."""
        database, retention_ms = self._environment.databases[EPOCH], int(retention_s * 1000)
        if self._environment.read(folder_state.read_number, database, folder_state.RETENTION) != retention_ms:
            self._write(folder_state.put_number, database, folder_state.RETENTION, retention_ms)

    def advance_horizon(self, horizon: int) -> int:
        """Raise H, forget the branches below it, and return their number."""
        databases = self._environment.databases

        def advance(transaction: Transaction) -> int:
            state = folder_state.read_state(transaction, databases[EPOCH])
            if horizon > state.horizon:
                folder_state.put_state(transaction, databases[EPOCH], state._replace(horizon=horizon))
            found, _ = branches.branches_from(transaction, databases[BRANCHES], 0, 2000)
            gone = [version for version, _ in found if version < max(horizon, state.horizon)]
            for version in gone:
                branches.forget(transaction, databases[BRANCHES], version)
            return len(gone)

        total = 0
        while gone := self._environment.write(advance):
            total += gone
        return total

    def status(self) -> Status:
        state = self._state()
        databases = self._environment.databases

        shared, starts = self._environment.shared, self._environment.starts
        starts.tidy()
        opened = starts.oldest() if shared is None else shared.open_starts()
        held_back_by = ""
        if opened:
            pid, _, since_ns = min(opened, key=lambda each: each[1])
            held_back_by = f"process {pid} ({process_text(pid)}) for {(starts.now_ns() - since_ns) / NS_PER_S:.1f} s"

        def leased(transaction: Transaction) -> tuple[int, ...]:
            now_ms = self._now_ms()
            found = folder_state.leases(transaction, databases[EPOCH], now_ms)
            return tuple(start for start, lease in found if lease.lives_at(now_ms))

        return Status(
            epoch=0,
            last_ts=state.clock,
            low_watermark=state.watermark,
            watermark=state.watermark,
            horizon=state.horizon,
            leases=self._environment.read(leased),
            held_back_by=held_back_by,
            processes=(here.pid,) if shared is None else tuple(shared.processes()),
            counters={
                UNCHECKED: self.unchecked(),
                "branches": self._environment.read(branches.count, databases[BRANCHES]),
                AHEAD_MS: max(0, state.clock - self._environment.wall.now_ns(state.clock)) // NS_PER_MS,
                REFUSED_MS: self._environment.wall.refused_ns // NS_PER_MS,
                "retention_ms": self._environment.read(
                    folder_state.read_number, databases[EPOCH], folder_state.RETENTION
                ),
            },
        )

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def close(self) -> None:
        self._closed = True


def closed_session() -> Misuse:
    return Misuse("the session with the folder is closed")
