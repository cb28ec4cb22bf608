"""What the client does when a part fails or an answer is lost: hazards C1, C3, C4, C7 on real parts with one fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from client_faults import database_with, failing

import pyomid
from pyomid.database.database import Database
from pyomid.database.idempotency import AlreadyDone
from pyomid.database.transaction import State, Transaction
from pyomid.errors import (
    ConflictError,
    Misuse,
    OmidError,
    OutcomeUnknown,
    StoreFull,
    TransactionEnded,
    Unavailable,
)

pytestmark = pytest.mark.fast


@pytest.fixture
def healthy(memory_url: str) -> Any:
    with pyomid.connect(memory_url) as database:
        for name in "abcde":
            database.create_table(name, families=["f"])
        yield database


def unknowable(*, arrives: bool = True) -> dict[str, Any]:
    """The answer to the first commit is lost, and it cannot be looked up."""
    return {
        "tso": {"commit": failing(OutcomeUnknown("no answer", start_ts=0), after=arrives)},
        "commit_table": {"lookup": failing(Unavailable("the store is away too"))},
    }


def visible(db: Database, table: str, key: bytes = b"k") -> dict[bytes, bytes]:
    with db.begin() as tx:
        return tx.table(table).get(key) or {}


@pytest.mark.parametrize("after", [False, True], ids=["failed", "answer lost"])
@pytest.mark.parametrize("nth", range(1, 6))
def test_one_failed_put_of_five_makes_the_transaction_rollback_only(
    healthy: Database, memory_url: str, nth: int, after: bool
) -> None:
    fault = failing(StoreFull("no room"), nth=nth, after=after)
    with database_with(memory_url, store={"write_cells": fault}) as db:
        tx = db.begin()
        for name in "abcde":
            tx.table(name).put(b"k", {b"f:x": b"1"})
        with pytest.raises(StoreFull):
            tx.commit()
        assert tx.state is State.ROLLBACK_ONLY
        with pytest.raises(TransactionEnded, match="not all of its writes reached the store: no room"):
            tx.commit()
        assert tx.table("a").get(b"k") == {b"f:x": b"1"}
        tx.rollback()
        assert db.drain(10)
        assert [visible(db, name) for name in "abcde"] == [{}] * 5
        assert all(db._core.deployment.store.read_rows(name, [b"k"]) == [[]] for name in "abcde")


def test_a_block_whose_flush_fails_raises_that_error_and_rolls_back(healthy: Database, memory_url: str) -> None:
    with database_with(memory_url, store={"write_cells": failing(StoreFull("no room"), after=True)}) as db:
        with pytest.raises(StoreFull):
            with db.begin() as tx:
                tx.table("a").put(b"k", {b"f:x": b"1"})
        assert tx.state is State.ROLLED_BACK
        assert db.drain(10)
        assert db._core.deployment.store.read_rows("a", [b"k"]) == [[]]


def test_a_failed_flush_in_the_middle_is_remembered_even_if_the_program_swallows_it(
    healthy: Database, memory_url: str
) -> None:
    with database_with(f"{memory_url}?flushBytes=1", store={"write_cells": failing(Unavailable("later"))}) as db:
        tx = db.begin()
        with pytest.raises(Unavailable):
            tx.table("a").put(b"k", {b"f:x": b"1"})
        with pytest.raises(TransactionEnded, match="later"):
            tx.table("a").put(b"l", {b"f:x": b"1"})
        with pytest.raises(TransactionEnded, match="later"):
            tx.commit()


def test_a_lost_answer_is_looked_up_and_the_commit_is_reported(healthy: Database, memory_url: str) -> None:
    lost = failing(OutcomeUnknown("no answer", start_ts=0), after=True)
    with database_with(memory_url, tso={"commit": lost}) as db:
        with db.begin() as tx:
            tx.table("a").put(b"k", {b"f:x": b"1"})
        assert tx.state is State.COMMITTED
        assert tx.commit_ts is not None
        assert db.drain(10)
        assert visible(db, "a") == {b"f:x": b"1"}


def test_a_request_that_never_arrived_is_sealed_and_reported_as_aborted(healthy: Database, memory_url: str) -> None:
    with database_with(memory_url, tso={"commit": failing(OutcomeUnknown("no answer", start_ts=0))}) as db:
        tx = db.begin()
        tx.table("a").put(b"k", {b"f:x": b"1"})
        with pytest.raises(pyomid.ConflictError):
            tx.commit()
        assert tx.state is State.ROLLED_BACK
        assert db.drain(10)
        assert db._core.deployment.store.read_rows("a", [b"k"]) == [[]]


def test_an_unknowable_outcome_is_said_and_nothing_is_rolled_back(healthy: Database, memory_url: str) -> None:
    with database_with(memory_url, **unknowable()) as db:
        tx = db.begin()
        tx.table("a").put(b"k", {b"f:x": b"1"})
        with pytest.raises(OutcomeUnknown):
            tx.commit()
        assert tx.state is State.UNKNOWN
        tx.rollback()
        assert tx.state is State.UNKNOWN
        assert db.drain(10)
        assert visible(db, "a") == {b"f:x": b"1"}


def test_a_tso_that_is_away_leaves_the_transaction_rollback_only(healthy: Database, memory_url: str) -> None:
    with database_with(memory_url, tso={"commit": failing(Unavailable("no TSO"))}) as db:
        tx = db.begin()
        tx.table("a").put(b"k", {b"f:x": b"1"})
        with pytest.raises(Unavailable):
            tx.commit()
        assert tx.state is State.ROLLBACK_ONLY
        tx.rollback()
        assert visible(db, "a") == {}


@pytest.mark.parametrize("fails", range(6))
def test_the_entry_goes_after_every_shadow_cell_or_stays_for_the_healers(
    healthy: Database, memory_url: str, fails: int
) -> None:
    """Each of five shadow cells in turn cannot be written; 0: none."""
    order: list[str] = []
    fault = failing(Unavailable("store away"), nth=fails)

    def shadows(real: Callable[..., None], table: str, cells: Any) -> None:
        fault(real, table, cells)
        order.append(table)

    def deleted(real: Callable[..., None], starts: Any) -> None:
        order.append("entry")
        real(starts)

    with database_with(memory_url, store={"write_shadow_cells": shadows}, commit_table={"delete": deleted}) as db:
        with db.begin() as tx:
            for name in "abcde":
                tx.table(name).put(b"k", {b"f:x": b"1"})
        assert db.drain(10)
        if fails:
            assert "entry" not in order
        else:
            assert sorted(order[:-1]) == list("abcde")
            assert order[-1] == "entry"
        assert db.status().commit_table_entries == (1 if fails else 0)
        assert [visible(db, name) for name in "abcde"] == [{b"f:x": b"1"}] * 5


def test_a_reader_heals_what_a_dead_client_left(healthy: Database, memory_url: str) -> None:
    with database_with(memory_url, store={"write_shadow_cells": failing(Unavailable("died"))}) as dying:
        with dying.begin() as tx:
            tx.table("a").put(b"k", {b"f:x": b"1"})
        assert dying.drain(10)
    (cell,) = healthy._core.deployment.store.read_rows("a", [b"k"])[0]
    assert cell.commit_ts == 0
    assert visible(healthy, "a") == {b"f:x": b"1"}
    assert healthy.drain(10)
    (cell,) = healthy._core.deployment.store.read_rows("a", [b"k"])[0]
    assert cell.commit_ts == tx.commit_ts
    assert healthy.status().commit_table_entries == 1


# Durable ids


def add_one(tx: pyomid.Transaction) -> int:
    counter = tx.table("a")
    value = int((counter.get(b"k") or {}).get(b"f:n", b"0")) + 1
    counter.put(b"k", {b"f:n": b"%d" % value})
    return value


def test_of_all_runs_under_one_id_one_commits(healthy: Database) -> None:
    assert healthy.run_once("month-1", add_one) == 1
    again = healthy.run_once("month-1", add_one)
    assert isinstance(again, AlreadyDone)
    assert again.run_id == "month-1"
    assert healthy.run_once("month-2", add_one) == 2
    assert visible(healthy, "a") == {b"f:n": b"2"}


def test_a_lost_answer_of_a_run_with_an_id_never_counts_twice(healthy: Database, memory_url: str) -> None:
    with database_with(memory_url, **unknowable()) as db:
        assert isinstance(db.run_once("month-1", add_one), AlreadyDone)
        assert visible(db, "a") == {b"f:n": b"1"}


@pytest.mark.parametrize("error", [Unavailable("no TSO"), ConflictError("lost"), Misuse("no such table")])
def test_what_ends_a_run_denies_no_earlier_try(healthy: Database, memory_url: str, error: OmidError) -> None:
    """Told else: nothing took effect. The caller pays again under another id."""
    lost: list[int] = []

    def commit(real: Callable[..., Any], request: Any) -> Any:
        real(request)
        lost.append(request.start_ts)
        raise OutcomeUnknown("no answer", start_ts=request.start_ts)

    def begin(real: Callable[..., Any], **options: Any) -> Any:
        if lost:
            raise error
        return real(**options)

    down = failing(Unavailable("the store is away too"))
    with database_with(memory_url, tso={"commit": commit, "begin": begin}, commit_table={"lookup": down}) as db:
        with pytest.raises(OutcomeUnknown, match="'month-1' may have committed; to find out, rerun it") as raised:
            db.run_once("month-1", add_one)
    assert raised.value.values["start_ts"] == lost[0]
    assert isinstance(healthy.run_once("month-1", add_one), AlreadyDone)


def test_a_programs_error_behind_a_lost_answer_says_so(healthy: Database, memory_url: str) -> None:
    tries = 0

    def fails_later(tx: Transaction) -> int:
        nonlocal tries
        tries += 1
        if tries == 2:
            raise ZeroDivisionError
        return add_one(tx)

    with database_with(memory_url, **unknowable(arrives=False)) as db:
        with pytest.raises(ZeroDivisionError) as raised:
            db.run_once("month-1", fails_later)
    assert "may have committed" in raised.value.__notes__[0]


def test_a_failed_run_leaves_no_marker(healthy: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        healthy.run_once("month-1", lambda tx: add_one(tx) // 0)
    assert healthy.run_once("month-1", add_one) == 1


def test_two_overlapping_runs_under_one_id_conflict_even_where_their_cells_do_not(healthy: Database) -> None:
    ran: list[str] = []

    def outer(tx: pyomid.Transaction) -> None:
        ran.append("outer")
        if len(ran) == 1:
            healthy.run_once("month-1", inner)
        tx.table("a").put(b"outer", {b"f:x": b"1"})

    def inner(tx: pyomid.Transaction) -> None:
        ran.append("inner")
        tx.table("a").put(b"inner", {b"f:x": b"1"})

    assert isinstance(healthy.run_once("month-1", outer), AlreadyDone)
    assert ran == ["outer", "inner"]
    with healthy.begin() as tx:
        assert [key for key, _ in tx.table("a").scan()] == [b"inner"]


@pytest.mark.parametrize("bad", ["", "x" * 201, "\u00e9" * 101, None, b"id"])
def test_bad_ids_are_refused(healthy: Database, bad: Any) -> None:
    with pytest.raises(Misuse, match="run_id"):
        healthy.run_once(bad, add_one)
