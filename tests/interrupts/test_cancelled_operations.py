"""A task cancelled at any await leaves its transaction usable or ended, and its outcome is never misreported."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import pyomid.aio
from portions import first
from pyomid.coroutines import Effect
from pyomid.database.async_database import AsyncDatabase
from pyomid.database.async_transaction import AsyncTransaction
from pyomid.database.tables.async_tables import AsyncTable
from pyomid.database.transaction import State
from pyomid.errors import TransactionEnded

pytestmark = pytest.mark.process

NEW, LARGE = {b"f:x": b"new"}, {b"f:x": b"new" * 300}


async def put(_: AsyncTransaction, table: AsyncTable) -> None:
    await table.put(b"k", NEW)


async def put_and_flush(tx: AsyncTransaction, table: AsyncTable) -> None:
    for number in range(4):
        await table.put(b"k%d" % number, LARGE)
    await tx.flush()
    await table.put(b"k", NEW)


async def savepoint(tx: AsyncTransaction, table: AsyncTable) -> None:
    await table.put(b"k", NEW)
    await tx.flush()
    saved = tx.savepoint()
    await table.put(b"k", {b"f:x": b"gone"})
    await table.put(b"k2", {b"f:x": b"gone"})
    await tx.flush()
    saved.rollback()
    await table.put(b"k3", NEW)


async def scan_and_put(_: AsyncTransaction, table: AsyncTable) -> None:
    async for key, _row in table.scan():
        await table.put(key, LARGE)


async def typed(tx: AsyncTransaction, _: AsyncTable) -> None:
    rows = await tx.table("typed", codec=dict)
    await rows.put({"id": 5, "n": 7})
    assert [row["id"] async for row in rows.lookup("by_n", 7)] == [5]
    await rows.put({"id": 5, "n": 8})


async def for_update(_: AsyncTransaction, table: AsyncTable) -> None:
    await table.get(b"k", for_update=True)
    await table.put(b"k", NEW, expect={b"f:x": b"old"})
    await table.increment(b"c", b"f:n")


async def delete(_: AsyncTransaction, table: AsyncTable) -> None:
    await table.delete(b"k")
    await table.delete_rows([b"k1", b"k2"])
    assert await table.put_if_absent(b"k9", NEW)


async def arrow(_: AsyncTransaction, table: AsyncTable) -> None:
    keys = pa.array([b"k%d" % number for number in range(40)], pa.binary())
    await table.write_arrow(pa.table({"key": keys, "f:x": pa.array([b"new"] * 40, pa.binary())}))
    assert (await table.to_arrow()).read_all().num_rows == 41


async def page_backwards(_: AsyncTransaction, table: AsyncTable) -> None:
    page = await table.page(limit=3, reverse=True)
    await table.put(page.rows[-1][0], NEW)


Operation = Callable[[AsyncTransaction, AsyncTable], Awaitable[None]]
OPERATIONS: list[Operation] = [
    put_and_flush, savepoint, scan_and_put, typed, put, for_update, delete, arrow, page_backwards,
]  # fmt: skip


@pytest.mark.parametrize("operation", first(2, OPERATIONS), ids=lambda each: each.__name__)
@pytest.mark.parametrize("in_block", [True, False], ids=["block", "by hand"])
async def test_a_cancelled_operation_leaves_a_clear_state(tmp_path: Path, operation: Operation, in_block: bool) -> None:
    """Each effect in turn is cancelled while it is in flight (a thread continues with it), or just after its answer."""
    url = f"omid://{tmp_path}/db"
    async with await pyomid.aio.connect(url, flush_bytes=500, scan_batch_rows=2) as db:
        await db.create_table("t", ["f"])
        await db.create_table("typed", ["f"])
        await db.set_schema("typed", {"id": int, "n": int}, row_key="id")
        await db.create_index("typed", "by_n", ["n"])
        states = set()
        for meanwhile in (True, False):
            numbers = itertools.count()
            while (state := await cancelled_state(db, operation, next(numbers), meanwhile, in_block)) is not None:
                states.add(state)
        assert State.UNKNOWN in states
        assert states & {State.ROLLED_BACK, State.ROLLBACK_ONLY, State.ACTIVE}
        assert (await db.verify()).ok


async def cancelled_state(
    db: AsyncDatabase, operation: Operation, number: int, meanwhile: bool, in_block: bool
) -> State | None:
    """The state of a transaction that was cancelled at an effect; None if it has no such effect."""
    await db.run(reset)
    before = await content(db)
    tx = await db.begin(lease=True)
    left, perform = number, db._driver.perform

    async def counted(effect: Effect) -> Any:
        nonlocal left
        task = asyncio.current_task()
        assert task is not None
        left -= 1
        is_it = left == -1
        if is_it and meanwhile:
            task.cancel()
        found = await perform(effect)
        if is_it and not meanwhile:
            task.cancel()
            await asyncio.sleep(0)
        return found

    with pytest.MonkeyPatch.context() as patched, suppress(asyncio.CancelledError):
        patched.setattr(db._driver, "perform", counted)
        await asyncio.create_task(run(tx, operation, in_block))
    state = tx.state
    assert tx._core.has_ended or not in_block
    if state is State.ROLLBACK_ONLY:
        with pytest.raises(TransactionEnded):
            await tx.commit()
    if not tx._core.has_ended:
        await (await tx.table("t")).get(b"k")
        await tx.rollback()
    await db.drain()
    if state is not State.UNKNOWN:
        assert (await content(db) != before) == (state is State.COMMITTED)
    while (await db.status()).tso.leases:
        await asyncio.sleep(0)
    return state if left < 0 else None


async def run(tx: AsyncTransaction, operation: Operation, in_block: bool) -> None:
    if in_block:
        async with tx:
            await operation(tx, await tx.table("t"))
    else:
        await operation(tx, await tx.table("t"))
        await tx.commit()


async def reset(tx: AsyncTransaction) -> None:
    """Conflicts with every operation: one whose outcome is unknown cannot commit after this."""
    table, rows = await tx.table("t"), await tx.table("typed", codec=dict)
    await table.delete_rows([key async for key, _ in table.scan()])
    for key in (b"k", *(b"k%d" % number for number in range(4))):
        await table.put(key, {b"f:x": b"old"})
    await rows.put({"id": 5, "n": 0})


async def content(db: AsyncDatabase) -> object:
    async with db.snapshot() as tx:
        table, rows = await tx.table("t"), await tx.table("typed", codec=dict)
        return [each async for each in table.scan()], [each async for each in rows.scan()]
