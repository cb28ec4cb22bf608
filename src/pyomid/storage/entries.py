"""The fields of a catalog entry beside its table, alike in every store."""

from __future__ import annotations

from typing import Any

from pyomid.types import TableEntry, TableInfo, TableState


def state_fields(entry: TableEntry) -> dict[str, str]:
    """The fields that stored JSON holds beside the table."""
    return {"state": entry.state.value, "nonce": entry.nonce}


def entry_with(info: TableInfo, fields: dict[str, Any]) -> TableEntry:
    """The entry of stored JSON. One written before these fields existed is `PRESENT`. ValueError or TypeError if a
    field cannot be read."""
    nonce = fields.get("nonce", "")
    if not isinstance(nonce, str):
        raise TypeError(f"nonce {nonce!r} is no text")
    return TableEntry(info, TableState(fields.get("state", TableState.PRESENT)), nonce)
