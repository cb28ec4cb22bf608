"""A client whose TSO fell silent, stopped with its connections open: it goes where ZooKeeper names another leader,
without waiting for its own patience to end, and stays where nobody else leads."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from service_process import Service, served

from portions import first
from pyomid.omid.client import async_session
from pyomid.omid.client import blocking as session_module
from pyomid.omid.client.async_session import AsyncTsoSession, ConnectedSocket
from pyomid.omid.client.blocking import TsoSession
from pyomid.omid.client.request_retry import LOG_AFTER_S
from pyomid.omid.wire.client_protocol import ClientProtocol
from pyomid.tls import tcp_connector
from pyomid.types import CommitRequest

pytestmark = pytest.mark.process

FOR_EVER_S = 3600.0
DEADLINE_S = 120.0


class Leaders:
    """What a cluster's ZooKeeper says, and how often it was asked."""

    def __init__(self, leader: Service) -> None:
        self.leader = leader
        self.dialled: list[Service] = []
        self.looks = 0
        self.looks_beside_another = 0
        self.looked = threading.Condition()
        self._looking = threading.Lock()

    def dial(self) -> socket.socket:
        self.dialled.append(self.leader)
        return tcp_connector(self.leader.address)()

    def has_moved(self) -> bool:
        is_alone = self._looking.acquire(blocking=False)
        with self.looked:
            self.looks += 1
            self.looks_beside_another += not is_alone
            self.looked.notify_all()
        if is_alone:
            self._looking.release()
        return self.leader is not self.dialled[-1]

    def wait_for_looks(self, looks: int) -> None:
        with self.looked:
            target = self.looks + looks
            assert self.looked.wait_for(lambda: self.looks >= target, DEADLINE_S), "nobody looked"


@pytest.fixture
def services(tmp_path: Path) -> Iterator[tuple[Service, Service]]:
    folders = tmp_path / "one", tmp_path / "two"
    for folder in folders:
        folder.mkdir()
    with served(folders[0], compiled=False) as one, served(folders[1], compiled=False) as two:
        yield one, two


@pytest.fixture(autouse=True)
def _one_database(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two stand for leaders of one database; with stores in their memories each would tell an id of its own."""
    monkeypatch.setattr(ClientProtocol, "database_id", b"")


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (session_module, async_session):
        monkeypatch.setattr(module, "LOOK_S", 0.05)


@contextmanager
def stopped(service: Service) -> Iterator[None]:
    os.kill(service.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(service.process.pid, signal.SIGCONT)


Ask = Callable[..., Future[Any]]
"""A method's name and its arguments: what the session's call returns, later."""


@contextmanager
def in_threads(leaders: Leaders) -> Iterator[Ask]:
    """Closed first: a call that hangs ends, and the test says so."""
    session = TsoSession(leaders.dial, request_s=FOR_EVER_S, retry_s=FOR_EVER_S, has_moved=leaders.has_moved)
    with ThreadPoolExecutor(16) as threads:
        try:
            yield lambda name, *arguments: threads.submit(getattr(session, name), *arguments)
        finally:
            session.close()


@contextmanager
def in_tasks(leaders: Leaders) -> Iterator[Ask]:
    session = AsyncTsoSession(
        lambda: asyncio.to_thread(lambda: ConnectedSocket(leaders.dial())),
        request_s=FOR_EVER_S,
        retry_s=FOR_EVER_S,
        has_moved=leaders.has_moved,
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def ask(name: str, *arguments: Any) -> Future[Any]:
        return asyncio.run_coroutine_threadsafe(getattr(session, name)(*arguments), loop)

    try:
        yield ask
    finally:
        ask("close").result(DEADLINE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


SessionWith = Callable[[Leaders], AbstractContextManager[Ask]]
SESSIONS: list[SessionWith] = [in_threads, in_tasks]
BOTH = pytest.mark.parametrize("session_with", SESSIONS)


@BOTH
def test_requests_leave_a_suspended_leader_for_the_next_one(
    services: tuple[Service, Service], session_with: SessionWith
) -> None:
    one, two = services
    leaders = Leaders(one)
    with session_with(leaders) as ask:
        ask("begin").result(DEADLINE_S)
        with stopped(one):
            held = [ask("begin") for _ in range(8)]
            leaders.wait_for_looks(3)
            assert not any(each.done() for each in held)
            leaders.leader = two
            for each in held:
                each.result(DEADLINE_S)
        assert leaders.dialled == [one, two], "all of them by one new connection"
        assert leaders.looks_beside_another == 0, "one looks for all who wait"


@BOTH
@pytest.mark.parametrize("is_connected", [True, False])
def test_the_next_leader_decides_no_commit_that_the_old_one_may_have_received(
    services: tuple[Service, Service], session_with: SessionWith, is_connected: bool
) -> None:
    """It only looks it up, though nothing conflicts with it (decision 0006). A request that waited for the handshake
    never left, and is decided as what it is, a first try."""
    one, two = services
    leaders = Leaders(one)
    with session_with(leaders) as ask, closing(two.session()) as other:
        if is_connected:
            ask("begin").result(DEADLINE_S)
        start_ts = other.begin().start_ts
        with stopped(one):
            held = ask("commit", CommitRequest(start_ts, (7,)))
            leaders.wait_for_looks(1)
            leaders.leader = two
            assert held.result(DEADLINE_S).committed is not is_connected


@BOTH
def test_a_slow_leader_is_waited_for_while_nobody_else_leads(
    services: tuple[Service, Service], session_with: SessionWith
) -> None:
    one, _ = services
    leaders = Leaders(one)
    with session_with(leaders) as ask:
        before = ask("begin").result(DEADLINE_S)
        with stopped(one):
            held = ask("begin")
            leaders.wait_for_looks(5)
        assert held.result(DEADLINE_S).start_ts > before.start_ts
        assert leaders.dialled == [one], "its answer came by the connection that was kept"


def told_of_silence(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "has not replied for" in record.message]


@pytest.mark.parametrize("session_with", first(1, SESSIONS))
def test_waiting_for_a_silent_leader_is_logged(
    services: tuple[Service, Service], caplog: pytest.LogCaptureFixture, session_with: SessionWith
) -> None:
    one, _ = services
    leaders = Leaders(one)
    with session_with(leaders) as ask:
        ask("begin").result(DEADLINE_S)
        assert not told_of_silence(caplog)
        with stopped(one):
            held = ask("begin")
            leaders.wait_for_looks(int(LOG_AFTER_S / session_module.LOOK_S) + 2)  # one may have been under way
            assert told_of_silence(caplog) == ["the TSO is connected, but has not replied for 2 s"]
        held.result(DEADLINE_S)


@BOTH
def test_a_leader_that_answers_is_never_left(
    services: tuple[Service, Service], monkeypatch: pytest.MonkeyPatch, session_with: SessionWith
) -> None:
    for module in (session_module, async_session):
        monkeypatch.setattr(module, "LOOK_S", DEADLINE_S)
    one, two = services
    leaders = Leaders(one)
    with session_with(leaders) as ask:
        ask("begin").result(DEADLINE_S)
        leaders.leader = two
        answers = [ask("begin").result(DEADLINE_S) for _ in range(100)]
        assert len({each.start_ts for each in answers}) == 100
        assert leaders.dialled == [one]
