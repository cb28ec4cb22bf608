"""pyomid: ACID transactions (snapshot isolation) for Python and PySpark over key-value stores.

import pyomid

with pyomid.connect("omid:///path/to/folder") as db:
    db.create_table("accounts", families=["f"])
    with db.begin() as tx:
        tx.table("accounts").put(b"alice", {b"f:balance": b"100"})
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyomid.errors import (
    AlreadyCommitted,
    ConflictError,
    Corruption,
    ExpectationFailed,
    ExtraMissing,
    FolderMissing,
    Misuse,
    MisuseType,
    OmidError,
    OutcomeUnknown,
    SnapshotTooOld,
    StoreFull,
    TransactionEnded,
    Unavailable,
    UnknownTable,
)
from pyomid.lazy_names import lazy_names
from pyomid.types import Backup, Bookmark, ConflictLevel, TableInfo

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Unpack

    from pyomid.config import Options
    from pyomid.database.database import Database, DatabaseStatus
    from pyomid.database.idempotency import AlreadyDone
    from pyomid.database.row_changes import RowChange, TypedChange
    from pyomid.database.tables.table import Page, Table
    from pyomid.database.tables.typed import Codec, TypedPage, TypedTable
    from pyomid.database.transaction import Savepoint, Transaction
    from pyomid.database.watch import Watch
    from pyomid.observe import Observer
    from pyomid.types import Progress

__version__: Final = "0.1.0"

__all__ = [
    "AlreadyCommitted",
    "AlreadyDone",
    "Backup",
    "Bookmark",
    "Codec",
    "ConflictError",
    "ConflictLevel",
    "Corruption",
    "Database",
    "DatabaseStatus",
    "ExpectationFailed",
    "ExtraMissing",
    "FolderMissing",
    "Misuse",
    "MisuseType",
    "OmidError",
    "OutcomeUnknown",
    "Page",
    "RowChange",
    "Savepoint",
    "SnapshotTooOld",
    "StoreFull",
    "Table",
    "TableInfo",
    "Transaction",
    "TransactionEnded",
    "TypedChange",
    "TypedPage",
    "TypedTable",
    "Unavailable",
    "UnknownTable",
    "Watch",
    "__version__",
    "connect",
    "restore",
]


def connect(url: str, *, observers: Sequence[Observer] = (), **options: Unpack[Options]) -> Database:
    """Open the database at `url` and return it. A `with` block closes the database at the end of the block. If the
    folder in `url` holds no database, the call creates one there, unless `create=False`.

    `omid:///folder` names an embedded database, which all processes on this machine can share.
    `omid+hbase://zk1:2181,zk2:2181/znode` names a database in an HBase cluster. `omid-memory:name` names a database
    inside this process, for tests. The options are the fields of `pyomid.config.Settings`: pass them in the URL's query
    (`?leaseSeconds=60`) or as keywords (`lease_seconds=60`). An unknown option raises `Misuse`. The client calls the
    `observers` after each of its operations (see `pyomid.observe`).
    """
    from pyomid.wiring import open_database

    return open_database(url, observers=observers, **options)


def restore(
    backup: str | os.PathLike[str],
    url: str,
    *,
    tables: Mapping[str, str] | Iterable[str] | None = None,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> Backup:
    """Restore a backup made by `Database.backup` into a new or empty folder, and return the backup's description. The
    data is durable when the call returns. While the call copies a folder's data file, it calls `progress(file, bytes
    copied, bytes of the file)`.

    The restored database has a new id, so it refuses clients that have the original database open. Transactions that
    were open when the backup was taken never commit in the restored database.

    Over HBase, `url` names an existing database that a TSO serves, and the call adds the backup's tables to that
    database. `tables` selects the tables to restore. If `tables` is a mapping, it maps the name of each table in the
    backup to a new name. If the database already has a table with the name of a restored table, the call raises
    `Misuse` and restores nothing.
    """
    from pyomid.wiring import restore_database

    return restore_database(backup, url, tables=tables, progress=progress, **options)


if not TYPE_CHECKING:  # with `__getattr__`, a type checker would accept any name
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "AlreadyDone": "pyomid.database.idempotency",
            "Codec": "pyomid.database.tables.typed",
            "Database": "pyomid.database.database",
            "DatabaseStatus": "pyomid.database.database",
            "Page": "pyomid.database.tables.table",
            "RowChange": "pyomid.database.row_changes",
            "Savepoint": "pyomid.database.transaction",
            "Table": "pyomid.database.tables.table",
            "Transaction": "pyomid.database.transaction",
            "TypedChange": "pyomid.database.row_changes",
            "TypedPage": "pyomid.database.tables.typed",
            "TypedTable": "pyomid.database.tables.typed",
            "Watch": "pyomid.database.watch",
        },
    )
