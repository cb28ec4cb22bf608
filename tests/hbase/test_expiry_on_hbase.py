"""Expiry over HBase, where no TSO does upkeep: values of a table with a time to live, and idempotency keys."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import pyomid
from pyomid.client.database import Database
from pyomid.client.idempotency import KEYS_TABLE
from pyomid.client.upkeep import expire

pytestmark = pytest.mark.hbase

HOUR_S = 3600.0


@pytest.fixture
def expiring(database: Database, table_name: str) -> Iterator[str]:
    database.create_table(table_name, families=["f"], ttl_seconds=HOUR_S)
    yield table_name
    database.drop_table(table_name)


def test_values_expire_and_compaction_drops_them(database: Database, expiring: str) -> None:
    def expire_at(hours: float) -> None:
        expire.expire(database, expiring, wall_clock=lambda: time.time() + hours * HOUR_S, notes=True)

    with database.begin() as tx:
        tx.table(expiring).put(b"old", {b"f:x": b"1"})
    expire_at(0)
    with database.begin() as tx:
        tx.table(expiring).put(b"young", {b"f:x": b"2"})
    before = database.begin()
    expire_at(1.5)
    with database.begin() as tx:
        assert dict(tx.table(expiring).scan()) == {b"young": {b"f:x": b"2"}}
    assert before.table(expiring).get(b"old") == {b"f:x": b"1"}, "its snapshot has the floor of then"
    before.rollback()
    database.compact(expiring)
    assert database.verify(expiring).ok
    with database.begin() as tx:
        assert [key for key, _ in tx.table(expiring).scan()] == [b"young"]


def test_an_expired_idempotency_key_still_blocks_its_id(database: Database, table: str) -> None:
    def expire_at(hours: float) -> int:
        return expire.expire_keys(database, HOUR_S, wall_clock=lambda: time.time() + hours * HOUR_S)

    assert database.run_once(f"payment {table}", lambda tx: "paid") == "paid"
    expire_at(24)  # further on than any other test of this server
    expired = expire_at(25.5)
    assert expired >= 1
    with database.snapshot() as tx:
        assert tx.table(KEYS_TABLE).get(f"payment {table}".encode()) == {}
    done = database.run_once(f"payment {table}", lambda tx: "twice")
    assert isinstance(done, pyomid.AlreadyDone)
    assert (done.start_ts, done.result) == (0, None)
