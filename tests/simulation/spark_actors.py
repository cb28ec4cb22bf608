"""Jobs of `pyomid.spark` in simulated universes: each writes a few rows of its own, all of them or none.

What is demanded of every snapshot: of a try's rows all are there or none; all of those whose job was told "committed"
before the snapshot was drawn; and of all tries under one durable id at most one, exactly one from when it was told.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
from front_end_actors import _pause
from front_end_world import FrontProcess
from green_threads import wait
from pyspark.sql.types import StringType, StructField, StructType
from virtual_spark import VirtualError, VirtualSpark

from pyomid.database.idempotency import AlreadyDone
from pyomid.errors import OmidError
from pyomid.spark.database import SparkDatabase
from simulation.universe import Sleep

TABLE: Final = "jobs"
ROWS: Final = 4
"""In two partitions."""
SCHEMA: Final = StructType([StructField("key", StringType()), StructField("job", StringType())])
IDS: Final = ("job-1", "job-2")


@dataclass
class Jobs:
    """What was tried and told. A try is one run of a program's function, or one `df.write`."""

    number: int = 0
    of_id: dict[str, str] = field(default_factory=dict)
    """Try → the durable id that it ran under."""
    told: dict[str, int] = field(default_factory=dict)
    """Try → the move after which its caller knew that it committed."""
    told_ids: dict[str, int] = field(default_factory=dict)
    """Durable id → the move after which a caller knew that it counts."""

    def begun(self, run_id: str | None) -> str:
        self.number += 1
        name = f"try-{self.number}"
        if run_id is not None:
            self.of_id[name] = run_id
        return name


def frame_of(spark: VirtualSpark, job: str) -> Any:
    keys = [f"{job}/{at}" for at in range(ROWS)]
    return spark.frame(SCHEMA, [_batch(keys[: ROWS // 2], job), _batch(keys[ROWS // 2 :], job)])


def _batch(keys: list[str], job: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"key": key, "job": job} for key in keys], schema=pa.schema([("key", pa.string()), ("job", pa.string())])
    )


def transaction_runner(process: FrontProcess, jobs: Jobs) -> None:
    """`SparkDatabase.run`, with a durable id or without."""
    spark = VirtualSpark(process)
    while not process.world.closing:
        name = process.choices.pick((None, *IDS))
        tries: list[str] = []

        def body(tx: Any, name: str | None = name, tries: list[str] = tries) -> None:
            tries.append(jobs.begun(name))
            tx.write(frame_of(spark, tries[-1]), TABLE, row_key="key")

        try:
            db = SparkDatabase(spark, process.url)
            done = db.run(body, retries=2) if name is None else db.run_once(name, body, retries=2)
        except (OmidError, VirtualError):
            _pause(process)
            continue
        if not isinstance(done, AlreadyDone):
            jobs.told[tries[-1]] = process.world.universe.steps
        if name is not None:
            jobs.told_ids.setdefault(name, process.world.universe.steps)
        _pause(process)


def source_writer(process: FrontProcess, jobs: Jobs) -> None:
    """`df.write.format("omid")`, with a `runId` or without."""
    spark = VirtualSpark(process)
    while not process.world.closing:
        name = process.choices.pick((None, *IDS))
        job = jobs.begun(name)
        options = {"url": process.url, "table": TABLE, "rowKey": "key"}
        try:
            spark.write(frame_of(spark, job), options | ({} if name is None else {"runId": name}))
        except VirtualError:
            pass
        else:
            if name is None:  # With an id it may have been another one's try that counted.
                jobs.told[job] = process.world.universe.steps
            else:
                jobs.told_ids.setdefault(name, process.world.universe.steps)
        _pause(process)


_runs = itertools.count(1)
"""Unique in this process, as Spark's ids of runs are: sinks are remembered for as long as the process lives."""


@dataclass
class Query:
    """A streaming query: its checkpoint, which all its drivers share, and its sinks, called one after the other."""

    name: str
    sinks: tuple[str | None, ...]
    noted: int = 0
    """The batch that its commit log does not have yet."""

    def session(self, process: FrontProcess) -> VirtualSpark:
        """As Spark starts the query in this process: under a run of its own."""
        run = f"run {next(_runs)}"
        return VirtualSpark(process, {"sql.streaming.queryId": self.name, "spark.jobGroup.id": run})

    def id_of(self, sink: str | None, batch_id: int) -> str:
        return f"{self.name}/{batch_id}/{sink}"


def stream_driver(process: FrontProcess, query: Query, jobs: Jobs) -> None:
    """A driver of the query, as others are; one that dies behind a commit leaves its batch to be handed out again."""
    while not process.world.closing:
        batch_id = query.noted
        _pause(process)
        try:
            run_batch(process, query, batch_id, jobs)
        except (OmidError, VirtualError):
            _pause(process)
            continue
        _pause(process)
        query.noted = max(query.noted, batch_id + 1)


def run_batch(process: FrontProcess, query: Query, batch_id: int, jobs: Jobs) -> None:
    """What `foreachBatch` calls: every sink, each in a transaction of its own."""
    spark = query.session(process)
    batch = frame_of(spark, f"{query.name}-{batch_id}")
    for name in query.sinks:
        durable_id = query.id_of(name, batch_id)
        sink_of(process, durable_id, name, jobs)(batch, batch_id)
        jobs.told_ids.setdefault(durable_id, process.world.universe.steps)


def sink_of(process: FrontProcess, durable_id: str, name: str | None, jobs: Jobs) -> Any:
    """Each call of its function writes rows of its own: two that count are seen as two."""

    def write(tx: Any, batch: Any) -> None:
        tx.write(frame_of(batch.sparkSession, jobs.begun(durable_id)), TABLE, row_key="key")

    return SparkDatabase(VirtualSpark(process), process.url).stream_sink(write, name=name, retries=2)


def snapshot_reader(process: FrontProcess, jobs: Jobs) -> None:
    """Reads all of it again and again by the data source."""
    spark = VirtualSpark(process)
    while not process.world.closing:
        read_and_judge(process, spark, jobs)
        wait(Sleep(process.choices.pick((0.3, 1.0, 3.0))))


def read_and_judge(process: FrontProcess, spark: VirtualSpark, jobs: Jobs) -> bool:
    begun_at = process.world.universe.steps
    try:
        rows = spark.read({"url": process.url, "table": TABLE})
    except (VirtualError, OmidError):
        return False
    judge_snapshot(Counter(row["job"] for row in rows), begun_at, jobs)
    return True


def judge_snapshot(seen: Counter[str], begun_at: int, jobs: Jobs) -> None:
    for job, count in seen.items():
        assert count == ROWS, f"{job} is torn: {count} of its {ROWS} rows are visible"
    for job, told_at in jobs.told.items():
        assert told_at > begun_at or job in seen, f"{job} was told committed, and a later snapshot has none of its rows"
    counted = Counter(jobs.of_id[job] for job in seen if job in jobs.of_id)
    for name, times in counted.items():
        tries = [job for job in seen if jobs.of_id.get(job) == name]
        assert times == 1, f"{name} counts {times} times: {tries}"
    for name, told_at in jobs.told_ids.items():
        assert told_at > begun_at or counted[name], f"{name} was told committed, and a later snapshot has no try of it"
