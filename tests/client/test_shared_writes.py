"""Writes of many tasks in one call: whose outcome is whose, and what a cancelled task leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

import pytest

from pyomid.database.async_driver import BYTES_MAX, ROWS_MAX, SharedWrites
from pyomid.errors import Misuse
from pyomid.omid.memory import MemoryStore
from pyomid.protocol.effects import WriteCells
from pyomid.types import Column, KeyRange, RowWrite, TableInfo, VersionedRows

pytestmark = [pytest.mark.fast, pytest.mark.timeout(60)]

DEADLINE_S = 30.0
CELL = Column(b"f", b"q")


class HeldStore(MemoryStore):
    """Each shared write begins when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[int]] = []
        self.came = threading.Semaphore(0)
        self.lets = threading.Semaphore(0)
        self.error: Exception | None = None
        for table in ("t", "u"):
            self.create_table(TableInfo(table, (b"f",)))

    def write_shared(self, table: str, writes: Sequence[VersionedRows]) -> list[Exception | None]:
        self.calls.append([write.version for write in writes])
        self.came.release()
        assert self.lets.acquire(timeout=DEADLINE_S)
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return super().write_shared(table, writes)

    def rows(self, table: str = "t") -> list[bytes]:
        return [batch.row_key(row) for batch in self.scan(table, KeyRange()) for row in range(batch.rows)]


def write(
    version: int, family: bytes = b"f", rows: int = 1, table: str = "t", value: bytes | None = b"v"
) -> WriteCells:
    cells = ((Column(family, b"q"), value),)
    return WriteCells(table, version, [RowWrite(b"%04d-%d" % (version, row), cells) for row in range(rows)])


@asynccontextmanager
async def held_writes() -> AsyncIterator[tuple[SharedWrites, HeldStore]]:
    store = HeldStore()
    with ThreadPoolExecutor(2) as threads:
        yield SharedWrites(store, threads), store


async def arrived(store: HeldStore) -> None:
    assert await asyncio.to_thread(store.came.acquire, timeout=DEADLINE_S)


async def begun(shared: SharedWrites, *writes: WriteCells) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(shared.write(each)) for each in writes]
    await asyncio.sleep(0)
    return tasks


async def test_what_comes_during_a_call_shares_the_next_one() -> None:
    async with held_writes() as (shared, store):
        tasks = await begun(shared, write(50), write(100), write(150), write(200, table="u"))
        await arrived(store)
        await arrived(store)
        store.lets.release(3)
        await asyncio.gather(*tasks)
        assert sorted(store.calls) == [[50], [100, 150], [200]]
        assert store.rows() == [b"0050-0", b"0100-0", b"0150-0"]
        assert store.rows("u") == [b"0200-0"]


async def test_a_bad_write_fails_alone() -> None:
    async with held_writes() as (shared, store):
        tasks = await begun(shared, write(50), write(100), write(150, b"none"), write(200))
        store.lets.release(2)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [type(None), type(None), Misuse, type(None)]
        assert store.rows() == [b"0050-0", b"0100-0", b"0200-0"]


async def test_a_calls_error_is_of_all_it_carried_and_the_next_goes() -> None:
    async with held_writes() as (shared, store):
        store.error = Misuse("broken")
        first, second = await begun(shared, write(50), write(100))
        store.lets.release(2)
        with pytest.raises(Misuse, match="broken"):
            await first
        await second
        assert store.rows() == [b"0100-0"]


async def test_a_write_cancelled_before_its_call_is_never_sent() -> None:
    """A rollback deletes what its transaction wrote: a write that left behind it would stay for ever."""
    async with held_writes() as (shared, store):
        first, second, third = await begun(shared, write(50), write(100), write(150))
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        store.lets.release(2)
        await asyncio.gather(first, third)
        assert store.calls == [[50], [150]]
        (last,) = await begun(shared, write(200))
        last.cancel()  # its call is under way: it ends, and nobody is told
        store.lets.release(1)
        with pytest.raises(asyncio.CancelledError):
            await last
        store.lets.release(1)
        await shared.write(write(250))
        assert store.rows() == [b"0050-0", b"0150-0", b"0200-0", b"0250-0"]


async def test_a_call_is_bounded() -> None:
    async with held_writes() as (shared, store):
        half = ROWS_MAX // 2
        tasks = await begun(shared, *(write(50 * version, rows=half) for version in range(1, 5)))
        store.lets.release(3)
        await asyncio.gather(*tasks)
        assert store.calls == [[50], [100, 150], [200]]
        store.calls.clear()
        large = bytes(BYTES_MAX // 2)
        tasks = await begun(shared, write(250, value=None), *(write(50 * v, value=large) for v in range(6, 9)))
        store.lets.release(3)
        await asyncio.gather(*tasks)
        assert store.calls == [[250], [300, 350], [400]]


async def test_without_a_thread_a_write_is_refused_and_not_kept() -> None:
    store = HeldStore()
    threads = ThreadPoolExecutor(1)
    shared = SharedWrites(store, threads)
    store.lets.release(2)
    await shared.write(write(50))
    threads.shutdown()
    for version in (100, 150):
        with pytest.raises(RuntimeError, match="shutdown"):
            await shared.write(write(version))
    assert store.rows() == [b"0050-0"]
