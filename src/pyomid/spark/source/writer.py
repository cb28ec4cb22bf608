"""One `df.write`: a `LargeTransaction` that continues in every process that Spark calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyomid.crashpoints import crash_point
from pyomid.errors import Unavailable
from pyomid.spark.errors import coded_errors
from pyomid.spark.supported_pyspark import DataSourceArrowWriter, WriterCommitMessage
from pyomid.types import KeyRange

if TYPE_CHECKING:
    import pyarrow as pa

    from pyomid.row_codec.schema import Field
    from pyomid.spark.large_transaction import LargeTransaction
    from pyomid.spark.schema import WriteOptions
    from pyomid.spark.source.options import Options
    from pyomid.spark.source.write_task import BranchReport, WritePlan
    from pyomid.types import BeginReply


@dataclass
class BranchMessage(WriterCommitMessage):
    """Result that a task sends to `commit`. `report`: None if the task had no rows."""

    report: BranchReport | None


@dataclass
class OmidWriter(DataSourceArrowWriter):
    """One `df.write`, with what each process that Spark calls needs to continue its transaction."""

    url: str
    database_id: bytes
    begun: BeginReply
    level: str | None
    transaction_id: str | None
    plan: WritePlan | None = None
    """The plan that the tasks share; None if nothing is to be written (`ifExists=ignore`, or `is_done`)."""
    replaced_by: int = 0
    """The branch of an overwrite's tombstones, drawn before any task's; 0 for an append."""
    is_done: bool = False
    """Whether a run under the id has already committed."""

    @classmethod
    def prepared(
        cls, options: Options, begun: BeginReply, fields: Sequence[Field], *, overwrite: bool, database_id: bytes = b""
    ) -> OmidWriter:
        """Create or check the table, so that an invalid write fails before its first task; return the writer."""
        from pyomid.client.idempotency import check_transaction_id
        from pyomid.spark.databases import connection
        from pyomid.spark.run_outcome import find_run
        from pyomid.spark.source.options import LEVELS, checked_choice
        from pyomid.spark.source.write_task import draw_branch

        url, table = options.required("url"), options.required("table")
        conn = connection(url, database_id)
        conn.require_branches()
        write = write_options(options)
        given = options.text("conflictLevel")
        level = None if given is None else checked_choice("conflictLevel", given, LEVELS)
        mode = options.choice("ifExists", ("append", "overwrite", "error", "ignore"), "append")
        options.whole("retries")
        transaction_id = options.text("transactionId")
        if transaction_id is not None:
            check_transaction_id(transaction_id)
        writer = cls(conn.task_url, conn.database_id, begun, level, transaction_id)
        if transaction_id is not None and find_run(conn, begun, transaction_id) is not None:
            writer.is_done = True
            return writer
        transaction = writer._transaction()
        if transaction.writes_into(table, mode, option=f"ifExists={mode}"):
            writer.plan = transaction.prepared(table, fields, write)
            writer.replaced_by = draw_branch(conn, writer.plan) if overwrite or mode == "overwrite" else 0
        return writer

    def under(self, transaction_id: str) -> OmidWriter:
        """Return this write under an idempotency key that is known only now."""
        from pyomid.spark.databases import connection
        from pyomid.spark.run_outcome import find_run

        conn = connection(self.url, self.database_id)
        is_done = find_run(conn, self.begun, transaction_id) is not None
        return replace(self, transaction_id=transaction_id, is_done=is_done)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> BranchMessage:
        from pyomid.spark.source.write_task import write_rows

        if self.plan is None:
            return BranchMessage(None)
        with coded_errors():
            report = write_rows(self.plan, iterator)
        crash_point("spark.task.written")
        return BranchMessage(report)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit once. A write that lost to a run under its own id has succeeded already; any other that lost raises,
        and its caller starts it again (decision 0030)."""
        from pyomid.spark.source.write_task import delete_ranges

        with coded_errors():
            transaction = self._transaction()
            if self.is_done:
                transaction.rollback()
                return
            check_complete(messages)
            if self.plan is not None:
                reports = _reports(messages)
                if self.replaced_by:
                    old = transaction.read_plan(self.plan.info)
                    deleted = delete_ranges(self.plan, old, [KeyRange()], branch=self.replaced_by)
                    reports = [deleted, *reports] if deleted is not None else reports
                transaction.note(self.plan, reports)
            transaction.commit_or_find()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort unless committed: Spark also calls this if an exception follows the commit."""
        with coded_errors():
            self._transaction().abort([report.branch for report in _reports(messages)])

    def _transaction(self) -> LargeTransaction:
        """Return the transaction as begun, without writes, for one call in this process."""
        from pyomid.client.session.leases import Lease
        from pyomid.spark.databases import connection
        from pyomid.spark.large_transaction import LargeTransaction

        conn = connection(self.url, self.database_id)
        lease = Lease.of_another(self.begun.start_ts)
        return LargeTransaction(conn, self.begun, level=self.level, transaction_id=self.transaction_id, lease=lease)


def check_complete(messages: Sequence[WriterCommitMessage | None]) -> None:
    """`Unavailable` unless every task has reported what it wrote: a task without a report may have written rows."""
    silent = [number for number, message in enumerate(messages) if not isinstance(message, BranchMessage)]
    if silent:
        raise Unavailable(
            f"nothing is committed: {len(silent)} of {len(messages)} tasks did not report what they wrote"
        )


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[BranchReport]:
    return [m.report for m in messages if isinstance(m, BranchMessage) and m.report is not None]


def write_options(options: Options) -> WriteOptions:
    """Return the checked options of a write."""
    from pyomid.row_codec.encode import Duplicates, Nulls
    from pyomid.row_codec.schema import DEFAULT_FAMILY, parse_column_mapping, parse_row_key
    from pyomid.spark.schema import WriteOptions

    row_key, mapping, family = options.text("rowKey"), options.text("columnMapping"), options.text("family")
    return WriteOptions(
        row_key=None if row_key is None else parse_row_key(row_key),
        mapping=None if mapping is None else parse_column_mapping(mapping),
        family=DEFAULT_FAMILY if family is None else family.encode(),
        duplicates=Duplicates(options.choice("duplicates", ("error", "last"), "error")),
        nulls=Nulls(options.choice("nulls", ("tombstone", "keep"), "tombstone")),
        merge_schema=options.flag("mergeSchema"),
    )
