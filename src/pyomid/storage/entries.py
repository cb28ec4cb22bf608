"""What follows from a catalog's entries, alike in every store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from pyomid.errors import UnknownTable
from pyomid.types import TableEntry, TableInfo, TableState


class TablesOfEntries(ABC):
    """`ports.Catalog`'s views of its entries: what users see, and what sanitising must see."""

    @abstractmethod
    def entries(self) -> list[TableEntry]: ...

    @abstractmethod
    def entry(self, name: str) -> TableEntry | None: ...

    def tables(self) -> list[TableInfo]:
        return [each.info for each in self.entries() if each.state is TableState.PRESENT]

    def registered(self) -> list[TableInfo]:
        return [each.info for each in self.entries() if each.state is not TableState.CREATING]

    def table(self, name: str) -> TableInfo:
        found = self.entry(name)
        if found is None or found.state is not TableState.PRESENT:
            raise UnknownTable(f"there is no table {name!r} in the catalog", table=name)
        return found.info


def state_fields(entry: TableEntry) -> dict[str, str]:
    """What stored JSON holds beside the table."""
    return {"state": entry.state.value, "nonce": entry.nonce}


def entry_with(info: TableInfo, fields: dict[str, Any]) -> TableEntry:
    """An entry of a version before these fields is `PRESENT`. ValueError, TypeError where they cannot be read."""
    nonce = fields.get("nonce", "")
    if not isinstance(nonce, str):
        raise TypeError(f"nonce {nonce!r} is no text")
    return TableEntry(info, TableState(fields.get("state", TableState.PRESENT)), nonce)
