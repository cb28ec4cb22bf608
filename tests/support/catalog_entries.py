"""Entries of a catalogue put at once, for tests that need a table and not its making."""

from __future__ import annotations

import os

from pyomid.ports import Catalogue
from pyomid.types import TableEntry, TableInfo, TableState


def put_entry(catalogue: Catalogue, info: TableInfo, state: TableState = TableState.PRESENT) -> TableEntry:
    """In place of whatever stands under the name."""
    entry = TableEntry(info, state, os.urandom(8).hex())
    assert catalogue.change_entry(catalogue.entry(info.name), entry), f"another changed {info.name!r} meanwhile"
    return entry


def remove_entry(catalogue: Catalogue, name: str) -> None:
    """Whatever stands under the name, if anything."""
    if (found := catalogue.entry(name)) is not None:
        catalogue.remove_entry(found)
