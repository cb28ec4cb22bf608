"""The change feed: it returns the changes of a table's rows between two positions, by the rules of `protocol.changes`.

    mark = db.bookmark(keep_seconds=3600)                  # holds W below the mark for an hour, or until its release
    …
    new = db.bookmark(keep_seconds=3600)
    for change in db.changes("accounts", mark, new):
        print(change.kind, change.row, change.before, change.after)
    db.release_bookmark(mark)

The store finds rows that may have changed by their stored versions (`DataStore.changed_rows`). The feed then reads
these rows whole, some hundreds at a time, so that only these are in memory. Spark reads inserts as batches, because a
load leaves millions of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from pyomid.cells import CellBatch
from pyomid.coroutines import Blocking, Routine
from pyomid.database.lease_keeper import Lease, LeaseKeeper
from pyomid.database.row_changes import ChangeView
from pyomid.database.tables.scans import scan_range
from pyomid.database.validation import Handle, TableRules, check_seconds, find_table, open_table
from pyomid.errors import Misuse, MisuseType
from pyomid.protocol import changes
from pyomid.protocol.effects import Begin, ReadNotedDrop, ReadWatermarks
from pyomid.protocol.reading import CommitCache, Snapshot, within_life
from pyomid.protocol.timestamps import dated
from pyomid.types import TIMESTAMP_MAX, BeginReply, Bookmark, KeyRange, TableInfo, TableLife

if TYPE_CHECKING:
    from pyomid.database.open_database import OpenDatabase
    from pyomid.ports import Deployment

ROWS_AT_ONCE: Final = 500
"""Number of rows read at a time, whose cells become Python objects."""

INSERTS_AT_ONCE: Final = 10_000
INSERTS_LEAST: Final = 50
"""Minimum number of rows that are checked as a batch; fewer rows are read one by one."""

T = TypeVar("T")
ChangeT = TypeVar("ChangeT")


async def draw_bookmark(leases: LeaseKeeper, keep_s: float | None) -> tuple[Bookmark, Lease | None]:
    """Return the position after everything committed so far, and its lease, or None. With `keep_s`, the lease is
    durable when the call returns, and the caller must `keep` it."""
    if keep_s is not None:
        check_seconds("keep_seconds", keep_s)
    mark, begun = await draw_mark()
    lease: Lease | None = None
    try:
        if keep_s is not None:
            lease = await Blocking(partial(leases.grant_lasting, begun.start_ts, keep_s))
    finally:
        begun.end()
    return mark, lease


async def draw_mark() -> tuple[Bookmark, BeginReply]:
    """Return the position after everything committed so far, and the begin's reply, which holds W below the position. W
    is read first (F2)."""
    watermark, _ = await ReadWatermarks()
    begun: BeginReply = await Begin()
    return Bookmark(begun.start_ts, watermark), begun


async def end_of(ending: Bookmark | int | None) -> Snapshot:
    """Return a snapshot of all commits at or before `ending`; if it is None, a snapshot of all commits so far (F1)."""
    begun: BeginReply = await Begin(is_held=False)
    last = begun.start_ts if ending is None else place(ending, "ending").start_ts
    if last > begun.start_ts:
        raise Misuse(f"ending {last} was never handed out; the latest timestamp is {dated(begun.start_ts)}", value=last)
    return Snapshot(last + 1, begun.epoch)


def check_order(
    since: Bookmark, until: Snapshot, starting: str = "", ending: str = "", *, are_both_given: bool = False
) -> None:
    """Raise `Misuse` if `since` lies after `until`. `starting` and `ending` are the caller's arguments as text, for the
    error. `are_both_given` is True if the caller named both ends, so that it can swap them."""
    if until.start_ts <= since.start_ts:
        starting = starting or f"starting {dated(since.start_ts)}"
        ending = ending or f"ending {dated(until.start_ts - 1)}"
        way_out = ": swap them" if are_both_given else ""
        raise Misuse(f"{starting} lies after {ending}{way_out}", value=since.start_ts)


def place(given: object, what: str) -> Bookmark:
    """Return `given`, a bookmark or a timestamp, as a bookmark. `what` names the argument in errors."""
    place = given if isinstance(given, Bookmark) else Bookmark(given)  # type: ignore[arg-type]  # checked below
    for number in place:
        if isinstance(number, bool) or not isinstance(number, int):
            raise MisuseType(f"{what} {given!r} is neither a bookmark nor a timestamp", value=given)
        if not 0 <= number <= TIMESTAMP_MAX:
            raise Misuse(f"{what} {given} is not a valid timestamp", value=given)
    if place.watermark > place.start_ts:  # a search by it would miss changes
        raise Misuse(f"{what} {given} is not a bookmark: its first number is greater than its second", value=given)
    return place


async def in_life(info: TableInfo, since: Bookmark, until: Snapshot | None = None, starting: str = "") -> Bookmark:
    """F5: return the position after which the table's changes begin: `since`, or the table's creation if that is later.
    At its creation the table is empty, so all its rows that were committed before `until` follow as inserts.

    Raises `Misuse` if the snapshot at `since` may know a former table of that name, whose changes are not kept. The
    former table's drop was noted before the current generation was drawn, so the note is read after the entry, `info`.
    `starting` is the caller's argument as text, for the error."""
    if info.generation <= since.start_ts:
        return since
    dropped_ts: int = await ReadNotedDrop(info.name)
    if dropped_ts > since.start_ts:
        raise Misuse(
            f"table {info.name!r} was created at {dated(info.generation)}, after "
            f"{starting or f'the bookmark {dated(since.start_ts)}'}: a former table with the same name may have "
            "existed then, and its changes are gone; start again with a full read",
            table=info.name,
            since=since.start_ts,
            generation=info.generation,
        )
    last_ts = info.generation if until is None else min(info.generation, until.start_ts - 1)
    return since._replace(start_ts=last_ts)


class ChangeBatch(NamedTuple):
    """Changes for callers that use arrays: `inserts` are rows of a batch, and `others` are single changes."""

    inserts: changes.Inserts | None
    others: list[changes.Change]


class ChangeScan:
    """A scan of the changes in a range, some rows at a time, ordered by row, then by commit.

    The scan cannot continue after an error, because rows that it had found may not have been returned yet. The caller
    has checked that the table's changes begin at `since` (`in_life`); from then on R10 holds.
    """

    def __init__(
        self,
        deployment: Deployment,
        table: TableLife,
        key_range: KeyRange,
        since: Bookmark,
        until: Snapshot,
        cache: CommitCache,
    ) -> None:
        self._catalog, self._store, self._table = deployment.catalog, deployment.store, table
        self._since, self._until, self._cache = since, until, cache
        self._found = deployment.store.changed_rows(table.name, key_range, changes.change_bounds(since, until))
        self._rows: Sequence[bytes] = ()
        """Rows that were found, but neither checked nor returned."""
        self._others: Sequence[bytes] = ()
        """Rows that were checked in a batch, whose changes only `read_changes` can return."""
        self._is_over = since.start_ts + 1 == until.start_ts
        self._info: TableInfo | None = None
        self._error: Exception | None = None

    def next(self) -> Routine[list[changes.Change] | None]:
        """Return the next changes; None at the end. Before the end, the call checks W and the table once more, because
        rows may have been removed before the search reached them."""
        return self._once(self._next)

    def next_shown(self, view: ChangeView[ChangeT]) -> Routine[list[ChangeT] | None]:
        """Return the next changes in the form that a program gets. An error of the view also ends the scan."""
        return self._once(partial(self._next_shown, view))

    def next_batch(self) -> Routine[ChangeBatch | None]:
        """Return the next changes, faster than `next` for many inserts, but not ordered by row. Use only one of the two
        for a scan."""
        return self._once(self._next_batch)

    async def _once(self, steps: Callable[[], Routine[T]]) -> T | None:
        if self._error is not None:
            raise self._error
        if self._is_over:
            return None
        self._error = Misuse("the read of these changes was interrupted; start it again", table=self._table.name)
        try:
            found = await within_life(self._table, self._until, steps())
        except Exception as error:
            self._error = error
            raise
        self._error = None
        return found

    async def _next(self) -> list[changes.Change] | None:
        inserts = await self._check_rows()
        if inserts is not None:
            made = (inserts.batch.row_key(row) for row in inserts.seen.rows_present().tolist())
            self._others = sorted([*self._others, *made])
            if not self._others:
                await changes.check_kept(self._table, self._since, self._until)
                return []
        return await self._changes()

    async def _next_shown(self, view: ChangeView[ChangeT]) -> list[ChangeT] | None:
        found = await self._next()
        return None if found is None else await view.shown(found)

    async def _next_batch(self) -> ChangeBatch | None:
        inserts = await self._check_rows()
        if inserts is not None and not self._others:
            await changes.check_kept(self._table, self._since, self._until)
            return ChangeBatch(inserts, [])
        found = await self._changes()
        return None if found is None else ChangeBatch(inserts, found)

    async def _check_rows(self) -> changes.Inserts | None:
        """If all changes were returned, check the next rows that were found: a row without a shadow cell may have been
        found because of an earlier commit. Adjacent rows are checked in one batch, at a hundredth of the cost."""
        if self._info is None:
            self._info = await Blocking(partial(find_table, self._catalog, self._table.name))
        if self._others:
            return None
        rows: Sequence[bytes] = await Blocking(partial(self._next_rows, INSERTS_AT_ONCE))
        batch: CellBatch | None = None
        if len(rows) >= INSERTS_LEAST and self._expires is None:
            batch = await Blocking(partial(self._dense_batch, rows))
        if batch is None:
            self._others = rows
            return None
        found = await changes.read_inserts(self._table.name, batch, self._since, self._until, self._cache)
        inserts, self._others = found
        return inserts

    @property
    def _expires(self) -> TableInfo | None:
        """The table's entry if its values expire, otherwise None (E3, E5)."""
        return self._info if self._info is not None and self._info.ttl_seconds is not None else None

    async def _changes(self) -> list[changes.Change] | None:
        """Return the changes of the next checked rows; None if there are no such rows, which is the end."""
        rows, self._others = self._others[:ROWS_AT_ONCE], self._others[ROWS_AT_ONCE:]
        self._is_over = not rows
        found = await changes.read_changes(self._table, rows, self._since, self._until, self._cache, self._expires)
        return found if rows else None

    def _next_rows(self, most: int) -> Sequence[bytes]:
        if not self._rows:
            self._rows = next(self._found, ())
        rows, self._rows = self._rows[:most], self._rows[most:]
        return rows

    def _dense_batch(self, rows: Sequence[bytes]) -> CellBatch | None:
        """Return a batch of the stored rows from the first of `rows` on, or None if less than half of the batch is in
        `rows`. The next call continues after the batch."""
        bounds = changes.read_bounds(self._since, self._until)
        key_range = KeyRange(rows[0], rows[-1] + b"\0")
        batches = self._store.scan(self._table.name, key_range, None, batch_rows_max=2 * len(rows), bounds=bounds)
        batch = next(batches, None)
        if batch is None or not batch.rows:
            return None
        reached = bisect_right(rows, batch.row_key(batch.rows - 1))
        if 2 * reached < batch.rows:
            return None
        self._rows = [*rows[reached:], *self._rows]
        return batch


async def begin_changes(
    database: OpenDatabase,
    table: str,
    starting: Bookmark | int,
    ending: Bookmark | int | None,
    prefix: Any,
    view: ChangeView[Any],
) -> ChangeScan:
    """Return a scan of the changes. The arguments are checked before any change is read."""
    database.check_usable()
    deployment = database.deployment
    since = place(starting, "starting")
    info: TableInfo = await Blocking(partial(open_table, deployment, table, leased=True))
    view.begin(info)
    within = None if prefix is None else view.prefix(prefix)
    key_range = scan_range(TableRules(info, deployment.store.limits), b"", None, within)
    until = await end_of(ending)
    check_order(since, until, are_both_given=ending is not None)
    since = await in_life(info, since, until)
    return ChangeScan(deployment, info, key_range, since, until, database.commit_cache)


async def next_shown(database: OpenDatabase, scan: ChangeScan, view: ChangeView[ChangeT]) -> list[ChangeT] | None:
    """Return the next changes in the form that a program gets; None at the end."""
    database.check_usable()
    return await scan.next_shown(view)


class Changes(Handle, Generic[ChangeT]):
    """The iterator that `Database.changes` returns. After an error, every further step raises the same error."""

    def __init__(self, table: str, shown_page: Callable[[], list[ChangeT] | None]) -> None:
        self._table = table
        self._shown_page = shown_page
        self._page = deque[ChangeT]()

    def __repr__(self) -> str:
        return f"<Changes of table {self._table!r}>"

    def __iter__(self) -> Changes[ChangeT]:
        return self

    def __next__(self) -> ChangeT:
        while not self._page:
            page = self._shown_page()
            if page is None:
                raise StopIteration
            self._page.extend(page)
        return self._page.popleft()
