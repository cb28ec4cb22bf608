"""Conditions that bound what is read, and frames of another snapshot that are not written."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f
from spark_frames import KEY, change_stock_of_a, make_stock, stock_frame, stock_of

import pyomid
import pyomid.spark
from pyomid.errors import ConflictError, Misuse
from pyomid.spark import SparkTransaction
from pyomid.spark.loads import allowed_keys, keys_of
from pyomid.spark.source.read_task import WRITES
from pyomid.types import NO_KEYS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# Stale reads


def test_a_write_of_a_frame_of_another_snapshot_is_refused(spark: SparkSession, url: str) -> None:
    """Two calls, read then write, would lose what was committed in between; whichever session read, in whatever job."""
    db = pyomid.spark.connect(spark, url)
    make_stock(spark, url, "stale")
    another = spark.newSession()
    pyomid.spark.connect(another, url)
    read, elsewhere = (each.read.format("omid").options(url=url, table="stale").load() for each in (spark, another))
    beside = stock_frame(spark, ("a", 1, "x"), ddl="item string, shop int, more string")
    added = read.groupBy("item", "shop").agg(f.sum("count").alias("count"))
    change_stock_of_a(spark, url, "stale", "count", 99)
    writes: list[Callable[[SparkTransaction], object]] = [
        lambda tx: tx.write(added, "stale"),
        lambda tx: tx.write(beside.join(f.broadcast(read), KEY).drop("more"), "stale"),
        lambda tx: tx.merge(elsewhere, "stale", on=KEY).whenMatched().update({"count": "source.count"}).merge(),
        lambda tx: tx.delete(elsewhere.where("count < 50"), "stale"),
    ]
    for write in writes:
        with pytest.raises(Misuse, match="reads the same table at another snapshot"):
            with db.begin() as tx:
                write(tx)
    assert stock_of(spark, url, "stale")[0] == ("a", 1, 99, None)
    with db.begin() as tx:
        tx.write(tx.read("stale").where("count = 99").withColumn("note", f.lit("own snapshot")), "stale")
        tx.write(read, "other", row_key=KEY)
        tx.write(read.where("item = 'a'"), "stale", stale_read="allow")
    assert stock_of(spark, url, "stale")[0] == ("a", 1, 10, None)
    assert spark.sparkContext.getLocalProperty(WRITES) is None


# Ranges from conditions


READ: dict[str, int] = {
    "item = 'b'": 12,
    "ITEM = 'b' AND shop between 3 and 4 and note = 'x and y'": 6,
    "item = 'b' and moment = '2024-03-10 02:30:00'": 12,
    "item = 'b' and shop = 3 and moment = '2024-03-10 02:30:00'": 1,
    "item = 'b' and shop = 3 and moment >= timestamp '2024-03-10 03:30:00'": 2,
    "item = 'b' and shop = 3 and moment < '2024-03-10 03:30:00.000001'": 2,
    "(item = 'b') and not (shop = 3)": 12,
    "item > 'a' and (shop = 3 or note is null)": 24,
    "item = 'b' or shop = 3 and note = 'x and y'": 36,
    "item = 'b' or item = 'c' -- and item = 'a'": 36,
    "item = 'it''s' and shop = 3": 36,
    "item = 'b' and shop = 3.0": 12,
    "item = 'b' and shop = 99999999999": 12,
    "item = 'b' and item = 'c'": 0,
    "item > 'b' and item <= 'b'": 0,
    "upper(item) = 'B' and shop = 3": 36,
    "true": 36,
}
"""Conditions, and how many of the 36 rows are read for each."""


def test_a_condition_reads_its_range_and_misses_nothing(spark: SparkSession, url: str, ranged: None) -> None:
    """In a zone with summer time, where Spark is asked for its moments."""
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        with pyomid.spark.connect(spark, url).begin() as tx:
            info = pyomid_table(url, "ranged")
            with pyomid.connect(url) as db, db.begin() as other:
                keys = [key for key, _ in other.table("ranged").scan()]
            meets = tx.read("ranged", partitions=1).select(*(f.expr(where) for where in READ)).collect()
            for place, (where, most) in enumerate(READ.items()):
                found = keys_of(spark, info, None, None, None, where)
                assert sum(key in found for key in keys) == most, where
                assert all(key in found for key, row in zip(keys, meets, strict=True) if row[place]), where
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


BY_KEYS: dict[str | None, bool] = {
    None: True,
    "item = 'b'": True,
    "shop between 2 and 3 and item = 'b'": True,
    "item >= 'b' and item < 'c'": True,
    "item = 'b' and item = 'c'": True,
    "shop = 2": False,
    "item > 'a' and shop = 2": False,
    "item = 'b' and note is null": False,
    "item = 'b' and count = 20": False,
    "item = 'b' and shop = 99999999999": False,
}
"""Conditions, and whether they say nothing but the key range."""


@pytest.mark.parametrize("level", ["row", "cell"])
def test_a_delete_by_keys_deletes_a_range_and_conflicts_like_any_other(
    spark: SparkSession, url: str, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    db, table = pyomid.spark.connect(spark, url), f"ranges_{level}"
    make_stock(spark, url, table, level=level)
    with db.begin() as tx:
        info = pyomid_table(url, table)
        assert {where: allowed_keys(spark, info, where)[1] for where in BY_KEYS} == BY_KEYS
        assert tx.delete(table, where="item = 'b' and item = 'c'").rows == 0
        with monkeypatch.context() as patched:
            patched.setattr(SparkTransaction, "reports", None)  # no frame is computed
            assert tx.delete(table, where="item >= 'b' and item < 'd'").rows == 2
            assert tx.delete(table, where="item >= 'b' and item < 'd'").rows == 0
    assert [row[0] for row in stock_of(spark, url, table)] == ["a", "d"]
    late = db.begin()
    late.delete(table, where=None)
    change_stock_of_a(spark, url, table, "note", "new in a column without a value")
    with pytest.raises(ConflictError):
        late.commit()


def test_contradictory_bounds_read_nothing(spark: SparkSession, url: str, ranged: None) -> None:
    db, info = pyomid.spark.connect(spark, url), pyomid_table(url, "ranged")
    reader = spark.read.format("omid").options(url=url, table="ranged")
    with db.begin() as tx:
        for start, stop, where in (("c", "a", None), ("b", "b", None), ("c", None, "item = 'a'")):
            assert keys_of(spark, info, [start], stop and [stop], None, where) == NO_KEYS
            assert tx.read("ranged", start=[start], stop=stop and [stop], where=where).count() == 0
    with_option = reader.option("where", "item = 'b' and shop > 3 and shop < 2").load()
    assert with_option.count() == 0
    assert db.read("ranged").count() == 36


def pyomid_table(url: str, name: str) -> Any:
    from pyomid.spark.connections import connection

    return connection(url).table(name)


@pytest.fixture(scope="module")
def ranged(spark: SparkSession, url: str) -> None:
    """36 rows: three items, four shops, three moments around a clock's change."""
    moments = [
        "timestamp '2024-03-10 06:30:00Z'",
        "timestamp '2024-03-10 07:30:00Z'",
        "timestamp '2024-03-10 08:30:00Z'",
    ]
    rows = spark.sql(
        "select item, shop, moment, 'x and y' note from values ('a'), ('b'), ('c') as i(item) "
        "cross join values (1), (2), (3), (4) as s(shop) "
        f"cross join values {', '.join(f'({moment})' for moment in moments)} as m(moment)"
    )
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(rows, "ranged", row_key=["item", "shop", "moment"])


@pytest.mark.connect
def test_a_read_by_a_condition_refuses_and_combines(spark: SparkSession, url: str, ranged: None) -> None:
    with pyomid.spark.connect(spark, url).begin() as tx:
        for where, words in [
            ("cuont = 1", "its condition cannot be resolved.*cuont"),
            ("shop", "not boolean"),
            ("=", "Syntax error"),
        ]:
            with pytest.raises(Misuse, match=words):
                tx.read("ranged", where=where)
        assert tx.read("ranged", where=f.col("shop") == 2, columns="note", prefix=["c"]).columns == ["note"]
        assert tx.read("ranged", where="shop = 2 and item >= 'b'", columns="note", prefix=["c"]).count() == 3
        assert tx.read("ranged", where="item = 'a'", prefix=["c"]).count() == 0


@pytest.mark.parametrize(
    ("where", "most"),
    [
        ("ITEM = 'b' AND `shop` between 3 and 4 and note = 'x and y'", 6),
        ("item = 'b' and shop = 3 and (moment = '2024-03-10T08:30:00+01:00')", 1),
        ("item = 'b' and shop = 3 and moment > timestamp '2024-03-10 06:30:00Z'", 2),
        ("item >= 'b' and note = 'x'", 24),
        ("shop = 3 and shop < 99999999999", 36),
        ("item = 'b' and item = 'c'", 0),
    ],
)
def test_the_option_where_gives_what_a_filter_gives(
    spark: SparkSession, url: str, ranged: None, where: str, most: int
) -> None:
    """Also of columns that are not read; and of the keys only those that may meet it are looked at."""
    from pyomid.rows.row_key import key_layout
    from pyomid.rows.schema import schema_of
    from pyomid.spark.source.key_ranges import Where

    source = spark.read.format("omid").options(url=url, table="ranged")
    everything = source.load()
    found = source.option("where", where).option("columns", "shop,item").load()
    assert sorted(found.collect()) == sorted(everything.where(where).select("shop", "item").collect())
    schema = schema_of(pyomid_table(url, "ranged"))
    keys = Where.of(where, "ranged", schema).keys(key_layout(schema))
    with pyomid.connect(url) as db, db.begin() as tx:
        assert sum(key in keys for key, _ in tx.table("ranged").scan()) == most


def test_the_option_where_is_refused_by_a_write(spark: SparkSession, url: str, ranged: None) -> None:
    """An overwrite of the rows that it names is what other formats take it for."""
    rows = stock_frame(spark, ("a", 1, 1, None))
    with pytest.raises(Exception, match="where is for reads and cannot choose the rows that a write replaces"):
        rows.write.format("omid").options(url=url, table="ranged", where="item = 'a'").mode("overwrite").save()
