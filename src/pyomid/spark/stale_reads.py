"""A write of what was read of the same table at another snapshot loses what was committed in between, in silence:

    df = spark.read.format("omid")…load()       snapshot 100
                                                others change the table
    tx.write(df.withColumn(…), table)           snapshot 200: no conflict with them, and their changes are gone

A plan does not tell what it reads: Spark shows no more of it than the data source's name. Its tasks know. The jobs of a
write carry a tag that names table and snapshot, and a task that reads the same table at another snapshot inside of such
a job refuses. Of rows that were collected, cached or stored elsewhere before nobody knows any more: they are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext

from pyomid.errors import Misuse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyomid.spark.read_task import ReadPlan

_TAG: Final = re.compile(r"omid-writes-(\d+)-([0-9a-f]*)-([0-9a-f]*)")
_TAGS: Final = "spark.job.tags"
"""The local property in which a task finds the tags of its job."""


@contextmanager
def writes_by(spark: SparkSession, start_ts: int, database_id: bytes, table: str, stale_read: str) -> Iterator[None]:
    """The jobs of this block write the table, by the transaction `start_ts`. `stale_read`: "allow" says nothing."""
    if stale_read == "allow":
        yield
        return
    tag = f"omid-writes-{start_ts}-{database_id.hex()}-{table.encode().hex()}"
    spark.addTag(tag)
    try:
        yield
    finally:
        with suppress(Exception):  # of a session that was stopped: what the block raised is the error
            spark.removeTag(tag)


def check_read(plan: ReadPlan) -> None:
    """In a reading task: `Misuse` where its job writes the table by a transaction of another snapshot."""
    task = TaskContext.get()
    tags = None if task is None else task.getLocalProperty(_TAGS)
    for start_ts, database, table in _TAG.findall(tags or ""):
        is_same = (database, table) == (plan.database_id.hex(), plan.table.encode().hex())
        if is_same and int(start_ts) != plan.snapshot.start_ts:
            raise Misuse(
                f"a write to {plan.table!r} by the transaction {start_ts} is computed from what was read of the table "
                f"at another snapshot, {plan.snapshot.start_ts}: what was committed in between would be lost; read by "
                "tx.read(…) of the transaction that writes, or say stale_read='allow'",
                table=plan.table,
            )
