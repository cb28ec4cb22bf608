"""Who writes the commit table for others may be interrupted anywhere: nobody waits for ever, what is told is true."""

from __future__ import annotations

import select
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from shutil import copytree, rmtree

import numpy as np
import pytest

from interrupts import Interrupter, every_place
from pyomid.ports import FlushEnded, LeaderState
from pyomid.storage.embedded import EmbeddedCommitTable, commit_table, group_commit
from pyomid.storage.embedded.commit_log import background_write, segment
from pyomid.storage.embedded.commit_log import writer as commit_log
from pyomid.storage.embedded.commit_log.index import INDEX_FILE
from pyomid.storage.embedded.commit_log.writer import CommitLog, _Put
from pyomid.storage.memory import MemoryLeaderState
from pyomid.types import NOT_FOUND, SEALED, SealOutcome

pytestmark = pytest.mark.fast

MODULES = (background_write, group_commit, segment, commit_log)
WAIT_S = 60.0
STEP = 50 * 64
"""Between two starts: each has a record of its own in the index."""
ERRORS: list[Callable[[], BaseException]] = [KeyboardInterrupt, MemoryError]


@pytest.fixture
def table(tmp_path: Path) -> Iterator[EmbeddedCommitTable]:
    opened = EmbeddedCommitTable(tmp_path / "db", writable=True)
    opened.prepare()
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def other_thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


class Starts:
    """Fresh ones for each run of a scene."""

    def __init__(self) -> None:
        self._last = 0

    def take(self, count: int) -> list[int]:
        self._last += count
        return [STEP * number for number in range(self._last - count + 1, self._last + 1)]


def writer_of(table: EmbeddedCommitTable) -> CommitLog:
    assert table._writer is not None
    return table._writer


def rows(*starts: int) -> commit_log.Rows:
    return np.array([(start, start + 10) for start in starts], dtype=np.int64).reshape(-1, 2)


def waiting(writer: CommitLog, start: int) -> _Put:
    """What `put` of another thread has put into the queue before it waits for its turn."""
    put = _Put(rows(start), None)
    writer._queue.append(put)
    return put


def told(writer: CommitLog, put: _Put) -> list[int]:
    """What that thread does in its turn."""
    writer._in_turn(lambda: writer._see_to(put))
    return put.result()


def with_crash(table: EmbeddedCommitTable, tmp_path: Path, expected: dict[int, int]) -> None:
    """What the folder holds as a loss of power at this moment would leave it. At each fourth place: it is copied."""
    if max(expected) // STEP % 4:
        return
    copy = tmp_path / "crashed"
    rmtree(copy, ignore_errors=True)
    copytree(tmp_path / "db", copy)
    with open(copy / "commits" / INDEX_FILE, "r+b") as index:
        index.write(struct.pack("<qq", 0, 0))
    crashed = EmbeddedCommitTable(copy, writable=False)
    assert dict(zip(expected, crashed.lookup(list(expected)), strict=True)) == expected
    crashed.close()


def assert_all_free(table: EmbeddedCommitTable, other_thread: ThreadPoolExecutor, start: int) -> None:
    writer = writer_of(table)
    assert other_thread.submit(table.put, [(start, start + 10)]).result(WAIT_S) == []
    assert table.lookup([start]) == [start + 10]
    assert not writer._waiting
    assert writer._group is None
    assert writer._begun is None
    for lock in (writer._writing, writer._state):
        assert other_thread.submit(lock.acquire, False).result(WAIT_S)
        other_thread.submit(lock.release).result(WAIT_S)
    assert writer._checkpoint_turn.acquire(timeout=WAIT_S)
    writer._checkpoint_turn.release()
    assert all(put.is_done or put.is_abandoned for put in writer._queue)
    assert [writer._used[number] >= writer._index.used(number) for number in (0, 1)] == [True, True]


@pytest.mark.parametrize("error", ERRORS)
def test_an_interrupted_put_neither_loses_nor_fails_that_of_others(
    table: EmbeddedCommitTable, other_thread: ThreadPoolExecutor, tmp_path: Path, error: Callable[[], BaseException]
) -> None:
    """Else the members of its group wait for ever, or an innocent flush fails, or one that was told is gone."""
    writer, starts = writer_of(table), Starts()

    def scene(interrupter: Interrupter) -> None:
        theirs, mine, gone, following = starts.take(4)
        table.put([(gone, gone + 10)])
        table.delete([gone])
        innocent = waiting(writer, theirs)
        refused, raised = interrupter.outcome(lambda: table.put([(mine, mine + 10)]))
        assert raised in (None, interrupter.error)
        assert other_thread.submit(told, writer, innocent).result(WAIT_S) == []
        assert_all_free(table, other_thread, following)
        expected = [theirs + 10, following + 10]
        assert table.lookup([theirs, following]) == expected
        assert table.lookup([mine]) in ([[mine + 10]] if refused == [] else [[mine + 10], [NOT_FOUND]])
        with_crash(table, tmp_path, {theirs: theirs + 10, following: following + 10, mine: table.lookup([mine])[0]})

    assert every_place(MODULES, error, scene) > 60


@pytest.mark.parametrize("error", ERRORS)
def test_of_an_interrupted_seal_and_an_entry_one_wins(
    table: EmbeddedCommitTable, other_thread: ThreadPoolExecutor, tmp_path: Path, error: Callable[[], BaseException]
) -> None:
    writer, starts = writer_of(table), Starts()

    def scene(interrupter: Interrupter) -> None:
        start, following = starts.take(2)
        innocent = waiting(writer, start)
        outcome, _ = interrupter.outcome(lambda: table.seal(start))
        refused = other_thread.submit(told, writer, innocent).result(WAIT_S)
        assert_all_free(table, other_thread, following)
        if not refused:
            assert outcome in (None, SealOutcome(placed=False, commit_ts=start + 10))
            expected = [start + 10]
        else:  # a mark that did not become durable still refuses: an entry, once it was refused, never comes
            assert outcome in (None, SealOutcome(placed=True))
            expected = [NOT_FOUND, SEALED] if outcome is None else [SEALED]
        (found,) = table.lookup([start])
        assert found in expected
        with_crash(table, tmp_path, {start: found})

    assert every_place(MODULES, error, scene) > 40


@pytest.mark.parametrize("error", ERRORS)
def test_an_interrupted_flush_in_the_background_gives_its_turn_back(
    table: EmbeddedCommitTable, other_thread: ThreadPoolExecutor, tmp_path: Path, error: Callable[[], BaseException]
) -> None:
    """A write that nobody knows of any more must not land on top of the next one, which was acknowledged."""
    writer, starts = writer_of(table), Starts()
    fileno = table.flush_ended_fileno()
    if fileno is None:
        pytest.skip("no writes in the background here")

    def flushed(entries: commit_log.Rows) -> list[int] | None:
        if not writer.begin_put(entries, None):
            return None
        poll = select.poll()
        poll.register(fileno, select.POLLIN)
        while True:
            assert poll.poll(1000 * WAIT_S), "nobody told of the end"
            if (refused := writer.end_put()) is not None:
                return refused

    def scene(interrupter: Interrupter) -> None:
        mine, gone, following = starts.take(3)
        table.put([(gone, gone + 10)])
        table.delete_at_once(np.array([gone], dtype=np.int64))
        refused, raised = interrupter.outcome(lambda: flushed(rows(mine)))
        assert raised in (None, interrupter.error)
        if writer._begun is not None:  # it came before `end_put`, whose caller asks again
            assert writer.end_put(wait=True) == []
        assert_all_free(table, other_thread, following)
        expected = [following + 10, mine + 10] if refused == [] else [following + 10]
        assert table.lookup([following, mine][: len(expected)]) == expected
        with_crash(table, tmp_path, {following: following + 10, mine: table.lookup([mine])[0]})
        again = flushed(rows(mine))
        assert again in ([], None)
        assert again == [] or table.put([(mine, mine + 10)]) == []
        assert table.lookup([mine]) == [mine + 10]

    assert every_place(MODULES, error, scene) > 40


class Loop:
    """An event loop, as far as a flush asks for one: `run` is its turns until somebody is told."""

    leader_state: LeaderState = MemoryLeaderState()
    may_wait = False

    def __init__(self, threads: ThreadPoolExecutor) -> None:
        self._threads = threads
        self._watched: dict[int, Callable[[], None]] = {}
        self._on_thread: list[tuple[Future[tuple[list[int], int]], FlushEnded]] = []

    def on_thread(self, work: Callable[[], tuple[list[int], int]], ended: FlushEnded) -> None:
        self._on_thread.append((self._threads.submit(work), ended))

    def watch(self, fileno: int, is_readable: Callable[[], None]) -> None:
        self._watched[fileno] = is_readable

    def run(self, told: list[object]) -> None:
        poll = select.poll()
        for fileno in self._watched:
            poll.register(fileno, select.POLLIN)
        while not told:
            for work, ended in self._on_thread:
                ended(work.result(WAIT_S))
            for fileno, _ in poll.poll(1000 * WAIT_S if not told else 0):
                self._watched[fileno]()


@pytest.mark.parametrize("error", ERRORS)
def test_an_interrupted_submission_leaves_the_turn_to_the_next(
    table: EmbeddedCommitTable, other_thread: ThreadPoolExecutor, tmp_path: Path, error: Callable[[], BaseException]
) -> None:
    """Told at most once, and the truth; where the loop ends behind it, what was begun has ended."""
    starts = Starts()

    def submitted(start: int, told: list[object]) -> None:
        loop = Loop(other_thread)
        table.submit(rows(start), told.append, loop)
        loop.run(told)

    def scene(interrupter: Interrupter) -> None:
        mine, again, following = starts.take(3)
        told: list[object] = []
        _, raised = interrupter.outcome(lambda: submitted(mine, told))
        assert raised in (None, interrupter.error)
        table.leave_loop()
        (found,) = table.lookup([mine])
        assert found in (NOT_FOUND, mine + 10)
        assert told in ([], [([], 0)], [interrupter.error])
        if told == [([], 0)]:
            assert found == mine + 10
        assert_all_free(table, other_thread, following)
        told = []
        submitted(again, told)
        assert told == [([], 0)]
        with_crash(table, tmp_path, {again: again + 10, following: following + 10, mine: table.lookup([mine])[0]})

    assert every_place((commit_table, *MODULES), error, scene) > 40


@pytest.mark.parametrize("error", ERRORS)
def test_an_interrupted_hand_over_to_lmdb_loses_nothing(
    table: EmbeddedCommitTable, other_thread: ThreadPoolExecutor, tmp_path: Path, error: Callable[[], BaseException],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Segments change, tables are emptied: what was acknowledged before and behind is found, after a crash too."""
    monkeypatch.setattr(commit_log, "_RECORDS_MAX", 6)
    monkeypatch.setattr(CommitLog, "_checkpoint_other_soon", lambda self: None)  # in this thread, so that it is seen
    starts = Starts()
    expected: dict[int, int] = {}

    def acknowledged(wanted: list[int]) -> None:
        assert table.put([(start, start + 10) for start in wanted]) == []
        expected.update((start, start + 10) for start in wanted)

    def scene(interrupter: Interrupter) -> None:
        acknowledged(starts.take(2))
        first, following = starts.take(2)
        interrupter.outcome(lambda: table.put([(first, first + 10)]))
        acknowledged(starts.take(2))
        interrupter.outcome(lambda: table.delete_below(0))
        acknowledged([following])
        found = dict(zip(expected, table.lookup(list(expected)), strict=True))
        assert found == expected
        with_crash(table, tmp_path, expected)
        assert_all_free(table, other_thread, *starts.take(1))

    assert every_place(MODULES, error, scene, step=7) > 60


def test_an_innocent_put_does_not_fail_with_its_neighbours_interrupt(
    table: EmbeddedCommitTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two real threads: one is interrupted in the middle of the write for both."""
    writer = writer_of(table)
    inside, go_on = threading.Event(), threading.Event()
    append = commit_log.Segment.append

    def interrupted(self: commit_log.Segment, pieces: list[commit_log.Rows]) -> None:
        if not inside.is_set():
            inside.set()
            assert go_on.wait(WAIT_S)
            raise KeyboardInterrupt
        append(self, pieces)

    monkeypatch.setattr(commit_log.Segment, "append", interrupted)
    theirs = waiting(writer, 6400)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(table.put, [(3200, 3210)])
        assert inside.wait(WAIT_S)
        second = pool.submit(told, writer, theirs)
        go_on.set()
        with pytest.raises(KeyboardInterrupt):
            first.result(WAIT_S)
        assert second.result(WAIT_S) == []
    assert table.lookup([6400]) == [6410]
