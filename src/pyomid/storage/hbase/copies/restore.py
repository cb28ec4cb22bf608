"""Restores a backup's snapshots: working copies of its commit table and data tables, then the restored tables.

    monday.….commits ─► PYOMID_RESTORE.monday.MARK.commits    entries of the moment, read and never written
    monday.….0       ─► PYOMID_RESTORE.monday.MARK.0          is cut to the moment, then:
                           ─► its snapshot ─► the table, under its name     HBase copies no file for that

No catalog lists the copies. A restore first deletes the copies that a dead one left. It also deletes those of a restore
in progress, which then fails: its copies have its own mark, so it cannot use another restore's copy, which is not cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyomid.crashpoints import crash_point
from pyomid.errors import Misuse, UnknownTable
from pyomid.storage.hbase.commit_table import HBaseCommitTable
from pyomid.storage.hbase.copies.manifest import (
    QUALIFIER,
    ROW,
    check_name,
    decode,
    is_whole,
    manifest_snapshot,
    new_mark,
)
from pyomid.storage.hbase.meta_cells import MetaCells
from pyomid.storage.hbase.regions.snapshots import Snapshots
from pyomid.storage.hbase.rpc.client import Cluster
from pyomid.types import BackupManifest, TableInBackup

PREFIX: Final = "PYOMID_RESTORE."


class HBaseRestore:
    """One restore of the backup `name` from this cluster's snapshots."""

    def __init__(self, cluster: Cluster, name: object) -> None:
        self._cluster = cluster
        self._name = check_name(name)
        self._prefix = f"{PREFIX}{self._name}.{new_mark()}."
        self._snapshots = Snapshots(cluster)
        found = self._snapshots.names()
        if not is_whole(found, self._name):
            known = sorted(each.removesuffix(".manifest") for each in found if each.endswith(".manifest"))
            raise Misuse(
                f"HBase at {cluster.zookeeper.quorum} has no backup {self._name!r}"
                + (f", only {', '.join(known)}" if known else "")
                + f"; a complete backup has the snapshot {manifest_snapshot(self._name)}",
                backup=self._name,
            )
        self._forget(f"{PREFIX}{self._name}.")
        self.manifest = self._read()
        missing = sorted({self.manifest.commits, *(each.snapshot for each in self.manifest.tables)} - set(found))
        if missing:
            raise Misuse(f"backup {self._name!r} lacks its snapshots {', '.join(missing)}: export these, too")

    def copy(self, tables: Sequence[TableInBackup]) -> HBaseCommitTable:
        """Copy the data tables, then the commit table; return the latter's copy."""
        for each in tables:
            self._snapshots.clone(each.snapshot, self.copy_of(each))
        commits = f"{self._prefix}commits"
        self._snapshots.clone(self.manifest.commits, commits)
        crash_point("hbase.restore.cloned")
        return HBaseCommitTable(self._cluster, table=commits)

    def copy_of(self, table: TableInBackup) -> str:
        """Return the name of the table's copy."""
        return f"{self._prefix}{table.snapshot.rpartition('.')[2]}"

    def exists(self, table: str) -> bool:
        """Return whether HBase has the table, whatever catalogs say."""
        return self._snapshots.exists(table)

    def put(self, table: TableInBackup, target: str) -> None:
        """Create the table `target` from the copy. `Misuse` if `target` exists, `UnknownTable` without a copy."""
        if self._snapshots.exists(target):
            raise taken(target)
        copy, made = self.copy_of(table), f"{self.copy_of(table)}.cut"
        if not self._snapshots.exists(copy):
            raise UnknownTable(f"the copy {copy} is gone", table=copy)
        self._snapshots.take(made, copy)
        crash_point("hbase.restore.cut")
        self._snapshots.clone(made, target)
        crash_point("hbase.restore.put")
        self._snapshots.delete([made])

    def forget(self) -> None:
        """Delete the copies, and snapshots of them."""
        self._forget(self._prefix)

    def _forget(self, prefix: str) -> None:
        self._snapshots.delete([each for each in self._snapshots.names() if each.startswith(prefix)])
        for table in self._snapshots.tables():
            if table.startswith(prefix):
                self._snapshots.drop_table(table)

    def _read(self) -> BackupManifest:
        copy = f"{self._prefix}manifest"
        self._snapshots.clone(manifest_snapshot(self._name), copy)
        value = MetaCells(self._cluster, table=copy).read(ROW + self._name.encode(), QUALIFIER)
        self._snapshots.drop_table(copy)
        return decode(value)


def taken(target: str) -> Misuse:
    return Misuse(
        f"HBase has a table {target!r}, which restore does not overwrite: restore under another name (--as OLD=NEW), "
        "or drop it first, in HBase's shell if the catalog does not know it",
        table=target,
    )
