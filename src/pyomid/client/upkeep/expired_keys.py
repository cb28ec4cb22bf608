"""Idempotency keys that are old enough shrink to a hash of their id: what keeps a folder from growing by its past.

    transaction    the key's row goes, with its result and branches; the id's hash is added to the row of its group

Both in one transaction, so a run under the id finds one of them in whatever snapshot, and never commits again. A key is
old once its run began at or below a start that had been handed out so long ago.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from pyomid.client import idempotency
from pyomid.client.admin.table_admin import ensure_expiry_table
from pyomid.client.upkeep.expiry import Clock, move_floor
from pyomid.errors import Misuse, UnknownTable

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from pyomid.client.database import Database
    from pyomid.client.transaction import Transaction

KEYS_MAX: Final = 50_000
"""Of one pass. Their groups are written in order, each once."""
_BATCH_KEYS: Final = 500
_PAGE_ROWS: Final = 2_000


def expire_keys(
    database: Database,
    keep_s: float,
    *,
    wall_clock: Clock = time.time,
    rest: Callable[[], None] = lambda: None,
) -> int:
    """Shrinks the keys of runs that began so long ago. Returns how many. `rest` is called before each transaction and
    each page that is read.

    What is old is told as of tables with a time to live, by a floor in a row of the database: so it does not matter who
    calls this, nor when. An interruption leaves keys to the next time that the floor moves.
    """
    try:
        database.table_info(idempotency.KEYS_TABLE)
    except UnknownTable:
        return 0
    try:
        ensure_expiry_table(database.deployment)
    except Misuse as error:  # this user may not make a table, and cleaning is worth more than what keys cost
        log.warning("idempotency keys stay whole: %s", error)
        return 0
    moved = move_floor(database, idempotency.KEYS_TABLE, wall_clock=wall_clock, ttl_s=keep_s)
    if moved.expiry.expired_to == moved.before.expired_to:
        return 0
    expired = 0
    while (some := _expire_some(database, moved.expiry.expired_to, rest)) == KEYS_MAX:
        expired += some
    return expired + some


def _expire_some(database: Database, old_ts: int, rest: Callable[[], None]) -> int:
    keys = sorted(islice(_old_keys(database, old_ts, rest), KEYS_MAX), key=idempotency.expired_row)
    for first in range(0, len(keys), _BATCH_KEYS):
        rest()
        database.run(_expire, keys[first : first + _BATCH_KEYS])
    return len(keys)


def _old_keys(database: Database, old_ts: int, rest: Callable[[], None]) -> Iterator[bytes]:
    """Each page is of a snapshot of its own: they may be very many, and W is not held."""
    start, columns = b"", [b"%b:%b" % idempotency.KEY_COLUMN]
    while True:
        rest()
        with database.snapshot() as snapshot:
            rows = snapshot.table(idempotency.KEYS_TABLE).scan(start, columns=columns)
            page = list(islice(rows, _PAGE_ROWS))
        for key, row in page:
            began_ts = idempotency.named_start(row)
            if began_ts is not None and began_ts <= old_ts:
                yield key
        if len(page) < _PAGE_ROWS:
            return
        start = page[-1][0] + b"\0"


def _expire(transaction: Transaction, keys: list[bytes]) -> None:
    table = transaction.table(idempotency.KEYS_TABLE)
    groups: defaultdict[bytes, list[bytes]] = defaultdict(list)
    for key in keys:
        groups[idempotency.expired_row(key)].append(key)
    noted = table.rows(list(groups))
    for group, members in groups.items():
        table.put(group, idempotency.with_expired(noted[group], members))
    table.delete_rows(keys)
