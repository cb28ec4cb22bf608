"""Leases of long transactions: renewed, ended with them, and never lost in silence (K7)."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import pyomid
from pyomid.config import Settings
from pyomid.database.lease_keeper import RENEWALS_PER_TERM, LeaseKeeper, renewal_pause_s
from pyomid.errors import ConflictError, Misuse, SnapshotTooOld, TransactionEnded, Unavailable

pytestmark = pytest.mark.fast


class LeasesOnly:
    """The lease calls of a TSO, remembered."""

    def __init__(self, answers: list[Callable[[], float]]) -> None:
        self.answers = answers
        self.granted: list[tuple[int, float]] = []
        self.ended: list[int] = []
        self.renewed = threading.Semaphore(0)
        self.end_called = threading.Event()

    def grant_lease(self, start_ts: int, term_s: float) -> float:
        self.granted.append((start_ts, term_s))
        return term_s

    def renew_lease(self, start_ts: int) -> float:
        try:
            return (self.answers.pop(0) if self.answers else lambda: 30.0)()
        finally:
            self.renewed.release()

    def wait_for_renewals(self, count: int) -> None:
        for _ in range(count):
            assert self.renewed.acquire(timeout=30)

    def share_lease(self, start_ts: int, term_s: float) -> tuple[int, float]:
        return start_ts, self.renew_lease(start_ts)

    def end_lease(self, start_ts: int) -> None:
        self.ended.append(start_ts)
        self.end_called.set()


def fail(error: BaseException) -> Callable[..., float]:
    def raising(*_: object) -> float:
        raise error

    return raising


def kept(*answers: Callable[[], float]) -> tuple[LeasesOnly, LeaseKeeper]:
    """A TSO that answers renewals like this, and a keeper of its leases."""
    tso: Any = LeasesOnly(list(answers))
    return tso, LeaseKeeper(tso, time.monotonic)


def test_a_lease_is_renewed_within_its_term_and_ended_once() -> None:
    tso, leases = kept(lambda: 0.03, lambda: 0.03)
    lease = leases.grant(50, 0.03)
    tso.wait_for_renewals(2)
    assert lease.lost is None
    leases.end(lease)
    leases.close()
    assert tso.ended == [50]
    assert RENEWALS_PER_TERM > 1


def test_a_shared_lease_is_asked_for_again_and_never_ended() -> None:
    tso, leases = kept(lambda: 0.03, lambda: 0.03, fail(SnapshotTooOld("gone")))
    one, other = leases.share(50, 0.03), leases.share(50, 30.0)
    tso.wait_for_renewals(3)
    leases.end(other)
    leases.close()
    assert one.lost is not None or not tso.answers
    assert not tso.ended


def test_a_lost_lease_is_told_to_its_owner_and_an_unreachable_tso_is_asked_again() -> None:
    tso, leases = kept(fail(Unavailable("away")), fail(SnapshotTooOld("gone")))
    lease = leases.grant(50, 0.03)
    tso.wait_for_renewals(2)
    leases.close()
    assert isinstance(lease.lost, SnapshotTooOld)


def test_a_forgotten_lease_ends() -> None:
    tso, leases = kept()
    lease = leases.grant(50, 0.3)
    del lease
    gc.collect()
    assert tso.end_called.wait(30)
    leases.close()
    assert tso.ended == [50]


def test_a_lasting_lease_that_its_owner_never_had_ends() -> None:
    tso, leases = kept()
    leases.grant_lasting(50, 30.0)
    assert tso.end_called.wait(30)
    leases.close()
    assert tso.ended == [50]


def test_a_lease_that_comes_when_nobody_waits_for_it_is_ended_once_and_after_its_grant() -> None:
    """An event loop cancels its caller, and the thread goes on; also beside the database's close."""
    tso, leases = kept()
    asked, goes_on = threading.Event(), threading.Event()

    def slow(start_ts: int, term_s: float) -> float:
        asked.set()
        assert goes_on.wait(30)
        assert not tso.ended
        return term_s

    tso.grant_lease = slow  # type: ignore[method-assign]
    with ThreadPoolExecutor(2) as pool:
        granting = pool.submit(lambda: bool(leases.grant(50, 30.0)))
        assert asked.wait(30)
        closing = pool.submit(leases.close)
        goes_on.set()
        assert granting.result(30)
        closing.result(30)
    assert tso.end_called.wait(30)
    assert tso.ended == [50]


def test_a_lasting_lease_is_renewed_and_not_ended_where_it_is_forgotten() -> None:
    tso, leases = kept()
    place, other = leases.grant_lasting(50, 0.03), leases.grant_lasting(60, 30.0)
    leases.keep(place)
    tso.wait_for_renewals(1)
    del place
    gc.collect()
    leases.end(other)
    leases.close()
    assert tso.ended == [60]


def test_a_lasting_lease_regains_its_term_after_a_take_over() -> None:
    """For who comes back to it, its term is what was promised."""
    tso, leases = kept(lambda: 0.01)
    place = leases.grant_lasting(50, 0.03)
    tso.wait_for_renewals(2)
    leases.close()
    assert tso.granted == [(50, 0.03), (50, 0.03)]
    assert place.lost is None


def test_a_long_lease_is_renewed_in_time_for_a_tso_that_took_over() -> None:
    """Which gives it the term of a short one."""
    assert renewal_pause_s(86_400.0) <= Settings().lease_seconds / RENEWALS_PER_TERM
    assert renewal_pause_s(3.0) == 1.0
    assert renewal_pause_s(86_400.0, tso_term_s=3.0) == 1.0


def test_a_leased_transaction_holds_the_watermark_below_it_until_its_end(memory_url: str) -> None:
    with pyomid.connect(memory_url, max_transaction_age_seconds=0.1) as db:
        db.create_table("t", families=["f"])
        tx = db.begin(lease=True)
        tx.table("t").put(b"k", {b"f:x": b"1"})
        assert tx.start_ts in db.status().tso.leases
        assert db.status().tso.watermark < tx.start_ts
        tx.commit()
        assert tx.start_ts not in db.status().tso.leases


@pytest.mark.parametrize("end", ["rollback", "commit"])
def test_every_end_of_a_transaction_ends_its_lease(memory_db: pyomid.Database, end: str) -> None:
    tx = memory_db.begin(lease=True)
    assert memory_db.status().tso.leases == (tx.start_ts,)
    getattr(tx, end)()
    assert memory_db.status().tso.leases == ()


def test_a_transaction_whose_lease_is_gone_raises_at_its_next_use_and_cannot_commit(
    memory_db: pyomid.Database,
) -> None:
    tx = memory_db.begin(lease=True)
    table = tx.table("t")
    table.put(b"k", {b"f:x": b"1"})
    tx._core._lease.lost = SnapshotTooOld("the lease is gone", start_ts=tx.start_ts)  # type: ignore[union-attr]
    for use in (lambda: table.get(b"k"), tx.commit, lambda: table.put(b"l", {b"f:x": b"1"})):
        with pytest.raises(SnapshotTooOld):
            use()
    tx.rollback()
    with pytest.raises(TransactionEnded):
        tx.commit()


def test_a_transaction_without_a_lease_that_grew_too_old_says_so_at_its_next_read_and_cannot_commit(
    memory_url: str,
) -> None:
    with pyomid.connect(memory_url, max_transaction_age_seconds=0.1) as db:
        db.create_table("t", families=["f"])
        old, writer, leased = db.begin(), db.begin(), db.begin(lease=True)
        writer.table("t").put(b"k", {b"f:x": b"1"})
        leased.rollback()
        while db.status().tso.watermark < writer.start_ts:
            db.begin().rollback()
        with pytest.raises(SnapshotTooOld, match=str(old.start_ts)):
            old.table("t").get(b"k")
        for empty_range in (b"x", b""):
            with pytest.raises(SnapshotTooOld):
                list(old.table("t").scan(empty_range))
        with pytest.raises(ConflictError):
            writer.commit()


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), RuntimeError("can't start new thread"), MemoryError()])
def test_an_unexpected_error_of_one_renewal_ends_no_lease(error: Exception) -> None:
    """Else the renewer dies of it, and every lease of the process ends in silence."""
    tso, leases = kept(fail(error), lambda: 0.03, lambda: 0.03)
    lease = leases.grant(50, 0.03)
    tso.wait_for_renewals(3)
    assert lease.lost is None
    leases.close()


def test_a_renewer_that_dies_tells_every_lease_it_held(monkeypatch: pytest.MonkeyPatch) -> None:
    _, leases = kept()
    died = threading.Event()

    def clock() -> float:
        if threading.current_thread().name == "pyomid-leases":
            died.set()
            raise SystemError("the clock is gone")
        return 0.0

    leases._clock = clock
    lease = leases.grant(50, 30.0)
    assert died.wait(30)
    renewer = leases._thread
    if renewer is not None:
        renewer.join(30)
    assert isinstance(lease.lost, SnapshotTooOld)
    assert "no longer renewed" in str(lease.lost)
    leases._clock = lambda: 0.0
    assert leases.grant(100, 30.0).lost is None
    assert leases._thread is not None
    leases.close()


def test_a_lease_without_a_thread_to_renew_it_is_refused(memory_db: pyomid.Database) -> None:
    threading.stack_size(1 << 47)
    try:
        with pytest.raises(Unavailable, match="thread"):
            memory_db.begin(lease=True)
    finally:
        threading.stack_size(0)
    assert memory_db.status().tso.leases == ()
    memory_db.begin(lease=True).rollback()


@pytest.mark.parametrize(
    "refusal", [Misuse("of 1000 leases none is left"), SnapshotTooOld("gone"), KeyboardInterrupt()]
)
def test_a_start_whose_lease_is_refused_is_given_up(
    memory_db: pyomid.Database, monkeypatch: pytest.MonkeyPatch, refusal: BaseException
) -> None:
    """W would wait for it until it is old."""
    tso: Any = memory_db._core.deployment.tso
    monkeypatch.setattr(tso, "grant_lease", fail(refusal))
    with pytest.raises(type(refusal)):
        memory_db.begin(lease=True)
    assert not tso._open_starts.holds_any
