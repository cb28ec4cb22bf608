"""What an operator does to HBase and pyomid never does: alter and merge tables, make a namespace, take regions
offline."""

from __future__ import annotations

from pyomid.storage.hbase.regions.admin import Snapshots, TableDescriptor, name_of, schema_of
from pyomid.storage.hbase.regions.locations import Region
from pyomid.storage.hbase.rpc.hbase_pb2 import (
    AssignRegionRequest,
    CreateNamespaceRequest,
    MergeTableRegionsRequest,
    ModifyTableRequest,
    NamespaceDescriptor,
    ProcedureStarted,
    RegionSpecifier,
    UnassignRegionRequest,
)


class OperatorsAdmin(Snapshots):
    """`Snapshots`, and what only tests ask for."""

    def modify_table(self, descriptor: TableDescriptor) -> None:
        """Sets attributes and families to those of the descriptor."""
        request = ModifyTableRequest(table_name=name_of(descriptor.name), table_schema=schema_of(descriptor))
        self._procedure("ModifyTable", request, f"altering table {descriptor.name}")

    def create_namespace(self, name: str) -> None:
        request = CreateNamespaceRequest(namespace_descriptor=NamespaceDescriptor(name=name.encode()))
        self._procedure("CreateNamespace", request, f"creating namespace {name}")

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

    def unassign(self, region: Region) -> None:
        """On return no server serves it, although its table is enabled, and HBase leaves it so."""
        request = UnassignRegionRequest(region=region.specifier)
        self._master("UnassignRegion", request, ProcedureStarted, f"unassigning {region.name!r}")

    def assign(self, region: Region) -> None:
        request = AssignRegionRequest(region=region.specifier)
        self._master("AssignRegion", request, ProcedureStarted, f"assigning {region.name!r}")
