"""What a client works with: the ports, its settings and its clock, chosen by `wiring` and handed in together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pyomid.config import Settings
from pyomid.ports import Catalogue, Clock, CommitTable, DataStore, EpochRow, Tso


def boot_clock() -> float:
    """Seconds that go on counting while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Parts:
    """One open database. `close` ends everything in it once; the owner of a `Parts` closes it."""

    store: DataStore
    commit_table: CommitTable
    epoch_row: EpochRow
    catalogue: Catalogue
    tso: Tso
    settings: Settings
    clock: Clock = boot_clock
    closers: tuple[Callable[[], None], ...] = field(default=())
    """What else ends with it, called after the ports are closed."""

    def close(self) -> None:
        """Session, then commit table, then store; a second call does nothing that the parts mind."""
        self.tso.close()
        self.commit_table.close()
        self.store.close()
        for closer in self.closers:
            closer()
