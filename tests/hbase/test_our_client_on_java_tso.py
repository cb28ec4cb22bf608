"""pyomid's client on Apache Omid's own TSO: features without extensions work, the others are refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hbase_processes import give_up_the_lease

import pyomid
import pyomid.aio
from java_omid import JavaClient, JavaTso
from pyomid.cli.hbase import HBaseServer
from pyomid.database.async_database import AsyncDatabase
from pyomid.database.database import Database
from pyomid.errors import ConflictError, Misuse, OmidError
from pyomid.omid.hbase.coordination import find_tso
from pyomid.omid.hbase.zookeeper import ZooKeeper
from pyomid.types import NOT_FOUND, SEALED, Cell, Column, CommitRequest, RowWrite


@pytest.fixture(scope="module")
def java_tso(hbase: HBaseServer, url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaTso]:
    port = hbase.ports.zookeeper
    with JavaTso(tmp_path_factory.mktemp("java-tso"), zookeeper_port=port, lease_s=2.0) as tso:
        if tso.wait_until_announced() == 0:  # the first TSO that this HBase ever had: no epoch to go by
            tso.kill()
            tso.start()
            tso.wait_until_announced(newer_than=0)
        yield tso
    give_up_the_lease(hbase.quorum)


@pytest.fixture(scope="module")
def database(url: str, java_tso: JavaTso) -> Iterator[Database]:
    with pyomid.connect(url) as opened:
        yield opened


@pytest.fixture(scope="module")
def java(hbase: HBaseServer, java_tso: JavaTso) -> Iterator[JavaClient]:
    with JavaClient(hbase.ports.zookeeper, java_tso.address) as client:
        yield client


def test_transactions_of_both_see_each_other(database: Database, java: JavaClient, table: str) -> None:
    with database.begin() as tx:
        tx.table(table).put(b"r", {b"f:q": b"ours"})
    java.begin("a")
    assert java.get("a", table, b"r") == {b"f:q": b"ours"}
    java.put("a", table, b"s", b"f", b"q", b"java's")
    java.delete("a", table, b"r", b"f", b"q")
    java.commit("a")
    with database.begin() as tx:
        assert dict(tx.table(table).scan()) == {b"s": {b"f:q": b"java's"}}


def test_a_java_tso_completes_our_cells_too(database: Database, table: str) -> None:
    with database.begin() as tx:
        tx.table(table).put(b"r", {b"f:q": b"v"})
    assert database.drain(120.0)
    found = set(database._core.deployment.store.read_rows(table, [b"r"])[0])
    assert found == {Cell(b"r", b"f", b"q", tx.start_ts, b"v", tx.commit_ts or 0)}
    assert database._core.deployment.commit_table.lookup([tx.start_ts]) == [0], "completed by the client itself"


def test_tasks_share_a_connection_to_a_java_tso(url: str, hbase: HBaseServer, java: JavaClient, table: str) -> None:
    """Rows leave while the task goes on; each snapshot has the epoch that the TSO announced in ZooKeeper."""
    rows = {b"%04d" % number: {b"f:q": b"v" * 400} for number in range(1000)}

    async def write(asyncio_database: AsyncDatabase, first: int) -> None:
        async with asyncio_database.begin() as tx:
            t = await tx.table(table)
            for row in list(rows)[first::4]:
                await t.put(row, rows[row])

    async def work() -> tuple[int, dict[bytes, dict[bytes, bytes]]]:
        async with await pyomid.aio.connect(url) as asyncio_database:
            await asyncio.gather(*(write(asyncio_database, first) for first in range(4)))
            session = asyncio_database._session
            assert session is not None
            async with asyncio_database.begin() as tx:
                return session.epoch, {row: cells async for row, cells in (await tx.table(table)).scan()}

    epoch, found = asyncio.run(work())
    assert found == rows
    assert epoch == find_tso(ZooKeeper(hbase.quorum)).epoch > 0
    java.begin("reads")
    assert java.get("reads", table, b"0007") == rows[b"0007"]
    java.commit("reads")


def test_features_that_need_our_tso_have_a_clear_error(database: Database) -> None:
    """Leases and branches: a distributed write; a distributed read works without."""
    with pytest.raises(OmidError, match=r"extension|Java|lease"):
        database.begin(lease=True)
    begun = database._core.deployment.tso.begin()
    with pytest.raises(OmidError, match=r"extension|Java|branch"):
        database._core.deployment.tso.commit(CommitRequest(begun.start_ts, branches=(begun.start_ts + 50,)))


def test_we_seal_what_a_dead_java_tso_left_undecided(
    url: str, hbase: HBaseServer, java_tso: JavaTso, database: Database, table: str
) -> None:
    """T6: a flush of the dead TSO may still be on its way. Java's TSO tells no epoch; it is read from its znode."""
    old = database._core.deployment.tso.begin()
    assert old.epoch > 0, "the epoch that the Java TSO announced"
    database._core.deployment.store.write_cells(table, old.start_ts, [RowWrite(b"r", ((Column(b"f", b"q"), b"v"),))])
    with database.begin() as tx:
        assert tx.table(table).get(b"r") is None
    assert database._core.deployment.commit_table.lookup([old.start_ts]) == [NOT_FOUND], "it may still commit"
    java_tso.kill()
    java_tso.start()
    assert java_tso.wait_until_announced(newer_than=old.epoch) > old.start_ts
    with database.begin() as tx:
        assert tx.table(table).get(b"r") is None
    assert database._core.deployment.commit_table.lookup([old.start_ts]) == [SEALED], (
        "else its late entry would bring v to light"
    )


def test_claims_are_checked_and_remembered(database: Database, table: str) -> None:
    """They are only ids: write skew is met, and a transaction that only claims commits and is met."""
    with database.begin() as tx:
        tx.table(table).put(b"r", {b"f:q": b"0"})
        tx.table(table).put(b"s", {b"f:q": b"0"})
    one, two, three = (database.begin() for _ in range(3))
    one.table(table).get(b"s", [b"f:q"], for_update=True)
    one.table(table).put(b"r", {b"f:q": b"1"})
    two.claim(table, [b"r"], [b"f:q"])
    two.table(table).put(b"s", {b"f:q": b"2"})
    one.commit()
    with pytest.raises(ConflictError):
        two.commit()
    with database.begin() as only:
        only.claim(table, [b"t"], [b"f:q"])
    assert only.commit_ts is not None
    three.table(table).put(b"t", {b"f:q": b"3"})
    with pytest.raises(ConflictError):
        three.commit()


def test_a_commit_of_conflict_free_writes_alone_is_accepted(database: Database, table: str) -> None:
    with database.begin() as tx:
        tx.table(table).put(b"r", {b"f:q": b"free"}, conflict=False)
    assert tx.commit_ts is not None
    with database.begin() as tx:
        assert tx.table(table).get(b"r") == {b"f:q": b"free"}


# ── time: this TSO counts timestamps from 0 ──────────────────────────────────────────────────────────────────────


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where one of ours led before, this TSO counts on from times: for a minute they pass for such."""
    monkeypatch.setattr("pyomid.protocol.timestamps.FOREIGN_CLOCK_S", 0.0)


@pytest.mark.usefixtures("counting")
def test_without_times_the_past_is_read_by_version_alone(database: Database, table: str) -> None:
    with database.begin() as first:
        first.table(table).put(b"r", {b"f:q": b"1"})
    with database.begin() as second:
        second.table(table).put(b"r", {b"f:q": b"2"})
    assert first.commit_ts is not None
    assert second.commit_ts is not None
    for at, seen in ((first.commit_ts, b"1"), (second.commit_ts, b"2")):
        with database.snapshot(at=at) as tx:
            assert tx.table(table).get(b"r") == {b"f:q": seen}
    with pytest.raises(Misuse, match=r"are not wall-clock times .*give a version.*`pyomid tso`.*WORLD_TIME"):
        database.snapshot(at=datetime.now(UTC))


@pytest.mark.usefixtures("counting")
def test_e6_without_times_a_table_with_a_time_to_live_is_read_and_not_written(
    database: Database, table_name: str
) -> None:
    database.create_table(table_name, ["f"], ttl_seconds=60)
    with pytest.raises(
        Misuse, match=r"has a time to live.* are not wall-clock times .*`pyomid tso`.*WORLD_TIME.*ttl_seconds=0"
    ):
        with database.begin() as tx:
            tx.table(table_name).put(b"r", {b"f:q": b"1"})
    assert database.begin().table(table_name).get(b"r") is None
    database.alter_table(table_name, ttl_seconds=0)
    with database.begin() as tx:
        tx.table(table_name).put(b"r", {b"f:q": b"1"})
    database.drop_table(table_name)
