"""Claims and errors of a typed table speak in its key values and column names."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

import pyomid.aio
from pyomid.database.database import Database
from pyomid.database.transaction import Transaction
from pyomid.errors import ConflictError, ExpectationFailed, Misuse, MisuseType

pytestmark = pytest.mark.fast


@dataclass
class Order:
    customer: str
    id: int
    total: int | None = None
    note: str | None = None


@pytest.fixture(params=["cell", "row"])
def orders(request: pytest.FixtureRequest, db: Database) -> Database:
    db.create_table("orders", families=["f"], conflict_level=request.param)
    db.set_schema("orders", Order, row_key=["customer", "id"])
    return db


def by_table(tx: Transaction) -> None:
    tx.table("orders", codec=Order).claim([("ann", 1), ("bob\0", 2)])


def by_transaction(tx: Transaction) -> None:
    tx.claim("orders", [("ann", 1), ("bob\0", 2)], [b"f:total", b"f:note"])


def by_column(tx: Transaction) -> None:
    tx.table("orders", codec=Order).claim([("ann", 1), ("bob\0", 2)], ["total"])


@pytest.mark.parametrize("claim", [by_table, by_transaction, by_column])
@pytest.mark.parametrize("exists", [True, False])
def test_of_a_claim_and_a_write_of_one_row_one_commits(orders: Database, claim: Any, *, exists: bool) -> None:
    if exists:
        with orders.begin() as tx:
            tx.table("orders", codec=Order).put(Order("bob\0", 2, 5))
    loser = orders.begin()
    claim(loser)
    with orders.begin() as tx:
        tx.table("orders", codec=Order).put(Order("bob\0", 2, 6))
    shown = r"it claimed orders \(customer='ann', id=1; customer='bob\\x00', id=2\)"
    with pytest.raises(ConflictError, match=shown) as caught:
        loser.commit()
    assert caught.value.values["claimed"] == {"orders": (("ann", 1), ("bob\0", 2))}


def test_a_claim_of_a_column_covers_no_other_at_level_cell(db: Database) -> None:
    db.create_table("orders", families=["f"], conflict_level="cell")
    db.set_schema("orders", Order, row_key=["customer", "id"])
    tx = db.begin()
    tx.table("orders", codec=Order).claim([("ann", 1)], ["note"])
    with db.begin() as other:
        other.table("orders", codec=dict).put({"customer": "ann", "id": 1, "total": 3})
    tx.commit()


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        (("ann",), MisuseType, "keys 'ann' is not a list of keys"),
        ((["ann"],), Misuse, r"row key \(customer, id\) needs 2 values, but .* has 1"),
        (([("ann", 1)], ["f:total"]), Misuse, "table 'orders': 'f:total' is not a value column"),
        (([("ann", 1)], ["id"]), Misuse, "table 'orders': 'id' is not a value column"),
        (([("ann", 1)], "total"), MisuseType, "columns 'total' is not a list of column names"),
    ],
)
def test_bad_claims_are_refused(
    orders: Database, arguments: tuple[Any, ...], kind: type[Exception], words: str
) -> None:
    with orders.begin() as tx:
        with pytest.raises(kind, match=words):
            tx.table("orders", codec=Order).claim(*arguments)
        with pytest.raises(MisuseType, match="row key 'ann' is str, not bytes, encode it"):
            tx.claim("t", ["ann"])
        with pytest.raises(
            MisuseType, match=r"'total' is str, not bytes; its stored name is b'.:total', and only a table"
        ):
            tx.claim("orders", [("ann", 1)], ["total"])  # type: ignore[list-item]
    with (
        orders.snapshot() as past,
        pytest.raises(Misuse, match=r"is read-only; write in a transaction that db.begin\(\)"),
    ):
        past.table("orders", codec=Order).claim([("ann", 1)])


def test_asyncio_claims_the_same(url: str, orders: Database) -> None:
    async def claim_and_lose() -> None:
        async with await pyomid.aio.connect(url) as db:
            tx = await db.begin()
            await (await tx.table("orders", codec=Order)).claim([("ann", 1)])
            async with db.begin() as other:
                await (await other.table("orders", codec=Order)).put(Order("ann", 1))
            with pytest.raises(ConflictError, match="it claimed orders"):
                await tx.commit()

    asyncio.run(claim_and_lose())


def test_a_conflict_names_the_written_rows_by_their_keys(orders: Database) -> None:
    """A key that does not decode, which only a write without a codec makes, is shown as it is stored."""
    loser = orders.begin()
    loser.table("orders", codec=Order).put(Order("ann", 1))
    loser.table("orders").put(b"broken", {b"f:note": b"x"})
    loser.table("t").put(b"k", {b"f:x": b"1"})
    with orders.begin() as tx:
        tx.table("orders", codec=Order).put(Order("ann", 1))
    shown = r"it wrote orders \(customer='ann', id=1; \(customer, id\) = 0x62726f6b656e\), t \(b'k'\)"
    with pytest.raises(ConflictError, match=shown) as caught:
        loser.commit()
    assert caught.value.values["wrote"] == {"orders": (("ann", 1), b"broken"), "t": (b"k",)}


def test_an_expectation_that_failed_is_of_names_and_values(orders: Database) -> None:
    with orders.begin() as tx:
        table = tx.table("orders", codec=Order)
        table.put(Order("ann", 1, 5))
        shown = "table 'orders', row customer='ann', id=1: 'total' is 5, but the put expects that it is 6"
        with pytest.raises(ExpectationFailed, match=shown) as caught:
            table.put(Order("ann", 1, 7), expect={"note": None, "total": 6})
        assert caught.value.values == {
            "table": "orders", "row": ("ann", 1), "column": "total", "expected": 6, "found": 5,
        }  # fmt: skip
        with pytest.raises(ExpectationFailed, match="'note' does not exist, but the put expects that it is 'x'"):
            table.put(Order("ann", 1, 7), expect={"note": "x"})
        stored = tx.table("orders")
        with pytest.raises(ExpectationFailed, match=r"row customer='ann', id=1: b'f:note' does not") as caught:
            stored.put(b"ann\0\1\x80" + bytes(6) + b"\1", {b"f:note": b"y"}, expect={b"f:note": b"x"})
        assert caught.value.values["row"] == ("ann", 1)
