"""Moves the floors of tables with a time to live (`protocol.expiry`): each in a transaction of its own.

A transaction that changes a table's time to live writes the same row. So what is moved after that goes by the new one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyomid.client.upkeep.partitions import chosen_tables, unless_dropped
from pyomid.client.validation import find_table
from pyomid.errors import OmidError
from pyomid.platforms import boot_clock
from pyomid.protocol.expiry import EXPIRY_TABLE, FLOOR_COLUMN, LATEST_COLUMN, POINTS_COLUMN, Expiry, expiry_row
from pyomid.types import TableInfo

if TYPE_CHECKING:
    from pyomid.client.database import Database
    from pyomid.client.transaction import Transaction

Clock = Callable[[], float]


class Moved(NamedTuple):
    """What a transaction found in the row and left in it, its start, and whether it wrote it."""

    before: Expiry
    expiry: Expiry
    start_ts: int
    is_written: bool

    @property
    def is_noted(self) -> bool:
        return any(point.start_ts == self.start_ts for point in self.expiry.points)


def steady_clock() -> Clock:
    """Seconds since 1970. What is set while the process lives does not change it."""
    began_s = time.time() - boot_clock()
    return lambda: began_s + boot_clock()


def expire(
    database: Database,
    tables: str | Sequence[str] | None = None,
    *,
    wall_clock: Clock = time.time,
    notes: bool | None = None,
) -> dict[str, Expiry]:
    """Moves the floors of these tables (all of them) that have, or had, a time to live. Returns what they are now.
    `notes`: as of `Expiry.moved`."""
    catalog, found = database.deployment.catalog, {}
    for info in chosen_tables(catalog, tables):
        if info.ttl_seconds is not None:
            with unless_dropped(catalog, info.name, info.generation, tables):
                found[info.name] = move_floor(database, info.name, wall_clock=wall_clock, notes=notes).expiry
    return found


def move_floor(
    database: Database,
    table: str,
    *,
    wall_clock: Clock = time.time,
    notes: bool | None = None,
    always_writes: bool = False,
    ttl_s: float | None = None,
) -> Moved:
    """`always_writes`: who moves the floor by what the catalog said before begins anew. `ttl_s`: in place of what the
    catalog says."""

    def move(transaction: Transaction) -> tuple[Expiry, Expiry, Transaction]:
        info = find_table(database.deployment.catalog, table)  # after the begin
        key, floors = expiry_row(info.name, info.generation), transaction.table(EXPIRY_TABLE)
        before = Expiry.of(floors.get(key))
        ttl_ms = int(1000 * ((info.ttl_seconds or 0) if ttl_s is None else ttl_s))
        after = before.moved(transaction.start_ts, int(1000 * wall_clock()), ttl_ms, notes=notes)
        if always_writes or after is not before:
            floors.put(key, after.cells(before))
        return before, after, transaction

    before, after, transaction = database.run(move)
    return Moved(before, after, transaction.start_ts, transaction.commit_ts is not None)


def forget(database: Database, info: TableInfo) -> None:
    """Deletes the row of a table that is no more. If that fails the row stays, and is never read: a table made anew
    has another one."""
    with contextlib.suppress(OmidError):
        columns = [b"%b:%b" % column for column in (FLOOR_COLUMN, POINTS_COLUMN, LATEST_COLUMN)]
        database.run(lambda tx: tx.table(EXPIRY_TABLE).delete(expiry_row(info.name, info.generation), columns))
