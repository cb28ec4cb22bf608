"""What the oracle remembers of tables, in rows that the kernel reads and the plain machine sees as dictionaries."""

from __future__ import annotations

from collections.abc import Collection, Iterator, MutableMapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pyomid.oracle.native.decide import (
    TABLE_COMMIT,
    TABLE_FENCE,
    TABLE_ID,
    TABLE_KNOWN,
    TABLE_USED,
    TABLE_WORDS,
    find_table,
)

_ROWS_MIN: Final = 64


class TableRows:
    """Table id → (settled?, fence, last commit), open addressing, at most half full."""

    def __init__(self) -> None:
        self.rows: NDArray[np.int64] = np.zeros((_ROWS_MIN, TABLE_WORDS), dtype=np.int64)
        self._used = 0

    def row_of(self, table_id: int) -> int:
        """Made where there is none."""
        row = int(find_table(self.rows, np.int64(table_id)))
        if self.rows[row, TABLE_USED]:
            return row
        if 2 * (self._used + 1) > len(self.rows):
            self._make_room()
            row = int(find_table(self.rows, np.int64(table_id)))
        self.rows[row, TABLE_ID], self.rows[row, TABLE_USED] = table_id, 1
        self._used += 1
        return row

    def set_settled(self, table_ids: Collection[int]) -> None:
        """A commit to these needs no look at the catalog (`oracle.known_tables`), to others it does."""
        self.rows[:, TABLE_KNOWN] = 0
        for table_id in table_ids:
            self.rows[self.row_of(table_id), TABLE_KNOWN] = 1

    def _make_room(self) -> None:
        """Rows that say nothing any more go; so the table may become smaller, too."""
        says = self.rows[:, (TABLE_KNOWN, TABLE_FENCE, TABLE_COMMIT)].any(axis=1)
        old = self.rows[(self.rows[:, TABLE_USED] == 1) & says]
        self._used = len(old)
        size = _ROWS_MIN
        while size < 4 * self._used:
            size *= 2
        self.rows = np.zeros((size, TABLE_WORDS), dtype=np.int64)
        for row in old:
            self.rows[find_table(self.rows, row[TABLE_ID])] = row


class TableColumn(MutableMapping[int, int]):
    """One timestamp of each table, as the dictionary that `StatusOracle` keeps. 0 is none."""

    def __init__(self, tables: TableRows, column: int) -> None:
        self._tables = tables
        self._column = column

    def __getitem__(self, table_id: int) -> int:
        rows = self._tables.rows
        row = int(find_table(rows, np.int64(table_id)))
        if not rows[row, TABLE_USED] or not rows[row, self._column]:
            raise KeyError(table_id)
        return int(rows[row, self._column])

    def __setitem__(self, table_id: int, value: int) -> None:
        row = self._tables.row_of(table_id)
        self._tables.rows[row, self._column] = value

    def __delitem__(self, table_id: int) -> None:
        self[table_id] = 0

    def __iter__(self) -> Iterator[int]:
        rows = self._tables.rows
        filled = rows[(rows[:, TABLE_USED] == 1) & (rows[:, self._column] != 0)]
        return iter(filled[:, TABLE_ID].tolist())

    def __len__(self) -> int:
        return sum(1 for _ in self)


def fences(tables: TableRows) -> MutableMapping[int, int]:
    return TableColumn(tables, TABLE_FENCE)


def table_commits(tables: TableRows) -> MutableMapping[int, int]:
    return TableColumn(tables, TABLE_COMMIT)
