"""Cleaning where one writes: a commit deletes what W released of its rows (folder.md, "Cleaning")."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import pyomid
from pyomid.database.database import Database
from pyomid.errors import ConflictError
from pyomid.folder import EmbeddedStore, watermark
from pyomid.types import UNCHECKED
from waiting import until

Rows = dict[bytes, dict[bytes, bytes]]


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """Its commits raise W each time; nothing else cleans."""
    monkeypatch.setattr(watermark, "LOOK_S", 0.0)
    with pyomid.connect(f"omid://{tmp_path}/db", upkeepShare=0) as opened:
        opened.create_table("t", families=["f"])
        yield opened


def records_of(database: Database) -> int:
    store = database._deployment.store
    assert isinstance(store, EmbeddedStore)
    return store.record_count()


def put(database: Database, row: bytes, **cells: bytes) -> None:
    with database.begin() as tx:
        tx.table("t").put(row, {b"f:" + name.encode(): value for name, value in cells.items()})


def rows_of(tx: Any) -> Rows:
    return {key: dict(row) for key, row in tx.table("t").scan()}


def test_a_hot_row_stays_short(database: Database) -> None:
    for number in range(200):
        put(database, b"hot", v=b"%d" % number)
    assert records_of(database) <= 3
    with database.begin() as tx:
        assert rows_of(tx) == {b"hot": {b"f:v": b"199"}}


def test_what_an_open_snapshot_reads_stays(database: Database) -> None:
    put(database, b"hot", v=b"first")
    with database.snapshot() as old:
        for number in range(50):
            put(database, b"hot", v=b"%d" % number)
        assert records_of(database) >= 50
        assert rows_of(old) == {b"hot": {b"f:v": b"first"}}
    for number in range(10):
        put(database, b"hot", v=b"%d" % number)
    assert records_of(database) <= 3


def test_the_feed_since_a_leased_snapshot_has_every_change(database: Database) -> None:
    put(database, b"hot", v=b"first")
    bookmark = database.bookmark(keep_seconds=60)
    for number in range(20):
        put(database, b"hot", v=b"%d" % number)
    found = [change.after[b"f:v"] for change in database.changes("t", bookmark)]
    assert found == [b"%d" % number for number in range(20)]


def test_a_cell_that_others_do_not_hide_stays(database: Database) -> None:
    put(database, b"row", a=b"1", b=b"1")
    for number in range(30):
        put(database, b"row", b=b"%d" % number)
    assert records_of(database) <= 4
    with database.begin() as tx:
        assert rows_of(tx) == {b"row": {b"f:a": b"1", b"f:b": b"29"}}


@pytest.mark.parametrize("seed", range(12))
def test_every_open_snapshot_reads_on_what_it_read(database: Database, seed: int) -> None:
    rng = random.Random(seed)
    rows, names = [b"a", b"a\0", b"b"], [b"f:x", b"f:y", b"f:z"]
    opened: list[tuple[Any, Rows]] = []
    writing: list[Any] = []
    for number in range(150):
        match rng.randrange(8):
            case 0 if len(opened) < 4:
                tx = database.snapshot()
                opened.append((tx, rows_of(tx)))
            case 1 if opened:
                opened.pop(rng.randrange(len(opened)))[0].rollback()
            case 2 if len(writing) < 3:
                writing.append(database.begin())
            case 3 if writing:
                with suppress(ConflictError):
                    writing.pop(rng.randrange(len(writing))).commit()
            case 4 if writing:
                tx = rng.choice(writing)
                tx.table("t").put(rng.choice(rows), {rng.choice(names): b"%d" % number})
                if rng.random() < 0.5:
                    tx.flush()
            case 5:
                with database.begin() as tx:
                    tx.table("t").delete(rng.choice(rows), columns=rng.sample(names, 2))
            case 6:
                with database.begin() as tx:
                    tx.table("t").put(rng.choice(rows), {rng.choice(names): b"%d" % number}, conflict=False)
            case _:
                put(database, rng.choice(rows), **{rng.choice("xyz"): b"%d" % number})
        for tx, expected in opened:
            assert rows_of(tx) == expected
    for tx, _ in opened:
        tx.rollback()


def test_programs_too_brief_for_upkeep_leave_nothing_behind(tmp_path: Path) -> None:
    """Each closes before its thread looks; their tombstones do not add up."""
    url = f"omid://{tmp_path}/db"
    with pyomid.connect(url) as opened:
        opened.create_table("t", families=["f"])
    found: list[int] = []
    for program in range(20):
        with pyomid.connect(url) as opened:
            for number in range(100):
                put(opened, b"%d %d" % (program, number), v=b"1")
            with opened.begin() as tx:
                tx.table("t").delete_rows([b"%d %d" % (program, number) for number in range(100)])
            found.append(records_of(opened))
    assert max(found) <= 1500, found  # of 4000; how much a program deletes at its end depends on the load


def test_status_says_what_upkeep_has_not_checked(tmp_path: Path) -> None:
    url = f"omid://{tmp_path}/db"
    with pyomid.connect(f"{url}?upkeepShare=0") as db:
        db.create_table("t", families=["f"])
        with db.begin() as tx:
            for number in range(300):
                tx.table("t").put(b"%d" % number, {b"f:a": b"1"})
        assert db.status().tso.counters[UNCHECKED] >= 300
    with pyomid.connect(url) as db:
        put(db, b"new", a=b"1")
        until(lambda: db.status().tso.counters[UNCHECKED] < 250, "upkeep checked nothing")
