"""The six core workloads of YCSB over any database: `python -m benchmarks.ycsb [URL]`, a folder of its own without URL.

    A   50 % read, 50 % update            a session store
    B   95 % read,  5 % update            tags of photos
    C  100 % read                         profiles
    D   95 % read,  5 % insert            statuses: the newest are read most
    E   95 % scan,  5 % insert            conversations: 1 … 100 rows from a key on
    F   50 % read, 50 % read-modify-write

Each operation is a transaction of its own, as in YCSB's transactional bindings. A row has 10 fields of 100 bytes; reads
and scans read all of them, an update writes one. Keys are chosen by a scrambled Zipfian distribution (0.99), in D by
one over the newest. Of two updates that meet one aborts; `Database.run` runs it again, and the operation counts once.

Options: --records (1 000) loaded before, --operations (2 000) of each workload, --clients (8) threads or tasks at once,
--workloads (ABCDEF), --asyncio, --seed (1). Each workload finds what those before it left, in the order given; the
table goes at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import itertools
import os
import random
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyomid
import pyomid.aio
from benchmarks._report import Report, Sample, quantity

TABLE: Final = "usertable"
FIELDS: Final = tuple(b"f:field%d" % number for number in range(10))
FIELD_BYTES: Final = 100
ZIPFIAN: Final = 0.99
SCAN_ROWS_MAX: Final = 100
LOAD_ROWS: Final = 100


@dataclass(frozen=True, slots=True)
class Workload:
    """Shares of the operations, and which records they choose."""

    shares: dict[str, float]
    newest_first: bool = False


WORKLOADS: Final = {
    "A": Workload({"read": 0.5, "update": 0.5}),
    "B": Workload({"read": 0.95, "update": 0.05}),
    "C": Workload({"read": 1.0}),
    "D": Workload({"read": 0.95, "insert": 0.05}, newest_first=True),
    "E": Workload({"scan": 0.95, "insert": 0.05}),
    "F": Workload({"read": 0.5, "modify": 0.5}),
}


@dataclass(frozen=True, slots=True)
class Operation:
    kind: str
    key: bytes
    cells: dict[bytes, bytes]
    rows: int = 1


def key_of(record: int) -> bytes:
    """Neighbours in order of insertion are none in the table, as in YCSB."""
    return b"user%010d%d" % (zlib.crc32(b"%d" % record), record)


class Records:
    """What is there, and which of it is asked for. For several threads."""

    def __init__(self, count: int) -> None:
        self._inserted = itertools.count(count)
        self._known = count
        self._weights = list(itertools.accumulate(1 / rank**ZIPFIAN for rank in range(1, 100 * count)))

    def insert(self) -> int:
        return next(self._inserted)

    def note(self, record: int) -> None:
        """It is committed. Some before it may not be: a read of one that is not there counts as any."""
        self._known = max(self._known, record + 1)

    def choose(self, generator: random.Random, *, newest_first: bool) -> int:
        """By rank: the most popular records lie anywhere, or at the end."""
        known = min(self._known, len(self._weights))
        rank = bisect.bisect_left(self._weights, generator.random() * self._weights[known - 1], hi=known - 1)
        return self._known - 1 - rank if newest_first else zlib.crc32(b"rank%d" % rank) % self._known


def operations(workload: Workload, records: Records, seed: int) -> Callable[[], Operation]:
    generator = random.Random(seed)
    kinds, shares = list(workload.shares), list(workload.shares.values())

    def next_operation() -> Operation:
        (kind,) = generator.choices(kinds, shares)
        if kind == "insert":
            record = records.insert()
            return Operation(kind, key_of(record), new_row(generator))
        key = key_of(records.choose(generator, newest_first=workload.newest_first))
        if kind == "scan":
            return Operation(kind, key, {}, generator.randint(1, SCAN_ROWS_MAX))
        return Operation(kind, key, {generator.choice(FIELDS): generator.randbytes(FIELD_BYTES)})

    return next_operation


def new_row(generator: random.Random) -> dict[bytes, bytes]:
    return {name: generator.randbytes(FIELD_BYTES) for name in FIELDS}


# One operation in a transaction, blocking and with awaits


def perform(db: pyomid.Database, operation: Operation) -> None:
    def read(tx: pyomid.Transaction) -> None:
        tx.table(TABLE).get(operation.key)

    def scan(tx: pyomid.Transaction) -> None:
        list(tx.table(TABLE).scan(start=operation.key, limit=operation.rows))

    def write(tx: pyomid.Transaction) -> None:
        tx.table(TABLE).put(operation.key, operation.cells)

    def modify(tx: pyomid.Transaction) -> None:
        table = tx.table(TABLE)
        table.get(operation.key)
        table.put(operation.key, operation.cells)

    db.run({"read": read, "scan": scan, "modify": modify}.get(operation.kind, write))


async def aperform(db: pyomid.aio.AsyncDatabase, operation: Operation) -> None:
    async def read(tx: pyomid.aio.AsyncTransaction) -> None:
        await (await tx.table(TABLE)).get(operation.key)

    async def scan(tx: pyomid.aio.AsyncTransaction) -> None:
        table = await tx.table(TABLE)
        _ = [row async for row in table.scan(start=operation.key, limit=operation.rows)]

    async def write(tx: pyomid.aio.AsyncTransaction) -> None:
        await (await tx.table(TABLE)).put(operation.key, operation.cells)

    async def modify(tx: pyomid.aio.AsyncTransaction) -> None:
        table = await tx.table(TABLE)
        await table.get(operation.key)
        await table.put(operation.key, operation.cells)

    await db.run({"read": read, "scan": scan, "modify": modify}.get(operation.kind, write))


# Runs


@dataclass(slots=True)
class Run:
    """Latencies by kind of operation, in seconds."""

    taken: dict[str, list[float]] = field(default_factory=dict)
    elapsed_s: float = 0.0

    def note(self, operation: Operation, taken_s: float, records: Records) -> None:
        self.taken.setdefault(operation.kind, []).append(taken_s)
        if operation.kind == "insert":
            records.note(int(operation.key[14:]))


def run_threads(db: pyomid.Database, sources: Sequence[Callable[[], Operation]], each: int, records: Records) -> Run:
    run = Run()

    def client(source: Callable[[], Operation]) -> None:
        for _ in range(each):
            operation, began = source(), time.perf_counter()
            perform(db, operation)
            run.note(operation, time.perf_counter() - began, records)

    threads = [threading.Thread(target=client, args=(source,)) for source in sources]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run.elapsed_s = time.perf_counter() - began
    return run


def run_tasks(url: str, sources: Sequence[Callable[[], Operation]], each: int, records: Records) -> Run:
    run = Run()

    async def client(db: pyomid.aio.AsyncDatabase, source: Callable[[], Operation]) -> None:
        for _ in range(each):
            operation, began = source(), time.perf_counter()
            await aperform(db, operation)
            run.note(operation, time.perf_counter() - began, records)

    async def main() -> None:
        async with await pyomid.aio.connect(url) as db:
            await db.tables()
            began = time.perf_counter()
            await asyncio.gather(*(client(db, source) for source in sources))
            run.elapsed_s = time.perf_counter() - began

    asyncio.run(main())
    return run


def load(db: pyomid.Database, count: int, generator: random.Random) -> None:
    if any(table.name == TABLE for table in db.tables()):
        db.drop_table(TABLE)
    db.create_table(TABLE, families=["f"])
    for first in range(0, count, LOAD_ROWS):
        with db.begin() as tx:
            table = tx.table(TABLE)
            for record in range(first, min(first + LOAD_ROWS, count)):
                table.put(key_of(record), new_row(generator))
    assert db.drain(60)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?")
    for name, default in (("records", 1_000), ("operations", 2_000), ("clients", 8), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--workloads", default="ABCDEF")
    parser.add_argument("--asyncio", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        return measure(options.url or f"omid://{folder}/ycsb", options)


def measure(url: str, options: argparse.Namespace) -> int:
    way = "asyncio tasks" if options.asyncio else "threads"
    report = Report(f"YCSB over {url.partition('://')[0]}: {options.clients} {way}, seed {options.seed}")
    lines = ["| workload | operations/s | latencies, p50 · p99 |", "| --- | --- | --- |"]
    with pyomid.connect(url) as db:
        load(db, options.records, random.Random(options.seed))
        records = Records(options.records)
        try:
            for name in options.workloads:
                seeds = range(options.seed * 1_000, options.seed * 1_000 + options.clients)
                each = options.operations // options.clients
                sources = [operations(WORKLOADS[name], records, seed) for seed in seeds]
                if options.asyncio:
                    run = run_tasks(url, sources, each, records)
                else:
                    run = run_threads(db, sources, each, records)
                lines.append(show(report, name, run, each * options.clients))
        finally:
            db.drop_table(TABLE)
    print("\n" + "\n".join(lines) + "\n")
    return report.finish()


def show(report: Report, name: str, run: Run, count: int) -> str:
    report.show(Sample(f"workload {name}", (run.elapsed_s,), count, "operations"))
    parts = []
    for kind, taken in sorted(run.taken.items()):
        p50, p99 = report.latencies(f"workload {name}: {kind}", taken)
        parts.append(f"{kind} {p50 * 1e3:.3g} · {p99 * 1e3:.3g} ms")
    return f"| {name} | {quantity(count / run.elapsed_s)} | {', '.join(parts)} |"


if __name__ == "__main__":
    sys.exit(main())
