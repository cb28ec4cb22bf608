"""Moves the floors of tables with a time to live (`protocol.expiry`): each by a transaction, whoever runs it.

A transaction that changes a table's time to live writes the same row. So what is moved after that goes by the new one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from pyomid.client.database import Database
from pyomid.client.transaction import Transaction
from pyomid.client.upkeep.partitions import chosen_tables, unless_dropped
from pyomid.client.validation import find_table
from pyomid.platforms import boot_clock
from pyomid.protocol.expiry import EXPIRY_TABLE, Expiry, expiry_row

Clock = Callable[[], float]


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
                found[info.name] = move_floor(database, info.name, wall_clock=wall_clock, notes=notes)
    return found


def move_floor(
    database: Database,
    table: str,
    *,
    wall_clock: Clock = time.time,
    notes: bool | None = None,
    always_writes: bool = False,
) -> Expiry:
    """`always_writes`: who moves the floor by what the catalog said before begins anew."""

    def move(transaction: Transaction) -> Expiry:
        info = find_table(database.deployment.catalog, table)  # after the begin
        key, floors = expiry_row(info.name, info.generation), transaction.table(EXPIRY_TABLE)
        before = Expiry.of(floors.get(key))
        ttl_ms = int(1000 * (info.ttl_seconds or 0))
        after = before.moved(transaction.start_ts, int(1000 * wall_clock()), ttl_ms, notes=notes)
        if always_writes or after is not before:
            floors.put(key, after.cells(before))
        return after

    return database.run(move)
