"""Tables as temporary views: what SQL sees of them, and what it writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import pyomid
import pyomid.spark
from pyomid.errors import Misuse, UnknownTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.connect]


@pytest.fixture(scope="module", autouse=True)
def tables(spark: SparkSession, url: str) -> None:
    rows = spark.range(3).selectExpr("id", "id * 2 AS twice")
    with pyomid.spark.connect(spark, url).begin() as tx:
        for table in ("stock", "right-hand"):
            tx.write(rows, table, row_key="id")
    with pyomid.connect(url) as db:
        db.create_table("bytes_only", ["f"])


def count(spark: SparkSession) -> int:
    (row,) = spark.sql("SELECT count(*) FROM stock JOIN `right-hand` USING (id)").collect()
    return int(row[0])


def test_views_select_and_insert_and_all_show_one_snapshot(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    assert db.views() == ["right-hand", "stock"]
    with db.begin() as tx:
        tx.delete("stock", where="id = 0")
    assert count(spark) == 3
    spark.sql("INSERT INTO stock VALUES (7, 14)")
    spark.sql("INSERT INTO `right-hand` (twice, id) SELECT 14L, 7L")
    assert count(spark) == 3, "what was inserted is not seen before the views are made anew"
    db.views()
    assert count(spark) == 3
    assert sorted(row["id"] for row in spark.table("stock").collect()) == [1, 2, 7]
    assert db.views("stock", prefix="omid_") == ["omid_stock"]
    assert spark.table("omid_stock").count() == 3


def test_an_insert_keeps_what_it_does_not_name_in_a_view_as_in_sql(spark: SparkSession, url: str) -> None:
    """Spark fills it with nulls before pyomid sees the rows; so a null keeps what is stored, on both ways."""
    db = pyomid.spark.connect(spark, url)
    kept = []
    for insert in (db.sql, spark.sql):
        db.sql("CREATE TABLE noted (k INT, n INT, v INT, note STRING, PRIMARY KEY (k, n))")
        db.sql("INSERT INTO noted VALUES (1, 1, 1, 'kept'), (2, 1, 2, 'two')")
        db.views("noted")
        insert("INSERT INTO noted (n, k, v) VALUES (1, 1, 2), (9, 9, 9)")
        insert("INSERT INTO noted VALUES (1, 1, 3, NULL)")
        insert("INSERT INTO noted BY NAME SELECT 1 AS n, 2 AS k, 'new' AS note")
        kept.append(sorted(tuple(row) for row in db.read("noted").collect()))
        db.sql("UPDATE noted SET note = NULL WHERE k = 1")
        insert("INSERT OVERWRITE noted (k, n, v) VALUES (2, 1, 7)")
        kept[-1] += [tuple(row) for row in db.read("noted").collect()]
        db.sql("DROP TABLE noted")
    assert kept == [[(1, 1, 3, "kept"), (2, 1, 2, "new"), (9, 9, 9, None), (2, 1, 7, None)]] * 2


def test_views_that_cannot_be_are_refused(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    with pytest.raises(UnknownTable, match="did you mean 'stock'"):
        db.views(["stok"])
    with pytest.raises(Misuse, match="has no schema"):
        db.views(["bytes_only"])
    with db.begin() as tx:
        tx.write(spark.range(1), "STOCK", row_key="id")
    with pytest.raises(Misuse, match="'STOCK' and 'stock' differ only by case"):
        db.views()
    with pyomid.connect(url) as client:
        client.drop_table("STOCK")
