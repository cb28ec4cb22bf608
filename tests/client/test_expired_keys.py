"""Old idempotency keys shrink, and their ids stay taken."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from upkeep_parts import folder_upkeep

import pyomid
from pyomid import AlreadyDone
from pyomid.database.database import Database
from pyomid.database.idempotency import KEYS_TABLE
from pyomid.database.transaction import Transaction
from pyomid.database.upkeep.expire import expire_keys
from pyomid.database.upkeep.folder import FolderUpkeep

pytestmark = pytest.mark.fast

DAY_S = 86_400.0


@pytest.fixture
def db(request: pytest.FixtureRequest) -> Iterator[Database]:
    with pyomid.connect(f"omid-memory:{request.node.name}") as db:
        db.create_table("t", ["f"])
        yield db


def add_one(tx: Transaction) -> int:
    return tx.table("t").increment(b"k", b"f:n", 1)


class Days:
    """The clock of the TSO, moved forward by days, so that it believes each step."""

    def __init__(self, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self._db, self._ahead_ns, clock = db, 0, time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: clock() + self._ahead_ns)

    def pass_by(self, days: float) -> None:
        while days > 0:
            self._ahead_ns += int(min(days, 0.9) * DAY_S * 1e9)
            self._db.begin().rollback()
            days -= 0.9


@pytest.fixture
def clock(db: Database, monkeypatch: pytest.MonkeyPatch) -> Days:
    return Days(db, monkeypatch)


def expire_after(db: Database, days: float = 30) -> int:
    return expire_keys(db, days * DAY_S)


def keys_stored(db: Database) -> int:
    with db.snapshot() as tx:
        return sum(b"m:run" in row for _, row in tx.table(KEYS_TABLE).scan())


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyomid.database.upkeep.expire._PAGE_ROWS", 7)
    monkeypatch.setattr("pyomid.database.upkeep.expire._BATCH_KEYS", 15)


def test_an_id_that_expired_never_commits_again(db: Database, clock: Days) -> None:
    ids = [f"payment-{number}" for number in range(60)]
    for each in ids[:40]:
        db.run_once(each, add_one)
    assert expire_after(db) == 0
    clock.pass_by(15)
    for each in ids[40:60]:
        db.run_once(each, add_one)
    assert expire_after(db) == 0
    clock.pass_by(15.1)
    assert expire_after(db) == 40
    assert expire_after(db) == 0
    assert keys_stored(db) == 20
    assert [db.run_once(each, add_one) for each in ids[:40]] == [AlreadyDone(each, 0) for each in ids[:40]]
    kept = [db.run_once(each, add_one) for each in ids[40:60]]
    assert [done.result for done in kept if isinstance(done, AlreadyDone)] == list(range(41, 61))
    clock.pass_by(15)
    assert expire_after(db) == 20
    assert {db.run_once(each, add_one) for each in ids[:60]} == {AlreadyDone(each, 0) for each in ids[:60]}
    assert db.run_once("payment-new", add_one) == 61


def test_a_run_beside_its_keys_expiry_commits_once(db: Database, clock: Days) -> None:
    """It began before the key went, and ends after it."""
    db.run_once("id", add_one)
    expire_after(db)
    clock.pass_by(31)
    with db.begin() as tx:
        assert tx.table(KEYS_TABLE).get(b"id")
        assert expire_after(db) == 1
        assert tx.table(KEYS_TABLE).get(b"id")
    assert isinstance(db.run_once("id", add_one), AlreadyDone)


def test_an_interrupted_expiry_is_finished_by_a_later_one(db: Database, clock: Days) -> None:
    for number in range(40):
        db.run_once(f"payment-{number}", add_one)
    expire_after(db)
    clock.pass_by(15)
    db.run_once("later", add_one)
    expire_after(db)
    clock.pass_by(15.1)
    rests: list[None] = []

    def ends() -> None:
        rests.append(None)
        if keys_stored(db) < 41:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        expire_keys(db, 30 * DAY_S, rest=ends)
    assert 0 < keys_stored(db) < 41
    clock.pass_by(15)
    expire_after(db)
    assert keys_stored(db) == 0
    assert isinstance(db.run_once("payment-39", add_one), AlreadyDone)


def test_expire_shrinks_the_keys_of_any_database(db: Database, clock: Days) -> None:
    """Whoever calls it: a key's timestamp says how old it is. Over HBase nobody else does."""
    db.run_once("id", add_one)
    db.expire()
    clock.pass_by(29)
    db.compact()
    assert keys_stored(db) == 1
    clock.pass_by(1.1)
    db.compact("t")
    assert keys_stored(db) == 1, "of one table"
    db.compact()
    assert keys_stored(db) == 0
    assert db.run_once("id", add_one) == AlreadyDone("id", 0)


def test_upkeep_lets_keys_expire_and_remembers_ages(db: Database, clock: Days, tmp_path: Path) -> None:
    def upkeep() -> FolderUpkeep:
        return folder_upkeep(db, tmp_path, keep_keys_s=30 * DAY_S)

    db.run_once("first", add_one)
    upkeep().round()
    clock.pass_by(29)
    db.run_once("second", add_one)
    upkeep().round()
    assert keys_stored(db) == 2
    clock.pass_by(2)
    later = upkeep()
    later.round()
    assert later.report.keys_expired == 1
    assert db.run_once("first", add_one) == AlreadyDone("first", 0)
    assert db.run_once("second", add_one) == AlreadyDone("second", db_start(db, b"second"), 2)


def db_start(db: Database, key: bytes) -> int:
    with db.snapshot() as tx:
        return int.from_bytes(tx.table(KEYS_TABLE).get(key)[b"m:run"])
