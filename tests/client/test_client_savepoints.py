"""Savepoints: going back leaves what the transaction saw of itself at the savepoint, wherever its writes are then."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow
import pytest

from counted_steps import steps_of
from portions import first
from pyomid.database.database import Database
from pyomid.database.tables.table import Table
from pyomid.database.transaction import Savepoint, State, Transaction
from pyomid.database.writes.own_cells import keys_in_order
from pyomid.database.writes.savepoints import Replaced
from pyomid.errors import ConflictError, Misuse, TransactionEnded, Unavailable

pytestmark = pytest.mark.fast

KEYS = [b"a", b"b", b"c"]
COLUMNS = [b"f:x", b"f:y"]


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


def raiser(error: Exception) -> Callable[..., None]:
    def raises(*_: object) -> None:
        raise error

    return raises


CELL = {b"f:x": b"taken back"}


def flush(table: Table) -> None:
    table._run(table._table.transaction.flush())


TAKEN_BACK: dict[str, Callable[[Table], object]] = {
    "put": lambda table: table.put(b"k", CELL),
    "conflict-free put": lambda table: table.put(b"k", CELL, conflict=False),
    "put_if_absent": lambda table: table.put_if_absent(b"k", CELL),
    "increment": lambda table: table.increment(b"k", b"f:x"),
    "delete": lambda table: table.delete(b"k", [b"f:x"]),
    "delete of the row": lambda table: table.delete(b"k"),
    "Arrow": lambda table: table.write_arrow(pyarrow.table({"key": [b"k"], "f:x": [b"taken back"]})),
}
HELD: dict[str, Callable[[Table], object]] = {
    "nothing": lambda table: None,
    "a write in the store": lambda table: (
        table.put(b"k", {b"f:x": b"12345678"}),
        flush(table),
    ),
    "a buffered write": lambda table: table.put(b"k", {b"f:x": b"12345678"}),
    "a buffered conflict-free write": lambda table: table.put(b"k", {b"f:x": b"12345678"}, conflict=False),
    "a delete in the store": lambda table: (
        table.delete(b"k", [b"f:x"]),
        flush(table),
    ),
}


@pytest.mark.parametrize("level", first(1, ["cell", "row"]))
@pytest.mark.parametrize("old", [None, b"87654321"], ids=["absent", "there"])
@pytest.mark.parametrize("url", ["memory", pytest.param("embedded", marks=pytest.mark.long)], indirect=True)
def test_a_transaction_writes_what_it_holds_when_it_commits_and_nothing_else(
    db: Database, url: str, level: str, old: bytes | None
) -> None:
    """C14. Whatever it wrote, sent, read and took back before; of another transaction's write both models know which
    one stays: that of the greater start, of those that were not taken back."""
    db.create_table("u", families=["f"], conflict_level=level)
    acts = (HELD.items(), TAKEN_BACK.items(), ("", "flush", "read", "write", "two deep"), (False, True))
    for (held, hold), (taken, write), then, is_free in itertools.product(*acts):
        note = f"{held}, {taken}, then {then}, {is_free=}"
        with db.begin() as tx:
            tx.table("u").delete(b"k", [b"f:x"])
            if old is not None:
                tx.table("u").put(b"k", {b"f:x": old})
        other, mine = db.begin(), db.begin()
        table = mine.table("u")
        hold(table)
        before = table.get(b"k")
        saved = [mine.savepoint()]
        for _ in range(2 if then == "two deep" else 1):
            write(table)
            mine.flush()
            saved.append(mine.savepoint())
        saved[0].rollback()
        assert table.get(b"k") == before == dict(table.scan()).get(b"k"), note
        if then == "flush":
            mine.flush()
        elif then == "read":
            assert table.to_arrow(prefix=b"k").read_all().num_rows == len(before or {}), note
        elif then == "write":
            with mine.savepoint() as again:
                write(table)
                mine.flush()
                again.rollback()
        mine.table("u").put(b"other row", {b"f:x": b"1"})
        other.table("u").put(b"k", {b"f:x": b"other's"}, conflict=not is_free)
        other.commit()
        is_written, is_named = held != "nothing", "conflict-free" not in held
        try:
            mine.commit()
            assert is_free or not (is_written and is_named), note
        except ConflictError:
            assert is_written, note
            assert not is_free, note
            is_written = False
        with db.snapshot() as after:
            stays = [before if is_written else {b"f:x": b"other's"}]
            if (is_free or not is_named) and url.startswith(
                "omid:///"
            ):  # the greater version: what was flushed has one below the other's
                stays.append({b"f:x": b"other's"})
            assert after.table("u").get(b"k") in stays, note


@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("is_free_first", [False, True])
def test_beside_a_conflict_free_write_what_was_taken_back_meets_no_other(
    db: Database, is_free_first: bool, is_sent: bool
) -> None:
    """C14. What was written before the savepoint is named or not, as it was."""
    for met in (b"k", b"before", b"free"):
        tx = db.begin()
        table = tx.table("t")
        table.put(b"before", {b"f:x": b"1"})
        if is_free_first:
            table.put(b"free", {b"f:x": b"1"}, conflict=False)
        saved = tx.savepoint()
        table.put(b"free", {b"f:x": b"2"}, conflict=not is_free_first)
        table.put(b"k", {b"f:x": b"2"})
        if is_sent:
            tx.flush()
        saved.rollback()
        with db.begin() as other:
            other.table("t").put(met, {b"f:x": b"3"})
        if met == b"before":
            with pytest.raises(ConflictError):
                tx.commit()
        else:
            tx.commit()


def test_a_cell_that_was_taken_back_and_written_again_is_a_write(db: Database) -> None:
    for conflict in (True, False):
        tx = db.begin()
        table, saved = tx.table("t"), tx.savepoint()
        table.put(b"k", {b"f:x": b"1", b"f:y": b"1"})
        tx.flush()
        saved.rollback()
        tx.flush()
        saved.release()
        table.put(b"k", {b"f:x": b"2", b"f:y": b"2"}, conflict=conflict)
        with db.begin() as other:
            other.table("t").put(b"k", {b"f:x": b"3"})
        if conflict:
            with pytest.raises(ConflictError):
                tx.commit()
        else:
            tx.commit()
            with db.snapshot() as after:
                assert after.table("t").get(b"k") == {b"f:x": b"3", b"f:y": b"2"}


def test_what_was_taken_back_is_gone_from_the_store_before_the_commit_request(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C14, law 11: and where that fails nothing is committed."""
    tx = db.begin()
    with tx.savepoint() as saved:
        tx.table("t").put(b"k", {b"f:x": b"1"})
        tx.flush()
        saved.rollback()
    tx.table("t").put(b"l", {b"f:x": b"1"})
    with monkeypatch.context() as patched:
        patched.setattr(type(db._core.deployment.store), "delete_versions", raiser(Unavailable("the store is away")))
        with pytest.raises(Unavailable, match="is away"):
            tx.commit()
    assert tx.state is State.ROLLBACK_ONLY
    tx.rollback()
    with db.snapshot() as after:
        assert not list(after.table("t").scan())


@pytest.mark.parametrize("is_flushed", [False, True])
def test_who_took_all_back_asks_for_no_commit(db: Database, is_flushed: bool) -> None:
    with db.begin() as tx:
        saved = tx.savepoint()
        tx.table("t").put(b"k", {b"f:x": b"1"})
        if is_flushed:
            tx.flush()
        saved.rollback()
    assert tx.commit_ts is None
    assert db._core.deployment.store.read_rows("t", [b"k"]) == [[]]


@pytest.mark.parametrize("url", ["embedded"], indirect=True)
@pytest.mark.parametrize("is_flushed", [False, True], ids=["", "flushed"])
@pytest.mark.parametrize("level", ["cell", "row"])
def test_what_was_taken_back_conflicts_with_no_other_writer(db: Database, level: str, is_flushed: bool) -> None:
    """L9. Two branches wrote a cell, and one of them took it back: neither is refused. If that one took back another
    cell, the later commit is refused."""
    db.create_table("u", families=["f"], conflict_level=level)
    for kept in (b"own", b"k"):
        for first_commits in (True, False):
            mine, other = db.begin(), db.begin()
            mine.table("u").put(kept, {b"f:x": b"kept"})
            mine.flush()
            with mine.savepoint() as saved:
                mine.table("u").put(b"k" if kept == b"own" else b"own", {b"f:x": b"taken back"})
                mine.flush()
                saved.rollback()
            other.table("u").put(b"k", {b"f:x": b"other's"})
            if is_flushed:
                other.flush()
            one, two = (mine, other) if first_commits else (other, mine)
            one.commit()
            if kept == b"own":
                two.commit()
            else:
                with pytest.raises(ConflictError):
                    two.commit()


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
    with pytest.raises(Misuse, match="released, or the transaction has rolled back to an earlier"):
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
    saved = tx.savepoint()
    for key in KEYS:
        tx.table("t").put(key, {b"f:x": b"1"})
    rows = iter(KEYS)
    take_back = Replaced.take_back

    def interrupted(replaced: Replaced) -> None:
        if next(rows) == KEYS[1]:
            raise MemoryError
        take_back(replaced)

    with monkeypatch.context() as patched:
        patched.setattr(Replaced, "take_back", interrupted)
        with pytest.raises(MemoryError):
            saved.rollback()
    with pytest.raises(TransactionEnded, match="savepoint"):
        tx.commit()
    tx.rollback()


class ShortOfMemoryOnce(list[Replaced]):
    failed = False

    def append(self, replaced: Replaced) -> None:
        if not self.failed:
            self.failed = True
            raise MemoryError
        super().append(replaced)


def test_a_write_that_is_repeated_after_a_memory_error_goes_back(db: Database) -> None:
    tx = db.begin()
    saved = tx.savepoint()
    assert tx._core.overlay.savepoints is not None
    tx._core.overlay.savepoints._replaced = ShortOfMemoryOnce()
    with pytest.raises(MemoryError):
        tx.table("t").put(b"a", {b"f:x": b"1"})
    tx.table("t").put(b"a", {b"f:x": b"1"})
    saved.rollback()
    assert tx.table("t").get(b"a") is None
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


# Many savepoints


Rows = dict[bytes, dict[bytes, bytes]]


def some_program(db: Database, rng: random.Random) -> None:
    """Write, send, save, go back and release at random, beside a model that copies all rows at each savepoint."""
    tx = db.begin()
    table = tx.table("t")
    model: Rows = {key: dict(row) for key, row in table.scan()}
    saved: list[tuple[Any, Rows]] = []
    for _ in range(rng.randrange(1, 40)):
        key, column = rng.choice(KEYS), rng.choice(COLUMNS)
        match rng.choice(["put", "put", "put", "free", "delete", "flush", "save", "save", "back", "release", "scan"]):
            case "put" | "free" as kind:
                value = b"%d" % rng.randrange(1000)
                table.put(key, {column: value}, conflict=kind == "put")
                model.setdefault(key, {})[column] = value
            case "delete":
                table.delete(key, [column])
                model.get(key, {}).pop(column, None)
            case "flush":
                tx.flush()
            case "save":
                saved.append((tx.savepoint(), {each: dict(row) for each, row in model.items()}))
            case "back" if saved:
                del saved[rng.randrange(len(saved)) + 1 :]
                saved[-1][0].rollback()
                model = {each: dict(row) for each, row in saved[-1][1].items()}
            case "release" if saved:
                at = rng.randrange(len(saved))
                saved[at][0].release()
                del saved[at:]
            case "scan":
                assert dict(table.scan()) == {each: row for each, row in sorted(model.items()) if row}
        assert table.get(key) == (model.get(key) or None)
        buffer = tx._core.overlay.buffers.get("t")
        assert buffer is None or bool(buffer.rows) == bool(buffer.buffered_bytes)
    tx.commit()
    with db.snapshot() as after:
        assert dict(after.table("t").scan()) == {each: row for each, row in model.items() if row}


@pytest.mark.parametrize("url", ["memory"], indirect=True)
@pytest.mark.parametrize("seed", range(40))
def test_any_way_back_restores_what_a_copy_would_have_held(db: Database, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        some_program(db, rng)


def save_each(table: Table, rows: int) -> None:
    for number in range(rows):
        with savepoint(table):
            table.put(b"%04d" % number, CELL)


def go_back_each(table: Table, rows: int) -> None:
    for number in range(rows):
        with suppress(KeyError), savepoint(table):
            table.put(b"%04d" % number, CELL, conflict=bool(number % 2))
            raise KeyError
        table.put(b"%04d" % number, CELL)


def keep_each(table: Table, rows: int) -> None:
    saved = []
    for number in range(rows):
        saved.append(savepoint(table))
        table.put(b"%04d" % number, CELL)
    for each in reversed(saved):
        each.rollback()
        each.release()


def save_each_in_another(table: Table, rows: int) -> None:
    with savepoint(table) as outer:
        save_each(table, rows)
        flush(table)
        save_each(table, rows)
        outer.rollback()


def scan_each(table: Table, rows: int) -> None:
    for number in range(rows):
        key = b"%04d" % (number * 7919 % rows)
        table.put(key, CELL)
        assert len(list(table.scan(prefix=key))) == 1
        assert len(table.page(prefix=key, limit=1, reverse=True).rows) == 1


def savepoint(table: Table) -> Savepoint:
    return Transaction(table._table.transaction).savepoint()


@pytest.mark.parametrize("url", ["memory"], indirect=True)
@pytest.mark.parametrize(
    "work", [save_each, go_back_each, keep_each, save_each_in_another, scan_each], ids=lambda each: each.__name__
)
def test_savepoints_and_scans_cost_what_was_written_since(db: Database, work: Callable[[Table, int], None]) -> None:
    """Four times the rows cost four times the steps, not sixteen times."""
    counts = []
    for rows in (100, 400):
        with suppress(KeyError), db.begin() as tx:
            counts.append(steps_of(partial(work, tx.table("t"), rows)))
            raise KeyError
    assert counts[1] < 5 * counts[0]


def test_the_order_of_the_buffered_rows_costs_what_was_written_since() -> None:
    compared = 0

    class Key(bytes):
        def __lt__(self, other: bytes) -> bool:
            nonlocal compared
            compared += 1
            return bytes(self) < other

    rng, rows, keys = random.Random(1), dict[bytes, int](), list[bytes]()
    for number in rng.sample(range(100_000), 2_000):
        rows[Key(b"%05d" % number)] = number
        keys = keys_in_order(keys, rows)
        if len(rows) % 500 == 0:
            assert keys == sorted(map(bytes, rows))
    assert compared < 2_000 * 40
