"""Move the expiry floors of tables with a time to live (`protocol.expiry`), each in its own transaction. Shrink old
idempotency keys.

A transaction that changes a table's time to live writes the same row, so a concurrent move conflicts with it and later
moves use the new time to live. It notes only its own time point: existing values live for the whole new time from then.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from pyomid.client import idempotency
from pyomid.client.table_admin import ensure_expiry_table
from pyomid.client.upkeep.jobs import chosen_tables, unless_dropped
from pyomid.client.validation import find_table
from pyomid.errors import Misuse, OmidError, UnknownTable
from pyomid.ports import Deployment
from pyomid.protocol.expiry import EXPIRY_TABLE, FLOOR_COLUMN, LATEST_COLUMN, POINTS_COLUMN, Expiry, expiry_row
from pyomid.system import boot_clock
from pyomid.types import TableInfo

if TYPE_CHECKING:
    from pyomid.client.database import Database
    from pyomid.client.transaction import Transaction

Clock = Callable[[], float]

log = logging.getLogger(__name__)


class Moved(NamedTuple):
    """A move: the row before and after it, the transaction's start, and whether it wrote the row."""

    before: Expiry
    expiry: Expiry
    start_ts: int
    is_written: bool

    @property
    def is_noted(self) -> bool:
        return any(point.start_ts == self.start_ts for point in self.expiry.points)


def steady_clock() -> Clock:
    """Return a clock of seconds since 1970 that ignores changes of the system's time during the process."""
    began_s = time.time() - boot_clock()
    return lambda: began_s + boot_clock()


def expire(
    database: Database,
    tables: str | Sequence[str] | None = None,
    *,
    wall_clock: Clock = time.time,
    notes: bool | None = None,
) -> dict[str, Expiry]:
    """Move the expiry floors of these tables (None: all) that have, or had, a time to live. Return each table's
    current expiry. `notes`: as in `Expiry.moved`."""
    catalog, found = database._core.deployment.catalog, {}
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
    """Move a table's expiry floor, and return the move. `always_writes`: write the row even if nothing changes, so that
    a concurrent move by the earlier catalog entry aborts. `ttl_s`: used instead of the catalog's time to live.

    The TSO's time points also date values (E6), so that values committed while no client moved the floor get their true
    age; the TSO first notes its newest start.
    """
    deployment, is_change = database._core.deployment, always_writes
    ahead_ms = 0 if is_change else _ahead_of_tso_ms(deployment, int(1000 * wall_clock()))

    def move(transaction: Transaction) -> tuple[Expiry, Expiry, Transaction]:
        info = find_table(database._core.deployment.catalog, table)  # after the begin
        key, floors = expiry_row(info.name, info.generation), transaction.table(EXPIRY_TABLE)
        before = Expiry.of(floors.get(key))
        ttl_ms = int(1000 * ((info.ttl_seconds or 0) if ttl_s is None else ttl_s))
        noted = [] if is_change else deployment.leader_state.time_points()
        after = before.moved(
            transaction.start_ts,
            int(1000 * wall_clock()),
            ttl_ms,
            notes=notes,
            noted=[point._replace(wall_ms=point.wall_ms + ahead_ms) for point in noted],
            since_ts=info.generation,
        )
        if always_writes or after is not before:
            floors.put(key, after.cells(before))
        return before, after, transaction

    before, after, transaction = database.run(move)
    return Moved(before, after, transaction.start_ts, transaction.commit_ts is not None)


def _ahead_of_tso_ms(deployment: Deployment, now_ms: int) -> int:
    """Return how far this clock is ahead of the TSO's, to correct the TSO's time points. The request makes the TSO note
    its newest start."""
    if not deployment.tso.extended:
        return 0
    moment = deployment.tso.moment_at(now_ms, now_ms)
    return max(0, now_ms - moment.wall_ms) if moment.snapshot_ts else 0


def forget(database: Database, info: TableInfo) -> None:
    """Delete the expiry row of a dropped table. If that fails, the row stays and is never read: a new table of that
    name has another row."""
    with contextlib.suppress(OmidError):
        columns = [b"%b:%b" % column for column in (FLOOR_COLUMN, POINTS_COLUMN, LATEST_COLUMN)]
        database.run(lambda tx: tx.table(EXPIRY_TABLE).delete(expiry_row(info.name, info.generation), columns))


# Idempotency keys: an old key shrinks to six bytes, a hash of its id. One transaction deletes the key's row, with its
# result and branches, and adds the id's hash to the row of its group. So a run under the id finds one of them in any
# snapshot, and never commits again. A key is old if its run began at or below a start that was handed out long enough
# ago.

KEYS_MAX: Final = 50_000
"""Most keys of one pass, which writes their groups in order, each group once."""
_BATCH_KEYS: Final = 500
_PAGE_ROWS: Final = 2_000


def expire_keys(
    database: Database,
    keep_s: float,
    *,
    wall_clock: Clock = time.time,
    rest: Callable[[], None] = lambda: None,
) -> int:
    """Shrink the keys of runs that began more than `keep_s` ago, and return their number. Calls `rest` before each
    transaction and each page that it reads.

    Age is determined by an expiry floor, as for tables with a time to live, so any process may call this at any time.
    Keys left by an interruption are shrunk when the floor moves next.
    """
    try:
        database.table_info(idempotency.KEYS_TABLE)
    except UnknownTable:
        return 0
    try:
        ensure_expiry_table(database._core.deployment)
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
