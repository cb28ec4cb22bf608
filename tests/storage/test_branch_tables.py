"""What a folder notes about the tables of open branches: no flush or commit looks at branches that ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pyomid
from pyomid.database.database import Database
from pyomid.errors import ConflictError, OmidError
from pyomid.folder import branches
from pyomid.folder.environment import Transaction
from pyomid.folder.layout import BRANCHES

pytestmark = pytest.mark.fast


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with pyomid.connect(f"omid://{tmp_path}/db?upkeepShare=0") as opened:
        opened.create_table("t", ["f"])
        yield opened


def notes(db: Database) -> int:
    environment = db._core.deployment.store.environment

    def count(transaction: Transaction) -> int:
        with transaction.cursor(environment.databases[BRANCHES]) as cursor:
            return sum(key[:1] in b"TV" for key in cursor.iternext(values=False))

    return int(environment.read(count))


def test_a_branch_that_ended_has_no_notes(db: Database) -> None:
    for row in (b"a", b"b"):
        with db.begin() as tx:
            tx.table("t").put(row, {b"f:x": b"1"})
            tx.flush()
            assert notes(db) == 2
    assert notes(db) == 0
    lost = db.begin()
    lost.table("t").put(b"a", {b"f:x": b"2"})
    lost.flush()
    lost_version = lost._core.view.version
    db._core.deployment.tso.seal([lost_version])
    assert notes(db) == 0
    with pytest.raises(OmidError):
        lost.commit()


def test_a_forgotten_branch_has_no_notes(db: Database) -> None:
    tx = db.begin()
    tx.table("t").put(b"a", {b"f:x": b"1"})
    tx.flush()
    tx.rollback()
    db._core.deployment.tso.advance_horizon(tx._core.view.version + 1)
    assert notes(db) == 0


@pytest.mark.parametrize("own_first", [False, True])
@pytest.mark.parametrize("beside", [1, 3])
def test_open_branches_of_other_jobs_are_found(db: Database, own_first: bool, beside: int) -> None:
    environment = db._core.deployment.store.environment
    database = environment.databases[BRANCHES]
    own, others = (10, range(20, 20 + beside)) if own_first else (30, range(20, 20 + beside))

    def work(transaction: Transaction) -> list[bool]:
        found: list[bool] = []
        for prefix in (b"tab1", b"tab3"):
            branches.note_table(transaction, database, prefix, 99, 5)
        for version in (40, 41):
            branches.note_table(transaction, database, b"tab2", version, own)
        found.append(branches.has_others(transaction, database, b"tab2", own))
        for other in others:
            branches.note_table(transaction, database, b"tab2", other + 100, other)
        found.append(branches.has_others(transaction, database, b"tab2", own))
        assert branches.end_tables(transaction, database, [other + 100 for other in others]) == {b"tab2"}
        found.append(branches.has_others(transaction, database, b"tab2", own))
        return found

    assert environment.write(work) == [False, True, False]


def test_of_two_open_branches_that_wrote_a_row_one_commits(db: Database) -> None:
    one, two = db.begin(), db.begin()
    for tx in (one, two):
        tx.table("t").put(b"row", {b"f:x": b"1"})
        tx.flush()
    two.commit()
    with pytest.raises(ConflictError):
        one.commit()
