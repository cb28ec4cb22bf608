"""Spark as pyomid sees it, inside a simulated universe: what it calls, in which process, how often, and in which order.

    begin              a frame's `mapInArrow` runs one task a partition in worker processes; `collect` takes the report
                       of the first attempt that ends; attempts that failed, died or came second leave what they wrote
    df.write           the source is made, the writer planned, each task run, `commit` and `abort` called in processes
                       of their own, everything between them pickled; an exception in `commit` has `abort` called, and
                       reaches the program as text (`design` of the data source: `pyomid.spark.source.datasource`)

No row is computed here: frames are record batches that were made before.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from front_end_world import FrontProcess, FrontWorld
from green_threads import wait
from pyspark.sql.types import StructField, StructType

from simulation.universe import Sleep, Task

ATTEMPTS_MAX = 4
POLL_S = 0.05


class VirtualError(Exception):
    """What an exception of a Python worker becomes on its way through Spark: its text."""


class VirtualSpark:
    """The session of one driver process."""

    def __init__(self, driver: FrontProcess, properties: Mapping[str, str] | None = None) -> None:
        """`properties`: the thread's own, as a streaming query sets them."""
        self.driver = driver
        self.world: FrontWorld = driver.world
        self._workers = 0
        self.sparkContext = SimpleNamespace(
            _jsc=self,  # a context that runs
            defaultParallelism=2,
            getLocalProperty=(properties or {}).get,
            setLocalProperty=lambda *_: None,
        )
        self.dataSource = SimpleNamespace(register=lambda _: None)
        found = SimpleNamespace(dataSourceExists=lambda _: False)
        state = SimpleNamespace(dataSourceManager=lambda: found)
        self._jsparkSession = SimpleNamespace(sessionState=lambda: state)
        self.conf = SimpleNamespace(get=lambda name, default=None: default or "UTC")

    def frame(self, schema: StructType, partitions: Sequence[pa.RecordBatch]) -> VirtualFrame:
        return VirtualFrame(self, schema, tuple(partitions))

    @staticmethod
    def getActiveSession() -> object:
        """A thread here has one from its beginning."""
        return VirtualSpark

    # ------------------------------------------------------------ where things run

    def elsewhere(self, name: str, function: Callable[[], Any]) -> Any:
        """In a process of its own, which may die; waited for."""
        task = self._start(name, function)
        while not task.finished and task.process.alive:
            wait(Sleep(POLL_S))
        return self._result(name, task)

    def tasks(self, name: str, functions: Sequence[Callable[[], Any]]) -> list[Any]:
        """Each in a worker, again where it failed, twice at once now and then; the first result of each counts."""
        choices = self.world.universe.choices
        running: list[list[Task]] = [[self._start(f"{name}.{at}", each)] for at, each in enumerate(functions)]
        results: dict[int, Any] = {}
        while len(results) < len(functions):
            wait(Sleep(POLL_S))
            for at, attempts in enumerate(running):
                if at in results:
                    continue
                ended = [task for task in attempts if task.finished and task.failure is None]
                if ended:
                    results[at] = ended[0].result
                elif all(task.finished or not task.process.alive for task in attempts):
                    if len(attempts) >= ATTEMPTS_MAX:
                        self._result(f"{name}.{at}", attempts[-1])
                    attempts.append(self._start(f"{name}.{at}", functions[at]))
                elif len(attempts) == 1 and choices.chance(0.02):
                    attempts.append(self._start(f"{name}.{at}", functions[at]))
        return [results[at] for at in range(len(functions))]

    def _start(self, name: str, function: Callable[[], Any]) -> Task:
        self._workers += 1
        process = self.world.process(f"{self.driver.name}-{name}-{self._workers}")
        return process.start("task", function)

    def _result(self, name: str, task: Task) -> Any:
        if not task.finished:
            raise VirtualError(f"{name}: its process died")
        if task.failure is not None:
            raise VirtualError(f"{name} failed: {task.failure}")
        return task.result

    # ------------------------------------------------------------ data source

    def write(self, frame: VirtualFrame, options: Mapping[str, str], *, overwrite: bool = False) -> None:
        """`frame.write.format("omid").options(…).mode(…).save()`."""
        from pyomid.spark.source.datasource import OmidDataSource

        lowered = {name.lower(): value for name, value in options.items()}
        source = self.elsewhere("source", lambda: pickle.dumps(OmidDataSource(lowered)))
        writer = self.elsewhere("writer", lambda: pickle.dumps(pickle.loads(source).writer(frame.schema, overwrite)))
        messages: list[Any] = [None] * len(frame.partitions)
        try:
            parts = [_task_of(writer, batch) for batch in frame.partitions]
            messages = [pickle.loads(message) for message in self.tasks("write", parts)]
            self.elsewhere("commit", lambda: pickle.loads(writer).commit(messages))
        except VirtualError:
            with contextlib.suppress(VirtualError):
                self.elsewhere("abort", lambda: pickle.loads(writer).abort(messages))
            raise

    def read(self, options: Mapping[str, str]) -> list[dict[str, Any]]:
        """All rows of `spark.read.format("omid").options(…).load()`, one partition after the other."""
        from pyomid.spark.source.datasource import OmidDataSource

        lowered = {name.lower(): value for name, value in options.items()}
        source = self.elsewhere("source", lambda: pickle.dumps(OmidDataSource(lowered)))

        def planned() -> tuple[bytes, list[Any]]:
            reader = pickle.loads(source).reader(pickle.loads(source).schema())
            return pickle.dumps(reader), list(reader.partitions())

        reader, partitions = self.elsewhere("plan", planned)
        found = self.tasks("read", [lambda part=part: list(pickle.loads(reader).read(part)) for part in partitions])
        return [row for batches in found for batch in batches for row in batch.to_pylist()]


def _task_of(writer: bytes, batch: pa.RecordBatch) -> Callable[[], bytes]:
    return lambda: pickle.dumps(pickle.loads(writer).write(iter([batch])))


class VirtualFrame:
    """Record batches, one a partition."""

    def __init__(self, spark: VirtualSpark, schema: StructType, partitions: tuple[pa.RecordBatch, ...]) -> None:
        self.sparkSession = spark
        self.schema = schema
        self.partitions = partitions

    def isLocal(self) -> bool:
        return False

    def toDF(self, *names: str) -> VirtualFrame:
        fields = [StructField(name, each.dataType) for name, each in zip(names, self.schema.fields, strict=True)]
        renamed = tuple(pa.RecordBatch.from_arrays(batch.columns, names=list(names)) for batch in self.partitions)
        return VirtualFrame(self.sparkSession, StructType(fields), renamed)

    def select(self, *names: str) -> VirtualFrame:
        schema = StructType([self.schema[name] for name in names])
        return VirtualFrame(self.sparkSession, schema, tuple(batch.select(list(names)) for batch in self.partitions))

    def mapInArrow(self, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _: str) -> Any:
        parts = [lambda batch=batch: list(function(iter([batch]))) for batch in self.partitions]

        def collect() -> list[tuple[Any, ...]]:
            found = self.sparkSession.tasks("map", parts)
            return [tuple(row.values()) for batches in found for batch in batches for row in batch.to_pylist()]

        return SimpleNamespace(collect=collect)
