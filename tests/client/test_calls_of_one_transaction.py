"""`get`, `put`, `delete` and `scan` of a database are each one transaction; `codec` converts rows without any."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import pyomid.aio
from pyomid.database.database import Database
from pyomid.errors import Corruption, Misuse, MisuseType, UnknownTable
from pyomid.observe import Kind, Observer, Operation

pytestmark = pytest.mark.fast


@dataclass
class Order:
    customer: str
    id: int
    total: int | None = None


class Ends(Observer):
    """Counts the ends of transactions."""

    def __init__(self) -> None:
        self.ended: list[Kind] = []

    def done(self, operation: Operation) -> None:
        if operation.kind in (Kind.COMMIT, Kind.ROLLBACK):
            self.ended.append(operation.kind)


@pytest.fixture
def orders(db: Database) -> Database:
    db.create_table("orders", Order, row_key=["customer", "id"])
    return db


def test_bytes_are_put_read_and_scanned_in_one_call_each(db: Database) -> None:
    assert db.get("t", b"a") is None
    for key in (b"a", b"b", b"c"):
        db.put("t", key, {b"f:x": key})
    assert db.get("t", b"b") == {b"f:x": b"b"}
    assert [key for key, _ in db.scan("t")] == [b"a", b"b", b"c"]
    assert [key for key, _ in db.scan("t", b"b")] == [b"b", b"c"]
    assert list(db.scan("t", prefix=b"c", limit=5, reverse=True)) == [(b"c", {b"f:x": b"c"})]
    db.delete("t", b"b")
    db.delete("t", b"never written")
    assert [key for key, _ in db.scan("t")] == [b"a", b"c"]


def test_rows_are_put_read_and_scanned_in_one_call_each(orders: Database) -> None:
    assert orders.get("orders", ("ann", 1), codec=Order) is None
    rows = [Order("ann", 1, 5), Order("bob", 2)]
    for row in rows:
        orders.put("orders", row, codec=Order)
    orders.put("orders", {"customer": "bob", "id": 2, "total": 7}, codec="json")
    assert orders.get("orders", ("bob", 2), Order) == Order("bob", 2, 7)
    assert orders.get("orders", ("bob", 2), "json") == {"customer": "bob", "id": 2, "total": 7}
    assert list(orders.scan("orders", codec=Order)) == [rows[0], Order("bob", 2, 7)]
    assert list(orders.scan("orders", prefix="ann", codec=Order)) == rows[:1]
    orders.delete("orders", ("ann", 1), Order)
    orders.delete("orders", ("bob", 2), codec="json")
    assert list(orders.scan("orders", codec=Order)) == []


def test_a_scan_reads_one_snapshot_until_its_end(db: Database) -> None:
    for key in (b"a", b"b"):
        db.put("t", key, {b"f:x": key})
    rows = db.scan("t")
    db.put("t", b"c", {b"f:x": b"c"})
    assert [key for key, _ in rows] == [b"a", b"b"]


def test_each_call_begins_and_ends_one_transaction(url: str, db: Database) -> None:
    ends = Ends()
    with pyomid.connect(url, observers=[ends]) as observed:
        observed.put("t", b"a", {b"f:x": b"1"})
        observed.get("t", b"a")
        list(observed.scan("t"))
        observed.delete("t", b"a")
        assert ends.ended == [Kind.COMMIT] * 4
        with pytest.raises(UnknownTable):
            observed.get("nothing", b"a")
        with pytest.raises(UnknownTable):
            observed.scan("nothing")
        assert ends.ended == [Kind.COMMIT] * 4 + [Kind.ROLLBACK] * 2, "an error leaves nothing open"


def test_a_put_that_loses_is_rerun(orders: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another client writes the row between the put's begin and its commit, once."""
    begin, lost = orders._core.begin, []

    async def begin_and_lose(*arguments: Any, **options: Any) -> Any:
        begun = await begin(*arguments, **options)
        if not lost:
            lost.append(begun)
            with orders.begin() as tx:
                tx.table("orders", codec=Order).put(Order("ann", 1, 99))
        return begun

    monkeypatch.setattr(orders._core, "begin", begin_and_lose)
    orders.put("orders", Order("ann", 1, 5), codec=Order)
    assert orders.get("orders", ("ann", 1), codec=Order) == Order("ann", 1, 5)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((b"a",), {}, "table 't': put takes either a key and its cells, or a row and its codec"),
        ((b"a", {b"f:x": b"1"}), {"codec": dict}, "table 't': put with a codec takes a row and no cells"),
        (("a", {b"f:x": b"1"}), {}, "row key 'a' is str, not bytes"),
    ],
)
def test_bad_puts_are_refused(url: str, db: Database, arguments: Any, options: Any, words: str) -> None:
    async def in_asyncio() -> None:
        async with await pyomid.aio.connect(url) as asyncio_db:
            await asyncio_db.put("t", *arguments, **options)

    with pytest.raises(MisuseType, match=words):
        db.put("t", *arguments, **options)
    with pytest.raises(MisuseType, match=words):
        asyncio.run(in_asyncio())


def test_asyncio_has_the_same_calls(url: str, orders: Database) -> None:
    async def calls() -> None:
        ends = Ends()
        async with await pyomid.aio.connect(url, observers=[ends]) as db:
            await db.put("t", b"a", {b"f:x": b"1"})
            assert await db.get("t", b"a") == {b"f:x": b"1"}
            assert [key async for key, _ in db.scan("t")] == [b"a"]
            await db.put("orders", Order("ann", 1), codec=Order)
            assert await db.get("orders", ("ann", 1), codec=Order) == Order("ann", 1)
            assert [row async for row in db.scan("orders", prefix="ann", codec=Order)] == [Order("ann", 1)]
            await db.delete("t", b"a")
            await db.delete("orders", ("ann", 1), codec=Order)
            assert await db.get("t", b"a") is await db.get("orders", ("ann", 1), codec=Order) is None
            assert ends.ended == [Kind.COMMIT] * 10
            codec = await db.codec("orders", Order)
            assert codec.key(("ann", 1)) == orders.codec("orders", Order).key(("ann", 1))

    asyncio.run(calls())


# Codecs


def test_a_codec_writes_and_reads_the_bytes_of_a_typed_table(orders: Database) -> None:
    codec = orders.codec("orders", Order)
    key, cells = codec.encode(Order("ann", 1, 5))
    assert key == codec.key(("ann", 1))
    assert key.startswith(codec.prefix("ann"))
    assert codec.key_of(key) == ("ann", 1)
    orders.put("orders", key, {name: value for name, value in cells.items() if value is not None})
    assert orders.get("orders", ("ann", 1), codec=Order) == Order("ann", 1, 5)
    assert codec.decode(key, orders.get("orders", key)) == Order("ann", 1, 5)
    assert codec.decode(key, {}) is None
    assert codec.encode(Order("ann", 1))[1][b"d:total"] is None
    assert repr(codec) == "<Codec of table 'orders' (customer, id, total)>"


def test_a_codec_refuses_what_is_not_of_its_table(orders: Database) -> None:
    codec = orders.codec("orders", Order)
    with pytest.raises(
        Corruption,
        match=r"table 'orders', row \(customer, id\) = 0x616e6e: row key b'ann' lacks the terminator after part 'cus",
    ):
        codec.key_of(b"ann")
    with pytest.raises(
        MisuseType, match=r"table 'orders': row key \('ann', 1\) is tuple, not bytes: encode it with `key`"
    ):
        codec.decode(("ann", 1), {b"d:total": b"1"})  # type: ignore[arg-type]
    with pytest.raises(MisuseType, match="is dict, not Order"):
        codec.encode({})  # type: ignore[arg-type]
    with pytest.raises(Misuse, match="table 't' has no schema"):
        orders.codec("t", Order)
    with pytest.raises(UnknownTable):
        orders.codec("order", Order)
