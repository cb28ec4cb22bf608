"""Programs as users write them, checked by `mypy --strict` with the rest (`make check`).

Each `type: ignore` is a fault that a type checker finds: mypy complains of one that ignores nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import pyomid
import pyomid.aio
import pyomid.spark
from pyomid import AlreadyDone, ConflictLevel, Page, Table, Transaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass
class Account:
    id: int


class Named(TypedDict):
    id: int


def blocking(url: str) -> bytes:
    with pyomid.connect(url, create=False) as db:
        db.create_table("accounts", families=["f"], conflict_level=ConflictLevel.ROW)

        @db.transactional
        def withdraw(tx: Transaction, name: bytes, amount: int) -> int:
            accounts: Table = tx.table("accounts")
            accounts.put(name, {b"f:seen": b"yes"}, expect={b"f:seen": None}, conflict=False)
            return accounts.increment(name, b"f:balance", -amount)

        left: int = withdraw(b"alice", 3)
        withdraw(b"alice", "three")  # type: ignore[call-overload]
        once: int | AlreadyDone = db.run_once("payment-1", withdraw, b"alice", 3)
        with db.snapshot() as tx:
            page: Page = tx.table("accounts").page(limit=10, reverse=True)
            tx.table("accounts").get("alice")  # type: ignore[arg-type]
            tx.table(b"accounts")  # type: ignore[call-overload]
            tx.comit()  # type: ignore[attr-defined]
            account: Account | None = tx.table("accounts", codec=Account).get(17)
            tx.table("accounts", codec=Account).put({"id": 17})  # type: ignore[arg-type]
            named: list[Named] = list(tx.table("accounts", codec=Named).scan())
        assert left or once or account or named
        return page.rows[0][1][b"f:balance"]


async def asynchronous(url: str) -> bytes:
    async with await pyomid.aio.connect(url) as db:

        @db.transactional
        async def withdraw(tx: pyomid.aio.AsyncTransaction, name: bytes) -> int:
            accounts = await tx.table("accounts")
            accounts.put(name, {b"f:x": b"1"})  # type: ignore[unused-coroutine]
            tx.claim("accounts", [name])  # type: ignore[unused-coroutine]
            accounts.get(name)[b"f:x"]  # type: ignore[index]
            return await accounts.increment(name, b"f:balance")

        withdraw(b"alice")  # type: ignore[unused-coroutine]
        left: int = await withdraw(b"alice")
        tx = db.begin()
        tx.table("accounts")  # type: ignore[attr-defined]
        async with db.begin() as begun:
            begun.table("accounts").get(b"alice")  # type: ignore[attr-defined]
            table: pyomid.aio.AsyncTable = await begun.table("accounts")
            async with begun.savepoint() as saved:
                saved.rollback()
            assert [key async for key, _ in table.scan()]
            begun.commit()  # type: ignore[unused-coroutine]
        assert left
        return (await table.get(b"alice"))[b"f:x"]


def distributed(spark: SparkSession, url: str) -> DataFrame:
    db = pyomid.spark.connect(spark, url)

    def load(tx: pyomid.spark.SparkTransaction) -> int:
        return tx.write(tx.read("arrivals"), "flights").rows

    rows: int | AlreadyDone = db.run(load, transaction_id="load-1")
    restored: pyomid.spark.RestoreResult = db.restore("flights", 100)
    assert rows or restored
    db.read(17)  # type: ignore[arg-type]
    db.sanitize("flights")  # type: ignore[call-arg]
    db.verfy()  # type: ignore[attr-defined]
    return db.read("flights", at=100)
