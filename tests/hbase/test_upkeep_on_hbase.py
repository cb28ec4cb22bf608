"""`pyomid compact|sanitize URL --every`: one process works, the others stand by and take over."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from hbase_processes import forget_others
from kazoo.client import KazooClient

from pyomid.cli.hbase import HBaseServer
from pyomid.database.database import Database
from pyomid.omid.hbase.coordination import UpkeepTurn
from pyomid.omid.hbase.zookeeper import ZooKeeper
from pyomid.types import RegionWatermark

SPLITS = (b"h", b"p")
WAIT_S = 120.0


class UpkeepProcess:
    """One service, whose log lines are read as they come."""

    def __init__(self, url: str, command: str, *options: str, crash_at: str = "") -> None:
        environment = dict(os.environ) | ({"PYOMID_CRASH_AT": crash_at} if crash_at else {})
        line = [sys.executable, "-m", "pyomid", command, url, *options]
        self.process = subprocess.Popen(line, stderr=subprocess.PIPE, text=True, env=environment)

    def wait_for(self, pattern: str) -> dict[str, Any]:
        """The first line from now on whose message has a match of `pattern`."""
        timer = threading.Timer(WAIT_S, self.process.kill)
        timer.start()
        assert self.process.stderr is not None
        seen = []
        try:
            for line in self.process.stderr:
                seen.append(line)
                if line.startswith("{") and re.search(pattern, (said := json.loads(line))["message"]):
                    return dict(said)
        finally:
            timer.cancel()
        raise AssertionError(f"it never said {pattern!r}: {''.join(seen)[-3000:]}")

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=WAIT_S)


Start = Callable[..., UpkeepProcess]


@pytest.fixture
def start(url: str, database: Database) -> Iterator[Start]:
    with ExitStack() as stack:

        def started(command: str, *options: str, crash_at: str = "") -> UpkeepProcess:
            made = UpkeepProcess(url, command, *options, crash_at=crash_at)
            stack.callback(made.process.wait)
            stack.callback(made.process.kill)
            return made

        yield started


@pytest.fixture
def divided(database: Database, table_name: str) -> Iterator[str]:
    """A table of three regions, each with a row. W moves: what others left holds it no more."""
    forget_others(database)
    database.create_table(table_name, families=["f"], split_keys=list(SPLITS))
    with database.begin() as tx:
        for key in (b"a", b"k", b"z"):
            tx.table(table_name).put(key, {b"f:q": b"v"})
    yield table_name
    database.drop_table(table_name)


def records(database: Database, table: str) -> list[RegionWatermark]:
    return database._core.deployment.catalog.region_watermarks(table)


def test_w_follows_the_oldest_open_start_over_hbase(database: Database, divided: str) -> None:
    """Of short transactions it follows the last, far below their age; it waits for the one that is open."""

    def work_until(reached: Callable[[int], bool]) -> None:
        while not reached(database.status().tso.watermark):
            database.run(lambda tx: tx.table(divided).put(b"a", {b"f:q": b"w"}))

    reader = database.begin()
    seen = reader.table(divided).get(b"a")
    work_until(lambda w: w == reader.start_ts - 1)
    for number in range(20):
        database.run(lambda tx, number=number: tx.table(divided).put(b"a", {b"f:q": b"%d" % number}))
    assert reader.table(divided).get(b"a") == seen
    status = database.status().tso
    assert status.watermark == reader.start_ts - 1
    assert f"process {os.getpid()}" in status.held_back_by
    reader.commit()
    work_until(lambda w: w >= reader.start_ts)


@pytest.mark.long
def test_the_next_owner_continues_with_the_remaining_regions(database: Database, divided: str, start: Start) -> None:
    every = ("--table", divided, "--every", "3600")
    first = start("compact", *every, crash_at="client.upkeep.cleaned")
    first.wait_for("this process has taken over the upkeep")
    assert first.process.wait(timeout=WAIT_S) == -signal.SIGKILL
    (left,) = records(database, divided)
    second = start("compact", *every)
    assert second.wait_for("^compacted$")["regions"] == 2
    ranges = [record.key_range for record in records(database, divided)]
    assert sorted(each.start for each in ranges) == [b"", *SPLITS]
    assert left in records(database, divided), "what was cleaned an hour ago at most is not cleaned again"
    assert second.end(signal.SIGTERM) == 0


@pytest.mark.long
def test_one_process_works_and_the_other_takes_over_after_a_kill(
    database: Database, divided: str, start: Start
) -> None:
    every = ("--table", divided, "--every", "0.2")
    first = start("compact", *every)
    assert first.wait_for("^compacted$")["tables"] == [divided]
    second = start("compact", *every)
    assert str(first.process.pid) in second.wait_for("standing by")["message"]
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    second.wait_for("this process has taken over the upkeep")
    assert second.end(signal.SIGTERM) == 0


@pytest.mark.long
def test_a_terminated_service_releases_the_election(divided: str, start: Start) -> None:
    first = start("sanitize", "--every", "3600")
    assert first.wait_for("^sanitized$")["left"] >= 0
    second = start("sanitize", "--every", "3600")
    second.wait_for("standing by")
    assert first.end(signal.SIGTERM) == 0
    second.wait_for("^sanitized$")
    assert second.end(signal.SIGINT) == 0


@pytest.mark.long
def test_compaction_and_sanitizing_have_separate_elections(divided: str, start: Start) -> None:
    one, other = start("compact", "--table", divided, "--every", "3600"), start("sanitize", "--every", "3600")
    one.wait_for("^compacted$")
    other.wait_for("^sanitized$")


@pytest.mark.long
def test_a_failing_table_does_not_block_the_others(database: Database, divided: str, start: Start) -> None:
    """HBase lost the other's physical table; its entry is still there."""
    lost = f"{divided}_a"
    database.create_table(lost, families=["f"])
    database._core.deployment.store.drop_table(lost)
    service = start("compact", "--table", lost, "--table", divided, "--every", "3600")
    said = service.wait_for("^compacted$")
    assert divided in said["tables"]
    database.drop_table(lost)


def test_release_ends_only_its_own_election(
    hbase: HBaseServer, table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session ended unnoticed, between its last look and the end of its turn, and another one's turn began."""
    stop, session = threading.Event(), ZooKeeper(hbase.quorum)
    one, other, third = (
        UpkeepTurn(each, table_name) for each in (session, ZooKeeper(hbase.quorum), ZooKeeper(hbase.quorum))
    )
    assert one.acquire(stop)
    monkeypatch.setattr(one, "is_held", lambda: True)
    same = KazooClient(hbase.quorum, client_id=session.session().client_id)
    same.start()
    same.stop()
    same.close()
    assert other.acquire(stop)
    one.release()
    assert other.is_held()
    other.release()
    assert third.acquire(stop)
    third.release()
