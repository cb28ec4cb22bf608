"""Spark with Apache Omid's own TSO: a distributed read works, a distributed write is refused with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from test_our_client_on_java_tso import database, java, java_tso  # noqa: F401  (fixtures)

import pyomid.spark
from java_omid import JavaClient
from pyomid.cli.hbase import HBaseServer
from pyomid.database.database import Database
from pyomid.errors import Misuse, UnknownTable
from pyomid.spark.connections import close_connections

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

pytestmark = [pytest.mark.spark, pytest.mark.hbase, pytest.mark.long]

DDL = "name string, count long"


@pytest.fixture(scope="module")
def url(hbase: HBaseServer, cluster: object) -> Iterator[str]:
    """A URL of its own: Spark's workers live on, and keep what they opened by its URL."""
    yield f"omid+hbase://{hbase.quorum}/hbase?requestSeconds=6"
    close_connections()


def count(number: int) -> bytes:
    return number.to_bytes(8, "big")


def loaded(spark: SparkSession, url: str, table: str) -> DataFrame:
    reader = spark.read.format("omid").schema(DDL).option("url", url).option("table", table)
    return reader.options(rowKey="name", mapping="count=f:count", numPartitions="4").load()


def rows(content: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in content.collect())


def test_a_distributed_read_sees_exactly_the_commits_of_both(
    spark: SparkSession,
    url: str,
    database: Database,  # noqa: F811
    java: JavaClient,  # noqa: F811
    table: str,
) -> None:
    with database.begin() as tx:
        for number in range(40):
            tx.table(table).put(b"%02d" % number, {b"f:count": count(number)})
    java.begin("committed")
    java.put("committed", table, b"50", b"f", b"count", count(50))
    java.commit("committed")
    java.begin("open")
    java.put("open", table, b"51", b"f", b"count", count(51))
    expected = [(f"{number:02}", number) for number in (*range(40), 50)]
    frame = loaded(spark, url, table)
    assert rows(frame) == expected
    with pyomid.spark.connect(spark, url).begin() as tx:
        java.commit("open")
        schema: StructType = frame.schema
        seen = tx.read(table, schema=schema, row_key="name", mapping={"count": "f:count"}, partitions=3)
        assert rows(seen) == expected, "committed behind the snapshot"
        assert seen.count() == 41
    assert rows(loaded(spark, url, table)) == [*expected, ("51", 51)]


def test_a_distributed_write_is_refused_before_any_change(
    spark: SparkSession,
    url: str,
    database: Database,  # noqa: F811
    table: str,
    table_name: str,
) -> None:
    db = pyomid.spark.connect(spark, url)
    frame = spark.createDataFrame([("a", 1)], DDL)
    words = "Apache Omid's.*does not support branches.*pyomid tso"
    with pytest.raises(Misuse, match=words), db.begin() as tx:
        tx.write(frame, f"{table_name}_new", row_key="name")
    with pytest.raises(Misuse, match=words), db.begin() as tx:
        tx.delete(frame, table)
    with pytest.raises(Exception, match="does not support branches") as raised:
        frame.write.format("omid").options(url=url, table=f"{table_name}_new", rowKey="name").mode("append").save()
    assert isinstance(pyomid.spark.original_error(raised.value), Misuse)
    with pytest.raises(UnknownTable):
        database.table_info(f"{table_name}_new")
