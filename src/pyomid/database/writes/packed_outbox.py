"""The outbox of a folder. Since the folder's database decides commits, the commit request can carry the writes
themselves.

    few writes     buffered until the commit       request: all cells and claims
    many writes    drawn version ─▶ sent under it  request: that version as a branch, and the rest of the cells

A version is drawn only before the first write to the store. Conflict-free cells are sent under a separate version, just
above it (folder.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Sequence
from functools import partial
from typing import Final

from pyomid.cells import CellBatch
from pyomid.coroutines import NOTHING
from pyomid.database.writes.outbox import TOUCHED, Outbox
from pyomid.database.writes.own_cells import OwnCell
from pyomid.database.writes.write_buffer import FREE, WriteBuffer
from pyomid.protocol.commit import WriteSet
from pyomid.protocol.effects import DrawVersion, PackCommit, WriteCells
from pyomid.types import CellVersion, Column, CommitRequest, RowWrite, TableChanges

SMALL_BATCH_ROWS: Final = 32
"""A batch of at most this many rows is buffered row by row if the commit can carry it; more rows are cheaper to write
as a batch."""


class PackedOutbox(Outbox):
    """An `Outbox` whose commit request carries cells, which the store does not get before the commit."""

    _packed = b""
    """The commit request; empty before `settle`, and if there is nothing to commit."""

    def settle(self) -> Awaitable[None]:
        """Make all writes durable that the commit request does not carry, then pack the request. The request carries
        all cells if none were ever sent and they are few; many rows cost less as a batch."""
        if not self._buffers:
            return NOTHING
        is_small = self._buffered_bytes <= self._packed_bytes_max and not self._view.version
        if is_small and not any(map(self._leaves_as_batch, self._buffers.values())):
            return self._pack(NOTHING)
        return self._pack(super().settle())

    async def _pack(self, settled: Awaitable[None]) -> None:
        """Pack the commit request, after `settled`, with the cells that are buffered then."""
        await settled
        # The folder has compared cells that were sent and taken back: their conflicts must not count.
        claims_all = bool(self._view.version) and any(each.has_taken_back for each in self._buffers.values())
        changes = list(map(partial(changes_of, claims_all=claims_all), filter(TOUCHED, self._buffers.values())))
        if changes:
            branches = (self._view.version,) if self._view.version else ()
            self._packed = await PackCommit(self.start_ts, branches, changes, claims_all)

    def _carries(self, buffer: WriteBuffer, batch: CellBatch) -> bool:
        return batch.rows <= SMALL_BATCH_ROWS and not buffer.has_sent

    def _leaves_as_batch(self, buffer: WriteBuffer) -> bool:
        return buffer.checked is None and super()._leaves_as_batch(buffer)

    async def _draw_version(self) -> None:
        if not self._view.version:
            self._view.see_own(await DrawVersion(self.start_ts))

    def _versions(self) -> tuple[int, ...]:
        return (self._view.version, self._view.version + FREE)

    async def _write_rows(self, buffer: WriteBuffer, writes: Sequence[RowWrite]) -> None:
        for version, some in zip(self._versions(), buffer.split_free(writes), strict=True):
            if some:
                await WriteCells(buffer.info.name, version, some)

    @property
    def wrote(self) -> bool:
        return bool(self._packed)

    def commit_request(self) -> CommitRequest:
        return CommitRequest(self.start_ts, packed=self._packed)

    def shown_writes(self) -> WriteSet:
        if self._view.version:
            return self.write_set()
        return {
            name: [CellVersion(row, *column, self.start_ts) for row, cells in each.rows.items() for column in cells]
            for name, each in self._buffers.items()
            if each.rows
        }


def changes_of(buffer: WriteBuffer, *, claims_all: bool = False) -> TableChanges:
    """Return a table's buffered cells and claims, for a packed commit request. With `claims_all`, the sent cells are
    claimed too."""
    claims: dict[tuple[bytes, Column | None], None] = dict(buffer.claims) if claims_all else buffer.claims
    if claims_all:
        claims.update((cell, None) for cell in (buffer.sent_cells() if buffer.checked is None else buffer.checked))
    free: Collection[OwnCell] = ()
    if buffer.checked is not None:
        named = buffer.checked
        free = {(row, each) for row, cells in buffer.rows.items() for each in cells if (row, each) not in named}
    return TableChanges(buffer.info.name, buffer.levels, buffer.rows, claims, free)
