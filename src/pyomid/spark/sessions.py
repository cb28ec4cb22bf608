"""Spark sessions: registration of the data source, the Python of the workers, jobs, and the two kinds of sessions.
A classic session has Spark in this process; a Spark Connect session has it in another process, and no SparkContext.
"""

from __future__ import annotations

import functools
import os
import pickle
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa

from pyomid.config import EmbeddedAddress, parse_url
from pyomid.errors import Misuse, MisuseType
from pyomid.rows.arrow_arrays import binary_array_of
from pyomid.spark.coded_errors import coded_errors, original_errors
from pyomid.spark.source.options import FORMAT
from pyomid.spark.source.read_task import WRITES, write_text
from pyomid.system import python_program

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Item = TypeVar("Item")
T = TypeVar("T")

_REGISTERED: Final = "_pyomid_registered"
_PARALLELISM: Final = "_pyomid_parallelism"

_CHOSEN: Final = "PYSPARK_PYTHON"
"""Environment variable with the Python of Spark's workers; Spark reads it when a session starts."""

_ASKED: Final = (
    "import importlib.util, sys; "
    "print(sys.version_info[0], sys.version_info[1], int(importlib.util.find_spec('pyomid') is not None))"
)
_ASKED_S_MAX: Final = 30.0


def register(spark: SparkSession) -> None:
    """Register `format("omid")` in this session, and make the session active in this thread. Idempotent. If the
    workers' Python has pyomid installed, Spark finds the format by itself, but only in an active session."""
    from pyomid.spark.source.datasource import OmidDataSource

    check_running(spark)
    if not getattr(spark, _REGISTERED, False):
        set_workers_python(spark)
        if not _finds_format(spark):
            spark.dataSource.register(OmidDataSource)
        setattr(spark, _REGISTERED, True)
    if not is_connect(spark) and type(spark).getActiveSession() is None:
        spark.createDataFrame([], "a int")  # makes the session active in this thread; PySpark has no API for that


def _finds_format(spark: SparkSession) -> bool:
    """Whether Spark finds the format by itself and would warn about a registration. False over Spark Connect, which
    does not report it."""
    if is_connect(spark):
        return False
    classic: Any = spark
    return bool(classic._jsparkSession.sessionState().dataSourceManager().dataSourceExists(FORMAT))


def check_running(spark: SparkSession) -> None:
    """Raise `Misuse` if a classic session was stopped (Spark's own error would only say "NoneType" or
    "DATA_SOURCE_NOT_FOUND"), and `MisuseType` if `spark` is not a session."""
    if not is_connect(spark):
        context: Any = getattr(spark, "sparkContext", None)
        if context is None:
            raise MisuseType(f"{spark!r} is not a SparkSession; call pyomid.spark.connect(spark, url)")
        if context._jsc is None:
            raise Misuse("the Spark session was stopped; give a running session to pyomid.spark.connect(spark, url)")


def set_workers_python(spark: SparkSession) -> None:
    """Make the workers run this program's Python if they run on this machine and PYSPARK_PYTHON names no other.
    Otherwise raise `Misuse` if their Python is known to be unsuitable, before a task fails with
    `ModuleNotFoundError`."""
    try:
        context: Any = spark.sparkContext
        program, sent = context.pythonExec, spark.conf.get("spark.submit.pyFiles", "")
    except Exception:  # for example a session of Spark Connect: its workers are the server's
        return
    if _CHOSEN not in os.environ and context.master.startswith("local"):
        context.pythonExec = python_program()
        return
    fault = workers_fault(program, sends_packages=bool(sent))
    if fault:
        raise Misuse(
            f"Spark's workers run {program!r}, {fault}, but this program runs {python_program()}. Stop this session; "
            f"set {_CHOSEN} to a Python of the same version with the same packages (with a local master, unset "
            f"{_CHOSEN}); then create the session again",
            python=program,
        )


@functools.cache
def workers_fault(program: str, *, sends_packages: bool = False) -> str:
    """Return the reason why this Python cannot run the program's tasks; empty if it can, or if this process cannot
    know.

    `sends_packages`: the session ships packages to its workers, so a missing package is not a fault.
    """
    found = shutil.which(program)
    if found is None or Path(found).absolute() == Path(python_program()).absolute():
        return ""
    try:
        answer = subprocess.run(
            [found, "-c", _ASKED], capture_output=True, text=True, timeout=_ASKED_S_MAX, stdin=subprocess.DEVNULL
        ).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return ""
    if len(answer) != 3:
        return ""
    version, has_pyomid = tuple(map(int, answer[:2])), answer[2] == "1"
    if version != sys.version_info[:2]:
        ours = ".".join(map(str, sys.version_info[:2]))
        return f"which is Python {'.'.join(answer[:2])}, not {ours}"
    return "" if has_pyomid or sends_packages else "which lacks pyomid"


# Kinds of sessions


def is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def any_case(spark: SparkSession) -> bool:
    """Whether the session ignores case in column names."""
    return spark.conf.get("spark.sql.caseSensitive", "false") != "true"


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks the session runs at a time, as reported by Spark."""
    if not is_connect(spark):
        return int(spark.sparkContext.defaultParallelism)
    found: int | None = getattr(spark, _PARALLELISM, None)
    if found is None:  # Connect does not report it; a range has this many partitions by default
        from pyspark.sql import functions as f

        parts = spark.range(1 << 16).select(f.spark_partition_id().alias("part"))
        (row,) = parts.agg(f.max("part")).collect()
        found = int(row[0]) + 1
        setattr(spark, _PARALLELISM, found)
    return found


def check_same_machine(spark: SparkSession, url: str) -> None:
    """Raise `Misuse` if `url` is a folder and the session's Spark is known to run on another machine."""
    if not is_connect(spark) or not isinstance(parse_url(url)[0], EmbeddedAddress):
        return
    host = spark.client.host
    if not _is_here(host):
        raise Misuse(
            f"{url} is a folder on this machine, but this session's Spark runs on {host!r} and cannot read the folder; "
            "run the program on that machine, or keep the database in a cluster (omid+hbase://…)",
            host=host,
        )


def _is_here(host: str) -> bool:
    """Whether one of the host's addresses belongs to this machine; True if that is unknown."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_DGRAM)
    except OSError:
        return True
    for family, kind, protocol, _, address in found:
        with suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
            return True
    return False


# Jobs: their names and properties, one task per item, and the results of tasks
#
# Tasks return any objects, pickled, one per row. Executors already run the driver's pickled functions, so unpickling
# their results needs no more trust. Over Spark Connect jobs keep Spark's own names, and tags carry the properties for
# tasks.

_DESCRIPTION: Final = "spark.job.description"
_RESULT: Final = "result"


@contextmanager
def local_property(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """Set a local property for all jobs that this thread runs inside the block, in any session, and restore the
    caller's value afterwards. Tasks can read it. Over Connect it is a tag `name=value` of this session's jobs."""
    if is_connect(spark):
        tag = f"{name}={value}"
        if tag in spark.getTags():  # an outer block has set the tag, and needs it after this block
            yield
            return
        spark.addTag(tag)
        try:
            yield
        finally:
            spark.removeTag(tag)
        return
    context: Any = spark.sparkContext
    before = context.getLocalProperty(name)
    context.setLocalProperty(name, value)
    try:
        yield
    finally:
        with suppress(Exception):  # the context may be stopped; the block's own exception is the error
            context.setLocalProperty(name, before)


@contextmanager
def job_named(spark: SparkSession, *words: str) -> Iterator[None]:
    """Name the block's jobs in Spark's UI and progress bar, for example "omid write flights", and raise the pyomid
    errors that Spark reports as text."""
    with original_errors():
        if is_connect(spark):
            yield
            return
        with local_property(spark, _DESCRIPTION, " ".join(("omid", *words))):
            yield


@contextmanager
def writes_by(spark: SparkSession, start_ts: int, database_id: bytes, table: str, stale_read: str) -> Iterator[None]:
    """Mark the jobs of this block as writes to the table by the transaction `start_ts`, unless `stale_read` is
    "allow"."""
    if stale_read == "allow":
        yield
        return
    with local_property(spark, WRITES, write_text(start_ts, database_id, table)):
        yield


def task_results(frame: DataFrame, work: Callable[[Iterator[pa.RecordBatch]], Iterable[T]]) -> list[T]:
    """Run `work` on each partition of the frame, one task for each. Return the results of all tasks, in no particular
    order. Tasks encode pyomid's errors (`pyomid.spark.coded_errors`)."""
    rows = frame.mapInArrow(partial(_pickled, work), f"{_RESULT} binary").collect()
    return [pickle.loads(row[0]) for row in rows]


def item_results(spark: SparkSession, items: Sequence[Item], work: Callable[[Item], T | None]) -> list[T]:
    """Run `work` on each item, one task for each. Return the results, without None, in no particular order."""
    return task_results(spark.range(0, len(items), 1, len(items)), partial(_of_items, items, work)) if items else []


def _of_items(
    items: Sequence[Item], work: Callable[[Item], T | None], batches: Iterator[pa.RecordBatch]
) -> Iterator[T]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            result = work(items[number])
            if result is not None:
                yield result


def _pickled(
    work: Callable[[Iterator[pa.RecordBatch]], Iterable[Any]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with coded_errors():
        for result in work(batches):
            yield pa.RecordBatch.from_arrays([binary_array_of([pickle.dumps(result)])], names=[_RESULT])
