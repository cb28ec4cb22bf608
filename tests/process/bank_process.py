"""What the processes of these tests do: a bank over three tables, in which half a transaction cannot hide.

A transfer moves an amount between an account of `checking` and one of `savings` and writes a row of `ledger` under
an id of its own. So at every snapshot each balance is what the ledger says, and the sum of all never changes. After
its commit was acknowledged a worker appends the id to a file: whatever is in there must be in the ledger for ever.
"""

from __future__ import annotations

import contextlib
import os
import random
from dataclasses import dataclass

import pyomid
from pyomid import crashpoints
from pyomid.database.database import Database
from pyomid.database.transaction import Transaction
from pyomid.errors import ConflictError

ACCOUNTS = [b"%d" % number for number in range(4)]
OPENING = 1_000
TABLES = ("checking", "savings", "ledger")


@dataclass(frozen=True)
class Order:
    """What one worker process is told."""

    url: str
    seed: int
    acknowledged: str
    transactions: int = 30
    crash_at: str = ""
    crash_nth: int = 1
    crash_how: str = "kill"
    crash_note: str = ""


def transaction_points() -> list[str]:
    """Crash points that a transfer passes."""
    passed = ("client.begin.", "client.flush.", "client.commit.", "client.complete.", "client.rollback.")
    return sorted(name for name in crashpoints.POINTS if name.startswith(passed))


def open_bank(db: Database) -> None:
    for name in TABLES:
        db.create_table(name, families=["f"])
    with db.begin() as tx:
        for name in ("checking", "savings"):
            for account in ACCOUNTS:
                tx.table(name).put(account, {b"f:balance": b"%d" % OPENING})


def transfer(tx: Transaction, ident: bytes, chance: random.Random) -> None:
    source, target, amount = chance.choice(ACCOUNTS), chance.choice(ACCOUNTS), chance.randint(1, 9)
    for name, account, change in (("checking", source, -amount), ("savings", target, amount)):
        table = tx.table(name)
        balance = int(table.get(account)[b"f:balance"]) + change
        table.put(account, {b"f:balance": b"%d" % balance})
    tx.table("ledger").put(ident, {b"f:from": source, b"f:to": target, b"f:amount": b"%d" % amount})


def flushed_transfer(tx: Transaction, ident: bytes, chance: random.Random) -> None:
    """Its commit carries no cells: they are in the store before."""
    transfer(tx, ident, chance)
    tx.flush()


def run_worker(order: Order) -> None:
    """The life of one worker: transfers, every second one flushed before its commit, every fourth of them rolled back;
    dies where it is armed."""
    if order.crash_at:
        crashpoints.arm(order.crash_at, nth=order.crash_nth, how=order.crash_how, note=order.crash_note)
    chance = random.Random(order.seed)
    with pyomid.connect(order.url, completion_linger_ms=0, retries=1000) as db:
        for number in range(order.transactions):
            ident = b"%d-%d" % (order.seed, number)
            if number % 4 == 3:
                with contextlib.suppress(ConflictError), db.begin() as tx:  # its snapshot may end with its TSO
                    flushed_transfer(tx, ident, chance)
                    tx.rollback()
                db.drain(10)
                continue
            db.run(flushed_transfer if number % 2 else transfer, ident, chance)
            acknowledge(order.acknowledged, ident)
            if number % 3 == 0 or order.crash_how == "stop":  # else another thread might be stopped inside a write
                db.drain(10)


def acknowledge(path: str, ident: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(descriptor, ident + b"\n")
    os.close(descriptor)


def acknowledged_ids(path: str) -> set[bytes]:
    try:
        with open(path, "rb") as file:
            return set(file.read().split())
    except FileNotFoundError:
        return set()


def count_up(url: str, key: bytes, times: int) -> None:
    """Adds one to a counter, so many times."""
    with pyomid.connect(url, retries=10_000) as db:

        @db.transactional
        def add_one(tx: Transaction) -> None:
            table = tx.table("counters")
            table.put(key, {b"f:n": b"%d" % (int((table.get(key) or {}).get(b"f:n", b"0")) + 1)})

        for _ in range(times):
            add_one()


def claim_first(url: str, claimed: str) -> None:
    """Takes the first row of a queue, as all others want to, until there is none; with the options that all have."""
    with pyomid.connect(url) as db:

        @db.transactional
        def claim(tx: Transaction) -> bytes | None:
            for key, _ in tx.table("queue").scan(limit=1):
                tx.table("queue").delete(key)
                return key
            return None

        while (key := claim()) is not None:
            acknowledge(claimed, key)


def audit_until(url: str, stop: str) -> None:
    """Snapshot after snapshot is checked until the file `stop` is there; an assertion ends the process."""
    audits = 0
    with pyomid.connect(url) as db:
        while not os.path.exists(stop) or audits == 0:
            audit(db)
            audits += 1


@dataclass(frozen=True)
class Audit:
    start_ts: int
    transfers: int
    ids: frozenset[bytes]


def audit(db: Database, acknowledged: str = "", *, by_rows: bool = False) -> Audit:
    """One snapshot, read by scan or by multi-get (which heals): balances are what the ledger says, to the penny."""
    with db.begin() as tx:
        ledger = dict(tx.table("ledger").scan())
        if by_rows:
            ledger = tx.table("ledger").rows(list(ledger))
        expected = {(name, account): OPENING for name in ("checking", "savings") for account in ACCOUNTS}
        for row in ledger.values():
            assert len(row) == 3, row
            expected["checking", row[b"f:from"]] -= int(row[b"f:amount"])
            expected["savings", row[b"f:to"]] += int(row[b"f:amount"])
        for name in ("checking", "savings"):
            found = tx.table(name).rows(ACCOUNTS) if by_rows else dict(tx.table(name).scan())
            for account in ACCOUNTS:
                assert int(found[account][b"f:balance"]) == expected[name, account], (name, account, tx.start_ts)
    missing = acknowledged_ids(acknowledged) - ledger.keys() if acknowledged else set()
    assert not missing, f"acknowledged and lost: {sorted(missing)}"
    return Audit(tx.start_ts, len(ledger), frozenset(ledger))


def run_one_in_child(url: str, ident: bytes) -> None:
    """In a forked child: a connection of its own, one transfer; the process ends with 0 if that committed."""
    try:
        with pyomid.connect(url, retries=1000) as db:
            db.run(transfer, ident, random.Random(ident))
    except ConflictError:
        os._exit(3)
    except BaseException as error:
        os.write(2, repr(error).encode())
        os._exit(1)
    os._exit(0)
