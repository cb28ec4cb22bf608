"""From the bare operation to the whole, in a folder: what each step of a transaction, a large write, a scan costs.

    python -m benchmarks.embedded.build_up [--rounds 7] [--calls 100] [--rows 100000] [--only NAME]

One table each (`--only`): `write` (a transaction of one write), `read` (begin, get, commit), `puts` (many puts in one
transaction), `scan` (rows as Arrow). Each step is the product's own code, called alone, or what it stands on without
the product. All steps of a table take turns; figures are medians: of single calls in the first two tables, of whole
runs in the others. Processor time is the calling thread's, a median of rounds. `BENCH_DIR` names the disk.
"""

from __future__ import annotations

import argparse
import mmap
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import lmdb
from benchmarks._report import Report

import pyomid
from pyomid.cells import batch_of_rows
from pyomid.folder import EmbeddedStore
from pyomid.types import Column, KeyRange, RowWrite, TableInfo

COLUMN: Final = Column(b"f", b"x")
NAME: Final = b"f:x"
VALUE: Final = b"v" * 100
BLOCK: Final = 4096
MAP_BYTES: Final = 1 << 34
RECORDS_A_WRITE: Final = 2_000
"""What the store puts into one transaction of LMDB at most."""
BATCH_ROWS: Final = 10_000


def key_of(number: int) -> bytes:
    return b"%016d" % number


@dataclass(slots=True)
class Step:
    """`call` is what is measured, of a number that never comes twice; `before` and `after` are not."""

    name: str
    call: Callable[[int], object]
    before: Callable[[int], object] | None = None
    after: Callable[[], object] = lambda: None
    taken_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def run(self, numbers: Iterator[int], calls: int) -> tuple[list[float], float]:
        taken, beside_s, used = [], 0.0, time.thread_time()
        for _ in range(calls):
            number = next(numbers)
            if self.before is not None:
                began_s = time.thread_time()
                self.before(number)
                beside_s += time.thread_time() - began_s
            began = time.perf_counter()
            self.call(number)
            taken.append(time.perf_counter() - began)
        cpu_s = (time.thread_time() - used - beside_s) / calls
        self.after()
        return taken, cpu_s


def measured(steps: list[Step], *, rounds: int, calls: int) -> None:
    """One round to warm up, then in turns."""
    numbers = iter(range(1 << 40))
    for turn in range(rounds + 1):
        for step in steps:
            taken, cpu = step.run(numbers, calls)
            if turn:
                step.taken_s += taken
                step.cpu_s.append(cpu)


class Tables:
    """The report, and the same as Markdown."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.lines: list[str] = []

    def show(self, title: str, steps: list[Step], unit: str, scale: float) -> None:
        self._report.note(title)
        self.lines += ["", f"| {title} | median | processor |", "| --- | --- | --- |"]
        for step in steps:
            taken = statistics.median(step.taken_s) * scale
            cpu = statistics.median(step.cpu_s) * scale
            self._report.note(f"  {step.name:<70} {taken:>8.4g} {unit}  {cpu:>8.4g} {unit} of processor time")
            self.lines.append(f"| {step.name} | {taken:.3g} {unit} | {cpu:.3g} {unit} |")


class Database:
    """A folder with a table of some rows, and its parts."""

    def __init__(self, folder: Path, rows: int, **options: object) -> None:
        told = "&".join(f"{name}={value}" for name, value in options.items())
        self.db = pyomid.connect(f"omid://{folder}" + (f"?{told}" if told else ""))
        self.db.create_table("t", families=["f"])
        self.rows = rows
        for first in range(0, rows, BATCH_ROWS):
            with self.db.begin() as tx:
                table = tx.table("t")
                for number in range(first, min(first + BATCH_ROWS, rows)):
                    table.put(key_of(number), {NAME: VALUE})
        assert self.db.drain(60)
        self.tso, self.store = self.db._core.deployment.tso, self.db._core.deployment.store

    def begin(self, number: int = 0) -> None:
        """Reads the clock for a start, and is done with it."""
        self.tso.begin().end()

    def write(self, number: int) -> None:
        with self.db.begin() as tx:
            tx.table("t").put(key_of(number % self.rows), {NAME: VALUE})

    def read(self, number: int) -> None:
        with self.db.begin() as tx:
            tx.table("t").get(key_of(number % self.rows))

    def drain(self, number: int = 0) -> None:
        assert self.db.drain(60)


@contextmanager
def written_file(path: Path, flags: int, blocks: int) -> Iterator[Callable[[int], None]]:
    """Writes a block over one that was written before."""
    path.write_bytes(bytes(BLOCK * blocks))
    file, block = os.open(path, os.O_RDWR | flags), mmap.mmap(-1, BLOCK)
    os.fsync(file)

    def write(number: int) -> None:
        os.pwrite(file, block, number % blocks * BLOCK)
        if not flags:
            os.fdatasync(file)

    yield write
    os.close(file)


def sqlite(folder: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(folder / "sqlite", isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "cache_size=-65536"):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    connection.execute("CREATE TABLE t (k BLOB PRIMARY KEY, v BLOB) WITHOUT ROWID")
    return connection


def put_sqlite(connection: sqlite3.Connection, keys: list[bytes]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("INSERT OR REPLACE INTO t VALUES (?, ?)", ((key, VALUE) for key in keys))
    connection.execute("COMMIT")


def raw_lmdb(folder: Path) -> lmdb.Environment:
    return lmdb.open(str(folder), map_size=MAP_BYTES)


def put_lmdb(environment: lmdb.Environment, keys: list[bytes]) -> None:
    """Synced on return."""
    with environment.begin(write=True) as transaction, transaction.cursor() as cursor:
        cursor.putmulti([(key, VALUE) for key in keys])


def write_table(tables: Tables, folder: Path, options: argparse.Namespace) -> None:
    with ExitStack() as opened:
        blocks = 1024
        log = opened.enter_context(written_file(folder / "synced", 0, blocks))
        connection = sqlite(folder)
        synced = raw_lmdb(folder / "raw")
        store = EmbeddedStore(folder / "store")
        opened.callback(store.close)
        store.create_table(TableInfo("t", (b"f",)))
        ours = Database(folder / "db", 10_000)
        opened.callback(ours.db.close)

        def cells(number: int) -> None:
            store.write_cells("t", 50 * (number + 1), [RowWrite(key_of(number), ((COLUMN, VALUE),))])

        steps = [
            Step("a write of 4 KiB and fdatasync", log),
            Step("sqlite3: the transaction", lambda number: put_sqlite(connection, [key_of(number)])),
            Step("LMDB: the transaction, its pages and its root synced", lambda n: put_lmdb(synced, [key_of(n)])),
            Step("the store's write of the cell", cells),
            Step("begin: a slot noted, the clock read", ours.begin),
            Step("begin, put, commit; clean-up of those before is over", ours.write, before=ours.drain),
            Step("begin, put, commit, one after the other", ours.write, after=ours.drain),
        ]
        measured(steps, rounds=options.rounds, calls=options.calls)
        tables.show("a transaction of one write", steps, "µs", 1e6)


def read_table(tables: Tables, folder: Path, options: argparse.Namespace) -> None:
    with ExitStack() as opened:
        raw = raw_lmdb(folder / "raw")
        ours = Database(folder / "db", 10_000)
        opened.callback(ours.db.close)
        put_lmdb(raw, [key_of(number) for number in range(ours.rows)])
        tx = opened.enter_context(ours.db.begin())
        table = tx.table("t")
        key = key_of(5)

        def get(number: int) -> None:
            with raw.begin() as transaction:
                transaction.get(key_of(number % ours.rows))

        def empty(number: int) -> None:
            with ours.db.begin():
                pass

        steps = [
            Step("LMDB: a get in a read transaction of its own", get),
            Step("the store's read of a row: found, verified, decoded", lambda n: ours.store.read_rows("t", [key])),
            Step("get in a transaction", lambda number: table.get(key_of(number % ours.rows))),
            Step("begin: a slot noted, the clock read", ours.begin),
            Step("begin, commit", empty),
            Step("begin, get, commit", ours.read),
        ]
        measured(steps, rounds=options.rounds, calls=10 * options.calls)
        tables.show("begin, get, commit", steps, "µs", 1e6)


def puts_table(tables: Tables, folder: Path, options: argparse.Namespace) -> None:
    rows = options.rows
    with ExitStack() as opened:
        connection = sqlite(folder)
        raw, parted = raw_lmdb(folder / "raw"), raw_lmdb(folder / "parted")
        store = EmbeddedStore(folder / "store")
        opened.callback(store.close)
        store.create_table(TableInfo("t", (b"f",)))
        ours, kept = Database(folder / "db", 1), Database(folder / "kept", 1, flushBytes=1 << 30)
        opened.callback(ours.db.close)
        opened.callback(kept.db.close)

        def keys(number: int) -> list[bytes]:
            return [key_of(each) for each in range(number * rows, (number + 1) * rows)]

        def in_parts(number: int) -> None:
            written = keys(number)
            for first in range(0, rows, RECORDS_A_WRITE):
                put_lmdb(parted, written[first : first + RECORDS_A_WRITE])

        held: list[Any] = [None]

        def hold_rows(number: int) -> None:
            held[0] = {key: {COLUMN: VALUE} for key in keys(number)}

        def hold_batch(number: int) -> None:
            hold_rows(number)
            held[0] = batch_of_rows(held[0])

        def buffered(number: int) -> None:
            tx = kept.db.begin()
            table = tx.table("t")
            for key in keys(number):
                table.put(key, {NAME: VALUE})
            tx.rollback()

        def whole(number: int) -> None:
            with ours.db.begin() as tx:
                table = tx.table("t")
                for key in keys(number):
                    table.put(key, {NAME: VALUE})

        steps = [
            Step("the keys alone", keys),
            Step("sqlite3: the transaction", lambda number: put_sqlite(connection, keys(number))),
            Step("LMDB: one transaction", lambda number: put_lmdb(raw, keys(number))),
            Step(f"LMDB: a synced transaction for each {RECORDS_A_WRITE} records", in_parts),
            Step("the puts: checked and buffered, nothing leaves", buffered),
            Step("a batch made of the buffer", lambda number: batch_of_rows(held[0]), before=hold_rows),
            Step(
                "the store's write of that batch",
                lambda number: store.write_batch("t", 50 * (number + 1), held[0]),
                before=hold_batch,
            ),
            Step("the whole", whole, after=ours.drain),
        ]
        measured(steps, rounds=min(options.rounds, 5), calls=1)
        tables.show(f"{rows} puts in one transaction", steps, "ms", 1e3)


def scan_table(tables: Tables, folder: Path, options: argparse.Namespace) -> None:
    rows = options.rows
    with ExitStack() as opened:
        connection, raw = sqlite(folder), raw_lmdb(folder / "raw")
        ours = Database(folder / "db", rows)
        opened.callback(ours.db.close)
        put_sqlite(connection, [key_of(number) for number in range(rows)])
        put_lmdb(raw, [key_of(number) for number in range(rows)])

        def by_sqlite(number: int) -> None:
            assert sum(1 for _ in connection.execute("SELECT k, v FROM t ORDER BY k")) == rows

        def by_lmdb(number: int) -> None:
            with raw.begin() as transaction, transaction.cursor() as cursor:
                assert sum(1 for _ in cursor) == rows

        def batches(number: int) -> None:
            found = ours.store.scan("t", KeyRange(), batch_rows_max=BATCH_ROWS)
            assert sum(batch.rows for batch in found) == rows

        def objects(number: int) -> None:
            with ours.db.begin() as tx:
                assert sum(1 for _ in tx.table("t").scan()) == rows

        def as_arrow(number: int) -> None:
            with ours.db.begin() as tx:
                assert tx.table("t").to_arrow(columns=[NAME]).read_all().num_rows == rows

        steps = [
            Step("sqlite3: rows as Python objects", by_sqlite),
            Step("LMDB: records as Python objects", by_lmdb),
            Step("the store's batches: found in pages, copied, verified, decoded", batches),
            Step("rows as Arrow", as_arrow),
            Step("rows as Python objects", objects),
        ]
        measured(steps, rounds=options.rounds, calls=3)
        tables.show(f"a scan of {rows} rows", steps, "ms", 1e3)


TABLES: Final = {"write": write_table, "read": read_table, "puts": puts_table, "scan": scan_table}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("rounds", 7), ("calls", 100), ("rows", 100_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", action="append", choices=TABLES)
    options = parser.parse_args()
    report = Report("embedded: from the bare operation to the whole")
    tables = Tables(report)
    for name in options.only or TABLES:
        with tempfile.TemporaryDirectory(prefix="pyomid-bench-", dir=os.environ.get("BENCH_DIR")) as folder:
            TABLES[name](tables, Path(folder), options)
    print("\n".join(tables.lines))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
