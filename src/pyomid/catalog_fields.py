"""The format of a catalog, which all stores share: a table's entry, the watermarks of a range, the names of marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from zlib import crc32

from pyomid.types import (
    TABLES_UNCONFIRMED,
    Column,
    ConflictLevel,
    IndexInfo,
    IndexState,
    KeyRange,
    RegionWatermark,
    TableEntry,
    TableInfo,
    TableSchema,
    TableState,
    TtlChange,
)

_UNCONFIRMED: Final = b"unconfirmed"


def entry_fields(entry: TableEntry) -> dict[str, Any]:
    """Return an entry's JSON fields, without the schema's columns and key, for which each store has its own form."""
    info = entry.info
    changing: dict[str, Any] = {} if info.next_level is None else {"next_level": info.next_level.value}
    if info.is_changing:
        changing["is_changing"] = True
    if info.indexes:
        changing["indexes"] = [
            {
                "name": index.name,
                "columns": [column_text(place) for place in index.columns],
                "table": index.table,
                "state": index.state.value,
                "ready_ts": index.ready_ts,
            }
            for index in info.indexes
        ]
    if info.ttl_seconds is not None:
        changing["ttl_seconds"] = info.ttl_seconds
    if info.ttl_changes:
        changing["ttl_changes"] = info.ttl_changes
    return {
        "name": info.name,
        "families": [family.hex() for family in info.families],
        "conflict_level": info.conflict_level.value,
        **changing,
        "generation": info.generation,
        "state": entry.state.value,
        "nonce": entry.nonce,
        **(_history_fields(info.schema) if info.schema is not None else {}),
    }


def entry_of(fields: Mapping[str, Any], schema: TableSchema | None) -> TableEntry:
    """Return the entry that stored JSON describes. An old entry without a state is `PRESENT`. Raise ValueError,
    KeyError or TypeError if a field is malformed."""
    families = tuple(bytes.fromhex(family) for family in fields["families"])
    level = ConflictLevel(fields["conflict_level"])
    following = fields.get("next_level")
    next_level = None if following is None else ConflictLevel(following)
    schema = None if schema is None else _with_history(schema, fields)
    changing, indexes = bool(fields.get("is_changing", False)), tuple(map(_index_of, fields.get("indexes", ())))
    ttl_seconds = fields.get("ttl_seconds")
    if not isinstance(ttl_seconds, int | float | None):
        raise TypeError(f"ttl_seconds {ttl_seconds!r} is not a number")
    ttl = ttl_seconds, tuple(TtlChange(*each) for each in fields.get("ttl_changes", ()))
    generation = fields["generation"]
    info = TableInfo(fields["name"], families, level, generation, schema, next_level, changing, indexes, *ttl)
    nonce = fields.get("nonce", "")
    if not isinstance(nonce, str):
        raise TypeError(f"nonce {nonce!r} is not text")
    return TableEntry(info, TableState(fields.get("state", TableState.PRESENT)), nonce)


def _history_fields(schema: TableSchema) -> dict[str, Any]:
    """Return the fields that describe altered columns; empty if no column was altered."""
    earlier = {each.name: list(each.earlier_types) for each in schema.columns if each.earlier_types}
    fields = {
        "earlier_types": earlier,
        "retired": [column_text(place) for place in schema.retired],
        "sentinel_family": schema.sentinel_family.hex(),
    }
    return {name: value for name, value in fields.items() if value}


def _with_history(schema: TableSchema, fields: Mapping[str, Any]) -> TableSchema:
    earlier = fields.get("earlier_types", {})
    columns = [replace(each, earlier_types=tuple(earlier.get(each.name, ()))) for each in schema.columns]
    retired = [column_of(place) for place in fields.get("retired", ())]
    return replace(
        schema,
        columns=tuple(columns),
        retired=tuple(place for place in retired if place is not None),
        sentinel_family=bytes.fromhex(fields.get("sentinel_family", "")),
    )


def _index_of(fields: Mapping[str, Any]) -> IndexInfo:
    columns = tuple(Column(*(bytes.fromhex(part) for part in place)) for place in fields["columns"])
    return IndexInfo(fields["name"], columns, fields["table"], IndexState(fields["state"]), fields["ready_ts"])


def column_text(column: Column | None) -> list[str] | None:
    return None if column is None else [part.hex() for part in column]


def column_of(text: Sequence[str] | None) -> Column | None:
    return None if text is None else Column(*(bytes.fromhex(part) for part in text))


def record_fields(records: Sequence[RegionWatermark]) -> dict[str, Any]:
    """Return the JSON fields of `records` (one range and generation, newest first). An older pyomid reads only
    `watermark`: it sees fewer records, never a wrong one."""
    newest = records[0]
    fields: dict[str, Any] = {
        "generation": newest.generation,
        "watermark": newest.watermark,
        "recorded_at_s": newest.recorded_at_s,
    }
    if len(records) > 1:
        fields["earlier"] = [[record.watermark, record.recorded_at_s] for record in records[1:]]
    return fields


def records_of(fields: Mapping[str, Any], table: str, key_range: KeyRange) -> list[RegionWatermark]:
    """Return the records that stored JSON describes, newest first."""
    found = [(fields["watermark"], fields["recorded_at_s"]), *fields.get("earlier", ())]
    return [RegionWatermark(table, fields["generation"], key_range, watermark, at_s) for watermark, at_s in found]


_DROP_NOTES: Final = 4096
"""Number of notes of drops that a catalog has for all names (R10). If a table is created while a snapshot is open, and
another table is dropped meanwhile, the two share a note with a probability of one in this number. Then the snapshot's
reads of the new table are refused."""


def drop_note(name: str) -> bytes:
    """Return the key of the note of drops that the name has (R10)."""
    return (crc32(name.encode()) % _DROP_NOTES).to_bytes(2, "big")


def mark_name(table_id: int) -> bytes:
    """Return the name of an unregistered table's mark: its id, or the name that means "tables not confirmed"."""
    return _UNCONFIRMED if table_id == TABLES_UNCONFIRMED else table_id.to_bytes(8, "big", signed=True)


def mark_of(name: bytes) -> int:
    return TABLES_UNCONFIRMED if name == _UNCONFIRMED else int.from_bytes(name, "big", signed=True)
