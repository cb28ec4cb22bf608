"""A frame used twice with two filters, where Spark may push filters into Python data sources (decision 0117)."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    Filter,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
)

import pyomid.spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ALL = list(range(6))


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield spark
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def numbers(frame: DataFrame) -> list[int]:
    return sorted(row.k for row in frame.collect())


def test_a_frame_used_twice_keeps_each_filter(pushing: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(pushing, url)
    with db.begin() as tx:
        tx.write(pushing.range(6).toDF("k"), "numbers", row_key=["k"])
    frame = pushing.read.format("omid").options(url=url, table="numbers").load()
    low, high = frame.where("k < 3"), frame.where("k >= 3")
    assert numbers(low.union(high)) == ALL
    assert numbers(low.union(frame)) == sorted([0, 1, 2, *ALL])
    assert numbers(frame) == ALL
    assert numbers(low.cache().union(high)) == ALL
    low.unpersist()
    frame.createOrReplaceTempView("numbers_seen")
    above = "SELECT k FROM numbers_seen WHERE k > (SELECT min(k) FROM numbers_seen WHERE k > 2)"
    assert numbers(pushing.sql(above)) == [4, 5]


def pushed_source() -> type[DataSource]:
    """The smallest source that narrows its rows by pushed filters and hands all of them back to Spark. Made here, so
    that Spark's processes need not import this module."""
    rows, compare = ALL, {LessThan: operator.lt, GreaterThanOrEqual: operator.ge}

    class PushedReader(DataSourceReader):
        def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
            self.pushed: list[Any] = [each for each in filters if type(each) in compare]
            yield from filters

        def partitions(self) -> list[InputPartition]:
            return [InputPartition(0)]

        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            return ((k,) for k in rows if all(compare[type(each)](k, each.value) for each in self.pushed))

    class Pushed(DataSource):
        @classmethod
        def name(cls) -> str:
            return "pushed"

        def schema(self) -> str:
            return "k int"

        def reader(self, schema: Any) -> PushedReader:
            return PushedReader()

    return Pushed


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="Spark keeps one plan for all uses of a frame")
def test_spark_plans_each_use_of_a_frame_with_its_own_filters(pushing: SparkSession) -> None:
    """Once this passes, the data source may take filters."""
    pushing.dataSource.register(pushed_source())
    frame = pushing.read.format("pushed").load()
    assert numbers(frame.where("k < 3").union(frame.where("k >= 3"))) == ALL
