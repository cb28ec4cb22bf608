"""Parallel scan streams: a long scan reads several parts of its range at once, and returns rows in key order.

HBase serves a scanner by one thread, and reads nothing until the caller requests the next block. So when a call returns
as many bytes as it may, the scan sends several calls at once. From the key distance of the rows that it has read, it
estimates where the rows of the next calls begin:

    rows seen     |a………b|                      one full call: its rows reach from a to b
    streams           |b……c|c……d|d……           each has its own cursor; c, d are estimates
    returned          first, then second, …     their calls run at the same time

An estimate only affects how evenly the work is divided. A stream that is too long continues call by call while the
others wait. After a stream with almost no rows (a gap in the keys, the end of a table) the scan estimates nothing until
a call is full again. At most `CALLS_AHEAD` replies are buffered. This limits the memory of a scan, and the number of
reads that are wasted if the caller stops early.
"""

from __future__ import annotations

import string
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from pyomid.omid.hbase.codec.batches import ScanBlock
from pyomid.omid.hbase.codec.keyvalues import first_row
from pyomid.omid.hbase.regions.calls import Budget
from pyomid.omid.hbase.regions.operations import RegionOperations
from pyomid.omid.hbase.regions.scan_cursor import ScanCursor, ScanSpec

CALLS_AHEAD: Final = 3
"""The maximum number of calls of one scan in flight, including the call for the next block."""

BLOCK_BYTES_LEAST: Final = 256 << 10
"""A call that returns fewer bytes takes so little time that parallel calls gain nothing."""

_FILL: Final = 0.9
"""A stream is planned to return this part of a full call. If its rows slightly exceeded a full call, it would need
another call."""

_GAP_SHARE: Final = 0.25
"""If a call returns less than this part of a full call, there is a gap in the keys."""


_ALPHABETS: Final = tuple(
    (string.digits + more).encode()
    for more in (
        "",
        "abcdef",
        "ABCDEF",
        string.ascii_lowercase,
        string.ascii_uppercase,
        string.ascii_uppercase + string.ascii_lowercase,
    )
)
_EVERY_BYTE: Final = bytes(range(256))

SCALE_BYTES_MAX: Final = 64
"""If two keys do not differ within this many bytes, no key is estimated."""

_FINE_BYTES: Final = 8
"""The number of bytes after the common prefix of two keys that count for their distance."""

_PARTS: Final = 1 << 10


class ParallelScan:
    """Reads the blocks of a range in key order, like `ScanCursor`, with one or several cursors."""

    def __init__(self, operations: RegionOperations, spec: ScanSpec) -> None:
        self._read_ahead = spec.read_ahead
        self._streams = [ScanCursor(operations, spec)]
        self._prefetch = Prefetch() if spec.is_fresh and not spec.limit else None
        self._blocks = 0
        self._blocks_of_stream = 0

    def received(self, row: bytes) -> None:
        """Record that the caller has all rows up to and including `row`."""
        if self._streams:
            self._streams[0].received_row = row

    async def fetch(self, budget: Budget) -> ScanBlock | None:
        """Return the next block that holds a row or part of one; None at the end of the range."""
        while self._streams:
            stream = self._streams[0]
            block = await stream.fetch(budget)
            if self._prefetch is not None and (stream.was_full or (stream.is_done and not self._blocks_of_stream)):
                self._prefetch.learn(stream, block)
            self._blocks += 1
            self._blocks_of_stream += 1
            if stream.is_done:
                self._streams.pop(0)
                self._blocks_of_stream = 0
            if self._read_ahead:
                await self._send_ahead(budget)
            if block is not None:
                return block
        return None

    async def close(self, budget: Budget) -> None:
        """Close scanners that are still open, without waiting for replies."""
        streams, self._streams = self._streams, []
        for stream in streams:
            await stream.close(budget)

    async def _send_ahead(self, budget: Budget) -> None:
        """Send calls ahead. Their number grows by one after each block, so that little is wasted if a caller takes only
        a few rows."""
        free = min(CALLS_AHEAD, self._blocks + 1) - sum(stream.is_sent for stream in self._streams)
        index = 0
        while index < len(self._streams) and (free > 0 or index == 0):
            stream = self._streams[index]
            if not stream.is_sent:
                self._split_stream(index)
                await stream.send(budget)
                free -= 1
            index += 1

    def _split_stream(self, index: int) -> None:
        stream = self._streams[index]
        key = self._prefetch.key_after(stream) if self._prefetch is not None and stream.can_be_cut else None
        if key is not None:
            self._streams.insert(index + 1, stream.cut_at(key))


class Prefetch:
    """Estimates, from the blocks received, the key distance that holds the rows of about one call."""

    def __init__(self) -> None:
        self._scale = KeyScale()
        self._full_bytes = 0
        self._first = self._last = b""
        self._times = 0.0

    def learn(self, stream: ScanCursor, block: ScanBlock | None) -> None:
        """Learn from a call that was full or that returned all rows of its stream. `block` is None if there were no
        rows."""
        found = 0 if block is None else len(block.cells)
        if stream.was_full:
            self._full_bytes = found
        if block is None or found < _GAP_SHARE * self._full_bytes or self._full_bytes < BLOCK_BYTES_LEAST:
            self._times = 0.0
            return
        if stream.was_full:
            self._first, self._last = first_row(block.cells), stream.start
        elif stream.key_range.stop is not None:
            self._first, self._last = stream.key_range.start, stream.key_range.stop
        else:
            return
        self._scale.learn(self._first)
        self._scale.learn(self._last)
        self._times = _FILL * self._full_bytes / found

    def key_after(self, stream: ScanCursor) -> bytes | None:
        """Return the key before which a stream should end to need about one call. Returns None if that is unknown, or
        if little of the stream would remain after the key."""
        if not self._times:
            return None
        key = self._scale.ahead(stream.start, self._first, self._last, self._times)
        if key is None or stream.key_range.stop is None:
            return key
        far = self._scale.ahead(stream.start, self._first, self._last, 1.5 * self._times)
        return key if far is not None and far < stream.key_range.stop else None


class KeyScale:
    """Row keys as numbers, so that the distance between two keys can be added to a third key.

    The digits at each position are the smallest usual alphabet that contains all bytes seen there: `row1000` follows
    `row0999`. In base 256 the next key would be `row0:`, far from any row. The result is only an estimate, because a
    range may be divided at any key.
    """

    def __init__(self) -> None:
        self._alphabets: list[bytes] = []

    def learn(self, key: bytes) -> None:
        for position, byte in enumerate(key[:SCALE_BYTES_MAX]):
            if position == len(self._alphabets):
                self._alphabets.append(_alphabet((byte,)))
            elif byte not in self._alphabets[position]:
                self._alphabets[position] = _alphabet((byte, *self._alphabets[position]))

    def ahead(self, start: bytes, first: bytes, last: bytes, times: float) -> bytes | None:
        """Return the key that is `times` as far after `start` as `last` is after `first`. Call `learn` with `first` and
        `last` before.

        Returns None if `last` is not after `first`, or if there is no such key.
        """
        common = 0
        while common < min(len(first), len(last)) and first[common] == last[common]:
            common += 1
        alphabets = self._alphabets[: common + _FINE_BYTES]
        if common >= SCALE_BYTES_MAX:
            return None
        step = (_number(last, alphabets) - _number(first, alphabets)) * int(times * _PARTS) // _PARTS
        key = _key(_number(start, alphabets) + step, alphabets) if step > 0 else None
        return key if key is not None and key > start else None


def _alphabet(seen: Iterable[int]) -> bytes:
    wanted = frozenset(seen)
    for alphabet in _ALPHABETS:
        if wanted <= frozenset(alphabet):
            return alphabet
    if len(wanted) == 1 and chr(min(wanted)) in string.punctuation:
        return bytes(wanted)  # probably a separator between the parts of a key
    return _EVERY_BYTE


def _number(key: bytes, alphabets: Sequence[bytes]) -> int:
    number = 0
    for position, alphabet in enumerate(alphabets):
        digit = bisect_left(alphabet, key[position]) if position < len(key) else 0
        number = number * len(alphabet) + min(digit, len(alphabet) - 1)
    return number


def _key(number: int, alphabets: Sequence[bytes]) -> bytes | None:
    digits = bytearray()
    for alphabet in reversed(alphabets):
        number, digit = divmod(number, len(alphabet))
        digits.append(alphabet[digit])
    return bytes(reversed(digits)) if number == 0 else None
