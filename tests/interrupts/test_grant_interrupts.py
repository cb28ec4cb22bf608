"""Starts and leases whose caller is gone before they came: given back, whatever was interrupted, cancelled or lost."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pyomid
import pyomid.aio
from interrupts import Interrupter, every_place
from pyomid import coroutines
from pyomid.coroutines import Blocking, Effect, Handler, drive
from pyomid.database import async_driver, change_feed, database, lease_keeper, open_database, transaction, watch
from pyomid.database.async_database import AsyncDatabase
from pyomid.database.database import Database
from pyomid.omid.client import request_retry
from pyomid.omid.wire import client_protocol
from pyomid.types import BeginReply
from served_memory import served_async_database
from waiting import until

GRANTS = (
    *(async_driver, change_feed, coroutines, database, lease_keeper, client_protocol),
    *(open_database, request_retry, transaction, watch),
)
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

BLOCKING: dict[str, Callable[[Database], Any]] = {
    "begin": lambda db: db.begin(),
    "leased": lambda db: db.begin(lease=True),
    "bookmark": lambda db: db.bookmark(keep_seconds=3600.0),
    "watch": lambda db: db.watch("t", keep_seconds=3600.0),
    "past": lambda db: db.snapshot(at=db.bookmark().start_ts),
}


async def begun(db: AsyncDatabase, **more: Any) -> object:
    return await db.begin(**more)


async def watched(db: AsyncDatabase) -> object:
    watch = db.watch("t", keep_seconds=3600.0, max_wait_seconds=0.01)
    await watch.__aenter__()
    return watch


ASYNCIO: dict[str, Callable[[AsyncDatabase], Awaitable[object]]] = {
    "begin": begun,
    "leased": lambda db: begun(db, lease=True),
    "bookmark": lambda db: db.bookmark(keep_seconds=3600.0),
    "watch": watched,
}


@pytest.fixture
def memory_db(tmp_path: Path) -> Iterator[Database]:
    with pyomid.connect(f"omid-memory:{tmp_path.name}-grants") as db:
        db.create_table("t", ["f"])
        yield db


def assert_nothing_is_held(db: Database, sessions: list[Any], shared: bool) -> None:
    # A daemon thread may be about to let go of its call.
    until(lambda: not any(session._open_starts._oldest() for session in sessions), "an open start is held")
    assert not any(session._open_starts.holds_any for session in sessions)
    until(lambda: not db._core.leases._grants, "the keeper still has a lease")
    if not shared:
        until(lambda: not db._core.deployment.tso.status().leases, "the TSO still has a lease")


@pytest.mark.fast
@pytest.mark.parametrize("call", BLOCKING)
def test_an_interrupted_grant_is_given_back(memory_db: Database, call: str, error: Callable[[], BaseException]) -> None:
    tso: Any = memory_db._core.deployment.tso

    def scene(interrupter: Interrupter) -> None:
        granted, raised = interrupter.outcome(lambda: BLOCKING[call](memory_db))
        assert granted is not None or raised is interrupter.error, raised
        if granted is None:
            raised.__traceback__ = None  # whoever keeps it keeps its frames, and what they have
            assert_nothing_is_held(memory_db, [tso], call == "past")
        elif isinstance(granted, pyomid.Bookmark):
            memory_db.release_bookmark(granted)
        elif isinstance(granted, pyomid.Transaction):
            granted.rollback()
        else:
            memory_db.release_bookmark(granted.bookmark)
            granted.close()
        del granted
        assert_nothing_is_held(memory_db, [tso], call == "past")

    assert every_place(GRANTS, error, scene) > 15


@pytest.mark.process
@pytest.mark.parametrize("cancels", ["meanwhile", "afterwards"])
@pytest.mark.parametrize("call", ASYNCIO)
async def test_a_cancelled_grant_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, cancels: str
) -> None:
    """Each effect of the call in turn is cancelled while it is under way (a thread goes on with it), or between its
    answer and the next line."""

    async def cancelled_at(db: AsyncDatabase, number: int) -> bool:
        left = number
        perform = db._driver.perform

        async def counted(effect: Effect) -> Any:
            nonlocal left
            left -= 1
            task = asyncio.current_task()
            assert task is not None
            if left == -1 and cancels == "meanwhile":
                task.cancel()
            result = await perform(effect)
            if left == -1 and cancels == "afterwards":
                task.cancel()
                await asyncio.sleep(0)
            return result

        with monkeypatch.context() as patched:
            patched.setattr(db._driver, "perform", counted)
            try:
                await asyncio.create_task(ASYNCIO[call](db))  # type: ignore[arg-type]
            except asyncio.CancelledError:
                return True
        return False

    async with served_async_database() as db:
        await db.create_table("t", ["f"])
        sessions = [db._blocking._core.deployment.tso, db._session]
        number = 0
        while await cancelled_at(db, number):
            gc.collect()
            await asyncio.to_thread(assert_nothing_is_held, db._blocking, sessions, False)
            number += 1
        assert number > 0


@pytest.mark.fast
def test_a_start_whose_epoch_cannot_be_read_is_given_back(memory_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java TSO's epoch is read from its znode when the begin is answered."""

    class Session(request_retry.SessionBase[Any]):
        def _report_soon(self) -> None: ...

    def refuses() -> int:
        raise pyomid.Unavailable("no ZooKeeper")

    session = Session(request_s=1.0, retry_s=1.0, token=b"", clock=time.monotonic, announced_epoch=refuses)
    session._open_starts.connected(60.0, 0)
    monkeypatch.setattr(session, "asking", lambda *_: iter_answer(BeginReply(100)))
    handlers: dict[type[Effect[Any]], Handler] = {Blocking: lambda e: e.call()}
    with pytest.raises(pyomid.Unavailable, match="no ZooKeeper"):
        drive(session.beginning(0), handlers)
    assert not session._open_starts.holds_any


async def iter_answer(reply: BeginReply) -> BeginReply:
    return reply


@pytest.mark.fast
def test_a_begin_that_was_interrupted_is_told_soon() -> None:
    """Its start counts at the TSO until the session tells that nothing is open: nobody else may begin in between."""
    woken: list[int] = []

    class Session(request_retry.SessionBase[Any]):
        def _report_soon(self) -> None:
            woken.append(1)

    def interrupted(_: Effect) -> Any:
        raise KeyboardInterrupt

    session = Session(request_s=1.0, retry_s=1.0, token=b"", clock=time.monotonic, announced_epoch=None)
    session._open_starts.connected(60.0, 0)
    session._open_starts.next_report()
    with pytest.raises(KeyboardInterrupt):
        drive(session.beginning(0), {request_retry.Attempt: interrupted})
    assert woken
    assert not session._open_starts.is_reported


@pytest.mark.fast
def test_no_python_code_runs_where_what_has_ended_is_let_go(memory_db: Database) -> None:
    """Python swallows the exception of a signal's handler that comes in a destructor."""
    called: list[str] = []

    def profile(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            called.append(frame.f_code.co_qualname)

    with memory_db.begin() as tx:
        table = tx.table("t")
        table.put(b"k", {b"f:x": b"1"})
        rows = table.scan()
        assert list(rows) == [(b"k", {b"f:x": b"1"})]
        page = table.page()
    leased = memory_db.begin(lease=True)
    leased.rollback()
    watched = memory_db.watch("t", keep_seconds=60.0)
    watched.close()
    mark = memory_db.bookmark(keep_seconds=60.0)
    sys.setprofile(profile)
    del tx, table, rows, page, leased, watched, mark
    sys.setprofile(None)
    assert called == []
