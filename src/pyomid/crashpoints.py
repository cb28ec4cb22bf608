"""Named places where a test may end or stop this process, shipped and switched off.

    PYOMID_CRASH_AT=client.commit.answered          SIGKILL at the first passage
    PYOMID_CRASH_AT=client.flush.before:3           … at the third
    PYOMID_CRASH_HOW=stop                           SIGSTOP instead: the process stays, frozen, locks and all
    PYOMID_CRASH_NOTE=/tmp/note                     one line "name pid" is durable in this file before the signal
    PYOMID_CRASH_ONCE=/tmp/once                     only if this file is not there, and then it is: one of many
                                                    processes with one environment (Spark's workers) dies, once

By the note a test asserts that the point was reached, and not some other end. `POINTS` has the name of every place; an
unknown name in the environment is refused, so that a misspelt point cannot pass for a survived one. Switched off, a
point costs one look at a module variable.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Final

from pyomid.errors import Misuse

POINTS: Final[dict[str, str]] = {
    "client.begin.after": "a start timestamp is held, nothing written",
    "client.flush.before": "before a batch of data cells goes to the store",
    "client.flush.after": "a batch of data cells is durable",
    "client.commit.before": "all cells durable, commit request not yet sent",
    "client.commit.answered": "the TSO said committed, the caller was not told, no shadow cell written",
    "client.complete.shadows_before": "before a batch of shadow cells",
    "client.complete.shadows_after": "a batch of shadow cells is durable",
    "client.complete.delete_before": "all shadow cells durable, commit-table entry still there",
    "client.complete.delete_after": "the commit-table entries were handed to the TSO for deletion",
    "client.rollback.before": "rolling back, no cell deleted",
    "client.rollback.after": "a batch of cells was deleted in a rollback",
    "client.heal.before": "before a reader's shadow cells",
    "client.upkeep.cleaned": "a service of upkeep cleaned a region and recorded it, others are left",
    "client.create.begun": "the catalog's entry says that a table is being made, nothing is made",
    "client.create.made": "the physical table is there, the catalog's entry is not",
    "client.columns.changing": "a table's columns are about to change: clients keep nothing of its entry",
    "client.columns.fenced": "no client uses a cached entry of the table, and the columns have not changed yet",
    "client.index.kept": "an index is in its table's entry, and not every writer knows it yet",
    "client.index.fenced": "every commit keeps the index from now on, which has not the rows that are there",
    "client.index.filled": "some of the rows that are there were put into the index",
    "client.index.dropping": "no client reads or keeps the index any more, and its rows are there",
    "client.index.emptied": "the rows of a dropped index are gone, and the entry has it still",
    "client.level.changed": "a table's conflict level is changed by one step: to both, or to the next one",
    "client.level.fenced": "commits name ids of both levels, and one that does not cannot commit any more",
    "client.unregister.marked": "a table that is to be taken out of the catalog is marked as unknown, and still in it",
    "client.drop.decided": "the catalog's entry says that the table is being dropped, everything is there",
    "client.drop.fenced": "its writers of before abort, its rows are there",
    "client.drop.withdrawn": "what has the name of a table that is dropped or made is about to go from the store",
    "client.drop.emptied": "its rows are gone, the entry says still that it is being dropped",
    "tso.flush.before": "a batch of commits is decided, none of its entries sent",
    "tso.flush.after": "a batch's entries are durable, no client told",
    "tso.decision.before": "the pending record of a large commit is durable, its decision is not",
    "tso.decision.after": "a large commit is decided for ever, no branch has its entry",
    "tso.branches.before": "before the entries of a large commit's branches",
    "tso.branches.after": "the branches' entries are durable, the caller is not told, the record still there",
    "tso.lease.before": "before the leader state's change that adds a lease",
    "tso.pending.before": "before the leader state's change that adds the pending record of a large commit",
    "tso.leader_state.before": "before a change of the leader state: lease, pending record, W, H",
    "tso.leader_state.after": "a change of the leader state is durable, and nothing follows from it yet",
    "tso.ceiling.before": "before the timestamp ceiling is moved by a TSO that serves",
    "storage.backup.begun": "the destination says that it is not finished, nothing is copied",
    "storage.backup.states_held": "data and commits are held, and the data's writers wait; the log is not read",
    "storage.backup.held": "data, commits and log of one moment are held, nothing is copied",
    "storage.backup.compared": "the changes since another back-up are written and not synced, their moment is held",
    "storage.backup.copied": "both environments are copied, the commits lack what is in the log",
    "storage.backup.completed": "the copy has all commits and no identity; nothing says that it is whole",
    "storage.backup.described": "all is durable, and the destination says still that it is not finished",
    "hbase.backup.commits": "over HBase: the commit table's snapshot is taken, no table's is",
    "hbase.backup.table": "over HBase: a table's snapshot is taken, others and the manifest are not",
    "hbase.backup.noted": "over HBase: all snapshots but the manifest's are taken, and nothing says so",
    "hbase.restore.cloned": "over HBase: copies of the snapshots are there as they were taken",
    "hbase.restore.cut": "over HBase: a table's copy is cut to its moment, the table is not there",
    "hbase.restore.put": "over HBase: the table is there, the catalog says that it is being made",
    "storage.restore.begun": "the folder says that it is not finished, nothing is copied",
    "storage.restore.copied": "all files are there and as they were, the folder is no database",
    "storage.restore.applied": "the data is as it was, with the changes of later back-ups, the folder is no database",
    "storage.restore.made": "the folder is a database, and says still that it is not finished",
    "spark.task.before_write": "a task has drawn its branch and not written this batch",
    "spark.task.after_write": "a task's batch is durable under its branch",
    "spark.task.written": "all of a task's rows are durable, Spark does not know yet",
    "spark.write.noted": "the driver has the branches of one write",
    "spark.commit.before": "all branches durable, nothing sent to the TSO",
    "spark.commit.after": "committed, and the idempotency key has its shadow cell",
    "spark.stream.plan": "Spark noted where a batch of changes ends, none of its tasks is planned",
    "spark.stream.read": "a task of a streaming batch of changes has read nothing yet",
    "spark.stream.committed": "a streaming batch is committed, Spark does not know yet",
    "spark.stream.done": "Spark noted that a batch of changes is done, leases of before it go on",
    "spark.adopt.piece_done": "every cell of a partition is imported, Spark does not know yet",
    "spark.adopt.before_register": "every cell of the table is imported, the catalog does not know the table",
}
"""Every place, with what is true there. Each package prefixes its own: client, tso, storage, hbase, spark."""


class _Action:
    """One armed point of a test inside this process: runs `action` in whichever thread passes first."""

    def __init__(self, name: str, action: Callable[[], None]) -> None:
        self.name = name
        self._action = action

    def passed(self) -> None:
        self._action()


class _Armed:
    """One armed point; counts its passages over all threads.

    The signal goes to the passing thread itself, which takes it before it returns; sent to the process, another
    thread might take it, and this one run on into what comes after the point. Either way the whole process stops.
    """

    def __init__(self, name: str, nth: int, sign: signal.Signals, note: str | None, once: str | None) -> None:
        self.name = name
        self.nth = nth
        self.sign = sign
        self.note = note
        self.once = once
        self._passages = 0
        self._lock = threading.Lock()

    def passed(self) -> None:
        with self._lock:
            self._passages += 1
            if self._passages != self.nth:
                return
            if self.once is not None and not _is_first(self.once):
                return
            if self.note is not None:
                _write_note(self.note, f"{self.name} {os.getpid()}\n")
            signal.pthread_kill(threading.get_ident(), self.sign)


_armed: _Armed | _Action | None = None


def crash_point(name: str) -> None:
    """Nothing, unless a test armed `name` in this process."""
    if _armed is not None and _armed.name == name:
        _armed.passed()


def arm(name: str, *, nth: int = 1, how: str = "kill", note: str | None = None, once: str | None = None) -> None:
    """What the environment does at import, for a forked test process. `Misuse` for an unknown name or way."""
    global _armed
    if name not in POINTS:
        raise Misuse(f"unknown crash point {name!r}; known: {', '.join(sorted(POINTS))}", name=name)
    if how not in _SIGNALS:
        raise Misuse(f"unknown way to crash {how!r}; known: {', '.join(_SIGNALS)}", how=how)
    if nth < 1:
        raise Misuse(f"crash point passage {nth} is not a positive number", nth=nth)
    _armed = _Armed(name, nth, _SIGNALS[how], note, once)


def arm_action(name: str, action: Callable[[], None]) -> None:
    """Runs `action` at each passage, in the passing thread: for tests of several clients in one process, whose action
    raises. `Misuse` for an unknown name."""
    global _armed
    if name not in POINTS:
        raise Misuse(f"unknown crash point {name!r}; known: {', '.join(sorted(POINTS))}", name=name)
    _armed = _Action(name, action)


def disarm() -> None:
    global _armed
    _armed = None


_SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def _write_note(path: str, line: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, line.encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _is_first(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
    except FileExistsError:
        return False
    return True


def _arm_from_environment() -> None:
    text = os.environ.get("PYOMID_CRASH_AT")
    if not text:
        return
    name, _, nth = text.partition(":")
    if nth and not nth.isdecimal():
        raise Misuse(f"PYOMID_CRASH_AT={text!r}: the passage after ':' is not a number", value=text)
    arm(
        name,
        nth=int(nth or "1"),
        how=os.environ.get("PYOMID_CRASH_HOW", "kill"),
        note=os.environ.get("PYOMID_CRASH_NOTE"),
        once=os.environ.get("PYOMID_CRASH_ONCE"),
    )


_arm_from_environment()
