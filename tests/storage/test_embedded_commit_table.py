"""Rules of a folder's commit table: one transaction decides, deletes wait for the next, an old TSO writes nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from embedded_images import image_after_kill

from pyomid.errors import Deposed, Misuse, Unavailable
from pyomid.storage.embedded import EmbeddedCommitTable, EmbeddedLeaderState, commit_table
from pyomid.storage.embedded.writer_turns import WriterTurn
from pyomid.types import NOT_FOUND, SEALED, LeaderStateChanges
from waiting import until

pytestmark = [pytest.mark.fast, pytest.mark.timeout(60)]


@pytest.fixture
def table(tmp_path: Path) -> Iterator[EmbeddedCommitTable]:
    table = EmbeddedCommitTable(tmp_path / "db", writable=True)
    yield table
    table.close()


@pytest.fixture
def state(tmp_path: Path) -> Iterator[EmbeddedLeaderState]:
    state = EmbeddedLeaderState(tmp_path / "db", writable=True)
    yield state
    state.close()


def starts_of(*starts: int) -> np.ndarray:
    return np.array(starts, dtype=np.int64)


def test_a_completed_entry_goes_with_the_next_write(
    table: EmbeddedCommitTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_table, "COMPLETION_S", 3600.0)
    table.put([(50, 60), (100, 110)])
    table.seal(150)
    before = table._environment._lmdb.info()["last_txnid"]
    assert not len(table.delete_at_once(starts_of(50, 150)))
    assert table.lookup([50, 100, 150]) == [60, 110, SEALED], "no transaction was made for it"
    assert table.put([(200, 210)]) == []
    assert table._environment._lmdb.info()["last_txnid"] == before + 1
    assert list(table.entries()) == [(100, 110), (150, SEALED), (200, 210)]


def test_a_completed_entry_goes_without_another_write(
    table: EmbeddedCommitTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_table, "COMPLETION_S", 0.05)
    table.put([(50, 60)])
    for _ in range(2):
        table.delete_at_once(starts_of(50))
        until(lambda: not table.count(), "the entry stays")
        table.put([(50, 60)])


def test_a_closed_table_leaves_no_completed_entry(tmp_path: Path) -> None:
    table = EmbeddedCommitTable(tmp_path / "db", writable=True)
    table.put([(50, 60), (100, 110)])
    table.delete_at_once(starts_of(50))
    killed = EmbeddedCommitTable(image_after_kill(tmp_path / "db", tmp_path / "killed"), writable=False)
    assert list(killed.entries()) == [(50, 60), (100, 110)], "left to the sanitizer"
    killed.close()
    table.close()
    reader = EmbeddedCommitTable(tmp_path / "db", writable=False)
    assert list(reader.entries()) == [(100, 110)]
    reader.close()


def test_a_system_without_threads_deletes_with_the_next_write(
    table: EmbeddedCommitTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    table.put([(50, 60)])
    table.delete_at_once(starts_of(50))
    table.put([(100, 110)])
    assert list(table.entries()) == [(100, 110)]


def test_a_completion_comes_before_what_is_put_with_it(table: EmbeddedCommitTable) -> None:
    table.put([(50, 60)])
    table.delete_at_once(starts_of(50))
    table.put_branches([50], 70)
    table.delete_at_once(starts_of(100))
    assert table.seal(100).placed
    assert table.lookup([50, 100]) == [70, SEALED]


def test_a_deposed_tso_writes_nothing_whoever_took_over(table: EmbeddedCommitTable, state: EmbeddedLeaderState) -> None:
    """The epoch is read in the transaction that writes: here it changes in another process's."""
    assert state.take_over(expected=0, epoch=100, ceiling=1000)
    table.serve_epoch(100)
    table.put([(150, 160)])
    assert state.take_over(expected=100, epoch=1000, ceiling=2000)
    table.delete_at_once(starts_of(150))
    for write in (
        lambda: table.put([(250, 300)]),
        lambda: table.seal(250),
        lambda: table.delete([150]),
        lambda: table.delete_below(1000),
        lambda: table.put_branches([250], 300),
    ):
        with pytest.raises(Deposed):
            write()
    assert list(table.entries()) == [(150, 160)]


def test_entries_and_watermarks_are_of_one_state(table: EmbeddedCommitTable, state: EmbeddedLeaderState) -> None:
    assert state.take_over(expected=0, epoch=100, ceiling=1000)
    state.update(100, LeaderStateChanges(watermark=90, horizon=80))
    table.put([(150, 160)])
    assert table.lookup_then_watermarks([150, 200]) == ([160, NOT_FOUND], 90, 80)


def test_a_client_writes_neither_commits_nor_leader_state(tmp_path: Path) -> None:
    table = EmbeddedCommitTable(tmp_path / "db", writable=False)
    state = EmbeddedLeaderState(tmp_path / "db", writable=False)
    for write in (
        lambda: table.put([(50, 60)]),
        lambda: table.seal(50),
        lambda: table.delete_at_once(starts_of(50)),
        lambda: state.take_over(expected=0, epoch=100, ceiling=1000),
        lambda: state.database_id(),
    ):
        with pytest.raises(Misuse, match="open for reading only"):
            write()
    state.close()
    table.close()


def test_a_new_folder_is_small(tmp_path: Path) -> None:
    EmbeddedCommitTable(tmp_path / "db", writable=True).close()
    used = sum(512 * file.stat().st_blocks for file in (tmp_path / "db").rglob("*"))
    assert used <= 1_000_000


def test_what_is_written_into_a_removed_folder_is_not_promised(table: EmbeddedCommitTable, tmp_path: Path) -> None:
    table.put([(50, 60)])
    (tmp_path / "db").rename(tmp_path / "away")
    with pytest.raises((Misuse, Unavailable)):
        table.put([(100, 110)])


def test_a_tso_that_waits_has_the_next_turn(tmp_path: Path) -> None:
    """A bulk writer takes its next turn within microseconds of the last one."""
    bulk, tso = WriterTurn(tmp_path), WriterTurn(tmp_path)
    bulk.take(0.0, 0.0)
    taken: list[str] = []

    def waits() -> None:
        tso.take(time.monotonic() + 30, time.monotonic(), is_urgent=True)
        taken.append("TSO")
        tso.release()

    waiting = threading.Thread(target=waits)
    waiting.start()
    while not any(bulk._map[8:16]):
        time.sleep(0.001)
    bulk.release()
    bulk.take(time.monotonic() + 30, time.monotonic())
    taken.append("bulk")
    waiting.join()
    assert taken == ["TSO", "bulk"]
    assert not any(bulk._map[8:16])
    bulk.close()
    tso.close()


def test_a_tso_that_died_waiting_holds_up_nobody(tmp_path: Path) -> None:
    bulk, tso = WriterTurn(tmp_path), WriterTurn(tmp_path)
    bulk.take(0.0, 0.0)
    with pytest.raises(Unavailable, match="has been written by process"):
        tso.take(time.monotonic(), time.monotonic(), is_urgent=True)
    tso._map[8:16] = (time.monotonic_ns() + 10_000_000).to_bytes(8, "little")
    bulk.release()
    bulk.take(time.monotonic() + 30, time.monotonic())
    bulk._map[8:16] = (time.monotonic_ns() + 3_600_000_000_000).to_bytes(8, "little")
    bulk.release()
    bulk.take(time.monotonic() + 30, time.monotonic())  # of another clock: it does not count
    bulk.close()
    tso.close()
