"""Rules of tables that a client keeps, while others drop the table and make it anew with another level (T9)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from client_faults import parts_with

import pyomid
import pyomid.aio
from pyomid.database.database import Database
from pyomid.errors import ConflictError
from pyomid.protocol.commit import may_use_rules
from pyomid.types import TIMESTAMP_MAX, BeginReply, TableInfo


@pytest.fixture
def keeper(keeper: Database) -> Database:
    """It has the rules of `t`, of level cell."""
    with keeper.begin() as tx:
        tx.table("t").put(b"r", {b"f:x": b"0"})
    return keeper


def remake(db: Database) -> None:
    db.drop_table("t")
    db.create_table("t", families=["f"], conflict_level="row")
    with db.begin() as tx:
        tx.table("t").put(b"r", {b"f:x": b"1", b"f:y": b"1"})


def test_a_client_goes_by_no_rules_of_a_table_that_is_gone(db: Database, keeper: Database) -> None:
    """Else ids of cells and ids of rows never meet: both commit, one update is lost."""
    remake(db)
    mine, other = keeper.begin(), db.begin()
    for tx, column in ((mine, b"f:x"), (other, b"f:y")):
        row = tx.table("t").get(b"r")
        tx.table("t").put(b"r", {column: row[b"f:x"] + row[b"f:y"]})
    mine.commit()
    with pytest.raises(ConflictError):
        other.commit()


@pytest.mark.parametrize("writes_before", [False, True], ids=["reads its rules before", "and writes before"])
def test_who_began_before_the_new_table_aborts(db: Database, keeper: Database, writes_before: bool) -> None:
    mine = keeper.begin()
    table = mine.table("t")
    if writes_before:
        table.put(b"r", {b"f:x": b"2"})
        mine.flush()
    remake(db)
    table.put(b"r", {b"f:x": b"3"})
    with pytest.raises(ConflictError):
        mine.commit()
    with keeper.begin() as tx:
        assert tx.table("t").get(b"r") == {b"f:x": b"1", b"f:y": b"1"}


def test_a_run_that_met_a_dropped_table_runs_again_by_new_rules(db: Database, keeper: Database) -> None:
    tries: list[int] = []

    def write(tx: pyomid.Transaction) -> None:
        tries.append(tx.start_ts)
        table = tx.table("t")
        if len(tries) == 1:
            remake(db)
        table.put(b"r", {b"f:x": b"4"})

    keeper.run(write)
    assert len(tries) == 2


def test_rules_are_read_once_while_no_table_is_dropped(memory_db: Database) -> None:
    read: list[str] = []

    def table(real: Callable[[str], TableInfo], name: str) -> TableInfo:
        read.append(name)
        return real(name)

    parts = parts_with(memory_db._core.deployment, catalog={"table": table})
    kept = Database(replace(parts, settings=replace(memory_db.settings, catalog_cache_seconds=1000.0)))

    def reads_of_transactions() -> int:
        read.clear()
        for number in range(10):
            with kept.begin() as tx:
                tx.table("t").put(b"r%d" % number, {b"f:x": b"1"})
        return len(read)

    assert reads_of_transactions() == 1
    assert reads_of_transactions() == 0
    memory_db.create_table("u", families=["f"])
    assert reads_of_transactions() == 0
    memory_db.drop_table("u")
    assert reads_of_transactions() == 1
    kept._core.abandon()


@pytest.mark.parametrize(
    ("read_after", "begun", "may"),
    [
        (100, BeginReply(200, 50, 0), True),
        (100, BeginReply(200, 50, 90), True),
        (100, BeginReply(200, 50, 150), False),  # a fence was drawn since
        (100, BeginReply(200, 150, 0), False),  # a TSO took over, the fences of the one before are forgotten
        (200, BeginReply(200, 50, 250), True),  # read behind its own begin: the fence lies above its start
        (100, BeginReply(200, 50, TIMESTAMP_MAX), False),  # Apache Omid's TSO tells of no fences
        (200, BeginReply(200, 50, TIMESTAMP_MAX), True),
    ],
)
def test_rules_serve_until_a_fence_may_lie_behind_them(read_after: int, begun: BeginReply, may: bool) -> None:
    assert may_use_rules(read_after, begun) is may
