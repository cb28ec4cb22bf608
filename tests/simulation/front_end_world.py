"""The shipped front ends in a simulated universe: databases over ports whose every call the scheduler moves.

A port's call is sent, takes effect and is answered as everything in `universe` is; its request or answer may be lost,
and its process may die or stop at any of them. Above the ports all code is the product's: `Database`, its
transactions, tables, background, leases, catalog operations, the asyncio twins, and what maintains the store.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import green_threads
from green_threads import drive, simulated, spawn, this_green, wait

import pyomid.database.async_database
import pyomid.database.background
import pyomid.database.lease_keeper
import pyomid.spark.connections
import pyomid.spark.transactions
from conformance import put_entry
from pyomid.config import Settings
from pyomid.database.database import Database
from pyomid.omid.wire.client_protocol import TsoCalls
from pyomid.ports import Deployment
from pyomid.protocol import effects
from pyomid.types import KeyRange, TableInfo
from simulation.actors import FAMILY, RETRY_BOUND_S, Client, Plan, World, lost
from simulation.build import Build
from simulation.compiled import MirrorBuild
from simulation.truth import Truth
from simulation.universe import Call, Choices, Process, Task

MODULES: Final[list[Any]] = [
    pyomid.database.background,
    pyomid.database.lease_keeper,
    pyomid.database.async_database,
    pyomid.spark.connections,
    pyomid.spark.transactions,
]
"""Those whose threads, clocks and pools are the simulation's."""
BUILD: Final = MirrorBuild() if os.environ.get("PYOMID_SIMULATION_MIRROR") else Build()


@dataclass(frozen=True, slots=True)
class PortCall:
    """One call of a port that takes effect at one moment."""

    label: str
    action: Callable[[], Any]


class EveryTable(Truth):
    """A truth that looks at every table of the store, in the catalog or not (K6)."""

    def entries_leaving(self, starts: Sequence[int]) -> None:
        leaving = {start for start in starts if start in self.commits}
        for table in self.disk.store._tables:
            self._demand_healed(table, leaving)

    def _demand_healed(self, table: str, leaving: set[int]) -> None:
        for cell in self.cells_of(table):
            start = cell.version - cell.version % 50
            if start in leaving and cell.commit_ts != self.commits[start]:
                raise AssertionError(f"I5: the entry of {start} goes while {table} {cell} has no shadow cell")


class FrontWorld(World):
    """A world whose clients are processes with a database."""

    def __init__(self, choices: Choices, plan: Plan, *, catalog_cache_s: float = 0.0) -> None:
        super().__init__(BUILD, choices, plan)
        self.truth.__class__ = EveryTable
        self.settings = Settings(
            catalog_cache_seconds=catalog_cache_s,
            commit_retry_seconds=RETRY_BOUND_S,
            lease_seconds=plan.settings["lease_seconds"],
            retries=3,
        )
        self.databases: list[Database] = []
        self.at_home: dict[Process, FrontProcess] = {}
        green_threads.ROOT["world"] = self
        self.add_table("counted")

    def add_table(self, name: str) -> None:
        info = TableInfo(name, (FAMILY,))
        self.disk.store.create_table(info)
        put_entry(self.disk.catalog, info)

    def process(self, name: str) -> FrontProcess:
        return FrontProcess(self, self.universe.process(name))

    def _perform(self, task: Task, effect: Any) -> Call:
        if isinstance(effect, PortCall):
            return self.universe.call(
                task.process, effect.label, effect, [effect.action], done=task.answer, failed=task.fail, fallible=lost
            )
        return super()._perform(task, effect)

    @contextmanager
    def running(self) -> Iterator[None]:
        """While it lasts the front ends' threads are the universe's."""
        with simulated(MODULES), patch.object(pyomid.spark.connections, "open_deployment", _parts_here):
            try:
                yield
            finally:
                for process in self.universe.processes:
                    process.alive = False
                    green_threads.bury(process)
                for database in self.databases:
                    database._core.abandon()
                pyomid.spark.connections._open.clear()


class FrontProcess:
    """A process of the simulation that opens databases as a program does."""

    def __init__(self, world: FrontWorld, process: Process) -> None:
        self.world, self.process = world, process
        self.choices = world.universe.choices
        self._session = Client(world, process)
        world.at_home[process] = self
        process.on_death = partial(green_threads.bury, process)

    @property
    def name(self) -> str:
        return self.process.name

    @property
    def url(self) -> str:
        """What every process of this universe names the database by."""
        return "omid-memory:simulated"  # opened by `_parts_here`

    def start(self, name: str, function: Callable[[], Any]) -> Task:
        """A thread of it."""
        return spawn(self.world.universe, self.process, f"{self.name}.{name}", function)

    def connect(self) -> Database:
        database = Database(self.parts(), url=f"simulated:{self.name}", sleep=green_threads.TIME.sleep)
        database._core._random = random.Random(self.choices.number(0, 1 << 30))
        self.world.databases.append(database)
        return database

    def parts(self) -> Deployment:
        disk = self.world.disk
        return Deployment(
            store=SimulatedStore(self.world),
            commit_table=SimulatedCommitTable(self.world),
            leader_state=SimulatedEpochRow(self.world),
            catalog=AtOnce("catalog", disk.catalog),
            tso=SimulatedTso(self._session),
            settings=self.world.settings,
            clock=lambda: self.world.universe.now_s,
        )


class AtOnce:
    """A port each of whose calls takes effect at one moment, as the object behind it does it."""

    def __init__(self, name: str, behind: Any) -> None:
        self._name, self._behind = name, behind

    def __getattr__(self, method: str) -> Callable[..., Any]:
        found = getattr(self._behind, method)
        if not callable(found):
            return found  # type: ignore[no-any-return]

        def call(*arguments: Any, **named: Any) -> Any:
            return wait(PortCall(f"{self._name}.{method}{_shown(arguments)}", partial(found, *arguments, **named)))

        return call

    def close(self) -> None: ...


class SimulatedStore(AtOnce):
    """Reads and writes row by row, each at its own moment."""

    def __init__(self, world: FrontWorld) -> None:
        super().__init__("store", world.disk.store)
        self._world = world

    @property
    def limits(self) -> Any:
        return self._world.disk.store.limits

    def check_opened(self, table: str, families: Iterable[bytes], *, leased: bool = False) -> None: ...

    def read_rows(self, table: str, rows: Sequence[bytes], columns: Any = None, **how: Any) -> Any:
        return wait(effects.ReadRows(table, rows, columns, **how)) if rows else []

    def scan(
        self, table: str, key_range: KeyRange, columns: Any = None, *, batch_rows_max: int = 10_000, bounds: Any = None
    ) -> Any:
        start: bytes | None = key_range.start
        rows_max = self._world.universe.choices.pick((1, 2, batch_rows_max))
        while start is not None:
            batch = wait(effects.ReadRange(table, KeyRange(start, key_range.stop), columns, rows_max, bounds))
            if batch.rows:
                yield batch
            start = batch.row_key(batch.rows - 1) + b"\0" if batch.rows else None

    def write_cells(self, table: str, version: int, rows: Any) -> None:
        wait(effects.WriteCells(table, version, rows))

    def write_shadow_cells(self, table: str, shadows: Any) -> None:
        wait(effects.WriteShadowCells(table, shadows))

    def delete_versions(self, table: str, cells: Any) -> None:
        wait(effects.DeleteVersions(table, cells))

    def clean_batch(self, table: str, batch: Any, heals: Any, drops: Any) -> None:
        wait(effects.CleanBatch(table, batch, heals, drops))


class SimulatedCommitTable(AtOnce):
    def __init__(self, world: FrontWorld) -> None:
        super().__init__("commits", world.disk.commits)

    def lookup(self, starts: Sequence[int]) -> list[int]:
        return [wait(PortCall(f"commits.lookup {start}", partial(self._behind.lookup, [start])))[0] for start in starts]

    def lookup_then_watermarks(self, starts: Sequence[int]) -> None:
        """Never in one round trip: what comes between the two is what a schedule is about."""


class SimulatedEpochRow(AtOnce):
    def __init__(self, world: FrontWorld) -> None:
        super().__init__("leader state", world.disk.leader_state)


class SimulatedTso(TsoCalls):
    """A session that sends again what was not answered, as the client's does."""

    def __init__(self, session: Client) -> None:
        self._session = session

    @property
    def extended(self) -> bool:
        return True

    def _ask_for(self, request: Any, kind: type[Any]) -> Any:
        answer = drive(self._session.ask(request))
        assert isinstance(answer, kind), f"{request} is answered {answer}"
        return answer

    def close(self) -> None: ...


def _shown(arguments: Sequence[Any]) -> str:
    return "".join(f" {getattr(argument, 'name', argument)!r}" for argument in arguments)[:60]


def _parts_here(url: str, **_: Any) -> Deployment:
    """What `open_deployment` opens in the process that calls it."""
    green = this_green()
    world = green_threads.ROOT["world"]
    return world.at_home[green.process].parts()
