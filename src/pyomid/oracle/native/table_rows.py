"""What the oracle remembers of tables: rows for the kernel, dictionaries for the machine."""

from __future__ import annotations

from collections.abc import Collection, Iterator, MutableMapping
from typing import Any, Final

from pyomid.oracle.native import decide
from pyomid.oracle.native.records import Table

_ROWS_MIN: Final = 64


class TableRows:
    """Table id → (decidable?, fence, last commit, conflicts): open addressing, at most half full."""

    def __init__(self) -> None:
        self.rows: Any = Table.array(_ROWS_MIN)
        self._used = 0

    def row_of(self, table_id: int) -> int:
        """Return the table's row; add it if there is none."""
        row = decide.find_table(self.rows, table_id)
        if self.rows["is_used"][row]:
            return row
        if 2 * (self._used + 1) > len(self.rows):
            self._make_room()
            row = decide.find_table(self.rows, table_id)
        self.rows["table_id"][row], self.rows["is_used"][row] = table_id, 1
        self._used += 1
        return row

    def set_decidable(self, table_ids: Collection[int]) -> None:
        """Make exactly these tables decidable (`oracle.requests.tables`)."""
        self.rows["is_known"] = 0
        for table_id in table_ids:
            row = self.row_of(table_id)  # may replace the rows (`_make_room`)
            self.rows["is_known"][row] = 1

    def _make_room(self) -> None:
        """Resize, and drop rows without information; so the table may also shrink."""
        rows = self.rows
        says = (rows["is_known"] | rows["fence_ts"] | rows["commit_ts"] | rows["conflicts"]) != 0
        old = rows[(rows["is_used"] == 1) & says]
        self._used = len(old)
        size = _ROWS_MIN
        while size < 4 * self._used:
            size *= 2
        self.rows = Table.array(size)
        for row in old:
            self.rows[decide.find_table(self.rows, int(row["table_id"]))] = row


class TableColumn(MutableMapping[int, int]):
    """One column of all tables, as the dictionary that `StatusOracle` keeps. 0 means no entry."""

    def __init__(self, tables: TableRows, column: str) -> None:
        self._tables = tables
        self._column = column

    def __getitem__(self, table_id: int) -> int:
        rows = self._tables.rows
        row = decide.find_table(rows, table_id)
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
