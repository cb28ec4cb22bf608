"""A transaction: one snapshot, its own writes, one commit.

    with db.begin() as tx:                # commits at the end, rolls back on an exception
        tx.table("accounts").put(b"alice", {b"f:balance": b"100"})

A transaction belongs to the thread and the process that began it: using it elsewhere raises `Misuse`. The blocking, the
asyncio and the Spark transaction share `TransactionBase`, which has these states:

    ACTIVE ──commit──▶ COMMITTING ──committed──▶ COMMITTED
      │ │                   ├───────refused────▶ ROLLED_BACK
      │ │                   ├───────failed─────▶ ROLLBACK_ONLY    nothing was sent, or it had no effect
      │ │                   └───────lost───────▶ UNKNOWN          the commit may have happened
      │ └──mark──▶ ROLLBACK_ONLY ──roll back──┐
      └──roll back────────────────────────────┴▶ ROLLED_BACK

An event without a transition from the current state raises and changes nothing. A rollback-only transaction can still
read; writes and commit raise.

A program holds a handle, `Transaction` or `AsyncTransaction`. The handle's `_core` is the transaction itself, a
`TransactionCore`, whose routines both front ends run. Tables and databases are divided in the same way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeVar, overload
from weakref import ref

from pyomid import system
from pyomid.coroutines import NOTHING, Blocking, Routine
from pyomid.database.index_tables import raise_if_index_dropped
from pyomid.database.lease_keeper import Lease
from pyomid.database.open_database import requested_moment
from pyomid.database.retry import RERUN
from pyomid.database.tables.scans import RowScan
from pyomid.database.tables.table import Table, TableCore
from pyomid.database.tables.typed import RowT, TypedCore, TypedTable
from pyomid.database.validation import Handle, TableRules, check_list, check_was_there
from pyomid.database.writes.open_reads import OpenRead, remember, remembered
from pyomid.database.writes.outbox import Outbox
from pyomid.database.writes.overlay import Overlay
from pyomid.database.writes.packed_outbox import PackedOutbox
from pyomid.database.writes.savepoints import SavedWrites
from pyomid.database.writes.store_view import StoreView
from pyomid.errors import ConflictError, Misuse, OmidError, OutcomeUnknown, TransactionEnded
from pyomid.observe import Kind
from pyomid.protocol.commit import WriteSet, abort_error, request_commit
from pyomid.rows.row_key import KeyLayout, error_key, key_layout, shown_key
from pyomid.rows.rows import stored_key
from pyomid.types import AbortReason, BeginReply, CellVersion, CommitReply, CommitRequest, KeyRange, TableInfo

if TYPE_CHECKING:
    from datetime import datetime

    from pyomid.database.open_database import OpenDatabase
    from pyomid.ports import AsyncTso, Tso


logger = logging.getLogger(__name__)


class State(StrEnum):
    ACTIVE = "active"
    ROLLBACK_ONLY = "rollback-only"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "of unknown outcome"


class Event(StrEnum):
    MARK = "mark rollback-only"
    COMMIT = "commit"
    COMMITTED = "be acknowledged"
    REFUSED = "be refused"
    FAILED = "fail before the commit"
    LOST = "lose its answer"
    ROLL_BACK = "roll back"
    WRITE = "write"
    READ = "read"


TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.ACTIVE, Event.READ): State.ACTIVE,
    (State.ACTIVE, Event.WRITE): State.ACTIVE,
    (State.ACTIVE, Event.MARK): State.ROLLBACK_ONLY,
    (State.ACTIVE, Event.COMMIT): State.COMMITTING,
    (State.ACTIVE, Event.ROLL_BACK): State.ROLLED_BACK,
    (State.ROLLBACK_ONLY, Event.READ): State.ROLLBACK_ONLY,
    (State.ROLLBACK_ONLY, Event.MARK): State.ROLLBACK_ONLY,
    (State.ROLLBACK_ONLY, Event.ROLL_BACK): State.ROLLED_BACK,
    (State.COMMITTING, Event.COMMITTED): State.COMMITTED,
    (State.COMMITTING, Event.REFUSED): State.ROLLED_BACK,
    (State.COMMITTING, Event.FAILED): State.ROLLBACK_ONLY,
    (State.COMMITTING, Event.LOST): State.UNKNOWN,
}

ENDED: Final = frozenset({State.COMMITTED, State.ROLLED_BACK, State.UNKNOWN})

NEED_LEASE: Final = frozenset({Event.READ, Event.WRITE, Event.COMMIT})


def no_transition(state: State, event: Event, *, start_ts: int, reason: str = "") -> TransactionEnded:
    """Return the error for an event without a transition from this state, with the reason if known."""
    because = f" ({reason})" if reason else ""
    way_out = "; a scan is lazy: make a list of it before the transaction ends" if event is Event.READ else ""
    return TransactionEnded(
        f"transaction {start_ts} is {state.value}{because}: it cannot {event.value}{way_out}",
        start_ts=start_ts,
        state=state.value,
    )


class Writes(Protocol):
    """The writes of a transaction, for its commit or rollback: an outbox (`writes.outbox`), or the writes of Spark's
    tasks."""

    @property
    def start_ts(self) -> int: ...

    @property
    def is_torn(self) -> bool:
        """Whether the writes sent to the store may be stored only in part."""

    @property
    def wrote(self) -> bool:
        """Whether there are writes or claims, on which the commit must be decided."""

    def settle(self) -> Awaitable[None]:
        """Make all writes durable (law 1) and delete versions that a rollback to a savepoint took back (law 11). If the
        commit request carries all writes, write nothing."""

    def commit_request(self) -> CommitRequest: ...

    def write_set(self) -> WriteSet:
        """Return the cells that are evidence of the commit if its reply is lost. Empty if the request carries them:
        then the commit table is the evidence."""

    def shown_writes(self) -> WriteSet:
        """Return some of the written cells, for messages."""


T = TypeVar("T")
W = TypeVar("W", bound=Writes)


class TransactionBase(Handle, Generic[W]):
    """The states of a transaction, its commit and its rollback. It belongs to the thread and process that began it."""

    def __init__(
        self,
        writes: W,
        begun: BeginReply,
        *,
        lease: Lease | None = None,
        end_lease: Callable[[Lease], None] | None = None,
    ) -> None:
        self.writes: Final = writes
        self.start_ts: Final = writes.start_ts
        self._lease = lease
        self._end_lease = end_lease
        self._begun = begun
        """The begin's reply, which holds the low watermark back until the transaction ends or is garbage (T16)."""
        self._state = State.ACTIVE
        self._why_rollback_only = ""
        self._commit_ts: int | None = None
        self._thread = threading.get_ident()
        self._made_in = system.here
        self._scans: set[ref[RowScan]] = set()
        """Scans that returned rows. Only their iterators keep them alive."""

    @property
    def commit_ts(self) -> int | None:
        return self._commit_ts

    @property
    def state(self) -> State:
        return self._state

    def mark_rollback_only(self, reason: str) -> None:
        self.make_rollback_only(Event.MARK, reason)

    @property
    def shown(self) -> str:
        """The text that stands for the transaction in the `repr` of a handle."""
        return f"transaction {self.start_ts} ({self._state.value})"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.start_ts} {self._state.value}>"

    # The end, for every front end

    def committing(self) -> Routine[None]:
        return self.alone(self._commit())

    async def rolling_back(self) -> None:
        self.check_owner()
        if self._state in ENDED:
            return
        self.step(Event.ROLL_BACK)
        await self._rolled_back()

    async def run_block(self, inside: Routine[T]) -> T:
        """Run the routine `inside`, commit, and return the routine's result. If the routine raises an error, roll
        back."""
        try:
            self.step(Event.READ)
        except BaseException:
            inside.close()
            raise
        try:
            result = await inside
        except GeneratorExit:
            raise
        except BaseException as error:
            await self.exit_block(type(error))
            raise
        await self.exit_block(None)
        return result

    async def exit_block(self, error: type[BaseException] | None) -> None:
        """Commit at the end of a block, or roll back if the block ended with `error`."""
        if self._state in ENDED:
            return
        if error is not None:
            if self.can_roll_back:
                await self.rolling_back()
            return
        try:
            await self.committing()
        except GeneratorExit:  # the driver no longer performs effects
            raise
        except BaseException:
            if self._state is State.ROLLBACK_ONLY:
                await self.rolling_back()
            raise

    @property
    def has_ended(self) -> bool:
        return self._state in ENDED

    @property
    def is_leased(self) -> bool:
        return self._lease is not None

    def step(self, event: Event) -> None:
        """Move to the state after `event`. Raise an error if the thread, process, lease or state does not allow the
        event."""
        if threading.get_ident() != self._thread or system.here is not self._made_in:
            self.check_owner()
        if self._lease is not None and self._lease.lost is not None and event in NEED_LEASE:
            self._why_rollback_only = self._why_rollback_only or str(self._lease.lost)
            self._state = State.ROLLBACK_ONLY if self._state is State.ACTIVE else self._state
            raise self._lease.lost
        after = TRANSITIONS.get((self._state, event))
        if after is None:
            raise no_transition(self._state, event, start_ts=self.start_ts, reason=self._why_rollback_only)
        self._state = after
        if after in ENDED:
            if self._begun.hold is not None:
                self._begun.hold.end()
            if self._scans:
                self.end_scans()
            if self._lease is not None:
                lease, self._lease = self._lease, None
                self._give_back(lease)

    def end_scans(self) -> None:
        """End all open scans, which then return no more rows."""
        for scan in remembered(self._scans):
            scan.cut()

    def _give_back(self, lease: Lease) -> None:
        """End the lease. The transaction's outcome is already known, so an error here must not look like an error of
        the commit."""
        if self._end_lease is None:
            return
        try:
            self._end_lease(lease)
        except Exception as error:
            logger.warning(
                "could not end the lease of transaction %d; the lease will expire by itself: %s", lease.start_ts, error
            )

    def make_rollback_only(self, event: Event, reason: str) -> None:
        """Perform the `step` for `event`, which makes the transaction rollback-only. If several such events occur,
        messages show the reason of the first event."""
        self.step(event)
        self._why_rollback_only = self._why_rollback_only or reason

    def info_of(self, table: str) -> TableInfo | None:
        """Return the catalog entry of a table that the transaction used, or None if the transaction does not know the
        entry."""
        return None

    def alone(self, routine: Routine[T]) -> Routine[T]:
        """Return the routine, guarded against concurrent calls of the same transaction."""
        return routine

    def claimed_rows(self) -> Mapping[str, Sequence[bytes]]:
        """Return some of the claimed rows of each table."""
        return {}

    def _committed(self, commit_ts: int, written: WriteSet) -> Awaitable[None]:
        """Do the work that is due after a commit, such as shadow cells for `written`. Its errors are not errors of the
        commit."""
        return NOTHING

    async def _rolled_back(self) -> None:
        """Delete the writes. Compaction deletes the writes that this leaves."""

    async def _commit(self) -> None:
        """Commit. If an error is thrown in at any await, the state is correct afterwards: rollback-only before the
        request, unknown between request and reply.
        """
        if self.writes.is_torn and self._state is State.ACTIVE:
            self.make_rollback_only(Event.MARK, "a flush of its writes or a rollback to a savepoint did not finish")
        asked = False
        try:
            self.step(Event.COMMIT)
            await self.writes.settle()
            if not self.writes.wrote:
                self.step(Event.COMMITTED)
                return
            request, written = self.writes.commit_request(), self.writes.write_set()
            asked = True
            reply = await request_commit(request, written)
            self._commit_ts = reply.commit_ts or None
            self.step(Event.COMMITTED if reply.commit_ts else Event.REFUSED)
        except BaseException as error:
            try:
                if self._state is State.COMMITTING:
                    self._fail(error, asked=asked)
            finally:
                if self._state is State.COMMITTING:  # `_fail` raised too: at the recursion limit, every call does
                    self._state = State.UNKNOWN if asked else State.ROLLBACK_ONLY
            raise_if_index_dropped(error)
            raise
        if not reply.commit_ts:
            await self._rolled_back()
            raise refusal(reply, self.writes.shown_writes(), self.info_of, self.claimed_rows())
        await self._committed(reply.commit_ts, written)

    def _fail(self, error: BaseException, *, asked: bool) -> None:
        if not asked:
            self.make_rollback_only(Event.FAILED, f"not all of its writes reached the store: {error}")
        elif isinstance(error, OmidError) and not isinstance(error, OutcomeUnknown):
            self.make_rollback_only(Event.FAILED, f"its commit request had no effect: {error}")
        else:
            self.step(Event.LOST)

    def check_owner(self) -> None:
        if system.here is not self._made_in:
            raise Misuse(
                f"transaction {self.start_ts} began in process {self._made_in.pid} and is used in its forked child "
                f"{system.here.pid}: connect and begin again in the child",
                start_ts=self.start_ts,
            )
        if threading.get_ident() != self._thread:
            raise Misuse(
                f"transaction {self.start_ts} belongs to the thread that began it and is used in thread "
                f"{threading.current_thread().name!r}: begin a transaction in each thread",
                start_ts=self.start_ts,
            )

    def check_open(self) -> None:
        """Raise an error if the transaction may no longer read. Any thread may call this method."""
        if self._state is State.ACTIVE and self._lease is None:
            return
        if self._lease is not None and self._lease.lost is not None:
            raise self._lease.lost
        if self._state not in (State.ACTIVE, State.ROLLBACK_ONLY):
            raise no_transition(self._state, Event.READ, start_ts=self.start_ts)

    @property
    def can_write(self) -> bool:
        """Whether the caller owns the transaction and the transaction is active."""
        return self.can_roll_back and self._state is State.ACTIVE

    @property
    def can_roll_back(self) -> bool:
        """Whether the caller owns the transaction, and the transaction has neither ended nor begun to commit. The exit
        of a block rolls the transaction back only if this is true."""
        is_owner = system.here is self._made_in and threading.get_ident() == self._thread
        return is_owner and self._state in (State.ACTIVE, State.ROLLBACK_ONLY)


def refusal(
    reply: CommitReply,
    written: WriteSet | None = None,
    info_of: Callable[[str], TableInfo | None] = lambda _: None,
    claimed: Mapping[str, Sequence[bytes]] | None = None,
) -> ConflictError:
    """Return the error for an aborted commit. It names the commit that caused the conflict, if known, and some rows
    that the transaction wrote and claimed: the TSO compares ids and cannot name the row."""
    found: dict[str, Mapping[str, Sequence[bytes]]] = {}
    if written and reply.reason in _OF_WRITES:
        found["wrote"] = {table: _first_rows(cells) for table, cells in islice(written.items(), TABLES_SHOWN_MAX)}
    if claimed and reply.reason in _OF_WRITES:
        found["claimed"] = claimed
    values: dict[str, object] = {}
    by = ""
    infos = {table: info_of(table) for rows in found.values() for table in rows}
    layouts = {
        table: None if info is None or info.schema is None else key_layout(info.schema) for table, info in infos.items()
    }
    for did, rows in found.items():
        values[did] = {
            table: tuple(error_key(key, layouts[table]) for key in keys[:ROWS_SHOWN_MAX])
            for table, keys in rows.items()
        }
        by += f"; it {did} " + ", ".join(_listed(table, keys, layouts[table]) for table, keys in rows.items())
    return abort_error(reply, by + RERUN, lost=_lost(infos.values()), **values)


def _lost(infos: Iterable[TableInfo | None]) -> str:
    """Return what the transactions may conflict on, as text: a row, a cell, or either if the level is not known."""
    levels = {None if info is None else info.conflict_level for info in infos}
    return f"a {level.value}" if len(levels) == 1 and (level := levels.pop()) is not None else "a row or cell"


def _first_rows(cells: Sequence[CellVersion]) -> tuple[bytes, ...]:
    """Return keys of some of these cells, one more than the message shows."""
    keys = dict.fromkeys(cell.row for cell in islice(cells, CELLS_SEARCHED_MAX))
    return tuple(islice(keys, ROWS_SHOWN_MAX + 1))


def _listed(table: str, keys: Sequence[bytes], layout: KeyLayout | None) -> str:
    several = layout is not None and len(layout.parts) > 1
    texts = [shown_key(key, layout) for key in keys[:ROWS_SHOWN_MAX]]
    more = ["…"] if len(keys) > ROWS_SHOWN_MAX else []
    return f"{table} ({('; ' if several else ', ').join([*texts, *more])})"


ROWS_SHOWN_MAX: Final = 5
TABLES_SHOWN_MAX: Final = 5
CELLS_SEARCHED_MAX: Final = 1_000
"""Maximum number of cells of one table that are searched for rows to show. One row may have all of these cells."""

_OF_WRITES: Final = frozenset({AbortReason.CONFLICT, AbortReason.FENCE, AbortReason.TABLE})


class TransactionCore(TransactionBase[Outbox]):
    """A transaction on rows, for the blocking and the asyncio front end: a `view` of the store, its own writes over
    that view (`overlay`), and the outbox that sends these writes (`writes`)."""

    def __init__(
        self,
        database: OpenDatabase,
        begun: BeginReply,
        lease: Lease | None = None,
        *,
        read_only: bool = False,
        end_lease: Callable[[Lease], None] | None = None,
        tso: Tso | AsyncTso | None = None,
    ) -> None:
        """`end_lease` and `tso` replace the database's own function and session."""
        tso = tso or database.deployment.tso
        version = 0 if database.packs_commits or begun.read_at else begun.start_ts
        self.view: Final = StoreView(begun, database.commit_cache, version=version, settled=database.settled_reads)
        self.overlay: Final = Overlay(self.view)
        outbox = PackedOutbox if database.packs_commits else Outbox
        writes = outbox(
            self.overlay,
            flush_bytes=database.settings.flush_bytes,
            pipelined=database.pipelined_writes,
            ids_max=tso.write_set_ids_max,
            packed_bytes_max=database.deployment.tso.packed_bytes_max,
            dates_commits=partial(database.dates_commits, begun.start_ts, time.time_ns()),
        )
        super().__init__(writes, begun, lease=lease, end_lease=end_lease or database.leases.end)
        self.database: Final = database
        self.read_only: Final = read_only or bool(begun.read_at)
        self._rules: dict[str, TableRules] = {}
        """The rules of the tables that the transaction used. A `TableCore` here would keep the transaction in a
        reference cycle until the next garbage collection."""

    @property
    def moment(self) -> datetime | None:
        return requested_moment(self._begun)

    async def table(self, name: str) -> TableCore:
        self.step(Event.READ)
        rules = self._rules.get(name) if isinstance(name, str) else None
        if rules is None:
            is_leased = self._lease is not None
            rules = None if is_leased else self.database.known_rules(name, self._begun)
            if rules is None:
                rules = await Blocking(partial(self.database.table_rules, name, self._begun, leased=is_leased))
            if self._begun.read_at:
                check_was_there(rules.info, self._begun.read_at)
            if rules.info.generation >= self.start_ts:  # before a column of the former table is reported as missing
                await self.view.check_life(rules.info)
            if rules.info.ttl_seconds is not None:
                self.view.note_expiring(rules.info)
            self._rules[name] = rules
        return TableCore(self, rules)

    async def claim(self, name: str, keys: Iterable[Any], columns: Iterable[bytes] | None) -> None:
        table = await self.table(name)
        stored = [stored_key(table.info, key) for key in check_list("keys", keys, "row keys")]
        await self.alone(table.claim(stored, columns))

    def info_of(self, table: str) -> TableInfo | None:
        rules = self._rules.get(table)
        return None if rules is None else rules.info

    def committing(self) -> Routine[None]:
        return self.alone(self.observed(Kind.COMMIT, "", self._commit()))

    def rolling_back(self) -> Routine[None]:
        routine = super().rolling_back()
        return routine if self.has_ended else self.observed(Kind.ROLLBACK, "", routine)

    def flush(self) -> Routine[None]:
        return self.alone(self.flush_within())

    def observed(self, kind: Kind, table: str, routine: Routine[T]) -> Routine[T]:
        """Return the same routine; its end is reported to the database's observers."""
        reports = self.database.reports
        return routine if reports is None else reports.whole(kind, self, table, routine)

    def check_read(self) -> None:
        """Raise an error if the state does not allow a read."""
        self.step(Event.READ)

    def check_write(self) -> None:
        """Raise an error if the state does not allow a write, or if the transaction is read-only."""
        self.step(Event.WRITE)
        if self.read_only:
            raise Misuse(
                f"transaction {self.start_ts} is read-only; write in a transaction that db.begin() or db.run begins",
                start_ts=self.start_ts,
            )

    def note_scan(self, scan: RowScan) -> None:
        remember(scan, self._scans)

    def claimed_rows(self) -> Mapping[str, Sequence[bytes]]:
        return self.writes.claimed_rows(TABLES_SHOWN_MAX, ROWS_SHOWN_MAX + 1)

    begin_write = check_write
    """Called before a write is buffered outside `alone`."""

    def send(self) -> Routine[None]:
        """Send the buffered writes. The call raises the errors of a flush, including errors of earlier writes in
        flight."""
        return self.leaving(self.writes.send())

    def begin_read(self) -> Awaitable[None]:
        """Wait for writes in flight, which a read must find in the store. The call raises the errors of a flush."""
        self.check_read()
        return self.leaving(self.writes.end()) if self.writes.is_writing else NOTHING

    def open_read(self, table: str, key_range: KeyRange) -> OpenRead:
        """Return an open read, which sees the transaction's writes as they are now (C15). The reader must keep a
        reference to the open read."""
        return self.overlay.open_read(table, key_range, self.writes.rows_in_flight(table))

    def save(self) -> SavedWrites:
        return self.overlay.save(self.writes.ids.written)

    async def flush_within(self) -> None:
        """Do the work of `flush` within another call."""
        self.step(Event.WRITE)
        await self.leaving(self.writes.flush())

    async def leaving(self, routine: Routine[None]) -> None:
        """Run a routine that sends writes. If it raises an error, some writes may be stored, so the transaction becomes
        rollback-only (C1)."""
        try:
            await routine
        except BaseException as error:
            self.make_rollback_only(Event.MARK, f"a flush of its writes failed: {str(error) or repr(error)}")
            raise

    def _committed(self, commit_ts: int, written: WriteSet) -> Awaitable[None]:
        if not self.view.version:
            return NOTHING  # the commit itself wrote everything, including the commit timestamps
        end = partial(self.database.end_committed, self.view.version, commit_ts, written)
        return NOTHING if end(at_once=True) else self._afterwards(partial(end, at_once=False))

    async def _rolled_back(self) -> None:
        await self._afterwards(partial(self.database.end_rolled_back, self.writes))

    async def _afterwards(self, end: Callable[[], object]) -> None:
        """Run `end` after the outcome is known: an error here, such as a system out of threads, must not look like a
        failed commit."""
        try:
            await Blocking(end)
        except Exception as error:
            self.database.background.failed(error)


# After a savepoint, the transaction records the values that its writes replace (`savepoints`). Before it sends the
# writes, it reads the former values of cells that were not buffered. A rollback writes the former values again, under
# the same version. If the transaction had not written a cell before the savepoint, the commit first deletes the cell's
# version: a version with the snapshot's value would hide other transactions' writes (C14).


class Savepoint(Handle):
    """A savepoint, returned by `Transaction.savepoint`. It is a context manager for both `with` and `async with`. A
    savepoint's methods never block."""

    def __init__(self, transaction: TransactionCore, saved: SavedWrites) -> None:
        self._transaction = transaction
        self._saved = saved

    def rollback(self) -> None:
        """Restore the transaction's writes as they were at the savepoint. The call ends all later savepoints, and may
        be repeated."""
        self._transaction.begin_write()
        self._transaction.writes.go_back(self._saved)

    def release(self) -> None:
        """End this savepoint and all later savepoints, and keep the writes. A second release does nothing."""
        self._transaction.check_owner()
        self._transaction.overlay.release(self._saved)

    def __repr__(self) -> str:
        return f"<Savepoint of {self._transaction.shown}>"

    def __enter__(self) -> Savepoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._transaction.can_write and self._transaction.overlay.keeps(self._saved):
            self.rollback()
        self.release()

    async def __aenter__(self) -> Savepoint:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.__exit__(kind)


class TransactionHandle(Handle):
    """The common base class of blocking and asyncio transactions."""

    _core: TransactionCore

    @property
    def start_ts(self) -> int:
        """The start timestamp: the transaction sees everything committed before it."""
        return self._core.start_ts

    @property
    def commit_ts(self) -> int | None:
        """The commit timestamp; None before the commit, and for a transaction that neither wrote nor claimed."""
        return self._core.commit_ts

    @property
    def state(self) -> State:
        """The current state: active, rollback-only, committing, committed, rolled back, or of unknown outcome."""
        return self._core.state

    @property
    def read_only(self) -> bool:
        """Whether the transaction is read-only: writes and claims then raise `Misuse`."""
        return self._core.read_only

    @property
    def moment(self) -> datetime | None:
        """The exact end of a snapshot that was requested by a wall-clock time; None for any other transaction. The
        snapshot contains exactly the commits that were acknowledged at or before this moment. By the TSO's clock, the
        moment is the requested time or later. If the requested time is in the future, the moment is the current
        time."""
        return self._core.moment

    def mark_rollback_only(self, reason: str = "marked by the program") -> None:
        """Make the transaction rollback-only: it can still read, but it can neither write nor commit."""
        self._core.mark_rollback_only(reason)

    def savepoint(self) -> Savepoint:
        """Return a savepoint, which can later restore the transaction's writes as they are now.

            with tx.savepoint():              # on an exception, rolls back to the savepoint and re-raises
                accounts.put(...)

        A rollback to the savepoint undoes all writes made after the savepoint. The undone writes neither conflict with
        other transactions' writes nor hide them (C14). Claims made after the savepoint stay.
        """
        self._core.begin_write()
        return Savepoint(self._core, self._core.save())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.start_ts} {self.state.value}>"


class Transaction(TransactionHandle):
    """A transaction with one snapshot, its own writes and one commit, returned by `Database.begin`. As a context
    manager, a transaction commits at the end of the block, or rolls back on an exception."""

    def __init__(self, core: TransactionCore) -> None:
        self._core = core
        self._run = core.database.driver.run

    @overload
    def table(self, name: str, codec: None = None) -> Table: ...

    @overload
    def table(self, name: str, codec: Literal["json"]) -> TypedTable[dict[str, Any]]: ...

    @overload
    def table(self, name: str, codec: type[RowT]) -> TypedTable[RowT]: ...

    def table(self, name: str, codec: Any = None) -> Any:
        """Return a table as this transaction sees it. Raises `UnknownTable` if there is no such table.

        With a `codec`, rows are objects whose values have the types of the schema (`Database.set_schema`). The codec is
        a dataclass, a NamedTuple, a TypedDict, `dict` (Python values by column name), or "json" (JSON values by column
        name).
        """
        table = self._run(self._core.table(name))
        return Table(table, self._run) if codec is None else TypedTable(TypedCore(table, codec), self._run)

    def claim(self, table: str, keys: Iterable[Any], columns: Iterable[bytes] | None = None) -> None:
        """Claim rows, or columns of rows: the commit checks them as if they were written, but nothing is written.
        `keys` are stored row keys (bytes); if the table has a schema, they may also be values of the key columns.
        `columns` are stored column names; `TypedTable.claim` takes the schema's column names instead.

        If one of two overlapping transactions claims data that the other writes or claims, at most one of the two
        commits. So if a transaction commits, the data that it read and claimed is still current. Claims thus prevent
        write skew.

        At conflict level "row", a claim covers whole rows, whether the rows exist or not. At level "cell", it covers
        the named columns, whether the columns exist or not. If `columns` is None or names a family, a claim at level
        "cell" covers the columns that this transaction sees. Such a claim does not conflict with a transaction that
        adds a column, but it conflicts with another claim of the whole row.
        """
        return self._run(self._core.claim(table, keys, columns))

    def commit(self) -> None:
        """Commit. When the call returns, the writes are durable and visible to every transaction that begins later.

        Raises `ConflictError` if another transaction won the conflict; this transaction is then rolled back, so rerun
        it. Raises `TransactionEnded` if this transaction has already ended or is rollback-only. Raises `OutcomeUnknown`
        if this transaction may have committed but the client cannot find out. After any other `OmidError`, nothing was
        committed, and the transaction is rollback-only. If an interrupt leaves the outcome unknown, `state` becomes "of
        unknown outcome".
        """
        return self._run(self._core.committing())

    def rollback(self) -> None:
        """Roll back the transaction. The transaction's writes never become visible, and the client deletes them in the
        background. If the transaction has already ended, even by a commit, the call does nothing; `state` shows how the
        transaction ended.
        """
        return self._run(self._core.rolling_back())

    def flush(self) -> None:
        """Send the buffered writes to the store now instead of at the commit. After an error, the transaction is
        rollback-only, because some of the writes may be stored (C1).
        """
        return self._run(self._core.flush())

    def __enter__(self) -> Transaction:
        self._core.step(Event.READ)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._run(self._core.exit_block(kind))
