"""Tables as they were, by Spark: read at a version or a time, and put back."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import pyomid
import pyomid.spark
from portions import first
from pyomid import crashpoints
from pyomid.errors import ConflictError, Misuse, SnapshotTooOld
from pyomid.protocol.timestamps import NS_PER_S, time_of
from pyomid.types import Bookmark
from waiting import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def kept_url(url: str) -> str:
    kept = url + ("&" if "?" in url else "?") + "retention=1h"
    with pyomid.connect(kept):
        return kept


def write(spark: SparkSession, url: str, rows: list[tuple[int, str]], table: str = "t") -> int:
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(spark.createDataFrame(rows, "id int, v string"), table, row_key="id")
    assert tx.commit_ts is not None
    return tx.commit_ts


def rows_of(frame: DataFrame) -> list[tuple[int, str]]:
    return sorted((row.id, row.v) for row in frame.collect())


def test_a_table_is_read_at_a_version_and_put_back(spark: SparkSession, kept_url: str) -> None:
    db = pyomid.spark.connect(spark, kept_url)
    before = [(1, "a"), (2, "b")]
    first = write(spark, kept_url, before)
    second = write(spark, kept_url, [(2, "c"), (3, "d")])
    past = db.read("t", at=first)
    assert rows_of(past) == before
    with pyomid.connect(kept_url) as client:
        client.compact()
    assert rows_of(past) == before
    now = db.read("t")
    changed = now.join(past.withColumnRenamed("v", "was"), "id", "left").where("was IS NULL OR was <> v")
    assert sorted(row.id for row in changed.collect()) == [2, 3], "two snapshots in one query"
    restored = db.restore("t", first)
    assert restored.commit_version is not None
    assert restored.commit_version > second
    assert (restored.rows_written, restored.rows_deleted) == (1, 1), "only what differs"
    assert rows_of(db.read("t")) == before
    assert rows_of(db.read("t", at=second)) == [(1, "a"), (2, "c"), (3, "d")]
    options = {"url": kept_url, "table": "t", "at": datetime.now(UTC).isoformat()}
    assert len(spark.read.format("omid").options(**options).load().collect()) >= 2
    history = db.history("t").collect()
    assert [row.version for row in history] == [restored.commit_version, second, first]
    assert [tuple(row)[2:] for row in history] == [(0, 1, 1), (1, 1, 0), (2, 0, 0)], "inserted, updated, deleted"
    assert [row.timestamp.astimezone(UTC) for row in history] == [time_of(row.version) for row in history]
    assert rows_of(db.read("t", at=history[0].version)) == before
    with db.begin() as tx:
        tx.write(spark.createDataFrame([(9, "own")], "id int, v string"), "t")
        assert rows_of(tx.read("t")) == [*before, (9, "own")]
        for at in (first, Bookmark(first), time_of(first) + timedelta(microseconds=1)):
            assert rows_of(tx.read("t", at=at)) == before, "without its own writes"
        was = tx.read("t", at=second, where="id > 1", columns=["v", "id"]).collect()
        assert sorted(map(tuple, was)) == [("c", 2), ("d", 3)]
        with pytest.raises(Misuse, match="at=0 is not a valid timestamp"):
            tx.read("t", at=0)
        tx.rollback()
    tomorrow = {**options, "at": (datetime.now(UTC) + timedelta(days=1)).isoformat()}
    assert rows_of(spark.read.format("omid").options(**tomorrow).load()) == before, "a time in the future is now"


def test_a_restore_claims_the_table_so_that_no_new_row_is_left(spark: SparkSession, kept_url: str) -> None:
    """The row is not among those that it replaces."""
    db = pyomid.spark.connect(spark, kept_url)
    first = write(spark, kept_url, [(1, "a")])
    write(spark, kept_url, [(1, "b")])

    def other() -> None:
        crashpoints.disarm()
        with pyomid.connect(kept_url) as client, client.begin() as tx:
            tx.table("t", codec=dict).put({"id": 77, "v": "new"})

    crashpoints.arm_action("spark.commit.before", other)
    try:
        with pytest.raises(ConflictError):
            db.restore("t", first)
    finally:
        crashpoints.disarm()
    assert {(1, "b"), (77, "new")} <= set(rows_of(db.read("t")))


def test_a_restore_undoes_nothing_that_was_acknowledged_by_its_time(spark: SparkSession, kept_url: str) -> None:
    db = pyomid.spark.connect(spark, kept_url)
    rows = [(1, "a"), (2, "b"), (3, "c")]
    for count in (1, 2, 3):
        write(spark, kept_url, rows[:count], "restored")
        at = datetime.now(UTC)
        restored = db.restore("restored", at)
        assert restored.commit_version is None, "nothing differs"
        assert restored.moment is not None
        assert at - timedelta(seconds=1) < restored.moment.timestamp <= at
        assert rows_of(db.read("restored")) == rows[:count]
    write(spark, kept_url, [(9, "later")], "restored")
    found = db.moment(at)
    assert rows_of(db.read("restored", at=found.version)) == rows
    options = {"url": kept_url, "table": "restored", "at": at.isoformat()}
    assert rows_of(spark.read.format("omid").options(**options).load()) == rows


@pytest.fixture(scope="module")
def written(spark: SparkSession, kept_url: str) -> int:
    return write(spark, kept_url, [(1, "a")])


@pytest.mark.usefixtures("written")
@pytest.mark.parametrize(
    ("options", "error", "told"),
    first(
        3,
        [
            ({"at": "1"}, SnapshotTooOld, "no longer kept"),
            ({"at": str(1 << 62)}, Misuse, "in the future"),
            ({"at": "0"}, Misuse, "option at=0 is not a valid timestamp"),
            ({"versionAsOf": "1"}, Misuse, "did you mean at"),
            ({"at": "2020-01-01"}, Misuse, "no time zone"),
            ({"at": "yesterday"}, Misuse, "not a valid time"),
            ({"at": "2020-01-01T00:00:00Z"}, SnapshotTooOld, "no longer kept"),
        ],
    ),
)
def test_a_snapshot_that_cannot_be_is_refused(
    spark: SparkSession, kept_url: str, options: dict[str, str], error: type[Exception], told: str
) -> None:
    with pytest.raises(error, match=told), pyomid.spark.original_errors():
        spark.read.format("omid").options(url=kept_url, table="t", **options).load()


NO_TIMES: list[tuple[Any, str]] = [
    (None, "at=None has type NoneType: give a timestamp"),
    ("2020-01-01", "at=2020-01-01 has no time zone"),
    (True, "at=True has type bool: give a timestamp"),
    (0, "at=0 is not a valid timestamp"),
    (datetime(2020, 1, 1), "has no time zone"),
]


@pytest.mark.usefixtures("written")
def test_a_time_that_is_none_restores_nothing(spark: SparkSession, kept_url: str) -> None:
    before = rows_of(pyomid.spark.connect(spark, kept_url).read("t"))
    for at, told in NO_TIMES:
        with pytest.raises(Misuse, match=told):
            pyomid.spark.connect(spark, kept_url).restore("t", at)
        if at is not None:
            with pytest.raises(Misuse, match=told):
                pyomid.spark.connect(spark, kept_url).read("t", at=at)
    assert rows_of(pyomid.spark.connect(spark, kept_url).read("t")) == before


def test_a_version_out_of_a_frame_of_pandas_is_one(spark: SparkSession, kept_url: str, written: int) -> None:
    db = pyomid.spark.connect(spark, kept_url)
    expected = rows_of(db.read("t", at=written))
    assert (1, "a") in expected
    assert rows_of(db.read("t", at=np.int64(written))) == expected


def let_pass(commit_ts: int, seconds: float) -> None:
    until(lambda: time.time_ns() >= commit_ts + seconds * NS_PER_S, "the clock stands")


def test_e1_what_expired_is_gone_by_the_frames_snapshot(spark: SparkSession, kept_url: str) -> None:
    db = pyomid.spark.connect(spark, kept_url)
    old, new = [(number, "old") for number in range(50)], [(number, "new") for number in range(40, 60)]
    with pyomid.connect(kept_url) as client:
        first = write(spark, kept_url, old, "expiring")
        second = write(spark, kept_url, new, "expiring")
        before = db.read("expiring")
        let_pass(first, 1.0)
        client.alter_table("expiring", ttl_seconds=1)
        fence = client.table_info("expiring").ttl_changes[-1].since_ts
        client.alter_table("expiring", ttl_seconds=600)
        db.compact("expiring")
        left = [
            (number, v)
            for commit, rows in ((first, old[:40]), (second, new))
            for number, v in rows
            if commit > fence - NS_PER_S
        ]
        assert rows_of(db.read("expiring")) == sorted(left)
        assert rows_of(before) == sorted([*old[:40], *new])
        assert rows_of(db.read("expiring", at=first)) == old
        db.restore("expiring", first)
        assert rows_of(db.read("expiring")) == old
