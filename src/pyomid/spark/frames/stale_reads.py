"""Detection of writes computed from the same table at another snapshot; they would silently lose commits in between:

    df = spark.read.format("omid")…load()       snapshot 100
                                                others change the table
    tx.write(df.withColumn(…), table)           snapshot 200: no conflict with them, and their changes are gone

A plan does not show what it reads, only the data source's name; but its tasks know. The jobs of a write carry a local
property with table and snapshot, and a task inside such a job refuses to read the same table at another snapshot. The
property belongs to the thread, so it reaches the jobs of every session; a job tag would belong to one session, and a
frame's jobs run in the frame's session. Over Spark Connect there are no local properties: a tag is used, and a frame of
another session is refused (`local_frames`). The origin of rows that were collected, cached or stored elsewhere is
unknown: they are written.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext

from pyomid.errors import Misuse

if TYPE_CHECKING:
    from pyomid.spark.source.read_task import ReadPlan

JOB_TAGS: Final = "spark.job.tags"
"""Local property in which Spark keeps a job's tags; tags set over Connect have a prefix there."""

WRITES: Final = "pyomid.writes"
_WRITES: Final = re.compile(r"(\d+)-([0-9a-f]*)-([0-9a-f]*)")
_TAGGED: Final = re.compile(rf"{re.escape(WRITES)}={_WRITES.pattern}(?=,|$)")
"""Start, database and table of the write that a job belongs to."""


def write_text(start_ts: int, database_id: bytes, table: str) -> str:
    """Return the value of the property `WRITES` for the jobs of a write (`jobs.writes_by`)."""
    return f"{start_ts}-{database_id.hex()}-{table.encode().hex()}"


def check_read(plan: ReadPlan) -> None:
    """In a reading task: `Misuse` if its job writes the same table by a transaction at another snapshot."""
    task = TaskContext.get()
    written, tags = ("", "") if task is None else (task.getLocalProperty(name) or "" for name in (WRITES, JOB_TAGS))
    writes = _WRITES.fullmatch(written) or _TAGGED.search(tags)
    if writes is not None and writes.groups()[1:] == (plan.database_id.hex(), plan.table.encode().hex()):
        start_ts = int(writes[1])
        if start_ts != plan.snapshot.start_ts:
            raise Misuse(
                f"a write to {plan.table!r} by transaction {start_ts} is computed from a read of the same table at "
                f"another snapshot, {plan.snapshot.start_ts}: commits in between would be lost; read by tx.read(…) of "
                "the transaction that writes, or give stale_read='allow'",
                table=plan.table,
            )
