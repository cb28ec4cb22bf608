"""The cells that a commit request carries, packed: rows and cells, encoded as in records.

    table     length of its name (2 bytes), name, number (4 bytes), number of its rows (4 bytes); then its rows
    row       length of its key and of its cells (2 and 4 bytes), key as in the keys of records, cells as in records

Integers are little-endian, except the table's number, which is the prefix of its keys. The TSO turns them into records
by adding the version, which is the transaction's start, the commit timestamp and the checksum. It validates every byte
first, because a peer may send anything.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from pyomid.errors import Misuse, UnknownTable
from pyomid.storage.embedded.environment import Environment, Transaction
from pyomid.storage.embedded.layout import CELLS, SAMPLES
from pyomid.storage.embedded.records import (
    ESCAPED_ROW_BYTES_MAX,
    TABLE_BYTES,
    VERSION_BYTES,
    encode_cells,
    places_in,
    record_of,
    row_prefix,
    version_suffix,
)
from pyomid.storage.embedded.tables import Table, is_sample
from pyomid.types import RowWrite

ONE_STEP_BYTES_MAX: Final = 256 << 10
"""The most bytes that a commit may carry: more would delay all other commits."""

_NAME: Final = struct.Struct("<H")
_ROWS: Final = struct.Struct("<I")
_ROW: Final = struct.Struct("<HI")


def pack(tables: Iterable[tuple[Table, Sequence[RowWrite]]]) -> bytes:
    """Pack rows. Every column must have its number, and the caller must have checked all limits."""
    out: list[bytes] = []
    for table, rows in tables:
        name, numbers = table.name.encode(), table.numbers
        out += (_NAME.pack(len(name)), name, table.prefix, _ROWS.pack(len(rows)))
        for row, cells in rows:
            key = row_prefix(b"", row)
            encoded = encode_cells({numbers[column]: value for column, value in cells})
            out += (_ROW.pack(len(key), len(encoded)), key, encoded)
    return b"".join(out)


def unpack(
    packed: bytes, version: int, find: Callable[[str], Table], value_bytes_max: int
) -> tuple[list[Table], list[tuple[bytes, bytes]]]:
    """Return the tables, and (key, cells) of each record. `find`: returns the table of a name, with all its columns;
    `UnknownTable` if there is none. `Misuse` for malformed bytes."""
    suffix = version_suffix(version)
    tables: list[Table] = []
    records: list[tuple[bytes, bytes]] = []
    for name, prefix, rows in _tables(packed, version):
        table = find(name)
        if table.prefix != prefix:
            raise UnknownTable(f"table {name!r} was dropped and created again since it was written", table=name)
        tables.append(table)
        for key, cells in rows:
            _check_row(key, version)
            _check_cells(table, cells, value_bytes_max, version)
            records.append((prefix + key + suffix, cells))
    return tables, records


def put_carried(
    transaction: Transaction, environment: Environment, commit_ts: int, records: Iterable[tuple[bytes, bytes]]
) -> None:
    """Write the records. Only an earlier attempt of the same step can have written this version."""
    cells, samples = environment.databases[CELLS], environment.databases[SAMPLES]
    for key, encoded in records:
        transaction.put(key, record_of(key, commit_ts, encoded), db=cells)
        if is_sample(key):
            transaction.put(key[:-VERSION_BYTES], b"", db=samples)


def _tables(packed: bytes, version: int) -> Iterator[tuple[str, bytes, list[tuple[bytes, bytes]]]]:
    at, end = 0, len(packed)
    try:
        while at < end:
            (size,) = _NAME.unpack_from(packed, at)
            name_at = at + _NAME.size
            at = name_at + size + TABLE_BYTES
            name = packed[name_at : name_at + size].decode()
            prefix = packed[at - TABLE_BYTES : at]
            (count,) = _ROWS.unpack_from(packed, at)
            at += _ROWS.size
            rows: list[tuple[bytes, bytes]] = []
            for _ in range(count):
                key_bytes, cells_bytes = _ROW.unpack_from(packed, at)
                at += _ROW.size
                split = at + key_bytes
                rows.append((packed[at:split], packed[split : split + cells_bytes]))
                at = split + cells_bytes
            yield name, prefix, rows
    except (struct.error, UnicodeDecodeError):
        at = -1
    if at != end:
        raise _malformed(version, "they end within a row, or after the last one")


def _check_row(key: bytes, version: int) -> None:
    if not 1 < len(key) <= ESCAPED_ROW_BYTES_MAX + 1 or row_prefix(b"", key[:-1].replace(b"\0\xff", b"\0")) != key:
        raise _malformed(version, "a row key is invalid")


def _check_cells(table: Table, cells: bytes, value_bytes_max: int, version: int) -> None:
    known, tombstones, last = len(table.columns), table.tombstones, 0
    try:
        for number, _, length in places_in(cells, 0):
            if not last < number <= known:
                raise _malformed(version, f"they name column {number} of table {table.name!r}, which has {known}")
            if not (length == -1 or (0 < length <= value_bytes_max and number not in tombstones)):
                raise _malformed(version, f"a value of {length} bytes is invalid")
            last = number
    except (IndexError, ValueError):
        last = 0
    if not last:
        raise _malformed(version, "the cells of a row are invalid")


def _malformed(version: int, why: str) -> Misuse:
    return Misuse(f"the cells that the commit of start_ts {version} carries are malformed: {why}", start_ts=version)
