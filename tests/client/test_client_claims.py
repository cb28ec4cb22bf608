"""What a transaction decided by still holds at its commit: claims, expectations, counters; and conflict-free writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from outboxes import new_outbox

import pyomid
from pyomid.database.database import Database
from pyomid.database.transaction import Transaction
from pyomid.errors import ConflictError, ExpectationFailed, Misuse, MisuseType, TransactionEnded
from pyomid.protocol.hashing import cell_id, row_id, table_id
from pyomid.types import Column, ConflictLevel, TableInfo
from waiting import until

pytestmark = pytest.mark.fast

Act = Callable[[Transaction], Any]


@pytest.fixture
def both(db: Database) -> Database:
    """Tables "t" of level cell and "byrow" of level row, with a row b"k" each."""
    db.create_table("byrow", families=["f", "g"], conflict_level="row")
    with db.begin() as tx:
        for table in ("t", "byrow"):
            tx.table(table).put(b"k", {b"f:x": b"1", b"g:x": b"1"})
    return db


def meet(db: Database, first: Act, second: Act) -> bool:
    """Two transactions that overlap: whether the second to commit loses to the first."""
    one, two = db.begin(), db.begin()
    first(one)
    second(two)
    one.commit()
    try:
        two.commit()
    except ConflictError as error:
        return bool(error.values["commit_ts"] == one.commit_ts)
    return False


def put(table: str, key: bytes, column: bytes, **options: Any) -> Act:
    return lambda tx: tx.table(table).put(key, {column: b"2"}, **options)


def get(table: str, key: bytes, columns: list[bytes] | None = None) -> Act:
    return lambda tx: tx.table(table).get(key, columns, for_update=True)


def claim(table: str, key: bytes, columns: list[bytes] | None = None) -> Act:
    return lambda tx: tx.claim(table, [key], columns)


@pytest.mark.parametrize("ask", [get, claim])
@pytest.mark.parametrize(
    ("table", "key", "columns", "other", "meets"),
    [
        ("byrow", b"k", None, put("byrow", b"k", b"f:new"), True),
        ("byrow", b"k", [b"f:x"], put("byrow", b"k", b"g:x"), True),
        ("byrow", b"absent", None, put("byrow", b"absent", b"f:x"), True),
        ("byrow", b"k", [], claim("byrow", b"k"), True),
        ("byrow", b"k", None, put("byrow", b"other", b"f:x"), False),
        ("byrow", b"k", None, put("t", b"k", b"f:x"), False),
        ("t", b"k", [b"f:x"], put("t", b"k", b"f:x"), True),
        ("t", b"k", [b"f:new"], put("t", b"k", b"f:new"), True),
        ("t", b"absent", [b"f:x"], put("t", b"absent", b"f:x"), True),
        ("t", b"k", [b"f:x"], put("t", b"k", b"g:x"), False),
        ("t", b"k", None, put("t", b"k", b"g:x"), True),
        ("t", b"k", None, put("t", b"k", b"f:new"), False),
        ("t", b"k", [b"f"], put("t", b"k", b"f:x"), True),
        ("t", b"k", [b"f"], put("t", b"k", b"g:x"), False),
        ("t", b"absent", None, claim("t", b"absent"), True),
        ("t", b"absent", None, claim("t", b"absent", [b"f"]), True),
        ("t", b"k", [b"f:x"], claim("t", b"k", [b"f:x"]), True),
        ("t", b"k", [b"f:x"], claim("t", b"k", [b"f:y"]), False),
    ],
)
def test_of_two_that_overlap_a_claim_meets_a_write_and_a_claim(
    both: Database,
    ask: Callable[..., Act],
    table: str,
    key: bytes,
    columns: list[bytes] | None,
    other: Act,
    meets: bool,
) -> None:
    assert meet(both, ask(table, key, columns), other) is meets
    with both.begin() as tx:
        tx.table(table).delete(key, [b"f:new"])
    assert meet(both, other, ask(table, key, columns)) is meets


def test_while_the_level_changes_a_claim_names_the_ids_of_both() -> None:
    changing = TableInfo("t", (b"f",), ConflictLevel.ROW, next_level=ConflictLevel.CELL)
    outbox = new_outbox()
    outbox.claim(changing, b"k", [Column(b"f", b"x"), None])
    assert set(outbox.commit_request().cell_ids) == {row_id(b"t", b"k"), cell_id(b"t", b"k", b"f", b"x")}


def test_a_claim_writes_nothing_and_gets_a_commit_timestamp(both: Database) -> None:
    with both.begin() as tx:
        tx.claim("t", [b"k", b"absent"])
        assert tx.table("t").rows([b"k", b"absent"], for_update=True)[b"absent"] is None
    assert tx.commit_ts is not None
    assert both.drain(10)
    commits = both._core.deployment.commit_table  # the TSO deletes it later
    until(lambda: commits.lookup([tx.start_ts]) == [0], "its entry has nothing to explain")
    with both.begin() as tx:
        assert [key for key, _ in tx.table("t").scan()] == [b"k"]


def test_a_claim_meets_a_claim_of_its_whole_table(both: Database) -> None:
    """As of a Spark job too large for ids: what it claims it may have overwritten."""
    tx = both.begin()
    tx.claim("t", [b"k"])
    both._core.deployment.tso.fence(table_id(b"t"))
    with pytest.raises(ConflictError, match="fenced"):
        tx.commit()


def test_a_conflict_names_what_was_claimed(both: Database) -> None:
    tx = both.begin()
    tx.claim("byrow", [b"k"])
    put("byrow", b"k", b"f:x")(winner := both.begin())
    winner.commit()
    with pytest.raises(ConflictError, match=r"a row that .*it claimed byrow \(b'k'\)") as caught:
        tx.commit()
    assert caught.value.values["claimed"] == {"byrow": (b"k",)}


def test_many_claims_beside_many_writes_are_all_checked(memory_db: Database) -> None:
    keys = [b"%06d" % number for number in range(2_010)]
    one, two, three = (memory_db.begin() for _ in range(3))
    one.claim("t", keys, [b"f:x"])
    for key in keys:
        one.table("t").put(key, {b"g:x": b"1"})
    one.commit()
    two.table("t").put(keys[-1], {b"f:x": b"1"})
    three.table("t").put(keys[0], {b"g:x": b"1"})
    for loser in (two, three):
        with pytest.raises(ConflictError):
            loser.commit()


def test_who_may_not_write_may_not_claim(both: Database) -> None:
    tx = both.begin()
    tx.mark_rollback_only()
    assert tx.table("t").get(b"k")
    for refused in (get("t", b"k"), claim("t", b"k"), lambda tx: tx.table("t").put_if_absent(b"k", {b"f:x": b"1"})):
        with pytest.raises(TransactionEnded):
            refused(tx)
    tx.rollback()


def test_a_run_that_only_claims_counts_once(both: Database) -> None:
    assert both.run_once("claims", lambda tx: tx.claim("t", [b"k"])) is None
    assert isinstance(both.run_once("claims", lambda tx: tx.claim("t", [b"k"])), pyomid.AlreadyDone)


def test_put_if_absent_looks_at_the_columns_that_it_puts(both: Database) -> None:
    with both.begin() as tx:
        table = tx.table("t")
        assert not table.put_if_absent(b"k", {b"f:x": b"2", b"f:new": b"2"})
        assert table.put_if_absent(b"k", {b"f:new": b"2"})
        assert not table.put_if_absent(b"k", {b"f:new": b"3"}), "own writes count"
        table.delete(b"k", [b"f:x"])
        assert table.put_if_absent(b"k", {b"f:x": b"4"})
    with both.begin() as tx:
        assert tx.table("t").get(b"k", [b"f"]) == {b"f:x": b"4", b"f:new": b"2"}
    absent: Act = lambda tx: tx.table("t").put_if_absent(b"once", {b"f:x": b"1"})  # noqa: E731
    assert meet(both, absent, absent)


def test_a_put_writes_only_over_what_it_expects(both: Database) -> None:
    with both.begin() as tx:
        table = tx.table("t")
        table.put(b"k", {b"f:x": b"2"}, expect={b"f:x": b"1", b"f:y": None})
        with pytest.raises(ExpectationFailed, match="is b'2', but the put expects that it is b'1'") as caught:
            table.put(b"k", {b"f:x": b"3"}, expect={b"f:x": b"1"})
        assert caught.value.values == {
            "table": "t", "row": b"k", "column": b"f:x", "expected": b"1", "found": b"2",
        }  # fmt: skip
        with pytest.raises(ExpectationFailed, match="does not exist"):
            table.put(b"k", {b"f:x": b"3"}, expect={b"f:y": b"1"})
    with both.begin() as tx:
        assert tx.table("t").get(b"k", [b"f"]) == {b"f:x": b"2"}


def test_what_a_put_expects_holds_at_its_commit(both: Database) -> None:
    expecting = put("t", b"k", b"f:x", expect={b"f:absent": None, b"g:x": b"1"})
    assert meet(both, put("t", b"k", b"f:absent"), expecting)
    assert meet(both, put("t", b"k", b"g:x"), put("t", b"k", b"f:x", expect={b"g:x": b"1"}))


def test_a_counter_loses_no_step(both: Database) -> None:
    with both.begin() as tx:
        table = tx.table("t")
        assert [table.increment(b"n", b"f:n"), table.increment(b"n", b"f:n", 5), table.increment(b"n", b"f:n", -7)] == [
            1, 6, -1,
        ]  # fmt: skip
        assert table.get(b"n") == {b"f:n": b"\xff" * 8}
    count: Act = lambda tx: tx.table("t").increment(b"n", b"f:n")  # noqa: E731
    assert meet(both, count, count)
    with both.begin() as tx:
        assert tx.table("t").increment(b"n", b"f:n", 0) == 0


def test_what_is_no_counter_is_refused(both: Database) -> None:
    with both.begin() as tx:
        table = tx.table("t")
        with pytest.raises(Misuse, match="holds 1 bytes"):
            table.increment(b"k", b"f:x")
        with pytest.raises(MisuseType):
            table.increment(b"n", b"f:n", 1.5)  # type: ignore[arg-type]
        assert table.increment(b"n", b"f:n", 2**63 - 1)
        with pytest.raises(Misuse, match="exceeds the 8 bytes"):
            table.increment(b"n", b"f:n")
        for expect in ({}, b"x", {b"f:x": b""}, {b"f": b"1"}):
            with pytest.raises(Misuse):
                table.put(b"k", {b"f:x": b"1"}, expect=expect)  # type: ignore[arg-type]
        with pytest.raises(MisuseType):
            tx.claim("t", b"k")  # type: ignore[arg-type]
        tx.rollback()


@pytest.mark.parametrize("table", ["t", "byrow"])
def test_conflict_free_writes_meet_nobody_and_the_greater_version_stays(both: Database, url: str, table: str) -> None:
    """In a folder the version is the commit's timestamp, elsewhere the start."""
    older, younger = both.begin(), both.begin()
    for tx, value in ((older, b"older"), (younger, b"younger")):
        tx.table(table).put(b"k", {b"f:x": value}, conflict=False)
    younger.commit()
    older.commit()
    with both.begin() as tx:
        stays = b"older" if url.startswith("omid:///") else b"younger"
        assert tx.table(table).get(b"k", [b"f:x"]) == {b"f:x": stays}
    free = put(table, b"k", b"f:x", conflict=False)
    assert not meet(both, free, put(table, b"k", b"f:x"))
    assert not meet(both, free, claim(table, b"k"))


def test_a_cell_written_both_ways_is_checked(both: Database) -> None:
    def twice(first: bool, flush: bool) -> Act:
        def act(tx: Transaction) -> None:
            tx.table("t").put(b"k", {b"f:x": b"1"}, conflict=first)
            if flush:
                tx.flush()
            tx.table("t").put(b"k", {b"f:x": b"2"}, conflict=not first)
            tx.table("t").put(b"k", {b"g:x": b"2"}, conflict=False)

        return act

    for first in (False, True):
        for flush in (False, True):
            assert meet(both, put("t", b"k", b"f:x"), twice(first, flush))
            assert not meet(both, put("t", b"k", b"g:x"), twice(first, flush))
