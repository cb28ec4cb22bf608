"""A table inside a transaction.

    accounts = tx.table("accounts")
    accounts.put(b"alice", {b"f:balance": b"100"})
    accounts.get(b"alice")                              # {b"f:balance": b"100"}; None if nothing is visible
    accounts.get(b"alice", for_update=True)             # also claim the row: the commit checks it like a write
    accounts.rows([b"alice", b"bob"])                   # one request
    for key, row in accounts.scan(prefix=b"a", columns=[b"f:balance"], limit=10): ...

Columns are named b"family:qualifier"; in a selection of columns, b"family" names a whole family. Writes are buffered
and sent in batches. A get or scan takes one request (more if commits must be looked up), never one request for each
cell.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from pyomid.cells import CellBatch
from pyomid.coroutines import Blocking, Routine
from pyomid.database.driver import Run
from pyomid.database.index_tables import raise_if_index_dropped
from pyomid.database.tables import arrow
from pyomid.database.tables.arrow import ArrowScan
from pyomid.database.tables.indexes import INDEX_COLUMN, IndexChanges, IndexRows, index_named, indexes_of, kept_indexes
from pyomid.database.tables.scans import DescendingScan, RowScan, iterated, page_token, rest_of_range, scan_range
from pyomid.database.validation import Handle, TableRules, check_limit, check_list, shown
from pyomid.database.writes.open_reads import OpenRead
from pyomid.database.writes.own_cells import Row
from pyomid.database.writes.shown_rows import full_name, named
from pyomid.errors import ExpectationFailed, Misuse, MisuseType
from pyomid.observe import Kind
from pyomid.rows.column_types import column_type
from pyomid.rows.row_key import error_key, key_layout, shown_key
from pyomid.rows.values import exact, shown_value
from pyomid.types import Column, ConflictLevel, IndexState, KeyRange, TableInfo

if TYPE_CHECKING:
    import pyarrow as pa

    from pyomid.database.tables.typed import TypedCore
    from pyomid.database.transaction import TransactionCore

Cells = Mapping[bytes, bytes]
"""b"family:qualifier" → value."""

Expected = Mapping[bytes, bytes | None]
"""b"family:qualifier" → the expected value; None: the column must not exist."""

COUNTER_BYTES: Final = 8
"""A counter is signed and big-endian, like those of HBase's increments and `Bytes.toLong`."""

INDEXED_ROWS_AT_ONCE: Final = 1_000
"""If the table has indexes, so many rows of Arrow data are read in one request."""

RowCells = tuple[bytes, Mapping[Column, bytes | None]]
"""A checked key, and the checked cells to write; None deletes a cell."""


class Exchange(NamedTuple):
    """The changes to an index for one written row."""

    kept: IndexRows
    entries: TableInfo
    """The entry of the index's table."""
    changes: IndexChanges


class TableCore:
    """A table in a transaction's snapshot, with its own writes, for both front ends."""

    def __init__(self, transaction: TransactionCore, rules: TableRules) -> None:
        self.transaction = transaction
        self._rules = rules
        self._writes = transaction.writes

    @property
    def info(self) -> TableInfo:
        return self._rules.info

    @property
    def name(self) -> str:
        return self._rules.info.name

    def begin_scan(
        self,
        start: bytes,
        stop: bytes | None,
        prefix: bytes | None,
        columns: Iterable[bytes] | None,
        limit: int | None,
        *,
        reverse: bool = False,
        after: str | None = None,
    ) -> RowScan:
        """Check the arguments and return a scan, which has read nothing yet. With `after`, a page's token, the scan
        begins after that page."""
        self.transaction.check_read()
        key_range = scan_range(self._rules, start, stop, prefix)
        if after is not None:
            key_range = rest_of_range(key_range, after, reverse=reverse)
        selection = self._rules.selection(columns)
        kind = DescendingScan if reverse else RowScan
        return kind(self.transaction, self._rules.info, key_range, selection, check_limit(limit))

    async def page(
        self,
        start: bytes,
        stop: bytes | None,
        prefix: bytes | None,
        columns: Iterable[bytes] | None,
        limit: int,
        *,
        reverse: bool,
        after: str | None,
    ) -> Page:
        """Return a page. The call reads one more row, to know whether another page follows."""
        self.transaction.check_read()
        wanted = check_limit(limit)
        if not wanted:
            raise Misuse(f"limit {limit} is too small; a page has at least one row", value=limit)
        scan = self.begin_scan(start, stop, prefix, columns, wanted + 1, reverse=reverse, after=after)
        rows: list[tuple[bytes, dict[bytes, bytes]]] = []
        while (found := (await scan.next())) is not None:
            rows += found
        goes_on = len(rows) > wanted
        del rows[wanted:]
        return Page(tuple(rows), page_token(rows[-1][0], reverse=reverse) if goes_on else None)

    async def arrow_scan(
        self, start: bytes, stop: bytes | None, prefix: bytes | None, columns: Sequence[str] | Sequence[bytes] | None
    ) -> ArrowScan:
        """Return a vectorized read of the rows that the transaction sees now."""
        self.transaction.check_read()
        key_range = scan_range(self._rules, start, stop, prefix)
        converter = arrow.converter(self._rules, columns)
        await self.transaction.begin_read()
        if self.transaction.can_write:
            await self.transaction.flush_within()
        elif self._writes.has_buffered:
            self.transaction.check_write()
        read = self.transaction.open_read(self.name, key_range)
        return ArrowScan(self.info, read, self.transaction.overlay, converter, self.transaction.check_open)

    async def write_arrow(self, data: Any) -> int:
        self.transaction.check_write()
        batches = arrow.record_batches(data)
        is_typed = self._rules.info.schema is not None
        untyped = None if is_typed else arrow.UntypedRows(self._rules, batches.schema)
        encoder = arrow.TypedEncoder(self._rules.info, batches.schema) if is_typed else None
        count = 0
        try:
            while (batch := (await Blocking(partial(arrow.next_batch, batches)))) is not None:
                self.transaction.check_write()
                if untyped is not None:
                    rows = list(untyped.rows(batch))
                else:
                    assert encoder is not None
                    encoded = encoder.encode(batch)
                    if not self.info.indexes:
                        self._writes.ids.note_batch(self._writes.buffer_of(self.info), encoded)
                        write = self._writes.batch_write(self._rules.info, encoded)
                        await self.transaction.leaving(write)
                        count += batch.num_rows
                        continue
                    rows = [(encoded.row_key(at), _cells_of(encoded, at)) for at in range(encoded.rows)]
                for first in range(0, len(rows), INDEXED_ROWS_AT_ONCE):
                    part = rows[first : first + INDEXED_ROWS_AT_ONCE]
                    await self._buffer_rows(part)
                    count += len(part)
        except BaseException as error:
            if count and self.transaction.can_write:
                self.transaction.mark_rollback_only(f"only {count} rows of its Arrow data were written: {error}")
            raise
        return count

    def put(self, key: bytes, cells: Cells, expect: Expected | None, *, conflict: bool) -> Routine[None] | None:
        """Buffer a put. Return the routine that the caller must still run; usually None."""
        if expect is not None:
            return self.put_expecting(key, cells, expect, conflict=conflict)
        if self._rules.info.indexes:
            return self.put_indexed(key, cells, conflict=conflict)
        self.transaction.begin_write()
        if conflict and self._writes.put_known(self._rules, key, cells):
            is_due = self._writes.is_flush_due
        else:
            row, checked = checked_put(self._rules, key, cells)
            is_due = self._writes.buffer(self._rules.info, row, checked, conflict=conflict)
        return self.transaction.send() if is_due else None

    async def put_indexed(self, key: bytes, cells: Cells, *, conflict: bool) -> None:
        """Do the work of `put` for a table with indexes."""
        self.transaction.check_write()
        row, checked = checked_put(self._rules, key, cells)
        await self.buffer(row, checked, conflict=conflict)

    async def fill_index(self, name: str, start: bytes, rows_max: int) -> bytes | None:
        """Put rows from `start` on into an index, and claim them. Return the key at which to continue; None at the
        end."""
        self.transaction.check_write()
        index = index_named(self.info, name)
        if index.info.state is IndexState.DROPPING:
            raise Misuse(f"index {name!r} of table {self.name!r} was dropped while it was being built", index=name)
        scan = RowScan(self.transaction, self.info, KeyRange(start), None, rows_max)
        last, count = b"", 0
        while (found := (await scan.read())) is not None:
            rows = [(key, columns_of(row)) for key, row in found]
            if rows:
                last, count = rows[-1][0], count + len(rows)
                before: dict[bytes, Mapping[Column, bytes | None]] = {key: {} for key, _ in rows}
                exchanges = await self._exchanges([index], rows, before)
                await self._exchange([(key, {}) for key, _ in rows], exchanges, conflict=True)
        return last + b"\0" if count == rows_max else None

    async def wrong_index_rows(self) -> list[str]:
        """Look up every row in each index, and compare the numbers of rows. Return the errors, one sentence for each
        wrong index."""
        wrong: list[str] = []
        for index in indexes_of(self.info):
            if index.info.state is not IndexState.READY or self.transaction.start_ts < index.info.ready_ts:
                continue
            entries = await self.transaction.table(index.info.table)
            due = present = count = 0
            scan = RowScan(self.transaction, self.info, KeyRange(), None, None)
            while (rows := (await scan.read())) is not None:
                standing = (index.standing_key(row, columns_of(cells)) for row, cells in rows)
                keys = [key for key in standing if key is not None]
                found = await entries.read(keys, None)
                due, present = due + len(keys), present + sum(map(bool, found))
            scan = RowScan(self.transaction, entries.info, KeyRange(), None, None)
            while (rows := (await scan.read())) is not None:
                count += len(rows)
            if not due == present == count:
                wrong.append(
                    f"index {index.info.name!r} of table {self.name!r} has {count} rows, {count - present} of them "
                    f"wrong, and lacks {due - present} rows; drop and rebuild the index"
                )
        return wrong

    async def _kept(self, rows: Sequence[RowCells], *, conflict: bool) -> list[list[Exchange]]:
        """Return the changes to the indexes for each row (X3). The call buffers and claims nothing."""
        written = set(chain.from_iterable(cells for _, cells in rows))
        touched = [index for index in kept_indexes(self.info) if not written.isdisjoint(index.info.columns)]
        if not touched:
            return [[] for _ in rows]
        if not conflict:
            row = rows[0][0]
            raise Misuse(
                f"table {self.name!r}, row {shown(row)}: conflict=False cannot write columns of the index "
                f"{touched[0].info.name!r}, because after two such concurrent writes the index would contain both "
                "values",
                row=row,
            )
        places = list(dict.fromkeys(place for index in touched for place in index.info.columns))
        keys = [key for key, _ in rows]
        found = await self.read(keys, places)
        return await self._exchanges(touched, rows, dict(zip(keys, found, strict=True)))

    async def _exchanges(
        self, indexes: Sequence[IndexRows], rows: Sequence[RowCells], before: Mapping[bytes, Mapping[Column, Any]]
    ) -> list[list[Exchange]]:
        tables: list[TableCore] = []
        for index in indexes:
            try:
                tables.append(await self.transaction.table(index.info.table))
            except BaseException as error:
                raise_if_index_dropped(error)
                raise
        exchanges: list[list[Exchange]] = []
        for row, cells in rows:
            exchanges.append([])
            for index, table in zip(indexes, tables, strict=True):
                if not cells.keys().isdisjoint(index.info.columns):
                    changes = index.changes(row, before[row], cells, table.checked_key)
                    exchanges[-1].append(Exchange(index, table.info, changes))
        return exchanges

    async def _exchange(
        self, rows: Sequence[RowCells], exchanges: Sequence[Sequence[Exchange]], *, conflict: bool
    ) -> None:
        """Buffer cells and their index rows. If the call is interrupted, no part of them is committed."""
        if conflict:
            self._writes.ids.check_room(self._writes.buffer_of(self.info), list(map(_named_by, rows, exchanges)))
        try:
            for (key, cells), of_row in zip(rows, exchanges, strict=True):
                is_due = False
                for kept, entries, changes in of_row:
                    self._claim((key,), kept.info.columns, ({},))
                    for entry, value in changes:
                        is_due |= self._writes.buffer(entries, entry, {INDEX_COLUMN: value}, conflict=False)
                if cells:
                    is_due |= self._writes.buffer(self.info, key, dict(cells), conflict=conflict)
                if is_due:
                    await self.transaction.send()
        except BaseException as error:
            if self.transaction.can_write:
                reason = str(error) or repr(error)
                self.transaction.mark_rollback_only(
                    f"a write to table {self.name!r} was buffered only in part: {reason}"
                )
            raise

    # For typed tables (`typed`), with checked keys and columns

    def checked_key(self, key: bytes) -> bytes:
        return self._rules.row_key(key)

    def checked_cells(self, key: bytes, cells: Mapping[Column, bytes | None]) -> dict[Column, bytes | None]:
        self._rules.row_key(key)
        return {
            column: None if value is None else self._rules.value(key, full_name(column), value)
            for column, value in cells.items()
        }

    async def claim_cells(self, keys: Sequence[bytes], columns: Sequence[Column]) -> None:
        self.transaction.check_write()
        self._claim(keys, columns, [{} for _ in keys])

    async def get(self, key: bytes, columns: Iterable[bytes] | None, *, for_update: bool) -> dict[bytes, bytes] | None:
        checked = self._rules.row_key(key)
        selection = None if columns is None else self._rules.selection(columns)
        rows = await self.read((checked,), selection, for_update=for_update)
        return named(rows[0]) or None

    async def rows(
        self, keys: Iterable[bytes], columns: Iterable[bytes] | None, *, for_update: bool = False
    ) -> dict[bytes, dict[bytes, bytes] | None]:
        checked, selection = check_keys(self._rules, keys), self._rules.selection(columns)
        found = await self.read(checked, selection, for_update=for_update)
        return {key: named(row) or None for key, row in zip(checked, found, strict=True)}

    def read(
        self,
        keys: Sequence[bytes],
        selection: Sequence[Column] | None,
        *,
        for_update: bool = False,
        read: OpenRead | None = None,
    ) -> Routine[list[Row]]:
        """Return the rows of checked `keys` as they are now, or as the open `read` sees them (C15). `for_update` also
        claims the rows."""
        if for_update:
            return self._read_and_claim(keys, selection)
        transaction, info = self.transaction, self._rules.info
        transaction.check_read()
        if transaction.writes.is_writing or not keys or selection == []:
            return self._read_later(keys, selection, read)
        return transaction.observed(Kind.READ, info.name, transaction.overlay.read(info, keys, selection, read))

    async def _read_later(
        self, keys: Sequence[bytes], selection: Sequence[Column] | None, read: OpenRead | None
    ) -> list[Row]:
        await self.transaction.begin_read()
        if not keys or selection == []:
            return [{} for _ in keys]
        return await self.read(keys, selection, read=read)

    async def _read_and_claim(self, keys: Sequence[bytes], selection: Sequence[Column] | None) -> list[Row]:
        self.transaction.check_write()
        rows = await self.read(keys, selection)
        self._claim(keys, selection, rows)
        return rows

    async def claim(self, keys: Iterable[bytes], columns: Iterable[bytes] | None) -> None:
        self.transaction.check_write()
        checked, selection = check_keys(self._rules, keys), self._rules.selection(columns)
        if names_columns(selection) or ConflictLevel.CELL not in self._rules.info.id_levels:
            self._claim(checked, selection, [{} for _ in checked])
        else:
            await self.read(checked, selection, for_update=True)

    def _claim(self, keys: Sequence[bytes], selection: Sequence[Column] | None, rows: Sequence[Row]) -> None:
        """Claim rows. At level row, the call claims each row. At level cell, it claims the selected columns, existing
        or not. For whole rows and families at level cell, it claims the columns in `rows`, and the row's own id, which
        only such claims name."""
        info = self._rules.info
        named_columns = [column for column in selection or () if column.qualifier]
        itself = () if selection and names_columns(selection) else (None,)
        for key, row in zip(keys, rows, strict=True):
            self._writes.claim(info, key, [*row, *named_columns, *itself])

    async def put_expecting(self, key: bytes, cells: Cells, expect: Expected, *, conflict: bool) -> None:
        self.transaction.check_write()
        row, checked = checked_put(self._rules, key, cells)
        expected = checked_expectation(self._rules, row, expect)
        (found,) = await self.read((row,), list(expected), for_update=True)
        for column, value in expected.items():
            if found.get(column) != value:
                raise unexpected(self._rules.info, row, full_name(column), value, found.get(column))
        await self.buffer(row, checked, conflict=conflict)

    async def put_if_absent(self, key: bytes, cells: Cells) -> bool:
        self.transaction.check_write()
        row, checked = checked_put(self._rules, key, cells)
        (found,) = await self.read((row,), list(checked))
        if found:
            return False
        await self.buffer(row, checked)
        return True

    async def increment(self, key: bytes, column: bytes, by: int) -> int:
        self.transaction.check_write()
        row, counted = self._rules.row_key(key), self._rules.column(column)
        (found,) = await self.read((row,), [counted])
        total = counter_value(self._rules.info, row, counted, found.get(counted)) + check_step(by)
        await self.buffer(row, {counted: counter_bytes(self._rules.info, row, counted, total)})
        return total

    async def delete(self, keys: Iterable[bytes], columns: Iterable[bytes] | None) -> None:
        self.transaction.check_write()
        checked = check_keys(self._rules, keys)
        selection = self._rules.selection(columns)
        if selection is not None and names_columns(selection):
            await self._buffer_rows([(key, dict.fromkeys(selection)) for key in checked])
            return
        found = await self.read(checked, selection)
        await self._buffer_rows([(key, dict.fromkeys(row)) for key, row in zip(checked, found, strict=True)])

    def buffer(self, key: bytes, cells: Mapping[Column, bytes | None], *, conflict: bool = True) -> Routine[None]:
        return self._buffer_rows([(key, cells)], conflict=conflict)

    async def _buffer_rows(self, rows: Sequence[RowCells], *, conflict: bool = True) -> None:
        """Buffer writes of different rows: either all of them, or none, with an error."""
        exchanges: list[list[Exchange]] = [[] for _ in rows]
        if self.info.indexes:
            exchanges = await self._kept(rows, conflict=conflict)
        await self._exchange(rows, exchanges, conflict=conflict)


@dataclass(frozen=True, slots=True)
class Page:
    """A page of a scan's rows, returned by `Table.page`. `next` is the token of the next page, as URL-safe text; None
    if no row follows this page."""

    rows: tuple[tuple[bytes, dict[bytes, bytes]], ...]
    next: str | None

    def _repr_html_(self) -> str:
        from pyomid.database.tables.html import rows_html

        return rows_html({"key": key} | dict(row) for key, row in self.rows)


S = TypeVar("S", bound="TableCore | TypedCore[Any]")


class TableHandle(Handle, Generic[S]):
    """The common base class of all tables that programs use. `_table` is the table in its transaction."""

    _table: S

    @property
    def info(self) -> TableInfo:
        """The table's catalog entry."""
        return self._table.info

    @property
    def name(self) -> str:
        return self._table.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._table.transaction.shown}>"


class BlockingTable(TableHandle[S]):
    """The common base class of the blocking tables."""

    def __init__(self, table: S, run: Run) -> None:
        self._table = table
        self._run = run

    def _reader(self, routine: Routine[ArrowScan]) -> pa.RecordBatchReader:
        scan = self._run(routine)
        return scan.reader(scan.batches(self._run))


class Table(BlockingTable[TableCore]):
    """A table as a transaction sees it: the transaction's snapshot and its own writes. Returned by
    `Transaction.table`."""

    def get(
        self, key: bytes, columns: Iterable[bytes] | None = None, *, for_update: bool = False
    ) -> dict[bytes, bytes] | None:
        """Return the visible columns of the row, or with `columns`, only the named columns. Return None if the row has
        none of these columns.

        With `for_update`, the call also claims the data that it reads (see `Transaction.claim`).
        """
        return self._run(self._table.get(key, columns, for_update=for_update))

    def rows(
        self, keys: Iterable[bytes], columns: Iterable[bytes] | None = None, *, for_update: bool = False
    ) -> dict[bytes, dict[bytes, bytes] | None]:
        """Return a dict that maps each key to the key's row, or to None if the row does not exist. The dict keeps the
        order of `keys`. The call reads all keys in one request.

        With `for_update`, the call also claims the data that it reads (see `Transaction.claim`).
        """
        return self._run(self._table.rows(keys, columns, for_update=for_update))

    def put(self, key: bytes, cells: Cells, *, expect: Expected | None = None, conflict: bool = True) -> None:
        """Set columns of the row; the row's other columns stay unchanged. The call checks names and limits immediately,
        but the client sends the write later.

        `expect` maps columns of the row to their expected values, or to None if the column must not exist. If a stored
        value differs from the expected value, the call raises `ExpectationFailed` and writes nothing. The call claims
        the columns of `expect`, so the expected values are still current if the transaction commits.

        With `conflict=False`, an overlapping transaction may write the same cells, and both transactions may commit.
        HBase then keeps the write of the transaction that began later. A folder keeps the write of the transaction that
        committed later. For a transaction that flushed before the commit, the time of the first flush counts, not the
        time of the commit.
        """
        routine = self._table.put(key, cells, expect, conflict=conflict)
        if routine is not None:
            self._run(routine)

    def put_if_absent(self, key: bytes, cells: Cells) -> bool:
        """Put the cells if none of these columns exists. Return True if the cells were put."""
        return self._run(self._table.put_if_absent(key, cells))

    def increment(self, key: bytes, column: bytes, by: int = 1) -> int:
        """Add `by` to a counter and return the sum. A counter that does not exist counts as 0. Counters are stored as
        HBase stores them: 8 bytes, signed, big-endian. Of two overlapping transactions that increment the same counter,
        one aborts."""
        return self._run(self._table.increment(key, column, by))

    def delete(self, key: bytes, columns: Iterable[bytes] | None = None) -> None:
        """Delete the row, or some of its columns.

        To delete a whole row or family, the call deletes each column that this transaction sees. If an overlapping
        transaction adds a column, that column survives at conflict level "cell"; at level "row", the two transactions
        conflict.
        """
        return self._run(self._table.delete([key], columns))

    def delete_rows(self, keys: Iterable[bytes], columns: Iterable[bytes] | None = None) -> None:
        """Delete many rows, or some of their columns. If the call must read the rows first, it reads all rows in one
        request."""
        return self._run(self._table.delete(keys, columns))

    def scan(
        self,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        prefix: bytes | None = None,
        columns: Iterable[bytes] | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
        """Iterate over rows from `start` (inclusive) to `stop` (exclusive), in ascending order of keys, or in
        descending order with `reverse`. The scan fetches rows in batches.

        With `prefix`, the scan returns only keys that begin with this prefix. `start` and `stop` are whole keys, even
        with `prefix`; the call raises `Misuse` if they exclude all keys with the prefix. The scan shows the writes that
        the transaction made before this call, and ends when the transaction ends.
        """
        return self._rows_of(self._table.begin_scan(start, stop, prefix, columns, limit, reverse=reverse))

    def page(
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
        """Return up to `limit` rows of a scan with these arguments. `after` is the `next` of the preceding page; an
        earlier transaction may have read that page. The new page begins with the first row that this transaction sees
        after the last row of the preceding page.
        """
        return self._run(self._table.page(start, stop, prefix, columns, limit, reverse=reverse, after=after))

    def to_arrow(
        self,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        prefix: bytes | None = None,
        columns: Sequence[str] | Sequence[bytes] | None = None,
    ) -> pa.RecordBatchReader:
        """Return the rows of a range, in key order, as Arrow data. The data includes this transaction's writes before
        the call.

        If the table has a schema, the data has the schema's columns. If the table has no schema, or if `columns` are
        bytes, the data has a column `key` and the named columns, all of type binary. Without a schema and without
        `columns`, the data has a column `key`, and a column `cells` with a map of the row's cells. The returned reader
        is lazy: consume it in any thread, while the transaction is open. The reader omits writes that the transaction
        makes after the call. DuckDB, Polars and pandas accept the reader. The call needs pyarrow.
        """
        return self._reader(self._table.arrow_scan(start, stop, prefix, columns))

    def write_arrow(self, data: Any) -> int:
        """Write Arrow data and return the number of rows. The data is a RecordBatch, Table, RecordBatchReader, or an
        object with `__arrow_c_stream__` (a pandas or Polars frame, a DuckDB result).

        The data's columns have the names of the schema's columns. For a table without a schema, the data's columns have
        the names `key` and "family:qualifier", and the type binary. A null removes the stored value; columns that the
        data omits stay unchanged. The call converts integers, decimals and times from another Arrow type if the column
        can hold the values exactly. Otherwise the call raises `MisuseType`, which names the column. If the call wrote
        rows before an error, the transaction becomes rollback-only. The call needs pyarrow.
        """
        return self._run(self._table.write_arrow(data))

    def _rows_of(self, scan: RowScan) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
        return iterated(lambda: self._run(scan.next()))


# Checks of arguments


def _cells_of(batch: CellBatch, at: int) -> dict[Column, bytes | None]:
    return {Column(cell.family, cell.qualifier): cell.value or None for cell in batch.row_cells(at)}


@lru_cache(maxsize=10_000)
def column_named(name: bytes) -> Column:
    """Return the column with this full name."""
    family, _, qualifier = name.partition(b":")
    return Column(family, qualifier)


def columns_of(row: Mapping[bytes, bytes]) -> dict[Column, bytes]:
    """Convert a row of a scan to a dict with `Column` keys."""
    return {column_named(name): value for name, value in row.items()}


def check_keys(rules: TableRules, keys: object) -> list[bytes]:
    """Return checked row keys, without duplicates, in the given order."""
    return list(dict.fromkeys(rules.row_key(key) for key in check_list("keys", keys, "row keys")))


def _named_by(row: RowCells, exchanges: Sequence[Exchange]) -> tuple[bytes, Collection[Column]]:
    """Return a written row with the columns that the commit names: the written columns, and the columns of its indexes,
    which are claimed."""
    key, cells = row
    return key, set(cells).union(*(kept.info.columns for kept, _, _ in exchanges)) if exchanges else cells


def checked_put(rules: TableRules, key: object, cells: object) -> tuple[bytes, dict[Column, bytes | None]]:
    """Return the checked arguments of `put`, before anything is buffered."""
    row = rules.row_key(key)
    if type(cells) is not dict and not isinstance(cells, Mapping):
        raise MisuseType(f"cells {cells!r} is {type(cells).__name__}, not a mapping of column to value", value=cells)
    if not cells:
        raise Misuse(f"table {rules.info.name!r}: the put of row {row!r} has no cells", row=row)
    return row, rules.cells(row, cells)


def names_columns(selection: Sequence[Column] | None) -> bool:
    """Whether all columns are selected by full names."""
    return selection is not None and all(column.qualifier for column in selection)


def checked_expectation(rules: TableRules, row: bytes, expect: object) -> dict[Column, bytes | None]:
    if not isinstance(expect, Mapping):
        raise MisuseType(
            f"expect {expect!r} is {type(expect).__name__}, not a mapping of column to value", value=expect
        )
    if not expect:
        raise Misuse(
            f"table {rules.info.name!r}: the put of row {row!r} has an empty `expect`; name at least one column in "
            "it, or omit it",
            row=row,
        )
    return {
        rules.column(name): None if value is None else rules.value(row, name, value) for name, value in expect.items()
    }


def unexpected(info: TableInfo, row: bytes, column: str | bytes, expected: object, found: object) -> ExpectationFailed:
    """Return the error for a value that a put did not expect. The values are bytes for a stored column, or Python
    values for a typed column."""
    layout = None if info.schema is None else key_layout(info.schema)
    return ExpectationFailed(
        f"table {info.name!r}, row {shown_key(row, layout)}: {_shown(column)} {_state(found)}, but the put expects "
        f"that it {_state(expected)}",
        table=info.name,
        row=error_key(row, layout),
        column=column,
        expected=expected,
        found=found,
    )


def _state(value: object) -> str:
    return "does not exist" if value is None else f"is {_shown(value)}"


def _shown(value: object) -> str:
    return shown(value) if isinstance(value, bytes) else shown_value(value)


def check_step(by: object) -> int:
    try:
        step: int = exact(by, column_type("long"))
    except (TypeError, ValueError) as error:
        raise MisuseType(f"by {shown_value(by)}: {error}", value=by) from error
    return step


def counter_value(info: TableInfo, row: bytes, column: Column, value: bytes | None) -> int:
    if value is not None and len(value) != COUNTER_BYTES:
        raise Misuse(
            f"table {info.name!r}, row {shown(row)}: {shown(full_name(column))} holds {len(value)} bytes, but a "
            f"counter has {COUNTER_BYTES} bytes",
            row=row,
        )
    return 0 if value is None else int.from_bytes(value, "big", signed=True)


def counter_bytes(info: TableInfo, row: bytes, column: Column, total: int) -> bytes:
    try:
        return total.to_bytes(COUNTER_BYTES, "big", signed=True)
    except OverflowError:
        raise Misuse(
            f"table {info.name!r}, row {shown(row)}: {shown(full_name(column))} would be {total}, which "
            f"exceeds the {COUNTER_BYTES} bytes of a counter",
            row=row,
            value=total,
        ) from None
