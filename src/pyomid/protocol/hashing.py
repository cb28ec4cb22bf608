"""The 64-bit ids of cells, rows and tables that a commit names (interop.md, Hashes).

An id is the low half of MurmurHash3 x64 128 with seed 0 over the concatenated bytes, as a signed 64-bit integer:
cell id = table + row + family + qualifier, row id = table + row, table id = table.
"""

from __future__ import annotations

from functools import lru_cache

from pyomid.protocol.native import hashing


def cell_id(table: bytes, row: bytes, family: bytes, qualifier: bytes) -> int:
    """Return the id by which a commit at cell level names one column of one row."""
    return hashing.name_ids(table, (row + family + qualifier,))[0]


def row_id(table: bytes, row: bytes) -> int:
    """Return the id by which a commit at row level names one row."""
    return hashing.name_ids(table, (row,))[0]


@lru_cache(maxsize=4096)
def table_id(table: bytes) -> int:
    """Return the id by which fences, commits and marks name a table."""
    return hashing.name_ids(table, (b"",))[0]
