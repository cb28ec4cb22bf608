"""Recorded histories: what each transaction saw, wrote and was told, with real time around begin and commit.

A history is evidence from outside: it holds what a client called and what it was answered, never what a store
or a TSO claims of itself. `checker.check` judges it. Written values are unique per item (put the writer's name
into them); `None` is a delete when written and absence when read. Times are any numbers of one monotone clock.

Several processes each record to a file of their own (`Recorder.dump`) and the files are read together
(`History.load`), provided they share the clock (CLOCK_BOOTTIME of one machine).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from pyomid.platforms import boot_clock


class Item(NamedTuple):
    """What is read and written: one column of one row."""

    table: str
    row: str
    column: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in self if part)


class Outcome(StrEnum):
    """What the client was told. UNKNOWN: no answer; either way is allowed, but the same for ever."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Read:
    """One point read and the value seen."""

    item: Item
    value: str | None
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Write:
    """One write, or a delete (`value` None)."""

    item: Item
    value: str | None


@dataclass(frozen=True, slots=True)
class Scan:
    """A predicate read: all items of `table` with start ≤ row < stop, and which of them were found.

    Items that the history knows in that range and `found` does not hold were read as absent. `column` limits
    the predicate to one column, None is all.
    """

    table: str
    start: str
    stop: str | None
    found: tuple[tuple[Item, str], ...]
    column: str | None = None
    at: float = 0.0

    def covers(self, item: Item) -> bool:
        return (
            item.table == self.table
            and self.start <= item.row
            and (self.stop is None or item.row < self.stop)
            and (self.column is None or item.column == self.column)
        )


Operation = Read | Write | Scan


@dataclass(slots=True)
class Transaction:
    """One transaction as its client saw it. Of `begin_called` … `commit_answered` those are None that never came."""

    name: str
    begin_called: float = 0.0
    begin_answered: float = 0.0
    operations: list[Operation] = field(default_factory=list)
    commit_called: float | None = None
    commit_answered: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    start_ts: int | None = None
    commit_ts: int | None = None

    def writes(self) -> Iterator[Write]:
        return (op for op in self.operations if isinstance(op, Write))

    def last_writes(self) -> dict[Item, str | None]:
        """The value each item would have after this transaction."""
        return {write.item: write.value for write in self.writes()}


@dataclass(slots=True)
class History:
    """Transactions in any order; names are unique. Items not written before are absent."""

    transactions: list[Transaction] = field(default_factory=list)

    def dump(self, path: Path) -> None:
        path.write_text("".join(json.dumps(_to_json(txn)) + "\n" for txn in self.transactions))

    @classmethod
    def load(cls, paths: Iterable[Path]) -> History:
        """All files together. A last line that a killed process left half written is left out."""
        return cls([_from_json(line) for path in paths for line in _whole_lines(path)])


def _whole_lines(path: Path) -> Iterator[Any]:
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def _to_json(txn: Transaction) -> dict[str, Any]:
    return {
        "name": txn.name,
        "times": [txn.begin_called, txn.begin_answered, txn.commit_called, txn.commit_answered],
        "outcome": txn.outcome.value,
        "ts": [txn.start_ts, txn.commit_ts],
        "operations": [_operation_to_json(op) for op in txn.operations],
    }


def _operation_to_json(op: Operation) -> list[Any]:
    if isinstance(op, Read):
        return ["r", list(op.item), op.value, op.at]
    if isinstance(op, Write):
        return ["w", list(op.item), op.value]
    found = [[list(item), value] for item, value in op.found]
    return ["s", op.table, op.start, op.stop, found, op.column, op.at]


def _operation_from_json(data: list[Any]) -> Operation:
    if data[0] == "r":
        return Read(Item(*data[1]), data[2], data[3])
    if data[0] == "w":
        return Write(Item(*data[1]), data[2])
    found = tuple((Item(*item), value) for item, value in data[4])
    return Scan(data[1], data[2], data[3], found, data[5], data[6])


def _from_json(data: dict[str, Any]) -> Transaction:
    begin_called, begin_answered, commit_called, commit_answered = data["times"]
    return Transaction(
        name=data["name"],
        begin_called=begin_called,
        begin_answered=begin_answered,
        operations=[_operation_from_json(op) for op in data["operations"]],
        commit_called=commit_called,
        commit_answered=commit_answered,
        outcome=Outcome(data["outcome"]),
        start_ts=data["ts"][0],
        commit_ts=data["ts"][1],
    )


def boottime_s() -> float:
    """The clock that all processes of one machine share, suspension counted."""
    return boot_clock()


class Recorder:
    """Collects the transactions of one process; thread-safe, each transaction used by one thread.

    With a `path`, a transaction is appended to the file when it begins to commit (outcome unknown) and again
    when it ends, so that a killed process leaves its open commits behind; the later line wins.
    """

    def __init__(self, path: Path | None = None, clock: Callable[[], float] = boottime_s) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._transactions: dict[str, Transaction] = {}

    def begin_called(self, name: str) -> Transaction:
        txn = Transaction(name, begin_called=self._clock())
        with self._lock:
            self._transactions[name] = txn
        return txn

    def begin_answered(self, txn: Transaction, start_ts: int | None = None) -> None:
        txn.begin_answered, txn.start_ts = self._clock(), start_ts

    def read(self, txn: Transaction, item: Item, value: str | None) -> None:
        txn.operations.append(Read(item, value, self._clock()))

    def write(self, txn: Transaction, item: Item, value: str | None) -> None:
        txn.operations.append(Write(item, value))

    def scan(
        self, txn: Transaction, table: str, start: str, stop: str | None, found: Iterable[tuple[Item, str]]
    ) -> None:
        txn.operations.append(Scan(table, start, stop, tuple(found), at=self._clock()))

    def commit_called(self, txn: Transaction) -> None:
        txn.commit_called = self._clock()
        self._append(txn)

    def ended(self, txn: Transaction, outcome: Outcome, commit_ts: int | None = None) -> None:
        txn.outcome, txn.commit_ts = outcome, commit_ts
        txn.commit_answered = None if outcome is Outcome.UNKNOWN else self._clock()
        self._append(txn)

    def history(self) -> History:
        with self._lock:
            return History(list(self._transactions.values()))

    def _append(self, txn: Transaction) -> None:
        if self._path is None:
            return
        with self._lock, self._path.open("a") as file:
            file.write(json.dumps(_to_json(txn)) + "\n")


def merged(paths: Iterable[Path]) -> History:
    """Histories written by `Recorder`s, one line a transaction: the last line of each name counts."""
    last: dict[str, Transaction] = {}
    for txn in History.load(paths).transactions:
        last[txn.name] = txn
    return History(list(last.values()))
