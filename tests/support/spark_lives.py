"""The ways of `table_lives` by which Spark's tasks read, without a JVM: planned in one process, read in another."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa

from pyomid.database.database import Database
from pyomid.database.lease_keeper import Lease
from pyomid.rows.schema import schema_of
from pyomid.spark.connections import Connection, connection
from pyomid.spark.frame_schema import arrow_of, struct_of
from pyomid.spark.large_transaction import LargeTransaction
from pyomid.spark.source.datasource import OmidDataSource
from pyomid.spark.source.read_task import ReadPlan, pair_rows
from table_lives import ALL, BATCH, Seen, Way, of_arrow

SPARK_WAYS: Final[dict[str, Way]] = {}


def _way(read: Way) -> Way:
    SPARK_WAYS[read.__name__] = read
    return read


def _source(db: Database, table: str, **options: str) -> OmidDataSource:
    given = {"url": db.url, "table": table, "numPartitions": "1", "batchRows": str(BATCH), **options}
    source: OmidDataSource = pickle.loads(pickle.dumps(OmidDataSource(given)))
    return source


def _task(reader: Any) -> Iterator[pa.RecordBatch]:
    """The one task of a planned read, elsewhere."""
    (part,) = reader.partitions()
    elsewhere, part = pickle.loads(pickle.dumps((reader, part)))
    return iter(elsewhere.read(part))


def _paused(batches: Iterator[pa.RecordBatch]) -> Seen:
    found = of_arrow([next(batches)])
    yield
    return found + of_arrow(batches)


@_way
def load(db: Database, table: str) -> Seen:
    source = _source(db, table)
    batches = _task(source.reader(source.schema()))
    return (yield from _paused(batches))


@_way
def load_before_its_task(db: Database, table: str) -> Seen:
    """The task runs after the change, as one that is tried again does."""
    source = _source(db, table)
    reader = source.reader(source.schema())
    batches = _task(reader)
    yield
    return of_arrow(batches)


@_way
def load_of_the_past(db: Database, table: str) -> Seen:
    with db.begin() as tx:
        source = _source(db, table, at=str(tx.start_ts))
    batches = _task(source.reader(source.schema()))
    return (yield from _paused(batches))


@_way
def load_with_where(db: Database, table: str) -> Seen:
    source = _source(db, table, where=f"id < {len(ALL)}")
    batches = _task(source.reader(source.schema()))
    return (yield from _paused(batches))


@_way
def load_of_changes(db: Database, table: str) -> Seen:
    since = db.table_info(table).generation
    source = _source(db, table, readChangeFeed="true", startingVersion=str(since + 1))
    batches = _task(source.reader(source.schema()))
    return (yield from _paused(batches))


@_way
def stream(db: Database, table: str) -> Seen:
    since = db.table_info(table).generation
    source = _source(db, table, readChangeFeed="true", startingVersion=str(since + 1))
    reader = source.streamReader(source.schema())
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    (part,) = reader.partitions(start, end)
    batches = iter(reader.read(pickle.loads(pickle.dumps(part))))
    return (yield from _paused(batches))


def _transaction(db: Database) -> tuple[Connection, LargeTransaction]:
    conn = connection(db.url)
    begun = conn.deployment.tso.begin()
    conn.deployment.tso.grant_lease(begun.start_ts)
    lease = Lease.of_another(begun.start_ts)
    return conn, LargeTransaction(conn, begun, level=None, run_id=None, lease=lease)


def _merge_plan(db: Database, table: str) -> tuple[ReadPlan, pa.Schema]:
    conn, transaction = _transaction(db)
    info = conn.table(table)
    plan = transaction.read_plan(info)
    names = tuple(column.name for column in schema_of(info).columns)
    plan = ReadPlan(plan.url, plan.table, plan.schema, names, plan.snapshot, BATCH)
    return plan, arrow_of(struct_of(plan.schema, names))


@_way
def merge_lookups(db: Database, table: str) -> Seen:
    """What a merge finds of a small source's rows."""
    plan, arrow = _merge_plan(db, table)
    keys = (pa.RecordBatch.from_pydict({"s0": ALL[at : at + BATCH]}) for at in range(0, len(ALL), BATCH))
    pairs = pair_rows(plan, [0], arrow, keys)

    def numbers(batch: pa.RecordBatch) -> list[int]:
        there = batch.filter(batch.column("in_target"))
        assert there.column("t0").equals(there.column("t1")), there
        return [int(number) for number in there.column("t0").to_pylist()]

    found = numbers(next(pairs))
    yield
    for batch in pairs:
        found += numbers(batch)
    return found
