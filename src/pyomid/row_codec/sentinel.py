"""The row-existence sentinel: a row that shows no value (all its columns null, or none besides the key) still exists.

It gets one more cell, column `<family>:00`, value 01, which is deleted with the row. A row with any value needs none.
Where transactions conflict by cell, it is also the cell by which those who change a whole row (a merge, an update, a
delete of `pyomid.spark`) meet those who make or delete a row without values: they write it, beside values a tombstone.
"""

from __future__ import annotations

from typing import Final

from pyomid.types import Column, TableSchema

SENTINEL_QUALIFIER: Final = b"\x00"
SENTINEL_VALUE: Final = b"\x01"


def sentinel_column(schema: TableSchema, families: tuple[bytes, ...]) -> Column:
    """The column of a table's sentinels: in the family of the first value column that it had, else in its first family.
    It never moves: those who make and delete rows without values meet in it."""
    family = next((each.column.family for each in schema.columns if each.column is not None), families[0])
    return Column(schema.sentinel_family or family, SENTINEL_QUALIFIER)
