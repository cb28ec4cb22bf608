"""The log of recent commits under bad timing: a late thread, a second crash, a mark and its replacement."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from embedded_images import image_after_power_loss

from pyomid.storage.embedded import EmbeddedCommitTable
from pyomid.storage.embedded import recent_commits as module
from pyomid.storage.embedded.recent_commits import RecentCommits
from pyomid.storage.embedded.recent_kernels import SLOTS
from pyomid.storage.embedded.recent_log import Rows, Segment
from pyomid.storage.embedded.settled_commits import SettledCommits
from pyomid.types import NOT_FOUND

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
    """A busy machine lets the settling thread run only when the writer has done its work, and fills that table again.

    Between its look at the table and the emptying of it another flush is answered: that one must not be lost.
    """
    monkeypatch.setattr(module, "_RECORDS_MAX", 100)
    may_run, is_inside, may_end = threading.Event(), threading.Event(), threading.Event()
    settle_beside, store = RecentCommits._settle_beside, SettledCommits.store

    def late(self: RecentCommits, number: int) -> None:
        may_run.wait(DEADLINE_S)
        settle_beside(self, number)

    def slow(self: SettledCommits, moved: Rows, epoch: int | None = None) -> None:
        store(self, moved, epoch)
        if may_run.is_set() and threading.current_thread() is not threading.main_thread():
            is_inside.set()
            may_end.wait(DEADLINE_S)

    monkeypatch.setattr(RecentCommits, "_settle_beside", late)
    writer = EmbeddedCommitTable(tmp_path / "db", writable=True)
    reader = EmbeddedCommitTable(tmp_path / "db", writable=False)
    expected: dict[int, int] = {}

    def put(first: int, count: int) -> None:
        entries = rows(first, count)
        assert writer.put_block(entries) == []
        expected.update((start, commit) for start, commit in entries.tolist())

    put(0, 80)
    put(80, 60)  # the second table, and half of it: the thread is called to settle the first one, and comes late
    assert writer._writer is not None
    settler = writer._writer._settler
    assert settler is not None
    put(140, 60)  # the writer settles the first table itself, and fills it again
    monkeypatch.setattr(SettledCommits, "store", slow)
    may_run.set()
    while settler.is_alive() and not is_inside.is_set():
        settler.join(0.01)
    put(200, 10)
    may_end.set()
    settler.join(DEADLINE_S)
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
