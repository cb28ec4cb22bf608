"""Interrupts at each place of a folder's commit, of who posted requests and of who performs them (folder.md, L3–L6)."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import pytest

from interrupts import Interrupter, every_place
from other_holder import Holder
from pyomid.errors import OutcomeUnknown
from pyomid.folder import environment as environments
from pyomid.folder import folder_state, shared_file, writer_turns
from pyomid.folder.decision import pack_requests, requests_of
from pyomid.folder.environment import Environment, Transaction, _Pending, open_environment, release
from pyomid.folder.shared_file import Posted, SharedFile

pytestmark = pytest.mark.fast

MODULES = (environments, shared_file, writer_turns)
WAIT_S = 60.0


class Counting:
    """Requests that name a record, and count it: what was performed twice shows."""

    def __init__(self, database: Any) -> None:
        self._database = database

    def perform(self, transaction: Transaction, requests: Sequence[bytes]) -> list[int]:
        counts = []
        for request in requests:
            counts.append(int(transaction.get(request, b"0", db=self._database)) + 1)
            transaction.put(request, b"%d" % counts[-1], db=self._database)
        return counts

    def packed(self, requests: Sequence[bytes]) -> bytes:
        return pack_requests(requests)

    def known(self, transaction: Transaction, posted: Posted) -> list[int] | None:
        found = folder_state.outcomes_of(transaction, self._database, posted.place, posted.number)
        return None if found is None else json.loads(found)

    def perform_posted(self, transaction: Transaction, posted: Sequence[Posted]) -> list[list[int]]:
        return [self._perform_posted(transaction, each) for each in posted]

    def _perform_posted(self, transaction: Transaction, posted: Posted) -> list[int]:
        outcomes = self.known(transaction, posted)
        if outcomes is None:
            outcomes = self.perform(transaction, requests_of(posted.content))
            packed = json.dumps(outcomes).encode()
            folder_state.put_outcomes(transaction, self._database, posted.place, posted.number, packed)
        return outcomes


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Environment]:
    with lmdb.open(str(tmp_path), max_dbs=1) as made:
        made.open_db(b"d")
    opened = open_environment(tmp_path, [b"d"], map_bytes=1 << 26)
    opened.requests = Counting(opened.databases[b"d"])
    yield opened
    opened._inside.clear()  # what a failed test left must not keep the end waiting
    release(opened)


@pytest.fixture
def other(environment: Environment) -> Iterator[SharedFile]:
    """As another process has it open."""
    shared = SharedFile(environment.folder)
    yield shared
    shared.close()


def count_of(environment: Environment, key: bytes) -> int:
    return environment.read(lambda transaction: int(transaction.get(key, b"0", db=environment.databases[b"d"])))


def assert_all_free(environment: Environment, other: SharedFile, other_thread: ThreadPoolExecutor) -> None:
    before = count_of(environment, b"next")
    assert other_thread.submit(environment.request, b"next").result(WAIT_S) == before + 1
    assert environment._inside == []
    assert not environment._writer.locked()
    assert environment._group is None
    assert not environment._queue or all(pending.is_done or pending.is_abandoned for pending in environment._queue)
    with open(environment.folder / writer_turns.WRITER_FILE, "rb") as another_process:
        fcntl.flock(another_process, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert list(other.gather()) == [], "a request is still posted that nobody waits for"


def told(environment: Environment, pending: _Pending[Any]) -> Any:
    """What another thread does in its turn, which put its request into the queue before."""
    environment._see_to(pending)
    return pending.result()


def waiting(environment: Environment, request: bytes) -> _Pending[Any]:
    pending = _Pending(partial(environment._perform_one, request=request), 1)
    pending.request = request
    environment._queue.append(pending)
    return pending


@pytest.mark.parametrize("held_on", [False, True], ids=["given back", "held on"])
def test_an_interrupted_owner_of_posted_requests_neither_loses_nor_repeats_those_of_others(
    environment: Environment,
    other: SharedFile,
    other_thread: ThreadPoolExecutor,
    error: Callable[[], BaseException],
    held_on: bool,
) -> None:
    """`held_on`: the other process has the turn until the end; otherwise until the interrupt."""
    holder = Holder(environment, other)
    unknown: list[str] = []

    def scene(interrupter: Interrupter) -> None:
        mine, theirs = b"mine-%d" % interrupter._left, b"theirs-%d" % interrupter._left
        innocent = waiting(environment, theirs)
        with holder.holding():
            acknowledged, raised = interrupter.outcome(lambda: environment.request(mine))
            assert raised in (None, interrupter.error)
            if held_on:
                outcome = told_or_unknown(innocent)
        if not held_on:
            outcome = told_or_unknown(innocent)
        assert_all_free(environment, other, other_thread)
        if outcome is None:
            unknown.append(interrupter.hit)
        assert count_of(environment, theirs) in ((1,) if outcome == 1 else (0, 1)), outcome
        assert count_of(environment, mine) in ((1,) if acknowledged else (0, 1))

    def told_or_unknown(innocent: _Pending[Any]) -> int | None:
        try:
            return int(other_thread.submit(told, environment, innocent).result(WAIT_S))
        except OutcomeUnknown:
            return None

    assert every_place(MODULES, error, scene) > 40
    assert len(unknown) < 5, unknown
    holder.close()


def test_an_interrupted_holder_neither_loses_nor_repeats_what_it_performs_for_others(
    environment: Environment, other: SharedFile, other_thread: ThreadPoolExecutor, error: Callable[[], BaseException]
) -> None:
    holder = Holder(environment, other)

    def scene(interrupter: Interrupter) -> None:
        mine, theirs, posted = (b"%s-%d" % (name, interrupter._left) for name in (b"mine", b"theirs", b"posted"))
        innocent = waiting(environment, theirs)
        prepared = other.prepared(pack_requests([posted]))
        assert prepared is not None
        other.post(prepared)
        acknowledged, raised = interrupter.outcome(lambda: environment.request(mine))
        assert raised in (None, interrupter.error)
        assert other_thread.submit(told, environment, innocent).result(WAIT_S) == 1
        was_done = other.is_done(prepared.number)
        assert count_of(environment, posted) == 1 or not was_done
        with holder.holding():  # the owner gets the turn
            if not other.withdraw(prepared.number):
                with environment._lmdb.begin(write=True) as transaction:
                    assert environment.requests.perform_posted(transaction, [prepared]) == [[1]]  # type: ignore[union-attr]
                assert count_of(environment, posted) == 1
            else:
                assert count_of(environment, posted) == 0
        assert_all_free(environment, other, other_thread)
        assert count_of(environment, mine) in ((1,) if acknowledged else (0, 1))
        assert count_of(environment, theirs) == 1
        assert count_of(environment, posted) <= 1

    assert every_place(MODULES, error, scene) > 40
    holder.close()


def test_two_interrupts_at_the_end_of_a_write_do_not_keep_the_turn(
    environment: Environment,
    other: SharedFile,
    other_thread: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else all other processes wait until this one writes again."""
    left = [KeyboardInterrupt(), KeyboardInterrupt()]
    is_open = environments._is_open

    def interrupted(transaction: Transaction) -> bool:
        if left:
            raise left.pop()
        return is_open(transaction)

    monkeypatch.setattr(environments, "_is_open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        environment.request(b"mine")
    assert not left
    with open(environment.folder / writer_turns.WRITER_FILE, "rb") as another_process:
        fcntl.flock(another_process, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert count_of(environment, b"mine") == 1
    assert_all_free(environment, other, other_thread)


def test_an_interrupted_opening_leaves_no_place(
    tmp_path: Path, other_thread: ThreadPoolExecutor, error: Callable[[], BaseException]
) -> None:
    with lmdb.open(str(tmp_path), max_dbs=1) as made:
        made.open_db(b"d")
    looks_on = SharedFile(tmp_path)

    def scene(interrupter: Interrupter) -> None:
        interrupter.outcome(lambda: open_environment(tmp_path, [b"d"], map_bytes=1 << 26))
        again = open_environment(tmp_path, [b"d"], map_bytes=1 << 26)
        while again.users:
            release(again)
        interrupter.error.__traceback__ = None  # until then its frames keep what they had opened
        assert looks_on.processes() == [os.getpid()]

    assert every_place(MODULES, error, scene) > 20
    looks_on.close()
