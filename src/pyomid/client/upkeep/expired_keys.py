"""Idempotency keys that are old enough shrink to a hash of their id: what keeps a folder from growing by its past.

    transaction    the key's row goes, with its result and branches; the id's hash is added to the row of its group

Both in one transaction, so a run under the id finds one of them in whatever snapshot, and never commits again. A key is
old once its run began at or below a start that had been handed out so long ago.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from pyomid.client import idempotency
from pyomid.client.database import Database
from pyomid.client.transaction import Transaction
from pyomid.errors import UnknownTable

KEYS_MAX: Final = 50_000
"""Of one pass. Their groups are written in order, each once."""
_BATCH_KEYS: Final = 500
_PAGE_ROWS: Final = 2_000


class Ages:
    """Which start was the newest at which time, at up to so many times: old starts are told by it."""

    def __init__(self, keep_s: float, samples: Iterable[tuple[float, int]] = ()) -> None:
        self._keep_s = keep_s
        self.samples = deque(samples)
        """(seconds since 1970, start), both ascending."""

    def is_due(self, now_s: float) -> bool:
        """Whether it is time for a note."""
        while self.samples and self.samples[-1][0] > now_s:  # the clock was set back
            self.samples.pop()
        return not self.samples or now_s >= self.samples[-1][0] + self._keep_s / 64

    def note(self, now_s: float, newest_ts: int) -> int:
        """Notes the newest start. Returns the start up to which all are old; 0 if none became old."""
        self.samples.append((now_s, newest_ts))
        old_ts = 0
        while self.samples[0][0] <= now_s - self._keep_s:
            old_ts = self.samples.popleft()[1]
        return old_ts


def expire_keys(database: Database, old_ts: int, rest: Callable[[], None] = lambda: None) -> int:
    """Shrinks the keys of runs that began at or below `old_ts`, some of them if they are very many. Returns how many.
    `rest` is called before each transaction and each page that is read."""
    try:
        database.table_info(idempotency.KEYS_TABLE)
    except UnknownTable:
        return 0
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
