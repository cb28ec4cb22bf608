"""One open database per process, URL and user; and the URL and token with which Spark tasks open the database.

A Python worker of Spark runs many tasks and opens a database once. A forked child opens the database anew (C5).

Tasks get the database's URL, and a delegation token of the program's user if they have no Kerberos ticket.

    driver, planner       plan.url = conn.task_url ── pickled with the newest delegation token ──→ task
    task                  connection(plan.url)         presents the newest token that this process received

Each job carries a token with at least nine tenths of its life left, so an application may outlive a token. A process
that works for several users keeps their tokens apart.

A token is part of pickled plans only, and appears in no option, no printed plan and no `repr`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pyomid.database.driver import Driver
from pyomid.database.lease_keeper import LeaseKeeper, renewal_pause_s
from pyomid.database.open_database import begin_past
from pyomid.database.validation import open_table
from pyomid.errors import Misuse, OmidError
from pyomid.ports import Deployment
from pyomid.protocol.reading import CommitCache
from pyomid.types import BeginReply, TableInfo, TaskToken
from pyomid.wiring import is_made, open_deployment

log = logging.getLogger(__name__)

TokenSource = Callable[[], TaskToken | None]

_sent: Final[dict[tuple[str, str], TaskToken]] = {}
"""The newest token received, by URL and user."""


class TaskUrl(str):
    """The URL of a database, for a plan. Pickling it adds the newest token of `source`."""

    user: str
    """The user of the token that this process received with the URL; empty if it received none."""
    database_id: bytes
    """The id of the database that the plan is made for; empty if unknown."""
    _source: TokenSource
    _last: TaskToken | None

    def __new__(cls, url: str, source: TokenSource, user: str = "", database_id: bytes = b"") -> TaskUrl:
        """Fetch a first token now, so that an error of `source` is raised here and not during pickling."""
        made = super().__new__(cls, url)
        made.user, made.database_id = user, database_id
        made._source, made._last = source, source()
        return made

    def __reduce__(self) -> Any:
        try:
            self._last = self._source()
        except OmidError as error:
            log.warning("could not get a new delegation token; the tasks get the previous token. The error: %s", error)
        return _received, (str(self), self._last, self.database_id)


def _received(url: str, token: TaskToken | None, database_id: bytes) -> TaskUrl:
    if token is None:
        return TaskUrl(url, lambda: None, "", database_id)
    key = (url, token.user)
    if key not in _sent or _sent[key].expires_ms < token.expires_ms:
        _sent[key] = token
    return TaskUrl(url, lambda: _sent[key], token.user, database_id)


def user_of(url: str) -> str:
    """Return the user whose token came with this URL; empty if no token came with it."""
    return url.user if isinstance(url, TaskUrl) else ""


def sent_token(url: str) -> TokenSource | None:
    """Return a source of the newest token received with this URL; None if no token came with it."""
    key = (str(url), user_of(url))
    return (lambda: _sent[key]) if key[1] else None


_open: dict[tuple[int, str, str], Connection] = {}
"""Connections by process, URL, and the user whose token came with the URL."""
_opening = threading.Lock()


def _after_fork_in_child() -> None:
    """Replace the lock: another thread of the parent may hold it, and cannot release it in the child."""
    global _opening
    _opening = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


@dataclass(slots=True)
class Connection:
    """An open database: deployment, driver, cache of commits, and the leases of this process."""

    url: str
    deployment: Deployment
    driver: Driver
    cache: CommitCache
    leases: LeaseKeeper
    """Leases of transactions that begin and end in this process."""
    database_id: bytes = b""
    """Id that plans carry: their timestamps are valid only in this database."""
    _renewed_s: dict[int, float] = field(default_factory=dict)
    """By start timestamp: the time when its lease must be renewed again."""
    _shared: dict[float | None, tuple[int, float]] = field(default_factory=dict)
    """By term: a start timestamp under a shared lease, and the time when the lease must be requested again."""

    @property
    def task_url(self) -> TaskUrl:
        """Return the URL for a plan, with the delegation token that its tasks need. May call the store."""
        return TaskUrl(self.url, self.deployment.task_token, user_of(self.url), self.database_id)

    @property
    def has_leases(self) -> bool:
        """Whether the TSO grants leases. A Java TSO grants none; under it, a snapshot is readable until compaction
        removes versions that the snapshot sees."""
        return self.deployment.tso.extended

    def require_branches(self) -> None:
        """Raise `Misuse` if the TSO does not support branches. Call this before anything is written."""
        if not self.deployment.tso.extended:
            raise Misuse(
                f"the TSO of {self.url} is Apache Omid's, which does not support branches. So Spark's tasks can read, "
                "but cannot write one transaction together. To write from Spark, serve this database with `pyomid "
                "tso`; to write under Apache Omid's TSO, use pyomid.connect in one process"
            )

    def table(self, name: str) -> TableInfo:
        """Return the table's current catalog entry. Raises `Misuse` if the store keeps no snapshots of the table."""
        return open_table(self.deployment, name, leased=self.has_leases)

    @contextmanager
    def begun(self, not_before: int = 0, *, at: int | datetime | None = None) -> Iterator[BeginReply]:
        """Begin a transaction for the block, and end it after the block. `at`: draw the start timestamp above the
        snapshot of this version or time."""
        if at is None:
            begun = self.deployment.tso.begin(not_before=not_before)
        else:
            begun = self.driver.run(begin_past(at))
        try:
            yield begun
        finally:
            self.end(begun)

    def end(self, begun: BeginReply) -> None:
        """End this process's hold on a transaction that it began (a lease may still hold it), and report that to the
        TSO at once, because Spark may kill its Python processes at any time."""
        begun.end()
        self.deployment.tso.report_open_starts()

    def renew(self, start_ts: int, *, at_once: bool = False) -> None:
        """Renew a lease unless this process did so in the last third of a term; with `at_once` renew it in any case.
        Raises `SnapshotTooOld` if the lease is gone."""
        now = self.deployment.clock()
        if at_once or now >= self._renewed_s.get(start_ts, 0.0):
            term_s = self.deployment.tso.renew_lease(start_ts)
            if len(self._renewed_s) > 1_000:
                self._renewed_s.clear()
            self._renewed_s[start_ts] = now + self._renewal_pause_s(term_s)

    def _renewal_pause_s(self, term_s: float) -> float:
        return renewal_pause_s(term_s, self.deployment.settings.lease_seconds)

    def share_lease(self, start_ts: int, term_s: float | None) -> int:
        """Keep a snapshot readable for at least two thirds of the term, and return the start timestamp that the lease
        is on. The end of such a read is never reported; a reader that continues calls this again. Raises
        `SnapshotTooOld` if the low watermark W has passed the snapshot.

        W stays below a leased start timestamp, so a lease on one covers every later one: of thousands of loads, only
        one per third of a term calls the TSO. If W has passed the leased start timestamp, the lease was ended (for
        example by an operator), and this method requests a new one.
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
    """Return this process's connection to `url`, opened at the first call. It stays open until the process ends, or
    until another database replaces this one.

    `database_id`: the database that a plan was made for; a `TaskUrl` brings its own. Raises `Misuse` if another
    database has replaced it, because there the plan's timestamps mean other commits. `create`: whether a missing
    database may be created.
    """
    if isinstance(url, TaskUrl):
        database_id = url.database_id
    found = _connection(url, create=create and not database_id)
    if not found.database_id:  # read at the first use, because the database may be gone later; outside the lock
        found.database_id = found.deployment.leader_state.database_id()
    if database_id and found.database_id != database_id:
        raise Misuse(
            f"this plan was made for database {database_id.hex()[:8]}, but {url} now holds database "
            f"{found.database_id.hex()[:8]}, which replaced the former database; load the frame again, or begin the "
            "transaction again"
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


def close_connections(url: str | None = None) -> None:
    """Close this process's connections to `url`; with None, close all its connections."""
    with _opening:
        for key in [key for key in _open if key[0] == os.getpid() and url in (None, key[1])]:
            closed = _open.pop(key)
            closed.leases.close()
            closed.deployment.close()
