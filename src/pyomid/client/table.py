"""A table inside a transaction.

    accounts = tx.table("accounts")
    accounts.put(b"alice", {b"f:balance": b"100"})
    accounts.get(b"alice")                              # {b"f:balance": b"100"}; {} where nothing is visible
    accounts.rows([b"alice", b"bob"])                   # one request
    for key, row in accounts.scan(prefix=b"a", columns=[b"f:balance"], limit=10): ...

Columns are named b"family:qualifier"; b"family" stands for a whole family where columns are chosen. Writes are held
back and sent in batches; a get or scan is one request (and more where commits must be looked up), never one a cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from pyomid.cells import CellBatch
from pyomid.client.transaction_base import Event
from pyomid.client.validation import TableRules, check_limit
from pyomid.errors import Misuse, MisuseType
from pyomid.types import Column, KeyRange, TableInfo, narrowed_range

if TYPE_CHECKING:
    from pyomid.client.transaction import Transaction

Cells = Mapping[bytes, bytes]
"""b"family:qualifier" → value."""


class Table:
    """A table in one transaction's snapshot, with its own writes. Made by `Transaction.table`."""

    def __init__(self, transaction: Transaction, rules: TableRules) -> None:
        self._transaction = transaction
        self._rules = rules
        self._run = transaction.database.driver.run
        self._workspace = transaction.workspace

    @property
    def info(self) -> TableInfo:
        """The catalog entry."""
        return self._rules.info

    @property
    def name(self) -> str:
        return self._rules.info.name

    def get(self, key: bytes, columns: Iterable[bytes] | None = None) -> dict[bytes, bytes]:
        """The row's visible columns; {} where there is no such row."""
        self._transaction.begin_read()
        checked = self._rules.row_key(key)
        selection = self._rules.selection(columns)
        if selection == []:
            return {}
        (row,) = self._run(self._workspace.read_steps(self._rules.info, (checked,), selection))
        return named(row)

    def rows(self, keys: Iterable[bytes], columns: Iterable[bytes] | None = None) -> dict[bytes, dict[bytes, bytes]]:
        """Many rows by one request: every requested key, in the requested order; {} where there is no such row."""
        self._transaction.begin_read()
        checked = check_keys(self._rules, keys)
        selection = self._rules.selection(columns)
        if not checked or selection == []:
            return {key: {} for key in checked}
        found = self._run(self._workspace.read_steps(self._rules.info, checked, selection))
        return {key: named(row) for key, row in zip(checked, found, strict=True)}

    def put(self, key: bytes, cells: Cells) -> None:
        """Sets columns of the row; its other columns stay. Names and limits are checked now, the write leaves later."""
        self._transaction.step(Event.WRITE)
        self._hold(*checked_put(self._rules, key, cells))

    def delete(self, key: bytes, columns: Iterable[bytes] | None = None) -> None:
        """Deletes the row, or some columns of it.

        A row (or a family) is deleted column by column as this transaction sees them: at conflict level "cell" a
        column that another transaction adds meanwhile survives; at level "row" the two conflict.
        """
        self.delete_rows([key], columns)

    def delete_rows(self, keys: Iterable[bytes], columns: Iterable[bytes] | None = None) -> None:
        """`delete` of many rows, read in one request where they must be read."""
        self._transaction.step(Event.WRITE)
        checked = check_keys(self._rules, keys)
        selection = self._rules.selection(columns)
        if selection is not None and all(column.qualifier for column in selection):
            for key in checked:
                self._hold(key, dict.fromkeys(selection, None))
            return
        self._transaction.begin_read()
        found = self._run(self._workspace.read_steps(self._rules.info, checked, selection))
        for key, row in zip(checked, found, strict=True):
            self._hold(key, dict.fromkeys(row, None))

    def scan(
        self,
        start: bytes = b"",
        stop: bytes | None = None,
        *,
        prefix: bytes | None = None,
        columns: Iterable[bytes] | None = None,
        limit: int | None = None,
    ) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
        """Rows from `start` (inclusive) to `stop` (exclusive), ascending by key, fetched in batches.

        With `prefix`, those of them that begin with it; `Misuse` where start and stop, whole keys, leave nothing of it.
        Own writes made while the scan runs are seen where it has not yet been. Ends with the transaction.
        """
        self._transaction.begin_read()
        key_range = scan_range(self._rules, start, stop, prefix)
        selection = self._rules.selection(columns)
        return self._scan(key_range, selection, check_limit(limit))

    def _hold(self, key: bytes, cells: Mapping[Column, bytes | None]) -> None:
        if cells and self._workspace.hold(self._rules.info, key, cells):
            self._transaction.send()

    def _scan(
        self, key_range: KeyRange, selection: Sequence[Column] | None, limit: int | None
    ) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
        if limit == 0 or selection == []:
            return
        left = limit
        for key, row in self._visible_rows(key_range, selection, limit):
            self._transaction.step(Event.READ)
            yield key, named(row)
            if left is not None:
                left -= 1
                if left == 0:
                    return

    def _visible_rows(
        self, key_range: KeyRange, selection: Sequence[Column] | None, limit: int | None
    ) -> Iterator[tuple[bytes, dict[Column, bytes]]]:
        info, workspace = self._rules.info, self._workspace
        scan = workspace.begin_scan(info, key_range)
        batches: Iterator[CellBatch] | None = None
        while True:
            self._transaction.begin_read()
            if batches is None or scan.is_overtaken:
                batches = self._batches(scan.begin_again(), selection, limit)
            batch = next(batches, None)
            if batch is None:
                break
            if batch.rows:
                rows = self._run(workspace.batch_steps(info, batch, selection))
                passed = scan.pass_to(batch.row_key(batch.rows - 1) + b"\0")
                yield from list(workspace.merged(info, rows, passed, selection))
        self._run(workspace.scanned_steps())
        yield from list(workspace.merged(info, (), scan.key_range, selection))

    def _batches(
        self, key_range: KeyRange, selection: Sequence[Column] | None, limit: int | None
    ) -> Iterator[CellBatch]:
        database = self._transaction.database
        rows_max = batch_rows(database.settings.scan_batch_rows, limit)
        return database.parts.store.scan(self._rules.info.name, key_range, selection, batch_rows_max=rows_max)


# What the blocking and the asyncio table share


def named(row: Mapping[Column, bytes]) -> dict[bytes, bytes]:
    """A row by its columns' full names."""
    return {_name(column): value for column, value in row.items()}


@lru_cache(maxsize=10_000)
def _name(column: Column) -> bytes:
    return b"%b:%b" % column


def check_keys(rules: TableRules, keys: object) -> list[bytes]:
    """Row keys, each once, in the order given."""
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise MisuseType(f"keys {keys!r} is not a list of row keys", value=keys)
    return list(dict.fromkeys(rules.row_key(key) for key in keys))


def checked_put(rules: TableRules, key: object, cells: object) -> tuple[bytes, dict[Column, bytes | None]]:
    """The arguments of `put`, or an error before anything is held."""
    row = rules.row_key(key)
    if not isinstance(cells, Mapping):
        raise MisuseType(f"cells {cells!r} is {type(cells).__name__}, not a mapping of column to value", value=cells)
    if not cells:
        raise Misuse(f"table {rules.info.name!r}: a put of row {row!r} without cells would write nothing", row=row)
    return row, rules.cells(row, cells)


def scan_range(rules: TableRules, start: object, stop: object, prefix: object) -> KeyRange:
    """The rows a scan asks for; start and stop inside the prefix narrow it."""
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


def batch_rows(batch_rows_max: int, limit: int | None) -> int:
    """Rows to fetch at once: not thousands where few are wanted, some more where a few are not visible."""
    return batch_rows_max if limit is None else min(batch_rows_max, max(16, limit + limit // 4))
