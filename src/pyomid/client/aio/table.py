"""A table inside an asyncio transaction: `client.table` with awaits, over the same steps."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pyomid.cells import CellBatch
from pyomid.client.table import Cells, batch_rows, check_keys, checked_put, named, scan_range
from pyomid.client.transaction_base import Event
from pyomid.client.validation import TableRules, check_limit
from pyomid.types import Column, KeyRange, TableInfo

if TYPE_CHECKING:
    from pyomid.client.aio.transaction import AsyncTransaction


class AsyncTable:
    """A table in one transaction's snapshot, with its own writes. Made by `AsyncTransaction.table`."""

    def __init__(self, transaction: AsyncTransaction, rules: TableRules) -> None:
        self._transaction = transaction
        self._rules = rules
        self._workspace = transaction.workspace

    @property
    def info(self) -> TableInfo:
        """The catalog entry."""
        return self._rules.info

    async def get(self, key: bytes, columns: Iterable[bytes] | None = None) -> dict[bytes, bytes]:
        """The row's visible columns; {} where there is no such row."""
        return (await self.rows([key], columns))[key]

    async def rows(
        self, keys: Iterable[bytes], columns: Iterable[bytes] | None = None
    ) -> dict[bytes, dict[bytes, bytes]]:
        """Many rows by one request: every requested key, in the requested order; {} where there is no such row."""
        self._transaction.step(Event.READ)
        checked = check_keys(self._rules, keys)
        selection = self._rules.selection(columns)
        if not checked or selection == []:
            return {key: {} for key in checked}
        found = await self._read(checked, selection)
        return {key: named(row) for key, row in zip(checked, found, strict=True)}

    async def put(self, key: bytes, cells: Cells) -> None:
        """Sets columns of the row; its other columns stay. Names and limits are checked now, the write leaves later."""
        self._transaction.use(Event.WRITE)
        await self._hold(*checked_put(self._rules, key, cells))

    async def delete(self, key: bytes, columns: Iterable[bytes] | None = None) -> None:
        """Deletes the row, or some columns of it, as `Table.delete` does."""
        await self.delete_rows([key], columns)

    async def delete_rows(self, keys: Iterable[bytes], columns: Iterable[bytes] | None = None) -> None:
        """`delete` of many rows, read in one request where they must be read."""
        self._transaction.use(Event.WRITE)
        checked = check_keys(self._rules, keys)
        selection = self._rules.selection(columns)
        if selection is not None and all(column.qualifier for column in selection):
            for key in checked:
                await self._hold(key, dict.fromkeys(selection, None))
            return
        for key, row in zip(checked, await self._read(checked, selection), strict=True):
            await self._hold(key, dict.fromkeys(row, None))

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
        self._transaction.step(Event.READ)
        key_range = scan_range(self._rules, start, stop, prefix)
        selection = self._rules.selection(columns)
        left = check_limit(limit)
        if left == 0 or selection == []:
            return
        async for key, row in self._visible_rows(key_range, selection, left):
            self._transaction.step(Event.READ)
            yield key, named(row)
            if left is not None:
                left -= 1
                if left == 0:
                    return

    async def _read(self, keys: Sequence[bytes], selection: Sequence[Column] | None) -> list[dict[Column, bytes]]:
        return await self._transaction.run(self._workspace.read_steps(self._rules.info, keys, selection))

    async def _hold(self, key: bytes, cells: Mapping[Column, bytes | None]) -> None:
        if cells and self._workspace.hold(self._rules.info, key, cells):
            await self._transaction.flush()

    async def _visible_rows(
        self, key_range: KeyRange, selection: Sequence[Column] | None, limit: int | None
    ) -> AsyncIterator[tuple[bytes, dict[Column, bytes]]]:
        info, workspace, database = self._rules.info, self._workspace, self._transaction.database
        rows_max = batch_rows(database.settings.scan_batch_rows, limit)
        scan = workspace.begin_scan(info, key_range)
        nothing: CellBatch | None = None
        batches: Iterator[CellBatch] | None = None
        while True:
            self._transaction.step(Event.READ)
            if batches is None or scan.is_overtaken:
                asked = scan.begin_again()
                batches = database.parts.store.scan(info.name, asked, selection, batch_rows_max=rows_max)
            batch = await self._transaction.in_thread(partial(next, batches, nothing))
            rows: list[tuple[bytes, dict[Column, bytes]]] = []
            if batch is None:
                await self._transaction.run(workspace.scanned_steps())
            elif batch.rows:
                rows = await self._transaction.run(workspace.batch_steps(info, batch, selection))
            if scan.is_overtaken:
                continue  # another task wrote meanwhile
            passed = scan.key_range
            if batch is not None and batch.rows:
                passed = scan.pass_to(batch.row_key(batch.rows - 1) + b"\0")
            elif batch is not None:
                continue
            for item in list(workspace.merged(info, rows, passed, selection)):
                yield item
            if batch is None:
                return
