"""The branches of a folder: versions under which a transaction, or a task of a Spark job, writes before its commit.

    B version            snapshot, job, commit, conflict: 8 bytes each

`snapshot` is the snapshot of the branch's transaction. Branches of one `job` do not conflict with each other. `commit`
is 0 while the branch is open, and -1 if it can never commit. `conflict` is a commit that conflicts with the branch, so
the branch's commit aborts.

    P version other      two open branches wrote the same cells: the one that commits first dooms the other, unless it
                         claims its cells (L9)
    T table job version  the branch, which has not ended, wrote the table
    V version job table  the same fact, found by version

Everything here is decided in LMDB's write transaction. A branch's writer compares its rows with the newest records when
it writes them. A commit compares the rows that it writes, and dooms the open branches that it finds there. Of the two,
the later one finds the other's records. So the commit of a branch checks only the branch itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from pyomid.folder.environment import Transaction
from pyomid.types import NOT_FOUND, SEALED, SealOutcome

OPEN: Final = 0
DEAD: Final = -1

_BRANCH: Final = struct.Struct(">qqqq")
_KEY: Final = struct.Struct(">Q")
_PREFIX, _PAIR, _TABLE, _WRITTEN = b"B", b"P", b"T", b"V"
_BRANCH_KEY_BYTES: Final = 9


class Branch(NamedTuple):
    snapshot: int
    job: int
    commit: int = OPEN
    conflict: int = 0


def _branch_key(version: int) -> bytes:
    return _PREFIX + _KEY.pack(version)


def branch_of(transaction: Transaction, database: Any, version: int) -> Branch | None:
    content = transaction.get(_branch_key(version), db=database)
    return None if content is None else Branch(*_BRANCH.unpack(content))


def put_branch(transaction: Transaction, database: Any, version: int, branch: Branch) -> None:
    transaction.put(_branch_key(version), _BRANCH.pack(*branch), db=database)


def count(transaction: Transaction, database: Any) -> int:
    """Return the number of branches that are not forgotten."""
    return len(_keys(transaction, database, _PREFIX))


class States:
    """The states of branches in one transaction. Each is read once."""

    def __init__(self, transaction: Transaction, database: Any) -> None:
        self._transaction, self._database = transaction, database
        self._known: dict[int, int] = {}

    def __call__(self, version: int) -> int:
        """Return the branch's commit timestamp, OPEN, or DEAD."""
        state = self._known.get(version)
        if state is None:
            branch = branch_of(self._transaction, self._database, version)
            state = self._known[version] = DEAD if branch is None else branch.commit
        return state


def doom(transaction: Transaction, database: Any, version: int, commit_ts: int) -> None:
    """L9: note that a commit conflicts with an open branch, so that the branch can no longer commit."""
    branch = branch_of(transaction, database, version)
    if branch is not None and branch.commit == OPEN and not branch.conflict:
        put_branch(transaction, database, version, branch._replace(conflict=commit_ts))


def note_pair(transaction: Transaction, database: Any, version: int, other: int) -> None:
    """Note that two open branches wrote the same cells."""
    for one, two in ((version, other), (other, version)):
        transaction.put(_PAIR + _KEY.pack(one) + _KEY.pack(two), b"", db=database)


def commit_branches(transaction: Transaction, database: Any, versions: Sequence[int], commit_ts: int) -> None:
    """L10: commit open branches. The caller passes all branches of a job."""
    for version in versions:
        branch = branch_of(transaction, database, version)
        assert branch is not None, "the decision found it open"
        put_branch(transaction, database, version, branch._replace(commit=commit_ts))


def doom_pairs(transaction: Transaction, database: Any, versions: Sequence[int], commit_ts: int) -> None:
    """Doom the branches of other jobs that wrote the same cells as these branches, which commit now."""
    for version in versions:
        for other in _others(transaction, database, version):
            doom(transaction, database, other, commit_ts)


def _others(transaction: Transaction, database: Any, version: int) -> list[int]:
    prefix = _PAIR + _KEY.pack(version)
    return [int.from_bytes(key[len(prefix) :]) for key in _keys(transaction, database, prefix)]


def _keys(transaction: Transaction, database: Any, prefix: bytes) -> list[bytes]:
    found: list[bytes] = []
    with transaction.cursor(database) as cursor:
        more = cursor.set_range(prefix)
        while more and cursor.key().startswith(prefix):
            found.append(cursor.key())
            more = cursor.next()
    return found


# The tables that open branches wrote


def note_table(transaction: Transaction, database: Any, prefix: bytes, version: int, job: int) -> None:
    for key in _table_keys(prefix, _KEY.pack(version), _KEY.pack(job)):
        transaction.put(key, b"", db=database)


def _table_keys(prefix: bytes, version: bytes, job: bytes) -> tuple[bytes, bytes]:
    return _TABLE + prefix + job + version, _WRITTEN + version + job + prefix


def has_others(transaction: Transaction, database: Any, prefix: bytes, job: int) -> bool:
    """Return whether an open branch of another job wrote the table."""
    start = _TABLE + prefix
    with transaction.cursor(database) as cursor:
        if not cursor.set_range(start) or not cursor.key().startswith(start):
            return False
        if not cursor.key().startswith(start + _KEY.pack(job)):
            return True
        return bool(cursor.set_range(start + _KEY.pack(job + 1)) and cursor.key().startswith(start))


def end_tables(transaction: Transaction, database: Any, versions: Iterable[int]) -> set[bytes]:
    """Forget which tables these branches wrote, because the branches end now, and return the tables' prefixes."""
    found: set[bytes] = set()
    for version in map(_KEY.pack, versions):
        start = _WRITTEN + version
        for written in _keys(transaction, database, start):
            job, prefix = written[len(start) : len(start) + _KEY.size], written[len(start) + _KEY.size :]
            for key in _table_keys(prefix, version, job):
                transaction.delete(key, db=database)
            found.add(prefix)
    return found


# As a commit table: a branch's version is the start of its records


def look_up(transaction: Transaction, database: Any, versions: Sequence[int]) -> list[int]:
    """Return, for each branch, its commit timestamp, SEALED or NOT_FOUND."""
    return [
        NOT_FOUND if branch is None or branch.commit == OPEN else SEALED if branch.commit == DEAD else branch.commit
        for branch in (branch_of(transaction, database, version) for version in versions)
    ]


def seal(transaction: Transaction, database: Any, versions: Sequence[int]) -> list[SealOutcome]:
    """Make these branches dead unless they have committed, and return the outcomes."""
    outcomes: list[SealOutcome] = []
    end_tables(transaction, database, versions)
    for version in versions:
        branch = branch_of(transaction, database, version)
        if branch is not None and branch.commit > 0:
            outcomes.append(SealOutcome(placed=False, commit_ts=branch.commit))
            continue
        if branch is not None and branch.commit == OPEN:
            put_branch(transaction, database, version, branch._replace(commit=DEAD))
        outcomes.append(SealOutcome(placed=True))
    return outcomes


def forget(transaction: Transaction, database: Any, version: int) -> None:
    """Remove a branch that no record needs any more."""
    for other in _others(transaction, database, version):
        transaction.delete(_PAIR + _KEY.pack(version) + _KEY.pack(other), db=database)
        transaction.delete(_PAIR + _KEY.pack(other) + _KEY.pack(version), db=database)
    end_tables(transaction, database, (version,))
    transaction.delete(_branch_key(version), db=database)


def branches_from(
    transaction: Transaction, database: Any, version: int, count_max: int
) -> tuple[list[tuple[int, Branch]], int | None]:
    """Return branches in the order of their versions, from `version` on, and the version at which to continue, or None
    at the end."""
    found: list[tuple[int, Branch]] = []
    with transaction.cursor(database) as cursor:
        more = cursor.set_range(_branch_key(version))
        while more and cursor.key()[:1] == _PREFIX and len(cursor.key()) == _BRANCH_KEY_BYTES:
            if len(found) == count_max:
                return found, int.from_bytes(cursor.key()[1:])
            found.append((int.from_bytes(cursor.key()[1:]), Branch(*_BRANCH.unpack(cursor.value()))))
            more = cursor.next()
    return found, None


def iterate(read: Any, database: Any, count_max: int = 500) -> Iterator[tuple[int, Branch]]:
    """Yield all branches, reading a bounded number at a time. `read` is `Environment.read`."""
    version: int | None = 0
    while version is not None:
        found, version = read(branches_from, database, version, count_max)
        yield from found
