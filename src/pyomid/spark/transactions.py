"""Transactions over DataFrames: one snapshot, one commit, many tables.

    with pyomid.spark.transaction(spark, url, transaction_id="flights-2013-01") as tx:
        totals = tx.read("totals")
        tx.write(flights, "flights", row_key=["origin", "time_hour", "carrier", "flight"])
        tx.write(new_totals, "totals", row_key=["day", "origin"])

The transaction lives in the program's own driver process: tasks write branches and return them, and the commit names
those of the attempts whose results Spark took. It belongs to the thread that began it.
"""

from __future__ import annotations

import functools
import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyomid.client.idempotency import AlreadyDone, check_transaction_id
from pyomid.client.retry import Backoff, Tries, check_function, check_result
from pyomid.client.table_admin import check_leases, find_table
from pyomid.client.transaction_base import ENDED, NEED_LEASE, Event, State, next_state
from pyomid.crashpoints import crash_point
from pyomid.errors import (
    AlreadyCommitted,
    ConflictError,
    Misuse,
    OmidError,
    OutcomeUnknown,
)
from pyomid.protocol.reading import Snapshot
from pyomid.spark import commit as large_commit
from pyomid.spark.commit import TableWrites, ids_for
from pyomid.spark.databases import Connection, connection
from pyomid.spark.datasource import BATCH_ROWS, FORMAT
from pyomid.spark.errors import original_error, original_errors
from pyomid.spark.key_ranges import key_range
from pyomid.spark.options import LEVELS, TABLE_LEVEL, checked_choice
from pyomid.spark.prepare_write import WriteOptions, is_there, prepared_table, table_or_none
from pyomid.spark.read_task import ReadPlan, divided
from pyomid.spark.registration import register
from pyomid.spark.row_codec.duplicates import check_distinct
from pyomid.spark.row_codec.encode import Duplicates, Nulls
from pyomid.spark.row_codec.row_key import key_layout
from pyomid.spark.schema import DEFAULT_FAMILY, column_mapping, fields_of, fit_frame, row_key_parts, schema_of
from pyomid.spark.write_task import (
    REPORT_DDL,
    BranchReport,
    WritePlan,
    delete_ranges,
    delete_rows,
    report_of,
    reporting,
    write_rows,
)
from pyomid.types import BeginReply, Column, KeyRange, TableInfo

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

R = TypeVar("R")

MODES: Final = ("append", "overwrite", "error", "errorifexists", "ignore")


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What one `tx.write` or `tx.delete` wrote; visible to others only once the transaction commits."""

    table: str
    rows: int
    cells: int
    bytes: int
    branches: int


class SparkTransaction:
    """One snapshot and one commit over DataFrames of any number of tables. Made by `transaction`."""

    def __init__(
        self,
        spark: SparkSession,
        conn: Connection,
        begun: BeginReply,
        *,
        transaction_id: str | None,
        conflict_level: str | None,
        lease_seconds: float | None,
    ) -> None:
        self._spark = spark
        self._conn = conn
        self._begun = begun
        self._level = conflict_level
        self._writes: dict[str, TableWrites] = {}
        self._state = State.ACTIVE
        self._doom = ""
        self._owner = (os.getpid(), threading.get_ident())
        self.transaction_id: Final = transaction_id
        self.commit_ts: int | None = None
        """None until committed, and for a transaction that wrote nothing."""
        self._lease = conn.leases.grant(begun.start_ts, lease_seconds) if conn.has_leases else None

    @property
    def start_ts(self) -> int:
        """The snapshot: the transaction sees everything that was committed before this timestamp."""
        return self._begun.start_ts

    @property
    def branches(self) -> tuple[int, ...]:
        """The starts under which its tasks wrote, as the commit will name them."""
        return tuple(report.branch for table in self._writes.values() for report in table.reports)

    @property
    def state(self) -> State:
        return self._state

    def read(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        start: Any = None,
        stop: Any = None,
        prefix: Any = None,
        schema: StructType | None = None,
        row_key: Sequence[str] | str | None = None,
        mapping: Mapping[str, str | bytes | Column] | None = None,
        partitions: int | None = None,
    ) -> DataFrame:
        """A lazy frame of the table: this transaction's snapshot, with what the transaction wrote to it so far.

        `start` (inclusive), `stop` (exclusive), `prefix`: values of leading key columns, or raw bytes; a datetime
        without a zone is one of the session's zone (`pyomid.spark.key_ranges`). `schema`, with `row_key` and `mapping`:
        for a table without one in the catalog.
        Use the frame before the transaction ends.
        """
        self._step(Event.READ)
        info = find_table(self._conn.parts, table)
        check_leases(self._conn.parts, table)
        reader = self._spark.read.format(FORMAT).options(**self._snapshot_options(info))
        reader = reader.option("numPartitions", partitions or self._spark.sparkContext.defaultParallelism)
        if schema is not None:
            reader = reader.schema(schema)
        if row_key is not None:
            reader = reader.option("rowKey", _row_key_text(row_key))
        if mapping is not None:
            reader = reader.option("columnMapping", _mapping_text(mapping))
        if columns is not None:
            reader = reader.option("columns", ",".join(columns))
        for name, key in _bounds(self._key_range(info, start, stop, prefix)):
            reader = reader.option(name, key)
        with original_errors():
            frame: DataFrame = reader.load()
        return frame

    def write(
        self,
        frame: DataFrame,
        table: str,
        *,
        row_key: Sequence[str] | str | None = None,
        mode: str = "append",
        duplicates: str = "error",
        nulls: str = "tombstone",
        merge_schema: bool = False,
        mapping: Mapping[str, str | bytes | Column] | None = None,
        family: str = DEFAULT_FAMILY.decode(),
        conflict_level: str | None = None,
    ) -> WriteResult:
        """Writes the frame's rows; the frame is computed now, once.

        `mode`: "append" upserts by row key; "overwrite" deletes the rows that the snapshot sees first; "error" and
        "ignore" go by whether the snapshot sees a row of the table. `row_key` makes the table where there is none.
        `conflict_level`: a new table's level. A write that fails leaves the transaction rollback-only.
        """
        self._step(Event.WRITE)
        self._conn.require_branches()
        mode = checked_choice("mode", mode, MODES)
        options = WriteOptions(
            row_key=None if row_key is None else row_key_parts(row_key),
            mapping=None if mapping is None else column_mapping(mapping),
            family=family.encode(),
            duplicates=Duplicates(checked_choice("duplicates", duplicates, ("error", "last"))),
            nulls=Nulls(checked_choice("nulls", nulls, ("tombstone", "keep"))),
            merge_schema=merge_schema,
        )
        if mode in ("error", "errorifexists", "ignore") and self._is_there(table):
            if mode == "ignore":
                return WriteResult(table, 0, 0, 0, 0)
            raise Misuse(f"table {table!r} has rows, and mode={mode!r}", table=table)
        with self._dooming(f"a write to {table!r} failed"):
            return self._write(frame, table, options, conflict_level, overwrite=mode == "overwrite")

    def delete(self, keys: DataFrame, table: str) -> WriteResult:
        """Deletes the rows whose key columns `keys` names; further columns of it are not looked at. Rows that do not
        exist are no error."""
        self._step(Event.WRITE)
        self._conn.require_branches()
        info = find_table(self._conn.parts, table)
        check_leases(self._conn.parts, table)
        plan = self._plan(info, ())
        names = [part.name for part in schema_of(info).row_key]
        fit_frame(info, [field for field in fields_of(keys.schema) if field.name in names], merge=False)
        with self._dooming(f"a delete in {table!r} failed"):
            work = functools.partial(delete_rows, plan, self._read_plan(info))
            reports = self._reports(keys.select(*[f"`{name}`" for name in names]), work)
            return self._note(info, reports)

    def commit(self) -> None:
        """Durable, and visible to every later begin, on return. Errors as `pyomid.Transaction.commit`."""
        self._step(Event.COMMIT)
        try:
            crash_point("spark.commit.before")
            self.commit_ts = self._decide() or None
            crash_point("spark.commit.after")
        except ConflictError:
            self._end(Event.REFUSED)
            raise
        except (OutcomeUnknown, KeyboardInterrupt):
            self._end(Event.LOST)
            raise
        except OmidError as error:
            self._doom = str(error)
            self._state = next_state(self._state, Event.FAILED, start_ts=self.start_ts)
            raise
        except BaseException:
            # How far it came nobody knows. The lease is renewed no longer: it would hold W back while the driver lives.
            self._end(Event.LOST)
            raise
        self._end(Event.COMMITTED)

    def rollback(self) -> None:
        """Ends the transaction; none of its writes is ever visible, and compaction deletes them."""
        if self._state is State.ROLLED_BACK:
            return
        self._step(Event.ROLL_BACK)
        self._end(None)

    def mark_rollback_only(self, reason: str = "marked so by the program") -> None:
        """Refuses the commit from now on; the transaction can still read."""
        self._step(Event.DOOM)
        self._doom = reason

    def __enter__(self) -> SparkTransaction:
        self._step(Event.READ)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._state in ENDED:
            return
        if error is None:
            try:
                self.commit()
            except OmidError:
                if self._state is State.DOOMED:
                    self.rollback()
                raise
            return
        if self._owner == (os.getpid(), threading.get_ident()) and self._state is not State.COMMITTING:
            self.rollback()
        found = original_error(error)
        if found is not None and found is not error:
            raise found from error

    def __repr__(self) -> str:
        return f"<SparkTransaction {self.start_ts} {self._state.value}>"

    # Reading

    def _snapshot_options(self, info: TableInfo) -> dict[str, str]:
        own = ",".join(str(report.branch) for report in self._reports_of(info.name))
        return {
            "url": self._conn.url,
            "table": info.name,
            "snapshotTimestamp": str(self._begun.start_ts),
            "snapshotEpoch": str(self._begun.epoch),
            "snapshotDatabase": self._conn.database_id.hex(),
            **({"ownBranches": own} if own else {}),
        }

    def _key_range(self, info: TableInfo, start: Any, stop: Any, prefix: Any) -> KeyRange:
        if start is None and stop is None and prefix is None:
            return KeyRange()
        layout = None if info.schema is None else key_layout(info.schema)
        zone = self._spark.conf.get("spark.sql.session.timeZone")
        return key_range(layout, start, stop, prefix, session_zone=zone)

    def _read_plan(self, info: TableInfo) -> ReadPlan:
        snapshot = self._snapshot(info.name)
        conn, schema = self._conn, schema_of(info)
        return ReadPlan(
            conn.url, info.name, schema, (), snapshot, BATCH_ROWS, leased=True, database_id=conn.database_id
        )

    def _snapshot(self, table: str) -> Snapshot:
        own = frozenset(report.branch for report in self._reports_of(table))
        return Snapshot(self._begun.start_ts, self._begun.epoch, own)

    def _is_there(self, table: str) -> bool:
        return is_there(self._conn, table_or_none(self._conn, table), self._snapshot(table))

    # Writing

    def _write(
        self, frame: DataFrame, table: str, options: WriteOptions, level: str | None, *, overwrite: bool
    ) -> WriteResult:
        fields = fields_of(frame.schema)
        info = prepared_table(self._conn, table, fields, options, level or self._level)
        deleted = self._delete_all(info) if overwrite else []
        plan = replace(
            self._plan(info, tuple(field.name for field in fields)),
            duplicates=options.duplicates,
            nulls=options.nulls,
        )
        reports = self._reports(frame, functools.partial(write_rows, plan))
        check_distinct(self._conn, plan, reports)
        return self._note(info, [*deleted, *reports], counted=reports)

    def _delete_all(self, info: TableInfo) -> list[BranchReport]:
        """Tombstones for every row that the transaction sees, under branches below those of the new rows."""
        pieces = divided(self._conn.parts.store, info.name, KeyRange(), self._spark.sparkContext.defaultParallelism)
        rows = [(bytearray(piece.start), None if piece.stop is None else bytearray(piece.stop)) for piece in pieces]
        frame = self._spark.createDataFrame(rows, "start binary, stop binary").repartition(len(rows))
        work = functools.partial(_delete_pieces, self._plan(info, ()), self._read_plan(info))
        return self._reports(frame, work)

    def _plan(self, info: TableInfo, written: tuple[str, ...]) -> WritePlan:
        ids = ids_for(info, self._level)
        conn, start_ts = self._conn, self._begun.start_ts
        return WritePlan(conn.url, info, schema_of(info), written, start_ts, ids=ids, database_id=conn.database_id)

    def _reports(
        self, frame: DataFrame, work: Callable[[Iterator[pa.RecordBatch]], BranchReport | None]
    ) -> list[BranchReport]:
        """Runs the writing job; each partition's report counts once, that of the attempt whose result Spark took."""
        with original_errors():
            rows = frame.mapInArrow(functools.partial(reporting, work), REPORT_DDL).collect()
        return [report_of(row) for row in rows]

    def _note(
        self, info: TableInfo, reports: list[BranchReport], counted: list[BranchReport] | None = None
    ) -> WriteResult:
        present = self._writes.setdefault(info.name, TableWrites(info))
        present.info = info
        present.reports += reports
        if self._level != TABLE_LEVEL:
            large_commit.check_ids_count(self._conn, [r for table in self._writes.values() for r in table.reports])
        crash_point("spark.write.noted")
        of = reports if counted is None else counted
        return WriteResult(
            info.name, sum(r.rows for r in of), sum(r.cells for r in of), sum(r.bytes for r in of), len(of)
        )

    def _reports_of(self, table: str) -> list[BranchReport]:
        writes = self._writes.get(table)
        return writes.reports if writes is not None else []

    # Ending

    def _decide(self) -> int:
        return large_commit.commit(
            self._conn, self._begun, self._writes.values(), level=self._level, transaction_id=self.transaction_id
        )

    def _end(self, event: Event | None) -> None:
        if event is not None:
            self._state = next_state(self._state, event, start_ts=self.start_ts, reason=self._doom)
        lease, self._lease = self._lease, None
        if lease is None:
            return
        if self._state is State.UNKNOWN:
            self._conn.leases.abandon(lease)
        else:
            self._conn.leases.end(lease)

    def _step(self, event: Event) -> None:
        if (os.getpid(), threading.get_ident()) != self._owner:
            raise Misuse(
                f"transaction {self.start_ts} belongs to process {self._owner[0]}, thread {self._owner[1]}: "
                "begin another one here"
            )
        if event in NEED_LEASE and self._lease is not None and self._lease.lost is not None:
            self.doom(str(self._lease.lost))
            raise self._lease.lost
        self._state = next_state(self._state, event, start_ts=self.start_ts, reason=self._doom)

    def _dooming(self, reason: str) -> _Dooming:
        return _Dooming(self, reason)

    def doom(self, reason: str) -> None:
        """For pyomid's own use: rollback-only from now on."""
        if self._state is State.ACTIVE:
            self._state, self._doom = State.DOOMED, reason


class _Dooming:
    """Around a write: whatever goes wrong in it leaves the transaction rollback-only (C1)."""

    def __init__(self, transaction: SparkTransaction, reason: str) -> None:
        self._transaction = transaction
        self._reason = reason

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._transaction.doom(f"{self._reason}: {error}")


def transaction(
    spark: SparkSession,
    url: str,
    *,
    transaction_id: str | None = None,
    conflict_level: str | None = None,
    lease_seconds: float | None = None,
    not_before: int = 0,
) -> SparkTransaction:
    """Begins a transaction; a context manager that commits at its end and rolls back on an exception.

    `transaction_id`: a durable id; of all transactions under it at most one ever commits, and a begin after that
    raises `AlreadyCommitted`. `conflict_level`: "table" claims the written tables as a whole, at any size of the
    write; "cell" and "row" must be the tables' own; None: each table's own.
    """
    if transaction_id is not None:
        check_transaction_id(transaction_id)
    level = None if conflict_level is None else checked_choice("conflictLevel", conflict_level, LEVELS)
    if lease_seconds is not None and not 0 < lease_seconds < math.inf:
        raise Misuse(f"lease_seconds={lease_seconds!r} is not a number of seconds above 0", value=lease_seconds)
    register(spark)
    conn = connection(url)
    begun = conn.parts.tso.begin(not_before=not_before)
    crash_point("client.begin.after")
    if transaction_id is not None:
        done = large_commit.find_run(conn, begun, transaction_id)
        if done is not None:
            raise AlreadyCommitted(
                f"a transaction with the id {transaction_id!r} is committed (start {done.start_ts})",
                transaction_id=transaction_id,
                start_ts=done.start_ts,
            )
    return SparkTransaction(
        spark, conn, begun, transaction_id=transaction_id, conflict_level=level, lease_seconds=lease_seconds
    )


def run(
    spark: SparkSession,
    url: str,
    function: Callable[[SparkTransaction], R],
    *,
    transaction_id: str | None = None,
    conflict_level: str | None = None,
    lease_seconds: float | None = None,
    retries: int | None = None,
    on_conflict: Callable[[ConflictError], None] | None = None,
) -> R | AlreadyDone:
    """Calls `function(tx)` in a transaction and commits it; calls it again on conflict, after a growing pause.

    With a `transaction_id` a lost answer is looked up by running again, and `AlreadyDone` is returned where a run
    under the id committed before. `on_conflict` is told of each conflict.
    """
    check_function(function)
    settings = connection(url).parts.settings
    backoff = Backoff(
        first_s=settings.retry_backoff_ms / 1000,
        longest_s=settings.retry_backoff_ms_max / 1000,
        retries=settings.retries if retries is None else retries,
        uniform=random.uniform,
    )
    tries = Tries(backoff, transaction_id)
    while True:
        try:
            with transaction(
                spark,
                url,
                transaction_id=transaction_id,
                conflict_level=conflict_level,
                lease_seconds=lease_seconds,
                not_before=tries.not_before,
            ) as tx:
                return check_result(function(tx), function)
        except AlreadyCommitted as done:
            return AlreadyDone(str(done.values["transaction_id"]), int(done.values["start_ts"]))
        except BaseException as error:
            pause_s = tries.pause_s(error)
            if pause_s is None:
                raise
            if on_conflict is not None and isinstance(error, ConflictError):
                on_conflict(error)
        time.sleep(pause_s)


def _delete_pieces(plan: WritePlan, read: ReadPlan, batches: Iterator[pa.RecordBatch]) -> BranchReport | None:
    pieces = [KeyRange(row["start"], row["stop"]) for batch in batches for row in batch.to_pylist()]
    return delete_ranges(plan, read, pieces)


def _bounds(keys: KeyRange) -> Iterator[tuple[str, str]]:
    if keys.start:
        yield "rowStart", f"0x{keys.start.hex()}"
    if keys.stop is not None:
        yield "rowStop", f"0x{keys.stop.hex()}"


def _row_key_text(row_key: Sequence[str] | str) -> str:
    return ",".join(f"{part.name} desc" if part.descending else part.name for part in row_key_parts(row_key))


def _mapping_text(mapping: Mapping[str, str | bytes | Column]) -> str:
    return ",".join(f"{name}={place}" for name, place in column_mapping(mapping).items())
