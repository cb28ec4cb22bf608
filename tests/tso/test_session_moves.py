"""A client whose TSO fell silent, stopped with its connections open: it goes where ZooKeeper names another leader,
without waiting for its own patience to end, and stays where nobody else leads."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from service_process import Service, served

from pyomid.client.session import async_session as async_session
from pyomid.client.session import blocking as session_module
from pyomid.client.session.async_session import AsyncTsoSession, ConnectedSocket
from pyomid.client.session.blocking import TsoSession
from pyomid.client.session.request_retry import LOG_AFTER_S
from pyomid.tls import tcp_connector
from pyomid.types import CommitRequest
from pyomid.wire.client_protocol import ClientProtocol

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


@contextmanager
def session_with(leaders: Leaders) -> Iterator[tuple[TsoSession, Callable[..., Future[Any]]]]:
    """And what calls in threads of its own. Closed first: a call that hangs ends, and the test says so."""
    session = TsoSession(leaders.dial, request_s=FOR_EVER_S, retry_s=FOR_EVER_S, has_moved=leaders.has_moved)
    with ThreadPoolExecutor(16) as threads:
        try:
            yield session, threads.submit
        finally:
            session.close()


def on_a_loop(leaders: Leaders, scenario: Callable[[AsyncTsoSession], Awaitable[None]]) -> None:
    async def go() -> None:
        session = AsyncTsoSession(
            lambda: asyncio.to_thread(lambda: ConnectedSocket(leaders.dial())),
            request_s=FOR_EVER_S,
            retry_s=FOR_EVER_S,
            has_moved=leaders.has_moved,
        )
        try:
            await asyncio.wait_for(scenario(session), DEADLINE_S)
        finally:
            await session.close()

    asyncio.run(go())


def test_tasks_leave_a_suspended_leader_for_the_next_one(services: tuple[Service, Service]) -> None:
    one, two = services
    leaders = Leaders(one)

    async def scenario(session: AsyncTsoSession) -> None:
        await session.begin()
        with stopped(one):
            held = [asyncio.create_task(session.begin()) for _ in range(8)]
            await asyncio.to_thread(leaders.wait_for_looks, 3)
            assert not any(each.done() for each in held)
            leaders.leader = two
            await asyncio.gather(*held)
        assert leaders.dialled == [one, two], "all of them by one new connection"
        assert leaders.looks_beside_another == 0, "one looks for all who wait"

    on_a_loop(leaders, scenario)


def test_a_tasks_handshake_held_by_a_stopped_leader_leaves_a_commit_unsent(services: tuple[Service, Service]) -> None:
    one, two = services
    leaders = Leaders(one)

    async def scenario(session: AsyncTsoSession) -> None:
        with closing(two.session()) as other:
            start_ts = (await asyncio.to_thread(other.begin)).start_ts
        with stopped(one):
            held = asyncio.create_task(session.commit(CommitRequest(start_ts, (7,))))
            await asyncio.to_thread(leaders.wait_for_looks, 1)
            leaders.leader = two
            assert (await held).committed

    on_a_loop(leaders, scenario)


def test_tasks_wait_for_a_slow_leader_while_nobody_else_leads(services: tuple[Service, Service]) -> None:
    one, _ = services
    leaders = Leaders(one)

    async def scenario(session: AsyncTsoSession) -> None:
        before = await session.begin()
        with stopped(one):
            held = asyncio.create_task(session.begin())
            await asyncio.to_thread(leaders.wait_for_looks, 5)
        assert (await held).start_ts > before.start_ts
        assert leaders.dialled == [one]

    on_a_loop(leaders, scenario)


def test_requests_leave_a_suspended_leader_for_the_next_one(services: tuple[Service, Service]) -> None:
    one, two = services
    leaders = Leaders(one)
    with session_with(leaders) as (session, submit):
        session.begin()
        with stopped(one):
            held = [submit(session.begin) for _ in range(8)]
            leaders.wait_for_looks(3)
            assert not any(each.done() for each in held)
            leaders.leader = two
            for each in held:
                each.result(DEADLINE_S)
        assert leaders.dialled == [one, two], "all of them by one new connection"
        assert leaders.looks_beside_another == 0, "one looks for all who wait"


def test_a_commit_that_the_old_leader_may_have_received_is_only_looked_up(services: tuple[Service, Service]) -> None:
    """It was sent: the next TSO never decides it, though nothing conflicts with it there (decision 0006)."""
    one, two = services
    leaders = Leaders(one)
    with session_with(leaders) as (session, submit), closing(two.session()) as other:
        session.begin()
        start_ts = other.begin().start_ts
        with stopped(one):
            held = submit(session.commit, CommitRequest(start_ts, (7,)))
            leaders.wait_for_looks(1)
            leaders.leader = two
            assert not held.result(DEADLINE_S).committed


def test_a_handshake_held_by_a_stopped_leader_leaves_a_commit_unsent(services: tuple[Service, Service]) -> None:
    """The request itself never left: the next TSO decides it as what it is, a first try."""
    one, two = services
    leaders = Leaders(one)
    with session_with(leaders) as (session, submit), closing(two.session()) as other:
        start_ts = other.begin().start_ts
        with stopped(one):
            held = submit(session.commit, CommitRequest(start_ts, (7,)))
            leaders.wait_for_looks(1)
            leaders.leader = two
            assert held.result(DEADLINE_S).committed


def test_a_slow_leader_is_waited_for_while_nobody_else_leads(services: tuple[Service, Service]) -> None:
    one, _ = services
    leaders = Leaders(one)
    with session_with(leaders) as (session, submit):
        before = session.begin()
        with stopped(one):
            held = submit(session.begin)
            leaders.wait_for_looks(5)
        assert held.result(DEADLINE_S).start_ts > before.start_ts
        assert leaders.dialled == [one], "its answer came by the connection that was kept"


def silent_looks() -> int:
    """After so many in a row, and one more for the one that was under way, the log must say so."""
    return int(LOG_AFTER_S / session_module.LOOK_S) + 2


def told_of_silence(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if "has not replied for" in record.message]


def test_waiting_for_a_silent_leader_is_logged(
    services: tuple[Service, Service], caplog: pytest.LogCaptureFixture
) -> None:
    one, _ = services
    leaders = Leaders(one)
    with session_with(leaders) as (session, submit):
        session.begin()
        assert not told_of_silence(caplog)
        with stopped(one):
            held = submit(session.begin)
            leaders.wait_for_looks(silent_looks())
            assert told_of_silence(caplog) == ["the TSO is connected, but has not replied for 2 s"]
        held.result(DEADLINE_S)


@pytest.mark.long
def test_a_loop_logs_that_it_waits_for_a_silent_leader(
    services: tuple[Service, Service], caplog: pytest.LogCaptureFixture
) -> None:
    one, _ = services
    leaders = Leaders(one)

    async def scenario(session: AsyncTsoSession) -> None:
        await session.begin()
        with stopped(one):
            held = asyncio.create_task(session.begin())
            await asyncio.to_thread(leaders.wait_for_looks, silent_looks())
            assert len(told_of_silence(caplog)) == 1
        await held

    on_a_loop(leaders, scenario)


def test_a_leader_that_answers_is_never_left(
    services: tuple[Service, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "LOOK_S", DEADLINE_S)
    one, two = services
    leaders = Leaders(one)
    with session_with(leaders) as (session, _):
        session.begin()
        leaders.leader = two
        answers = [session.begin() for _ in range(100)]
        assert len({each.start_ts for each in answers}) == 100
        assert leaders.dialled == [one]
