"""Stages for golden scripts: one empty database each, with its TSO and a clock that only the stage advances.

`memory_stage` and `embedded_stage` run the TSO in this process, so that time can pass without waiting; `UrlStage` runs
the scripts that need no such clock on any URL, with a real TSO.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyomid
from golden_scripts import ClientDied, Stage
from pyomid import crashpoints
from pyomid.config import Settings
from pyomid.database.database import Database
from pyomid.database.driver import Driver
from pyomid.errors import Unavailable
from pyomid.folder import (
    BranchTable,
    EmbeddedCatalog,
    EmbeddedStore,
    FolderOptions,
    FolderSession,
    FolderState,
)
from pyomid.omid.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState, MemoryStore
from pyomid.omid.oracle.settings import TsoSettings
from pyomid.omid.tso.local import LocalTso
from pyomid.omid.tso.store_calls import TsoStores
from pyomid.ports import Deployment
from pyomid.protocol.compaction import compact_region
from pyomid.protocol.reading import CommitCache
from pyomid.protocol.sanitize import covered_watermark, sanitize_entries
from pyomid.types import KeyRange

AGE_S: Final = 600.0
LEASE_S: Final = 300.0
RETRY_S: Final = 60.0
DEATH_TIMEOUT_S: Final = 20.0


class HandClock:
    """A clock in seconds that advances only by assignment to `now_s`."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Mortal:
    """A port of one client; after the client's death every use raises. Closing it does not close the port."""

    def __init__(self, port: Any, life: Life) -> None:
        self._port, self._life = port, life

    def __getattr__(self, name: str) -> Any:
        if self._life.dead.is_set():
            raise ClientDied
        return getattr(self._port, name)

    def close(self) -> None: ...


class Life:
    """The life of one client; `die` is the action of a crash point (`crashpoints.arm_action`)."""

    def __init__(self) -> None:
        self.dead = threading.Event()

    def die(self) -> None:
        self.dead.set()
        raise ClientDied


class GoldenClient:
    """One session's connection."""

    def __init__(self, database: Database, life: Life, settle_others: Callable[[], None]) -> None:
        self.database, self.life, self._settle_others = database, life, settle_others

    def die_at(self, point: str, action: Callable[[], None]) -> None:
        """Run `action` up to the crash point, which raises in whichever thread of the client reaches it."""
        self._settle_others()
        crashpoints.arm_action(point, self.life.die)
        try:
            with suppress(ClientDied):
                action()
            if not self.life.dead.is_set():
                self.database.drain(DEATH_TIMEOUT_S)
            if not self.life.dead.wait(DEATH_TIMEOUT_S):
                raise AssertionError(f"the client never reached {point}")
        finally:
            crashpoints.disarm()
        self.database._core.abandon()

    def settle(self) -> None:
        if not self.life.dead.is_set():
            self.database.drain(DEATH_TIMEOUT_S)

    def close(self) -> None:
        self.database.close()


class ManualStage:
    """A database over ports of this process, with a manual clock."""

    def __init__(self, clock: HandClock, store: Any, commit_table: Any, leader_state: Any, catalog: Any, tso: Any):
        self.clock = clock
        self.tso = tso
        self._ports = (store, commit_table, leader_state, catalog)
        settings = Settings(
            lease_seconds=LEASE_S,
            max_transaction_age_seconds=AGE_S,
            commit_retry_seconds=RETRY_S,
            completion_linger_ms=0.0,
            scan_batch_rows=2,
        )
        self._deployment = Deployment(store, commit_table, leader_state, catalog, tso, settings, clock)
        self._driver = Driver(self._deployment)
        self._admin = Database(self._mortal(Life()))
        self._clients: list[GoldenClient] = []

    def _mortal(self, life: Life) -> Deployment:
        deployment = self._deployment
        ports: Any = {
            name: Mortal(getattr(deployment, name), life)
            for name in ("store", "commit_table", "leader_state", "catalog", "tso")
        }
        return replace(deployment, **ports)

    def create_table(self, name: str, family: str, level: str) -> None:
        self._admin.create_table(name, [family], conflict_level=level)

    def connect(self) -> GoldenClient:
        life = Life()
        client = GoldenClient(Database(self._mortal(life)), life, self.settle)
        self._clients.append(client)
        return client

    def settle(self) -> None:
        for client in self._clients:
            client.settle()

    def pass_time(self) -> None:
        """Advance the clock; live leases are renewed meanwhile, as their clients would do."""
        for _ in range(int(3 * AGE_S / (LEASE_S / 4))):
            self.clock.now_s += LEASE_S / 4
            for lease in self.tso.status().leases:
                with suppress(pyomid.errors.SnapshotTooOld):
                    self.tso.renew_lease(lease)
            self.tick()

    def tick(self) -> None:
        """Have W follow."""

    def compact(self, table: str) -> int:
        dropped = 0
        info = self._deployment.catalog.table(table)
        for region in self._deployment.store.regions(table):
            cleaned = self._driver.run(
                compact_region(table, info.generation, region, CommitCache(), now_s=self.clock(), rows_max=2)
            )
            dropped += cleaned.orphans_dropped
        self.clock.now_s += RETRY_S + 1.0
        return dropped

    def sanitize(self) -> int:
        return self._driver.run(sanitize_entries(now_s=self.clock(), retry_bound_s=RETRY_S)).entries_deleted

    def verify(self) -> list[str]:
        """Return violations: a cell without shadow cell at or below a recorded watermark, or an entry below H."""
        _, horizon = self._deployment.leader_state.read_watermarks()
        wrong = []
        for info in self._deployment.catalog.tables():
            cleaned = covered_watermark(self._deployment.catalog.region_watermarks(info.name))
            for batch in self._deployment.store.scan(info.name, KeyRange()):
                for cell in batch.all_cells():
                    if cell.version <= cleaned and not cell.commit_ts:
                        wrong.append(f"{info.name} {cell} ≤ {cleaned} has no shadow cell")
        held = [start for start, _ in self._deployment.commit_table.entries() if start < horizon]
        return wrong + [f"the commit table holds {start} < H {horizon}" for start in held]

    def count_cells(self, table: str) -> tuple[int, int]:
        cells = [cell for batch in self._deployment.store.scan(table, KeyRange()) for cell in batch.all_cells()]
        return len(cells), sum(1 for cell in cells if cell.commit_ts)

    def count_commit_entries(self) -> int:
        return sum(1 for _, state in self._deployment.commit_table.entries() if state > 0)

    def close(self) -> None:
        for client in self._clients:
            if not client.life.dead.is_set():
                client.close()
        self._admin.close()
        for port in self._ports:
            if hasattr(port, "close"):
                port.close()


class LocalStage(ManualStage):
    """A stage with a TSO in this process."""

    def __init__(self, store: Any, commit_table: Any, leader_state: Any, catalog: Any) -> None:
        clock = HandClock()
        stores = TsoStores(commit_table, leader_state, catalog)
        tso_settings = TsoSettings(
            conflict_map_entries=4096,
            window_starts=16,
            max_transaction_age_s=AGE_S,
            lease_seconds=LEASE_S,
            ceiling_step=1_000_000,
            ceiling_renew_remaining=100_000,
        )
        tso = LocalTso(stores, tso_settings, clock=clock)
        super().__init__(clock, store, commit_table, leader_state, catalog, tso)

    def tick(self) -> None:
        self.tso.tick()


def memory_stage() -> Stage:
    store, leader_state = MemoryStore(), MemoryLeaderState()
    return LocalStage(store, MemoryCommitTable(), leader_state, MemoryCatalog())


class FolderStage(ManualStage):
    """A stage over a folder, with a manual clock for ages and leases."""

    def __init__(self, folder: Path) -> None:
        clock, store = HandClock(), EmbeddedStore(folder)
        session = FolderSession(store.environment, FolderOptions(AGE_S, LEASE_S), clock=clock)
        store.environment.starts.now_ns = lambda: int(clock.now_s * 1e9)
        state = FolderState(store.environment)
        super().__init__(clock, store, BranchTable(store.environment), state, EmbeddedCatalog(folder), session)

    def tick(self) -> None:
        self.tso.raise_watermark()


def embedded_stage(folder: Path) -> Stage:
    return FolderStage(folder)


class UrlStage:
    """A stage over any URL, with its real TSO: for scripts in which no time passes and no client dies."""

    def __init__(self, url: str) -> None:
        self._admin = pyomid.connect(url)
        self._url = url
        self._clients: list[GoldenClient] = []
        self._tables: list[str] = []

    def create_table(self, name: str, family: str, level: str) -> None:
        self._tables.append(name)
        self._admin.create_table(name, [family], conflict_level=level)

    def connect(self) -> GoldenClient:
        client = GoldenClient(pyomid.connect(self._url), Life(), self.settle)
        self._clients.append(client)
        return client

    def settle(self) -> None:
        for client in self._clients:
            client.settle()

    def count_cells(self, table: str) -> tuple[int, int]:
        store = self._admin._core.deployment.store
        cells = [cell for batch in store.scan(table, KeyRange()) for cell in batch.all_cells()]
        return len(cells), sum(1 for cell in cells if cell.commit_ts)

    def pass_time(self) -> None:
        raise Unavailable("this stage cannot advance time: run the script on a local stage")

    def compact(self, table: str) -> int:
        raise Unavailable("nothing is old enough here: play the script on a local stage")

    def sanitize(self) -> int:
        raise Unavailable("nothing is old enough here: play the script on a local stage")

    def verify(self) -> list[str]:
        return []

    def count_commit_entries(self) -> int:
        return sum(1 for _, state in self._admin._core.deployment.commit_table.entries() if state > 0)

    def close(self) -> None:
        """Drops the script's tables, so that the next script finds an empty database."""
        for client in self._clients:
            client.close()
        for table in self._tables:
            self._admin.drop_table(table)
        self._admin.close()
