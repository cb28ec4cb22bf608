"""Retries: bounded, jittered, above the commit that won, and never around an error that is no conflict."""

from __future__ import annotations

import heapq
import random
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pyomid
from pyomid.config import Settings
from pyomid.database import retry
from pyomid.database.database import Database
from pyomid.database.retry import Attempts, Backoff
from pyomid.errors import ConflictError, OutcomeUnknown, SnapshotTooOld, Unavailable
from pyomid.wiring import open_deployment

pytestmark = pytest.mark.fast


@given(
    least=st.floats(0.0, 1.0),
    longest=st.floats(0.0, 10.0),
    attempt=st.floats(0.0, 10.0),
    conflicts=st.integers(1, 5_000),
    seed=st.integers(0, 1 << 32),
)
def test_a_pause_is_jittered_below_a_bound_of_some_attempts_and_is_capped(
    least: float, longest: float, attempt: float, conflicts: int, seed: int
) -> None:
    backoff = Backoff(least, longest, retries=3, uniform=random.Random(seed).uniform)
    bound = min(longest, 32 * max(least, attempt))
    pauses = [backoff.pause_s(conflicts, attempt) for _ in range(20)]
    assert all(0.0 <= pause <= bound for pause in pauses)
    assert bound < 1e-300 or len(set(pauses)) > 1


def test_losers_spread_out_and_then_the_older_waits_less() -> None:
    backoff = Backoff(0.002, 1.0, retries=3, uniform=lambda _, bound: bound)
    bounds = [backoff.pause_s(conflicts, 0.01) for conflicts in range(1, 200)]
    assert bounds[:5] == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32])
    assert bounds[4:] == sorted(bounds[4:], reverse=True)
    assert bounds[-1] < 0.01, "an old run goes at once"


@pytest.mark.parametrize("workers", [2, 8, 32])
def test_none_of_many_who_want_one_row_loses_without_end(workers: int) -> None:
    """Each attempt takes about as long as the others, and loses to a commit since its begin. A worker that won begins
    its next run at once, so who wins is favoured by where it stands, and not by a pause."""
    chance = random.Random(workers)
    backoff = Backoff(0.0, 1e9, retries=Settings().retries, uniform=chance.uniform)
    committed = -1.0
    losses, run_began, longest = [0] * workers, [0.0] * workers, 0.0
    ends = [(chance.uniform(0.8, 1.3), worker, 0.0) for worker in range(workers)]
    for _ in range(200 * workers):
        now, worker, began = heapq.heappop(ends)
        if committed < began:
            committed, begin = now, now
            longest = max(longest, now - run_began[worker])
            losses[worker], run_began[worker] = 0, now
        else:
            losses[worker] += 1
            assert losses[worker] <= backoff.retries, "it gave up"
            begin = now + backoff.pause_s(losses[worker], 1.0)
        heapq.heappush(ends, (begin + chance.uniform(0.8, 1.3), worker, begin))
    assert longest < 50 + 25 * workers, "in times of an attempt"


def test_a_pause_counts_times_of_the_shortest_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that stood still says nothing of how long the winner takes."""
    now = [0.0]
    monkeypatch.setattr(retry, "time", SimpleNamespace(monotonic=lambda: now[0]))
    attempts = Attempts(Backoff(0.0, 100.0, retries=9, uniform=lambda _, bound: bound), None)
    for attempt_s, pause_s in ((1.0, 2.0), (0.25, 1.0), (50.0, 2.0)):
        attempts.begin()
        now[0] += attempt_s
        assert attempts.pause_s(ConflictError("lost")) == pause_s


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def db(memory_url: str, pauses: list[float]) -> Any:
    with Database(open_deployment(memory_url, retries=3), url=memory_url, sleep=pauses.append) as database:
        database.create_table("t", families=["f"])
        yield database


def test_a_conflict_runs_the_function_again_above_the_commit_that_won(db: Database, pauses: list[float]) -> None:
    starts: list[int] = []
    winners: list[int] = []

    @db.transactional
    def contended(tx: pyomid.Transaction) -> str:
        starts.append(tx.start_ts)
        tx.table("t").put(b"k", {b"f:x": b"mine"})
        if len(starts) < 3:
            with db.begin() as winner:
                winner.table("t").put(b"k", {b"f:x": b"theirs"})
            assert winner.commit_ts is not None
            winners.append(winner.commit_ts)
        return "done"

    assert contended() == "done"
    assert len(starts) == 3
    assert len(pauses) == 2
    assert all(start > winner for start, winner in zip(starts[1:], winners, strict=True))


def test_the_last_conflict_is_raised_when_the_tries_are_used_up(db: Database, pauses: list[float]) -> None:
    tries = 0

    def always(tx: pyomid.Transaction) -> None:
        nonlocal tries
        tries += 1
        raise ConflictError("again")

    with pytest.raises(ConflictError, match=r"again; this was the last of 4 attempts \(option retries=3\)$"):
        db.run(always)
    assert tries == 4
    assert len(pauses) == 3


def test_a_snapshot_from_outside_the_function_that_is_too_old_is_read_twice_at_most(
    db: Database, pauses: list[float]
) -> None:
    """A snapshot of the attempt itself is a new one each time, so a rerun may succeed."""
    calls: list[int] = []

    def reads_an_old_frame(tx: pyomid.Transaction) -> None:
        calls.append(tx.start_ts)
        raise SnapshotTooOld("snapshot 7 is gone", start_ts=7)

    with pytest.raises(
        SnapshotTooOld, match="gone; a rerun would read the same snapshot, so the function must read a newer one"
    ):
        db.run(reads_an_old_frame)
    assert len(calls) == 2

    def reads_two_old_frames(tx: pyomid.Transaction) -> None:
        calls.append(tx.start_ts)
        raise SnapshotTooOld("gone", start_ts=7 + len(calls) % 2)

    with pytest.raises(SnapshotTooOld, match="must read a newer one"):
        db.run(reads_two_old_frames)
    assert len(calls) == 5
    calls.clear()

    def reads_too_long(tx: pyomid.Transaction) -> None:
        calls.append(tx.start_ts)
        raise SnapshotTooOld("this snapshot is gone", start_ts=tx.start_ts)

    with pytest.raises(SnapshotTooOld, match="this was the last of 4 attempts"):
        db.run(reads_too_long)
    assert len(set(calls)) == len(calls) == 4


@pytest.mark.parametrize("error", [Unavailable("x"), OutcomeUnknown("x"), ZeroDivisionError("x")])
def test_an_error_that_is_no_conflict_ends_the_run_at_once(db: Database, pauses: list[float], error: Exception) -> None:
    def fails(tx: pyomid.Transaction) -> None:
        raise error

    with pytest.raises(type(error)):
        db.run(fails)
    assert pauses == []


def test_a_decorated_function_called_with_a_transaction_takes_part_in_it(db: Database) -> None:
    @db.transactional
    def put(tx: pyomid.Transaction, key: bytes, *, value: bytes) -> int:
        """Puts."""
        tx.table("t").put(key, {b"f:x": value})
        return tx.start_ts

    assert put.__doc__ == "Puts."
    tx = db.begin()
    assert put(tx, b"k", value=b"1") == tx.start_ts
    tx.rollback()
    with db.begin() as tx:
        assert tx.table("t").get(b"k") is None
    put(b"k", value=b"2")
    with db.begin() as tx:
        assert tx.table("t").get(b"k") == {b"f:x": b"2"}
