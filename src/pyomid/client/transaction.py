"""A transaction: one snapshot, own writes, one commit.

    with db.begin() as tx:                # commits at the end, rolls back on an exception
        tx.table("accounts").put(b"alice", {b"f:balance": b"100"})

A transaction belongs to the thread that began it, in the process that began it: any use from elsewhere is refused.
The blocking, the asyncio and the Spark transaction share `TransactionBase`, with its states:

    ACTIVE ──commit──▶ COMMITTING ──committed──▶ COMMITTED
      │ │                   ├───────refused────▶ ROLLED_BACK
      │ │                   ├───────failed─────▶ ROLLBACK_ONLY    nothing was sent, or nothing took effect
      │ │                   └───────lost───────▶ UNKNOWN          the commit may have happened
      │ └──mark──▶ ROLLBACK_ONLY ──roll back──┐
      └──roll back────────────────────────────┴▶ ROLLED_BACK

An event that the present state does not know raises and changes nothing. A transaction that is rollback-only still
reads; writes and commit are refused.
"""

from __future__ import annotations

import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeVar, overload
from weakref import WeakSet

from pyomid import platforms
from pyomid.client.drive import Blocking
from pyomid.client.observers.observer import Kind
from pyomid.client.public_names import TRANSACTION, shows
from pyomid.client.savepoint import Savepoint
from pyomid.client.session.leases import Lease
from pyomid.client.tables.table import RowScan, Table, TableBase
from pyomid.client.tables.typed import RowT, TypedTable
from pyomid.client.transaction_steps import TransactionSteps
from pyomid.client.validation import TableRules, check_was_there
from pyomid.errors import ConflictError, Misuse, OmidError, OutcomeUnknown, SnapshotTooOld, TransactionEnded
from pyomid.protocol.commit import WriteSet, commit_steps
from pyomid.protocol.effects import Effect, Steps
from pyomid.types import AbortReason, BeginReply, CellVersion, CommitReply, CommitRequest
from pyomid.wire.open_starts import OpenStart

if TYPE_CHECKING:
    from pyomid.client.database import Database


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

_ACTIVE, _READ, _WRITE = State.ACTIVE, Event.READ, Event.WRITE
"""Not looked up in their classes, which a member of an enumeration takes long for."""

NEED_LEASE: Final = frozenset({Event.READ, Event.WRITE, Event.COMMIT})


@dataclass(frozen=True, slots=True)
class Decided:
    """The answer to a commit, and the cells whose shadow cells are to be written or that are to be deleted."""

    reply: CommitReply
    written: WriteSet


def next_state(state: State, event: Event, *, start_ts: int, reason: str = "") -> State:
    """The state after `event`. `TransactionEnded` if the table has no such line, with the reason if it is known."""
    after = TRANSITIONS.get((state, event))
    if after is None:
        because = f" ({reason})" if reason else ""
        raise TransactionEnded(
            f"transaction {start_ts} is {state.value}{because}: it cannot {event.value}",
            start_ts=start_ts,
            state=state.value,
        )
    return after


class Writes(Protocol):
    """What the end of a transaction needs of its writes: its own (`client.transaction_steps`), or those of Spark's
    tasks."""

    @property
    def start_ts(self) -> int: ...

    @property
    def is_torn(self) -> bool:
        """Some of the writes sent to the store may be there and some not."""

    @property
    def wrote(self) -> bool:
        """There is something to decide."""

    def flush_steps(self) -> Steps[None]:
        """All writes are durable on return (law 1)."""

    def commit_request(self) -> CommitRequest: ...

    def write_set(self) -> WriteSet:
        """Cells that are evidence of the commit, should its answer be lost."""


T = TypeVar("T")
W = TypeVar("W", bound=Writes)


class TransactionBase(Generic[W]):
    """A transaction's states and its end. It belongs to the thread and process that made it."""

    def __init__(
        self,
        writes: W,
        *,
        lease: Lease | None = None,
        end_lease: Callable[[Lease], None] | None = None,
        note_ended: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.writes: Final = writes
        """For pyomid's own use."""
        self._lease = lease
        self._end_lease = end_lease
        self._open_start = OpenStart(writes.start_ts, note_ended)
        """Holds the low watermark back, also if the transaction is forgotten and not ended (T16)."""
        self._state = State.ACTIVE
        self._why_rollback_only = ""
        self._commit_ts: int | None = None
        self._thread = threading.get_ident()
        self._pid, self._made_in = os.getpid(), platforms.here

    @property
    def start_ts(self) -> int:
        """The snapshot: the transaction sees everything that was committed before this timestamp."""
        return self.writes.start_ts

    @property
    def commit_ts(self) -> int | None:
        """When it committed; None until then, and for a transaction that neither wrote nor claimed."""
        return self._commit_ts

    @property
    def state(self) -> State:
        return self._state

    def mark_rollback_only(self, reason: str = "marked so by the program") -> None:
        """Refuses the commit from now on; the transaction can still read."""
        self.make_rollback_only(Event.MARK, reason)

    __dir__ = shows(TRANSACTION)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.start_ts} {self._state.value}>"

    # The end, as every front end drives it

    def commit_steps(self) -> Steps[None]:
        return self.alone(self._commit_steps())

    def rollback_steps(self) -> Steps[None]:
        self.check_owner()
        if self._state is State.ROLLED_BACK:
            return
        self.step(Event.ROLL_BACK)
        yield from self._rolled_back_steps()

    def block_steps(self, inside: Steps[T]) -> Steps[T]:
        """Runs `inside`, then commits, and returns its result. Rolls back if it raises."""
        self.step(Event.READ)
        try:
            result = yield from inside
        except GeneratorExit:
            raise
        except BaseException as error:
            yield from self.exit_steps(type(error))
            raise
        yield from self.exit_steps(None)
        return result

    def exit_steps(self, error: type[BaseException] | None) -> Steps[None]:
        """The end of a block that ended with `error`."""
        if self._state in ENDED:
            return
        if error is not None:
            if self.can_roll_back:
                yield from self.rollback_steps()
            return
        try:
            yield from self.commit_steps()
        except GeneratorExit:  # no driver performs its effects any more
            raise
        except BaseException:
            if self._state is State.ROLLBACK_ONLY:
                yield from self.rollback_steps()
            raise

    # For pyomid's own use

    @property
    def has_ended(self) -> bool:
        return self._state in ENDED

    @property
    def is_leased(self) -> bool:
        return self._lease is not None

    @property
    def is_plain(self) -> bool:
        """Active, without a lease, and used where it was begun: it may read and write."""
        return (
            self._state is _ACTIVE
            and self._lease is None
            and threading.get_ident() == self._thread
            and platforms.here is self._made_in
        )

    def step(self, event: Event) -> None:
        """Moves to the state after `event`. Refuses what thread, process, lease or state do not allow."""
        if (event is _READ or event is _WRITE) and self.is_plain:
            return  # Thousands of puts and rows take this path; what follows says the same.
        self.check_owner()
        if self._lease is not None and self._lease.lost is not None and event in NEED_LEASE:
            self._why_rollback_only = self._why_rollback_only or str(self._lease.lost)
            self._state = State.ROLLBACK_ONLY if self._state is State.ACTIVE else self._state
            raise self._lease.lost
        self._state = next_state(self._state, event, start_ts=self.start_ts, reason=self._why_rollback_only)
        if self._state in ENDED:
            self._open_start.end()
            self.end_scans()
            if self._lease is not None:
                lease, self._lease = self._lease, None
                self._give_back(lease)

    def end_scans(self) -> None:
        """Nothing that was read is shown any more."""

    def _give_back(self, lease: Lease) -> None:
        """Ends the lease. The end of the transaction was told already, so no error here may look like one of its
        commit."""
        if self._end_lease is None:
            return
        try:
            self._end_lease(lease)
        except Exception as error:
            logger.warning("lease on %d not ended, expires by its term: %s", lease.start_ts, error)

    def make_rollback_only(self, event: Event, reason: str) -> None:
        """`step` to rollback-only. The first reason is kept and told."""
        self.step(event)
        self._why_rollback_only = self._why_rollback_only or reason

    def shown_key(self, table: str, row: bytes) -> str:
        """A row key for the message of an error."""
        return repr(row)

    def alone(self, steps: Steps[T]) -> Steps[T]:
        """The same steps, during which no other call of this transaction may run."""
        return steps

    def claimed_rows(self) -> Mapping[str, Sequence[bytes]]:
        """Some rows that the commit named beside its writes, by table."""
        return {}

    def _committed_steps(self, decided: Decided) -> Steps[None]:
        """After the answer: its errors are not the commit's."""
        yield from ()

    def _rolled_back_steps(self) -> Steps[None]:
        """Deletes the writes. Compaction deletes what stays."""
        yield from ()

    def _commit_steps(self) -> Steps[None]:
        decided = yield from self._decided_steps()
        if decided is None:
            return
        if not decided.reply.committed:
            yield from self._rolled_back_steps()
            raise refusal(decided.reply, decided.written, self.shown_key, self.claimed_rows())
        yield from self._committed_steps(decided)

    def _decided_steps(self) -> Steps[Decided | None]:
        """None if nothing was written or claimed. Whatever is thrown into it at whatever yield, the state afterwards is
        true: rollback-only before the request, unknown from the request to the answer.
        """
        if self.writes.is_torn and self._state is State.ACTIVE:
            self.make_rollback_only(Event.MARK, "a flush of its writes, or the way back to a savepoint, did not end")
        asked = False
        try:
            self.step(Event.COMMIT)
            yield from self.writes.flush_steps()
            if not self.writes.wrote:
                self.step(Event.COMMITTED)
                return None
            request, written = self.writes.commit_request(), self.writes.write_set()
            asked = True
            reply = yield from commit_steps(request, written)
            self._decide(reply)
            return Decided(reply, written)
        except BaseException as error:
            if self._state is State.COMMITTING:
                self._fail(error, asked=asked)
            raise

    def _decide(self, reply: CommitReply) -> None:
        if reply.committed:
            self._commit_ts = reply.commit_ts
            self.step(Event.COMMITTED)
        else:
            self.step(Event.REFUSED)

    def _fail(self, error: BaseException, *, asked: bool) -> None:
        if not asked:
            self.make_rollback_only(Event.FAILED, f"its writes did not all reach the store: {error}")
        elif isinstance(error, OmidError) and not isinstance(error, OutcomeUnknown):
            self.make_rollback_only(Event.FAILED, f"its commit request took no effect: {error}")
        else:
            self.step(Event.LOST)

    def check_owner(self) -> None:
        if platforms.here is not self._made_in:
            raise Misuse(
                f"transaction {self.start_ts} was begun by process {self._pid} and is used in its forked child "
                f"{os.getpid()}: connect and begin again in the child",
                start_ts=self.start_ts,
            )
        if threading.get_ident() != self._thread:
            raise Misuse(
                f"transaction {self.start_ts} belongs to the thread that began it and is used in thread "
                f"{threading.current_thread().name!r}: begin one in each thread",
                start_ts=self.start_ts,
            )

    def check_open(self) -> None:
        """Refuses what goes on reading, in whatever thread, after the transaction ended."""
        if self._state is State.ACTIVE and self._lease is None:
            return
        if self._lease is not None and self._lease.lost is not None:
            raise self._lease.lost
        if self._state not in (State.ACTIVE, State.ROLLBACK_ONLY):
            next_state(self._state, Event.READ, start_ts=self.start_ts)

    @property
    def can_write(self) -> bool:
        """Called by its owner, and active."""
        return self.can_roll_back and self._state is State.ACTIVE

    @property
    def can_roll_back(self) -> bool:
        """Called by its owner, and neither ended nor ending. A block's exit rolls back only then."""
        is_owner = platforms.here is self._made_in and threading.get_ident() == self._thread
        return is_owner and self._state in (State.ACTIVE, State.ROLLBACK_ONLY)


def refusal(
    reply: CommitReply,
    written: WriteSet | None = None,
    shown_key: Callable[[str, bytes], str] | None = None,
    claimed: Mapping[str, Sequence[bytes]] | None = None,
) -> ConflictError:
    """The error for an aborted commit, with the commit that caused it where it is known, and some of what the
    transaction wrote and claimed: the TSO compares ids, and cannot tell which row it was."""
    kind = SnapshotTooOld if reply.reason in _TOO_OLD else ConflictError
    because = _REASONS.get(reply.reason, "another transaction won") if reply.reason else "another transaction won"
    values: dict[str, object] = {"commit_ts": reply.conflict_ts} if reply.conflict_ts else {}
    by = f" (commit {reply.conflict_ts})" if reply.conflict_ts else ""
    if written and reply.reason in _OF_WRITES:
        rows = {table: _first_rows(cells) for table, cells in islice(written.items(), TABLES_TOLD_MAX)}
        values["wrote"] = {table: keys[:ROWS_TOLD_MAX] for table, keys in rows.items()}
        by += "; it wrote " + ", ".join(_told(table, keys, shown_key) for table, keys in rows.items())
    if claimed and reply.reason in _OF_WRITES:
        values["claimed"] = {table: tuple(keys[:ROWS_TOLD_MAX]) for table, keys in claimed.items()}
        by += "; it claimed " + ", ".join(_told(table, keys, shown_key) for table, keys in claimed.items())
    return kind(f"transaction {reply.start_ts} aborted: {because}{by}", start_ts=reply.start_ts, **values)


def _first_rows(cells: Sequence[CellVersion]) -> tuple[bytes, ...]:
    """Keys of some of these cells, one more than is told."""
    keys = dict.fromkeys(cell.row for cell in islice(cells, CELLS_LOOKED_AT_MAX))
    return tuple(islice(keys, ROWS_TOLD_MAX + 1))


def _told(table: str, keys: Sequence[bytes], shown_key: Callable[[str, bytes], str] | None) -> str:
    shown = [shown_key(table, key) if shown_key else repr(key) for key in keys[:ROWS_TOLD_MAX]]
    return f"{table} ({', '.join([*shown, '…'] if len(keys) > ROWS_TOLD_MAX else shown)})"


ROWS_TOLD_MAX: Final = 5
TABLES_TOLD_MAX: Final = 5
CELLS_LOOKED_AT_MAX: Final = 1_000
"""Of one table, for the message of a conflict: rows of a thousand columns count once."""

_OF_WRITES: Final = frozenset({AbortReason.CONFLICT, AbortReason.FENCE, AbortReason.TABLE})
_TOO_OLD: Final = frozenset({AbortReason.LEASE_LOST})
_REASONS: Final = {
    AbortReason.CONFLICT: "another transaction committed a cell that it wrote or claimed",
    AbortReason.LOW_WATERMARK: "it is older than the commits that the TSO remembers",
    AbortReason.FENCE: "a table that it wrote was fenced",
    AbortReason.TABLE: "another transaction committed to a table that it claimed as a whole",
    AbortReason.SEALED: "it was sealed as dead by a reader",
    AbortReason.LEASE_LOST: "its lease expired",
    AbortReason.RETRY_UNKNOWN: "its first commit request was never decided",
}


TableT = TypeVar("TableT", bound=TableBase)


def _note_nothing(start_ts: int) -> None:
    pass


class RowTransaction(TransactionBase[TransactionSteps], ABC, Generic[TableT]):
    """A transaction whose rows this process reads and writes. Blocking and asyncio front ends drive its steps."""

    def __init__(
        self,
        database: Database,
        begun: BeginReply,
        lease: Lease | None,
        end_lease: Callable[[Lease], None],
        note_ended: Callable[[int], None],
        *,
        read_only: bool,
    ) -> None:
        writes = TransactionSteps(
            begun, database.commit_cache, flush_bytes=database.settings.flush_bytes, pipelined=database.pipelined_writes
        )
        holds_none = bool(begun.read_at)  # the start is another's, and no longer open here
        super().__init__(
            writes, lease=lease, end_lease=end_lease, note_ended=_note_nothing if holds_none else note_ended
        )
        self.database: Final = database
        """For pyomid's own use."""
        self._read_only = read_only or bool(begun.read_at)
        self._begun = begun
        self._tables: dict[str, TableT] = {}
        self._scans: WeakSet[RowScan] | None = None
        """Those whose rows were handed out, once there are any. The iterator of a scan keeps it."""

    @property
    def read_only(self) -> bool:
        """It refuses writes and claims."""
        return self._read_only

    def table_steps(self, name: str) -> Steps[TableT]:
        self.step(Event.READ)
        table = self._tables.get(name) if isinstance(name, str) else None
        if table is None:
            rules = None if self.is_leased else self.database.known_rules(name, self._begun)
            if rules is None:
                rules = yield Blocking(partial(self.database.table_rules, name, self._begun, leased=self.is_leased))
            if self._begun.read_at:
                check_was_there(rules.info, self._begun.read_at)
            yield from self.writes.look_steps(rules.info)
            table = self._tables[name] = self._new_table(rules)
        return table

    def claim_steps(self, name: str, keys: Iterable[bytes], columns: Iterable[bytes] | None) -> Steps[None]:
        table = yield from self.table_steps(name)
        yield from table.claim_steps(keys, columns)

    def savepoint(self) -> Savepoint:
        """The transaction's writes as they are now, to go back to:

            with tx.savepoint():              # goes back on an exception, which goes on to the caller
                accounts.put(...)

        What was read and claimed since stays so. Where writes have left for the store meanwhile, what they replaced is
        read first, and stays in the conflict check.
        """
        self.begin_write()
        return Savepoint(self, self.writes.save())

    def commit_steps(self) -> Steps[None]:
        return self.alone(self.observed(Kind.COMMIT, "", self._commit_steps()))

    def rollback_steps(self) -> Steps[None]:
        return self.observed(Kind.ROLLBACK, "", super().rollback_steps())

    def flush_steps(self) -> Steps[None]:
        return self.alone(self.flushed_steps())

    def send_steps(self) -> Steps[None]:
        """Sends the buffered writes. Errors as of a flush, those of earlier writes under way too."""
        return self.alone(self.sent_steps())

    # For pyomid's own use

    def observed(self, kind: Kind, table: str, steps: Steps[T]) -> Steps[T]:
        """The same steps, told to the observers of the database."""
        reports = self.database.reports
        return steps if reports is None else reports.steps(kind, self, table, steps)

    @abstractmethod
    def _new_table(self, rules: TableRules) -> TableT: ...

    def check_read(self) -> None:
        """Refuses a read that the state does not allow."""
        if not self.is_plain:
            self.step(Event.READ)

    def check_write(self) -> None:
        """Refuses a write that the state does not allow, or that is of a read-only transaction."""
        if not self.is_plain:
            self.step(Event.WRITE)
        if self._read_only:
            raise Misuse(f"transaction {self.start_ts} was begun read-only", start_ts=self.start_ts)

    def note_scan(self, scan: RowScan) -> None:
        if self._scans is None:
            self._scans = WeakSet()
        self._scans.add(scan)

    def end_scans(self) -> None:
        for scan in list(self._scans or ()):
            scan.cut()

    def claimed_rows(self) -> Mapping[str, Sequence[bytes]]:
        return self.writes.claimed_rows(TABLES_TOLD_MAX, ROWS_TOLD_MAX + 1)

    def begin_write(self) -> None:
        """Before a write is buffered outside of `alone`."""
        self.check_write()

    def sent_steps(self) -> Steps[None]:
        """`send_steps` inside of a call."""
        return self.leaving_steps(self.writes.send_steps())

    def begin_read_steps(self) -> Iterable[Effect]:
        """Ends the writes under way, which a read must find in the store. Errors as of a flush."""
        self.check_read()
        return self.leaving_steps(self.writes.end_steps()) if self.writes.is_writing else ()

    def flushed_steps(self) -> Steps[None]:
        """`flush_steps` inside of a call."""
        self.step(Event.WRITE)
        yield from self.leaving_steps(self.writes.flush_steps())

    def leaving_steps(self, steps: Steps[None]) -> Steps[None]:
        """After an error some of the writes may be there: rollback-only (C1)."""
        try:
            yield from steps
        except BaseException as error:
            self.make_rollback_only(Event.MARK, f"a flush of its writes failed: {str(error) or repr(error)}")
            raise

    def _committed_steps(self, decided: Decided) -> Steps[None]:
        commit_ts, written = decided.reply.commit_ts, decided.written
        if not self.database.end_committed_at_once(self.start_ts, commit_ts, written):
            yield from self._afterwards_steps(partial(self.database.end_committed, self.start_ts, commit_ts, written))

    def _rolled_back_steps(self) -> Steps[None]:
        yield from self._afterwards_steps(partial(self.database.end_rolled_back, self.writes))

    def _afterwards_steps(self, end: Callable[[], None]) -> Steps[None]:
        """The outcome is known: no error here, of a system without threads for example, may look like one of it."""
        try:
            yield Blocking(end)
        except Exception as error:
            self.database.background.failed(error)


class Transaction(RowTransaction[Table]):
    """One snapshot, own writes, one commit. Made by `Database.begin`; a context manager that commits at its end."""

    def __init__(
        self, database: Database, begun: BeginReply, lease: Lease | None = None, *, read_only: bool = False
    ) -> None:
        super().__init__(
            database, begun, lease, database.leases.end, database.deployment.tso.note_ended, read_only=read_only
        )
        self._run = database.driver.run

    @overload
    def table(self, name: str, codec: None = None) -> Table: ...

    @overload
    def table(self, name: str, codec: Literal["json"]) -> TypedTable[dict[str, Any]]: ...

    @overload
    def table(self, name: str, codec: type[RowT]) -> TypedTable[RowT]: ...

    def table(self, name: str, codec: Any = None) -> Any:
        """A table as this transaction sees it. `UnknownTable` if there is none.

        With a `codec` its rows have the types of its schema (`Database.table_schema`): a dataclass, a TypedDict, `dict`
        (Python values by column name), or "json" (the same as JSON knows them).
        """
        table = self._run(self.table_steps(name))
        return table if codec is None else TypedTable(table, self, codec, self._run)

    def claim(self, table: str, keys: Iterable[bytes], columns: Iterable[bytes] | None = None) -> None:
        """Has the commit check rows, or columns of them, as if they had been written. Nothing is written.

        Of two transactions that overlap, and of which one claimed what the other wrote or claimed, at most one commits.
        So what a transaction read and claimed still holds when it commits: no write skew comes of it.

        On a table of level row a claim is of whole rows, there or not. At level cell it is of the named columns, there
        or not; without `columns`, or of a family, it is of the columns that this transaction sees, and a column that
        another one adds meanwhile is met only by those that claim the whole row as well.
        """
        self._run(self.claim_steps(table, keys, columns))

    def commit(self) -> None:
        """Durable and visible to every later begin on return.

        `ConflictError`: another transaction won, this one is rolled back; run it again. `TransactionEnded`: it ended
        before, or is rollback-only. `OutcomeUnknown`: it may have committed, and no evidence is left. Any other error:
        nothing was committed, and the transaction is rollback-only.
        """
        self._run(self.commit_steps())

    def rollback(self) -> None:
        """Ends the transaction; none of its writes is ever visible, and they are deleted in the background. A second
        rollback does nothing; after a commit `TransactionEnded`.
        """
        self._run(self.rollback_steps())

    def flush(self) -> None:
        """Sends the writes buffered so far to the store; commit does it anyway. After an error the transaction is
        rollback-only: some of them may be there (C1).
        """
        self._run(self.flush_steps())

    def __enter__(self) -> Transaction:
        self.step(Event.READ)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._run(self.exit_steps(kind))

    def _new_table(self, rules: TableRules) -> Table:
        return Table(self, rules, self._run)
