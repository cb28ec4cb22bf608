"""Work off the caller's path: merged, in law 5's order, bounded, drained."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pyomid
from pyomid.coroutines import Effect
from pyomid.database.background import Background, run_together
from pyomid.database.transaction import State
from pyomid.errors import Unavailable
from pyomid.protocol import effects
from pyomid.protocol.commit import CELLS_AT_ONCE, complete, delete_writes
from pyomid.types import CellVersion, ShadowWrite

pytestmark = pytest.mark.fast


def cells(start: int, count: int) -> list[CellVersion]:
    return [CellVersion(b"%d" % number, b"f", b"x", start) for number in range(count)]


def unexpected(error: Exception) -> None:
    raise error


class Recorder:
    """Performs nothing, remembers everything; fails every effect that touches a start of `failing`."""

    def __init__(self, failing: frozenset[int] = frozenset()) -> None:
        self.failing = failing
        self.effects: list[Effect] = []
        self.shadowed: dict[int, int] = {}
        self.completed: set[int] = set()

    def __call__(self, effect: Effect) -> Any:
        if isinstance(effect, effects.WriteShadowCells):
            assert len({shadow.cell for shadow in effect.shadows}) == len(effect.shadows)
            if self.failing & {shadow.cell.version for shadow in effect.shadows}:
                raise Unavailable("away")
            for shadow in effect.shadows:
                self.shadowed[shadow.cell.version] = self.shadowed.get(shadow.cell.version, 0) + 1
        if isinstance(effect, effects.DeleteCommitEntries):
            self.completed.update(effect.starts)
        self.effects.append(effect)


@given(
    sizes=st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(1, 30), min_size=1), max_size=8),
    failing=st.frozensets(st.integers(1, 8), max_size=2),
)
def test_an_entry_goes_only_after_all_of_its_own_shadow_cells(
    sizes: list[dict[str, int]], failing: frozenset[int]
) -> None:
    recorder = Recorder(frozenset(number * 50 for number in failing))
    failures: list[Exception] = []
    jobs = [
        complete(number * 50, number * 50 + 1000, {t: cells(number * 50, size) for t, size in tables.items()})
        for number, tables in enumerate(sizes, start=1)
    ]
    run_together(jobs, recorder, failures.append)
    for number, tables in enumerate(sizes, start=1):
        if number * 50 in recorder.completed:
            assert recorder.shadowed[number * 50] == sum(tables.values())
        else:
            assert failures
    if not failures:
        assert len(recorder.completed) == len(sizes)


def test_many_transactions_share_one_write_and_one_request() -> None:
    recorder = Recorder()
    jobs = [complete(number * 50, 10_000, {"t": cells(number * 50, 2)}) for number in range(1, 21)]
    run_together(jobs, recorder, unexpected)
    assert [type(effect) for effect in recorder.effects] == [effects.WriteShadowCells, effects.DeleteCommitEntries]
    assert len(recorder.completed) == 20


def test_one_write_is_bounded() -> None:
    recorder = Recorder()
    jobs = [complete(number * 50, 10_000, {"t": cells(number * 50, 3_000)}) for number in range(1, 5)]
    run_together(jobs, recorder, unexpected)
    writes = [effect for effect in recorder.effects if isinstance(effect, effects.WriteShadowCells)]
    assert [len(write.shadows) for write in writes] == [3_000] * 4
    assert CELLS_AT_ONCE < 6_000


def test_rollbacks_delete_exactly_their_own_versions() -> None:
    recorder = Recorder()
    run_together([delete_writes({"t": cells(50, 2)}), delete_writes({"t": cells(100, 3)})], recorder, unexpected)
    (deleted,) = recorder.effects
    assert isinstance(deleted, effects.DeleteVersions)
    assert sorted(deleted.cells) == sorted(cells(50, 2) + cells(100, 3))


def background(perform: Any, *, linger_s: float = 0.0, cells_max: int = 100) -> Background:
    return Background(perform, linger_s=linger_s, cells_max=cells_max)


def test_no_drain_waits_for_the_linger_and_what_comes_after_a_close_is_left_to_the_healers() -> None:
    recorder = Recorder()
    worker = background(recorder, linger_s=3600.0)
    worker.complete(50, 100, {"t": cells(50, 2)})
    assert worker.drain(30)
    assert recorder.completed == {50}
    worker.complete(100, 150, {"t": cells(100, 2)})
    assert worker.close(30)
    assert recorder.completed == {50, 100}
    worker.complete(150, 200, {"t": cells(150, 2)})
    worker.offer(effects.Heal("t", (ShadowWrite(cells(50, 1)[0], 100),)))
    assert recorder.completed == {50, 100}


def test_heals_are_dropped_and_committers_wait_when_there_is_too_much_to_do() -> None:
    gate, began = threading.Event(), threading.Event()
    recorder = Recorder()

    def slow(effect: Effect) -> None:
        began.set()
        gate.wait(30)
        recorder(effect)

    worker = background(slow, cells_max=10)
    worker.complete(50, 100, {"t": cells(50, 10)})
    assert began.wait(30)
    worker.offer(effects.Heal("t", (ShadowWrite(cells(100, 1)[0], 150),)))
    assert worker.counters.heals_dropped == 1
    waiting = threading.Thread(target=worker.complete, args=(150, 200, {"t": cells(150, 10)}))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    gate.set()
    waiting.join(30)
    assert not waiting.is_alive()
    assert worker.close(30)
    assert recorder.completed == {50, 150}
    assert not [effect for effect in recorder.effects if isinstance(effect, effects.Heal)]


def test_a_close_that_runs_out_of_time_says_so() -> None:
    gate = threading.Event()
    worker = background(lambda effect: gate.wait(30))
    worker.complete(50, 100, {"t": cells(50, 1)})
    assert not worker.close(0.05)
    gate.set()


def test_a_drain_that_runs_out_of_time_leaves_the_linger() -> None:
    gate, began = threading.Event(), threading.Event()
    worker = background(lambda effect: (began.set(), gate.wait(30)), linger_s=3600.0)
    worker.complete(50, 100, {"t": cells(50, 1)})
    assert not worker.drain(0.05)
    assert began.wait(30)
    assert not worker._urgent
    gate.set()
    assert worker.close(30)


def test_a_failure_is_counted_and_the_next_work_is_done(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(frozenset({50}))
    worker = background(recorder)
    worker.complete(50, 100, {"t": cells(50, 1)})
    assert worker.drain(30)
    worker.complete(150, 200, {"t": cells(150, 1)})
    assert worker.close(30)
    assert worker.counters.failures == 1
    assert recorder.completed == {150}
    assert "readers and compaction complete" in caplog.text


@pytest.fixture
def no_threads() -> Iterator[None]:
    """The system gives no new thread: a stack beyond its address space."""
    threading.stack_size(1 << 47)
    yield
    threading.stack_size(0)


def test_without_a_thread_a_committer_neither_fails_nor_waits_for_ever(no_threads: None) -> None:
    """Else commit raises after the commit, and once the room is taken every commit waits for ever."""
    recorder = Recorder()
    worker = background(recorder, cells_max=4)
    for number in range(1, 5):
        worker.complete(number * 50, 1000, {"t": cells(number * 50, 4)})
    assert recorder.completed >= {50, 100, 150}
    assert worker.drain(30)
    assert recorder.completed == {50, 100, 150, 200}
    assert worker.close(30)


def test_when_threads_come_back_one_completes_again() -> None:
    recorder = Recorder()
    worker = background(recorder)
    threading.stack_size(1 << 47)
    worker.complete(50, 1000, {"t": cells(50, 1)})
    threading.stack_size(0)
    assert recorder.completed == set()
    worker.complete(100, 1000, {"t": cells(100, 1)})
    assert worker.drain(30)
    assert recorder.completed == {50, 100}
    assert worker._thread is not None
    assert worker.close(30)


def test_an_error_of_the_steps_themselves_ends_no_later_work() -> None:
    """Else the thread dies of it, and nothing is completed again in this process."""
    recorder = Recorder()
    worker = background(recorder)

    worker.complete(50, 1000, {"t": Broken(cells(50, 1))})  # type: ignore[dict-item]
    assert worker.drain(30)
    worker.complete(100, 1000, {"t": cells(100, 1)})
    assert worker.drain(30)
    assert recorder.completed == {100}
    assert worker.counters.failures == 1
    assert worker.close(30)


class Broken(list[CellVersion]):
    def __getitem__(self, index: Any) -> Any:
        raise ZeroDivisionError


def test_a_commit_without_threads_is_told_and_completed(memory_url: str, no_threads: None) -> None:
    with pyomid.connect(memory_url) as db:
        db.create_table("t", families=["f"])
        with db.begin() as tx:
            tx.table("t").put(b"k", {b"f:x": b"1"})
        assert tx.state is State.COMMITTED
        assert db.drain(30)
        assert db.status().commit_table_entries == 0
