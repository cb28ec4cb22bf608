"""A watch: it returns the changes of a row, prefix or table as they are committed, and finds them in rounds.

    round    W is read, a start is drawn: the round's end position ─► all changes since the last position
    pause    then the next round

Between two rounds, W must not pass the last position (F3, F6). The start that was drawn there stays open, like the
start of an open transaction. With `keep_seconds`, a durable lease holds it instead, which outlives the process. An
interrupted round ends the watch; another watch can continue from its position. The second watch may return some changes
again, but misses none.

A restarted program continues from the position that it read last, which may be before the watch's current position:

    position 100 ── read ── round, no change ──► position 200 ── change ── read ── the next change is requested
    leased: 100                                  leased: 100, 200                  leased: 200

So a position that the program read stays leased until the program has read a later position and then requests a change:
by then it has stored the later position. The lease lasts at most `keep_seconds` after the watch passed the position, so
that a table without changes does not hold W (F7).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypedDict, TypeVar

from pyomid.coroutines import Blocking, Pause, Routine
from pyomid.database import change_feed
from pyomid.database.change_feed import ChangeScan
from pyomid.database.driver import Driver
from pyomid.database.row_changes import view_of
from pyomid.database.tables.scans import scan_range
from pyomid.database.validation import Handle, TableRules, check_seconds, open_table
from pyomid.errors import Misuse
from pyomid.protocol.reading import Snapshot
from pyomid.types import BeginReply, Bookmark, KeyRange, LifeOf, TableInfo, TableLife

if TYPE_CHECKING:
    from pyomid.database.lease_keeper import Lease
    from pyomid.database.open_database import OpenDatabase

POLL_SECONDS: Final = 0.2

KEPT_TERMS: Final = 1.5
"""A lease's term, as a multiple of `keep_seconds`. The lease is renewed after a third of its term, so at least
`keep_seconds` are always left."""

REST_S_MAX: Final = 60.0
"""Without changes, a leased position advances after this time, or after a quarter of `keep_seconds` if that is
shorter."""


class LeasedPlace(NamedTuple):
    start_ts: int
    lease: Lease
    until_s: float
    """When the lease ends at the latest, if the program read the position; `inf` while the watch has not passed it."""


ChangeT = TypeVar("ChangeT")


class WatchOptions(TypedDict, total=False):
    """Keyword arguments of `Database.watch`, for its overloads."""

    after: Bookmark | int | None
    keep_seconds: float | None
    max_wait_seconds: float | None
    poll_seconds: float


class Watching(Generic[ChangeT]):
    """The watch itself, which both front ends use."""

    def __init__(
        self,
        database: OpenDatabase,
        table: str,
        *,
        key: Any,
        prefix: Any,
        codec: object,
        after: Bookmark | int | None,
        keep_seconds: float | None,
        max_wait_seconds: float | None,
        poll_seconds: float,
    ) -> None:
        if key is not None and prefix is not None:
            raise Misuse("give key or prefix, not both")
        for name, seconds in (("keep_seconds", keep_seconds), ("max_wait_seconds", max_wait_seconds)):
            if seconds is not None:
                check_seconds(name, seconds)
        check_seconds("poll_seconds", poll_seconds)
        age_s = database.settings.max_transaction_age_seconds
        if keep_seconds is None and poll_seconds >= age_s:
            raise Misuse(
                f"poll_seconds {poll_seconds:g} must be less than maxTransactionAgeSeconds ({age_s:g}), because "
                "otherwise history could expire before the next poll; give keep_seconds, or poll more often",
                value=poll_seconds,
            )
        self._page: Final = deque[ChangeT]()
        """The changes to return next."""
        self._place: Bookmark | None = None if after is None else change_feed.place(after, "after")
        """The position up to which all changes were returned."""
        self._database, self._table = database, table
        self._key, self._prefix = key, prefix
        self._view = view_of(database.deployment.catalog, codec)
        self._keep_s = keep_seconds
        self._wait_s = inf if max_wait_seconds is None else max_wait_seconds
        self._poll_s = poll_seconds
        self._clock = database.deployment.clock
        self._range: KeyRange | None = None
        self._life: TableLife = LifeOf(table)
        """The table as it was when the watch began."""
        self._open: BeginReply | None = None
        """Holds the position's start open. None if a lease holds it, or if the caller gave the position."""
        self._leased: list[LeasedPlace] = []
        """The positions from which the program may continue, ascending, and the current position."""
        self._moved_s = self._clock()
        self._read: set[int] = set() if self._place is None else {self._place.start_ts}
        """The leased positions that the program has read."""
        self._stored_ts = 0
        """The last position that the program had read when it requested a change."""
        self._scan: ChangeScan | None = None
        self._until: tuple[Bookmark, BeginReply] | None = None
        self._has_changes = False
        self._ended: Exception | None = None

    @property
    def bookmark(self) -> Bookmark | None:
        """The position up to which all changes were returned, and from which the program may continue. None before the
        watch began."""
        while (place := self._place) is not None:
            if self._keep_s is not None:
                self._read.add(place.start_ts)
                self._keep_leases()
            if self._place is place:  # otherwise the watch moved on in another thread, and may have missed the read
                break
        return place

    @property
    def shown(self) -> str:
        """The watch's text in the `repr` of a handle. It does not count as a read of the position."""
        place = self._place
        state = "ended" if self._ended is not None else "not begun" if place is None else f"after {place.start_ts}"
        return f"of table {self._table!r} ({state})"

    def take(self) -> ChangeT | None:
        """Return the next change; None if there is none yet, so the caller must call `fill`."""
        try:
            return None if self._ended is not None else self._page.popleft()
        except IndexError:
            return None

    def close(self) -> None:
        """Close the watch. Leases on which the program may rely are not ended, but expire."""
        self._end(
            Misuse(
                f"this watch of table {self._table!r} is closed: to continue, open another watch at the `bookmark` of "
                "this one"
            )
        )

    def _end(self, error: Exception) -> None:
        if self._ended is None:
            self._ended = error
        for held in (self._open, None if self._until is None else self._until[1]):
            if held is not None:
                held.end()
        self._open = self._until = self._scan = None
        self._keep_leases()
        for leased in tuple(self._leased):
            if self._is_known(leased):
                self._database.leases.abandon(leased.lease)
            else:
                self._database.leases.give_back(leased.lease)
        self._page.clear()

    def _keep_leases(self) -> None:
        """Keep the leases of known positions for the program, even if the watch becomes garbage."""
        for leased in tuple(self._leased):
            if self._is_known(leased):
                self._database.leases.keep(leased.lease)

    def _is_known(self, leased: LeasedPlace) -> bool:
        """Whether the position is final, not that of an unfinished begin or round."""
        return self._place is not None and leased.start_ts <= self._place.start_ts

    async def begin(self) -> None:
        """Begin the watch, now or at the given position. Further calls do nothing."""
        await self._whole(self._begin)

    async def fill(self) -> bool:
        """Wait until there is a change to `take`. Return False if none came within `max_wait_seconds`."""
        return await self._whole(self._fill)

    async def _whole(self, work: Callable[[], Routine[bool]]) -> bool:
        """F6: run `work`; an error, an interrupt or a cancellation ends the watch. So the position never passes an
        unfinished round."""
        self._check_open()
        try:
            self._database.check_usable()
            return await work()
        except Exception as error:
            self._end(error)
            if self._ended is not None and self._ended is not error:  # it was closed meanwhile, which released all
                raise self._ended from error
            raise
        except BaseException:
            self.close()
            raise

    def _check_open(self) -> None:
        """Raise an error if the watch is closed. Another thread may close it at any moment, so this is called after a
        start or a lease is held; the error releases that too."""
        if self._ended is not None:
            raise self._ended

    async def _begin(self) -> bool:
        if self._range is not None:
            return False
        deployment = self._database.deployment
        info: TableInfo = await Blocking(partial(open_table, deployment, self._table, leased=True))
        rules = TableRules(info, deployment.store.limits)
        self._view.begin(info)
        if self._key is None:
            found = scan_range(rules, b"", None, None if self._prefix is None else self._view.prefix(self._prefix))
        else:
            key = rules.row_key(self._view.key(self._key))
            found = KeyRange(key, key + b"\0")
        leases = self._database.leases
        if self._place is not None:
            self._place = await change_feed.in_life(info, self._place)
            self._read.add(self._place.start_ts)
            if self._keep_s is not None:  # shared, because others may hold leases on it
                await self._lease(self._place, leases.share)
        else:
            place, self._open = await change_feed.draw_mark()
            place = await change_feed.in_life(info, place)
            if self._keep_s is not None:
                await self._lease(place, leases.grant_lasting)
                self._open.end()
                self._open = None
            self._place = place
        self._range, self._life = found, info
        return True

    async def _fill(self) -> bool:
        await self._begin()
        self._keep_leases()
        self._stored_ts = max(self._read.copy(), default=0)
        until_s = self._clock() + self._wait_s
        while True:
            self._check_open()
            scan = self._scan
            if scan is None:
                self._scan = scan = await self._round()
            while (found := (await scan.next_shown(self._view))) is not None:
                if found:
                    self._has_changes = True
                    self._page.extend(found)
                    self._check_open()
                    return True
            await self._one_pass()
            self._check_open()
            left_s = until_s - self._clock()
            if left_s <= 0:
                return False
            await Pause(min(self._poll_s, left_s))

    async def _round(self) -> ChangeScan:
        assert self._place is not None
        assert self._range is not None
        for leased in self._leased[-1:]:
            if leased.lease.lost is not None:
                raise leased.lease.lost
        self._until = until, held = await change_feed.draw_mark()
        snapshot = Snapshot(until.start_ts + 1, held.epoch)
        change_feed.check_order(self._place, snapshot)
        database = self._database
        return ChangeScan(database.deployment, self._life, self._range, self._place, snapshot, database.commit_cache)

    async def _one_pass(self) -> None:
        """End a round whose changes were all returned. A leased position advances only from time to time, because each
        lease is a durable write."""
        ending, self._scan, self._until = self._until, None, None
        self._check_open()
        assert ending is not None
        until, held = ending
        if self._keep_s is None:
            before, self._open, self._place = self._open, held, until
            if before is not None:
                before.end()
            self._has_changes = False
            return
        if self._has_changes or self._clock() >= self._moved_s + min(REST_S_MAX, self._keep_s / 4):
            await self._lease(until, self._database.leases.grant_lasting)
            self._place = until
            self._keep_leases()
            self._leased[-2] = self._leased[-2]._replace(until_s=self._clock() + self._keep_s)
        held.end()
        self._has_changes = False
        for leased in [leased for leased in self._leased if not self._is_kept(leased)]:
            self._leased.remove(leased)
            self._read.discard(leased.start_ts)
            await Blocking(partial(self._database.leases.end, leased.lease))

    def _is_kept(self, leased: LeasedPlace) -> bool:
        """Whether a position stays leased: it is the current one, or the program may continue from it (F7)."""
        if leased.until_s == inf:
            return True
        return leased.start_ts in self._read and leased.start_ts >= self._stored_ts and self._clock() < leased.until_s

    async def _lease(self, place: Bookmark, keep: Callable[[int, float], Lease]) -> None:
        """Lease a position. The lease keeper renews the lease, even in a long round and while the program does
        something else."""
        assert self._keep_s is not None
        moved_s = self._clock()
        lease: Lease = await Blocking(partial(keep, place.start_ts, KEPT_TERMS * self._keep_s))
        self._leased.append(LeasedPlace(place.start_ts, lease, inf))
        self._moved_s = moved_s
        self._check_open()


class Watch(Handle, Generic[ChangeT]):
    """An iterator over changes as they are committed, returned by `Database.watch`. A `with` block closes the watch at
    the end of the block."""

    def __init__(self, watching: Watching[ChangeT], driver: Driver) -> None:
        self._watching = watching
        self._run = driver.run
        self._run(watching.begin())

    @property
    def bookmark(self) -> Bookmark:
        """The position up to which the watch has returned all changes. Another watch, or `Database.changes`, can
        continue from this position, but may return some changes a second time. With `keep_seconds`, a lease keeps the
        history after this position. The lease ends when the program has read a later bookmark and requested another
        change. The lease never lasts longer than `keep_seconds` after the watch has passed the position."""
        place = self._watching.bookmark
        assert place is not None
        return place

    def __iter__(self) -> Watch[ChangeT]:
        return self

    def __next__(self) -> ChangeT:
        while (change := self._watching.take()) is None:
            if not self._run(self._watching.fill()):
                raise StopIteration
        return change

    def close(self) -> None:
        """Close the watch. If another thread is waiting for a change, `Misuse` is raised in that thread. The lease on
        `bookmark` expires after at most 1.5 times `keep_seconds`."""
        self._watching.close()

    def __repr__(self) -> str:
        return f"<Watch {self._watching.shown}>"

    def __enter__(self) -> Watch[ChangeT]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
