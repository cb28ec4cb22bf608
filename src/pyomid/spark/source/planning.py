"""Plans of the data source: what tasks read or write, and at which start timestamp."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyomid.database.open_database import checked_at
from pyomid.database.validation import check_was_there
from pyomid.errors import Misuse
from pyomid.protocol.expiry import expiring
from pyomid.protocol.reading import Snapshot
from pyomid.rows.row_key import key_layout
from pyomid.rows.schema import (
    check_row_key,
    make_schema,
    parse_column_mapping,
    parse_row_key,
    schema_of,
    select_columns,
)
from pyomid.spark.coded_errors import coded_errors
from pyomid.spark.connections import Connection, connection
from pyomid.spark.frame_schema import arrow_of, check_read_fields, fields_of, struct_of
from pyomid.spark.held_start import HeldStart, Keeper
from pyomid.spark.source.change_rows import (
    ChangesPlan,
    base_start,
    change_ends,
    read_changes,
    starting_of,
    table_columns,
    with_change_columns,
)
from pyomid.spark.source.key_ranges import Where, key_range, parse_bound
from pyomid.spark.source.options import ENDING, STARTING, Options
from pyomid.spark.source.read_task import BATCH_ROWS, ReadPlan, check_read, divided, intersection, read_range
from pyomid.spark.source.stream_reader import BOOKMARK_S, HAS_READ_LIMITS, OmidStreamReader, StreamPlan
from pyomid.types import NO_KEYS, KeyRange, TableInfo, TableSchema, life_of
from pyomid.wiring import is_made

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyomid.spark.source.writer import OmidStreamWriter, OmidWriter


class Planner:
    """Plans one `load()`, `save()` or streaming query. It is pickled with its data source."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._url = options.required("url")
        self._table = options.required("table")
        self._database_id = _given_database(options)
        self._held: HeldStart | None = None
        """The start timestamp of a load or of a write; None until it is drawn."""
        self._planned: TableInfo | None = None
        self._is_view = options.flag("_view")
        if is_made(self._url) and not self._is_view:  # a view may still become a read or a write
            self._started()

    def prepare_to_leave(self) -> None:
        """Lease a start timestamp that only this process holds, before the source is pickled. When this is called,
        Spark has already asked a load for its schema. Any other source is a write, or a load with a given schema, and
        gets a lease of its own for the present."""
        if self._held is not None and self._held.keeper is Keeper.PROCESS:
            self._held = self._held.owned(self._connection())

    # Reads

    def schema(self) -> StructType:
        """Return the catalog's schema, or those of its columns that the option `columns` names. The read keeps this
        schema, because a column may be renamed, and its name given to another column, before the frame is computed
        (X1)."""
        self._held = self._started().shared(self._connection())
        info = self._planned = self._info()
        schema = schema_of(info)
        struct = struct_of(schema, select_columns(info.name, schema, self._options.names("columns"), any_case=True))
        if self._options.flag("readChangeFeed"):
            return with_change_columns(info, struct)
        return struct

    def reader(self, schema: StructType) -> OmidReader:
        if self._options.flag("readChangeFeed"):
            return self._change_reader(schema)
        held = self._held = self._started().shared(self._connection())
        for name in (*STARTING, *ENDING):
            if self._options.text(name) is not None:
                raise Misuse(
                    f"option {name} needs option readChangeFeed=true; give both options, or omit {name}", option=name
                )
        info = self._info()
        table_schema, wanted = self._readable(info, schema)
        text = self._options.text("where")
        where = None if text is None else Where.of(text, self._table, table_schema)
        conn = self._connection()
        plan = ReadPlan(
            conn.task_url,
            life_of(info),
            table_schema,
            wanted,
            expiring(self._snapshot(held), info),
            self._options.whole("batchRows", least=1) or BATCH_ROWS,
            held,
            where,
        )
        return OmidReader(plan, self._range(table_schema, where), self._partitions(), schema)

    def _change_reader(self, schema: StructType) -> OmidReader:
        self._refuse_where()
        held, conn, info = self._started(), self._connection(), self._info()
        since, until = change_ends(conn, info, self._options, held.start_ts)
        self._held = held.shared(conn)  # after the ends: if both are too old, the error names what the program gave
        table_schema, wanted = self._readable(info, table_columns(schema))
        plan = ChangesPlan(
            conn.task_url,
            life_of(info),
            table_schema,
            wanted,
            since,
            until,
            HeldStart.position(conn, base_start(since), held.term_s),
        )
        plan.held.renew(conn)
        return OmidReader(plan, self._range(table_schema), self._partitions(), schema)

    def stream_reader(self, schema: StructType) -> OmidStreamReader:
        if not self._options.flag("readChangeFeed"):
            raise Misuse(
                "a stream reads a table's changes, with the columns _change_type, _commit_version and "
                "_commit_timestamp; give option readChangeFeed=true",
                option="readChangeFeed",
            )
        self._refuse_where()
        ending = self._options.only_one(*ENDING)
        if ending is not None:
            raise Misuse(
                f"option {ending} is only for spark.read, because a stream runs until it is stopped; omit the option",
                option=ending,
            )
        rows = self._options.whole("maxRowsPerTrigger", least=1)
        if rows is not None and not HAS_READ_LIMITS:
            raise Misuse(
                "option maxRowsPerTrigger needs PySpark 4.2 or later, because earlier versions do not pass the query's "
                "position to a source",
                option="maxRowsPerTrigger",
            )
        self._started()
        table_schema, wanted = self._readable(self._info(), table_columns(schema))
        plan = StreamPlan(
            self._url,
            self._table,
            self._database_id,
            table_schema,
            wanted,
            self._range(table_schema),
            self._partitions(),
            starting_of(self._options),
            self._options.seconds("bookmarkSeconds") or BOOKMARK_S,
            rows,
        )
        return OmidStreamReader(plan, schema)

    def _refuse_where(self) -> None:
        if self._options.text("where") is not None:
            raise Misuse(
                "option where is for reads of rows, not of changes; call .where(…) on the loaded frame",
                option="where",
            )

    def _info(self) -> TableInfo:
        info = self._connection().table(self._table)
        if self._held is not None and self._held.is_past:
            check_was_there(info, self._held.start_ts)
        return info

    def _readable(self, info: TableInfo, schema: StructType) -> tuple[TableSchema, tuple[str, ...]]:
        """Return the table's schema and the columns to read. For a table without a schema, the reader's schema makes
        one."""
        fields = fields_of(schema)
        if not self._is_view and self._planned is not None and self._planned.generation == info.generation:
            info = self._planned  # not for a view: its later reads may see later columns
        row_key = self._options.text("rowKey")
        if info.schema is not None:
            if row_key is not None:
                check_row_key(info, parse_row_key(row_key))
            return info.schema, check_read_fields(info, info.schema, fields)
        if row_key is None:
            raise Misuse(
                f"table {info.name!r} has no schema in the catalog; give its key columns in the option rowKey",
                table=info.name,
            )
        mapping = parse_column_mapping(self._options.text("mapping") or "")
        family = (self._options.text("family") or info.families[0].decode()).encode()
        return make_schema(fields, parse_row_key(row_key), mapping, family=family), tuple(f.name for f in fields)

    def _snapshot(self, held: HeldStart) -> Snapshot:
        text = self._options.text("_ownBranches")
        own = frozenset(int(branch) for branch in text.split(",")) if text else frozenset()
        return Snapshot(held.start_ts, held.begun.epoch, own)

    def _range(self, schema: TableSchema, where: Where | None = None) -> KeyRange:
        layout = key_layout(schema)
        bounds = [parse_bound(layout, self._options.text(name)) for name in ("rowStart", "rowStop", "rowPrefix")]
        found = key_range(layout, *bounds)
        return found if where is None else intersection(found, where.keys(layout)) or NO_KEYS

    def _partitions(self) -> int:
        return self._options.whole("numPartitions", least=1) or os.cpu_count() or 1

    # Writes

    def writer(self, schema: StructType, *, overwrite: bool) -> OmidWriter:
        self._refuse_past()
        if self._options.text("where") is not None:
            raise Misuse(
                "option where is for reads and cannot choose the rows that a write replaces; delete these rows with "
                "tx.delete(table, where=…) and write with tx.write in the same transaction",
                option="where",
            )
        if self._options.text("_snapshotVersion") is not None and not self._is_view:
            raise Misuse(
                "_snapshotVersion is for reads: a write under another transaction's start timestamp would share that "
                "transaction's outcome; omit the option, or write in that transaction with tx.write",
                option="_snapshotVersion",
            )
        return self._begun(schema, overwrite=overwrite)

    def stream_writer(self, schema: StructType, *, overwrite: bool) -> OmidStreamWriter:
        from pyomid.spark.source.writer import OmidStreamWriter

        def begin() -> OmidWriter:
            self._refuse_past()
            return self._begun(schema, overwrite=overwrite)

        for name, instead in (("runId", "the query's id identifies each batch"), ("ifExists", "a stream appends")):
            if self._options.text(name) is not None:
                raise Misuse(f"option {name} is not for streams, because {instead}; omit the option", option=name)
        return OmidStreamWriter(begin)

    def _begun(self, schema: StructType, *, overwrite: bool) -> OmidWriter:
        """Begin a transaction under its own lease, because tasks write under its start timestamp. The start timestamp
        that a source draws before its use is known may also belong to another transaction."""
        from pyomid.spark.source.writer import OmidWriter

        conn = self._opened(create=True)
        if self._held is not None:
            self._held.end(conn)
        held = HeldStart.of_a_job(conn, self._term_s).owned(conn)
        try:
            return OmidWriter.prepared(
                conn,
                self._options,
                held.begun,
                fields_of(schema),
                overwrite=overwrite,
                partitions=self._partitions(),
            )
        except BaseException:
            held.end(conn)
            raise

    def _refuse_past(self) -> None:
        if self._past() is not None:
            raise Misuse("option at is for reads; to restore a table, call db.restore(table, at)", option="at")

    # The start

    def _started(self) -> HeldStart:
        """Return a read's start timestamp, drawn at the first call. Raises `Misuse` if the database is missing, because
        its URL is probably mistyped."""
        if self._held is None:
            conn = self._opened(create=False)
            given = self._options.whole("_snapshotVersion", least=1)
            epoch, at = self._options.whole("_snapshotEpoch"), self._past()
            if given is not None:
                self._held = HeldStart.given(conn, given, epoch, self._term_s)
            elif at is not None:
                self._held = HeldStart.past(conn, at, self._term_s)
            else:
                self._held = HeldStart.drawn(conn, self._term_s)
        return self._held

    @property
    def _term_s(self) -> float | None:
        return self._options.seconds("leaseSeconds")

    def _past(self) -> int | datetime | None:
        """Return the past snapshot that the options name, or None."""
        if self._options.only_one("at", "_snapshotVersion") != "at":
            return None
        if self._options.flag("readChangeFeed"):
            raise Misuse(f"option at is for reads of rows; for changes give {STARTING[0]} and {ENDING[0]}", option="at")
        return checked_at(self._options.required("at"), "option at")

    def _opened(self, *, create: bool) -> Connection:
        conn = connection(self._url, self._database_id, create=create)
        self._database_id = conn.database_id
        return conn

    def _connection(self) -> Connection:
        return connection(self._url, self._database_id)


def _given_database(options: Options) -> bytes:
    """Return the id of the database of the given snapshot; empty if no id is given."""
    name = "_snapshotDatabase"
    text = options.text(name) or ""
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise Misuse(f"option {name}={text!r} is not a valid database id", option=name) from None


@dataclass
class RangePartition(InputPartition):
    """The range of row keys that one task reads."""

    key_range: KeyRange


class OmidReader(DataSourceReader):
    """One read: the plan that all partitions share, and the partitions of its key range."""

    def __init__(self, plan: ReadPlan | ChangesPlan, key_range: KeyRange, partitions: int, schema: StructType) -> None:
        self._plan = plan
        self._range = key_range
        self._partitions = partitions
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        with coded_errors():
            store = connection(self._plan.url).deployment.store
            parts = divided(store, self._plan.table.name, self._range, self._partitions)
            return [RangePartition(part) for part in parts or [NO_KEYS]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RangePartition)
        with coded_errors():
            plan, key_range, arrow = self._plan, partition.key_range, arrow_of(self._schema)
            conn = connection(plan.url)
            if isinstance(plan, ReadPlan):
                check_read(plan)
                plan.held.renew(conn)
                yield from read_range(conn, plan, key_range, arrow)
            else:
                yield from read_changes(conn, plan, key_range, arrow)
