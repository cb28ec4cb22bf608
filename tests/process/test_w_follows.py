"""W of a folder with real processes: it follows the oldest snapshot that is open in any of them (folder.md, L7)."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop
from forked_processes import Processes
from test_client_stops import wait_for_stop

import pyomid
import pyomid.aio
from portions import first
from pyomid.database.database import Database
from pyomid.errors import SnapshotTooOld

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

ROW = b"busy"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"omid://{tmp_path}/db"


@pytest.fixture
def db(url: str) -> Iterator[Database]:
    with pyomid.connect(url) as db:
        db.create_table("t", ["f"])
        raise_row(db)
        yield db


def raise_row(db: Database) -> int:
    with db.begin() as tx:
        count = int((tx.table("t").get(ROW) or {}).get(b"f:n", b"0")) + 1
        tx.table("t").put(ROW, {b"f:n": str(count).encode()})
    return count


def watermark(db: Database) -> int:
    return db.status().tso.watermark


def work_until(db: Database, reached: Callable[[int], bool]) -> None:
    """Short transactions on one row, until W is where it should be."""
    while not reached(watermark(db)):
        raise_row(db)


def work_while_held(db: Database) -> None:
    """Until upkeep has looked several times whether W may rise, and the same start held it back."""
    while not re.search(r"for ([4-9]|\d\d+)\.\d s$", db.status().tso.held_back_by):
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
    start_ts = begin(url)
    work_until(db, lambda w: w >= start_ts)


def read_stopped(url: str, begun: str, ended: str) -> None:
    """Begins, waits to be stopped, and reads when it goes on."""
    with pyomid.connect(url) as db:
        tx = db.begin()
        Path(begun).write_text(f"{tx.start_ts} {tx.table('t').get(ROW)[b'f:n'].decode()}")
        os.kill(os.getpid(), signal.SIGSTOP)
        try:
            found = tx.table("t").get(ROW) or {}
            Path(ended).write_text(found.get(b"f:n", b"a hole").decode())
        except SnapshotTooOld:
            Path(ended).write_text("too old")
        tx.rollback()


@pytest.mark.parametrize("age_s", first(1, [2.0, 600.0]))
def test_a_stopped_reader_is_waited_for_or_told_never_shown_a_hole(
    processes: Processes, tmp_path: Path, age_s: float
) -> None:
    url = f"omid://{tmp_path}/db?maxTransactionAgeSeconds={age_s}"
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


def test_w_passes_what_a_killed_process_held(processes: Processes, tmp_path: Path) -> None:
    url, begun = f"omid://{tmp_path}/db", tmp_path / "begun"
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


@pytest.mark.long
@pytest.mark.parametrize("asynchronous", [False, True])
def test_w_passes_what_a_killed_process_held_whose_forked_child_lives(
    processes: Processes, tmp_path: Path, asynchronous: bool
) -> None:
    """C5: the child does not keep its parent's place."""
    url, begun = f"omid://{tmp_path}/db", tmp_path / "begun"
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


def test_a_forked_child_holds_its_own_snapshot_only(db: Database, url: str) -> None:
    from_child, in_child = os.pipe()
    till, end = os.pipe()
    mine = db.begin()
    raise_row(db)
    pid = os.fork()
    if pid == 0:
        os.close(end)
        own = pyomid.connect(url)
        its = own.begin()
        os.write(in_child, b"%d" % its.start_ts)
        os.read(till, 1)
        os._exit(0)
    try:
        its_start = int(os.read(from_child, 64))
        assert its_start > mine.start_ts
        work_until(db, lambda w: w == mine.start_ts - 1)
        mine.rollback()
        work_until(db, lambda w: w == its_start - 1)
    finally:
        os.close(end)
        os.waitpid(pid, 0)
    work_until(db, lambda w: w >= its_start)
