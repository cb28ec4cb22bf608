"""Named points in the product's code at which a test can kill or stop the process; off by default.

    PYOMID_CRASH_AT=client.commit.answered          SIGKILL when the point is first reached
    PYOMID_CRASH_AT=client.flush.before:3           SIGKILL when the point is reached for the third time
    PYOMID_CRASH_HOW=stop                           SIGSTOP instead: the process is frozen and keeps its locks
    PYOMID_CRASH_NOTE=/tmp/note                     the line "name pid" is durable in this file before the signal
    PYOMID_CRASH_ONCE=/tmp/once                     the process dies only if it can create this file: of many processes
                                                    with one environment (Spark's workers) one dies, once

The note proves to a test that the process died at the point and not elsewhere. `POINTS` names every point. An unknown
name in the environment raises `Misuse`; otherwise a test with a misspelt name would pass without a crash. If no point
is armed, each point costs one read of a module variable.
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
    "client.commit.answered": "the TSO replied committed; the call has not returned, no shadow cell is written",
    "client.complete.shadows_before": "before a batch of shadow cells",
    "client.complete.shadows_after": "a batch of shadow cells is durable",
    "client.complete.delete_before": "all shadow cells durable, commit-table entry still there",
    "client.complete.delete_after": "the commit-table entries are deleted",
    "client.rollback.before": "rolling back, no cell deleted",
    "client.rollback.after": "a batch of cells was deleted in a rollback",
    "client.heal.before": "before a reader's shadow cells",
    "client.upkeep.cleaned": "background upkeep cleaned and recorded a region; other regions are left",
    "client.create.begun": "the catalog entry is CREATING; there is no physical table",
    "client.create.made": "the physical table exists; the catalog entry is still CREATING",
    "client.columns.changing": "a table's columns are about to change: clients do not cache its entry",
    "client.columns.fenced": "no client uses a cached entry of the table, and the columns have not changed yet",
    "client.columns.dated": "a table has its new time to live, and some transactions still go by the former one",
    "client.index.planned": "an index is in its table's entry; its own table does not exist, no writer maintains it",
    "client.index.kept": "an index is in its table's entry; not every writer knows it yet",
    "client.index.fenced": "every commit maintains the index from now on; existing rows are not in it",
    "client.index.filled": "some of the existing rows are in the index",
    "client.index.dropping": "no client reads or maintains the index any more; its rows exist",
    "client.index.emptied": "the rows of a dropped index are gone; the entry still names it",
    "client.level.changed": "a table's conflict level has changed by one step: to both levels, or to the new one",
    "client.level.fenced": "commits name ids of both levels; a commit that does not can no longer succeed",
    "client.unregister.marked": "a table that is being unregistered has its mark, and is still in the catalog",
    "client.drop.decided": "the catalog entry is DROPPING; all rows exist",
    "client.drop.fenced": "earlier writers of the table will abort; its rows exist",
    "client.drop.withdrawn": "the physical table of a name that is being dropped or created is about to be deleted",
    "client.drop.emptied": "the table's rows are gone; the entry is still DROPPING",
    "tso.flush.before": "a batch of commits is decided; none of its entries is sent",
    "tso.flush.after": "a batch's entries are durable; no reply is sent",
    "tso.decision.before": "the pending record of a large commit is durable, its decision is not",
    "tso.decision.after": "a large commit is decided for ever; no branch has its entry",
    "tso.branches.before": "before the entries of a large commit's branches",
    "tso.branches.after": "the branches' entries are durable; no reply is sent, the pending record still exists",
    "tso.lease.before": "before the leader state's change that adds a lease",
    "tso.pending.before": "before the leader state's change that adds the pending record of a large commit",
    "tso.leader_state.before": "before a change of the leader state: lease, pending record, W, H",
    "tso.leader_state.after": "a change of the leader state is durable; nothing has followed from it yet",
    "tso.ceiling.before": "before a serving TSO moves the timestamp ceiling",
    "storage.commit.posted": "a process posted commit requests; no other has taken them",
    "storage.commit.taken": "a process has decided and buffered its own commits and others'; nothing is durable",
    "storage.commit.durable": "a process's write transaction is durable; nobody was told",
    "storage.backup.begun": "the destination is marked unfinished; nothing is copied",
    "storage.backup.held": "one state of the folder is held; nothing is copied",
    "storage.backup.compared": "the changes since another backup are written, not synced; their moment is held",
    "storage.backup.copied": "the state is copied, but not durable",
    "storage.backup.completed": "the copy is durable, but not marked complete",
    "storage.backup.described": "everything is durable; the destination is still marked unfinished",
    "hbase.backup.commits": "over HBase: the commit table's snapshot is taken; no other is",
    "hbase.backup.table": "over HBase: one table's snapshot is taken; others and the manifest are not",
    "hbase.backup.noted": "over HBase: all snapshots except the manifest's are taken",
    "hbase.restore.cloned": "over HBase: copies of the snapshots exist, unchanged",
    "hbase.restore.cut": "over HBase: a table's copy is cut to its moment; the table does not exist",
    "hbase.restore.put": "over HBase: the table exists; its catalog entry is CREATING",
    "storage.restore.begun": "the folder is marked unfinished; nothing is copied",
    "storage.restore.copied": "all files are copied unchanged; the folder is not a database yet",
    "storage.restore.applied": "the changes of later backups are applied; the folder is not a database yet",
    "storage.restore.made": "the folder is a database, still marked unfinished",
    "spark.task.before_write": "a task has drawn its branch, and not written this batch",
    "spark.task.after_write": "a task's batch is durable under its branch",
    "spark.task.written": "all of a task's rows are durable; Spark does not know yet",
    "spark.write.noted": "the driver has the branches of one write",
    "spark.commit.before": "all branches are durable; nothing is sent to the TSO",
    "spark.commit.after": "committed, and the idempotency key has its shadow cell",
    "spark.stream.plan": "Spark recorded the end of a batch of changes; none of its tasks is planned",
    "spark.stream.read": "a task of a streaming batch of changes has read nothing yet",
    "spark.stream.committed": "a streaming batch is committed; Spark does not know yet",
    "spark.stream.done": "Spark recorded that a batch of changes is done; earlier leases still exist",
    "spark.adopt.piece_done": "every cell of a partition is imported; Spark does not know yet",
    "spark.adopt.before_register": "every cell of the table is imported; the table is not in the catalog",
}
"""Every point, with the state that holds there. A name begins with its package: client, tso, storage, hbase, spark."""


class _Armed:
    """An armed point, which counts how often threads reach it.

    The signal goes to the passing thread, which receives it before it returns. If the signal went to the process,
    another thread might receive it, and this thread might run on beyond the point. Either way the whole process stops.
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


_armed: tuple[str, Callable[[], None]] | None = None
"""The armed point, and the function that the passing thread calls at each passage."""


def crash_point(name: str) -> None:
    """Do nothing, unless a test armed `name` in this process."""
    if _armed is not None and _armed[0] == name:
        _armed[1]()


def arm(name: str, *, nth: int = 1, how: str = "kill", note: str | None = None, once: str | None = None) -> None:
    """Arm a point in a forked test process, as the environment does at import. Raise `Misuse` for an unknown name or
    `how`, and while another point is armed."""
    if how not in _SIGNALS:
        raise Misuse(f"unknown way to crash {how!r}; known: {', '.join(_SIGNALS)}", how=how)
    if nth < 1:
        raise Misuse(f"crash point {name!r}: nth={nth} is not a positive number", nth=nth)
    _arm(name, _Armed(name, nth, _SIGNALS[how], note, once).passed)


def arm_action(name: str, action: Callable[[], None]) -> None:
    """Run `action` at each passage, in the passing thread. This is for tests with several clients in one process, whose
    action raises an error. Raise `Misuse` for an unknown name, and while another point is armed."""
    _arm(name, action)


def _arm(name: str, action: Callable[[], None]) -> None:
    global _armed
    if name not in POINTS:
        raise Misuse(f"unknown crash point {name!r}; known: {', '.join(sorted(POINTS))}", name=name)
    if _armed is not None:
        raise Misuse(f"crash point {_armed[0]!r} is already armed: call disarm() before you arm {name!r}", name=name)
    _armed = name, action


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
        raise Misuse(
            f"PYOMID_CRASH_AT={text!r}: the part after ':' must be a number; for example, {name}:3 crashes the third "
            "time that the crash point is reached",
            value=text,
        )
    arm(
        name,
        nth=int(nth or "1"),
        how=os.environ.get("PYOMID_CRASH_HOW", "kill"),
        note=os.environ.get("PYOMID_CRASH_NOTE"),
        once=os.environ.get("PYOMID_CRASH_ONCE"),
    )


_arm_from_environment()
