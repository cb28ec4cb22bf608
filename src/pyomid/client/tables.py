"""Creating and dropping tables: catalogue and store in the order that leaves nothing half there.

Create: the physical table first, then the catalogue entry, which decides races. A crash between the two leaves a
table that nobody can find, and creating it again finds it there.
Drop: the catalogue entry first, then a fence (who began before it and wrote there aborts), then the data.
"""

from __future__ import annotations

from pyomid.client import checks, marker
from pyomid.client.parts import Parts
from pyomid.core.hashing import table_id
from pyomid.errors import Misuse, UnknownTable
from pyomid.ports import RefusesLeases
from pyomid.types import ConflictLevel, TableInfo, TableSchema


def create_table(
    parts: Parts,
    name: str,
    families: object,
    *,
    conflict_level: object = ConflictLevel.CELL,
    schema: TableSchema | None = None,
    if_not_exists: bool = False,
) -> TableInfo:
    """Durable in the catalogue on return. `Misuse` where the name is taken (or, with `if_not_exists`, taken by a
    table of other families or another conflict level).

    A table that a Java client made is registered in this way: from now on the mark that its commits left stops the
    sanitiser no more (K6): the records of its regions do, until they were cleaned.
    """
    info = TableInfo(
        checks.check_table_name(name),
        checks.check_families(families),
        checks.check_conflict_level(conflict_level),
        generation=_new_generation(parts),
        schema=schema,
    )
    parts.store.create_table(info)
    is_new = parts.catalogue.put_table(info, replace=False)
    if is_new:
        return info
    found = parts.catalogue.table(name)
    if not if_not_exists:
        raise Misuse(f"table {name!r} exists already", table=name)
    _check_same(info, found)
    return found


def drop_table(parts: Parts, name: str) -> None:
    """Its rows are gone on return. `UnknownTable` where there is none."""
    checks.check_table_name(name)
    find_table(parts, name)
    parts.catalogue.remove_table(name)
    forget_table(parts, name)


def forget_table(parts: Parts, name: str) -> None:
    """The data go, and with them the mark of commits that named the table (K6). No catalogue says its name any more.

    Its fence makes the TSO forget the table: a commit decided behind it leaves a mark of a new nonce, which stays.
    """
    number = table_id(name.encode())
    parts.tso.fence(number)
    nonce = parts.catalogue.unknown_tables().get(number)
    parts.store.drop_table(name)
    if nonce is not None:
        parts.catalogue.clear_unknown_table(number, nonce)


def find_table(parts: Parts, name: object) -> TableInfo:
    """The catalogue entry, fresh; `UnknownTable` names the nearest that exists."""
    if not isinstance(name, str):
        checks.check_table_name(name)
        raise AssertionError
    try:
        return parts.catalogue.table(name)
    except UnknownTable:
        hint = checks.nearest_table(name, parts.catalogue.tables())
        raise UnknownTable(f"there is no table {name!r}{hint}", table=name) from None


def check_leases(parts: Parts, name: str) -> None:
    """Before a transaction under a lease uses the table; `Misuse` where its snapshot would not be kept."""
    if isinstance(parts.store, RefusesLeases):
        parts.store.check_leases(name)


def ensure_markers_table(parts: Parts) -> TableInfo:
    """`MARKERS` is in store and catalogue on return (K6: before its first transactional write)."""
    try:
        return parts.catalogue.table(marker.MARKERS_TABLE)
    except UnknownTable:
        parts.store.create_table(marker.MARKERS)
        parts.catalogue.put_table(marker.MARKERS, replace=False)
        return parts.catalogue.table(marker.MARKERS_TABLE)


def _new_generation(parts: Parts) -> int:
    """A timestamp: a table dropped and created again must not be taken for the old one by a compactor that still
    holds its records (K5).
    """
    return parts.tso.begin().start_ts


def _check_same(wanted: TableInfo, found: TableInfo) -> None:
    if found.conflict_level != wanted.conflict_level:
        raise Misuse(
            f"table {found.name!r} exists with conflict level {found.conflict_level.value!r}, not "
            f"{wanted.conflict_level.value!r}: one table has one level",
            table=found.name,
        )
    missing = sorted(set(wanted.families) - set(found.families))
    if missing:
        names = ", ".join(checks.shown(family) for family in missing)
        raise Misuse(f"table {found.name!r} exists without the families {names}", table=found.name)
