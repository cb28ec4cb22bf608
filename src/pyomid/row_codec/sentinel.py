"""The row-existence sentinel: a row that shows no value (all its columns null, or none besides the key) still exists.

It gets one more cell, column `<family>:00`, value 01, which is deleted with the row. A row with any value needs none.
"""

from __future__ import annotations

from typing import Final

from pyomid.types import Column, TableSchema

SENTINEL_QUALIFIER: Final = b"\x00"
SENTINEL_VALUE: Final = b"\x01"


def sentinel_column(schema: TableSchema, families: tuple[bytes, ...]) -> Column:
    """The column of a table's sentinels: in the family of its first value column, else in its first family."""
    family = next((each.column.family for each in schema.columns if each.column is not None), families[0])
    return Column(family, SENTINEL_QUALIFIER)
