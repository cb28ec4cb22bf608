"""The two ends of adopting a table (`protocol.import_table`): what is looked at before, what is written behind it."""

from __future__ import annotations

from collections.abc import Sequence

from pyomid.client.deployment import Deployment
from pyomid.client.drive import Driver
from pyomid.client.table_admin import create_table
from pyomid.errors import Misuse, UnknownTable
from pyomid.protocol.hashing import table_id
from pyomid.protocol.import_table import check_range_steps
from pyomid.types import ConflictLevel, KeyRange, TableInfo


def newest_adopted(parts: Deployment, table: str, families: Sequence[bytes]) -> int:
    """The timestamp below which every cell is adopted; 0 where the table is transactional already.

    `UnknownTable` where the store has no such table; `Misuse` where it keeps too few versions, or where a
    transaction of a Java client wrote it.
    """
    if not parts.store.capabilities.foreign_tables:
        raise Misuse("only tables of HBase can be adopted: in this store nobody else writes", table=table)
    newest_ts = parts.tso.begin().start_ts
    if _is_registered(parts, table):
        return 0
    if table_id(table.encode()) in parts.catalog.unknown_tables():
        raise Misuse(
            f"table {table} was written by transactions of a Java client: adopting it would commit what they left "
            "undecided; register it with `pyomid tables URL register NAME FAMILY`",
            table=table,
        )
    parts.store.check_table(table, families)
    return newest_ts


def check_adoptable(parts: Deployment, driver: Driver, table: str, key_range: KeyRange, newest_ts: int) -> None:
    """Reads only. `Misuse` where adopting the range would change what is seen of it."""
    parts.store.check_names(table, key_range)
    driver.run(check_range_steps(table, key_range, newest_ts))


def register_adopted(parts: Deployment, table: str, families: Sequence[str], level: ConflictLevel) -> TableInfo:
    """When every range is adopted: from now on it is a table as any other."""
    return create_table(parts, table, families, conflict_level=level, if_not_exists=True)


def _is_registered(parts: Deployment, table: str) -> bool:
    try:
        parts.catalog.table(table)
    except UnknownTable:
        return False
    return True
