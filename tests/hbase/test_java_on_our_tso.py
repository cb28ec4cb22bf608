"""Apache Omid's own client and a Python client on pyomid's TSO, with the same tables."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest
from hbase_processes import TsoProcess, confirm_tables, leading_tso

import pyomid
from frame_proxy import FrameProxy, Passed
from java_omid import JavaClient, JavaError
from pyomid import crashpoints
from pyomid.cli.hbase import HBaseServer
from pyomid.database.database import Database
from pyomid.errors import ConflictError, Misuse
from pyomid.omid.wire.codec import decode_answer, decode_request
from pyomid.protocol.hashing import cell_id, table_id
from pyomid.protocol.sanitize import sanitize_entries
from pyomid.types import NOT_FOUND, SEALED, Cell, Column, CommitReply, CommitRequest, RowWrite


@pytest.fixture(scope="module")
def tso(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TsoProcess]:
    """As it must be run where Java clients call fence(): these seal within the epoch."""
    with leading_tso(f"{url}?othersSeal=true", tmp_path_factory.mktemp("tso") / "log", lease_s=20.0) as process:
        yield process


@pytest.fixture(scope="module")
def database(url: str, tso: TsoProcess) -> Iterator[Database]:
    with pyomid.connect(url) as opened:
        confirm_tables(opened)
        yield opened


@pytest.fixture(scope="module")
def java(hbase: HBaseServer, tso: TsoProcess) -> Iterator[JavaClient]:
    with JavaClient(hbase.ports.zookeeper) as client:
        yield client


def cells_of(database: Database, table: str, row: bytes) -> set[Cell]:
    return set(database._core.deployment.store.read_rows(table, [row])[0])


def test_we_read_each_cell_that_java_commits(java: JavaClient, database: Database, table: str) -> None:
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


def test_java_reads_our_commits(java: JavaClient, database: Database, table: str) -> None:
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


def test_the_first_committer_wins_java_or_python(java: JavaClient, database: Database, table: str) -> None:
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
    assert database.drain(120.0)
    assert cells_of(database, table, b"r") == {Cell(b"r", b"f", b"q", start_ts, b"1", commit_ts)}
    assert database._core.deployment.commit_table.lookup([start_ts]) == [commit_ts], "a healer never deletes the entry"


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
        (commit_ts,) = database._core.deployment.commit_table.lookup([transaction.start_ts])
        assert commit_ts > transaction.start_ts
        assert cells_of(database, table, b"r") == {Cell(b"r", b"f", b"q", transaction.start_ts, b"1", 0)}
        java.begin("a")
        assert java.get("a", table, b"r") == {b"f:q": b"1"}
        java.rollback("a")
        assert cells_of(database, table, b"r") == {Cell(b"r", b"f", b"q", transaction.start_ts, b"1", commit_ts)}
    dying._core.abandon()


def test_a_java_transaction_that_died_before_its_commit_is_never_seen(
    java: JavaClient, hbase: HBaseServer, database: Database, table: str
) -> None:
    with JavaClient(hbase.ports.zookeeper) as other:
        start_ts = other.begin("dies")
        other.put("dies", table, b"r", b"f", b"q", b"1")
        other.flush("dies")
        other.kill()
    assert cells_of(database, table, b"r") == {Cell(b"r", b"f", b"q", start_ts, b"1", 0)}
    with database.begin() as tx:
        assert tx.table(table).get(b"r") is None
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


@pytest.fixture(scope="module")
def proxy(tso: TsoProcess) -> Iterator[FrameProxy]:
    host, _, port = tso.address.rpartition(":")
    with FrameProxy(host, int(port)) as made:
        yield made


@pytest.fixture(scope="module")
def proxied(hbase: HBaseServer, proxy: FrameProxy) -> Iterator[JavaClient]:
    """A Java client whose frames we see and may keep from it."""
    with JavaClient(hbase.ports.zookeeper, proxy.address) as client:
        yield client


def asks_commit_of(start_ts: int) -> Callable[[Passed], bool]:
    def wanted(passed: Passed) -> bool:
        body = decode_request(passed.payload).body if passed.from_client else None
        return isinstance(body, CommitRequest) and body.start_ts == start_ts

    return wanted


def answers_commit_of(start_ts: int) -> Callable[[Passed], bool]:
    def wanted(passed: Passed) -> bool:
        body = None if passed.from_client else decode_answer(passed.payload).body
        return isinstance(body, CommitReply) and body.start_ts == start_ts

    return wanted


def test_a_java_retry_gets_the_first_attempts_outcome(
    proxied: JavaClient, proxy: FrameProxy, database: Database, tso: TsoProcess, table: str
) -> None:
    """T7: the TSO stands still for longer than the client waits; both tries arrive, one commit is there."""
    proxied.begin("first")
    proxied.put("first", table, b"s", b"f", b"q", b"1")
    proxied.commit("first")  # now the TSO knows the table: else it would look for it, and meet the retry first
    start_ts = proxied.begin("a")
    proxied.put("a", table, b"r", b"f", b"q", b"1")
    proxied.flush("a")
    tso.send(signal.SIGSTOP)
    try:
        proxied.send("commit", "a")
        tries = proxy.wait_for(asks_commit_of(start_ts), count=2)
    finally:
        tso.send(signal.SIGCONT)
    assert [decode_request(each.payload).body.is_retry for each in tries] == [False, True]
    commit_ts = int(proxied.receive())
    assert commit_ts > start_ts
    assert cells_of(database, table, b"r") == {Cell(b"r", b"f", b"q", start_ts, b"1", commit_ts)}


@pytest.mark.parametrize("cut", [False, True], ids=["the same connection", "a new connection"])
def test_a_java_retry_gets_the_reply_that_was_lost(
    proxied: JavaClient, proxy: FrameProxy, database: Database, table: str, cut: bool
) -> None:
    """T7: the answer is lost on the way, or together with the connection."""
    start_ts = proxied.begin("a")
    proxied.put("a", table, b"r", b"f", b"q", b"1")
    proxy.drop_next(answers_commit_of(start_ts))
    proxied.send("commit", "a")
    (lost,) = proxy.wait_for(answers_commit_of(start_ts))
    if cut:
        proxy.cut()
    commit_ts = int(proxied.receive())
    told = decode_answer(lost.payload).body
    assert isinstance(told, CommitReply)
    assert told.commit_ts == commit_ts
    tries = proxy.wait_for(asks_commit_of(start_ts), count=2)
    assert (len({each.connection for each in tries}) > 1) == cut
    assert cells_of(database, table, b"r") == {Cell(b"r", b"f", b"q", start_ts, b"1", commit_ts)}


def test_a_job_with_a_branch_sealed_by_java_is_complete(java: JavaClient, database: Database, table: str) -> None:
    """T13: between the tasks and the commit Java fences another table, and reads a branch by that fence."""
    tso, column = database._core.deployment.tso, Column(b"f", b"q")
    other = f"{table}_other"
    database.create_table(other, ["f"])
    begun_start_ts = tso.begin()
    start_ts = begun_start_ts.start_ts
    tso.grant_lease(start_ts)
    rows = (b"a", b"b", b"c")
    branches = tuple(tso.begin().start_ts for _ in rows)
    for branch, row in zip(branches, rows, strict=True):
        database._core.deployment.store.write_cells(table, branch, [RowWrite(row, ((column, b"v"),))])
    java.ask("fence", other, "fence")
    assert java.get("fence", table, b"b") == {}
    commit_table = database._core.deployment.commit_table
    assert commit_table.lookup(branches) == [NOT_FOUND, SEALED, NOT_FOUND], "Java sealed what it met"
    ids = tuple(cell_id(table.encode(), row, *column) for row in rows)
    reply = tso.commit(CommitRequest(start_ts, ids, (table_id(table.encode()),), branches))
    assert reply.committed
    assert commit_table.lookup([start_ts, *branches]) == [reply.commit_ts] * 4
    java.begin("after")
    assert java.scan("after", table) == {key: {b"f:q": b"v"} for key in rows}
    java.rollback("after")
    with database.begin() as tx:
        assert dict(tx.table(table).scan()) == {key: {b"f:q": b"v"} for key in rows}
    database.drop_table(other)


def test_a_fence_of_java_aborts_writers_that_began_before(java: JavaClient, database: Database, table: str) -> None:
    """T8, asked for by `createIndex` workloads."""
    transaction = database.begin()
    transaction.table(table).put(b"r", {b"f:q": b"1"})
    java.ask("fence", table)
    with pytest.raises(ConflictError):
        transaction.commit()
    with database.begin() as tx:
        tx.table(table).put(b"r", {b"f:q": b"2"})


def test_a_commit_sealed_by_a_java_fence_is_reported_aborted(java: JavaClient, database: Database, table: str) -> None:
    """R2: whoever reads by Java's fence seals what it meets undecided; the mark wins, so nobody is told committed."""
    tso, column = database._core.deployment.tso, Column(b"f", b"q")
    other = f"{table}_other"
    database.create_table(other, ["f"])
    begun_start_ts = tso.begin()
    start_ts = begun_start_ts.start_ts
    database._core.deployment.store.write_cells(table, start_ts, [RowWrite(b"r", ((column, b"v"),))])
    java.ask("fence", other, "fence")
    assert java.get("fence", table, b"r") == {}
    assert database._core.deployment.commit_table.lookup([start_ts]) == [SEALED]
    name = table.encode()
    reply = tso.commit(CommitRequest(start_ts, (cell_id(name, b"r", *column),), (table_id(name),)))
    assert not reply.committed
    with database.begin() as tx:
        assert tx.table(table).get(b"r") is None
    database.drop_table(other)


def test_at_conflict_level_cell_two_columns_of_a_row_do_not_conflict(
    java: JavaClient, database: Database, table: str
) -> None:
    """T9, with its counterpart below: both sides name cells."""
    transaction = database.begin()
    java.begin("too")
    java.put("too", table, b"r", b"f", b"p", b"java's")
    transaction.table(table).put(b"r", {b"f:q": b"ours"})
    transaction.commit()
    java.commit("too")
    with database.begin() as tx:
        assert tx.table(table).get(b"r") == {b"f:p": b"java's", b"f:q": b"ours"}


def test_at_conflict_level_row_two_columns_of_a_row_conflict(
    hbase: HBaseServer, database: Database, tso: TsoProcess, table_name: str
) -> None:
    """T9: two columns of one row conflict, because both sides name rows."""
    database.create_table(table_name, ["f"], conflict_level="row")
    with JavaClient(hbase.ports.zookeeper, level="ROW") as java:
        transaction = database.begin()
        java.begin("wins")
        java.put("wins", table_name, b"r", b"f", b"p", b"java's")
        java.commit("wins")
        transaction.table(table_name).put(b"r", {b"f:q": b"ours"})
        with pytest.raises(ConflictError):
            transaction.commit()
        java.begin("loses")
        with database.begin() as tx:
            tx.table(table_name).put(b"r", {b"f:q": b"ours"})
        java.put("loses", table_name, b"r", b"f", b"p", b"java's again")
        with pytest.raises(JavaError, match="RollbackException"):
            java.commit("loses")
    with database.begin() as tx:
        assert tx.table(table_name).get(b"r") == {b"f:p": b"java's", b"f:q": b"ours"}
    database.drop_table(table_name)


def test_an_unregistered_java_table_stops_the_sanitizer(java: JavaClient, database: Database, table_name: str) -> None:
    """K6: its commits leave a mark before their answer; registering the table is the cure."""
    java.ask("create", table_name, "f")
    java.begin("a")
    java.put("a", table_name, b"r", b"f", b"q", b"1")
    java.commit("a")
    number = table_id(table_name.encode())
    assert number in database._core.deployment.catalog.unknown_tables()
    with pytest.raises(Misuse, match=str(number)):
        database._core.driver.run(sanitize_entries(now_s=time.time(), retry_bound_s=0.0))
    database.create_table(table_name, ["f"])
    database._core.driver.run(sanitize_entries(now_s=time.time(), retry_bound_s=0.0))
    with database.begin() as tx:
        assert tx.table(table_name).get(b"r") == {b"f:q": b"1"}
    database.drop_table(table_name)
