"""PySpark over the client: data source, transactions over DataFrames, streams, maintenance jobs.

May import `client`, `protocol`, `ports` and PySpark; opens databases through `wiring` and knows no store by name.
Importing this package does not import PySpark: each name imports its module at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyomid.spark.coded_errors import original_error, original_errors
    from pyomid.spark.databases import close_connections
    from pyomid.spark.frame_schema import alter_columns
    from pyomid.spark.frames.merge import Merge, MergeResult
    from pyomid.spark.loads import MomentOf, RestoreCommit, changes, history, moment, read, register_views, restore
    from pyomid.spark.maintenance import adopt, compact, sanitize, verify
    from pyomid.spark.run_outcome import RunOutcome, RunState, look_up_run
    from pyomid.spark.sessions import register, use_this_python
    from pyomid.spark.streaming import stream_sink
    from pyomid.spark.transactions import SparkTransaction, WriteResult, run, transaction

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
    "original_error": "coded_errors",
    "original_errors": "coded_errors",
    "close_connections": "databases",
    "alter_columns": "frame_schema",
    "Merge": "frames.merge",
    "MergeResult": "frames.merge",
    "MomentOf": "loads",
    "RestoreCommit": "loads",
    "changes": "loads",
    "history": "loads",
    "moment": "loads",
    "read": "loads",
    "register_views": "loads",
    "restore": "loads",
    "adopt": "maintenance",
    "compact": "maintenance",
    "sanitize": "maintenance",
    "verify": "maintenance",
    "RunOutcome": "run_outcome",
    "RunState": "run_outcome",
    "look_up_run": "run_outcome",
    "register": "sessions",
    "use_this_python": "sessions",
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
