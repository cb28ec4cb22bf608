"""Locations of regions: a cache of `hbase:meta`, which says which region holds a row and which server serves it.

An entry is only a hint, because regions split, merge and move. A server refuses a call for a region that it does not
serve, and the caller then drops the entry. No method blocks or locks: the regions of a table are one immutable value,
which is replaced as a whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from pyomid.errors import Corruption
from pyomid.omid.hbase.rpc.frames import Address, delimited
from pyomid.omid.hbase.rpc.hbase_pb2 import Master as MasterMessage
from pyomid.omid.hbase.rpc.hbase_pb2 import MetaRegionServer, RegionInfo, RegionSpecifier
from pyomid.types import KeyRange

META_TABLE: Final = "hbase:meta"
META_REGION_NAME: Final = b"hbase:meta,,1"
_PROTOBUF_MAGIC: Final = b"PBUF"
_RECOVERABLE_MAGIC: Final = 0xFF


@dataclass(frozen=True, slots=True)
class Region:
    """One region as described in meta. `server` is None while no server serves the region."""

    name: bytes
    table: str
    key_range: KeyRange
    region_id: int
    server: Address | None

    @property
    def specifier(self) -> RegionSpecifier:
        return RegionSpecifier(type=RegionSpecifier.REGION_NAME, value=self.name)

    @property
    def specifier_field(self) -> bytes:
        """The encoded field that names the region in a region action."""
        return b"\x0a" + delimited(self.specifier.SerializeToString())


_NOTHING: Final[tuple[tuple[bytes, ...], tuple[Region, ...]]] = ((), ())


def meta_region(server: Address) -> Region:
    return Region(META_REGION_NAME, META_TABLE, KeyRange(), 1, server)


class LocationCache:
    """Regions by table. Thread-safe: if an update is lost, the only cost is another lookup."""

    def __init__(self) -> None:
        self._tables: dict[str, tuple[tuple[bytes, ...], tuple[Region, ...]]] = {}

    def find(self, table: str, row: bytes) -> Region | None:
        known = self._tables.get(table)
        if known is None:
            return None
        starts, regions = known
        index = bisect_right(starts, row) - 1
        if index < 0 or row not in regions[index].key_range:
            return None
        return regions[index]

    def knows(self, table: str) -> bool:
        return table in self._tables

    def known(self, table: str) -> tuple[Region, ...]:
        """Return the known regions in key order. It is the same object until they change."""
        return self._tables.get(table, _NOTHING)[1]

    def put(self, table: str, regions: Iterable[Region]) -> None:
        """Add regions from meta in place of cached regions that overlap them, such as the parent of a split."""
        fresh = sorted(regions, key=lambda region: region.key_range.start)
        kept = [
            region
            for region in self.known(table)
            if not any(_overlap(region.key_range, other.key_range) for other in fresh)
        ]
        self._store(table, [*kept, *fresh])

    def replace(self, table: str, regions: Iterable[Region]) -> None:
        """Set all regions of the table, as listed by meta."""
        self._store(table, list(regions))

    def forget_region(self, region: Region) -> None:
        known = self._tables.get(region.table)
        if known is not None and region in known[1]:
            self._store(region.table, [other for other in known[1] if other != region])

    def forget_server(self, server: Address) -> None:
        for table, (_, regions) in list(self._tables.items()):
            if any(region.server == server for region in regions):
                self._store(table, [region for region in regions if region.server != server])

    def forget_table(self, table: str) -> None:
        self._tables.pop(table, None)

    def _store(self, table: str, regions: list[Region]) -> None:
        ordered = tuple(sorted(regions, key=lambda region: region.key_range.start))
        self._tables[table] = tuple(region.key_range.start for region in ordered), ordered


def parse_region(table: str, meta_row: bytes, info: bytes, server: bytes) -> Region | None:
    """Return the region of `table` that a row in meta describes. Returns None for a region that clients must not use
    (the parent of a split, or a replica)."""
    if not info.startswith(_PROTOBUF_MAGIC):
        raise Corruption(f"the region info of {meta_row!r} does not have HBase 2's format")
    try:
        parsed = RegionInfo.FromString(info[4:])
    except DecodeError as error:
        raise Corruption(f"the region info of {meta_row!r} is malformed: {error}") from error
    if (parsed.offline and parsed.split) or parsed.replica_id:
        return None
    key_range = KeyRange(parsed.start_key, parsed.end_key or None)
    return Region(meta_row, table, key_range, parsed.region_id, _address(server))


def table_of(namespace: bytes, qualifier: bytes) -> str:
    """Return a table's name as users write it: without the default namespace."""
    return qualifier.decode() if namespace == b"default" else f"{namespace.decode()}:{qualifier.decode()}"


def table_name(table: str) -> tuple[bytes, bytes]:
    namespace, colon, qualifier = table.partition(":")
    return (namespace.encode(), qualifier.encode()) if colon else (b"default", table.encode())


def parse_meta_znode(content: bytes) -> Address:
    """Return the server of `hbase:meta` from the znode meta-region-server."""
    server = MetaRegionServer.FromString(_protobuf_of(content)).server
    return Address(server.host_name, server.port)


def parse_master_znode(content: bytes) -> Address:
    server = MasterMessage.FromString(_protobuf_of(content)).master
    return Address(server.host_name, server.port)


def _protobuf_of(content: bytes) -> bytes:
    """Return the protobuf bytes in a znode's content: FF, a 4-byte length, that many bytes, `PBUF`, then the
    protobuf."""
    if content[:1] != bytes([_RECOVERABLE_MAGIC]):
        raise Corruption("a znode of HBase does not begin with its magic byte")
    begin = 5 + int.from_bytes(content[1:5], "big")
    if content[begin : begin + 4] != _PROTOBUF_MAGIC:
        raise Corruption("a znode of HBase holds no protobuf")
    return content[begin + 4 :]


def _address(server: bytes) -> Address | None:
    host, colon, port = server.decode().rpartition(":")
    return Address(host, int(port)) if colon else None


def _overlap(one: KeyRange, other: KeyRange) -> bool:
    return (one.stop is None or other.start < one.stop) and (other.stop is None or one.start < other.stop)
