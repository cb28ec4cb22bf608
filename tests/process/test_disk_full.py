"""No room left in the middle of a flush: the transaction is rollback-only, the store stays whole, room helps."""

from __future__ import annotations

from pathlib import Path

import pytest

import pyomid
from pyomid.database.transaction import State
from pyomid.errors import StoreFull, TransactionEnded

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

SMALL_GIB = 0.008
VALUE = b"v" * 50_000


def fill(db: pyomid.Database) -> tuple[pyomid.Transaction, int]:
    """Commits row after row until the store is full: the transaction that met the end, and how many committed."""
    for number in range(10_000):
        tx = db.begin()
        try:
            tx.table("t").put(b"%05d" % number, {b"f:x": VALUE})
            tx.commit()
        except StoreFull:
            return tx, number
    raise AssertionError("the store never filled")


def write_for_ever(tx: pyomid.Transaction) -> None:
    with tx:
        for number in range(10_000):
            tx.table("t").put(b"%05d" % number, {b"f:x": VALUE})


def test_a_full_store_dooms_the_transaction_that_met_it_and_keeps_every_committed_row(tmp_path: Path) -> None:
    url = f"omid://{tmp_path}/db?completionLingerMs=0"
    with pyomid.connect(url, map_size_gib=SMALL_GIB) as db:
        db.create_table("t", families=["f"])
        tx, committed = fill(db)
        assert committed > 0
        assert tx.state is State.ROLLBACK_ONLY
        with pytest.raises(TransactionEnded, match="rollback-only"):
            tx.commit()
        tx.rollback()
        with db.begin() as reader:
            assert [key for key, _ in reader.table("t").scan()] == [b"%05d" % number for number in range(committed)]
    with pyomid.connect(url) as roomier:
        with roomier.begin() as tx:
            tx.table("t").put(b"later", {b"f:x": VALUE})
        with roomier.begin() as reader:
            rows = dict(reader.table("t").scan())
        assert len(rows) == committed + 1
        assert set(map(len, (row[b"f:x"] for row in rows.values()))) == {len(VALUE)}


def test_a_flush_that_meets_the_end_half_way_leaves_nothing_of_its_transaction_visible(tmp_path: Path) -> None:
    url = f"omid://{tmp_path}/db?flushBytes=200000"
    with pyomid.connect(url, map_size_gib=SMALL_GIB) as db:
        db.create_table("t", families=["f"])
        tx = db.begin()
        with pytest.raises(StoreFull):
            write_for_ever(tx)
        assert tx.state is State.ROLLED_BACK
        with db.begin() as reader:
            assert list(reader.table("t").scan()) == []
        db.drain(30)
    with pyomid.connect(url) as roomier, roomier.begin() as tx:
        tx.table("t").put(b"k", {b"f:x": b"1"})
