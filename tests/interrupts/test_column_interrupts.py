"""Columns that another process adds, and a reader that is interrupted while it loads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from interrupts import Interrupter, every_place
from pyomid.folder import EmbeddedStore, tables
from pyomid.types import CellVersion, Column, ReadBounds, RowWrite, ShadowWrite, TableInfo

pytestmark = pytest.mark.fast

OLD, NEW, LATER = Column(b"f", b"a"), Column(b"f", b"b"), Column(b"f", b"c")


def written(store: EmbeddedStore, row: bytes, version: int, *columns: Column) -> None:
    """A committed transaction, completed: a reader needs nothing below it of these columns."""
    store.write_cells("t", version, [RowWrite(row, tuple((column, b"%d" % version) for column in columns))])
    store.write_shadow_cells("t", [ShadowWrite(CellVersion(row, *column, version), version + 1) for column in columns])


def columns_of(store: EmbeddedStore, row: bytes) -> set[Column]:
    [found] = store.read_rows("t", [row], bounds=ReadBounds(committed_below=1000))
    return {Column(cell.family, cell.qualifier) for cell in found}


def test_an_interrupt_while_columns_load_leaves_them_all_or_none(
    error: Callable[[], BaseException], tmp_path: Path
) -> None:
    """What is read once more is whole, and a new column takes nobody's number."""
    other = EmbeddedStore(tmp_path / "db")

    def scene(interrupter: Interrupter) -> None:
        other.create_table(TableInfo("t", (b"f",)))
        store = EmbeddedStore(tmp_path / "db")
        written(other, b"r", 50, OLD)
        assert columns_of(store, b"r") == {OLD}
        written(other, b"r", 100, NEW)
        written(other, b"r", 150, OLD)
        found, raised = interrupter.outcome(lambda: columns_of(store, b"r"))
        assert raised is interrupter.error if found is None else found == {OLD, NEW}
        assert columns_of(store, b"r") == {OLD, NEW}
        written(store, b"s", 200, LATER)
        assert columns_of(other, b"r") == {OLD, NEW}
        assert columns_of(other, b"s") == {LATER}
        store.close()
        other.drop_table("t")

    assert every_place((tables,), error, scene) > 20
    other.close()
