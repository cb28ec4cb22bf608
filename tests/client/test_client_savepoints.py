"""Savepoints: going back leaves what the transaction saw of itself at the savepoint, wherever its writes are then."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyomid.client.database import Database
from pyomid.client.transaction import State
from pyomid.client.transaction_steps import WriteBuffer
from pyomid.errors import ConflictError, Misuse, TransactionEnded

pytestmark = pytest.mark.fast

KEYS = [b"a", b"b", b"c"]
COLUMNS = [b"f:x", b"f:y"]
acts = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from(KEYS), st.sampled_from(COLUMNS), st.sampled_from([b"1", b"2", b"3"])),
        st.tuples(st.just("delete"), st.sampled_from(KEYS), st.sampled_from(COLUMNS), st.none()),
        st.tuples(st.sampled_from(["flush", "save", "back", "release"]), st.none(), st.none(), st.none()),
    ),
    max_size=25,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(acts=acts)
def test_going_back_leaves_what_was_seen_at_the_savepoint(db: Database, acts: list[tuple[Any, ...]]) -> None:
    with db.begin() as tx:
        for key in KEYS:
            tx.table("t").delete(key)
        tx.table("t").put(b"a", {b"f:x": b"old"})
    tx = db.begin()
    table = tx.table("t")
    saved: list[tuple[Any, Any]] = []
    for kind, key, column, value in acts:
        if kind == "put":
            table.put(key, {column: value})
        elif kind == "delete":
            table.delete(key, [column])
        elif kind == "flush":
            tx.flush()
        elif kind == "save":
            saved.append((tx.savepoint(), list(table.scan())))
        elif saved and kind == "back":
            saved[-1][0].rollback()
            assert list(table.scan()) == saved[-1][1]
        elif saved:
            saved.pop()[0].release()
    seen = list(table.scan())
    tx.commit()
    with db.snapshot() as after:
        assert list(after.table("t").scan()) == seen


def test_a_block_goes_back_on_an_exception_and_the_transaction_goes_on(db: Database) -> None:
    with db.begin() as tx:
        table = tx.table("t")
        table.put(b"k", {b"f:x": b"1"})
        with suppress(KeyError), tx.savepoint():
            table.put(b"k", {b"f:x": b"2"})
            tx.flush()
            raise KeyError
        with tx.savepoint():
            table.put(b"k", {b"f:y": b"3"})
    with db.snapshot() as tx:
        assert tx.table("t").get(b"k") == {b"f:x": b"1", b"f:y": b"3"}


def test_what_went_back_before_it_left_asks_for_no_commit(db: Database) -> None:
    with db.begin() as tx:
        saved = tx.savepoint()
        tx.table("t").put(b"k", {b"f:x": b"1"})
        saved.rollback()
    assert tx.commit_ts is None


@pytest.mark.parametrize("conflict", [True, False])
def test_what_went_back_after_it_left_stays_checked(db: Database, conflict: bool) -> None:
    """Else the old value that goes back would hide what another transaction wrote meanwhile."""
    tx = db.begin()
    saved = tx.savepoint()
    tx.table("t").put(b"k", {b"f:x": b"1"}, conflict=conflict)
    tx.flush()
    saved.rollback()
    with db.begin() as other:
        other.table("t").put(b"k", {b"f:x": b"2"})
    with pytest.raises(ConflictError):
        tx.commit()


def test_a_claim_outlives_going_back(db: Database) -> None:
    tx = db.begin()
    saved = tx.savepoint()
    tx.claim("t", [b"k"], [b"f:x"])
    saved.rollback()
    with db.begin() as other:
        other.table("t").put(b"k", {b"f:x": b"2"})
    with pytest.raises(ConflictError):
        tx.commit()


def test_a_savepoint_ends_with_an_earlier_one_and_with_its_transaction(db: Database) -> None:
    tx = db.begin()
    outer, inner = tx.savepoint(), tx.savepoint()
    outer.rollback()
    with pytest.raises(Misuse, match="released, or an earlier one"):
        inner.rollback()
    outer.release()
    outer.release()
    with pytest.raises(Misuse, match="released"):
        outer.rollback()
    with suppress(KeyError), tx.savepoint():
        tx.commit()
        raise KeyError
    assert tx.state is State.COMMITTED
    with pytest.raises(TransactionEnded):
        tx.savepoint()


def test_a_way_back_that_did_not_end_allows_no_commit(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the writes went back."""
    tx = db.begin()
    tx.table("t").put(b"k", {b"f:x": b"1"})
    saved = tx.savepoint()

    def interrupted(*arguments: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(WriteBuffer, "go_back", interrupted)
        with pytest.raises(MemoryError):
            saved.rollback()
    with pytest.raises(TransactionEnded, match="savepoint"):
        tx.commit()
    tx.rollback()


def test_a_read_only_transaction_refuses_writes(db: Database) -> None:
    with db.begin() as tx:
        tx.table("t").put(b"k", {b"f:x": b"1"})
    for tx in (db.begin(read_only=True), db.snapshot()):
        table = tx.table("t")
        assert table.get(b"k") == {b"f:x": b"1"}
        for write in (
            lambda table=table: table.put(b"k", {b"f:x": b"1"}),
            lambda table=table: table.delete(b"k"),
            lambda table=table: table.get(b"k", for_update=True),
            lambda table=table: table.increment(b"k", b"f:n"),
            lambda tx=tx: tx.claim("t", [b"k"]),
            lambda tx=tx: tx.savepoint(),
        ):
            with pytest.raises(Misuse, match="read-only"):
                write()
        tx.commit()
        assert tx.commit_ts is None
