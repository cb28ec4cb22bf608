"""Numbers of columns in the embedded store."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyomid.errors import Corruption
from pyomid.folder import EmbeddedStore
from pyomid.types import Column, RowWrite, TableInfo

pytestmark = pytest.mark.fast

OLD, NEW = Column(b"f", b"a"), Column(b"f", b"b")


def test_a_number_that_is_taken_is_given_to_no_other_column(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "db")
    store.create_table(TableInfo("t", (b"f",)))
    store.write_cells("t", 50, [RowWrite(b"r", ((OLD, b"1"),))])
    environment, tables = store._environment, store._tables
    table = environment.read(lambda transaction: tables.loaded(transaction, "t", [OLD]))
    with pytest.raises(Corruption, match="number 1"):
        environment.write(lambda transaction: tables._allocate(transaction, table, {}, NEW))
    [[cell]] = store.read_rows("t", [b"r"])
    assert Column(cell.family, cell.qualifier) == OLD
    store.close()
