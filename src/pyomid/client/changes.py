"""The change feed: what commits between two places did to a table's rows, by `protocol.changes`.

    mark = db.bookmark(keep_seconds=3600)                  # W stays below it for an hour, or until it is let go
    …
    new = db.bookmark(keep_seconds=3600)
    for change in db.changes("accounts", mark, new):
        print(change.kind, change.row, change.before, change.after)
    db.release_bookmark(mark)

Rows that may have changed are found by their stored versions (`DataStore.changed_rows`), then read whole, some hundreds
at a time. Nothing is in memory but these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from pyomid.client.drive import Blocking
from pyomid.client.tables.table import scan_range
from pyomid.client.transaction_steps import named
from pyomid.client.validation import TableRules, find_table
from pyomid.errors import Misuse, MisuseType
from pyomid.protocol import changes
from pyomid.protocol.effects import Begin, ReadWatermarks, Steps
from pyomid.protocol.expiry import Floors, floors_steps
from pyomid.protocol.reading import CommitCache, Snapshot
from pyomid.types import BeginReply, Bookmark, KeyRange, TableInfo

if TYPE_CHECKING:
    from pyomid.client.database import Database
    from pyomid.ports import Catalog, Deployment

ROWS_AT_ONCE: Final = 500
"""Rows read whole at a time: their cells become Python objects."""


class RowChange(NamedTuple):
    """What one commit changed in one row: its columns before and after it, as `Table.get` returns them."""

    kind: str
    """insert, update or delete."""
    row: bytes
    commit_ts: int
    before: dict[bytes, bytes]
    after: dict[bytes, bytes]


def bookmark_steps(
    deployment: Deployment, keep_s: float | None, note_ended: Callable[[int], object]
) -> Steps[Bookmark]:
    """A place after everything committed so far. W is read before the start is drawn (F2). With `keep_s` a lease is
    durable on return. `note_ended`: of the session that begins."""
    check_keep(keep_s)
    watermark, _ = yield ReadWatermarks()
    begun: BeginReply = yield Begin()
    try:
        if keep_s is not None:
            yield Blocking(partial(deployment.tso.grant_lease, begun.start_ts, keep_s))
    finally:
        note_ended(begun.start_ts)
    return Bookmark(begun.start_ts, watermark)


def check_keep(keep_s: float | None) -> None:
    if keep_s is not None and (isinstance(keep_s, bool) or not isinstance(keep_s, int | float) or not 0 < keep_s < inf):
        raise Misuse(f"keep_seconds {keep_s!r} is not a number of seconds above 0", value=keep_s)


def until_steps(ending: Bookmark | int | None) -> Steps[Snapshot]:
    """A snapshot of all commits at or before `ending`; of all so far without (F1)."""
    begun: BeginReply = yield Begin(is_held=False)
    last = begun.start_ts if ending is None else place(ending, "ending").start_ts
    if last > begun.start_ts:
        raise Misuse(f"ending {last} was never handed out: {begun.start_ts} is the latest", value=last)
    return Snapshot(last + 1, begun.epoch)


def check_order(since: Bookmark, until: Snapshot) -> None:
    if until.start_ts <= since.start_ts:
        raise Misuse(f"starting {since.start_ts} lies after ending {until.start_ts - 1}", value=since.start_ts)


def place(given: object, what: str) -> Bookmark:
    """A bookmark, or a timestamp as one."""
    if isinstance(given, Bookmark):
        return given
    if isinstance(given, bool) or not isinstance(given, int):
        raise MisuseType(f"{what} {given!r} is neither a bookmark nor a timestamp", value=given)
    if given < 0:
        raise Misuse(f"{what} {given} is no timestamp", value=given)
    return Bookmark(given)


def check_table(info: TableInfo, since: Bookmark) -> None:
    """`Misuse` if the table was made, or its rows were replaced from outside, after `since`: what had its name then is
    another table, of which nothing is kept."""
    if info.generation > since.start_ts:
        raise Misuse(
            f"table {info.name!r} was made at {info.generation}, after the bookmark {since.start_ts}: a table that had "
            "its name before was dropped; begin anew, from a full read of this one",
            table=info.name,
            since=since.start_ts,
            generation=info.generation,
        )


class ChangeScan:
    """The changes of a range, some rows at a time, in the order of rows and, of each row, of commits.

    After an error it never goes on: rows that were found were not told.
    """

    def __init__(
        self,
        deployment: Deployment,
        table: str,
        key_range: KeyRange,
        since: Bookmark,
        until: Snapshot,
        cache: CommitCache,
    ) -> None:
        self._catalog, self._table = deployment.catalog, table
        self._since, self._until, self._cache = since, until, cache
        found = deployment.store.changed_rows(table, key_range, changes.change_bounds(since, until))
        self._rows = (rows[at : at + ROWS_AT_ONCE] for rows in found for at in range(0, len(rows), ROWS_AT_ONCE))
        self._is_over = since.start_ts + 1 == until.start_ts
        self._floors: Floors | None = None
        self._has_floors = False
        self._error: Exception | None = None

    def next_steps(self) -> Steps[list[changes.Change] | None]:
        """None at the end, behind a last look at W and at the table: rows may have gone before the search came to
        them."""
        if self._error is not None:
            raise self._error
        if self._is_over:
            return None
        self._error = Misuse("reading these changes was interrupted: begin anew", table=self._table)
        try:
            found = yield from self._next_steps()
        except Exception as error:
            self._error = error
            raise
        self._error = None
        return found

    def _next_steps(self) -> Steps[list[changes.Change] | None]:
        if not self._has_floors:
            info: TableInfo = yield Blocking(partial(find_table, self._catalog, self._table))
            self._floors = yield from floors_steps(info, self._since, self._until, self._cache)
            self._has_floors = True
        rows: Sequence[bytes] | None = yield Blocking(partial(next, self._rows, None))
        self._is_over = rows is None
        found = yield from changes.changes_steps(
            self._table, rows or (), self._since, self._until, self._cache, self._floors
        )
        if rows is None:
            yield from check_still_there_steps(self._catalog, self._table, self._since)
            return None
        return found


def check_still_there_steps(catalog: Catalog, table: str, since: Bookmark) -> Steps[None]:
    """F5: after the last row. A drop is in the catalog before it takes rows away."""
    info: TableInfo = yield Blocking(partial(find_table, catalog, table))
    check_table(info, since)


def begin_changes_steps(
    database: Database,
    table: str,
    starting: Bookmark | int,
    ending: Bookmark | int | None,
    prefix: bytes | None,
) -> Steps[ChangeScan]:
    """Checks the arguments before anything is read."""
    database.check_usable()
    deployment = database.deployment
    since = place(starting, "starting")
    info: TableInfo = yield Blocking(partial(find_table, deployment.catalog, table))
    key_range = scan_range(TableRules(info, deployment.store.limits), b"", None, prefix)
    check_table(info, since)
    until = yield from until_steps(ending)
    check_order(since, until)
    return ChangeScan(deployment, table, key_range, since, until, database.commit_cache)


def shown_steps(database: Database, scan: ChangeScan) -> Steps[list[RowChange] | None]:
    """The next changes as programs see them. None at the end."""
    database.check_usable()
    found = yield from scan.next_steps()
    return None if found is None else list(map(shown, found))


class Changes:
    """What `Database.changes` returns: an iterator, which after an error raises it again."""

    def __init__(self, shown_page: Callable[[], list[RowChange] | None]) -> None:
        self._shown_page = shown_page
        self._page = deque[RowChange]()

    def __iter__(self) -> Changes:
        return self

    def __next__(self) -> RowChange:
        while not self._page:
            page = self._shown_page()
            if page is None:
                raise StopIteration
            self._page.extend(page)
        return self._page.popleft()


def shown(change: changes.Change) -> RowChange:
    kind = "insert" if not change.before else "update" if change.after else "delete"
    return RowChange(kind, change.row, change.commit_ts, named(change.before), named(change.after))
