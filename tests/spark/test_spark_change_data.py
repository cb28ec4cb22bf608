"""`apply_changes`: change data of another database becomes rows, in order, each change once."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import pyomid
import pyomid.spark
from portions import first
from pyomid.errors import Misuse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from pyomid.spark.change_data import ChangesResult

pytestmark = [pytest.mark.spark, pytest.mark.connect]

Row = tuple[Any, ...]
EVENTS = "op string, shop int, item string, count long, lsn long"


@pytest.fixture
def stock(spark: SparkSession, url: str) -> str:
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.sql(
            "CREATE TABLE IF NOT EXISTS feed "
            "(shop INT, item STRING, count BIGINT, lsn BIGINT, PRIMARY KEY (shop, item))"
        )
        tx.sql("DELETE FROM feed")
        tx.sql("DROP TABLE IF EXISTS feed_deletes")
        tx.sql("DROP TABLE IF EXISTS feed_truncates")
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(
            spark.createDataFrame([(1, "a", 10, 5), (1, "b", 20, 6)], "shop int, item string, count long, lsn long"),
            "feed",
        )
    return url


def events(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    return spark.createDataFrame(list(rows), EVENTS)


def applied(spark: SparkSession, url: str, rows: Iterable[Row], **options: Any) -> ChangesResult:
    with pyomid.spark.connect(spark, url).begin() as tx:
        given: Any = {"sequence_by": "lsn", "deletes": "op = 'd'", **options}
        return tx.apply_changes(events(spark, rows), "feed", **given)


def stored(spark: SparkSession, url: str) -> list[Row]:
    frame = pyomid.spark.connect(spark, url).read("feed").select("shop", "item", "count", "lsn")
    return sorted(tuple(row) for row in frame.collect())


def test_the_latest_change_of_each_key_counts(spark: SparkSession, stock: str) -> None:
    done = applied(
        spark,
        stock,
        [
            ("u", 1, "a", 12, 8),
            ("u", 1, "a", 11, 7),
            ("d", 1, "b", None, 9),
            ("c", 2, "a", 1, 10),
            ("c", 2, "b", 1, 11),
            ("d", 2, "b", None, 12),
        ],
    )
    assert (done.updated, done.inserted, done.deleted, done.ignored, done.bad) == (1, 1, 1, 3, 0)
    assert stored(spark, stock) == [(1, "a", 12, 8), (2, "a", 1, 10)]


def test_changes_that_differ_each_time_are_refused_in_words(spark: SparkSession, stock: str, tmp_path: Path) -> None:
    """The bad change is counted by one job, and gone in the next, which looks for it."""
    seen = str(tmp_path / "seen")

    def once_bad(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            op = [None if batch.num_rows and not os.path.exists(seen) else "u"] * batch.num_rows
            open(seen, "w").close()
            yield batch.set_column(0, "op", pa.array(op, pa.string()))

    changes = events(spark, [("u", 1, "a", 12, 8)]).coalesce(1).mapInArrow(once_bad, EVENTS)
    with pytest.raises(Misuse, match="not the same changes each time Spark computes the frame"):
        with pyomid.spark.connect(spark, stock).begin() as tx:
            tx.apply_changes(changes, "feed", sequence_by="lsn", deletes="op = 'd'")


def test_changes_that_come_again_or_late_change_nothing(spark: SparkSession, stock: str) -> None:
    changes = [("u", 1, "a", 12, 8), ("d", 1, "b", None, 9)]
    applied(spark, stock, changes)
    again = applied(spark, stock, [*changes, ("u", 1, "a", 99, 4)])
    assert (again.updated, again.inserted, again.deleted, again.ignored) == (0, 0, 0, 3)
    assert stored(spark, stock) == [(1, "a", 12, 8)]


def test_null_values_are_written_and_names_ignore_case(spark: SparkSession, stock: str) -> None:
    applied(spark, stock, [("u", 1, "a", None, 8)], sequence_by="LSN")
    assert stored(spark, stock)[0] == (1, "a", None, 8)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (("c", None, "a", 1, 9), "column 'shop' is null"),
        (("c", 3, "a", 1, None), "column 'lsn' is null"),
        ((None, 3, "a", 1, 9), "unknown operation"),
    ],
    ids=["no key", "no sequence", "no operation"],
)
def test_a_bad_change_is_refused_with_its_position_and_nothing_is_applied(
    spark: SparkSession, stock: str, row: Row, reason: str
) -> None:
    before = stored(spark, stock)
    with pytest.raises(Misuse, match=reason) as error:
        applied(spark, stock, [("c", 3, "z", 1, 9), row], position="concat('stock+0+', lsn, item)")
    assert error.value.values["position"] == (
        "stock+0+9a" if row[4] else json.dumps({"shop": 3, "item": "a"}).replace(" ", "")
    )
    assert stored(spark, stock) == before


def test_bad_changes_become_rows_of_a_table_in_the_same_transaction(spark: SparkSession, stock: str) -> None:
    rows = [("c", 3, "z", 1, 9), ("x", 3, "a", 1, 10), ("c", None, "b", 1, 11)]
    reason = "CASE WHEN op NOT IN ('c', 'u', 'd') THEN concat('unknown operation ', op) END"
    done = applied(spark, stock, rows, reason=reason, position="concat('stock+0+', lsn)", bad="bad_changes")
    assert (done.inserted, done.bad, done.ignored) == (1, 2, 0)
    found = {row["position"]: row for row in pyomid.spark.connect(spark, stock).read("bad_changes").collect()}
    assert {position: row["reason"] for position, row in found.items()} == {
        "stock+0+10": "unknown operation x",
        "stock+0+11": "column 'shop' is null",
    }
    assert json.loads(found["stock+0+10"]["change"]) == {"op": "x", "shop": 3, "item": "a", "count": 1, "lsn": 10}
    assert (3, "z", 1, 9) in stored(spark, stock)


def test_bad_changes_at_one_position_are_all_kept(spark: SparkSession, stock: str) -> None:
    for count in (1, 2):
        applied(spark, stock, [("c", 3, "a", count, None), ("c", 3, "a", -count, None)], bad="bad_at_one_position")
    assert pyomid.spark.connect(spark, stock).read("bad_at_one_position").count() == 4


def test_a_failed_call_leaves_the_transaction_rollback_only(spark: SparkSession, stock: str) -> None:
    rows = [("c", None, "a", 1, 9), ("u", 1, "a", 1, 9), ("u", 1, "a", 2, 9)]
    tx = pyomid.spark.connect(spark, stock).begin()
    with pytest.raises(Misuse, match="two different changes"):
        tx.apply_changes(events(spark, rows), "feed", sequence_by="lsn", bad="bad_of_failed")
    with pytest.raises(pyomid.errors.TransactionEnded, match="rollback-only"):
        tx.commit()


def test_changes_computed_from_another_snapshot_of_the_table_are_refused(spark: SparkSession, stock: str) -> None:
    stale = pyomid.spark.connect(spark, stock).read("feed").selectExpr("shop", "item", "count + 1 count", "lsn + 9 lsn")
    applied(spark, stock, [("u", 1, "a", 50, 8)])
    with pyomid.spark.connect(spark, stock).begin() as tx:
        tx.apply_changes(tx.read("feed").selectExpr("shop", "item", "count", "lsn"), "feed", sequence_by="lsn")
    with pytest.raises(Misuse, match="at another snapshot"), pyomid.spark.connect(spark, stock).begin() as tx:
        tx.apply_changes(stale, "feed", sequence_by="lsn")


def test_changes_that_differ_by_a_microsecond_are_two(spark: SparkSession, stock: str) -> None:
    times = "SELECT 1 id, 1 lsn, TIMESTAMP'2026-01-01 00:00:00.000001' at, TIMESTAMP_NTZ'2026-01-01 00:00:00' day"
    two = spark.sql(f"{times} UNION ALL {times.replace('000001', '000002')}")
    with pyomid.spark.connect(spark, stock).begin() as tx:
        tx.sql("CREATE TABLE times (id INT, lsn INT, at TIMESTAMP, day TIMESTAMP_NTZ, PRIMARY KEY (id))")
    with pytest.raises(Misuse, match="two different changes"), pyomid.spark.connect(spark, stock).begin() as tx:
        tx.apply_changes(two, "times", sequence_by="lsn")


def test_changes_may_be_an_arrow_table_and_must_be_a_frame(spark: SparkSession, stock: str) -> None:
    rows = pa.table({"op": ["u"], "shop": [1], "item": ["a"], "count": [7], "lsn": [9]})
    with pyomid.spark.connect(spark, stock).begin() as tx:
        assert tx.apply_changes(rows, "feed", sequence_by="lsn", deletes="op = 'd'").updated == 1
    assert stored(spark, stock)[0] == (1, "a", 7, 9)
    with pyomid.spark.connect(spark, stock).begin() as tx, pytest.raises(Misuse, match="Arrow table, not list"):
        tx.apply_changes([{"op": "u"}], "feed", sequence_by="lsn")


def test_two_changes_of_one_key_and_sequence_are_refused(spark: SparkSession, stock: str) -> None:
    with pytest.raises(Misuse, match="two different changes with the sequence 9"):
        applied(spark, stock, [("u", 1, "a", 1, 9), ("u", 1, "a", 2, 9)])
    assert applied(spark, stock, [("u", 1, "a", 1, 9), ("u", 1, "a", 1, 9)]).updated == 1  # the same change twice


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence_by": "ts"}, "sequence_by='ts' must name a column"),
        ({"sequence_by": "item"}, "not in the row key"),
        ({"deletes": "count"}, "deletes has type bigint, not boolean"),
        ({"deletes": "nothing = 1"}, "deletes cannot be resolved"),
    ],
)
def test_bad_options_are_refused(spark: SparkSession, stock: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(Misuse, match=message):
        applied(spark, stock, [("u", 1, "a", 1, 9)], **options)


def test_a_frame_without_a_column_of_the_table_is_refused(spark: SparkSession, stock: str) -> None:
    with pyomid.spark.connect(spark, stock).begin() as tx, pytest.raises(Misuse, match="have no column 'count'"):
        tx.apply_changes(events(spark, [("u", 1, "a", 1, 9)]).drop("count"), "feed", sequence_by="lsn")
    with pyomid.spark.connect(spark, stock).begin() as tx, pytest.raises(pyomid.errors.UnknownTable):
        tx.apply_changes(events(spark, [("u", 1, "a", 1, 9)]), "nowhere", sequence_by="lsn")


SEQUENCES: dict[str, tuple[str, str, str]] = {
    "integer": ("SMALLINT", "9S", "10S"),
    "integer of a narrower type": ("BIGINT", "9Y", "10Y"),
    "decimal": ("DECIMAL(38,2)", "9.50", "10.25"),
    "double": ("DOUBLE", "9e0", "1e1"),
    "date": ("DATE", "DATE'2026-01-09'", "DATE'2026-01-10'"),
    "timestamp": ("TIMESTAMP", "TIMESTAMP'2026-01-09 00:00:00Z'", "TIMESTAMP'2026-01-09 00:00:00.000001Z'"),
    "local timestamp": ("TIMESTAMP_NTZ", "TIMESTAMP_NTZ'2026-01-09 00:00:00'", "TIMESTAMP_NTZ'2026-01-10 00:00:00'"),
    "SQL Server's position": ("BINARY", "X'0000002700000758007F'", "X'00000027000007580080'"),
    "file and position": ("STRUCT<file INT, pos BIGINT>", "struct(9 file, 154L pos)", "struct(10 file, 4L pos)"),
}
"""By name: the column's type, a sequence, and one above it."""


@pytest.mark.parametrize("name", first(1, SEQUENCES))
def test_a_sequence_may_be_of_any_type_whose_order_is_that_of_changes(
    spark: SparkSession, stock: str, name: str
) -> None:
    kind, low, high = SEQUENCES[name]
    db = pyomid.spark.connect(spark, stock)
    with db.begin() as tx:
        tx.sql("DROP TABLE IF EXISTS ordered")
        tx.sql(f"CREATE TABLE ordered (id INT, text STRING, seq {kind}, PRIMARY KEY (id))")

    def apply(*changes: str) -> ChangesResult:
        frame = spark.sql(" UNION ALL ".join(f"SELECT 1 id, {change}" for change in changes))
        with db.begin() as tx:
            return tx.apply_changes(frame, "ordered", sequence_by="seq")

    assert apply(f"'high' text, {high} seq", f"'low' text, {low} seq").inserted == 1
    assert apply(f"'again' text, {high} seq").ignored == apply(f"'low' text, {low} seq").ignored == 1
    assert db.read("ordered").first()["text"] == "high"
    with pytest.raises(Misuse, match="column 'seq' is null"):
        apply("'no' text, NULL seq")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("STRING", "sequence_by='seq' has type string, which sorts '10' before '9'; make the column a number"),
        ("BOOLEAN", "sequence_by='seq' has type boolean, which does not order changes"),
        ("ARRAY<INT>", r"sequence_by='seq' has type array<int>, which does not order changes"),
        ("STRUCT<file STRING, pos INT>", "does not order changes"),
    ],
)
def test_a_sequence_whose_order_is_not_that_of_changes_is_refused(
    spark: SparkSession, stock: str, kind: str, message: str
) -> None:
    db = pyomid.spark.connect(spark, stock)
    with db.begin() as tx:
        tx.sql("DROP TABLE IF EXISTS unordered")
        tx.sql(f"CREATE TABLE unordered (id INT, seq {kind}, PRIMARY KEY (id))")
    with pytest.raises(Misuse, match=message), db.begin() as tx:
        tx.apply_changes(spark.sql(f"SELECT 1 id, CAST(NULL AS {kind}) seq"), "unordered", sequence_by="seq")


def test_a_sequence_of_another_type_than_the_table_s_is_refused(spark: SparkSession, stock: str) -> None:
    db = pyomid.spark.connect(spark, stock)
    for kind in ("string", "double", "boolean"):
        changes = events(spark, [("u", 1, "a", 1, 9)]).selectExpr("*", f"CAST(lsn AS {kind}) x").drop("lsn")
        with (
            pytest.raises(Misuse, match=f"column 'lsn' has type bigint, but the given value has type {kind}"),
            db.begin() as tx,
        ):
            tx.apply_changes(changes.withColumnRenamed("x", "lsn"), "feed", sequence_by="lsn")


@pytest.mark.parametrize("value", first(1, ["CAST('NaN' AS DOUBLE)", "CAST('Infinity' AS DOUBLE)"]))
def test_a_sequence_that_no_other_is_above_is_a_bad_change(spark: SparkSession, stock: str, value: str) -> None:
    db = pyomid.spark.connect(spark, stock)
    with db.begin() as tx:
        tx.sql("CREATE TABLE IF NOT EXISTS real (id INT, seq STRUCT<at DOUBLE>, PRIMARY KEY (id))")
    sequences = (value, "2e0", "CAST(NULL AS DOUBLE)")
    changes = spark.sql(" UNION ALL ".join(f"SELECT {n} id, struct({at} at) seq" for n, at in enumerate(sequences)))
    with pytest.raises(Misuse, match=r"column 'seq\.at' is n"), db.begin() as tx:
        tx.apply_changes(changes, "real", sequence_by="seq")
    with db.begin() as tx:
        assert tx.apply_changes(changes, "real", sequence_by="seq", bad="not_finite").bad == 2
    assert {row["reason"] for row in db.read("not_finite").collect()} == {
        "column 'seq.at' is null",
        "column 'seq.at' is not a finite number",
    }


LEFT_OUT = f"{EVENTS}, left_out array<string>"


def applied_in_part(spark: SparkSession, url: str, rows: Iterable[Row], **options: Any) -> ChangesResult:
    """Apply changes that may leave out columns."""
    with pyomid.spark.connect(spark, url).begin() as tx:
        given: Any = {"sequence_by": "lsn", "deletes": "op = 'd'", "unchanged": "left_out", **options}
        return tx.apply_changes(spark.createDataFrame(list(rows), LEFT_OUT), "feed", **given)


def test_a_column_that_a_change_leaves_out_keeps_its_value(spark: SparkSession, stock: str) -> None:
    count = ["COUNT"]
    applied_in_part(
        spark,
        stock,
        [
            ("u", 1, "a", None, 8, count),  # keeps what is stored
            ("u", 1, "b", 99, 5, []),  # older than what is stored, so its value does not count
            ("u", 1, "b", None, 8, count),
            ("c", 2, "a", 1, 7, None),
            ("u", 2, "a", None, 9, ["left_out", *count]),  # keeps what the change before it has
            ("c", 2, "b", None, 7, []),
            ("u", 2, "b", 5, 9, count),  # null is a value, too
        ],
    )
    assert stored(spark, stock) == [(1, "a", 10, 8), (1, "b", 20, 8), (2, "a", 1, 9), (2, "b", None, 9)]
    deletes = [("d", 2, "b", None, 10, count), ("d", 7, "x", None, 10, count)]
    assert applied_in_part(spark, stock, deletes).deleted == 1
    before = stored(spark, stock)
    missing = (
        r"the changes of 'feed' leave out column 'count' of the row \{\"shop\":3,\"item\":\"a\"\}.*no value to keep"
    )
    with pytest.raises(Misuse, match=missing):
        applied_in_part(spark, stock, [("u", 3, "a", None, 9, count)])
    for name in ("lsn", "item"):
        with pytest.raises(Misuse, match=f"column '{name}' is left out"):
            applied_in_part(spark, stock, [("u", 1, "a", 1, 11, [name])])
    assert stored(spark, stock) == before
    with pytest.raises(Misuse, match="unchanged must have type array<string>, with column names, but has type bigint"):
        applied(spark, stock, [("u", 1, "a", 1, 11)], unchanged="count")


def test_a_kept_value_is_not_converted_to_the_type_that_the_changes_have(spark: SparkSession, stock: str) -> None:
    """Spark's common type of a text and a number is a number; that of a FLOAT and a SMALLINT is a DOUBLE."""
    db = pyomid.spark.connect(spark, stock)
    db.sql("CREATE TABLE kept (id INT, code STRING, rate FLOAT, lsn BIGINT, PRIMARY KEY (id))")
    rows = [(1, "007", 0.1, 5), (2, "n/a", 0.1, 5), (3, "1", 0.5, 5)]
    with db.begin() as tx:
        tx.write(spark.createDataFrame(rows, "id int, code string, rate float, lsn long"), "kept")
    both = ["code", "rate"]
    changes = [(1, None, None, 6, both), (2, None, 9, 6, both[:1]), (3, 8, None, 6, both[1:]), (4, 9, 7, 6, [])]
    frame = spark.createDataFrame(changes, "id int, code long, rate short, lsn long, left_out array<string>")
    with db.begin() as tx:
        tx.apply_changes(frame, "kept", sequence_by="lsn", unchanged="left_out")
    found = db.read("kept").selectExpr("id", "code", "cast(rate as string)").collect()
    assert sorted(map(tuple, found)) == [(1, "007", "0.1"), (2, "n/a", "9.0"), (3, "8", "0.5"), (4, "9", "7.0")]


@pytest.mark.parametrize("left_out_by_delete", first(0, [None, ["count"]]))
def test_no_value_is_kept_across_a_delete(
    spark: SparkSession, stock: str, left_out_by_delete: list[str] | None
) -> None:
    """Whether the delete comes in the same call as what follows it, or in an earlier one."""
    before = stored(spark, stock)
    created = ("c", 1, "a", None, 9, ["count"])
    delete = ("d", 1, "a", None, 8, left_out_by_delete)
    for changes in ([delete, created], [("u", 1, "a", 7, 7, None), delete, created]):
        with pytest.raises(Misuse, match=r"leave out column 'count' of the row .*no value to keep"):
            applied_in_part(spark, stock, changes)
        assert stored(spark, stock) == before
    applied_in_part(spark, stock, [delete, ("c", 1, "a", 3, 9, None), ("u", 1, "a", None, 10, ["count"])])
    assert stored(spark, stock)[0] == (1, "a", 3, 10)
    again = [delete, ("u", 1, "a", None, 11, ["count"])]  # that delete is older than the row
    assert applied_in_part(spark, stock, again).updated == 1
    assert stored(spark, stock)[0] == (1, "a", 3, 11)
    applied_in_part(spark, stock, [("d", 1, "a", None, 12, None)])
    with pytest.raises(Misuse, match="no value to keep"):
        applied_in_part(spark, stock, [(*created[:4], 13, ["count"])])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (("u", 1, "a", 50, 8, None), ("u", 1, "a", 51, 8, None)),
        (("u", 1, "a", None, 8, None), ("u", 1, "a", 51, 8, [])),
        (("u", 1, "a", 50, 8, None), ("d", 1, "a", None, 8, None)),
    ],
    ids=["two values", "null and a value", "a value and a delete"],
)
def test_a_value_kept_from_one_of_two_changes_with_one_sequence_is_refused(
    spark: SparkSession, stock: str, first: Row, second: Row
) -> None:
    latest = ("u", 1, "a", None, 9, ["count"])
    with pytest.raises(Misuse, match="the key 1, 'a' has two different changes with the sequence 8"):
        applied_in_part(spark, stock, [first, second, latest])
    assert applied_in_part(spark, stock, [first, second, ("u", 1, "a", 7, 10, [])]).updated == 1  # it takes neither


@pytest.mark.long
def test_two_changes_of_one_sequence_that_come_again_are_ignored(spark: SparkSession, stock: str) -> None:
    """A later change of the row, a delete or a truncation has overtaken them: a redelivery must not end the stream."""
    two = [("u", 1, "a", 1, 9), ("u", 1, "a", 2, 9), ("c", 3, "z", 1, 9), ("c", 3, "z", 2, 9)]
    applied(spark, stock, [*two, ("u", 1, "a", 7, 10), ("d", 3, "z", None, 10)])
    assert applied(spark, stock, two).ignored == 4
    in_part = [(*row, []) for row in two[:2]]
    assert applied_in_part(spark, stock, [*in_part, ("u", 1, "a", None, 11, ["count"])]).updated == 1
    assert stored(spark, stock) == [(1, "a", 7, 11), (1, "b", 20, 6)]
    late = [("c", 4, "y", 1, 12), ("c", 4, "y", 2, 12)]
    assert applied(spark, stock, [*late, ("t", None, None, None, 13)], truncates="op = 't'").truncated == 2
    with pytest.raises(Misuse, match="the key 4, 'y' has two different changes with the sequence 14"):
        applied(spark, stock, [(*row[:4], row[4] + 2) for row in late])


def test_two_changes_that_differ_in_what_they_leave_out_are_two(spark: SparkSession, stock: str) -> None:
    with pytest.raises(Misuse, match="two different changes with the sequence 9"):
        applied_in_part(spark, stock, [("u", 1, "a", None, 9, ["count"]), ("u", 1, "a", None, 9, None)])
    same = [("u", 1, "a", None, 9, ["count"]), ("u", 1, "a", None, 9, ["COUNT", "op"])]
    assert applied_in_part(spark, stock, same).updated == 1


@pytest.mark.parametrize(("name", "shown"), [("Cuont", "'Cuont', which is a column"), (None, "a null name")])
def test_a_name_left_out_that_no_column_has_is_a_bad_change(
    spark: SparkSession, stock: str, name: str | None, shown: str
) -> None:
    changes = [("u", 1, "a", 7, 9, ["count", name]), ("u", 1, "b", 7, 9, [])]
    with pytest.raises(Misuse, match=f"unchanged has {shown}"):
        applied_in_part(spark, stock, changes)
    assert applied_in_part(spark, stock, changes, bad="bad_names").bad == 1
    assert stored(spark, stock) == [(1, "a", 10, 5), (1, "b", 7, 9)]
