"""The Python data source `omid`: `spark.read.format("omid")` and `df.write.format("omid")`.

Spark makes a `DataSource` once per `load()`, pickles it, and calls its parts in processes of their own, so:

    read     the start is drawn in `__init__`; all partitions have it (S5); `load()` and each task share a lease for
             it, which ends by its term: Spark says nothing when a read is over
    write    the same start is the transaction's, under a lease of its own until `commit` or `abort`, whichever process
             they run in; each task attempt writes a branch and returns it in its message; `commit` decides once;
             `abort` looks the outcome up and never undoes a commit (S2)

Filters are not pushed down: Spark 4.3 gives one DataFrame that is used twice the other use's filters. Ranges come
by options.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from pyomid.crashpoints import crash_point
from pyomid.errors import ConflictError, Misuse, Unavailable
from pyomid.spark.errors import coded_errors
from pyomid.spark.options import Options
from pyomid.types import KeyRange

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyomid.protocol.reading import Snapshot
    from pyomid.spark.databases import Connection
    from pyomid.spark.prepare_write import WriteOptions
    from pyomid.spark.read_task import ReadPlan
    from pyomid.spark.write_task import BranchReport, WritePlan
    from pyomid.types import BeginReply, TableInfo, TableSchema

FORMAT: Final = "omid"

BATCH_ROWS: Final = 10_000
"""Spark's own default of rows in one Arrow batch."""


class OmidDataSource(DataSource):
    """Registered by `pyomid.spark.register`, or found by Spark as `pyspark_omid.DefaultSource`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        with coded_errors():
            self._options = Options(options)
            self._url = self._options.required("url")
            self._table = self._options.required("table")
            self._database_id = self._known_database()
            self._begun = self._begin()
            self._database_id = self._database_id or self._connection().database_id

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """The catalog's, or the columns of it that the option `columns` names."""
        from pyomid.spark.schema import schema_of, select_columns, struct_of

        with coded_errors():
            self._keep()
            info = self._info()
            schema = schema_of(info)
            return struct_of(schema, select_columns(info.name, schema, self._options.names("columns")))

    def __getstate__(self) -> dict[str, Any]:
        """Spark takes a source to the next process as soon as it is made. A load has been asked for its schema by then;
        what has not is a write, or a load to which a schema was given: it has a lease of its own until that is known.
        """
        with coded_errors():
            if self._shares and not self._is_read:
                self._own_lease()
        return self.__dict__

    def reader(self, schema: StructType) -> OmidReader:
        from pyomid.spark.commit import end_lease

        with coded_errors():
            self._keep()
            if self._owns:
                end_lease(self._connection(), self._begun.start_ts)
            table_schema, wanted = self._readable(schema)
            return OmidReader(self._read_plan(table_schema, wanted), self._range(table_schema), self._pieces(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> OmidWriter:
        from pyomid.spark.commit import end_lease
        from pyomid.spark.schema import fields_of

        with coded_errors():
            try:
                if not self._owns and self._connection().has_leases:
                    self._own_lease()
                return OmidWriter.prepared(
                    self._options, self._begun, fields_of(schema), overwrite=overwrite, database_id=self._database_id
                )
            except BaseException:
                end_lease(self._connection(), self._begun.start_ts)
                raise

    def _connection(self) -> Connection:
        from pyomid.spark.databases import connection

        return connection(self._url, self._database_id)

    def _known_database(self) -> bytes:
        """That of the given snapshot; empty where none is told."""
        text = self._options.text("snapshotDatabase", "")
        try:
            return bytes.fromhex(text or "")
        except ValueError:
            raise Misuse(f"option snapshotDatabase={text!r} is no database's id", option="snapshotDatabase") from None

    def _begin(self) -> BeginReply:
        """A start of its own, leased once it is known for what; or the one that was given, which somebody else's lease
        holds."""
        from pyomid.types import BeginReply

        self._lease_s = self._options.seconds("leaseSeconds")
        self._shares = self._is_read = self._owns = False
        given = self._options.whole("snapshotTimestamp", least=1)
        epoch = self._options.whole("snapshotEpoch")
        if given is not None and epoch is not None:
            return BeginReply(given, epoch)
        conn = self._connection()
        begun = conn.parts.tso.begin()
        if given is not None:
            if given > begun.start_ts:
                raise Misuse(f"snapshotTimestamp {given} was never handed out: {begun.start_ts} is the latest")
            if conn.has_leases:
                conn.parts.tso.grant_lease(given, self._lease_s)
            return BeginReply(given, begun.epoch)
        self._shares = conn.has_leases
        return begun

    def _keep(self) -> None:
        """It is a load. A write never comes here: it would hold W back for a whole term after it ended."""
        self._is_read = True
        if self._shares:
            self._connection().share_lease(self._begun.start_ts, self._lease_s)

    def _own_lease(self) -> None:
        self._connection().parts.tso.grant_lease(self._begun.start_ts, self._lease_s)
        self._owns = True

    def _info(self) -> TableInfo:
        from pyomid.client.table_admin import check_leases, find_table

        conn = self._connection()
        info = find_table(conn.parts, self._table)
        if conn.has_leases:
            check_leases(conn.parts, self._table)
        return info

    def _readable(self, schema: StructType) -> tuple[TableSchema, tuple[str, ...]]:
        """The table's schema, or one made from the reader's for a table without; and the columns to read."""
        from pyomid.spark.schema import (
            check_read_fields,
            check_row_key,
            fields_of,
            make_schema,
            parse_column_mapping,
            parse_row_key,
        )

        info, fields = self._info(), fields_of(schema)
        row_key = self._options.text("rowKey")
        if info.schema is not None:
            if row_key is not None:
                check_row_key(info, parse_row_key(row_key))
            return info.schema, check_read_fields(info, info.schema, fields)
        if row_key is None:
            raise Misuse(
                f"table {info.name!r} has no schema in the catalog: name its key columns by the option rowKey",
                table=info.name,
            )
        mapping = parse_column_mapping(self._options.text("columnMapping") or "")
        family = (self._options.text("family") or info.families[0].decode()).encode()
        return make_schema(fields, parse_row_key(row_key), mapping, family=family), tuple(f.name for f in fields)

    def _read_plan(self, schema: TableSchema, wanted: tuple[str, ...]) -> ReadPlan:
        from pyomid.spark.read_task import ReadPlan

        rows = self._options.whole("batchRows", BATCH_ROWS, least=1)
        assert rows is not None
        leased = self._connection().has_leases
        return ReadPlan(
            self._url,
            self._table,
            schema,
            wanted,
            self._snapshot(),
            rows,
            leased=leased,
            shared=self._shares,
            lease_s=self._lease_s,
            database_id=self._database_id,
        )

    def _snapshot(self) -> Snapshot:
        from pyomid.protocol.reading import Snapshot

        text = self._options.text("ownBranches")
        own = frozenset(int(branch) for branch in text.split(",")) if text else frozenset()
        return Snapshot(self._begun.start_ts, self._begun.epoch, own)

    def _range(self, schema: TableSchema) -> KeyRange:
        from pyomid.spark.key_ranges import key_range, parse_bound
        from pyomid.spark.row_codec.row_key import key_layout

        layout = key_layout(schema)
        bounds = [parse_bound(layout, self._options.text(name)) for name in ("rowStart", "rowStop", "rowPrefix")]
        return key_range(layout, *bounds)

    def _pieces(self) -> int:
        pieces = self._options.whole("numPartitions", os.cpu_count() or 1, least=1)
        assert pieces is not None
        return pieces


@dataclass
class RangePartition(InputPartition):
    """One task's part of the row keys."""

    start: bytes
    stop: bytes | None


class OmidReader(DataSourceReader):
    """One read: what all partitions share, and how the range is divided."""

    def __init__(self, plan: ReadPlan, key_range: KeyRange, pieces: int, schema: StructType) -> None:
        self._plan = plan
        self._range = key_range
        self._pieces = pieces
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        from pyomid.spark.databases import connection
        from pyomid.spark.read_task import divided

        with coded_errors():
            store = connection(self._plan.url, self._plan.database_id).parts.store
            parts = divided(store, self._plan.table, self._range, self._pieces)
            return [RangePartition(*part) for part in parts] or [RangePartition(b"\0", b"\0")]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyomid.spark.databases import connection
        from pyomid.spark.read_task import keep_snapshot, read_range
        from pyomid.spark.schema import arrow_of

        assert isinstance(partition, RangePartition)
        with coded_errors():
            arrow = arrow_of(self._schema)
            conn = connection(self._plan.url, self._plan.database_id)
            keep_snapshot(conn, self._plan)
            yield from read_range(conn, self._plan, KeyRange(partition.start, partition.stop), arrow)


@dataclass
class BranchMessage(WriterCommitMessage):
    """What a task returns to `commit`; None: it had no rows."""

    report: BranchReport | None


@dataclass
class OmidWriter(DataSourceArrowWriter):
    """One `df.write`: a transaction whose snapshot nobody reads, except to find the rows that it replaces."""

    plan: WritePlan
    begun: BeginReply
    level: str | None
    transaction_id: str | None
    replaced_by: int
    """The branch of the tombstones of an overwrite, drawn before any task's; 0 for an append."""
    is_done: bool
    """A write under this id is committed: nothing is left to do."""
    writes_rows: bool
    """False: the snapshot sees rows, and `ifExists=ignore`; what is left to commit is the id."""

    @classmethod
    def prepared(
        cls, options: Options, begun: BeginReply, fields: Any, *, overwrite: bool, database_id: bytes = b""
    ) -> OmidWriter:
        """The table made or checked, so that a bad write fails before its first task."""
        from pyomid.client.idempotency import check_transaction_id
        from pyomid.protocol.reading import Snapshot
        from pyomid.spark.commit import find_run, ids_for
        from pyomid.spark.databases import connection
        from pyomid.spark.options import LEVELS, checked_choice
        from pyomid.spark.prepare_write import is_there, prepared_table, table_or_none
        from pyomid.spark.schema import schema_of
        from pyomid.spark.write_task import WritePlan

        url, name = options.required("url"), options.required("table")
        conn = connection(url, database_id)
        conn.require_branches()
        write = write_options(options)
        given = options.text("conflictLevel")
        level = None if given is None else checked_choice("conflictLevel", given, LEVELS)
        if_exists = options.choice("ifExists", ("append", "overwrite", "error", "ignore"), "append")
        options.whole("retries")
        transaction_id = options.text("transactionId")
        if transaction_id is not None:
            check_transaction_id(transaction_id)
        done = transaction_id is not None and find_run(conn, begun, transaction_id) is not None
        existing = table_or_none(conn, name)
        judges = not done and if_exists in ("error", "ignore")
        there = judges and is_there(conn, existing, Snapshot(begun.start_ts, begun.epoch))
        if there and if_exists == "error":
            raise Misuse(f"table {name!r} has rows, and ifExists=error", table=name)
        if existing is not None and (done or there):
            info = existing
        else:
            info = prepared_table(conn, name, fields, write, level)
        plan = WritePlan(
            url,
            info,
            schema_of(info),
            tuple(field.name for field in fields),
            begun.start_ts,
            write.duplicates,
            write.nulls,
            ids_for(info, level),
            conn.database_id,
        )
        replaces = overwrite or if_exists == "overwrite"
        branch = conn.parts.tso.begin(not_before=begun.start_ts).start_ts if replaces else 0
        return cls(plan, begun, level, transaction_id, branch, is_done=done, writes_rows=not done and not there)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> BranchMessage:
        from pyomid.spark.write_task import write_rows

        if not self.writes_rows:
            return BranchMessage(None)
        with coded_errors():
            report = write_rows(self.plan, iterator)
        crash_point("spark.task.written")
        return BranchMessage(report)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Decides, once: by `pyomid.spark.commit`, as a `transaction` does. A write that lost to a run under its own
        id is done; any other that lost fails, and is begun anew by whoever began it (decision 0030)."""
        from pyomid.spark.commit import TableWrites, commit, end_lease, lost_to_its_own_id
        from pyomid.spark.databases import connection
        from pyomid.spark.row_codec.duplicates import check_distinct

        with coded_errors():
            conn = connection(self.plan.url, self.plan.database_id)
            if not self.is_done:
                _check_complete(messages)
                reports = _reports(messages)
                check_distinct(conn, self.plan, reports)
                writes = TableWrites(self.plan.info, [*self._replaced(conn), *reports])
                crash_point("spark.commit.before")
                try:
                    commit(conn, self.begun, [writes], level=self.level, transaction_id=self.transaction_id)
                except ConflictError as error:
                    if lost_to_its_own_id(conn, self.transaction_id, error) is None:
                        raise
                crash_point("spark.commit.after")
            end_lease(conn, self.begun.start_ts)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Spark calls this also after an exception that came behind the commit. What was committed stays; what was
        not is left to compaction. The lease ends only where the outcome is "not committed".
        """
        from pyomid.spark.commit import end_lease
        from pyomid.spark.databases import connection
        from pyomid.spark.run_outcome import is_committed

        with coded_errors():
            conn = connection(self.plan.url, self.plan.database_id)
            starts = [self.begun.start_ts, *(report.branch for report in _reports(messages))]
            if not is_committed(conn, starts):
                end_lease(conn, self.begun.start_ts)

    def _replaced(self, conn: Connection) -> list[BranchReport]:
        """The old rows of an overwrite, deleted under the branch that is below every task's."""
        from pyomid.protocol.reading import Snapshot
        from pyomid.spark.read_task import ReadPlan
        from pyomid.spark.write_task import delete_ranges

        if not self.replaced_by or not self.writes_rows:
            return []
        snapshot = Snapshot(self.begun.start_ts, self.begun.epoch)
        plan = self.plan
        read = ReadPlan(
            plan.url, plan.info.name, plan.schema, (), snapshot, BATCH_ROWS, leased=True, database_id=plan.database_id
        )
        report = delete_ranges(self.plan, read, [KeyRange()], branch=self.replaced_by)
        return [report] if report is not None else []


def _check_complete(messages: Sequence[WriterCommitMessage | None]) -> None:
    """Spark commits when every task has told what it wrote. One that told nothing may have written rows."""
    silent = [number for number, message in enumerate(messages) if not isinstance(message, BranchMessage)]
    if silent:
        raise Unavailable(
            f"nothing is committed: of {len(messages)} tasks {len(silent)} told nothing of what they wrote"
        )


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[BranchReport]:
    return [m.report for m in messages if isinstance(m, BranchMessage) and m.report is not None]


def write_options(options: Options) -> WriteOptions:
    """The options of a write, checked."""
    from pyomid.spark.prepare_write import WriteOptions
    from pyomid.spark.row_codec.encode import Duplicates, Nulls
    from pyomid.spark.schema import DEFAULT_FAMILY, parse_column_mapping, parse_row_key

    row_key, mapping, family = options.text("rowKey"), options.text("columnMapping"), options.text("family")
    return WriteOptions(
        row_key=None if row_key is None else parse_row_key(row_key),
        mapping=None if mapping is None else parse_column_mapping(mapping),
        family=DEFAULT_FAMILY if family is None else family.encode(),
        duplicates=Duplicates(options.choice("duplicates", ("error", "last"), "error")),
        nulls=Nulls(options.choice("nulls", ("tombstone", "keep"), "tombstone")),
        merge_schema=options.flag("mergeSchema"),
    )
