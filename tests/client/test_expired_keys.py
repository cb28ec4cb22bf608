"""Old idempotency keys shrink, and their ids stay taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import pyomid
from pyomid import AlreadyDone
from pyomid.client.database import Database
from pyomid.client.idempotency import KEYS_TABLE
from pyomid.client.transaction import Transaction
from pyomid.client.upkeep.background import BackgroundUpkeep
from pyomid.client.upkeep.expired_keys import Ages, expire_keys

pytestmark = pytest.mark.fast

DAY_S = 86_400.0


@pytest.fixture
def db(request: pytest.FixtureRequest) -> Iterator[Database]:
    with pyomid.connect(f"omid-memory:{request.node.name}") as db:
        db.create_table("t", ["f"])
        yield db


def add_one(tx: Transaction) -> int:
    return tx.table("t").increment(b"k", b"f:n", 1)


def keys_stored(db: Database) -> int:
    with db.snapshot() as tx:
        return sum(b"m:run" in row for _, row in tx.table(KEYS_TABLE).scan())


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyomid.client.upkeep.expired_keys._PAGE_ROWS", 7)
    monkeypatch.setattr("pyomid.client.upkeep.expired_keys._BATCH_KEYS", 15)


def test_an_id_that_expired_never_commits_again(db: Database) -> None:
    ids = [f"payment-{number}" for number in range(60)]
    for each in ids[:40]:
        db.run_once(each, add_one)
    old_ts = db.begin().start_ts
    for each in ids[40:60]:
        db.run_once(each, add_one)
    assert expire_keys(db, old_ts) == 40
    assert expire_keys(db, old_ts) == 0
    assert keys_stored(db) == 20
    assert [db.run_once(each, add_one) for each in ids[:40]] == [AlreadyDone(each, 0) for each in ids[:40]]
    kept = [db.run_once(each, add_one) for each in ids[40:60]]
    assert [done.result for done in kept if isinstance(done, AlreadyDone)] == list(range(41, 61))
    assert expire_keys(db, db.begin().start_ts) == 20
    assert {db.run_once(each, add_one) for each in ids[:60]} == {AlreadyDone(each, 0) for each in ids[:60]}
    assert db.run_once("payment-new", add_one) == 61


def test_a_run_beside_its_keys_expiry_commits_once(db: Database) -> None:
    """It began before the key went, and ends after it."""
    db.run_once("id", add_one)
    with db.begin() as tx:
        assert tx.table(KEYS_TABLE).get(b"id")
        assert expire_keys(db, tx.start_ts) == 1
        assert tx.table(KEYS_TABLE).get(b"id")
    assert isinstance(db.run_once("id", add_one), AlreadyDone)


def test_a_key_is_old_by_what_was_the_newest_start_then() -> None:
    ages = Ages(30 * DAY_S)
    told = [ages.note(day * DAY_S, 100 * day) for day in range(1, 61) if ages.is_due(day * DAY_S)]
    assert told == [0] * 30 + [100 * day for day in range(1, 31)]
    assert not ages.is_due(60 * DAY_S + 1)
    assert ages.is_due(20 * DAY_S), "the clock was set back"
    assert ages.note(20 * DAY_S, 10_000) == 0, "that makes nothing old"
    assert len(ages.samples) < 32


def test_upkeep_lets_keys_expire_and_remembers_ages(db: Database, tmp_path: Path) -> None:
    now_s = [1e9]

    def upkeep() -> BackgroundUpkeep:
        return BackgroundUpkeep(
            tmp_path,
            lambda: replace(db.deployment, closers=()),
            lambda: 0,
            lambda: True,
            share=0.5,
            retry_s=60.0,
            keep_keys_s=30 * DAY_S,
            wall_clock=lambda: now_s[0],
        )

    db.run_once("first", add_one)
    upkeep().look()
    now_s[0] += 29 * DAY_S
    db.run_once("second", add_one)
    upkeep().look()
    assert keys_stored(db) == 2
    now_s[0] += 2 * DAY_S
    later = upkeep()
    later.look()
    assert later.figures.keys_expired == 1
    assert db.run_once("first", add_one) == AlreadyDone("first", 0)
    assert db.run_once("second", add_one) == AlreadyDone("second", db_start(db, b"second"), 2)


def db_start(db: Database, key: bytes) -> int:
    with db.snapshot() as tx:
        return int.from_bytes(tx.table(KEYS_TABLE).get(key)[b"m:run"])
