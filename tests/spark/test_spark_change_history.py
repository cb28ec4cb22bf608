"""`apply_changes(stored_as="history")`: every change becomes a version, in whatever order changes come."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pytest

import pyomid
import pyomid.spark
from portions import first
from pyomid.errors import ConflictError, Misuse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyomid.spark import SparkDatabase
    from pyomid.spark.change_data import ChangesResult

pytestmark = [pytest.mark.spark, pytest.mark.connect]

Row = tuple[Any, ...]
EVENTS = "op string, id int, count int, lsn int, left_out array<string>"
SHAPE = "id INT, count BIGINT, note STRING, valid_from BIGINT, valid_to BIGINT, is_current BOOLEAN"


def made(spark: SparkSession, url: str, table: str) -> SparkDatabase:
    db = pyomid.spark.connect(spark, url)
    db.sql(f"CREATE TABLE {table} ({SHAPE}, PRIMARY KEY (id, valid_from))")
    return db


def applied(db: SparkDatabase, table: str, *rows: Row, **options: Any) -> ChangesResult:
    padded = [(*row, None)[:5] for row in rows]
    frame = db.spark.createDataFrame(padded, EVENTS).selectExpr("*", "'n' note")
    given: Any = {"sequence_by": "lsn", "deletes": "op = 'd'", "truncates": "op = 't'", "unchanged": "left_out"}
    with db.begin() as tx:
        return tx.apply_changes(frame, table, stored_as="history", **given | {"snapshots": "op = 'r'"} | options)


def versions(db: SparkDatabase, table: str) -> list[Row]:
    columns = ("id", "valid_from", "count", "valid_to", "is_current")
    return sorted(tuple(row) for row in db.read(table).select(*columns).collect())


def expected(changes: Iterable[Row]) -> list[Row]:
    """The versions by the definition: each change is valid until the next one of its key, or the next truncation."""
    cuts = {lsn for op, _, _, lsn in changes if op == "t"}
    of_key: dict[int, dict[int, Row]] = {}
    for op, key, count, lsn in changes:
        if op != "t":
            of_key.setdefault(key, {})[lsn] = (op, count)
    found = []
    for key, points in of_key.items():
        for lsn, (op, count) in points.items():
            ends = [other for other in {*points, *cuts} if other > lsn]
            if op != "d":
                found.append((key, lsn, count, min(ends, default=None), not ends))
    return sorted(found)


@pytest.mark.parametrize("seed", first(0, range(8)))
def test_versions_do_not_depend_on_the_order_in_which_changes_come(spark: SparkSession, url: str, seed: int) -> None:
    """Several batches in any order, some of them twice, with deletes of rows that are not there yet."""
    rand = random.Random(seed)
    db = made(spark, url, f"any_order_{seed}")
    lsns = rand.sample(range(1, 200), 60)
    changes = [(rand.choice("ccuudr"), rand.randrange(8), rand.randrange(3), lsn) for lsn in lsns[:-2]]
    changes += [("t", None, None, lsn) for lsn in lsns[-2:]]
    rand.shuffle(changes)
    arrived: list[Row] = []
    while len(arrived) < len(changes):
        batch = changes[len(arrived) : len(arrived) + rand.randrange(8, 30)]
        applied(db, f"any_order_{seed}", *batch, *rand.choices(arrived or batch, k=5), snapshots=None)
        arrived += batch
        assert versions(db, f"any_order_{seed}") == expected(arrived), f"seed {seed}"
    done = applied(db, f"any_order_{seed}", *changes, snapshots=None)
    assert (done.inserted, done.updated, done.deleted) == (0, 0, 0)


def test_each_change_is_a_version_and_a_late_one_comes_between(spark: SparkSession, url: str) -> None:
    db = made(spark, url, "versions")
    done = applied(db, "versions", ("c", 1, 9, 1), ("u", 1, 8, 3), ("u", 1, 8, 3), ("d", 2, None, 7))
    assert (done.inserted, done.updated, done.deleted, done.ignored) == (2, 0, 1, 1)
    done = applied(db, "versions", ("u", 1, 7, 2), ("d", 1, None, 5), ("c", 2, 4, 6), ("c", 1, 1, 3))
    assert (done.inserted, done.updated, done.deleted, done.ignored) == (2, 2, 1, 1)
    assert versions(db, "versions") == [
        (1, 1, 9, 2, False),
        (1, 2, 7, 3, False),
        (1, 3, 8, 5, False),
        (2, 6, 4, 7, False),
    ]
    assert db.verify().ok


def test_a_snapshot_begins_a_version_only_if_a_value_differs(spark: SparkSession, url: str) -> None:
    db = made(spark, url, "snapshots")
    applied(db, "snapshots", ("r", 1, 9, 1), ("r", 2, 5, 1), ("r", 3, 1, 1), ("d", 3, None, 2))
    assert applied(db, "snapshots", ("r", 1, 9, 4), ("r", 2, 6, 4), ("r", 3, 1, 4), ("r", 1, 9, 5)).inserted == 2
    assert applied(db, "snapshots", ("u", 1, 9, 6)).inserted == 1  # a change is a version, also of equal values
    assert [row[:3] for row in versions(db, "snapshots") if row[4]] == [(1, 6, 9), (2, 4, 6), (3, 4, 1)]


@pytest.mark.long
def test_a_snapshot_with_two_values_of_one_row_is_refused(spark: SparkSession, url: str) -> None:
    """Also if the first of them equals the version before."""
    db = made(spark, url, "two_values")
    applied(db, "two_values", ("r", 1, 9, 1))
    for counts in ((9, 8), (8, 9)):
        with pytest.raises(Misuse, match="the key 1 has two different changes with the sequence 4"):
            applied(db, "two_values", *(("r", 1, count, 4) for count in counts))


@pytest.mark.long
def test_a_truncation_ends_a_version_of_its_own_sequence_whenever_it_comes(spark: SparkSession, url: str) -> None:
    db = made(spark, url, "cut_at")
    changes = [("c", 1, 1, 3), ("c", 1, 2, 5), ("c", 2, 3, 5), ("u", 2, 4, 6)]
    assert applied(db, "cut_at", *changes).inserted == 4
    done = applied(db, "cut_at", ("t", None, None, 5))
    assert (done.truncated, done.updated, done.inserted) == (2, 0, 0)
    assert versions(db, "cut_at") == [(1, 3, 1, 5, False), (2, 6, 4, None, True)]
    two = [("c", 3, 7, 5), ("c", 3, 8, 5)]  # of which neither becomes a version
    assert applied(db, "cut_at", *changes, ("t", None, None, 5), *two).ignored == 6
    assert len(versions(db, "cut_at")) == 2


@pytest.mark.long
def test_a_column_that_a_change_leaves_out_has_the_value_of_the_version_before(spark: SparkSession, url: str) -> None:
    db = made(spark, url, "parts")
    count = ["count"]
    applied(db, "parts", ("c", 1, 9, 1), ("u", 1, None, 3, count), ("u", 1, 5, 4))
    applied(db, "parts", ("u", 1, None, 2, count), ("u", 1, None, 6, count))
    assert [row[2] for row in versions(db, "parts")] == [9, 9, 9, 5, 5]
    for rows in ([("u", 2, None, 1, count)], [("d", 1, None, 7), ("u", 1, None, 8, count)], [("u", 1, None, 0, count)]):
        with pytest.raises(Misuse, match=r"leave out column 'count' of the row .*no value to keep"):
            applied(db, "parts", *rows)
    assert len(versions(db, "parts")) == 5


def test_bad_input_is_refused_in_one_sentence(spark: SparkSession, url: str) -> None:
    db = made(spark, url, "bad")
    good = ("c", 1, 9, 1)
    with pytest.raises(Misuse, match="the key 1 has two different changes with the sequence 1"):
        applied(db, "bad", good, ("u", 1, 8, 1))
    with pytest.raises(Misuse, match=r"the change at .*\"lsn\":2.* column 'id' is null"):
        applied(db, "bad", good, ("c", None, 9, 2))
    assert applied(db, "bad", good, ("c", None, 9, 2), bad="bad_versions").bad == 1
    assert len(versions(db, "bad")) == 1
    with pytest.raises(Misuse, match="have no column 'ts', which sequence_by names"):
        applied(db, "bad", good, sequence_by="ts")
    with pytest.raises(Misuse, match="column 'op' has type bigint, but the given value has type string"):
        applied(db, "bad", good, sequence_by="op")
    shapes = {
        "no_end": ("id INT, count BIGINT, note STRING, valid_from BIGINT, is_current BOOLEAN", "id, valid_from"),
        "no_key": (SHAPE, "id"),
        "no_row": (SHAPE, "valid_from"),
        "no_flag": (SHAPE.replace("BOOLEAN", "INT"), "id, valid_from"),
    }
    wanted = {
        "no_end": "it has no column 'valid_to'; create the table with the columns valid_from bigint, valid_to bigint",
        "no_key": r"its row key \(id\) does not end in 'valid_from'; .*PRIMARY KEY \(id, valid_from\)",
        "no_row": r"its row key \(valid_from\) does not end in",
        "no_flag": "its column 'is_current' of type int has the wrong type or belongs to the row key; create the",
    }
    for table, (columns, key) in shapes.items():
        db.sql(f"CREATE TABLE {table} ({columns}, PRIMARY KEY ({key}))")
        with pytest.raises(Misuse, match=f"'{table}' cannot store a history: {wanted[table]}"):
            applied(db, table, good)


def test_of_two_transactions_that_add_versions_of_one_key_one_commits(spark: SparkSession, url: str) -> None:
    db = made(spark, url, "raced")
    begun = [db.begin(), db.begin()]
    for tx, lsn in zip(begun, (5, 7), strict=True):
        frame = spark.sql(f"SELECT 1 id, 1 count, 'n' note, {lsn} lsn")
        tx.apply_changes(frame, "raced", sequence_by="lsn", stored_as="history")
    begun[0].commit()
    with pytest.raises(ConflictError):
        begun[1].commit()
