"""Upkeep that nobody asks for: when a pass is worth it, what it takes, and what is left where it is interrupted."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from client_faults import parts_with
from upkeep_parts import failing_merges, folder_upkeep, publish

import pyomid
from pyomid.database.database import Database
from pyomid.database.driver import Run
from pyomid.database.upkeep.folder import (
    EXPIRED_EVERY_S,
    GAIN_MIN,
    PATIENCE_MAX,
    SANITIZE_EVERY_S,
    STATE_FILE,
    FolderUpkeep,
    Gain,
    Part,
)
from pyomid.database.upkeep.jobs import Partition
from pyomid.database.upkeep.service import Stopped
from pyomid.errors import Corruption, Misuse, OmidError, Unavailable
from pyomid.protocol.compaction import RegionCleaned
from pyomid.protocol.hashing import table_id
from pyomid.types import CommitRequest, ConflictLevel, KeyRange, TableEntry, TableInfo, TableState
from waiting import until

VALUE = b"f:n"
ROWS = 10


def test_only_versions_that_w_has_passed_are_a_gain() -> None:
    gain = Gain()
    for newest_ts, written in ((100, 10), (200, 30), (300, 60)):
        gain.note(written, newest_ts)
    assert [gain.of(watermark) for watermark in (50, 100, 250, 900)] == [0, 10, 30, 60]
    gain.passed(250)
    assert [gain.of(watermark) for watermark in (250, 900)] == [0, 30]
    for number in range(10_000):
        gain.note(60 + number, 1_000 + number)
    assert len(gain._samples) <= 513, "W may stand for days"
    assert gain.of(100_000) == pytest.approx(10_029, rel=0.01)


def test_a_part_is_due_by_its_size_and_by_what_it_gave() -> None:
    part, patience = Part(), []
    assert not part.is_due(GAIN_MIN - 1)
    assert part.is_due(GAIN_MIN)
    for _ in range(8):
        part.note(RegionCleaned("t", KeyRange(), 1, rows=100_000, cells=100_000, cells_dropped=1), 5_000)
        patience.append(part.patience)
    assert patience == [2, 4, 8, 16, 32, 64, PATIENCE_MAX, PATIENCE_MAX]
    part.note(RegionCleaned("t", KeyRange(), 1, rows=100_000, cells=100_000, cells_dropped=15_000), 5_000)
    assert part.patience == PATIENCE_MAX
    for _ in range(8):
        part.note(RegionCleaned("t", KeyRange(), 1, rows=100_000, cells=100_000, cells_dropped=50_000), 5_000)
    assert not part.is_due(24_999)
    assert part.is_due(25_000)


@pytest.mark.fast
@pytest.mark.parametrize("table", ["t", "of nobody"])
def test_upkeep_asks_the_tso_only_for_what_moves(
    raised: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    """A connection for what it asked before, or knows, would keep the process of an idle folder for ever."""
    monkeypatch.setattr("pyomid.database.upkeep.folder.ENTRIES_MIN", 0)
    tso, asked = raised._core.deployment.tso, []

    class Asked:
        def __getattr__(self, name: str) -> object:
            if name != "close":
                asked.append(name)
            return getattr(tso, name)

    begun_start_ts = tso.begin()
    start_ts = begun_start_ts.start_ts  # of a client that dies before it completes its commit
    assert tso.commit(CommitRequest(start_ts, cell_ids=(1,), table_ids=(table_id(table.encode()),))).committed
    raised.compact()
    clock = [0.0]
    upkeep = upkeep_of(raised, tmp_path, clock=clock)
    upkeep._open = lambda: replace(raised._core.deployment, closers=(), tso=Asked())  # type: ignore[arg-type]
    upkeep._timestamps = lambda: (0, 0)  # no pass: it would record a later W, and H would move again
    asked_by_look = []
    for _ in range(5):
        clock[0] += SANITIZE_EVERY_S
        upkeep.round()
        asked_by_look.append(tuple(asked))
        asked.clear()
    assert asked_by_look[0] == (("advance_horizon",) if table == "t" else ())
    assert asked_by_look[-1] == ()


MAY_HAPPEN = (pyomid.OutcomeUnknown, pyomid.ConflictError, pyomid.SnapshotTooOld, pyomid.Unavailable)
"""To a transaction whose TSO is killed."""


AHEAD = b'{"judged": 1000000, "parts": [["t", "", 10, 1000000, 64]]}'
"""What was said of a folder before an older copy of it was put in its place."""

NONSENSE = [
    b"",
    b"{",
    b"[1]",
    b'{"judged": "x"}',
    b'{"judged": 3, "parts": [[1]]}',
    b'{"judged": 1e999, "parts": []}',
    b'{"judged": 3, "parts": [["t", "", Infinity, 3, 1]]}',
    b'{"judged": 3, "parts": [["t", "", 1e18, 3, 1]]}',
    b'{"judged": 3, "parts": [["t", "", -9, 1e18, -9]]}',
    b"[" * 200_000,
]


class Rests(threading.Event):
    """Does not wait; remembers for how long it should have, and stops after so many."""

    def __init__(self, clock: list[float], stops_after: int | None = None) -> None:
        super().__init__()
        self.waits: list[float] = []
        self._clock = clock
        self._stops_after = stops_after

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0.0)
        self._clock[0] += timeout or 0.0
        return self._stops_after is not None and len(self.waits) > self._stops_after


@pytest.fixture
def raised(memory_url: str) -> Iterator[Database]:
    """Each row was written many times, and W has passed all of it."""
    with pyomid.connect(memory_url) as db:
        for table in ("t", "still"):
            db.create_table(table, families=["f"])
        for number in range(GAIN_MIN // ROWS + 2):
            with db.begin() as tx:
                for row in range(ROWS):
                    tx.table("t").put(b"%d" % row, {VALUE: b"%d" % number})
        assert db.drain(10)
        publish(db)
        yield db


def stored(db: Database) -> int:
    return sum(len(batch.rec_version) for batch in db._core.deployment.store.scan("t", KeyRange()))


def upkeep_of(db: Database, folder: Path, share: float = 0.1, clock: list[float] | None = None) -> FolderUpkeep:
    now = clock or [0.0]

    def tick() -> float:
        now[0] += 0.001
        return now[0]

    upkeep = folder_upkeep(db, folder, records=lambda: stored(db), share=share, clock=tick)
    watermark, _ = db._core.deployment.leader_state.read_watermarks()
    upkeep._timestamps = lambda: (watermark, watermark)
    return upkeep


def let_w_pass_all(upkeep: FolderUpkeep, db: Database) -> None:
    watermark = publish(db)
    upkeep._timestamps = lambda: (watermark, watermark)


@pytest.mark.fast
def test_a_pass_keeps_one_version_of_each_row(raised: Database, tmp_path: Path) -> None:
    upkeep = upkeep_of(raised, tmp_path)
    upkeep.round()
    assert (stored(raised), upkeep.report.passes) == (ROWS, 1)
    upkeep.round()
    assert upkeep.report.passes == 1, "there is nothing to gain any more"
    assert raised.verify().ok


@pytest.mark.fast
def test_between_batches_it_rests_by_its_share(
    raised: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyomid.database.upkeep.folder.BATCH_RECORDS", 1)
    clock = [0.0]
    upkeep = upkeep_of(raised, tmp_path, share=0.1, clock=clock)
    upkeep._stop = rests = Rests(clock)
    upkeep.round()
    assert len(rests.waits) > ROWS
    assert sum(rests.waits) >= 9 * upkeep.report.busy_seconds > 0


@pytest.mark.fast
@pytest.mark.parametrize("batches", [0, 1, 5, 10])
def test_a_pass_that_was_stopped_is_done_by_the_next_process(
    raised: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int
) -> None:
    monkeypatch.setattr("pyomid.database.upkeep.folder.BATCH_RECORDS", 1)
    clock = [0.0]
    upkeep = upkeep_of(raised, tmp_path, clock=clock)
    upkeep._stop = Rests(clock, stops_after=batches)
    with pytest.raises(Stopped):
        upkeep.round()
    assert stored(raised) > ROWS
    assert not raised._core.deployment.catalog.region_watermarks("t"), (
        "a region that is half clean is recorded as clean"
    )
    upkeep = upkeep_of(raised, tmp_path)
    upkeep._is_whole = True  # what is left may be too little to be worth it
    upkeep.round()
    assert stored(raised) == ROWS
    assert raised.verify().ok


@pytest.mark.fast
def test_the_next_process_cleans_what_a_stopped_pass_left(
    raised: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not from the first part on: a folder that is used for a minute now and then is cleaned at last."""
    monkeypatch.setattr("pyomid.database.upkeep.folder.BATCH_RECORDS", 1)
    clock = [0.0]
    upkeep = upkeep_of(raised, tmp_path, clock=clock)
    upkeep._stop = Rests(clock, stops_after=1)
    with pytest.raises(Stopped):
        upkeep.round()
    assert raised._core.deployment.catalog.region_watermarks("still")
    again, cleaned = upkeep_of(raised, tmp_path), []
    compact = again._compact

    def noted(run: Run, partition: Partition) -> RegionCleaned:
        cleaned.append(partition.table)
        return compact(run, partition)

    again._compact = noted  # type: ignore[method-assign]
    again.round()
    assert (cleaned, stored(raised)) == (["t"], ROWS)


@pytest.mark.fast
@pytest.mark.parametrize("said", [None, AHEAD, *NONSENSE], ids=range(2 + len(NONSENSE)))
def test_the_next_process_goes_on_from_what_was_said(raised: Database, tmp_path: Path, said: bytes | None) -> None:
    """Nonsense costs a pass, and nothing else."""
    upkeep_of(raised, tmp_path).round()
    if said is not None:
        (tmp_path / STATE_FILE).write_bytes(said)
    again = upkeep_of(raised, tmp_path)
    for _ in range(GAIN_MIN // ROWS + 1):
        with raised.begin() as tx:
            for row in range(ROWS):
                tx.table("t").put(b"%d" % row, {VALUE: b"more"})
    assert raised.drain(10)
    let_w_pass_all(again, raised)
    again.round()
    assert stored(raised) == ROWS


@pytest.mark.fast
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("elsewhere", path)])
def test_what_is_no_file_of_upkeep_does_not_stop_it(
    raised: Database, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / STATE_FILE)
    upkeep_of(raised, tmp_path).round()
    assert stored(raised) == ROWS


@pytest.mark.fast
def test_a_dropped_table_puts_no_pass_off(raised: Database, tmp_path: Path) -> None:
    """Its records are not there any more; what is written after that counts from the first version on."""
    records = [stored(raised) + 100_000]
    upkeep = upkeep_of(raised, tmp_path)
    upkeep._records = lambda: records[0]
    upkeep.round()
    assert stored(raised) == ROWS
    for number in range(2):
        records[0] = ROWS + number * GAIN_MIN
        let_w_pass_all(upkeep, raised)
        upkeep.round()
        assert upkeep.report.passes == 1 + number


@pytest.mark.fast
@pytest.mark.parametrize("error", [Corruption("an entry is malformed"), Unavailable("the disk is full")])
def test_sanitizing_that_fails_each_time_does_not_block_compaction(
    raised: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture, error: OmidError
) -> None:
    def malformed(*_: object) -> None:
        raise error

    clock = [0.0]
    upkeep = upkeep_of(raised, tmp_path, clock=clock)
    parts = parts_with(raised._core.deployment, commit_table={"entries": malformed})
    upkeep._open = lambda: replace(parts, closers=())
    for _ in range(3):
        clock[0] += SANITIZE_EVERY_S  # the wait after an error is as long
        with suppress(Unavailable):
            upkeep.round()
    assert stored(raised) == ROWS
    assert caplog.text.count("sanitizing failed") == (0 if isinstance(error, Unavailable) else 1)


@pytest.mark.fast
def test_a_folders_upkeep_ends_what_dead_clients_began_and_names_the_rest_once(
    raised: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A table that is created within a minute is not worth a word."""
    caplog.set_level(logging.INFO)
    catalog, clock = raised._core.deployment.catalog, [0.0]
    for table, begun in (("still", {"is_changing": True}), ("t", {"next_level": ConflictLevel.ROW})):
        entry = catalog.entry(table)
        assert entry is not None
        assert catalog.change_entry(entry, replace(entry, info=replace(entry.info, **begun), nonce="begun"))
    assert catalog.change_entry(None, TableEntry(TableInfo("new", (b"f",)), TableState.CREATING, "begun"))
    upkeep = upkeep_of(raised, tmp_path, clock=clock)
    for named in (0, 1, 1):
        clock[0] += SANITIZE_EVERY_S
        upkeep.round()
        assert caplog.text.count("table 'new' is being created") == named
    assert not raised.table_info("still").is_changing
    assert raised.table_info("t").id_levels == (ConflictLevel.ROW,)


@pytest.mark.fast
def test_a_failing_table_waits_as_long_as_after_an_error(raised: Database, tmp_path: Path) -> None:
    """However many versions are written meanwhile: each attempt reads the table as far as the error."""
    tried, mend = failing_merges(raised, "still", Misuse("permission denied"))
    clock, records = [0.0], [stored(raised)]
    upkeep = upkeep_of(raised, tmp_path, clock=clock)
    upkeep._records = lambda: records[0]

    def round_after_writes() -> None:
        tried.clear()
        records[0] += 10 * GAIN_MIN
        let_w_pass_all(upkeep, raised)
        upkeep.round()

    round_after_writes()
    assert tried == ["still", "t"]
    round_after_writes()
    assert tried == ["t"]
    mend()
    clock[0] += upkeep.after_error_s
    round_after_writes()
    assert tried == ["still", "t"]


@pytest.mark.fast
def test_a_table_at_which_a_pass_breaks_off_comes_last_in_the_next_one(raised: Database, tmp_path: Path) -> None:
    """The disk is full: compaction of another table may free pages."""
    tried, _ = failing_merges(raised, "still", Unavailable("the disk is full"))
    upkeep = upkeep_of(raised, tmp_path)
    for _ in range(3):
        with pytest.raises(Unavailable):
            upkeep.round()
    assert tried == ["still", "t", "still", "still"]
    assert stored(raised) == ROWS


@pytest.mark.fast
def test_expired_values_whose_pass_failed_are_dropped_later(raised: Database, tmp_path: Path) -> None:
    """Without a further commit."""
    raised.create_table("expires", families=["f"], ttl_seconds=1)
    with raised.begin() as tx:
        tx.table("expires").put(b"r", {VALUE: b"v"})
    clock = [0.0]
    upkeep = upkeep_of(raised, tmp_path, clock=clock)
    upkeep._commits = lambda: 7
    let_w_pass_all(upkeep, raised)
    upkeep.round()
    tried, mend = failing_merges(raised, "expires", Misuse("permission denied"))

    def tries() -> int:
        let_w_pass_all(upkeep, raised)
        clock[0] += EXPIRED_EVERY_S
        upkeep.round()
        return len(tried)

    until(tries, "what has expired is not looked for")
    mend()
    clock[0] += upkeep.after_error_s
    tried.clear()
    until(tries, "the table is not tried again")
    until(lambda: tries() and not raised._core.deployment.store.read_rows("expires", [b"r"])[0], "the value stays")


STAYS_OPEN = "import sys, time, pyomid; db = pyomid.connect(sys.argv[1]); print('open', flush=True); time.sleep(120)"


@pytest.mark.process
@pytest.mark.timeout(120)
def test_a_folder_is_cleaned_though_the_process_that_does_it_is_killed(tmp_path: Path) -> None:
    """No command runs. The next process goes on; readers see the last value and nothing else."""
    url = f"omid://{tmp_path}/db?maxTransactionAgeSeconds=0.2&upkeepShare=1"
    killed_at: int | None = None
    first = subprocess.Popen([sys.executable, "-c", STAYS_OPEN, url], stdout=subprocess.PIPE)
    assert first.stdout is not None
    assert first.stdout.readline()
    with pyomid.connect(url) as db:
        db.create_table("t", families=["f"])
        number, acknowledged = 0, 0
        while killed_at is None or stored(db) > ROWS * (number - killed_at) // 2:
            number += 1
            try:
                with db.begin() as tx:
                    for row in range(ROWS):
                        tx.table("t").put(b"%d" % row, {VALUE: b"%d" % number})
            except MAY_HAPPEN:
                pass  # it may have committed all the same
            else:
                acknowledged = number
            with suppress(*MAY_HAPPEN), db.begin() as tx:
                seen = {row[VALUE] for _, row in tx.table("t").scan()}
                assert len(seen) <= 1, "a transaction is seen by half"
                assert acknowledged <= max(map(int, seen), default=0) <= number
            if number >= 50 and killed_at is None:
                first.kill()
                first.wait()
                killed_at = number
        assert db.drain(20)
        assert db.verify().ok
