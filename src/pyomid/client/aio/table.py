"""A table inside an asyncio transaction: `client.table` with awaits, over the same steps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import TYPE_CHECKING

from pyomid.client.drive import AsyncRun
from pyomid.client.table import Cells, TableBase
from pyomid.client.validation import TableRules

if TYPE_CHECKING:
    from pyomid.client.transaction import RowTransaction


class AsyncTable(TableBase):
    """A table in one transaction's snapshot, with its own writes. Made by `AsyncTransaction.table`."""

    def __init__(self, transaction: RowTransaction[AsyncTable], rules: TableRules, run: AsyncRun) -> None:
        super().__init__(transaction, rules)
        self._run = run

    async def get(self, key: bytes, columns: Iterable[bytes] | None = None) -> dict[bytes, bytes]:
        """The row's visible columns; {} where there is no such row."""
        return await self._run(self.get_steps(key, columns))

    async def rows(
        self, keys: Iterable[bytes], columns: Iterable[bytes] | None = None
    ) -> dict[bytes, dict[bytes, bytes]]:
        """Many rows by one request: every requested key, in the requested order; {} where there is no such row."""
        return await self._run(self.rows_steps(keys, columns))

    async def put(self, key: bytes, cells: Cells) -> None:
        """Sets columns of the row; its other columns stay. Names and limits are checked now, the write leaves later."""
        if self.hold_put(key, cells):
            await self._run(self._transaction.send_steps())

    async def delete(self, key: bytes, columns: Iterable[bytes] | None = None) -> None:
        """Deletes the row, or some columns of it, as `Table.delete` does."""
        await self._run(self.delete_steps([key], columns))

    async def delete_rows(self, keys: Iterable[bytes], columns: Iterable[bytes] | None = None) -> None:
        """`delete` of many rows, read in one request where they must be read."""
        await self._run(self.delete_steps(keys, columns))

    async def scan(
        self,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        prefix: bytes | None = None,
        columns: Iterable[bytes] | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[tuple[bytes, dict[bytes, bytes]]]:
        """Rows from `start` (inclusive) to `stop` (exclusive), and with the prefix, ascending by key, in batches."""
        scan = self.begin_scan(start, stop, prefix, columns, limit)
        while (rows := await self._run(scan.next_steps())) is not None:
            for row in rows:
                yield row
