"""What lives in the processes of `front_end_world`: programs over the public API, each recording what it was told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from front_end_world import FrontProcess, FrontWorld
from green_threads import Loop, wait

from pyomid.database.async_database import AsyncDatabase
from pyomid.database.database import Database
from pyomid.database.idempotency import AlreadyDone
from pyomid.errors import ConflictError, Misuse, OmidError, OutcomeUnknown, SnapshotTooOld, Unavailable, UnknownTable
from pyomid.protocol.compaction import compact_region
from pyomid.protocol.sanitize import sanitize_entries
from pyomid.testing.history import Item, Outcome, Read, Scan, Transaction, Write
from pyomid.types import ConflictLevel, TableInfo
from simulation.actors import COLUMNS, FAMILY, RETRY_BOUND_S, ROWS, TABLES, Client, Steps
from simulation.universe import Sleep

NAMES: Final = tuple(b"%b:%b" % column for column in COLUMNS)
REMADE: Final = "c"
"""The table that is dropped and made again, at another conflict level."""
FOREIGN: Final = "j"
"""The table that a Java client makes and writes, registered late or never."""
COUNTED: Final = "counted"
"""Where runs under a durable id write."""
ONCE: Final = ("once-1", "once-2", "once-3")


@dataclass
class Rewrite:
    """One committed read-modify-write of a row of `REMADE`."""

    start_ts: int
    commit_ts: int
    generation: int
    row: bytes
    before: bytes | None
    after: bytes


@dataclass
class Notes:
    """What is judged beside the history of `TABLES`."""

    rewrites: list[Rewrite] = field(default_factory=list)
    tries: dict[str, list[int]] = field(default_factory=dict)
    """Durable id → starts of the transactions that were to commit under it."""
    told_done: dict[str, list[int]] = field(default_factory=dict)
    """Durable id → starts that a caller was told did it."""
    all_claim: bool = False
    """All programs claim what they read: the history is serializable."""


class Recorded:
    """A transaction of a front end, with its record in the history."""

    def __init__(self, world: FrontWorld, tx: Any, name: str, begin_called: int) -> None:
        self.world, self.tx = world, tx
        self.record = Transaction(f"{name}.{tx.start_ts}", begin_called=begin_called)
        self.record.begin_answered, self.record.start_ts = world.universe.steps, tx.start_ts
        world.history.transactions.append(self.record)
        self.claimed = False
        self._values = 0

    def value(self) -> bytes:
        self._values += 1
        return f"{self.record.name}~{self._values}".encode()

    def read(self, table: str, row: bytes, found: dict[bytes, bytes] | None) -> None:
        for name in NAMES:
            value = (found or {}).get(name)
            self.record.operations.append(Read(_item(table, row, name), _text(value), self.world.universe.steps))

    def scanned(self, table: str, rows: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
        found = tuple((_item(table, row, name), value.decode()) for row, cells in rows for name, value in cells.items())
        self.record.operations.append(Scan(table, "", None, found, at=self.world.universe.steps))

    def wrote(self, table: str, row: bytes, cells: dict[bytes, bytes | None]) -> None:
        self.record.operations += [Write(_item(table, row, name), _text(value)) for name, value in cells.items()]

    def committing(self) -> None:
        self.record.commit_called = self.world.universe.steps

    @contextmanager
    def judged(self) -> Iterator[None]:
        """Around a commit: what its caller was told is noted, and held against the truth."""
        self.committing()
        try:
            yield
        except OutcomeUnknown:
            raise
        except OmidError:
            self.told(0)
            raise
        self.told(self.tx.commit_ts or 0)

    def told(self, commit_ts: int) -> None:
        was_asked = self.claimed or bool(self.record.last_writes())
        if was_asked:
            self.world.truth.outcome_told(self.tx.start_ts, commit_ts)
        self.record.commit_answered = self.world.universe.steps
        committed = commit_ts or not was_asked
        self.record.outcome = Outcome.COMMITTED if committed else Outcome.ABORTED
        self.record.commit_ts = commit_ts or None

    def given_up(self) -> None:
        self.record.outcome = Outcome.ABORTED


def _item(table: str, row: bytes, name: bytes) -> Item:
    return Item(table, row.decode(), str(COLUMNS[NAMES.index(name)]))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _pause(process: FrontProcess) -> None:
    wait(Sleep(process.choices.pick((0.0, 0.1, 1.0))))


# ---------------------------------------------------------------- blocking


def blocking_writer(process: FrontProcess) -> None:
    """Reads, scans, puts, deletes, flushes, in transactions of the blocking client, some under a lease."""
    database = process.connect()
    while not process.world.closing:
        try:
            _blocking_transaction(process, database)
        except (ConflictError, Unavailable, OutcomeUnknown):
            _pause(process)


def _blocking_transaction(process: FrontProcess, database: Database) -> None:
    choices, world = process.choices, process.world
    called = world.universe.steps
    tx = database.begin(lease=choices.chance(0.2))
    told = Recorded(world, tx, process.name, called)
    try:
        for _ in range(choices.number(1, 4)):
            table = tx.table(choices.pick(TABLES))
            row = choices.pick(ROWS)
            match choices.pick(("get", "scan", "put", "put", "delete", "flush", "pause")):
                case "get":
                    told.read(table.name, row, table.get(row))
                case "scan":
                    told.scanned(table.name, list(table.scan()))
                case "put":
                    cells = {name: told.value() for name in choices.sample(NAMES, choices.number(1, 2))}
                    told.wrote(table.name, row, dict(cells))
                    table.put(row, cells)
                case "delete":
                    names = choices.sample(NAMES, 1)
                    told.wrote(table.name, row, dict.fromkeys(names))
                    table.delete(row, names)
                case "flush":
                    tx.flush()
                case "pause":
                    _pause(process)
        if choices.chance(0.1):
            told.given_up()
            tx.rollback()
            return
    except OmidError:
        told.given_up()
        if tx._core.can_roll_back:
            tx.rollback()
        raise
    with told.judged():
        tx.commit()


def claimer(process: FrontProcess) -> None:
    """Reads two rows, claims them, writes one of them or none: what it decided by still holds at its commit."""
    database = process.connect()
    while not process.world.closing:
        try:
            _claiming_transaction(process, database)
        except (ConflictError, Unavailable, OutcomeUnknown):
            _pause(process)


def _claiming_transaction(process: FrontProcess, database: Database) -> None:
    choices, world = process.choices, process.world
    called = world.universe.steps
    tx = database.begin(lease=choices.chance(0.1))
    told = Recorded(world, tx, process.name, called)
    told.claimed = True
    try:
        places = [(choices.pick(TABLES), row) for row in choices.sample(ROWS[:3], 2)]
        for name, row in places:
            if choices.chance(0.5):
                found = tx.table(name).get(row, NAMES, for_update=True)
            else:
                tx.claim(name, [row], NAMES)
                found = tx.table(name).get(row)
            told.read(name, row, found)
        if choices.chance(0.3):
            _pause(process)
        if choices.chance(0.8):
            name, row = places[0]
            column, value = choices.pick(NAMES), told.value()
            told.wrote(name, row, {column: value})
            tx.table(name).put(row, {column: value})
    except OmidError:
        told.given_up()
        if tx._core.can_roll_back:
            tx.rollback()
        raise
    with told.judged():
        tx.commit()


def once_runner(process: FrontProcess, notes: Notes) -> None:
    """Several processes run the same few durable ids: each id counts once."""
    database = process.connect()
    left = list(ONCE)
    while left and not process.world.closing:
        name = process.choices.pick(left)

        def body(tx: Any, name: str = name) -> int:
            notes.tries.setdefault(name, []).append(tx.start_ts)
            tx.table(COUNTED).put(name.encode(), {NAMES[0]: b"%d" % tx.start_ts})
            return int(tx.start_ts)

        try:
            done = database.run_once(name, body)
        except (ConflictError, Unavailable, OutcomeUnknown):
            _pause(process)
            continue
        left.remove(name)
        notes.told_done.setdefault(name, []).append(done.start_ts if isinstance(done, AlreadyDone) else done)


# ---------------------------------------------------------------- asyncio


def asyncio_writers(process: FrontProcess) -> None:
    """A loop with several tasks, each with transactions of its own; some are cancelled, some put while they flush."""
    database = process.connect()
    loop = Loop()
    try:
        loop.run_until_complete(_asyncio_writers(process, AsyncDatabase(database)))
    finally:
        asyncio._set_running_loop(None)


async def _asyncio_writers(process: FrontProcess, database: AsyncDatabase) -> None:
    workers = [_asyncio_worker(process, database, number) for number in range(process.choices.number(1, 3))]
    await asyncio.gather(*workers)


async def _asyncio_worker(process: FrontProcess, database: AsyncDatabase, number: int) -> None:
    choices = process.choices
    while not process.world.closing:
        task = asyncio.ensure_future(_asyncio_transaction(process, database, number))
        if choices.chance(0.2):
            await asyncio.sleep(choices.pick((0.0, 0.01, 0.3)))
            task.cancel()
        try:
            await task
        except (ConflictError, Unavailable, OutcomeUnknown, asyncio.CancelledError):
            await asyncio.sleep(choices.pick((0.0, 0.1, 1.0)))


async def _asyncio_transaction(process: FrontProcess, database: AsyncDatabase, number: int) -> None:
    choices, world = process.choices, process.world
    called = world.universe.steps
    tx = await database.begin(lease=choices.chance(0.2))
    told = Recorded(world, tx, f"{process.name}.{number}", called)
    try:
        for _ in range(choices.number(1, 4)):
            name = choices.pick(TABLES)
            table = await tx.table(name)
            row = choices.pick(ROWS)
            match choices.pick(("get", "scan", "put", "put", "delete", "flush", "put and flush")):
                case "get":
                    told.read(name, row, await table.get(row))
                case "scan":
                    told.scanned(name, [each async for each in table.scan()])
                case "put":
                    await _async_put(choices, told, table, name, row)
                case "delete":
                    names = choices.sample(NAMES, 1)
                    told.wrote(name, row, dict.fromkeys(names))
                    await table.delete(row, names)
                case "flush":
                    await tx.flush()
                case "put and flush":
                    await _put_while_flushing(choices, told, tx, table, name, row)
    except (OmidError, asyncio.CancelledError):
        told.given_up()
        if tx._core.can_roll_back:
            await tx.rollback()
        raise
    with told.judged():
        await tx.commit()


async def _async_put(choices: Any, told: Recorded, table: Any, name: str, row: bytes) -> None:
    cells = {each: told.value() for each in choices.sample(NAMES, choices.number(1, 2))}
    await table.put(row, cells)
    told.wrote(name, row, dict(cells))


async def _put_while_flushing(choices: Any, told: Recorded, tx: Any, table: Any, name: str, row: bytes) -> None:
    """A put that was taken counts; one that is refused because the flush is under way was told so."""
    flushing = asyncio.ensure_future(tx.flush())
    await asyncio.sleep(choices.pick((0.0, 0.01)))
    try:
        await _async_put(choices, told, table, name, row)
    except Misuse:
        pass
    finally:
        await flushing


# ---------------------------------------------------------------- catalog


def table_remaker(process: FrontProcess) -> None:
    """Makes a table, changes its level, drops it, makes it again; what was left half done is done again."""
    database = process.connect()
    levels = [ConflictLevel.CELL, ConflictLevel.ROW]
    while not process.world.closing:
        with suppress(Misuse, Unavailable, ConflictError):
            database.create_table(REMADE, [FAMILY], conflict_level=process.choices.pick(levels))
        _pause(process)
        for _ in range(process.choices.pick((0, 1, 3))):
            with suppress(UnknownTable, Misuse, Unavailable, ConflictError):
                database.alter_table(REMADE, conflict_level=process.choices.pick(levels))
            _pause(process)
        wait(Sleep(process.choices.pick((0.5, 3.0))))
        with suppress(UnknownTable, Misuse, Unavailable, ConflictError):
            database.drop_table(REMADE)
        _pause(process)


def row_rewriter(process: FrontProcess, notes: Notes) -> None:
    """Reads a row of the remade table, perhaps twice, and writes what it read, with its own name behind."""
    database = process.connect()
    while not process.world.closing:
        try:
            _rewrite(process, database, notes)
        except (ConflictError, Unavailable, OutcomeUnknown, UnknownTable):
            _pause(process)


def _rewrite(process: FrontProcess, database: Database, notes: Notes) -> None:
    tx = database.begin()
    try:
        table = tx.table(REMADE)
        row = process.choices.pick(ROWS[:2])
        before = (table.get(row) or {}).get(NAMES[0])
        _pause(process)
        if process.choices.chance(0.3):
            again = dict(table.scan()).get(row, {}).get(NAMES[0])
            assert again == before, f"R10: {tx.start_ts} read {before!r} from {REMADE}, then {again!r}"
        after = f"{process.name}.{tx.start_ts}.{table.info.generation}".encode()
        table.put(row, {NAMES[0]: after})
    except OmidError:
        if tx._core.can_roll_back:
            tx.rollback()
        raise
    tx.commit()
    assert tx.commit_ts is not None
    notes.rewrites.append(Rewrite(tx.start_ts, tx.commit_ts, table.info.generation, row, before, after))


# ---------------------------------------------------------------- a table that others make


def foreign_writer(client: Client) -> Steps:
    """A Java client: it makes a table that no catalog knows, and commits to it without asking what is registered."""
    store = client.world.disk.store
    while not client.world.closing:
        if FOREIGN not in store._tables:
            store.create_table(TableInfo(FOREIGN, (FAMILY,)))
        try:
            tx = yield from client.begin()
            yield from tx.write(FOREIGN, {client.choices.pick(ROWS): {COLUMNS[0]: True}})
            yield from tx.commit()
        except UnknownTable:
            tx.give_up()
        except (ConflictError, Unavailable, OutcomeUnknown):
            pass
        yield Sleep(client.choices.pick((0.1, 0.5, 3.0)))


def registrar(process: FrontProcess) -> None:
    """Registers the foreign table, and drops it now and then."""
    database = process.connect()
    while not process.world.closing:
        wait(Sleep(process.choices.pick((0.5, 3.0, 10.0))))
        with suppress(OmidError):
            register_foreign(database)
        if process.choices.chance(0.5):
            wait(Sleep(process.choices.pick((0.5, 3.0))))
            with suppress(OmidError):
                database.drop_table(FOREIGN)


def register_foreign(database: Database) -> None:
    database.create_table(FOREIGN, [FAMILY], if_not_exists=True)


# ---------------------------------------------------------------- upkeep


def maintainer(process: FrontProcess) -> None:
    """Compacts every table of the catalog and sanitises, by the client's own driver."""
    database = process.connect()
    while not process.world.closing:
        wait(Sleep(process.choices.pick((0.3, 1.0, 3.0))))
        maintain(process, database, lazy=True)


def maintain(process: FrontProcess, database: Database, *, lazy: bool) -> bool:
    """One round; whether every step of it was answered."""
    try:
        for info in database.tables():
            for region in database._core.deployment.store.regions(info.name):
                if lazy and process.choices.chance(0.3):
                    continue
                now_s = process.world.universe.now_s
                database._core.driver.run(
                    compact_region(
                        info.name, info.generation, region, database._core.commit_cache, now_s=now_s, rows_max=2
                    )
                )
        if lazy and process.choices.chance(0.4):
            return False
        if not lazy:
            wait(Sleep(RETRY_BOUND_S + 1.0))
        database._core.driver.run(sanitize_entries(now_s=process.world.universe.now_s, retry_bound_s=RETRY_BOUND_S))
    except (Unavailable, SnapshotTooOld, Misuse, UnknownTable):
        return False
    return True
