"""A watch: the changes of a row or prefix as they are committed, by the change feed, round after round.

    round    W is read, a start is drawn: the place up to which it tells ─► all changes since the last place
    pause    then the next round

Between two rounds W must not pass the last place (F3). The start that was drawn there stays open, as that of a
transaction; or, where the program asked for it, a durable lease keeps it, which outlives the process. A round that
broke off ends the watch; its place is where the next watch may go on. Changes may be told twice then, none is missed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Final

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

POLL_SECONDS: Final = 0.2


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
        self.page: Final = deque[RowChange]()
        self.place: Bookmark | None = None if after is None else changes.place(after, "after")
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
        """Holds W below `place`; None where a lease does, or nothing of this watch."""
        self._leased: Bookmark | None = None
        self._leased_s = self._clock()
        self._scan: ChangeScan | None = None
        self._until: tuple[Bookmark, OpenStart] | None = None
        self._has_told = False
        self._ended: Exception | None = None

    def close(self) -> None:
        """Holds nothing but its lease, which is its program's from now on."""
        self._end(Misuse(f"this watch of table {self._table!r} is closed: `bookmark` tells where another may go on"))

    def _end(self, error: Exception) -> None:
        if self._ended is None:
            self._ended = error
        for held in (self._open, None if self._until is None else self._until[1]):
            if held is not None:
                held.end()
        self._open = self._until = self._scan = None
        self.page.clear()

    def begin_steps(self) -> Steps[None]:
        """What is committed from now on is told, or since the place that was given. Once."""
        yield from self._whole_steps(self._begin_steps())

    def fill_steps(self) -> Steps[bool]:
        """Whether there is something in `page`: waits for it. False: nothing came for so long."""
        return (yield from self._whole_steps(self._fill_steps()))

    def _whole_steps(self, steps: Steps[bool]) -> Steps[bool]:
        """An error, an interrupt or a cancellation ends the watch: a round is told to its end or not passed."""
        self._check_open()
        try:
            self._database.check_usable()
            return (yield from steps)
        except Exception as error:
            self._end(error)
            raise
        except BaseException:
            self.close()
            raise

    def _check_open(self) -> None:
        """Another thread may close it meanwhile."""
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
        if self.place is None:
            self.place, self._open, _ = yield from self._draw_steps()
            if self._keep_s is not None:
                yield from self._lease_steps(self.place)
        changes.check_table(info, self.place)
        self._range = found
        return True

    def _fill_steps(self) -> Steps[bool]:
        yield from self._begin_steps()
        until_s = self._clock() + self._wait_s
        while True:
            self._check_open()
            if self._scan is None:
                self._scan = yield from self._round_steps()
            scan = self._scan
            while (found := (yield from scan.next_steps())) is not None:
                if found:
                    self._has_told = True
                    self.page.extend(map(changes.shown, found))
                    return True
            self._check_open()
            yield from self._pass_steps()
            left_s = until_s - self._clock()
            if left_s <= 0:
                return False
            yield Pause(min(self._poll_s, left_s))

    def _draw_steps(self) -> Steps[tuple[Bookmark, OpenStart, int]]:
        """A place behind all that is committed, held, and the epoch that came with it. W is read first (F2)."""
        watermark, _ = yield ReadWatermarks()
        begun: BeginReply = yield Begin()
        return Bookmark(begun.start_ts, watermark), OpenStart(begun.start_ts, self._note_ended), begun.epoch

    def _round_steps(self) -> Steps[ChangeScan]:
        assert self.place is not None
        assert self._range is not None
        until, held, epoch = yield from self._draw_steps()
        self._until = until, held
        snapshot = Snapshot(until.start_ts + 1, epoch)
        changes.check_order(self.place, snapshot)
        database = self._database
        return ChangeScan(database.deployment, self._table, self._range, self.place, snapshot, database.commit_cache)

    def _pass_steps(self) -> Steps[None]:
        """All of the round was told. A leased place is passed now and then only: a lease is a durable write."""
        assert self._until is not None
        until, held = self._until
        self._scan, self._until = None, None
        if self._keep_s is None:
            before, self._open, self.place = self._open, held, until
            if before is not None:
                before.end()
        elif self._has_told or self._clock() >= self._leased_s + self._keep_s / 2:
            before, self._open = self._open, held
            yield from self._lease_steps(until)
            self.place = until
            if before is not None:
                before.end()
        else:
            held.end()
        self._has_told = False

    def _lease_steps(self, place: Bookmark) -> Steps[None]:
        """The lease is on the new place before that on the former one ends."""
        leased_s, tso = self._clock(), self._database.deployment.tso
        yield Blocking(partial(tso.grant_lease, place.start_ts, self._keep_s))
        former, self._leased, self._leased_s = self._leased, place, leased_s
        if self._open is not None:
            self._open.end()
            self._open = None
        if former is not None:
            yield Blocking(partial(self._database.leases.end_of, former.start_ts))


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
        since may come again."""
        assert self._watching.place is not None
        return self._watching.place

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> RowChange:
        page = self._watching.page
        if not page and not self._run(self._watching.fill_steps()):
            raise StopIteration
        return page.popleft()

    def close(self) -> None:
        """Ends it, also while another thread waits in it. Only the lease of `keep_seconds` stays, for its term, on
        `bookmark`."""
        self._watching.close()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
