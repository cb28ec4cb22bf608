"""A write of what was read of the same table at another snapshot loses what was committed in between, in silence:

    df = spark.read.format("omid")…load()       snapshot 100
                                                others change the table
    tx.write(df.withColumn(…), table)           snapshot 200: no conflict with them, and their changes are gone

A plan does not tell what it reads: Spark shows no more of it than the data source's name. Its tasks know. The jobs of a
write carry a local property that names table and snapshot, and a task that reads the same table at another snapshot
inside of such a job refuses. The property is the thread's: it goes with the jobs of every session of the program, where
a job tag is one session's, and a frame's jobs are those of the frame's session. Over Spark Connect there is no such
property: there it is a tag, and a frame of another session is refused (`local_frames`). Of rows that were collected,
cached or stored elsewhere before, the origin is unknown: they are written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext

from pyomid.errors import Misuse
from pyomid.spark.sessions import JOB_TAGS, local_property

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyomid.spark.source.read_task import ReadPlan

WRITES: Final = "pyomid.writes"
_WRITES: Final = re.compile(r"(\d+)-([0-9a-f]*)-([0-9a-f]*)")
_TAGGED: Final = re.compile(rf"{re.escape(WRITES)}={_WRITES.pattern}(?=,|$)")
"""Start, database and table of the write that a job belongs to."""


@contextmanager
def writes_by(spark: SparkSession, start_ts: int, database_id: bytes, table: str, stale_read: str) -> Iterator[None]:
    """The jobs of this block write the table, by the transaction `start_ts`. `stale_read`: "allow" says nothing."""
    if stale_read == "allow":
        yield
        return
    with local_property(spark, WRITES, f"{start_ts}-{database_id.hex()}-{table.encode().hex()}"):
        yield


def check_read(plan: ReadPlan) -> None:
    """In a reading task: `Misuse` where its job writes the table by a transaction of another snapshot."""
    task = TaskContext.get()
    told, tags = ("", "") if task is None else (task.getLocalProperty(name) or "" for name in (WRITES, JOB_TAGS))
    writes = _WRITES.fullmatch(told) or _TAGGED.search(tags)
    if writes is not None and writes.groups()[1:] == (plan.database_id.hex(), plan.table.encode().hex()):
        start_ts = int(writes[1])
        if start_ts != plan.snapshot.start_ts:
            raise Misuse(
                f"a write to {plan.table!r} by the transaction {start_ts} is computed from what was read of the table "
                f"at another snapshot, {plan.snapshot.start_ts}: what was committed in between would be lost; read by "
                "tx.read(…) of the transaction that writes, or say stale_read='allow'",
                table=plan.table,
            )
