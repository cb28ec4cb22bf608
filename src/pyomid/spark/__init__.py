"""PySpark support: a data source, transactions over DataFrames, streams and maintenance jobs.

May import `client`, `protocol`, `ports` and PySpark; opens databases through `wiring` and knows no store by name.
Importing this package does not import PySpark: each name imports its module at its first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyomid.errors import extra_missing
from pyomid.lazy_names import lazy_names

if TYPE_CHECKING:
    from pyomid.spark.change_data import ChangesResult
    from pyomid.spark.coded_errors import original_error, original_errors
    from pyomid.spark.database import SparkDatabase, connect
    from pyomid.spark.loads import MomentOf, RestoreResult
    from pyomid.spark.merge import Merge, MergeResult
    from pyomid.spark.run_outcome import RunOutcome, RunState
    from pyomid.spark.transactions import SparkTransaction, WriteResult

__all__ = [
    "ChangesResult",
    "Merge",
    "MergeResult",
    "MomentOf",
    "RestoreResult",
    "RunOutcome",
    "RunState",
    "SparkDatabase",
    "SparkTransaction",
    "WriteResult",
    "connect",
    "original_error",
    "original_errors",
]


@contextmanager
def spark_extra() -> Iterator[None]:
    """Context manager that raises `ExtraMissing` if an import inside it cannot find a package."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "pyomid").partition(".")[0]
        if package == "pyomid":  # a module of pyomid's own, or an `ExtraMissing` already
            raise
        raise extra_missing(f"pyomid.spark needs the package {package}", "spark") from error


if not TYPE_CHECKING:  # type checkers see the imports above, as in `pyomid`
    _load, __dir__ = lazy_names(
        __name__,
        {
            "ChangesResult": "pyomid.spark.change_data",
            "original_error": "pyomid.spark.coded_errors",
            "original_errors": "pyomid.spark.coded_errors",
            "SparkDatabase": "pyomid.spark.database",
            "connect": "pyomid.spark.database",
            "Merge": "pyomid.spark.merge",
            "MergeResult": "pyomid.spark.merge",
            "MomentOf": "pyomid.spark.loads",
            "RestoreResult": "pyomid.spark.loads",
            "RunOutcome": "pyomid.spark.run_outcome",
            "RunState": "pyomid.spark.run_outcome",
            "SparkTransaction": "pyomid.spark.transactions",
            "WriteResult": "pyomid.spark.transactions",
        },
    )

    def __getattr__(name):
        with spark_extra():
            return _load(name)
