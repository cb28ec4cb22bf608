"""Expiry of idempotency keys: an old key shrinks to six bytes, a hash of its id.

One transaction deletes the key's row, with its result and branches, and adds the id's hash to the row of its group. So
a run under the id finds one of them in any snapshot, and never commits again. A key is old if its run began at or below
a start that was handed out long enough ago.
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
"""Keys of one pass. Their groups are written in order, each once."""
_BATCH_KEYS: Final = 500
_PAGE_ROWS: Final = 2_000


def expire_keys(
    database: Database,
    keep_s: float,
    *,
    wall_clock: Clock = time.time,
    rest: Callable[[], None] = lambda: None,
) -> int:
    """Shrink the keys of runs that began more than `keep_s` ago. Return how many. `rest` is called before each
    transaction and each page that is read.

    Age is determined by an expiry floor, as for tables with a time to live, so any process may call this at any time.
    Keys left by an interruption are shrunk when the floor moves next.
    """
    try:
        database.table_info(idempotency.KEYS_TABLE)
    except UnknownTable:
        return 0
    try:
        ensure_expiry_table(database.deployment)
    except Misuse as error:  # this user may not create a table; other upkeep is more important than keys
        log.warning("idempotency keys are not shrunk: %s", error)
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
    """Yield old keys. Each page has a snapshot of its own, so that very many keys do not hold W."""
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
