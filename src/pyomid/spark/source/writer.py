"""`df.write` and each batch of `writeStream`: a `LargeTransaction` that continues in every process that Spark calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from pyomid.crashpoints import crash_point
from pyomid.database.idempotency import check_run_id
from pyomid.database.lease_keeper import Lease
from pyomid.errors import Misuse, Unavailable
from pyomid.rows.schema import Field, parse_column_mapping, parse_row_key
from pyomid.spark.coded_errors import coded_errors
from pyomid.spark.connections import Connection, TaskUrl, connection
from pyomid.spark.frame_schema import WriteOptions
from pyomid.spark.large_transaction import LargeTransaction
from pyomid.spark.run_outcome import QUERY_ID, batch_run_id, check_not_behind, find_run, table_sink_name
from pyomid.spark.source.options import Options, checked_choice
from pyomid.spark.source.read_task import divided
from pyomid.spark.source.write_task import (
    BranchReport,
    ReplacePlan,
    WritePlan,
    delete_rest,
    draw_branch,
    write_rows,
)
from pyomid.types import BeginReply, KeyRange

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class BranchMessage(WriterCommitMessage):
    """Result that a task sends to `commit`. `report`: None if the task wrote nothing."""

    report: BranchReport | None
    task: int = 0


@dataclass
class OmidWriter(DataSourceArrowWriter):
    """One `df.write`, with the data that each process called by Spark needs to continue its transaction."""

    url: TaskUrl
    begun: BeginReply
    level: str | None
    run_id: str | None
    plan: WritePlan | None = None
    """The plan that the tasks share; None if there is nothing to write (`ifExists=ignore`, or `is_done`)."""
    replaced: ReplacePlan | None = None
    """The rows that an overwrite deletes."""
    is_done: bool = False
    """Whether a run under the id has already committed."""

    @classmethod
    def prepared(
        cls,
        conn: Connection,
        options: Options,
        begun: BeginReply,
        fields: Sequence[Field],
        *,
        overwrite: bool,
        partitions: int = 1,
    ) -> OmidWriter:
        """Create or check the table, so that an invalid write fails before its first task; return the writer.
        `partitions`: the approximate number of tasks that delete the rows replaced by an overwrite."""
        conn.require_branches()
        table = options.required("table")
        write, level = _write_options(options), options.level()
        modes = ("append", "insert", "overwrite", "error", "ignore")
        mode = checked_choice("ifExists", options.text("ifExists") or "append", modes)
        run_id = options.text("runId")
        if run_id is not None:
            check_run_id(run_id)
        writer = cls(conn.task_url, begun, level, run_id)
        if run_id is not None and find_run(conn, begun, run_id) is not None:
            writer.is_done = True
            return writer
        transaction = writer._transaction()
        if transaction.writes_into(table, mode, option=f"ifExists={mode}"):
            plan = transaction.prepared(table, fields, replace(write, new_keys=mode == "insert"))
            writer.plan = replace(plan, ends_early=run_id is None)
            if overwrite or mode == "overwrite":
                parts = divided(conn.deployment.store, table, KeyRange(), partitions)
                old = transaction.read_plan(plan.info)
                writer.replaced = ReplacePlan(old, draw_branch(conn, plan), tuple(parts))
        return writer

    def under(self, run_id: str) -> OmidWriter:
        """Return this write with a run id that is known only now."""
        conn = connection(self.url)
        is_done = find_run(conn, self.begun, run_id) is not None
        return replace(self, run_id=run_id, is_done=is_done)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> BranchMessage:
        context = TaskContext.get()
        return self.write_as(0 if context is None else context.partitionId(), iterator)

    def write_as(self, task: int, iterator: Iterator[pa.RecordBatch]) -> BranchMessage:
        """Perform `write` as the task with this number."""
        if self.plan is None:
            return BranchMessage(None, task)
        with coded_errors():
            report = write_rows(self.plan, iterator, replaced=self.replaced, task=task)
        crash_point("spark.task.written")
        return BranchMessage(report, task)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit once. A write that lost to a run under its own id has succeeded already. A write that lost to another
        transaction raises an error, and its caller starts it again (decision 0030)."""
        with coded_errors():
            transaction = self._transaction()
            if self.is_done:
                transaction.rollback()
                return
            check_complete(messages)
            if self.plan is not None:
                reports = _reports(messages)
                if self.replaced is not None:
                    done = {message.task for message in messages if isinstance(message, BranchMessage)}
                    reports = [*delete_rest(self.plan, self.replaced, reports, done), *reports]
                transaction.note(self.plan, reports)
            transaction.commit_or_find()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the write unless it has committed; Spark also calls this if an exception follows the commit."""
        with coded_errors():
            self._transaction().abort([report.branch for report in _reports(messages)])

    def _transaction(self) -> LargeTransaction:
        """Return the transaction as begun, without writes, for one call in this process."""
        conn = connection(self.url)
        lease = Lease.of_another(self.begun.start_ts)
        return LargeTransaction(conn, self.begun, level=self.level, run_id=self.run_id, lease=lease)


def check_complete(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Raise `Unavailable` unless every task has reported its writes: a task without a report may have written rows."""
    silent = [number for number, message in enumerate(messages) if not isinstance(message, BranchMessage)]
    if silent:
        raise Unavailable(
            f"nothing was committed, because {len(silent)} of {len(messages)} tasks did not report their writes; write "
            "again"
        )


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[BranchReport]:
    return [m.report for m in messages if isinstance(m, BranchMessage) and m.report is not None]


def _write_options(options: Options) -> WriteOptions:
    row_key, mapping = options.text("rowKey"), options.text("mapping")
    return WriteOptions.checked(
        row_key=None if row_key is None else parse_row_key(row_key),
        mapping=None if mapping is None else parse_column_mapping(mapping),
        family=options.text("family"),
        duplicates=options.text("duplicates"),
        nulls=options.text("nulls"),
        merge_schema=options.flag("mergeSchema"),
    )


# Batches of streaming queries


@dataclass(kw_only=True)
class StreamMessage(BranchMessage):
    """Result of one task of a batch, with its writer and the query's id, which Spark passes only to tasks. Only the
    first task's writer holds the rows that are replaced."""

    writer: OmidWriter
    query_id: str | None


class OmidStreamWriter(DataSourceStreamArrowWriter):
    """Writes each batch of a query as one transaction, under a run id like that of `stream_sink` (S4): a redelivered
    batch that has committed is not written again. The run id covers one life of the table, because a table that was
    dropped and created again does not have the batches of the former table.

    Spark creates one writer per batch for the tasks and another to commit. The transaction begins when the first writer
    is pickled for the tasks.
    """

    def __init__(self, begin: Callable[[], OmidWriter]) -> None:
        self._begin: Callable[[], OmidWriter] | None = begin
        self._writer: OmidWriter | None = None

    def __getstate__(self) -> dict[str, Any]:
        if self._writer is None and self._begin is not None:
            with coded_errors():
                self._writer = self._begin()
            assert self._writer.plan is not None
            self._writer.plan = replace(self._writer.plan, ends_early=False)
        return {**self.__dict__, "_begin": None}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StreamMessage:
        context = TaskContext.get()
        query_id = context.getLocalProperty(QUERY_ID) if context is not None else None
        assert self._writer is not None
        done = self._writer.write(iterator)
        writer = self._writer if done.task == 0 else replace(self._writer, replaced=None)  # a message stays small
        return StreamMessage(done.report, done.task, writer=writer, query_id=query_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with coded_errors():
            check_complete(messages)
            reports = [message for message in messages if isinstance(message, StreamMessage)]
            if reports:
                first = min(reports, key=lambda message: message.task)
                writer = self._named(first, batchId)
                if writer.is_done:
                    self._check_not_behind(first, batchId)
                writer.commit(messages)
        crash_point("spark.stream.committed")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        with coded_errors():
            reports = [message for message in messages if isinstance(message, StreamMessage)]
            if reports:
                self._named(reports[0], batchId).abort(messages)

    def _check_not_behind(self, message: StreamMessage, batch_id: int) -> None:
        assert message.query_id
        assert message.writer.plan is not None
        conn = connection(message.writer.url)
        check_not_behind(conn, message.query_id, batch_id, table_sink_name(message.writer.plan.info), "")

    def _named(self, message: StreamMessage, batch_id: int) -> OmidWriter:
        """Return the batch's writer with its run id."""
        if not message.query_id:
            raise Misuse("these tasks do not belong to a streaming query; write with df.write.format('omid')")
        plan = message.writer.plan
        assert plan is not None, "a batch has neither an id before its tasks nor ifExists"
        return message.writer.under(batch_run_id(message.query_id, batch_id, table_sink_name(plan.info)))
