"""Who writes for others may be interrupted anywhere: what the others are told is true, and nobody waits for ever."""

from __future__ import annotations

import fcntl
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import pytest

from interrupts import Interrupter, every_place, with_frames_left
from pyomid.errors import Misuse, Unavailable
from pyomid.folder import environment as environments
from pyomid.folder import lmdb_files, writer_turns
from pyomid.folder.environment import Environment, _Pending, open_environment, release

pytestmark = pytest.mark.fast

MODULES = (environments, writer_turns)
WAIT_S = 60.0


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    with lmdb.open(str(tmp_path), max_dbs=1) as made:
        made.open_db(b"d")
    opened = open_environment(tmp_path, [b"d"], map_bytes=1 << 26)
    yield opened
    opened._inside.clear()  # what a failed test left must not keep the end waiting
    release(opened)


def counted(environment: Environment, key: bytes) -> Callable[[Any], int]:
    """A write that shows when it was done twice."""

    def work(transaction: Any) -> int:
        count = int(transaction.get(key, b"0", db=environment.databases[b"d"])) + 1
        transaction.put(key, b"%d" % count, db=environment.databases[b"d"])
        return count

    return work


def count_of(environment: Environment, key: bytes) -> int:
    return environment.read(lambda transaction: int(transaction.get(key, b"0", db=environment.databases[b"d"])))


def fails(transaction: Any) -> None:
    raise ZeroDivisionError


def waiting(environment: Environment, work: Callable[[Any], Any]) -> _Pending[Any]:
    """What `write` of another thread has put into the queue before it waits for its turn."""
    pending = _Pending(work, 1)
    environment._queue.append(pending)
    return pending


def told(environment: Environment, pending: _Pending[Any]) -> Any:
    """What that thread does in its turn."""
    environment._see_to(pending)
    return pending.result()


def assert_all_free(environment: Environment, other_thread: ThreadPoolExecutor) -> None:
    def write() -> int:
        return environment.write(counted(environment, b"next"))

    before = count_of(environment, b"next")
    assert other_thread.submit(write).result(WAIT_S) == before + 1
    assert environment._inside == []
    assert not environment._paused
    assert not environment._writer.locked()
    assert not environment._queue or all(pending.is_done or pending.is_abandoned for pending in environment._queue)
    assert environment._group is None
    with open(environment.folder / writer_turns.WRITER_FILE, "rb") as another_process:
        fcntl.flock(another_process, fcntl.LOCK_EX | fcntl.LOCK_NB)
    other_thread.submit(lambda: environment._alone(lambda: None)).result(WAIT_S)


@pytest.mark.parametrize("neighbour", ["good", "failing"])
def test_an_interrupted_writer_neither_loses_nor_repeats_a_write_of_others(
    environment: Environment, other_thread: ThreadPoolExecutor, neighbour: str, error: Callable[[], BaseException]
) -> None:
    """Else its group waits for ever while one thread spins, or an innocent write fails, or is done twice."""

    def scene(interrupter: Interrupter) -> None:
        mine, theirs = b"mine-%d" % interrupter._left, b"theirs-%d" % interrupter._left
        failing = waiting(environment, fails) if neighbour == "failing" else None
        innocent = waiting(environment, counted(environment, theirs))
        acknowledged, raised = interrupter.outcome(lambda: environment.write(counted(environment, mine)))
        assert raised in (None, interrupter.error)
        assert other_thread.submit(told, environment, innocent).result(WAIT_S) == 1
        if failing is not None:
            with pytest.raises(ZeroDivisionError):
                told(environment, failing)
        assert count_of(environment, theirs) == 1
        assert count_of(environment, mine) in ((1,) if acknowledged else (0, 1))
        assert_all_free(environment, other_thread)
        assert count_of(environment, mine) <= 1

    assert every_place(MODULES, error, scene) > 40


def test_a_writer_deep_in_a_recursion_neither_loses_nor_fails_a_write_of_others(
    environment: Environment, other_thread: ThreadPoolExecutor
) -> None:
    """Its stack ends at some call in the write that it performs for both."""
    raised = 0
    for left in range(1, 80):
        mine, theirs = b"mine-%d" % left, b"theirs-%d" % left
        innocent = waiting(environment, counted(environment, theirs))
        try:
            with_frames_left(left, partial(environment.write, counted(environment, mine)))
        except RecursionError:
            raised += 1
            assert count_of(environment, mine) in (0, 1)
        else:
            assert count_of(environment, mine) == 1
        assert other_thread.submit(told, environment, innocent).result(WAIT_S) == 1, left
        assert_all_free(environment, other_thread)
    assert 5 < raised < 75


def test_an_interrupted_write_that_waits_for_nobody_leaves_the_turn(
    environment: Environment, other_thread: ThreadPoolExecutor, error: Callable[[], BaseException]
) -> None:
    def scene(interrupter: Interrupter) -> None:
        mine, theirs = b"mine-%d" % interrupter._left, b"theirs-%d" % interrupter._left
        innocent = waiting(environment, counted(environment, theirs))
        acknowledged, raised = interrupter.outcome(lambda: environment.write_at_once(counted(environment, mine)))
        assert raised in (None, interrupter.error)
        assert other_thread.submit(told, environment, innocent).result(WAIT_S) == 1
        assert_all_free(environment, other_thread)
        assert count_of(environment, mine) in ((1,) if acknowledged else (0, 1))

    assert every_place(MODULES, error, scene) > 30


def test_a_write_that_waits_for_nobody_is_refused_beside_another_one(
    environment: Environment, other_thread: ThreadPoolExecutor
) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def slow(transaction: Any) -> None:
        inside.set()
        assert go_on.wait(WAIT_S)

    writing = other_thread.submit(environment.write, slow)
    assert inside.wait(WAIT_S)
    with pytest.raises(Unavailable, match="another thread is writing"):
        environment.write_at_once(counted(environment, b"k"))
    go_on.set()
    writing.result(WAIT_S)
    turn = writer_turns.WriterTurn(environment.folder)  # as another process has it
    turn.take(0.0, 0.0)
    with pytest.raises(Unavailable, match="nothing was written: process"):
        environment.write_at_once(counted(environment, b"k"))
    turn.close()
    assert environment.write_at_once(counted(environment, b"k")) == 1


def test_an_interrupted_read_or_reopening_stops_nobody(
    environment: Environment, other_thread: ThreadPoolExecutor, error: Callable[[], BaseException]
) -> None:
    def scene(interrupter: Interrupter) -> None:
        environment._panicked = True  # as after a root page that could not be written
        _, raised = interrupter.outcome(
            lambda: environment.read(lambda transaction: transaction.stat(environment.databases[b"d"]))
        )
        assert raised is None or raised is interrupter.error or raised.__cause__ is interrupter.error
        assert_all_free(environment, other_thread)

    assert every_place(MODULES, error, scene) > 20


def test_an_interrupted_close_lets_the_folder_be_opened_again(
    tmp_path: Path, other_thread: ThreadPoolExecutor, error: Callable[[], BaseException]
) -> None:
    """Also while somebody has the interrupt's traceback, and with it every object of the close."""
    with lmdb.open(str(tmp_path), max_dbs=1) as made:
        made.open_db(b"d")

    def scene(interrupter: Interrupter) -> None:
        opened = open_environment(tmp_path, [b"d"], map_bytes=1 << 26)
        _, raised = interrupter.outcome(lambda: release(opened))
        assert raised in (None, interrupter.error)
        again = open_environment(tmp_path, [b"d"], map_bytes=1 << 26)
        assert_all_free(again, other_thread)
        while again.users:
            release(again)

    assert every_place((*MODULES, lmdb_files), error, scene) > 10


def test_an_interrupted_opening_leaves_no_descriptor_that_locks(
    tmp_path: Path, other_thread: ThreadPoolExecutor, error: Callable[[], BaseException]
) -> None:
    with lmdb.open(str(tmp_path), max_dbs=1) as made:
        made.open_db(b"d")

    def scene(interrupter: Interrupter) -> None:
        interrupter.outcome(lambda: open_environment(tmp_path, [b"d"], map_bytes=1 << 26))
        again = open_environment(tmp_path, [b"d"], map_bytes=1 << 26)
        assert_all_free(again, other_thread)
        while again.users:
            release(again)

    assert every_place((*MODULES, lmdb_files), error, scene) > 20


def test_an_innocent_write_does_not_fail_with_its_neighbours_interrupt(environment: Environment) -> None:
    """Two real threads: one is interrupted in its own write, the other's is beside it in the queue."""
    inside, go_on = threading.Event(), threading.Event()

    def interrupted(transaction: Any) -> None:
        inside.set()
        assert go_on.wait(WAIT_S)
        raise KeyboardInterrupt

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(environment.write, interrupted)
        assert inside.wait(WAIT_S)
        second = pool.submit(environment.write, counted(environment, b"k"))
        go_on.set()
        with pytest.raises(KeyboardInterrupt):
            first.result(WAIT_S)
        assert second.result(WAIT_S) == 1


def test_a_read_within_a_fork_that_waits_is_refused(environment: Environment) -> None:
    """As in a signal's handler: the fork waits for others' calls, and has shut the folder meanwhile."""
    environments._before_fork()
    try:
        with pytest.raises(Misuse, match="interrupted another pyomid call"):
            environment.read(lambda transaction: None)
    finally:
        environments._after_fork_in_parent()
    environment.read(lambda transaction: None)


def test_a_fork_whose_hooks_were_interrupted_leaves_no_lock(
    environment: Environment, other_thread: ThreadPoolExecutor
) -> None:
    """`os.fork` goes on after an error of its hooks, and calls the ones behind it all the same."""

    def scene(interrupter: Interrupter) -> None:
        interrupter.outcome(environments._before_fork)
        environments._after_fork_in_parent()
        assert_all_free(environment, other_thread)
        assert other_thread.submit(environments._register_lock.acquire, False).result(WAIT_S)
        other_thread.submit(environments._register_lock.release).result(WAIT_S)

    assert every_place(MODULES, KeyboardInterrupt, scene) > 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_fork_interrupted_on_its_way_out_leaves_no_lock(
    environment: Environment, other_thread: ThreadPoolExecutor
) -> None:
    interrupted = []

    def trace(frame: Any, event: str, argument: object) -> None:
        if frame.f_code is environments._after_fork_in_parent.__code__ and not interrupted:
            interrupted.append(frame)
            raise KeyboardInterrupt

    sys.settrace(trace)
    try:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
    finally:
        sys.settrace(None)
    os.waitpid(pid, 0)
    assert interrupted
    assert_all_free(environment, other_thread)
