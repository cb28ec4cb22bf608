"""What an operator does to HBase and pyomid never does: alter tables, make a namespace, split, merge, move and compact
regions, take them offline."""

from __future__ import annotations

from pyomid.omid.hbase.regions.admin import Admin, TableDescriptor, name_of, schema_of
from pyomid.omid.hbase.regions.locations import Region
from pyomid.omid.hbase.rpc.frames import Address
from pyomid.omid.hbase.rpc.hbase_pb2 import (
    AssignRegionRequest,
    CompactRegionRequest,
    CompactRegionResponse,
    CreateNamespaceRequest,
    MergeTableRegionsRequest,
    ModifyTableRequest,
    MoveRegionRequest,
    NamespaceDescriptor,
    ProcedureStarted,
    RegionSpecifier,
    SplitTableRegionRequest,
    UnassignRegionRequest,
)


def encoded_name(region: Region) -> bytes:
    """The hash between the last two dots of the region's name."""
    return region.name.rstrip(b".").rpartition(b".")[2]


class OperatorsAdmin(Admin):
    """`Admin`, with operations that only tests need."""

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
            request.region.add(type=RegionSpecifier.ENCODED_REGION_NAME, value=encoded_name(region))
        self._procedure("MergeTableRegions", request, f"merging regions of {table} at {row!r}")

    def unassign(self, region: Region) -> None:
        """On return no server serves it, although its table is enabled, and HBase leaves it so."""
        request = UnassignRegionRequest(region=region.specifier)
        self._master("UnassignRegion", request, ProcedureStarted, f"unassigning {region.name!r}")

    def assign(self, region: Region) -> None:
        request = AssignRegionRequest(region=region.specifier)
        self._master("AssignRegion", request, ProcedureStarted, f"assigning {region.name!r}")

    def compact(self, table: str) -> None:
        """Requests a major compaction; the region servers perform it later."""
        for region in self._cluster.regions(table):
            request = CompactRegionRequest(region=region.specifier, major=True)
            self._region("CompactRegion", region, request, CompactRegionResponse)

    def split(self, table: str, row: bytes) -> None:
        """Split a region: on return a region begins at `row`."""
        region = next(each for each in self._cluster.regions(table) if row in each.key_range)
        if region.key_range.start == row:
            return
        request = SplitTableRegionRequest(split_row=row)
        info = request.region_info
        info.region_id = region.region_id
        info.table_name.CopyFrom(name_of(table))
        info.start_key, info.end_key = region.key_range.start, region.key_range.stop or b""
        info.split = info.offline = False
        self._procedure("SplitRegion", request, f"splitting {table} at {row!r}")

    def move(self, region: Region, server: Address, start_code: int) -> None:
        """Move a region. `start_code` distinguishes two lives of a server at one address (`servers` lists them)."""
        request = MoveRegionRequest()
        request.region.type, request.region.value = RegionSpecifier.ENCODED_REGION_NAME, encoded_name(region)
        request.dest_server_name.host_name, request.dest_server_name.port = server
        request.dest_server_name.start_code = start_code
        self._master("MoveRegion", request, ProcedureStarted, f"moving a region of {region.table} to {server}")

    def servers(self) -> list[tuple[Address, int]]:
        """Return the live region servers with their start codes, from ZooKeeper."""
        zookeeper = self._cluster.zookeeper
        names = zookeeper.ask("get_children", f"{zookeeper.znode}/rs")
        parsed = (name.split(",") for name in names)
        return sorted((Address(host, int(port)), int(code)) for host, port, code in parsed)
