"""The public names of blocking and asyncio objects: `dir()` shows them, the documentation lists them.

Other names of these objects are private. `Handle` is the base class of the objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

from pyomid.errors import MisuseType

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
    "moment",
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


class Handle:
    """An object that belongs to its process and cannot be copied: a copy would end its resources a second time."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Called by `pickle`, and by `copy.copy` and `copy.deepcopy`."""
        raise MisuseType(
            f"{type(self).__name__} cannot be pickled or copied, because it belongs to the process that opened it: "
            "pass on the database's URL (`Database.url`) and connect there"
        )


def shows(names: tuple[str, ...]) -> Callable[[object], list[str]]:
    """Return a `__dir__` for a class with these public names."""

    def __dir__(self: object) -> list[str]:
        return sorted({*names, *(name for name in object.__dir__(self) if name.startswith("__"))})

    return __dir__
