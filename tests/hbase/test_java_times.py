"""Timestamps as times, while pyomid's TSO and Java's in both of its modes lead one after the other (T3, T18, E6)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hbase_processes import give_up_the_lease, leading_tso, with_options

import pyomid
from java_omid import JavaTso
from pyomid.cli import main
from pyomid.cli.hbase import HBaseServer
from pyomid.database.database import Database
from pyomid.errors import Misuse, OmidError
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.layout import SystemNames
from pyomid.protocol.timestamps import NS_PER_S, time_of
from region_admin import OperatorsAdmin
from waiting import until

pytestmark = pytest.mark.long

NAMES = SystemNames("times:COMMITS", "times:TIMESTAMPS", "times/omid")
OPTIONS = "commitTableName=times:COMMITS&timestampTableName=times:TIMESTAMPS&zkNamespace=times/omid"


@pytest.fixture
def own(url: str, cluster: Cluster) -> str:
    """The URL of a database of its own: some tests move the timestamps of the shared one minutes ahead, and Java's TSO
    starts only when the clock has passed them."""
    with suppress(OmidError):  # an earlier session made it
        OperatorsAdmin(cluster).create_namespace("times")
    made = with_options(url, OPTIONS)
    assert main(["init", made, "--commit-table-regions", "2"]) == 0
    return made


def put(database: Database, table: str, row: bytes) -> int:
    with database.begin() as tx:
        tx.table(table).put(row, {b"f:q": b"v"})
    assert tx.commit_ts is not None
    return tx.commit_ts


def rows(database: Database, table: str, at: int | datetime | None = None) -> list[bytes]:
    with database.snapshot() if at is None else database.snapshot(at=at) as tx:
        return [key for key, _ in tx.table(table).scan()]


def seconds_old(commit_ts: int) -> float:
    return (time.time_ns() - commit_ts) / NS_PER_S


@contextmanager
def java_leads(hbase: HBaseServer, folder: Path, timestamp_type: str) -> Iterator[None]:
    port = hbase.ports.zookeeper
    with JavaTso(folder, zookeeper_port=port, lease_s=2.0, timestamp_type=timestamp_type, names=NAMES) as tso:
        tso.wait_until_announced(newer_than=0)
        yield
    give_up_the_lease(hbase.quorum, NAMES.zookeeper_namespace)


def test_times_go_on_from_one_kind_of_tso_to_the_other(
    hbase: HBaseServer, own: str, table_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = own
    expiring, kept = f"times:{table_name}", f"times:{table_name}_kept"
    with leading_tso(url, tmp_path / "one.log"), pyomid.connect(url) as database:
        database.create_table(expiring, ["f"], ttl_seconds=1)
        database.create_table(kept, ["f"])
        ours = put(database, kept, b"ours")
        assert -60 < seconds_old(ours) < 60
    with java_leads(hbase, tmp_path / "world", "WORLD_TIME"), pyomid.connect(url) as database:
        javas = put(database, kept, b"java's")
        assert ours < javas
        assert -5 < seconds_old(javas) < 60
        gone = put(database, expiring, b"gone")
        until(lambda: seconds_old(gone) > 1.5, "the clock stands")
        until(lambda: put(database, kept, b"ticks") > gone + NS_PER_S, "Java's timestamps stand still")
        assert rows(database, expiring) == []
        assert rows(database, kept, at=ours) == [b"ours"]
        assert rows(database, kept, at=time_of(ours)) == [b"ours"]
        assert b"java's" in rows(database, kept, at=datetime.now(UTC))
    with leading_tso(url, tmp_path / "two.log"), pyomid.connect(url) as database:
        again = put(database, kept, b"later")
        assert javas < again
        assert seconds_old(again) < 60
        assert rows(database, expiring) == []
    with java_leads(hbase, tmp_path / "counts", "INCREMENTAL"), pyomid.connect(url) as database:
        led_s = time.time()
        first = put(database, kept, b"counted")
        assert abs(first / NS_PER_S - led_s) < 60, "dated by its takeover"
        monkeypatch.setattr("pyomid.protocol.timestamps.FOREIGN_CLOCK_S", 0.0)  # a minute later
        with pytest.raises(Misuse, match=r"has a time to live.* are not wall-clock times .*`pyomid tso`"):
            put(database, expiring, b"refused")
        with pytest.raises(Misuse, match=r"are not wall-clock times .*give a version"):
            rows(database, kept, at=datetime.now(UTC))
        assert b"counted" in rows(database, kept, at=first)
        assert b"counted" not in rows(database, kept, at=again)
        monkeypatch.undo()
    with leading_tso(url, tmp_path / "three.log"), pyomid.connect(url) as database:
        last = put(database, kept, b"last")
        assert first < last
        assert seconds_old(last) < 60
        assert b"counted" in rows(database, kept, at=datetime.now(UTC))
        for table in (expiring, kept):
            database.drop_table(table)
