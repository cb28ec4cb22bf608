"""Expiry over HBase: values of a table with a time to live, and idempotency keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pyomid
from pyomid.database.database import Database
from pyomid.database.idempotency import KEYS_TABLE
from pyomid.database.upkeep.expire import expire_keys
from pyomid.protocol.timestamps import NS_PER_S
from waiting import until

pytestmark = pytest.mark.hbase


@pytest.fixture
def expiring(database: Database, table_name: str) -> Iterator[str]:
    database.create_table(table_name, families=["f"], ttl_seconds=1)
    yield table_name
    database.drop_table(table_name)


def put(database: Database, table: str, row: bytes) -> int:
    with database.begin() as tx:
        tx.table(table).put(row, {b"f:x": b"1"})
    assert tx.commit_ts is not None
    return tx.commit_ts


def has_passed(database: Database, timestamp: int) -> bool:
    with database.snapshot() as tx:
        return tx.start_ts >= timestamp


def test_values_expire_without_upkeep_and_compaction_drops_them(database: Database, expiring: str) -> None:
    with database.begin(lease=True) as before:
        first = put(database, expiring, b"old")
        second = put(database, expiring, b"young")
        until(lambda: has_passed(database, second + NS_PER_S), "the clock stands")
        with database.snapshot() as tx:
            assert dict(tx.table(expiring).scan()) == {}
        with database.snapshot(at=first + NS_PER_S - 50) as tx:
            assert [key for key, _ in tx.table(expiring).scan()] == [b"young"]
        with database.snapshot(at=second) as tx:
            assert [key for key, _ in tx.table(expiring).scan()] == [b"old", b"young"]
        assert list(before.table(expiring).scan()) == []
    database.compact(expiring)
    assert database.verify(expiring).ok
    with database.snapshot() as tx:
        assert dict(tx.table(expiring).scan()) == {}


def test_an_expired_idempotency_key_still_blocks_its_id(database: Database, table: str) -> None:
    assert database.run_once(f"payment {table}", lambda tx: "paid") == "paid"
    began = now(database)
    until(lambda: has_passed(database, began + NS_PER_S), "the clock stands")
    assert expire_keys(database, 1.0) >= 1
    with database.snapshot() as tx:
        assert tx.table(KEYS_TABLE).get(f"payment {table}".encode()) is None
    done = database.run_once(f"payment {table}", lambda tx: "twice")
    assert isinstance(done, pyomid.AlreadyDone)
    assert (done.start_ts, done.result) == (0, None)


def now(database: Database) -> int:
    with database.snapshot() as tx:
        return tx.start_ts
