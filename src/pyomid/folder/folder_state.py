"""Read and write the state of a folder in a transaction: its clock, W, and what a commit must be compared with.
All records are in LMDB's unnamed database.

    state              clock, W, H, newest change of the catalog, 1 if values may expire (8 bytes each): the one record
                       that every begin reads
    F table id         the newest fence of the table; an older transaction that names the table aborts
    C table number     the newest commit to the table
    O file place       the number and outcomes of the last requests that were performed for a place of a shared file
    L start            a lease: the number of its owners, and when their part and the sharers' part end
    id                 the database's id
    retention_ms       how long history is kept
    note               see `file_note`

The *clock* is the newest timestamp that was drawn, for a commit or otherwise. A snapshot is the clock as a transaction
finds it, plus one step. The next timestamp is at least two steps above the clock, so no commit has the timestamp of a
snapshot (L1).
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pyomid.errors import Corruption
from pyomid.folder.environment import Environment, Transaction
from pyomid.folder.layout import EPOCH
from pyomid.system import boot_id
from pyomid.types import TIMESTAMP_STEP

_STATE: Final = struct.Struct(">QQQQQ")
_NUMBER: Final = struct.Struct(">Q")
_PLACE: Final = struct.Struct(">cQH")
_LEASE: Final = struct.Struct(">8sIQQQQ")
STATE: Final = b"state"
ID_NAME: Final = b"id"
RETENTION: Final = b"retention_ms"
_FENCE, _NEWEST, _OUTCOME, _LEASED = b"F", b"C", b"O", b"L"
EMPTY_STATE: Final = bytes(_STATE.size)


class State(NamedTuple):
    clock: int
    watermark: int
    horizon: int
    changed: int
    may_expire: int
    """1 if a table has, or had, a time to live. Then begins follow the wall clock."""

    @property
    def snapshot(self) -> int:
        """The start of a transaction that sees everything committed so far."""
        return self.clock + TIMESTAMP_STEP


def read_state(transaction: Transaction, database: Any) -> State:
    content = transaction.get(STATE, EMPTY_STATE, db=database)
    if len(content) != _STATE.size:
        raise Corruption(f"the folder's state has {len(content)} bytes, not {_STATE.size}")
    return State(*_STATE.unpack(content))


def put_state(transaction: Transaction, database: Any, state: State) -> None:
    transaction.put(STATE, _STATE.pack(*state), db=database)


def draw(transaction: Transaction, environment: Environment, *, is_change: bool = False) -> int:
    """Advance the clock and return it, as a timestamp that nobody else has. `is_change` means that the catalog changes,
    so table rules that an older snapshot read may be wrong."""
    database = environment.databases[EPOCH]
    state = read_state(transaction, database)
    drawn = environment.wall.next_timestamp(state.clock)
    state = state._replace(clock=drawn, changed=drawn if is_change else state.changed)
    put_state(transaction, database, state)
    return drawn


def expect_expiry(transaction: Transaction, database: Any) -> None:
    """Make begins follow the wall clock from now on, because values may expire."""
    state = read_state(transaction, database)
    if not state.may_expire:
        put_state(transaction, database, state._replace(may_expire=1))


# Fences, newest commits, outcomes


def _signed(number: int) -> bytes:
    return (number % (1 << 64)).to_bytes(8)


def fence_of(transaction: Transaction, database: Any, table_id: int) -> int:
    return _number(transaction, database, _FENCE + _signed(table_id))


def put_fence(transaction: Transaction, environment: Environment, table_id: int) -> int:
    fence = draw(transaction, environment, is_change=True)
    transaction.put(_FENCE + _signed(table_id), _NUMBER.pack(fence), db=environment.databases[EPOCH])
    return fence


def fence_at(transaction: Transaction, database: Any, table_id: int, commit_ts: int) -> None:
    """Fence a table at the timestamp of a commit that claims it as a whole."""
    put_state(transaction, database, read_state(transaction, database)._replace(changed=commit_ts))
    transaction.put(_FENCE + _signed(table_id), _NUMBER.pack(commit_ts), db=database)


def newest_commit(transaction: Transaction, database: Any, prefix: bytes) -> int:
    """Return the newest commit to the table whose keys have this prefix, or 0."""
    return _number(transaction, database, _NEWEST + prefix)


def put_newest_commit(transaction: Transaction, database: Any, prefix: bytes, commit_ts: int) -> None:
    transaction.put(_NEWEST + prefix, _NUMBER.pack(commit_ts), db=database)


def newest_commit_of_all(transaction: Transaction, database: Any) -> int:
    """Return the newest commit to any table, or 0."""
    newest = 0
    with transaction.cursor(database) as cursor:
        more = cursor.set_range(_NEWEST)
        while more and cursor.key().startswith(_NEWEST):
            newest = max(newest, int.from_bytes(cursor.value()))
            more = cursor.next()
    return newest


def outcomes_of(transaction: Transaction, database: Any, place: tuple[int, int], number: int) -> bytes | None:
    """Return the outcomes of the requests with this number, or None if they were not performed."""
    content: bytes = transaction.get(_PLACE.pack(_OUTCOME, *place), b"", db=database)
    return content[8:] if content[:8] == _NUMBER.pack(number) else None


def put_outcomes(transaction: Transaction, database: Any, place: tuple[int, int], number: int, outcomes: bytes) -> None:
    transaction.put(_PLACE.pack(_OUTCOME, *place), _NUMBER.pack(number) + outcomes, db=database)


def _number(transaction: Transaction, database: Any, key: bytes) -> int:
    content = transaction.get(key, db=database)
    return 0 if content is None else int.from_bytes(content)


def read_number(transaction: Transaction, database: Any, key: bytes) -> int:
    return _number(transaction, database, key)


def put_number(transaction: Transaction, database: Any, key: bytes, number: int) -> None:
    transaction.put(key, _NUMBER.pack(number), db=database)


# Leases


class LeaseRecord(NamedTuple):
    """A lease on a start, with the owners' part and the sharers' part. Times are milliseconds of the boot clock, which
    no change of the wall clock moves. The time of a part that has ended is 0."""

    boot: bytes = b""
    """The boot (`system.boot_id`) whose clock the times refer to."""
    owners: int = 0
    owned_until_ms: int = 0
    owned_term_ms: int = 0
    shared_until_ms: int = 0
    shared_term_ms: int = 0

    def lives_at(self, now_ms: int) -> bool:
        return (self.owners > 0 and now_ms < self.owned_until_ms) or now_ms < self.shared_until_ms

    def rebased(self, now_ms: int) -> LeaseRecord:
        """Return the lease in times of the current boot. After a reboot each part gets a full term again."""
        if self.boot == boot_id():
            return self
        return self._replace(
            boot=boot_id(),
            owned_until_ms=self.owned_term_ms and now_ms + self.owned_term_ms,
            shared_until_ms=self.shared_term_ms and now_ms + self.shared_term_ms,
        )


def lease_of(transaction: Transaction, database: Any, start_ts: int, now_ms: int) -> LeaseRecord:
    content = transaction.get(_LEASED + _NUMBER.pack(start_ts), db=database)
    return (LeaseRecord() if content is None else LeaseRecord(*_LEASE.unpack(content))).rebased(now_ms)


def put_lease(transaction: Transaction, database: Any, start_ts: int, lease: LeaseRecord, now_ms: int) -> None:
    key = _LEASED + _NUMBER.pack(start_ts)
    if lease.lives_at(now_ms):
        transaction.put(key, _LEASE.pack(*lease), db=database)
    else:
        transaction.delete(key, db=database)


def leases(transaction: Transaction, database: Any, now_ms: int) -> Iterator[tuple[int, LeaseRecord]]:
    """Yield all leases by start, even those that have ended."""
    with transaction.cursor(database) as cursor:
        more = cursor.set_range(_LEASED)
        while more and cursor.key().startswith(_LEASED) and len(cursor.key()) == 9:
            yield int.from_bytes(cursor.key()[1:]), LeaseRecord(*_LEASE.unpack(cursor.value())).rebased(now_ms)
            more = cursor.next()


def read_identity(transaction: Transaction, database: Any) -> bytes:
    """Return the database's id; it is empty before the database is opened for the first time."""
    return bytes(transaction.get(ID_NAME, b"", db=database))


def new_identity(transaction: Transaction, database: Any) -> None:
    """B3: make a copy another database by giving it an id of its own. Delete its leases, because their holders use the
    original."""
    transaction.put(ID_NAME, os.urandom(16), db=database)
    with transaction.cursor(database) as cursor:
        more = cursor.set_range(_LEASED)
        while more and cursor.key().startswith(_LEASED):
            more = cursor.delete()
