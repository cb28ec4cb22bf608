"""PySpark over the client: data source, transactions over DataFrames, streams, maintenance jobs.

May import `client`, `protocol`, `ports` and PySpark; opens databases through `wiring` and knows no store by name.
Importing this package does not import PySpark: each name imports its module at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

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

_MODULES: Final = {
    "ChangesResult": "change_data",
    "original_error": "coded_errors",
    "original_errors": "coded_errors",
    "SparkDatabase": "database",
    "connect": "database",
    "Merge": "merge",
    "MergeResult": "merge",
    "MomentOf": "loads",
    "RestoreResult": "loads",
    "RunOutcome": "run_outcome",
    "RunState": "run_outcome",
    "SparkTransaction": "transactions",
    "WriteResult": "transactions",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
