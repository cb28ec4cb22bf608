"""The commit log under bad timing: a late thread, a second crash, a mark and its replacement."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from embedded_images import image_after_kill, image_after_power_loss

from pyomid.errors import Corruption, StoreFull
from pyomid.storage.embedded import EmbeddedCommitTable, EmbeddedStore
from pyomid.storage.embedded.commit_log import writer as module
from pyomid.storage.embedded.commit_log.compacted import CompactedCommits
from pyomid.storage.embedded.commit_log.index import INDEX_FILE, LOG_FILES, CommitIndex
from pyomid.storage.embedded.commit_log.index_kernels import SLOTS
from pyomid.storage.embedded.commit_log.segment import BLOCK_BYTES, Rows, Segment
from pyomid.storage.embedded.commit_log.writer import CommitLog
from pyomid.testing.conformance import in_forked_child
from pyomid.types import NOT_FOUND, SEALED

pytestmark = pytest.mark.fast

BUCKET = SLOTS * 50
"""Timestamps that share a record of the index."""
DEADLINE_S = 60


def rows(first: int, count: int) -> Rows:
    """Entries that take a record of the index each."""
    starts = 50 + BUCKET * np.arange(first, first + count, dtype=np.int64)
    return np.stack([starts, starts + 10], axis=1)


def test_thread_that_comes_late_to_an_emptied_table_leaves_the_one_in_use_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine lets the checkpoint thread run only when the writer has done its work, and fills that table again.

    Between its look at the table and the emptying of it another flush is answered: that one must not be lost.
    """
    monkeypatch.setattr(module, "_RECORDS_MAX", 100)
    may_run, is_inside, may_end = threading.Event(), threading.Event(), threading.Event()
    checkpoint, store = CommitLog._checkpoint_in_background, CompactedCommits.store

    def late(self: CommitLog, number: int) -> None:
        may_run.wait(DEADLINE_S)
        checkpoint(self, number)

    def slow(self: CompactedCommits, moved: Rows, epoch: int | None = None) -> None:
        store(self, moved, epoch)
        if may_run.is_set() and threading.current_thread() is not threading.main_thread():
            is_inside.set()
            may_end.wait(DEADLINE_S)

    monkeypatch.setattr(CommitLog, "_checkpoint_in_background", late)
    writer = EmbeddedCommitTable(tmp_path / "db", writable=True)
    reader = EmbeddedCommitTable(tmp_path / "db", writable=False)
    expected: dict[int, int] = {}

    def put(first: int, count: int) -> None:
        entries = rows(first, count)
        assert writer.put_block(entries) == []
        expected.update((start, commit) for start, commit in entries.tolist())

    put(0, 80)
    put(80, 60)  # the second table, and half of it: the thread is to bring the first one to LMDB, and comes late
    assert writer._writer is not None
    checkpointer = writer._writer._checkpointer
    assert checkpointer is not None
    put(140, 60)  # the writer brings the first table to LMDB itself, and fills it again
    monkeypatch.setattr(CompactedCommits, "store", slow)
    may_run.set()
    while checkpointer.is_alive() and not is_inside.is_set():
        checkpointer.join(0.01)
    put(200, 10)
    may_end.set()
    checkpointer.join(DEADLINE_S)
    assert reader.lookup(list(expected)) == list(expected.values())
    writer.close()
    assert dict(reader.entries()) == expected
    reader.close()


def test_replaced_mark_never_shows_again_from_the_other_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """T13: the entry of a decided commit's branch wins over its mark, in whichever table either lies."""
    monkeypatch.setattr(module, "_RECORDS_MAX", 100)
    writer = EmbeddedCommitTable(tmp_path / "db", writable=True)
    reader = EmbeddedCommitTable(tmp_path / "db", writable=False)
    for turn in range(2):  # the mark in the first table, then in the second
        branch = 50 + BUCKET * (1000 * turn)
        assert writer.seal(branch).placed
        assert writer.put_block(rows(1000 * turn + 1, 90)) == []
        assert writer.put_block(rows(1000 * turn + 100, 20)) == []
        writer.put_branches([branch], branch + 7)
        assert reader.lookup([branch]) == writer.lookup([branch]) == [branch + 7]
        assert dict(reader.entries())[branch] == branch + 7
        writer.delete([branch])
        assert reader.lookup([branch]) == [NOT_FOUND]
        assert branch not in dict(reader.entries())
    writer.close()
    reader.close()


@pytest.mark.parametrize("turns_before", [0, 1])
def test_second_crash_while_recovering_brings_no_older_row_back(
    turns_before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mark in the older segment (the first or the second), the entry that replaced it in the newer one: whichever
    step of the recovery is the last before the power fails, the entry stays."""
    monkeypatch.setattr(module, "_RECORDS_MAX", 100)
    writer = EmbeddedCommitTable(tmp_path / "db", writable=True)
    for turn in range(turns_before):
        writer.put_block(rows(1000 + 100 * turn, 100))
    branch = 50
    assert writer.seal(branch).placed
    writer.put_block(rows(1, 90))
    writer.put_block(rows(100, 20))
    writer.put_branches([branch], 57)
    crashed = image_after_power_loss(tmp_path / "db", tmp_path / "crashed")
    writer.close()
    steps: list[Path] = []
    write = Segment._write

    def copied_before(self: Segment, begin: int, end: int) -> None:
        steps.append(image_after_power_loss(crashed, tmp_path / f"again-{len(steps)}"))
        write(self, begin, end)

    monkeypatch.setattr(Segment, "_write", copied_before)
    EmbeddedCommitTable(crashed, writable=True).close()
    monkeypatch.setattr(Segment, "_write", write)
    assert len(steps) >= 3
    for step in steps:
        for writable in (False, True):
            table = EmbeddedCommitTable(step, writable=writable)
            assert table.lookup([branch]) == [57], step
            table.close()


def test_index_that_was_cut_short_is_completed_and_never_believed(tmp_path: Path) -> None:
    """A copy that was interrupted: readers take the log, the next writer makes the rest."""
    writer = EmbeddedCommitTable(tmp_path / "db", writable=True)
    writer.put([(50, 60)])
    image = image_after_kill(tmp_path / "db", tmp_path / "cut")
    writer.close()
    os.truncate(image / "commits" / INDEX_FILE, 5000)
    reader = EmbeddedCommitTable(image, writable=False)
    assert reader.lookup([50, 100]) == [60, NOT_FOUND]
    writer = EmbeddedCommitTable(image, writable=True)
    assert writer.put([(100, 110)]) == []
    assert reader.lookup([50, 100]) == [60, 110]
    reader.close()
    writer.close()


def test_marks_of_a_seal_that_failed_half_way_still_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of them are durable, and may have been seen."""
    monkeypatch.setattr(module, "ROWS_MAX", 10)
    writer = EmbeddedCommitTable(tmp_path / "db", writable=True)
    append = Segment.append
    appended: list[Rows] = []

    def full_after_the_first(self: Segment, written: Rows) -> None:
        if appended:
            raise StoreFull("no room for the second")
        appended.append(written)
        append(self, written)

    with monkeypatch.context() as full:
        full.setattr(Segment, "append", full_after_the_first)
        with pytest.raises(StoreFull):
            writer.seal_many([50 * number for number in range(1, 16)])
    assert writer.lookup([50, 750]) == [SEALED, NOT_FOUND]
    assert writer.put([(50, 60)]) == [50]
    assert writer.lookup([50]) == [SEALED]
    writer.close()


def test_flush_does_not_fail_for_want_of_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is durable by then; what the thread would have done the writer does when it must."""
    monkeypatch.setattr(module, "_RECORDS_MAX", 100)
    writer = EmbeddedCommitTable(tmp_path / "db", writable=True)
    with monkeypatch.context() as crowded:
        crowded.setattr(threading.Thread, "start", no_thread)
        for turn in range(6):
            assert writer.put_block(rows(100 * turn, 80)) == []
    assert writer.count() == 480
    writer.close()


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_damage_in_the_middle_of_the_log_is_no_torn_tail(tmp_path: Path) -> None:
    """Behind it lie records that were acknowledged: they are not dropped in silence."""
    writer = EmbeddedCommitTable(tmp_path / "db", writable=True)
    for start in (50, 100, 150):
        writer.put([(start, start + 10)])
    image = image_after_power_loss(tmp_path / "db", tmp_path / "damaged")
    writer.close()
    path = image / "commits" / LOG_FILES[0]
    whole = path.read_bytes()
    record = 24 + 16
    for at in (5, 20, BLOCK_BYTES + 30, BLOCK_BYTES + record + 3, BLOCK_BYTES + record + 9):
        damaged = bytearray(whole)
        damaged[at] ^= 0x55
        path.write_bytes(damaged)
        for _ in range(2):
            with pytest.raises(Corruption, match=LOG_FILES[0]):
                EmbeddedCommitTable(image, writable=True)
        assert path.read_bytes() == damaged, "nothing is touched"
    for left in (len(whole) - 1, 16, 0):
        path.write_bytes(whole[:left])
        with pytest.raises(Corruption, match=LOG_FILES[0]):
            EmbeddedCommitTable(image, writable=True)
    path.write_bytes(whole)
    recovered = EmbeddedCommitTable(image, writable=True)
    assert recovered.lookup([50, 100, 150]) == [60, 110, 160]
    recovered.close()


def test_child_that_closes_what_it_inherited_keeps_its_own(tmp_path: Path) -> None:
    inherited = EmbeddedCommitTable(tmp_path / "db", writable=True)
    inherited.put([(50, 60)])
    inherited_store = EmbeddedStore(tmp_path / "db")

    def in_child() -> None:
        own, own_store = EmbeddedCommitTable(tmp_path / "db", writable=False), EmbeddedStore(tmp_path / "db")
        inherited.close()
        inherited_store.close()
        assert own.lookup([50]) == [60]
        other = EmbeddedStore(tmp_path / "db")
        assert other._environment is own_store._environment, "LMDB must not be opened twice in a process"
        for each in (own, own_store, other):
            each.close()

    assert in_forked_child(in_child) == ""
    assert inherited.put([(100, 110)]) == []
    assert inherited.lookup([50, 100]) == [60, 110]
    inherited.close()
    inherited_store.close()


@pytest.mark.parametrize("stands_still", ["before the first table", "between the tables", "before LMDB"])
def test_reader_that_stood_still_while_its_tables_were_used_again_takes_no_other_slot_for_its_own(
    stands_still: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its look-up found a record's key, or had passed by a table, when all of it went to LMDB and others came."""
    monkeypatch.setattr(module, "_RECORDS_MAX", 100)
    writer = EmbeddedCommitTable(tmp_path / "db", writable=True)
    reader = EmbeddedCommitTable(tmp_path / "db", writable=False)
    writer.put_block(rows(0, 80))
    mine = rows(0, 80)[:, 0].tolist()
    assert reader.lookup(mine) == [start + 10 for start in mine]
    find, compacted = CommitIndex.find, CompactedCommits.lookup
    calls: list[str] = []
    moved: list[int] = []

    def writer_goes_on(here: str) -> None:
        calls.append(here)
        if here == stands_still and not moved:
            for turn in range(1, 7):  # every table three times
                writer.put_block(rows(1000 * turn, 90))
                moved.append(turn)

    def find_late(self: CommitIndex, number: int, starts: Sequence[int]) -> list[int]:
        if self is reader._reader._index:
            writer_goes_on(("before the first table", "between the tables")[number])
        return find(self, number, starts)

    def look_late(self: CompactedCommits, starts: Sequence[int]) -> list[int]:
        if self is reader._compacted:
            writer_goes_on("before LMDB")
        return compacted(self, starts)

    monkeypatch.setattr(CommitIndex, "find", find_late)
    monkeypatch.setattr(CompactedCommits, "lookup", look_late)
    never = [start + 50 for start in mine]
    assert reader.lookup([*mine, *never]) == [*(start + 10 for start in mine), *([NOT_FOUND] * len(never))]
    assert len(moved) == 6
    assert calls.count("before the first table") >= 2, "it looked again"
    reader.close()
    writer.close()
