"""One client process of the history tests: `python history_worker.py URL FILE NAME SEED TRANSACTIONS`."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pyomid
from pyomid.client.database import Database
from pyomid.client.transaction import Transaction
from pyomid.errors import ConflictError, OutcomeUnknown, Unavailable
from pyomid.testing import history
from pyomid.testing.checker import list_elements, list_value
from pyomid.testing.history import Item, Outcome, Recorder

ACCOUNTS = 6
TOTAL = 600
LISTS = 3
REGISTERS = 6
COLUMN = b"f:v"


def account(number: int) -> bytes:
    return f"account{number}".encode()


class Worker:
    """Random transactions, each recorded."""

    def __init__(self, database: Database, recorder: Recorder, name: str, seed: int) -> None:
        self.database, self.recorder, self.name = database, recorder, name
        self.random = random.Random(seed)
        self.values = 0

    def run(self, transactions: int) -> None:
        for number in range(transactions):
            self._one(f"{self.name}.{number}")

    def _one(self, name: str) -> None:
        record = self.recorder.begin_called(name)
        try:
            tx = self.database.begin()
        except Unavailable:
            record.outcome = Outcome.ABORTED
            return
        self.recorder.begin_answered(record, tx.start_ts)
        outcome = Outcome.ABORTED
        try:
            for _ in range(self.random.randint(1, 2)):
                self.random.choice((self.append, self.register, self.transfer, self.scan, self.delete))(tx, record)
            self.recorder.commit_called(record)
            outcome = Outcome.UNKNOWN
            tx.commit()
            outcome = Outcome.COMMITTED
        except ConflictError:
            outcome = Outcome.ABORTED
            tx.rollback()
        except OutcomeUnknown:
            outcome = Outcome.UNKNOWN
        self.recorder.ended(record, outcome, tx.commit_ts)

    def get(self, tx: Transaction, record: history.Transaction, table: str, row: bytes) -> str | None:
        found = tx.table(table).get(row).get(COLUMN)
        value = found.decode() if found is not None else None
        self.recorder.read(record, Item(table, row.decode()), value)
        return value

    def put(self, tx: Transaction, record: history.Transaction, table: str, row: bytes, value: str | None) -> None:
        if value is None:
            tx.table(table).delete(row, [COLUMN])
        else:
            tx.table(table).put(row, {COLUMN: value.encode()})
        self.recorder.write(record, Item(table, row.decode()), value)

    def unique(self) -> str:
        self.values += 1
        return f"{self.name}-{self.values}"

    def append(self, tx: Transaction, record: history.Transaction) -> None:
        row = f"list{self.random.randrange(LISTS)}".encode()
        before = list_elements(self.get(tx, record, "lists", row))
        self.put(tx, record, "lists", row, list_value([*before, self.unique()]))

    def register(self, tx: Transaction, record: history.Transaction) -> None:
        for row in self.random.sample(range(REGISTERS), 2):
            self.get(tx, record, "registers", f"r{row}".encode())
        self.put(tx, record, "registers", f"r{self.random.randrange(REGISTERS)}".encode(), self.unique())

    def delete(self, tx: Transaction, record: history.Transaction) -> None:
        self.put(tx, record, "registers", f"r{self.random.randrange(REGISTERS)}".encode(), None)

    def transfer(self, tx: Transaction, record: history.Transaction) -> None:
        source, target = map(account, self.random.sample(range(ACCOUNTS), 2))
        amount = self.random.randint(1, 20)
        for row, change in ((source, -amount), (target, amount)):
            balance = amount_of(self.get(tx, record, "bank", row) or ":0")
            self.put(tx, record, "bank", row, f"{self.unique()}:{balance + change}")

    def scan(self, tx: Transaction, record: history.Transaction) -> None:
        table = self.random.choice(("bank", "registers"))
        found = [(Item(table, row.decode()), cells[COLUMN].decode()) for row, cells in tx.table(table).scan()]
        self.recorder.scan(record, table, "", None, found)


def amount_of(value: str) -> int:
    return int(value.rpartition(":")[2])


def set_up(database: Database, recorder: Recorder) -> None:
    """Tables, and a bank with its money."""
    for table in ("lists", "registers", "bank"):
        database.create_table(table, ["f"])
    record = recorder.begin_called("setup")
    tx = database.begin()
    recorder.begin_answered(record, tx.start_ts)
    worker = Worker(database, recorder, "setup", 0)
    for number in range(ACCOUNTS):
        worker.put(tx, record, "bank", account(number), f"setup-{number}:{TOTAL // ACCOUNTS}")
    recorder.commit_called(record)
    tx.commit()
    recorder.ended(record, Outcome.COMMITTED, tx.commit_ts)


def main(url: str, file: str, name: str, seed: str, transactions: str) -> None:
    with pyomid.connect(url) as database:
        Worker(database, Recorder(Path(file)), name, int(seed)).run(int(transactions))


if __name__ == "__main__":
    main(*sys.argv[1:])
