"""Interrupts in a client of a real TSO: what is told is true, no lock is held, no half request is on the wire."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

import pyomid
from interrupts import Interrupter, every_place
from pyomid.client.database import Database
from pyomid.client.session.blocking import TsoSession
from pyomid.client.transaction_states import State
from pyomid.errors import OmidError

SESSION: tuple[str, ...] = (
    "client/session/blocking.py",
    "client/session/client_protocol.py",
    "client/session/request_retry.py",
)
CLIENT = (
    *SESSION,
    *(f"client/{name}.py" for name in ("transaction", "life", "workspace", "own_writes", "drivers", "performers")),
    *(f"client/{name}.py" for name in ("background", "states", "table", "leases")),
    "protocol/commit.py",
    "storage/embedded/environment.py",
)
WAIT_S = 60.0
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""One that came up while a generator was ended is told, and goes no further: so does CPython's own."""
ERRORS: list[Callable[[], BaseException]] = [KeyboardInterrupt, MemoryError]


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Requests are patient: an answer that an interrupt lost would keep its thread waiting beyond `WAIT_S`."""
    with pyomid.connect(f"omid://{tmp_path_factory.mktemp('interrupts')}/db?idleExitSeconds=1") as database:
        database.create_table("t", families=["f"])
        session(database)._request_s = session(database)._retry_s = 2 * WAIT_S
        yield database


def session(database: Database) -> TsoSession:
    assert isinstance(database.parts.tso, TsoSession)
    return database.parts.tso


@pytest.fixture(scope="module")
def other_thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def assert_all_free(database: Database, other_thread: ThreadPoolExecutor) -> None:
    """Another thread has its answer; then nobody waits, and nothing is held."""
    tso = session(database)
    other_thread.submit(tso.begin).result(WAIT_S)
    assert other_thread.submit(tso._dialling.acquire, False).result(WAIT_S)
    other_thread.submit(tso._dialling.release).result(WAIT_S)
    connection = tso._connection
    assert connection is not None
    assert not connection.broken
    assert not connection._sending.locked()


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
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("dials", [False, True], ids=["connected", "dialling"])
def test_an_interrupted_request_leaves_the_session_whole(
    db: Database, other_thread: ThreadPoolExecutor, error: Callable[[], BaseException], dials: bool
) -> None:
    def scene(interrupter: Interrupter) -> None:
        tso = session(db)
        if dials and tso._connection is not None:
            tso._connection.close(
                pyomid.client.session.request_retry.ConnectionBroken("closed by the test", sent=False)
            )
        reply, raised = interrupter.outcome(tso.begin)
        assert raised is interrupter.error or reply is not None
        assert_all_free(db, other_thread)
        connection = tso._connection
        assert connection is not None
        assert not connection._slots
        assert not connection._somebody_reads

    assert every_place(SESSION, error, scene) > 40


@pytest.mark.fast
@pytest.mark.parametrize("error", ERRORS)
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
        key = b"%s-%d" % (error.__name__.encode(), interrupter._left)
        begun: list[pyomid.Transaction] = []

        def transact() -> None:
            with db.begin() as tx:
                begun.append(tx)
                table = tx.table("t")
                table.put(key, {b"f:x": b"1"})
                tx.flush()
                assert table.get(key) == {b"f:x": b"1"}
                table.put(key, {b"f:y": b"2"})

        _, raised = interrupter.outcome(transact)
        assert raised in (None, interrupter.error) or isinstance(raised, OmidError), raised
        assert_all_free(db, other_thread)
        with db.begin() as reader:
            seen = reader.table("t").get(key)
        assert seen in ({}, {b"f:x": b"1", b"f:y": b"2"})
        state = begun[0].state if begun else State.ROLLED_BACK
        assert (raised is None) <= (state is State.COMMITTED)
        assert state is not State.COMMITTING
        if state is State.COMMITTED:
            assert seen
        elif state is not State.UNKNOWN:
            assert not seen
        if begun and state in (State.ACTIVE, State.DOOMED):
            begun[0].rollback()

    return every_place(CLIENT, error, scene, step=step)


@pytest.mark.fast
@pytest.mark.parametrize("error", ERRORS)
def test_an_interrupted_transaction_tells_its_outcome(
    db: Database, other_thread: ThreadPoolExecutor, error: Callable[[], BaseException]
) -> None:
    assert outcome_is_told(db, other_thread, error, step=5) > 200
    assert db.drain(WAIT_S)


@pytest.mark.soak
@pytest.mark.parametrize("error", ERRORS)
def test_an_interrupted_transaction_tells_its_outcome_at_every_place(
    db: Database, other_thread: ThreadPoolExecutor, error: Callable[[], BaseException]
) -> None:
    assert outcome_is_told(db, other_thread, error, step=1) > 200
    assert db.drain(WAIT_S)
