"""Puts or gets entries of the commit table, and then reads a cell of another row, in one call to one server.

    actions of the entries, region by region  ┐ one Multi; a server performs the region actions of a call one after the
    a separate region action: the cell        ┘ other, in their order, and answers a put after it is in its log
                                                (RSRpcServices.multi; decision 0027)

So the server reads the cell after all puts are durable, or after it has read all entries. The result is None if one
call is not enough (several servers, too many rows) or if any part of it failed. Then entries may or may not have been
put, and the caller makes separate calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyomid.omid.hbase.codec.keyvalues import KeyValue, decode
from pyomid.omid.hbase.codec.layout import commit_row
from pyomid.omid.hbase.codec.native import commits as kernels
from pyomid.omid.hbase.codec.native import encode
from pyomid.omid.hbase.regions.calls import Answer, Budget, ask_server, has_succeeded
from pyomid.omid.hbase.regions.locations import Region
from pyomid.omid.hbase.regions.operations import RegionOperations, region_failures
from pyomid.omid.hbase.rpc.frames import CLIENT, Address, Call, Reply, delimited
from pyomid.omid.hbase.rpc.requests import RequestBuffers, RowGet
from pyomid.omid.wire.frames import varint

Int64s = NDArray[np.int64]

ENTRIES_MAX: Final = 4000
"""The maximum number of entries in one call, which occupies one handler of the region server."""


class _RangeArrays(NamedTuple):
    """The commit table's regions, and the gaps between known regions, as ascending ranges of rows. Range i begins at
    border i; the first border is before all rows."""

    border_bucket: Int64s
    border_start: Int64s
    servers: Int64s
    """The number of each range's server; -1 if it is unknown."""
    specifiers: NDArray[np.uint8]
    """The field that names range i's region is `specifiers[specifier_at[i] : specifier_at[i + 1]]`."""
    specifier_at: Int64s


class _Ranges:
    """The commit table's known regions, as arrays for the kernels."""

    def __init__(self, regions: Sequence[Region]) -> None:
        self.known = regions
        ranges = list(_ranges(regions))
        self.regions = [region for _, region in ranges]
        borders = [_border(begin) for begin, _ in ranges]
        self.addresses = list(dict.fromkeys(each.server for each in regions if each.server is not None))
        servers = [
            -1 if each is None or each.server is None else self.addresses.index(each.server) for each in self.regions
        ]
        fields = [b"" if each is None else each.specifier_field for each in self.regions]
        self.specifiers_bytes_max = sum(map(len, fields)) + 16 * len(fields)
        """The size of all region actions without the actions in them."""
        arrays = _RangeArrays(
            border_bucket=np.array([bucket for bucket, _ in borders], dtype=np.int64),
            border_start=np.array([start for _, start in borders], dtype=np.int64),
            servers=np.array(servers, dtype=np.int64),
            specifiers=np.frombuffer(bytearray(b"".join(fields) or b"\0"), dtype=np.uint8),
            specifier_at=np.array([*accumulate(map(len, fields), initial=0)], dtype=np.int64),
        )
        self.arrays = tuple(arrays)


class _LastGet:
    """The get of the row that is read after the entries, encoded for its region."""

    def __init__(self, region: Region, get: bytes) -> None:
        self.region = region
        self._specifier = region.specifier_field
        self._get = b"\x1a" + delimited(get)

    def action(self, index: int) -> bytes:
        """Return the region action as a field of a MultiRequest."""
        return b"\x0a" + delimited(self._specifier + b"\x1a" + delimited(b"\x08" + varint(index) + self._get))


class _OneServer:
    """Starts whose rows are all on one server. The row that is read after them is on the same server."""

    def __init__(self, ranges: _Ranges, server: Address, where: Int64s, counts: Int64s, last: _LastGet) -> None:
        self.ranges, self.server, self.where, self.counts = ranges, server, where, counts
        self._last = last

    def call(self, parameter: bytes, index: int, cells: bytes | memoryview = b"") -> Call:
        """Return the call. `index` is the index of the action that reads the last cell."""
        return Call(CLIENT, "Multi", parameter + self._last.action(index), cells)

    def forget_failed(self, operations: RegionOperations, answer: Reply, budget: Budget) -> None:
        """Drop the cached locations of regions whose actions failed. (If the whole call failed, the separate calls that
        follow react to the failure.)"""
        asked = [region for region, count in zip(self.ranges.regions, self.counts.tolist(), strict=True) if count]
        regions = [*asked, self._last.region]
        for number, _, failure in region_failures(answer, len(regions)):
            if (region := regions[number]) is not None:
                operations.react(region, failure, budget)


class CommitCalls:
    """The calls for one commit table. After the entries, each call makes the get `last` in `last_table`.
    Thread-safe."""

    def __init__(self, table: str, entry_get: RowGet, last_table: str, last: RowGet) -> None:
        """`entry_get` is a get of any entry, as a template for all."""
        self._table = table
        self._last_table = last_table
        self._last = last
        self._known_last: _LastGet | None = None
        encoded = entry_get.message().SerializeToString()
        row_field = b"\x0a" + delimited(entry_get.row)
        assert encoded.startswith(row_field), "the row comes first"
        self._tail = np.frombuffer(bytearray(encoded[len(row_field) :]), dtype=np.uint8)
        self._ranges = _Ranges(())

    async def put_indexed(
        self, operations: RegionOperations, entries: NDArray[np.int64], budget: Budget
    ) -> list[KeyValue] | None:
        """Put entries (start, commit). Returns the cells of `last`, read after all entries are durable; None if one
        call was not enough."""
        one_server = await self._one_server(operations, np.ascontiguousarray(entries.reshape(-1, 2)[:, 0]), budget)
        if one_server is None:
            return None
        ranges, count = one_server.ranges, len(entries)
        actions_max = ranges.specifiers_bytes_max + count * (encode.ACTION_BYTES_MAX + encode.COMMIT_ROW_BYTES)
        request, rows = RequestBuffers(actions_max, count * encode.COMMIT_CELL_BYTES_MAX), np.ascontiguousarray(entries)
        kernels.encode_commit_puts(
            rows, one_server.where, one_server.counts, ranges.arrays, operations.durability.value, request.arrays()
        )
        call = one_server.call(request.actions(), 0, request.block())
        answer: Answer = await ask_server(one_server.server, call, budget)
        if has_succeeded(answer):
            if encode.all_succeeded(np.frombuffer(answer.message, dtype=np.uint8)):
                return list(decode(answer.cells))
            one_server.forget_failed(operations, answer, budget)
        return None

    async def get(
        self, operations: RegionOperations, starts: Sequence[int], budget: Budget
    ) -> tuple[list[int], list[KeyValue]] | None:
        """Return each start's commit timestamp, SEALED or NOT_FOUND, and the cells of `last`, read after these; None if
        one call was not enough."""
        wanted = np.array(starts, dtype=np.int64)
        one_server = await self._one_server(operations, wanted, budget)
        if one_server is None:
            return None
        ranges, count = one_server.ranges, len(wanted)
        action_bytes = kernels.GET_BYTES_MAX + len(self._tail)
        parameter = np.empty(ranges.specifiers_bytes_max + count * action_bytes, dtype=np.uint8)
        size = kernels.encode_commit_gets(
            wanted, one_server.where, one_server.counts, ranges.arrays, self._tail, parameter
        )
        call = one_server.call(parameter[:size].tobytes(), count)
        answer: Answer = await ask_server(one_server.server, call, budget)
        if has_succeeded(answer):
            found, last = np.empty(count, dtype=np.int64), np.empty(2, dtype=np.int64)
            message = np.frombuffer(answer.message, dtype=np.uint8)
            if kernels.read_commit_gets(message, np.frombuffer(answer.cells, dtype=np.uint8), wanted, found, last):
                return found.tolist(), list(decode(answer.cells[last[0] : last[1]]))
            one_server.forget_failed(operations, answer, budget)
        return None

    async def _one_server(self, operations: RegionOperations, starts: Int64s, budget: Budget) -> _OneServer | None:
        """Locate the regions of all rows. Returns None unless one server has them all."""
        if not 0 < len(starts) <= ENTRIES_MAX:
            return None
        while True:
            ranges = self._known_ranges(operations)
            where = np.empty(len(starts), dtype=np.int64)
            counts = np.zeros(len(ranges.regions), dtype=np.int64)
            server = kernels.place(starts, ranges.arrays, where, counts)
            if server > kernels.UNKNOWN:
                break
            row = commit_row(int(starts[kernels.UNKNOWN - server]))
            await operations.locate(self._table, row, budget)
        region = await operations.locate(self._last_table, self._last.row, budget)
        if server == kernels.SEVERAL or ranges.addresses[server] != region.server:
            return None
        return _OneServer(ranges, ranges.addresses[server], where, counts, self._last_in(region))

    def _last_in(self, region: Region) -> _LastGet:
        last = self._known_last
        if last is None or last.region is not region:
            last = self._known_last = _LastGet(region, self._last.message().SerializeToString())
        return last

    def _known_ranges(self, operations: RegionOperations) -> _Ranges:
        known = operations.cache.known(self._table)
        ranges = self._ranges
        if ranges.known is not known:
            ranges = self._ranges = _Ranges(known)
        return ranges


def _ranges(regions: Sequence[Region]) -> Iterator[tuple[bytes, Region | None]]:
    """Yield the first key of each region, and of each gap between known regions, in key order."""
    end: bytes | None = b""
    for region in regions:
        if end is not None and region.key_range.start > end:
            yield end, None
        yield region.key_range.start, region
        end = region.key_range.stop
    if end is not None:
        yield end, None


def _border(key: bytes) -> tuple[int, int]:
    """Return the least bucket and start whose row is at or after `key`."""
    row_bytes = encode.COMMIT_ROW_BYTES
    number = int.from_bytes(key[:row_bytes].ljust(row_bytes, b"\0"), "big") + (len(key) > row_bytes)
    bucket, start = divmod(number, 1 << 64)
    return (bucket, start) if start < 1 << 63 else (bucket + 1, 0)
