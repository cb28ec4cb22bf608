"""Programs as users write them, which mypy and pyright check in their strict modes (`test_typed_program`).

Each `type: ignore` is a fault that both find: they complain of one that ignores nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict

import pyomid
import pyomid.aio
import pyomid.spark
from pyomid import (
    AlreadyDone,
    Bookmark,
    ConflictLevel,
    Page,
    RowChange,
    Table,
    Transaction,
    TypedChange,
    TypedTable,
    Watch,
)

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


def with_options(url: str, folder: str, given: dict[str, Any]) -> None:
    pyomid.connect(url, lease_seconds=60, folder_access="group", retention="7d").close()
    pyomid.connect(url, **given)
    pyomid.restore(folder, url, tables=["accounts"], tls_ca="ca.pem")
    pyomid.connect(url, lease_second=60)  # type: ignore[call-arg]
    pyomid.connect(url, folder_access="grup")  # type: ignore[arg-type]
    pyomid.connect(url, create="no")  # type: ignore[arg-type]
    pyomid.conect(url)  # type: ignore[attr-defined]


class Bank:
    def __init__(self, db: pyomid.Database) -> None:
        self.db = db

    def opened_since(self, start: Bookmark) -> list[datetime | None]:
        changes: list[RowChange] = list(self.db.changes("accounts", start, prefix=b"a"))
        watch: Watch[RowChange] = self.db.watch("accounts", after=start, max_wait_seconds=1.0)
        changes.extend(watch)
        print(changes[0].befor)  # type: ignore[attr-defined]
        return [change.commit_time for change in changes if change.kind == "insert"]

    def balances_since(self, start: Bookmark) -> list[int]:
        found: list[int] = []
        for change in self.db.changes("accounts", start, prefix=17, codec=Account):
            found.append(change.after.id)  # type: ignore[union-attr]
            found.append(0 if change.before is None else change.before.id)
        watch: Watch[TypedChange[Named]] = self.db.watch("accounts", key=17, codec=Named, poll_seconds=1.0)
        found.extend(change.after["id"] for change in watch if change.after is not None)
        as_json: list[TypedChange[dict[str, Any]]] = list(self.db.changes("accounts", start, codec="json"))
        self.db.watch("accounts", codec=Account, pol_seconds=1.0)  # type: ignore[call-overload]
        self.db.watch("accounts", codec=17)  # type: ignore[call-overload]
        codec: pyomid.Codec[Account] = self.db.codec("accounts", Account)
        key, cells = codec.encode(Account(17))
        decoded: Account | None = codec.decode(key, {name: value for name, value in cells.items() if value})
        self.db.put("accounts", key, {b"f:x": b"1"})
        self.db.put("accounts", Account(17), codec=Account)
        one: Account | None = self.db.get("accounts", 17, codec=Account)
        row: dict[bytes, bytes] | None = self.db.get("accounts", key)
        rows: list[Account] = list(self.db.scan("accounts", limit=3, codec=Account))
        keys: list[bytes] = [each for each, _ in self.db.scan("accounts", prefix=b"a")]
        self.db.get("accounts", 17)  # type: ignore[call-overload]
        self.db.create_table("accounts", Account, row_key="id")
        self.db.create_table("plain")
        self.db.create_table("plain", ["f"], "row")  # type: ignore[call-overload]
        self.db.create_table("accounts", Account)  # type: ignore[call-overload]
        assert decoded or one or cells or row or rows or keys
        assert as_json
        return found

    def raised(self, percent: int) -> int:
        with self.db.begin() as tx:
            accounts: TypedTable[Account] = tx.table("accounts", codec=Account)
            for account in accounts.scan(limit=percent):
                accounts.put(Account(account.id + 1))
            accounts.scan(limt=3)  # type: ignore[call-arg]
        try:
            self.db.run(lambda tx: tx.table("accounts").put(b"k", {b"f:a": b"1"}))
        except pyomid.ConflictError as error:
            return int(error.values["commit_ts"])
        return 0


async def asynchronous(url: str) -> bytes:
    other: pyomid.aio.AsyncDatabase = await pyomid.aio.connect(url)
    await other.close()
    async with pyomid.aio.connect(url, create=False) as db:
        await pyomid.aio.connect(url, retry=3)  # type: ignore[call-arg]

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
        start: Bookmark = await db.bookmark(keep_seconds=60)
        changes: list[RowChange] = [change async for change in db.changes("accounts", start)]
        async with db.watch("accounts", after=start) as watch:
            async for change in watch:
                changes.append(change)
        typed: list[TypedChange[Account]] = [change async for change in db.changes("accounts", start, codec=Account)]
        async with db.watch("accounts", codec=Account, after=start) as watched:
            async for each in watched:
                typed.append(each)
        db.watch("accounts", codec=17)  # type: ignore[call-overload]
        assert typed[0].after
        codec: pyomid.Codec[Account] = await db.codec("accounts", Account)
        await db.put("accounts", Account(17), codec=Account)
        one: Account | None = await db.get("accounts", 17, codec=Account)
        rows: list[Account] = [row async for row in db.scan("accounts", codec=Account)]
        db.put("accounts", b"k", {b"f:x": b"1"})  # type: ignore[unused-coroutine]
        assert codec or one or rows
        db.bookmark()  # type: ignore[unused-coroutine]
        assert left or changes
        return (await table.get(b"alice") or {})[b"f:x"]


def distributed(spark: SparkSession, url: str) -> DataFrame:
    db = pyomid.spark.connect(spark, url)

    def load(tx: pyomid.spark.SparkTransaction) -> int:
        return tx.write(tx.read("arrivals"), "flights").rows

    rows: int | AlreadyDone = db.run_once("load-1", load)
    restored: pyomid.spark.RestoreResult = db.restore("flights", 100)
    assert rows or restored
    db.read(17)  # type: ignore[arg-type]
    db.sanitize("flights")  # type: ignore[call-arg]
    db.verfy()  # type: ignore[attr-defined]
    start: Bookmark = db.bookmark(keep_seconds=60)
    changed: DataFrame = db.changes("flights", start, columns=["origin"])
    views: list[str] = db.views(["flights", "arrivals"], prefix="past_")
    with db.begin(run_id="load-2") as tx:
        merged: pyomid.spark.WriteResult = tx.write(changed, "flights", row_key=["origin"])
        tx.delete(changed, tabel="flights")  # type: ignore[call-overload]
    assert views
    assert merged.rows
    db.history("flights").show()
    return db.read("flights", at=100)
