"""A region that no server serves while its table is enabled: whoever needs it says so, waits as long as it may, and
goes on when the region is there again."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from hbase_processes import TsoProcess, leading_tso

import pyomid
from portions import first
from pyomid.database.database import Database
from pyomid.errors import Unavailable
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.layout import COMMIT_TABLE, META_TABLE
from pyomid.omid.hbase.regions.locations import Region
from pyomid.omid.tso.leadership import DOUBT_EXIT_CODE
from region_admin import OperatorsAdmin, encoded_name

FOR_EVER_S = 3600.0
"""A wait of so long ends these tests, unless it is cut short."""
SHORT_S = 3.0
SPLIT, SERVED, OFFLINE = b"m", b"a", b"z"
COLUMN = "f:q"
V1, V2 = {b"f:q": b"1"}, {b"f:q": b"2"}


@pytest.fixture
def divided(database: Database, table_name: str) -> Iterator[str]:
    """A table of two regions with a row in each."""
    database.create_table(table_name, ["f"], split_keys=[SPLIT])
    with database.begin() as tx:
        for row in (SERVED, OFFLINE):
            tx.table(table_name).put(row, V1)
    yield table_name
    database.drop_table(table_name)


@contextmanager
def offline(cluster: Cluster, table: str, start: bytes | None = None) -> Iterator[list[Region]]:
    """The region of the table that begins there, or all of them."""
    admin = OperatorsAdmin(cluster)
    regions = [each for each in cluster.regions(table) if start is None or each.key_range.start == start]
    with ThreadPoolExecutor(len(regions)) as threads:  # the master takes a second for each
        try:
            list(threads.map(admin.unassign, regions))
            yield regions
        finally:
            list(threads.map(admin.assign, regions))


def get(database: Database, table: str) -> dict[bytes, bytes] | None:
    with database.begin(read_only=True) as tx:
        return tx.table(table).get(OFFLINE)


def put(database: Database, table: str) -> None:
    with database.begin() as tx:
        tx.table(table).put(OFFLINE, V2)


def scan(database: Database, table: str) -> list[bytes]:
    with database.begin(read_only=True) as tx:
        return [row for row, _ in tx.table(table).scan()]


def scan_from_the_end(database: Database, table: str) -> list[bytes]:
    with database.begin(read_only=True) as tx:
        return [row for row, _ in tx.table(table).scan(reverse=True)]


Work = Callable[[Database, str], object]
WORKS = (get, put, scan, scan_from_the_end)


@pytest.mark.long
@pytest.mark.parametrize("table", [COMMIT_TABLE, META_TABLE])
def test_a_tso_resumes_when_its_region_is_back(
    table: str, url: str, cluster: Cluster, tmp_path: Path, table_name: str
) -> None:
    options = ("--store-retry", str(FOR_EVER_S))
    with (
        leading_tso(url, tmp_path / "log", options=options) as tso,
        pyomid.connect(url, requestSeconds=FOR_EVER_S, commitRetrySeconds=FOR_EVER_S) as database,
        ThreadPoolExecutor(1) as threads,
    ):
        database.create_table(table_name, ["f"])
        put(database, table_name)
        with offline(cluster, table) as regions:
            committed = threads.submit(put, database, table_name)
            names = "|".join(re.escape(encoded_name(each).decode()) for each in regions)
            waiting = threading.Event()
            while not re.search(rf"has waited .*{table},.*({names})", tso.log.read_text()):
                waiting.wait(0.02)
            assert not committed.done()
        committed.result()
        assert get(database, table_name) == V2
        database.drop_table(table_name)


@pytest.mark.long
def test_a_leader_whose_region_stays_offline_exits_with_an_error(
    url: str, cluster: Cluster, tmp_path: Path, table_name: str
) -> None:
    """What it acknowledged is there under the next one, what it did not is unknown until then."""
    with TsoProcess(url, tmp_path / "one.log", lease_s=6.0, options=("--store-retry", "3")) as one:
        one.wait_until_leading()
        with (
            pyomid.connect(url, requestSeconds=FOR_EVER_S, commitRetrySeconds=FOR_EVER_S) as database,
            ThreadPoolExecutor(1) as threads,
        ):
            database.create_table(table_name, ["f"])
            with database.begin() as tx:
                tx.table(table_name).put(OFFLINE, V1)
            with offline(cluster, COMMIT_TABLE) as regions:
                committed = threads.submit(put, database, table_name)
                assert one.process.wait() == DOUBT_EXIT_CODE
                assert any(encoded_name(each).decode() in one.log.read_text() for each in regions)
            with leading_tso(url, tmp_path / "two.log", lease_s=6.0):
                is_committed = committed.exception() is None
                assert get(database, table_name) == (V2 if is_committed else V1)
                database.drop_table(table_name)


@pytest.mark.parametrize("work", first(1, WORKS))
def test_who_needs_an_offline_region_is_told_which_one(
    work: Work, url: str, cluster: Cluster, divided: str, caplog: pytest.LogCaptureFixture
) -> None:
    """In one sentence, with the way out, after the time that the URL gives; and in the log before."""
    with pyomid.connect(url, storeRetrySeconds=SHORT_S) as impatient, offline(cluster, divided, SPLIT) as (region,):
        with caplog.at_level(logging.WARNING), pytest.raises(Unavailable) as told:
            work(impatient, divided)
        assert divided in str(told.value)
        assert encoded_name(region).decode() in str(told.value)
        assert "assign it in HBase's shell" in str(told.value)
        assert re.search(rf"{divided}: has waited \d s \(limit 3 s\): .*{divided}", caplog.text)
        with impatient.begin() as tx:
            assert tx.table(divided).get(SERVED) == V1, "the other region serves"
    with pyomid.connect(url) as later, later.begin() as tx:
        assert dict(tx.table(divided).scan()) == {SERVED: V1, OFFLINE: V1}, "nothing is lost, and nothing half there"


def test_who_waits_for_a_region_goes_on_when_it_is_back(
    url: str, cluster: Cluster, divided: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        pyomid.connect(url, storeRetrySeconds=FOR_EVER_S) as patient,
        ThreadPoolExecutor(len(WORKS)) as threads,
        caplog.at_level(logging.WARNING),
    ):
        with offline(cluster, divided, SPLIT):
            found = [threads.submit(work, patient, divided) for work in WORKS]
            waiting = threading.Event()
            while caplog.text.count(f"{divided}: has waited") < len(WORKS):
                waiting.wait(0.02)
            assert not any(each.done() for each in found)
        got, _, rows, reversed_rows = (each.result() for each in found)
        assert got in (V1, V2)
        assert rows == reversed_rows[::-1] == [SERVED, OFFLINE]  # type: ignore[index]
        assert get(patient, divided) == V2, "the put was acknowledged"
