"""Apache Omid's own client on pyomid's TSO, beside a Python one: the same tables, transaction by transaction."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hbase_processes import TsoProcess

import pyomid
from pyomid import crashpoints
from pyomid.client.database import Database
from pyomid.core.hashing import table_id
from pyomid.core.sanitising import sanitise_steps
from pyomid.errors import ConflictError, Misuse
from pyomid.storage.hbase.layout import shadow_qualifier
from pyomid.testing.hbase_server import HBaseServer
from pyomid.testing.java_omid import JavaClient, JavaError
from pyomid.types import Cell, Column, KeyRange

SOURCES = Path(__file__).parent / "java"
JAVA_TIMEOUT_S = 2.0
"""The Java client of these tests sends a commit again after so long."""


@pytest.fixture(scope="module")
def tso(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TsoProcess]:
    with TsoProcess(url, tmp_path_factory.mktemp("tso") / "log", lease_s=20.0) as process:
        process.wait_until_leading()
        yield process
        process.stop()


@pytest.fixture(scope="module")
def database(url: str, tso: TsoProcess) -> Iterator[Database]:
    with pyomid.connect(url) as opened:
        yield opened


@pytest.fixture(scope="module")
def java(hbase: HBaseServer, tso: TsoProcess) -> Iterator[JavaClient]:
    port = hbase.ports.zookeeper
    with JavaClient(SOURCES, "127.0.0.1", port, hbase.quorum, through_zookeeper=True) as client:
        yield client


def cells_of(database: Database, table: str, row: bytes) -> set[Cell]:
    return set(database.parts.store.read_rows(table, [row])[0])


def test_shadow_cells_have_one_name(java: JavaClient) -> None:
    for qualifier in (b"q", b"\x00", b"a\xc2", b"x" * 200):
        assert bytes.fromhex(java.ask("shadow", qualifier.hex())) == shadow_qualifier(qualifier)


def test_what_java_commits_we_read_cell_by_cell(java: JavaClient, database: Database, table: str) -> None:
    start_ts = java.begin("a")
    java.put("a", table, b"r", b"f", b"q", b"1")
    java.put("a", table, b"r", b"f", b"p", b"2")
    commit_ts = java.commit("a")
    assert cells_of(database, table, b"r") == {
        Cell(b"r", b"f", b"q", start_ts, b"1", commit_ts),
        Cell(b"r", b"f", b"p", start_ts, b"2", commit_ts),
    }
    with database.begin() as tx:
        assert tx.table(table).get(b"r") == {b"f:q": b"1", b"f:p": b"2"}


def test_what_we_commit_java_reads(java: JavaClient, database: Database, table: str) -> None:
    with database.begin() as tx:
        tx.table(table).put(b"r", {b"f:q": b"1", b"f:p": b"2"})
        tx.table(table).put(b"s", {b"f:q": b"3"})
    java.begin("a")
    assert java.scan("a", table) == {b"r": {b"f:q": b"1", b"f:p": b"2"}, b"s": {b"f:q": b"3"}}
    java.rollback("a")


def test_deletes_mean_the_same_on_both_sides(java: JavaClient, database: Database, table: str) -> None:
    with database.begin() as tx:
        for row in (b"column", b"family", b"row", b"ours"):
            tx.table(table).put(row, {b"f:q": b"1", b"f:p": b"2"})
    java.begin("a")
    java.delete("a", table, b"column", b"f", b"q")
    java.delete("a", table, b"family", b"f")
    java.delete("a", table, b"row")
    java.commit("a")
    with database.begin() as tx:
        rows = dict(tx.table(table).scan())
        assert rows == {b"column": {b"f:p": b"2"}, b"ours": {b"f:q": b"1", b"f:p": b"2"}}
        tx.table(table).delete(b"ours", columns=[b"f:q"])
        tx.table(table).delete(b"column")
    java.begin("b")
    assert java.scan("b", table) == {b"ours": {b"f:p": b"2"}}
    java.rollback("b")


def test_the_first_of_two_committers_wins_whoever_it_is(java: JavaClient, database: Database, table: str) -> None:
    java.begin("loses")
    with database.begin() as tx:
        tx.table(table).put(b"r", {b"f:q": b"ours"})
    java.put("loses", table, b"r", b"f", b"q", b"java's")
    with pytest.raises(JavaError, match="RollbackException"):
        java.commit("loses")
    transaction = database.begin()
    java.begin("wins")
    java.put("wins", table, b"r", b"f", b"q", b"java's")
    java.commit("wins")
    transaction.table(table).put(b"r", {b"f:q": b"ours again"})
    with pytest.raises(ConflictError):
        transaction.commit()
    with database.begin() as tx:
        assert tx.table(table).get(b"r") == {b"f:q": b"java's"}


def test_we_heal_what_a_dead_java_client_committed(java: JavaClient, database: Database, table: str) -> None:
    start_ts = java.begin("dies", dying=True)
    java.put("dies", table, b"r", b"f", b"q", b"1")
    commit_ts = java.commit("dies")
    assert cells_of(database, table, b"r") == {Cell(b"r", b"f", b"q", start_ts, b"1", 0)}
    with database.begin() as tx:
        assert tx.table(table).get(b"r") == {b"f:q": b"1"}
    assert database.drain(20.0)
    assert cells_of(database, table, b"r") == {Cell(b"r", b"f", b"q", start_ts, b"1", commit_ts)}
    assert database.parts.commit_table.lookup([start_ts]) == [commit_ts], "a healer never deletes the entry"


def test_java_heals_what_a_dead_client_of_ours_committed(
    java: JavaClient, url: str, tso: TsoProcess, table: str
) -> None:
    dying = pyomid.connect(url)
    transaction = dying.begin()
    transaction.table(table).put(b"r", {b"f:q": b"1"})

    class Died(BaseException):
        pass

    def die() -> None:
        raise Died

    crashpoints.arm_action("client.commit.answered", die)
    try:
        with pytest.raises(Died):
            transaction.commit()
    finally:
        crashpoints.disarm()
    with pyomid.connect(url) as database:
        (commit_ts,) = database.parts.commit_table.lookup([transaction.start_ts])
        assert commit_ts > transaction.start_ts
        assert cells_of(database, table, b"r") == {Cell(b"r", b"f", b"q", transaction.start_ts, b"1", 0)}
        java.begin("a")
        assert java.get("a", table, b"r") == {b"f:q": b"1"}
        java.rollback("a")
        assert cells_of(database, table, b"r") == {Cell(b"r", b"f", b"q", transaction.start_ts, b"1", commit_ts)}
    dying.abandon()


def test_a_java_transaction_that_died_before_its_commit_is_never_seen(
    java: JavaClient, hbase: HBaseServer, database: Database, table: str
) -> None:
    with JavaClient(SOURCES, "127.0.0.1", hbase.ports.zookeeper, hbase.quorum, through_zookeeper=True) as other:
        start_ts = other.begin("dies")
        other.put("dies", table, b"r", b"f", b"q", b"1")
        other.flush("dies")
        other.kill()
    assert cells_of(database, table, b"r") == {Cell(b"r", b"f", b"q", start_ts, b"1", 0)}
    with database.begin() as tx:
        assert tx.table(table).get(b"r") == {}
        tx.table(table).put(b"r", {b"f:q": b"2"})
    java.begin("a")
    assert java.get("a", table, b"r") == {b"f:q": b"2"}
    java.rollback("a")


def test_checkpoints_of_java_are_versions_of_one_transaction(java: JavaClient, database: Database, table: str) -> None:
    start_ts = java.begin("a")
    java.put("a", table, b"r", b"f", b"q", b"first")
    assert java.checkpoint("a") == start_ts + 1
    java.put("a", table, b"r", b"f", b"q", b"second")
    commit_ts = java.commit("a")
    assert cells_of(database, table, b"r") == {
        Cell(b"r", b"f", b"q", start_ts, b"first", commit_ts),
        Cell(b"r", b"f", b"q", start_ts + 1, b"second", commit_ts),
    }
    with database.begin() as tx:
        assert tx.table(table).get(b"r") == {b"f:q": b"second"}


def test_a_retry_of_java_is_answered_with_the_first_tries_outcome(
    java: JavaClient, database: Database, tso: TsoProcess, table: str
) -> None:
    """T7: the TSO stands still for longer than the client waits; both tries arrive, one commit is there."""
    java.begin("first")
    java.put("first", table, b"s", b"f", b"q", b"1")
    java.commit("first")  # now the TSO knows the table: else it would look for it, and meet the retry first
    start_ts = java.begin("a")
    java.put("a", table, b"r", b"f", b"q", b"1")
    java.flush("a")
    tso.send(signal.SIGSTOP)
    java.send("commit", "a")
    time.sleep(1.5 * JAVA_TIMEOUT_S)  # what is tested is the client's own time-out
    tso.send(signal.SIGCONT)
    commit_ts = int(java.receive())
    assert commit_ts > start_ts
    assert cells_of(database, table, b"r") == {Cell(b"r", b"f", b"q", start_ts, b"1", commit_ts)}


def test_a_fence_of_java_aborts_writers_that_began_before(java: JavaClient, database: Database, table: str) -> None:
    """T8, asked for by `createIndex` workloads."""
    transaction = database.begin()
    transaction.table(table).put(b"r", {b"f:q": b"1"})
    java.ask("fence", table)
    with pytest.raises(ConflictError):
        transaction.commit()
    with database.begin() as tx:
        tx.table(table).put(b"r", {b"f:q": b"2"})


def test_conflict_level_row_is_one_level_for_both(
    hbase: HBaseServer, database: Database, tso: TsoProcess, table_name: str
) -> None:
    """T9: two columns of one row conflict, because Java sends row ids too."""
    database.create_table(table_name, ["f"], "row")
    port, quorum = hbase.ports.zookeeper, hbase.quorum
    with JavaClient(SOURCES, "127.0.0.1", port, quorum, level="ROW", through_zookeeper=True) as java:
        transaction = database.begin()
        java.begin("wins")
        java.put("wins", table_name, b"r", b"f", b"p", b"java's")
        java.commit("wins")
        transaction.table(table_name).put(b"r", {b"f:q": b"ours"})
        with pytest.raises(ConflictError):
            transaction.commit()
    database.drop_table(table_name)


def test_a_table_that_java_made_and_nobody_registered_stops_the_sanitiser(
    java: JavaClient, database: Database, table_name: str
) -> None:
    """K6: its commits leave a mark before their answer; registering the table is the cure."""
    java.ask("create", table_name, "f")
    java.begin("a")
    java.put("a", table_name, b"r", b"f", b"q", b"1")
    java.commit("a")
    number = table_id(table_name.encode())
    assert number in database.parts.catalogue.unknown_tables()
    with pytest.raises(Misuse, match=str(number)):
        database.driver.run(sanitise_steps(now_s=time.time(), retry_bound_s=0.0))
    database.create_table(table_name, ["f"])
    assert number not in database.parts.catalogue.unknown_tables()
    database.driver.run(sanitise_steps(now_s=time.time(), retry_bound_s=0.0))
    with database.begin() as tx:
        assert tx.table(table_name).get(b"r") == {b"f:q": b"1"}
    database.drop_table(table_name)


def test_java_finds_commit_entries_of_ours_and_we_find_java_s(java: JavaClient, database: Database, table: str) -> None:
    """The same nine bytes of row and the same varint: entries of both kinds lie side by side until completed."""
    starts = {}
    for name in ("a", "b"):
        starts[java.begin(name, dying=True)] = name
        java.put(name, table, name.encode(), b"f", b"q", b"1")
    commits = {start: java.commit(name) for start, name in starts.items()}
    entries = dict(database.parts.commit_table.entries())
    assert commits.items() <= entries.items()
    batches = database.parts.store.scan(table, KeyRange(), [Column(b"f", b"q")])
    assert {cell.version for batch in batches for cell in batch.all_cells()} == starts.keys()
