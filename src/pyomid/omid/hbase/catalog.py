"""The catalog (`ports.Catalog`), in PYOMID_META: rows, qualifiers and values of its cells.

t/<name>      info       the table's entry
u/<table id>  mark       a commit named this id; the sanitizer refuses until the table is registered. The value is a
              nonce. The id "unconfirmed" means that a Java TSO led, and that any table may be unregistered
w/<name>      <key range>   a region's watermark; the qualifier is its key range
d/            level      the conflict level of all tables, or "any"
f/<note>      fence      the newest fence of a drop of a name with this note: 8 bytes
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from pyomid.catalog_fields import (
    column_of,
    column_text,
    drop_note,
    entry_fields,
    entry_of,
    mark_name,
    mark_of,
    record_fields,
    records_of,
)
from pyomid.errors import Corruption
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.layout import META_TABLE
from pyomid.omid.hbase.leader_state import STATE_CELL, decode_watermarks
from pyomid.omid.hbase.meta_cells import MetaCells
from pyomid.ports import Catalog
from pyomid.protocol.sanitize import with_record
from pyomid.types import (
    ColumnSchema,
    ConflictLevel,
    KeyRange,
    RegionWatermark,
    RowKeyPart,
    TableEntry,
    TableSchema,
)

_TABLE: Final = b"t/"
_UNKNOWN: Final = b"u/"
_WATERMARK: Final = b"w/"
_DEPLOYMENT: Final = b"d/"
_DROP: Final = b"f/"
_FENCE: Final = b"fence"
_NOTE_BYTES: Final = 8
_LEVEL: Final = b"level"
_ANY_LEVEL: Final = b"any"
_INFO: Final = b"info"
_MARK: Final = b"mark"
_FORMAT: Final = 1


class HBaseCatalog(Catalog):
    """The catalog of tables in HBase (`ports.Catalog`)."""

    def __init__(self, cluster: Cluster, *, table: str = META_TABLE) -> None:
        self._cells = MetaCells(cluster, table=table)

    def entries(self) -> list[TableEntry]:
        rows = self._cells.read_prefix(_TABLE)
        return sorted((decode_entry(row[_INFO]) for row in rows.values()), key=lambda entry: entry.info.name)

    def entry(self, name: str) -> TableEntry | None:
        value = self._cells.read(_TABLE + name.encode(), _INFO)
        return decode_entry(value) if value else None

    def change_entry(self, old: TableEntry | None, new: TableEntry) -> bool:
        return self._change(new.info.name, old, encode_entry(new))

    def remove_entry(self, old: TableEntry) -> None:
        if self.entry(old.info.name) != old:
            return
        # Delete the watermarks first: a table whose entry has no watermarks counts as never compacted. If they were
        # deleted last, they could remain without the table.
        row = _WATERMARK + old.info.name.encode()
        for qualifier in self._cells.read_row(row):
            self._cells.change(row, qualifier, lambda _: b"")
        self._change(old.info.name, old, b"")

    def _change(self, name: str, old: TableEntry | None, value: bytes) -> bool:
        """Compare and set. Returns whether the entry is now `value`: an attempt whose reply was lost may have written
        it."""

        def decide(found: bytes) -> bytes | None:
            return value if found == value or (decode_entry(found) if found else None) == old else None

        return self._cells.change(_TABLE + name.encode(), _INFO, decide)

    def tables_level(self) -> ConflictLevel | None:
        value = self._cells.read(_DEPLOYMENT, _LEVEL)
        try:
            return None if value in (b"", _ANY_LEVEL) else ConflictLevel(value.decode())
        except ValueError as error:
            raise Corruption(f"the conflict level of the deployment is malformed: {value[:40]!r}") from error

    def set_tables_level(self, level: ConflictLevel | None) -> None:
        self._cells.change(_DEPLOYMENT, _LEVEL, lambda _: _level_value(level))

    def change_tables_level(self, old: ConflictLevel, new: ConflictLevel | None) -> bool:
        was, value = _level_value(old), _level_value(new)
        return self._cells.change(_DEPLOYMENT, _LEVEL, lambda found: value if found in (was, value) else None)

    def has_tables_level(self) -> bool:
        """Return whether a level was ever set; "any" counts as set."""
        return bool(self._cells.read(_DEPLOYMENT, _LEVEL))

    def watermark_and_generation(self, name: str) -> tuple[int, int]:
        """Return a table's watermark and generation (`Catalog.watermark_and_generation`). One call reads both, because
        the leader state is in the same table."""
        state, value = self._cells.read_cells([STATE_CELL, (_TABLE + name.encode(), _INFO)])
        watermark, _ = decode_watermarks(state)
        return watermark, _generation_of(value) if value else 0

    def note_drop(self, name: str, fence_ts: int) -> None:
        value = fence_ts.to_bytes(_NOTE_BYTES)
        self._cells.change(_DROP + drop_note(name), _FENCE, lambda found: max(found, value))

    def noted_drop(self, name: str) -> int:
        return int.from_bytes(self._cells.read(_DROP + drop_note(name), _FENCE))

    def mark_unknown_table(self, table_id: int) -> None:
        nonce = os.urandom(8)
        self._cells.change(_unknown_row(table_id), _MARK, lambda _: nonce)

    def unknown_tables(self) -> dict[int, bytes]:
        rows = self._cells.read_prefix(_UNKNOWN)
        return {mark_of(row.removeprefix(_UNKNOWN)): cells[_MARK] for row, cells in rows.items()}

    def clear_unknown_table(self, table_id: int, nonce: bytes) -> None:
        self._cells.change(_unknown_row(table_id), _MARK, lambda found: b"" if found == nonce else None)

    def put_region_watermark(self, record: RegionWatermark) -> None:
        table, key_range = record.table, record.key_range

        def decide(found: bytes) -> bytes:
            return _encode_records(with_record(_decode_records(table, key_range, found) if found else [], record))

        self._cells.change(_WATERMARK + table.encode(), _range_name(key_range), decide)

    def region_watermarks(self, table: str) -> list[RegionWatermark]:
        row = self._cells.read_row(_WATERMARK + table.encode())
        records = [record for name, value in row.items() for record in _decode_records(table, _range_of(name), value)]
        return sorted(records, key=lambda record: record.key_range.start)

    def drop_region_watermarks(self, newest: Sequence[RegionWatermark]) -> None:
        for record in newest:
            table, key_range = record.table, record.key_range
            self._cells.change(
                _WATERMARK + table.encode(),
                _range_name(key_range),
                lambda found, record=record: (  # type: ignore[misc]
                    b"" if found and _decode_records(record.table, record.key_range, found)[0] == record else None
                ),
            )


@lru_cache(maxsize=1024)
def _generation_of(value: bytes) -> int:
    return decode_entry(value).present_generation


def _unknown_row(table_id: int) -> bytes:
    return _UNKNOWN + mark_name(table_id)


def _range_name(key_range: KeyRange) -> bytes:
    """Encode a range: the 4-byte length of the start, the start, then 01 and the stop, or 00 if the range has no
    end."""
    stop = b"\x00" if key_range.stop is None else b"\x01" + key_range.stop
    return len(key_range.start).to_bytes(4, "big") + key_range.start + stop


def _range_of(name: bytes) -> KeyRange:
    size = int.from_bytes(name[:4], "big")
    start, stop = name[4 : 4 + size], name[4 + size :]
    return KeyRange(start, None if stop == b"\x00" else stop[1:])


def _encode_records(records: Sequence[RegionWatermark]) -> bytes:
    return json.dumps({"format": _FORMAT, **record_fields(records)}).encode()


def _decode_records(table: str, key_range: KeyRange, value: bytes) -> list[RegionWatermark]:
    """Return the records, newest first."""
    return records_of(_load(value, "region watermark"), table, key_range)


def encode_entry(entry: TableEntry) -> bytes:
    """Return the entry as JSON, with bytes in hexadecimal."""
    fields, schema = {"format": _FORMAT, **entry_fields(entry)}, entry.info.schema
    if schema is not None:
        fields["columns"] = [[each.name, each.spark_type, column_text(each.column)] for each in schema.columns]
        fields["row_key"] = [[part.name, part.descending] for part in schema.row_key]
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_entry(value: bytes) -> TableEntry:
    fields = _load(value, "catalog entry")
    schema = None
    if "columns" in fields:
        columns = tuple(ColumnSchema(name, kind, column_of(column)) for name, kind, column in fields["columns"])
        schema = TableSchema(columns, tuple(RowKeyPart(name, bool(down)) for name, down in fields["row_key"]))
    return entry_of(fields, schema)


def _load(value: bytes, what: str) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = json.loads(value)
        known = fields["format"] == _FORMAT
    except (ValueError, KeyError, TypeError) as error:
        raise Corruption(f"a {what} is malformed: {value[:40]!r}") from error
    if not known:
        raise Corruption(f"a {what} has format {fields['format']}; this version of pyomid reads only format {_FORMAT}")
    return fields


def _level_value(level: ConflictLevel | None) -> bytes:
    return _ANY_LEVEL if level is None else level.value.encode()
