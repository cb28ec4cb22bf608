"""`apply_changes` keeps deletes and truncations: a change from before one of them stays without effect, whenever it
comes, and whatever else runs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pyomid
import pyomid.spark
from pyomid.errors import ConflictError, Misuse
from pyomid.protocol.timestamps import NS_PER_S
from waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyomid.spark import SparkDatabase, SparkTransaction
    from pyomid.spark.change_data import ChangesResult

pytestmark = [pytest.mark.spark, pytest.mark.connect]

Row = tuple[Any, ...]
EVENTS = "op string, id int, name string, count long, lsn long"


def made(spark: SparkSession, url: str, table: str, columns: str = "lsn BIGINT") -> SparkDatabase:
    db = pyomid.spark.connect(spark, url)
    db.sql(f"CREATE TABLE {table} (id INT, name STRING, count BIGINT, {columns}, PRIMARY KEY (id))")
    return db


def apply(tx: SparkTransaction, table: str, rows: Iterable[Row], **options: Any) -> ChangesResult:
    frame = tx.session.createDataFrame([(op, key, "n", count, lsn) for op, key, count, lsn in rows], EVENTS)
    given: Any = {"sequence_by": "lsn", "deletes": "op = 'd'", "truncates": "op = 't'", **options}
    return tx.apply_changes(frame, table, **given)


def applied(db: SparkDatabase, table: str, *rows: Row, **options: Any) -> ChangesResult:
    with db.begin() as tx:
        return apply(tx, table, rows, **options)


def stored(db: SparkDatabase, table: str) -> list[Row]:
    return sorted(tuple(row) for row in db.read(table).select("id", "count", "lsn").collect())


def test_a_change_from_before_a_delete_stays_ignored(spark: SparkSession, url: str, tmp_path: Path) -> None:
    """After a later batch, with a row or without one, after compaction, verification and in a restored backup."""
    db = made(spark, url, "kept")
    applied(db, "kept", ("c", 1, 1, 5), ("c", 3, 3, 5))
    done = applied(db, "kept", ("d", 1, None, 9), ("d", 2, None, 9), ("c", 4, 1, 8), ("d", 4, None, 9))
    assert (done.deleted, done.inserted, done.ignored) == (1, 0, 3)
    late = [("u", 1, 7, 8), ("c", 2, 7, 8), ("u", 4, 7, 9)]
    assert applied(db, "kept", *late).ignored == 3
    assert applied(db, "kept", ("d", 1, None, 6)).ignored == 1  # does not lower the kept delete
    db.compact()
    assert db.verify().ok
    assert applied(db, "kept", *late).ignored == 3
    with pyomid.connect(url) as client:
        client.backup(str(tmp_path / "backup"))
    pyomid.restore(tmp_path / "backup", f"omid://{tmp_path}/copy")
    copy = pyomid.spark.connect(spark, f"omid://{tmp_path}/copy")
    for each in (copy, db):
        assert applied(each, "kept", *late).ignored == 3
        assert applied(each, "kept", ("c", 1, 2, 10), ("u", 1, 9, 7)).inserted == 1
        assert stored(each, "kept") == [(1, 2, 10), (3, 3, 5)]
    copy.close()
    assert db.read("kept").columns == ["id", "name", "count", "lsn"]


@pytest.mark.long
def test_a_kept_delete_ends_by_itself(spark: SparkSession, url: str) -> None:
    db = made(spark, url, "ends")
    applied(db, "ends", ("d", 1, None, 9), keep_deletes_seconds=1)
    assert applied(db, "ends", ("t", None, None, 3), keep_deletes_seconds=1).truncated == 0
    ended = time.time_ns() + 2 * NS_PER_S
    until(lambda: time.time_ns() >= ended, "the clock stands")
    assert applied(db, "ends", ("c", 1, 1, 8), ("c", 2, 2, 2)).inserted == 2
    db.compact()
    assert db.read("ends_deletes").count() == db.read("ends_truncates").count() == 0


def test_none_is_kept_for_0_seconds(spark: SparkSession, url: str) -> None:
    db = made(spark, url, "none")
    applied(db, "none", ("d", 1, None, 9), ("t", None, None, 5), keep_deletes_seconds=0)
    assert not {info.name for info in db.tables()} & {"none_deletes", "none_truncates"}
    assert applied(db, "none", ("c", 1, 1, 4), keep_deletes_seconds=0).inserted == 1


def test_bad_input_is_refused_in_one_sentence(spark: SparkSession, url: str) -> None:
    db = made(spark, url, "bad")
    applied(db, "bad", ("d", 1, None, 9))
    refused: list[tuple[dict[str, Any], str]] = [
        ({"keep_deletes_seconds": -1}, r"invalid keep_deletes_seconds \(0 keeps no deletes\): ttl_seconds -1"),
        ({"keep_deletes_seconds": True}, "keep_deletes_seconds.*True is bool, not a number"),
        (
            {"keep_deletes_seconds": 60},
            "has ttl_seconds 604800 .*keep_deletes_seconds is 60; .*alter bad_deletes --ttl 60",
        ),
        ({"truncates": "count"}, "truncates has type bigint, not boolean"),
        ({"stored_as": "scd2"}, "stored_as"),
        (
            {"stored_as": "history"},
            "'bad' cannot store a history: it has no column 'valid_from'; create the table with",
        ),
        ({"truncates": "op = 't' or count > 0"}, "the condition of truncates is null: unknown operation"),
    ]
    for options, message in refused:
        with pytest.raises(Misuse, match=message):
            applied(db, "bad", ("u", 1, None, 10), **options)
    with pytest.raises(Misuse, match="column 'lsn' is null"):
        applied(db, "bad", ("t", None, None, None))
    assert stored(db, "bad") == []
    db.sql("DROP TABLE bad")
    made(spark, url, "bad")
    with pytest.raises(Misuse, match=r"'bad_deletes', .* is older than 'bad', .* drop 'bad_deletes' too"):
        applied(db, "bad", ("c", 1, 1, 1))
    db.sql("CREATE TABLE other (id INT, lsn BIGINT, PRIMARY KEY (id))")
    db.sql("CREATE TABLE other_deletes (id INT, lsn INT, PRIMARY KEY (id))")
    with pytest.raises(Misuse, match=r"'other_deletes', .* must have the columns \(id integer, lsn long\), row key id"):
        applied(db, "other", ("c", 1, 1, 1))
    long = "n" * 193
    made(spark, url, long)
    assert applied(db, long, ("c", 1, 1, 1)).inserted == 1
    for op in ("d", "t"):
        with pytest.raises(
            Misuse,
            match=r"table that keeps the deletes, because .* must be 1 to 200 letters.* or set keep_deletes_seconds=0",
        ):
            applied(db, long, (op, 1, None, 2))
    assert applied(db, long, ("d", 1, None, 2), keep_deletes_seconds=0).deleted == 1


def test_a_truncation_deletes_what_is_older_and_nothing_newer(spark: SparkSession, url: str) -> None:
    """Rows of earlier calls, changes of its own call, and changes that come later; also if it comes again."""
    db = made(spark, url, "cut")
    applied(db, "cut", ("c", 1, 1, 5), ("c", 2, 2, 20), ("c", 3, 3, 6))
    cut = [("c", 4, 4, 7), ("t", None, None, 10), ("c", 5, 5, 12), ("u", 3, 9, 13)]
    done = applied(db, "cut", *cut)
    assert (done.truncated, done.inserted, done.updated, done.ignored) == (2, 2, 0, 1)
    after = [(2, 2, 20), (3, 9, 13), (5, 5, 12)]
    assert stored(db, "cut") == after
    for rows in (cut, [("c", 1, 7, 9), ("c", 7, 7, 10)], [("t", None, None, 8)], [("c", 6, 6, 9)]):
        done = applied(db, "cut", *rows)
        assert (done.truncated, done.inserted, done.updated) == (0, 0, 0)
    assert stored(db, "cut") == after
    assert applied(db, "cut", ("c", 6, 6, 11)).inserted == 1
    with pytest.raises(Misuse, match=r"a truncation of 'cut' claims whole tables, but .* has conflict_level"):
        with db.begin(conflict_level="row") as tx:
            apply(tx, "cut", [("t", None, None, 30)])


@pytest.mark.long
def test_a_sequence_of_two_numbers_is_kept_too(spark: SparkSession, url: str) -> None:
    db = made(spark, url, "pairs", "at STRUCT<file: INT, pos: BIGINT>")
    for op, file, pos, kept in (("c", 1, 9, 1), ("t", 2, 1, 0), ("c", 1, 10, 0), ("c", 2, 2, 1), ("d", 2, 4, 0)):
        frame = spark.sql(f"SELECT '{op}' op, 1 id, 'n' name, 1L count, struct({file} file, {pos}L pos) at")
        with db.begin() as tx:
            tx.apply_changes(frame, "pairs", sequence_by="at", deletes="op = 'd'", truncates="op = 't'")
        assert db.read("pairs").count() == kept
    assert db.read("pairs_deletes").first()["at"]["pos"] == 4


@pytest.mark.long
def test_columns_may_have_any_names(spark: SparkSession, url: str) -> None:
    """Also those of the tables beside the target, and those that Spark takes for fields of structs."""
    db = pyomid.spark.connect(spark, url)
    db.sql("CREATE TABLE named (`a.b` INT, `c``d e` INT, `Id` BIGINT, PRIMARY KEY (`a.b`))")
    for op, lsn, kept in (
        ("c", 1, 1),
        ("d", 9, 0),
        ("c", 8, 0),
        ("c", 10, 1),
        ("t", 20, 0),
        ("c", 19, 0),
        ("c", 21, 1),
    ):
        frame = spark.sql(f"SELECT '{op}' op, 1 `a.b`, 2 `c``d e`, {lsn}L id")
        with db.begin() as tx:
            tx.apply_changes(frame, "named", sequence_by="Id", deletes="op = 'd'", truncates="op = 't'")
        assert db.read("named").count() == kept


def test_a_row_key_that_the_store_cannot_have_is_a_bad_change(spark: SparkSession, url: str) -> None:
    """Of several columns, with zero bytes, which take more room, and exactly at the limit."""
    db = pyomid.spark.connect(spark, url)
    limit = db.opened(create=True).deployment.store.limits.row_bytes_max
    db.sql("CREATE TABLE keys (n BIGINT, a STRING, b STRING, lsn BIGINT, PRIMARY KEY (n, a, b))")
    many = -1 - (1 << 62)  # whose encoding has no zero byte
    sizes = [limit - 8 - 2 - 1, limit - 8 - 2]
    rows = [(many, "x" * (size - 1), "y" * more, 1) for size in sizes for more in (0, 1, 2)]
    rows += [(many, "\0" * (limit // 3), "", 1), (many, "\0" * (limit // 4), "", 1)]
    fits = [row for row in rows if 8 + encoded_bytes(row[1]) + len(row[2]) <= limit]
    frame = spark.createDataFrame(rows, "n long, a string, b string, lsn long")
    with db.begin() as tx:
        done = tx.apply_changes(frame, "keys", sequence_by="lsn", bad="bad_keys")
    assert (done.inserted, done.bad) == (len(fits), len(rows) - len(fits))
    assert len(fits) not in (0, len(rows))
    assert all(
        f"over this store's limit of {limit}" in row["reason"] and len(row["position"]) < 100
        for row in db.read("bad_keys").collect()
    )


def encoded_bytes(text: str) -> int:
    """The bytes of a text that is not the last part of a row key, as a folder counts them: zero bytes twice."""
    return len(text) + 2 * text.count("\0") + 3


@pytest.mark.long
def test_no_value_is_kept_across_a_kept_delete(spark: SparkSession, url: str) -> None:
    db = made(spark, url, "parts")
    applied(db, "parts", ("d", 1, None, 9))
    left_out = "CASE WHEN count IS NULL THEN array('count') END"
    with pytest.raises(Misuse, match=r"leave out column 'count' of the row .*no value to keep"):
        applied(db, "parts", ("c", 1, 1, 7), ("u", 1, None, 10), unchanged=left_out)
    applied(db, "parts", ("c", 1, 1, 10), ("u", 1, None, 11), unchanged=left_out)
    assert stored(db, "parts") == [(1, 1, 11)]


@pytest.mark.long
def test_of_a_delete_without_a_row_and_a_late_insert_beside_it_one_commits(spark: SparkSession, url: str) -> None:
    """Neither sees the other: without a conflict the late row would stay."""
    db = made(spark, url, "raced")
    since = db.bookmark(keep_seconds=600)
    for late in ("c", "t"):
        one, other = db.begin(), db.begin()
        apply(one, "raced", [("d" if late == "c" else "t", 1, None, 9)])
        apply(other, "raced", [("c", 1, 1, 8)])
        other.commit()
        with pytest.raises(ConflictError):
            one.commit()
        applied(db, "raced", ("d", 1, None, 10))
        db.sql("DROP TABLE raced_deletes")
    feed = db.changes("raced", since)
    assert {row["_change_type"] for row in feed.collect()} == {"insert", "delete"}


def test_tables_of_rows_and_histories_share_a_commit(spark: SparkSession, url: str) -> None:
    db = made(spark, url, "now")
    history = "valid_from BIGINT, valid_to BIGINT, is_current BOOLEAN"
    db.sql(f"CREATE TABLE versions (id INT, name STRING, count BIGINT, {history}, PRIMARY KEY (id, valid_from))")
    with db.begin() as tx:
        apply(tx, "now", [("c", 1, 1, 5), ("u", 1, 2, 6), ("d", 2, None, 6)])
        assert apply(tx, "now", [("c", 2, 2, 5)]).ignored == 1  # by the delete of its own transaction
        apply(tx, "versions", [("c", 1, 1, 5), ("u", 1, 2, 6)], stored_as="history")
        assert db.read("versions").count() == db.read("now").count() == 0
    assert stored(db, "now") == [(1, 2, 6)]
    assert db.read("versions").where("is_current").count() == 1
