"""What the oracle remembers of tables, in rows that the kernel reads and the plain machine sees as dictionaries."""

from __future__ import annotations

from collections.abc import Collection, Iterator, MutableMapping
from typing import Any, Final

import numpy as np

from pyomid.kernels.compiled import Records, kernel
from pyomid.oracle.native.records import Table

_ROWS_MIN: Final = 64


@kernel("int64(Table[::1], int64)", nogil=False, _nrt=False, forceinline=True)
def find_table(tables: Records[Table], table_id: Any) -> Any:
    """The table's row, or the free row where it would go. At least one row is always free."""
    mask = np.uint64(len(tables) - 1)
    row = np.uint64(table_id) * np.uint64(0x9E37_79B9_7F4A_7C15) >> np.uint64(32) & mask
    while tables[row].is_used and tables[row].table_id != table_id:
        row = (row + np.uint64(1)) & mask
    return np.int64(row)


class TableRows:
    """Table id → (decidable?, fence, last commit, conflicts), open addressing, at most half full."""

    def __init__(self) -> None:
        self.rows: Any = Table.array(_ROWS_MIN)
        self._used = 0

    def row_of(self, table_id: int) -> int:
        """Made where there is none."""
        row = int(find_table(self.rows, np.int64(table_id)))
        if self.rows["is_used"][row]:
            return row
        if 2 * (self._used + 1) > len(self.rows):
            self._make_room()
            row = int(find_table(self.rows, np.int64(table_id)))
        self.rows["table_id"][row], self.rows["is_used"][row] = table_id, 1
        self._used += 1
        return row

    def set_decidable(self, table_ids: Collection[int]) -> None:
        """A commit to these needs no look at the catalog (`oracle.tables`), to others it does."""
        self.rows["is_known"] = 0
        for table_id in table_ids:
            row = self.row_of(table_id)  # which may make room
            self.rows["is_known"][row] = 1

    def _make_room(self) -> None:
        """Rows that say nothing any more go; so the table may become smaller, too."""
        rows = self.rows
        says = (rows["is_known"] | rows["fence_ts"] | rows["commit_ts"] | rows["conflicts"]) != 0
        old = rows[(rows["is_used"] == 1) & says]
        self._used = len(old)
        size = _ROWS_MIN
        while size < 4 * self._used:
            size *= 2
        self.rows = Table.array(size)
        for row in old:
            self.rows[find_table(self.rows, row["table_id"])] = row


class TableColumn(MutableMapping[int, int]):
    """One number of each table, as the dictionary that `StatusOracle` keeps. 0 is none."""

    def __init__(self, tables: TableRows, column: str) -> None:
        self._tables = tables
        self._column = column

    def __getitem__(self, table_id: int) -> int:
        rows = self._tables.rows
        row = int(find_table(rows, np.int64(table_id)))
        if not rows["is_used"][row] or not rows[self._column][row]:
            raise KeyError(table_id)
        return int(rows[self._column][row])

    def __setitem__(self, table_id: int, value: int) -> None:
        row = self._tables.row_of(table_id)
        self._tables.rows[self._column][row] = value

    def __delitem__(self, table_id: int) -> None:
        self[table_id] = 0

    def __iter__(self) -> Iterator[int]:
        rows = self._tables.rows
        filled = rows[(rows["is_used"] == 1) & (rows[self._column] != 0)]
        return iter(filled["table_id"].tolist())

    def __len__(self) -> int:
        return sum(1 for _ in self)


def fences(tables: TableRows) -> MutableMapping[int, int]:
    return TableColumn(tables, "fence_ts")


def table_commits(tables: TableRows) -> MutableMapping[int, int]:
    return TableColumn(tables, "commit_ts")


def table_conflicts(tables: TableRows) -> MutableMapping[int, int]:
    return TableColumn(tables, "conflicts")
