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

Refusals = dict[str, Misuse]
"""What forbids an import: kind → the first of it, with its remedy."""


def import_timestamp(deployment: Deployment, table: str, families: Sequence[bytes]) -> tuple[int, Refusals]:
    """The timestamp N below which every cell is imported, 0 if the table is transactional already; and what forbids the
    import, without a look at a row: the table keeps too few versions, or a transaction of a Java client wrote it.

    `UnknownTable` if the store has no such table.
    """
    if not deployment.store.capabilities.foreign_tables:
        raise Misuse("only tables of HBase can be imported: in this store only pyomid writes", table=table)
    newest_ts = deployment.tso.begin().start_ts
    deployment.tso.note_ended(newest_ts)
    if _is_registered(deployment, table):
        return 0, {}
    found: Refusals = {}
    if table_id(table.encode()) in deployment.catalog.unknown_tables():
        found["transactions"] = Misuse(
            f"table {table} was written by transactions of a Java client: adopting it would commit what they left "
            "undecided; register it with `pyomid tables URL register`",
            table=table,
        )
    try:
        deployment.store.check_table(table, families)
    except UnknownTable:
        raise
    except Misuse as error:
        found["families"] = error
    return newest_ts, found


def import_refusals(
    deployment: Deployment, driver: Driver, table: str, key_range: KeyRange, newest_ts: int
) -> Refusals:
    """What forbids the import of a range: the import would change what is seen of it. Only reads."""
    found: Refusals = {}
    try:
        deployment.store.check_names(table, key_range)
    except Misuse as error:
        found["names"] = error
    cells = driver.run(check_range_steps(table, key_range, newest_ts))
    if "names" in found:
        cells.pop("transactions", None)  # the column that only resembles shadow cells may have been taken for them
    add_refusals(found, cells)
    return found


def add_refusals(found: Refusals, more: Refusals) -> None:
    """The first of each kind stays."""
    for kind, refusal in more.items():
        found.setdefault(kind, refusal)


def refuse(table: str, found: Refusals) -> None:
    """Raises `Misuse` if there is anything, with all remedies."""
    refusals = list(found.values())
    if len(refusals) == 1:
        raise refusals[0]
    if refusals:
        steps = "".join(f"\n  {number}. {error.message}" for number, error in enumerate(refusals, 1))
        raise Misuse(f"table {table} cannot be adopted yet, for {len(refusals)} reasons:{steps}", table=table)


def register_imported(deployment: Deployment, table: str, families: Sequence[str], level: ConflictLevel) -> TableInfo:
    """Registers the table when every range is imported: from now on it is a table as any other."""
    return create_table(deployment, table, families, conflict_level=level, if_not_exists=True)


def _is_registered(deployment: Deployment, table: str) -> bool:
    try:
        deployment.catalog.table(table)
    except UnknownTable:
        return False
    return True
