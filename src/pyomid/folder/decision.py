"""Decide whether a transaction of a folder commits, and write it, in one LMDB write transaction (L2).

A transaction commits if and only if no cell (at level row: no row) that it writes or claims was committed or claimed at
or above its snapshot, none of its own branches is doomed or dead, and no table that it names was fenced since its
snapshot. Its records get the commit timestamp as version and as commit, so nothing is left to complete.

A packed request looks like this. Integers are little-endian, except numbers in keys:

    head      start (8), flags (1), number of branches (4) and of tables (2). Flag 1: tables are claimed as a whole;
              flag 2: the claims name all cells of the branches
    branches  8 bytes each
    table     length of its name (2), id (8), levels (1), number of rows and of claims (4 each); name, number (4)
    row       length of its key (2), number of its columns (2), lengths of its cells and free cells (4 each); key as in
              the keys of records, columns' numbers (2 each), cells, conflict-free cells
    claim     length of its key (2), number of its columns (2; 0: the row); key, columns' numbers

Conflict-free cells become a record of their own, at the commit timestamp plus 1. No conflict search reads that record.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from pyomid.errors import Misuse, OmidError, UnknownTable
from pyomid.folder import branches, folder_state, watermark
from pyomid.folder.catalog import conflicts_by_row
from pyomid.folder.environment import Environment, Transaction
from pyomid.folder.layout import BRANCHES, CELLS, CLAIMS, EPOCH, SAMPLES
from pyomid.folder.native import commits, conflicts
from pyomid.folder.records import (
    HEADER_BYTES,
    TABLE_BYTES,
    VERSION_BYTES,
    corrupt,
    encode_cells,
    is_row_key,
    places_in,
    record_of,
    row_prefix,
    version_suffix,
)
from pyomid.folder.tables import SAMPLE_MASK, Table, Tables, is_sample
from pyomid.protocol.hashing import table_id
from pyomid.types import (
    TIMESTAMP_STEP,
    AbortReason,
    Column,
    CommitReply,
    ConflictLevel,
    RowWrite,
    TableChanges,
    start_of,
)

_HEAD: Final = struct.Struct("<qBIH")
_TABLE: Final = struct.Struct("<HqBII")
_ROW: Final = struct.Struct("<HHII")
_CLAIM: Final = struct.Struct("<HH")
_OUTCOME: Final = struct.Struct("<BqqqH")
_BY_CELL, _BY_ROW = 1, 2
_CLAIMS_TABLES, _CLAIMS_ALL = 1, 2
_REASONS: Final = (None, *AbortReason)
_UNKNOWN_TABLE, _MALFORMED = 254, 255
_CLEANED_MAX: Final = 16
"""How many records of a row a commit examines, to delete those that nobody can read."""
FREE: Final = 1
"""Conflict-free cells have the commit timestamp plus this number as their version."""


def pack_request(
    start_ts: int,
    tables: Sequence[bytes],
    own: Sequence[int] = (),
    *,
    claims_tables: bool = False,
    claims_all: bool = False,
) -> bytes:
    """Pack a request for tables that `pack_table` packed. `claims_all` has the meaning of `DataStore.pack_commit`."""
    flags = claims_tables * _CLAIMS_TABLES | claims_all * _CLAIMS_ALL
    head = _HEAD.pack(start_ts, flags, len(own), len(tables))
    return b"".join((head, struct.pack(f"<{len(own)}q", *own), *tables))


def pack_rows(table: Table, changes: TableChanges) -> bytes:
    """Pack the rows. Every column must have a number already. For ordinary rows, `commits.packed_rows` is faster."""
    return b"".join(_packed_row(row, table.numbers, changes.free) for row in changes.row_writes())


def pack_table(table: Table, changes: TableChanges, rows: bytes) -> bytes:
    """Pack the changes of one table, given its packed rows."""
    name, levels = changes.name.encode(), 0
    for level in changes.levels:
        levels |= _BY_CELL if level is ConflictLevel.CELL else _BY_ROW
    claims: dict[bytes, list[Column | None]] = {}
    for row, column in changes.claims:
        claims.setdefault(row, []).append(column)
    out: list[bytes] = []
    numbers = table.loaded.numbers
    claimed = 0
    for row, columns in claims.items():
        key = row_prefix(b"", row)
        named = [numbers[column] for column in columns if column is not None]
        for some in ([], named) if None in columns and named else (named,):
            claimed += 1
            out += (_CLAIM.pack(len(key), len(some)), key, struct.pack(f"<{len(some)}H", *some))
    head = _TABLE.pack(len(name), table_id(name), levels, len(changes.rows), claimed)
    return b"".join((head, name, table.prefix, rows, *out))


def _packed_row(write: RowWrite, numbers: Mapping[Column, int], free: Collection[tuple[bytes, Column]]) -> bytes:
    row, cells = write
    if free:
        checked = {numbers[c]: value for c, value in cells if (row, c) not in free}
        others = {numbers[c]: value for c, value in cells if (row, c) in free}
    else:
        checked, others = {numbers[c]: value for c, value in cells}, {}
    key = row_prefix(b"", row)
    encoded = encode_cells(checked) if checked else b""
    encoded_free = encode_cells(others) if others else b""
    head = _ROW.pack(len(key), len(checked), len(encoded), len(encoded_free))
    return b"".join((head, key, struct.pack(f"<{len(checked)}H", *checked), encoded, encoded_free))


class _Row(NamedTuple):
    key: bytes
    numbers: bytes
    cells: bytes
    free: bytes


class _Changes(NamedTuple):
    """One table of a request, unpacked. `prefix` begins all keys of the table."""

    name: str
    table_id: int
    levels: int
    prefix: bytes
    rows: list[_Row]
    claims: list[tuple[bytes, bytes]]


class _Request(NamedTuple):
    start_ts: int
    claims_tables: bool
    claims_all: bool
    branches: tuple[int, ...]
    tables: list[_Changes]


def start_of_request(packed: bytes) -> int:
    """Return the start of a packed request, or 0 if the request is too short."""
    return _HEAD.unpack_from(packed)[0] if len(packed) >= _HEAD.size else 0


def _unpack(packed: bytes) -> _Request:
    start_ts, flags, owned, count = _HEAD.unpack_from(packed)
    at = _HEAD.size
    own = struct.unpack_from(f"<{owned}q", packed, at)
    at += 8 * owned
    tables: list[_Changes] = []
    for _ in range(count):
        size, table_id, levels, row_count, claim_count = _TABLE.unpack_from(packed, at)
        at += _TABLE.size + size + TABLE_BYTES
        name, prefix = packed[at - TABLE_BYTES - size : at - TABLE_BYTES].decode(), packed[at - TABLE_BYTES : at]
        rows: list[_Row] = []
        for _ in range(row_count):
            key_size, columns, cells, free = _ROW.unpack_from(packed, at)
            at += _ROW.size
            a, b, c = at + key_size, at + key_size + 2 * columns, at + key_size + 2 * columns + cells
            rows.append(_Row(packed[at:a], packed[a:b], packed[b:c], packed[c : c + free]))
            at = c + free
        claims: list[tuple[bytes, bytes]] = []
        for _ in range(claim_count):
            key_size, columns = _CLAIM.unpack_from(packed, at)
            at += _CLAIM.size
            claims.append((packed[at : at + key_size], packed[at + key_size : at + key_size + 2 * columns]))
            at += key_size + 2 * columns
        tables.append(_Changes(name, table_id, levels, prefix, rows, claims))
    if at != len(packed):
        raise ValueError(f"{len(packed)} bytes, of which {at} are used")
    return _Request(start_ts, bool(flags & _CLAIMS_TABLES), bool(flags & _CLAIMS_ALL), own, tables)


# The outcome

Outcome = CommitReply | OmidError
"""A decision, or the error of a request that could not be decided."""


def pack_outcomes(outcomes: Iterable[Outcome]) -> bytes:
    return b"".join(map(_packed_outcome, outcomes))


def _packed_outcome(outcome: Outcome) -> bytes:
    if isinstance(outcome, OmidError):
        text = str(outcome).encode()[:1000]
        return (
            _OUTCOME.pack(_UNKNOWN_TABLE if isinstance(outcome, UnknownTable) else _MALFORMED, 0, 0, 0, len(text))
            + text
        )
    reason = _REASONS.index(outcome.reason)
    return _OUTCOME.pack(reason, outcome.start_ts, outcome.commit_ts, outcome.conflict_ts, 0)


def unpack_outcomes(packed: bytes) -> list[Outcome]:
    found: list[Outcome] = []
    at = 0
    while at < len(packed):
        code, start_ts, commit_ts, conflict_ts, size = _OUTCOME.unpack_from(packed, at)
        at += _OUTCOME.size + size
        if code in (_UNKNOWN_TABLE, _MALFORMED):
            text = packed[at - size : at].decode(errors="replace")
            found.append(UnknownTable(text) if code == _UNKNOWN_TABLE else Misuse(text))
        else:
            found.append(CommitReply(start_ts, commit_ts, _REASONS[code], conflict_ts))
    return found


# The decision


class Decision:
    """Decides requests in write transactions of one environment. `tables` must belong to the same environment."""

    def __init__(self, environment: Environment, tables: Tables) -> None:
        self._environment = environment
        self._tables = tables
        self._search = conflicts.Search()
        self._entries: dict[bytes, tuple[bytes, bytes]] = {}
        """name → (entry, prefix of the table's keys), as last read."""
        self._columns: dict[bytes, int] = {}
        """table number → the greatest column number that was found in the table."""
        self._ordinary = commits.Ordinary(self._search, self._entries, self._columns, _CLEANED_MAX, SAMPLE_MASK)

    def decide(self, transaction: Transaction, requests: Sequence[bytes], *, is_foreign: bool = False) -> list[Outcome]:
        """Decide each request, write those that commit, and return the outcomes. If a request has an error, the error
        is its outcome, and nothing of the request was written. `is_foreign` means that another process packed the
        requests, perhaps wrongly."""
        environment, ordinary, outcomes = self._environment, self._ordinary, list[Outcome]()
        databases, starts, draw = environment.databases, environment.starts, environment.wall.next_timestamp
        ordinary.begin(transaction, databases, starts.released, draw)
        for request in requests:
            found = ordinary.decided(request, is_foreign)
            if found is None:
                ordinary.end()
                outcomes.append(self.decide_any(transaction, request, is_foreign=is_foreign))
                ordinary.begin(transaction, databases, starts.released, draw)
                continue
            (start_ts, *_) = _HEAD.unpack_from(request)
            conflict = AbortReason.CONFLICT
            outcomes.append(CommitReply(start_ts, found) if found > 0 else CommitReply(start_ts, 0, conflict, -found))
        ordinary.end()
        return outcomes

    def decide_any(self, transaction: Transaction, request: bytes, *, is_foreign: bool = False) -> Outcome:
        """Decide one request of any kind, and return its outcome. This is the reference implementation of
        `commits.Ordinary`."""
        try:
            unpacked = _unpack(request)
            if is_foreign:
                self._check(unpacked)
        except (struct.error, ValueError) as error:
            start_ts = start_of_request(request)
            return Misuse(f"the commit request of start_ts {start_ts} is malformed: {error}", start_ts=start_ts)
        try:
            return _Deciding(self, transaction, unpacked).outcome()
        except OmidError as error:
            return error

    def _check(self, request: _Request) -> None:
        """Raise `ValueError` unless every key and cell of the request can be read again."""
        if min((request.start_ts, *request.branches)) < 0:
            raise ValueError("a timestamp is negative")
        for changes in request.tables:
            if changes.table_id != table_id(changes.name.encode()):
                raise ValueError("a table's number is not that of its name")
            for key, numbers, cells, free in changes.rows:
                if not (cells or free) or bool(cells) != bool(numbers):
                    raise ValueError("a row has no cells, or no columns")
                if cells and not self._search.greatest(cells, numbers):
                    raise ValueError("a row's cells do not have its columns")
                if free and not self._search.greatest(free, b""):
                    raise ValueError("a row's conflict-free cells are malformed")
                if not is_row_key(key):
                    raise ValueError("a row's key is malformed")
            if not all(is_row_key(key) for key, _ in changes.claims):
                raise ValueError("a claim's key is malformed")

    def check_branch(
        self, transaction: Transaction, table: Table, version: int, records: Iterable[tuple[bytes, bytes]]
    ) -> None:
        """L8: find the conflicts of records that an open branch is about to write, and note them at the branch. A
        version that has no branch is not checked.

        The caller writes the records in the same transaction, whether or not there are conflicts.
        """
        database = self._environment.databases[BRANCHES]
        is_free, version = version % TIMESTAMP_STEP == FREE, start_of(version)
        branch = branches.branch_of(transaction, database, version)
        if branch is None:
            return
        if branch.commit != branches.OPEN:
            raise Misuse(f"branch {version} has ended: nothing can be written under it", version=version)
        branches.note_table(transaction, database, table.prefix, version, branch.job)
        if is_free or branch.conflict or not self._may_conflict(transaction, table, branch):
            return
        states = branches.States(transaction, database)
        own, by_row = (version,), conflicts_by_row(self._environment, transaction, table.name)
        with transaction.cursor(self._environment.databases[CELLS]) as cursor:
            for key, value in records:
                row, numbers = key[:-VERSION_BYTES], b"" if by_row else _numbers_in(value)
                conflict, met, _ = self._searched(cursor, row, numbers, branch.snapshot, own, states)
                conflict = max(conflict, self._claimed(transaction, row, numbers, branch.snapshot))
                for other in met:
                    one = branches.branch_of(transaction, database, other)
                    if one is not None and one.job != branch.job:
                        branches.note_pair(transaction, database, version, other)
                if conflict:
                    branches.doom(transaction, database, version, conflict)
                    return

    def _may_conflict(self, transaction: Transaction, table: Table, branch: branches.Branch) -> bool:
        """Return whether anything in the table can conflict with the branch. Mostly nothing can, because nothing was
        committed to the table since the branch's snapshot."""
        databases = self._environment.databases
        newest = folder_state.newest_commit(transaction, databases[EPOCH], table.prefix)
        return (
            newest >= branch.snapshot
            or bool(transaction.stat(databases[CLAIMS])["entries"])
            or branches.has_others(transaction, databases[BRANCHES], table.prefix, branch.job)
        )

    def _searched(
        self,
        cursor: Any,
        row: bytes,
        numbers: bytes,
        start_ts: int,
        own: Collection[int],
        states: Callable[[int], int],
    ) -> tuple[int, list[int], bool]:
        found = self._search.row(cursor, row, numbers, start_ts, own, states)
        if found is None:
            raise corrupt(row + version_suffix(start_ts), "a record of the row is malformed")
        return found

    def _claimed(self, transaction: Transaction, row: bytes, numbers: bytes, start_ts: int) -> int:
        """Return the commit of a claim of the row, or of one of its columns, that is at or above the snapshot, or 0."""
        claims = self._environment.databases[CLAIMS]
        if not transaction.stat(claims)["entries"]:
            return 0
        for name in _claim_names(row, numbers):
            commit_ts = folder_state.read_number(transaction, claims, name)
            if commit_ts >= start_ts:
                return commit_ts
        return 0

    def prefix_of(self, transaction: Transaction, name: str) -> bytes:
        """Return the prefix of the keys of the table with this name. Raises `UnknownTable` if there is none."""
        entry = self._tables.entry_of(transaction, name)
        known = self._entries.get(name.encode())
        if known is not None and known[0] == entry:
            return known[1]
        table = self._tables.table(transaction, name)
        self._entries[name.encode()] = table.entry, table.prefix
        return table.prefix

    def has_columns(self, transaction: Transaction, prefix: bytes, number: int) -> bool:
        if number <= self._columns.get(prefix, 0):
            return True
        key = b"c" + prefix + number.to_bytes(4)
        if transaction.get(key, db=self._tables.database) is None:
            return False
        self._columns[prefix] = number
        return True


def _numbers_in(value: bytes) -> bytes:
    numbers = [number for number, _, _ in places_in(value, HEADER_BYTES)]
    return struct.pack(f"<{len(numbers)}H", *numbers)


def _claim_names(row: bytes, numbers: bytes) -> Iterable[bytes]:
    """Return the keys of the claims of a row, or of its columns if `numbers` names any."""
    if not numbers:
        return (blake2b(row, digest_size=16).digest(),)
    return (blake2b(row + numbers[at : at + 2], digest_size=16).digest() for at in range(0, len(numbers), 2))


class _Deciding:
    """Decides one request in one transaction: first it checks everything, then it writes everything."""

    def __init__(self, decision: Decision, transaction: Transaction, request: _Request) -> None:
        databases = decision._environment.databases
        self._decision, self._transaction, self._request = decision, transaction, request
        self._cells, self._samples, self._claims = databases[CELLS], databases[SAMPLES], databases[CLAIMS]
        self._branches, self._state_db = databases[BRANCHES], databases[EPOCH]
        self._states = branches.States(transaction, self._branches)
        self._own = frozenset(request.branches)
        self._met: set[int] = set()
        self._former: list[bytes] = []
        """The rows that the request writes and that already have records."""

    def outcome(self) -> CommitReply:
        request, transaction = self._request, self._transaction
        former = folder_state.read_state(transaction, self._state_db)
        state = watermark.raised(transaction, self._decision._environment, former)
        if state != former:
            folder_state.put_state(transaction, self._state_db, state)
        start_ts = request.start_ts
        if start_ts <= state.watermark:
            reason = AbortReason.LEASE_LOST if request.branches else AbortReason.LOW_WATERMARK
            return CommitReply(start_ts, reason=reason)
        refused = self._branches_refused() or self._tables_refused()
        if refused is not None:
            return refused
        with transaction.cursor(self._cells) as cursor:
            for changes in request.tables:
                conflict = self._conflict_in(cursor, changes)
                if conflict:
                    return CommitReply(start_ts, reason=AbortReason.CONFLICT, conflict_ts=conflict)
        commit_ts = self._decision._environment.wall.next_timestamp(state.clock)
        folder_state.put_state(transaction, self._state_db, state._replace(clock=commit_ts))
        self._clean(state.watermark)
        self._write(commit_ts)
        return CommitReply(start_ts, commit_ts)

    def _branches_refused(self) -> CommitReply | None:
        for version in self._request.branches:
            branch = branches.branch_of(self._transaction, self._branches, version)
            if branch is None or branch.commit != branches.OPEN:
                return CommitReply(self._request.start_ts, reason=AbortReason.SEALED)
            if branch.conflict and not self._request.claims_all:
                return CommitReply(self._request.start_ts, reason=AbortReason.CONFLICT, conflict_ts=branch.conflict)
        return None

    def _tables_refused(self) -> CommitReply | None:
        start_ts = self._request.start_ts
        for changes in self._request.tables:
            fence = folder_state.fence_of(self._transaction, self._state_db, changes.table_id)
            if fence > start_ts:
                return CommitReply(start_ts, reason=AbortReason.FENCE, conflict_ts=fence)
            if self._decision.prefix_of(self._transaction, changes.name) != changes.prefix:
                raise UnknownTable(
                    f"table {changes.name!r} was dropped and created again since this transaction wrote to it",
                    table=changes.name,
                )
            if self._request.claims_tables:
                newest = folder_state.newest_commit(self._transaction, self._state_db, changes.prefix)
                if newest >= start_ts:
                    return CommitReply(start_ts, reason=AbortReason.TABLE, conflict_ts=newest)
            greatest = max(
                (
                    int.from_bytes(row.numbers[at : at + 2], "little")
                    for row in changes.rows
                    for at in range(0, len(row.numbers), 2)
                ),
                default=0,
            )
            greatest = max(
                greatest, *(self._decision._search.greatest(row.free, b"") for row in changes.rows if row.free), 0
            )
            if greatest and not self._decision.has_columns(self._transaction, changes.prefix, greatest):
                raise Misuse(
                    f"the commit request of start_ts {start_ts} names column {greatest} of table {changes.name!r}, "
                    "which has fewer columns",
                    start_ts=start_ts,
                )
        return None

    def _conflict_in(self, cursor: Any, changes: _Changes) -> int:
        by_row = bool(changes.levels & _BY_ROW)
        for row in changes.rows:
            if row.numbers:
                key = changes.prefix + row.key
                conflict, is_there = self._conflict_of(cursor, key, b"" if by_row else row.numbers)
                if conflict:
                    return conflict
                if is_there:
                    self._former.append(key)
        for key, numbers in changes.claims:
            whole_row_by_cell = not numbers and not by_row
            if whole_row_by_cell:
                conflict = self._decision._claimed(self._transaction, changes.prefix + key, b"", self._request.start_ts)
            else:
                conflict, _ = self._conflict_of(cursor, changes.prefix + key, b"" if by_row else numbers)
            if conflict:
                return conflict
        return 0

    def _conflict_of(self, cursor: Any, row: bytes, numbers: bytes) -> tuple[int, bool]:
        start_ts = self._request.start_ts
        conflict, met, is_there = self._decision._searched(cursor, row, numbers, start_ts, self._own, self._states)
        self._met.update(met)
        return conflict or self._decision._claimed(self._transaction, row, numbers, start_ts), is_there

    def _clean(self, watermark: int) -> None:
        """Delete, of the rows that are written, what no snapshot above W reads. So a hot row stays short without
        upkeep."""
        for row in self._former:
            with self._transaction.cursor(self._cells) as cursor:
                found = self._decision._search.hidden(cursor, row, watermark, _CLEANED_MAX)
            if found is None:
                raise corrupt(row + version_suffix(watermark), "a record of the row is malformed")
            for key in found:
                self._transaction.delete(key, db=self._cells)

    def _write(self, commit_ts: int) -> None:
        transaction, request = self._transaction, self._request
        suffix, free_suffix = version_suffix(commit_ts), version_suffix(commit_ts + FREE)
        for changes in request.tables:
            prefix = changes.prefix
            for row in changes.rows:
                if row.cells:
                    key = prefix + row.key + suffix
                    transaction.put(key, record_of(key, commit_ts, row.cells), db=self._cells)
                if row.free:
                    key = prefix + row.key + free_suffix
                    transaction.put(key, record_of(key, commit_ts, row.free), db=self._cells)
                if is_sample(prefix + row.key + suffix):
                    transaction.put(prefix + row.key, b"", db=self._samples)
            for key, numbers in changes.claims:
                by_row = bool(changes.levels & _BY_ROW)
                for name in _claim_names(prefix + key, b"" if by_row else numbers):
                    folder_state.put_number(transaction, self._claims, name, commit_ts)
            if changes.rows or request.branches:
                folder_state.put_newest_commit(transaction, self._state_db, prefix, commit_ts)
            if request.claims_tables:
                folder_state.fence_at(transaction, self._state_db, changes.table_id, commit_ts)
        if request.branches:
            branches.commit_branches(transaction, self._branches, request.branches, commit_ts)
            # A pair may be of a cell that was taken back, so the pairs do not count here. The claims have found the
            # open writers of all other cells, except writers below a committed record; that record conflicts with them
            # (L9).
            if not request.claims_all:
                branches.doom_pairs(transaction, self._branches, request.branches, commit_ts)
            for prefix in branches.end_tables(transaction, self._branches, request.branches):
                folder_state.put_newest_commit(transaction, self._state_db, prefix, commit_ts)
        for version in self._met - self._own:
            branches.doom(transaction, self._branches, version, commit_ts)


def pack_requests(requests: Sequence[bytes]) -> bytes:
    """Pack requests for another process to perform: their number and their lengths (4 bytes each), then the
    requests."""
    return b"".join((struct.pack(f"<I{len(requests)}I", len(requests), *map(len, requests)), *requests))


def requests_of(packed: bytes) -> list[bytes]:
    """Return the requests that were packed. Raises `ValueError` if a length is wrong."""
    count = int.from_bytes(packed[:4], "little")
    at = 4 + 4 * count
    if at > len(packed):
        raise ValueError("a length is wrong")
    found: list[bytes] = []
    for length in struct.unpack_from(f"<{count}I", packed, 4):
        if length > len(packed) - at:
            raise ValueError("a length is wrong")
        found.append(packed[at : at + length])
        at += length
    if at != len(packed):
        raise ValueError("a length is wrong")
    return found
