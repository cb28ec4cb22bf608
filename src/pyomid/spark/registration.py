"""Making Spark know the data source, and Spark's workers find this environment."""

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
from pyomid.spark.sessions import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REGISTERED: Final = "_pyomid_registered"

_ASKED: Final = (
    "import importlib.util, sys; "
    "print(sys.version_info[0], sys.version_info[1], int(importlib.util.find_spec('pyomid') is not None))"
)
_ASKED_S_MAX: Final = 30.0


def register(spark: SparkSession) -> None:
    """Makes `format("omid")` known to this session. Idempotent. Not needed where pyomid is installed in the
    environment of the driver's Python: there Spark finds it by itself (not through sys.path alone). Call it in each
    further thread that uses `df.write` or `writeStream`: Spark looks for their format in the thread's active session
    alone, which a new thread has not ("DATA_SOURCE_NOT_FOUND").

    `Misuse` where Spark's workers run a Python that cannot do pyomid's work, or this PySpark is too old.
    """
    from pyomid.spark.source.datasource import OmidDataSource

    if not getattr(spark, _REGISTERED, False):
        check_workers_python(spark)
        spark.dataSource.register(OmidDataSource)
        setattr(spark, _REGISTERED, True)
    if not is_connect(spark) and type(spark).getActiveSession() is None:
        spark.createDataFrame([], "a int")  # PySpark has no other way to say it


def use_this_python() -> None:
    """Makes Spark's workers run this interpreter, with its packages. Call it before the session is made."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = python_program()


def check_workers_python(spark: SparkSession) -> None:
    """`Misuse`, before a worker fails with `ModuleNotFoundError`, where the session's Python is known not to do."""
    try:
        context: Any = spark.sparkContext
        program, sent = context.pythonExec, spark.conf.get("spark.submit.pyFiles", "")
    except Exception:  # a session of Spark Connect, say, whose workers are the server's
        return
    fault = workers_fault(program, sends_packages=bool(sent))
    if fault:
        raise Misuse(
            f"Spark's workers run {program!r}, {fault}, and this program runs {python_program()}: call "
            "pyomid.spark.use_this_python() before the session is made (stop this one and make it anew), or set "
            "PYSPARK_PYTHON to a Python that has this one's version and packages",
            python=program,
        )


@functools.cache
def workers_fault(program: str, *, sends_packages: bool = False) -> str:
    """Why this Python cannot do the tasks of this program; empty where it can, or that cannot be told here.

    `sends_packages`: the session brings packages to its workers, so that they are not looked for.
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
        return f"which is Python {'.'.join(answer[:2])} and not {ours}"
    return "" if has_pyomid or sends_packages else "which has no pyomid"
