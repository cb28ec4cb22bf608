"""Takes the snapshots of a backup, in an order from which one moment can be restored (decision 0078).

A lease holds a start s: W stays below s, so compaction and sanitizing keep what a reader at s needs.
1. the commit table         every commit below s has its entry in it, or all of its shadow cells were durable before
2. H is read                every commit below H has all of its shadow cells, durable before step 3
3. the data tables          with those shadow cells
4. newest start, W          no version in the snapshots is later; W is still below s
5. PYOMID_META, with the manifest in it: now the backup is complete
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime

from pyomid.crashpoints import crash_point
from pyomid.errors import ConflictError, Misuse, OmidError, SnapshotTooOld
from pyomid.protocol.hashing import table_id
from pyomid.storage.hbase.catalog import HBaseCatalog
from pyomid.storage.hbase.codec.layout import COMMIT_TABLE
from pyomid.storage.hbase.copies.manifest import (
    QUALIFIER,
    ROW,
    check_name,
    commits_snapshot,
    data_snapshot,
    encode,
    is_of,
    is_whole,
    left_of,
    manifest_snapshot,
    new_mark,
    under_way,
)
from pyomid.storage.hbase.leader_state import HBaseLeaderState
from pyomid.storage.hbase.meta_cells import MetaCells
from pyomid.storage.hbase.regions.snapshots import Snapshots
from pyomid.storage.hbase.rpc.client import Cluster
from pyomid.types import TABLES_UNCONFIRMED, Backup, BackupManifest, BackupMoment, TableInBackup, TableState


class HBaseBackup:
    """Takes backups of one database. Tests with several databases on one cluster name the tables."""

    def __init__(
        self, cluster: Cluster, leader_state: HBaseLeaderState, catalog: HBaseCatalog, *, commits: str = COMMIT_TABLE
    ) -> None:
        self._cluster = cluster
        self._leader_state = leader_state
        self._catalog = catalog
        self._commits = commits
        self._snapshots = Snapshots(cluster)
        self._cells = MetaCells(cluster, table=leader_state.table)

    def take(self, destination: object, moment: BackupMoment) -> Backup:
        """Take a backup; durable on return. First removes the rest of unfinished backups of that name, and makes one in
        progress fail. If this one fails, its snapshots are removed. `Misuse` if a complete backup has the name."""
        name, mark = check_name(destination), new_mark()
        self._check_tables(moment)
        self._check_free(name)
        self._cells.change(ROW + name.encode(), QUALIFIER, lambda _: under_way(mark))
        self._snapshots.delete(left_of(self._check_free(name), name))
        try:
            manifest = self._take(name, mark, moment)
        except OmidError:
            self._forget(name, mark)
            raise
        self._finish(manifest, mark)
        return described(manifest, self._cluster)

    def _check_free(self, name: str) -> list[str]:
        """Return the names of all snapshots; `Misuse` if there is a complete backup of that name."""
        found = self._snapshots.names()
        if is_whole(found, name):
            raise Misuse(
                f"a backup {name!r} exists: choose another name, or delete it in HBase's shell: "
                f"delete_all_snapshot '{name}\\.(manifest|[0-9a-f]{{8}}\\..*)'",
                backup=name,
            )
        return found

    def _forget(self, name: str, mark: str) -> None:
        with contextlib.suppress(OmidError):
            self._snapshots.delete([each for each in self._snapshots.names() if is_of(each, name, mark)])
            self._changed(name, under_way(mark), b"")

    def _take(self, name: str, mark: str, moment: BackupMoment) -> BackupManifest:
        commits = commits_snapshot(name, mark)
        self._snapshots.take(commits, self._commits)
        crash_point("hbase.backup.commits")
        _, horizon = self._leader_state.read_watermarks()
        tables = tuple(
            TableInBackup(info, data_snapshot(name, mark, number), moment.expired_to.get(info.name, 0))
            for number, info in enumerate(moment.tables)
        )
        for each in tables:
            self._snapshots.take(each.snapshot, each.info.name)
            crash_point("hbase.backup.table")
        newest_ts = moment.newest_ts()
        self._check_still(moment)
        return BackupManifest(
            name,
            moment.snapshot_ts,
            moment.epoch,
            horizon,
            newest_ts,
            datetime.now(UTC).isoformat(timespec="seconds"),
            self._leader_state.database_id().hex(),
            commits,
            tables,
        )

    def _finish(self, manifest: BackupManifest, mark: str) -> None:
        """Replace the row's mark by the manifest, take the last snapshot, then clear the row. If all three succeed, no
        other backup had the name meanwhile. If HBase does not report whether it took the snapshot, leave everything:
        the backup may be complete."""
        name, written = manifest.name, encode(manifest)
        if not self._changed(name, under_way(mark), written):
            self._forget(name, mark)
            raise _superseded(name)
        crash_point("hbase.backup.noted")
        try:
            self._snapshots.take(manifest_snapshot(name), self._leader_state.table)
        except OmidError as error:
            if self._cells.read(ROW + name.encode(), QUALIFIER) == written:
                raise
            self._forget(name, mark)
            raise _superseded(name) from error
        if not self._changed(name, written, b""):
            self._snapshots.delete([manifest_snapshot(name)])
            self._forget(name, mark)
            raise _superseded(name)

    def _changed(self, name: str, old: bytes, new: bytes) -> bool:
        """Compare-and-set of the row; False if another backup of that name has begun."""
        return self._cells.change(ROW + name.encode(), QUALIFIER, lambda found: new if found == old else None)

    def _check_tables(self, moment: BackupMoment) -> None:
        """Raise `Misuse` if commits named unregistered tables. Each such commit below the moment left a mark before."""
        known = {table_id(entry.info.name.encode()) for entry in self._catalog.entries()}
        unknown = sorted(set(self._catalog.unknown_tables()) - known)
        if TABLES_UNCONFIRMED in unknown:
            raise Misuse(
                "no backup was taken: a Java TSO led this store, and nobody has confirmed since that every table is "
                "registered; `pyomid tables URL discover` lists unregistered tables, `pyomid tables URL confirm` "
                "confirms"
            )
        if unknown:
            raise Misuse(
                f"no backup was taken, because it would lack tables: transactions were committed to tables with ids "
                f"{', '.join(map(str, unknown))} that the catalog does not know; `pyomid tables URL discover` finds "
                "their names, and prints the commands that register them",
                table_ids=unknown,
            )

    def _check_still(self, moment: BackupMoment) -> None:
        """R7, K5: check that no version which the moment needs was deleted, and that no table was replaced."""
        watermark, _ = self._leader_state.read_watermarks()
        if moment.snapshot_ts <= watermark:
            raise SnapshotTooOld(
                f"W {watermark} passed the backup's moment {moment.snapshot_ts} while it was taken, because its lease "
                "ended: take the backup again",
                start_ts=moment.snapshot_ts,
                watermark=watermark,
            )
        for info in moment.tables:
            entry = self._catalog.entry(info.name)
            if entry is None or entry.state is not TableState.PRESENT or entry.info.generation != info.generation:
                raise ConflictError(f"table {info.name!r} was dropped meanwhile: take the backup again")


def _superseded(name: str) -> ConflictError:
    return ConflictError(
        f"another backup {name!r} began while this one was taken, and continues; this one was removed. Concurrent "
        "backups need different names"
    )


def described(manifest: BackupManifest, cluster: Cluster, tables: Sequence[str] | None = None) -> Backup:
    return Backup(
        folder=f"{cluster.zookeeper.quorum}{cluster.zookeeper.znode}",
        database_id=manifest.database_id,
        snapshot_ts=manifest.snapshot_ts,
        taken=manifest.taken,
        size_bytes=0,
        tables=tuple(each.info.name for each in manifest.tables) if tables is None else tuple(tables),
        snapshots=(
            manifest_snapshot(manifest.name),
            manifest.commits,
            *(each.snapshot for each in manifest.tables),
        ),
    )
