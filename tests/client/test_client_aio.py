"""The asyncio client keeps the laws of the blocking one; its own are about tasks and cancellation."""

from __future__ import annotations

import asyncio
import gc
import threading
import warnings

import pytest
from async_databases import database_at

import pyomid
import pyomid.aio
from pyomid.database.async_database import AsyncDatabase
from pyomid.database.transaction import State
from pyomid.errors import Misuse, MisuseType, TransactionEnded, Unavailable
from pyomid.types import CommitReply, CommitRequest

pytestmark = pytest.mark.fast


async def get(db: AsyncDatabase, key: bytes) -> dict[bytes, bytes] | None:
    async with db.begin() as tx:
        return await (await tx.table("t")).get(key)


async def test_writes_reads_scans_and_deletes_are_those_of_the_blocking_client(url: str) -> None:
    async with database_at(url, flush_bytes=500, scan_batch_rows=4) as db:
        async with db.begin() as tx:
            table = await tx.table("t")
            for number in range(30):
                await table.put(b"%02d" % number, {b"f:x": b"%d" % number, b"f:y": b"y"})
            await table.delete(b"03")
            await table.delete(b"04", [b"f:x"])
            assert await table.get(b"04") == {b"f:y": b"y"}
            rows = [key async for key, _ in table.scan(b"01", b"06")]
            assert rows == [b"01", b"02", b"04", b"05"]
        assert tx.commit_ts is not None
        assert tx.start_ts < tx.commit_ts
        async with db.begin() as tx:
            table = await tx.table("t")
            assert [key async for key, _ in table.scan(prefix=b"1", limit=3)] == [b"10", b"11", b"12"]
            assert [key async for key, _ in table.scan(b"11", b"3", prefix=b"1", limit=2)] == [b"11", b"12"]
            with pytest.raises(Misuse, match="exclude all keys with prefix=b'1'"):
                await anext(table.scan(b"2", prefix=b"1"))
            assert await table.rows([b"00", b"03"], [b"f:x"]) == {b"00": {b"f:x": b"0"}, b"03": None}
        assert await db.drain(10)
    with pyomid.connect(url) as blocking, blocking.begin() as tx:
        assert len(list(tx.table("t").scan())) == 29


async def test_typed_tables_arrow_and_changes_are_those_of_the_blocking_client(url: str) -> None:
    row = {"id": 1, "n": 2}
    async with database_at(url, scan_batch_rows=1) as db:
        await db.set_schema("t", {"id": int, "n": int}, row_key="id")
        await db.create_index("t", "by_n", ["n"])
        place = await db.bookmark(keep_seconds=60)
        async with db.begin() as tx:
            table = await tx.table("t", codec=dict)
            await table.put(row)
            assert [each async for each in table.scan()] == [each async for each in table.lookup("by_n", 2)] == [row]
            for each in table, await tx.table("t"):
                assert (await each.to_arrow()).read_all().to_pylist() == [row]
            with pytest.raises(MisuseType, match=r"a column name must be a string, not 3 \(int\)"):
                await table.increment(1, 3)  # type: ignore[arg-type]
        assert [(change.kind, change.commit_ts) async for change in db.changes("t", place)] == [
            ("insert", tx.commit_ts)
        ]
        async with db.snapshot(at=tx.start_ts) as past:
            assert await (await past.table("t", codec=dict)).get(1) is None
        await db.release_bookmark(place)


async def test_a_cancelled_commit_is_of_unknown_outcome_and_its_transaction_is_over(
    memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with database_at(memory_url) as db:
        gate, asked, loop = threading.Event(), asyncio.Event(), asyncio.get_running_loop()
        real = db._core.deployment.tso.commit

        def slow(request: CommitRequest) -> CommitReply:
            loop.call_soon_threadsafe(asked.set)
            assert gate.wait(60)
            return real(request)

        monkeypatch.setattr(db._core.deployment.tso, "commit", slow)
        tx = await db.begin()
        await (await tx.table("t")).put(b"k", {b"f:x": b"1"})
        commit = asyncio.ensure_future(tx.commit())
        await asked.wait()
        commit.cancel()
        with pytest.raises(asyncio.CancelledError):
            await commit
        assert tx.state is State.UNKNOWN
        await tx.rollback()
        assert tx.state is State.UNKNOWN, "a rollback after the end does nothing"
        with pytest.raises(TransactionEnded, match="unknown outcome"):
            await tx.commit()
        gate.set()


async def test_a_begin_refuses_not_before_above_every_timestamp_as_the_blocking_client_does(url: str) -> None:
    with pyomid.connect(url) as db, pytest.raises(Misuse, match=f"not_before {1 << 62} is above every timestamp"):
        db.begin(not_before=1 << 62)
    async with database_at(url) as db:
        with pytest.raises(Misuse, match=f"not_before {1 << 62} is above every timestamp"):
            await db.begin(not_before=1 << 62)


async def test_a_block_connects_and_closes_without_an_await(memory_url: str) -> None:
    async with pyomid.aio.connect(memory_url) as db:
        await db.create_table("t", families=["f"])
        await db.put("t", b"a", {b"f:x": b"1"})
    with pytest.raises(Misuse, match="closed"):
        await db.get("t", b"a")
    awaited = await pyomid.aio.connect(memory_url)
    await awaited.close()
    with pytest.raises(Misuse, match="nonsense"):
        async with pyomid.aio.connect(memory_url, nonsense=1):  # type: ignore[call-arg]
            raise AssertionError


async def test_a_block_that_fails_closes_its_database(memory_url: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with pyomid.aio.connect(memory_url) as db:
            1 / 0  # noqa: B018
    with pytest.raises(Misuse, match="closed"):
        db.begin()


async def test_a_call_that_is_cancelled_before_it_began_warns_of_nothing(url: str) -> None:
    async with database_at(url) as db, db.begin() as tx:
        await db.create_table("never_begun", families=["f"])
        table = await tx.table("never_begun")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            task = asyncio.ensure_future(table.get(b"k"))
            task.cancel()
            await asyncio.wait((task,))
            assert task.cancelled()
            del task
            gc.collect()
        assert [str(each.message) for each in told] == []


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
async def test_a_commit_for_which_no_thread_starts_fails_and_later_ones_do_not(
    embedded_url: str, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Else they wait for ever for a thread that never ran."""
    start, errors = threading.Thread.start, [error]

    def fails_once(thread: threading.Thread) -> None:
        if thread.name == "pyomid-commits" and errors:
            raise errors.pop()
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fails_once)
    async with database_at(embedded_url) as db:
        tx = await db.begin()
        await (await tx.table("t")).put(b"first", {b"f:x": b"1"})
        with pytest.raises(Unavailable, match="nothing was committed, because the system cannot start a thread"):
            await tx.commit()
        assert tx.state is State.ROLLBACK_ONLY
        await tx.rollback()
        async with asyncio.timeout(60):
            await db.put("t", b"second", {b"f:x": b"2"})
        assert [key async for key, _ in db.scan("t")] == [b"second"]
        await db.drop_table("t")
