"""Back-ups over HBase: the moment that one is of, and its tables made tables of a database again (decision 0078).

    snapshots ─► copies under names that no client knows ─► each region is cut to the moment ─► a table, then its entry

Until a table's entry is there, the database has no such table. So a restore that died leaves each table whole or not
at all; the next one begins anew with those that are left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from pyomid.client.admin import table_admin
from pyomid.client.drive import Driver
from pyomid.client.idempotency import KEYS_TABLE
from pyomid.client.transaction_steps import INDEX_TABLES
from pyomid.client.validation import check_table_name
from pyomid.errors import ConflictError, Misuse, UnknownTable
from pyomid.ports import CommitTable, Deployment
from pyomid.protocol import effects
from pyomid.protocol.effects import Steps
from pyomid.protocol.expiry import EXPIRY_TABLE, seen_steps
from pyomid.protocol.reading import CommitCache, Snapshot
from pyomid.protocol.restore_cut import Cut, cut_region_steps, explained_steps
from pyomid.types import BackupManifest, BackupMoment, IndexState, SealOutcome, TableInBackup, TableInfo, TableState

if TYPE_CHECKING:
    from pyomid.client.database import Database

log = logging.getLogger(__name__)

_FRESH: Final = "pyomid init URL --above-backup"


def moment_of(database: Database, start_ts: int, epoch: int) -> BackupMoment:
    """The moment of a start that is held by a lease. Its tables are those of now: what is younger holds nothing that
    committed before it."""
    deployment = database.deployment
    infos = [info for info in deployment.catalog.tables() if info.name != EXPIRY_TABLE]
    tables = {info.name: _as_of(info, start_ts) for info in infos}
    indexes = {index.table for info in tables.values() for index in info.indexes}
    kept = [info for info in tables.values() if not info.name.startswith(INDEX_TABLES) or info.name in indexes]
    snapshot, cache = Snapshot(start_ts, epoch), CommitCache()
    floors = {info.name: database.driver.run(seen_steps(info, snapshot, cache)).expired_to for info in kept}
    return BackupMoment(
        start_ts,
        epoch,
        tuple(kept),
        {name: floor for name, floor in floors.items() if floor},
        lambda: table_admin.drawn_start(deployment),
    )


def _as_of(info: TableInfo, start_ts: int) -> TableInfo:
    """Without what is under way, and without the indexes that were not whole at the moment."""
    whole = tuple(each for each in info.indexes if each.state is IndexState.READY and each.ready_ts <= start_ts)
    return replace(info, next_level=None, is_changing=False, indexes=whole)


class Source(Protocol):
    """A back-up, and the copies that a restore of it works on (`storage.hbase.copies.restore`)."""

    @property
    def manifest(self) -> BackupManifest: ...

    def copy(self, tables: Sequence[TableInBackup]) -> CommitTable: ...

    def copy_of(self, table: TableInBackup) -> str: ...

    def exists(self, table: str) -> bool: ...

    def put(self, table: TableInBackup, target: str) -> None: ...

    def forget(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Table:
    """One that is restored, and under which name."""

    source: TableInBackup
    target: str


def restore(deployment: Deployment, source: Source, tables: Mapping[str, str] | Iterable[str] | None) -> list[str]:
    """Makes tables of the back-up's: all of them, some, or some under other names (name → new name). Their names, each
    in the catalog on return.

    `Misuse`, and no change, where one of the names is taken, or this database's timestamps are below the back-up's.
    `ConflictError` where another restore of the back-up began meanwhile: the tables that were made are whole.
    """
    chosen = _chosen(source.manifest.tables, tables)
    _check_above(deployment, source.manifest)
    for each in chosen:
        _check_free(deployment, source, each.target)
    try:
        whole = [*chosen, *_index_tables(source.manifest.tables, chosen)]
        commits = source.copy([each.source for each in whole])
        with closing(commits):
            copies = [(source.copy_of(each.source), each.source.expired_to) for each in whole]
            cut = cut_copies(deployment, commits, source.manifest, copies)
        log.info("cut to %d", source.manifest.snapshot_ts, extra={"rows": cut.rows, "dropped": cut.cells_dropped})
        made: dict[str, str] = {}
        for each in whole[len(chosen) :]:
            made[each.source.info.name] = name = f"{INDEX_TABLES}{table_admin.drawn_start(deployment)}"
            _make(deployment, source, replace(each, target=name), each.source.info)
        for each in chosen:
            info = each.source.info
            indexes = tuple(replace(index, table=made[index.table]) for index in info.indexes)
            _make(deployment, source, each, replace(info, indexes=indexes))
    except UnknownTable as error:
        raise ConflictError(
            f"another restore of {source.manifest.name!r} began, and removed the copies that this one works on: what "
            "this one has made is whole; restore the tables that are left (--table) when the other one has ended"
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
            raise Misuse(f"the back-up has no table {name!r}: it has {', '.join(sorted(by_name))}", table=name)
    targets = [_target(name, to) for name, to in names.items()]
    if twice := {target for target in targets if targets.count(target) > 1}:
        raise Misuse(f"two tables would be restored as {sorted(twice)[0]!r}")
    return [_Table(by_name[name], target) for name, target in zip(names, targets, strict=True)]


def _target(name: str, to: str) -> str:
    if name == KEYS_TABLE:
        if to != name:
            raise Misuse(f"{KEYS_TABLE} holds the idempotency keys under its own name only", table=to)
        return name
    return check_table_name(to)


def _index_tables(known: Iterable[TableInBackup], chosen: Iterable[_Table]) -> list[_Table]:
    by_name = {each.info.name: each for each in known}
    return [_Table(by_name[index.table], index.table) for each in chosen for index in each.source.info.indexes]


def _check_above(deployment: Deployment, manifest: BackupManifest) -> None:
    """T3: no version that the snapshots held, and that HBase's delete markers may still hide, is written again; and
    what is restored lies below every snapshot from now on."""
    now_ts = table_admin.drawn_start(deployment)
    if now_ts <= manifest.newest_ts:
        raise Misuse(
            f"this database's timestamps are at {now_ts}, and those of the back-up reach {manifest.newest_ts}: stop "
            f"its TSOs, run `{_FRESH} {manifest.name}`, start them again",
            newest=manifest.newest_ts,
        )


def _check_free(deployment: Deployment, source: Source, target: str) -> None:
    entry = deployment.catalog.entry(target)
    if entry is not None and entry.state is not TableState.CREATING:  # which is no table
        raise Misuse(
            f"there is a table {target!r} ({entry.state.value}): nothing was restored; drop it, restore under another "
            "name (--as OLD=NEW), or only the tables that you name (--table)",
            table=target,
        )
    if source.exists(target):
        raise Misuse(
            f"HBase has a table {target!r} which the catalog does not know: nothing was restored; where a restore that "
            "broke off has left it, drop it in HBase's shell, otherwise restore under another name (--as OLD=NEW)",
            table=target,
        )


def _make(deployment: Deployment, source: Source, table: _Table, info: TableInfo) -> None:
    wanted = replace(info, name=table.target)
    found, is_new = table_admin.make_filled(deployment, wanted, lambda: source.put(table.source, table.target))
    if not is_new:
        raise Misuse(f"another client made the table {found.name!r} meanwhile: restore the tables that are left")


def cut_copies(
    deployment: Deployment, commits: CommitTable, manifest: BackupManifest, copies: Sequence[tuple[str, int]]
) -> Cut:
    """Cuts copies, each with what has expired in it, to the back-up's moment. `commits`: the copy of the commit
    table."""
    known: dict[int, int] = {}
    run = _runner(deployment, commits, manifest, known)
    cut = Cut()

    def cut_all(*, is_last: bool) -> None:
        for copy, expired_to in copies:
            for region in deployment.store.regions(copy):
                run(cut_region_steps(copy, region, manifest, cut, expired_to=expired_to, is_last=is_last))

    cut_all(is_last=False)
    if cut.doubtful:
        for copy, _ in copies:
            for region in deployment.store.regions(copy):
                run(explained_steps(copy, region, cut.doubtful, known))
        cut_all(is_last=True)
    return cut


def _runner(
    deployment: Deployment, commits: CommitTable, moment: BackupManifest, known: Mapping[int, int]
) -> Callable[[Steps[None]], None]:
    """Runs steps by the copy of the commit table, which has no writer: a miss is final, a seal needs no marker."""
    driver = Driver(deployment)

    def look_up(effect: effects.LookupThenWatermarks) -> tuple[list[int], int, int]:
        states = commits.lookup(effect.starts)
        told = [known.get(start, state) for start, state in zip(effect.starts, states, strict=True)]
        return told, moment.newest_ts, moment.horizon

    driver.handlers[effects.LookupThenWatermarks] = look_up
    driver.handlers[effects.SealStarts] = lambda effect: [SealOutcome(True) for _ in effect.starts]

    def run(steps: Steps[None]) -> None:
        driver.run(steps)

    return run
