"""The fields of a catalog entry beside its table, alike in every store."""

from __future__ import annotations

from typing import Any

from pyomid.types import TableEntry, TableInfo, TableState


def state_fields(entry: TableEntry) -> dict[str, str]:
    """What stored JSON holds beside the table."""
    return {"state": entry.state.value, "nonce": entry.nonce}


def entry_with(info: TableInfo, fields: dict[str, Any]) -> TableEntry:
    """An entry of a version before these fields is `PRESENT`. ValueError, TypeError where they cannot be read."""
    nonce = fields.get("nonce", "")
    if not isinstance(nonce, str):
        raise TypeError(f"nonce {nonce!r} is no text")
    return TableEntry(info, TableState(fields.get("state", TableState.PRESENT)), nonce)
