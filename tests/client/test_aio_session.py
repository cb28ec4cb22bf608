"""The asyncio session: cancellations, dials and threads that are lacking come to whoever they belong to."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from typing import Any

import pytest
from async_databases import database_at

import pyomid
import pyomid.aio
from pyomid.database.async_database import AsyncDatabase
from pyomid.database.transaction import State
from pyomid.errors import ConflictError, Misuse, OutcomeUnknown, Unavailable
from pyomid.omid.client import async_session
from pyomid.omid.client.async_session import AsyncTsoSession
from pyomid.omid.client.blocking import TsoSession
from pyomid.omid.client.request_retry import ConnectionBroken
from pyomid.types import CommitRequest
from served_memory import served_async_database, served_database

pytestmark = [pytest.mark.fast, pytest.mark.timeout(60)]


@asynccontextmanager
async def served_session() -> AsyncIterator[tuple[AsyncDatabase, AsyncTsoSession]]:
    async with served_async_database() as db:
        assert isinstance(db._session, AsyncTsoSession)
        await db._session.begin()
        yield db, db._session


@pytest.mark.parametrize("dials", [False, True], ids=["connected", "dialling"])
async def test_a_cancellation_beside_the_answer_is_not_lost(monkeypatch: pytest.MonkeyPatch, dials: bool) -> None:
    """The answer is there, the task has not resumed yet."""
    async with served_session() as (_, session):
        if dials:
            assert session._connection is not None
            session._connection.close(ConnectionBroken("closed by the test", sent=False))
        task = asyncio.create_task(session.begin())
        hear = async_session._Connection.data_received

        def hear_and_cancel(connection: async_session._Connection, data: bytes) -> None:
            hear(connection, data)
            task.cancel()

        monkeypatch.setattr(async_session._Connection, "data_received", hear_and_cancel)
        with pytest.raises(asyncio.CancelledError):
            await task
        monkeypatch.undo()
        await session.begin()


def test_a_client_is_refused_in_another_event_loop(embedded_url: str) -> None:
    """Not left to wait for answers that come to the first one. It is closed from wherever."""

    async def first(*, is_closed_elsewhere: bool) -> AsyncDatabase:
        db = await pyomid.aio.connect(embedded_url)
        await (await db.begin()).rollback()
        if is_closed_elsewhere:
            await asyncio.to_thread(lambda: asyncio.run(second(db)))
            with pytest.raises(Misuse, match="closed"):
                await db.begin()
        return db

    async def second(db: AsyncDatabase) -> None:
        with pytest.raises(Misuse, match="belongs to the event loop that used it first"):
            await db.begin()
        await db.close()

    asyncio.run(second(asyncio.run(first(is_closed_elsewhere=False))))
    asyncio.run(first(is_closed_elsewhere=True))


def test_a_folder_s_loop_that_ends_amid_a_commit_ends_no_other_client(embedded_url: str) -> None:
    async def transact(*, is_left: bool) -> None:
        async with await pyomid.aio.connect(embedded_url) as db:
            await db.create_table("ended", ["f"], if_not_exists=True)
            for _ in range(20):
                tx = await db.begin()
                await (await tx.table("ended")).put(os.urandom(8), {b"f:x": b"1"})
                committing = asyncio.create_task(tx.commit())
                await asyncio.sleep(0)
                if is_left:
                    return
                await committing

    asyncio.run(transact(is_left=True))
    asyncio.run(asyncio.wait_for(transact(is_left=False), 30))


async def test_a_forked_childs_close_leaves_its_parents_connection() -> None:
    """The child has the parent's epoll: what it no longer watches, the parent does not hear."""
    async with served_session() as (db, session):
        session._request_s = 1e6  # nothing but an answer ends the begin below
        pid = os.fork()
        if pid == 0:
            asyncio.run(db.close())
            os._exit(0)
        assert os.waitpid(pid, 0) == (pid, 0)
        await session.begin()


NO_THREAD = "can't start new thread"


class NoThreads(Executor):
    def submit(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError(NO_THREAD)


def broken(connection: Any) -> None:
    connection.close(ConnectionBroken("closed by the test", sent=True))


@pytest.mark.parametrize("loses", [False, True], ids=["committed", "refused"])
async def test_an_outcome_without_threads_is_told(
    memory_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, loses: bool
) -> None:
    async with database_at(memory_url) as db:
        tx = await db.begin()
        await (await tx.table("t")).put(b"k", {b"f:x": b"1"})
        await tx.flush()
        if loses:
            async with db.begin() as other:
                await (await other.table("t")).put(b"k", {b"f:x": b"2"})
        with monkeypatch.context() as patch:
            patch.setattr(db._driver, "_store_threads", NoThreads())
            patch.setattr(db._blocking._core.background, "_cells_max", 0)  # completion waits for room
            if loses:
                with pytest.raises(ConflictError):
                    await tx.commit()
            else:
                await tx.commit()
        assert tx.state is (State.ROLLED_BACK if loses else State.COMMITTED)
        assert db._blocking._core.background.counters.failures == 1
        assert NO_THREAD in caplog.text


async def test_a_task_without_a_thread_to_dial_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served_session() as (_, session):
        broken(session._connection)
        dial, errors = session._connect, [RuntimeError(NO_THREAD), MemoryError()]

        async def lacking() -> async_session.ConnectedSocket:
            if errors:
                raise errors.pop()
            return await dial()

        monkeypatch.setattr(session, "_connect", lacking)
        await session.begin()
        assert not errors


def test_a_thread_without_means_to_dial_asks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with served_database() as db:
        session = db._core.deployment.tso
        assert isinstance(session, TsoSession)
        dial, errors = session._connect, [RuntimeError(NO_THREAD), MemoryError()]

        def lacking() -> Any:
            if errors:
                raise errors.pop()
            return dial()

        session.begin()
        broken(session._connection)
        monkeypatch.setattr(session, "_connect", lacking)
        session.begin()
        assert not errors


async def test_a_lost_answer_without_threads_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served_session() as (_, session):
        start_ts = (await session.begin()).start_ts

        async def lacking() -> async_session.ConnectedSocket:
            raise RuntimeError(NO_THREAD)

        monkeypatch.setattr(session, "_connect", lacking)
        monkeypatch.setattr(session, "_retry_s", 1.0)
        monkeypatch.setattr(async_session._Connection, "data_received", lambda connection, _: broken(connection))
        with pytest.raises(OutcomeUnknown, match=NO_THREAD):
            await session.commit(CommitRequest(start_ts, (1,)))


async def test_tasks_wait_for_the_one_that_dials_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served_session() as (_, session):
        broken(session._connection)
        monkeypatch.setattr(session, "_retry_s", 0.05)
        async with asyncio.timeout(10), session._connecting:
            with pytest.raises(Unavailable, match="other callers have been connecting"):
                await session.begin()


def test_a_session_closed_while_it_dials_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with served_database() as db:
        session = db._core.deployment.tso
        assert isinstance(session, TsoSession)
        session.begin()
        broken(session._connection)
        dial, dialled = session._connect, []

        def closed_meanwhile() -> Any:
            dialled.append(dial())
            session.close()
            return dialled[-1]

        monkeypatch.setattr(session, "_connect", closed_meanwhile)
        with pytest.raises(Misuse, match="closed"):
            session.begin()
        with pytest.raises(OSError, match=r"Bad file|Broken pipe"):
            dialled[0].sendall(b"x")


async def test_both_sessions_of_a_client_know_one_database() -> None:
    """Else one goes on with the database that was made in the place of the other's: its caches are of the former."""
    async with served_session() as (db, session):
        blocking = db._core.deployment.tso
        assert isinstance(blocking, TsoSession)
        broken(session._connection)
        blocking.known.id = bytes(16)
        with pytest.raises(Misuse, match=r"was dropped and created again.*connect again"):
            await session.begin()
        if blocking._connection is not None:
            broken(blocking._connection)
        with pytest.raises(Misuse, match=r"was dropped and created again.*connect again"):
            blocking.begin()


async def test_what_was_never_sent_leaves_no_answer_expected(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java TSO answers in turn."""
    async with served_session() as (_, session):
        connection = session._connection
        assert connection is not None

        class NoMemory:
            def write(self, _: bytes) -> None:
                raise MemoryError

            def abort(self) -> None: ...

        with monkeypatch.context() as patch:
            patch.setattr(connection, "_transport", NoMemory())
            await session.begin()
        assert connection.broken
        assert session._connection is not connection


async def test_a_database_is_closed_without_threads(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def lacking(*_: object) -> None:
        raise RuntimeError(NO_THREAD)

    db = await pyomid.aio.connect(memory_url)
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "to_thread", lacking)
        await db.close()
    assert repr(db._blocking).endswith(" closed>")
