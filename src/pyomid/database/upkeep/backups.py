"""Backups over HBase: the moment of a backup, and the restore of its tables (decision 0078).

    snapshots ─► copies under names that no client knows ─► each region is cut to the moment ─► a table, then its entry

Until a table's entry is written, the database has no such table (B6). So an interrupted restore leaves each table
complete or absent, and the next restore continues with the absent tables.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from pyomid.coroutines import Routine
from pyomid.database import table_admin
from pyomid.database.driver import Driver
from pyomid.database.idempotency import KEYS_TABLE
from pyomid.database.index_tables import INDEX_TABLES
from pyomid.database.issued import drawn_start
from pyomid.database.validation import check_table_name
from pyomid.errors import ConflictError, Misuse, UnknownTable
from pyomid.ports import Commits, Deployment
from pyomid.protocol import effects
from pyomid.protocol.compaction import Cut, cut_region, explained_batch
from pyomid.protocol.expiry import droppable_to, settled
from pyomid.types import BackupManifest, BackupMoment, IndexState, SealOutcome, TableInBackup, TableInfo, TableState

if TYPE_CHECKING:
    from pyomid.database.database import Database

log = logging.getLogger(__name__)

_FRESH: Final = "pyomid init URL --above-backup"


def moment_of(database: Database, start_ts: int, epoch: int) -> BackupMoment:
    """Return the backup's moment at a start that a lease holds, with the current tables. A table younger than the start
    holds nothing that committed before the start."""
    deployment = database._core.deployment
    tables = {info.name: _as_of(info, start_ts) for info in deployment.catalog.tables()}
    indexes = {index.table for info in tables.values() for index in info.indexes}
    kept = [info for info in tables.values() if not info.name.startswith(INDEX_TABLES) or info.name in indexes]
    return BackupMoment(start_ts, epoch, tuple(kept), lambda: drawn_start(deployment))


def _as_of(info: TableInfo, start_ts: int) -> TableInfo:
    """Return the entry without changes in progress, and without indexes that were not complete at the moment."""
    whole = tuple(each for each in info.indexes if each.state is IndexState.READY and each.ready_ts <= start_ts)
    return settled(replace(info, next_level=None, indexes=whole), start_ts)


class Source(Protocol):
    """A backup, and the copies that its restore works on (`omid.hbase.backup`)."""

    @property
    def manifest(self) -> BackupManifest: ...

    def copy(self, tables: Sequence[TableInBackup]) -> Commits: ...

    def copy_of(self, table: TableInBackup) -> str: ...

    def exists(self, table: str) -> bool: ...

    def put(self, table: TableInBackup, target: str) -> None: ...

    def forget(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Table:
    """A table to restore, and its new name."""

    source: TableInBackup
    target: str


def restore(deployment: Deployment, source: Source, tables: Mapping[str, str] | Iterable[str] | None) -> list[str]:
    """Restore tables of a backup: all, some, or some under other names (name → new name). Return the names of the
    restored tables. When the call returns, all of them are in the catalog.

    If a name is taken, or this database's timestamps are below the backup's, `Misuse` is raised and nothing changes. If
    another restore of the backup began meanwhile, `ConflictError` is raised, and the tables restored so far are
    complete.
    """
    chosen = _chosen(source.manifest.tables, tables)
    _check_above(deployment, source.manifest)
    for each in chosen:
        _check_free(deployment, source, each.target)
    try:
        whole = [*chosen, *_index_tables(source.manifest.tables, chosen)]
        commits = source.copy([each.source for each in whole])
        with closing(commits):
            moment_ts = source.manifest.snapshot_ts
            copies = [(source.copy_of(each.source), droppable_to(each.source.info, moment_ts)) for each in whole]
            cut = cut_copies(deployment, commits, source.manifest, copies)
        log.info("cut to %d", source.manifest.snapshot_ts, extra={"rows": cut.rows, "dropped": cut.cells_dropped})
        made: dict[str, str] = {}
        for each in whole[len(chosen) :]:
            made[each.source.info.name] = name = f"{INDEX_TABLES}{drawn_start(deployment)}"
            _make(deployment, source, replace(each, target=name), each.source.info)
        for each in chosen:
            info = each.source.info
            indexes = tuple(replace(index, table=made[index.table]) for index in info.indexes)
            _make(deployment, source, each, replace(info, indexes=indexes))
    except UnknownTable as error:
        raise ConflictError(
            f"another restore of {source.manifest.name!r} began and removed the copies that this restore needs; "
            "tables restored so far are complete; restore the remaining tables (--table) after the other restore has "
            "ended"
        ) from error
    finally:
        source.forget()
    return [each.target for each in chosen]


def _chosen(known: Iterable[TableInBackup], tables: Mapping[str, str] | Iterable[str] | None) -> list[_Table]:
    by_name = {each.info.name: each for each in known if not each.info.name.startswith(INDEX_TABLES)}
    if tables is None:
        return [_Table(each, name) for name, each in by_name.items()]
    names = dict(tables) if isinstance(tables, Mapping) else {name: name for name in tables}
    for name in names:
        if name not in by_name:
            raise Misuse(f"the backup has no table {name!r}; its tables are {', '.join(sorted(by_name))}", table=name)
    targets = [_target(name, to) for name, to in names.items()]
    if twice := {target for target in targets if targets.count(target) > 1}:
        raise Misuse(f"two tables would be restored under the name {sorted(twice)[0]!r}")
    return [_Table(by_name[name], target) for name, target in zip(names, targets, strict=True)]


def _target(name: str, to: str) -> str:
    if name == KEYS_TABLE:
        if to != name:
            raise Misuse(f"{KEYS_TABLE} holds the idempotency keys and cannot be restored under another name", table=to)
        return name
    return check_table_name(to)


def _index_tables(known: Iterable[TableInBackup], chosen: Iterable[_Table]) -> list[_Table]:
    by_name = {each.info.name: each for each in known}
    return [_Table(by_name[index.table], index.table) for each in chosen for index in each.source.info.indexes]


def _check_above(deployment: Deployment, manifest: BackupManifest) -> None:
    """Check that timestamps are above the backup's (T3). Then no version in the snapshots is written again, which
    HBase's delete markers might hide, and restored data lies below every later snapshot."""
    now_ts = drawn_start(deployment)
    if now_ts <= manifest.newest_ts:
        raise Misuse(
            f"this database's newest timestamp, {now_ts}, is not above the backup's, {manifest.newest_ts}: stop the "
            f"database's TSOs, run `{_FRESH} {manifest.name}`, and start the TSOs again",
            newest=manifest.newest_ts,
        )


def _check_free(deployment: Deployment, source: Source, target: str) -> None:
    entry = deployment.catalog.entry(target)
    if entry is not None and entry.state is not TableState.CREATING:  # CREATING is not a table
        raise Misuse(
            f"table {target!r} already exists ({entry.state.value}), so nothing was restored; drop that table, "
            "restore under another name (--as OLD=NEW), or restore only chosen tables (--table)",
            table=target,
        )
    if source.exists(target):
        raise Misuse(
            f"HBase has a table {target!r} that is not in the catalog, so nothing was restored; if an interrupted "
            "restore left this table, drop it in HBase's shell; otherwise restore under another name (--as OLD=NEW)",
            table=target,
        )


def _make(deployment: Deployment, source: Source, table: _Table, info: TableInfo) -> None:
    wanted = replace(info, name=table.target)
    found, is_new = table_admin.make_filled(deployment, wanted, lambda: source.put(table.source, table.target))
    if not is_new:
        raise Misuse(f"another client created table {found.name!r} during this restore; restore the remaining tables")


def cut_copies(
    deployment: Deployment, commits: Commits, manifest: BackupManifest, copies: Sequence[tuple[str, int]]
) -> Cut:
    """Cut copies of tables to the backup's moment. Each copy comes with the commit up to which its values have expired.
    `commits` is the copy of the commit table."""
    known: dict[int, int] = {}
    run = _runner(deployment, commits, manifest, known)
    cut = Cut()

    def cut_all(*, is_last: bool) -> None:
        for copy, expired_to in copies:
            for region in deployment.store.regions(copy):
                run(cut_region(copy, region, manifest, cut, expired_to=expired_to, is_last=is_last))

    cut_all(is_last=False)
    if cut.doubtful:
        for copy, _ in copies:
            for region in deployment.store.regions(copy):
                run(explained_batch(copy, region, cut.doubtful, known))
        cut_all(is_last=True)
    return cut


def _runner(
    deployment: Deployment, commits: Commits, moment: BackupManifest, known: Mapping[int, int]
) -> Callable[[Routine[None]], None]:
    """Return a function that runs routines with the copy of the commit table. The copy has no writer, so a missing
    entry is final, and a seal needs no marker."""
    driver = Driver(deployment)

    def look_up(effect: effects.LookupThenWatermarks) -> tuple[list[int], int, int]:
        states = commits.lookup(effect.starts)
        resolved = [known.get(start, state) for start, state in zip(effect.starts, states, strict=True)]
        return resolved, moment.newest_ts, moment.horizon

    driver.handlers[effects.LookupThenWatermarks] = look_up
    driver.handlers[effects.SealStarts] = lambda effect: [SealOutcome(True) for _ in effect.starts]

    def run(routine: Routine[None]) -> None:
        driver.run(routine)

    return run
