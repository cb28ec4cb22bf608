"""A watch: the changes of a row or prefix as they are committed, by the change feed, round after round.

    round    W is read, a start is drawn: the place up to which it tells ─► all changes since the last place
    pause    then the next round

Between two rounds W must not pass the last place (F3). The start that was drawn there stays open, as that of a
transaction; or, where the program asked for it, a durable lease keeps it, which outlives the process. A round that
broke off ends the watch; its place is where the next watch may go on. Changes may be told twice then, none is missed.

What a program goes on from is the place that it read last, which may lie behind:

    place 100 ── read ── round, nothing more ──► place 200 ── change ── read ── the next change is asked for
    leased: 100                                  leased: 100, 200               leased: 200

So a place that was read stays leased until the program comes back after it read a later one, which it has stored by
then; at most for the time that it asked for, from when the watch passed it: a table that rests does not hold W (F7).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple

from pyomid.client import changes
from pyomid.client.changes import ChangeScan, RowChange
from pyomid.client.drive import Blocking, Driver, Pause
from pyomid.client.tables.table import scan_range
from pyomid.client.validation import TableRules, find_table
from pyomid.errors import Misuse, MisuseType
from pyomid.protocol.effects import Begin, ReadWatermarks, Steps
from pyomid.protocol.reading import Snapshot
from pyomid.types import BeginReply, Bookmark, KeyRange, TableInfo
from pyomid.wire.open_starts import OpenStart

if TYPE_CHECKING:
    from pyomid.client.database import Database
    from pyomid.client.session.leases import Lease

POLL_SECONDS: Final = 0.2

KEPT_TERMS: Final = 1.5
"""A lease's term, in times that a place is to be kept: what is left of it is never less than one, as it is renewed at a
third of it."""

REST_S_MAX: Final = 60.0
"""A place at which nothing is told is left so often at least, or after a quarter of the time that it is kept."""


class LeasedPlace(NamedTuple):
    start_ts: int
    lease: Lease
    until_s: float
    """Passed, it is kept so long if the program read it; `inf`: it is not passed."""


class Watching:
    """What both front ends drive. `page`: what is told next."""

    def __init__(
        self,
        database: Database,
        note_ended: Callable[[int], None],
        table: str,
        *,
        key: bytes | None,
        prefix: bytes | None,
        after: Bookmark | int | None,
        keep_seconds: float | None,
        max_wait_seconds: float | None,
        poll_seconds: float,
    ) -> None:
        if key is not None and prefix is not None:
            raise Misuse("a watch is of one key or of a prefix, not of both")
        changes.check_keep(keep_seconds)
        _check_seconds("poll_seconds", poll_seconds)
        if max_wait_seconds is not None:
            _check_seconds("max_wait_seconds", max_wait_seconds)
        age_s = database.settings.max_transaction_age_seconds
        if keep_seconds is None and poll_seconds >= age_s:
            raise Misuse(
                f"poll_seconds {poll_seconds:g} is not below maxTransactionAgeSeconds ({age_s:g}): nothing would hold "
                "the place until the next look; give keep_seconds, or look more often",
                value=poll_seconds,
            )
        self._page: Final = deque[RowChange]()
        self._place: Bookmark | None = None if after is None else changes.place(after, "after")
        """All changes up to it were told."""
        self._database, self._table = database, table
        self._key, self._prefix = key, prefix
        self._note_ended = note_ended
        self._keep_s = keep_seconds
        self._wait_s = inf if max_wait_seconds is None else max_wait_seconds
        self._poll_s = poll_seconds
        self._clock = database.deployment.clock
        self._range: KeyRange | None = None
        self._open: OpenStart | None = None
        """Holds W below the place; None where a lease does, or nothing of this watch."""
        self._leased: list[LeasedPlace] = []
        """Ascending: those that the program may go on from, and the present one."""
        self._moved_s = self._clock()
        self._read: set[int] = set() if self._place is None else {self._place.start_ts}
        """The places that the program knows, of those that are leased."""
        self._stored_ts = 0
        """The program came back after it had read this place."""
        self._scan: ChangeScan | None = None
        self._until: tuple[Bookmark, OpenStart] | None = None
        self._has_told = False
        self._ended: Exception | None = None

    @property
    def bookmark(self) -> Bookmark | None:
        """All changes up to it were told; the program may go on from it. None before it began."""
        while (place := self._place) is not None:
            if self._keep_s is not None:
                self._read.add(place.start_ts)
            if self._place is place:  # otherwise the watch, in another thread, may not have seen that it was read
                break
        return place

    def take(self) -> RowChange | None:
        """What is told next. None: `fill_steps` is to look for it."""
        try:
            return None if self._ended is not None else self._page.popleft()
        except IndexError:
            return None

    def close(self) -> None:
        """Holds nothing but its leases, which end by their terms: they are its program's from now on."""
        self._end(Misuse(f"this watch of table {self._table!r} is closed: `bookmark` tells where another may go on"))

    def _end(self, error: Exception) -> None:
        if self._ended is None:
            self._ended = error
        for held in (self._open, None if self._until is None else self._until[1]):
            if held is not None:
                held.end()
        self._open = self._until = self._scan = None
        for leased in tuple(self._leased):
            self._database.leases.abandon(leased.lease)
        self._page.clear()

    def begin_steps(self) -> Steps[None]:
        """What is committed from now on is told, or since the place that was given. Once."""
        yield from self._whole_steps(self._begin_steps())

    def fill_steps(self) -> Steps[bool]:
        """Whether there is something to `take`: waits for it. False: nothing came for so long."""
        return (yield from self._whole_steps(self._fill_steps()))

    def _whole_steps(self, steps: Steps[bool]) -> Steps[bool]:
        """An error, an interrupt or a cancellation ends the watch: a round is told to its end or not passed."""
        self._check_open()
        try:
            self._database.check_usable()
            return (yield from steps)
        except Exception as error:
            self._end(error)
            if self._ended is not None and self._ended is not error:  # closed meanwhile: nothing was held any more
                raise self._ended from error
            raise
        except BaseException:
            self.close()
            raise

    def _check_open(self) -> None:
        """Another thread may close it at any moment: asked behind what is to be held from now on, this ends it too."""
        if self._ended is not None:
            raise self._ended

    def _begin_steps(self) -> Steps[bool]:
        if self._range is not None:
            return False
        deployment = self._database.deployment
        info: TableInfo = yield Blocking(partial(find_table, deployment.catalog, self._table))
        rules = TableRules(info, deployment.store.limits)
        if self._key is None:
            found = scan_range(rules, b"", None, self._prefix)
        else:
            found = KeyRange(rules.row_key(self._key), self._key + b"\0")
        leases = self._database.leases
        if self._place is not None:
            changes.check_table(info, self._place)
            if self._keep_s is not None:  # shared: another lease on it is its giver's to end
                yield from self._lease_steps(self._place, leases.share)
        else:
            place, self._open, _ = yield from self._draw_steps()
            changes.check_table(info, place)
            if self._keep_s is not None:
                yield from self._lease_steps(place, leases.grant_lasting)
                self._open.end()
                self._open = None
            self._place = place
        self._range = found
        return True

    def _fill_steps(self) -> Steps[bool]:
        yield from self._begin_steps()
        self._stored_ts = max(self._read.copy(), default=0)
        until_s = self._clock() + self._wait_s
        while True:
            self._check_open()
            scan = self._scan
            if scan is None:
                self._scan = scan = yield from self._round_steps()
            while (found := (yield from scan.next_steps())) is not None:
                if found:
                    self._has_told = True
                    self._page.extend(map(changes.shown, found))
                    self._check_open()
                    return True
            yield from self._pass_steps()
            self._check_open()
            left_s = until_s - self._clock()
            if left_s <= 0:
                return False
            yield Pause(min(self._poll_s, left_s))

    def _draw_steps(self) -> Steps[tuple[Bookmark, OpenStart, int]]:
        """A place after everything that is committed, held, and the epoch that came with it. W is read first (F2)."""
        watermark, _ = yield ReadWatermarks()
        begun: BeginReply = yield Begin()
        return Bookmark(begun.start_ts, watermark), OpenStart(begun.start_ts, self._note_ended), begun.epoch

    def _round_steps(self) -> Steps[ChangeScan]:
        assert self._place is not None
        assert self._range is not None
        for leased in self._leased[-1:]:
            if leased.lease.lost is not None:
                raise leased.lease.lost
        until, held, epoch = yield from self._draw_steps()
        self._until = until, held
        snapshot = Snapshot(until.start_ts + 1, epoch)
        changes.check_order(self._place, snapshot)
        database = self._database
        return ChangeScan(database.deployment, self._table, self._range, self._place, snapshot, database.commit_cache)

    def _pass_steps(self) -> Steps[None]:
        """All of the round was told. A leased place is passed now and then only: a lease is a durable write."""
        ending, self._scan, self._until = self._until, None, None
        self._check_open()
        assert ending is not None
        until, held = ending
        if self._keep_s is None:
            before, self._open, self._place = self._open, held, until
            if before is not None:
                before.end()
            self._has_told = False
            return
        if self._has_told or self._clock() >= self._moved_s + min(REST_S_MAX, self._keep_s / 4):
            yield from self._lease_steps(until, self._database.leases.grant_lasting)
            self._place = until
            self._leased[-2] = self._leased[-2]._replace(until_s=self._clock() + self._keep_s)
        held.end()
        self._has_told = False
        for leased in [leased for leased in self._leased if not self._is_kept(leased)]:
            self._leased.remove(leased)
            self._read.discard(leased.start_ts)
            yield Blocking(partial(self._database.leases.end, leased.lease))

    def _is_kept(self, leased: LeasedPlace) -> bool:
        """F7: the present place, and what the program may go on from."""
        if leased.until_s == inf:
            return True
        return leased.start_ts in self._read and leased.start_ts >= self._stored_ts and self._clock() < leased.until_s

    def _lease_steps(self, place: Bookmark, keep: Callable[[int, float], Lease]) -> Steps[None]:
        """The keeper renews it, also within a long round and while the program does something else."""
        assert self._keep_s is not None
        moved_s = self._clock()
        lease: Lease = yield Blocking(partial(keep, place.start_ts, KEPT_TERMS * self._keep_s))
        self._leased.append(LeasedPlace(place.start_ts, lease, inf))
        self._moved_s = moved_s
        self._check_open()


def _check_seconds(name: str, given: object) -> None:
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise MisuseType(f"{name} {given!r} is {type(given).__name__}, not a number", value=given)
    if not 0 < given < inf:
        raise Misuse(f"{name} {given} is not a number of seconds above 0", value=given)


class Watch:
    """Changes as they are committed: `Database.watch`. An iterator, and a context manager that closes it."""

    def __init__(self, watching: Watching, driver: Driver) -> None:
        self._watching = watching
        self._run = driver.run
        self._run(watching.begin_steps())

    @property
    def bookmark(self) -> Bookmark:
        """A place up to which all was told: another watch, or `Database.changes`, may go on from it. What was told
        since may come again. With `keep_seconds` it is kept until a later one was read here and a further change asked
        for; at most for so long from when the watch went on."""
        place = self._watching.bookmark
        assert place is not None
        return place

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> RowChange:
        while (change := self._watching.take()) is None:
            if not self._run(self._watching.fill_steps()):
                raise StopIteration
        return change

    def close(self) -> None:
        """Ends it, also while another thread waits in it, which gets `Misuse` then. Only the lease of `keep_seconds`
        stays on `bookmark`, for half as long again at most."""
        self._watching.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
