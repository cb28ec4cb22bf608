"""PySpark over the client: data source, transactions over DataFrames, compaction, sanitizing and verification jobs.

May import `client`, `protocol`, `ports` and PySpark; opens databases through `wiring` and knows no store by name.
Importing this package does not import PySpark: each name imports its module at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyomid.spark.change_feed import changes
    from pyomid.spark.databases import close_connections
    from pyomid.spark.errors import original_error, original_errors
    from pyomid.spark.frames.merge import Merge, MergeResult
    from pyomid.spark.jobs.import_table import adopt
    from pyomid.spark.jobs.upkeep import compact, sanitize, verify
    from pyomid.spark.registration import register, use_this_python
    from pyomid.spark.run_outcome import RunOutcome, RunState, look_up_run
    from pyomid.spark.schema import alter_columns
    from pyomid.spark.streaming import stream_sink
    from pyomid.spark.time_travel import MomentOf, RestoreCommit, history, moment, read, restore
    from pyomid.spark.transactions import SparkTransaction, WriteResult, run, transaction
    from pyomid.spark.views import register_views

__all__ = [
    "Merge",
    "MergeResult",
    "MomentOf",
    "RestoreCommit",
    "RunOutcome",
    "RunState",
    "SparkTransaction",
    "WriteResult",
    "adopt",
    "alter_columns",
    "changes",
    "close_connections",
    "compact",
    "history",
    "look_up_run",
    "moment",
    "original_error",
    "original_errors",
    "read",
    "register",
    "register_views",
    "restore",
    "run",
    "sanitize",
    "stream_sink",
    "transaction",
    "use_this_python",
    "verify",
]

_MODULES: Final = {
    "adopt": "jobs.import_table",
    "changes": "change_feed",
    "close_connections": "databases",
    "original_error": "errors",
    "original_errors": "errors",
    "compact": "jobs.upkeep",
    "sanitize": "jobs.upkeep",
    "verify": "jobs.upkeep",
    "Merge": "frames.merge",
    "MergeResult": "frames.merge",
    "MomentOf": "time_travel",
    "RestoreCommit": "time_travel",
    "history": "time_travel",
    "moment": "time_travel",
    "read": "time_travel",
    "restore": "time_travel",
    "register": "registration",
    "register_views": "views",
    "use_this_python": "registration",
    "RunOutcome": "run_outcome",
    "RunState": "run_outcome",
    "look_up_run": "run_outcome",
    "alter_columns": "schema",
    "stream_sink": "streaming",
    "SparkTransaction": "transactions",
    "WriteResult": "transactions",
    "run": "transactions",
    "transaction": "transactions",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value
