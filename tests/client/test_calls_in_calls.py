"""A call that interrupts another call of its thread, as a signal handler's does, works or is refused at once."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pyomid
from pyomid import system
from pyomid.database.database import Database
from pyomid.errors import Misuse

pytestmark = pytest.mark.process


def transaction(db: Database, value: bytes, key: bytes = b"k") -> None:
    with db.begin() as tx:
        tx.table("t").put(key, {b"f:v": value})


def get(db: Database) -> None:
    with db.begin() as tx:
        tx.table("t").get(b"k")


CALLS: dict[str, Callable[[Database], object]] = {
    "a transaction": lambda db: transaction(db, b"1"),
    "a large transaction": lambda db: transaction(db, os.urandom(400_000)),
    "a get": get,
    "tables": lambda db: db.tables(),
    "a bookmark": lambda db: db.bookmark(),
    "create a table": lambda db: db.create_table(f"t{len(db.tables())}", ["f"]),
}


@contextmanager
def interrupted_in(work: Callable[[], object], every: int) -> Iterator[list[str]]:
    """Call `work` at every n-th line that the block executes in pyomid, as a signal handler would be."""
    outcomes: list[str] = []
    lines, working = 0, False

    def trace(frame: Any, event: str, argument: object) -> Any:
        nonlocal lines, working
        if working or "pyomid" not in frame.f_code.co_filename:
            return None
        if event == "line":
            lines += 1
            if lines % every == 0:
                working = True
                try:
                    work()
                    outcomes.append("done")
                except Misuse as error:
                    outcomes.append("refused" if "signal handler" in str(error) else str(error))
                finally:
                    working = False
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield outcomes
    finally:
        sys.settrace(before)


@pytest.mark.parametrize("store", ["folder", "memory"])
@pytest.mark.parametrize("outer", CALLS)
def test_a_transaction_within_any_line_of_a_call_is_done_or_refused(tmp_path: Path, store: str, outer: str) -> None:
    url = f"omid://{tmp_path}/db" if store == "folder" else f"omid-memory:{tmp_path.name}"
    with pyomid.connect(url, commit_retry_seconds=20) as db:
        db.create_table("t", ["f"], if_not_exists=True)
        seen: list[str] = []
        for every in (13, 29, 31):
            with interrupted_in(lambda: transaction(db, b"inner", b"i"), every) as outcomes:
                CALLS[outer](db)
            seen += outcomes
        assert set(seen) in ({"done"}, {"refused"}, {"done", "refused"})
        assert threading.get_ident() not in system.inside
        transaction(db, b"after")


def test_a_real_signal_handler_stops_nobody(tmp_path: Path) -> None:
    url = f"omid://{tmp_path}/db"
    outcomes: list[str] = []
    with pyomid.connect(url, commit_retry_seconds=20, completion_linger_ms=0) as db:
        db.create_table("t", ["f"])

        def handler(*_: object) -> None:
            try:
                transaction(db, b"beat", b"b")
                outcomes.append("done")
            except pyomid.OmidError as error:
                outcomes.append(type(error).__name__)
            signal.setitimer(signal.ITIMER_REAL, 0.003)

        before = signal.signal(signal.SIGALRM, handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.003)
            while len(outcomes) < 100:
                with db.begin() as tx:
                    tx.table("t").put(b"main", {b"f:v": b"x" * 100_000})
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
    assert set(outcomes) <= {"done", "Misuse", "ConflictError"}
