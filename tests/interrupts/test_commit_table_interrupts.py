"""Who writes the commit table for others may be interrupted anywhere: nobody waits for ever, what is told is true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from interrupts import Interrupter, every_place
from pyomid.storage.embedded import EmbeddedCommitTable, commit_entries, commit_table, environment, writer_turns
from pyomid.types import NOT_FOUND, SEALED, SealOutcome

pytestmark = pytest.mark.fast

MODULES = (environment, writer_turns, commit_table, commit_entries)
WAIT_S = 60.0
STEP = 50 * 128
"""Between two starts: each has a record of its own."""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedCommitTable]:
    monkeypatch.setattr(commit_table, "COMPLETION_S", 3600.0)
    opened = EmbeddedCommitTable(tmp_path / "db", writable=True)
    yield opened
    opened._environment._inside.clear()  # what a failed test left must not keep the end waiting
    opened.close()


class Starts:
    """Fresh ones for each run of a scene."""

    def __init__(self) -> None:
        self._last = 0

    def take(self, count: int) -> list[int]:
        self._last += count
        return [STEP * number for number in range(self._last - count + 1, self._last + 1)]


def assert_all_free(table: EmbeddedCommitTable, other_thread: ThreadPoolExecutor, start: int) -> None:
    assert other_thread.submit(table.put, [(start, start + 10)]).result(WAIT_S) == []
    assert table.lookup([start]) == [start + 10]
    assert table._environment._inside == []
    assert table._environment._group is None
    assert not table._environment._writer.locked()


def test_an_interrupted_put_is_whole_or_not_there(
    table: EmbeddedCommitTable, other_thread: ThreadPoolExecutor, error: Callable[[], BaseException]
) -> None:
    """With the completion that it took along: that one may be lost, and then its entry stays."""
    starts = Starts()

    def scene(interrupter: Interrupter) -> None:
        first, second, gone, kept, following = starts.take(5)
        table.put([(gone, gone + 10), (kept, kept + 10)])
        table.delete_at_once(np.array([gone], dtype=np.int64))
        refused, raised = interrupter.outcome(lambda: table.put([(first, first + 10), (second, second + 10)]))
        assert raised in (None, interrupter.error)
        assert_all_free(table, other_thread, following)
        found = table.lookup([first, second, gone, kept])
        whole = [first + 10, second + 10, NOT_FOUND, kept + 10]
        if refused == []:
            assert found == whole
        else:
            assert found in (
                whole,
                [NOT_FOUND, NOT_FOUND, gone + 10, kept + 10],
                [NOT_FOUND, NOT_FOUND, NOT_FOUND, kept + 10],
            )

    assert every_place(MODULES, error, scene) > 60


def test_an_interrupted_completion_stops_nobody(
    table: EmbeddedCommitTable, other_thread: ThreadPoolExecutor, error: Callable[[], BaseException]
) -> None:
    starts = Starts()

    def scene(interrupter: Interrupter) -> None:
        gone, following = starts.take(2)
        table.put([(gone, gone + 10)])
        interrupter.outcome(lambda: table.delete_at_once(np.array([gone], dtype=np.int64)))
        assert_all_free(table, other_thread, following)
        assert table.lookup([gone]) in ([gone + 10], [NOT_FOUND])
        table.delete([gone])
        assert table.lookup([gone]) == [NOT_FOUND]

    assert every_place(MODULES, error, scene) > 3


def test_of_an_interrupted_seal_and_an_entry_one_wins(
    table: EmbeddedCommitTable, other_thread: ThreadPoolExecutor, error: Callable[[], BaseException]
) -> None:
    starts = Starts()

    def scene(interrupter: Interrupter) -> None:
        start, following = starts.take(2)
        outcome, _ = interrupter.outcome(lambda: table.seal(start))
        refused = other_thread.submit(table.put, [(start, start + 10)]).result(WAIT_S)
        assert_all_free(table, other_thread, following)
        assert outcome in (None, SealOutcome(placed=True))
        assert refused == [start] or outcome is None
        assert table.lookup([start]) == [SEALED if refused else start + 10]

    assert every_place(MODULES, error, scene) > 40
