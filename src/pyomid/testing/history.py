"""Recorded histories: each transaction's reads, writes and replies, with the times of its begin and commit.

A history is evidence from outside: it holds a client's calls and the replies, never internal state of a store or a TSO.
`checker.check` checks it. Written values must be unique per item (include the writer's name in them). A written `None`
is a delete; a `None` that was read means absence. Times come from one monotonic clock, in any unit.

Several processes each record to their own file (`Recorder(path)`), and `merged` reads the files together, provided that
the processes share the clock (CLOCK_BOOTTIME of one machine).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from pyomid.system import boot_clock


class Item(NamedTuple):
    """One column of one row: the unit of reads and writes."""

    table: str
    row: str
    column: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in self if part)


class Outcome(StrEnum):
    """The outcome that was reported to the client. UNKNOWN means that there was no reply: the transaction may or may
    not have committed."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Read:
    """One point read, with the value that it returned."""

    item: Item
    value: str | None
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Write:
    """One write of an item, or a delete if `value` is None."""

    item: Item
    value: str | None


@dataclass(frozen=True, slots=True)
class Scan:
    """A predicate read of all items of `table` with start ≤ row < stop. `found` holds the items that the read returned,
    with their values.

    Items of the history that lie in that range and are not in `found` were read as absent. `column` limits the
    predicate to one column; None means all columns.
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
    """One transaction as its client saw it. `commit_called` and `commit_answered` are None if they never happened."""

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
        """Return the value of each written item after this transaction."""
        return {write.item: write.value for write in self.writes()}


@dataclass(slots=True)
class History:
    """Transactions in any order; names are unique. Items that no transaction wrote are absent."""

    transactions: list[Transaction] = field(default_factory=list)

    def dump(self, path: Path) -> None:
        path.write_text("".join(json.dumps(_to_json(txn)) + "\n" for txn in self.transactions))

    @classmethod
    def load(cls, paths: Iterable[Path]) -> History:
        """Return one history from all files. The incomplete last line of a killed process is omitted."""
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
    """Return the time, in seconds, of a clock that all processes of one machine share, and that continues during
    suspension."""
    return boot_clock()


class Recorder:
    """Records the transactions of one process. It is thread-safe, but each transaction must be used by one thread.

    With a `path`, a transaction is appended to the file when its commit is called (outcome unknown), and again when it
    ends; the later line is valid. So the file of a killed process holds its open commits.
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
    """Return one history from files that `Recorder`s wrote. If a transaction has several lines, the last one is
    valid."""
    last: dict[str, Transaction] = {}
    for txn in History.load(paths).transactions:
        last[txn.name] = txn
    return History(list(last.values()))
