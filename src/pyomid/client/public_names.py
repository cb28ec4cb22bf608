"""The names that programs use, of blocking and asyncio objects alike: `dir()` shows them, the documentation lists them.

Other names of these objects are pyomid's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

DATABASE: Final = (
    "alter_columns",
    "alter_table",
    "backup",
    "begin",
    "bookmark",
    "changes",
    "close",
    "compact",
    "create_index",
    "create_table",
    "drain",
    "drop_index",
    "drop_table",
    "expire",
    "export_parquet",
    "import_parquet",
    "release_bookmark",
    "run",
    "run_once",
    "sanitize",
    "settings",
    "snapshot",
    "status",
    "table_info",
    "table_schema",
    "tables",
    "transactional",
    "url",
    "verify",
    "watch",
)

TRANSACTION: Final = (
    "claim",
    "commit",
    "commit_ts",
    "flush",
    "mark_rollback_only",
    "read_only",
    "rollback",
    "savepoint",
    "start_ts",
    "state",
    "table",
)

TABLE: Final = (
    "delete",
    "delete_rows",
    "get",
    "increment",
    "info",
    "name",
    "page",
    "put",
    "put_if_absent",
    "rows",
    "scan",
    "to_arrow",
    "write_arrow",
)

TYPED_TABLE: Final = (
    "delete",
    "delete_rows",
    "get",
    "increment",
    "info",
    "lookup",
    "name",
    "page",
    "put",
    "put_if_absent",
    "rows",
    "scan",
    "to_arrow",
)


def shows(names: tuple[str, ...]) -> Callable[[object], list[str]]:
    """A `__dir__` for a class with these public names."""

    def __dir__(self: object) -> list[str]:
        return sorted({*names, *(name for name in object.__dir__(self) if name.startswith("__"))})

    return __dir__
