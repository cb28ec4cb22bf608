"""One workload for Java and Python clients at once: a bank, appended lists and registers on the same rows, recorded.

As a program it is one Python client, to be killed: `python mixed_clients.py URL FILE NAME SEED STOP`. It works until
the file STOP is there. Java clients are driven from the test's own process (`JavaSide`): what is killed is their JVM.
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pyomid
from java_omid import JavaClient, JavaError
from pyomid.database.database import Database
from pyomid.database.transaction import Transaction
from pyomid.errors import ConflictError, OmidError
from pyomid.testing import history
from pyomid.testing.checker import list_elements, list_value
from pyomid.testing.history import Item, Outcome, Recorder

ACCOUNTS = 6
TOTAL = 600
LISTS = 3
REGISTERS = 6
FAMILY, QUALIFIER = b"f", b"v"
COLUMN = FAMILY + b":" + QUALIFIER
THINK_S_MAX = 0.02
"""Between two transactions: those who start beside them need the processor too."""
TABLES = ("bank", "lists", "registers")


class Aborted(Exception):
    """For certain: it may be forgotten."""


class Gone(Exception):
    """The client was killed: what it had begun is unknown."""


class Side(Protocol):
    """A client of either kind. Every method may raise `Gone`; those before the commit also `Aborted`."""

    def begin(self, name: str) -> int: ...
    def get(self, name: str, table: str, row: bytes) -> bytes | None: ...
    def scan(self, name: str, table: str) -> list[tuple[bytes, bytes]]: ...
    def put(self, name: str, table: str, row: bytes, value: bytes) -> None: ...
    def delete(self, name: str, table: str, row: bytes) -> None: ...

    def commit(self, name: str) -> tuple[Outcome, int | None]:
        """What was told, and the commit timestamp where there is one."""

    def rollback(self, name: str) -> None: ...


class PythonSide:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._open: dict[str, Transaction] = {}

    def begin(self, name: str) -> int:
        transaction = _or_aborted(self._database.begin)
        self._open[name] = transaction
        return transaction.start_ts

    def get(self, name: str, table: str, row: bytes) -> bytes | None:
        found = _or_aborted(lambda: self._open[name].table(table).get(row))
        return found.get(COLUMN) if found else None

    def scan(self, name: str, table: str) -> list[tuple[bytes, bytes]]:
        found = _or_aborted(lambda: list(self._open[name].table(table).scan()))
        return [(row, cells[COLUMN]) for row, cells in found]

    def put(self, name: str, table: str, row: bytes, value: bytes) -> None:
        _or_aborted(lambda: self._open[name].table(table).put(row, {COLUMN: value}))

    def delete(self, name: str, table: str, row: bytes) -> None:
        _or_aborted(lambda: self._open[name].table(table).delete(row, [COLUMN]))

    def commit(self, name: str) -> tuple[Outcome, int | None]:
        transaction = self._open.pop(name)
        try:
            transaction.commit()
        except ConflictError:
            return Outcome.ABORTED, None
        except OmidError:
            return Outcome.UNKNOWN, None
        return Outcome.COMMITTED, transaction.commit_ts

    def rollback(self, name: str) -> None:
        transaction = self._open.pop(name, None)
        if transaction is not None:
            _or_aborted(transaction.rollback)


class JavaSide:
    """`dying_share` of its transactions do nothing any more after the TSO's answer: others must heal them."""

    def __init__(self, java: JavaClient, seed: int, dying_share: float = 0.15) -> None:
        self.java = java
        self._random = random.Random(seed)
        self._dying_share = dying_share

    def begin(self, name: str) -> int:
        dying = self._random.random() < self._dying_share
        return self._or_aborted(lambda: self.java.begin(name, dying=dying))

    def get(self, name: str, table: str, row: bytes) -> bytes | None:
        return self._or_aborted(lambda: self.java.get(name, table, row)).get(COLUMN)

    def scan(self, name: str, table: str) -> list[tuple[bytes, bytes]]:
        found = self._or_aborted(lambda: self.java.scan(name, table))
        return [(row, cells[COLUMN]) for row, cells in sorted(found.items())]

    def put(self, name: str, table: str, row: bytes, value: bytes) -> None:
        self._or_aborted(lambda: self.java.put(name, table, row, FAMILY, QUALIFIER, value))

    def delete(self, name: str, table: str, row: bytes) -> None:
        self._or_aborted(lambda: self.java.delete(name, table, row, FAMILY, QUALIFIER))

    def commit(self, name: str) -> tuple[Outcome, int | None]:
        try:
            commit_ts = self.java.commit(name)
        except JavaError as error:
            if error.kind == "Dead":
                raise Gone from error
            return (Outcome.ABORTED if error.kind == "RollbackException" else Outcome.UNKNOWN), None
        return Outcome.COMMITTED, commit_ts or None

    def rollback(self, name: str) -> None:
        self._or_aborted(lambda: self.java.rollback(name))

    @staticmethod
    def _or_aborted(call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (BrokenPipeError, ValueError) as error:
            raise Gone from error
        except JavaError as error:
            raise (Gone if error.kind == "Dead" else Aborted) from error


class Workload:
    """Random transactions of one client, each recorded."""

    def __init__(self, side: Side, recorder: Recorder, name: str, seed: int) -> None:
        self.side, self.recorder, self.name = side, recorder, name
        self.random = random.Random(seed)
        self._values = 0
        self._number = 0

    def run_until(self, stopped: Callable[[], bool]) -> None:
        """To the end of its client, or until it is told."""
        try:
            while not stopped():
                self._number += 1
                self._one(f"{self.name}.{self._number}")
                time.sleep(self.random.uniform(0, THINK_S_MAX))
        except Gone:
            return

    def _one(self, name: str) -> None:
        record = self.recorder.begin_called(name)
        outcome, commit_ts = Outcome.ABORTED, None
        try:
            self.recorder.begin_answered(record, self.side.begin(name))
        except Aborted:
            time.sleep(0.05)  # nobody leads: Java's client says so at once
            return
        try:
            for _ in range(self.random.randint(1, 2)):
                self.random.choice((self._append, self._register, self._transfer, self._scan, self._delete))(record)
            self.recorder.commit_called(record)
            outcome = Outcome.UNKNOWN
            outcome, commit_ts = self.side.commit(name)
        except Aborted:
            with contextlib.suppress(Aborted):
                self.side.rollback(name)
        self.recorder.ended(record, outcome, commit_ts)

    def _get(self, record: history.Transaction, table: str, row: bytes) -> str | None:
        found = self.side.get(record.name, table, row)
        value = found.decode() if found is not None else None
        self.recorder.read(record, Item(table, row.decode()), value)
        return value

    def _put(self, record: history.Transaction, table: str, row: bytes, value: str) -> None:
        self.side.put(record.name, table, row, value.encode())
        self.recorder.write(record, Item(table, row.decode()), value)

    def _unique(self) -> str:
        self._values += 1
        return f"{self.name}-{self._values}"

    def _append(self, record: history.Transaction) -> None:
        row = b"list%d" % self.random.randrange(LISTS)
        elements = list_elements(self._get(record, "lists", row))
        self._put(record, "lists", row, list_value([*elements, self._unique()]))

    def _register(self, record: history.Transaction) -> None:
        row = b"r%d" % self.random.randrange(REGISTERS)
        self._get(record, "registers", row)
        self._put(record, "registers", row, self._unique())

    def _delete(self, record: history.Transaction) -> None:
        row = b"r%d" % self.random.randrange(REGISTERS)
        self.side.delete(record.name, "registers", row)
        self.recorder.write(record, Item("registers", row.decode()), None)

    def _transfer(self, record: history.Transaction) -> None:
        source, target = (b"account%d" % number for number in self.random.sample(range(ACCOUNTS), 2))
        amount = self.random.randint(1, 20)
        for row, change in ((source, -amount), (target, amount)):
            balance = amount_of(self._get(record, "bank", row) or ":0")
            self._put(record, "bank", row, f"{self._unique()}:{balance + change}")

    def _scan(self, record: history.Transaction) -> None:
        table = self.random.choice(("bank", "registers"))
        found = [(Item(table, row.decode()), value.decode()) for row, value in self.side.scan(record.name, table)]
        self.recorder.scan(record, table, "", None, found)


def amount_of(value: str) -> int:
    return int(value.rpartition(":")[2])


def open_bank(database: Database, recorder: Recorder) -> None:
    """The bank with its money; the tables are there."""
    side = PythonSide(database)
    record = recorder.begin_called("setup")
    recorder.begin_answered(record, side.begin("setup"))
    for number in range(ACCOUNTS):
        row, value = b"account%d" % number, f"setup-{number}:{TOTAL // ACCOUNTS}"
        side.put("setup", "bank", row, value.encode())
        recorder.write(record, Item("bank", row.decode()), value)
    recorder.commit_called(record)
    recorder.ended(record, *side.commit("setup"))


def _or_aborted(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except OmidError as error:
        raise Aborted from error


def main(url: str, file: str, name: str, seed: str, stop: str) -> None:
    with pyomid.connect(url, commitRetrySeconds=120.0) as database:
        Workload(PythonSide(database), Recorder(Path(file)), name, int(seed)).run_until(Path(stop).exists)


if __name__ == "__main__":
    main(*sys.argv[1:])
