"""Entries of a catalog put at once, for tests that need a table and not its making."""

from __future__ import annotations

import os

from pyomid.ports import Catalog
from pyomid.types import TableEntry, TableInfo, TableState


def put_entry(catalog: Catalog, info: TableInfo, state: TableState = TableState.PRESENT) -> TableEntry:
    """In place of whatever stands under the name."""
    entry = TableEntry(info, state, os.urandom(8).hex())
    assert catalog.change_entry(catalog.entry(info.name), entry), f"another changed {info.name!r} meanwhile"
    return entry


def remove_entry(catalog: Catalog, name: str) -> None:
    """Whatever stands under the name, if anything."""
    if (found := catalog.entry(name)) is not None:
        catalog.remove_entry(found)
