"""HBase's snapshots of tables. Each region is captured at another moment: a snapshot is not one moment of the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyomid.errors import Misuse, Unavailable, UnknownTable
from pyomid.storage.hbase.regions.admin import Admin, pause_steps
from pyomid.storage.hbase.rpc.hbase_pb2 import (
    DeleteSnapshotRequest,
    DeleteSnapshotResponse,
    GetCompletedSnapshotsRequest,
    GetCompletedSnapshotsResponse,
    IsSnapshotDoneRequest,
    IsSnapshotDoneResponse,
    ProcedureStarted,
    RestoreSnapshotRequest,
    RestoreSnapshotResponse,
    SnapshotDescription,
    SnapshotRequest,
)

_DEADLINE_S: Final = 1800.0
"""Deadline for one table. The servers flush their memory; files are linked, not copied."""


class Snapshots(Admin):
    """`Admin`, with snapshots."""

    def exists(self, table: str) -> bool:
        try:
            self.table(table)
        except UnknownTable:
            return False
        return True

    def take(self, name: str, table: str) -> None:
        """Take a snapshot. On return it is complete, and holds everything that was durable before the call."""
        description = SnapshotDescription(name=name, table=table, type=SnapshotDescription.FLUSH)
        what = f"snapshot {name} of {table}"
        self._master("Snapshot", SnapshotRequest(snapshot=description), ProcedureStarted, what)
        budget = self._cluster.budget(what, _DEADLINE_S)
        while True:
            request = IsSnapshotDoneRequest(snapshot=description)
            if self._master("IsSnapshotDone", request, IsSnapshotDoneResponse, what).done:
                return
            self._cluster.run(pause_steps(budget))

    def clone(self, name: str, table: str) -> None:
        """Create the table from the snapshot. Replaces a disabled table of that name; an enabled one is an error."""
        description = SnapshotDescription(name=name, table=table)
        what = f"restoring snapshot {name} as {table}"
        request = RestoreSnapshotRequest(snapshot=description)
        reply = self._master("RestoreSnapshot", request, RestoreSnapshotResponse, what)
        self._cluster.run(self._wait_steps(reply.proc_id, self._cluster.budget(what, _DEADLINE_S)))
        self._cluster.operations.cache.forget_table(table)

    def names(self) -> list[str]:
        """Return the names of all complete snapshots of the cluster."""
        request = GetCompletedSnapshotsRequest()
        reply = self._master("GetCompletedSnapshots", request, GetCompletedSnapshotsResponse, "listing snapshots")
        return sorted(snapshot.name for snapshot in reply.snapshots)

    def delete(self, names: Sequence[str]) -> None:
        """Delete snapshots. Idempotent: a missing one counts as deleted, by an attempt whose reply was lost or by
        another client."""
        for name in names:
            request = DeleteSnapshotRequest(snapshot=SnapshotDescription(name=name))
            try:
                self._master("DeleteSnapshot", request, DeleteSnapshotResponse, f"deleting snapshot {name}")
            except (Misuse, Unavailable) as error:
                if "SnapshotDoesNotExistException" not in error.message:
                    raise
