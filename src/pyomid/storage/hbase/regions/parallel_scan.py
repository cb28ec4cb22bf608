"""Parallel scan streams: a long scan reads in several places of its range at once, and returns rows in key order.

HBase serves a scanner by one thread, and sends nothing until the caller says where to go on. So a scan whose calls come
back full guesses where the rows of the next calls begin, by the distance of the rows that it has read, and sends
several calls at once:

    rows seen     |a………b|                      one call full: a call's worth reaches from a to b
    streams           |b……c|c……d|d……           each a cursor of its own; c, d guessed
    taken             first, then second, …     their calls run at the same time

A guess only decides how evenly the work is divided. A stream that is too long goes on call by call while the others
wait. If a stream holds almost nothing (a gap between rows, the end of a table) nothing is guessed until a call comes
back full again. At most `CALLS_AHEAD` answers wait for their turn: this bounds the memory of a scan, and what is read
in vain when its caller leaves.
"""

from __future__ import annotations

from typing import Final

from pyomid.storage.hbase.codec.keyvalues import first_row
from pyomid.storage.hbase.regions.operations import Budget, RegionOperations, Steps
from pyomid.storage.hbase.regions.scan_cursor import ScanBlock, ScanCursor, ScanSpec
from pyomid.storage.hbase.regions.split_keys import KeyScale

CALLS_AHEAD: Final = 3
"""Calls of one scan under way at once, the one for the next block included."""

BLOCK_BYTES_LEAST: Final = 256 << 10
"""Calls that bring less end too soon for a second call beside them to be of use."""

_FILL: Final = 0.9
"""The part of a call that a stream is guessed to hold: a little more than one call would need a second one."""

_TOO_LITTLE: Final = 0.25


class ParallelScan:
    """The blocks of a range in key order, as `ScanCursor` gives them, by one cursor or several."""

    def __init__(self, operations: RegionOperations, spec: ScanSpec) -> None:
        self._read_ahead = spec.read_ahead
        self._streams = [ScanCursor(operations, spec)]
        self._prefetch = Prefetch() if spec.is_fresh and not spec.limit else None
        self._blocks = 0
        self._blocks_of_stream = 0

    def received(self, row: bytes) -> None:
        """The caller has all rows up to this one, included, whole."""
        if self._streams:
            self._streams[0].received_row = row

    def fetch_steps(self, budget: Budget) -> Steps[ScanBlock | None]:
        """The next block that holds a row or part of one; None when the range is done."""
        while self._streams:
            stream = self._streams[0]
            block = yield from stream.fetch_steps(budget)
            if self._prefetch is not None and (stream.was_full or (stream.is_done and not self._blocks_of_stream)):
                self._prefetch.learn(stream, block)
            self._blocks += 1
            self._blocks_of_stream += 1
            if stream.is_done:
                self._streams.pop(0)
                self._blocks_of_stream = 0
            if self._read_ahead:
                yield from self._send_ahead_steps(budget)
            if block is not None:
                return block
        return None

    def close_steps(self, budget: Budget) -> Steps[None]:
        """Closes scanners that are still open, without waiting for answers."""
        streams, self._streams = self._streams, []
        for stream in streams:
            yield from stream.close_steps(budget)

    def _send_ahead_steps(self, budget: Budget) -> Steps[None]:
        """How many streams: more with each block, so that little is read in vain for a caller that takes only a few
        rows."""
        free = min(CALLS_AHEAD, self._blocks + 1) - sum(stream.is_sent for stream in self._streams)
        place = 0
        while place < len(self._streams) and (free > 0 or place == 0):
            stream = self._streams[place]
            if not stream.is_sent:
                self._cut(place)
                yield from stream.send_steps(budget)
                free -= 1
            place += 1

    def _cut(self, place: int) -> None:
        stream = self._streams[place]
        key = self._prefetch.key_after(stream) if self._prefetch is not None and stream.can_be_cut else None
        if key is not None:
            self._streams.insert(place + 1, stream.cut_at(key))


class Prefetch:
    """The distance of keys that holds about one call's rows, by the blocks that came."""

    def __init__(self) -> None:
        self._scale = KeyScale()
        self._full_bytes = 0
        self._first = self._last = b""
        self._times = 0.0

    def learn(self, stream: ScanCursor, block: ScanBlock | None) -> None:
        """Learnt from a call that was full, or one that brought all rows of its stream; None: nothing."""
        found = 0 if block is None else len(block.cells)
        if stream.was_full:
            self._full_bytes = found
        if block is None or found < _TOO_LITTLE * self._full_bytes or self._full_bytes < BLOCK_BYTES_LEAST:
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
        """The key at which to end a stream after about one call; None if nothing is known, or little would remain."""
        if not self._times:
            return None
        key = self._scale.ahead(stream.start, self._first, self._last, self._times)
        if key is None or stream.key_range.stop is None:
            return key
        far = self._scale.ahead(stream.start, self._first, self._last, 1.5 * self._times)
        return key if far is not None and far < stream.key_range.stop else None
