"""Create, alter and drop tables. Catalog and store change in an order that makes every interruption recoverable.

    create   (nothing) ─► CREATING ─► generation drawn ─► remains of an earlier life go, physical table ─► PRESENT
    drop     PRESENT ─► DROPPING ─► fence, noted ─► rows, physical table gone ─► mark gone ─► (nothing)
    alter    PRESENT ─► PRESENT, of the same generation
    level    a ─► a, next level b ─► fence ─► b; always PRESENT
    columns  old ─► old, changing ─► fence ─► new; always PRESENT
    ttl      old ─► old, changing ─► fence ─► new, changing ─► fence ─► new; always PRESENT

Each arrow on an entry is a compare-and-set with a fresh nonce. So of two clients that do the same at once, one
continues, and a client that stalled finds another entry. A client that dies leaves `CREATING` or `DROPPING`. A name in
state `CREATING` is not a table; the next client that creates the table starts again. A name in state `DROPPING` is not
a table to users, but sanitizing still counts it; the next client that drops or creates the table finishes the drop. A
drop's fence lies between two lives of a name. A transaction that began before the fence and wrote the table aborts, and
everything that committed before the fence is stored when the rows are deleted. The fence is noted for the name: a
snapshot below the fence may know the former life, so it must not read a later life (R10). Each attempt to create a
table draws its generation (`drawn_start`) while its `CREATING` stands. So no two lives have the same generation (K5),
and no life is older than a former life's end (R10).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from pyomid.crashpoints import crash_point
from pyomid.database import idempotency, validation
from pyomid.database.found_tables import check_found_table, is_in_store
from pyomid.database.issued import drawn_start
from pyomid.errors import ConflictError, Misuse, MisuseType, OmidError, Unavailable, UnknownTable
from pyomid.ports import Catalog, Deployment
from pyomid.protocol.expiry import settled, with_ttl, without_passed
from pyomid.protocol.hashing import table_id
from pyomid.protocol.timestamps import dated
from pyomid.rows.schema import (
    ColumnChanges,
    changed_table,
    check_row_key,
    column_mapping,
    families_of,
    fields_of,
    fit_frame,
    make_schema,
    row_key_parts,
)
from pyomid.types import ConflictLevel, TableEntry, TableInfo, TableSchema, TableState

ATTEMPTS_MAX: Final = 50
"""Maximum number of attempts after concurrent changes of the entry by other clients."""
_FREE_ATTEMPTS: Final = 3
_PAUSE_S, _PAUSE_S_MAX = 0.002, 0.1
"""The upper bound of the pause before the next attempt to create a table: the first bound, and the largest."""
TTL_CHANGES_MAX: Final = 1_000
"""Maximum number of changes of a time to live in one entry, which take some 100 kB."""


def create_table(
    deployment: Deployment,
    name: str,
    families: object,
    *,
    conflict_level: object = None,
    schema: TableSchema | None = None,
    if_not_exists: bool = False,
    split_keys: Sequence[bytes] = (),
    ttl_seconds: object = None,
    is_adopted: bool = False,
) -> TableInfo:
    """Create a table, durably, and return its entry. Raises `Misuse` if the name is taken; with `if_not_exists`,
    only if the existing table has other families or another conflict level. `conflict_level` None means the
    deployment's level, or cell if there is none. `split_keys` are the keys at which the regions of a new HBase table
    begin.

    An existing HBase table is registered, as `register_table` does, unless rows or delete markers in it forbid this
    (`check_found_table`). `is_adopted` is True if the caller has just imported the table.
    """
    wanted = _wanted(deployment, name, families, conflict_level, schema)
    if ttl_seconds is not None:
        wanted = replace(wanted, ttl_seconds=validation.check_ttl(ttl_seconds))
    if split_keys and deployment.foreign is None:
        raise Misuse("split keys apply only to tables in HBase; omit them", table=name)
    found, is_new = _make(deployment, wanted, split_keys, is_checked=not is_adopted)
    if is_new:
        return found
    if not if_not_exists:
        raise Misuse(f"table {name!r} already exists; give if_not_exists=True to use the existing table", table=name)
    _check_same(wanted, found)
    return found


def create_typed_table(
    deployment: Deployment,
    name: str,
    columns: object,
    row_key: str | Iterable[str] | None,
    mapping: Mapping[str, str | bytes] | None,
    **options: Any,
) -> TableInfo:
    """Create a table with a schema (`give_schema`), and return its entry. The table has the families that its columns
    need: Spark's default family, unless `mapping` names others. With `if_not_exists`, `give_schema` gives an existing
    table the schema."""
    if row_key is None:
        raise Misuse(
            f'table {name!r}: typed columns need a row key; name the key columns, for example row_key="id"', table=name
        )
    schema = make_schema(fields_of(columns), row_key_parts(row_key), column_mapping(mapping or {}))
    found = create_table(deployment, name, families_of(schema), schema=schema, **options)
    if found.schema != schema:
        give_schema(deployment, name, columns, row_key, mapping)
        found = validation.find_table(deployment.catalog, name)
    return found


def make_table(
    deployment: Deployment, name: str, families: object, *, conflict_level: object, schema: TableSchema
) -> TableInfo:
    """Return the table of that name, and create it if there is none. An existing table may have other families and
    another level."""
    found, _ = _make(deployment, _wanted(deployment, name, families, conflict_level, schema))
    return found


def _wanted(
    deployment: Deployment, name: str, families: object, conflict_level: object, schema: TableSchema | None
) -> TableInfo:
    name, checked = validation.check_table_name(name), validation.check_families(families)
    return TableInfo(name, checked, new_level(deployment, name, conflict_level), schema=schema)


def new_level(deployment: Deployment, name: str, conflict_level: object) -> ConflictLevel:
    """Return the conflict level of a new table. None means the deployment's level, or cell if there is none. Raise
    `Misuse` if the deployment does not allow the level."""
    if conflict_level is None:
        return deployment.catalog.tables_level() or ConflictLevel.CELL
    level = validation.check_conflict_level(conflict_level)
    check_tables_level(deployment, name, level)
    return level


def drop_table(deployment: Deployment, name: str) -> None:
    """Drop a table. When the call returns, the rows are gone. Raise `UnknownTable` if there is no such table. The call
    also finishes an interrupted drop.

    The call drops only the table that it finds first: if the reply to its change of the entry is lost, other clients
    may finish this drop and create a new table of the same name meanwhile.
    """
    _drop(deployment, validation.check_table_name(name))


def _drop(deployment: Deployment, name: str) -> None:
    generation: int | None = None
    for _ in range(ATTEMPTS_MAX):
        found = deployment.catalog.entry(name)
        if generation is not None and (found is None or found.info.generation != generation):
            return
        if found is None or found.state is TableState.CREATING:
            validation.find_table(deployment.catalog, name)
        elif found.state is TableState.DROPPING:
            finish_drop(deployment, found)
            return
        else:
            generation = found.info.generation
            if deployment.catalog.change_entry(found, dropping := _put(found.info, TableState.DROPPING)):
                crash_point("client.drop.decided")
                finish_drop(deployment, dropping)
                return
    raise _changes_too_often(name)


def register_table(deployment: Deployment, name: str, families: object, *, conflict_level: object) -> TableInfo:
    """Register a table that a Java client created, and return its entry. Raise `UnknownTable` if HBase has no table of
    this name. The call is idempotent.

    `conflict_level` is the level of the programs that write the table, because their requests do not name it. None
    raises `Misuse`: with a wrong level, conflicts would be missed.

    From now on, the mark of commits to the table no longer blocks sanitizing (K6). The table's regions block it until
    they are compacted.
    """
    if deployment.foreign is None:
        raise Misuse(
            "only tables in HBase can be registered, because only pyomid writes to this store; create the table "
            "instead",
            table=name,
        )
    if conflict_level is None:
        level = deployment.catalog.tables_level()
        known = "" if level is None else f"; this deployment's level is {level.value!r}"
        raise Misuse(
            f"table {name!r} cannot be registered without its conflict level: give --conflict-level cell (Apache "
            f"Omid's default) or row, whichever the table's writers use{known}; a wrong level would miss conflicts",
            table=name,
        )
    deployment.store.check_table(name, _wanted(deployment, name, families, conflict_level, None).families)
    return create_table(deployment, name, families, conflict_level=conflict_level, if_not_exists=True)


def unregister_table(deployment: Deployment, name: str) -> None:
    """Remove a table from the catalog, but keep its rows. Raise `UnknownTable` if the catalog does not list the table.

    If the physical table exists, its mark is durable before the entry is removed (K6). The mark blocks sanitizing until
    the table is registered again, or dropped and forgotten, because its commits may need their entries in the commit
    table. The mark also records that a life of the name ends: the client that creates the next life, or that removes
    the mark, notes this end (R10). Without a physical table there is no mark, and this call notes the end.

    The fence afterwards keeps later transactions from using a cached entry: if the table is registered again, it is
    another life, perhaps with another level.
    """
    validation.check_table_name(name)
    if deployment.foreign is None:
        raise Misuse(
            "only tables in HBase can be unregistered, because only pyomid writes to this store; drop the table "
            "instead",
            table=name,
        )
    generation = validation.find_table(deployment.catalog, name).generation
    for _ in range(ATTEMPTS_MAX):
        found = deployment.catalog.entry(name)
        if found is None or found.info.generation != generation:
            return
        if found.state is not TableState.PRESENT:
            raise Misuse(
                f"table {name!r} is being dropped: `pyomid tables URL drop {name}` finishes the drop", table=name
            )
        if is_in_store(deployment, name):
            deployment.catalog.mark_unknown_table(table_id(name.encode()))
        else:
            deployment.catalog.note_drop(name, fence_table(deployment, name))
        crash_point("client.unregister.marked")
        deployment.catalog.remove_entry(found)
        fence_table(deployment, name)
    raise _changes_too_often(name)


def alter_table(deployment: Deployment, present: TableInfo, decide: Callable[[TableInfo], TableInfo]) -> TableInfo:
    """Replace the entry by `decide(entry)`, keeping concurrent changes by other clients (K8).

    `decide` is called again if another client was faster. Raises `ConflictError` if the name now belongs to another
    table than `present`.
    """
    for _ in range(ATTEMPTS_MAX):
        found = _present_entry(deployment, present.name, present.generation)
        wanted = decide(found.info)
        assert wanted.generation == found.info.generation
        if wanted == found.info or deployment.catalog.change_entry(found, _put(wanted, TableState.PRESENT)):
            return wanted
    raise _changes_too_often(present.name)


def alter_level(deployment: Deployment, name: str, conflict_level: object) -> TableInfo:
    """Change a table's conflict level, durably, while transactions run, and return the entry. The call is idempotent; a
    further call finishes an interrupted change. Transactions that began before its fence and write the table abort.

    Ids of cells never equal ids of rows (T9). So between commits that name one kind of ids and commits that name the
    other, commits name both, and a fence is drawn. The fence is drawn after `next_level` was read, and the last change
    replaces exactly the entry that was read: an entry that was put after the fence gets another fence. The deployment's
    level is also read after `next_level` was read: so a client that sets that level sees `next_level`, or this client
    sees the level (`choose_tables_level`).
    """
    level = new_level(deployment, validation.check_table_name(name), conflict_level)
    generation = validation.find_table(deployment.catalog, name).generation
    for _ in range(ATTEMPTS_MAX):
        found = _present_entry(deployment, name, generation)
        info = found.info
        if info.conflict_level is level and info.next_level is None:
            return info
        if info.next_level is level:
            try:
                check_tables_level(deployment, name, level)
            except Misuse:
                deployment.catalog.change_entry(found, _put(replace(info, next_level=None), TableState.PRESENT))
                raise
            fence_table(deployment, name)
            crash_point("client.level.fenced")
            wanted = replace(info, conflict_level=level, next_level=None)
        else:
            wanted = replace(info, next_level=None if info.conflict_level is level else level)
        deployment.catalog.change_entry(found, _put(wanted, TableState.PRESENT))
        crash_point("client.level.changed")
    raise _changes_too_often(name)


def alter_ttl(deployment: Deployment, name: str, ttl_seconds: object) -> TableInfo:
    """Change a table's time to live, durably, and return the entry. With 0, values no longer expire, but expired values
    stay expired.

    The change takes a fence, like changes of columns; snapshots above the fence use the new time to live (E1).
    """
    checked = 0.0 if ttl_seconds == 0 and ttl_seconds is not False else validation.check_ttl(ttl_seconds)
    found = validation.find_table(deployment.catalog, validation.check_table_name(name))
    had_none = found.ttl_seconds is None and not checked
    if had_none or (found.ttl_seconds == checked and not found.is_changing):
        return found
    watermark, _ = deployment.leader_state.read_watermarks()

    def checked_for(info: TableInfo) -> TableInfo:
        if info.indexes:
            raise Misuse(
                f"table {name!r} has the index {info.indexes[0].name!r}, whose rows would not expire together with "
                "the table's rows; drop the index first",
                table=name,
            )
        kept = without_passed(info, watermark)
        if len(kept.ttl_changes) >= TTL_CHANGES_MAX:
            raise Misuse(
                f"the time to live of table {name!r} was changed {len(kept.ttl_changes)} times since "
                f"{dated(watermark)}, which is the maximum while snapshots since then can still be read; change it "
                "again after these snapshots expire (retention, leases)",
                table=name,
            )
        return kept

    return alter_with_fence(deployment, name, checked_for, lambda info, fence_ts: with_ttl(info, checked, fence_ts))


def alter_with_fence(
    deployment: Deployment,
    name: str,
    decide: Callable[[TableInfo], TableInfo],
    date: Callable[[TableInfo, int], TableInfo] = lambda info, fence_ts: info,
) -> TableInfo:
    """Replace the entry by `decide(entry)` when no client caches the old entry any more (X2), and return the new entry.
    Transactions that began before the fence and write the table abort.

    Clients do not cache an entry that is *changing*. Earlier caches are older than the fence, which is drawn after
    *changing* was read, and the last change replaces exactly the entry that was read. So once a transaction has used
    the new entry, every transaction that begins later uses it too. `decide` is called again if another client was
    faster; `date` adds the parts of the entry that depend on the fence. If the entry is still *changing* then, a second
    fence ends that state (E2).
    """
    generation = validation.find_table(deployment.catalog, validation.check_table_name(name)).generation
    put: TableEntry | None = None
    for _ in range(ATTEMPTS_MAX):
        found = _present_entry(deployment, name, generation)
        is_ours = found == put
        if is_ours and not found.info.is_changing:
            return found.info
        try:
            wanted = found.info if is_ours else decide(found.info)
        except Misuse as error:
            if found.info.is_changing:
                undo_changing(deployment, found)
            if put is not None:
                raise ConflictError(
                    f"another client altered table {name!r} during this call: {error}", table=name
                ) from error
            raise
        if not found.info.is_changing:
            deployment.catalog.change_entry(found, _put(replace(found.info, is_changing=True), TableState.PRESENT))
            crash_point("client.columns.changing")
            continue
        fence_ts = fence_table(deployment, name)
        crash_point("client.columns.fenced")
        wanted = settled(wanted, fence_ts)
        put = _put(wanted if is_ours else date(wanted, fence_ts), TableState.PRESENT)
        if deployment.catalog.change_entry(found, put):
            if not put.info.is_changing:
                return put.info
            crash_point("client.columns.dated")
    raise _changes_too_often(name)


def undo_changing(deployment: Deployment, changing: TableEntry) -> bool:
    """Let clients cache the entry again, as it is, and abandon the change that has begun. A client that is still making
    this change begins it again (`alter_with_fence`). Return False if the entry has changed meanwhile."""
    fence_ts = fence_table(deployment, changing.info.name)
    return deployment.catalog.change_entry(changing, _put(settled(changing.info, fence_ts), TableState.PRESENT))


def give_schema(
    deployment: Deployment,
    name: str,
    columns: object,
    row_key: str | Iterable[str] | None,
    mapping: Mapping[str, str | bytes] | None,
) -> TableSchema:
    """Give a table a schema, or add missing columns to its schema, durably. Return the schema. Raise `Misuse` if the
    table's schema differs in any other way."""
    fields, places = fields_of(columns), column_mapping(mapping or {})
    parts = None if row_key is None else row_key_parts(row_key)

    def with_schema(info: TableInfo) -> TableInfo:
        if info.schema is not None:
            if parts is not None:
                check_row_key(info, parts)
            return replace(info, schema=fit_frame(info, fields, merge=True, mapping=places, given="columns"))
        if parts is None:
            raise Misuse(f"table {info.name!r} has no schema, so name the columns of its row key", table=info.name)
        schema = make_schema(fields, parts, places, family=info.families[0])
        for family in families_of(schema, family=info.families[0]):
            if family not in info.families:
                raise Misuse(f"table {info.name!r} has no family {family!r}", table=info.name)
        return replace(info, schema=schema)

    given = alter_table(deployment, validation.find_table(deployment.catalog, name), with_schema).schema
    assert given is not None
    return given


def alter_columns(
    deployment: Deployment,
    name: str,
    *,
    rename: Mapping[str, str] | None = None,
    drop: Iterable[str] = (),
    widen: Mapping[str, Any] | None = None,
    add: object = None,
    order: Iterable[str] = (),
    mapping: Mapping[str, str | bytes] | None = None,
) -> TableSchema:
    """Change the columns of a table with data, durably, and return the schema. Every later transaction uses the new
    columns."""
    for what, value in (("rename", rename), ("widen", widen)):
        if value is not None and not isinstance(value, Mapping):
            raise MisuseType(f"{what}={value!r} is not a mapping of column names", value=value)
    changes = ColumnChanges(
        rename=dict(rename or {}),
        drop=tuple(validation.check_list("drop", drop, "column names")),
        widen={field.name: field.spark_type for field in fields_of(widen)} if widen else {},
        add=fields_of(add) if add else (),
        order=tuple(validation.check_list("order", order, "column names")),
        mapping=column_mapping(mapping or {}),
    )
    altered = alter_with_fence(deployment, name, lambda info: changed_table(info, changes)).schema
    assert altered is not None
    return altered


def choose_tables_level(catalog: Catalog, level: ConflictLevel | None) -> None:
    """Set the conflict level of all tables; with None, each table has its own. Raise `Misuse` if a table has another
    level.

    The level is set first, then compared with the tables. A client that creates a table puts its entry first, then
    reads the level. So at least one of the two clients sees the other's change. If the comparison fails, the former
    level is restored, unless another level was set since.
    """
    if level is None:
        catalog.set_tables_level(None)
        return
    before = catalog.tables_level()
    try:
        catalog.set_tables_level(level)
        others = _of_another_level(catalog, level)
    except BaseException:
        _take_back(catalog, level, before)
        raise
    if others:
        _take_back(catalog, level, before if before is not level else None)
        names = ", ".join(f"{info.name} ({info.conflict_level.value})" for info in others)
        raise Misuse(
            f"{level} cannot be the conflict level of all tables, because {names} have another level: set 'any', "
            "change these tables with `pyomid tables URL alter NAME --conflict-level`, then set the level again",
            level=str(level),
        )


def _take_back(catalog: Catalog, level: ConflictLevel, before: ConflictLevel | None) -> None:
    """Restore the level `before`. Another client may have set that level and then found that it does not fit, so
    compare the level with the tables again, and remove it if it does not fit."""
    if before is level:
        return
    if catalog.change_tables_level(level, before) and before is not None and _of_another_level(catalog, before):
        catalog.change_tables_level(before, None)


def _of_another_level(catalog: Catalog, level: ConflictLevel) -> list[TableInfo]:
    return [info for info in user_tables(catalog) if info.id_levels != (level,)]


def check_tables_level(deployment: Deployment, name: str, level: ConflictLevel) -> None:
    """Raise `Misuse` if all tables of this deployment must have another level."""
    only = deployment.catalog.tables_level()
    if only is not None and level is not only and not is_system(name):
        raise Misuse(
            f"table {name!r} cannot have conflict level {level.value!r}, because this deployment's level is "
            f"{only.value!r}: requests of Java clients do not name a level, so all tables share one level; omit the "
            "level, or, if no Java client writes, allow both levels with `pyomid init URL --conflict-level any`",
            table=name,
        )


def user_tables(catalog: Catalog) -> list[TableInfo]:
    return [entry.info for entry in catalog.entries() if not is_system(entry.info.name)]


def is_system(name: str) -> bool:
    return name.upper().startswith(validation.SYSTEM_PREFIXES)


def ensure_keys_table(deployment: Deployment) -> TableInfo:
    """Create the table of idempotency keys (`KEYS_INFO`) in store and catalog if necessary, before its first
    transactional write (K6)."""
    return _ensure(deployment, idempotency.KEYS_INFO)


def _ensure(deployment: Deployment, info: TableInfo) -> TableInfo:
    for _ in range(ATTEMPTS_MAX):
        with suppress(UnknownTable):
            return deployment.catalog.table(info.name)
        _make(deployment, info)
    raise _changes_too_often(info.name)


def make_index_table(deployment: Deployment, name: str, family: bytes) -> None:
    """Create the table for the rows of an index. The call is idempotent."""
    _make(deployment, TableInfo(name, (family,), ConflictLevel.CELL))


def drop_index_table(deployment: Deployment, name: str) -> None:
    """Drop an index's table completely, even if its creation was interrupted."""
    found = deployment.catalog.entry(name)
    if found is not None and found.state is TableState.CREATING:
        deployment.catalog.change_entry(found, _put(found.info, TableState.DROPPING))
    with suppress(UnknownTable):
        _drop(deployment, name)


def fence_table(deployment: Deployment, name: str) -> int:
    """Draw a fence, and return its timestamp. From then on, only transactions that began after the entry's last change
    can commit to the table."""
    return deployment.tso.fence(table_id(name.encode()))


def make_filled(deployment: Deployment, wanted: TableInfo, put: Callable[[], None]) -> tuple[TableInfo, bool]:
    """Create the table `wanted`, whose physical table and rows `put` creates. Return the table of that name, and
    whether this call created it."""
    return _make(deployment, wanted, put=put, is_checked=False)


def _make(
    deployment: Deployment,
    wanted: TableInfo,
    split_keys: Sequence[bytes] = (),
    put: Callable[[], None] | None = None,
    *,
    is_checked: bool = True,
) -> tuple[TableInfo, bool]:
    """Return the table of that name, and whether this call created it. With `is_checked`, the call checks a physical
    table that exists already.

    Each attempt draws a new generation: if an attempt's reply was lost, its table may have been created and dropped
    since.
    """
    info = wanted
    for attempt in range(ATTEMPTS_MAX):
        if attempt >= _FREE_ATTEMPTS:  # clients that take a creation over from each other might never finish it
            time.sleep(random.uniform(0.0, min(_PAUSE_S * 2 ** (attempt - _FREE_ATTEMPTS), _PAUSE_S_MAX)))
        found = deployment.catalog.entry(info.name)
        if found is not None and found.state is TableState.PRESENT:
            return found.info, info is not wanted and found.info.generation == info.generation
        if found is not None and found.state is TableState.DROPPING:
            finish_drop(deployment, found)
            continue
        if is_checked:
            check_found_table(deployment, wanted.name)
        creating = _put(wanted, TableState.CREATING)
        if not deployment.catalog.change_entry(found, creating):
            continue
        crash_point("client.create.begun")
        try:
            info = replace(wanted, generation=drawn_start(deployment))
            check_tables_level(deployment, info.name, info.conflict_level)
            if put is not None:
                put()
            if put is not None or _is_marked(deployment, info.name):  # rows of this or a former life may be older (R10)
                deployment.catalog.note_drop(info.name, info.generation)
            _make_physical(deployment, creating, split_keys)
        except OmidError:
            with suppress(OmidError):
                deployment.catalog.remove_entry(creating)
            raise
        crash_point("client.create.made")
        if deployment.catalog.change_entry(creating, _put(info, TableState.PRESENT)):
            return info, True
    raise _changes_too_often(wanted.name)


def _is_marked(deployment: Deployment, name: str) -> bool:
    """Whether the name has a mark (K6): transactions wrote an unregistered table of that name, or the table was
    unregistered."""
    has_marks = deployment.foreign is not None
    return has_marks and table_id(name.encode()) in deployment.catalog.unknown_tables()


def _make_physical(deployment: Deployment, creating: TableEntry, split_keys: Sequence[bytes]) -> None:
    """Create the physical table. It is empty in a store where only pyomid creates tables; in HBase, a Java client may
    have filled it.

    A client that stalled in a drop, after its check of the entry (`_drop_rows`), may still drop the existing physical
    table. So the store creates another table, or invalidates that client's withdrawal.
    """
    if deployment.foreign is None:
        _drop_rows(deployment, creating)
    deployment.store.create_table(creating.info, split_keys)


def finish_drop(deployment: Deployment, dropping: TableEntry) -> None:
    """K8: finish a drop that any client began; several clients may do so at once.

    The call deletes the rows, then the table's mark (K6). It notes the fence before it removes the entry, because
    another life of the name may follow then (R10). If another client has finished this drop, the call does nothing.
    """
    name = dropping.info.name
    if not _stands(deployment, dropping):
        return
    deployment.catalog.note_drop(name, fence_table(deployment, name))
    crash_point("client.drop.fenced")
    _drop_rows(deployment, dropping)
    crash_point("client.drop.emptied")
    for index in dropping.info.indexes:
        drop_index_table(deployment, index.table)
    forget_dropped(deployment, name)
    deployment.catalog.remove_entry(dropping)


def forget_dropped(deployment: Deployment, name: str) -> bool:
    """Remove the mark of a table that is gone (protocol.md, Marks of unregistered tables). If the table exists (again),
    keep the mark and return False. Call it only for a table without a catalog entry in state `PRESENT`.

    fence → the mark's nonce → fence → is the table gone? → the fence is noted → the mark goes, if it has that nonce

    After the first fence, no commit of a transaction that began before it marks the table. After the second fence, the
    TSO has forgotten the mark that was read, so the next commit puts a new mark. So if the table does not exist *after*
    the second fence, the mark that was read protects nothing, and its removal may arrive at any later time. The note
    replaces the mark as the record of the table's former life (R10).
    """
    number = table_id(name.encode())
    deployment.tso.fence(number)
    nonce = deployment.catalog.unknown_tables().get(number)
    if nonce is None:
        return True
    fence_ts = fence_table(deployment, name)
    if is_in_store(deployment, name):
        return False
    deployment.catalog.note_drop(name, fence_ts)
    deployment.catalog.clear_unknown_table(number, nonce)
    return True


def _drop_rows(deployment: Deployment, entry: TableEntry) -> None:
    """Drop the physical table of that name while `entry` stands, but never a table created later. The order matters:

    one client                                  another
    withdraws t
    checks: the entry is unchanged
    (stalls)                                    finishes the drop, creates t again
    drops what it withdrew; t is another table by now

    is about to withdraw t                      finishes the drop, creates t again
    withdraws the new t
    checks: the entry is another → gives t back
    """
    name = entry.info.name
    while (withdrawn := deployment.store.withdraw_table(name)) is not None:
        if not _stands(deployment, entry):
            deployment.store.give_back_table(name)
            return
        crash_point("client.drop.withdrawn")
        if deployment.store.drop_table(name, withdrawn):
            return


def _put(info: TableInfo, state: TableState) -> TableEntry:
    return TableEntry(info, state, os.urandom(8).hex())


def _stands(deployment: Deployment, entry: TableEntry) -> bool:
    """K8: whether `entry`, which a drop read, is still the current entry."""
    return deployment.catalog.entry(entry.info.name) == entry


def _present_entry(deployment: Deployment, name: str, generation: int) -> TableEntry:
    """Return the entry of this generation. Raise `ConflictError` if the name now belongs to another table, or to
    none."""
    found = deployment.catalog.entry(name)
    if found is None or found.state is not TableState.PRESENT or found.info.generation != generation:
        raise ConflictError(f"table {name!r} was dropped or created again during this call", table=name)
    return found


def check_present(deployment: Deployment, present: TableInfo, error: Misuse) -> None:
    """Raise `ConflictError` if the name now belongs to a table other than `present`, because `error` is about that
    table."""
    try:
        _present_entry(deployment, present.name, present.generation)
    except ConflictError as conflict:
        raise conflict from error


def _changes_too_often(name: str) -> Unavailable:
    return Unavailable(
        f"other clients changed the catalog entry of table {name!r} in each of {ATTEMPTS_MAX} attempts: try again",
        table=name,
    )


def _check_same(wanted: TableInfo, found: TableInfo) -> None:
    if found.conflict_level != wanted.conflict_level:
        raise Misuse(
            f"table {found.name!r} already exists with conflict level {found.conflict_level.value!r}, not "
            f"{wanted.conflict_level.value!r}; change the table's level with `pyomid tables URL alter NAME "
            "--conflict-level`",
            table=found.name,
        )
    if wanted.ttl_seconds is not None and found.ttl_seconds != wanted.ttl_seconds:
        raise Misuse(
            f"table {found.name!r} already exists with ttl_seconds {found.ttl_seconds}, not {wanted.ttl_seconds}; "
            "change the table's ttl_seconds with alter_table",
            table=found.name,
        )
    missing = [] if wanted.schema is not None else sorted(set(wanted.families) - set(found.families))
    if missing:
        names = ", ".join(validation.shown(family) for family in missing)
        raise Misuse(f"table {found.name!r} already exists without the families {names}", table=found.name)
