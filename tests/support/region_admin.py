"""What an operator does to HBase's tables and pyomid never does: alter, merge, snapshot, restore."""

from __future__ import annotations

from pyomid.storage.hbase.regions.admin import Admin, TableDescriptor, name_of, pause_steps, schema_of
from pyomid.storage.hbase.rpc.hbase_pb2 import (
    IsSnapshotDoneRequest,
    IsSnapshotDoneResponse,
    MergeTableRegionsRequest,
    ModifyTableRequest,
    ProcedureStarted,
    RegionSpecifier,
    RestoreSnapshotRequest,
    RestoreSnapshotResponse,
    SnapshotDescription,
    SnapshotRequest,
)


class OperatorsAdmin(Admin):
    """`Admin`, and what only tests ask for."""

    def modify_table(self, descriptor: TableDescriptor) -> None:
        """Sets attributes and families to those of the descriptor."""
        request = ModifyTableRequest(table_name=name_of(descriptor.name), table_schema=schema_of(descriptor))
        self._procedure("ModifyTable", request, f"altering table {descriptor.name}")

    def flush(self, table: str) -> None:
        for region in self._cluster.regions(table):
            self.flush_region(region)

    def merge(self, table: str, row: bytes) -> None:
        """Merges: on return the region that begins at `row` is one with the region before it."""
        regions = self._cluster.regions(table)
        index = next(i for i, region in enumerate(regions) if region.key_range.start == row and i)
        request = MergeTableRegionsRequest(forcible=True)
        for region in regions[index - 1 : index + 1]:
            request.region.add(type=RegionSpecifier.ENCODED_REGION_NAME, value=region.encoded_name)
        self._procedure("MergeTableRegions", request, f"merging regions of {table} at {row!r}")

    def snapshot(self, name: str, table: str) -> None:
        description = SnapshotDescription(name=name, table=table, type=SnapshotDescription.FLUSH)
        what = f"snapshot {name} of {table}"
        self._master("Snapshot", SnapshotRequest(snapshot=description), ProcedureStarted, what)
        budget = self._cluster.budget(what)
        while True:
            request = IsSnapshotDoneRequest(snapshot=description)
            if self._master("IsSnapshotDone", request, IsSnapshotDoneResponse, what).done:
                return
            self._cluster.run(pause_steps(budget))

    def clone_snapshot(self, name: str, table: str) -> None:
        """Restores the snapshot as table `table`; a disabled table of that name is replaced."""
        description = SnapshotDescription(name=name, table=table)
        what = f"restoring snapshot {name} as {table}"
        request = RestoreSnapshotRequest(snapshot=description)
        reply = self._master("RestoreSnapshot", request, RestoreSnapshotResponse, what)
        self._cluster.run(self._wait_steps(reply.proc_id, self._cluster.budget(what)))
        self._cluster.operations.cache.forget_table(table)
