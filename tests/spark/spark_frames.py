"""What many tests write and read: a table as a frame, its rows, and a stock of items by shop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyomid.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = tuple[Any, ...]

STOCK_DDL = "item string, shop int, count long, note string"
KEY = ["item", "shop"]
STOCK: tuple[Row, ...] = (("a", 1, 10, None), ("b", 1, 20, "old"), ("c", 2, 30, "old"), ("d", 2, 0, None))


def load(spark: SparkSession, url: str, table: str, **options: str) -> DataFrame:
    return spark.read.format("omid").options(url=url, table=table, **options).load()


def rows(content: DataFrame) -> list[Row]:
    return sorted((tuple(row) for row in content.collect()), key=repr)


def stock_frame(spark: SparkSession, *rows: Row, ddl: str = STOCK_DDL) -> DataFrame:
    return spark.createDataFrame(list(rows), ddl).coalesce(1)


def make_stock(spark: SparkSession, url: str, table: str, *, level: str | None = None) -> None:
    with pyomid.spark.connect(spark, url).begin(conflict_level=level) as tx:
        tx.write(stock_frame(spark, *STOCK), table, row_key=KEY)


def stock_of(spark: SparkSession, url: str, table: str) -> list[Row]:
    """The rows in the order of their keys."""
    return [tuple(row) for row in load(spark, url, table, numPartitions="1").collect()]


def change_stock_of_a(spark: SparkSession, url: str, table: str, column: str, value: Any) -> None:
    """Another transaction's commit, of one column of the row a."""
    kind = "long" if column == "count" else "string"
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(stock_frame(spark, ("a", 1, value), ddl=f"item string, shop int, {column} {kind}"), table)
