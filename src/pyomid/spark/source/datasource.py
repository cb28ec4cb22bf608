"""The Python data source `omid`: `spark.read.format("omid")` and `df.write.format("omid")`.

Spark makes a `DataSource` once per `load()`, pickles it, and calls its parts in processes of their own, so:

    read     the start is drawn in `__init__`; all partitions have it (S5); `load()` and each task share a lease for
             it, which ends by its term: Spark says nothing when a read is over
    write    the same start is that of a `LargeTransaction`, as in `pyomid.spark.transaction`, under a lease of its
             own until `commit` or `abort`; whichever process Spark calls goes on with it. Each task attempt writes a
             branch and returns it in its message; `commit` decides once; `abort` looks the outcome up and never undoes
             a commit (S2)

Filters are not pushed down: Spark 4.3 gives one DataFrame that is used twice the other use's filters. Ranges come
by options, and so do comparisons (`where`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyomid.errors import Misuse
from pyomid.spark.errors import coded_errors
from pyomid.spark.source.options import Options
from pyomid.spark.source.writer import OmidWriter
from pyomid.spark.supported_pyspark import (
    DataSource,
    DataSourceReader,
    InputPartition,
)
from pyomid.types import KeyRange
from pyomid.wiring import is_made

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from pyomid.protocol.reading import Snapshot
    from pyomid.spark.databases import Connection
    from pyomid.spark.source.changes import ChangesPlan
    from pyomid.spark.source.comparisons import Where
    from pyomid.spark.source.read_task import ReadPlan
    from pyomid.spark.source.streams import OmidStreamReader, OmidStreamWriter
    from pyomid.types import BeginReply, TableInfo, TableSchema

FORMAT: Final = "omid"


class OmidDataSource(DataSource):
    """Registered by `pyomid.spark.register`, or found by Spark as `pyspark_omid.DefaultSource`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        with coded_errors():
            self._options = Options(options)
            self._url = self._options.required("url")
            self._table = self._options.required("table")
            self._database_id = self._known_database()
            self._shares = self._is_read = self._owns = self._is_past = False
            self._begun_at: BeginReply | None = None
            self._planned: TableInfo | None = None
            self._is_view = self._options.flag("view")
            if is_made(self._url) and not self._is_view:  # what becomes of a view is not known yet
                self._start(create=False)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """The catalog's, or the columns of it that the option `columns` names. What it is now is what is read by: a
        column may be renamed, and its name given to another one, before the frame is computed (X1)."""
        from pyomid.row_codec.schema import schema_of, select_columns
        from pyomid.spark.schema import struct_of

        with coded_errors():
            self._start(create=False)
            self._keep()
            info = self._planned = self._info()
            schema = schema_of(info)
            struct = struct_of(schema, select_columns(info.name, schema, self._options.names("columns")))
            if self._options.flag("readChangeFeed"):
                from pyomid.spark.source.changes import with_change_columns

                return with_change_columns(info, struct)
            return struct

    def __getstate__(self) -> dict[str, Any]:
        """Spark takes a source to the next process as soon as it is made. A load has been asked for its schema by then;
        what has not is a write, or a load to which a schema was given: it has a lease of its own until that is known.
        """
        with coded_errors():
            if self._shares and not self._is_read:
                self._own_lease()
        return self.__dict__

    def reader(self, schema: StructType) -> OmidReader:
        with coded_errors():
            self._start(create=False)
            leased_ts = self._keep()
            if self._owns and leased_ts != self._begun.start_ts:  # a new TSO would take its end for the sharers' end
                self._connection().leases.end_of(self._begun.start_ts)
            if self._options.flag("readChangeFeed"):
                return self._change_reader(schema)
            for name in ("starting", "ending"):
                if self._options.text(name) is not None:
                    raise Misuse(f"option {name} is for reads of changes: give readChangeFeed=true too", option=name)
            table_schema, wanted = self._readable(schema)
            plan = self._read_plan(table_schema, wanted)
            return OmidReader(plan, self._range(table_schema, plan.where), self._partitions(), schema)

    def _change_reader(self, schema: StructType) -> OmidReader:
        from pyomid.client.changes import check_table
        from pyomid.spark.source.changes import (
            ChangesPlan,
            keep_changes,
            known_times,
            table_columns,
            told_by,
            until_of,
        )

        self._refuse_where()
        since = told_by(self._options, "starting")
        if since is None:
            raise Misuse("option starting is missing: a read of changes begins after a timestamp or a bookmark")
        conn = self._connection()
        table_schema, wanted = self._readable(table_columns(schema))
        check_table(self._info(), since)
        until = until_of(conn, since, told_by(self._options, "ending") or self._begun.start_ts)
        plan = ChangesPlan(
            conn.task_url,
            self._table,
            table_schema,
            wanted,
            since,
            until,
            self._database_id,
            known_times(conn),
            self._lease_s,
        )
        keep_changes(conn, plan)
        return OmidReader(plan, self._range(table_schema), self._partitions(), schema)

    def streamReader(self, schema: StructType) -> OmidStreamReader:
        from pyomid.spark.source.changes import table_columns, told_by
        from pyomid.spark.source.streams import BOOKMARK_S, OmidStreamReader, StreamPlan
        from pyomid.spark.supported_pyspark import ReadMaxRows

        with coded_errors():
            if not self._options.flag("readChangeFeed"):
                raise Misuse(
                    "a stream of a table is one of its changes, with the columns _change_type, _commit_version and "
                    "_commit_timestamp: give option readChangeFeed=true",
                    option="readChangeFeed",
                )
            self._refuse_where()
            if self._options.text("ending") is not None:
                raise Misuse("option ending is for spark.read: a stream ends where it is stopped", option="ending")
            rows = self._options.whole("maxRowsPerTrigger", least=1)
            if rows is not None and ReadMaxRows is None:
                raise Misuse(
                    "option maxRowsPerTrigger needs PySpark 4.2: before, Spark does not tell a source where its query "
                    "is",
                    option="maxRowsPerTrigger",
                )
            self._start(create=False)
            table_schema, wanted = self._readable(table_columns(schema))
            plan = StreamPlan(
                self._url,
                self._table,
                self._database_id,
                table_schema,
                wanted,
                self._range(table_schema),
                self._partitions(),
                told_by(self._options, "starting"),
                self._options.seconds("bookmarkSeconds") or BOOKMARK_S,
                rows,
            )
            return OmidStreamReader(plan, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> OmidStreamWriter:
        from pyomid.spark.schema import fields_of
        from pyomid.spark.source.streams import OmidStreamWriter

        def begin() -> OmidWriter:
            """A start for one batch, under a lease of its own."""
            self._refuse_past()
            self._start(create=True)
            conn = self._connection()
            if self._owns:
                conn.leases.end_of(self._begun.start_ts)
            begun = conn.deployment.tso.begin()
            conn.require_branches()
            conn.hold_by_lease(begun.start_ts, self._lease_s)
            fields = fields_of(schema)
            return OmidWriter.prepared(self._options, begun, fields, overwrite=overwrite, database_id=self._database_id)

        with coded_errors():
            for name, instead in (("transactionId", "a batch has the id of its query"), ("ifExists", "it appends")):
                if self._options.text(name) is not None:
                    raise Misuse(f"option {name} is not for streams: {instead}", option=name)
            return OmidStreamWriter(begin)

    def writer(self, schema: StructType, overwrite: bool) -> OmidWriter:
        from pyomid.spark.schema import fields_of

        with coded_errors():
            self._refuse_past()
            if self._options.text("where") is not None:
                raise Misuse(
                    "where is for reads, and chooses no rows to be replaced; delete them in the same transaction, by "
                    "tx.delete(table, where=…), and write with tx.write",
                    option="where",
                )
            if self._options.text("snapshotTimestamp") is not None and not self._is_view:
                raise Misuse(
                    "snapshotTimestamp is for reads: a write under the start of another transaction would end with it, "
                    "or be taken for it; leave it away, or write in that transaction by tx.write",
                    option="snapshotTimestamp",
                )
            self._start(create=True, is_write=True)
            try:
                if not self._owns and self._connection().has_leases:
                    self._own_lease()
                return OmidWriter.prepared(
                    self._options, self._begun, fields_of(schema), overwrite=overwrite, database_id=self._database_id
                )
            except BaseException:
                self._connection().leases.end_of(self._begun.start_ts)
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

    @property
    def _begun(self) -> BeginReply:
        assert self._begun_at is not None
        return self._begun_at

    def _start(self, *, create: bool, is_write: bool = False) -> None:
        """Begins once; at once where the database is there. What makes a new one is a write alone: `Misuse` for a read,
        whose URL is mistyped."""
        from pyomid.spark.databases import connection

        if self._begun_at is None:
            conn = connection(self._url, self._database_id, create=create)
            self._begun_at = self._begin(None if is_write else self._options.whole("snapshotTimestamp", least=1))
            self._database_id = self._database_id or conn.database_id

    def _begin(self, given: int | None) -> BeginReply:
        """A start of its own, leased once it is known for what; or the one that was given, which another lease
        holds."""
        from pyomid.types import BeginReply

        self._lease_s = self._options.seconds("leaseSeconds")
        epoch = self._options.whole("snapshotEpoch")
        if given is not None and epoch is not None:
            return BeginReply(given, epoch)
        conn = self._connection()
        at = self._past()
        begun = conn.deployment.tso.begin()
        if at is not None:
            return self._begin_past(conn, at, begun)
        if given is not None:
            conn.note_ended(begun.start_ts)
            if given > begun.start_ts:
                raise Misuse(f"snapshotTimestamp {given} was never handed out: {begun.start_ts} is the latest")
            if conn.has_leases:
                conn.deployment.tso.grant_lease(given, self._lease_s)
            return BeginReply(given, begun.epoch)
        self._shares = conn.has_leases
        return begun

    def _past(self) -> int | datetime | None:
        """The snapshot below the present that the options name."""
        version, moment = self._options.whole("versionAsOf", least=1), self._options.text("timestampAsOf")
        if moment is None:
            given: int | datetime | None = version
        elif version is not None:
            raise Misuse("versionAsOf and timestampAsOf name two snapshots: give one of them")
        else:
            given = time_of(moment)
        if given is not None and self._options.flag("readChangeFeed"):
            raise Misuse("versionAsOf and timestampAsOf are of one snapshot: changes are read by starting and ending")
        if given is not None and self._options.text("snapshotTimestamp") is not None:
            raise Misuse("snapshotTimestamp names the snapshot: do not give versionAsOf or timestampAsOf too")
        return given

    def _refuse_past(self) -> None:
        if self._past() is not None:
            raise Misuse("versionAsOf and timestampAsOf are for reads; to put back what was, pyomid.spark.restore")

    def _begin_past(self, conn: Connection, at: int | datetime, begun: BeginReply) -> BeginReply:
        """Held by a shared lease before anything is read (C13): its start may be another's."""
        from pyomid.client.past_snapshot import past_begin
        from pyomid.types import BeginReply

        try:
            found, _ = past_begin(
                conn.deployment, at, begun, lambda start_ts: conn.share_lease(start_ts, self._lease_s)
            )
        finally:
            conn.note_ended(begun.start_ts)
        self._shares = self._is_read = self._is_past = True
        return BeginReply(found.read_at, begun.epoch)

    def _keep(self) -> int:
        """It is a load. A write never comes here: it would hold W back for a whole term after it ended. Returns the
        start whose lease keeps it; 0 where another one does."""
        self._is_read = True
        if not self._shares:
            return 0
        leased_ts = self._connection().share_lease(self._begun.start_ts, self._lease_s)
        if not self._is_past:
            self._connection().note_ended(self._begun.start_ts)
        return leased_ts

    def _own_lease(self) -> None:
        self._connection().hold_by_lease(self._begun.start_ts, self._lease_s)
        self._owns = True

    def _info(self) -> TableInfo:
        from pyomid.client.validation import check_was_there

        info = self._connection().table(self._table)
        if self._is_past:
            check_was_there(info, self._begun.start_ts)
        return info

    def _readable(self, schema: StructType) -> tuple[TableSchema, tuple[str, ...]]:
        """The table's schema, or one made from the reader's for a table without; and the columns to read."""
        from pyomid.row_codec.schema import check_row_key, make_schema, parse_column_mapping, parse_row_key
        from pyomid.spark.schema import check_read_fields, fields_of

        info, fields = self._info(), fields_of(schema)
        if not self._is_view and self._planned is not None and self._planned.generation == info.generation:
            info = self._planned  # a view is read at snapshots of later, which may have later columns
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
        from pyomid.spark.source.read_task import BATCH_ROWS, ReadPlan

        rows = self._options.whole("batchRows", BATCH_ROWS, least=1)
        assert rows is not None
        conn = self._connection()
        return ReadPlan(
            conn.task_url,
            self._table,
            schema,
            wanted,
            self._snapshot_seen(),
            rows,
            leased=conn.has_leases,
            shared=self._shares,
            lease_s=self._lease_s,
            database_id=self._database_id,
            where=self._where(schema),
        )

    def _snapshot_seen(self) -> Snapshot:
        """With what has expired for it (E1)."""
        from pyomid.protocol.expiry import seen_steps

        conn = self._connection()
        return conn.driver.run(seen_steps(self._info(), self._snapshot(), conn.cache))

    def _snapshot(self) -> Snapshot:
        from pyomid.protocol.reading import Snapshot

        text = self._options.text("ownBranches")
        own = frozenset(int(branch) for branch in text.split(",")) if text else frozenset()
        return Snapshot(self._begun.start_ts, self._begun.epoch, own)

    def _range(self, schema: TableSchema, where: Where | None = None) -> KeyRange:
        from pyomid.row_codec.row_key import key_layout
        from pyomid.spark.source.key_ranges import key_range, parse_bound
        from pyomid.spark.source.read_task import intersection

        layout = key_layout(schema)
        bounds = [parse_bound(layout, self._options.text(name)) for name in ("rowStart", "rowStop", "rowPrefix")]
        found = key_range(layout, *bounds)
        return found if where is None else intersection(found, where.keys(layout)) or found

    def _refuse_where(self) -> None:
        if self._options.text("where") is not None:
            raise Misuse(
                "option where is for reads of rows, and these are changes: put .where(…) after the frame",
                option="where",
            )

    def _where(self, schema: TableSchema) -> Where | None:
        from pyomid.spark.source.comparisons import Where

        text = self._options.text("where")
        return None if text is None else Where.of(text, self._table, schema)

    def _partitions(self) -> int:
        partitions = self._options.whole("numPartitions", os.cpu_count() or 1, least=1)
        assert partitions is not None
        return partitions


def time_of(text: str) -> datetime:
    """`timestampAsOf`. The zone is part of it: the process that plans a read does not know the session's."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise Misuse(
            f"timestampAsOf={text!r} is no time: ISO 8601 with its zone, 2030-01-31T10:00:00Z or …+01:00",
            option="timestampAsOf",
        ) from None
    if found.tzinfo is None:
        raise Misuse(f"timestampAsOf={text!r} has no zone: write …Z, or …+01:00", option="timestampAsOf")
    return found


@dataclass
class RangePartition(InputPartition):
    """One task's part of the row keys."""

    start: bytes
    stop: bytes | None


class OmidReader(DataSourceReader):
    """One read: what all partitions share, and how the range is divided."""

    def __init__(self, plan: ReadPlan | ChangesPlan, key_range: KeyRange, partitions: int, schema: StructType) -> None:
        self._plan = plan
        self._range = key_range
        self._partitions = partitions
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        from pyomid.spark.databases import connection
        from pyomid.spark.source.read_task import divided

        with coded_errors():
            store = connection(self._plan.url, self._plan.database_id).deployment.store
            parts = divided(store, self._plan.table, self._range, self._partitions)
            return [RangePartition(*part) for part in parts] or [RangePartition(b"\0", b"\0")]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyomid.spark.databases import connection
        from pyomid.spark.frames.stale_reads import check_read
        from pyomid.spark.schema import arrow_of
        from pyomid.spark.source.changes import ChangesPlan, read_changes
        from pyomid.spark.source.read_task import keep_snapshot, read_range

        assert isinstance(partition, RangePartition)
        with coded_errors():
            plan, key_range = self._plan, KeyRange(partition.start, partition.stop)
            arrow = arrow_of(self._schema)
            conn = connection(plan.url, plan.database_id)
            if isinstance(plan, ChangesPlan):
                yield from read_changes(conn, plan, key_range, arrow)
                return
            check_read(plan)
            keep_snapshot(conn, plan)
            yield from read_range(conn, plan, key_range, arrow)
