"""R10: whoever reads a table meets its whole life, or an error; by every way, in memory and in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import pyomid
import pyomid.aio
from pyomid.database import table_admin
from pyomid.database.database import Database
from pyomid.database.table_admin import make_filled
from pyomid.database.tables import indexes
from pyomid.database.tables.table import TableCore
from pyomid.errors import ConflictError, SnapshotTooOld, UnknownTable
from pyomid.protocol.reading import SnapshotScan
from pyomid.types import TableEntry, TableInfo
from table_lives import CHANGES, OPTIONS, WAYS, begun, expected, make, outcome, small_batches

pytestmark = pytest.mark.fast


@pytest.fixture
def reader(db: Database, url: str) -> Iterator[Database]:
    """Another client than `db`. W passes nothing meanwhile, which in a folder it may do within a second."""
    with pyomid.connect(url, **OPTIONS) as database, small_batches():
        database.bookmark(keep_seconds=300)
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
        for use in (lambda: tx.table("lives"), lambda: tx.claim("lives", [b"r"])):
            with pytest.raises(SnapshotTooOld, match="a former table with the same name") as refused:
                use()
            assert refused.value.values["table"] == "lives"
        tx.rollback()


def test_a_snapshot_that_knows_another_table_finds_it_gone_whatever_shape_the_new_one_has(
    db: Database, reader: Database
) -> None:
    """Not that it lacks the former one's families, columns or indexes."""
    make(db, "lives")
    db.create_index("lives", "by_kind", ["kind"])
    uses = (
        lambda tx: tx.table("lives").get(b"r", [b"f:v"]),
        lambda tx: list(tx.table("lives").scan(columns=[b"f:v"])),
        lambda tx: tx.table("lives").put(b"r", {b"f:v": b"1"}),
        lambda tx: tx.table("lives").increment(b"r", b"f:v"),
        lambda tx: tx.claim("lives", [b"r"], [b"f:v"]),
        lambda tx: tx.table("lives", codec=dict).get(1),
        lambda tx: list(tx.table("lives", codec=dict).lookup("by_kind", 1)),
        lambda tx: tx.table("lives").to_arrow(columns=["kind"]),
    )
    with reader.begin() as tx:
        db.drop_table("lives")
        db.create_table("lives", ["other"])
        for use in uses:
            with pytest.raises(SnapshotTooOld, match="begin a new transaction"):
                use(tx)
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
            assert table.get(b"r") is None
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
        with pytest.raises(SnapshotTooOld, match="a former table with the same name"):
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
        table_admin.finish_drop(db._core.deployment, late)
        assert tx.table("lives").get(b"r") is None


def test_a_restored_table_is_none_that_an_older_snapshot_knows(db: Database, reader: Database) -> None:
    """Its rows are older than itself."""
    with reader.begin() as tx:
        make_filled(db._core.deployment, TableInfo("restored", (b"f",)), lambda: None)
        with pytest.raises(SnapshotTooOld, match="a former table with the same name"):
            tx.table("restored").get(b"r")
        tx.rollback()
    with reader.snapshot() as tx:
        assert tx.table("restored").get(b"r") is None


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


def test_a_read_that_failed_fails_again_and_leaves_the_transaction_usable(db: Database, reader: Database) -> None:
    """A generator would end after its error: the caller would take the rows so far for all."""
    make(db, "lives")
    db.create_index("lives", "by_kind", ["kind"])
    with reader.begin() as tx:
        lives, typed = tx.table("lives"), tx.table("lives", codec=dict)
        scans = [lives.scan(), lives.scan(reverse=True), lives.scan(limit=1000), typed.scan(), typed.scan(reverse=True)]
        reads = [*scans, typed.lookup("by_kind", 1), typed.to_arrow(), lives.to_arrow()]
        for read in reads:
            next(iter(read))
        CHANGES["drop and create"].make(db, "lives")
        for read in reads:
            for _ in range(3):
                with pytest.raises(SnapshotTooOld):
                    list(read)
        tx.table("t").put(b"k", {b"f:x": b"1"})
        assert len(list(tx.table("t").scan())) == 1
    assert tx.commit_ts is not None


async def test_a_read_of_asyncio_that_failed_fails_again(db: Database, url: str) -> None:
    make(db, "lives")
    db.create_index("lives", "by_kind", ["kind"])
    with small_batches():
        async with await pyomid.aio.connect(url, **OPTIONS) as client, client.begin() as tx:
            lives, typed = await tx.table("lives"), await tx.table("lives", codec=dict)
            reads = [lives.scan(), lives.scan(limit=1000), typed.scan(), typed.lookup("by_kind", 1)]
            for read in reads:
                await anext(read)
            CHANGES["drop and create"].make(db, "lives")
            for read in reads:
                for _ in range(3):
                    with pytest.raises(SnapshotTooOld):
                        _ = [row async for row in read]


def test_a_read_that_was_interrupted_goes_on_without_a_gap(
    db: Database, reader: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(db, "lives")
    db.create_index("lives", "by_kind", ["kind"])
    steps = [0]

    def torn(real: Any) -> Any:
        async def every_other(*args: Any, **options: Any) -> Any:
            found = await real(*args, **options)
            steps[0] += 1
            if steps[0] % 2:
                raise KeyboardInterrupt
            return found

        return every_other

    with reader.begin() as tx:
        lives, typed = tx.table("lives"), tx.table("lives", codec=dict)
        for ask in (lives.scan, typed.scan, lambda: typed.lookup("by_kind", 1), lives.to_arrow):
            whole, found = list(ask()), []
            with monkeypatch.context() as patch:
                patch.setattr(SnapshotScan, "next", torn(SnapshotScan.next))
                patch.setattr(TableCore, "read", torn(TableCore.read))
                interrupts, read = 0, iter(ask())
                while True:
                    try:
                        found.append(next(read))
                    except StopIteration:
                        break
                    except KeyboardInterrupt:
                        interrupts += 1
            assert interrupts > 2
            assert found == whole


def test_an_index_of_a_table_that_is_made_anew_meanwhile_is_a_conflict(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(db, "lives")
    fill = indexes._fill

    def late(*args: Any) -> None:
        CHANGES["drop and create"].make(db, "lives")
        fill(*args)

    monkeypatch.setattr(indexes, "_fill", late)
    with pytest.raises(ConflictError, match="dropped or created again"):
        db.create_index("lives", "by_kind", ["kind"])
    assert db.table_info("lives").indexes == ()


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
