"""Flushes that the disk writes while their caller goes on: the same promises as of one that is waited for.

Real files and real asynchronous I/O; where this system has none, only the fall-back is tested.
"""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from embedded_images import image_after_kill, image_after_power_loss
from numpy.typing import NDArray

from pyomid.errors import Misuse, StoreFull, Unavailable
from pyomid.server.flush import Flushes
from pyomid.storage.embedded import EmbeddedCommitTable
from pyomid.storage.embedded.commit_log import background_write, writer
from pyomid.storage.embedded.commit_log import segment as recent_log
from pyomid.storage.embedded.commit_log.index import LOG_FILES
from pyomid.storage.embedded.commit_log.index_kernels import SLOTS
from pyomid.storage.embedded.commit_log.segment import BLOCK_BYTES, Rows, read_segment
from pyomid.storage.embedded.commit_log.writer import CommitLog
from pyomid.storage.memory import MemoryLeaderState
from pyomid.testing.conformance import in_forked_child
from pyomid.types import NOT_FOUND, SEALED, SealOutcome

pytestmark = pytest.mark.fast

DEADLINE_S = 60
BUCKET = SLOTS * 50
ROWS_A_BLOCK = (BLOCK_BYTES - 24) // 16


def rows(*entries: tuple[int, int]) -> Rows:
    return np.array(entries, dtype=np.int64).reshape(-1, 2)


def starts(*wanted: int) -> NDArray[np.int64]:
    return np.array(wanted, dtype=np.int64)


def many(first: int, count: int) -> Rows:
    """Entries that take a record of the index each."""
    starts = 50 + BUCKET * np.arange(first, first + count, dtype=np.int64)
    return np.stack([starts, starts + 10], axis=1)


def until(reached: Callable[[], object], what: str) -> None:
    give_up_s = time.monotonic() + DEADLINE_S
    while not reached():
        assert time.monotonic() < give_up_s, what
        time.sleep(0.001)


def ended(table: EmbeddedCommitTable) -> tuple[list[int], int]:
    """Waits as an event loop does: for the descriptor."""
    fileno = table.flush_ended_fileno()
    assert fileno is not None
    poll = select.poll()
    poll.register(fileno, select.POLLIN)
    while True:
        assert poll.poll(1000 * DEADLINE_S), "nobody told of the end"
        if (result := table.end_flush()) is not None:
            return result


def flushed(table: EmbeddedCommitTable, entries: Rows) -> list[int] | None:
    """None where it could not be begun."""
    return ended(table)[0] if table.begin_flush(entries) else None


def writer_of(table: EmbeddedCommitTable) -> CommitLog:
    assert table._writer is not None
    return table._writer


@pytest.fixture
def table(tmp_path: Path) -> Iterator[EmbeddedCommitTable]:
    opened = EmbeddedCommitTable(tmp_path / "db", writable=True)
    if opened.flush_ended_fileno() is None or not writer_of(opened)._segments[0]._direct:
        opened.close()
        pytest.skip("no writes in the background here")
    yield opened
    opened.close()


# ── the same promises ────────────────────────────────────────────────────────────────────────────────────────────────


def test_entries_are_durable_at_the_end_and_seen_by_nobody_before(table: EmbeddedCommitTable, tmp_path: Path) -> None:
    reader = EmbeddedCommitTable(tmp_path / "db", writable=False)
    table.put([(50, 60)])
    assert table.begin_flush(rows((100, 110), (150, 160)))
    assert reader.lookup([50, 100, 150]) == [60, NOT_FOUND, NOT_FOUND]
    refused, epoch = ended(table)
    assert refused == []
    assert epoch == 0, "the leader state of a new folder"
    assert reader.lookup([50, 100, 150]) == [60, 110, 160]
    for image in (image_after_kill, image_after_power_loss):
        crashed = EmbeddedCommitTable(image(tmp_path / "db", tmp_path / image.__name__), writable=True)
        assert list(crashed.entries()) == [(50, 60), (100, 110), (150, 160)]
        crashed.close()
    reader.close()


def test_mark_refuses_its_entry_and_no_other(table: EmbeddedCommitTable) -> None:
    assert table.seal_many([100, 200]) == [SealOutcome(placed=True)] * 2
    assert flushed(table, rows((50, 60), (100, 110), (150, 160))) == [100]
    assert table.lookup([50, 100, 150]) == [60, SEALED, 160]
    assert flushed(table, rows((100, 110), (200, 210))) is None, "there is nothing to write: the ordinary way says so"
    assert table.put([(100, 110), (200, 210)]) == [100, 200]


def test_seal_that_comes_between_begin_and_end_finds_the_entry(table: EmbeddedCommitTable) -> None:
    """Of a seal and an entry exactly one wins."""
    outcomes: list[SealOutcome] = []
    assert table.begin_flush(rows((50, 60)))
    sealing = threading.Thread(target=lambda: outcomes.append(table.seal(50)))
    sealing.start()
    until(lambda: writer_of(table)._waiting, "the seal never came")
    assert not outcomes
    ended(table)
    sealing.join(DEADLINE_S)
    assert outcomes == [SealOutcome(placed=False, commit_ts=60)]
    assert table.lookup([50]) == [60]


def test_completions_go_along_and_a_flush_that_is_not_begun_leaves_them_for_the_next(
    table: EmbeddedCommitTable, tmp_path: Path
) -> None:
    table.put([(50, 60), (100, 110), (150, 160)])
    assert table.delete_at_once(starts(50, 7000)).tolist() == [7000], "what is not recent needs a thread"
    assert table.lookup([50]) == [NOT_FOUND]
    segment = writer_of(table)._segments[0]
    file, segment._file = segment._file, os.open(tmp_path / "db" / "commits" / LOG_FILES[0], os.O_RDONLY)
    try:
        assert not table.begin_flush(rows((200, 210))), "the system refuses a file that is open for reading"
    finally:
        os.close(segment._file)
        segment._file = file
    table.delete_at_once(starts(150))
    assert flushed(table, rows((150, 170), (200, 210))) == []
    crashed = EmbeddedCommitTable(image_after_power_loss(tmp_path / "db", tmp_path / "crashed"), writable=False)
    assert list(crashed.entries()) == [(100, 110), (150, 170), (200, 210)], "a completion comes before what follows it"
    crashed.close()


def test_completion_while_another_thread_is_at_the_tables_is_left_to_a_thread(table: EmbeddedCommitTable) -> None:
    table.put([(50, 60)])
    is_there, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        with writer_of(table)._state:
            is_there.set()
            may_go.wait(DEADLINE_S)

    holding = threading.Thread(target=hold)
    holding.start()
    assert is_there.wait(DEADLINE_S)
    assert table.delete_at_once(starts(50)).tolist() == [50]
    assert table.begin_flush(rows((100, 110))), "it takes no completions along, and does not wait"
    may_go.set()
    holding.join(DEADLINE_S)
    ended(table)
    assert table.lookup([50, 100]) == [60, 110]


def test_small_tables_hand_over_and_lose_nothing(
    tmp_path: Path, table: EmbeddedCommitTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What finds no room is not begun; whoever then puts makes it."""
    monkeypatch.setattr(writer, "_RECORDS_MAX", 200)
    reader = EmbeddedCommitTable(tmp_path / "db", writable=False)
    expected: dict[int, int] = {}
    ways = [0, 0]
    for number in range(40):
        entries = many(90 * number, 90)
        refused = flushed(table, entries)
        ways[refused is None] += 1
        assert (table.put_block(entries) if refused is None else refused) == []
        expected.update((start, commit) for start, commit in entries.tolist())
        gone = list(expected)[:15]
        table.delete(table.delete_at_once(starts(*gone)).tolist())
        for start in gone:
            del expected[start]
        assert reader.lookup(list(expected)) == list(expected.values())
        # What is completed while its table is brought to LMDB goes from there a moment later.
        until(lambda gone=gone: reader.lookup(gone) == [NOT_FOUND] * len(gone), "completed entries stay")
    assert min(ways) >= 10, ways
    until(lambda: list(reader.entries()) == sorted(expected.items()), "completed entries stay")
    crashed = EmbeddedCommitTable(image_after_power_loss(tmp_path / "db", tmp_path / "crashed"), writable=True)
    assert dict(crashed.entries()).items() >= expected.items()
    crashed.close()
    reader.close()


def test_log_is_not_begun_anew_over_what_was_only_written_in_the_background(
    tmp_path: Path, table: EmbeddedCommitTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_RECORDS_MAX", 200)
    for number in range(2):
        assert flushed(table, many(90 * number, 90)) == []
    for number in range(2, 5):  # the second table, then the first one again
        assert table.put_block(many(90 * number, 90)) == []
    crashed = EmbeddedCommitTable(image_after_power_loss(tmp_path / "db", tmp_path / "crashed"), writable=True)
    assert dict(crashed.entries()) == dict(many(0, 450).tolist())
    crashed.close()


def test_more_than_one_record_holds_is_not_begun(table: EmbeddedCommitTable) -> None:
    table.prepare()
    assert table.begin_flush(many(0, 1))
    ended(table)
    assert not table.begin_flush(rows(*((50 * n, 50 * n + 10) for n in range(1, writer.ROWS_MAX + 2))))


# ── whose turn it is ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_who_began_and_then_asks_for_more_is_told_instead_of_waiting_for_itself(table: EmbeddedCommitTable) -> None:
    assert table.begin_flush(rows((50, 60)))
    assert not table.begin_flush(rows((100, 110)))
    for work in (
        lambda: table.put([(100, 110)]),
        lambda: table.seal(100),
        lambda: table.put_branches([100], 110),
        lambda: table.delete_below(100),
    ):
        with pytest.raises(Misuse, match="has to end it"):
            work()
    ended(table)
    assert table.put([(100, 110)]) == []
    assert table.lookup([50, 100]) == [60, 110]


def test_thread_that_waits_comes_before_the_next_flush(table: EmbeddedCommitTable) -> None:
    """A loop that flushes without end lets go of the turn for some microseconds a flush: too short for a thread that
    has to wake up first."""
    for number in range(1, 31):
        first, second, mark = (100_000 * number + 50 * each for each in range(3))
        done = threading.Event()

        def seal(start: int = mark, done: threading.Event = done) -> None:
            assert table.seal(start).placed
            done.set()

        assert table.begin_flush(rows((first, first + 10)))
        sealing = threading.Thread(target=seal)
        sealing.start()
        until(lambda: writer_of(table)._waiting, "the seal never came")
        ended(table)
        if table.begin_flush(rows((second, second + 10))):
            assert done.is_set(), "the flush came before the thread that waited"
            ended(table)
        sealing.join(DEADLINE_S)
        assert done.is_set()


def test_flush_is_not_begun_while_a_thread_writes(table: EmbeddedCommitTable, monkeypatch: pytest.MonkeyPatch) -> None:
    is_writing, may_end = threading.Event(), threading.Event()
    append = recent_log.Segment.append

    def slowly(self: recent_log.Segment, appended: Rows) -> None:
        is_writing.set()
        may_end.wait(DEADLINE_S)
        append(self, appended)

    with monkeypatch.context() as slow:
        slow.setattr(recent_log.Segment, "append", slowly)
        putting = threading.Thread(target=table.put, args=([(50, 60)],))
        putting.start()
        assert is_writing.wait(DEADLINE_S)
        assert not table.begin_flush(rows((100, 110)))
        may_end.set()
        putting.join(DEADLINE_S)
    assert flushed(table, rows((100, 110))) == []
    assert table.lookup([50, 100]) == [60, 110]


def test_a_loop_that_ends_amid_its_flush_gives_the_turn_back(table: EmbeddedCommitTable) -> None:
    told: list[object] = []

    async def submit_and_leave(start: int) -> None:
        flushes = Flushes(table, MemoryLeaderState(), threads_max=1, fail=told.append)
        flushes.submit(rows((start, start + 10)), told.append, may_wait=False)
        flushes.close(wait=False)

    for start in (50, 100):
        asyncio.run(submit_and_leave(start))
        assert writer_of(table)._begun is None
    assert table.put([(150, 160)]) == []
    assert table.lookup([50, 100, 150]) == [60, 110, 160]
    assert not told


def test_two_tables_of_one_folder_take_turns_and_who_goes_ends_what_it_began(tmp_path: Path) -> None:
    one, two = (EmbeddedCommitTable(tmp_path / "db", writable=True) for _ in range(2))
    if one.flush_ended_fileno() is None or not one.begin_flush(rows((50, 60))):
        one.close()
        two.close()
        pytest.skip("no writes in the background here")
    assert not two.begin_flush(rows((100, 110)))
    two.close()
    two = EmbeddedCommitTable(tmp_path / "db", writable=True)
    assert one._writer is two._writer
    assert two.lookup([50]) == [NOT_FOUND], "it is not the other's to end"
    one.close()
    assert two.put([(100, 110)]) == []
    assert two.lookup([50, 100]) == [60, 110]
    assert flushed(two, rows((150, 160))) == []
    two.close()


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_close_waits_for_the_write(table: EmbeddedCommitTable, tmp_path: Path) -> None:
    table.prepare()
    table.put([(50, 60)])
    assert table.begin_flush(many(100, 5000))
    table.close()
    again = EmbeddedCommitTable(tmp_path / "db", writable=True)
    assert again.count() == 5001
    again.close()


def test_child_of_fork_is_refused_and_its_parent_ends_the_flush(table: EmbeddedCommitTable) -> None:
    assert table.begin_flush(rows((50, 60)))
    assert in_forked_child(table.end_flush) == "Misuse"
    assert in_forked_child(lambda: table.begin_flush(rows((100, 110)))) == "Misuse"
    assert in_forked_child(table.close) == ""
    ended(table)
    assert table.lookup([50]) == [60]


def test_write_of_a_killed_process_has_ended_when_the_process_has(table: EmbeddedCommitTable, tmp_path: Path) -> None:
    """The system waits for it before it gives up the folder's lock: none comes later, over what the next TSO wrote."""
    table.prepare()
    folder = tmp_path / "killed"
    expected: dict[int, int] = {}
    for number in range(8):
        acknowledged, begun = many(10_000 * number, 1), many(10_000 * number + 1, 3000)

        def work(acknowledged: Rows = acknowledged, begun: Rows = begun) -> None:
            killed = EmbeddedCommitTable(folder, writable=True)
            assert killed.put_block(acknowledged) == []
            assert killed.begin_flush(begun)
            os.kill(os.getpid(), signal.SIGKILL)

        assert in_forked_child(work) == ""
        expected.update((start, commit) for start, commit in np.concatenate([acknowledged, begun]).tolist())
        found = EmbeddedCommitTable(folder, writable=True)
        assert dict(found.entries()) == expected
        found.close()


# ── a disk that fails ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("written_blocks", [0, 1])
def test_write_that_fails_or_falls_short_is_never_believed_nor_tried_again(
    table: EmbeddedCommitTable, tmp_path: Path, written_blocks: int
) -> None:
    """The system's own refusal, of all of it or of its second block, in a child of fork that may not write so far."""
    folder = tmp_path / "failing"
    error, text = (StoreFull, "no room") if written_blocks == 0 else (Unavailable, "took 4096 of 8192")

    def work() -> None:
        failing = EmbeddedCommitTable(folder, writable=True)
        assert failing.put_block(many(0, ROWS_A_BLOCK)) == []
        resource.setrlimit(resource.RLIMIT_FSIZE, ((1 + written_blocks) * BLOCK_BYTES, resource.RLIM_INFINITY))
        assert failing.begin_flush(many(1000, ROWS_A_BLOCK + 1))
        with pytest.raises(error, match=text):
            ended(failing)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert not failing.begin_flush(rows((50, 60)))
        with pytest.raises(Unavailable, match=f"failed once.*{text}"):
            failing.put([(50, 60)])
        assert failing.lookup(many(1000, 1)[:, 0].tolist()) == [NOT_FOUND]
        failing.close()

    assert in_forked_child(work) == ""
    again = EmbeddedCommitTable(folder, writable=True)
    assert dict(again.entries()) == dict(many(0, ROWS_A_BLOCK).tolist())
    again.close()


# ── without it ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_system_without_such_writes_is_noticed_when_the_table_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its real answer to a call that it does not know, and by a machine whose numbers nobody knows."""
    machine = platform.machine()
    for numbers in ({machine: (100_001, 100_002, 100_003, 100_004)}, {}):
        monkeypatch.setattr(background_write, "_CALLS", numbers)
        files = len(os.listdir("/proc/self/fd"))
        assert background_write.open_writer() is None
        assert len(os.listdir("/proc/self/fd")) == files
        table = EmbeddedCommitTable(tmp_path / "db", writable=True)
        assert table.flush_ended_fileno() is None
        assert not table.begin_flush(rows((50, 60)))
        assert table.put([(50, 60)]) == []
        table.close()


def test_file_system_without_direct_writes_is_written_the_ordinary_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that is not durable by itself is not begun: nobody would sync it."""
    monkeypatch.delattr(os, "O_DIRECT")
    table = EmbeddedCommitTable(tmp_path / "db", writable=True)
    assert not table.begin_flush(rows((50, 60)))
    assert table.put([(50, 60)]) == []
    assert [each.tolist() for each in read_segment(tmp_path / "db" / "commits" / LOG_FILES[0])[1]] == [[[50, 60]]]
    table.close()
