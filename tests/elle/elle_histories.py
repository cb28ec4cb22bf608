"""Histories in the form that Elle reads, the checker of Kingsbury and Alvaro (VLDB 2020), and its command elle-cli.

An operation is a transaction of micro-operations, at its invocation and at its completion:
    list-append    ["append", key, element], ["r", key, [element …]]
    rw-register    ["w", key, value], ["r", key, value or None]
Of an invocation the reads are empty. Completions are `ok`, `fail` (certainly not committed) or `info` (nobody knows;
its process has ended, and a new number goes on).
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pyomid.testing.history import History, Item, Outcome, Read, Transaction, Write

MODELS = ("list-append", "rw-register")
CONSISTENCY = "strong-snapshot-isolation"
"""Elle's name for what docs/protocol.md guarantees: a snapshot holds all that was acknowledged before its begin."""

MicroOps = list[list[Any]]


class Recorder:
    """What the clients of one process called and were told, line by line. Thread-safe."""

    def __init__(
        self, path: Path, clock: Callable[[], int] = lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    ) -> None:
        self._file = path.open("a", buffering=1)
        self._clock = clock
        self._lock = threading.Lock()
        self._last = 0

    def invoked(self, process: int, ops: MicroOps) -> None:
        self._append("invoke", process, ops)

    def completed(self, how: str, process: int, ops: MicroOps) -> None:
        self._append(how, process, ops)

    def close(self) -> None:
        self._file.close()

    def _append(self, kind: str, process: int, ops: MicroOps) -> None:
        with self._lock:
            self._last = max(self._last + 1, self._clock())
            self._file.write(json.dumps([self._last, kind, process, ops]) + "\n")


def merged(paths: Iterable[Path]) -> list[list[Any]]:
    """[time, kind, process, micro-operations], in the order of time; of equal times invocations first."""
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return sorted(lines, key=lambda line: (line[0], line[1] != "invoke"))


def write_edn(operations: Iterable[Sequence[Any]], path: Path) -> None:
    with path.open("w") as file:
        for index, (at, kind, process, ops) in enumerate(operations):
            value = " ".join(f"[:{name} {key} {_edn(value)}]" for name, key, value in _told(kind, ops))
            file.write(
                f"{{:index {index}, :time {at}, :type :{kind}, :process {process}, :f :txn, :value [{value}]}}\n"
            )


def write_json(operations: Iterable[Sequence[Any]], path: Path) -> None:
    names = ("index", "time", "type", "process", "value")
    lines = [(index, at, kind, process, _told(kind, ops)) for index, (at, kind, process, ops) in enumerate(operations)]
    path.write_text(json.dumps([dict(zip(names, line, strict=True)) | {"f": "txn"} for line in lines]))


def _told(kind: str, ops: MicroOps) -> MicroOps:
    """A transaction without an answer was told nothing: Elle would take what an open one read for a committed read."""
    return ops if kind == "ok" else [[name, key, None if name == "r" else value] for name, key, value in ops]


def _edn(value: Any) -> str:
    if value is None:
        return "nil"
    return f"[{' '.join(map(str, value))}]" if isinstance(value, list) else str(value)


def as_history(operations: Iterable[Sequence[Any]]) -> History:
    """The same for our own judge (`pyomid.testing.checker`): a list is the value of its key. When a begin was answered
    and a commit was asked for is not told, so it may have been at any time between invocation and completion."""
    open_calls: dict[int, int] = {}
    transactions = []
    for number, (at, kind, process, ops) in enumerate(operations):
        if kind == "invoke":
            open_calls[process] = at
            continue
        outcome = {"ok": Outcome.COMMITTED, "fail": Outcome.ABORTED, "info": Outcome.UNKNOWN}[kind]
        answered = None if kind == "info" else float(at)
        begun = float(open_calls.pop(process))
        transactions.append(
            Transaction(
                str(number), begin_called=begun, begin_answered=float(at), operations=list(_operations(kind, ops)),
                commit_called=begun, commit_answered=answered, outcome=outcome,
            )
        )  # fmt: skip
    return History(transactions)


def _operations(kind: str, ops: MicroOps) -> Iterable[Read | Write]:
    """An append without a read is the only one of its list."""
    lists: dict[int, list[int]] = {}
    unread: set[int] = set()
    for name, key, value in ops:
        item = Item("elle", str(key))
        if name == "r" and value is None and kind != "ok":
            unread.add(key)  # it did not come so far
            continue
        if name == "r":
            if isinstance(value, list):
                lists[key] = value
            yield Read(item, None if value in (None, []) else json.dumps(value))
        elif name == "w":
            yield Write(item, json.dumps(value))
        elif key not in unread:
            lists[key] = [*lists.get(key, []), value]
            yield Write(item, json.dumps(lists[key]))


def as_lists(operations: Iterable[Sequence[Any]]) -> list[list[Any]]:
    """A register history as one of list-append: a register is the list of all that it has held.

    elle-cli has no option by which Elle would take what a transaction read for the version before the one it wrote, so
    of registers it finds no stale read but that of nothing. Each register must have been read before it was written.
    """
    operations = list(operations)
    before: dict[tuple[int, int], int | None] = {}
    for _, kind, _, ops in operations:
        held: dict[int, int | None] = {}
        for name, key, value in ops if kind != "invoke" else ():
            if name == "w" and key in held:
                before[key, value] = held[key]
            held[key] = value

    def listed(name: str, key: int, value: int | None) -> list[Any]:
        if name == "w":
            return ["append", key, value]
        values: list[int] = []
        while value is not None and value not in values:
            values.append(value)
            value = before.get((key, value))
        return ["r", key, values[::-1]]

    return [[at, kind, process, [listed(*op) for op in ops]] for at, kind, process, ops in operations]


def judged_by_elle(model: str, path: Path) -> str | None:
    """elle-cli's verdict: "true", "false" or "unknown", with what it says; None: there is none here.

    ELLE_CLI is its command, "java -Xmx4g -jar elle-cli-0.1.9-standalone.jar" for one.
    """
    command = os.environ.get("ELLE_CLI")
    if not command:
        return None
    asked = ["--model", model, "--consistency-models", CONSISTENCY, "--format", "edn", os.fspath(path)]
    done = subprocess.run([*shlex.split(command), *asked], capture_output=True, text=True)
    verdicts = [line.split("\t")[-1].strip() for line in done.stdout.splitlines() if line.startswith(os.fspath(path))]
    assert verdicts, f"elle-cli said nothing of {path}: {done.returncode} {done.stdout[-2000:]} {done.stderr[-4000:]}"
    return verdicts[-1] if verdicts[-1] == "true" else f"{verdicts[-1]}\n{done.stdout[-4000:]}"
