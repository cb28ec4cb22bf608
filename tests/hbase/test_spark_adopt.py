"""Adopting a table by a Spark job: killed halfway and rerun, it leaves a table that every transaction sees whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as f

import pyomid.spark
from pyomid.database.database import Database
from pyomid.errors import Misuse, UnknownTable
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.regions.admin import Admin, FamilyDescriptor, TableDescriptor
from pyomid.omid.hbase.store import HBaseStore
from pyomid.types import Column, KeyRange, RowWrite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.hbase, pytest.mark.long]

ROWS = 3000
OLD, NEW = 3, 7
Q = Column(b"f", b"count")


def key(number: int) -> bytes:
    return b"%06d" % number


def untransacted(cluster: Cluster, store: HBaseStore, table: str) -> None:
    """Three regions; every row twice, each time under another version, as plain HBase programs leave them."""
    Admin(cluster).create_table(TableDescriptor(table, (FamilyDescriptor(b"f"),)), [key(1000), key(2000)])
    for version in (OLD, NEW):
        rows = [RowWrite(key(n), ((Q, (n * version).to_bytes(8, "big")),)) for n in range(ROWS)]
        store.write_cells(table, version, rows)


def bare_records(store: HBaseStore, table: str) -> int:
    return sum(int((batch.rec_commit == 0).sum()) for batch in store.scan(table, KeyRange()))


def test_an_adoption_job_survives_a_dead_worker(
    spark: SparkSession, url: str, database: Database, store: HBaseStore, cluster: Cluster, table_name: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    db = pyomid.spark.connect(spark, url)
    untransacted(cluster, store, table_name)
    note = tmp_path / "note"
    killed = subprocess.run(
        [sys.executable, "-m", "pyomid", "adopt", url, table_name, "f", "--spark", "local[1]"],
        env={**os.environ, "PYOMID_CRASH_AT": "spark.adopt.piece_done", "PYOMID_CRASH_NOTE": str(note)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert note.exists(), killed.stderr[-3000:]
    assert killed.returncode != 0
    assert 0 < bare_records(store, table_name) < 2 * ROWS, "one partition was adopted, and only one"
    with pytest.raises(UnknownTable), database.begin() as tx:
        tx.table(table_name).get(key(0))

    left = bare_records(store, table_name)
    done = db.adopt(table_name, ["f"])
    assert (done.rows, done.records, done.adopted) == (ROWS, 2 * ROWS, left)
    assert done.partitions >= 3
    assert bare_records(store, table_name) == 0
    assert "adopted" in str(done)
    with db.begin() as tx:
        content = tx.read(table_name, schema=schema_of_rows(), row_key="name", mapping={"count": "f:count"})
        assert content.count() == ROWS
        assert content.agg(f.sum("count")).first()[0] == NEW * sum(range(ROWS))

    again = db.adopt(table_name, ["f"])
    assert (again.partitions, again.adopted) == (0, 0)
    assert "already" in str(again)
    database.drop_table(table_name)


def test_a_cell_from_the_future_stops_the_job(
    spark: SparkSession, url: str, database: Database, store: HBaseStore, cluster: Cluster, table_name: str
) -> None:
    untransacted(cluster, store, table_name)
    future = database._core.deployment.tso.begin().start_ts + (1 << 50)
    store.write_cells(table_name, future, [RowWrite(key(2500), ((Q, b"12345678"),))])
    with pytest.raises(Misuse, match=str(future)):
        pyomid.spark.connect(spark, url).adopt(table_name, ["f"])
    with pytest.raises(UnknownTable), database.begin() as tx:
        tx.table(table_name).get(key(0))
    store.drop_table(table_name)


def schema_of_rows():  # type: ignore[no-untyped-def]
    from pyspark.sql.types import LongType, StringType, StructField, StructType

    return StructType([StructField("name", StringType()), StructField("count", LongType())])
