"""A transaction leaves no reference cycles: a program that turns the garbage collector off does not grow, and an
abandoned transaction frees what it holds at once."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

import pytest

import pyomid
import pyomid.aio
from pyomid.database.async_database import AsyncDatabase
from pyomid.database.async_transaction import AsyncTransaction
from pyomid.database.database import Database
from pyomid.errors import ConflictError, ExpectationFailed, Misuse

TRANSACTIONS = 10
ATTEMPTS = 5
"""Background threads may leave some garbage of their own meanwhile."""


@dataclass
class Order:
    id: int
    customer: str
    total: int = field(init=False, default=0)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """What stands before is left out of the next collection: it took seconds amid all other tests' objects."""
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


def garbage_of(run: Callable[[], object]) -> int:
    """Return how many objects in cycles some runs leave, at the least."""
    counts = []
    for _ in range(3):
        run()  # fills caches
    for _ in range(ATTEMPTS):
        with uncollected():
            for _ in range(TRANSACTIONS):
                run()
            counts.append(gc.collect())
        if not counts[-1]:
            break
    return min(counts)


def puts_and_reads(db: Database) -> None:
    with db.begin() as tx:
        table = tx.table("t")
        table.put(b"k", {b"f:a": b"1"})
        table.get(b"k")
        table.rows([b"k", b"l"])
        table.delete(b"l")


def reads_only(db: Database) -> None:
    with db.snapshot() as tx:
        tx.table("t").get(b"k", [b"f:a"])


def scans(db: Database) -> None:
    with db.begin() as tx:
        table = tx.table("t")
        list(table.scan())
        list(table.scan(reverse=True))
        for _ in table.scan(limit=5):
            table.put(b"other", {b"f:a": b"1"})
            break
        table.page(limit=1)


def arrow(db: Database) -> None:
    with db.begin() as tx:
        found = tx.table("orders").to_arrow().read_all()
        tx.table("orders").write_arrow(found)


def typed(db: Database) -> None:
    with db.begin() as tx:
        orders = tx.table("orders", codec=Order)
        orders.put(Order(1, "a"))
        orders.get(1, for_update=True)
        list(orders.scan())
        list(orders.lookup("by_customer", "a"))
        orders.increment(1, "total")
        tx.table("orders", codec="json").get(1)


def savepoints(db: Database) -> None:
    with db.begin() as tx:
        table = tx.table("t")
        table.put(b"k", {b"f:a": b"1"})
        with contextlib.suppress(ZeroDivisionError), tx.savepoint():
            table.put(b"k", {b"f:a": b"2"})
            raise ZeroDivisionError
        saved = tx.savepoint()
        tx.flush()
        table.put(b"k", {b"f:a": b"3"})
        saved.rollback()


def rolls_back(db: Database) -> None:
    with contextlib.suppress(ZeroDivisionError), db.begin() as tx:
        tx.table("t").put(b"k", {b"f:a": b"1"})
        raise ZeroDivisionError


def conflicts(db: Database) -> None:
    with contextlib.suppress(ConflictError), db.begin() as tx:
        tx.table("t").put(b"k", {b"f:a": b"1"})
        with db.begin() as other:
            other.table("t").put(b"k", {b"f:a": b"2"})


def bad_input(db: Database) -> None:
    with db.begin() as tx:
        table = tx.table("t")
        with contextlib.suppress(Misuse):
            table.put(b"k", {b"unknown:a": b"1"})
        with contextlib.suppress(Misuse):
            tx.table("nowhere")
        with contextlib.suppress(ExpectationFailed):
            table.put(b"k", {b"f:a": b"1"}, expect={b"f:a": b"never"})


def leases(db: Database) -> None:
    with db.begin(lease=True) as tx:
        tx.table("t").put(b"k", {b"f:a": b"1"})


def abandons(db: Database) -> None:
    tx = db.begin()
    tx.table("t").put(b"k", {b"f:a": b"1"})
    for _ in tx.table("t").scan():
        break


def functions(db: Database) -> None:
    db.run(lambda tx: tx.table("t").put(b"k", {b"f:a": b"1"}))


def feeds(db: Database) -> None:
    old = db.bookmark(keep_seconds=60)
    with db.begin() as tx:
        tx.table("t").put(b"k", {b"f:a": b"1"})
    list(db.changes("t", old, db.bookmark()))
    db.release_bookmark(old)


RUNS = [puts_and_reads, reads_only, scans, arrow, typed, savepoints, rolls_back, conflicts, bad_input]
RUNS += [leases, abandons, functions, feeds]


@pytest.fixture
def full_db(db: Database) -> Database:
    db.create_table("orders", ["f"])
    db.set_schema("orders", Order, row_key="id")
    db.create_index("orders", "by_customer", ["customer"])
    with db.begin() as tx:
        for number in range(10):
            tx.table("t").put(b"%d" % number, {b"f:a": b"1"})
            tx.table("orders", codec=Order).put(Order(number, "a"))
    return db


@pytest.mark.parametrize("run", RUNS, ids=lambda each: each.__name__)
def test_a_transaction_leaves_no_cycles(full_db: Database, run: Callable[[Database], object]) -> None:
    assert garbage_of(lambda: run(full_db)) == 0


async def awaits(db: AsyncDatabase) -> None:
    async with db.begin() as tx:
        table = await tx.table("t")
        await table.put(b"k", {b"f:a": b"1"})
        await table.get(b"k")
        await table.rows([b"k", b"l"])
        async for _ in table.scan():
            pass
        with tx.savepoint():
            await table.delete(b"l")
    async with db.snapshot() as tx:
        await (await tx.table("t")).get(b"k", [b"f:a"])


async def awaits_typed(db: AsyncDatabase) -> None:
    async with db.begin() as tx:
        orders = await tx.table("orders", codec=Order)
        await orders.put(Order(1, "a"))
        await orders.get(1, for_update=True)
        async for _ in orders.lookup("by_customer", "a"):
            pass


async def awaits_rollbacks(db: AsyncDatabase) -> None:
    with contextlib.suppress(ZeroDivisionError):
        async with db.begin() as tx:
            await (await tx.table("t")).put(b"k", {b"f:a": b"1"})
            raise ZeroDivisionError
    with contextlib.suppress(ConflictError):
        async with db.begin() as tx:
            await (await tx.table("t")).put(b"k", {b"f:a": b"1"})
            async with db.begin() as other:
                await (await other.table("t")).put(b"k", {b"f:a": b"2"})


async def awaits_functions(db: AsyncDatabase) -> None:
    async def put(tx: AsyncTransaction) -> None:
        await (await tx.table("t")).put(b"k", {b"f:a": b"1"})

    await db.run(put)


@pytest.mark.parametrize(
    "run", [awaits, awaits_typed, awaits_rollbacks, awaits_functions], ids=lambda each: each.__name__
)
def test_a_transaction_of_asyncio_leaves_no_cycles(
    full_db: Database, url: str, run: Callable[[AsyncDatabase], Awaitable[None]]
) -> None:
    async def main() -> int:
        counts = []
        async with await pyomid.aio.connect(url) as db:
            for _ in range(3):
                await run(db)
            for _ in range(ATTEMPTS):
                with uncollected():
                    for _ in range(TRANSACTIONS):
                        await run(db)
                    counts.append(gc.collect())
                if not counts[-1]:
                    break
        return min(counts)

    assert asyncio.run(main()) == 0
