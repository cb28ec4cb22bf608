"""One open database a process and URL: what a driver, a task or a data source's planner works with.

Spark's Python workers live for many tasks; each opens a database once. A forked child opens its own (C5).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from pyomid.client.drive import Driver
from pyomid.client.session.leases import LeaseKeeper, renewal_pause_s
from pyomid.client.validation import find_table
from pyomid.errors import Misuse, OmidError
from pyomid.ports import Deployment
from pyomid.protocol.reading import CommitCache
from pyomid.spark.task_urls import TaskUrl, sent_token, user_of
from pyomid.types import TableInfo
from pyomid.wiring import is_made, open_deployment

_open: dict[tuple[int, str, str], Connection] = {}
"""By process, URL, and the user whose token came with it."""
_opening = threading.Lock()


def _after_fork_in_child() -> None:
    """Another thread of the parent may hold the lock, and is not here to release it."""
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


@dataclass(slots=True)
class Connection:
    """Deployment with a driver over them, what is known of commits, and the leases of this process."""

    url: str
    deployment: Deployment
    driver: Driver
    cache: CommitCache
    leases: LeaseKeeper
    """Of transactions that begin and end in this process."""
    database_id: bytes = b""
    """What plans name it by: the one in whose timestamps they are written."""
    _renewed_s: dict[int, float] = field(default_factory=dict)
    _shared: dict[float | None, tuple[int, float]] = field(default_factory=dict)
    """By term: a start that is leased for sharers, and until when most of a term is left of it."""

    @property
    def task_url(self) -> TaskUrl:
        """For a plan, made now: the URL, with what its tasks need to come by it. It may ask the store."""
        return TaskUrl(self.url, self.deployment.task_token, user_of(self.url))

    @property
    def has_leases(self) -> bool:
        """Without leases (a Java TSO) a snapshot is readable until what it sees is cleaned away."""
        return self.deployment.tso.extended

    @property
    def write_set_ids_max(self) -> int:
        """The most ids that the TSO takes in one commit; where it does not tell, what one of these settings takes."""
        return self.deployment.tso.write_set_ids_max or self.deployment.settings.conflict_map_entries // 4

    def require_branches(self) -> None:
        """`Misuse`, before anything is written, where the TSO cannot decide a write of many tasks."""
        if not self.deployment.tso.extended:
            raise Misuse(
                f"the TSO of {self.url} is Apache Omid's, which knows no branches: a write from many tasks cannot be "
                "one commit there. Reading works. To write from Spark let `pyomid tso` serve this database; to write "
                "under this TSO use pyomid.connect in one process"
            )

    def table(self, name: str) -> TableInfo:
        """Its catalog entry, fresh, for a snapshot to read. `Misuse` where no lease would keep what that sees."""
        info = find_table(self.deployment.catalog, name)
        if self.has_leases:
            self.deployment.store.check_leases(name)
        return info

    def note_ended(self, start_ts: int) -> None:
        """A start that was begun here is held no more, or by a lease. Told at once: Spark ends its Python processes
        without a word."""
        self.deployment.tso.note_ended(start_ts)
        self.deployment.tso.tell_open()

    def hold_by_lease(self, start_ts: int, term_s: float | None) -> None:
        """A lease holds what `begin` gave from now on. Where it is refused nothing does."""
        try:
            self.deployment.tso.grant_lease(start_ts, term_s)
        finally:
            self.note_ended(start_ts)

    def renew(self, leases: Iterable[int]) -> None:
        """Renews each lease whose last renewal from here is a third of a term ago. SnapshotTooOld: it is gone."""
        now = self.deployment.clock()
        for start_ts in leases:
            if now >= self._renewed_s.get(start_ts, 0.0):
                term_s = self.deployment.tso.renew_lease(start_ts)
                if len(self._renewed_s) > 1_000:
                    self._renewed_s.clear()
                self._renewed_s[start_ts] = now + self._renewal_pause_s(term_s)

    def _renewal_pause_s(self, term_s: float) -> float:
        return renewal_pause_s(term_s, self.deployment.settings.lease_seconds)

    def share_lease(self, start_ts: int, term_s: float | None) -> int:
        """Keeps a snapshot whose end is never reported, for two thirds of the term at least; a reader that goes on asks
        again. SnapshotTooOld: W has passed it. Returns the start that the lease is on.

        W stays below a leased start, so what the TSO promised for one start counts for every later one: of thousands
        of loads one asks in a third of a term. A W that has passed the leased start tells that the lease was ended
        (by an operator, say): the TSO is asked anew.
        """
        now = self.deployment.clock()
        leased_ts, good_until_s = self._shared.get(term_s, (start_ts, now))
        leader_state = self.deployment.leader_state
        if leased_ts > start_ts or now >= good_until_s or leader_state.read_watermarks()[0] >= leased_ts:
            leased_ts, granted_s = self.deployment.tso.share_lease(start_ts, term_s)
            if len(self._shared) > 1_000:
                self._shared.clear()
            self._shared[term_s] = (leased_ts, now + self._renewal_pause_s(granted_s))
        return leased_ts


def connection(url: str, database_id: bytes = b"", *, create: bool = True) -> Connection:
    """This process's connection to `url`, opened at the first call. It is never closed: the process's end does, or the
    database's, where another was made in its place.

    `database_id`: of the database that a plan was made for. `Misuse` where it is not there any more: the plan's
    timestamps mean other commits in another one. `create`: whether a new one may be made.
    """
    found = _connection(url, create=create and not database_id)
    if not found.database_id:  # read outside of the lock, at the first use: the database may be gone at a later one
        found.database_id = found.deployment.leader_state.database_id()
    if database_id and found.database_id != database_id:
        raise Misuse(
            f"this was planned for the database {database_id.hex()[:8]}, which was dropped; at {url} there is "
            f"{found.database_id.hex()[:8]} now, which was made in its place: begin again"
        )
    return found


def _connection(url: str, *, create: bool) -> Connection:
    key = (os.getpid(), str(url), user_of(url))
    with _opening:
        found = _open.get(key)
        if found is not None and found.deployment.is_gone():
            _open.pop(key)
            found.leases.close()
            with suppress(OmidError):
                found.deployment.close()
            found = None
        if found is None:
            options = {} if create or is_made(url) else {"create": False}
            deployment = open_deployment(url, sent_token=sent_token(url), **options)
            cache = CommitCache(deployment.settings.commit_cache_entries)
            driver = Driver(deployment, sleep=time.sleep)
            found = Connection(
                url,
                deployment,
                driver,
                cache,
                LeaseKeeper(deployment.tso, deployment.clock, deployment.settings.lease_seconds),
            )
            _open[key] = found
        return found


def close_connections() -> None:
    """Closes the databases that this process opened: for a driver that is done, and for tests."""
    with _opening:
        for key in [key for key in _open if key[0] == os.getpid()]:
            closed = _open.pop(key)
            closed.leases.close()
            closed.deployment.close()
