"""Leases of loads and writes in a folder, as Spark calls the data source, and without Spark (K7)."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType
from test_writer import push_watermark_past

import pyomid.spark
from pyomid.database.transaction import State
from pyomid.errors import ConflictError, SnapshotTooOld, TransactionEnded
from pyomid.spark.coded_errors import original_error
from pyomid.spark.connections import Connection, close_connections, connection
from pyomid.spark.source.datasource import OmidDataSource
from pyomid.spark.source.planning import OmidReader
from pyomid.spark.transactions import SparkTransaction

SCHEMA = StructType([StructField("name", StringType()), StructField("count", LongType())])
ROWS = pa.table({"name": ["a", "b"], "count": [1, 2]})


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    found = f"omid://{tmp_path}/db?maxTransactionAgeSeconds=1"
    save(found)
    yield found
    close_connections()


def source(url: str, **options: str) -> OmidDataSource:
    return OmidDataSource({"url": url, "table": "t", "rowKey": "name", **options})


def load(url: str, *, schema_given: bool = False, **options: str) -> OmidReader:
    """As `load()` does, and the planning of an action, in processes of their own."""
    made = source(url, **options)
    if not schema_given:
        made.schema()
    planned: OmidReader = pickle.loads(pickle.dumps(made)).reader(SCHEMA)
    return planned


def read(reader: OmidReader) -> list[Any]:
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def save(url: str) -> int:
    """The start of the write, which is over."""
    writer = pickle.loads(pickle.dumps(source(url))).writer(SCHEMA, overwrite=False)
    assert writer.begun.start_ts in leases(connection(url))
    writer.commit([writer.write(iter(ROWS.to_batches()))])
    return int(writer.begun.start_ts)


def leases(conn: Connection) -> tuple[int, ...]:
    return conn.deployment.tso.status().leases


def test_a_lease_that_others_share_is_renewed_for_its_owner_only(url: str) -> None:
    """Otherwise a task could not tell that its transaction has ended."""
    conn = connection(url)
    tso, start_ts = conn.deployment.tso, conn.deployment.tso.begin_job().start_ts
    tso.grant_lease(start_ts)
    tso.share_lease(start_ts)
    assert tso.renew_lease(start_ts) > 0
    tso.end_lease(start_ts)
    assert leases(conn) == (start_ts,)
    with pytest.raises(SnapshotTooOld, match="its lease has ended"):
        tso.renew_lease(start_ts)
    assert tso.share_lease(start_ts)[0] == start_ts


def test_a_thousand_loads_share_one_lease(url: str) -> None:
    """With one each, 33 loads a second use up the TSO's leases for everybody."""
    readers = [load(url), load(url)]
    for _ in range(1000):
        source(url).schema()
    assert len(leases(connection(url))) == 1
    assert len(read(readers[0])) == len(read(readers[-1])) == 2
    assert len(leases(connection(url))) == 1


def test_loads_of_many_processes_share_one_lease(url: str) -> None:
    """A load, its planning and its tasks run in processes of their own, none of which lasts."""
    for _ in range(30):
        assert len(read(load(url))) == 2
        assert len(leases(connection(url))) == 1
        close_connections()


def test_a_snapshot_is_kept_before_it_is_known_for_what(url: str) -> None:
    """A source that was not asked for its schema becomes a write, or a load that was given one."""
    conn = connection(url)
    push_watermark_past(conn, save(url))
    made = pickle.dumps(source(url))
    (start_ts,) = leases(conn)
    reader = pickle.loads(made).reader(SCHEMA)
    assert len(read(reader)) == 2
    assert leases(conn) == (start_ts,), "a lease of the load, shared"
    for _ in range(30):
        read(load(url, schema_given=True))
    assert len(leases(conn)) == 1


def test_w_moves_on_at_once_when_a_write_ended(url: str) -> None:
    conn = connection(url)
    push_watermark_past(conn, save(url))
    assert leases(conn) == ()
    aborted = source(url).writer(SCHEMA, overwrite=False)
    aborted.abort([])
    assert leases(conn) == ()
    push_watermark_past(conn, aborted.begun.start_ts)


@pytest.mark.parametrize("asked", [False, True])
def test_two_writes_that_begin_at_the_same_moment_are_two_jobs(url: str, asked: bool) -> None:
    """Nothing is committed between their begins, nor between the schemas that Spark asks for before."""
    sources = [source(url), source(url)]
    if asked:
        for each in sources:
            each.schema()
    one, other = (each.writer(SCHEMA, overwrite=False) for each in pickle.loads(pickle.dumps(sources)))
    assert one.begun.start_ts != other.begun.start_ts
    messages = [each.write(iter(ROWS.to_batches())) for each in (one, other)]
    one.commit(messages[:1])
    with pytest.raises(Exception, match="OMID-CONFLICT") as lost:
        other.commit(messages[1:])
    assert isinstance(original_error(lost.value), ConflictError)


def test_a_write_that_is_refused_leaves_no_lease(url: str) -> None:
    push_watermark_past(connection(url), save(url))
    made = source(url, ifExists="error")
    with pytest.raises(Exception, match="has rows"):
        made.writer(SCHEMA, overwrite=False)
    assert leases(connection(url)) == ()


def test_a_long_write_is_kept_while_loads_come_and_go(url: str) -> None:
    conn = connection(url)
    long = source(url).writer(SCHEMA, overwrite=False)
    message = long.write(iter(pa.table({"name": ["c"], "count": [3]}).to_batches()))
    for _ in range(20):
        assert len(read(load(url, leaseSeconds="0.1"))) == 2
        save_other(conn)
    assert conn.deployment.leader_state.read_watermarks()[0] < long.begun.start_ts
    long.commit([message])
    assert len(read(load(url))) == 3


def save_other(conn: Connection) -> None:
    with pyomid.connect(conn.url) as db:
        db.create_table("other", families=["f"], if_not_exists=True)
        with db.begin() as tx:
            tx.table("other").put(b"k", {b"f:x": b"1"})


def test_a_snapshot_that_was_kept_no_longer_says_so_to_every_load(tmp_path: Path) -> None:
    """Whoever shared it, at whichever step it is."""
    url = f"omid://{tmp_path}/db"
    save(url)
    loads = [load(url) for _ in range(3)]
    conn = connection(url)
    (leased,) = leases(conn)
    conn.deployment.tso.end_lease(leased, shared=True)
    push_watermark_past(conn, max(reader._plan.snapshot.start_ts for reader in loads))
    for reader in loads:
        with pytest.raises(Exception, match="watermark") as raised:
            read(reader)
        assert isinstance(original_error(raised.value), SnapshotTooOld)
    close_connections()
    for reader in loads:
        with pytest.raises(Exception, match="watermark") as raised:
            read(reader)
        assert isinstance(original_error(raised.value), SnapshotTooOld)
    close_connections()


def test_a_lease_that_an_operator_ended_is_not_relied_on(tmp_path: Path) -> None:
    """Every load of this process would fail else, for a third of a term."""
    url = f"omid://{tmp_path}/db"
    save(url)
    load(url)
    conn = connection(url)
    (leased,) = leases(conn)
    conn.deployment.tso.end_lease(leased, shared=True)
    push_watermark_past(conn, leased)
    later = load(url)
    push_watermark_past(conn, later._plan.snapshot.start_ts - 1)
    assert read(later) == ROWS.to_pylist()
    assert len(leases(conn)) == 1
    close_connections()


def test_changes_that_are_kept_no_longer_say_since_when(tmp_path: Path) -> None:
    """Not the start of their load, which no program gave."""
    url = f"omid://{tmp_path}/db"
    save(url)
    since = save(url)
    made = source(url, readChangeFeed="true", startingBookmark=f"{since}:0")
    schema, planned = made.schema(), pickle.dumps(made)
    conn = connection(url)
    (leased,) = leases(conn)
    assert leased > since
    conn.deployment.tso.end_lease(leased, shared=True)
    push_watermark_past(conn, leased)
    with pytest.raises(Exception, match=f"changes since {since} .* are no longer kept") as raised:
        pickle.loads(planned).reader(schema)
    assert isinstance(original_error(raised.value), SnapshotTooOld)
    close_connections()


def begin(conn: Connection) -> SparkTransaction:
    """Without Spark, as nothing here is read by it."""
    nobody: Any = None
    begun = conn.deployment.tso.begin()
    return SparkTransaction(nobody, conn, begun, run_id=None, conflict_level=None, lease_seconds=None)


def renewers() -> int:
    return sum(thread.name == "pyomid-leases" for thread in threading.enumerate())


def test_transactions_of_a_process_have_one_renewer(url: str) -> None:
    conn = connection(url)
    begun = [begin(conn)]
    before = renewers()
    begun += [begin(conn) for _ in range(19)]
    assert renewers() <= before
    assert set(leases(conn)) == {tx.start_ts for tx in begun}
    for tx in begun[:10]:
        tx.rollback()
    for tx in begun[10:]:
        tx.commit()
    assert leases(conn) == ()


def test_a_transaction_that_lost_its_lease_says_so_at_its_next_use(url: str) -> None:
    tx = begin(connection(url))
    assert tx._lease is not None
    tx._lease.lost = SnapshotTooOld("the lease is gone", start_ts=tx.start_ts)
    for use, state in ((lambda: tx.read("t"), State.ROLLBACK_ONLY), (tx.commit, State.ROLLED_BACK)):
        with pytest.raises(SnapshotTooOld, match="the lease is gone"):
            use()
        assert tx.state is state
    with pytest.raises(TransactionEnded, match="the lease is gone"):
        tx.read("t")
