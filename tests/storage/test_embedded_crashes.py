"""kill -9 and SIGSTOP of real writers, at random moments: what was acknowledged is there, nothing is torn."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from embedded_writer import ROWS_OF_BATCH, ROWS_OF_CHURN, ROWS_OF_COMMIT, TABLE, content, row_key
from small_disks import small_disk

import pyomid
from conformance import FAMILIES, OTHER, A, B, column_write, scanned
from pyomid.errors import StoreFull, Unavailable
from pyomid.folder import EmbeddedStore, environment
from pyomid.folder.native import pages
from pyomid.types import Cell, KeyRange, TableInfo

pytestmark = pytest.mark.process

KILLS = 4


@contextmanager
def writer(folder: Path, kind: str, first: int = 0) -> Iterator[subprocess.Popen[str]]:
    """The process, at work: its first write is acknowledged."""
    program = os.path.join(os.path.dirname(__file__), "embedded_writer.py")
    process = subprocess.Popen(
        [sys.executable, program, str(folder), kind, str(first)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{first}\n"
        yield process
    finally:
        process.kill()
        process.wait()


def acknowledged_before_kill(folder: Path, kind: str, first: int, rng: random.Random) -> int:
    """The last number that a writer acknowledged before it was killed."""
    with writer(folder, kind, first) as process:
        time.sleep(rng.uniform(0, 0.1))  # not to wait for something: the moment of the kill is what is tried
        process.kill()
        assert process.stdout is not None
        lines = [line for line in process.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    return int(lines[-1]) if lines else first


def kills(folder: Path, kind: str) -> int:
    """Kills writers one after another, each going on where the last one was; returns the last acknowledged."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    rng, last = random.Random(seed), -1
    for _ in range(KILLS):
        last = acknowledged_before_kill(folder, kind, last + 1, rng)
    return last


@pytest.fixture
def store(tmp_path: Path) -> Iterator[EmbeddedStore]:
    """Open through all kills, so that the next writer finds the lock of a dead one."""
    store = EmbeddedStore(tmp_path)
    store.create_table(TableInfo(TABLE, FAMILIES))
    yield store
    store.close()


def test_killed_writer_of_cells_leaves_all_it_acknowledged_and_no_torn_row(
    tmp_path: Path, store: EmbeddedStore
) -> None:
    last = kills(tmp_path, "cells")
    rows = dict(scanned(store, TABLE))
    assert set(rows) >= {row_key(number) for number in range(last + 1)}
    assert len(rows) <= last + 2, "one write may be durable without its acknowledgement"
    for number, (key, cells) in enumerate(sorted(rows.items())):
        assert cells == {Cell(key, *column, 50, content(number)) for column in (A, B, OTHER)}
    store.write_cells(TABLE, 100, [column_write(b"after", (A, b"v"))])


@pytest.mark.long
def test_killed_writer_of_batches_leaves_whole_records_in_order(tmp_path: Path, store: EmbeddedStore) -> None:
    last = kills(tmp_path, "batches")
    rows = scanned(store, TABLE)
    assert len(rows) >= (last + 1) * ROWS_OF_BATCH
    for number, (key, cells) in enumerate(rows):
        assert key == row_key(number)
        assert cells == {Cell(key, *column, 50, content(number)) for column in (A, B)}


def test_killed_healer_leaves_shadow_cells_on_whole_rows(tmp_path: Path, store: EmbeddedStore) -> None:
    last = kills(tmp_path, "heals")
    for number, (_, cells) in enumerate(scanned(store, TABLE)):
        commits = {cell.commit_ts for cell in cells}
        assert commits == {60 + number} if number <= last else len(commits) == 1


def test_killed_compactor_leaves_no_half_cleaned_row(tmp_path: Path, store: EmbeddedStore) -> None:
    """K3."""
    last = kills(tmp_path, "cleanings")
    for number, (key, cells) in enumerate(scanned(store, TABLE)):
        cleaned = {Cell(key, *column, 100, b"100", 120) for column in (A, B)}
        old = {Cell(key, *column, 50, b"50") for column in (A, B)}
        new = {Cell(key, *column, 100, b"100") for column in (A, B)}
        assert cells == cleaned if number <= last else cells in (cleaned, old, old | new)


def test_killed_committer_leaves_whole_transactions(tmp_path: Path, store: EmbeddedStore) -> None:
    last = kills(tmp_path, "commits")
    rows = scanned(store, TABLE)
    assert len(rows) in ((last + 1) * ROWS_OF_COMMIT, (last + 2) * ROWS_OF_COMMIT)
    for number, (key, cells) in enumerate(rows):
        assert key == row_key(number)
        for cell in cells:  # two, if a commit that was not acknowledged is durable
            assert (cell.value, cell.commit_ts) == (content(number), cell.version)


@pytest.mark.parametrize("kind", ["cells", "batches", "commits"])
def test_stopped_writer_holds_up_no_reader(tmp_path: Path, store: EmbeddedStore, kind: str) -> None:
    """C6: at whatever step the writer stands still, with its lock held or not."""
    rng = random.Random(7)
    with writer(tmp_path, kind) as process:
        for _ in range(20):
            time.sleep(rng.uniform(0, 0.01))
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            assert store.read_rows(TABLE, [row_key(0)])[0] != []
            next(store.scan(TABLE, KeyRange(), batch_rows_max=10))
            process.send_signal(signal.SIGCONT)


STANDS_STILL = """
import os, signal, sys
from pyomid.folder import EmbeddedStore
EmbeddedStore(sys.argv[1])._environment.write(lambda transaction: os.kill(os.getpid(), signal.SIGSTOP))
"""


def test_a_write_behind_a_stopped_writer_ends_and_names_it(
    tmp_path: Path, store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write() -> None:
        store.write_cells(TABLE, 50, [column_write(b"r", (A, b"1"))])

    process = subprocess.Popen([sys.executable, "-c", STANDS_STILL, str(tmp_path)])
    os.waitpid(process.pid, os.WUNTRACED)
    monkeypatch.setattr(environment, "WRITER_WAIT_S", 0.2)
    with ThreadPoolExecutor(3) as threads:
        for ended in [threads.submit(write) for _ in range(3)]:
            with pytest.raises(Unavailable, match=rf"process {process.pid} \(it is stopped\) has been writing"):
                ended.result(60)
    assert store.read_rows(TABLE, [b"r"]) == [[]]
    monkeypatch.setattr(environment, "WRITER_WAIT_S", 60.0)
    process.send_signal(signal.SIGCONT)
    write()
    assert len(store.read_rows(TABLE, [b"r"])[0]) == 1
    assert process.wait(60) == 0


@pytest.mark.parametrize(("guessed_max", "passes"), [(0, 2), (1 << 16, 1)])
def test_scan_beside_another_process_that_replaces_every_page_sees_one_moment(
    tmp_path: Path, store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch, guessed_max: int, passes: int
) -> None:
    """The walk reads pages that the writer frees meanwhile, in one pass by a guess of its room, or in two; while it
    stands still before each, too."""
    monkeypatch.setattr("pyomid.folder.scans._RECORDS_GUESSED_MAX", guessed_max)
    rng, walk, walks = random.Random(11), pages.walk, 0

    def slow_walk(*asked: object) -> object:
        nonlocal walks
        walks += 1
        time.sleep(rng.choice((0, 0, 0.002, 0.02)))  # not to wait for something: the writer goes on meanwhile
        return walk(*asked)

    monkeypatch.setattr(pages, "walk", slow_walk)
    with writer(tmp_path, "churn") as process:
        seen: list[int] = []
        give_up_s = time.monotonic() + 120
        while len(seen) < 150 or len(set(seen)) < 20:
            assert time.monotonic() < give_up_s, "the writer stands still"
            (batch,) = store.scan(TABLE, KeyRange(), batch_rows_max=10_000)
            assert batch.rows == ROWS_OF_CHURN + 1
            (number,) = {(cell.value or b"")[:8] for cell in batch.all_cells()}
            seen.append(int(number))
        assert process.poll() is None
    assert seen == sorted(seen)
    assert walks >= passes * len(seen), "it was the walk that read them"


def test_full_tmpfs_is_store_full_and_room_helps(tmp_path: Path) -> None:
    with small_disk(tmp_path, "2m") as disk:
        store = EmbeddedStore(disk / "db")
        store.create_table(TableInfo(TABLE, FAMILIES))
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(500_000))
        written = fill(lambda i: store.write_cells(TABLE, 50, [column_write(row_key(i), (A, b"v" * 5000))]))
        assert 0 < written < 1000
        assert [row for row, _ in scanned(store, TABLE)] == [row_key(i) for i in range(written)]
        ballast.unlink()
        store.write_cells(TABLE, 50, [column_write(row_key(written), (A, b"v"))])
        assert len(scanned(store, TABLE)) == written + 1
        store.close()


def fill(write: Callable[[int], None]) -> int:
    for number in range(1000):
        try:
            write(number)
        except StoreFull:
            return number
    return 1000


def test_commits_on_a_full_tmpfs_lose_nothing_and_go_on(tmp_path: Path) -> None:
    """The process that has the folder open, and one that opens it while the disk is full."""
    with small_disk(tmp_path, "40m") as disk, pyomid.connect(url := f"omid://{disk}/db") as db:
        db.create_table(TABLE, ["f"])
        ballast = disk / "ballast"
        with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        os.truncate(ballast, ballast.stat().st_size - (8 << 20))

        def write(number: int) -> None:
            with db.begin() as tx:
                tx.table(TABLE).put(row_key(number), {b"f:a": b"v" * 50_000})

        def keys() -> list[bytes]:
            with db.begin() as tx:
                return [key for key, _ in tx.table(TABLE).scan()]

        filled = fill(write)
        assert 0 < filled < 1000
        with pyomid.connect(url) as other, other.begin() as tx:
            assert len(list(tx.table(TABLE).scan())) == filled
        assert keys() == [row_key(number) for number in range(filled)]
        ballast.unlink()
        write(filled)
        write(filled + 1)
        assert keys() == [row_key(number) for number in range(filled + 2)]
