"""A leader that is stopped with a write on its way, past its lease: another leads, the write lands, the old one wakes.

Real processes. Either the network holds the old leader's flush back (`HeldLine`) and the leader is stopped (SIGSTOP)
beside it; or the leader freezes at a named crash point between two durable writes, and has the second one before it
when it goes on (SIGCONT). It must change nothing, and end without an answer (T4, T5, T6; protocol.md, Leadership).
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hbase_processes import TsoProcess, leading_tso
from held_line import HeldLine

import pyomid
from conformance import remove_entry
from portions import first
from pyomid.cli.hbase import HBaseServer
from pyomid.database.database import Database
from pyomid.errors import OmidError, SnapshotTooOld
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.layout import COMMIT_FAMILY, COMMIT_QUALIFIER, COMMIT_TABLE, MARK_QUALIFIER, commit_row
from pyomid.omid.hbase.rpc.requests import RowGet
from pyomid.omid.tso.leadership import DOUBT_EXIT_CODE
from pyomid.protocol.hashing import cell_id, table_id
from pyomid.types import NOT_FOUND, SEALED, Column, CommitReply, CommitRequest, RowWrite

pytestmark = pytest.mark.timeout(420)

LEASE_S = 6.0
OLD_LEASE_S = 60.0
"""Of a leader that freezes at a crash point: when it wakes, its own clock lets it go on. Only the leader state is left
to fence it."""
PATIENCE_S = 300.0
"""Of the writer: it waits for the leader it asked, and asks the next one only when that one's connection breaks."""


READER_S = 1.0
"""One try of the reader, which knew the old leader: only then does it look for the next one."""


@pytest.fixture(autouse=True)
def nobody_looks_who_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a Java client: only so is the old leader's answer, should it give one, heard. How clients that look go to the
    next leader is `test_leadership`'s."""
    monkeypatch.setattr("pyomid.omid.client.blocking.LOOK_S", PATIENCE_S)


Q = Column(b"f", b"q")
ROWS = (b"a", b"b", b"c")


class Call:
    """A request under way in a thread of its own; `told` is what its caller was told in the end."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._answer: object = None
        self._thread = threading.Thread(target=self._run, args=(call,), daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def told(self) -> object:
        self._thread.join()
        return self._answer

    def _run(self, call: Callable[[], object]) -> None:
        try:
            self._answer = call()
        except OmidError as error:
            self._answer = error


@dataclass
class Scene:
    """An old leader and clients that knew it. The reader's life spans both epochs."""

    url: str
    folder: Path
    table: str
    old: TsoProcess
    writer: Database
    reader: Database

    def visible(self, database: Database | None = None) -> set[bytes]:
        """Rows that a new snapshot sees."""
        with (database or self.reader).begin() as tx:
            return {row for row, _ in tx.table(self.table).scan()}

    def visible_to_a_newcomer(self) -> set[bytes]:
        with pyomid.connect(self.url) as newcomer:
            return self.visible(newcomer)

    def write(self, version: int, *rows: bytes) -> None:
        writes = [RowWrite(row, ((Q, b"v"),)) for row in rows]
        self.writer._core.deployment.store.write_cells(self.table, version, writes)

    def request(self, start_ts: int, *rows: bytes, branches: tuple[int, ...] = ()) -> CommitRequest:
        name = self.table.encode()
        ids = tuple(cell_id(name, row, Q.family, Q.qualifier) for row in rows)
        return CommitRequest(start_ts, ids, (table_id(name),), branches)

    def commit(self, request: CommitRequest) -> Call:
        return Call(lambda: self.writer._core.deployment.tso.commit(request))

    def stop_the_old_one(self) -> None:
        """SIGSTOP, as a machine that swaps or is suspended."""
        self.old.send(signal.SIGSTOP)

    @contextmanager
    def another_leads(self) -> Iterator[TsoProcess]:
        """Whoever waited takes over, once the old one's lease has run out."""
        epoch = self.writer._core.deployment.leader_state.read().epoch
        with leading_tso(self.url, self.folder / "new.log", lease_s=LEASE_S) as new:
            assert self.writer._core.deployment.leader_state.read().epoch > epoch
            yield new

    def wake_the_old_one(self) -> None:
        """It sends what it held back, finds itself deposed, and ends as one in doubt does."""
        self.old.send(signal.SIGCONT)
        assert self.old.process.wait(timeout=120.0) == DOUBT_EXIT_CODE


@contextmanager
def scene_of(url: str, folder: Path, table: str, old: TsoProcess) -> Iterator[Scene]:
    """A writer that waits for the leader it asked, and a reader that has read before."""
    old.wait_until_leading()
    patient = pyomid.connect(url, requestSeconds=PATIENCE_S, commitRetrySeconds=PATIENCE_S)
    knew_the_old = pyomid.connect(url, requestSeconds=READER_S, commitRetrySeconds=PATIENCE_S)
    with patient as writer, knew_the_old as reader:
        writer.create_table(table, ["f"])
        with reader.begin() as tx:
            assert tx.table(table).get(b"a") is None
        yield Scene(url, folder, table, old, writer, reader)
        writer._core.deployment.store.drop_table(table)
        remove_entry(writer._core.deployment.catalog, table)


@pytest.fixture
def line(hbase: HBaseServer) -> Iterator[HeldLine]:
    with HeldLine(hbase.ports.region_server) as made:
        yield made


@pytest.fixture
def scene(url: str, tmp_path: Path, table_name: str, line: HeldLine) -> Iterator[Scene]:
    """Its leader speaks to HBase through `line`."""
    with (
        TsoProcess(url, tmp_path / "old.log", lease_s=LEASE_S, python=line.python) as old,
        scene_of(url, tmp_path, table_name, old) as made,
    ):
        yield made


@pytest.fixture
def frozen_scene(request: pytest.FixtureRequest, url: str, tmp_path: Path, table_name: str) -> Iterator[Scene]:
    """Its leader freezes at the crash point that is the parameter."""
    with (
        TsoProcess(url, tmp_path / "old.log", lease_s=OLD_LEASE_S, stops_at=request.param) as old,
        scene_of(url, tmp_path, table_name, old) as made,
    ):
        yield made


def entry_cells(cluster: Cluster, start_ts: int) -> set[bytes]:
    """What lies in the commit table of this start, a mark and an entry beside it too."""
    (cells,) = cluster.rows(COMMIT_TABLE, [RowGet(commit_row(start_ts))])
    assert isinstance(cells, list)
    return {cell.qualifier for cell in cells}


def test_a_late_flush_of_a_sealed_start_has_no_effect(scene: Scene, line: HeldLine, cluster: Cluster) -> None:
    """T5, T6: the reader of the new epoch seals the start; the entry lands behind the mark and loses to it."""
    start_ts, commit = commit_with_its_flush_held(scene, line)
    with scene.another_leads():
        assert scene.visible() == set()
        assert entry_cells(cluster, start_ts) == {MARK_QUALIFIER}
        line.release()
        wait_until_landed(line, cluster, start_ts, {MARK_QUALIFIER, COMMIT_QUALIFIER})
        assert scene.visible() == set()
        assert commit.is_open, "the old leader answered"
        scene.wake_the_old_one()
        told = commit.told()
        assert isinstance(told, CommitReply)
        assert not told.committed
        assert scene.visible() == scene.visible_to_a_newcomer() == set()


@pytest.mark.long
def test_a_late_flush_of_an_unsealed_start_commits_for_all_readers(
    scene: Scene, line: HeldLine, cluster: Cluster
) -> None:
    """T5: nobody looked while it was held back. The old leader says nothing; the new one tells what readers see."""
    start_ts, commit = commit_with_its_flush_held(scene, line)
    with scene.another_leads():
        line.release()
        wait_until_landed(line, cluster, start_ts, {COMMIT_QUALIFIER})
        assert commit.is_open, "the old leader answered"
        scene.wake_the_old_one()
        told = commit.told()
        assert isinstance(told, CommitReply)
        assert told.committed
        assert scene.visible() == scene.visible_to_a_newcomer() == {b"a", b"b"}
        assert scene.writer._core.deployment.commit_table.lookup([start_ts]) == [told.commit_ts]


def commit_with_its_flush_held(scene: Scene, line: HeldLine) -> tuple[int, Call]:
    """Decided, its entry on the line, and the leader stopped."""
    begun_first = scene.writer._core.deployment.tso.begin()
    first = begun_first.start_ts
    scene.writer._core.deployment.tso.commit(
        scene.request(first, b"z")
    )  # so that the leader knows the table, and its way to HBase
    begun_start_ts = scene.writer._core.deployment.tso.begin()
    start_ts = begun_start_ts.start_ts
    scene.write(start_ts, b"a", b"b")
    line.hold(entry_of(start_ts))
    commit = scene.commit(scene.request(start_ts, b"a", b"b"))
    line.wait_until_held(entry_of(start_ts))
    scene.stop_the_old_one()
    return start_ts, commit


def entry_of(start_ts: int) -> bytes:
    """As the entry's put has it: row, column, version. Who looks for the row's region names the row as well."""
    column = bytes((len(COMMIT_FAMILY),)) + COMMIT_FAMILY + COMMIT_QUALIFIER
    return commit_row(start_ts) + column + start_ts.to_bytes(8, "big")


def wait_until_landed(line: HeldLine, cluster: Cluster, start_ts: int, expected: set[bytes]) -> None:
    end_s = time.monotonic() + 120.0
    while (found := entry_cells(cluster, start_ts)) != expected:
        assert time.monotonic() < end_s, f"never landed: {found} of what was sent: {line.released}"
        time.sleep(0.02)


@pytest.mark.long
@pytest.mark.parametrize("frozen_scene", ["tso.flush.after"], indirect=True)
def test_an_entry_of_the_old_epoch_can_no_longer_be_sealed(frozen_scene: Scene) -> None:
    """T5: durable before the new epoch, not yet answered: committed, whoever tells it."""
    scene = frozen_scene
    begun_start_ts = scene.writer._core.deployment.tso.begin()
    start_ts = begun_start_ts.start_ts
    scene.write(start_ts, b"a", b"b")
    commit = scene.commit(scene.request(start_ts, b"a", b"b"))
    assert scene.old.wait_until_frozen() == "tso.flush.after"
    with scene.another_leads():
        assert scene.visible() == {b"a", b"b"}
        assert commit.is_open, "the old leader answered"
        scene.wake_the_old_one()
        told = commit.told()
        assert isinstance(told, CommitReply)
        assert told.committed
        assert scene.visible() == scene.visible_to_a_newcomer() == {b"a", b"b"}


@pytest.mark.parametrize(
    ("frozen_scene", "is_decided"),
    first(
        1,
        [
            ("tso.decision.after", True),
            ("tso.pending.before", False),
            ("tso.decision.before", False),
            ("tso.branches.before", True),
            ("tso.branches.after", True),
        ],
    ),
    indirect=["frozen_scene"],
)
def test_a_large_commit_delayed_anywhere_is_atomic(frozen_scene: Scene, is_decided: bool) -> None:
    """T5, T12: a job of three branches, its leader frozen before its pending record, its decision, its branches."""
    scene = frozen_scene
    tso, row, commit_table = (
        scene.writer._core.deployment.tso,
        scene.writer._core.deployment.leader_state,
        scene.writer._core.deployment.commit_table,
    )
    begun_start_ts = tso.begin()
    start_ts = begun_start_ts.start_ts
    tso.grant_lease(start_ts)
    branches = tuple(tso.begin().start_ts for _ in ROWS)
    for branch, name in zip(branches, ROWS, strict=True):
        scene.write(branch, name)
    commit = scene.commit(scene.request(start_ts, *ROWS, branches=branches))
    point = scene.old.wait_until_frozen()
    has_record = any(pending.start_ts == start_ts for pending in row.read().pending)
    assert has_record == (point != "tso.pending.before")
    with scene.another_leads():
        expected = set(ROWS) if is_decided else set()
        assert not any(pending.start_ts == start_ts for pending in row.read().pending), "finished before it served"
        assert scene.visible() == expected
        before = row.read()
        assert commit.is_open, "the old leader answered"
        scene.wake_the_old_one()
        after = row.read()
        assert (after.epoch, after.pending) == (before.epoch, before.pending)
        assert after.watermark >= before.watermark
        told = commit.told()
        assert (isinstance(told, CommitReply) and told.committed) == is_decided
        found = commit_table.lookup([start_ts, *branches])
        if isinstance(told, CommitReply) and is_decided:
            assert found == [told.commit_ts] * 4
        else:
            assert set(found) <= {SEALED, NOT_FOUND}
        assert scene.visible() == scene.visible_to_a_newcomer() == expected
        tso.end_lease(start_ts)  # where its commit did not


@pytest.mark.long
@pytest.mark.parametrize("frozen_scene", ["tso.lease.before"], indirect=True)
def test_a_replaced_leader_grants_no_lease_in_flight(frozen_scene: Scene) -> None:
    """T5, K7: else W, which the new leader publishes without it, would pass a reader that believes itself safe."""
    scene = frozen_scene
    begun_start_ts = scene.writer._core.deployment.tso.begin()
    start_ts = begun_start_ts.start_ts
    grant = Call(lambda: scene.writer._core.deployment.tso.grant_lease(start_ts))
    assert scene.old.wait_until_frozen() == "tso.lease.before"
    with scene.another_leads():
        assert grant.is_open
        assert start_ts not in scene.writer._core.deployment.leader_state.read().leases
        scene.wake_the_old_one()
        told = grant.told()  # by the new leader: refused where its W has passed the start, else granted by itself
        assert isinstance(told, float | SnapshotTooOld)
        assert (start_ts in scene.writer._core.deployment.leader_state.read().leases) == isinstance(told, float)
        scene.writer._core.deployment.tso.end_lease(start_ts)


AN_HOUR_BACK = """
import sys, time
hour_s = 3600
of_s, of_ns = time.time, time.time_ns
time.time = lambda: of_s() - hour_s
time.time_ns = lambda: of_ns() - hour_s * 10**9
from pyomid.cli import main
sys.exit(main())
"""


def test_timestamps_increase_although_the_clock_was_set_back(url: str, tmp_path: Path, table_name: str) -> None:
    """T3: the wall clock only raises timestamps; after a restart an hour earlier nothing is handed out twice."""
    with leading_tso(url, tmp_path / "one.log"):
        with pyomid.connect(url) as database:
            database.create_table(table_name, ["f"])
            with database.begin() as tx:
                tx.table(table_name).put(b"r", {b"f:q": b"before"})
    assert tx.commit_ts is not None
    assert tx.commit_ts > datetime.now().timestamp() * 1e9 - 3600e9 / 2, "not the time"
    with leading_tso(url, tmp_path / "two.log", python=("-c", AN_HOUR_BACK)):
        with pyomid.connect(url) as database:
            with database.begin() as after:
                assert after.start_ts > tx.commit_ts
                assert after.table(table_name).get(b"r") == {b"f:q": b"before"}
                after.table(table_name).put(b"r", {b"f:q": b"after"})
            with database.begin() as last:
                assert last.table(table_name).get(b"r") == {b"f:q": b"after"}
            database.drop_table(table_name)
    assert _last_time(tmp_path / "two.log") < datetime.now() - timedelta(minutes=50), "its clock was not set back"


def _last_time(log: Path) -> datetime:
    return datetime.fromisoformat(json.loads(log.read_text().splitlines()[-1])["time"])
