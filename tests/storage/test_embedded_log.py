"""The log of recent commits under bad timing: a late thread, a second crash, a mark and its replacement."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from pyomid.storage.embedded import EmbeddedCommitTable
from pyomid.storage.embedded import recent_commits as module
from pyomid.storage.embedded.recent_commits import RecentCommits
from pyomid.storage.embedded.recent_kernels import SLOTS
from pyomid.storage.embedded.recent_log import Rows
from pyomid.storage.embedded.settled_commits import SettledCommits

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
    settler = writer._writer and writer._writer._settler
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
