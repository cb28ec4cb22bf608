"""The row-existence sentinel: a cell that makes a row without values (all null, or only key columns) exist.

The cell has the column `<family>:00` and the value 01, and is deleted with the row. A row with any value needs none.
On tables of conflict level `cell`, writers of whole rows (a merge, an update, a delete of `pyomid.spark`) write it too,
as a tombstone if the row has values, so that they conflict with transactions that create or delete a row without
values.
"""

from __future__ import annotations

from typing import Final

from pyomid.types import Column, TableSchema

SENTINEL_QUALIFIER: Final = b"\x00"
SENTINEL_VALUE: Final = b"\x01"


def sentinel_column(schema: TableSchema, families: tuple[bytes, ...]) -> Column:
    """Return the column of a table's sentinels: in the family of its first value column, else in its first family. The
    column never changes, because creators and deleters of rows without values must conflict on it."""
    family = next((each.column.family for each in schema.columns if each.column is not None), families[0])
    return Column(schema.sentinel_family or family, SENTINEL_QUALIFIER)
