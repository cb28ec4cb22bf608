"""R10: whoever reads a table meets its whole life, or an error; by every way, in memory and in a folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pyomid
from pyomid.client import table_admin
from pyomid.client.database import Database
from pyomid.client.table_admin import make_filled
from pyomid.errors import SnapshotTooOld, UnknownTable
from pyomid.types import TableEntry, TableInfo
from table_lives import CHANGES, OPTIONS, WAYS, begun, expected, make, outcome, small_batches

pytestmark = pytest.mark.fast


@pytest.fixture
def reader(db: Database, url: str) -> Iterator[Database]:
    """Another client than `db`."""
    with pyomid.connect(url, **OPTIONS) as database, small_batches():
        yield database


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("way", WAYS)
def test_a_read_is_of_one_life_of_its_table(db: Database, reader: Database, way: str, change: str) -> None:
    make(db, "lives")
    reading = begun(reader, "lives", WAYS[way])
    CHANGES[change].make(db, "lives")
    assert outcome(reading) == expected(CHANGES[change])


# A table that is younger than the snapshot


@pytest.mark.parametrize("change", ["drop and create", "drop, create and fill", "drop and create twice"])
def test_a_snapshot_takes_no_later_table_for_the_one_that_it_knows(db: Database, reader: Database, change: str) -> None:
    """Nothing was opened before the change."""
    make(db, "lives")
    with reader.begin() as tx:
        CHANGES[change].make(db, "lives")
        lives = tx.table("lives")
        for read in (lambda: lives.get(b"r"), lambda: list(lives.scan()), lambda: lives.to_arrow().read_all()):
            with pytest.raises(SnapshotTooOld, match="may know a former table of that name") as refused:
                read()
            assert refused.value.values["table"] == "lives"
        tx.rollback()


def test_a_new_table_is_empty_to_a_snapshot_that_knows_no_other_of_its_name(db: Database, reader: Database) -> None:
    make(db, "gone")
    db.drop_table("gone")
    with reader.begin() as tx:
        CHANGES["another table"].make(db, "t")
        db.create_table("gone", ["f"])  # its former one went before the snapshot
        db.create_table("new", ["f"])
        for name in ("gone", "new"):
            table = tx.table(name)
            assert table.get(b"r") == {}
            table.put(b"r", {b"f:x": b"1"})
            assert [row for _, row in table.scan()] == [{b"f:x": b"1"}]
    with reader.snapshot() as tx:
        assert tx.table("new").get(b"r") == tx.table("gone").get(b"r") == {b"f:x": b"1"}


def test_a_drop_that_another_client_ends_is_noted(db: Database, reader: Database) -> None:
    make(db, "lives")
    with reader.begin() as tx:
        CHANGES["half a drop"].make(db, "lives")
        db.create_table("lives", ["f"])
        with pytest.raises(SnapshotTooOld):
            tx.table("lives").get(b"r")
        tx.rollback()


def test_a_creator_that_stalls_makes_no_table_older_than_its_former_lives(
    db: Database, reader: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It found no table; before it puts its entry, the name has a whole life, which the snapshot knows."""
    held, change_entry = [], db._core.deployment.catalog.change_entry

    def stalled(old: TableEntry | None, new: TableEntry) -> bool:
        monkeypatch.undo()
        make(db, "lives")
        held.append(reader.begin())
        db.drop_table("lives")
        return change_entry(old, new)

    monkeypatch.setattr(db._core.deployment.catalog, "change_entry", stalled)
    db.create_table("lives", ["f"])
    for read in (lambda: held[0].table("lives").get(b"r"), lambda: list(held[0].table("lives").scan())):
        with pytest.raises(SnapshotTooOld, match="may know a former table of that name"):
            read()
    held[0].rollback()
    with reader.snapshot() as tx:
        assert list(tx.table("lives").scan()) == []


def test_a_client_that_comes_late_to_a_drop_refuses_nothing(db: Database, reader: Database) -> None:
    """Another client has finished the drop."""
    make(db, "lives")
    CHANGES["half a drop"].make(db, "lives")
    (late,) = (entry for entry in db._core.deployment.catalog.entries() if entry.info.name == "lives")
    db.drop_table("lives")
    with reader.begin() as tx:
        db.create_table("lives", ["f"])
        table_admin._finish_drop(db._core.deployment, late)
        assert tx.table("lives").get(b"r") == {}


def test_a_restored_table_is_none_that_an_older_snapshot_knows(db: Database, reader: Database) -> None:
    """Its rows are older than itself."""
    with reader.begin() as tx:
        make_filled(db._core.deployment, TableInfo("restored", (b"f",)), lambda: None)
        with pytest.raises(SnapshotTooOld, match="may know a former table of that name"):
            tx.table("restored").get(b"r")
        tx.rollback()
    with reader.snapshot() as tx:
        assert tx.table("restored").get(b"r") == {}


# What follows from a read that was refused


def test_what_was_computed_from_a_torn_read_is_not_committed(db: Database, reader: Database) -> None:
    make(db, "lives")
    tries = []

    def add_up(tx: pyomid.Transaction) -> int:
        tries.append(tx.start_ts)
        total = 0
        for number, (_, row) in enumerate(tx.table("lives").scan(columns=[b"f:v"])):
            total += bool(row)
            if number == 5 and len(tries) == 1:
                CHANGES["drop and create"].make(db, "lives")
        tx.table("t").put(b"total", {b"f:x": b"%d" % total})
        return total

    assert reader.run(add_up) == 0
    assert len(tries) == 2
    with reader.snapshot() as tx:
        assert tx.table("t").get(b"total") == {b"f:x": b"0"}


@pytest.mark.parametrize("change", ["drop", "half a drop", "drop and half a creation"])
def test_a_run_whose_table_was_dropped_runs_again_and_finds_none(db: Database, keeper: Database, change: str) -> None:
    """A client that keeps rules of tables too."""
    make(db, "lives")
    tries = []

    def count(tx: pyomid.Transaction) -> int:
        lives = tx.table("lives")
        tries.append(tx.start_ts)
        if len(tries) == 1:
            CHANGES[change].make(db, "lives")
        return len(list(lives.scan()))

    with pytest.raises(UnknownTable):
        keeper.run(count)
    assert len(tries) == 1, "the second time it is not opened"


def test_an_index_that_is_dropped_and_built_again_ends_a_lookup(db: Database, reader: Database) -> None:
    make(db, "lives")
    db.create_index("lives", "by_kind", ["kind"])
    with reader.begin() as tx:
        found = tx.table("lives", codec=dict).lookup("by_kind", 1)
        assert next(iter(found))["id"] == 0
        db.drop_index("lives", "by_kind")
        db.create_index("lives", "by_kind", ["kind"])
        with pytest.raises(SnapshotTooOld, match="an index that this transaction reads or maintains was dropped"):
            list(found)
        tx.rollback()
