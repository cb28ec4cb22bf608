"""Compaction, splitting and sanitising beside writers, over real regions and a real TSO: nothing acknowledged is lost.

The writers complete nothing: every commit of theirs depends on its entry in the commit table until the compactor has
healed it, so whatever the sanitiser takes too early is lost for good, and missed at the end (K4, K5, K6).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hbase_processes import confirm_tables, leading_tso, with_options

import pyomid
from pyomid.database.database import Database
from pyomid.errors import Misuse, OmidError
from pyomid.omid.hbase.cluster import Cluster
from pyomid.protocol.compaction import compact_region
from pyomid.protocol.hashing import cell_id, table_id
from pyomid.protocol.reading import CommitCache
from pyomid.protocol.sanitize import sanitize_entries
from pyomid.types import Column, CommitRequest, KeyRange, RowWrite
from region_admin import OperatorsAdmin
from waiting import until

pytestmark = pytest.mark.timeout(420)

Q = Column(b"f", b"q")
AGE_S = 2.0
"""Transactions that take longer than this are refused, so W follows at that distance. A busy machine refuses more."""
ROUNDS = 4
DEADLINE_S = 240.0


@pytest.fixture
def database(url: str, tmp_path: Path) -> Iterator[Database]:
    """A TSO whose W moves within seconds."""
    # A lease that an earlier test left behind would hold W back for its whole term.
    options = f"maxTransactionAgeSeconds={AGE_S}&leaseSeconds=5"
    with leading_tso(with_options(url, options), tmp_path / "tso.log"):
        with pyomid.connect(url) as opened:
            confirm_tables(opened)
            yield opened


class Writer:
    """Commits one row after another and never completes; remembers what it was told."""

    def __init__(self, database: Database, table: str) -> None:
        self.table = table
        self.acknowledged: dict[bytes, int] = {}
        self._database = database
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def write(self, row: bytes) -> None:
        parts, name = self._database._core.deployment, self.table.encode()
        begun_start_ts = parts.tso.begin()
        start_ts = begun_start_ts.start_ts
        parts.store.write_cells(self.table, start_ts, [RowWrite(row, ((Q, b"v"),))])
        reply = parts.tso.commit(CommitRequest(start_ts, (cell_id(name, row, *Q),), (table_id(name),)))
        if reply.committed:
            self.acknowledged[row] = reply.commit_ts

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            try:
                self.write(b"%02x%06d" % (number * 37 % 256, number))
            except OmidError:
                continue


def compact(database: Database, table: str, region: KeyRange) -> int:
    """How many cells were healed."""
    generation = database.table_info(table).generation
    steps = compact_region(table, generation, region, CommitCache(), now_s=time.time(), rows_max=200)
    return database._core.driver.run(steps).cells_healed


def sanitise(database: Database) -> int:
    return database._core.driver.run(sanitize_entries(now_s=time.time() + 1.0, retry_bound_s=0.0)).entries_deleted


def reshape(cluster: Cluster, table: str, change: Callable[[OperatorsAdmin], object]) -> None:
    """HBase refuses while a region refers to the files of the one it came from: its own compaction rewrites them."""
    admin, end_s = OperatorsAdmin(cluster), time.monotonic() + DEADLINE_S
    while True:
        try:
            change(admin)
            return
        except Misuse as error:
            if "NOT splittable" not in str(error) and "mergeable" not in str(error):
                raise
            if time.monotonic() > end_s:
                raise
        admin.compact(table)
        time.sleep(0.5)


@pytest.mark.long
def test_compaction_splits_and_sanitizing_lose_nothing(database: Database, cluster: Cluster, table_name: str) -> None:
    """K4: writers race the compactor. K5: between its passes and the sanitiser a region splits. K6: a table appears."""
    database.create_table(table_name, ["f"])
    writers = [Writer(database, table_name)]
    others = [info.name for info in database.tables() if info.name != table_name]
    healed = deleted = 0
    try:
        for round_ in range(ROUNDS):
            seen, watermark = len(writers[0].acknowledged), database.status().tso.watermark
            until(lambda: len(writers[0].acknowledged) >= seen + 50, "the writer writes nothing", wait_s=DEADLINE_S)  # noqa: B023
            until(lambda: database.status().tso.watermark > watermark, "W does not move", wait_s=DEADLINE_S)  # noqa: B023
            for region in database._core.deployment.store.regions(table_name):
                healed += compact(database, table_name, region)
            split_at = b"%02x" % (256 // ROUNDS * round_ + 20)
            reshape(cluster, table_name, lambda admin: admin.split(table_name, split_at))  # noqa: B023
            if round_ == 1:  # between the compactor and the sanitiser, whose tables it was not among
                database.create_table(f"{table_name}_late", ["f"])
                writers.append(Writer(database, f"{table_name}_late"))
            for name in [*others, *(writer.table for writer in writers[1:])]:
                for region in database._core.deployment.store.regions(name):
                    compact(database, name, region)
            deleted += sanitise(database)
    finally:
        for writer in writers:
            writer.stop()
    assert healed > 0
    assert deleted > 0, "the sanitiser never took an entry: nothing was put to the test"
    assert len(database._core.deployment.store.regions(table_name)) == ROUNDS + 1
    for writer in writers:
        assert writer.acknowledged
        with database.begin() as tx:
            found = {row for row, _ in tx.table(writer.table).scan()}
        assert writer.acknowledged.keys() <= found, f"acknowledged and lost in {writer.table}"
        database.drop_table(writer.table)


def test_a_region_without_a_watermark_holds_the_sanitizer_back(
    database: Database, cluster: Cluster, table_name: str
) -> None:
    """K5: two regions merge, of which one was never compacted: the record of the other does not speak for both."""
    database.create_table(table_name, ["f"])
    writer = Writer(database, table_name)
    until(lambda: len(writer.acknowledged) >= 20, "the writer writes nothing", wait_s=DEADLINE_S)
    writer.stop()
    reshape(cluster, table_name, lambda admin: admin.split(table_name, b"80"))
    first, _ = database._core.deployment.store.regions(table_name)
    newest = max(writer.acknowledged.values())
    until(lambda: _w(database) > newest, "W does not pass what was written", wait_s=DEADLINE_S)
    compact(database, table_name, first)
    reshape(cluster, table_name, lambda admin: admin.merge(table_name, b"80"))
    (whole,) = database._core.deployment.store.regions(table_name)
    before = database._core.deployment.commit_table.lookup(_starts(database, table_name))
    sanitise(database)
    assert database._core.deployment.commit_table.lookup(_starts(database, table_name)) == before
    compact(database, table_name, whole)
    with database.begin() as tx:
        assert {row for row, _ in tx.table(table_name).scan()} == writer.acknowledged.keys()
    database.drop_table(table_name)


def _w(database: Database) -> int:
    return database.status().tso.watermark


def _starts(database: Database, table: str) -> list[int]:
    found = {
        cell.version for batch in database._core.deployment.store.scan(table, KeyRange()) for cell in batch.all_cells()
    }
    return sorted(found)
