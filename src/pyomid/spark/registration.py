"""Registration of the data source in a Spark session, and the Python of Spark's workers."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyomid.errors import Misuse
from pyomid.platforms import python_program
from pyomid.spark.databases import Connection, connection
from pyomid.spark.sessions import check_same_machine, is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader, SparkSession

_REGISTERED: Final = "_pyomid_registered"

_ASKED: Final = (
    "import importlib.util, sys; "
    "print(sys.version_info[0], sys.version_info[1], int(importlib.util.find_spec('pyomid') is not None))"
)
_ASKED_S_MAX: Final = 30.0


def register(spark: SparkSession) -> None:
    """Register `format("omid")` in this session. Idempotent. Not needed if pyomid is installed in the environment of
    the driver's Python: there Spark finds the format itself (a path in sys.path is not enough). Call it in each
    further thread that uses `df.write` or `writeStream`: Spark looks for their format only in the thread's active
    session, and a new thread has none ("DATA_SOURCE_NOT_FOUND").

    `Misuse` if Spark's workers run a Python that cannot run pyomid's tasks, or PySpark is too old.
    """
    from pyomid.spark.source.datasource import OmidDataSource

    if not getattr(spark, _REGISTERED, False):
        check_workers_python(spark)
        spark.dataSource.register(OmidDataSource)
        setattr(spark, _REGISTERED, True)
    if not is_connect(spark) and type(spark).getActiveSession() is None:
        spark.createDataFrame([], "a int")  # makes the session active in this thread; PySpark has no API for that


def opened(spark: SparkSession, url: str, *, create: bool = True) -> Connection:
    """Return the connection to `url`, after registering the data source in the session. Every function of
    `pyomid.spark` that takes a session calls this first. `Misuse` if the session's Spark cannot reach the database."""
    check_same_machine(spark, url)
    register(spark)
    return connection(url, create=create)


def reader_of(spark: SparkSession, url: str, table: str) -> DataFrameReader:
    """Return a reader of the table, after the same checks; the database is opened by `load()`."""
    from pyomid.spark.source.datasource import FORMAT

    check_same_machine(spark, url)
    register(spark)
    return spark.read.format(FORMAT).option("url", url).option("table", table)


def use_this_python() -> None:
    """Make Spark's workers run this interpreter, with its packages. Call it before the session is created."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = python_program()


def check_workers_python(spark: SparkSession) -> None:
    """`Misuse` if the workers' Python is known to be unsuitable, before a task fails with `ModuleNotFoundError`."""
    try:
        context: Any = spark.sparkContext
        program, sent = context.pythonExec, spark.conf.get("spark.submit.pyFiles", "")
    except Exception:  # for example a session of Spark Connect: its workers are the server's
        return
    fault = workers_fault(program, sends_packages=bool(sent))
    if fault:
        raise Misuse(
            f"Spark's workers run {program!r}, {fault}, but this program runs {python_program()}: call "
            "pyomid.spark.use_this_python() before creating the session (stop this session and create another), or "
            "set PYSPARK_PYTHON to a Python of the same version with the same packages",
            python=program,
        )


@functools.cache
def workers_fault(program: str, *, sends_packages: bool = False) -> str:
    """Return why this Python cannot run the program's tasks; empty if it can, or if that is unknown here.

    `sends_packages`: the session ships packages to its workers, so their absence is not a fault.
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
