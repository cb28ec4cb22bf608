"""Creating, changing and dropping tables: catalog and store in the order that leaves nothing half there.

    create   (nothing) ─► CREATING ─► what an earlier life left goes, physical table ─► PRESENT
    drop     PRESENT ─► DROPPING ─► fence ─► rows, physical table gone ─► mark gone ─► (nothing)
    alter    PRESENT ─► PRESENT, of the same generation
    withdraw PRESENT ─► WITHDRAWING ─► fence ─► no row? ─► DROPPING ─► as above;   a row ─► PRESENT

Each arrow on an entry is a compare-and-set with a fresh nonce, so of two that do the same at once one goes on, and
whoever slept finds another entry. Who dies on the way leaves `CREATING`, which is no table to anybody and is made anew
by the next who creates it, or `DROPPING`, which is no table to users but still one to sanitising, and is gone on with
by the next who drops or creates it. A drop's fence lies between the two lives of a name: who began before it and
wrote there aborts, and all that committed before it has landed when the rows go.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from pyomid.client import idempotency, validation
from pyomid.client.deployment import Deployment
from pyomid.client.unregistered_tables import forget_dropped
from pyomid.crashpoints import crash_point
from pyomid.errors import ConflictError, Misuse, OmidError, Unavailable, UnknownTable
from pyomid.protocol.hashing import table_id
from pyomid.types import ConflictLevel, TableEntry, TableInfo, TableSchema, TableState

TRIES_MAX: Final = 50
"""Entries that changed under us; each try means that somebody else got on."""


def create_table(
    parts: Deployment,
    name: str,
    families: object,
    *,
    conflict_level: object = ConflictLevel.CELL,
    schema: TableSchema | None = None,
    if_not_exists: bool = False,
) -> TableInfo:
    """Durable in the catalog on return. `Misuse` where the name is taken (or, with `if_not_exists`, taken by a
    table of other families or another conflict level).

    A table that a Java client made is registered in this way: from now on the mark that its commits left stops the
    sanitiser no more (K6): the records of its regions do, until they were cleaned.
    """
    wanted, found, is_new = _asked(parts, name, families, conflict_level, schema)
    if is_new:
        return found
    if not if_not_exists:
        raise Misuse(f"table {name!r} exists already", table=name)
    _check_same(wanted, found)
    return found


def make_table(
    parts: Deployment, name: str, families: object, *, conflict_level: object, schema: TableSchema
) -> tuple[TableInfo, bool]:
    """The table of that name, whatever its families and level, and whether it was made by this call."""
    _, found, is_new = _asked(parts, name, families, conflict_level, schema)
    return found, is_new


def _asked(
    parts: Deployment, name: str, families: object, conflict_level: object, schema: TableSchema | None
) -> tuple[TableInfo, TableInfo, bool]:
    wanted = TableInfo(
        validation.check_table_name(name),
        validation.check_families(families),
        validation.check_conflict_level(conflict_level),
        schema=schema,
    )
    return (wanted, *_make(parts, wanted))


def drop_table(parts: Deployment, name: str) -> None:
    """Its rows are gone on return. `UnknownTable` where there is none. A drop that somebody left half is finished.

    Of the life that is found first, and of no later one: where the answer to its change of the entry was lost, others
    may have finished this drop and made the table anew.
    """
    validation.check_table_name(name)
    generation: int | None = None
    for _ in range(TRIES_MAX):
        found = parts.catalog.entry(name)
        if generation is not None and (found is None or found.info.generation != generation):
            return
        if found is None or found.state is TableState.CREATING:
            find_table(parts, name)
        elif found.state is TableState.DROPPING:
            _finish_drop(parts, found)
            return
        else:
            generation = found.info.generation
            if parts.catalog.change_entry(found, dropping := _put(found.info, TableState.DROPPING)):
                crash_point("client.drop.decided")
                _finish_drop(parts, dropping)
                return
    raise _changes_too_often(name)


def withdraw_table(parts: Deployment, made: TableInfo, is_empty: Callable[[], bool]) -> bool:
    """Drops a table for whoever made it, unless somebody committed rows to it meanwhile; whether it is gone.

    `is_empty` looks at a snapshot that begins after the call. Behind the fence nothing is added to what it sees: who
    began before the fence loses, and who began after it finds no table that is present (rule 9 of the catalog).
    """
    found = parts.catalog.entry(made.name)
    if found is None or found.state is not TableState.PRESENT or found.info.generation != made.generation:
        return False
    withdrawing = _put(found.info, TableState.WITHDRAWING)
    if not parts.catalog.change_entry(found, withdrawing):
        return False
    crash_point("client.withdraw.begun")
    try:
        parts.tso.fence(table_id(made.name.encode()))
        dropping = _put(found.info, TableState.DROPPING if is_empty() else TableState.PRESENT)
    except BaseException:
        with suppress(OmidError):
            parts.catalog.change_entry(withdrawing, _put(found.info, TableState.PRESENT))
        raise
    crash_point("client.withdraw.looked")
    if not parts.catalog.change_entry(withdrawing, dropping) or dropping.state is TableState.PRESENT:
        return False
    _finish_drop(parts, dropping)
    return True


def alter_table(parts: Deployment, present: TableInfo, decide: Callable[[TableInfo], TableInfo]) -> TableInfo:
    """The entry as `decide` makes it of the one that stands there: what others change meanwhile stays.

    `decide` is asked again where another was faster. `ConflictError` where it is another table than `present` by now.
    """
    for _ in range(TRIES_MAX):
        found = parts.catalog.entry(present.name)
        if found is None or found.state is not TableState.PRESENT or found.info.generation != present.generation:
            raise ConflictError(f"table {present.name!r} was dropped or made anew meanwhile", table=present.name)
        wanted = decide(found.info)
        assert wanted.generation == found.info.generation
        if wanted == found.info or parts.catalog.change_entry(found, _put(wanted, TableState.PRESENT)):
            return wanted
    raise _changes_too_often(present.name)


def find_table(parts: Deployment, name: object) -> TableInfo:
    """The catalog entry, fresh; `UnknownTable` names the nearest that exists."""
    if not isinstance(name, str):
        validation.check_table_name(name)
        raise AssertionError
    try:
        return parts.catalog.table(name)
    except UnknownTable:
        hint = validation.nearest_table(name, parts.catalog.tables())
        raise UnknownTable(f"there is no table {name!r}{hint}", table=name) from None


def check_leases(parts: Deployment, name: str) -> None:
    """Before a transaction under a lease uses the table; `Misuse` where its snapshot would not be kept."""
    parts.store.check_leases(name)


def ensure_markers_table(parts: Deployment) -> TableInfo:
    """`MARKERS` is in store and catalog on return (K6: before its first transactional write)."""
    for _ in range(TRIES_MAX):
        with suppress(UnknownTable):
            return parts.catalog.table(idempotency.MARKERS_TABLE)
        _make(parts, idempotency.MARKERS)
    raise _changes_too_often(idempotency.MARKERS_TABLE)


def _make(parts: Deployment, wanted: TableInfo) -> tuple[TableInfo, bool]:
    """The table of that name, and whether it was made here, of a generation drawn here.

    Each try draws its own: where the answer to one was lost, its table may have been there and dropped by now.
    """
    info = wanted
    for _ in range(TRIES_MAX):
        found = parts.catalog.entry(info.name)
        if found is not None and found.state is TableState.PRESENT:
            return found.info, info is not wanted and found.info.generation == info.generation
        if found is not None and found.state is TableState.DROPPING:
            _finish_drop(parts, found)
            continue
        if found is not None and found.state is TableState.WITHDRAWING:  # its rows stay: its maker finds it changed
            parts.catalog.change_entry(found, _put(found.info, TableState.PRESENT))
            continue
        info = replace(wanted, generation=_new_generation(parts))
        creating = _put(info, TableState.CREATING)
        if not parts.catalog.change_entry(found, creating):
            continue
        crash_point("client.create.begun")
        try:
            _make_physical(parts, creating)
        except OmidError:
            with suppress(OmidError):
                parts.catalog.remove_entry(creating)
            raise
        crash_point("client.create.made")
        if parts.catalog.change_entry(creating, _put(info, TableState.PRESENT)):
            return info, True
    raise _changes_too_often(wanted.name)


def _make_physical(parts: Deployment, creating: TableEntry) -> None:
    """Empty where nobody but pyomid makes tables; elsewhere it may be one that a Java client filled.

    One that is there may have been named by a dropper that sleeps behind its look (`_drop_rows`): the store makes it
    another, or takes the name from it.
    """
    if not parts.store.capabilities.foreign_tables:
        _drop_rows(parts, creating)
    parts.store.create_table(creating.info)


def _finish_drop(parts: Deployment, dropping: TableEntry) -> None:
    """By whoever began it, or found it half done; any number may do so at once.

    The rows go, then the mark of commits that named the table (K6): of those decided behind the fence, too.
    """
    name = dropping.info.name
    parts.tso.fence(table_id(name.encode()))
    crash_point("client.drop.fenced")
    _drop_rows(parts, dropping)
    crash_point("client.drop.emptied")
    forget_dropped(parts, name)
    parts.catalog.remove_entry(dropping)


def _drop_rows(parts: Deployment, entry: TableEntry) -> None:
    """What has the name goes while `entry` stands, and no table that was made later. A rule of order:

    one                                         another
    withdraws t
    looks: the entry stands
    (is slow)                                   finishes the drop, makes t anew
    drops what it withdrew: another has its name

    is about to withdraw t                      finishes the drop, makes t anew
    withdraws the new t
    looks: another entry stands → gives it back
    """
    name = entry.info.name
    while (withdrawn := parts.store.withdraw_table(name)) is not None:
        if not _stands(parts, entry):
            parts.store.give_back_table(name)
            return
        crash_point("client.drop.withdrawn")
        if parts.store.drop_table(name, withdrawn):
            return


def _put(info: TableInfo, state: TableState) -> TableEntry:
    return TableEntry(info, state, os.urandom(8).hex())


def _stands(parts: Deployment, entry: TableEntry) -> bool:
    return parts.catalog.entry(entry.info.name) == entry


def _changes_too_often(name: str) -> Unavailable:
    return Unavailable(f"the catalog's entry of table {name!r} changed {TRIES_MAX} times under us", table=name)


def _new_generation(parts: Deployment) -> int:
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
        names = ", ".join(validation.shown(family) for family in missing)
        raise Misuse(f"table {found.name!r} exists without the families {names}", table=found.name)
