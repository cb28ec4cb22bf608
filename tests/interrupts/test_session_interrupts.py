"""Interrupts in a client of a real TSO: what is told is true, no lock is held, no half request is on the wire."""

from __future__ import annotations

import contextlib
import gc
import select
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, cast
from uuid import uuid4

import pytest

import pyomid
from interrupts import OWN_WRITES, Interrupter, every_place
from pyomid import coroutines
from pyomid.database import background, lease_keeper, transaction
from pyomid.database.database import Database
from pyomid.database.tables import scans, table
from pyomid.database.transaction import State
from pyomid.errors import OmidError
from pyomid.folder import environment
from pyomid.omid.client import blocking, request_retry
from pyomid.omid.client.blocking import TsoSession
from pyomid.omid.client.request_retry import ConnectionBroken
from pyomid.omid.wire import client_protocol
from pyomid.omid.wire.messages import Begin
from pyomid.protocol import commit
from served_memory import served_database

SESSION = (blocking, client_protocol, coroutines, request_retry)
CLIENT = (
    *SESSION,
    *(background, lease_keeper, scans, table, transaction, *OWN_WRITES),
    *(commit, environment),
)
WAIT_S = 60.0
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""One that came up while a generator was ended is told, and goes no further: so does CPython's own."""


@pytest.fixture(scope="module")
def db() -> Iterator[Database]:
    """Requests are patient: an answer that an interrupt lost would keep its thread waiting beyond `WAIT_S`."""
    with served_database() as database:
        database.create_table("t", families=["f"])
        session(database)._request_s = session(database)._retry_s = 2 * WAIT_S
        yield database


def session(database: Database) -> TsoSession:
    assert isinstance(database._core.deployment.tso, TsoSession)
    return database._core.deployment.tso


def assert_all_free(database: Database, other_thread: ThreadPoolExecutor) -> None:
    """Another thread has its answer; then nobody waits, and nothing is held."""
    tso = session(database)
    other_thread.submit(tso.begin).result(WAIT_S)
    assert other_thread.submit(tso._connecting.acquire, False).result(WAIT_S)
    other_thread.submit(tso._connecting.release).result(WAIT_S)
    connection = tso._connection
    assert connection is not None
    assert not connection.broken
    assert connection._sending.acquire(timeout=WAIT_S)  # another thread may be sending what is open
    connection._sending.release()


@contextmanager
def busy_neighbour(database: Database) -> Iterator[list[int]]:
    """Another thread that begins without a pause: now it reads for both, now it waits to be read for."""
    starts: list[int] = []
    ended = threading.Event()

    def begin_on() -> None:
        while not ended.is_set():
            starts.append(session(database).begin().start_ts)

    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(begin_on)
        try:
            yield starts
        finally:
            ended.set()
            begun.result(WAIT_S)


@pytest.mark.fast
@pytest.mark.parametrize("dials", [False, True], ids=["connected", "dialling"])
def test_an_interrupted_request_leaves_the_session_whole(
    db: Database, other_thread: ThreadPoolExecutor, error: Callable[[], BaseException], dials: bool
) -> None:
    def scene(interrupter: Interrupter) -> None:
        tso = session(db)
        if dials and tso._connection is not None:
            tso._connection.close(ConnectionBroken("closed by the test", sent=False))
        reply, raised = interrupter.outcome(tso.begin)
        assert raised is interrupter.error or reply is not None
        assert_all_free(db, other_thread)
        connection = tso._connection
        assert connection is not None
        assert not connection._slots
        assert not connection._has_leader

    assert every_place(SESSION, error, scene) > 40


@pytest.mark.fast
def test_an_interrupted_reader_leaves_its_neighbours_answers_to_them(
    db: Database, other_thread: ThreadPoolExecutor, error: Callable[[], BaseException]
) -> None:
    """Else they wait out their time, or take the middle of a frame for its beginning."""
    with busy_neighbour(db) as starts:

        def scene(interrupter: Interrupter) -> None:
            for _ in range(3):
                interrupter.outcome(session(db).begin)
            assert_answers_go_on(starts)

        assert every_place(SESSION, error, scene, step=2) > 40
    assert starts == sorted(set(starts))
    assert_all_free(db, other_thread)


@pytest.mark.fast
def test_an_interrupted_close_of_the_reporter_is_repeated(error: Callable[[], BaseException]) -> None:
    """Also by a thread that had the interrupt inside a lock of Python's own library."""

    class Idle:
        def report_open_starts(self) -> int:
            return 0

    def scene(interrupter: Interrupter) -> None:
        session = Idle()
        reporter = blocking._Reporter(cast(TsoSession, session))
        reporter.wake()
        thread = reporter._thread
        interrupter.outcome(reporter.stop)
        reporter.stop()
        assert thread is not None
        thread.join(WAIT_S)
        assert not thread.is_alive()

    assert every_place((blocking, contextlib, threading), error, scene) > 5


def test_a_reader_on_its_way_to_wait_keeps_the_descriptor(db: Database, other_thread: ThreadPoolExecutor) -> None:
    """Else the next connection has its number, and the reader waits for what comes there."""
    tso = session(db)
    tso.begin()
    connection = tso._connection
    assert connection is not None
    arrived, go_on = threading.Event(), threading.Event()
    poll = connection._poll

    class LatePoll:
        def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
            arrived.set()
            assert go_on.wait(WAIT_S)
            return poll.poll(timeout_ms)

    connection._poll = cast("select.poll", LatePoll())
    sock = connection._sock
    number = sock.fileno()
    reading = other_thread.submit(connection.ask, Begin(), WAIT_S)
    assert arrived.wait(WAIT_S)
    connection.close(ConnectionBroken("closed by the test", sent=False))
    del connection
    tso.begin()
    next_connection = tso._connection
    assert next_connection is not None
    assert next_connection._sock.fileno() != number
    go_on.set()
    with suppress(ConnectionBroken):  # raised unless the answer was there already
        reading.result(WAIT_S)
    del reading
    other_thread.submit(int).result(WAIT_S)  # the thread has let go of its call before
    gc.collect()  # the error that was raised knows its frames, and they the connection
    assert sock.fileno() == -1


def assert_answers_go_on(starts: list[int]) -> None:
    before = len(starts)
    deadline = threading.Event()
    timer = threading.Timer(WAIT_S, deadline.set)
    timer.start()
    while len(starts) == before:
        assert not deadline.wait(0.001)
    timer.cancel()


def outcome_is_told(db: Database, other_thread: ThreadPoolExecutor, error: Any, *, step: int, first: int = 0) -> int:
    def scene(interrupter: Interrupter) -> None:
        key = uuid4().bytes
        begun: list[pyomid.Transaction] = []

        def transact() -> None:
            with db.begin() as tx:
                begun.append(tx)
                t = tx.table("t")
                t.put(key, {b"f:x": b"1"})
                tx.flush()
                assert t.get(key) == {b"f:x": b"1"}
                t.put(key, {b"f:y": b"2"})

        _, raised = interrupter.outcome(transact)
        assert raised in (None, interrupter.error) or isinstance(raised, OmidError), raised
        assert_all_free(db, other_thread)
        with db.begin() as reader:
            seen = reader.table("t").get(key)
        assert seen in (None, {b"f:x": b"1", b"f:y": b"2"})
        state = begun[0].state if begun else State.ROLLED_BACK
        assert (raised is None) <= (state is State.COMMITTED)
        assert state is not State.COMMITTING
        if state is State.COMMITTED:
            assert seen
        elif state is not State.UNKNOWN:
            assert not seen
        if begun and state in (State.ACTIVE, State.ROLLBACK_ONLY):
            begun[0].rollback()

    return every_place(CLIENT, error, scene, step=step)


@pytest.mark.fast
def test_an_interrupted_transaction_tells_its_outcome(
    db: Database, other_thread: ThreadPoolExecutor, error: Callable[[], BaseException]
) -> None:
    assert outcome_is_told(db, other_thread, error, step=5) > 200
    assert db.drain(WAIT_S)


@pytest.mark.soak
def test_an_interrupted_transaction_tells_its_outcome_at_every_place(
    db: Database, other_thread: ThreadPoolExecutor, error: Callable[[], BaseException]
) -> None:
    assert outcome_is_told(db, other_thread, error, step=1) > 200
    assert db.drain(WAIT_S)
