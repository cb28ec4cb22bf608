"""The asyncio client keeps the laws of the blocking one; its own are about tasks and cancellation."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import pyomid
import pyomid.aio
from pyomid.client.async_client import AsyncDatabase
from pyomid.client.transaction import State
from pyomid.errors import Misuse, TransactionEnded
from pyomid.types import CommitReply, CommitRequest

pytestmark = pytest.mark.fast

Body = Callable[[AsyncDatabase], Awaitable[None]]


def with_database(url: str, body: Body, **options: Any) -> None:
    async def main() -> None:
        async with await pyomid.aio.connect(url, **options) as db:
            await db.create_table("t", families=["f"], if_not_exists=True)
            await body(db)

    asyncio.run(main())


async def get(db: AsyncDatabase, key: bytes) -> dict[bytes, bytes]:
    async with db.begin() as tx:
        return await (await tx.table("t")).get(key)


def test_writes_reads_scans_and_deletes_are_those_of_the_blocking_client(url: str) -> None:
    async def body(db: AsyncDatabase) -> None:
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
            assert await table.rows([b"00", b"03"], [b"f:x"]) == {b"00": {b"f:x": b"0"}, b"03": {}}
        assert await db.drain(10)

    with_database(url, body, flush_bytes=500, scan_batch_rows=4)
    with pyomid.connect(url) as blocking, blocking.begin() as tx:
        assert len(list(tx.table("t").scan())) == 29


def test_two_tasks_in_one_transaction_are_refused(memory_url: str) -> None:
    async def body(db: AsyncDatabase) -> None:
        async with db.begin() as tx:
            table = await tx.table("t")
            results = await asyncio.gather(table.get(b"a"), table.get(b"b"), return_exceptions=True)
            assert results[0] == {}
            assert isinstance(results[1], Misuse)
            assert "two tasks" in str(results[1])

    with_database(memory_url, body)


def test_a_cancelled_commit_is_of_unknown_outcome_and_its_transaction_is_over(
    memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(db: AsyncDatabase) -> None:
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
        with pytest.raises(TransactionEnded, match="unknown outcome"):
            await tx.rollback()
        gate.set()

    with_database(memory_url, body)


def test_a_leased_transaction_holds_its_lease_until_its_end(memory_url: str) -> None:
    async def body(db: AsyncDatabase) -> None:
        async with db.begin(lease=True) as tx:
            assert (await db.status()).tso.leases == (tx.start_ts,)
        while (await db.status()).tso.leases:
            await asyncio.sleep(0)

    with_database(memory_url, body)
