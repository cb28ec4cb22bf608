"""`put_with_cells`: cells, shadow cells and entries in one step, in the memory store and in a folder (T19)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from embedded_images import image_after_kill

from pyomid.errors import Corruption, Deposed, Misuse, OmidError, StoreFull, UnknownTable
from pyomid.ports import CommitTable, DataStore, LeaderState
from pyomid.storage.embedded import EmbeddedCommitTable, EmbeddedLeaderState, EmbeddedStore
from pyomid.storage.embedded.environment import Environment
from pyomid.storage.embedded.records import HEADER_BYTES
from pyomid.storage.memory import MemoryCommitTable, MemoryLeaderState, MemoryStore
from pyomid.types import NOT_FOUND, SEALED, Cell, CellsOfCommit, Column, RowWrite, TableInfo

pytestmark = [pytest.mark.fast, pytest.mark.timeout(60)]

EPOCH = 5000
X, Y, TOMB = Column(b"f", b"x"), Column(b"f", b"y"), Column(b"f", b"")
ROW = RowWrite(b"r\0w", ((X, b"1"), (Y, None), (TOMB, None)))


@dataclass
class Stores:
    store: DataStore
    commits: CommitTable
    leader_state: LeaderState

    def put(
        self, *cells: CellsOfCommit, entries: tuple[tuple[int, int], ...] = (), epoch: int = EPOCH
    ) -> tuple[list[int], dict[int, OmidError]]:
        rows = [*entries, *((each.start_ts, each.commit_ts) for each in cells)]
        end = self.commits.put_with_cells(np.array(rows, dtype=np.int64).reshape(-1, 2), cells, epoch)
        assert end.epoch == epoch
        return list(end.refused), dict(end.failed)

    def carried(self, start: int, *rows: RowWrite, table: str = "t") -> CellsOfCommit:
        return CellsOfCommit(start, start + 10, self.store.pack_cells(start, [(table, rows or (ROW,))]))

    def cells(self, table: str = "t", row: bytes = ROW.row) -> set[Cell]:
        return set(self.store.read_rows(table, [row])[0])


@pytest.fixture(params=["memory", "folder"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    if request.param == "memory":
        store, row = MemoryStore(), MemoryLeaderState()
        made = Stores(store, MemoryCommitTable(store, row), row)
    else:
        made = of_folder(tmp_path / "db")
    with led(made):
        yield made


def of_folder(folder: Path) -> Stores:
    table, row = EmbeddedCommitTable(folder, writable=True), EmbeddedLeaderState(folder, writable=True)
    return Stores(EmbeddedStore(folder), table, row)


@contextmanager
def led(stores: Stores) -> Iterator[None]:
    for name in ("t", "u"):
        stores.store.create_table(TableInfo(name, (b"f",)))
    assert stores.leader_state.take_over(expected=0, epoch=EPOCH, ceiling=EPOCH + 1000)
    yield
    for port in (stores.store, stores.commits, stores.leader_state):
        if hasattr(port, "close"):
            port.close()


def test_cells_come_with_their_shadow_cells_and_entries(stores: Stores) -> None:
    one = stores.carried(5050)
    packed = stores.store.pack_cells(5100, [("t", [ROW]), ("u", [RowWrite(b"a", ((X, b"2"),)), ROW])])
    assert stores.put(one, CellsOfCommit(5100, 5110, packed), entries=((5150, 5160),)) == ([], {})
    both = {Cell(ROW.row, *column, start, value, start + 10) for start in (5050, 5100) for column, value in ROW.cells}
    assert stores.cells() == both
    assert stores.cells("u") == {cell for cell in both if cell.version == 5100}
    assert stores.cells("u", b"a") == {Cell(b"a", *X, 5100, b"2", 5110)}
    assert stores.commits.lookup([5050, 5100, 5150]) == [5060, 5110, 5160]


def test_a_step_may_be_tried_again(stores: Stores) -> None:
    one = stores.carried(5050)
    for _ in range(2):
        assert stores.put(one, entries=((5150, 5160),)) == ([], {})
        assert {cell.commit_ts for cell in stores.cells()} == {5060}
        assert stores.commits.lookup([5050, 5150]) == [5060, 5160]


def test_another_epoch_writes_nothing(stores: Stores) -> None:
    one = stores.carried(5050)
    assert stores.leader_state.take_over(expected=EPOCH, epoch=EPOCH + 2000, ceiling=EPOCH + 3000)
    with pytest.raises(Deposed):
        stores.put(one, entries=((5150, 5160),))
    assert not stores.cells()
    assert stores.commits.lookup([5050, 5150]) == [NOT_FOUND, NOT_FOUND]


def test_a_marker_keeps_cells_and_entry_out(stores: Stores) -> None:
    one, two = stores.carried(5050), stores.carried(5100)
    stores.commits.seal(5050)
    stores.commits.seal(5200)
    assert stores.put(one, two, entries=((5200, 5210),)) == ([5200, 5050], {})
    assert {cell.version for cell in stores.cells()} == {5100}
    assert stores.commits.lookup([5050, 5100, 5200]) == [SEALED, 5110, SEALED]


def test_a_table_that_is_gone_harms_nobody_else(stores: Stores) -> None:
    one, two = stores.carried(5050, table="u"), stores.carried(5100)
    stores.store.drop_table("u")
    refused, failed = stores.put(one, two, entries=((5200, 5210),))
    assert (refused, list(failed)) == ([], [5050])
    assert isinstance(failed[5050], UnknownTable)
    assert stores.commits.lookup([5050, 5100, 5200]) == [NOT_FOUND, 5110, 5210]
    assert {cell.version for cell in stores.cells()} == {5100}


def test_what_no_store_packs_is_refused_and_harms_nobody_else(stores: Stores) -> None:
    """Cut anywhere, bits turned over, bytes put in: nothing of it is written unless it is what a client might pack."""
    good = stores.carried(5050).cells
    rng = random.Random(1)
    bad = [good[:cut] for cut in range(1, len(good))]
    for _ in range(300):
        broken = bytearray(good)
        broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        bad += [bytes(broken), good + bytes([rng.randrange(256)])]
    start, refusals = 10_000, 0
    for packed in bad:
        start += 100
        _, failed = stores.put(CellsOfCommit(start, start + 10, packed), CellsOfCommit(start + 50, start + 60, good))
        assert stores.commits.lookup([start + 50]) == [start + 60]
        if failed:
            refusals += 1
            assert list(failed) == [start]
            assert isinstance(failed[start], (Misuse, UnknownTable))
            assert stores.commits.lookup([start]) == [NOT_FOUND]
            assert all(cell.version != start for cell in stores.cells())
    assert refusals > len(bad) // 2
    for batch in stores.store.scan("t", stores.store.regions("t")[0]):
        assert batch.rows, "whatever was written can be read"


def test_limits_are_those_of_a_write(stores: Stores) -> None:
    for row, error in (
        (RowWrite(b"", ((X, b"1"),)), Misuse),
        (RowWrite(b"r", ((X, b""),)), Misuse),
        (RowWrite(b"r", ((Column(b"g", b"x"), b"1"),)), Misuse),
        (RowWrite(b"r", ((TOMB, b"1"),)), Misuse),
    ):
        with pytest.raises(error):
            stores.carried(5050, row)
    with pytest.raises(UnknownTable):
        stores.carried(5050, table="nothing")


def test_a_row_of_another_write_stays(stores: Stores) -> None:
    stores.store.write_cells("t", 5000, [ROW])
    assert stores.put(stores.carried(5050)) == ([], {})
    assert {(cell.version, cell.commit_ts) for cell in stores.cells()} == {(5000, 0), (5050, 5060)}


# A folder


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[tuple[Stores, Path]]:
    made = of_folder(tmp_path / "db")
    with led(made):
        yield made, tmp_path / "db"


def test_a_full_disk_refuses_what_carries_cells_and_keeps_the_rest(
    folder: tuple[Stores, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    stores, _ = folder
    one = stores.carried(5050)
    write: Callable[..., object] = Environment.write
    calls: list[int] = []

    def full_once(environment: Environment, *args: object, **kwargs: object) -> object:
        calls.append(1)
        if len(calls) == 1:
            raise StoreFull("no room")
        return write(environment, *args, **kwargs)

    monkeypatch.setattr(Environment, "write", full_once)
    refused, failed = stores.put(one, entries=((5150, 5160),))
    assert refused == []
    assert isinstance(failed[5050], StoreFull)
    assert stores.commits.lookup([5050, 5150]) == [NOT_FOUND, 5160]
    assert not stores.cells()
    assert stores.put(one) == ([], {})


def test_a_row_of_many_columns_is_the_record_that_a_write_makes(folder: tuple[Stores, Path]) -> None:
    stores, _ = folder
    wide = RowWrite(b"wide", tuple((Column(b"f", b"%d" % number), b"%d" % number) for number in range(1, 16)))
    stores.store.write_cells("t", 5000, [wide])
    assert stores.put(stores.carried(5050, ROW, wide)) == ([], {})
    versions = sorted((cell.version, cell.qualifier, cell.value) for cell in stores.cells(row=b"wide"))
    assert versions == sorted(
        (start, column.qualifier, value) for start in (5000, 5050) for column, value in wide.cells
    )
    assert isinstance(stores.store, EmbeddedStore)
    records = stores.store._environment.read(lambda transaction: list(transaction.cursor(stores.store._cells)))
    carried, written = (value[HEADER_BYTES:] for key, value in records if b"wide" in key)
    assert carried == written
    assert carried[0] == 0, "dense"


def test_one_transaction_of_lmdb_holds_all_of_it(folder: tuple[Stores, Path]) -> None:
    stores, _ = folder
    commits = stores.commits
    assert isinstance(commits, EmbeddedCommitTable)
    stores.put(stores.carried(5050))
    two, three = stores.carried(5100), stores.carried(5150)
    commits.delete_at_once(np.array([5050], dtype=np.int64))
    before = commits._environment._lmdb.info()["last_txnid"]
    stores.put(two, three, entries=((5200, 5210),))
    assert commits._environment._lmdb.info()["last_txnid"] == before + 1
    assert commits.lookup([5050, 5100, 5150, 5200]) == [NOT_FOUND, 5110, 5160, 5210]


def test_what_was_told_durable_outlives_a_kill(folder: tuple[Stores, Path], tmp_path: Path) -> None:
    stores, path = folder
    stores.put(stores.carried(5050))
    killed = image_after_kill(path, tmp_path / "killed")
    store, commits = EmbeddedStore(killed), EmbeddedCommitTable(killed, writable=False)
    assert {cell.commit_ts for cell in store.read_rows("t", [ROW.row])[0]} == {5060}
    assert commits.lookup([5050]) == [5060]
    store.close()
    commits.close()


def test_a_damaged_bucket_is_told(folder: tuple[Stores, Path]) -> None:
    stores, _ = folder
    stores.put(stores.carried(5050))
    commits = stores.commits
    assert isinstance(commits, EmbeddedCommitTable)

    def damage(transaction: object) -> None:
        with transaction.cursor(commits._commits) as cursor:  # type: ignore[attr-defined]
            cursor.first()
            value = bytearray(cursor.value())
            value[0] ^= 1
            cursor.put(cursor.key(), bytes(value))

    commits._environment.write(damage)
    with pytest.raises(Corruption):
        stores.put(stores.carried(5100))
