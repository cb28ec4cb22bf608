"""What a client works with: the ports, its settings and its clock, chosen by `wiring` and handed in together."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyomid.config import Settings
from pyomid.ports import Catalog, Clock, CommitTable, DataStore, LeaderState, Tso

if TYPE_CHECKING:
    from pyomid.client.session.aio import AsyncTsoSession


def boot_clock() -> float:
    """Seconds that go on counting while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _is_never_gone() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Deployment:
    """One open database. `close` ends everything in it once; the owner of a `Deployment` closes it."""

    store: DataStore
    commit_table: CommitTable
    leader_state: LeaderState
    catalog: Catalog
    tso: Tso
    settings: Settings
    clock: Clock = boot_clock
    closers: tuple[Callable[[], None], ...] = field(default=())
    """What else ends with it, called after the ports are closed."""
    is_gone: Callable[[], bool] = field(default=_is_never_gone)
    """Whether another database, or none, lies where this one was opened: nothing but connecting again helps then."""

    loop_session: Callable[[], AsyncTsoSession] | None = field(default=None)
    """Another session with the same TSO, for the running event loop; its user closes it. None: only threads can ask."""

    def close(self) -> None:
        """Session, then commit table, then store, whatever one of them raises; a second call does nothing that the
        parts mind."""
        with ExitStack() as last_first:
            for close in reversed((self.tso.close, self.commit_table.close, self.store.close, *self.closers)):
                last_first.callback(close)
