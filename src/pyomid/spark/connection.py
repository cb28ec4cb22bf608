"""One open database a process and URL: what a driver, a task or a data source's planner works with.

Spark's Python workers live for many tasks; each opens a database once. A forked child opens its own (C5).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from pyomid.client.drivers import Driver
from pyomid.client.parts import Parts
from pyomid.core.commit_cache import CommitCache
from pyomid.errors import Misuse, OmidError
from pyomid.wiring import open_parts

_open: dict[tuple[int, str], Connection] = {}
_opening: Final = threading.Lock()


@dataclass(slots=True)
class Connection:
    """Parts with a driver over them and what is known of commits."""

    url: str
    parts: Parts
    driver: Driver
    cache: CommitCache
    database_id: bytes = b""
    """What plans name it by: the one in whose timestamps they are written."""
    _renewed_s: dict[int, float] = field(default_factory=dict)

    @property
    def has_leases(self) -> bool:
        """Without (a Java TSO) a snapshot is readable for as long as nobody cleans what it sees."""
        return self.parts.tso.extended

    def require_branches(self) -> None:
        """`Misuse`, before anything is written, where the TSO cannot decide a write of many tasks."""
        if not self.parts.tso.extended:
            raise Misuse(
                f"the TSO of {self.url} is Apache Omid's, which knows no branches: a write from many tasks cannot be "
                "one commit there. Reading works. To write from Spark let `pyomid tso` serve this database; to write "
                "under this TSO use pyomid.connect in one process"
            )

    def renew(self, leases: Iterable[int]) -> None:
        """Renews each lease whose last renewal from here is a third of a term ago. SnapshotTooOld: it is gone."""
        now = self.parts.clock()
        for start_ts in leases:
            if now >= self._renewed_s.get(start_ts, 0.0):
                term_s = self.parts.tso.renew_lease(start_ts)
                if len(self._renewed_s) > 1_000:
                    self._renewed_s.clear()
                self._renewed_s[start_ts] = now + term_s / 3


def connection(url: str, database_id: bytes = b"") -> Connection:
    """This process's connection to `url`, opened at the first call. It is never closed: the process's end does, or the
    database's, where another was made in its place.

    `database_id`: of the database that a plan was made for. `Misuse` where it is not there any more: the plan's
    timestamps mean other commits in another one.
    """
    found = _connection(url)
    if not found.database_id:  # read outside of the lock, at the first use: the database may be gone at a later one
        found.database_id = found.parts.epoch_row.database_id()
    if database_id and found.database_id != database_id:
        raise Misuse(
            f"this was planned for the database {database_id.hex()[:8]}, which was dropped; at {url} there is "
            f"{found.database_id.hex()[:8]} now, which was made in its place: begin again"
        )
    return found


def _connection(url: str) -> Connection:
    key = (os.getpid(), url)
    with _opening:
        found = _open.get(key)
        if found is not None and found.parts.is_gone():
            _open.pop(key)
            with suppress(OmidError):
                found.parts.close()
            found = None
        if found is None:
            parts = open_parts(url)
            found = Connection(url, parts, Driver(parts), CommitCache(parts.settings.commit_cache_entries))
            _open[key] = found
        return found


def close_connections() -> None:
    """Closes what this process opened: for a driver that is done, and for tests."""
    with _opening:
        for key in [key for key in _open if key[0] == os.getpid()]:
            _open.pop(key).parts.close()
