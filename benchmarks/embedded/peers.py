"""The embedded client beside sqlite3 and LMDB itself, in turns: one table of what a program waits for.

    sqlite3   WAL, synchronous=FULL, a WITHOUT ROWID table, BEGIN IMMEDIATE for writes, prepared statements,
              a page cache of 64 MiB; a connection for each thread, as its authors advise
    LMDB      py-lmdb as it comes (each commit is synced), one environment for each process, append where keys ascend
    ours      a folder with the defaults; its TSO is a process beside, on the same cores

The medians are of runs in turns, after one of each to warm up. Processor time is that of the whole client process, its
clean-up in the background included (`drain` is counted), the TSO's is told beside it.

Options: --rows (100 000) of the scan and of the large transaction, --gets (5 000) and --transactions (300) of one run,
--seconds (3) of each run with threads or processes, --runs (5), --processes (8), --only NAME (transaction, threads,
reads, scan, load, processes), --quick for all of it within a minute. `BENCH_DIR` names the disk. At the end the table
is printed as Markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import sqlite3
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import lmdb
from benchmarks._report import Report, quantity

import pyomid
from pyomid.server.leadership import holder

COLUMN: Final = b"f:x"
VALUE: Final = b"v" * 100
MAP_BYTES: Final = 1 << 34
PARTS: Final = ("transaction", "threads", "reads", "scan", "load", "processes")


def key_of(number: int) -> bytes:
    return b"%016d" % number


class Peer:
    """One store with one table of keys and values of 100 bytes. `folder` may be opened by several processes."""

    name: str

    def put(self, key: bytes) -> None:
        """A transaction of one write, durable on return. By any thread."""
        raise NotImplementedError

    def put_many(self, keys: Sequence[bytes]) -> None:
        """One transaction."""
        raise NotImplementedError

    def gets(self, keys: Sequence[bytes]) -> None:
        """In one transaction."""
        raise NotImplementedError

    def get_alone(self, key: bytes) -> None:
        """In a transaction of its own."""
        raise NotImplementedError

    def scan(self) -> int:
        """All rows as Python objects."""
        raise NotImplementedError

    def settle(self) -> None:
        """Waits for what it does in the background."""

    def service_s(self) -> float:
        """Processor time of processes that serve it."""
        return 0.0

    def close(self) -> None:
        raise NotImplementedError


class Sqlite(Peer):
    name = "sqlite3"

    def __init__(self, folder: Path) -> None:
        self._file = str(folder / "sqlite")
        self._mine = threading.local()
        self._all: list[sqlite3.Connection] = []
        self._connection.execute("CREATE TABLE IF NOT EXISTS t (k BLOB PRIMARY KEY, v BLOB) WITHOUT ROWID")

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
        self.put_many([key])

    def put_many(self, keys: Sequence[bytes]) -> None:
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT OR REPLACE INTO t VALUES (?, ?)", ((key, VALUE) for key in keys))
        connection.execute("COMMIT")

    def gets(self, keys: Sequence[bytes]) -> None:
        connection = self._connection
        connection.execute("BEGIN")
        for key in keys:
            assert connection.execute("SELECT v FROM t WHERE k = ?", (key,)).fetchone()
        connection.execute("COMMIT")

    def get_alone(self, key: bytes) -> None:
        self.gets([key])

    def scan(self) -> int:
        return sum(1 for _ in self._connection.execute("SELECT k, v FROM t ORDER BY k"))

    def close(self) -> None:
        for connection in self._all:
            connection.close()


class Lmdb(Peer):
    name = "LMDB"

    def __init__(self, folder: Path) -> None:
        self._lmdb = lmdb.open(str(folder / "lmdb"), map_size=MAP_BYTES, max_readers=1024)

    def put(self, key: bytes) -> None:
        with self._lmdb.begin(write=True) as transaction:
            transaction.put(key, VALUE)

    def put_many(self, keys: Sequence[bytes]) -> None:
        with self._lmdb.begin(write=True) as transaction, transaction.cursor() as cursor:
            cursor.putmulti([(key, VALUE) for key in keys], append=not cursor.last() or cursor.key() < keys[0])

    def gets(self, keys: Sequence[bytes]) -> None:
        with self._lmdb.begin() as transaction:
            for key in keys:
                assert transaction.get(key)

    def get_alone(self, key: bytes) -> None:
        self.gets([key])

    def scan(self) -> int:
        with self._lmdb.begin() as transaction, transaction.cursor() as cursor:
            return sum(1 for _ in cursor)

    def close(self) -> None:
        self._lmdb.close()


class Pyomid(Peer):
    name = "pyomid"

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "pyomid"
        self.db = pyomid.connect(f"omid://{self._folder}")
        self.db.create_table("t", families=["f"], if_not_exists=True)

    def put(self, key: bytes) -> None:
        with self.db.begin() as tx:
            tx.table("t").put(key, {COLUMN: VALUE})

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

    def get_alone(self, key: bytes) -> None:
        self.gets([key])

    def scan(self) -> int:
        with self.db.begin() as tx:
            return sum(1 for _ in tx.table("t").scan())

    def scan_arrow(self) -> int:
        with self.db.begin() as tx:
            return int(tx.table("t").to_arrow(columns=[COLUMN]).read_all().num_rows)

    def settle(self) -> None:
        assert self.db.drain(60)

    def service_s(self) -> float:
        """Of the TSO, whichever process of this folder started it."""
        tso = holder(self._folder)["pid"]
        fields = Path(f"/proc/{tso}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

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
    """All of them over one folder, and what is measured."""

    def __init__(self, report: Report, folder: Path, options: argparse.Namespace) -> None:
        self.report, self.options, self.table = report, options, Table()
        self.folder = folder
        self.all = [kind(folder) for kind in KINDS]
        self._next = iter(range(1 << 40))

    def fill(self) -> None:
        keys = [key_of(number) for number in range(self.options.rows)]
        for peer in self.all:
            for first in range(0, len(keys), 10_000):
                peer.put_many(keys[first : first + 10_000])
            peer.settle()

    def _keys(self, count: int) -> list[bytes]:
        """Of rows that are there, spread."""
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

    # One write

    def transaction(self) -> None:
        count = self.options.transactions

        def run(peer: Peer) -> Callable[[], tuple[list[float], float, float]]:
            def work() -> tuple[list[float], float, float]:
                keys = self._keys(count)
                served, began = peer.service_s(), time.process_time()
                taken = [timed(lambda key=key: peer.put(key)) for key in keys]
                peer.settle()
                return taken, (time.process_time() - began) / count, (peer.service_s() - served) / count

            return work

        found = self.in_turns({peer.name: run(peer) for peer in self.all})
        p50 = {name: statistics.median(t for taken, _, _ in runs for t in taken) for name, runs in found.items()}
        cpu = {name: statistics.median(each[1] for each in runs) for name, runs in found.items()}
        served = statistics.median(each[2] for each in found["pyomid"])
        for name, runs in found.items():
            self.report.latencies(f"{name}: one-write transaction", [t for taken, _, _ in runs for t in taken])
        self.report.note(f"the TSO's processor time: {served * 1e6:.0f} µs a transaction")
        self.compare("one-write transaction, p50", p50, ms, at_most=3)
        self.compare("client's processor time of it", cpu, ms, below=("≤ 0.3 ms", 0.3e-3))

    # Many threads, many processes

    def threads(self) -> None:
        for threads, goal in ((8, 0.5), (64, 0.8)):
            found = self.in_turns({peer.name: partial(self._hammered, peer, threads) for peer in self.all})
            rates = {name: statistics.median(runs) for name, runs in found.items()}
            self.compare(f"{threads} threads, one-write transactions a second", rates, quantity, at_least=goal)

    def _hammered(self, peer: Peer, threads: int) -> float:
        done = [0] * threads
        began = time.monotonic()
        until = began + self.options.seconds

        def work(thread: int) -> None:
            number = 0
            while time.monotonic() < until:
                peer.put(key_of((thread * 1_000_003 + number * 7919) % self.options.rows))
                number += 1
            done[thread] = number

        run_all([threading.Thread(target=work, args=(thread,)) for thread in range(threads)])
        elapsed = time.monotonic() - began
        peer.settle()
        return sum(done) / elapsed

    def processes(self) -> None:
        count, seconds = self.options.processes, self.options.seconds
        figures, rates = {}, {}
        for index, kind in enumerate(KINDS):
            taken = [each for part in contend(self.folder, index, count, seconds, self.options.rows) for each in part]
            p50, p99 = self.report.latencies(f"{kind.name}: {count} processes, one-write transaction", taken)
            rates[kind.name] = len(taken) / seconds
            figures[kind.name] = f"{ms(p50)}; {p99 / p50:.3g} ×; {ms(max(taken))}"
            if kind is Pyomid:
                self.report.ratio(f"{count} processes: p99 ÷ p50", p99, p50, at_most=10)
        self.table.add(f"{count} processes: p50; p99 ÷ p50; the longest wait", figures, "", "p99 ≤ 10 × p50")
        self.compare(f"{count} processes, one-write transactions a second", rates, quantity)

    # Reads

    def reads(self) -> None:
        count = self.options.gets
        keys, few = self._keys(count), self._keys(max(1, count // 10))

        def alone(peer: Peer) -> None:
            for key in few:
                peer.get_alone(key)

        inside = self.in_turns({p.name: lambda p=p: timed(lambda: p.gets(keys)) / count for p in self.all})
        outside = self.in_turns({p.name: lambda p=p: timed(lambda: alone(p)) / len(few) for p in self.all})
        self.compare("get in a transaction", medians(inside), us, below=("≤ 10 µs", 10e-6))
        self.compare("begin, get, commit", medians(outside), us, below=("≤ 80 µs", 80e-6))

    def scan(self) -> None:
        works: dict[str, Callable[[], int]] = {peer.name: peer.scan for peer in self.all}
        ours = self.all[-1]
        assert isinstance(ours, Pyomid)
        with contextlib.suppress(pyomid.Misuse):
            assert ours.scan_arrow() == self.options.rows
            works["as Arrow"] = ours.scan_arrow
        found = self.in_turns({name: lambda work=work: timed(work) for name, work in works.items()})
        rates = {name: self.options.rows / statistics.median(taken) for name, taken in found.items()}
        arrow = rates.pop("as Arrow", 0.0)
        self.compare(f"scan of {quantity(self.options.rows)} rows, rows/s", rates, quantity, at_least=0.5)
        if arrow:
            self.compare("the same as Arrow", {**rates, "pyomid": arrow}, quantity, at_least=1.5)

    def load(self) -> None:
        """Of new rows, whose keys ascend, each run behind the one before."""
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
        self.compare(f"{quantity(rows)} puts in one transaction", found, lambda s: f"{s:.3g} s", at_most=0.5)

    def compare(
        self,
        work: str,
        found: dict[str, float],
        show: Callable[[float], str],
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        below: tuple[str, float] | None = None,
    ) -> None:
        shown = {name: show(value) for name, value in found.items()}
        self.report.note(f"{work}: " + ", ".join(f"{name} {value}" for name, value in shown.items()))
        ratio = self.report.ratio(work, found["pyomid"], found["sqlite3"], at_least=at_least, at_most=at_most)
        if below is not None:
            self.report.ratio(f"{work} ÷ goal {below[0]}", found["pyomid"], below[1], at_most=1)
        goal = f"≥ {at_least:g} ×" if at_least else f"≤ {at_most:g} ×" if at_most else below[0] if below else ""
        self.table.add(work, shown, f"{ratio:.3g}", goal)

    def close(self) -> None:
        for peer in self.all:
            peer.close()


def us(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} µs"


def ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def medians(found: dict[str, list[float]]) -> dict[str, float]:
    return {name: statistics.median(runs) for name, runs in found.items()}


def run_all(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


Spawned = multiprocessing.get_context("spawn")


def contend(folder: Path, kind: int, processes: int, seconds: float, rows: int) -> Iterator[list[float]]:
    """The latencies of one-write transactions in each of some processes that write at once."""
    ready, go, results = Spawned.Semaphore(0), Spawned.Event(), Spawned.Queue()
    arguments = [(str(folder), kind, number, seconds, rows, ready, go, results) for number in range(processes)]
    started = [Spawned.Process(target=writer, args=each) for each in arguments]
    for process in started:
        process.start()
    for _ in started:
        ready.acquire()
    go.set()
    for _ in started:
        yield results.get()
    for process in started:
        process.join()


def writer(folder: str, kind: int, number: int, seconds: float, rows: int, ready: Any, go: Any, results: Any) -> None:
    peer = KINDS[kind](Path(folder))
    peer.put(key_of(number))
    ready.release()
    go.wait()
    until, taken = time.monotonic() + seconds, []
    while time.monotonic() < until:
        key = key_of((number * 1_000_003 + len(taken) * 7919) % rows)
        taken.append(timed(lambda key=key: peer.put(key)))
    peer.settle()
    results.put(taken)
    peer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rows", 100_000), ("gets", 5_000), ("transactions", 300), ("runs", 5), ("processes", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--only", action="append", choices=PARTS)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.gets, options.transactions = min(options.rows, 20_000), 2_000, 100
        options.runs, options.seconds = 3, 0.7
    report = Report("embedded: pyomid beside sqlite3 (WAL, synchronous=FULL) and LMDB itself")
    report.note(f"sqlite3 {sqlite3.sqlite_version}, LMDB {'.'.join(map(str, lmdb.version()))}")
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        peers = Peers(report, Path(folder), options)
        try:
            peers.fill()
            for part in options.only or PARTS:
                getattr(peers, part)()
        finally:
            peers.close()
    print(f"\n{peers.table.text()}\n")
    return report.finish()


if __name__ == "__main__":
    from benchmarks.embedded import peers  # under its own name, so that spawned processes find its functions

    sys.exit(peers.main())
