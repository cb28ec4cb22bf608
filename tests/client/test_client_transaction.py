"""Transactions as a program sees them: snapshots, one winner, ends, ownership."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import pytest
from put_rows import put

import pyomid
from pyomid.database.database import Database
from pyomid.database.transaction import State, Transaction, refusal
from pyomid.database.writes import outbox
from pyomid.errors import ConflictError, Misuse, MisuseType, SnapshotTooOld, TransactionEnded, UnknownTable
from pyomid.observe import Kind, Observer, Operation
from pyomid.types import AbortReason, CommitReply

pytestmark = pytest.mark.fast

Balance = dict[bytes, bytes]


class Ends(Observer):
    """The kinds of operations, in order."""

    def __init__(self) -> None:
        self.kinds: list[Kind] = []

    def done(self, operation: Operation) -> None:
        self.kinds.append(operation.kind)


def get(db: Database, key: bytes) -> Balance | None:
    with db.begin() as tx:
        return tx.table("t").get(key)


@pytest.mark.parametrize("rows", [1, 7, 3_000])
def test_a_conflict_names_tables_and_some_rows_written(db: Database, rows: int) -> None:
    """3 000: written as a batch. The names come without the values."""
    db.create_table("u", families=["f"])
    loser = db.begin()
    for number in range(rows):
        loser.table("t").put(b"%04d" % number, {b"f:x": b"secret", b"f:y": b"secret"})
    loser.table("u").delete(b"gone")
    winner = put(db, b"0000")
    with pytest.raises(ConflictError, match=r"it wrote t \(b'0000'") as caught:
        loser.commit()
    wrote = {"t": tuple(b"%04d" % number for number in range(min(rows, 5)))}
    assert caught.value.values["wrote"] == wrote
    assert caught.value.values["commit_ts"] == winner
    assert ("…" in str(caught.value)) is (rows > 5)
    assert "secret" not in str(caught.value)


def test_an_exception_in_the_block_rolls_back_and_passes(db: Database) -> None:
    tx = db.begin()

    def block() -> None:
        with tx:
            tx.table("t").put(b"k", {b"f:x": b"1"})
            tx.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        block()
    assert tx.state is State.ROLLED_BACK
    assert get(db, b"k") is None


def test_a_transaction_that_wrote_nothing_asks_for_no_commit(db: Database) -> None:
    with db.begin() as tx:
        tx.table("t").get(b"k")
        tx.table("t").delete(b"k")
    assert tx.state is State.COMMITTED
    assert tx.commit_ts is None


def test_a_rolled_back_transaction_leaves_no_cell_and_a_committed_one_its_shadow_cells_and_no_entry(
    db: Database, url: str
) -> None:
    put(db, b"kept")
    loser = db.begin()
    loser.table("t").put(b"gone", {b"f:x": b"1"})
    loser.flush()
    loser.rollback()
    assert db.drain(10)
    kept, gone = db._core.deployment.store.read_rows("t", [b"kept", b"gone"])
    assert gone == []
    in_folder = url.startswith("omid:///")  # there the version of a small commit is its timestamp
    assert [cell.commit_ts > cell.version for cell in kept] == [not in_folder]
    status = db.status()
    assert status.background.completed == (not in_folder)
    assert status.background.rolled_back == 1


USES: list[Callable[[Transaction], object]] = [
    lambda tx: tx.table("t"),
    lambda tx: tx.commit(),
    lambda tx: tx.flush(),
    lambda tx: tx.mark_rollback_only(),
    lambda tx: tx.__enter__(),
]
TABLE_USES: list[Callable[[pyomid.Table], object]] = [
    lambda table: table.get(b"k"),
    lambda table: table.rows([b"k"]),
    lambda table: table.put(b"k", {b"f:x": b"1"}),
    lambda table: table.delete(b"k"),
    lambda table: list(table.scan()),
]


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_every_use_after_the_end_is_refused_and_says_how_it_ended(memory_db: Database, end: str) -> None:
    tx = memory_db.begin()
    table = tx.table("t")
    table.put(b"k", {b"f:x": b"1"})
    getattr(tx, end)()
    for use in USES:
        with pytest.raises(TransactionEnded, match="committed" if end == "commit" else "rolled back"):
            use(tx)
    for use_table in TABLE_USES:
        with pytest.raises(TransactionEnded, match=str(tx.start_ts)):
            use_table(table)


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_rollback_after_the_end_changes_nothing_and_is_not_observed(memory_url: str, end: str) -> None:
    seen = Ends()
    with pyomid.connect(memory_url, observers=[seen]) as db:
        db.create_table("t", ["f"])
        tx = db.begin()
        tx.table("t").put(b"k", {b"f:x": b"1"})
        getattr(tx, end)()
        state, commit_ts, observed = tx.state, tx.commit_ts, list(seen.kinds)
        tx.rollback()
        assert (tx.state, tx.commit_ts, seen.kinds) == (state, commit_ts, observed)
        db.drain()
        assert bool(get(db, b"k")) is (end == "commit")


def test_after_mark_rollback_only_reads_go_on_and_writes_and_commit_are_refused_with_the_reason(
    memory_db: Database,
) -> None:
    put(memory_db, b"k")
    tx = memory_db.begin()
    table = tx.table("t")
    table.put(b"mine", {b"f:x": b"1"})
    tx.mark_rollback_only("the order was cancelled")
    assert table.get(b"k") == {b"f:x": b"1"}
    assert table.get(b"mine") == {b"f:x": b"1"}
    for refused in (tx.commit, lambda: table.put(b"k", {b"f:x": b"2"}), lambda: table.delete(b"k")):
        with pytest.raises(TransactionEnded, match="the order was cancelled"):
            refused()
    tx.rollback()
    assert get(memory_db, b"mine") is None


def test_a_block_that_was_marked_rollback_only_says_so_at_its_end_and_is_rolled_back(memory_db: Database) -> None:
    tx = memory_db.begin()

    def block() -> None:
        with tx:
            tx.table("t").put(b"k", {b"f:x": b"1"})
            tx.mark_rollback_only()

    with pytest.raises(TransactionEnded, match="rollback-only"):
        block()
    assert tx.state is State.ROLLED_BACK
    assert get(memory_db, b"k") is None


def test_another_thread_is_refused_and_the_transaction_goes_on(memory_db: Database) -> None:
    tx = memory_db.begin()
    table = tx.table("t")
    table.put(b"k", {b"f:x": b"1"})
    errors: list[Exception] = []

    def elsewhere() -> None:
        for use in (lambda: table.get(b"k"), lambda: table.put(b"k", {b"f:x": b"2"}), tx.commit, tx.rollback):
            try:
                use()
            except Misuse as error:
                errors.append(error)

    thread = threading.Thread(target=elsewhere, name="other")
    thread.start()
    thread.join()
    assert len(errors) == 4
    assert all("'other'" in str(error) and str(tx.start_ts) in str(error) for error in errors)
    tx.commit()
    assert get(memory_db, b"k") == {b"f:x": b"1"}


def test_a_forked_child_is_refused_by_database_and_transaction_and_does_the_parent_no_harm(db: Database) -> None:
    tx = db.begin()
    table = tx.table("t")
    table.put(b"k", {b"f:x": b"1"})
    uses: list[Callable[[], object]] = [
        lambda: table.get(b"k"),
        tx.commit,
        tx.rollback,
        db.begin,
        db.tables,
        db.status,
        lambda: db.create_table("u", families=["f"]),
    ]
    child = os.fork()
    if child == 0:
        refused = 0
        for use in uses:
            try:
                use()
            except Misuse as error:
                refused += "forked child" in str(error)
        db.close()
        os._exit(refused)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == len(uses)
    tx.commit()
    assert get(db, b"k") == {b"f:x": b"1"}


def test_a_closed_database_refuses_by_name(memory_url: str) -> None:
    db = pyomid.connect(memory_url)
    db.close()
    db.close()
    for use in (db.begin, db.tables, db.status, lambda: db.create_table("u", ["f"]), db.__enter__):
        with pytest.raises(Misuse, match="closed"):
            use()


def test_unknown_tables_are_refused_with_the_nearest_name(memory_db: Database) -> None:
    memory_db.create_table("accounts", families=["f"])
    with memory_db.begin() as tx:
        with pytest.raises(UnknownTable, match="did you mean 'accounts'"):
            tx.table("acounts")
        with pytest.raises(MisuseType):
            tx.table(b"accounts")  # type: ignore[arg-type]
    with pytest.raises(UnknownTable):
        memory_db.drop_table("nothing")


def test_a_taken_name_is_refused_and_one_table_has_one_conflict_level(memory_db: Database) -> None:
    with pytest.raises(Misuse, match="already exists; give if_not_exists=True"):
        memory_db.create_table("t", families=["f"])
    assert memory_db.create_table("t", families=["f"], if_not_exists=True).name == "t"
    with pytest.raises(Misuse, match="conflict level 'cell', not 'row'"):
        memory_db.create_table("t", families=["f"], conflict_level="row", if_not_exists=True)
    with pytest.raises(Misuse, match="without the families b'h'"):
        memory_db.create_table("t", families=["h"], if_not_exists=True)


@pytest.mark.parametrize("reason", list(AbortReason))
def test_every_refusal_is_a_conflict_that_says_why(reason: AbortReason) -> None:
    error = refusal(CommitReply(100, reason=reason, conflict_ts=150))
    assert isinstance(error, ConflictError)
    assert isinstance(error, SnapshotTooOld) is (reason is AbortReason.LEASE_LOST)
    assert error.values["commit_ts"] == 150


@pytest.mark.parametrize("rows_min", [1, outbox.LARGE_FLUSH_ROWS_MIN, 10**9])
def test_a_flush_as_a_batch_is_one_row_by_row(db: Database, monkeypatch: pytest.MonkeyPatch, rows_min: int) -> None:
    """A row of a flush that is written again, deleted columns, a loser, a rollback: the outcome is one."""
    monkeypatch.setattr(outbox, "LARGE_FLUSH_ROWS_MIN", rows_min)
    put(db, b"0003", column=b"f:y")
    loser, undone = db.begin(), db.begin()
    loser.table("t").put(b"0007", {b"f:x": b"lost"})
    with db.begin() as tx:
        table = tx.table("t")
        for number in range(600):
            table.put(b"%04d" % number, {b"f:x": b"%d" % number, b"g:x": b"1"})
        tx.flush()
        table.delete(b"0003", [b"f:y", b"g:x"])
        table.put(b"0004", {b"f:x": b"again"})
        assert table.get(b"0004") == {b"f:x": b"again", b"g:x": b"1"}
    undone.table("t").put(b"0600", {b"f:x": b"undone"})
    undone.flush()
    undone.rollback()
    with pytest.raises(ConflictError):
        loser.commit()
    assert db.drain(30)

    with db.begin() as later:
        rows = dict(later.table("t").scan())
        assert len(rows) == 600
        assert [rows[b"%04d" % number] for number in (3, 4)] == [{b"f:x": b"3"}, {b"f:x": b"again", b"g:x": b"1"}]
        assert rows[b"0005"] == later.table("t").get(b"0005") == {b"f:x": b"5", b"g:x": b"1"}
    cells = [cell for row in db._core.deployment.store.read_rows("t", list(rows)) for cell in row]
    assert tx.commit_ts in {cell.commit_ts for cell in cells}
    assert 0 not in {cell.commit_ts for cell in cells}
