"""The change feed and the watch of a typed table speak in its objects and keys, blocking and asyncio."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import pyomid
import pyomid.aio
from pyomid import TypedChange
from pyomid.database.database import Database
from pyomid.errors import Corruption, Misuse, MisuseType

pytestmark = pytest.mark.fast

SOON_S = 0.01


@dataclass
class Order:
    customer: str
    id: int
    total: int | None = None


@dataclass
class Counter:
    name: str
    count: int


@dataclass
class Wider:
    id: int
    amount: int | None


@pytest.fixture
def orders(db: Database) -> Database:
    db.create_table("orders", families=["f"])
    db.set_schema("orders", Order, row_key=["customer", "id"])
    return db


def put(db: Database, *rows: Order) -> int:
    with db.begin() as tx:
        for row in rows:
            tx.table("orders", codec=Order).put(row)
    assert tx.commit_ts is not None
    return tx.commit_ts


def test_changes_are_of_objects_and_keys(orders: Database) -> None:
    put(orders, Order("ann", 1, 5), Order("bob", 2, 6))
    since = orders.bookmark(keep_seconds=60)
    first = put(orders, Order("ann", 1, 7), Order("annie", 3))
    with orders.begin() as tx:
        tx.table("orders", codec=Order).delete(("bob", 2))
    expected = [
        TypedChange("update", ("ann", 1), first, Order("ann", 1, 5), Order("ann", 1, 7)),
        TypedChange("insert", ("annie", 3), first, None, Order("annie", 3)),
        TypedChange("delete", ("bob", 2), tx.commit_ts, Order("bob", 2, 6), None),
    ]
    changes = list(orders.changes("orders", since, codec=Order))
    assert changes == expected
    assert changes[0].commit_time is not None
    assert str(changes[1]).startswith("insert of ('annie', 3) by commit ")
    assert list(orders.changes("orders", since, codec=Order, prefix="ann")) == expected[:1], "a whole value"
    assert list(orders.changes("orders", since, codec=Order, prefix=("bob", 2))) == expected[2:]
    as_json = list(orders.changes("orders", since, codec="json"))
    assert as_json[0].after == {"customer": "ann", "id": 1, "total": 7}
    stored = list(orders.changes("orders", since))
    assert [change.kind for change in stored] == ["update", "insert", "delete"]
    assert list(orders.changes("orders", since, prefix="bob")) == stored[2:], "values of the key, without a codec"
    assert list(orders.changes("orders", since, prefix=b"bob")) == stored[2:], "bytes are stored bytes"


def test_a_key_of_one_column_is_its_value(db: Database) -> None:
    db.set_schema("t", Counter, row_key="name")
    since = db.bookmark(keep_seconds=60)
    with db.begin() as tx:
        tx.table("t", codec=Counter).put(Counter("a", 1))
    (change,) = db.changes("t", since, codec=Counter)
    assert (change.key, change.after) == ("a", Counter("a", 1))


def test_a_watch_is_of_objects_and_keys(orders: Database) -> None:
    def soon(**options: Any) -> pyomid.Watch[TypedChange[Order]]:
        return orders.watch("orders", codec=Order, max_wait_seconds=SOON_S, poll_seconds=SOON_S, **options)

    def stored(**options: Any) -> pyomid.Watch[pyomid.RowChange]:
        return orders.watch("orders", max_wait_seconds=SOON_S, poll_seconds=SOON_S, **options)

    with soon() as every, soon(prefix="ann") as some, soon(key=("bob", 2)) as one:
        with stored(key=("bob", 2)) as stored_one, stored(prefix="ann") as stored_some:
            commit_ts = put(orders, Order("ann", 1, 5), Order("annie", 3), Order("bob", 2))
            ann, annie, bob = every
            assert ann == TypedChange("insert", ("ann", 1), commit_ts, None, Order("ann", 1, 5))
            assert (annie.key, bob.key) == (("annie", 3), ("bob", 2))
            assert list(some) == [ann]
            assert list(one) == [bob]
            assert len(list(stored_one)) == len(list(stored_some)) == 1


def test_changed_columns_decode_what_was_written_before_and_after(db: Database) -> None:
    """The change comes while a feed and a watch are read: the feed's rows by the present schema."""
    db.set_schema("t", {"id": int, "amount": "integer", "gone": str}, row_key="id")
    since = db.bookmark(keep_seconds=60)

    def write(number: int, row: dict[str, Any]) -> None:
        with db.begin() as tx:
            tx.table("t", codec=dict).put({"id": number, **row})

    with db.watch("t", codec=Wider, max_wait_seconds=SOON_S, poll_seconds=SOON_S) as watch:
        write(1, {"amount": 7, "gone": "x"})
        assert [change.after for change in watch] == [Wider(1, 7)]
        db.alter_columns("t", widen={"amount": int}, drop=["gone"])
        write(2, {"amount": 1 << 40})
        assert [change.after for change in watch] == [Wider(2, 1 << 40)]
        assert [change.after for change in db.changes("t", since, codec=Wider)] == [Wider(1, 7), Wider(2, 1 << 40)]
        db.alter_columns("t", rename={"amount": "sum"})
        write(3, {"sum": 1})
        for _ in range(2):
            refused = "has no column 'amount', which class Wider declares; the table's columns are id, sum"
            with pytest.raises(Misuse, match=refused):
                next(watch)


@pytest.mark.parametrize(
    ("table", "arguments", "kind", "words"),
    [
        ("t", {"codec": Order}, Misuse, "table 't' has no schema in the catalog; add one with Database.set_schema"),
        (
            "orders",
            {"codec": Counter},
            Misuse,
            "table 'orders' has no column 'name', which class Counter declares; the table's "
            "columns are customer, id, total",
        ),
        ("orders", {"codec": int}, MisuseType, "codec <class 'int'> is not a dataclass"),
        ("orders", {"codec": Order, "prefix": 17}, MisuseType, "row key column 'customer': value 17 does not fit"),
        ("orders", {"codec": Order, "prefix": b"ann"}, MisuseType, "row key column 'customer': value b'ann'"),
        ("orders", {"prefix": ("a", 1, 2)}, Misuse, r"row key \(customer, id\) has only 2 parts, but .* has 3"),
        ("t", {"prefix": "ann"}, MisuseType, "prefix 'ann' is str, not bytes, encode it"),
    ],
)
def test_bad_calls_are_refused_at_once(
    orders: Database, table: str, arguments: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        orders.changes(table, 1, **arguments)
    with pytest.raises(kind, match=words):
        orders.watch(table, **arguments)


def test_a_watch_of_one_row_is_given_its_whole_key(orders: Database) -> None:
    with pytest.raises(Misuse, match=r"row key \(customer, id\) needs 2 values, but .* has 1"):
        orders.watch("orders", key="ann", codec=Order)
    with pytest.raises(MisuseType, match="row key 'ann' is str, not bytes"):
        orders.watch("t", key="ann")


def test_a_key_that_does_not_decode_is_named_and_ends_the_feed(orders: Database) -> None:
    since = orders.bookmark(keep_seconds=60)
    with orders.begin() as tx:
        tx.table("orders").put(b"ann", {b"f:total": b"\x80" + bytes(7)})
    feed = orders.changes("orders", since, codec=Order)
    watch = orders.watch("orders", after=since, codec=Order, max_wait_seconds=SOON_S)
    for _ in range(2):
        for each in (feed, watch):
            with pytest.raises(
                Corruption,
                match=r"table 'orders', row \(customer, id\) = 0x616e6e: .* lacks the terminator after part 'customer'",
            ):
                next(each)
    assert len(list(orders.changes("orders", since))) == 1, "without the codec the row is still readable"


def test_asyncio_has_the_same_changes(url: str, orders: Database) -> None:
    asyncio.run(_changes_in_asyncio(url))


async def _changes_in_asyncio(url: str) -> None:
    async with await pyomid.aio.connect(url) as db:
        since = await db.bookmark(keep_seconds=60)
        async with db.watch("orders", prefix="ann", codec=Order, max_wait_seconds=SOON_S) as watch:
            async with db.begin() as tx:
                await (await tx.table("orders", codec=Order)).put(Order("ann", 1, 5))
            assert tx.commit_ts is not None
            expected = [TypedChange("insert", ("ann", 1), tx.commit_ts, None, Order("ann", 1, 5))]
            assert [change async for change in db.changes("orders", since, codec=Order)] == expected
            assert [change async for change in db.changes("orders", since, codec=Order, prefix="bob")] == []
            assert [change async for change in watch] == expected
        with pytest.raises(Misuse, match="no schema"):
            async for _ in db.watch("t", codec=Order):
                pass
