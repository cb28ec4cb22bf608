"""Merge, update and delete by condition: what they change, what they refuse, and what conflicts with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f
from spark_frames import KEY, STOCK, change_stock_of_a, make_stock, stock_frame, stock_of

import pyomid
import pyomid.spark
from pyomid.errors import ConflictError, Misuse
from pyomid.spark import SparkTransaction, merge

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(params=["by_key", "by_scan"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the table's rows are found; the result is the same."""
    if request.param == "by_scan":
        monkeypatch.setattr(merge, "LOOKED_UP_ROWS_MAX", -1)
    return str(request.param)


@pytest.mark.connect
def test_the_first_clause_whose_condition_holds_applies(spark: SparkSession, url: str, way: str) -> None:
    table = f"clauses_{way}"
    make_stock(spark, url, table)
    source = stock_frame(
        spark, ("a", 1, 5, "s"), ("b", 1, 0, "s"), ("c", 2, 1, None), ("e", 1, 7, "s"), ("f", 1, -1, "s")
    )
    with pyomid.spark.connect(spark, url).begin() as tx:
        done = (
            tx.merge(source.repartition(2), table, on=["shop", "item"])
            .whenMatched("source.count = 0")
            .delete()
            .whenMatched(f.col("target.note").isNull())
            .update({"count": "target.count + source.count", "note": f.col("source.note")})
            .whenMatched()
            .update({"note": "source.note"})
            .whenNotMatched("source.count > 0")
            .insert({"item": "source.item", "shop": "source.shop", "count": 1})
            .merge()
        )
        expected = [("a", 1, 15, "s"), ("c", 2, 30, None), ("d", 2, 0, None), ("e", 1, 1, None)]
        assert sorted(map(tuple, tx.read(table).collect())) == expected
    assert (done.updated, done.inserted, done.deleted) == (2, 1, 1)
    assert stock_of(spark, url, table) == expected


def test_rows_that_the_source_lacks_change_too(spark: SparkSession, url: str) -> None:
    make_stock(spark, url, "lacks")
    with pyomid.spark.connect(spark, url).begin() as tx:
        done = (
            tx.merge(stock_frame(spark, ("a", 1, 1, "x"), ("z", 9, 9, "x")), "lacks", on=KEY)
            .whenMatched()
            .updateAll()
            .whenNotMatched()
            .insertAll()
            .whenNotMatchedBySource("target.count = 0")
            .delete()
            .whenNotMatchedBySource("target.shop = 2")
            .update({"count": "target.count + 1"})
            .merge()
        )
    assert (done.updated, done.inserted, done.deleted) == (2, 1, 1)
    assert stock_of(spark, url, "lacks") == [
        ("a", 1, 1, "x"),
        ("b", 1, 20, "old"),
        ("c", 2, 31, "old"),
        ("z", 9, 9, "x"),
    ]


def test_a_merge_sees_and_hides_what_its_transaction_wrote(spark: SparkSession, url: str, way: str) -> None:
    table = f"own_{way}"
    make_stock(spark, url, table)
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(stock_frame(spark, ("n", 1, 1, None)), table)
        tx.delete(table, where="item = 'a'")
        again = tx.merge(stock_frame(spark, ("a", 1, 2, "n"), ("n", 1, 2, "n")), table, on=KEY)
        done = again.whenMatched().updateAll().whenNotMatched().insertAll().merge()
        assert (done.updated, done.inserted) == (1, 1)
        assert tx.delete(table, where="count = 2").rows == 2
    assert stock_of(spark, url, table) == [row for row in STOCK if row[0] != "a"]


@pytest.mark.connect
def test_several_source_rows_for_one_row_are_refused(spark: SparkSession, url: str, way: str) -> None:
    db = pyomid.spark.connect(spark, url)
    table = f"twice_{way}"
    make_stock(spark, url, table)
    twice = stock_frame(spark, ("a", 1, 1, "x"), ("a", 1, 2, "x"))
    for source in (twice, twice.repartition(2, "count")):
        with pytest.raises(Misuse, match=r"the merge is ambiguous: several rows of the source .* item='a', shop=1"):
            with db.begin() as tx:
                tx.merge(source, table, on=KEY).whenMatched(
                    "source.count = 1"
                ).delete().whenMatched().updateAll().merge()
    with db.begin() as tx:
        assert tx.merge(twice, table, on=KEY).whenMatched("source.count = 2").updateAll().merge().updated == 1
    assert stock_of(spark, url, table)[0] == ("a", 1, 2, "x")
    new = stock_frame(spark, ("q", 1, 1, "x"), ("q", 1, 2, "x"))
    with pytest.raises(Misuse, match="ambiguous"), db.begin() as tx:
        tx.merge(new, table, on=KEY).whenNotMatched().insertAll().merge()


def test_other_columns_than_the_key_may_match(spark: SparkSession, url: str) -> None:
    """A null matches nothing; an insert never replaces a row that is there under its key."""
    db = pyomid.spark.connect(spark, url)
    make_stock(spark, url, "notes")
    source = spark.createDataFrame([("old", 5), (None, 6)], "note string, more long")
    with db.begin() as tx:
        sums = tx.merge(source, "notes", on="note").whenMatched().update({"count": "target.count + source.more"})
        assert sums.merge().updated == 2
    assert [row[2] for row in stock_of(spark, url, "notes")] == [10, 25, 35, 0]
    with pytest.raises(Misuse, match="would insert the row item='a', shop=1, which already exists in table 'notes'"):
        with db.begin() as tx:
            tx.merge(stock_frame(spark, ("a", 1, 1, "other")), "notes", on="note").whenNotMatched().insertAll().merge()


def test_names_and_keys_of_any_kind_are_merged(spark: SparkSession, url: str, way: str) -> None:
    """Columns with dots, named like the merge's own, and different by case only; the keys -0.0 and NaN."""
    ddl = "`k.1` double, t0 string, T0 string, action string, source string"
    table = f"names_{way}"
    first = stock_frame(spark, (0.0, "a", "b", "c", "d"), (float("nan"), "a", "b", "c", "d"), ddl=ddl)
    with pyomid.spark.connect(spark, url).begin() as tx:
        spark.conf.set("spark.sql.caseSensitive", "true")
        try:
            tx.write(first, table, row_key=["k.1"])
        finally:
            spark.conf.unset("spark.sql.caseSensitive")
        rows = [(-0.0, "e", "f", "g", "h"), (float("nan"), "e", "f", "g", "h"), (1.0, "e", "f", "g", "h")]
        done = (
            tx.merge(stock_frame(spark, *rows, ddl=ddl), table, on="k.1")
            .whenMatched()
            .updateAll()
            .whenNotMatched()
            .insertAll()
        )
        found = done.merge()
        assert (found.updated, found.inserted) == (2, 1)
        assert {tuple(row)[1:] for row in tx.read(table).collect()} == {("e", "f", "g", "h")}


# Conflicts


Change = Callable[[SparkTransaction, str, "DataFrame"], object]

CHANGES: dict[str, Change] = {
    "merge": lambda tx, table, source: (
        tx.merge(source, table, on=KEY).whenMatched("target.note is null").update({"count": "target.count + 1"}).merge()
    ),
    "merge_delete": lambda tx, table, source: (
        tx.merge(source, table, on=KEY).whenMatched("target.note is null").delete().merge()
    ),
    "update": lambda tx, table, source: tx.update(table, "item = 'a' and note is null", {"count": "count + 1"}),
    "delete": lambda tx, table, source: tx.delete(table, where="item = 'a' and note is null"),
}


@pytest.mark.parametrize(("change", "level"), [("merge", "row"), *((change, "cell") for change in CHANGES)])
def test_what_was_read_of_a_changed_row_conflicts(spark: SparkSession, url: str, level: str, change: str) -> None:
    """At level cell too, where the change itself writes another column than the one that it went by."""
    table = f"read_{change}_{level}"
    make_stock(spark, url, table, level=level)
    tx = pyomid.spark.connect(spark, url).begin()
    CHANGES[change](tx, table, stock_frame(spark, ("a", 1, 1, None)))
    change_stock_of_a(spark, url, table, "note", "changed")
    with pytest.raises(ConflictError, match="item='a', shop=1"):
        tx.commit()
    assert stock_of(spark, url, table)[0] == ("a", 1, 10, "changed")


@pytest.mark.parametrize("level", ["row", "cell"])
def test_of_two_merges_that_insert_one_key_one_commits(spark: SparkSession, url: str, level: str) -> None:
    """At level cell too, where each sets another column."""
    table = f"inserts_{level}"
    make_stock(spark, url, table, level=level)

    def inserted(column: str, value: str) -> SparkTransaction:
        tx = pyomid.spark.connect(spark, url).begin()
        values = {"item": "source.item", "shop": "source.shop", column: value}
        tx.merge(stock_frame(spark, ("n", 1, 1, "x")), table, on=KEY).whenNotMatched().insert(values).merge()
        return tx

    one, two = inserted("count", "source.count"), inserted("note", "source.note")
    one.commit()
    with pytest.raises(ConflictError):
        two.commit()
    assert stock_of(spark, url, table)[-1] == ("n", 1, 1, None)


# Misuse


@pytest.fixture(scope="module")
def refused(spark: SparkSession, url: str) -> Iterator[None]:
    """The table of the changes that are refused; none of them changes it."""
    make_stock(spark, url, "refused")
    yield
    assert stock_of(spark, url, "refused") == list(STOCK)


@pytest.mark.parametrize(
    ("clauses", "words"),
    [
        (lambda m: m, "has no clause"),
        (lambda m: m.whenMatched().delete().whenMatched("source.count = 1").updateAll(), "can never apply"),
        (lambda m: m.whenMatched("source.cuont = 1").delete(), "its condition cannot be resolved.*cuont"),
        (
            lambda m: m.whenMatched("source.count").delete(),
            "the condition of a whenMatched clause has type .*, not boolean",
        ),
        (lambda m: m.whenMatched("cuont = 1").delete(), "its condition cannot be resolved.*`source`, `target`"),
        (lambda m: m.whenMatched("s1 = t1").delete(), "its condition cannot be resolved.*`s1`"),
        (lambda m: m.whenMatched("null").delete(), "not boolean"),
        (lambda m: m.whenMatched("source.count =").delete(), "its condition cannot be resolved.*end of input"),
        (lambda m: m.whenNotMatched("target.count = 1").insertAll(), "cannot be resolved.*target"),
        (lambda m: m.whenNotMatchedBySource("source.count = 1").delete(), "cannot be resolved.*source"),
        (lambda m: m.whenMatched().update({"cuont": "1"}), "has no column 'cuont'; did you mean 'count'"),
        (lambda m: m.whenMatched().update({"count": "source.nothing"}), "the value of 'count' cannot be resolved"),
        (
            lambda m: m.whenMatched().update({"count": "source.note"}),
            "column 'count' has type bigint, but the given value has type string; cast it",
        ),
        (lambda m: m.whenMatched().update({"count": f.sum("source.count")}), "the value of 'count' cannot be resolved"),
        (lambda m: m.whenMatched().update({"item": "source.item"}), "sets the row key column 'item'"),
        (lambda m: m.whenMatched().update({}), "sets no column"),
        (lambda m: m.whenNotMatched().insert({"item": "source.item"}), "an insert must set the row key column 'shop'"),
    ],
)
def test_a_merge_that_cannot_be_is_refused(
    spark: SparkSession, url: str, refused: None, clauses: Any, words: str
) -> None:
    with pyomid.spark.connect(spark, url).begin() as tx:
        with pytest.raises(Misuse, match=words):
            clauses(tx.merge(stock_frame(spark, ("a", 1, 1, "x")), "refused", on=KEY)).merge()
    assert tx.commit_ts is None


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda tx, s: tx.merge(s, "refused", on=[]).whenMatched().delete().merge(), r"an empty on=\["),
        (lambda tx, s: tx.merge(s, "refused", on="shpo").whenMatched().delete().merge(), "no column 'shpo'"),
        (lambda tx, s: tx.merge(s.drop("shop"), "refused", on="shop").whenMatched().delete().merge(), "'shop'"),
        (lambda tx, s: tx.merge(s.drop("note"), "refused", on=KEY).whenMatched().updateAll().merge(), "every column"),
        (lambda tx, s: tx.merge(s, "refused", on="note").whenMatched().updateAll().merge(), "would change the row key"),
        (lambda tx, s: tx.merge(s, "nowhere", on=KEY).whenMatched().delete().merge(), "nowhere"),
        (lambda tx, s: tx.merge(s, "refused", on=KEY, stale_read="so").whenMatched().delete().merge(), "stale_read"),
        (lambda tx, s: tx.update("refused", "cuont = 1", {"count": 1}), "its condition cannot be resolved.*cuont"),
        (lambda tx, s: tx.update("refused", "count", {"count": 1}), "its condition has type bigint, not boolean"),
        (lambda tx, s: tx.update("refused", None, {"shop": 1}), "sets the row key column 'shop'"),
        (lambda tx, s: tx.update("refused", None, {}), "sets no column"),
        (lambda tx, s: tx.update("refused", None, {"count": "note"}), "cast it"),
        (lambda tx, s: tx.delete("refused"), "needs where"),
        (lambda tx, s: tx.delete(s), "with a frame and a table name"),
    ],
)
def test_a_change_that_cannot_be_is_refused(spark: SparkSession, url: str, refused: None, use: Any, words: str) -> None:
    with pytest.raises(Misuse, match=words), pyomid.spark.connect(spark, url).begin() as tx:
        use(tx, stock_frame(spark, ("a", 1, 1, "x")))
