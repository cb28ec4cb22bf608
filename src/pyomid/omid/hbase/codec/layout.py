"""Apache Omid's formats in HBase, required for interoperation, and the names of pyomid's own tables.

    shadow cell       same row, family, version; qualifier 00 C2 80 | qualifier | C2 80; commit timestamp, 8 bytes
    tombstone         a put of an empty value; for a family: with an empty qualifier. In old data: __OMID_TOMBSTONE__
    commit table      row: bucket (start & 0x0F, 1 byte), start (8 bytes); C = varint(commit - start),
                      IT = invalidation marker

These are the formats of Apache Omid 1.1.x (CellUtils, HBaseCommitTable, HBaseTimestampStorage). tests/hbase checks each
of them against Apache Omid itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyomid.errors import Corruption
from pyomid.omid.hbase.rpc.frames import read_varint
from pyomid.omid.wire.frames import varint

SHADOW_PREFIX: Final = b"\x00\xc2\x80"
SHADOW_SUFFIX: Final = b"\xc2\x80"
LEGACY_TOMBSTONE: Final = b"__OMID_TOMBSTONE__"

COMMIT_TABLE: Final = "OMID_COMMIT_TABLE"
COMMIT_FAMILY: Final = b"F"
COMMIT_QUALIFIER: Final = b"C"
MARK_QUALIFIER: Final = b"IT"
MARK_VALUE: Final = (1).to_bytes(4, "big")
BUCKETS: Final = 16
_SPLIT_SPACE: Final = 0x0F80
"""The range that OmidTableManager divides among the regions (found in the tables of 16 regions that it created)."""

WATERMARK_FAMILY: Final = b"LWF"
WATERMARK_ROW: Final = b"LOW_WATERMARK"
WATERMARK_QUALIFIER: Final = b"LWC"

TIMESTAMP_TABLE: Final = "OMID_TIMESTAMP_TABLE"
TIMESTAMP_FAMILY: Final = b"MAX_TIMESTAMP_CF"
TIMESTAMP_ROW: Final = b"MAX_TIMESTAMP_R"
TIMESTAMP_QUALIFIER: Final = b"MAX_TIMESTAMP_Q"

META_TABLE: Final = "PYOMID_META"
META_FAMILY: Final = b"M"

OWN_PREFIX: Final = "PYOMID_"
SYSTEM_PREFIXES: Final = ("OMID_", OWN_PREFIX)


@dataclass(frozen=True, slots=True)
class SystemNames:
    """The names that all clients and TSOs of a deployment share, Java's included. The defaults are Apache Omid's.

    pyomid's own tables have names that begin with `OWN_PREFIX`. They are in the HBase namespace of the commit table, so
    that two databases in one HBase share none of them. Elsewhere in this package their names do not contain that
    namespace.
    """

    commit_table: str = COMMIT_TABLE
    timestamp_table: str = TIMESTAMP_TABLE
    zookeeper_namespace: str = "omid"
    """It has no slash at either end."""

    @property
    def _namespace(self) -> str:
        namespace, colon, _ = self.commit_table.partition(":")
        return f"{namespace}:" if colon and namespace != "default" else ""

    def physical(self, table: str) -> str:
        """Return a table's name in HBase."""
        return f"{self._namespace}{table}" if table.startswith(OWN_PREFIX) else table

    def logical(self, physical: str) -> str | None:
        """Return the table whose name in HBase is `physical`; None if it is another database's own table."""
        namespace, colon, name = physical.rpartition(":")
        if not name.startswith(OWN_PREFIX):
            return physical
        return name if f"{namespace}{colon}" == self._namespace else None

    def is_system(self, table: str) -> bool:
        """Return whether it is a system table, of this database or of another one."""
        name = table.rpartition(":")[2]
        return name.startswith(SYSTEM_PREFIXES) or table in (self.commit_table, self.timestamp_table)


COPROCESSOR: Final = "org.apache.omid.transaction.OmidCompactor"
"""Omid's compaction coprocessor: it keeps versions by start timestamp, which breaks long readers."""
COMPACTION_ATTRIBUTE: Final = b"OMID_ENABLED"
"""If a family has this attribute with the value true, the coprocessor is active (CellUtils, OmidCompactor)."""
PHOENIX_COPROCESSOR: Final = "org.apache.phoenix.coprocessor.OmidGCProcessor"
"""Omid's coprocessor for tables of Apache Phoenix (TRANSACTION_PROVIDER='OMID'). It is active on all families."""


def shadow_qualifier(qualifier: bytes) -> bytes:
    return SHADOW_PREFIX + qualifier + SHADOW_SUFFIX


def is_shadow(qualifier: bytes) -> bool:
    return qualifier.endswith(SHADOW_SUFFIX)


def shadowed_qualifier(qualifier: bytes) -> bytes:
    """Return the qualifier of the data cell that a shadow cell belongs to. Old shadow cells lack the prefix."""
    return qualifier.removesuffix(SHADOW_SUFFIX).removeprefix(SHADOW_PREFIX)


def is_tombstone(value: bytes) -> bool:
    return not value or value == LEGACY_TOMBSTONE


def timestamp_bytes(timestamp: int) -> bytes:
    return timestamp.to_bytes(8, "big")


def timestamp_of(value: bytes) -> int:
    if len(value) != 8:
        raise Corruption(f"a timestamp has {len(value)} bytes, not 8: {value[:16]!r}")
    return int.from_bytes(value, "big")


def commit_row(start: int) -> bytes:
    """Return the row of a start in the commit table. The bucket spreads starts over 16 regions; 50 k & 15 takes only
    even values."""
    return bytes((start & (BUCKETS - 1),)) + start.to_bytes(8, "big")


def start_of_row(row: bytes) -> int:
    if len(row) != 9:
        raise Corruption(f"a row of the commit table has {len(row)} bytes, not 9: {row[:16]!r}")
    return int.from_bytes(row[1:], "big")


def commit_value(start: int, commit_ts: int) -> bytes:
    return varint(commit_ts - start)


def commit_of_value(start: int, value: bytes) -> int:
    try:
        difference, end = read_varint(value, 0)
    except IndexError as error:
        raise Corruption(f"the commit entry of {start} ends inside its number: {value[:16]!r}") from error
    if end != len(value):
        raise Corruption(f"the commit entry of {start} holds {len(value) - end} bytes after its number")
    return start + difference


def commit_table_splits(regions: int = BUCKETS) -> list[bytes]:
    """Return the region borders that OmidTableManager of Apache Omid 1.1.3 uses: multiples of 0F80 / `regions`, then
    zeros."""
    return [(_SPLIT_SPACE * index // regions).to_bytes(2, "big") + bytes(7) for index in range(1, regions)]
