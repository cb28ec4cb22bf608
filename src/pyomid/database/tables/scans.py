"""Scans of a table's rows, ascending and descending; their ranges, and the tokens of their pages."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from itertools import chain
from types import AsyncGeneratorType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from pyomid.coroutines import Routine
from pyomid.database.native import shown_rows as kernels
from pyomid.database.validation import TableRules
from pyomid.database.writes.open_reads import OpenRead
from pyomid.database.writes.shown_rows import OwnRows, SeenBatch, merged, shown_rows
from pyomid.errors import Misuse, MisuseType
from pyomid.observe import Kind
from pyomid.protocol.reading import SnapshotScan
from pyomid.types import Column, KeyRange, TableInfo, narrowed_range

if TYPE_CHECKING:
    from pyomid.database.transaction import TransactionCore

T = TypeVar("T")


class RowScan:
    """A scan, which returns rows batch by batch. It shows the transaction's writes as they were when the scan was
    created (C15), or as the open `read` of the same rows sees them."""

    def __init__(
        self,
        transaction: TransactionCore,
        info: TableInfo,
        key_range: KeyRange,
        selection: Sequence[Column] | None,
        limit: int | None,
        read: OpenRead | None = None,
    ) -> None:
        self._transaction = transaction
        self._info = info
        self._selection = selection
        self._batch_rows_max = transaction.database.settings.scan_batch_rows
        self._rows_max = batch_rows(self._batch_rows_max, limit)
        self._left = limit
        self._read = transaction.open_read(info.name, key_range) if read is None else read
        self._scan: SnapshotScan | None = None
        self._rows: kernels.ShownRows[bytes] | list[tuple[bytes, dict[bytes, bytes]]] = []
        """The rows that were returned last."""
        self._is_over = limit == 0 or selection == []

    def next(self) -> Routine[Iterator[tuple[bytes, dict[bytes, bytes]]] | None]:
        """Return the next rows, possibly none. None at the end of the scan."""
        return self._transaction.observed(Kind.SCAN, self._info.name, self._next())

    async def _next(self) -> Iterator[tuple[bytes, dict[bytes, bytes]]] | None:
        if self._transaction.is_leased or self._left is not None:
            found = await self.read()
            return None if found is None else self._shown(found)
        rows = await self._all()
        if rows is None:
            return None
        self._rows = rows
        self._transaction.note_scan(self)
        return iter(rows)

    def cut(self) -> None:
        """End the scan with its transaction: its iterators return no more rows, and the next call raises."""
        self._rows.clear()
        self._is_over = False

    async def read(self) -> list[tuple[bytes, dict[bytes, bytes]]] | None:
        """Return the next rows, like `next`, but within another call of the transaction."""
        found = await self._seen()
        return None if found is None else self._limited(merged(*found, self._selection))

    async def _all(self) -> kernels.ShownRows[bytes] | list[tuple[bytes, dict[bytes, bytes]]] | None:
        """Return the next rows, like `read`, for a scan without a limit."""
        found = await self._seen()
        return None if found is None else shown_rows(*found, self._selection)

    async def _seen(self) -> tuple[list[SeenBatch], OwnRows] | None:
        """Return the store's next batches, and the transaction's own rows in their range. None at the end of the
        scan."""
        if self._is_over:
            return None
        await self._transaction.begin_read()
        try:
            return await self._next_batch()
        except BaseException:
            self._scan = None  # it has passed rows that were not returned
            raise

    async def _next_batch(self) -> tuple[list[SeenBatch], OwnRows]:
        read = self._read
        scan = self._scan
        if scan is None:
            scan = self._scan = self._ask(read.key_range)
        found = await scan.next()
        seen = [] if found is None else [found]
        shown = read.up_to(scan.reached)
        own = await self._transaction.overlay.own_rows(read, self._info, seen, shown, self._selection)
        self._is_over = found is None
        if self._grow():
            self._scan = None  # the next scan begins after this batch, and fetches more rows
        return seen, own

    def _grow(self) -> bool:
        """Enlarge the next batch. Return False if the batch has the full size already.

        A scan with a limit starts with a small batch. It needs a second batch only if rows of the first were deleted.
        The head of a queue may have thousands of deleted rows, and each batch costs a fetch.
        """
        rows_max, self._rows_max = self._rows_max, min(4 * self._rows_max, self._batch_rows_max)
        return rows_max < self._rows_max

    def _ask(self, key_range: KeyRange) -> SnapshotScan:
        return self._transaction.view.scan(self._info, key_range, self._selection, self._rows_max)

    def _limited(self, rows: list[tuple[bytes, dict[bytes, bytes]]]) -> list[tuple[bytes, dict[bytes, bytes]]]:
        if self._left is None:
            return rows
        rows = rows[: self._left]
        self._left -= len(rows)
        if not self._left:
            self._is_over = True
            self._read.end()
        return rows

    def _shown(self, rows: list[tuple[bytes, dict[bytes, bytes]]]) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
        """Yield rows while the transaction may still read: its lease may be lost at any moment. Ownership is checked
        once per batch, not per row."""
        check_open = self._transaction.check_open
        for row in rows:
            check_open()
            yield row


class DescendingScan(RowScan):
    """A scan from the last row to the first. It reads parts of the range, the last part first, and reverses the rows of
    each part."""

    def _all(self) -> Routine[kernels.ShownRows[bytes] | list[tuple[bytes, dict[bytes, bytes]]] | None]:
        return self.read()

    async def read(self) -> list[tuple[bytes, dict[bytes, bytes]]] | None:
        if self._is_over:
            return None
        await self._transaction.begin_read()
        transaction, whole = self._transaction, self._read.key_range
        if whole.stop is not None and whole.stop <= whole.start:
            self._is_over = True
            return []
        start = await transaction.view.start_of_last_rows(self._info, whole, self._rows_max)
        part = self._read.down_to(start)
        scan = self._ask(part)
        seen: list[SeenBatch] = []
        while (found := (await scan.next())) is not None:
            seen.append(found)
        own = await transaction.overlay.own_rows(self._read, self._info, seen, part, self._selection)
        self._is_over = start <= whole.start
        self._grow()
        return self._limited(merged(seen, own, self._selection)[::-1])


# Iterators. After an error, the next call of an iterator requests the same rows again. A generator would end there, and
# its caller would take the rows so far for the whole result.


def iterated(next_rows: Callable[[], Iterator[T] | None]) -> Iterator[T]:
    """Iterate over the rows of all batches, until `next_rows` returns None. This is not a generator, because every row
    would pass through it."""

    def rows_or_error() -> Iterator[T] | None:
        try:
            return next_rows()
        except BaseException as error:
            return _Raised(error)

    return chain.from_iterable(iter(rows_or_error, None))


class _Raised(Iterator[Any]):
    """Raises an error, once."""

    def __init__(self, error: BaseException) -> None:
        self._error: BaseException | None = error

    def __next__(self) -> Any:
        error, self._error = self._error, None
        try:
            raise StopIteration if error is None else error
        finally:
            del error


class AsyncRows(AsyncIterator[T]):
    """Iterates over the rows of all batches, like `iterated`, but for `async for`."""

    def __init__(self, next_rows: Callable[[], Awaitable[Iterator[T] | None]]) -> None:
        self._batches = _Batches(next_rows)
        self._rows = _rows_of(self._batches)

    def __anext__(self) -> Coroutine[Any, Any, T]:
        if _is_ended(self._rows) and not self._batches.is_over:  # it raised an error
            self._rows = _rows_of(self._batches)
        return self._rows.__anext__()

    async def aclose(self) -> None:
        self._batches.is_over = True
        await self._rows.aclose()


def _is_ended(rows: AsyncGenerator[T]) -> bool:
    return isinstance(rows, AsyncGeneratorType) and rows.ag_frame is None


class _Batches(Generic[T]):
    """The batches of an `AsyncRows`. `rows` is the rest of the current batch."""

    def __init__(self, next_rows: Callable[[], Awaitable[Iterator[T] | None]]) -> None:
        self.next_rows = next_rows
        self.rows: Iterator[T] = iter(())
        self.is_over = False


async def _rows_of(batches: _Batches[T]) -> AsyncGenerator[T]:
    while not batches.is_over:
        for row in batches.rows:
            yield row
        rows = await batches.next_rows()
        if rows is None:
            batches.is_over = True
        else:
            batches.rows = rows


# Ranges and pages


def scan_range(rules: TableRules, start: object, stop: object, prefix: object) -> KeyRange:
    """Return the key range of a scan: from start to stop, within the prefix."""
    low = rules.bound("start", start)
    high = None if stop is None else rules.bound("stop", stop)
    found = narrowed_range(low, high, None if prefix is None else rules.bound("prefix", prefix))
    if found is None:
        raise Misuse(
            f"table {rules.info.name!r}: scan bounds start={start!r}, stop={stop!r} exclude all keys with "
            f"prefix={prefix!r}; give whole keys as bounds, not the part after the prefix",
            table=rules.info.name,
        )
    return found


def page_token(key: bytes, *, reverse: bool) -> str:
    """Return a page token: the direction and the page's last key."""
    return base64.urlsafe_b64encode(_TOKENS[reverse] + key).decode().rstrip("=")


def rest_of_range(key_range: KeyRange, token: object, *, reverse: bool) -> KeyRange:
    """Return the rest of the range after the token's page. Raise `Misuse` if the token is not of a scan of this range
    and direction."""
    if not isinstance(token, str):
        raise MisuseType(f"the page token after={token!r} is {type(token).__name__}, not str", value=token)
    try:
        decoded = base64.b64decode(token.encode() + b"=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except ValueError:
        decoded = b""
    key = decoded[1:]
    if decoded[:1] != _TOKENS[reverse] or not key or key not in key_range:
        raise Misuse(f"after={token[:60]!r} is not a page token of this scan", value=token)
    return KeyRange(key_range.start, key) if reverse else KeyRange(key + b"\0", key_range.stop)


_TOKENS: Final = {False: b"\x01", True: b"\x02"}


def batch_rows(batch_rows_max: int, limit: int | None) -> int:
    """Return how many rows to fetch at once: few for a small limit, with some spare because a few may not be
    visible."""
    return batch_rows_max if limit is None else min(batch_rows_max, max(16, limit + limit // 4))
