"""Unfinished changes of tables, whose clients died: upkeep finishes them, or reports them with the call that finishes
them.

    dropping, an index being dropped      upkeep finishes the drop
    the next level                        upkeep finishes the change: the next level becomes the level
    columns or a time to live, changing   upkeep ends the change: the columns or the time in the entry stay
    creating, an index being built        upkeep reports it: a client that is still at work would have to begin again

If the client of such a change is still alive, it finds another entry and continues from there (`table_admin`).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from pyomid.database import table_admin
from pyomid.database.tables import indexes
from pyomid.errors import ConflictError, Misuse, UnknownTable
from pyomid.ports import Deployment
from pyomid.types import IndexState, TableEntry, TableState

_BUILDS: Final = (IndexState.PLANNED, IndexState.BUILDING)


def finish_changes(deployment: Deployment) -> list[str]:
    """Finish or undo the changes that can be ended without their client, and return a sentence about each."""
    done: list[str] = []
    for entry in deployment.catalog.entries():
        with suppress(UnknownTable, ConflictError):  # another client changed the table meanwhile
            done += _finished(deployment, entry)
    return done


def _finished(deployment: Deployment, entry: TableEntry) -> Iterator[str]:
    info = entry.info
    if entry.state is TableState.DROPPING:
        table_admin.finish_drop(deployment, entry)
        yield f"finished the drop of table {info.name!r}"
    if entry.state is not TableState.PRESENT:
        return
    if info.is_changing and table_admin.undo_changing(deployment, entry):
        yield f"ended an unfinished change of the columns or the time to live of table {info.name!r}"
    if info.next_level is not None:
        with suppress(Misuse):  # the level of all tables was set meanwhile: `alter_level` undoes this change
            table_admin.alter_level(deployment, info.name, info.next_level.value)
            yield f"finished the change of table {info.name!r} to conflict level {info.next_level.value!r}"
    for index in info.indexes:
        if index.state is IndexState.DROPPING:
            with suppress(Misuse):  # its client ended the drop
                indexes.drop_index(deployment, info.name, index.name)
                yield f"finished the drop of index {index.name!r} of table {info.name!r}"


def unfinished_changes(deployment: Deployment, url: str = "URL") -> tuple[str, ...]:
    """Return a sentence about each table or index that is being created, with the calls that finish or remove it."""
    return tuple(sentence for entry in deployment.catalog.entries() for sentence in _unfinished(entry, url))


def _unfinished(entry: TableEntry, url: str) -> Iterator[str]:
    info = entry.info
    if entry.state is TableState.CREATING and not table_admin.is_system(info.name):
        families = [family.decode("utf-8", "backslashreplace") for family in info.families]
        level = ["--conflict-level", info.conflict_level.value]
        create = shlex.join(["pyomid", "tables", url, "create", info.name, *families, *level])
        yield (
            f"table {info.name!r} is being created: if that was interrupted, repeat the call that creates or restores "
            f"it, or `{create}`"
        )
    if entry.state is TableState.PRESENT:
        columns = {each.column: each.name for each in info.schema.columns} if info.schema is not None else {}
        for index in info.indexes:
            if index.state in _BUILDS:
                names = [columns.get(place, str(place)) for place in index.columns]
                yield (
                    f"index {index.name!r} of table {info.name!r} is {index.state.value}: if that was interrupted, "
                    f"db.create_index({info.name!r}, {index.name!r}, {names!r}) finishes it, and "
                    f"db.drop_index({info.name!r}, {index.name!r}) removes it"
                )
