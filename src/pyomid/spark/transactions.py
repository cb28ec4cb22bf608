"""Transactions over DataFrames: one snapshot, one commit, many tables.

    with db.begin(run_id="flights-2013-01") as tx:
        totals = tx.read("totals")
        tx.write(flights, "flights", row_key=["origin", "time_hour", "carrier", "flight"])
        tx.write(new_totals, "totals", row_key=["day", "origin"])

The transaction lives in the program's driver process. Tasks write their rows under branches and report the branches;
the commit names those whose task results Spark accepted. A transaction belongs to the thread that began it.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Final, TypeVar, cast, overload

import pyarrow as pa
from pyspark.sql import functions as f

from pyomid.crashpoints import crash_point
from pyomid.database.driver import CallProgram
from pyomid.database.idempotency import AlreadyDone, check_run_id, kept_result
from pyomid.database.retry import Attempts, Backoff, attempts, check_function, check_result
from pyomid.database.transaction import Event, State
from pyomid.errors import AlreadyCommitted, ConflictError, Misuse, MisuseType
from pyomid.rows.schema import (
    DEFAULT_FAMILY,
    column_mapping,
    fit_frame,
    row_key_parts,
    schema_of,
)
from pyomid.spark.change_data import ChangesResult, apply_changes
from pyomid.spark.change_rules import ChangeOptions, why_no_row
from pyomid.spark.coded_errors import original_error, original_errors
from pyomid.spark.connections import Connection
from pyomid.spark.expressions import assignments, expression, fitted, frame_for_tasks, java_errors, resolved
from pyomid.spark.frame_schema import (
    WriteOptions,
    check_level,
    check_same_columns,
    column_types,
    fields_of,
    table_or_none,
)
from pyomid.spark.large_transaction import LargeTransaction
from pyomid.spark.loads import Reads, allowed_keys, known_columns, past_options, placed, snapshot_options
from pyomid.spark.local_frames import LocalFrame, LocalRows, local_rows, rows_given
from pyomid.spark.merge import Merge
from pyomid.spark.run_outcome import find_run
from pyomid.spark.sessions import any_case, item_results, job_named, parallelism, task_results, writes_by
from pyomid.spark.source.options import checked_choice, checked_level, names_of
from pyomid.spark.source.read_task import ReadPlan, divided
from pyomid.spark.source.write_task import (
    BranchReport,
    WritePlan,
    delete_range,
    delete_rows,
    look_up,
    named_batches,
    reported,
    reporting,
    write_rows,
)
from pyomid.types import At, BeginReply, ConflictLevel, KeyRange, TableInfo
from pyomid.types import Column as StoredColumn

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from pyomid.spark.database import SparkDatabase

R = TypeVar("R")

_ALL: Final[Any] = object()
"""Default of `where`, which means that no condition was given."""

MODES: Final = ("append", "insert", "overwrite", "error", "errorifexists", "ignore")

HERE_ROWS_MAX: Final = 10_000
"""A frame whose rows are already in the driver is written there if it has at most this many rows."""


@dataclass(frozen=True, slots=True)
class WriteResult:
    """Counts of the rows, cells, bytes and branches that one `tx.write` or `tx.delete` wrote. Other transactions see
    the writes only after this transaction commits."""

    table: str
    rows: int
    cells: int
    bytes: int
    branches: int


class SparkTransaction(LargeTransaction, Reads):
    """A transaction over DataFrames, with one snapshot and one commit for any number of tables. Made by `begin`."""

    def __init__(
        self,
        spark: SparkSession,
        conn: Connection,
        begun: BeginReply,
        *,
        run_id: str | None,
        conflict_level: str | None,
        lease_seconds: float | None,
    ) -> None:
        lease = conn.leases.grant(begun.start_ts, lease_seconds) if conn.has_leases else None
        if lease is not None:
            begun.end()  # the lease holds the start
        super().__init__(conn, begun, level=conflict_level, run_id=run_id, lease=lease)
        self.session = spark
        self.connection = conn
        self.merges: dict[Merge, str] = {}
        """The merges that have clauses and were not performed yet, with their tables."""

    def write(
        self,
        frame: DataFrame | LocalFrame,
        table: str,
        *,
        row_key: Sequence[str] | str | None = None,
        mode: str = "append",
        duplicates: str = "error",
        nulls: str = "tombstone",
        merge_schema: bool = False,
        mapping: Mapping[str, str | bytes | StoredColumn] | None = None,
        family: str = DEFAULT_FAMILY.decode(),
        conflict_level: str | None = None,
        stale_read: str = "refuse",
    ) -> WriteResult:
        """Write the frame's rows and return the counts. Spark computes the frame once, during the call. Besides a Spark
        frame, `frame` may be a pandas or Polars frame, an Arrow table, or any object that exports Arrow data
        (`pyomid.spark.local_frames`).

        The `mode` "append" upserts rows by row key. The mode "insert" looks up each key and refuses a row whose key
        exists. The mode "overwrite" first deletes the rows that the snapshot sees. If the snapshot sees a row of the
        table, the mode "error" raises an error and the mode "ignore" does nothing. With `row_key`, the call creates the
        table if it does not exist. `conflict_level` applies to this table and takes the same values as in `begin`. If
        `conflict_level` is "cell" or "row", a table that the call creates gets this level. Otherwise the new table gets
        the level "row", or over HBase the deployment's level. A failed write leaves the transaction rollback-only. With
        `stale_read="allow"`, the frame may be computed from this table at another snapshot. The write then silently
        overwrites the commits between the two snapshots.
        """
        mode = checked_choice("mode", mode, MODES)
        level = checked_level(conflict_level)
        options = WriteOptions.checked(
            row_key=None if row_key is None else row_key_parts(row_key),
            mapping=None if mapping is None else column_mapping(mapping),
            family=family,
            duplicates=duplicates,
            nulls=nulls,
            merge_schema=merge_schema,
            any_case=any_case(self.session),
        )
        rows = rows_given(self.session, frame, f"the data written to {table!r}")
        if isinstance(rows, pa.Table):
            info = table_or_none(self._conn, table)
            known = {} if info is None else column_types(info)
            rows = local_rows(self.session, rows, f"the write to {table!r}", known)
        return self._write(rows, table, options, mode=mode, level=level, stale_read=stale_read)

    def _write(
        self,
        frame: DataFrame | LocalRows,
        table: str,
        options: WriteOptions,
        *,
        mode: str = "append",
        level: str | None = None,
        stale_read: str = "refuse",
    ) -> WriteResult:
        self.step(Event.WRITE)
        self._conn.require_branches()
        if not self.writes_into(table, mode, option=f"mode={mode!r}"):
            return _result(table, [])
        with self.writing(f"a write to {table!r} failed", table, stale_read):
            options = replace(options, new_keys=mode == "insert")
            if not isinstance(frame, LocalRows):
                frame = frame_for_tasks(frame, table_or_none(self._conn, table), f"the write to {table!r}")
            plan = self.prepared(table, fields_of(frame.schema), options, level=level)
            deleted = self._delete_range("overwrite", plan, KeyRange()) if mode == "overwrite" else []
            reports = self.reports(f"write {table}", frame, functools.partial(write_rows, plan))
            self.note(plan, [*deleted, *reports])
        return _result(table, reports)

    @overload
    def delete(self, keys: DataFrame | LocalFrame, table: str, *, stale_read: str = "refuse") -> WriteResult: ...

    @overload
    def delete(self, keys: str, *, where: Column | str | None) -> WriteResult: ...

    def delete(
        self,
        keys: DataFrame | LocalFrame | str,
        table: str | None = None,
        *,
        where: Column | str | None = _ALL,
        stale_read: str = "refuse",
    ) -> WriteResult:
        """Delete rows and return the counts. `delete(keys, table)` deletes the rows whose keys the frame `keys`
        contains. The call ignores other columns of the frame, and keys that no row has. `delete(table,
        where=condition)` deletes the rows that meet a condition such as "count = 0". With `where=None`, the call
        deletes all rows that the snapshot sees.
        """
        if isinstance(keys, str):
            if table is not None or where is _ALL:
                raise MisuseType(
                    f"delete({keys!r}, …) needs where=… and takes no second argument; give where=None to delete all "
                    "rows of the table"
                )
            return self.delete_named(keys, None, where)
        if table is None or where is not _ALL:
            raise MisuseType(
                "invalid arguments of delete; call delete(keys, table) with a frame and a table name, or "
                "delete(table, where=…) with a table name and a condition"
            )
        rows = rows_given(self.session, keys, f"the keys deleted in {table!r}")
        info = self.writable(table)
        if isinstance(rows, pa.Table):
            key = {part.name for part in schema_of(info).row_key}
            rows = rows.select([name for name in rows.column_names if name in key])
            rows = local_rows(self.session, rows, f"the delete in {table!r}", column_types(info))
        else:
            rows = frame_for_tasks(rows, info, f"the delete in {table!r}", compares=True)
        return self._delete_rows(rows, info, stale_read)

    def _delete_rows(
        self, keys: DataFrame | LocalRows, info: TableInfo, stale_read: str, *, whole: bool = False
    ) -> WriteResult:
        check_level(info, self._level)
        plan = self.plan(info)
        names = [part.name for part in schema_of(info).row_key]
        fit_frame(info, [field for field in fields_of(keys.schema) if field.name in names], merge=False)
        with self.writing(f"a delete in {info.name!r} failed", info.name, stale_read):
            work = functools.partial(delete_rows, plan, self.read_plan(info), whole=whole)
            reports = self.reports(f"delete {info.name}", keys, work, names)
            self.note(plan, reports)
        return _result(info.name, reports)

    def update(self, table: str, where: Column | str | None, set: Mapping[str, Any]) -> WriteResult:
        """Set columns of the rows that meet the condition `where`, and return the counts. If `where` is None, the call
        updates all rows that the snapshot sees.

        `set` maps the name of each column to the new value: a Spark column, a SQL text over the table's columns, or a
        value that is not a string. Other columns keep their values. At conflict level "cell", the update writes the
        whole row, so a concurrent write to any other column of the row also conflicts.
        """
        return self.update_named(table, None, where, set)

    def merge(
        self,
        source: DataFrame | LocalFrame,
        table: str,
        on: str | Sequence[str],
        *,
        conflict_level: str | None = None,
        stale_read: str = "refuse",
    ) -> Merge:
        """Return a merge, to which the caller adds clauses (see `pyomid.spark.merge`). A source row and a table row
        match if they have equal values in the columns that `on` names. The method `merge()` of the result performs the
        merge:

            tx.merge(changes, "stock", on=["item"]).whenMatched().updateAll().whenNotMatched().insertAll().merge()
        """
        level = checked_level(conflict_level)
        given = rows_given(self.session, source, f"the source of the merge into {table!r}")
        return Merge(self, given, table, names_of(on), level, stale_read)

    def apply_changes(
        self,
        changes: DataFrame | LocalFrame,
        table: str,
        *,
        sequence_by: str,
        deletes: Column | str | None = None,
        reason: Column | str | None = None,
        position: Column | str | None = None,
        bad: str | None = None,
        unchanged: Column | str | None = None,
        truncates: Column | str | None = None,
        snapshots: Column | str | None = None,
        stored_as: str = "rows",
        keep_deletes_seconds: float | None = None,
    ) -> ChangesResult:
        """Apply change data from another database to a table, and return the counts. `changes` has one row for each
        insert, update or delete. The frame has the table's columns and may have other columns. For each key, the call
        applies the change with the highest value of `sequence_by`.

            tx.apply_changes(events, "orders", sequence_by="lsn", deletes="op = 'd'")

        `sequence_by` names a column of the table, in which each row stores the sequence of its last change. The call
        ignores a change whose sequence is not above the stored sequence. The column of `sequence_by` must be a number,
        a date, a timestamp, binary, or a struct of these types. `deletes` is a condition that is true for deletes. A
        delete needs only the key and the sequence. `truncates` is a condition that is true for truncations. A
        truncation needs only the sequence, and deletes all rows up to this sequence. A transaction with a truncation
        claims every written table as a whole. `unchanged` is an array with the names of the columns that a change
        leaves out. A left-out column keeps the value of the preceding change or, if there is no such change, the stored
        value. The column never keeps a value from before a delete.

        The tables `…_deletes` and `…_truncates` keep deletes and truncations for `keep_deletes_seconds`, so that a
        later call can ignore a change that is older than a delete or truncation. If `keep_deletes_seconds` is None, the
        value of earlier calls applies, or one week at the first call. With `keep_deletes_seconds=0`, the call keeps
        no deletes and no truncations.

        With `stored_as="history"`, each insert or update becomes a version of the row, and a delete or truncation ends
        a version. The last column of the table's row key is `valid_from`, which holds the sequence of the change.
        `valid_to` holds the sequence of the next change, delete or truncation. If no change, delete or truncation
        follows, `valid_to` is null and `is_current` is true. `snapshots` is a condition that is true for rows that come
        from a snapshot of the source. Such a row begins a version only if a value differs from the previous version.

        A change is bad if a key column or the sequence is null, if the sequence is not finite, or if the row key is
        empty or too long for the store. A change is also bad if the condition `deletes` or `truncates` is null, if
        `unchanged` contains a name that is not a column, or if the expression `reason` returns a text. If a change is
        bad, the call raises a `Misuse` that identifies the first bad change by the expression `position`. If `bad`
        names a table, the call writes the bad changes to that table instead of raising an error. Each row of the table
        of bad changes holds the name of the target table, the position, the reason, and the change as JSON.
        """
        asked = ChangeOptions(
            sequence_by=sequence_by,
            deletes=deletes,
            truncates=truncates,
            snapshots=snapshots,
            reason=reason,
            position=position,
            bad=bad,
            unchanged=unchanged,
        )
        return apply_changes(
            self, changes, table, asked, stored_as=stored_as, keep_deletes_seconds=keep_deletes_seconds
        )

    def why_bad(self, table: str, row: Column | str) -> Column:
        """Return a Spark column that explains, as text, why the table cannot have a row with these key values. The
        column is null if the table can have such a row. `row` is a struct with the key columns in the table's types, or
        the name of a struct column. Use the column to find bad changes before you apply other changes of the same
        source transaction.
        """
        info = self.writable(table)
        values = f.col(row) if isinstance(row, str) else row
        return why_no_row(self, info, {part.name: values[part.name] for part in schema_of(info).row_key})

    def sql(self, statement: str, /, args: Mapping[str, Any] | None = None, **frames: Any) -> Any:
        """Perform one SQL statement in the transaction. Table names refer to tables of the database. A query sees the
        transaction's snapshot and the transaction's own writes. Expressions are Spark expressions.

            tx.sql("SELECT origin, count(*) AS flights FROM flights WHERE day = :day GROUP BY origin", {"day": day})
            tx.sql("INSERT INTO flights SELECT * FROM {arrivals}", arrivals=frame)

        `args` gives the values of parameters, which the statement names as `:name`. `frames` are Spark, pandas or
        Polars frames, or Arrow tables. In the statement, `{name}` in place of a table name stands for the frame `name`.
        SELECT, DESCRIBE and SHOW TABLES return a lazy frame. INSERT, UPDATE, DELETE and MERGE return the result of
        `write`, `update`, `delete` or `merge`. Other statements return None. INSERT INTO is an upsert by row key.
        CREATE TABLE and DROP TABLE are durable at once, even if the transaction rolls back. If the statement has an
        unsupported clause, the call raises a `Misuse` that names the clause.
        """
        from pyomid.spark.sql.statements import Statement

        self.step(Event.READ)
        return Statement(self.session, statement, args, frames).perform(self)

    def __enter__(self) -> SparkTransaction:
        self.step(Event.READ)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._conn.driver.run(self.exit_block(kind))
        found = None if error is None else original_error(error)
        if found is not None and found is not error:
            raise found from None

    def _delete_range(self, job: str, plan: WritePlan, keys: KeyRange, *, whole: bool = False) -> list[BranchReport]:
        """Delete every row of a range that the transaction sees, under branches older than those of later writes."""
        work = functools.partial(_delete_part, plan, self.read_plan(plan.info), whole)
        return self._of_ranges(job, plan.info.name, keys, work)

    def _look_up(self, plan: WritePlan, branches: Sequence[int], span: KeyRange) -> list[bytes | None]:
        return self._of_ranges("check", plan.info.name, span, functools.partial(look_up, plan, branches))

    def _of_ranges(self, job: str, table: str, span: KeyRange, work: Callable[[KeyRange], R | None]) -> list[R]:
        """Run a job with one task for each part of a table's range. Return the results of all tasks."""
        parts = divided(self._conn.deployment.store, table, span, parallelism(self.session))
        with job_named(self.session, job, table):
            return item_results(self.session, parts, work)

    # For pyomid's own use

    def delete_named(self, table: str, name: str | None, where: Column | str | None) -> WriteResult:
        """Perform `delete(table, where=where)`. In the SQL text, `name` may qualify columns."""
        info = self.writable(table)
        whole = ConflictLevel.CELL in info.id_levels
        keys, is_exact = allowed_keys(self.session, info, where, name)
        if not is_exact:
            return self._delete_rows(self.read_named(table, name, where), info, "refuse", whole=whole)
        check_level(info, self._level)
        with self.writing(f"a delete in {table!r} failed", table, "refuse"):
            plan = self.plan(info)
            reports = self._delete_range("delete", plan, keys, whole=whole)
            self.note(plan, reports)
        return _result(table, reports)

    def update_named(
        self, table: str, name: str | None, where: Column | str | None, set: Mapping[str, Any]
    ) -> WriteResult:
        """Perform `update(table, where, set)`. In the SQL texts, `name` may qualify the table's columns."""
        info, what = self.writable(table), f"the update of {table!r}"
        schema = schema_of(info)
        key = [part.name for part in schema.row_key]
        given = assignments(set, what)
        names = known_columns(self.session, info, list(given))
        if not names:
            raise Misuse(f"{what} sets no column; name at least one column and its value")
        for column in names:
            if column in key:
                raise Misuse(
                    f"{what} sets the row key column {column!r}, but the key of a row cannot change; delete the row "
                    "and write a new row",
                    column=column,
                )
        rows = self.read_named(table, name, where)
        check_same_columns(what, schema, rows.columns)
        values = {column: expression(value, what) for column, value in zip(names, given.values(), strict=True)}
        kinds = resolved(rows, {f"the value of {column!r}": value for column, value in values.items()}, what)
        types = {column.name: field.dataType for column, field in zip(schema.columns, rows.schema.fields, strict=True)}
        for (column, value), kind in zip(list(values.items()), kinds, strict=True):
            values[column] = fitted(value, kind, types[column], what, column)
        whole = ConflictLevel.CELL in info.id_levels
        written = [column.name for column in schema.columns if whole or column.name in (*key, *names)]
        places = {column.name: f"c{place}" for place, column in enumerate(schema.columns)}
        becomes = {column: f"v{place}" for place, column in enumerate(values)}
        placed = rows.select("*", *values.values()).toDF(*places.values(), *becomes.values())
        changed = placed.select(*(f.col((places | becomes)[column]).alias(column) for column in written))
        return self._write(changed, table, WriteOptions(whole=True))

    async def _commit(self) -> None:
        if self.merges and self._state is State.ACTIVE:
            tables = ", ".join(repr(table) for table in dict.fromkeys(self.merges.values()))
            never = f"a merge into {tables} was never performed; call .merge() after its last clause"
            self.make_rollback_only(Event.MARK, never)
            raise Misuse(f"{never}. Nothing was committed")
        await super()._commit()

    def entered(self, table: str, at: At | None = None) -> tuple[TableInfo, Mapping[str, str]]:
        self.step(Event.READ)
        info = self.noticed(self._conn.table(table))
        if at is not None:
            return info, past_options(self._conn, at)
        options = snapshot_options(self._conn, self._begun.start_ts)
        options["_snapshotEpoch"] = str(self._begun.epoch)
        own = self.snapshot(table).own
        if own:
            options["_ownBranches"] = ",".join(map(str, sorted(own)))
        return info, options

    def writable(self, table: str) -> TableInfo:
        """Return the catalog entry of an existing table, after checking that the transaction may write."""
        self.step(Event.WRITE)
        self._conn.require_branches()
        return self.noticed(self._conn.table(table))

    def reports(
        self,
        job: str,
        frame: DataFrame | LocalRows,
        work: Callable[[Iterator[pa.RecordBatch]], BranchReport | None],
        columns: Sequence[str] | None = None,
    ) -> list[BranchReport]:
        """Run the writing job over these columns of the frame, or over all columns if `columns` is None. Return one
        report for each partition, from the task attempt whose result Spark accepted. If the frame has at most
        `HERE_ROWS_MAX` rows, and the rows are already in this process, this process writes the rows itself. Starting a
        Spark job that runs Python would take longer.
        """
        if isinstance(frame, LocalRows):
            if frame.table.num_rows <= HERE_ROWS_MAX:
                rows = frame.table if columns is None else frame.table.select(columns)
                return reported(work(iter(rows.to_batches())))
            frame = frame.frame(self.session)
        every = [field.name for field in frame.schema.fields]
        places = range(len(every)) if columns is None else [every.index(name) for name in columns]
        names = tuple(every[place] for place in places)
        with job_named(self.session, job):
            wanted = placed(frame, len(every), places)
            if frame.isLocal() and _rows_max(frame) <= HERE_ROWS_MAX:
                rows = wanted.limit(HERE_ROWS_MAX + 1).toArrow()
                if rows.num_rows <= HERE_ROWS_MAX:
                    return reported(work(named_batches(names, rows.to_batches())))
            return task_results(wanted, functools.partial(reporting, work, names))

    @contextmanager
    def writing(self, reason: str, table: str, stale_read: str) -> Iterator[None]:
        """Context manager for a write: any exception in the block leaves the transaction rollback-only (C1). Unless
        `stale_read` is "allow", jobs in the block may read the table only at this transaction's snapshot."""
        checked_choice("stale_read", stale_read, ("refuse", "allow"))
        was_torn, self.writes.is_torn = self.writes.is_torn, True
        try:
            by = writes_by(self.session, self.start_ts, self._conn.database_id, table, stale_read)
            with java_errors(reason), original_errors(), by:
                yield
        except BaseException as error:
            if self._state is State.ACTIVE:
                self.make_rollback_only(Event.MARK, f"{reason}: {error}")
            raise
        self.writes.is_torn = was_torn


def begin(
    db: SparkDatabase,
    *,
    run_id: str | None = None,
    conflict_level: str | None = None,
    lease_seconds: float | None = None,
    not_before: int = 0,
) -> SparkTransaction:
    """Begin a transaction. Used as a context manager, the transaction commits at the end of the block and rolls back on
    an exception.

    `run_id` is a durable id of the run. At most one transaction with this id ever commits; afterwards, `begin` raises
    `AlreadyCommitted`. With `conflict_level` None or "auto", each table's own level applies. If the TSO has no room for
    the conflict ids, the transaction claims the written tables as a whole and logs a warning. With
    `conflict_level="table"`, the transaction claims the written tables as a whole from the beginning. With the level
    "cell" or "row", every written table must have this level. If the TSO then has no room for the conflict ids, the
    write fails.
    """
    begun = _begun(db, run_id, conflict_level, lease_seconds, not_before)
    if isinstance(begun, AlreadyDone):
        raise AlreadyCommitted(
            f"a transaction with the run id {run_id!r} has already committed (start timestamp {begun.start_ts})",
            run_id=begun.run_id,
            start_ts=begun.start_ts,
        )
    return begun


def _begun(
    db: SparkDatabase, run_id: str | None, conflict_level: str | None, lease_seconds: float | None, not_before: int
) -> SparkTransaction | AlreadyDone:
    """Begin a transaction like `begin` and return it, or return the run under its id that has committed."""
    if run_id is not None:
        check_run_id(run_id)
    level = checked_level(conflict_level)
    if lease_seconds is not None and not 0 < lease_seconds < math.inf:
        raise Misuse(f"invalid lease_seconds={lease_seconds!r}; give a number of seconds above 0", value=lease_seconds)
    conn = db.opened()
    begun = conn.deployment.tso.begin_job(not_before=not_before)
    try:
        crash_point("client.begin.after")
        done = None if run_id is None else find_run(conn, begun, run_id)
        if done is not None:
            begun.end()
            return done
        return SparkTransaction(db.spark, conn, begun, run_id=run_id, conflict_level=level, lease_seconds=lease_seconds)
    except BaseException:
        begun.end()
        raise


def run(
    db: SparkDatabase,
    function: Callable[Concatenate[SparkTransaction, ...], R],
    *args: Any,
    conflict_level: str | None = None,
    lease_seconds: float | None = None,
    retries: int | None = None,
    on_conflict: Callable[[ConflictError], None] | None = None,
) -> R:
    """Call `function(tx, *args)` in a transaction, commit, and return the function's result. On a conflict, call the
    function again after a pause, which grows with each retry. `conflict_level` and `lease_seconds` have the same
    meaning as in `begin`. `on_conflict` is called with each `ConflictError`.
    """
    return cast(R, _run(db, None, function, args, conflict_level, lease_seconds, retries, on_conflict))


def run_once(
    db: SparkDatabase,
    run_id: str,
    function: Callable[Concatenate[SparkTransaction, ...], R],
    *args: Any,
    conflict_level: str | None = None,
    lease_seconds: float | None = None,
    retries: int | None = None,
    on_conflict: Callable[[ConflictError], None] | None = None,
) -> R | AlreadyDone:
    """Call `function(tx, *args)` in a transaction, as `run` does. At most one run with this `run_id` ever commits, in
    any process.

    If a run with this id has committed before, the call returns `AlreadyDone`, as `pyomid.Database.run_once` does. The
    `AlreadyDone` contains the result of the committed run if the result could be stored. If the reply to a commit was
    lost, rerun the call: the rerun commits only if the first run did not commit.
    """
    return _run(db, check_run_id(run_id), function, args, conflict_level, lease_seconds, retries, on_conflict)


def _run(
    db: SparkDatabase,
    run_id: str | None,
    function: Callable[Concatenate[SparkTransaction, ...], R],
    args: tuple[Any, ...],
    conflict_level: str | None,
    lease_seconds: float | None,
    retries: int | None,
    on_conflict: Callable[[ConflictError], None] | None,
) -> R | AlreadyDone:
    check_function(function)

    def attempted(not_before: int) -> R | AlreadyDone:
        begun = _begun(db, run_id, conflict_level, lease_seconds, not_before)
        if isinstance(begun, AlreadyDone):
            return begun
        with begun as tx:
            result = check_result(function(tx, *args), function)
            tx.writes.result = None if run_id is None else kept_result(result)
            return result

    async def one_attempt(not_before: int) -> R | AlreadyDone:
        result: R | AlreadyDone = await CallProgram(functools.partial(attempted, not_before))
        return result

    conn = db.opened()
    backoff = Backoff.of(conn.deployment.settings, random.uniform, retries)
    return conn.driver.run(attempts(Attempts(backoff, run_id, on_conflict), one_attempt))


def _result(table: str, reports: Sequence[BranchReport]) -> WriteResult:
    rows, cells, size = (sum(getattr(each, name) for each in reports) for name in ("rows", "cells", "bytes"))
    return WriteResult(table, rows, cells, size, len(reports))


def _delete_part(plan: WritePlan, read: ReadPlan, whole: bool, key_range: KeyRange) -> BranchReport | None:
    report = delete_range(plan, read, key_range, whole=whole)
    crash_point("spark.task.written")
    return report


def _rows_max(frame: DataFrame) -> int:
    """Return the maximum number of rows of a local frame; 0 if unknown, for example over Connect."""
    plan = getattr(frame, "_jdf", None)
    known = None if plan is None else plan.logicalPlan().maxRows()
    return int(known.get()) if known is not None and known.isDefined() else 0
