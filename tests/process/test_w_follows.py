"""T16 with real processes: W follows the oldest open start of whoever tells, and waits for whoever cannot."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import uvloop
from forked_processes import Processes
from test_client_stops import wait_for_stop

import pyomid
import pyomid.aio
from changed_tso import changed_tso
from portions import first
from pyomid import wiring
from pyomid.client.database import Database
from pyomid.client.session.blocking import TsoSession
from pyomid.config import Settings
from pyomid.errors import SnapshotTooOld
from pyomid.system import peer_process
from pyomid.wire.client_protocol import ClientProtocol
from pyomid.wire.codec import Handshake, encode_handshake, encode_request
from pyomid.wire.messages import Begin
from pyomid.wiring import folder_connector, tso_command

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

ROW = b"busy"


def tells_of_processes() -> bool:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = peer_process(ours)
    if process is None:
        return False
    os.close(process)
    return True


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"omid://{tmp_path}/db?tsoIdleExitSeconds=1"


@pytest.fixture
def db(url: str) -> Iterator[Database]:
    with pyomid.connect(url) as db:
        db.create_table("t", ["f"])
        raise_row(db)
        yield db


def raise_row(db: Database) -> int:
    with db.begin() as tx:
        count = int(tx.table("t").get(ROW).get(b"f:n", b"0")) + 1
        tx.table("t").put(ROW, {b"f:n": str(count).encode()})
    return count


def watermark(db: Database) -> int:
    return db.status().tso.watermark


def work_until(db: Database, reached: Callable[[int], bool]) -> None:
    """Short transactions on one row, until W is where it should be."""
    while not reached(watermark(db)):
        raise_row(db)


def work_while_held(db: Database) -> None:
    """Until the TSO has looked several times whether W may rise, and the same start held it back."""
    while not re.search(r"for ([4-9]|\d\d+) s$", db.status().tso.held_back_by):
        raise_row(db)


def test_w_follows_short_transactions_and_waits_for_a_long_one(db: Database) -> None:
    first = db.begin()
    first.rollback()
    work_until(db, lambda w: w >= first.start_ts)
    reader = db.begin()
    seen = reader.table("t").get(ROW)
    work_until(db, lambda w: w == reader.start_ts - 1)
    for _ in range(100):
        raise_row(db)
    assert reader.table("t").get(ROW) == seen
    status = db.status().tso
    assert status.watermark == reader.start_ts - 1
    assert f"process {os.getpid()}" in status.held_back_by
    reader.commit()
    work_until(db, lambda w: w >= reader.start_ts)


def test_w_passes_a_transaction_that_was_forgotten(db: Database) -> None:
    forgotten = db.begin()
    start_ts = forgotten.start_ts
    work_until(db, lambda w: w == start_ts - 1)
    del forgotten
    work_until(db, lambda w: w >= start_ts)


async def test_w_follows_transactions_of_an_event_loop(db: Database, url: str) -> None:
    async with await pyomid.aio.connect(url) as adb:
        reader = await adb.begin()
        await asyncio.to_thread(work_until, db, lambda w: w == reader.start_ts - 1)
        await reader.rollback()
        await asyncio.to_thread(work_until, db, lambda w: w >= reader.start_ts)


def begin_and_close(url: str) -> int:
    with pyomid.connect(url) as db:
        tx = db.begin()
        tx.rollback()
    return tx.start_ts


def begin_and_close_on_a_loop(url: str) -> int:
    async def scenario() -> int:
        async with await pyomid.aio.connect(url) as adb:
            tx = await adb.begin()
            await tx.rollback()
            return tx.start_ts

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(scenario())


@pytest.mark.parametrize("begin", first(1, [begin_and_close, begin_and_close_on_a_loop]))
def test_a_client_that_closes_holds_nothing(db: Database, url: str, begin: Callable[[str], int]) -> None:
    """It tells before it leaves, however short it stayed."""
    start_ts = begin(url)
    work_until(db, lambda w: w >= start_ts)


def read_stopped(url: str, begun: str, ended: str) -> None:
    """Begins, waits to be stopped, and reads when it goes on."""
    with pyomid.connect(url) as db:
        tx = db.begin()
        Path(begun).write_text(f"{tx.start_ts} {tx.table('t').get(ROW)[b'f:n'].decode()}")
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            found = tx.table("t").get(ROW)
            Path(ended).write_text(found.get(b"f:n", b"a hole").decode())
        except SnapshotTooOld:
            Path(ended).write_text("too old")
        tx.rollback()


@pytest.mark.parametrize("age_s", first(1, [2.0, 600.0]))
def test_a_stopped_reader_is_waited_for_or_told_never_shown_a_hole(
    processes: Processes, tmp_path: Path, age_s: float
) -> None:
    url = f"omid://{tmp_path}/db?tsoIdleExitSeconds=1&maxTransactionAgeSeconds={age_s}"
    begun, ended = tmp_path / "begun", tmp_path / "ended"
    with pyomid.connect(url) as db:
        db.create_table("t", ["f"])
        raise_row(db)
        frozen = processes.start(read_stopped, url, str(begun), str(ended))
        assert frozen.pid is not None
        while not begun.exists():
            assert frozen.is_alive()
            os.sched_yield()
        wait_for_stop(frozen.pid)
        start_ts, seen = begun.read_text().split()
        if age_s > 100:
            work_while_held(db)
            assert watermark(db) < int(start_ts)
        else:
            work_until(db, lambda w: w >= int(start_ts))
        db.compact()
        os.kill(frozen.pid, signal.SIGCONT)
        assert processes.finish(frozen) == 0
        assert ended.read_text() == (seen if age_s > 100 else "too old")


def read_for_ever(url: str, begun: str) -> None:
    with pyomid.connect(url) as db:
        reader = db.begin()
        Path(begun).write_text(str(reader.start_ts))
        signal.pause()
        reader.rollback()


def changed_command(folder: Path, settings: Settings, *, compiled: bool) -> list[str]:
    return [*changed_tso(compiled=compiled), *tso_command(folder, settings)[4:]]


@pytest.mark.skipif(not tells_of_processes(), reason="the system does not tell of a peer's process (Linux 6.5 does)")
@pytest.mark.parametrize("is_compiled", first(1, [True, False]))
def test_w_passes_what_a_killed_process_held(
    processes: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_compiled: bool
) -> None:
    """Whether compiled code hands out its start or the machine."""
    monkeypatch.setattr(wiring, "tso_command", partial(changed_command, compiled=is_compiled))
    url, begun = f"omid://{tmp_path}/db?tsoIdleExitSeconds=1", tmp_path / "begun"
    with pyomid.connect(url) as db:
        db.create_table("t", ["f"])
        reader = processes.start(read_for_ever, url, str(begun))
        while not begun.exists() or not begun.read_text():
            assert reader.is_alive()
            os.sched_yield()
        start_ts = int(begun.read_text())
        work_while_held(db)
        assert watermark(db) < start_ts
        reader.kill()
        assert processes.finish(reader) == -signal.SIGKILL
        work_until(db, lambda w: w >= start_ts)


def fork_and_wait(url: str, begun: str, asynchronous: bool) -> None:
    """A reader whose forked child, which never uses the database, outlives it."""

    async def read() -> None:
        async with await pyomid.aio.connect(url) as db:
            reader = await db.begin()
            fork(reader.start_ts)

    def fork(start_ts: int) -> None:
        child = os.fork()
        if child:
            Path(begun).write_text(f"{start_ts} {child}\n")
        signal.pause()

    if asynchronous:
        asyncio.run(read())
    else:
        with pyomid.connect(url) as db:
            reader = db.begin()
            fork(reader.start_ts)


@pytest.mark.skipif(not tells_of_processes(), reason="the system does not tell of a peer's process (Linux 6.5 does)")
@pytest.mark.long
@pytest.mark.parametrize("asynchronous", [False, True])
def test_w_passes_what_a_killed_process_held_whose_forked_child_lives(
    processes: Processes, tmp_path: Path, asynchronous: bool
) -> None:
    """C5: the child has no copy of the connection."""
    url, begun = f"omid://{tmp_path}/db?tsoIdleExitSeconds=1", tmp_path / "begun"
    with pyomid.connect(url) as db:
        db.create_table("t", ["f"])
        reader = processes.start(fork_and_wait, url, str(begun), asynchronous)
        while not begun.exists() or not begun.read_text().endswith("\n"):
            assert reader.is_alive()
            os.sched_yield()
        start_ts, child = map(int, begun.read_text().split())
        try:
            work_while_held(db)
            assert watermark(db) < start_ts
            reader.kill()
            assert processes.finish(reader) == -signal.SIGKILL
            work_until(db, lambda w: w >= start_ts)
            os.kill(child, 0)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.long
def test_a_peer_that_does_not_tell_holds_w(db: Database, url: str, tmp_path: Path) -> None:
    """As Apache Omid's clients: by the first start that it was given."""
    sock = folder_connector(tmp_path / "db", db.settings)()
    with sock:
        sock.sendall(encode_handshake(Handshake()))
        sock.sendall(encode_request(Begin(), extended=False))
        protocol, starts = ClientProtocol(), []
        protocol.ask(Begin())
        while not starts:
            starts = [answer for _, answer in protocol.feed(sock.recv(1 << 16))]
        start_ts = starts[0].start_ts  # type: ignore[union-attr]
    work_while_held(db)
    assert watermark(db) < start_ts, "its end frees nothing"


def begin_in_child(session: TsoSession, tell: socket.socket) -> None:
    begun = session.begin()
    tell.sendall(str(begun.start_ts).encode())
    tell.recv(1)
    os._exit(0)


@pytest.mark.long
def test_a_forked_child_tells_for_itself_only(db: Database, tmp_path: Path) -> None:
    with_parent, with_child = socket.socketpair()
    session = TsoSession(folder_connector(tmp_path / "db", db.settings))
    begun = session.begin()
    mine = begun.start_ts
    pid = os.fork()
    if pid == 0:
        begin_in_child(session, with_child)
    try:
        its = int(with_parent.recv(64))
        work_until(db, lambda w: w == mine - 1)
        begun.end()
        work_until(db, lambda w: w == its - 1)
    finally:
        with_parent.sendall(b"x")
        os.waitpid(pid, 0)
        session.close()
    if tells_of_processes():
        work_until(db, lambda w: w >= its)
    else:
        work_while_held(db)
        assert watermark(db) == its - 1, "it ended without a word"
