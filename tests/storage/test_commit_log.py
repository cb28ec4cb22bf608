"""The commit log: what was acknowledged survives, wherever the writer or the machine stopped."""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pyomid.errors import Corruption, Unavailable
from pyomid.storage.embedded import EmbeddedCommitTable
from pyomid.storage.embedded.commit_log import writer as module
from pyomid.storage.embedded.commit_log.index import INDEX_FILE, LOG_FILES
from pyomid.storage.embedded.commit_log.index_kernels import SLOTS, TABLE_WORDS, clear, clear_few, find_few, place_few
from pyomid.storage.embedded.commit_log.segment import BLOCK_BYTES, Segment, read_segment
from pyomid.types import NOT_FOUND, SEALED

pytestmark = pytest.mark.fast


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[EmbeddedCommitTable]:
    table = EmbeddedCommitTable(tmp_path / "db", writable=True)
    yield table
    table.close()


def copy_as_after_a_crash(tmp_path: Path, name: str = "crashed") -> Path:
    """The folder as a power failure at this moment would leave it: nothing is closed, the index is of another boot."""
    copy = tmp_path / name
    shutil.copytree(tmp_path / "db", copy)
    with open(copy / "commits" / INDEX_FILE, "r+b") as index:
        index.write(struct.pack("<qq", 0, 0))
    return copy


def block(starts: range) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    return np.array([(start, start + 10) for start in starts], dtype=np.int64)


def test_reader_of_a_crashed_folder_finds_all_that_was_acknowledged(
    tmp_path: Path, writer: EmbeddedCommitTable
) -> None:
    writer.put([(50, 60), (100, 110)])
    writer.seal(150)
    writer.put_block(block(range(1000, 101_000, 50)))
    writer.delete([100])
    writer.put([(200, 210)])
    with_reader = EmbeddedCommitTable(copy_as_after_a_crash(tmp_path), writable=False)
    assert with_reader.lookup([50, 100, 150, 200, 1000, 100_950]) == [60, NOT_FOUND, SEALED, 210, 1010, 100_960]
    assert list(with_reader.entries()) == list(writer.entries())
    with_reader.close()


def test_next_writer_brings_the_log_to_lmdb(tmp_path: Path, writer: EmbeddedCommitTable) -> None:
    writer.put([(50, 60), (100, 110)])
    writer.seal(150)
    writer.delete([50])
    writer.put([(200, 210)])
    crashed = copy_as_after_a_crash(tmp_path)
    recovered = EmbeddedCommitTable(crashed, writable=True)
    assert recovered.lookup([50, 100, 150, 200]) == [NOT_FOUND, 110, SEALED, 210]
    assert recovered.put([(150, 300), (250, 300)]) == [150], "a mark of before the crash still refuses"
    assert [read_segment(crashed / "commits" / name)[1] for name in LOG_FILES][1] == []
    recovered.close()


def test_torn_tail_is_the_end_of_the_log(tmp_path: Path, writer: EmbeddedCommitTable) -> None:
    writer.put([(50, 60)])
    writer.put([(100, 110)])
    crashed = copy_as_after_a_crash(tmp_path)
    path = crashed / "commits" / LOG_FILES[0]
    content = bytearray(path.read_bytes())
    second = BLOCK_BYTES + 24 + 16
    for torn in (0, 8, 16, 24, 32):
        damaged = bytearray(content)
        damaged[second + torn] ^= 0xFF
        path.write_bytes(damaged)
        assert [rows.tolist() for rows in read_segment(path)[1]] == [[[50, 60]]], torn


def test_records_of_an_earlier_generation_never_come_back(tmp_path: Path) -> None:
    rows = block(range(50, 5050, 50))
    segment = Segment(tmp_path / "log")
    segment.begin(1)
    for _ in range(20):
        segment.append((rows,))
    segment.begin(2)
    segment.append((rows[:3],))
    assert [len(each) for each in read_segment(tmp_path / "log")[1]] == [3]
    segment.forget(2)
    assert read_segment(tmp_path / "log") == (2, [])
    segment.close()


def test_full_tables_and_segments_hand_over_to_lmdb_and_lose_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_RECORDS_MAX", 200)
    writer = EmbeddedCommitTable(tmp_path / "db", writable=True)
    reader = EmbeddedCommitTable(tmp_path / "db", writable=False)
    expected: dict[int, int] = {}
    completed_last: set[int] = set()
    for number in range(60):
        # 90 buckets each: two flushes fill a table
        rows = block(range(50 + number * 90 * SLOTS * 50, 50 + (number + 1) * 90 * SLOTS * 50, SLOTS * 50))
        assert writer.put_block(rows) == []
        expected.update((start, commit) for start, commit in rows.tolist())
        gone = list(expected)[::7]
        writer.delete(gone)
        completed_last = set(gone)
        for start in gone:
            del expected[start]
        wanted = list(expected)
        assert reader.lookup(wanted) == [expected[start] for start in wanted]
        assert reader.lookup(gone) == [NOT_FOUND] * len(gone)
    assert list(reader.entries()) == sorted(expected.items())
    crashed = EmbeddedCommitTable(copy_as_after_a_crash(tmp_path), writable=True)
    found = dict(crashed.entries())
    assert found.items() >= expected.items()
    assert set(found) - set(expected) <= completed_last, "only completions that no later flush took along come undone"
    crashed.close()
    writer.close()
    assert dict(reader.entries()) == expected
    reader.close()


def test_more_than_one_record_holds_goes_to_lmdb_at_once(writer: EmbeddedCommitTable) -> None:
    writer.seal(100)
    rows = block(range(50, 50 + 50 * (module.ROWS_MAX + 10), 50))
    assert writer.put_block(rows) == [100]
    assert writer.lookup([50, 100, 150]) == [60, SEALED, 160]
    assert writer.count() == module.ROWS_MAX + 10


def test_disk_that_fails_is_never_believed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = EmbeddedCommitTable(tmp_path / "db", writable=True)
    writer.put([(50, 60)])
    with monkeypatch.context() as broken:
        broken.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(Unavailable, match="Input/output error"):
            writer.put([(100, 110)])
    with pytest.raises(Unavailable, match="failed once"):
        writer.put([(150, 160)])
    assert writer.lookup([50, 100, 150]) == [60, NOT_FOUND, NOT_FOUND]
    writer.close()


def test_index_keeps_the_slots_of_all_buckets_apart() -> None:
    rng = np.random.default_rng(3)
    starts = np.unique(np.concatenate([np.arange(50, 50_000, 50), 50 * rng.integers(1, 1 << 56, 20_000)])).tolist()
    words = memoryview(bytearray(8 << 20)).cast("q")
    assert place_few(words, 0, [(start, start + 1) for start in starts]) == len(
        {start // 50 // SLOTS for start in starts}
    )
    assert find_few(words, 0, starts) == [start + 1 for start in starts]


@pytest.mark.parametrize("starts", [[50], list(range(50, 50 * 300, 50))], ids=["few", "many"])
def test_an_index_without_a_free_record_is_corruption(starts: list[int], tmp_path: Path) -> None:
    """A writer leaves a quarter of them free: it is damaged, and a look-up for a record that is not there must end."""
    writer = EmbeddedCommitTable(tmp_path / "db", writable=True)
    writer.put([(50, 60)])
    reader = EmbeddedCommitTable(tmp_path / "db", writable=False)
    index = writer._writing()._index
    for number in (0, 1):
        index._table(number)[:, 0] = -7
    with pytest.raises(Corruption, match="remove its file `recent`"):
        reader.lookup(starts)
    for number in (0, 1):
        index.empty(number)
    reader.close()
    writer.close()


def test_clearing_takes_commits_leaves_marks_and_tells_what_is_missing() -> None:
    """Both twins, one start after another and all at once: the same table, the same words about it."""
    rng = np.random.default_rng(4)
    starts = np.unique(50 * rng.integers(1, 4000, 2000))
    committed, marked, missing = starts[::2], starts[1::4], starts[3::4]
    wanted = rng.permutation(starts)
    made = []
    for is_compiled in (True, False):
        words = memoryview(bytearray(8 * TABLE_WORDS)).cast("q")
        place_few(words, 0, [(start, start + 1) for start in committed.tolist()])
        place_few(words, 0, [(start, SEALED) for start in marked.tolist()])
        is_missing = np.ones(len(wanted), dtype=np.bool_)
        if is_compiled:
            rows = np.empty((len(wanted), 2), dtype=np.int64)
            cleared = rows[: clear(np.frombuffer(words, dtype=np.int64), 0, wanted, is_missing, rows)].tolist()
        else:
            cleared = [list(row) for row in clear_few(words, 0, wanted.tolist(), is_missing)]
        assert cleared == [[start, 0] for start in wanted[np.isin(wanted, committed)].tolist()]
        assert is_missing.tolist() == np.isin(wanted, missing).tolist()
        assert find_few(words, 0, marked.tolist()) == [SEALED] * len(marked)
        assert not any(find_few(words, 0, [*committed.tolist(), *missing.tolist()]))
        made.append(bytes(words))
    assert made[0] == made[1]
