"""One asyncio transaction, more than one task: nothing that was accepted is lost, what cannot be kept is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from async_databases import database_at
from outboxes import new_outbox

import pyomid
import pyomid.aio
from pyomid.database.async_database import AsyncDatabase
from pyomid.database.writes import write_buffer
from pyomid.database.writes.open_reads import OpenReads
from pyomid.database.writes.outbox import Outbox
from pyomid.database.writes.write_buffer import WriteBuffer
from pyomid.errors import Misuse
from pyomid.protocol.effects import WriteCells
from pyomid.types import Column, TableInfo

pytestmark = pytest.mark.fast

INFO = TableInfo("t", (b"f",))
X = Column(b"f", b"x")


class Gate:
    """Holds the store's calls up until it is opened."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self.real = real
        self.reached = threading.Event()
        self.opened = threading.Event()

    def __call__(self, *args: Any) -> Any:
        self.reached.set()
        assert self.opened.wait(60)
        return self.real(*args)


def held_up(db: AsyncDatabase, monkeypatch: pytest.MonkeyPatch, method: str) -> Gate:
    gate = Gate(getattr(db._core.deployment.store, method))
    monkeypatch.setattr(db._core.deployment.store, method, gate)
    return gate


async def test_what_comes_beside_a_flush_is_refused_and_ends_nothing(
    memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a put is lost at the flush's end, and the commit succeeds without it."""
    async with database_at(memory_url) as db:
        async with db.begin() as tx:
            table = await tx.table("t")
            await table.put(b"first", {b"f:x": b"1"})
            gate = held_up(db, monkeypatch, "write_cells")
            flush = asyncio.create_task(tx.flush())
            await asyncio.to_thread(gate.reached.wait, 60)
            for beside in (table.put(b"second", {b"f:x": b"2"}), table.get(b"first"), tx.commit()):
                with pytest.raises(Misuse, match="two tasks"):
                    await beside
            gate.opened.set()
            await flush
        assert tx.commit_ts is not None
        async with db.begin() as tx:
            assert [key async for key, _ in (await tx.table("t")).scan()] == [b"first"]


def put(outbox: Outbox, row: bytes, value: bytes) -> None:
    cells: dict[Column, bytes | None] = {X: value}
    outbox.buffer(INFO, row, cells)


def test_a_write_put_during_a_flush_stays_for_the_next() -> None:
    """The write buffer itself keeps it: a signal's handler that writes comes in here too."""
    outbox = new_outbox()
    put(outbox, b"a", b"1")
    steps = outbox.flush()
    first = steps.send(None)
    put(outbox, b"b", b"2")
    put(outbox, b"a", b"3")
    outbox.buffer(TableInfo("other", (b"f",)), b"c", {X: b"4"})
    with pytest.raises(StopIteration):
        steps.send(None)
    later = list(outbox.flush().__await__())
    assert isinstance(first, WriteCells)
    assert [write.row for write in first.rows] == [b"a"]
    assert [(effect.table, [write.row for write in effect.rows]) for effect in later] == [  # type: ignore[attr-defined]
        ("t", [b"a", b"b"]),
        ("other", [b"c"]),
    ]


def test_a_write_that_failed_is_shown_under_later_ones() -> None:
    own = WriteBuffer(INFO, OpenReads())
    own.put(b"a", {X: b"1"})
    rows, _ = own.take_rows()
    own.put(b"a", {Column(b"f", b"y"): b"2"})
    own.restore(rows)
    assert own.overlay(b"a") == {X: b"1", Column(b"f", b"y"): b"2"}
    assert own.touched


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), RuntimeError("can't start new thread")])
def test_writes_that_did_not_end_leave_it_torn(error: BaseException) -> None:
    outbox = new_outbox()
    put(outbox, b"a", b"1")
    steps = outbox.flush()
    steps.send(None)
    with pytest.raises(type(error)):
        steps.throw(error)
    assert outbox.is_torn


def test_own_writes_stay_readable_when_their_flush_lacks_memory(
    memory_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(*_: object) -> None:
        raise MemoryError

    with pyomid.connect(memory_url) as db:
        db.create_table("t", families=["f"])
        tx = db.begin()
        table = tx.table("t")
        table.put(b"k", {b"f:x": b"own"})
        with monkeypatch.context() as patch:
            patch.setattr(write_buffer, "RowWrite", lacking)
            with pytest.raises(MemoryError):
                tx.flush()
        assert table.get(b"k") == {b"f:x": b"own"}
        tx.rollback()
