"""Java and Python clients at once on the same rows, killed on either side, and their TSO killed under them.

What every client saw and was told is judged for strict snapshot isolation; then every cell that lies in the tables is
held against what its writer was told, and the two sides must read the same last state.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hbase_processes import TsoProcess, give_up_the_lease
from mixed_clients import COLUMN, FAMILY, QUALIFIER, TABLES, TOTAL, JavaSide, Workload, amount_of, open_bank

import pyomid
from java_omid import JavaClient, JavaTso
from pyomid.cli.hbase import HBaseServer
from pyomid.database.database import Database
from pyomid.testing.checker import check_sums, demand
from pyomid.testing.history import History, Outcome, Recorder, Scan, Transaction, Write, merged
from pyomid.types import Cell, KeyRange

pytestmark = pytest.mark.timeout(900)

WORKER = Path(__file__).with_name("mixed_clients.py")
SUPPORT = Path(__file__).parents[1] / "support"
LEASE_S = 6.0
DEADLINE_S = 300.0
"""For anything that is waited for: a busy machine only takes longer."""


@dataclass
class Crowd:
    """The clients of one history."""

    url: str
    folder: Path
    quorum: str
    zookeeper_port: int
    seed: int
    workers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    javas: dict[str, JavaWorker] = field(default_factory=dict)
    """Everybody who ever lived, by name: place and generation."""
    names: dict[str, str] = field(default_factory=dict)
    """Who lives now in each place (P0, J1)."""

    @property
    def stop(self) -> Path:
        return self.folder / "stop"

    def start_python(self, place: str, crash_at: str = "") -> None:
        """`crash_at`: kills itself there, so that what it leaves behind is known."""
        name = self._named(place)
        environment = os.environ | {"PYTHONPATH": os.fspath(SUPPORT)}
        if crash_at:
            environment |= {"PYOMID_CRASH_AT": crash_at, "PYOMID_CRASH_NOTE": str(self._note(name))}
        arguments = [self.url, str(self._file(name)), name, str(self.seed_of(name)), str(self.stop)]
        self.workers[name] = subprocess.Popen([sys.executable, str(WORKER), *arguments], env=environment)

    def start_java(self, place: str) -> None:
        """Returns before its JVM is up."""
        name = self._named(place)
        client = JavaWorker(self, name)
        self.javas[name] = client
        client.start()

    def kill(self, place: str) -> None:
        """kill -9, in the middle of whatever it does."""
        name = self.names.pop(place)
        if name in self.workers:
            self.workers[name].kill()
            self.workers[name].wait()
        else:
            self.javas[name].kill()

    def wait_for_more(self, *places: str, commits: int = 12) -> None:
        """Until the client in each of these places has committed so many more."""
        targets = {name: self._committed(name) + commits for name in map(self.names.__getitem__, places)}
        self._wait(lambda: all(self._committed(name) >= target for name, target in targets.items()), f"{places} commit")

    def wait_until_dead(self, place: str) -> None:
        """By its own crash point."""
        name = self.names.pop(place)
        self._wait(lambda: self.workers[name].poll() is not None, f"{name} comes to its crash point")
        assert self._note(name).exists(), "it ended otherwise"

    def finish(self) -> None:
        """Everybody who lives ends its last transaction and goes."""
        self.stop.touch()
        for name in self.names.values():
            if name in self.workers:
                assert self.workers[name].wait(DEADLINE_S) == 0, f"{name} was misled"
            else:
                self.javas[name].finish()

    def kill_all(self) -> None:
        self.stop.touch()
        for worker in self.workers.values():
            worker.kill()
            worker.wait()
        for java in self.javas.values():
            java.kill()

    def recorder(self, name: str) -> Recorder:
        return Recorder(self._file(name))

    def _named(self, place: str) -> str:
        generation = sum(name.startswith(place) for name in (*self.workers, *self.javas))
        self.names[place] = f"{place}{'abcdefghijklmnopqrstuvwxyz'[generation]}"
        return self.names[place]

    def seed_of(self, name: str) -> int:
        return random.Random(f"{self.seed} {name}").randrange(1 << 30)

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.jsonl"

    def _note(self, name: str) -> Path:
        return self.folder / f"{name}.note"

    def _committed(self, name: str) -> int:
        path = self._file(name)
        return path.read_text().count('"outcome": "committed"') if path.exists() else 0

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        end_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < end_s, f"waited {DEADLINE_S:g} s in vain until {what}"
            time.sleep(0.05)


class JavaWorker(threading.Thread):
    """A JVM and the thread that drives it. What is killed is the JVM."""

    def __init__(self, crowd: Crowd, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._crowd = crowd
        self._java: JavaClient | None = None

    def run(self) -> None:
        crowd, name = self._crowd, self.name
        self._java = JavaClient(crowd.zookeeper_port)
        seed = crowd.seed_of(name)
        Workload(JavaSide(self._java, seed), crowd.recorder(name), name, seed).run_until(crowd.stop.exists)

    def kill(self) -> None:
        if self._java is not None:
            self._java.kill()
        self.join(DEADLINE_S)
        assert not self.is_alive()
        if self._java is not None:  # it may have come up only just now
            self._java.kill()

    def finish(self) -> None:
        self.join(DEADLINE_S)
        assert not self.is_alive(), f"{self.name} never came to an end"
        assert self._java is not None
        self._java.close()


@pytest.fixture
def crowd(hbase: HBaseServer, url: str, tmp_path: Path) -> Iterator[Crowd]:
    seed = int(os.environ.get("PYOMID_SEED", random.SystemRandom().randrange(1 << 30)))
    print(f"PYOMID_SEED={seed}")
    made = Crowd(url, tmp_path, hbase.quorum, hbase.ports.zookeeper, seed)
    yield made
    made.kill_all()


@contextmanager
def empty_bank(crowd: Crowd) -> Iterator[Database]:
    with pyomid.connect(crowd.url, commitRetrySeconds=120.0) as database:
        for table in TABLES:
            database.create_table(table, ["f"])
        open_bank(database, crowd.recorder("setup"))
        yield database
        for table in TABLES:
            database.drop_table(table)


def judged(crowd: Crowd) -> History:
    """Strictly snapshot isolated, every sum of the bank right, and conflicts on the way: else it says nothing."""
    history = merged(sorted(crowd.folder.glob("*.jsonl")))
    demand(history)
    wrong = check_sums(_bank_scans(history), TOTAL, amount_of)
    assert not wrong, "\n".join(map(str, wrong))
    assert any(txn.outcome is Outcome.ABORTED for txn in history.transactions), "too gentle to say anything"
    return history


def _bank_scans(history: History) -> History:
    def kept(op: object) -> bool:
        return isinstance(op, Write) or (isinstance(op, Scan) and op.table == "bank")

    return History([replace(txn, operations=[op for op in txn.operations if kept(op)]) for txn in history.transactions])


def compare_cells(database: Database, history: History) -> None:
    """Every cell was written by a recorded transaction, holds its value, and its shadow cell says what was told.

    What was told as committed and lacks a shadow cell still has its entry: of one commit nothing is ever lost.
    """
    writers = {txn.start_ts: txn for txn in history.transactions if txn.start_ts is not None}
    found: dict[int, set[str]] = {}
    for table in TABLES:
        for cell in _stored(database, table):
            txn = writers.get(cell.version)
            if txn is None:
                assert cell.commit_ts == 0, f"nobody ever asked to commit {cell}"
                continue
            item = f"{table}/{cell.row.decode()}"
            expected = {str(item): value for item, value in txn.last_writes().items()}
            assert (cell.family, cell.qualifier) == (FAMILY, QUALIFIER)
            value = cell.value.decode() if cell.value is not None else None
            assert expected[item] == value, f"{txn.name} wrote {expected[item]!r}, stored is {cell}"
            _check_told(database, txn, cell)
            found.setdefault(cell.version, set()).add(item)
    for txn in writers.values():
        if txn.outcome is Outcome.COMMITTED:
            missing = {str(item) for item in txn.last_writes()} - found.get(txn.start_ts or 0, set())
            assert not missing, f"{txn.name} was told committed, and {missing} are gone"


def _stored(database: Database, table: str) -> Iterator[Cell]:
    for batch in database._core.deployment.store.scan(table, KeyRange()):
        yield from batch.all_cells()


def _check_told(database: Database, txn: Transaction, cell: Cell) -> None:
    if txn.outcome is Outcome.ABORTED:
        assert cell.commit_ts == 0, f"{txn.name} was told aborted, and {cell} says committed"
    elif txn.outcome is Outcome.COMMITTED and cell.commit_ts:
        assert cell.commit_ts == txn.commit_ts, f"{txn.name} committed at {txn.commit_ts}, stored is {cell}"
    elif txn.outcome is Outcome.COMMITTED:
        assert database._core.deployment.commit_table.lookup([cell.version]) == [txn.commit_ts], f"{txn.name}: {cell}"


def compare_sides(crowd: Crowd, database: Database) -> None:
    """Both read the same last state; and what they read is healed by the one or the other."""
    with JavaClient(crowd.zookeeper_port) as java, database.begin() as tx:
        java.begin("last")
        for table in TABLES:
            seen_by_java = java.scan("last", table)
            assert dict(tx.table(table).scan()) == seen_by_java
            assert tx.table(table).rows(sorted(seen_by_java)) == seen_by_java
            newest = {(row, cells[COLUMN]) for row, cells in seen_by_java.items()}
            assert database.drain(60.0)
            healed = {(cell.row, cell.value) for cell in _stored(database, table) if cell.commit_ts}
            assert newest <= healed
        java.rollback("last")


def end_and_judge(crowd: Crowd, database: Database) -> None:
    crowd.finish()
    history = judged(crowd)
    compare_cells(database, history)
    compare_sides(crowd, database)
    compare_cells(database, history)
    committed = {txn.name[:2] for txn in history.transactions if txn.outcome is Outcome.COMMITTED}
    assert committed >= {"J0", "J1", "P0", "P1"}, "somebody never committed anything"


def strike(crowd: Crowd, rounds: int, kill_the_tso: Callable[[], None]) -> None:
    """Clients of both kinds die and are replaced; the TSO dies under the others; each time the others go on."""
    crowd.start_python("P0", crash_at="client.commit.answered:10")
    crowd.start_python("P1")
    crowd.start_java("J0")
    crowd.start_java("J1")
    crowd.wait_until_dead("P0")
    for number in range(rounds):
        crowd.wait_for_more("P1", "J0", "J1")
        crowd.kill("J0")
        crowd.start_python("P0")
        kill_the_tso()
        crowd.wait_for_more("P0", "P1", "J1")
        crowd.kill("P1")
        if number + 1 < rounds:
            crowd.start_java("J0")
            crowd.start_python("P1")
            crowd.wait_for_more("J0", "P1")
            crowd.kill("P0")


def run_on_our_tso(crowd: Crowd, rounds: int) -> None:
    with ExitStack() as running:
        leaders: list[TsoProcess] = []

        def start(number: int) -> None:
            log = crowd.folder / f"tso{number}.log"
            leaders.append(running.enter_context(TsoProcess(crowd.url, log, lease_s=LEASE_S)))

        def kill_the_leader() -> None:
            leaders[-2].kill()
            leaders[-1].wait_until_leading(deadline_s=DEADLINE_S)
            start(len(leaders))

        start(0)
        leaders[0].wait_until_leading(deadline_s=DEADLINE_S)
        start(1)
        with empty_bank(crowd) as database:
            strike(crowd, rounds, kill_the_leader)
            end_and_judge(crowd, database)


def run_on_a_java_tso(crowd: Crowd, rounds: int) -> None:
    with ExitStack() as running:
        tsos: list[JavaTso] = []

        def start() -> None:
            folder = crowd.folder / f"java-tso{len(tsos)}"
            tso = JavaTso(folder, zookeeper_port=crowd.zookeeper_port, lease_s=2.0)
            tsos.append(running.enter_context(tso))
            tso.wait_until_announced(deadline_s=DEADLINE_S)

        def kill_the_tso() -> None:
            tsos[-1].kill()
            start()

        start()
        with empty_bank(crowd) as database:
            strike(crowd, rounds, kill_the_tso)
            end_and_judge(crowd, database)
    give_up_the_lease(f"127.0.0.1:{crowd.zookeeper_port}")


def test_java_and_python_under_our_tso_are_strictly_snapshot_isolated(crowd: Crowd) -> None:
    """Clients of both kinds killed, one of them between the TSO's answer and its shadow cells; the leader killed."""
    run_on_our_tso(crowd, rounds=1)


@pytest.mark.long
def test_java_and_python_under_a_java_tso_are_strictly_snapshot_isolated(crowd: Crowd) -> None:
    """The same with Apache Omid's own TSO, killed and started again."""
    run_on_a_java_tso(crowd, rounds=1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_java_and_python_under_our_tso_for_long(crowd: Crowd) -> None:
    run_on_our_tso(crowd, rounds=8)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_java_and_python_under_a_java_tso_for_long(crowd: Crowd) -> None:
    run_on_a_java_tso(crowd, rounds=8)
