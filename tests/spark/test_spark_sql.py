"""SQL statements inside a transaction, on a real Spark: what they read, write and refuse."""

from __future__ import annotations

import datetime
import enum
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest

import pyomid
import pyomid.spark
from pyomid import crashpoints
from pyomid.errors import Misuse, MisuseType, OmidError, UnknownTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.connect]

Row = tuple[Any, ...]
DDL = "item string, shop int, count long, note string"
STOCK: tuple[Row, ...] = (("a", 1, 10, None), ("b", 1, 20, "old"), ("c", 2, 30, "it's"))


@pytest.fixture(scope="module")
def stock(spark: SparkSession, url: str) -> str:
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.sql("CREATE TABLE stock (item STRING, shop INT, count BIGINT, note STRING, PRIMARY KEY (item, shop))")
        tx.write(spark.createDataFrame(list(STOCK), DDL), "stock")
    return "stock"


@pytest.fixture
def restored(spark: SparkSession, url: str, stock: str) -> Iterator[str]:
    """For a test that changes the table: its rows are put back."""
    yield stock
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(spark.createDataFrame(list(STOCK), DDL), "stock", mode="overwrite")


def rows(spark: SparkSession, url: str) -> list[Row]:
    frame = pyomid.spark.connect(spark, url).read("stock").select("item", "shop", "count", "note")
    return sorted(tuple(row) for row in frame.collect())


def queried(spark: SparkSession, url: str, statement: str, *args: Any, **frames: Any) -> list[Row]:
    with pyomid.spark.connect(spark, url).begin() as tx:
        return [tuple(row) for row in tx.sql(statement, *args, **frames).collect()]


def changed(spark: SparkSession, url: str, statement: str, *args: Any, **frames: Any) -> Any:
    with pyomid.spark.connect(spark, url).begin() as tx:
        return tx.sql(statement, *args, **frames)


LITERALS: list[tuple[Any, str]] = [
    (None, "NULL"), (True, "true"), (7, "7"), (-7, "-7"), (1 << 40, str(1 << 40)), (10**30, str(10**30)),
    (0.1, "0.1"), (np.float64(0.1), "0.1"), (enum.Enum("Shop", {"ROME": 3}, type=int).ROME, "3"),
    (Decimal("1.50"), "1.50"), (Decimal("-0.001"), "-0.001"), (Decimal("1E3"), "1000"),
    ("it's \\n", "it's \\n"), ("{x} :y", "{x} :y"), (datetime.date(2013, 1, 1), "2013-01-01"),
    (datetime.datetime(2013, 1, 1, 5), "2013-01-01 05:00:00"), (b"\x41", "A"),
    (pd.Timestamp("2013-01-01 05:00:00.000001"), "2013-01-01 05:00:00.000001"),
]  # fmt: skip


class TestQueries:
    def test_a_query_sees_the_snapshot_and_the_own_writes(self, spark: SparkSession, url: str, restored: str) -> None:
        with pyomid.spark.connect(spark, url).begin() as tx:
            with pyomid.spark.connect(spark, url).begin() as other:
                other.sql("UPDATE stock SET count = 0 WHERE item = 'b'")
            tx.sql("UPDATE stock SET count = count + 1 WHERE item = 'a'")
            found = tx.sql("SELECT item, count FROM stock WHERE shop = 1 ORDER BY item").collect()
        assert [tuple(row) for row in found] == [("a", 11), ("b", 20)]

    def test_tables_and_frames_are_joined_under_their_aliases(self, spark: SparkSession, url: str, stock: str) -> None:
        shops = pd.DataFrame({"shop": [1, 2], "city": ["Rome {here}", "Oslo"]})
        text = "SELECT s.item, city FROM stock s JOIN {shops} AS p ON s.shop = p.shop WHERE city <> '{}' ORDER BY 1"
        assert queried(spark, url, text, shops=shops) == [("a", "Rome {here}"), ("b", "Rome {here}"), ("c", "Oslo")]

    def test_a_name_of_with_hides_a_table_outside_of_its_own_query(
        self, spark: SparkSession, url: str, stock: str
    ) -> None:
        text = "WITH stock AS (SELECT * FROM stock WHERE shop = 2) SELECT stock.item FROM stock"
        assert queried(spark, url, text) == [("c",)]

    def test_the_same_table_twice_and_in_a_subquery(self, spark: SparkSession, url: str, stock: str) -> None:
        text = """SELECT a.item, b.item FROM stock a, stock b
                  WHERE a.count < b.count AND b.count = (SELECT max(count) FROM stock) ORDER BY 1"""
        assert queried(spark, url, text) == [("a", "c"), ("b", "c")]

    def test_a_table_is_read_as_of_a_version_or_a_time(self, spark: SparkSession, url: str, restored: str) -> None:
        kept = f"{url}{'&' if '?' in url else '?'}retention=1h"
        db = pyomid.spark.connect(spark, kept)
        with db.begin() as tx:
            tx.sql("UPDATE stock SET count = 11 WHERE item = 'a'")
        first = tx.commit_ts
        at = datetime.datetime.now(datetime.UTC)
        while datetime.datetime.now(datetime.UTC) < at + datetime.timedelta(milliseconds=20):
            pass
        db.sql("UPDATE stock SET count = 12 WHERE item = 'a'")

        def counts(clause: str, args: dict[str, Any] | None = None) -> list[Row]:
            query = f"SELECT now.count, was.count FROM stock now JOIN stock {clause} was USING (item) WHERE item = 'a'"
            return [tuple(row) for row in db.sql(query, args).collect()]

        for clause in (f"VERSION AS OF {first}", f"FOR SYSTEM_VERSION AS OF '{first}'", f"TIMESTAMP AS OF '{at}'"):
            assert counts(clause) == [(12, 11)], clause
        assert counts("VERSION AS OF :first", {"first": first}) == [(12, 11)]
        assert counts("TIMESTAMP AS OF :at", {"at": at}) == [(12, 11)]
        assert counts(f"TIMESTAMP AS OF (TIMESTAMP '{at}' + INTERVAL 1 DAY)") == [(12, 12)], "the future is now"
        unnamed = db.sql(f"SELECT stock.count FROM stock VERSION AS OF {first} WHERE stock.item = 'a'")
        assert unnamed.collect()[0][0] == 11
        refused = {
            "VERSION AS OF 0": "VERSION AS OF=0 is not a valid timestamp",
            "VERSION AS OF 'noon'": "VERSION AS OF='noon' is not a valid time",
            "VERSION AS OF NULL": "parentheses with the arguments of NULL after VERSION AS OF are missing",
            "TIMESTAMP AS OF (NULL)": "is NULL; give a value",
            "TIMESTAMP AS OF now() - INTERVAL 1 DAY": "put the expression after TIMESTAMP AS OF in parentheses",
            "TIMESTAMP AS OF '2001-01-01'": "no longer kept",
        }
        for clause, told in refused.items():
            with pytest.raises(OmidError, match=told):
                counts(clause)

    def test_a_parameter_is_a_literal_of_its_type(self, spark: SparkSession, url: str, stock: str) -> None:
        columns = ", ".join(f"coalesce(CAST(:p{place} AS STRING), 'NULL')" for place in range(len(LITERALS)))
        parameters = {f"p{place}": value for place, (value, _) in enumerate(LITERALS)}
        found = queried(spark, url, f"SELECT {columns} FROM stock WHERE item = 'a'", parameters)
        assert found == [tuple(shown for _, shown in LITERALS)]

    def test_a_condition_on_the_key_bounds_what_is_read(
        self, spark: SparkSession, url: str, stock: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with pyomid.spark.connect(spark, url).begin() as tx:
            found = tx.sql("SELECT note FROM stock WHERE item = 'c' AND shop = 2 ORDER BY note LIMIT 5")
            assert [tuple(row) for row in found.collect()] == [("it's",)]
            capsys.readouterr()
            found.explain(True)
            assert "rowStart=" in capsys.readouterr().out


class TestChanges:
    def test_insert_maps_by_position_by_columns_and_by_name(self, spark: SparkSession, url: str, restored: str) -> None:
        changed(spark, url, "INSERT INTO stock VALUES ('d', 3, 1, 'new'), ('a', 1, 5, NULL)")
        changed(spark, url, "INSERT INTO stock (shop, item) VALUES (4, 'e')")
        changed(spark, url, "INSERT INTO stock BY NAME SELECT 'x' AS note, 5 AS shop, 'f' AS item")
        done = changed(spark, url, "INSERT INTO stock SELECT item, shop + 10, count, note FROM stock WHERE shop = 2")
        assert done.rows == 1
        assert rows(spark, url) == [
            ("a", 1, 5, None), ("b", 1, 20, "old"), ("c", 2, 30, "it's"), ("c", 12, 30, "it's"),
            ("d", 3, 1, "new"), ("e", 4, None, None), ("f", 5, None, "x"),
        ]  # fmt: skip

    def test_insert_overwrite_replaces_the_rows(self, spark: SparkSession, url: str, restored: str) -> None:
        changed(spark, url, "INSERT OVERWRITE stock SELECT item, shop, count * 2, note FROM stock WHERE shop = 1")
        assert rows(spark, url) == [("a", 1, 20, None), ("b", 1, 40, "old")]

    def test_update_and_delete_know_aliases_and_commas(self, spark: SparkSession, url: str, restored: str) -> None:
        text = """UPDATE stock AS s SET s.note = concat('a, b', coalesce(s.note, '-')),
                  count = CASE WHEN s.count = 10 THEN 1 ELSE s.count END WHERE s.shop = :shop"""
        assert changed(spark, url, text, {"shop": 1}).rows == 2
        assert changed(spark, url, "DELETE FROM stock s WHERE s.item BETWEEN 'b' AND 'b'").rows == 1
        assert rows(spark, url) == [("a", 1, 1, "a, b-"), ("c", 2, 30, "it's")]

    def test_merge_has_all_clauses(self, spark: SparkSession, url: str, restored: str) -> None:
        news = spark.createDataFrame([("a", 1, 100, "n"), ("b", 1, 0, "n"), ("z", 9, 9, "n"), ("y", 9, None, "n")], DDL)
        text = """MERGE INTO stock AS t USING (SELECT * FROM {news} WHERE shop < 10) AS n
                  ON t.item = n.item AND n.shop = t.shop
                  WHEN MATCHED AND n.count = 0 THEN DELETE
                  WHEN MATCHED THEN UPDATE SET t.count = t.count + n.count, note = 'merged'
                  WHEN NOT MATCHED AND n.count IS NOT NULL
                    THEN INSERT (item, shop, count) VALUES (n.item, n.shop, n.count)
                  WHEN NOT MATCHED BY SOURCE THEN UPDATE SET note = 'left'"""
        done = changed(spark, url, text, news=news)
        assert (done.updated, done.inserted, done.deleted) == (2, 1, 1)
        assert rows(spark, url) == [("a", 1, 110, "merged"), ("c", 2, 30, "left"), ("z", 9, 9, None)]

    def test_merge_takes_every_column_from_a_frame(self, spark: SparkSession, url: str, restored: str) -> None:
        news = pd.DataFrame({"item": ["a", "q"], "shop": [1, 1], "count": [1, 2], "note": ["n", None]})
        text = """MERGE INTO stock USING {news} AS n ON stock.item = n.item AND stock.shop = n.shop
                  WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"""
        changed(spark, url, text, news=news)
        assert rows(spark, url) == [("a", 1, 1, "n"), *STOCK[1:], ("q", 1, 2, None)]

    def test_all_statements_of_a_transaction_commit_together_or_not(
        self, spark: SparkSession, url: str, stock: str
    ) -> None:
        with pyomid.spark.connect(spark, url).begin() as tx:
            tx.sql("DELETE FROM stock")
            tx.sql("INSERT INTO stock VALUES ('z', 1, 1, NULL)")
            tx.rollback()
        assert rows(spark, url) == sorted(STOCK)


class TestTables:
    def test_a_table_is_created_described_listed_and_dropped(self, spark: SparkSession, url: str) -> None:
        with pyomid.spark.connect(spark, url).begin() as tx:
            columns = "day DATE PRIMARY KEY, tags ARRAY<STRUCT<x: INT>>, price DECIMAL(10, 2), rate DOUBLE"
            tx.sql(f"CREATE TABLE made ({columns})")
            tx.sql("CREATE TABLE IF NOT EXISTS made (day DATE PRIMARY KEY)")
            described = [tuple(row) for row in tx.sql("DESCRIBE TABLE made").collect()]
            listed = [row.tableName for row in tx.sql("SHOW TABLES LIKE 'MAD*|nothing'").collect()]
        assert described == [
            ("day", "date", "row key 1"), ("tags", "array<struct<x:int>>", None), ("price", "decimal(10,2)", None),
            ("rate", "double", None),
        ]  # fmt: skip
        assert listed == ["made"]
        changed(spark, url, "INSERT INTO made VALUES (DATE '2013-01-01', array(named_struct('x', 1)), 1.5, 0.1)")
        assert queried(spark, url, "SELECT tags[0].x, price, rate FROM made") == [(1, Decimal("1.50"), 0.1)]
        changed(spark, url, "DROP TABLE made")
        changed(spark, url, "DROP TABLE IF EXISTS made")
        assert "made" not in [row[1] for row in queried(spark, url, "SHOW TABLES")]

    @pytest.mark.parametrize("statement", ["CREATE TABLE late (id INT PRIMARY KEY)", "DROP TABLE stock", "SHOW TABLES"])
    def test_an_ended_transaction_performs_nothing(
        self, spark: SparkSession, url: str, stock: str, statement: str
    ) -> None:
        db = pyomid.spark.connect(spark, url)
        before = [info.name for info in db.tables()]
        with db.begin() as tx:
            pass
        with pytest.raises(Misuse, match="committed"):
            tx.sql(statement)
        assert [info.name for info in db.tables()] == before

    def test_names_and_nested_types_are_those_of_the_text(self, spark: SparkSession, url: str) -> None:
        columns = "`a>>>b:c.d` INT PRIMARY KEY, v ARRAY<STRUCT<x: ARRAY<INT>>>, w MAP<STRING, ARRAY<ARRAY<STRING>>>"
        changed(spark, url, f"CREATE TABLE nested ({columns})")
        types = [("a>>>b:c.d", "int"), ("v", "array<struct<x:array<int>>>"), ("w", "map<string,array<array<string>>>")]
        assert [tuple(row)[:2] for row in queried(spark, url, "DESCRIBE nested")] == types
        changed(spark, url, "INSERT INTO nested (`a>>>b:c.d`) VALUES (12 >>> 1)")
        assert [tuple(row) for row in queried(spark, url, "SELECT * FROM nested")] == [(6, None, None)]
        changed(spark, url, "DROP TABLE nested")


class TestWithoutATransaction:
    def test_a_query_reads_all_tables_at_one_snapshot_however_late(
        self, spark: SparkSession, url: str, restored: str
    ) -> None:
        db = pyomid.spark.connect(spark, url)
        pairs = db.sql("SELECT a.count AS one, b.count AS two FROM stock a JOIN stock b USING (item, shop)")
        limited = db.sql("SELECT item FROM stock WHERE item >= :least", {"least": "b"})
        db.sql("UPDATE stock SET count = count + 1")
        db.sql("DELETE FROM stock WHERE item = 'c'")
        db.compact("stock")
        assert sorted(tuple(row) for row in pairs.collect()) == [(10, 10), (20, 20), (30, 30)]
        assert sorted(row.item for row in limited.collect()) == ["b", "c"]
        assert [row[0] for row in db.sql("SELECT count FROM stock ORDER BY item").collect()] == [11, 21]

    def test_a_change_that_lost_is_performed_again(self, spark: SparkSession, url: str, restored: str) -> None:
        db = pyomid.spark.connect(spark, url)

        def other() -> None:
            crashpoints.disarm()
            db.sql("UPDATE stock SET count = 100 WHERE item = 'a'")

        crashpoints.arm_action("spark.commit.before", other)
        try:
            done = db.sql("UPDATE stock SET count = count + :more WHERE shop = 1", {"more": 5})
        finally:
            crashpoints.disarm()
        assert done.rows == 2
        assert [row[2] for row in rows(spark, url)] == [105, 25, 30]

    def test_it_answers_as_in_a_transaction(self, spark: SparkSession, url: str, restored: str) -> None:
        db = pyomid.spark.connect(spark, url)
        arrivals = spark.createDataFrame([("a", 1, 7), ("d", 1, 1)], "item string, shop int, count long")
        text = (
            "MERGE INTO stock USING {db} AS s ON stock.item = s.item AND stock.shop = s.shop WHEN MATCHED THEN UPDATE "
            "SET count = s.count WHEN NOT MATCHED THEN INSERT (item, shop, count) VALUES (s.item, s.shop, s.count)"
        )
        done = db.sql(text, db=arrivals)
        assert (done.updated, done.inserted) == (1, 1)
        assert db.sql("CREATE TABLE alone (id INT PRIMARY KEY)") is None
        assert "alone" in [row.tableName for row in db.sql("SHOW TABLES").collect()]
        assert [row.col_name for row in db.sql("DESCRIBE alone").collect()] == ["id"]
        assert db.sql("DROP TABLE alone") is None

    def test_what_a_transaction_refuses_is_refused(self, spark: SparkSession, url: str, stock: str) -> None:
        for statement, message in REFUSED[:6]:
            with pytest.raises(OmidError, match=message):
                pyomid.spark.connect(spark, url).sql(statement)


MERGE = "MERGE INTO stock t USING stock s ON t.item = s.item AND t.shop = s.shop"
DEEP = "(" * 5000 + "1" + ")" * 5000
REFUSED = [
    ("SELECT 1; SELECT 2", "the SQL text holds 2 statements"),
    ("", "the SQL text holds 0 statements"),
    ("SELEC item FROM stock", "cannot be parsed"),
    ("SELECT 1", "names no table of the database"),
    ("SELECT * FROM stok", "there is no table 'stok' in the database; did you mean 'stock'"),
    ("SELECT * FROM {nope}", "no.* given|no such frame was given"),
    ("SELECT :v FROM stock", "args has no key 'v'"),
    ("SELECT nope FROM stock", "nope"),
    ("SELECT * FROM stock VERSION AS OF 3", "snapshot at 3 is no longer kept"),
    ("ALTER TABLE stock ADD COLUMN x INT", "the supported statements are"),
    ("TRUNCATE TABLE stock", "the supported statements are"),
    ("EXPLAIN SELECT * FROM stock", "the supported statements are"),
    ("SELECT CAST(note AS TIMESTAMP(3)) FROM stock", "TIMESTAMP"),
    ("SELECT item FROM stock) UNION (SELECT note FROM stock", "has no opening bracket"),
    ("FROM stock INSERT INTO elsewhere SELECT *", "Syntax error at or near 'INSERT'"),
    ("SELECT item, {x} FROM stock", "no such frame was given"),
    ("SELECT '\ud800' FROM stock", "surrogate"),
    (f"SELECT {DEEP} FROM stock", "too deep for Spark"),
    (f"UPDATE stock SET count = {DEEP}", "too deep for Spark"),
    (f"DELETE FROM stock WHERE count = {DEEP}", "too deep for Spark"),
    ("DELETE FROM stock WHERE " + " AND ".join(f"shop <> {n}" for n in range(3000)), "too deep for Spark"),
    ("INSERT INTO stock (item, shop) SELECT 'x', (SELECT shop FROM stock)", "More than one row returned by a subquery"),
    ("UPDATE stock SET count = stock.*", "requires 1 parameters"),
    ("UPDATE stock SET count = 1 AS one", "Syntax error at or near 'AS'"),
    ("DELETE FROM stock WHERE shop = 1 x", "Syntax error at or near 'x'"),
    ("DELETE FROM stock WHERE (count)", "aliases are not allowed"),
    ("DELETE FROM stock LEFT WHERE shop = 1", "Syntax error at or near 'LEFT'"),
    ("INSERT INTO stock (item) BY NAME SELECT 'a' AS item", "Syntax error"),
    ("INSERT INTO stock VALUES ('a', 3000000000, 1, 'n')", "'shop' has type int, which cannot hold the value 3"),
    ("DESCRIBE DATABASE stock", "only DESCRIBE"),
    ("CREATE TABLE other (item STRING PRIMARY KEY, x STRUCT<a: INT NOT NULL>)", "NOT NULL of field 'a'"),
    ("CREATE TABLE other (item STRING PRIMARY KEY, x MAP<INT, STRUCT<a: INT COMMENT 'c'>>)", "COMMENT of field 'a'"),
    ("CREATE TABLE other (item STRING PRIMARY KEY, x ARRAY<STRING COLLATE UTF8_LCASE>)", "UTF8_LCASE"),
    ("CREATE TABLE other (item STRING PRIMARY KEY, x STRING(3))", "STRING.3."),
    ("CREATE TABLE other (item STRING PRIMARY KEY, x TIMESTAMP(3))", "TIMESTAMP"),
    ("CREATE TABLE Stock (item STRING PRIMARY KEY)", "'stock' already exists"),
    ("CREATE TABLE IDENTIFIER (k INT PRIMARY KEY)", "Syntax error at or near 'k'"),
    ("CREATE TABLE other (k INT NOT NULL NOT NULL PRIMARY KEY)", "more than once"),
    ("MERGE INTO stock t USING stock s ON t.item = s.item WHEN MATCHED THEN UPDATE *", r"UPDATE \* is not supported"),
    ("CREATE TABLE stock (item STRING PRIMARY KEY)", "already"),
    ("CREATE TABLE other (item STRING)", "no row key"),
    ("CREATE TABLE other (item STRING PRIMARY KEY, n INT NOT NULL)", "NOT NULL"),
    ("CREATE TABLE other (item STRING PRIMARY KEY, n INT DEFAULT 3)", "DEFAULT"),
    ("CREATE TABLE other USING parquet AS SELECT 1 AS a", "AS SELECT"),
    ("CREATE TABLE other (item STRING PRIMARY KEY, at ARRAY<TIME>)", "data type TIME is not supported"),
    ("CREATE SCHEMA other", "only tables"),
    ("CREATE VIEW other AS SELECT 1 AS a", "only tables"),
    ("DROP TABLE nope", "nope"),
    ("DROP VIEW stock", "DROP supports only tables"),
    ("INSERT INTO stock VALUES ('a', 1)", "2 values for 4 columns"),
    ("INSERT INTO stock VALUES ('a', 'x', 1, 'n')", "shop"),
    ("INSERT INTO stock PARTITION (shop = 1) SELECT 'a', 1, 'n'", "PARTITION"),
    ("INSERT INTO stock REPLACE WHERE shop = 1 SELECT * FROM stock", "REPLACE WHERE"),
    ("UPDATE stock SET item = 'x'", "row key column"),
    ("UPDATE stock SET count = 1, count = 2", "set twice"),
    ("UPDATE stock SET count = (SELECT 1)", "subquery"),
    ("UPDATE stock SET count = max(count) OVER ()", "cannot be resolved"),
    ("UPDATE stock SET count = explode(CAST(array() AS ARRAY<BIGINT>))", "cannot be resolved"),
    ("UPDATE nope SET count = 1", "nope"),
    ("DELETE FROM stock WHERE item IN (SELECT item FROM stock)", "subquery"),
    ("DELETE FROM spark_catalog.default.stock", "catalog or schema"),
    ("MERGE INTO stock USING stock s ON stock.item = s.note WHEN MATCHED THEN DELETE", "columns of the same name"),
    ("MERGE INTO stock USING stock ON stock.item = stock.item WHEN MATCHED THEN DELETE", "different names"),
    ("UPDATE stock SET count = 1, COUNT = 2", "set twice"),
    ("UPDATE stock SET field.note = 'x'", "not a column of the table"),
    ("UPDATE stock SET end = 1, note = concat(note, 'x')", "no column 'end'"),
    ("UPDATE stock SET note = CASE, note = 'END'", "backquotes|Syntax error"),
    ("UPDATE stock AS s(a, b) SET count = 1", "after an alias"),
    ("DELETE FROM 'stock'", "'stock' is not a name"),
    ("SELECT * FROM stock, IDENTIFIER('stock')", "IDENTIFIER is not supported"),
    ("INSERT INTO stock (item, shop, 'count') VALUES ('q', 1, 1)", "not string literals.*'count'"),
    ("INSERT INTO stock (item, shop, x.count) VALUES ('q', 1, 1)", "or dotted paths; found x.count"),
    (f"{MERGE} WHEN MATCHED THEN UPDATE SET count = 1, Count = 2", "set twice"),
    (f"{MERGE} WHEN MATCHED THEN DO NOTHING", "DO NOTHING is not supported"),
    (f"{MERGE} WHEN MATCHED THEN UPDATE SET * EXCEPT (note)", "EXCEPT .note. is not supported"),
    (f"{MERGE} WHEN MATCHED THEN UPDATE SET *, note = 'x'", "is not supported"),
    (f"{MERGE} WHEN MATCHED THEN INSERT *", "is not supported"),
    (f"{MERGE} WHEN NOT MATCHED THEN DELETE", "is not supported"),
    (f"{MERGE} WHEN NOT MATCHED BY SOURCE THEN UPDATE SET *", "is not supported"),
    (f"{MERGE} WHEN MATCHED THEN UPDATE SET count = row_number() OVER (ORDER BY s.item)", "cannot be resolved"),
    ("MERGE INTO stock USING nope ON stock.item = nope.item WHEN MATCHED THEN DELETE", "nope"),
    (f"{MERGE} WHEN MATCHED THEN UPDATE SET s.count = 1", "not a column of the table"),
    (f"{MERGE} WHEN MATCHED THEN UPDATE SET note = source.note", "`source`.`note` cannot be resolved"),
    (f"{MERGE} WHEN MATCHED THEN UPDATE SET note = s0", "`s0` cannot be resolved"),
    (f"{MERGE} WHEN MATCHED AND EXISTS (SELECT 1) THEN DELETE", "WHEN with a subquery"),
    (f"{MERGE} WHEN NOT MATCHED THEN INSERT (item, shop, ITEM) VALUES (s.item, s.shop, s.note)", "set twice"),
    ("MERGE INTO stock t USING stock s(shop, item) ON t.item = s.item WHEN MATCHED THEN DELETE", "after an alias"),
]  # fmt: skip


def test_changes_that_spark_reads_are_performed(spark: SparkSession, url: str, restored: str) -> None:
    changed(spark, url, "WITH x AS (SELECT 'z' item, 9 shop) INSERT INTO stock (item, shop) SELECT * FROM x")
    changed(spark, url, "INSERT INTO stock by name SELECT 9 AS shop, 'y' AS item")
    changed(spark, url, "UPDATE stock SET note = :n WHERE shop = :shop", {"n": "i", "shop": np.int64(9)})
    text = """MERGE INTO stock t USING (SELECT 'z' item, 9 shop) s ON (t.item = s.item AND (t.shop = s.shop))
              WHEN MATCHED THEN UPDATE SET note = 'm'"""
    changed(spark, url, text)
    assert rows(spark, url) == sorted([*STOCK, ("y", 9, None, "i"), ("z", 9, None, "m")], key=lambda row: row[0])
    found = queried(spark, url, "SELECT DATE '2026-01-02' - INTERVAL :n DAY FROM stock LIMIT 1", {"n": 1})
    assert str(found[0][0]).startswith("2026-01-01")
    changed(spark, url, "CREATE TABLE named (k INT, CONSTRAINT pk PRIMARY KEY (k))")
    changed(spark, url, "DROP TABLE named")


def test_what_is_not_supported_is_refused_and_changes_nothing(spark: SparkSession, url: str, stock: str) -> None:
    other = []
    for statement, message in REFUSED:
        said = "accepted"
        try:
            with pyomid.spark.connect(spark, url).begin() as tx:
                tx.sql(statement)
                tx.rollback()
        except OmidError as error:
            said = str(error)
        if not re.search(message, said):
            other.append((statement, message, said))
    assert not other, "\n".join(map(str, other))
    assert rows(spark, url) == sorted(STOCK)


def test_a_query_of_an_unknown_table_names_it(spark: SparkSession, url: str, stock: str) -> None:
    db = pyomid.spark.connect(spark, url)
    for statement, told in [
        (
            "SELECT * FROM stok",
            r"SELECT \* FROM stok: there is no table 'stok' in the database; did you mean 'stock'\?",
        ),
        ("SELECT * FROM stock JOIN elsewhere USING (item)", "no table 'elsewhere' in the database; SHOW TABLES lists"),
        ("INSERT INTO stock SELECT * FROM a.stok", "there is no table 'a.stok' in the database"),
        ("DELETE FROM stok", "there is no table 'stok'; did you mean 'stock'"),
    ]:
        with pytest.raises(UnknownTable, match=told):
            db.sql(statement)
    spark.range(1).createOrReplaceTempView("sparks_own")
    with pytest.raises(Misuse, match=r"SELECT id FROM sparks_own names no table of the database; use spark\.sql"):
        db.sql("SELECT id FROM sparks_own")


def test_a_text_without_quotes_is_refused_with_them(spark: SparkSession, url: str, stock: str) -> None:
    told = "cannot be resolved.*; a text value needs quotes within the SQL text: \"'paid'\""
    with pyomid.spark.connect(spark, url).begin() as tx:
        with pytest.raises(Misuse, match=told):
            tx.update("stock", None, {"note": "paid"})
        with pytest.raises(Misuse, match=told):
            tx.read("stock", where="note = paid")
        stock_rows = tx.read("stock")
        with pytest.raises(Misuse, match=told):
            tx.merge(stock_rows, "stock", ["item", "shop"]).whenMatched().update({"note": "paid"}).merge()
        with pytest.raises(Misuse, match=r"`stock`\.`nope` cannot be resolved") as error:
            tx.update("stock", None, {"note": "stock.nope"})
        assert "quotes" not in str(error.value)
        tx.rollback()


IDENTIFIERS = [
    "DELETE FROM stock WHERE IDENTIFIER(:v) = 'a'",
    "UPDATE stock SET count = IDENTIFIER(:v) + 1",
    "MERGE INTO stock t USING stock s ON t.item = s.item WHEN MATCHED AND IDENTIFIER(:v) = 1 THEN DELETE",
    "INSERT INTO stock (item, shop) VALUES (IDENTIFIER(:v), 1)",
    "SELECT IDENTIFIER(:v) FROM stock",
]


def test_a_parameter_is_a_value_never_a_name(spark: SparkSession, url: str, stock: str) -> None:
    for statement in IDENTIFIERS:
        with pytest.raises(Misuse, match="IDENTIFIER is not supported; write the name in the statement"):
            changed(spark, url, statement, {"v": "item"})


def test_the_escape_of_a_pattern_may_be_a_parameter(spark: SparkSession, url: str, stock: str) -> None:
    select = "SELECT item FROM stock WHERE note LIKE 'it!''s' ESCAPE :v"
    assert queried(spark, url, "SELECT item FROM stock WHERE note LIKE 'it_s' ESCAPE :v", {"v": "!"}) == [("c",)]
    for statement in (select, "DELETE FROM stock WHERE note LIKE 'a' ESCAPE :v"):
        for escape in ("\\", "'", "$", 7, None):
            with pytest.raises(Misuse, match=r"the value of :v .* a parameter after ESCAPE must be one character"):
                changed(spark, url, statement, {"v": escape})


def test_a_name_in_double_quotes_is_refused(spark: SparkSession, url: str, stock: str) -> None:
    spark.conf.set("spark.sql.ansi.doubleQuotedIdentifiers", "true")
    try:
        for statement in ('SELECT * FROM "stock"', 'SELECT "item" FROM stock', 'DELETE FROM stock WHERE item = "note"'):
            with pytest.raises(Misuse, match=r"doubleQuotedIdentifiers makes \"\w+\" a name.* in backquotes"):
                changed(spark, url, statement)
        assert queried(spark, url, "SELECT item FROM stock WHERE note = 'say \"no\"'") == []
    finally:
        spark.conf.unset("spark.sql.ansi.doubleQuotedIdentifiers")
    assert queried(spark, url, 'SELECT item FROM stock WHERE note = "old"') == [("b",)]


def test_a_condition_that_is_null_holds_for_no_row(spark: SparkSession, url: str, stock: str) -> None:
    db = pyomid.spark.connect(spark, url)
    assert db.sql("DELETE FROM stock WHERE NULL").rows == db.sql("DELETE FROM stock WHERE :v", {"v": None}).rows == 0
    assert db.sql("UPDATE stock SET count = 0 WHERE NULL").rows == 0
    merge = "MERGE INTO stock t USING stock s ON t.item = s.item WHEN MATCHED AND NULL THEN DELETE"
    with pytest.raises(MisuseType, match="not boolean"):  # a clause that never applies
        db.sql(merge)
    with db.begin() as tx:
        assert tx.delete("stock", where="NULL").rows == 0
    assert len(rows(spark, url)) == len(STOCK)


def test_parameters_that_are_not_used_are_refused(spark: SparkSession, url: str, stock: str) -> None:
    with pyomid.spark.connect(spark, url).begin() as tx:
        with pytest.raises(Misuse, match="no parameter :v"):
            tx.sql("SELECT * FROM stock", {"v": 1})
        with pytest.raises(Misuse, match=r"statement has no \{news\}"):
            tx.sql("SELECT * FROM stock", news=spark.range(1))
        with pytest.raises(OmidError, match="a parameter must be None, a bool"):
            tx.sql("SELECT :v FROM stock", {"v": [1]})
        for value, message in [(pd.Timestamp(1), "have no nanoseconds; round the value"), (pd.NaT, "must be None")]:
            with pytest.raises(OmidError, match=message):
                tx.sql("SELECT :v FROM stock", {"v": value})
        with pytest.raises(OmidError, match="args must be a mapping"):
            tx.sql("SELECT :v FROM stock", [1])
        with pytest.raises(OmidError, match="args has the key 1, which is not a string"):
            tx.sql("DELETE FROM stock WHERE item = :v", {1: 2})  # type: ignore[dict-item]


SAME = [
    "SELECT item FROM stock WHERE note = 'limit' OR shop = 2",
    "SELECT item FROM stock TABLESAMPLE (1 ROWS) WHERE item = 'c'",
    "SELECT item FROM stock AS s(shop, item, c, d) WHERE item = 2",
    "SELECT item, x FROM stock LATERAL VIEW explode(array(1, 2)) v AS x WHERE x = 2 ORDER BY 1",
    "SELECT item FROM stock WHERE rand() < 2 AND item = 'a'",
    "SELECT item FROM stock |> WHERE item = 'b'",
    "WITH Stock AS (SELECT 'cte' AS item FROM stock) SELECT item FROM STOCK",
    "WITH a AS (SELECT * FROM stock), stock AS (SELECT * FROM a WHERE shop = 2) SELECT item FROM stock",
    "SELECT item, '${pyomid.tests}' AS conf FROM stock WHERE note = '${pyomid.tests}'",
    "SELECT /*+ MERGE(stock) */ stock.item FROM stock JOIN (SELECT 'a' item) u ON stock.item = u.item",
    "SELECT /*+ BROADCAST(stock), REPARTITION(3) */ item FROM stock WHERE count >>> 1 = 10 OR count >> 1 = 10",
    """SELECT x:a.b FROM (SELECT parse_json('{"a":{"b":1}}') x FROM stock)""",
    "SELECT CAST(NULL AS ARRAY<ARRAY<ARRAY<INT>>>), count >>> 1, 'p:q.r >>> s' `a>>>b` FROM stock",
    "SELECT item FROM stock WHERE item <> 'p:q.r >>> s' AND count >>> 1 > 0 /* p:q.r >>> s */",
    "SELECT stock.item FROM stock TABLESAMPLE (100 PERCENT) REPEATABLE (7) WHERE stock.shop = 1",
    "SELECT ${pyomid.count} AS n, item FROM stock WHERE item = 'a'",
    "SELECT item FROM stock -- all \\\n WHERE shop = 2\n WHERE shop = 1 /* /* */ AND item = 'b' */",
    "SELECT item /* {x} */ FROM stock WHERE note <> '{} -- ;' -- :v\n ORDER BY `item`; -- done",
]


def test_queries_have_the_rows_that_spark_computes_over_a_view(spark: SparkSession, url: str, stock: str) -> None:
    spark.conf.set("pyomid.tests", "old")
    spark.conf.set("pyomid.count", "(SELECT count(*) FROM stock)")
    spark.createDataFrame(list(STOCK), DDL).coalesce(1).createOrReplaceTempView("stock")
    try:
        expected = {statement: str(spark.sql(statement).collect()) for statement in SAME}
    finally:
        spark.catalog.dropTempView("stock")
    with pyomid.spark.connect(spark, url).begin() as tx:
        assert {statement: str(tx.sql(statement).collect()) for statement in SAME} == expected


def test_strings_and_quoted_names_are_not_keywords(spark: SparkSession, url: str, restored: str) -> None:
    changed(spark, url, "UPDATE stock SET note = 'where' WHERE note IS NULL; -- WHERE")
    text = """MERGE INTO stock t USING {news} n ON t.item = n.item AND t.shop = n.shop
              WHEN MATCHED AND n.note = 'then' AND t.count BETWEEN 1 AND 10
                THEN UPDATE SET note = concat(t.note, ' when'), count = n.count
              WHEN NOT MATCHED AND n.`then` = 'when'
                THEN INSERT (item, shop, note) VALUES (n.item, n.shop, 'values (')"""
    news = pd.DataFrame(
        {"item": ["a", "z"], "shop": [1, 9], "count": [7, 9], "note": ["then", "x"], "then": ["", "when"]}
    )
    changed(spark, url, text, news=news)
    assert rows(spark, url) == [("a", 1, 7, "where when"), *STOCK[1:], ("z", 9, None, "values (")]


def test_a_parameter_is_never_a_name_nor_a_variable_of_spark(spark: SparkSession, url: str, restored: str) -> None:
    spark.conf.set("pyomid.tests", "old")
    value = "\\' OR 1=1 -- \n{y} ${pyomid.tests} \\u0041 $"
    changed(spark, url, "UPDATE stock SET note = :v WHERE item = 'a'", {"v": value})
    changed(spark, url, "INSERT INTO stock VALUES ('d', 1, 1, :v)", {"v": value})
    changed(spark, url, "DELETE FROM stock WHERE:v", {"v": False})  # not an alias of the table
    assert [row[3] for row in rows(spark, url) if row[0] in "ad"] == [value, value]
    with pytest.raises(Misuse, match="is not a name"):
        changed(spark, url, "DELETE FROM :t", {"t": "stock"})


def test_a_frame_stands_only_for_a_table_and_under_any_name(spark: SparkSession, url: str, stock: str) -> None:
    news = pd.DataFrame({"item": ["a"]})
    text = "WITH x AS (SELECT 1 AS item) SELECT s.item FROM stock s JOIN {x} USING (item) JOIN {self} USING (item)"
    assert queried(spark, url, text, x=news, self=news) == [("a",)]
    assert queried(spark, url, "SELECT x.item FROM {x}", x=news) == [("a",)]
    text = "SELECT s.item FROM {sqlQuery} s JOIN {omid_0} USING (item)"
    assert queried(spark, url, text, sqlQuery=news, omid_0=news) == [("a",)]
    with pytest.raises(Misuse, match=r"\{note\} is allowed only in place of a table name"):
        changed(spark, url, "DELETE FROM stock WHERE {note} = 'old'", note=news)


def test_insert_and_merge_name_columns_in_any_case(spark: SparkSession, url: str, restored: str) -> None:
    changed(spark, url, "INSERT INTO stock (SHOP, Item, COUNT) VALUES (4, 'e', 1)")
    text = "MERGE INTO stock t USING (SELECT 4 AS Shop, 'e' AS ITEM) s ON t.SHOP = s.shop AND t.item = s.ITEM"
    changed(spark, url, f"{text} WHEN MATCHED THEN UPDATE SET COUNT = t.Count + s.shop")
    assert ("e", 4, 5, None) in rows(spark, url)


def test_what_sparks_grammar_has_is_performed(spark: SparkSession, url: str, restored: str) -> None:
    news = "USING (SELECT 'a' AS item, 1 AS shop, 5 AS count) AS s1 ON"
    on = "(t0.item = s1.item AND (t0.shop == s1.shop))"
    for statement in [
        "UPDATE STOCK AS s SET note = transform(array('a'), note -> s.note || `note`)[0] WHERE s.note = 'old'",
        f"MERGE INTO stock t0 {news} {on} WHEN MATCHED THEN UPDATE SET t0.count = t0.count + s1.count",
        "WITH x AS (SELECT 'd' AS item, 4 AS shop) INSERT INTO stock (item, shop) SELECT * FROM x",
        "WITH x AS (SELECT 'd' AS item, 4 AS shop) MERGE INTO stock USING x ON stock.item = x.item "
        "AND x.shop = stock.shop WHEN MATCHED THEN UPDATE SET note = 'merged'",
        "DELETE FROM stock -- \\\n WHERE item = 'a'\n WHERE item = 'c'",
        "CREATE TABLE grammar (ts TIMESTAMP_NTZ, values INT, case STRING, CONSTRAINT pk PRIMARY KEY (TS))",
        "INSERT INTO grammar by name SELECT 1 AS values, TIMESTAMP_NTZ '2013-01-01' AS ts",
        "UPDATE grammar SET values = values + 1, case = CASE WHEN values IN (1) THEN 'one' END WHERE (values) = 1",
    ]:
        changed(spark, url, statement)
    assert rows(spark, url) == [("a", 1, 15, None), ("b", 1, 20, "olda"), ("d", 4, None, "merged")]
    for statement, args, expected in [
        ("SELECT /*+ MERGE(g) */ g.values FROM grammar g JOIN Stock s ON s.shop = 1 AND s.count = 15", {}, 2),
        ("SELECT count(*) FROM (TABLE stock) WHERE count >>> 1 = 10", {}, 1),
        ('SELECT x:a.b::INT FROM (SELECT parse_json(\'{"a": {"b": 1}}\') AS x FROM grammar)', {}, 1),
        ("SELECT stock.count FROM stock TABLESAMPLE (:n PERCENT) WHERE stock.item = 'b'", {"n": 100}, 20),
        ("SELECT day(ts + INTERVAL :n DAY) FROM grammar", {"n": np.int64(3)}, 4),
        ("SELECT day(ts - INTERVAL :n DAY) FROM grammar LIMIT 1", {"n": -1}, 2),
        ("SELECT case FROM grammar WHERE values > :n", {"n": np.int16(1)}, "one"),
    ]:
        assert queried(spark, url, statement, args) == [(expected,)], statement
    changed(spark, url, "DROP TABLE Grammar")


def test_an_expression_may_be_nested_as_deep_as_spark_takes_it(spark: SparkSession, url: str, restored: str) -> None:
    nested = "replace(" * 60 + "note" + ", 'a', 'b')" * 60
    cases = "".join(f"CASE WHEN shop = {n} THEN {n} ELSE " for n in range(2, 60)) + "0" + " END" * 58
    assert queried(spark, url, f"SELECT {nested}, {cases} FROM stock WHERE item = 'b'") == [("old", 0)]
    changed(spark, url, f"UPDATE stock SET note = {nested}, count = {cases} WHERE {'(' * 60}item = 'b'{')' * 60}")
    changed(spark, url, f"DELETE FROM stock WHERE {'(' * 60}item = 'c'{')' * 60}")
    assert rows(spark, url) == [("a", 1, 10, None), ("b", 1, 0, "old")]


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("DELETE FROM stock WHERE item RLIKE concat(item, '(')", "PatternSyntaxException: Unclosed group near index 2"),
        ("UPDATE stock SET note = format_string(concat('%', item, 'q'), count)", "a != java.lang.Long"),
        (
            "UPDATE stock SET note = reflect('java.lang.Integer', 'parseInt', item)",
            'NumberFormatException: For input string: "',  # the cause, not the reflection's own exception
        ),
    ],
)
def test_an_exception_of_java_in_a_task_is_one_sentence(
    spark: SparkSession, url: str, restored: str, statement: str, reason: str
) -> None:
    before = rows(spark, url)
    with pytest.raises(Misuse, match=r"'stock' failed: a task of Spark failed: java\.") as error:
        changed(spark, url, statement)
    assert reason in str(error.value)
    assert "\n" not in str(error.value)
    assert rows(spark, url) == before


@pytest.mark.long
def test_numbers_become_those_of_their_columns_if_nothing_is_lost(spark: SparkSession, url: str) -> None:
    db = pyomid.spark.connect(spark, url)
    db.sql("CREATE TABLE numbers (id BIGINT PRIMARY KEY, y TINYINT, f FLOAT, d DOUBLE, n DECIMAL(4, 1))")
    db.sql("INSERT INTO numbers VALUES (1, 2, 3, 4, 5), (2, NULL, 1.5, 2.5, 2.5)")
    db.sql("UPDATE numbers SET y = y + 1, f = 16777216, n = n * 2 + 989 WHERE id = 1")
    source = "USING (SELECT 5 AS id, 7 AS y, 1 AS f, 2 AS d, 3 AS n UNION ALL SELECT 2, -128, 1, 2, 3) s"
    db.sql(
        f"MERGE INTO numbers t {source} ON t.id = s.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    found = sorted(tuple(row) for row in db.read("numbers").collect())
    assert found == [
        (1, 3, 16777216.0, 4.0, Decimal("999.0")), (2, -128, 1.0, 2.0, Decimal("3.0")),
        (5, 7, 1.0, 2.0, Decimal("3.0")),
    ]  # fmt: skip
    for statement, words in [
        ("UPDATE numbers SET y = y + 200", "'y' has type tinyint, which cannot hold the value 203"),
        ("UPDATE numbers SET f = 16777217", "'f' has type float, which cannot hold the value 16777217"),
        ("UPDATE numbers SET n = 1000", "'n' has type decimal.4,1., which cannot hold the value 1000"),
        ("UPDATE numbers SET n = n / 7", "cannot hold the value 142.7"),
        ("UPDATE numbers SET y = 1.5", "cast it"),
        ("UPDATE numbers SET y = d", "cast it"),
        ("INSERT INTO numbers (id, y) SELECT id, id + 127 FROM numbers", "cannot hold the value 128"),
        ("MERGE INTO numbers t USING (SELECT 9 AS id, 300 AS y) s ON t.id = s.id "
         "WHEN NOT MATCHED THEN INSERT (id, y) VALUES (s.id, s.y)", "cannot hold the value 300"),
    ]:  # fmt: skip
        with pytest.raises(MisuseType, match=words):
            db.sql(statement)
    assert sorted(tuple(row) for row in db.read("numbers").collect()) == found
    with db.begin() as tx:
        tx.sql("UPDATE numbers SET y = CAST(rand() * 100 AS INT)")  # computed once
    db.sql("DROP TABLE numbers")
