"""The asyncio tables, whose methods do the same as those of `Table` and `TypedTable`, and are awaited."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Any, Generic

from pyomid.coroutines import Blocking, Routine
from pyomid.database.async_driver import AsyncRun
from pyomid.database.tables.arrow import ArrowScan
from pyomid.database.tables.scans import AsyncRows, RowScan
from pyomid.database.tables.table import Cells, Expected, Page, S, TableCore, TableHandle
from pyomid.database.tables.typed import IndexScan, RowT, TypedCore, TypedPage

if TYPE_CHECKING:
    import pyarrow as pa


class AwaitedTable(TableHandle[S]):
    """The common base class of the asyncio tables."""

    def __init__(self, table: S, run: AsyncRun) -> None:
        self._table = table
        self._run = run

    async def _reader(self, routine: Routine[ArrowScan]) -> pa.RecordBatchReader:
        return await self._run(self._read_whole(routine))

    async def _read_whole(self, routine: Routine[ArrowScan]) -> pa.RecordBatchReader:
        scan = await routine
        batches = await Blocking(lambda: list(scan.batches(self._table.transaction.database.driver.run)))
        return scan.reader(batches)


class AsyncTable(AwaitedTable[TableCore]):
    """The asyncio version of `Table`, returned by `AsyncTransaction.table`."""

    async def get(
        self, key: bytes, columns: Iterable[bytes] | None = None, *, for_update: bool = False
    ) -> dict[bytes, bytes] | None:
        """Return the row's visible columns, or None if the row does not exist; see `Table.get`."""
        return await self._run(self._table.get(key, columns, for_update=for_update))

    async def rows(
        self, keys: Iterable[bytes], columns: Iterable[bytes] | None = None, *, for_update: bool = False
    ) -> dict[bytes, dict[bytes, bytes] | None]:
        """Return a dict that maps each key, in the given order, to the key's row, or to None if the row does not exist;
        see `Table.rows`. The call reads all keys in one request."""
        return await self._run(self._table.rows(keys, columns, for_update=for_update))

    async def put(self, key: bytes, cells: Cells, *, expect: Expected | None = None, conflict: bool = True) -> None:
        """Set columns of the row and leave the row's other columns unchanged; see `Table.put`."""
        routine = self._table.put(key, cells, expect, conflict=conflict)
        if routine is not None:
            await self._run(routine)

    async def put_if_absent(self, key: bytes, cells: Cells) -> bool:
        """Put the cells if none of the cells' columns exists in the row. Return True if the cells were put."""
        return await self._run(self._table.put_if_absent(key, cells))

    async def increment(self, key: bytes, column: bytes, by: int = 1) -> int:
        """Add `by` to a counter and return the sum; see `Table.increment`."""
        return await self._run(self._table.increment(key, column, by))

    async def delete(self, key: bytes, columns: Iterable[bytes] | None = None) -> None:
        """Delete the row, or only the given columns of the row; see `Table.delete`."""
        return await self._run(self._table.delete([key], columns))

    async def delete_rows(self, keys: Iterable[bytes], columns: Iterable[bytes] | None = None) -> None:
        """Delete many rows, or only the given columns of these rows. If the call must read the rows first, it reads all
        rows in one request."""
        return await self._run(self._table.delete(keys, columns))

    def scan(
        self,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        prefix: bytes | None = None,
        columns: Iterable[bytes] | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> AsyncIterator[tuple[bytes, dict[bytes, bytes]]]:
        """Iterate over rows with `async for`; see `Table.scan`. The scan shows the writes that the transaction made
        before this call."""
        return self._rows_of(self._table.begin_scan(start, stop, prefix, columns, limit, reverse=reverse))

    async def page(
        self,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        prefix: bytes | None = None,
        columns: Iterable[bytes] | None = None,
        limit: int = 100,
        reverse: bool = False,
        after: str | None = None,
    ) -> Page:
        """Return up to `limit` rows of a scan with these arguments. `after` works as in `Table.page`."""
        return await self._run(self._table.page(start, stop, prefix, columns, limit, reverse=reverse, after=after))

    async def to_arrow(
        self,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        prefix: bytes | None = None,
        columns: Sequence[str] | Sequence[bytes] | None = None,
    ) -> pa.RecordBatchReader:
        """Return the rows of a range as Arrow data; see `Table.to_arrow`. The call reads all rows before it returns, so
        iterate over the reader without `await`."""
        return await self._reader(self._table.arrow_scan(start, stop, prefix, columns))

    async def write_arrow(self, data: Any) -> int:
        """Write Arrow data, or a pandas or Polars frame, and return the number of rows; see `Table.write_arrow`."""
        return await self._run(self._table.write_arrow(data))

    def _rows_of(self, scan: RowScan) -> AsyncRows[tuple[bytes, dict[bytes, bytes]]]:
        return AsyncRows(lambda: self._run(scan.next()))


class AsyncTypedTable(AwaitedTable[TypedCore[RowT]], Generic[RowT]):
    """The asyncio version of `TypedTable`, returned by `AsyncTransaction.table` with a codec."""

    async def get(self, key: Any, *, for_update: bool = False) -> RowT | None:
        """Return the row with this key, or None if the row does not exist. A key with several columns is a tuple."""
        return await self._run(self._table.get(key, for_update=for_update))

    async def rows(self, keys: Iterable[Any], *, for_update: bool = False) -> dict[Any, RowT | None]:
        """Return a dict that maps each key, in the given order, to the key's row, or to None if the row does not exist.
        The call reads all keys in one request."""
        return await self._run(self._table.rows(keys, for_update=for_update))

    async def put(self, row: RowT, *, expect: Mapping[str, Any] | None = None, conflict: bool = True) -> None:
        """Set every column of the row's class or, if the row is a dict, only the columns that the dict names; see
        `TypedTable.put`."""
        return await self._run(self._table.put_indexed(row, expect, conflict=conflict))

    async def put_if_absent(self, row: RowT) -> bool:
        """Put the row if no row with the same key exists. Return True if the row was put."""
        return await self._run(self._table.put_if_absent(row))

    async def delete(self, key: Any) -> None:
        """Delete the row with this key."""
        return await self._run(self._table.delete([key]))

    async def delete_rows(self, keys: Iterable[Any]) -> None:
        """Delete the rows with these keys. The call first reads all these rows in one request."""
        return await self._run(self._table.delete(keys))

    async def claim(self, keys: Iterable[Any], columns: Iterable[str] | None = None) -> None:
        """Claim rows, or value columns of rows; see `TypedTable.claim`. The commit checks claimed data for conflicts as
        if the transaction had written it."""
        return await self._run(self._table.claim(keys, columns))

    async def increment(self, key: Any, column: str, by: int = 1) -> int:
        """Add `by` to an integer column and return the sum; see `TypedTable.increment`."""
        return await self._run(self._table.increment(key, column, by))

    def scan(
        self,
        start: Any = None,
        stop: Any = None,
        *,
        prefix: Any = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> AsyncIterator[RowT]:
        """Iterate over rows in key order with `async for`; see `TypedTable.scan`."""
        return self._rows_of(self._table.begin_scan(start, stop, prefix, limit, reverse=reverse))

    def lookup(
        self, index: str, values: Any, *, limit: int | None = None, reverse: bool = False
    ) -> AsyncIterator[RowT]:
        """Iterate with `async for` over the rows that have these values in the first columns of an index; see
        `TypedTable.lookup`."""
        return self._rows_of(self._table.begin_lookup(index, values, limit, reverse=reverse))

    async def page(
        self,
        start: Any = None,
        stop: Any = None,
        *,
        prefix: Any = None,
        limit: int = 100,
        reverse: bool = False,
        after: str | None = None,
    ) -> TypedPage[RowT]:
        """Return up to `limit` rows of a scan with these arguments. `after` works as in `Table.page`."""
        return await self._run(self._table.page(start, stop, prefix, limit, reverse=reverse, after=after))

    async def to_arrow(
        self, start: Any = None, stop: Any = None, *, prefix: Any = None, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """Return the rows of a range as Arrow data; see `TypedTable.to_arrow`. The call reads all rows before it
        returns."""
        return await self._reader(self._table.arrow_scan(start, stop, prefix, columns))

    def _rows_of(self, scan: RowScan | IndexScan) -> AsyncRows[RowT]:
        async def next_rows() -> Iterator[RowT] | None:
            rows = await self._run(scan.next())
            return None if rows is None else starmap(self._table.shown, rows)

        return AsyncRows(next_rows)
