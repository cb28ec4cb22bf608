"""Shrink old idempotency keys to six bytes of a hash of the id.

One transaction deletes the key's row, with its result and branches, and adds the id's hash to the row of its group. So
a run with the id finds the key or the hash in any snapshot, and never commits again (K9). Timestamps show a key's age
(T3), so any process may shrink keys at any time; after an interruption, the next call shrinks the remaining keys.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from pyomid.database import idempotency
from pyomid.database.issued import drawn_start
from pyomid.errors import UnknownTable
from pyomid.protocol.timestamps import NS_PER_S

if TYPE_CHECKING:
    from pyomid.database.database import Database
    from pyomid.database.transaction import Transaction

KEYS_MAX: Final = 50_000
"""Maximum number of keys in one pass, which writes their groups in order, each group once."""
_BATCH_KEYS: Final = 500
_PAGE_ROWS: Final = 2_000


def expire_keys(database: Database, keep_s: float, *, rest: Callable[[], None] = lambda: None) -> int:
    """Shrink the keys of runs that began more than `keep_s` ago, and return their number. `rest` is called before each
    transaction and before each page is read."""
    try:
        database.table_info(idempotency.KEYS_TABLE)
    except UnknownTable:
        return 0
    old_ts = drawn_start(database._core.deployment) - int(keep_s * NS_PER_S)
    expired = 0
    while (some := _expire_some(database, old_ts, rest)) == KEYS_MAX:
        expired += some
    return expired + some


def _expire_some(database: Database, old_ts: int, rest: Callable[[], None]) -> int:
    keys = sorted(islice(_old_keys(database, old_ts, rest), KEYS_MAX), key=idempotency.expired_row)
    for first in range(0, len(keys), _BATCH_KEYS):
        rest()
        database.run(_expire, keys[first : first + _BATCH_KEYS])
    return len(keys)


def _old_keys(database: Database, old_ts: int, rest: Callable[[], None]) -> Iterator[bytes]:
    """Yield old keys. Each page is read in a new snapshot, so that a long scan does not hold W back."""
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
        table.put(group, idempotency.with_expired(noted[group] or {}, members))
    table.delete_rows(keys)
