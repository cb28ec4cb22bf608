"""Upkeep without Spark: what it drops, what it keeps, and what it says of what holds it back."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from upkeep_parts import publish

import pyomid
import pyomid.aio
from pyomid.cli import main
from pyomid.cli.status import as_lines, page
from pyomid.config import Settings
from pyomid.database.database import Database
from pyomid.database.upkeep.jobs import Partition, held_back, partitions_of
from pyomid.errors import UnknownTable
from pyomid.omid.tso.local import LocalTso
from pyomid.ports import Deployment
from pyomid.protocol.hashing import table_id
from pyomid.protocol.timestamps import iso
from pyomid.types import NOT_FOUND, Status, TableInfo
from waiting import let_compactions_count, until

pytestmark = pytest.mark.fast

BALANCE = b"f:balance"


def raise_counter(db: Database, times: int) -> None:
    for number in range(times):
        with db.begin() as tx:
            tx.table("t").put(b"counter", {BALANCE: b"%d" % number})
    assert db.drain(10)


def versions(db: Database) -> int:
    (cells,) = db._core.deployment.store.read_rows("t", [b"counter"])
    return len(cells)


def test_old_versions_go_and_no_answer_changes(memory_db: Database) -> None:
    raise_counter(memory_db, 20)
    old = memory_db.begin()
    raise_counter(memory_db, 20)
    publish(memory_db, old.start_ts - 1)
    report = memory_db.compact("t")
    assert (report.cells_dropped, versions(memory_db)) == (19, 21)
    assert report.cells_above == 20
    assert old.table("t").get(b"counter") == {BALANCE: b"19"}, "the snapshot that holds W reads what it read"
    with memory_db.begin() as tx:
        assert tx.table("t").get(b"counter") == {BALANCE: b"19"}
    assert memory_db.compact("t").cells_dropped == 0, "a second run changes nothing more"
    assert memory_db.verify().ok


@pytest.mark.parametrize(("what", "module"), [("compact", "jobs"), ("verify", "verification")])
def test_a_table_dropped_meanwhile_ends_no_upkeep_of_all(
    memory_db: Database, monkeypatch: pytest.MonkeyPatch, what: str, module: str
) -> None:
    """One that was named is said to be unknown."""
    upkeep = getattr(memory_db, what)

    def dropped_first(deployment: Deployment, info: TableInfo) -> list[Partition]:
        found = partitions_of(deployment, info)
        if info.name == "b":
            memory_db.drop_table("b")
        return found

    monkeypatch.setattr(f"pyomid.database.upkeep.{module}.partitions_of", dropped_first)
    for name in ("b", "z"):
        memory_db.create_table(name, families=["f"])
    assert "z" in {table.table for table in upkeep().tables}
    memory_db.create_table("b", families=["f"])
    with pytest.raises(UnknownTable):
        upkeep(["b", "z"])


def push_watermark_past(db: Database, start_ts: int) -> None:
    """Other commits push everything older out of the conflict map."""
    while db._core.deployment.leader_state.read_watermarks()[0] < start_ts:
        with db.begin() as tx:
            for row in range(8):
                tx.table("t").put(b"%d-%d" % (tx.start_ts, row), {BALANCE: b"1"})


def test_entries_go_once_a_compaction_counts(memory_url: str) -> None:
    with pyomid.connect(memory_url + "?commitRetrySeconds=60&conflictMapEntries=64") as db:
        db.create_table("t", families=["f"])
        entry = db.begin().start_ts
        db._core.deployment.commit_table.put([(entry, entry + 50)])
        push_watermark_past(db, entry)
        first = str(db.sanitize())
        assert "the horizon did not move" in first
        assert "held back by t: compacted to 0" in first
        assert "; compact it" in first
        db.compact()
        young = db.sanitize()
        assert 0 < young.counts_in_s["t"] <= 60
        assert "sanitize again in" in str(young)
        let_compactions_count(db._core.deployment.catalog)
        done = db.sanitize()
        assert entry < done.horizon <= done.watermark, "W may have moved on since it was compacted"
        assert db._core.deployment.commit_table.lookup([entry]) == [NOT_FOUND]


def test_no_compaction_counts_while_a_client_repeats(memory_url: str) -> None:
    """Another client announced to repeat commits for longer than this one does."""
    with pyomid.connect(memory_url + "?commitRetrySeconds=0.1&conflictMapEntries=64") as db:
        db.create_table("t", families=["f"])
        push_watermark_past(db, db.begin().start_ts)
        db.compact()
        let_compactions_count(db._core.deployment.catalog, 30)
        tso = db._core.deployment.tso
        assert isinstance(tso, LocalTso)
        tso.machine.note_longest("commit_retry_ms_max", 60_000)
        assert 0 < db.sanitize().counts_in_s["t"] <= 30


def test_reports_name_what_holds_w_back() -> None:
    leased = Status(0, 2000, 999, 999, 0, leases=(1050, 1000))
    assert held_back(leased, Settings()) == (
        "W 999 stays below the lease on start timestamp 1000 (and 1 others); run again when that lease has ended: when "
        "its owner ends, or 300 s after its owner died",
    )
    (pending,) = held_back(Status(0, 2000, 999, 999, 0, pending=(1000,)), Settings())
    assert "the large commit of start timestamp 1000" in pending
    (aged,) = held_back(Status(0, 2000, 500, 500, 0, leases=(1000,)), Settings())
    assert "follows the oldest transaction that may be live" in aged
    assert "(600 s)" in aged


def test_reports_name_the_time_of_what_holds_w_back(memory_db: Database) -> None:
    """A person compares it with a clock, not with other numbers."""
    with memory_db.begin(lease=True) as leased:
        until(
            lambda: memory_db.begin().rollback() or memory_db.status().tso.watermark == leased.start_ts - 1, "W stays"
        )
        status = memory_db.status()
        shown = f"{leased.start_ts} ({iso(leased.start_ts)})"
        assert any(
            f"the lease on start timestamp {shown};" in line for line in held_back(status.tso, memory_db.settings)
        )
        assert any(line.startswith("leases") and shown in line for line in as_lines(status))
    after = replace(status.tso, last_ts=status.tso.watermark + 1_250_000_000)
    assert f"{'W behind the newest start':<28} {'1.2':>12} s" in list(page(status.tso, after, 2.0))


def test_asyncio_and_command_line_do_the_same(memory_db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    raise_counter(memory_db, 5)
    publish(memory_db, memory_db.begin().start_ts - 50)

    async def with_asyncio() -> tuple[int, bool, int]:
        async with await pyomid.aio.connect(memory_db.url) as db:
            return (await db.compact()).cells_dropped, (await db.verify("t")).ok, (await db.sanitize()).horizon

    assert asyncio.run(with_asyncio()) == (4, True, 0)
    assert main(["compact", memory_db.url, "--table", "t"]) == 0
    assert "dropped" in capsys.readouterr().out
    assert main(["sanitize", memory_db.url, "--json"]) == 0
    assert "t" in json.loads(capsys.readouterr().out)["too_young"]
    assert main(["verify", memory_db.url]) == 0
    assert re.search(r"\nok: no violation in \d+ cells? of 1 table\n$", capsys.readouterr().out)
    start_ts = memory_db.begin().start_ts
    memory_db._core.deployment.commit_table.put([(start_ts, start_ts - 50)])
    assert main(["verify", memory_db.url]) == 1
    assert re.search(r"is not above it\nNOT ok: 1 violation, 0 torn commits\n$", capsys.readouterr().out)


def test_verify_counts_the_branch_records_of_a_folder(tmp_path: Path) -> None:
    with pyomid.connect(f"omid://{tmp_path}/folder", flush_bytes=1_000) as db:
        db.create_table("t", families=["f"])
        with db.begin() as tx:
            for number in range(30):
                tx.table("t").put(b"%d" % number, {b"f:a": bytes(100) + b"1"})
        report = db.verify()
    assert report.commit_table_entries > 0
    line = str(report).splitlines()[-2]
    assert line.startswith(f"branch records: {report.commit_table_entries} committed, 0 dead; W ")
    assert "commit table" not in str(report)
    assert "lease" not in line


def test_top_shows_what_happened_between_two_looks(capsys: pytest.CaptureFixture[str]) -> None:
    before = Status(50, 1000, 900, 900, 0, counters={"commits": 100, "aborts_conflict": 1})
    now = Status(50, 2000, 1900, 1900, 0, leases=(1950,), counters={"commits": 300, "aborts_conflict": 5})
    lines = list(page(before, now, 2.0))
    assert f"{'committed':<28} {'100.0':>12} a second" in lines
    assert f"{'aborted: conflict':<28} {'2.0':>12} a second, 5 in all" in lines
    assert f"{'W behind the newest start':<28} {'100':>12} timestamps" in lines
    assert f"{'W is held by':<28} {'nobody':>12}" in lines
    open_at = replace(now, held_back_by="process 7 on host: start 1901 or a later one, for 30 s")
    assert f"{'W is held by':<28} the transactions open at {open_at.held_back_by}" in list(page(before, open_at, 2.0))
    leased = replace(open_at, leases=(1901, 1950))
    assert f"{'W is held by':<28} the lease on start timestamp 1901 (and 1 others)" in list(page(before, leased, 2.0))
    another = Status(2050, 2100, 2050, 2050, 0, counters={"commits": 30})
    assert f"{'committed':<28} {'15.0':>12} a second" in list(page(now, another, 2.0)), "of a new TSO"
    assert main(["top", "omid-memory:top", "--every", "0.01", "--pages", "2"]) == 0
    assert capsys.readouterr().out.count("omid-memory:top") == 2


def test_top_and_status_tell_conflicts_by_table(memory_db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    """Of transactions that wrote or claimed the table; what it was called is looked up by its id."""
    memory_db.create_table("calm", ["f"])
    for table, among in (("t", ()), ("t", ()), ("calm", ("t",))):
        one, other = memory_db.begin(), memory_db.begin()
        for tx in (one, other):
            tx.table(table).put(b"k", {b"f:n": b"1"})
        for also in among:
            other.table(also).put(b"other", {b"f:n": b"1"})
        one.commit()
        with pytest.raises(pyomid.ConflictError):
            other.commit()
    assert memory_db.status().tso.conflicts_by_table == {table_id(b"t"): 3, table_id(b"calm"): 1}
    assert main(["top", memory_db.url, "--every", "0.01", "--pages", "1"]) == 0
    assert main(["status", memory_db.url]) == 0
    said = capsys.readouterr().out
    assert f"{'conflicts: t':<28} {'0.0':>12} a second, 3 in all" in said
    assert "Transactions conflicted 1 time in table calm." in said


def test_progress_counts_each_tables_rows(memory_db: Database, tmp_path: Path) -> None:
    with memory_db.begin() as tx:
        for number in range(12):
            tx.table("t").put(b"%d" % number, {b"f:n": b"1"})
    memory_db.export_parquet(tmp_path / "files")
    calls: list[tuple[str, int, int | None]] = []

    def progress(what: str, done: int, total: int | None) -> None:
        calls.append((what, done, total))

    for call, total in (
        (memory_db.verify, None),
        (memory_db.compact, None),
        (partial(memory_db.import_parquet, tmp_path / "files", over=True), 12),
    ):
        calls.clear()
        call(progress=progress)  # type: ignore[operator]
        assert calls[-1] == ("t", 12, total)
