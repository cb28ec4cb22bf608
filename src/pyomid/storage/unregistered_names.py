"""How stores name the marks of unregistered tables: by the table's id, or by one name that stands for all tables."""

from __future__ import annotations

from typing import Final

from pyomid.types import TABLES_UNCONFIRMED

_UNCONFIRMED: Final = b"unconfirmed"


def mark_name(table_id: int) -> bytes:
    return _UNCONFIRMED if table_id == TABLES_UNCONFIRMED else table_id.to_bytes(8, "big", signed=True)


def mark_of(name: bytes) -> int:
    return TABLES_UNCONFIRMED if name == _UNCONFIRMED else int.from_bytes(name, "big", signed=True)
