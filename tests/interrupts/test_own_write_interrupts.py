"""A call that was interrupted, and made again: what a transaction sees of itself is what it commits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import pyomid
from interrupts import OWN_WRITES, Interrupter, every_place
from pyomid import coroutines
from pyomid.database import transaction, validation
from pyomid.database.database import Database
from pyomid.database.tables import scans, table
from pyomid.database.tables.table import Table
from pyomid.errors import TransactionEnded

pytestmark = [
    pytest.mark.fast,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

MODULES = (coroutines, scans, table, transaction, validation, *OWN_WRITES)
KEYS = [b"a", b"b", b"k", b"m"]
OLD = {b"f:x": b"old", b"f:y": b"old"}

Act = Callable[[pyomid.Transaction, Table], Any]


def go_back(tx: pyomid.Transaction, rows: Table) -> None:
    with suppress(ZeroDivisionError), tx.savepoint():
        rows.put(b"m", {b"f:x": b"3"})
        rows.delete(b"a")
        raise ZeroDivisionError


ACTS: dict[str, Act] = {
    "put": lambda tx, rows: rows.put(b"k", {b"f:x": b"2", b"f:y": b"2"}),
    "put of a row that is buffered": lambda tx, rows: rows.put(b"b", {b"f:y": b"2"}),
    "conflict-free put": lambda tx, rows: rows.put(b"k", {b"f:x": b"2"}, conflict=False),
    "put_if_absent": lambda tx, rows: rows.put_if_absent(b"k", {b"f:x": b"2"}),
    "delete": lambda tx, rows: rows.delete(b"a"),
    "delete_rows": lambda tx, rows: rows.delete_rows([b"a", b"b", b"c"]),
    "flush": lambda tx, rows: tx.flush(),
    "savepoint": go_back,
    "scan": lambda tx, rows: list(rows.scan()),
}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    with pyomid.connect(f"omid-memory:{tmp_path.name}") as made:
        made.create_table("t", families=["f"])
        yield made


@pytest.mark.parametrize("name", ACTS)
def test_a_repeated_call_is_seen_by_get_and_scan_and_committed(database: Database, name: str) -> None:
    """Or the transaction refuses to go on."""
    act = ACTS[name]

    def scene(interrupter: Interrupter) -> None:
        with database.begin() as tx:
            tx.table("t").delete_rows([b"b", b"k", b"m"])
            tx.table("t").put(b"a", OLD)
        tx = database.begin()
        rows = tx.table("t")
        rows.put(b"b", {b"f:x": b"1"})
        assert dict(rows.scan()) == {b"a": OLD, b"b": {b"f:x": b"1"}}
        _, raised = interrupter.outcome(lambda: act(tx, rows))
        assert raised is interrupter.error or raised is None
        try:
            if raised is not None:
                act(tx, rows)
            seen = dict(rows.scan())
            assert rows.rows(KEYS) == {key: seen.get(key) for key in KEYS}
            tx.commit()
        except TransactionEnded:
            tx.rollback()
            seen = {b"a": OLD}
        with database.snapshot() as after:
            assert dict(after.table("t").scan()) == seen

    assert every_place(MODULES, KeyboardInterrupt, scene) > 3


@pytest.mark.parametrize("name", [name for name in ACTS if name not in ("flush", "scan")])
def test_a_savepoint_takes_back_a_call_that_was_interrupted(database: Database, name: str) -> None:
    """Later writes were sent meanwhile. Or the transaction refuses to go on."""
    act = ACTS[name]

    def scene(interrupter: Interrupter) -> None:
        with database.begin() as tx:
            tx.table("t").delete_rows([b"b", b"k", b"m", b"z"])
            tx.table("t").put(b"a", OLD)
        with database.begin() as tx:
            rows = tx.table("t")
            rows.put(b"b", {b"f:x": b"1"})
            saved = tx.savepoint()
            interrupter.outcome(lambda: act(tx, rows))
            if tx.state is not transaction.State.ACTIVE or tx._core.writes.is_torn:
                return tx.rollback()
            rows.put(b"z", {b"f:x": b"1"})
            tx.flush()
            saved.rollback()
            assert dict(rows.scan()) == {b"a": OLD, b"b": {b"f:x": b"1"}}
        with database.snapshot() as after:
            assert dict(after.table("t").scan()) == {b"a": OLD, b"b": {b"f:x": b"1"}}

    assert every_place(MODULES, KeyboardInterrupt, scene) > 3
