"""A job that has lost ends at the first batch that shows it, and not at its commit.

Counted by the records that tasks wrote and by commit requests: a task that goes on behind its first batch would write
them all. The session tries a task twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from spark_sessions import small_batches

import pyomid
import pyomid.spark
from portions import first
from pyomid import crashpoints
from pyomid.errors import ConflictError
from pyomid.folder import EmbeddedStore
from pyomid.spark import SparkTransaction
from pyomid.spark.coded_errors import original_error
from pyomid.spark.connections import connection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

DDL = "key string, value long"
ROWS, BATCH, TRIES = 12, 3, 2


def frame(spark: SparkSession) -> DataFrame:
    """The rows in the order of their keys, in one partition."""
    return spark.range(ROWS, numPartitions=1).selectExpr("format_string('%02d', id) AS key", "id AS value")


def made(spark: SparkSession, url: str, table: str) -> None:
    with pyomid.spark.connect(spark, url).begin() as tx:
        tx.write(frame(spark), table, row_key="key")


def content(spark: SparkSession, url: str, table: str) -> dict[str, int]:
    rows = pyomid.spark.connect(spark, url).read(table).collect()
    return {row["key"]: row["value"] for row in rows}


def beating(url: str, table: str, key: bytes, before: int) -> Callable[[Any], Any]:
    """Return a function that yields the batches it is given; another program commits a row before this one of them."""

    def meddled(batches: Any) -> Any:
        for number, batch in enumerate(batches):
            if number == before:
                with pyomid.connect(url) as db:
                    db.run(lambda tx: tx.table(table).put(key, {b"d:value": (1_000).to_bytes(8, "big")}))
            yield batch

    return meddled


def records(url: str) -> int:
    """Return how many records the store has: those of tasks that lost, too."""
    store = connection(url).deployment.store
    assert isinstance(store, EmbeddedStore)
    return store.record_count()


@contextmanager
def commits_asked() -> Iterator[list[None]]:
    """The commits that this process asked for."""
    asked: list[None] = []
    crashpoints.arm_action("spark.commit.before", lambda: asked.append(None))
    try:
        yield asked
    finally:
        crashpoints.disarm()


Change = Callable[[SparkTransaction, str, "DataFrame"], object]

CHANGES: dict[str, Change] = {
    "merge": lambda tx, table, rows: (
        tx.merge(rows, table, on=["key"]).whenMatched().update({"value": "target.value + 1"}).merge()
    ),
    "update": lambda tx, table, rows: tx.update(table, "value >= 0", {"value": "value + 1"}),
    "delete": lambda tx, table, rows: tx.delete(table, where="value >= 0"),
    "write": lambda tx, table, rows: tx.write(rows, table),
}


@pytest.mark.parametrize("change", first(1, CHANGES))
def test_a_change_that_lost_ends_in_its_first_batch_and_begins_anew(spark: SparkSession, url: str, change: str) -> None:
    table = f"lost_{change}"
    made(spark, url, table)
    starts: list[int] = []
    conflicts: list[ConflictError] = []

    def work(tx: SparkTransaction) -> None:
        starts.append(tx.start_ts)
        if len(starts) == 1:
            [*beating(url, table, b"00", 0)([None])]
        CHANGES[change](tx, table, frame(spark))

    before = records(url)
    with small_batches(spark), commits_asked() as asked:
        pyomid.spark.connect(spark, url).run(work, on_conflict=conflicts.append)
    assert (len(starts), len(conflicts), len(asked)) == (2, 1, 1)
    assert starts[0] < conflicts[0].values["commit_ts"] < starts[1]
    assert records(url) - before <= 1 + TRIES * BATCH + ROWS, "the other's row, the batches that lost, and the job's"
    found = content(spark, url, table)
    assert (len(found), found.get("00")) == {
        "merge": (ROWS, 1_001),
        "update": (ROWS, 1_001),
        "delete": (0, None),
        "write": (ROWS, 0),
    }[change]


def test_a_merge_that_loses_while_it_runs_does_not_reach_its_commit(spark: SparkSession, url: str) -> None:
    """The last row is committed when the task reads its second batch."""
    made(spark, url, "later")
    tries: list[int] = []

    def work(tx: SparkTransaction) -> None:
        tries.append(tx.start_ts)
        rows = frame(spark)
        if len(tries) == 1:
            rows = rows.mapInArrow(beating(url, "later", b"11", 1), DDL)
        tx.write(rows, "later")

    with small_batches(spark), commits_asked() as asked:
        pyomid.spark.connect(spark, url).run(work)
    assert (len(tries), len(asked)) == (2, 1)
    assert content(spark, url, "later") == {f"{n:02}": n for n in range(ROWS)}


@pytest.mark.parametrize(("how", "written"), [({}, TRIES * BATCH), ({"runId": "load"}, ROWS + 1)])
def test_a_plain_write_that_lost_ends_in_its_first_batch(
    spark: SparkSession, url: str, how: dict[str, str], written: int
) -> None:
    """Unless it has an id: only its commit can learn whether the winner was a run under the same id."""
    table = f"plain_{len(how)}"
    made(spark, url, table)

    before = records(url)
    rows = frame(spark).mapInArrow(beating(url, table, b"00", 0), DDL)
    with small_batches(spark), pytest.raises(PySparkException) as raised:
        rows.write.format("omid").options(url=url, table=table, **how).mode("append").save()
    assert isinstance(original_error(raised.value), ConflictError)
    assert records(url) - before <= TRIES + written, "the other's rows, and what the job wrote before it lost"
    assert content(spark, url, table)["00"] == 1_000
