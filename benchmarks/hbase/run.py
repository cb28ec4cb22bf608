"""HBase: the native client beside the Java client, pyomid beside Apache Omid; on one HBase, in one run.

Starts its own HBase, pyomid's TSO and the Java TSO, in a temporary folder or `--dir`. Sizes by `--rows`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from benchmarks._report import Report, Sample
from benchmarks.hbase._server import started_hbase

import pyomid
import pyomid.aio
from java_omid import JavaClient, JavaTso
from pyomid.cells import CellBatch, batch_of
from pyomid.cli.hbase import HBaseServer
from pyomid.database.async_database import AsyncDatabase
from pyomid.database.database import Database
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.codec.layout import SystemNames
from pyomid.omid.hbase.commit_table import HBaseCommitTable
from pyomid.omid.hbase.deployment import create_database
from pyomid.omid.hbase.store import HBaseStore
from pyomid.protocol.hashing import table_id
from pyomid.protocol.native.hashing import name_ids
from pyomid.protocol.reading import CommitCache, Snapshot, read_batch
from pyomid.types import Cell, CommitRequest, KeyRange, TableInfo

CELLS = 5
RUNS = 3
SCANS = 9
SCANS_WARM = 5
"""Three JVMs compile what a scan needs while the first ones run: both sides' times halve until they are done."""
SCANS_BESIDE = 21
UNHEALED_WARM = 60
"""A scan of what is not healed asks ten times for a few commit entries: until that is compiled too."""
ONE_WRITES = 200
TASKS = 200
TASK_WRITES = 16
WARM_WRITES = 6_000
"""By 16 threads of each side before one-write transactions are measured, as with scans."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, help="keep HBase's folder here, and use it again")
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument(
        "--only", default="raw,commits,snapshots,points,unregistered,loads", help="default: %(default)s"
    )
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = arguments.dir or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        setting = stack.enter_context(Setting.started(folder))
        report = Report("HBase: native client and transactions, Java peers in the same run")
        parts: dict[str, Callable[[], None]] = {
            "raw": lambda: raw(report, setting, arguments.rows),
            "commits": lambda: commit_entries(report, setting),
            "snapshots": lambda: snapshots(report, setting, arguments.rows),
            "points": lambda: point_transactions(report, setting),
            "unregistered": lambda: unregistered_tables(report, setting),
            "loads": lambda: loads(report, setting),
        }
        for name in arguments.only.split(","):
            parts[name]()
        report.finish()
    return 0


class Setting:
    """What all of them run on."""

    def __init__(
        self, server: HBaseServer, cluster: Cluster, database: Database, java: JavaClient, our_tso: str
    ) -> None:
        self.server, self.cluster, self.database, self.java = server, cluster, database, java
        self._our_tso = our_tso
        self.store = HBaseStore(cluster)

    @classmethod
    @contextmanager
    def started(cls, folder: Path) -> Iterator[Setting]:
        with ExitStack() as stack:
            server, cluster = started_hbase(stack, folder)
            create_database(cluster)
            url = f"omid+hbase://{server.quorum}/hbase"
            address = stack.enter_context(our_tso(url, folder / "tso.log")).address
            database = stack.enter_context(pyomid.connect(url))
            port = server.ports.zookeeper
            # The Java side works on tables of its own and under its own TSO, with the same commit table. Each TSO dies
            # if the other moves its ceiling, so Omid's has one of its own; its timestamps are times, as ours are.
            omid = JavaTso(
                folder / "java-tso",
                zookeeper_port=port,
                ceiling_in_zookeeper=True,
                names=SystemNames(zookeeper_namespace="java"),
                timestamp_type="WORLD_TIME",
            )
            java_tso = stack.enter_context(omid)
            java = stack.enter_context(java_peer(port, java_tso.address))
            yield cls(server, cluster, database, java, address)

    def fresh_table(self, name: str) -> str:
        self.store.drop_table(name)
        self.store.create_table(TableInfo(name, (b"f",)))
        return name

    def java_on_our_tso(self) -> JavaClient:
        return java_peer(self.server.ports.zookeeper, self._our_tso)

    def java_work(self, *words: str) -> tuple[float, int, list[str]]:
        seconds, items, *rest = self.java.ask(*words).split("\t")
        return float(seconds), int(items), rest


def java_peer(zookeeper_port: int, tso: str) -> JavaClient:
    peers = Path(__file__).parent / "java"
    return JavaClient(zookeeper_port, tso, sources=peers, main="org.apache.omid.transaction.Peer")


class OurTso(NamedTuple):
    address: str
    pid: int


@contextmanager
def our_tso(url: str, log: Path, *options: str) -> Iterator[OurTso]:
    command = [sys.executable, "-m", "pyomid", "tso", "--listen", "127.0.0.1:0", "--store", url, *options]
    with open(log, "ab") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"the TSO did not start: {log.read_text()[-1000:]}")
        yield OurTso(line.split()[-1], process.pid)
    finally:
        process.terminate()
        process.wait()


def batch(first: int, end: int) -> CellBatch:
    return batch_of(
        [
            [Cell(b"row%08d" % row, b"f", b"q%d" % cell, 1, b"value%08d" % row) for cell in range(CELLS)]
            for row in range(first, end)
        ]
    )


def turns(
    report: Report,
    name: str,
    unit: str,
    ours: Callable[[], int],
    theirs: Callable[[], tuple[float, int, list[str]]],
    *,
    warm: int = 1,
    runs: int = RUNS,
) -> tuple[Sample, Sample]:
    """Both `warm` times first, then in turns."""
    mine: list[float] = []
    java: list[float] = []
    items = 0
    for turn in range(warm + runs):
        begun = time.perf_counter()
        items = ours()
        seconds = time.perf_counter() - begun
        their_seconds, their_items, _ = theirs()
        assert items == their_items, f"{name}: {items} against {their_items}"
        if turn >= warm:
            mine.append(seconds)
            java.append(their_seconds)
    return (
        report.show(Sample(f"{name}, pyomid", tuple(mine), items, unit)),
        report.show(Sample(f"{name}, Java", tuple(java), items, unit)),
    )


def raw(report: Report, setting: Setting, rows: int) -> None:
    """Cells without transactions."""
    batches = [batch(first, min(rows, first + 1000)) for first in range(0, rows, 1000)]
    ours, theirs = setting.fresh_table("bench_ours"), setting.fresh_table("bench_theirs")
    versions = iter(range(1, 100))

    def put() -> int:
        version = next(versions)
        for each in batches:
            setting.store.write_batch(ours, version, each)
        return rows

    puts = turns(
        report, "batched puts of 5 cells", "rows", put,
        lambda: setting.java_work("puts", theirs, str(rows), str(CELLS), "1000", str(next(versions))),
    )  # fmt: skip
    report.ratio("batched puts ÷ Java client", *puts, at_least=1.2)

    def scan() -> int:
        return sum(each.cells for each in setting.store.scan(ours, KeyRange()))

    scans = turns(
        report, "raw scan", "cells", scan, lambda: setting.java_work("scan", ours), warm=SCANS_WARM, runs=SCANS
    )
    report.ratio("raw scan ÷ Java client", *scans, at_least=1.3)


def commit_entries(report: Report, setting: Setting) -> None:
    """HBase's own ceiling for a TSO's puts: what the commit table takes from one writer."""
    table = HBaseCommitTable(setting.cluster)
    entries = np.array([(start * 50, start * 50 + 500) for start in range(1, 40_001)], dtype=np.int64)
    for size in (1_000, 8_000):
        report.measure(
            f"commit entries put, {size} at once",
            lambda size=size: [table.put_block(entries[at : at + size]) for at in range(0, len(entries), size)],  # type: ignore[misc]
            items=len(entries), unit="entries", runs=RUNS,
        )  # fmt: skip
    table.delete(entries[:, 0].tolist())


def snapshots(report: Report, setting: Setting, rows: int) -> None:
    """Reads at a snapshot, of data with shadow cells; ours count every step up to the visible cells of a batch."""
    database = setting.database
    table = setting.fresh_table("bench_snapshot")
    database.create_table(table, ["f"], if_not_exists=True)
    # By ours: the Java TSO came later, so its timestamps are above ours, and it sees what we wrote, not we its.
    for first in range(0, rows, 1000):
        bulk_transaction(database, table, batch(first, first + 1000))

    def scan(table: str = table) -> int:
        """As a Spark task reads: every start without a shadow cell looked up once."""
        found, cache, snapshot = 0, CommitCache(100_000), database._core.deployment.tso.begin()
        reader = Snapshot(snapshot.start_ts, snapshot.epoch)
        for each in chain(setting.store.scan(table, KeyRange()), (None,)):
            seen = database._core.driver.run(read_batch(database.table_info(table), each, None, reader, cache))
            found += 0 if seen is None else len(seen[1].cells)
        return found

    samples = turns(
        report, "snapshot scan", "user cells", scan, lambda: setting.java_work("snapshot-scan", table),
        warm=SCANS_WARM, runs=SCANS,
    )  # fmt: skip
    report.ratio("snapshot scan ÷ Java Omid", *samples, at_least=3.5)
    snapshot_beside_raw(report, setting, rows, table, scan, "snapshot scan")
    unhealed(report, setting, rows, scan)

    def gets() -> int:
        for row in range(ONE_WRITES):
            setting.store.read_rows(table, [b"row%08d" % row])
        return ONE_WRITES

    get_samples = turns(
        report, "snapshot get", "gets", gets, lambda: setting.java_work("snapshot-get", table, str(ONE_WRITES))
    )
    report.ratio("snapshot get ÷ Java Omid", *get_samples, at_least=1.2)


def unhealed(report: Report, setting: Setting, rows: int, scan: Callable[[str], int]) -> None:
    """Bulk-written, committed, no shadow cell yet: the commit table decides."""
    table = setting.fresh_table("bench_unhealed")
    setting.database.create_table(table, ["f"], if_not_exists=True)
    for first in range(0, rows, 1000):
        bulk_transaction(setting.database, table, batch(first, first + 1000), complete=False)
    for _ in range(UNHEALED_WARM):
        assert scan(table) == rows // 1000 * 1000 * CELLS
    snapshot_beside_raw(report, setting, rows, table, scan, "snapshot scan, not healed")


def snapshot_beside_raw(
    report: Report, setting: Setting, rows: int, table: str, scan: Callable[[str], int], name: str
) -> None:
    """In turns, as both are mostly the server's work, whose speed changes from second to second."""
    works: dict[str, Callable[[], object]] = {
        name: lambda: scan(table),
        f"our raw scan beside the {name}": lambda: sum(each.cells for each in setting.store.scan(table, KeyRange())),
    }
    cells = rows // 1000 * 1000 * CELLS
    report.ratio(
        f"{name} ÷ our raw scan", *report.measure_together(works, items=cells, unit="user cells", runs=SCANS_BESIDE),
        at_least=0.92,
    )  # fmt: skip


def point_transactions(report: Report, setting: Setting) -> None:
    """One write a transaction: threads of both sides in turns, then tasks beside our own threads."""
    database = setting.database
    name = "bench_one"
    setting.fresh_table(name)
    database.create_table(name, ["f"], if_not_exists=True)
    run_threads(16, lambda lane: one_writes(database, name, lane, WARM_WRITES // 16, []))
    setting.java_work("one-write", name, str(WARM_WRITES // 16), "16")
    for threads in (1, 16):
        count = ONE_WRITES if threads == 1 else ONE_WRITES // 2
        taken: list[float] = []
        p50s: list[float] = []

        def ours(threads: int = threads, count: int = count, taken: list[float] = taken) -> int:
            taken.clear()
            run_threads(threads, lambda lane: one_writes(database, name, lane, count, taken))
            return threads * count

        def theirs(
            threads: int = threads, count: int = count, taken: list[float] = taken, p50s: list[float] = p50s
        ) -> tuple[float, int, list[str]]:
            p50s.append(sorted(taken)[len(taken) // 2])
            database.drain(60.0)
            return setting.java_work("one-write", name, str(count), str(threads))

        samples = turns(
            report, f"one-write, {threads} threads", "tx", ours, theirs, warm=2, runs=5 if threads == 1 else RUNS
        )
        goal = 10.0 if threads == 1 else 4.0
        report.ratio(f"one-write, {threads} threads ÷ Java Omid", *samples, at_least=goal)
        if threads == 1:
            report.ratio(
                "one-write p50 in ms, median of the turns", statistics.median(p50s[2:]) * 1e3, 1.0, at_most=1.7
            )
    asyncio.run(tasks_beside_threads(report, database, name))


async def tasks_beside_threads(report: Report, database: Database, name: str) -> None:
    """200 tasks of one loop, which does nothing while the threads have their turn."""
    taken: dict[str, list[float]] = {"tasks": [], "threads": []}
    seconds: dict[str, list[float]] = {"tasks": [], "threads": []}
    items = TASKS * TASK_WRITES
    async with await pyomid.aio.connect(database.url) as front:
        for turn in range(2 + RUNS):
            for side in taken:
                taken[side].clear()
                begun = time.perf_counter()
                if side == "tasks":
                    await asyncio.gather(*(one_writes_of_task(front, name, n, taken[side]) for n in range(TASKS)))
                else:
                    await asyncio.to_thread(
                        run_threads, 16, lambda lane: one_writes(database, name, lane, items // 16, taken["threads"])
                    )
                if turn >= 2:
                    seconds[side].append(time.perf_counter() - begun)
                await asyncio.to_thread(database.drain, 60.0)
                await front.drain(60.0)
    samples = [
        report.show(Sample(f"one-write, {what}", tuple(seconds[side]), items, "tx"))
        for side, what in (("tasks", f"{TASKS} tasks"), ("threads", "16 threads"))
    ]
    report.latencies(f"one-write, {TASKS} tasks, the last turn", taken["tasks"])
    report.ratio(f"one-write, {TASKS} tasks ÷ 16 threads", *samples, at_least=1.5)


async def one_writes_of_task(front: AsyncDatabase, table: str, number: int, taken: list[float]) -> None:
    for index in range(TASK_WRITES):
        begun = time.perf_counter()
        async with front.begin() as tx:
            await (await tx.table(table)).put(b"task-%03d-%06d" % (number, index), {b"f:q0": b"value"})
        taken.append(time.perf_counter() - begun)


def unregistered_tables(report: Report, setting: Setting) -> None:
    """Java clients of our TSO whose tables nobody has registered yet (K6), beside the same with registered ones."""
    known, unknown = setting.fresh_table("bench_known"), setting.fresh_table("bench_unknown")
    setting.database.create_table(known, ["f"], if_not_exists=True)
    with setting.java_on_our_tso() as java:
        rates: dict[str, list[float]] = {unknown: [], known: []}
        for turn in range(3 + 2 * RUNS):
            for table, found in list(rates.items())[:: 1 if turn % 2 else -1]:
                seconds, items, *_ = java.ask("one-write", table, str(ONE_WRITES // 2), "16").split("\t")
                if turn >= 3:
                    found.append(float(seconds) / int(items))
    samples = [
        report.show(Sample(f"Java client, 16 threads, our TSO, {what}", tuple(each), 1, "tx"))
        for what, each in zip(("unregistered", "registered"), rates.values(), strict=True)
    ]
    report.ratio("commits to an unregistered table ÷ registered", *samples, at_least=0.9)


def one_writes(database: Database, table: str, lane: int, count: int, taken: list[float]) -> None:
    for index in range(count):
        begun = time.perf_counter()
        with database.begin() as tx:
            tx.table(table).put(b"ours-%02d-%06d" % (lane, index), {b"f:q0": b"value"})
        taken.append(time.perf_counter() - begun)


def run_threads(count: int, work: Callable[[int], None]) -> None:
    threads = [threading.Thread(target=work, args=(lane,)) for lane in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def loads(report: Report, setting: Setting) -> None:
    """1000 rows of 5 cells a transaction, shadow cells and completion included: by the public client, as the Java side
    does it, and in bulk, without an object a cell."""
    database, transactions, rows = setting.database, 20, 1000
    ours, bulk, theirs = (setting.fresh_table(f"bench_load{which}") for which in ("", "_bulk", "_java"))
    for table in (ours, bulk, theirs):
        database.create_table(table, ["f"], if_not_exists=True)
    batches = [batch(index * rows, (index + 1) * rows) for index in range(transactions)]

    def load() -> int:
        load_by_transactions(database, ours, transactions, rows)
        return transactions * rows

    def load_in_bulk() -> int:
        for each in batches:
            bulk_transaction(database, bulk, each)
        return transactions * rows

    for name, work in (("by the public client", load), ("in bulk", load_in_bulk)):
        samples = turns(
            report, f"load, 1000 rows × 5 cells a transaction, {name}", "rows", work,
            lambda: setting.java_work("load", theirs, str(transactions), str(rows), str(CELLS)),
            warm=3, runs=5,
        )  # fmt: skip
        report.ratio(f"load ÷ Java Omid, {name}", *samples, at_least=3.5)


def load_by_transactions(database: Database, table: str, transactions: int, rows: int) -> None:
    """By the public client, the rows after each other, until all is completed."""
    for index in range(transactions):
        with database.begin() as tx:
            opened = tx.table(table)
            for row in range(index * rows, (index + 1) * rows):
                opened.put(b"row%08d" % row, {b"f:q%d" % cell: b"value%08d" % row for cell in range(CELLS)})
    database.drain(60.0)


def bulk_transaction(database: Database, table: str, rows: CellBatch, *, complete: bool = True) -> int:
    """Write, commit by row ids, shadow cells, completion. Returns the start."""
    parts, name = database._core.deployment, table.encode()
    start_ts = parts.tso.begin().start_ts
    parts.store.write_batch(table, start_ts, rows)
    ids = tuple(name_ids(name, [rows.row_key(index) for index in range(rows.rows)]))
    reply = parts.tso.commit(CommitRequest(start_ts, ids, (table_id(name),)))
    assert reply.committed
    if complete:
        written = replace(
            rows,
            rec_version=np.full(rows.records, start_ts, dtype=np.int64),
            rec_commit=np.full(rows.records, reply.commit_ts, dtype=np.int64),
        )
        parts.store.clean_batch(table, written, np.arange(rows.records), np.array([], dtype=np.int64))
        parts.commit_table.delete([start_ts])
    return start_ts


if __name__ == "__main__":
    sys.exit(main())
