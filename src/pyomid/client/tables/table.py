"""A table inside a transaction.

    accounts = tx.table("accounts")
    accounts.put(b"alice", {b"f:balance": b"100"})
    accounts.get(b"alice")                              # {b"f:balance": b"100"}; {} where nothing is visible
    accounts.get(b"alice", for_update=True)             # the commit checks it as if it had been written
    accounts.rows([b"alice", b"bob"])                   # one request
    for key, row in accounts.scan(prefix=b"a", columns=[b"f:balance"], limit=10): ...

Columns are named b"family:qualifier"; b"family" stands for a whole family where columns are chosen. Writes are
buffered and sent in batches. A get or scan is one request (more if commits must be looked up), never one for each cell.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyomid.cells import CellBatch
from pyomid.client.drive import Blocking, Run
from pyomid.client.observers.observer import Kind
from pyomid.client.public_names import TABLE, shows
from pyomid.client.tables import arrow
from pyomid.client.tables.arrow import ArrowScan
from pyomid.client.tables.indexes import INDEX_COLUMN, IndexChanges, IndexRows, index_named, indexes_of, kept_indexes
from pyomid.client.transaction_steps import Row, SeenBatch, ShownRows, full_name, named, unless_index_dropped
from pyomid.client.validation import TableRules, check_limit, shown
from pyomid.errors import ExpectationFailed, Misuse, MisuseType
from pyomid.protocol.effects import Steps
from pyomid.types import Column, ConflictLevel, IndexState, KeyRange, TableInfo, narrowed_range

if TYPE_CHECKING:
    import pyarrow as pa

    from pyomid.client.transaction import RowTransaction

Cells = Mapping[bytes, bytes]
"""b"family:qualifier" → value."""

Expected = Mapping[bytes, bytes | None]
"""b"family:qualifier" → the value that it must have; None: it must not be there."""

COUNTER_BYTES: Final = 8
"""A counter is a signed number, big-endian: HBase's increments and `Bytes.toLong` read and write the same."""

INDEXED_ROWS_AT_ONCE: Final = 1_000
"""Rows of Arrow data that are read in one request, where the table has indexes."""

RowCells = tuple[bytes, Mapping[Column, bytes | None]]
"""A checked key, and checked cells to write; None deletes one."""


class Exchange(NamedTuple):
    """What an index is to have of one row that is written."""

    kept: IndexRows
    entries: TableInfo
    """Of the index's table."""
    changes: IndexChanges


class TableBase:
    """A table in one transaction's snapshot, with its own writes, as steps for both front ends."""

    def __init__(self, transaction: RowTransaction[Any], rules: TableRules) -> None:
        self._transaction = transaction
        self._rules = rules
        self._writes = transaction.writes

    @property
    def info(self) -> TableInfo:
        """The catalog entry."""
        return self._rules.info

    @property
    def name(self) -> str:
        return self._rules.info.name

    __dir__ = shows(TABLE)

    # For pyomid's own use

    def get_steps(
        self, key: bytes, columns: Iterable[bytes] | None = None, *, for_update: bool = False
    ) -> Steps[dict[bytes, bytes]]:
        return self._transaction.alone(self._get_steps(key, columns, for_update=for_update))

    def rows_steps(
        self, keys: Iterable[bytes], columns: Iterable[bytes] | None, *, for_update: bool = False
    ) -> Steps[dict[bytes, dict[bytes, bytes]]]:
        return self._transaction.alone(self._rows_steps(keys, columns, for_update=for_update))

    def claim_steps(self, keys: Iterable[bytes], columns: Iterable[bytes] | None) -> Steps[None]:
        return self._transaction.alone(self._claim_steps(keys, columns))

    def buffer_put(self, key: bytes, cells: Cells, *, conflict: bool = True) -> bool:
        """Buffers a put. True: the buffered writes are to be sent now (`RowTransaction.send_steps`)."""
        self._transaction.begin_write()
        row, checked = checked_put(self._rules, key, cells)
        return self._writes.buffer(self._rules.info, row, checked, conflict=conflict)

    def put_expecting_steps(self, key: bytes, cells: Cells, expect: Expected, *, conflict: bool) -> Steps[None]:
        return self._transaction.alone(self._put_expecting_steps(key, cells, expect, conflict=conflict))

    def put_if_absent_steps(self, key: bytes, cells: Cells) -> Steps[bool]:
        return self._transaction.alone(self._put_if_absent_steps(key, cells))

    def increment_steps(self, key: bytes, column: bytes, by: int) -> Steps[int]:
        return self._transaction.alone(self._increment_steps(key, column, by))

    def delete_steps(self, keys: Iterable[bytes], columns: Iterable[bytes] | None) -> Steps[None]:
        return self._transaction.alone(self._delete_steps(keys, columns))

    def begin_scan(
        self,
        start: bytes,
        stop: bytes | None,
        prefix: bytes | None,
        columns: Iterable[bytes] | None,
        limit: int | None,
        *,
        reverse: bool = False,
    ) -> RowScan:
        """Checks the arguments of a scan before anything is read."""
        self._transaction.check_read()
        key_range = scan_range(self._rules, start, stop, prefix)
        selection = self._rules.selection(columns)
        kind = DescendingScan if reverse else RowScan
        return kind(self._transaction, self._rules.info, key_range, selection, check_limit(limit))

    def page_steps(
        self,
        start: bytes,
        stop: bytes | None,
        prefix: bytes | None,
        columns: Iterable[bytes] | None,
        limit: int,
        *,
        reverse: bool,
        after: str | None,
    ) -> Steps[Page]:
        """One row more is read than the page has: whether another page follows."""
        self._transaction.check_read()
        wanted = check_limit(limit)
        if not wanted:
            raise Misuse(f"a page of {limit} rows", value=limit)
        key_range = scan_range(self._rules, start, stop, prefix)
        if after is not None:
            key_range = rest_of_range(key_range, after, reverse=reverse)
        selection = self._rules.selection(columns)
        kind = DescendingScan if reverse else RowScan
        scan = kind(self._transaction, self._rules.info, key_range, selection, wanted + 1)
        rows: list[tuple[bytes, dict[bytes, bytes]]] = []
        while (found := (yield from scan.next_steps())) is not None:
            rows += found
        goes_on = len(rows) > wanted
        del rows[wanted:]
        return Page(tuple(rows), page_token(rows[-1][0], reverse=reverse) if goes_on else None)

    def arrow_scan_steps(
        self, start: bytes, stop: bytes | None, prefix: bytes | None, columns: Sequence[str] | Sequence[bytes] | None
    ) -> Steps[ArrowScan]:
        """A vectorized read of what the transaction sees now."""
        return self._transaction.alone(self._arrow_scan_steps(start, stop, prefix, columns))

    def write_arrow_steps(self, data: Any) -> Steps[int]:
        return self._transaction.alone(self._write_arrow_steps(data))

    def _arrow_scan_steps(
        self, start: bytes, stop: bytes | None, prefix: bytes | None, columns: Sequence[str] | Sequence[bytes] | None
    ) -> Steps[ArrowScan]:
        self._transaction.check_read()
        key_range = scan_range(self._rules, start, stop, prefix)
        converter = arrow.converter(self._rules, columns)
        yield from self._transaction.begin_read_steps()
        if self._transaction.can_write:
            yield from self._transaction.flushed_steps()
        elif self._writes.has_buffered:
            self._transaction.check_write()
        store = self._transaction.database.deployment.store
        snapshot, cache = self._writes.reading(self.name)
        check = self._transaction.check_open
        return ArrowScan(store, self.name, key_range, snapshot, cache, converter, check)

    def _write_arrow_steps(self, data: Any) -> Steps[int]:
        self._transaction.check_write()
        batches = arrow.record_batches(data)
        encoder: arrow.TypedEncoder | None = None
        count = 0
        try:
            while (batch := (yield Blocking(partial(next, batches, None)))) is not None:
                self._transaction.check_write()
                if self._rules.info.schema is None:
                    rows = list(arrow.untyped_rows(self._rules, batch))
                else:
                    encoder = encoder or arrow.TypedEncoder(self._rules.info, batch.schema)
                    encoded = encoder.encode(batch)
                    if not self.info.indexes:
                        write = self._writes.batch_write_steps(self._rules.info, encoded)
                        yield from self._transaction.leaving_steps(write)
                        count += batch.num_rows
                        continue
                    rows = [(encoded.row_key(at), _cells_of(encoded, at)) for at in range(encoded.rows)]
                for first in range(0, len(rows), INDEXED_ROWS_AT_ONCE):
                    part = rows[first : first + INDEXED_ROWS_AT_ONCE]
                    yield from self._buffer_rows_steps(part)
                    count += len(part)
        except BaseException as error:
            if count and self._transaction.can_write:
                self._transaction.mark_rollback_only(f"of its Arrow data only {count} rows were written: {error}")
            raise
        return count

    def put_steps(self, key: bytes, cells: Cells, *, conflict: bool) -> Steps[None]:
        """A put into a table with indexes."""
        return self._transaction.alone(self._put_steps(key, cells, conflict=conflict))

    def fill_index_steps(self, name: str, start: bytes, rows_max: int) -> Steps[bytes | None]:
        return self._transaction.alone(self._fill_index_steps(name, start, rows_max))

    def wrong_index_rows_steps(self) -> Steps[list[str]]:
        return self._transaction.alone(self._wrong_index_rows_steps())

    def _put_steps(self, key: bytes, cells: Cells, *, conflict: bool) -> Steps[None]:
        self._transaction.check_write()
        row, checked = checked_put(self._rules, key, cells)
        yield from self._buffer_steps(row, checked, conflict=conflict)

    def _fill_index_steps(self, name: str, start: bytes, rows_max: int) -> Steps[bytes | None]:
        self._transaction.check_write()
        index = index_named(self.info, name)
        if index.info.state is IndexState.DROPPING:
            raise Misuse(f"index {name!r} of table {self.name!r} was dropped while it was built", index=name)
        scan = RowScan(self._transaction, self.info, KeyRange(start), None, rows_max)
        last, count = b"", 0
        while (found := (yield from scan.read_steps())) is not None:
            rows = [(key, columns_of(row)) for key, row in found]
            if rows:
                last, count = rows[-1][0], count + len(rows)
                before: dict[bytes, Mapping[Column, bytes | None]] = {key: {} for key, _ in rows}
                exchanges = yield from self._exchanges_steps([index], rows, before)
                yield from self._exchange_steps([(key, {}) for key, _ in rows], exchanges, conflict=True)
        return last + b"\0" if count == rows_max else None

    def _wrong_index_rows_steps(self) -> Steps[list[str]]:
        """Every row that should be in an index is looked up there; as many as that the index must have."""
        wrong: list[str] = []
        for index in indexes_of(self.info):
            if index.info.state is not IndexState.READY or self._transaction.start_ts < index.info.ready_ts:
                continue
            entries = yield from self._transaction.table_steps(index.info.table)
            due = present = count = 0
            scan = RowScan(self._transaction, self.info, KeyRange(), None, None)
            while (rows := (yield from scan.read_steps())) is not None:
                standing = (index.standing_key(row, columns_of(cells)) for row, cells in rows)
                keys = [key for key in standing if key is not None]
                found = yield from entries.read_steps(keys, None)
                due, present = due + len(keys), present + sum(map(bool, found))
            scan = RowScan(self._transaction, entries.info, KeyRange(), None, None)
            while (rows := (yield from scan.read_steps())) is not None:
                count += len(rows)
            if not due == present == count:
                wrong.append(
                    f"index {index.info.name!r} of table {self.name!r} has {count} rows, {count - present} of them "
                    f"wrong, and lacks {due - present}: drop it and build it anew"
                )
        return wrong

    def _kept_steps(self, rows: Sequence[RowCells], *, conflict: bool) -> Steps[list[list[Exchange]]]:
        """Of each row what its indexes are to have (X3). Nothing is buffered or claimed."""
        written = set(chain.from_iterable(cells for _, cells in rows))
        touched = [index for index in kept_indexes(self.info) if not written.isdisjoint(index.info.columns)]
        if not touched:
            return [[] for _ in rows]
        if not conflict:
            row = rows[0][0]
            raise Misuse(
                f"table {self.name!r}, row {shown(row)}: columns of the index {touched[0].info.name!r} are written "
                "with conflict=False: of two such writes at once the index would keep both values",
                row=row,
            )
        places = list(dict.fromkeys(place for index in touched for place in index.info.columns))
        keys = [key for key, _ in rows]
        found = yield from self._read_steps(keys, places)
        return (yield from self._exchanges_steps(touched, rows, dict(zip(keys, found, strict=True))))

    def _exchanges_steps(
        self, indexes: Sequence[IndexRows], rows: Sequence[RowCells], before: Mapping[bytes, Mapping[Column, Any]]
    ) -> Steps[list[list[Exchange]]]:
        tables: list[TableBase] = []
        for index in indexes:
            with unless_index_dropped:
                tables.append((yield from self._transaction.table_steps(index.info.table)))
        exchanges: list[list[Exchange]] = []
        for row, cells in rows:
            exchanges.append([])
            for index, table in zip(indexes, tables, strict=True):
                if not cells.keys().isdisjoint(index.info.columns):
                    changes = index.changes(row, before[row], cells, table.checked_key)
                    exchanges[-1].append(Exchange(index, table.info, changes))
        return exchanges

    def _exchange_steps(
        self, rows: Sequence[RowCells], exchanges: Sequence[Sequence[Exchange]], *, conflict: bool
    ) -> Steps[None]:
        """Buffers cells and the rows of indexes that go with them. Whatever breaks it off, no part is committed."""
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
                    yield from self._transaction.sent_steps()
        except BaseException as error:
            if self._transaction.can_write:
                told = str(error) or repr(error)
                self._transaction.mark_rollback_only(f"a write of table {self.name!r} was buffered in part: {told}")
            raise

    # Of typed tables (`typed`), on checked keys and columns

    def checked_key(self, key: bytes) -> bytes:
        return self._rules.row_key(key)

    def checked_cells(self, key: bytes, cells: Mapping[Column, bytes | None]) -> dict[Column, bytes | None]:
        self._rules.row_key(key)
        return {
            column: None if value is None else self._rules.value(key, full_name(column), value)
            for column, value in cells.items()
        }

    def read_steps(self, keys: Sequence[bytes], selection: Sequence[Column] | None) -> Steps[list[Row]]:
        return self._read_steps(keys, selection)

    def claim_cells_steps(self, keys: Sequence[bytes], columns: Sequence[Column]) -> Steps[None]:
        self._transaction.check_write()
        self._claim(keys, columns, [{} for _ in keys])
        yield from ()

    def buffer_steps(self, key: bytes, cells: Mapping[Column, bytes | None], *, conflict: bool = True) -> Steps[None]:
        return self._buffer_steps(key, cells, conflict=conflict)

    def _get_steps(self, key: bytes, columns: Iterable[bytes] | None, *, for_update: bool) -> Steps[dict[bytes, bytes]]:
        checked = self._rules.row_key(key)
        selection = None if columns is None else self._rules.selection(columns)
        rows = yield from self._read_steps((checked,), selection, for_update=for_update)
        return named(rows[0])

    def _rows_steps(
        self, keys: Iterable[bytes], columns: Iterable[bytes] | None, *, for_update: bool
    ) -> Steps[dict[bytes, dict[bytes, bytes]]]:
        checked, selection = check_keys(self._rules, keys), self._rules.selection(columns)
        found = yield from self._read_steps(checked, selection, for_update=for_update)
        return {key: named(row) for key, row in zip(checked, found, strict=True)}

    def _read_steps(
        self, keys: Sequence[bytes], selection: Sequence[Column] | None, *, for_update: bool = False
    ) -> Steps[list[Row]]:
        """The rows of checked `keys`; with `for_update` they are claimed as well."""
        transaction, info = self._transaction, self._rules.info
        if for_update:
            transaction.check_write()
        yield from transaction.begin_read_steps()
        if keys and (selection is None or selection):
            reading = self._writes.read_steps(info, keys, selection)
            rows = yield from transaction.observed(Kind.READ, info.name, reading)
        else:
            rows = [{} for _ in keys]
        if for_update:
            self._claim(keys, selection, rows)
        return rows

    def _claim_steps(self, keys: Iterable[bytes], columns: Iterable[bytes] | None) -> Steps[None]:
        self._transaction.check_write()
        checked, selection = check_keys(self._rules, keys), self._rules.selection(columns)
        if names_columns(selection) or ConflictLevel.CELL not in self._rules.info.id_levels:
            self._claim(checked, selection, [{} for _ in checked])
        else:
            yield from self._read_steps(checked, selection, for_update=True)

    def _claim(self, keys: Sequence[bytes], selection: Sequence[Column] | None, rows: Sequence[Row]) -> None:
        """At level row each row. At level cell the selected columns, there or not; of whole rows and families what
        `rows` shows of them, and an id of the row itself, which only other such claims name."""
        info = self._rules.info
        named_columns = [column for column in selection or () if column.qualifier]
        itself = () if selection and names_columns(selection) else (None,)
        for key, row in zip(keys, rows, strict=True):
            self._writes.claim(info, key, [*row, *named_columns, *itself])

    def _put_expecting_steps(self, key: bytes, cells: Cells, expect: Expected, *, conflict: bool) -> Steps[None]:
        self._transaction.check_write()
        row, checked = checked_put(self._rules, key, cells)
        expected = checked_expectation(self._rules, row, expect)
        (found,) = yield from self._read_steps((row,), list(expected), for_update=True)
        for column, value in expected.items():
            if found.get(column) != value:
                raise unexpected(self._rules.info, row, column, value, found.get(column))
        yield from self._buffer_steps(row, checked, conflict=conflict)

    def _put_if_absent_steps(self, key: bytes, cells: Cells) -> Steps[bool]:
        self._transaction.check_write()
        row, checked = checked_put(self._rules, key, cells)
        (found,) = yield from self._read_steps((row,), list(checked))
        if found:
            return False
        yield from self._buffer_steps(row, checked)
        return True

    def _increment_steps(self, key: bytes, column: bytes, by: int) -> Steps[int]:
        self._transaction.check_write()
        row, counted = self._rules.row_key(key), self._rules.column(column)
        (found,) = yield from self._read_steps((row,), [counted])
        total = counter_value(self._rules.info, row, counted, found.get(counted)) + check_step(by)
        yield from self._buffer_steps(row, {counted: counter_bytes(self._rules.info, row, counted, total)})
        return total

    def _delete_steps(self, keys: Iterable[bytes], columns: Iterable[bytes] | None) -> Steps[None]:
        self._transaction.check_write()
        checked = check_keys(self._rules, keys)
        selection = self._rules.selection(columns)
        if selection is not None and names_columns(selection):
            yield from self._buffer_rows_steps([(key, dict.fromkeys(selection)) for key in checked])
            return
        found = yield from self._read_steps(checked, selection)
        yield from self._buffer_rows_steps([(key, dict.fromkeys(row)) for key, row in zip(checked, found, strict=True)])

    def _buffer_steps(self, key: bytes, cells: Mapping[Column, bytes | None], *, conflict: bool = True) -> Steps[None]:
        return self._buffer_rows_steps([(key, cells)], conflict=conflict)

    def _buffer_rows_steps(self, rows: Sequence[RowCells], *, conflict: bool = True) -> Steps[None]:
        """Of different rows: all of them, or none and an error."""
        exchanges: list[list[Exchange]] = [[] for _ in rows]
        if self.info.indexes:
            exchanges = yield from self._kept_steps(rows, conflict=conflict)
        yield from self._exchange_steps(rows, exchanges, conflict=conflict)


class RowScan:
    """A scan: its rows batch by batch."""

    def __init__(
        self,
        transaction: RowTransaction[Any],
        info: TableInfo,
        key_range: KeyRange,
        selection: Sequence[Column] | None,
        limit: int | None,
    ) -> None:
        self._transaction = transaction
        self._info = info
        self._selection = selection
        self._rows_max = batch_rows(transaction.database.settings.scan_batch_rows, limit)
        self._left = limit
        self._scan = transaction.writes.begin_scan(info, key_range)
        self._batches: Iterator[CellBatch] | None = None
        self._rows: ShownRows[bytes] | list[tuple[bytes, dict[bytes, bytes]]] = []
        """Handed out last."""
        self._is_over = limit == 0 or selection == []

    def next_steps(self) -> Steps[Iterator[tuple[bytes, dict[bytes, bytes]]] | None]:
        """The next rows, maybe none. None at the end of the scan."""
        return self._transaction.alone(self._transaction.observed(Kind.SCAN, self._info.name, self._next_steps()))

    def _next_steps(self) -> Steps[Iterator[tuple[bytes, dict[bytes, bytes]]] | None]:
        if self._transaction.is_leased or self._left is not None:
            found = yield from self.read_steps()
            return None if found is None else self._shown(found)
        rows = yield from self._all_steps()
        if rows is None:
            return None
        self._rows = rows
        self._transaction.note_scan(self)
        return iter(rows)

    def cut(self) -> None:
        """The transaction ended: no more of the rows that were handed out are shown, and to ask for the next ones is
        refused."""
        self._rows.clear()
        self._is_over = False

    def read_steps(self) -> Steps[list[tuple[bytes, dict[bytes, bytes]]] | None]:
        """As `next_steps`, within another call of the transaction."""
        found = yield from self._seen_steps()
        if found is None:
            return None
        return self._limited(self._transaction.writes.merged(self._info, *found, self._selection))

    def _all_steps(self) -> Steps[ShownRows[bytes] | list[tuple[bytes, dict[bytes, bytes]]] | None]:
        """As `read_steps`, of a scan without a limit."""
        found = yield from self._seen_steps()
        return None if found is None else self._transaction.writes.shown(self._info, *found, self._selection)

    def _seen_steps(self) -> Steps[tuple[list[SeenBatch], KeyRange] | None]:
        """What is seen next, and the range that it is all of. None at the end of the scan."""
        if self._is_over:
            return None
        yield from self._transaction.begin_read_steps()
        writes = self._transaction.writes
        if self._batches is None or self._scan.is_overtaken:
            self._batches = self._ask(self._scan.begin_again())
        batch: CellBatch | None = yield Blocking(partial(next, self._batches, None))
        passed = self._scan.key_range
        if batch is not None and not batch.rows:
            return [], KeyRange(passed.start, passed.start)
        seen = yield from writes.batch_steps(self._info, batch, self._selection)
        if batch is None:
            self._is_over = True
        else:
            passed = self._scan.pass_to(batch.row_key(batch.rows - 1) + b"\0")
        return [] if seen is None else [seen], passed

    def _ask(self, key_range: KeyRange) -> Iterator[CellBatch]:
        store = self._transaction.database.deployment.store
        return store.scan(
            self._info.name,
            key_range,
            self._selection,
            batch_rows_max=self._rows_max,
            bounds=self._transaction.writes.bounds,
        )

    def _limited(self, rows: list[tuple[bytes, dict[bytes, bytes]]]) -> list[tuple[bytes, dict[bytes, bytes]]]:
        if self._left is None:
            return rows
        rows = rows[: self._left]
        self._left -= len(rows)
        self._is_over = self._is_over or not self._left
        return rows

    def _shown(self, rows: list[tuple[bytes, dict[bytes, bytes]]]) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
        """Yields as long as the transaction may read, which the loss of a lease may end at any moment. Whose it is was
        asked for all of them at once."""
        check_open = self._transaction.check_open
        for row in rows:
            check_open()
            yield row


class DescendingScan(RowScan):
    """The same from the last row to the first: by parts of the range, each read as far as it goes and turned round."""

    def _all_steps(self) -> Steps[ShownRows[bytes] | list[tuple[bytes, dict[bytes, bytes]]] | None]:
        return self.read_steps()

    def read_steps(self) -> Steps[list[tuple[bytes, dict[bytes, bytes]]] | None]:
        if self._is_over:
            return None
        yield from self._transaction.begin_read_steps()
        writes, whole = self._transaction.writes, self._scan.key_range
        if whole.stop is not None and whole.stop <= whole.start:
            self._is_over = True
            return []
        store = self._transaction.database.deployment.store
        start: bytes = yield Blocking(partial(store.start_of_last_rows, self._info.name, whole, self._rows_max))
        part = KeyRange(start, whole.stop)
        batches: list[CellBatch] = yield Blocking(lambda: list(self._ask(part)))
        found: list[SeenBatch] = []
        for batch in (*(each for each in batches if each.rows), None):
            seen = yield from writes.batch_steps(self._info, batch, self._selection)
            found += () if seen is None else (seen,)
        self._is_over = start <= whole.start
        passed = self._scan.pass_down_to(start)
        merged = writes.merged(self._info, found, passed, self._selection)
        return self._limited(merged[::-1])


@dataclass(frozen=True, slots=True)
class Page:
    """Rows of a scan, and `next`: the token of the page after them, None if no row follows. A token is text that a URL
    takes as it is."""

    rows: tuple[tuple[bytes, dict[bytes, bytes]], ...]
    next: str | None


class Table(TableBase):
    """A table in one transaction's snapshot, with its own writes. Made by `Transaction.table`."""

    def __init__(self, transaction: RowTransaction[Table], rules: TableRules, run: Run) -> None:
        super().__init__(transaction, rules)
        self._run = run

    def get(
        self, key: bytes, columns: Iterable[bytes] | None = None, *, for_update: bool = False
    ) -> dict[bytes, bytes]:
        """The row's visible columns; {} if the row does not exist.

        `for_update`: what is read is claimed too (`Transaction.claim`).
        """
        return self._run(self.get_steps(key, columns, for_update=for_update))

    def rows(
        self, keys: Iterable[bytes], columns: Iterable[bytes] | None = None, *, for_update: bool = False
    ) -> dict[bytes, dict[bytes, bytes]]:
        """Many rows in one request: every requested key, in the requested order; {} for a row that does not exist.

        `for_update`: what is read is claimed too (`Transaction.claim`).
        """
        return self._run(self.rows_steps(keys, columns, for_update=for_update))

    def put(self, key: bytes, cells: Cells, *, expect: Expected | None = None, conflict: bool = True) -> None:
        """Sets columns of the row; its other columns stay. Names and limits are checked now, the write leaves later.

        `expect`: values that columns of the row must have, None for a column that must not be there; otherwise
        `ExpectationFailed`, and nothing is written. What was expected holds at the commit too.

        `conflict` False: another transaction may write the same cells at the same time, and both commit; of such
        writes the one whose transaction began later stays.
        """
        if expect is not None:
            self._run(self.put_expecting_steps(key, cells, expect, conflict=conflict))
        elif self._rules.info.indexes:
            self._run(self.put_steps(key, cells, conflict=conflict))
        elif self.buffer_put(key, cells, conflict=conflict):
            self._run(self._transaction.send_steps())

    def put_if_absent(self, key: bytes, cells: Cells) -> bool:
        """As `put`, if none of these columns is there. Whether it wrote."""
        return self._run(self.put_if_absent_steps(key, cells))

    def increment(self, key: bytes, column: bytes, by: int = 1) -> int:
        """Adds to a counter, which begins at 0, and returns the sum. It is stored as HBase stores counters: 8 bytes,
        signed, big-endian. Of two transactions that overlap and count in one cell, one aborts."""
        return self._run(self.increment_steps(key, column, by))

    def delete(self, key: bytes, columns: Iterable[bytes] | None = None) -> None:
        """Deletes the row, or some columns of it.

        A row (or a family) is deleted column by column as this transaction sees them: at conflict level "cell" a
        column that another transaction adds meanwhile survives; at level "row" the two conflict.
        """
        self._run(self.delete_steps([key], columns))

    def delete_rows(self, keys: Iterable[bytes], columns: Iterable[bytes] | None = None) -> None:
        """`delete` of many rows, which are read in one request if they must be read."""
        self._run(self.delete_steps(keys, columns))

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
        """Rows from `start` (inclusive) to `stop` (exclusive), ascending by key, or descending with `reverse`, fetched
        in batches.

        With `prefix`, only rows that begin with it; `Misuse` if start and stop, which are whole keys, leave none of
        them. Own writes made while the scan runs are seen in the part that it has not reached. It ends with the
        transaction.
        """
        return self._rows_of(self.begin_scan(start, stop, prefix, columns, limit, reverse=reverse))

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
        """Up to `limit` rows of a scan with these arguments. `after`: the `next` of the page before, which may be of an
        earlier transaction: rows are then those that this one sees beyond the last row of that page.
        """
        return self._run(self.page_steps(start, stop, prefix, columns, limit, reverse=reverse, after=after))

    def to_arrow(
        self,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        prefix: bytes | None = None,
        columns: Sequence[str] | Sequence[bytes] | None = None,
    ) -> pa.RecordBatchReader:
        """Rows of a range as Arrow, in key order, with what this transaction has written up to now.

        By the table's schema: its columns by name. A table without one, or `columns` named as bytes: `key`, and each
        named column, as binary; without `columns` a map of the row's cells. The reader is lazy: it is used up while the
        transaction is open, in any thread; what the transaction writes meanwhile may be in it or not. DuckDB, Polars
        and pandas take it as it is. Needs pyarrow.
        """
        scan = self._run(self.arrow_scan_steps(start, stop, prefix, columns))
        return scan.reader(scan.batches(self._transaction.database.driver.run))

    def write_arrow(self, data: Any) -> int:
        """Writes a RecordBatch, Table, RecordBatchReader, or whatever has `__arrow_c_stream__` (a frame of pandas or
        Polars, a result of DuckDB); returns the number of rows.

        Columns go by name: those of the table's schema, or `key` and "family:qualifier", all binary. A null removes the
        value; columns that are not there stay. What does not fit a column's type is refused; if rows before it were
        written, the transaction is rollback-only then. Needs pyarrow.
        """
        return self._run(self.write_arrow_steps(data))

    # For pyomid's own use

    def fill_index(self, name: str, start: bytes, rows_max: int) -> bytes | None:
        """Puts the rows from `start` on into an index, and claims them. Where the next ones begin; None: no more."""
        return self._run(self.fill_index_steps(name, start, rows_max))

    def wrong_index_rows(self) -> list[str]:
        """What is wrong with the table's indexes, in a sentence each."""
        return self._run(self.wrong_index_rows_steps())

    def _rows_of(self, scan: RowScan) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
        """In no generator of its own, through which each row would pass."""
        return chain.from_iterable(iter(lambda: self._run(scan.next_steps()), None))


# Arguments, checked


def _cells_of(batch: CellBatch, at: int) -> dict[Column, bytes | None]:
    return {Column(cell.family, cell.qualifier): cell.value or None for cell in batch.row_cells(at)}


@lru_cache(maxsize=10_000)
def column_named(name: bytes) -> Column:
    """Of a full name."""
    family, _, qualifier = name.partition(b":")
    return Column(family, qualifier)


def columns_of(row: Mapping[bytes, bytes]) -> dict[Column, bytes]:
    """A row of a scan by its columns."""
    return {column_named(name): value for name, value in row.items()}


def check_keys(rules: TableRules, keys: object) -> list[bytes]:
    """Row keys, each once, in the order given."""
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise MisuseType(f"keys {keys!r} is not a list of row keys", value=keys)
    return list(dict.fromkeys(rules.row_key(key) for key in keys))


def checked_put(rules: TableRules, key: object, cells: object) -> tuple[bytes, dict[Column, bytes | None]]:
    """Checks the arguments of `put` before anything is buffered."""
    row = rules.row_key(key)
    if type(cells) is not dict and not isinstance(cells, Mapping):
        raise MisuseType(f"cells {cells!r} is {type(cells).__name__}, not a mapping of column to value", value=cells)
    if not cells:
        raise Misuse(f"table {rules.info.name!r}: a put of row {row!r} without cells would write nothing", row=row)
    return row, rules.cells(row, cells)


def names_columns(selection: Sequence[Column] | None) -> bool:
    """Whether each column is selected by its full name."""
    return selection is not None and all(column.qualifier for column in selection)


def checked_expectation(rules: TableRules, row: bytes, expect: object) -> dict[Column, bytes | None]:
    if not isinstance(expect, Mapping):
        raise MisuseType(
            f"expect {expect!r} is {type(expect).__name__}, not a mapping of column to value", value=expect
        )
    if not expect:
        raise Misuse(f"table {rules.info.name!r}: a put of row {row!r} that expects nothing", row=row)
    return {
        rules.column(name): None if value is None else rules.value(row, name, value) for name, value in expect.items()
    }


def unexpected(
    info: TableInfo, row: bytes, column: Column, expected: bytes | None, found: bytes | None
) -> ExpectationFailed:
    name = full_name(column)
    return ExpectationFailed(
        f"table {info.name!r}, row {shown(row)}: {shown(name)} {_state(found)}, and the put expected that it "
        f"{_state(expected)}",
        table=info.name,
        row=row,
        column=name,
        expected=expected,
        found=found,
    )


def _state(value: bytes | None) -> str:
    return "is not there" if value is None else f"is {shown(value)}"


def check_step(by: object) -> int:
    if isinstance(by, bool) or not isinstance(by, int):
        raise MisuseType(f"by {by!r} is {type(by).__name__}, not an int", value=by)
    return by


def counter_value(info: TableInfo, row: bytes, column: Column, value: bytes | None) -> int:
    if value is not None and len(value) != COUNTER_BYTES:
        raise Misuse(
            f"table {info.name!r}, row {shown(row)}: {shown(full_name(column))} holds {len(value)} bytes, and a "
            f"counter has {COUNTER_BYTES}",
            row=row,
        )
    return 0 if value is None else int.from_bytes(value, "big", signed=True)


def counter_bytes(info: TableInfo, row: bytes, column: Column, total: int) -> bytes:
    try:
        return total.to_bytes(COUNTER_BYTES, "big", signed=True)
    except OverflowError:
        raise Misuse(
            f"table {info.name!r}, row {shown(row)}: {shown(full_name(column))} would be {total}, more than the "
            f"{COUNTER_BYTES} bytes of a counter hold",
            row=row,
            value=total,
        ) from None


def scan_range(rules: TableRules, start: object, stop: object, prefix: object) -> KeyRange:
    """The rows that a scan reads: start and stop inside the prefix narrow it."""
    low = rules.bound("start", start)
    high = None if stop is None else rules.bound("stop", stop)
    found = narrowed_range(low, high, None if prefix is None else rules.bound("prefix", prefix))
    if found is None:
        raise Misuse(
            f"table {rules.info.name!r}: scan bounds start={start!r}, stop={stop!r} leave nothing of "
            f"prefix={prefix!r}: they are whole keys, not what follows the prefix",
            table=rules.info.name,
        )
    return found


def page_token(key: bytes, *, reverse: bool) -> str:
    """Direction and last key of a page."""
    return base64.urlsafe_b64encode(_TOKENS[reverse] + key).decode().rstrip("=")


def rest_of_range(key_range: KeyRange, token: object, *, reverse: bool) -> KeyRange:
    """What is left of the range after the page that gave the token. `Misuse` if it is no token of such a scan."""
    if not isinstance(token, str):
        raise MisuseType(f"after {token!r} is {type(token).__name__}, not str", value=token)
    try:
        decoded = base64.b64decode(token.encode() + b"=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except ValueError:
        decoded = b""
    key = decoded[1:]
    if decoded[:1] != _TOKENS[reverse] or not key or key not in key_range:
        raise Misuse(f"after {token[:60]!r} is no token of a page of this scan", value=token)
    return KeyRange(key_range.start, key) if reverse else KeyRange(key + b"\0", key_range.stop)


_TOKENS: Final = {False: b"\x01", True: b"\x02"}


def batch_rows(batch_rows_max: int, limit: int | None) -> int:
    """Rows to fetch at once: not thousands if few are wanted, and some more because a few may not be visible."""
    return batch_rows_max if limit is None else min(batch_rows_max, max(16, limit + limit // 4))
