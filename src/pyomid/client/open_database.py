"""The open database behind `Database` and `AsyncDatabase`: begins, also of past snapshots, cached table rules, the work
after a transaction's end, and closing."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import logging
import math
import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeVar

from pyomid import system
from pyomid.client.background import Background
from pyomid.client.drive import Blocking, Driver
from pyomid.client.retry import Backoff
from pyomid.client.session.lease_keeper import Lease, LeaseKeeper
from pyomid.client.transaction_steps import TransactionSteps
from pyomid.client.validation import TableRules, open_table
from pyomid.config import Settings
from pyomid.crashpoints import crash_point
from pyomid.errors import Misuse, MisuseType, SnapshotTooOld
from pyomid.observe import Observer, reports_to
from pyomid.ports import Deployment
from pyomid.protocol.commit import WriteSet, may_cache_rules, may_use_rules
from pyomid.protocol.effects import Begin, ForgetTable, Steps
from pyomid.protocol.reading import CommitCache
from pyomid.protocol.time_points import snapshot_after
from pyomid.types import BeginReply, Moment

logger = logging.getLogger(__name__)

T = TypeVar("T")

CLOSE_TIMEOUT_S: Final = 10.0
"""`close` waits this long for background completion; readers and compaction do the rest."""


@dataclass(frozen=True, slots=True)
class _KnownRules:
    """A table's rules, read after the start `read_after` was handed out (`protocol.commit.may_use_rules`)."""

    rules: TableRules
    read_after: int
    until_s: float


class OpenDatabase:
    """Thread-safe: threads share it. A forked child must open its own (C5)."""

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
        self.packs_cells: Final = deployment.store.capabilities.one_step
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

    def begin_steps(
        self,
        made: Callable[[BeginReply, Lease | None], T],
        not_before: int = 0,
        *,
        lease: bool = False,
        at: int | datetime | None = None,
    ) -> Steps[T]:
        """Begin a transaction, and return what `made` creates from it: the front end's transaction."""
        steps = self._begin_steps(made, not_before, lease=lease, at=at)
        return steps if self.reports is None else self.reports.begin_steps(steps)

    def _begin_steps(
        self,
        made: Callable[[BeginReply, Lease | None], T],
        not_before: int,
        *,
        lease: bool,
        at: int | datetime | None,
    ) -> Steps[T]:
        self.check_usable()
        if at is not None:
            found = yield from past_steps(self.deployment, self.leases, at, not_before)
            return made(*found)
        begun: BeginReply = yield Begin(not_before)
        held: Lease | None = None
        try:
            crash_point("client.begin.after")
            if lease:
                held = yield Blocking(partial(self.leases.grant, begun.start_ts, self.settings.lease_seconds))
            return made(begun, held)
        except BaseException:
            begun.end()
            if held is not None:
                self.leases.give_back(held)
            raise

    def close(self) -> None:
        """As `Database.close`."""
        self._ending.close()
        self._forgotten.detach()

    @property
    def is_closed(self) -> bool:
        return self._ending.has_begun

    def forget_rules(self, table: str) -> None:
        """Read the table's rules again for later transactions."""
        self._tables.pop(table, None)

    def abandon(self) -> None:
        """Forget the connection as if the process had died: nothing is completed or closed. For tests."""
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
        """Return a table's rules for the transaction of `begun` if `known_rules` has none. `leased`: the
        transaction is under a lease; `Misuse` if the store would not keep its snapshot of this table.
        """
        rules = self.known_rules(name, begun) if leased else None
        if rules is None:
            return self._read_rules(name, begun, leased=leased)
        self.deployment.store.check_opened(name, rules.info.families, leased=True)
        return rules

    def known_rules(self, name: str, begun: BeginReply) -> TableRules | None:
        """As `table_rules` without a lease, from the cache; None if the rules must be read."""
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

    def end_committed(self, start_ts: int, commit_ts: int, written: WriteSet, *, at_once: bool) -> bool:
        """Start completion after the reply. `at_once`: return False if that would wait for room in the
        queue. An error is only logged: the commit stands, and readers repair the rest."""
        try:
            self.commit_cache.put(start_ts, commit_ts)
            if at_once:
                return self.background.complete_at_once(start_ts, commit_ts, written)
            self.background.complete(start_ts, commit_ts, written)
        except Exception as error:
            self.background.failed(error)
        return True

    def end_rolled_back(self, writes: TransactionSteps) -> None:
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
    """Closes a database: at `close`, or in a thread of its own when the database becomes garbage. Never in a forked
    child: the parent still uses all of it."""

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
        """End the background work, and close nothing: handlers that were registered before ours still use the database
        when this has run. What they commit is completed by readers and compaction."""
        if self.is_ours:
            with self._alone:
                self._settle()

    def _settle(self) -> None:
        try:
            self._leases.close()
        finally:
            if not self._background.close(CLOSE_TIMEOUT_S):
                logger.warning(
                    "closed with completion unfinished after %g s; readers and compaction finish it", CLOSE_TIMEOUT_S
                )

    def forget(self) -> None:
        """Count as closed without closing anything."""
        self.has_begun = True
        _OPEN.discard(self)


_OPEN: Final[set[_Ending]] = set()
"""The open databases of this process."""


def _forgotten(ending: _Ending) -> None:
    """Close a database that became garbage, in a new thread. Python calls this in any thread at any point: in the
    database's own background thread, which closing waits for, or within a write transaction of the store. So it neither
    closes anything nor takes a lock (a `threading.Thread` takes some). If the system cannot start a thread, the
    database stays open until the exit."""
    if ending.is_ours and not ending.has_begun:
        with contextlib.suppress(RuntimeError, MemoryError):
            _thread.start_new_thread(ending.close, ())


@atexit.register
def _settle_all() -> None:
    for ending in list(_OPEN):
        try:
            ending.settle_at_exit()
        except Exception as error:
            logger.warning("ending a database's background work at exit failed: %r", error)


L = TypeVar("L")


# Past snapshots: the snapshot's start is found, and held by a lease before anything is read.
#
#     a time ─► the TSO's moment at or after it ─► a start is drawn ─► lease ─► reads
#
# The TSO grants the lease only above every W that it ever sent, and W stays below it from then on (K7). So everything
# that the snapshot needs still exists, and stays. Because a start was drawn, every commit below the snapshot is durable
# (law 3), and the reads have an epoch (T6). A table created, perhaps again, after the snapshot is unknown to it
# (`validation.check_was_there`).


def past_steps(
    deployment: Deployment, leases: LeaseKeeper, at: int | datetime, not_before: int = 0
) -> Steps[tuple[BeginReply, Lease]]:
    """Return a begin reply that reads at `at`, and the lease that holds the snapshot. `at`: as of `Database.begin`."""
    if not_before:
        raise Misuse("give at or not_before, not both: at names the snapshot")
    moment: Moment = yield Blocking(partial(moment_of, deployment, at))
    begun: BeginReply = yield Begin(is_held=False)
    keep = partial(leases.share, term_s=deployment.settings.lease_seconds)
    found: tuple[BeginReply, Lease] = yield Blocking(partial(past_begin, deployment, at, moment, begun, keep))
    return found


def moment_of(deployment: Deployment, at: int | datetime, name: str = "at") -> Moment:
    """Return the moment of `at`, with time 0 for a timestamp. Blocking; a begin must follow. `name`: in errors."""
    wall_ms = check_time(at, name)
    if not deployment.tso.extended:
        raise Misuse("Apache Omid's TSO leads, which cannot read the past: only `pyomid tso` can")
    if isinstance(at, int):
        return Moment(snapshot_after(at), 0)
    moment = deployment.tso.moment_at(wall_ms, _now_ms())
    if not moment.snapshot_ts:
        raise too_old(deployment, at)
    is_of_same_ms = moment.wall_ms == wall_ms - 1  # the TSO rounds its clock down, and `at` was rounded up
    return moment._replace(wall_ms=wall_ms) if is_of_same_ms else moment


def past_begin(
    deployment: Deployment, at: int | datetime, moment: Moment, begun: BeginReply, keep: Callable[[int], L]
) -> tuple[BeginReply, L]:
    """Return `begun`, set to read at `moment`, and the lease that `keep` takes on the snapshot's start. `begun` must
    have been drawn after `moment` was found. Blocking."""
    if moment.snapshot_ts > begun.start_ts:
        raise Misuse(f"at={at} is in the future: the newest start is {begun.start_ts}", at=str(at))
    try:
        lease = keep(moment.snapshot_ts)
    except SnapshotTooOld as error:
        raise too_old(deployment, at) from error
    return replace(begun, read_at=moment.snapshot_ts, moment_ms=moment.wall_ms), lease


def requested_moment(begun: BeginReply) -> datetime | None:
    """Return the moment of a snapshot that was requested by a time; otherwise None."""
    return datetime.fromtimestamp(begun.moment_ms / 1000, UTC) if begun.moment_ms else None


def _now_ms() -> int:
    return int(time.time() * 1000)


def check_time(at: int | datetime, name: str = "at") -> int:
    """Return `at` in milliseconds since 1970; 0 for a timestamp. `name`: what errors call it."""
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise Misuse(
                f"{name}={at} has no time zone: give a datetime with one ({name}.astimezone() takes it as local time)"
            )
        wall_ms = math.ceil(at.timestamp() * 1000)
        if at.timestamp() > time.time():
            raise Misuse(f"{name}={at} is in the future", at=str(at))
        return wall_ms
    if isinstance(at, bool) or not isinstance(at, int):
        raise MisuseType(f"{name}={at!r} is {type(at).__name__}, not a timestamp (int) or a datetime with a time zone")
    if at <= 0:
        raise Misuse(f"{name}={at} is not a valid timestamp: timestamps are above 0", at=at)
    return 0


def too_old(deployment: Deployment, at: int | datetime) -> SnapshotTooOld:
    watermark, _ = deployment.leader_state.read_watermarks()
    kept = [point for point in deployment.leader_state.time_points() if snapshot_after(point.start_ts) > watermark]
    since = "no history is kept"
    if kept:
        kept_since = datetime.fromtimestamp(kept[0].wall_ms / 1000, UTC).isoformat(sep=" ", timespec="seconds")
        since = f"history is kept since {kept_since} (start {kept[0].start_ts})"
    return SnapshotTooOld(
        f"the snapshot at {at} is no longer kept: {since} (option retention in the URL of the folder, or "
        "over HBase of the TSO, keeps more from now on)",
        at=str(at),
        watermark=watermark,
    )
