"""The port `Catalog` over LMDB. Any process may create tables and compact them.

t name                          → the table's entry, as JSON
d note                          → the newest fence of a drop of a name with this note: 8 bytes
u table id                      → the mark of an unregistered table: its nonce
w name length, name, range      → a region watermark, as JSON; the key ends in a hash of the range
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
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
from pyomid.folder import folder_state
from pyomid.folder.environment import MAP_BYTES_DEFAULT, Environment, Transaction, release
from pyomid.folder.layout import CATALOG, EPOCH, open_data, open_folder
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

_TABLE: Final = b"t"
_DROP: Final = b"d"
_UNKNOWN: Final = b"u"
_WATERMARK: Final = b"w"
_NOTE_BYTES: Final = 8


class EmbeddedCatalog(Catalog):
    """The catalog of one folder."""

    def __init__(
        self, folder: str | os.PathLike[str], *, create: bool = True, map_bytes: int = MAP_BYTES_DEFAULT
    ) -> None:
        self._environment = open_data(open_folder(folder, create=create), map_bytes=map_bytes)
        self._closed = False

    @property
    def _database(self) -> Any:
        return self._environment.databases[CATALOG]

    def entries(self) -> list[TableEntry]:
        """Return all entries by name (`Catalog.entries`). LMDB's order, by the bytes of the name, is also the order of
        its characters."""
        return self._environment.read(
            lambda transaction: [_entry_of(value) for _, value in self._items(transaction, _TABLE)]
        )

    def entry(self, name: str) -> TableEntry | None:
        return self._environment.read(self._entry, name)

    def change_entry(self, old: TableEntry | None, new: TableEntry) -> bool:
        name, value = new.info.name, _entry_json(new)

        def write(transaction: Transaction) -> bool:
            if self._entry(transaction, name) != old:
                return False
            self._note_change(transaction)
            if new.info.ttl_seconds is not None:
                folder_state.expect_expiry(transaction, self._environment.databases[EPOCH])
            transaction.put(_TABLE + name.encode(), value, db=self._database)
            return True

        return self._environment.write(write)

    def _note_change(self, transaction: Transaction) -> None:
        """Make each later begin learn that cached table rules may be wrong."""
        folder_state.draw(transaction, self._environment, is_change=True)

    def remove_entry(self, old: TableEntry) -> None:
        name = old.info.name

        def write(transaction: Transaction) -> None:
            if self._entry(transaction, name) == old:
                self._note_change(transaction)
                transaction.delete(_TABLE + name.encode(), db=self._database)
                for key, _ in self._items(transaction, _watermark_prefix(name)):
                    transaction.delete(key, db=self._database)

        self._environment.write(write)

    def watermark_and_generation(self, name: str) -> tuple[int, int]:
        return self._environment.read(self._watermark_and_generation, name)

    def _watermark_and_generation(self, transaction: Transaction, name: str) -> tuple[int, int]:
        state = folder_state.read_state(transaction, self._environment.databases[EPOCH])
        return state.watermark, read_generation(self._environment, transaction, name)

    def note_drop(self, name: str, fence_ts: int) -> None:
        key, value = _DROP + drop_note(name), fence_ts.to_bytes(_NOTE_BYTES)

        def write(transaction: Transaction) -> None:
            if transaction.get(key, b"", db=self._database) < value:
                transaction.put(key, value, db=self._database)

        self._environment.write(write)

    def noted_drop(self, name: str) -> int:
        key = _DROP + drop_note(name)
        return self._environment.read(lambda transaction: int.from_bytes(transaction.get(key, b"", db=self._database)))

    def mark_unknown_table(self, table_id: int) -> None:
        key, nonce = _unknown_key(table_id), os.urandom(8)
        self._environment.write(lambda transaction: transaction.put(key, nonce, db=self._database))

    def unknown_tables(self) -> dict[int, bytes]:
        return self._environment.read(
            lambda transaction: {mark_of(key[1:]): value for key, value in self._items(transaction, _UNKNOWN)}
        )

    def clear_unknown_table(self, table_id: int, nonce: bytes) -> None:
        key = _unknown_key(table_id)

        def write(transaction: Transaction) -> None:
            if transaction.get(key, db=self._database) == nonce:
                transaction.delete(key, db=self._database)

        self._environment.write(write)

    def put_region_watermark(self, record: RegionWatermark) -> None:
        key = _watermark_key(record)

        def write(transaction: Transaction) -> None:
            found = transaction.get(key, db=self._database)
            records = with_record(_watermarks_of(found) if found else [], record)
            transaction.put(key, _watermarks_json(records), db=self._database)

        self._environment.write(write)

    def region_watermarks(self, table: str) -> list[RegionWatermark]:
        found = self._environment.read(
            lambda transaction: [
                record
                for _, value in self._items(transaction, _watermark_prefix(table))
                for record in _watermarks_of(value)
            ]
        )
        return sorted(found, key=lambda record: record.key_range.start)

    def drop_region_watermarks(self, newest: Sequence[RegionWatermark]) -> None:
        def write(transaction: Transaction) -> None:
            for record in newest:
                key = _watermark_key(record)
                found = transaction.get(key, db=self._database)
                if found and _watermarks_of(found)[0] == record:
                    transaction.delete(key, db=self._database)

        self._environment.write(write)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            release(self._environment)

    def _entry(self, transaction: Transaction, name: str) -> TableEntry | None:
        value = transaction.get(_TABLE + name.encode(), db=self._database)
        return None if value is None else _entry_of(value)

    def _items(self, transaction: Transaction, prefix: bytes) -> list[tuple[bytes, bytes]]:
        with transaction.cursor(self._database) as cursor:
            return list(_with_prefix(cursor, prefix)) if cursor.set_range(prefix) else []


def read_generation(environment: Environment, transaction: Transaction, name: str) -> int:
    """Return the generation of the table with this name that is `PRESENT` in the state that the transaction sees, or
    0."""
    value = transaction.get(_TABLE + name.encode(), db=environment.databases[CATALOG])
    return 0 if value is None else _generation_of(value)


def conflicts_by_row(environment: Environment, transaction: Transaction, name: str) -> bool:
    """Return whether commits to the table conflict by rows. A change of this is fenced, so the answer holds for
    everyone who may write."""
    value = transaction.get(_TABLE + name.encode(), db=environment.databases[CATALOG])
    return value is None or _entry_of(value).info.id_levels != (ConflictLevel.CELL,)


@lru_cache(maxsize=1024)
def _generation_of(value: bytes) -> int:
    return _entry_of(value).present_generation


def _with_prefix(cursor: Any, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    for key, value in cursor.iternext():
        if not key.startswith(prefix):
            return
        yield key, value


def _unknown_key(table_id: int) -> bytes:
    return _UNKNOWN + mark_name(table_id)


def _watermark_prefix(table: str) -> bytes:
    name = table.encode()
    return _WATERMARK + len(name).to_bytes(2) + name


def _entry_json(entry: TableEntry) -> bytes:
    content, schema = entry_fields(entry), entry.info.schema
    if schema is not None:
        content["columns"] = [
            {"name": each.name, "type": each.spark_type, "column": column_text(each.column)} for each in schema.columns
        ]
        content["row_key"] = [{"name": part.name, "descending": part.descending} for part in schema.row_key]
    return json.dumps(content).encode()


@lru_cache(maxsize=1024)
def _entry_of(value: bytes) -> TableEntry:
    """Decode an entry. The result is cached by the entry's bytes, because every transaction reads its tables again and
    they rarely change."""
    try:
        content = json.loads(value)
        return entry_of(content, _schema_of(content) if "columns" in content else None)
    except (ValueError, KeyError, TypeError) as error:
        raise Corruption(f"a table's catalog entry cannot be read: {value[:200]!r}") from error


def _schema_of(content: dict[str, Any]) -> TableSchema:
    columns = tuple(ColumnSchema(each["name"], each["type"], column_of(each["column"])) for each in content["columns"])
    return TableSchema(columns, tuple(RowKeyPart(part["name"], part["descending"]) for part in content["row_key"]))


def _watermark_key(record: RegionWatermark) -> bytes:
    start, stop = record.key_range
    identity = len(start).to_bytes(4) + start + (b"" if stop is None else b"<" + stop)
    return _watermark_prefix(record.table) + hashlib.blake2b(identity, digest_size=16).digest()


def _watermarks_json(records: Sequence[RegionWatermark]) -> bytes:
    """Encode the newest record of a range together with the earlier ones that are kept."""
    record = records[0]
    stop = record.key_range.stop
    return json.dumps(
        {
            "table": record.table,
            "start": record.key_range.start.hex(),
            "stop": None if stop is None else stop.hex(),
            **record_fields(records),
        }
    ).encode()


def _watermarks_of(value: bytes) -> list[RegionWatermark]:
    """Decode the records of a range; return them newest first."""
    try:
        content = json.loads(value)
        stop = content["stop"]
        key_range = KeyRange(bytes.fromhex(content["start"]), None if stop is None else bytes.fromhex(stop))
        return records_of(content, content["table"], key_range)
    except (ValueError, KeyError, TypeError) as error:
        raise Corruption(f"a region watermark cannot be read: {value[:200]!r}") from error
