"""Backup and restore of a database in HBase: snapshots of its tables, and a manifest (decision 0078).

The order of the snapshots (B6) lets a restore cut all tables to one moment. During the backup a lease holds a start s:
W stays below s, so compaction and sanitizing keep what a reader at s needs.

1. the commit table         every commit below s has its entry in it, or all of its shadow cells were durable before
2. H is read                every commit below H has all of its shadow cells, durable before step 3
3. the data tables          with those shadow cells
4. newest start, W          no version in the snapshots is later; W is still below s
5. PYOMID_META              with the manifest in it: now the backup is complete

The manifest is in a row of PYOMID_META while the snapshot of PYOMID_META is taken. So it is exported with the
snapshots:

    monday.5f02c1d9.commits     the commit table
    monday.5f02c1d9.0, ….1      data tables
    monday.manifest             PYOMID_META

While a backup is in progress, the row holds its random *run id*. The run id is also part of the snapshots' names
(5f02c1d9). If two backups of the same name run at once, the later one replaces the run id, and the earlier one fails
when it finds the other run id. So no backup mixes its snapshots with another's, and none deletes another's snapshots.

A restore clones the snapshots: working copies of the commit table and the data tables, then the restored tables.

    monday.….commits ─► PYOMID_RESTORE.monday.RUNID.commits    entries of the moment, read and never written
    monday.….0       ─► PYOMID_RESTORE.monday.RUNID.0          is cut to the moment, then:
                           ─► its snapshot ─► the table, under its name     HBase copies no file for that

No catalog lists the copies. A restore first deletes all copies that other restores of the same backup made, even of a
restore that is still in progress. That restore then fails: it looks only for copies with its own run id, so it never
uses an uncut copy of another restore.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from pyomid.crashpoints import crash_point
from pyomid.errors import ConflictError, Corruption, Misuse, OmidError, SnapshotTooOld, UnknownTable
from pyomid.omid.hbase.catalog import HBaseCatalog, decode_entry, encode_entry
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.commit_table import HBaseCommitTable
from pyomid.omid.hbase.leader_state import HBaseLeaderState
from pyomid.omid.hbase.meta_cells import MetaCells
from pyomid.omid.hbase.regions.admin import Admin
from pyomid.protocol.hashing import table_id
from pyomid.protocol.timestamps import dated
from pyomid.types import TABLES_UNCONFIRMED, Backup, BackupManifest, BackupMoment, TableEntry, TableInBackup, TableState

MANIFEST_ROW: Final = b"backup/"
"""The backup's name follows."""
MANIFEST_QUALIFIER: Final = b"manifest"

_FORMAT: Final = 2
_IN_PROGRESS: Final = b"under way "
_RUN_ID_BYTES: Final = 4
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")
_COPY_PREFIX: Final = "PYOMID_RESTORE."


def encode_manifest(manifest: BackupManifest) -> bytes:
    fields = {name: getattr(manifest, name) for name in BackupManifest.__slots__ if name != "tables"}
    tables = [
        {
            "entry": encode_entry(TableEntry(each.info, TableState.PRESENT, "")).decode(),
            "snapshot": each.snapshot,
        }
        for each in manifest.tables
    ]
    return json.dumps({"format": _FORMAT, **fields, "tables": tables}).encode()


def decode_manifest(value: bytes) -> BackupManifest:
    try:
        fields = json.loads(value)
        if fields.pop("format") != _FORMAT:
            raise ValueError("another format")
        tables = tuple(
            TableInBackup(decode_entry(each["entry"].encode()).info, each["snapshot"]) for each in fields.pop("tables")
        )
        return BackupManifest(**fields, tables=tables)
    except (ValueError, KeyError, TypeError) as error:
        raise Corruption(f"the manifest of a backup is malformed: {error!r}: {value[:80]!r}") from error


def check_name(name: object) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Misuse(
            f"invalid backup name {name!r}: over HBase, a name has up to 100 letters, digits, '_' and '-', and begins "
            "with a letter or digit"
        )
    return name


def new_run_id() -> str:
    """Return a random id for one run of a backup or restore."""
    return secrets.token_hex(_RUN_ID_BYTES)


def in_progress_value(run_id: str) -> bytes:
    """Return the value that the row has while the backup is in progress, before it holds the manifest."""
    return _IN_PROGRESS + run_id.encode()


def manifest_snapshot(name: str) -> str:
    return f"{name}.manifest"


def commits_snapshot(name: str, run_id: str) -> str:
    return f"{name}.{run_id}.commits"


def data_snapshot(name: str, run_id: str, number: int) -> str:
    return f"{name}.{run_id}.{number}"


def belongs_to(snapshot: str, name: str, run_id: str) -> bool:
    """Return whether the snapshot belongs to the backup `name` with this run id."""
    return snapshot.startswith(f"{name}.{run_id}.")


def unfinished_snapshots(snapshots: Sequence[str], name: str) -> list[str]:
    """Return the snapshots of unfinished backups of that name, in the order in which to delete them.

    A backup takes the snapshot of the commit table first, and that snapshot is deleted last. So a snapshot with such a
    name, but without a snapshot of the commit table, may be an operator's own, and is not returned.
    """
    begun = re.compile(rf"{re.escape(name)}\.([0-9a-f]{{{2 * _RUN_ID_BYTES}}})\.commits")
    run_ids = [found[1] for each in snapshots if (found := begun.fullmatch(each))]
    return sorted(each for each in snapshots if any(belongs_to(each, name, run_id) for run_id in run_ids))


def is_complete(snapshots: list[str], name: str) -> bool:
    return manifest_snapshot(name) in snapshots


class HBaseBackup:
    """Takes backups of one database. Tests with several databases on one cluster name the tables."""

    def __init__(
        self, cluster: Cluster, leader_state: HBaseLeaderState, catalog: HBaseCatalog, *, commits: str = ""
    ) -> None:
        self._cluster = cluster
        self._leader_state = leader_state
        self._catalog = catalog
        self._commits = commits or cluster.names.commit_table
        self._admin = Admin(cluster)
        self._cells = MetaCells(cluster, table=leader_state.table)

    def take(self, destination: object, moment: BackupMoment) -> Backup:
        """Take a backup; on return it is durable. Raises `Misuse` if a complete backup has the name.

        Unfinished backups of that name are deleted first; a backup of that name that is still in progress fails. If
        this backup fails, its snapshots are deleted.
        """
        name, run_id = check_name(destination), new_run_id()
        self._check_tables(moment)
        self._check_free(name)
        self._cells.change(MANIFEST_ROW + name.encode(), MANIFEST_QUALIFIER, lambda _: in_progress_value(run_id))
        self._admin.delete_snapshots(unfinished_snapshots(self._check_free(name), name))
        try:
            manifest = self._take(name, run_id, moment)
        except OmidError:
            self._delete(name, run_id)
            raise
        self._finish(manifest, run_id)
        return backup_of(manifest, self._cluster)

    def _check_free(self, name: str) -> list[str]:
        """Return the names of all snapshots. Raises `Misuse` if there is a complete backup of that name."""
        found = self._admin.snapshots()
        if is_complete(found, name):
            raise Misuse(
                f"a backup {name!r} already exists; choose another name, or delete that backup in HBase's shell: "
                f"delete_all_snapshot '{name}\\.(manifest|[0-9a-f]{{8}}\\..*)'",
                backup=name,
            )
        return found

    def _delete(self, name: str, run_id: str) -> None:
        """Delete the snapshots and the run id of a failed backup, as far as HBase replies."""
        with contextlib.suppress(OmidError):
            self._admin.delete_snapshots([each for each in self._admin.snapshots() if belongs_to(each, name, run_id)])
            self._swap(name, in_progress_value(run_id), b"")

    def _take(self, name: str, run_id: str, moment: BackupMoment) -> BackupManifest:
        commits = commits_snapshot(name, run_id)
        self._admin.take_snapshot(commits, self._commits)
        crash_point("hbase.backup.commits")
        _, horizon = self._leader_state.read_watermarks()
        tables = tuple(
            TableInBackup(info, data_snapshot(name, run_id, number)) for number, info in enumerate(moment.tables)
        )
        for each in tables:
            self._admin.take_snapshot(each.snapshot, each.info.name)
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

    def _finish(self, manifest: BackupManifest, run_id: str) -> None:
        """Replace the row's run id by the manifest, take the last snapshot, then clear the row. If all three steps
        succeed, no other backup took the name meanwhile. If HBase does not report whether it took the snapshot, nothing
        is deleted, because the backup may be complete."""
        name, written = manifest.name, encode_manifest(manifest)
        if not self._swap(name, in_progress_value(run_id), written):
            self._delete(name, run_id)
            raise _superseded(name)
        crash_point("hbase.backup.noted")
        try:
            self._admin.take_snapshot(manifest_snapshot(name), self._leader_state.table)
        except OmidError as error:
            if self._cells.read(MANIFEST_ROW + name.encode(), MANIFEST_QUALIFIER) == written:
                raise
            self._delete(name, run_id)
            raise _superseded(name) from error
        if not self._swap(name, written, b""):
            self._admin.delete_snapshots([manifest_snapshot(name)])
            self._delete(name, run_id)
            raise _superseded(name)

    def _swap(self, name: str, old: bytes, new: bytes) -> bool:
        """Compare and set the row. Returns False if another backup of that name has begun."""
        return self._cells.change(
            MANIFEST_ROW + name.encode(), MANIFEST_QUALIFIER, lambda found: new if found == old else None
        )

    def _check_tables(self, moment: BackupMoment) -> None:
        """Raise `Misuse` if commits named unregistered tables. Every such commit below the moment has left a mark in
        the catalog."""
        known = {table_id(entry.info.name.encode()) for entry in self._catalog.entries()}
        unknown = sorted(set(self._catalog.unknown_tables()) - known)
        if TABLES_UNCONFIRMED in unknown:
            raise Misuse(
                "no backup was taken, because a Java TSO led this store and an operator must confirm that every "
                "table is registered: `pyomid tables URL discover` lists unregistered tables, and `pyomid tables URL "
                "confirm` records the confirmation"
            )
        if unknown:
            raise Misuse(
                "no backup was taken, because it would lack tables: transactions committed to tables with ids "
                f"{', '.join(map(str, unknown))}, which the catalog does not know; `pyomid tables URL discover` finds "
                "the tables' names and prints the commands that register them",
                table_ids=unknown,
            )

    def _check_still(self, moment: BackupMoment) -> None:
        """R7, K5: raise if a version that the moment needs may have been deleted, or if a table was replaced."""
        watermark, _ = self._leader_state.read_watermarks()
        if moment.snapshot_ts <= watermark:
            raise SnapshotTooOld(
                f"the low watermark {dated(watermark)} passed the backup's snapshot {dated(moment.snapshot_ts)}, "
                "because the backup's lease ended too early; take the backup again",
                start_ts=moment.snapshot_ts,
                watermark=watermark,
            )
        for info in moment.tables:
            entry = self._catalog.entry(info.name)
            if entry is None or entry.state is not TableState.PRESENT or entry.info.generation != info.generation:
                raise ConflictError(f"table {info.name!r} was dropped during the backup; take the backup again")


def _superseded(name: str) -> ConflictError:
    return ConflictError(
        f"another backup {name!r} began during this one and continues; this backup was deleted. Concurrent backups "
        "need different names"
    )


def backup_of(manifest: BackupManifest, cluster: Cluster, tables: Sequence[str] | None = None) -> Backup:
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


class HBaseRestore:
    """One restore of the backup `name` from this cluster's snapshots."""

    def __init__(self, cluster: Cluster, name: object) -> None:
        self._cluster = cluster
        self._name = check_name(name)
        self._prefix = f"{_COPY_PREFIX}{self._name}.{new_run_id()}."
        self._admin = Admin(cluster)
        found = self._admin.snapshots()
        if not is_complete(found, self._name):
            known = sorted(each.removesuffix(".manifest") for each in found if each.endswith(".manifest"))
            raise Misuse(
                f"HBase at {cluster.zookeeper.quorum} has no backup {self._name!r}"
                + (f", only {', '.join(known)}" if known else "")
                + f"; a complete backup has the snapshot {manifest_snapshot(self._name)}",
                backup=self._name,
            )
        self._forget(f"{_COPY_PREFIX}{self._name}.")
        self.manifest = self._read_manifest()
        missing = sorted({self.manifest.commits, *(each.snapshot for each in self.manifest.tables)} - set(found))
        if missing:
            raise Misuse(
                f"backup {self._name!r} lacks its snapshots {', '.join(missing)}: export these snapshots as well"
            )

    def copy(self, tables: Sequence[TableInBackup]) -> HBaseCommitTable:
        """Copy the data tables, then the commit table. Returns the copy of the commit table."""
        for each in tables:
            self._admin.clone_snapshot(each.snapshot, self.copy_of(each))
        commits = f"{self._prefix}commits"
        self._admin.clone_snapshot(self.manifest.commits, commits)
        crash_point("hbase.restore.cloned")
        return HBaseCommitTable(self._cluster, table=commits)

    def copy_of(self, table: TableInBackup) -> str:
        """Return the name of the table's copy."""
        return f"{self._prefix}{table.snapshot.rpartition('.')[2]}"

    def exists(self, table: str) -> bool:
        """Return whether HBase has the table, regardless of what catalogs list."""
        return self._admin.exists(table)

    def put(self, table: TableInBackup, target: str) -> None:
        """Create the table `target` from the copy. Raises `Misuse` if `target` exists, `UnknownTable` if there is no
        copy."""
        if self._admin.exists(target):
            raise table_exists(target)
        copy, made = self.copy_of(table), f"{self.copy_of(table)}.cut"
        if not self._admin.exists(copy):
            raise UnknownTable(f"the copied table {copy} no longer exists", table=copy)
        self._admin.take_snapshot(made, copy)
        crash_point("hbase.restore.cut")
        self._admin.clone_snapshot(made, target)
        crash_point("hbase.restore.put")
        self._admin.delete_snapshots([made])

    def forget(self) -> None:
        """Delete the copies and their snapshots."""
        self._forget(self._prefix)

    def _forget(self, prefix: str) -> None:
        self._admin.delete_snapshots([each for each in self._admin.snapshots() if each.startswith(prefix)])
        for table in self._admin.tables():
            if table.startswith(prefix):
                self._admin.drop_table(table)

    def _read_manifest(self) -> BackupManifest:
        copy = f"{self._prefix}manifest"
        self._admin.clone_snapshot(manifest_snapshot(self._name), copy)
        value = MetaCells(self._cluster, table=copy).read(MANIFEST_ROW + self._name.encode(), MANIFEST_QUALIFIER)
        self._admin.drop_table(copy)
        return decode_manifest(value)


def table_exists(target: str) -> Misuse:
    return Misuse(
        f"HBase has a table {target!r}, which restore does not overwrite: restore under another name (--as OLD=NEW), "
        "or drop that table first (in HBase's shell if the catalog does not know it)",
        table=target,
    )
