"""pyomid in a folder beside sqlite3 and LMDB, in turns: one Markdown table with the project's goals.

    sqlite3   WAL, synchronous=FULL, a WITHOUT ROWID table, BEGIN IMMEDIATE for writes, prepared statements,
              a page cache of 64 MiB, a connection per thread
    LMDB      py-lmdb with its defaults (each commit is synced), one environment per process, append for ascending keys
    ours      a folder with the default settings

A figure is a median of several runs unless its row says otherwise; every peer has one run to warm up. A client's
processor time is that of its whole process and includes its clean-up in the background. `disk` sums `wchar` of
/proc/<pid>/io, what a process hands to write calls, of the clients. The file system's journal is not in it.
(`write_bytes` counts whole folios of the page cache: 0.2 MB for a commit of LMDB that writes 16 kB.)

Options: --rows (100 000) of the scan and of the large transaction, --gets (5 000) and --transactions (300) of one run,
--seconds (3) of each run with threads or processes, --jobs (1 000) of the queue, --small-rows (300 000) written by
tens, --large-rows (1 000 000) of the table that `disk` writes to (50 000 000: about 30 GB of disk), --runs (5), --turns
(3) of what starts processes, --processes (8), --only NAME (repeat it for several parts), --quick: all rows within two
minutes, with smaller counts wherever an option gives none. `BENCH_DIR` names the disk.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import lmdb
from benchmarks import ycsb
from benchmarks._report import Report, machine_lines, quantity

import pyomid

COLUMN: Final = b"f:x"
VALUE: Final = b"v" * 100
MAP_BYTES: Final = 1 << 34
USERS: Final = 1_000
"""Records of YCSB's table."""
FIELDS: Final = [f"f{number}" for number in range(len(ycsb.FIELDS))]
CACHE_KEYS: Final = 100
CACHE_MIX: Final = {"get": 100, "set": 10, "delete": 1}
"""As DiskCache's own benchmark has it, with its 100 keys and its values of 1 to 500 bytes."""
CANDIDATES: Final = 64
"""Ready rows among which a worker that does not want the first one chooses: eight for each of eight workers."""


def key_of(number: int) -> bytes:
    return b"%016d" % number


class Peer:
    """One store with one table of keys and values of 100 bytes. `folder` may be opened by several processes."""

    name: str

    def __init__(self, folder: Path) -> None:
        raise NotImplementedError

    def put(self, key: bytes) -> None:
        """A transaction of one write, durable on return. By any thread."""
        raise NotImplementedError

    def set(self, key: bytes, value: bytes) -> None:
        """As `put`, of a key that other processes may write at the same time."""
        raise NotImplementedError

    def delete(self, key: bytes) -> None:
        """As `set`; the row may be absent."""
        raise NotImplementedError

    def put_many(self, keys: Sequence[bytes]) -> None:
        """One transaction."""
        raise NotImplementedError

    def gets(self, keys: Sequence[bytes]) -> None:
        """In one transaction."""
        raise NotImplementedError

    def get(self, key: bytes) -> bool:
        """In a transaction of its own: whether the row exists."""
        raise NotImplementedError

    def scan(self) -> int:
        """All rows as Python objects."""
        raise NotImplementedError

    def enqueue(self, keys: Sequence[bytes]) -> None:
        """Jobs that are ready, of an empty queue."""
        raise NotImplementedError

    def claim(self, *, first: bool) -> bytes | None:
        """Takes a ready job, by any of several processes: the first one, or a random one among the first. Durable on
        return. None if there is none."""
        raise NotImplementedError

    def load_users(self) -> None:
        """YCSB's table, if this store has columns."""
        raise NotImplementedError

    def read_user(self, key: bytes) -> None:
        """All ten fields, in a transaction of its own."""
        raise NotImplementedError

    def warm_up(self, number: int) -> None:
        """One call of each kind, in a new process: a service pays for first calls once."""
        self.put(key_of(number))
        assert self.get(key_of(number))

    def settle(self) -> None:
        """Waits for what it does in the background."""

    def close(self) -> None:
        raise NotImplementedError


class Sqlite(Peer):
    name = "sqlite3"

    def __init__(self, folder: Path) -> None:
        self._file = str(folder / "sqlite")
        self._mine = threading.local()
        self._all: list[sqlite3.Connection] = []
        for table in ("t", "ready", "taken"):
            self._connection.execute(f"CREATE TABLE IF NOT EXISTS {table} (k BLOB PRIMARY KEY, v BLOB) WITHOUT ROWID")

    @property
    def _connection(self) -> sqlite3.Connection:
        found: sqlite3.Connection | None = getattr(self._mine, "connection", None)
        if found is None:
            found = sqlite3.connect(self._file, isolation_level=None, check_same_thread=False, timeout=60)
            for pragma in ("journal_mode=WAL", "synchronous=FULL", "cache_size=-65536"):
                found.execute(f"PRAGMA {pragma}").fetchall()
            self._mine.connection = found
            self._all.append(found)
        return found

    def put(self, key: bytes) -> None:
        self.set(key, VALUE)

    def set(self, key: bytes, value: bytes) -> None:
        self._write("INSERT OR REPLACE INTO t VALUES (?, ?)", [(key, value)])

    def put_many(self, keys: Sequence[bytes]) -> None:
        self._write("INSERT OR REPLACE INTO t VALUES (?, ?)", ((key, VALUE) for key in keys))

    def delete(self, key: bytes) -> None:
        self._write("DELETE FROM t WHERE k = ?", [(key,)])

    def _write(self, statement: str, rows: Iterable[tuple[bytes, ...]]) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(statement, rows)
        connection.execute("COMMIT")

    def gets(self, keys: Sequence[bytes]) -> None:
        connection = self._connection
        connection.execute("BEGIN")
        for key in keys:
            assert connection.execute("SELECT v FROM t WHERE k = ?", (key,)).fetchone()
        connection.execute("COMMIT")

    def get(self, key: bytes) -> bool:
        return self._read("SELECT v FROM t WHERE k = ?", key) is not None

    def _read(self, query: str, key: bytes) -> Any:
        connection = self._connection
        connection.execute("BEGIN")
        found = connection.execute(query, (key,)).fetchone()
        connection.execute("COMMIT")
        return found

    def load_users(self) -> None:
        self._connection.execute(f"CREATE TABLE u (k BLOB PRIMARY KEY, {', '.join(FIELDS)}) WITHOUT ROWID")
        rows = ((ycsb.key_of(user), *ycsb.new_row(random.Random(user)).values()) for user in range(USERS))
        self._write(f"INSERT INTO u VALUES (?{', ?' * len(FIELDS)})", rows)

    def read_user(self, key: bytes) -> None:
        assert self._read("SELECT * FROM u WHERE k = ?", key)

    def scan(self) -> int:
        return sum(1 for _ in self._connection.execute("SELECT k, v FROM t ORDER BY k"))

    def enqueue(self, keys: Sequence[bytes]) -> None:
        with self._connection as connection:
            connection.execute("DELETE FROM taken")
            connection.executemany("INSERT INTO ready VALUES (?, ?)", ((key, VALUE) for key in keys))

    def claim(self, *, first: bool) -> bytes | None:
        """One writer at a time, so a random row gains nothing."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        found = connection.execute("SELECT k, v FROM ready ORDER BY k LIMIT 1").fetchone()
        if found:
            connection.execute("DELETE FROM ready WHERE k = ?", found[:1])
            connection.execute("INSERT INTO taken VALUES (?, ?)", found)
        connection.execute("COMMIT")
        return found[0] if found else None

    def close(self) -> None:
        for connection in self._all:
            connection.close()


class Lmdb(Peer):
    name = "LMDB"

    def __init__(self, folder: Path) -> None:
        self._lmdb = lmdb.open(str(folder / "lmdb"), map_size=MAP_BYTES, max_readers=1024)

    def put(self, key: bytes) -> None:
        self.set(key, VALUE)

    def set(self, key: bytes, value: bytes) -> None:
        with self._lmdb.begin(write=True) as transaction:
            transaction.put(key, value)

    def delete(self, key: bytes) -> None:
        with self._lmdb.begin(write=True) as transaction:
            transaction.delete(key)

    def put_many(self, keys: Sequence[bytes]) -> None:
        with self._lmdb.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti([(key, VALUE) for key in keys], append=not cursor.last() or cursor.key() < keys[0])

    def gets(self, keys: Sequence[bytes]) -> None:
        with self._lmdb.begin() as transaction:
            for key in keys:
                assert transaction.get(key)

    def get(self, key: bytes) -> bool:
        with self._lmdb.begin() as transaction:
            return transaction.get(key) is not None

    def scan(self) -> int:
        with self._lmdb.begin() as transaction, transaction.cursor() as cursor:
            return sum(1 for _ in cursor)

    def enqueue(self, keys: Sequence[bytes]) -> None:
        with self._lmdb.begin(write=True) as transaction:
            for key in keys:
                transaction.put(b"ready" + key, VALUE)

    def claim(self, *, first: bool) -> bytes | None:
        with self._lmdb.begin(write=True) as transaction, transaction.cursor() as cursor:
            if not cursor.set_range(b"ready") or not cursor.key().startswith(b"ready"):
                return None
            key = bytes(cursor.key())
            transaction.put(b"taken" + key, transaction.pop(key) or b"")
            return key

    def close(self) -> None:
        self._lmdb.close()


class Pyomid(Peer):
    name = "pyomid"

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "pyomid"
        self.db = pyomid.connect(f"omid://{self._folder}")
        for table in ("t", "ready", "taken"):
            self.db.create_table(table, families=["f"], if_not_exists=True)
        self.claim_again = self.db.transactional(self._claim)

    def put(self, key: bytes) -> None:
        with self.db.begin() as tx:
            tx.table("t").put(key, {COLUMN: VALUE})

    def set(self, key: bytes, value: bytes) -> None:
        self.db.run(lambda tx: tx.table("t").put(key, {COLUMN: value}))

    def delete(self, key: bytes) -> None:
        self.db.run(lambda tx: tx.table("t").delete(key, [COLUMN]))

    def put_many(self, keys: Sequence[bytes]) -> None:
        with self.db.begin() as tx:
            table = tx.table("t")
            for key in keys:
                table.put(key, {COLUMN: VALUE})

    def gets(self, keys: Sequence[bytes]) -> None:
        with self.db.begin() as tx:
            table = tx.table("t")
            for key in keys:
                assert table.get(key)

    def get(self, key: bytes) -> bool:
        with self.db.begin() as tx:
            return bool(tx.table("t").get(key))

    def load_users(self) -> None:
        ycsb.load(self.db, USERS, random.Random(1))

    def read_user(self, key: bytes) -> None:
        with self.db.begin() as tx:
            assert tx.table(ycsb.TABLE).get(key)

    def scan(self) -> int:
        with self.db.begin() as tx:
            return sum(1 for _ in tx.table("t").scan())

    def enqueue(self, keys: Sequence[bytes]) -> None:
        with self.db.begin() as tx:
            for key in keys:
                tx.table("ready").put(key, {COLUMN: VALUE})

    def claim(self, *, first: bool) -> bytes | None:
        return self.claim_again(first)

    def _claim(self, tx: pyomid.Transaction, first: bool) -> bytes | None:
        ready = list(tx.table("ready").scan(limit=1 if first else CANDIDATES))
        if not ready:
            return None
        key, job = random.choice(ready)
        tx.table("ready").delete(key)
        tx.table("taken").put(key, job)
        return key

    def scan_arrow(self) -> int:
        with self.db.begin() as tx:
            return int(tx.table("t").to_arrow(columns=[COLUMN]).read_all().num_rows)

    def warm_up(self, number: int) -> None:
        """Loads the kernels of scans too, which takes 0.5 s of processor time per process."""
        super().warm_up(number)
        with self.db.begin() as tx:
            tx.table("t").put(key_of(number), {COLUMN: VALUE})
            assert list(tx.table("t").scan(limit=CANDIDATES))
        self.settle()

    def settle(self) -> None:
        assert self.db.drain(60)

    def close(self) -> None:
        self.db.close()


KINDS: Final[tuple[type[Peer], ...]] = (Sqlite, Lmdb, Pyomid)


class Table:
    """The figures, as Markdown."""

    def __init__(self) -> None:
        self._lines: list[tuple[str, ...]] = []

    def add(self, work: str, figures: dict[str, str], ratio: str, goal: str) -> None:
        self._lines.append((work, *(figures.get(kind.name, "–") for kind in KINDS), ratio, goal))

    def text(self) -> str:
        head = ("work", *(kind.name for kind in KINDS), "pyomid ÷ sqlite3", "goal")
        lines = [head, tuple("---" for _ in head), *self._lines]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


class Peers:
    """All peers over one folder, and a method for each part of the table."""

    def __init__(self, report: Report, folder: Path, options: argparse.Namespace) -> None:
        self.report, self.options, self.table = report, options, Table()
        self.folder = folder
        self.all = [kind(folder) for kind in KINDS]
        self._next = iter(range(1 << 40))

    def fill(self) -> None:
        for peer in self.all:
            fill(peer, self.options.rows)

    def _keys(self, count: int) -> list[bytes]:
        """Keys of existing rows, spread over the table."""
        rows = self.options.rows
        return [key_of(number * 7919 % rows) for number in range(count)]

    def in_turns(self, works: dict[str, Callable[[], Any]]) -> dict[str, list[Any]]:
        results: dict[str, list[Any]] = {name: [] for name in works}
        for turn in range(self.options.runs + 1):
            for name, work in works.items():
                result = work()
                if turn:
                    results[name].append(result)
        return results

    def by_processes(self, work: str, *given: Any, kinds: Sequence[type[Peer]] = KINDS) -> dict[str, list[list[Any]]]:
        """What each process returned, in each turn. Each process warms up by itself."""
        results: dict[str, list[list[Any]]] = {kind.name: [] for kind in kinds}
        for _ in range(self.options.turns):
            for kind in kinds:
                results[kind.name].append(together(work, kind, self.folder, self.options.processes, *given))
        return results

    # One write

    def transaction(self) -> None:
        count = self.options.transactions

        def run(peer: Peer) -> Callable[[], tuple[list[float], float]]:
            def work() -> tuple[list[float], float]:
                keys = self._keys(count)
                began = time.process_time()
                taken = [timed(partial(peer.put, key)) for key in keys]
                peer.settle()
                return taken, (time.process_time() - began) / count

            return work

        found = self.in_turns({peer.name: run(peer) for peer in self.all})
        p50 = {name: statistics.median(t for taken, _ in runs for t in taken) for name, runs in found.items()}
        cpu = {name: statistics.median(each[1] for each in runs) for name, runs in found.items()}
        for name, runs in found.items():
            self.report.latencies(f"{name}: one-write transaction", [t for taken, _ in runs for t in taken])
        self.compare("one-write transaction, p50", p50, ms, ratio_at_most=3.5)
        self.compare("one-write transaction, the client's processor time", cpu, ms, at_most=0.25e-3)

    # Many threads, many processes

    def threads(self) -> None:
        for threads, goal in ((8, 0.7), (64, 1.0)):
            found = self.in_turns({peer.name: partial(self._hammered, peer, threads) for peer in self.all})
            self.compare(f"{threads} threads, one-write transactions/s", medians(found), quantity, ratio_at_least=goal)

    def _hammered(self, peer: Peer, threads: int) -> float:
        def put(thread: int, number: int) -> None:
            peer.put(key_of((thread * 1_000_003 + number * 7919) % self.options.rows))

        rate = rate_of(put, threads, self.options.seconds)
        peer.settle()
        return rate

    def processes(self) -> None:
        count, seconds = self.options.processes, self.options.seconds
        found = self.by_processes("write", seconds, self.options.rows)
        rates, spread, longest = {}, {}, {}
        for name, turns in found.items():
            taken = [wait for parts in turns for part, _ in parts for wait in part]
            p50, p99 = self.report.latencies(f"{name}: {count} processes, one-write transaction", taken)
            rates[name] = statistics.median(sum(len(part) for part, _ in parts) / seconds for parts in turns)
            spread[name], longest[name] = p99 / p50, max(taken)
        work = f"{count} processes, one-write transactions"
        self.compare(f"{work}/s together", rates, quantity, ratio_at_least=0.8)
        self.compare(f"{work}, p99 ÷ p50", spread, lambda value: f"{value:.3g}", at_most=6)
        self.compare(f"{work}, longest wait of all runs", longest, ms, at_most=0.1)

    # A cache, a queue

    def cache(self) -> None:
        found = self.by_processes("cache", self.options.seconds)
        p50: dict[str, dict[str, float]] = {"get": {}, "set": {}}
        longest = {}
        for name, turns in found.items():
            for kind in ("get", "set"):
                taken = [wait for parts in turns for part in parts for wait in part[kind]]
                p50[kind][name], _ = self.report.latencies(f"{name}: cache of {len(turns[0])} processes, {kind}", taken)
                if kind == "set":
                    longest[name] = max(taken)
        work = f"DiskCache's mix, {self.options.processes} processes"
        self.compare(f"{work}: get, p50", p50["get"], us)
        self.compare(f"{work}: set, p50", p50["set"], ms, at_most=1e-3)
        self.compare(f"{work}: set, longest of all runs", longest, ms, at_most=0.2)

    def queue(self) -> None:
        count, jobs = self.options.processes, self.options.jobs
        for name, first in (("the first ready row", True), (f"one of the first {CANDIDATES}", False)):
            rates: dict[str, list[float]] = {kind.name: [] for kind in KINDS}
            waits: dict[str, list[float]] = {kind.name: [] for kind in KINDS}
            for _ in range(self.options.turns):
                for kind, peer in zip(KINDS, self.all, strict=True):
                    keys = [key_of(next(self._next)) for _ in range(jobs)]
                    peer.enqueue(keys)
                    parts = together("claim", kind, self.folder, count, first)
                    assert sorted(key for claimed, _, _ in parts for key in claimed) == keys, "each job once"
                    elapsed_s = max(ended for _, _, ended in parts) - min(began for _, began, _ in parts)
                    rates[kind.name].append(jobs / elapsed_s)
                    waits[kind.name] += [wait for claimed, _, _ in parts for wait in claimed.values()]
            for kind in KINDS:
                self.report.latencies(f"{kind.name}: claim of {name}", waits[kind.name])
            goals = {"ratio_at_least": 0.7} if first else {}
            self.compare(f"queue, {count} processes claim {name}, jobs/s", medians(rates), quantity, **goals)
            longest = {kind: max(each) for kind, each in waits.items()}
            self.compare("the same, longest wait of all runs", longest, ms, at_most=1.0 if first else None)

    # Reads

    def reads(self) -> None:
        count = self.options.gets
        keys, few = self._keys(count), self._keys(max(1, count // 10))

        def alone(peer: Peer) -> None:
            for key in few:
                assert peer.get(key)

        def gets(peer: Peer) -> float:
            return timed(lambda: peer.gets(keys)) / len(keys)

        def transactions(peer: Peer) -> float:
            return timed(lambda: alone(peer)) / len(few)

        inside = self.in_turns({peer.name: partial(gets, peer) for peer in self.all})
        outside = self.in_turns({peer.name: partial(transactions, peer) for peer in self.all})
        self.compare("get in a transaction", medians(inside), us, at_most=10e-6)
        self.compare("begin, get, commit", medians(outside), us, at_most=60e-6)

    def ycsb(self) -> None:
        """Workload C."""
        seconds, columnar = self.options.seconds, [peer for peer in self.all if not isinstance(peer, Lmdb)]
        for peer in columnar:
            peer.load_users()

        def run(peer: Peer) -> float:
            keys = [users(thread) for thread in range(8)]
            return rate_of(lambda thread, number: peer.read_user(keys[thread][number % USERS]), 8, seconds)

        rates = self.in_turns({peer.name: partial(run, peer) for peer in columnar})
        self.compare("YCSB-C (reads), 8 threads, operations/s", medians(rates), quantity, at_least=10_000)
        found = self.by_processes("read", seconds, kinds=[type(peer) for peer in columnar])
        rates = {name: [sum(parts) for parts in turns] for name, turns in found.items()}
        work = f"YCSB-C (reads), {self.options.processes} processes, operations/s together"
        self.compare(work, medians(rates), quantity, at_least=30_000)

    def scan(self) -> None:
        works: dict[str, Callable[[], int]] = {peer.name: peer.scan for peer in self.all}
        ours = self.all[-1]
        assert isinstance(ours, Pyomid)
        with contextlib.suppress(pyomid.Misuse):
            assert ours.scan_arrow() == self.options.rows
            works["as Arrow"] = ours.scan_arrow
        found = self.in_turns({name: partial(timed, work) for name, work in works.items()})
        rates = {name: self.options.rows / statistics.median(taken) for name, taken in found.items()}
        arrow = rates.pop("as Arrow", 0.0)
        self.compare(f"scan of {quantity(self.options.rows)} rows, rows/s", rates, quantity, ratio_at_least=0.5)
        if arrow:
            self.compare("the same as Arrow", {**rates, "pyomid": arrow}, quantity, ratio_at_least=1.5)

    # Loads

    def load(self) -> None:
        """New rows with ascending keys; each run continues after the one before."""
        rows = self.options.rows

        def run(peer: Peer) -> Callable[[], float]:
            numbers = iter(range(1, 1 << 20))

            def work() -> float:
                first = next(numbers) * rows
                keys = [key_of(number) for number in range(first, first + rows)]
                taken = timed(lambda: peer.put_many(keys))
                peer.settle()
                return taken

            return work

        found = medians(self.in_turns({peer.name: run(peer) for peer in self.all}))
        self.compare(f"{quantity(rows)} puts in one transaction", found, lambda s: f"{s:.3g} s", ratio_at_most=0.5)

    def tens(self) -> None:
        """New rows, with the clean-up behind them. The peers take turns ten times, and the rate is that of all rows."""
        rows, slices = self.options.small_rows, 10
        taken = dict.fromkeys((peer.name for peer in self.all), 0.0)

        def write(peer: Peer, first: int) -> None:
            for number in range(first, first + rows // slices, 10):
                peer.put_many([key_of(each) for each in range(number, number + 10)])
            peer.settle()

        for turn in range(slices):
            for peer in self.all:
                taken[peer.name] += timed(partial(write, peer, (1 << 40) + turn * rows // slices))
        rates = {name: rows / seconds for name, seconds in taken.items()}
        work = f"{quantity(rows)} rows in transactions of 10, one client, rows/s"
        self.compare(work, rates, quantity, at_least=15_000)

    # A new folder, the disk

    def connect(self) -> None:
        """In new processes, whose Python files are compiled: the warm-up run leaves them behind, as an installation
        does."""
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}

        def run(program: str, folder: str) -> float:
            command = [sys.executable, "-c", program, folder]
            printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
            return float(printed)

        def first(program: str) -> float:
            with tempfile.TemporaryDirectory(dir=self.folder) as folder:
                return run(program, folder)

        found = self.in_turns({name: partial(first, program) for name, program in FIRST_COMMIT.items()})
        work = "connect to a new folder and commit one row, in a new process, without the import"
        self.compare(work, medians(found), ms, at_most=0.06)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            for program in FIRST_COMMIT.values():
                run(program, folder)
            found = self.in_turns({name: partial(run, program, folder) for name, program in LATER_COMMIT.items()})
        work = "import, connect to a folder and commit one row, in a new process"
        self.compare(work, medians(found), ms, at_most=0.15)

    def disk(self) -> None:
        """Into a table of its own; one run each, because a table this large is not copied for another one."""
        rows, seconds = self.options.large_rows, self.options.seconds
        found: dict[int, dict[str, float]] = {1: {}, self.options.processes: {}}
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as folder:
            for kind in KINDS:
                peer = kind(Path(folder))
                fill(peer, rows)
                for processes, figures in found.items():
                    parts = together("write", kind, Path(folder), processes, seconds, rows)
                    written = sum(each for _, each in parts)
                    figures[kind.name] = written / sum(len(taken) for taken, _ in parts)
                peer.close()
        for processes, figures in found.items():
            clients = "one client" if processes == 1 else f"{processes} clients"
            self.compare(f"bytes written to files per commit, {quantity(rows)} rows, {clients}", figures, quantity)

    def compare(
        self,
        work: str,
        found: dict[str, float],
        show: Callable[[float], str],
        *,
        ratio_at_least: float | None = None,
        ratio_at_most: float | None = None,
        at_least: float | None = None,
        at_most: float | None = None,
    ) -> None:
        """A row of the table. The goal is of pyomid ÷ sqlite3, or of pyomid's own figure."""
        shown = {name: show(value) for name, value in found.items()}
        self.report.note(f"{work}: " + ", ".join(f"{name} {value}" for name, value in shown.items()))
        missed, ours = len(self.report.missed), found["pyomid"]
        ratio = self.report.ratio(work, ours, found["sqlite3"], at_least=ratio_at_least, at_most=ratio_at_most)
        goals = [f"≥ {ratio_at_least:g} ×"] if ratio_at_least else [f"≤ {ratio_at_most:g} ×"] if ratio_at_most else []
        for sign, bound in (("≥", at_least), ("≤", at_most)):
            if bound is not None:
                goals.append(f"{sign} {show(bound)}")
                limits = {"at_least": 1.0} if sign == "≥" else {"at_most": 1.0}
                self.report.ratio(f"{work} ÷ goal {goals[-1]}", ours, bound, **limits)
        verdict = "" if not goals else ", missed" if len(self.report.missed) > missed else ", met"
        self.table.add(work, shown, f"{ratio:.3g}", " ".join(goals) + verdict)

    def close(self) -> None:
        for peer in self.all:
            peer.close()


PARTS: Final = (
    "transaction", "threads", "reads", "ycsb", "scan", "load",
    "tens", "processes", "cache", "queue", "connect", "disk",
)  # fmt: skip

FIRST_COMMIT: Final = {
    "sqlite3": """
import sqlite3, sys, time
began = time.perf_counter()
connection = sqlite3.connect(sys.argv[1] + "/sqlite", isolation_level=None)
for pragma in ("journal_mode=WAL", "synchronous=FULL"):
    connection.execute("PRAGMA " + pragma).fetchall()
connection.execute("CREATE TABLE t (k BLOB PRIMARY KEY, v BLOB) WITHOUT ROWID")
connection.execute("INSERT INTO t VALUES (?, ?)", (b"k", b"v"))
print(time.perf_counter() - began)
""",
    "pyomid": """
import sys, time
import pyomid
began = time.perf_counter()
db = pyomid.connect("omid://" + sys.argv[1] + "/pyomid")
db.create_table("t", families=["f"])
with db.begin() as tx:
    tx.table("t").put(b"k", {b"f:x": b"v"})
print(time.perf_counter() - began)
db.close()
""",
}
"""Programs that import nothing of ours before the store that they measure."""
LATER_COMMIT: Final = {
    "sqlite3": """
import sys, time
began = time.perf_counter()
import sqlite3
connection = sqlite3.connect(sys.argv[1] + "/sqlite", isolation_level=None)
connection.execute("PRAGMA synchronous=FULL").fetchall()
connection.execute("REPLACE INTO t VALUES (?, ?)", (b"k", b"v"))
print(time.perf_counter() - began)
""",
    "pyomid": """
import sys, time
began = time.perf_counter()
import pyomid
db = pyomid.connect("omid://" + sys.argv[1] + "/pyomid")
with db.begin() as tx:
    tx.table("t").put(b"k", {b"f:x": b"v"})
print(time.perf_counter() - began)
db.close()
""",
}
"""Programs that measure their imports too, in the folder that those above have left."""


def us(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} µs"


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def medians(found: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(runs) for name, runs in found.items()}


def fill(peer: Peer, rows: int) -> None:
    for first in range(0, rows, 10_000):
        peer.put_many([key_of(number) for number in range(first, min(first + 10_000, rows))])
    peer.settle()


def users(seed: int) -> list[bytes]:
    """Keys as YCSB chooses them, ahead of the measurement."""
    choose = ycsb.operations(ycsb.WORKLOADS["C"], ycsb.Records(USERS), seed)
    return [choose().key for _ in range(USERS)]


def written_bytes(pid: int | str = "self") -> int:
    """What the process handed to write calls; `send` to a socket is none."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["wchar"])


def rate_of(call: Callable[[int, int], object], threads: int, seconds: float) -> float:
    """Calls a second of some threads together; `call(thread, number)`."""
    done = [0] * threads
    began = time.monotonic()
    until = began + seconds

    def work(thread: int) -> None:
        number = 0
        while time.monotonic() < until:
            call(thread, number)
            number += 1
        done[thread] = number

    started = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for each in started:
        each.start()
    for each in started:
        each.join()
    return sum(done) / (time.monotonic() - began)


# Processes

Spawned = multiprocessing.get_context("spawn")


def together(work: str, kind: type[Peer], folder: Path, processes: int, *given: Any) -> list[Any]:
    """What each of these processes returned; all begin at once."""
    ready, go, results = Spawned.Semaphore(0), Spawned.Event(), Spawned.Queue()
    asked = (work, KINDS.index(kind), str(folder))
    started = [
        Spawned.Process(target=process, args=(*asked, number, given, ready, go, results)) for number in range(processes)
    ]
    for each in started:
        each.start()
    for _ in started:
        ready.acquire()
    go.set()
    found = [results.get() for _ in started]
    for each in started:
        each.join()
    return found


def process(
    work: str, kind: int, folder: str, number: int, given: tuple[Any, ...], ready: Any, go: Any, results: Any
) -> None:
    peer = KINDS[kind](Path(folder))
    peer.warm_up(number)
    ready.release()
    go.wait()
    results.put(WORKS[work](peer, number, *given))
    peer.close()


def write(peer: Peer, number: int, seconds: float, rows: int) -> tuple[list[float], int]:
    """The latencies of one-write transactions, and the bytes that this process wrote for them."""
    before, until = written_bytes(), time.monotonic() + seconds
    taken: list[float] = []
    while time.monotonic() < until:
        key = key_of((number * 1_000_003 + len(taken) * 7919) % rows)
        taken.append(timed(partial(peer.put, key)))
    peer.settle()
    return taken, written_bytes() - before


def read(peer: Peer, number: int, seconds: float) -> float:
    keys = users(number)
    return rate_of(lambda thread, number: peer.read_user(keys[number % USERS]), 1, seconds)


def cache(peer: Peer, number: int, seconds: float) -> dict[str, list[float]]:
    chance, until = random.Random(number), time.monotonic() + seconds
    kinds, shares = list(CACHE_MIX), list(CACHE_MIX.values())
    taken: dict[str, list[float]] = {kind: [] for kind in kinds}
    while time.monotonic() < until:
        key, value = b"cache%02d" % chance.randrange(CACHE_KEYS), b"12345" * chance.randrange(1, 100)
        calls: dict[str, Callable[[], object]] = {
            "get": partial(peer.get, key),
            "set": partial(peer.set, key, value),
            "delete": partial(peer.delete, key),
        }
        (kind,) = chance.choices(kinds, shares)
        taken[kind].append(timed(calls[kind]))
    peer.settle()
    return taken


def claim(peer: Peer, number: int, first: bool) -> tuple[dict[bytes, float], float, float]:
    """Claims jobs until none is left: the wait for each, and when the process began and ended."""
    claimed, began = {}, time.monotonic()
    while True:
        asked = time.perf_counter()
        key = peer.claim(first=first)
        if key is None:
            break
        claimed[key.removeprefix(b"ready")] = time.perf_counter() - asked
    ended = time.monotonic()
    peer.settle()
    return claimed, began, ended


WORKS: Final[dict[str, Callable[..., Any]]] = {"write": write, "read": read, "cache": cache, "claim": claim}


COUNTS: Final = {
    "rows": (100_000, 20_000), "gets": (5_000, 2_000), "transactions": (300, 100), "small_rows": (300_000, 3_000),
    "large_rows": (1_000_000, 50_000), "jobs": (1_000, 200), "runs": (5, 2), "turns": (3, 1), "processes": (8, 8),
}  # fmt: skip
"""Of a full run, and of a quick one."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in COUNTS:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    for name, (full, quick) in {**COUNTS, "seconds": (3.0, 0.5)}.items():
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else full)
    report = Report("embedded: pyomid beside sqlite3 (WAL, synchronous=FULL) and LMDB")
    stores = f"sqlite3 {sqlite3.sqlite_version}, LMDB {'.'.join(map(str, lmdb.version()))}"
    report.note(stores)
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        peers = Peers(report, Path(folder), options)
        try:
            peers.fill()
            for part in PARTS:
                if not options.only or part in options.only:
                    getattr(peers, part)()
        finally:
            peers.close()
    print("\n" + "  \n".join([*machine_lines(), stores]) + f"\n\n{peers.table.text()}\n")
    return report.finish()


if __name__ == "__main__":
    from benchmarks.embedded import peers  # under its own name, so that spawned processes find its functions

    sys.exit(peers.main())
