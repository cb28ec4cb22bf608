"""The open database behind `Database` and `AsyncDatabase`: begins, cached table rules, the work after a transaction's
end, and closing."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import logging
import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Final, TypeVar

from pyomid import platforms
from pyomid.client.background import Background
from pyomid.client.drive import Blocking, Driver
from pyomid.client.observers import Observer, reports_to
from pyomid.client.past_snapshot import past_steps
from pyomid.client.retry import Backoff
from pyomid.client.session.lease_keeper import Lease, LeaseKeeper
from pyomid.client.transaction_steps import TransactionSteps
from pyomid.client.validation import TableRules, find_table
from pyomid.config import Settings
from pyomid.crashpoints import crash_point
from pyomid.errors import Misuse
from pyomid.ports import Deployment
from pyomid.protocol.commit import WriteSet, may_cache_rules, may_use_rules
from pyomid.protocol.effects import Begin, Steps
from pyomid.protocol.reading import CommitCache
from pyomid.types import BeginReply

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
        self._made_in = platforms.here
        self._random = random.Random()
        self.background: Final = Background(
            Driver(deployment).perform,
            linger_s=deployment.settings.completion_linger_ms / 1000,
            cells_max=deployment.settings.completion_cells_max,
        )
        self.driver: Final = Driver(deployment, self.background, sleep=sleep)
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
        self._ending.forget()

    def check_usable(self) -> None:
        if platforms.here is not self._made_in:
            raise Misuse(
                f"this database was opened by process {self._made_in.pid} and is used in its forked child "
                f"{platforms.here.pid}: connect again in the child",
                owner=self._made_in.pid,
            )
        if self._ending.has_begun:
            raise Misuse(f"database {self.url} is closed")

    def table_rules(self, name: str, begun: BeginReply, *, leased: bool = False) -> TableRules:
        """Return a table's rules for the transaction of `begun` if `known_rules` has none. `leased`: the
        transaction is under a lease; `Misuse` if the store would not keep its snapshot of this table.
        """
        if not leased:
            return self._read_rules(name, begun)
        rules = self.known_rules(name, begun) or self._read_rules(name, begun)
        self.deployment.store.check_leases(name)
        return rules

    def known_rules(self, name: str, begun: BeginReply) -> TableRules | None:
        """As `table_rules` without a lease, from the cache; None if the rules must be read."""
        found = self._tables.get(name) if isinstance(name, str) else None
        if found is not None and self.deployment.clock() < found.until_s and may_use_rules(found.read_after, begun):
            return found.rules
        return None

    def _read_rules(self, name: str, begun: BeginReply) -> TableRules:
        now = self.deployment.clock()
        found = self._tables.get(name) if isinstance(name, str) else None
        info = find_table(self.deployment.catalog, name)
        if found is not None and found.rules.info == info:
            rules = found.rules
        else:
            rules = TableRules(info, self.deployment.store.limits)
        if may_cache_rules(info):
            self._tables[name] = _KnownRules(rules, begun.start_ts, now + self.settings.catalog_cache_seconds)
        return rules

    def end_committed(self, start_ts: int, commit_ts: int, written: WriteSet) -> None:
        """Start completion after the reply. An error is only logged: the commit stands, and readers repair the rest."""
        try:
            self.commit_cache.put(start_ts, commit_ts)
            self.background.complete(start_ts, commit_ts, written)
        except Exception as error:
            self.background.failed(error)

    def end_committed_at_once(self, start_ts: int, commit_ts: int, written: WriteSet) -> bool:
        """Do as `end_committed` and return True, or return False if that would wait for room in the queue."""
        try:
            self.commit_cache.put(start_ts, commit_ts)
            return self.background.complete_at_once(start_ts, commit_ts, written)
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
    """Closes a database: at `close`, at exit, or in a thread of its own when the database becomes garbage. Never in a
    forked child: the parent still uses all of it."""

    def __init__(self, deployment: Deployment, background: Background, leases: LeaseKeeper) -> None:
        self._deployment = deployment
        self._background = background
        self._leases = leases
        self._made_in = platforms.here
        self._alone = threading.RLock()
        self.has_begun = False
        _OPEN.add(self)

    @property
    def is_ours(self) -> bool:
        return platforms.here is self._made_in

    def close(self) -> None:
        """Close every part, even if one of them raises. A concurrent call waits."""
        self.has_begun = True
        if not self.is_ours:
            return
        with self._alone:
            if self not in _OPEN:
                return
            try:
                self._leases.close()
            finally:
                try:
                    if not self._background.close(CLOSE_TIMEOUT_S):
                        logger.warning(
                            "closed with completion unfinished after %g s; readers and compaction finish it",
                            CLOSE_TIMEOUT_S,
                        )
                finally:
                    self._deployment.close()
            self.forget()

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
    database is closed at exit."""
    if ending.is_ours and not ending.has_begun:
        with contextlib.suppress(RuntimeError, MemoryError):
            _thread.start_new_thread(ending.close, ())


@atexit.register
def _close_all() -> None:
    for ending in list(_OPEN):
        try:
            ending.close()
        except Exception as error:
            logger.warning("closing a database at exit failed: %r", error)
