"""Import of a table, around `protocol.import_table`: the checks before it, the registration after it."""

from __future__ import annotations

from collections.abc import Sequence

from pyomid.client.admin.table_admin import create_table
from pyomid.client.drive import Driver
from pyomid.errors import Misuse, UnknownTable
from pyomid.ports import Deployment
from pyomid.protocol.hashing import table_id
from pyomid.protocol.import_table import check_range_steps
from pyomid.types import ConflictLevel, KeyRange, TableInfo


def import_timestamp(deployment: Deployment, table: str, families: Sequence[bytes]) -> int:
    """The timestamp N below which every cell is imported; 0 if the table is transactional already.

    `UnknownTable` if the store has no such table; `Misuse` if it keeps too few versions, or if a transaction of a Java
    client wrote it.
    """
    if not deployment.store.capabilities.foreign_tables:
        raise Misuse("only tables of HBase can be imported: in this store only pyomid writes", table=table)
    newest_ts = deployment.tso.begin().start_ts
    deployment.tso.note_ended(newest_ts)
    if _is_registered(deployment, table):
        return 0
    if table_id(table.encode()) in deployment.catalog.unknown_tables():
        raise Misuse(
            f"table {table} was written by transactions of a Java client: adopting it would commit what they left "
            "undecided; register it with `pyomid tables URL register NAME FAMILY`",
            table=table,
        )
    deployment.store.check_table(table, families)
    return newest_ts


def check_importable(deployment: Deployment, driver: Driver, table: str, key_range: KeyRange, newest_ts: int) -> None:
    """Only reads. `Misuse` if the import would change what is seen of the range."""
    deployment.store.check_names(table, key_range)
    driver.run(check_range_steps(table, key_range, newest_ts))


def register_imported(deployment: Deployment, table: str, families: Sequence[str], level: ConflictLevel) -> TableInfo:
    """Registers the table when every range is imported: from now on it is a table as any other."""
    return create_table(deployment, table, families, conflict_level=level, if_not_exists=True)


def _is_registered(deployment: Deployment, table: str) -> bool:
    try:
        deployment.catalog.table(table)
    except UnknownTable:
        return False
    return True
