"""The embedded stores join the conformance suites, with a second handle standing for another process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance import (
    FAMILIES,
    CatalogConformance,
    DataStoreConformance,
    written_batch,
)
from pyomid.cells import without_values
from pyomid.errors import Corruption
from pyomid.folder import EmbeddedCatalog, EmbeddedStore
from pyomid.folder.records import record_key
from pyomid.types import CellVersion, Column, ReadBounds, RowWrite, ShadowWrite, TableInfo

pytestmark = pytest.mark.fast


class TestEmbeddedStore(DataStoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[EmbeddedStore]:
        store, self._other = EmbeddedStore(tmp_path), EmbeddedStore(tmp_path)
        yield store
        store.close()
        self._other.close()

    @pytest.fixture
    def table(self, store: EmbeddedStore) -> str:
        store.create_table(TableInfo("t", FAMILIES))
        return "t"

    def another(self, store: object) -> EmbeddedStore:
        return self._other

    def test_shadow_cells_of_batches_are_those_of_their_cells(self, store: EmbeddedStore, table: str) -> None:
        """Of 50 rows, some of which lost a cell, or all of them, since they were written."""
        first, second = Column(FAMILIES[0], b"a"), Column(FAMILIES[0], b"b")
        rows = [RowWrite(b"%03d\0" % number, ((first, b"1"), (second, None))) for number in range(50)]
        batch = written_batch(*rows)
        store.create_table(TableInfo("same", FAMILIES))
        for name in (table, "same"):
            store.write_batch(name, 100, batch)
            gone = [CellVersion(write.row, *first, 100) for write in rows[::3]]
            store.delete_versions(name, gone + [CellVersion(write.row, *second, 100) for write in rows[::5]])
        store.write_shadow_batches(table, 100, [without_values(batch)], 151)
        names = [CellVersion(write.row, *column, 100) for write in rows for column in (first, second)]
        store.write_shadow_cells("same", [ShadowWrite(name, 151) for name in names])

        keys = [write.row for write in rows]
        assert store.read_rows(table, keys) == store.read_rows("same", keys)
        assert {cell.commit_ts for cells in store.read_rows(table, keys) for cell in cells} == {151}


@pytest.mark.parametrize("columns", [None, [Column(b"f", b"")], [Column(b"f", b"a")], [Column(b"f", b"none")]])
def test_a_point_read_stops_at_the_newest_visible(tmp_path: Path, columns: list[Column] | None) -> None:
    """The oldest version is damaged: who reads it, notices."""
    store, cell = EmbeddedStore(tmp_path), Column(b"f", b"a")
    store.create_table(TableInfo("t", FAMILIES))
    for version in range(50, 1000, 50):
        store.write_cells("t", version, [RowWrite(b"r", ((cell, b"%d" % version),))])
    shadows = [ShadowWrite(CellVersion(b"r", *cell, version), version + 1) for version in range(50, 900, 50)]
    store.write_shadow_cells("t", shadows)
    key = record_key(store._environment.read(lambda t: store._tables.table(t, "t")).prefix, b"r", 50)
    store._environment.write(lambda transaction: transaction.put(key, b"damaged", db=store._cells))

    (cells,) = store.read_rows("t", [b"r"], columns, bounds=ReadBounds(below=951, committed_below=951))
    assert [each.version for each in cells] == ([950, 900, 850] if columns != [Column(b"f", b"none")] else [])
    with pytest.raises(Corruption):
        store.read_rows("t", [b"r"], columns)
    store.close()


def test_a_read_stops_above_no_column_of_another_process(tmp_path: Path) -> None:
    """Column b is younger than what this store knows of the table, and lies below the newest version of a."""
    store, other = EmbeddedStore(tmp_path), EmbeddedStore(tmp_path)
    store.create_table(TableInfo("t", FAMILIES))
    a, b = Column(b"f", b"a"), Column(b"f", b"b")
    store.write_cells("t", 50, [RowWrite(b"r", ((a, b"1"),))])
    assert len(store.read_rows("t", [b"r"])[0]) == 1
    other.write_cells("t", 100, [RowWrite(b"r", ((b, b"2"),))])
    other.write_cells("t", 150, [RowWrite(b"r", ((a, b"3"),))])
    other.write_shadow_cells("t", [ShadowWrite(CellVersion(b"r", *a, 150), 151)])
    bounds = ReadBounds(below=300, committed_below=300)
    for columns in (None, [Column(b"f", b"")], [a, b]):
        (cells,) = store.read_rows("t", [b"r"], columns, bounds=bounds)
        assert {each.version for each in cells} >= {150, 100}
    store.close()
    other.close()


@pytest.mark.parametrize("written", [1, 2, 5])
def test_a_read_that_looks_for_a_column_further_down_takes_no_old_version_of_the_others(
    tmp_path: Path, written: int
) -> None:
    """The table has a column that the row lacks: then a row of many versions costs as much as the newest of them, and
    a look at the others."""
    store = EmbeddedStore(tmp_path)
    store.create_table(TableInfo("t", FAMILIES))
    columns = [Column(b"f", name) for name in (b"a", b"b", b"c", b"d", b"e", b"g")]
    store.write_cells("t", 50, [RowWrite(b"other", tuple((column, b"1") for column in columns))])
    for version in range(50, 1000, 50):
        store.write_cells("t", version, [RowWrite(b"r", tuple((column, b"1") for column in columns[:written]))])
        names = [CellVersion(b"r", *column, version) for column in columns[:written]]
        store.write_shadow_cells("t", [ShadowWrite(name, version + 1) for name in names])
    (cells,) = store.read_rows("t", [b"r"], bounds=ReadBounds(below=2000, committed_below=2000))
    assert [cell.version for cell in cells] == [950] * written
    store.close()


class TestEmbeddedCatalog(CatalogConformance):
    @pytest.fixture
    def catalog(self, tmp_path: Path) -> Iterator[EmbeddedCatalog]:
        catalog = EmbeddedCatalog(tmp_path)
        yield catalog
        catalog.close()


OTHER_CATALOG = """
import sys
from pyomid.folder import EmbeddedCatalog
from pyomid.types import TableEntry, TableInfo, TableState

catalog = EmbeddedCatalog(sys.argv[1])
entry = None
for line in sys.stdin:
    other = TableEntry(TableInfo("t", (b"f",), generation=int(line)), TableState.PRESENT, line)
    assert catalog.change_entry(entry, other)
    entry = other
    print(line, end="", flush=True)
"""


@pytest.mark.process
def test_a_table_of_another_process_is_seen_at_once(tmp_path: Path) -> None:
    mine = EmbeddedCatalog(tmp_path)
    assert mine.entry("t") is None
    command = [sys.executable, "-c", OTHER_CATALOG, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        for generation in range(1, 20):
            other.stdin.write(b"%d\n" % generation)
            other.stdin.flush()
            other.stdout.readline()
            found = mine.entry("t"), mine.entry("t")
            assert [entry and entry.info.generation for entry in found] == [generation, generation]
        other.stdin.close()
    mine.close()
