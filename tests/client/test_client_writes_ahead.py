"""Writes that leave while the caller goes on: over a store that may perform them late, in any order, or fail them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from client_faults import late_database

import pyomid
from pyomid.cells import CellNames
from pyomid.coroutines import Effect
from pyomid.database.async_database import AsyncDatabase
from pyomid.database.background import Background
from pyomid.database.database import Database
from pyomid.database.tables.async_tables import AsyncTable
from pyomid.database.transaction import State
from pyomid.database.writes.outbox import BATCH_ROWS_MIN, PIPELINED_WRITES_MAX
from pyomid.errors import OmidError, StoreFull, TransactionEnded, Unavailable
from pyomid.protocol import effects
from pyomid.protocol.hashing import cell_id, row_id
from pyomid.types import CellVersion, CommitRequest

pytestmark = pytest.mark.fast

EACH = "flushBytes=1"
"""Every put leaves at once, as a write of its own."""


def stored(db: Database, table: str = "t") -> list[CellVersion]:
    return [
        cell.name
        for batch in db._core.deployment.store.scan(table, pyomid.types.KeyRange())
        for cell in batch.all_cells()
    ]


def put_rows(tx: pyomid.Transaction, count: int, *, first: int = 0) -> None:
    for number in range(first, first + count):
        tx.table("t").put(b"%05d" % number, {b"f:x": b"1", b"f:y": b"2"})


def test_the_commit_request_leaves_when_nothing_is_on_its_way_any_more(memory_url: str) -> None:
    on_their_way: list[int] = []

    def commit(real: Any, request: CommitRequest) -> Any:
        on_their_way.append(len(store.on_their_way))
        return real(request)

    with late_database(f"{memory_url}?{EACH}", commit=commit) as (db, store):
        with db.begin() as tx:
            put_rows(tx, 5)
            assert len(store.on_their_way) == 5
            assert stored(db) == []
    assert on_their_way == [0]


def test_a_row_that_is_on_its_way_is_not_sent_again_before_it_arrived(memory_url: str) -> None:
    with late_database(f"{memory_url}?{EACH}") as (db, store):
        with db.begin() as tx:
            for value in (b"1", b"2", b"3"):
                tx.table("t").put(b"r", {b"f:x": value})
                assert len(store.on_their_way) == 1
        with db.begin() as tx:
            assert tx.table("t").get(b"r") == {b"f:x": b"3"}


def test_a_scan_under_way_shows_nothing_that_was_written_ahead_of_it_since(memory_url: str) -> None:
    with late_database(f"{memory_url}?{EACH}&scanBatchRows=1") as (db, _):
        with db.begin() as tx:
            put_rows(tx, 2, first=10)
        with db.begin() as tx:
            rows = tx.table("t").scan()
            assert next(rows)[0] == b"00010"
            put_rows(tx, 1, first=20)
            assert [key for key, _ in rows] == [b"00011"]
            assert [key for key, _ in tx.table("t").scan()] == [b"00010", b"00011", b"00020"]


def test_only_so_many_are_on_their_way(memory_url: str) -> None:
    with late_database(f"{memory_url}?{EACH}") as (db, store):
        with db.begin() as tx:
            put_rows(tx, 3 * PIPELINED_WRITES_MAX)
        assert store.most_on_their_way == PIPELINED_WRITES_MAX


REVEALS: dict[str, Callable[[pyomid.Transaction], object]] = {
    "commit": lambda tx: tx.commit(),
    "read": lambda tx: tx.table("t").get(b"nobody"),
    "flush": lambda tx: tx.flush(),
    "more writes": lambda tx: put_rows(tx, 2 * PIPELINED_WRITES_MAX, first=3),
}


@pytest.mark.parametrize("nth", [1, 3])
@pytest.mark.parametrize("error", [Unavailable("lost"), StoreFull("lost")], ids=["it arrived", "it did not"])
@pytest.mark.parametrize("how", sorted(REVEALS))
def test_a_failed_write_comes_to_light_and_makes_the_transaction_rollback_only(
    memory_url: str, how: str, error: OmidError, nth: int
) -> None:
    with late_database(f"{memory_url}?{EACH}", fails={nth: error}) as (db, _):
        tx = db.begin()
        put_rows(tx, 3)
        with pytest.raises(type(error), match="lost"):
            REVEALS[how](tx)
        assert tx.state is State.ROLLBACK_ONLY
        with pytest.raises(TransactionEnded, match="lost"):
            tx.commit()
        assert tx.table("t").get(b"%05d" % (nth - 1)) == {b"f:x": b"1", b"f:y": b"2"}
        tx.rollback()
        assert db.drain(60.0)
        assert stored(db) == []


@pytest.mark.parametrize("fails", [None, {2: Unavailable("lost")}], ids=["all arrive", "one is lost"])
def test_a_rollback_awaits_what_is_on_its_way_and_deletes_it(memory_url: str, fails: Any) -> None:
    with late_database(f"{memory_url}?{EACH}", fails=fails) as (db, store):
        tx = db.begin()
        put_rows(tx, 5)
        tx.rollback()
        assert db.drain(60.0)
        assert store.on_their_way == []
        assert stored(db) == []


@pytest.mark.parametrize("before", [0, BATCH_ROWS_MIN - 1], ids=["all in batches", "a few as rows before"])
def test_every_cell_gets_its_shadow_cell_and_the_entry_goes(memory_url: str, before: int) -> None:
    with late_database(f"{memory_url}?flushBytes=2000") as (db, store):
        with db.begin() as tx:
            put_rows(tx, before)
            tx.flush()
            put_rows(tx, 200, first=before)
        assert db.drain(60.0)
        cells = [
            cell for batch in db._core.deployment.store.scan("t", pyomid.types.KeyRange()) for cell in batch.all_cells()
        ]
        assert len(cells) == 2 * (before + 200)
        assert {cell.commit_ts for cell in cells} == {tx.commit_ts}
        assert db._core.deployment.commit_table.count() == 0
        assert (store.shadow_batches > 0) == (before == 0)


@pytest.mark.parametrize("level", ["cell", "row"])
def test_what_was_written_ahead_is_named_in_the_commit_request_each_id_once(memory_url: str, level: str) -> None:
    requests: list[CommitRequest] = []

    def commit(real: Any, request: CommitRequest) -> Any:
        requests.append(request)
        return real(request)

    with late_database(f"{memory_url}?{EACH}", commit=commit, level=level) as (db, _):
        with db.begin() as tx:
            put_rows(tx, 20)
            put_rows(tx, 1, first=7)
    rows = [b"%05d" % number for number in range(20)]
    if level == "row":
        expected = {row_id(b"t", row) for row in rows}
    else:
        expected = {cell_id(b"t", row, b"f", qualifier) for row in rows for qualifier in (b"x", b"y")}
    (request,) = requests
    assert len(request.cell_ids) == len(expected)
    assert set(request.cell_ids) == expected


def test_of_what_left_the_names_alone_are_kept(memory_url: str) -> None:
    with late_database(memory_url, at_once=True) as (db, _):
        tx = db.begin()
        for number in range(100):
            tx.table("t").put(b"%05d" % number, {b"f:x": b"v" * 10_000})
        tx.flush()
        names = tx._core.writes.write_set()["t"]
        assert isinstance(names, CellNames)
        assert sorted(names) == sorted(stored(db))
        assert sum(batch.buffer.nbytes for batch in names.batches) == 100 * len(b"00000")
        tx.commit()
        assert db.drain(60.0)
        with db.begin() as reader:
            assert reader.table("t").get(b"00042") == {b"f:x": b"v" * 10_000}


def test_the_last_effects_of_a_rollback_are_the_deletes() -> None:
    order: list[str] = []

    def perform(effect: Any) -> None:
        order.append(type(effect).__name__)
        if type(effect).__name__ == "EndWrites":
            assert effect.begun == ("one", "two")
            raise Unavailable("lost")

    background = Background(perform, linger_s=0.0, cells_max=100)
    background.roll_back({"t": (CellVersion(b"r", b"f", b"x", 50),)}, ("one", "two"))
    assert background.drain(60.0)
    background.close(60.0)
    assert order == ["EndWrites", "DeleteVersions"]


async def put_rows_in_task(table: AsyncTable, count: int) -> None:
    for number in range(count):
        await table.put(b"%05d" % number, {b"f:x": b"1"})


async def test_a_tasks_writes_leave_ahead_and_are_durable_before_its_commit(memory_url: str) -> None:
    with late_database(f"{memory_url}?{EACH}") as (db, store):
        async with AsyncDatabase(db) as tasks:
            async with tasks.begin() as tx:
                table = await tx.table("t")
                await put_rows_in_task(table, 5)
                assert len(store.on_their_way) == 5
                assert len([key async for key, _ in table.scan()]) == 5
                assert not store.on_their_way
                await put_rows_in_task(table, 3)
            assert not store.on_their_way
            async with tasks.begin() as tx:
                assert len([key async for key, _ in (await tx.table("t")).scan()]) == 5


async def test_a_tasks_write_that_fails_on_its_way_ends_in_a_rollback(memory_url: str) -> None:
    with late_database(f"{memory_url}?{EACH}", fails={2: Unavailable("cut")}) as (db, store):
        async with AsyncDatabase(db) as tasks:
            tx = await tasks.begin()
            with pytest.raises(Unavailable):
                async with tx:
                    await put_rows_in_task(await tx.table("t"), 5)
            assert tx.state is State.ROLLED_BACK
            assert await tasks.drain(60)
        assert not store.on_their_way
        assert not stored(db)


def cancel(monkeypatch: pytest.MonkeyPatch, tasks: AsyncDatabase, at: type[Effect]) -> None:
    """A task is cancelled when such an effect is done."""
    perform = tasks._driver.perform

    async def performed(effect: Effect) -> Any:
        result = await perform(effect)
        if type(effect) is at:
            raise asyncio.CancelledError
        return result

    monkeypatch.setattr(tasks._driver, "perform", performed)


@pytest.mark.parametrize("at", [effects.BeginWrite, effects.EndWrites], ids=["leaving", "awaited"])
async def test_a_cancelled_task_never_commits_writes_on_their_way(
    memory_url: str, monkeypatch: pytest.MonkeyPatch, at: type[Effect]
) -> None:
    with late_database(f"{memory_url}?{EACH}") as (db, _):
        async with AsyncDatabase(db) as tasks:
            cancel(monkeypatch, tasks, at)
            tx = await tasks.begin()
            with pytest.raises(asyncio.CancelledError):
                async with tx:
                    await put_rows_in_task(await tx.table("t"), 3)
            assert tx.state is State.ROLLED_BACK
    with pyomid.connect(memory_url) as reader, reader.begin() as tx:
        assert not list(tx.table("t").scan())


async def test_a_read_cancelled_amid_writes_says_why_it_is_over(memory_url: str) -> None:
    """It awaited writes that were sent ahead: nobody knows what became of them."""
    with late_database(f"{memory_url}?{EACH}") as (db, _):
        async with AsyncDatabase(db) as tasks:
            tx = await tasks.begin()
            table = await tx.table("t")
            await put_rows_in_task(table, 1)
            with pytest.MonkeyPatch.context() as patch:
                cancel(patch, tasks, effects.EndWrites)
                with pytest.raises(asyncio.CancelledError):
                    await table.get(b"other")
            with pytest.raises(TransactionEnded, match="CancelledError"):
                await tx.commit()
            await tx.rollback()
