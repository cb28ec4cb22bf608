"""The Python data source `omid`: `spark.read.format("omid")` and `df.write.format("omid")`.

Spark creates a `DataSource` once per `load()`, pickles it, and calls its parts in separate processes, so:

    read     the start is drawn in `__init__`; all partitions have it (S5); `load()` and each task share a lease on
             it, which expires: Spark does not report the end of a read
    write    the start is that of a `LargeTransaction`, as in `pyomid.spark.transaction`, under its own lease until
             `commit` or `abort`; every process that Spark calls continues it. Each task attempt writes a branch and
             returns it in its message; `commit` decides once; `abort` looks up the outcome and never undoes a
             commit (S2)

Filters are not pushed down: if a DataFrame is used twice, Spark 4.3 applies the filters of one use to the other. Key
ranges and comparisons (`where`) are given as options.
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
    """The data source; registered by `pyomid.spark.register`, or found by Spark as `pyspark_omid.DefaultSource`."""

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
            if is_made(self._url) and not self._is_view:  # a view may still become a read or a write
                self._start(create=False)

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        """Return the catalog's schema, or the columns of it that the option `columns` names. The read keeps this
        schema: a column may be renamed, and its name given to another, before the frame is computed (X1)."""
        from pyomid.row_codec.schema import schema_of, select_columns
        from pyomid.spark.schema import struct_of

        with coded_errors():
            self._start(create=False)
            self._keep()
            info = self._planned = self._info()
            schema = schema_of(info)
            struct = struct_of(schema, select_columns(info.name, schema, self._options.names("columns"), any_case=True))
            if self._options.flag("readChangeFeed"):
                from pyomid.spark.source.changes import with_change_columns

                return with_change_columns(info, struct)
            return struct

    def __getstate__(self) -> dict[str, Any]:
        """Return the pickled state. Spark pickles a source right after its creation, but a load is first asked for its
        schema. A source that was not asked is a write, or a load with a given schema: it takes its own lease until that
        is known.
        """
        with coded_errors():
            if self._shares and not self._is_read:
                self._own_lease()
        return self.__dict__

    def reader(self, schema: StructType) -> OmidReader:
        with coded_errors():
            self._start(create=False)
            leased_ts = self._keep()
            if (
                self._owns and leased_ts != self._begun.start_ts
            ):  # on one start a new TSO would end the shared lease too
                self._connection().leases.end_of(self._begun.start_ts)
            if self._options.flag("readChangeFeed"):
                return self._change_reader(schema)
            for name in ("starting", "ending"):
                if self._options.text(name) is not None:
                    raise Misuse(f"option {name} needs readChangeFeed=true", option=name)
            table_schema, wanted = self._readable(schema)
            plan = self._read_plan(table_schema, wanted)
            return OmidReader(plan, self._range(table_schema, plan.where), self._partitions(), schema)

    def _change_reader(self, schema: StructType) -> OmidReader:
        from pyomid.client.changes import check_table
        from pyomid.spark.source.changes import (
            ChangesPlan,
            keep_changes,
            known_times,
            option_place,
            table_columns,
            until_of,
        )

        self._refuse_where()
        since = option_place(self._options, "starting")
        if since is None:
            raise Misuse("option starting is missing: give the timestamp or bookmark after which changes are read")
        conn = self._connection()
        table_schema, wanted = self._readable(table_columns(schema))
        check_table(self._info(), since)
        until = until_of(conn, since, option_place(self._options, "ending") or self._begun.start_ts)
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
        from pyomid.spark.source.changes import option_place, table_columns
        from pyomid.spark.source.streams import BOOKMARK_S, OmidStreamReader, StreamPlan
        from pyomid.spark.supported_pyspark import ReadMaxRows

        with coded_errors():
            if not self._options.flag("readChangeFeed"):
                raise Misuse(
                    "a stream reads a table's changes, with the columns _change_type, _commit_version and "
                    "_commit_timestamp: give option readChangeFeed=true",
                    option="readChangeFeed",
                )
            self._refuse_where()
            if self._options.text("ending") is not None:
                raise Misuse("option ending is for spark.read: a stream runs until it is stopped", option="ending")
            rows = self._options.whole("maxRowsPerTrigger", least=1)
            if rows is not None and ReadMaxRows is None:
                raise Misuse(
                    "option maxRowsPerTrigger needs PySpark 4.2: earlier versions do not pass a source its query's "
                    "position",
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
                option_place(self._options, "starting"),
                self._options.seconds("bookmarkSeconds") or BOOKMARK_S,
                rows,
            )
            return OmidStreamReader(plan, schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> OmidStreamWriter:
        from pyomid.spark.schema import fields_of
        from pyomid.spark.source.streams import OmidStreamWriter

        def begin() -> OmidWriter:
            """Begin the transaction of one batch, under its own lease."""
            self._refuse_past()
            self._start(create=True)
            conn = self._connection()
            if self._owns:
                conn.leases.end_of(self._begun.start_ts)
            begun = conn.deployment.tso.begin()
            conn.require_branches()
            conn.hold_by_lease(begun, self._lease_s)
            try:
                fields = fields_of(schema)
                return OmidWriter.prepared(
                    self._options, begun, fields, overwrite=overwrite, database_id=self._database_id
                )
            except BaseException:
                conn.leases.end_of(begun.start_ts)
                raise

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
                    "option where is for reads and does not choose rows to replace; delete them by tx.delete(table, "
                    "where=…) and write with tx.write in the same transaction",
                    option="where",
                )
            if self._options.text("snapshotTimestamp") is not None and not self._is_view:
                raise Misuse(
                    "snapshotTimestamp is for reads: a write under another transaction's start would share its "
                    "outcome; omit the option, or write in that transaction by tx.write",
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
        """Return the id of the given snapshot's database; empty if not given."""
        text = self._options.text("snapshotDatabase", "")
        try:
            return bytes.fromhex(text or "")
        except ValueError:
            raise Misuse(
                f"option snapshotDatabase={text!r} is not a valid database id", option="snapshotDatabase"
            ) from None

    @property
    def _begun(self) -> BeginReply:
        assert self._begun_at is not None
        return self._begun_at

    def _start(self, *, create: bool, is_write: bool = False) -> None:
        """Begin, once. Only a write creates a missing database; a read raises `Misuse`, because its URL is probably
        mistyped."""
        from pyomid.spark.databases import connection

        if self._begun_at is None:
            conn = connection(self._url, self._database_id, create=create)
            self._begun_at = self._begin(None if is_write else self._options.whole("snapshotTimestamp", least=1))
            self._database_id = self._database_id or conn.database_id

    def _begin(self, given: int | None) -> BeginReply:
        """Return a new start, to be leased once its use is known, or the given one, which another lease holds."""
        from pyomid.types import BeginReply

        self._lease_s = self._options.seconds("leaseSeconds")
        epoch = self._options.whole("snapshotEpoch")
        if given is not None and epoch is not None:
            return BeginReply(given, epoch)
        conn = self._connection()
        at = self._past()
        if at is not None:
            return self._begin_past(conn, at)
        begun = conn.deployment.tso.begin()
        if given is not None:
            conn.end(begun)
            if given > begun.start_ts:
                raise Misuse(f"snapshotTimestamp {given} was never issued: the latest timestamp is {begun.start_ts}")
            if conn.has_leases:
                conn.deployment.tso.grant_lease(given, self._lease_s)
            return BeginReply(given, begun.epoch)
        self._shares = conn.has_leases
        return begun

    def _past(self) -> int | datetime | None:
        """Return the past snapshot that the options name, or None."""
        version, moment = self._options.whole("versionAsOf", least=1), self._options.text("timestampAsOf")
        if moment is None:
            given: int | datetime | None = version
        elif version is not None:
            raise Misuse("versionAsOf and timestampAsOf each name a snapshot: give only one of them")
        else:
            given = time_of(moment)
        if given is not None and self._options.flag("readChangeFeed"):
            raise Misuse("versionAsOf and timestampAsOf are for reads of rows: for changes give starting and ending")
        if given is not None and self._options.text("snapshotTimestamp") is not None:
            raise Misuse("snapshotTimestamp already names the snapshot: omit versionAsOf and timestampAsOf")
        return given

    def _refuse_past(self) -> None:
        if self._past() is not None:
            raise Misuse("versionAsOf and timestampAsOf are for reads; to restore a table use pyomid.spark.restore")

    def _begin_past(self, conn: Connection, at: int | datetime) -> BeginReply:
        """Return a past snapshot, held by a shared lease before anything is read (C13): its start may belong to another
        transaction."""
        from pyomid.client.past_snapshot import moment_of, past_begin
        from pyomid.types import BeginReply

        moment = moment_of(conn.deployment, at)
        begun = conn.deployment.tso.begin()
        try:
            found, _ = past_begin(
                conn.deployment, at, moment, begun, lambda start_ts: conn.share_lease(start_ts, self._lease_s)
            )
        finally:
            conn.end(begun)
        self._shares = self._is_read = self._is_past = True
        return BeginReply(found.read_at, begun.epoch)

    def _keep(self) -> int:
        """Share a lease for a load's snapshot; return the start that the lease is on, or 0 if another lease holds the
        snapshot. Writes never call this: it would hold W for a whole term after they end."""
        self._is_read = True
        if not self._shares:
            return 0
        leased_ts = self._connection().share_lease(self._begun.start_ts, self._lease_s)
        if not self._is_past:
            self._connection().end(self._begun)
        return leased_ts

    def _own_lease(self) -> None:
        self._connection().hold_by_lease(self._begun, self._lease_s)
        self._owns = True

    def _info(self) -> TableInfo:
        from pyomid.client.validation import check_was_there

        info = self._connection().table(self._table)
        if self._is_past:
            check_was_there(info, self._begun.start_ts)
        return info

    def _readable(self, schema: StructType) -> tuple[TableSchema, tuple[str, ...]]:
        """Return the columns to read, with the table's schema; for a table without one, a schema made from the
        reader's."""
        from pyomid.row_codec.schema import check_row_key, make_schema, parse_column_mapping, parse_row_key
        from pyomid.spark.schema import check_read_fields, fields_of

        info, fields = self._info(), fields_of(schema)
        if not self._is_view and self._planned is not None and self._planned.generation == info.generation:
            info = self._planned  # not for a view: its later reads may see later columns
        row_key = self._options.text("rowKey")
        if info.schema is not None:
            if row_key is not None:
                check_row_key(info, parse_row_key(row_key))
            return info.schema, check_read_fields(info, info.schema, fields)
        if row_key is None:
            raise Misuse(
                f"table {info.name!r} has no schema in the catalog: give its key columns in the option rowKey",
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
        """Return the snapshot with its expiry floor (E1)."""
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
                "option where is for reads of rows, not of changes: call .where(…) on the loaded frame",
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
    """Return the time of `timestampAsOf`. It needs a zone: the process that plans a read does not know the
    session's."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        raise Misuse(
            f"timestampAsOf={text!r} is not a valid time: give ISO 8601 with a zone, 2030-01-31T10:00:00Z or …+01:00",
            option="timestampAsOf",
        ) from None
    if found.tzinfo is None:
        raise Misuse(f"timestampAsOf={text!r} has no time zone: append Z or +01:00", option="timestampAsOf")
    return found


@dataclass
class RangePartition(InputPartition):
    """The range of row keys that one task reads."""

    start: bytes
    stop: bytes | None


class OmidReader(DataSourceReader):
    """One read: the plan that all partitions share, and the division of its range."""

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
