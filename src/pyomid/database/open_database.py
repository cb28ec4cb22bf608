"""The open database behind `Database` and `AsyncDatabase`. It begins transactions, also on past snapshots, caches table
rules, starts the work after a transaction's end, and closes."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import logging
import operator
import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

from pyomid import system
from pyomid.config import Settings
from pyomid.coroutines import Blocking, Pause, Routine
from pyomid.crashpoints import crash_point
from pyomid.database.background import Background
from pyomid.database.driver import Driver
from pyomid.database.lease_keeper import Lease, LeaseKeeper
from pyomid.database.retry import Backoff
from pyomid.database.validation import TableRules, open_table
from pyomid.database.writes.outbox import Outbox
from pyomid.errors import Misuse, MisuseType, SnapshotTooOld
from pyomid.observe import Observer, reports_to
from pyomid.ports import Deployment
from pyomid.protocol.commit import WriteSet, may_cache_rules, may_use_rules
from pyomid.protocol.effects import Begin, ForgetTable, Reach
from pyomid.protocol.reading import CommitCache, Snapshot, check_watermark
from pyomid.protocol.timestamps import NS_PER_S, are_times, dated, is_time, ns_of, snapshot_after, snapshot_at, time_of
from pyomid.types import TIMESTAMP_STEP, At, BeginReply, Bookmark, start_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

CLOSE_TIMEOUT_S: Final = 10.0
"""`close` waits this long for background completion; readers and compaction do the remaining work."""


@dataclass(frozen=True, slots=True)
class _KnownRules:
    """A table's rules, which were read after the start `read_after` was handed out
    (`protocol.commit.may_use_rules`)."""

    rules: TableRules
    read_after: int
    until_s: float


class OpenDatabase:
    """An open database, which is thread-safe: threads share it. A forked child must open its own (C5)."""

    def __init__(
        self,
        deployment: Deployment,
        *,
        url: str = "",
        sleep: Callable[[float], None] = time.sleep,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.url: Final = url
        self.settings: Final[Settings] = deployment.settings
        self.commit_cache: Final = CommitCache(deployment.settings.commit_cache_entries)
        self.pipelined_writes: Final = deployment.store.capabilities.pipelined_writes
        self.settled_reads: Final = deployment.store.capabilities.settled_reads
        self.packs_commits: Final = deployment.store.capabilities.packs_commits
        self.reports: Final = reports_to(observers)
        self.deployment: Final = deployment
        self._made_in = system.here
        self._random = random.Random()
        self.background: Final = Background(
            Driver(deployment).perform,
            linger_s=deployment.settings.completion_linger_ms / 1000,
            cells_max=deployment.settings.completion_cells_max,
        )
        self.driver: Final = Driver(deployment, self.background, sleep=sleep)
        self.driver.handlers[ForgetTable] = lambda effect: self.forget_rules(effect.table)
        self._tables: dict[str, _KnownRules] = {}
        self.leases: Final = LeaseKeeper(deployment.tso, deployment.clock, deployment.settings.lease_seconds)
        self._ending = _Ending(deployment, self.background, self.leases)
        self._forgotten = weakref.finalize(self, _forgotten, self._ending)
        self._forgotten.atexit = False

    def begin(
        self,
        made: Callable[[BeginReply, Lease | None], T],
        not_before: int = 0,
        *,
        lease: bool = False,
        at: At | None = None,
    ) -> Routine[T]:
        """Begin a transaction, and return the front end's transaction, which `made` creates from the begin's reply."""
        routine = self._begin(made, not_before, lease=lease, at=at)
        return routine if self.reports is None else self.reports.begin(routine)

    async def _begin(
        self,
        made: Callable[[BeginReply, Lease | None], T],
        not_before: int,
        *,
        lease: bool,
        at: At | None,
    ) -> T:
        self.check_usable()
        if at is not None:
            found = await begin_at(self.deployment, self.leases, at, not_before)
            return made(*found)
        begun: BeginReply = await Begin(not_before)
        held: Lease | None = None
        try:
            crash_point("client.begin.after")
            if lease:
                held = await Blocking(partial(self.leases.grant, begun.start_ts, self.settings.lease_seconds))
            return made(begun, held)
        except BaseException:
            begun.end()
            if held is not None:
                self.leases.give_back(held)
            raise

    def close(self) -> None:
        """Do the work of `Database.close`."""
        self._ending.close()
        self._forgotten.detach()

    @property
    def is_closed(self) -> bool:
        return self._ending.has_begun

    def forget_rules(self, table: str) -> None:
        """Forget the table's cached rules, so that later transactions read them again."""
        self._tables.pop(table, None)

    def abandon(self) -> None:
        """Forget the connection as if the process had died: the call completes and closes nothing. It is for tests."""
        self._forgotten.detach()
        self._ending.forget()

    def check_usable(self) -> None:
        if system.here is not self._made_in:
            raise Misuse(
                f"this database was opened by process {self._made_in.pid} and is used in its forked child "
                f"{system.here.pid}: connect again in the child",
                owner=self._made_in.pid,
            )
        if self._ending.has_begun:
            raise Misuse(f"database {self.url} is closed")

    def table_rules(self, name: str, begun: BeginReply, *, leased: bool = False) -> TableRules:
        """Return a table's rules for the transaction of `begun` if `known_rules` has none. With `leased`, the
        transaction is under a lease, and `Misuse` is raised if the store would not keep its snapshot of this table.
        """
        rules = self.known_rules(name, begun) if leased else None
        if rules is None:
            return self._read_rules(name, begun, leased=leased)
        self.deployment.store.check_opened(name, rules.info.families, leased=True)
        return rules

    def known_rules(self, name: str, begun: BeginReply) -> TableRules | None:
        """Return a table's rules from the cache, for a transaction without a lease; None if the rules must be read."""
        found = self._tables.get(name) if isinstance(name, str) else None
        if found is not None and self.deployment.clock() < found.until_s and may_use_rules(found.read_after, begun):
            return found.rules
        return None

    def _read_rules(self, name: str, begun: BeginReply, *, leased: bool) -> TableRules:
        now = self.deployment.clock()
        found = self._tables.get(name) if isinstance(name, str) else None
        info = open_table(self.deployment, name, leased=leased)
        if found is not None and found.rules.info == info:
            rules = found.rules
        else:
            rules = TableRules(info, self.deployment.store.limits)
        if may_cache_rules(info):
            self._tables[name] = _KnownRules(rules, begun.start_ts, now + self.settings.catalog_cache_seconds)
        return rules

    def dates_commits(self, start_ts: int, began_ns: int) -> bool:
        """Whether timestamps are wall-clock times, judged by a start and the time at which it was handed out."""
        return draws_times(self.deployment, start_ts, began_ns)

    def end_committed(self, start_ts: int, commit_ts: int, written: WriteSet, *, at_once: bool) -> bool:
        """Start completion after a committed reply. With `at_once`, return False if that would wait for room in the
        queue. An error is only logged: the commit stands, and readers repair the rest."""
        try:
            self.commit_cache.put(start_ts, commit_ts)
            if at_once:
                return self.background.complete_at_once(start_ts, commit_ts, written)
            self.background.complete(start_ts, commit_ts, written)
        except Exception as error:
            self.background.failed(error)
        return True

    def end_rolled_back(self, writes: Outbox) -> None:
        """Start the deletes of a rollback. An error is only logged: compaction deletes the rest."""
        try:
            written = writes.write_set()
            if written:
                self.background.roll_back(written, writes.abandoned_writes())
        except Exception as error:
            self.background.failed(error)

    def backoff(self) -> Backoff:
        return Backoff.of(self.settings, self._random.uniform)


class _Ending:
    """Closes a database: at `close`, or in a separate thread when the database becomes garbage. It closes nothing in a
    forked child, because the parent still uses the database."""

    def __init__(self, deployment: Deployment, background: Background, leases: LeaseKeeper) -> None:
        self._deployment = deployment
        self._background = background
        self._leases = leases
        self._made_in = system.here
        self._alone = threading.RLock()
        self.has_begun = False
        _OPEN.add(self)

    @property
    def is_ours(self) -> bool:
        return system.here is self._made_in

    def close(self) -> None:
        """Close every part, even if one of them raises. A concurrent call waits."""
        self.has_begun = True
        if not self.is_ours:
            return
        with self._alone:
            if self not in _OPEN:
                return
            try:
                self._settle()
            finally:
                self._deployment.close()
            self.forget()

    def settle_at_exit(self) -> None:
        """End the background work, and close nothing: exit handlers that were registered before ours run later and may
        still use the database. Readers and compaction complete the commits of such handlers."""
        if self.is_ours:
            with self._alone:
                self._settle()

    def _settle(self) -> None:
        try:
            self._leases.close()
        finally:
            if not self._background.close(CLOSE_TIMEOUT_S):
                logger.warning(
                    "closed the database after waiting %g s for transactions to complete; readers and compaction "
                    "complete the remaining transactions later",
                    CLOSE_TIMEOUT_S,
                )

    def forget(self) -> None:
        """Mark the database as closed without closing anything."""
        self.has_begun = True
        _OPEN.discard(self)


_OPEN: Final[set[_Ending]] = set()
"""The open databases of this process."""


def _forgotten(ending: _Ending) -> None:
    """Close a database that became garbage, in a new thread. Python may call this function in any thread at any point:
    in the database's own background thread, for which closing waits, or within a write transaction of the store. So the
    function itself neither closes anything nor takes a lock (a `threading.Thread` takes locks). If the system cannot
    start a thread, the database stays open until the process exits."""
    if ending.is_ours and not ending.has_begun:
        with contextlib.suppress(RuntimeError, MemoryError):
            _thread.start_new_thread(ending.close, ())


@atexit.register
def _settle_all() -> None:
    for ending in list(_OPEN):
        try:
            ending.settle_at_exit()
        except Exception as error:
            logger.warning("could not end a database's background work at exit: %r", error)


L = TypeVar("L")

LATE_UNSURE_NS: Final = NS_PER_S // 10
"""The newest start may be this old, so this machine's clock may be late by this much more than it differs from that
start."""
LATE_NS_MAX: Final = 3 * NS_PER_S
"""Maximum by which this machine's clock may be late."""
CLOCK_WAIT_S: Final = 3.0
"""Maximum by which the TSO's clock may be behind this machine's clock."""
_PAUSE_S: Final = 0.002


# Past snapshots: the client finds the snapshot's start, and holds it by a lease before it reads anything.
#
#     a start is drawn ─► the snapshot of the time, or the start if that is later ─► lease ─► reads
#
# The TSO grants the lease only above every W that it ever sent, and W stays below the lease from then on (K7). So all
# versions that the snapshot needs still exist, and stay. Because a start was drawn, every commit below the snapshot is
# durable (law 3), and the reads have an epoch (T6). A table that was created, perhaps again, after the snapshot is
# unknown to the snapshot (`validation.check_was_there`).


def draws_times(deployment: Deployment, start_ts: int, began_ns: int) -> bool:
    """Whether the TSO that handed out this start, at this wall-clock time, draws wall-clock times as timestamps. Apache
    Omid's TSO draws such timestamps in WORLD_TIME."""
    return is_time(start_ts) if deployment.tso.extended else are_times(start_ts, began_ns)


async def begin_at(
    deployment: Deployment, leases: LeaseKeeper, at: At, not_before: int = 0
) -> tuple[BeginReply, Lease | None]:
    """Return a begin reply that reads at `at` (see `Database.begin`), and the lease that holds the snapshot. The lease
    is None under a Java TSO, which grants no leases."""
    if not_before:
        raise Misuse("give either at or not_before, not both; at already names the snapshot")
    past = checked_at(at)
    begun = await begin_past(past)
    keep = partial(leases.share, term_s=deployment.settings.lease_seconds)
    found: tuple[BeginReply, Lease | None] = await Blocking(partial(past_begin, deployment, past, begun, keep))
    return found


async def begin_past(at: int | datetime) -> BeginReply:
    """Draw a start above the snapshot of `at` (`checked_at`). A start that was drawn during a flush may be older than a
    time that has just passed: later commits may still get timestamps below that time, so the snapshot is not fixed yet.
    If the TSO's clock is too far behind this machine's clock, `at` counts as a time in the future."""
    give_up_s = time.monotonic() + CLOCK_WAIT_S
    while True:
        begun: BeginReply = await Begin(is_held=False)
        if _is_fixed(at, begun.start_ts) or time.monotonic() >= give_up_s:
            return begun
        if not (await Reach(snapshot_at(ns_of(at)))):  # type: ignore[arg-type]
            await Pause(_PAUSE_S)


def _is_fixed(at: int | datetime, newest_start: int) -> bool:
    """Whether no further commit below the snapshot of `at` is possible, or the snapshot is the current one."""
    if isinstance(at, int) or newest_start >= snapshot_at(ns_of(at)):
        return True
    now_ns = time.time_ns()
    return ns_of(at) > now_ns or newest_start > now_ns or not is_time(newest_start)


def past_begin(
    deployment: Deployment, at: int | datetime, begun: BeginReply, keep: Callable[[int], L]
) -> tuple[BeginReply, L | None]:
    """Return `begun`, changed to read at `at`, and the lease that `keep` takes on the snapshot's start. The call
    blocks.

    Under a Java TSO there is no lease: reads fail once W has passed the snapshot (decision 0021).
    """
    snapshot_ts, lease = snapshot_of(deployment, at, begun.start_ts), None
    try:
        if deployment.tso.extended:
            lease = keep(snapshot_ts)
        else:
            check_watermark(Snapshot(snapshot_ts, begun.epoch), deployment.leader_state.read_watermarks()[0])
    except SnapshotTooOld as error:
        raise too_old(deployment, at) from error
    return replace(begun, read_at=snapshot_ts, is_by_time=isinstance(at, datetime)), lease


def snapshot_of(deployment: Deployment, at: int | datetime, newest_start: int, name: str = "at") -> int:
    """Return the start of the snapshot of `at`. `begin_past(at)` drew `newest_start`. A time in the future counts as
    now. `name` is the name of `at` in errors."""
    if isinstance(at, datetime):
        check_times(deployment, newest_start, at, name)
    return past_snapshot(at, newest_start, name)


def past_snapshot(at: int | datetime, newest_start: int, name: str = "at") -> int:
    """Return the start of the snapshot of `at`, if timestamps are times.

    T18: if timestamps are a little ahead of this machine's clock, the TSO's clock is too, and `at` may come from a
    clock that is late by as much. The call allows for that, so the snapshot contains everything acknowledged a moment
    ago.
    """
    if isinstance(at, int):
        if start_of(at) > newest_start:
            raise Misuse(
                f"{name}={at} is in the future; the newest start timestamp is {dated(newest_start)}", at=str(at)
            )
        return min(snapshot_after(at), newest_start)  # no commit has a start's number
    late_ns = clock_late_ns(at, newest_start, name)
    snapshot_ts = snapshot_at(ns_of(at) + late_ns + min(late_ns, LATE_UNSURE_NS))
    return max(TIMESTAMP_STEP, min(snapshot_ts, newest_start))


def clock_late_ns(at: datetime, newest_start: int, name: str) -> int:
    """Return the minimum by which this machine's clock is late. Raise `Misuse` if a clock is wrong, unless `at` is
    now."""
    now_ns = time.time_ns()
    late_ns = max(0, newest_start - now_ns)
    if late_ns > LATE_NS_MAX and ns_of(at) < now_ns - LATE_UNSURE_NS:
        raise Misuse(
            f"{name}={at} is ambiguous: timestamps are {late_ns // NS_PER_S} s ahead of this machine's clock, because "
            "a clock is wrong or was set back; correct the clock, or give a version instead of a time"
        )
    return late_ns


def check_times(deployment: Deployment, newest_start: int, at: datetime, name: str) -> None:
    """Raise `Misuse` if timestamps are not wall-clock times, so that they say nothing about the time `at`."""
    if not draws_times(deployment, newest_start, time.time_ns()):
        raise Misuse(
            f"{name}={at}: the leading TSO's timestamps are not wall-clock times (the newest is {newest_start}): give "
            "a version, or serve the database with `pyomid tso` or with Apache Omid's TSO with timestampType "
            "WORLD_TIME"
        )


def requested_moment(begun: BeginReply) -> datetime | None:
    """Return the moment of a snapshot that was requested by a wall-clock time; None for any other."""
    return time_of(begun.read_at - 1) if begun.is_by_time else None


def checked_at(at: At, name: str = "at") -> int | datetime:
    """Return `at` as a timestamp, or as a datetime with a time zone. Raise `Misuse` if `at` cannot select a past
    snapshot. `name` is the name of `at` in errors."""
    found = _at_of_text(at, name) if isinstance(at, str) else at
    if isinstance(found, Bookmark):
        found = found.start_ts
    if isinstance(found, datetime):
        if found.tzinfo is None:
            raise Misuse(f"{name}={at} has no time zone: give {_AT}", at=str(at))
        return found
    if isinstance(found, bool) or not hasattr(found, "__index__"):
        raise MisuseType(f"{name}={at!r} has type {type(at).__name__}: give {_AT}", at=at)
    timestamp = operator.index(found)  # of a frame of pandas: a numpy integer
    if timestamp <= 0:
        raise Misuse(f"{name}={at} is not a valid timestamp: timestamps are above 0", at=str(at))
    return timestamp


_AT: Final = (
    "a timestamp, a bookmark, a datetime with a time zone (.astimezone() takes it as local time), or one of these as "
    "text (2030-01-31T10:00:00Z)"
)


def _at_of_text(text: str, name: str) -> Bookmark | int | datetime:
    """Return the timestamp, bookmark or datetime that a text stands for."""
    if text.strip().isdecimal():
        return int(text)
    if (bookmark := Bookmark.of_text(text)) is not None:
        return bookmark
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        raise Misuse(f"{name}={text!r} is not a valid time: give {_AT}", at=text) from None


def too_old(deployment: Deployment, at: int | datetime) -> SnapshotTooOld:
    watermark, _ = deployment.leader_state.read_watermarks()
    asked = dated(at) if isinstance(at, int) else at
    return SnapshotTooOld(
        f"the snapshot at {asked} is no longer kept: history begins at {dated(watermark)}; to keep a longer history "
        "in the future, set option retention in the folder's URL (over HBase, in the TSO's URL)",
        at=str(at),
        watermark=watermark,
    )
