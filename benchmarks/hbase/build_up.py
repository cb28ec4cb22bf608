"""Where the time over HBase goes: step by step from HBase's bare operation to the whole, all on one HBase, in turns.

    python -m benchmarks.hbase.build_up [--rows 50000] [--only scans,one-writes,loads]

    scans        bytes of a scan received, then decoded, then resolved by a snapshot with its looks at W, then as rows
    one-writes   1 and 16 threads: a put, a begin before it, a commit behind it (its entry is a put, too), completion
    loads        1000 rows of 5 cells: their put, then begin and commit, then shadow cells, then the public client

Beside each rate stands the processor time of one item: of the client (this process), of the TSO and of HBase. Two cores
have two seconds of it in a second; that bounds the rate, whatever waits for what.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Final

from benchmarks._report import machine_lines, quantity
from benchmarks.hbase._server import started_hbase
from benchmarks.hbase.run import CELLS, batch, bulk_transaction, load_by_transactions, our_tso, run_threads

import pyomid
from pyomid.database.database import Database
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.deployment import create_database
from pyomid.omid.hbase.regions.scan_cursor import ScanSpec
from pyomid.omid.hbase.rpc.requests import ALL_VERSIONS
from pyomid.omid.hbase.store import HBaseStore
from pyomid.protocol.hashing import cell_id, table_id
from pyomid.protocol.native.hashing import name_ids
from pyomid.protocol.reading import CommitCache, Snapshot, read_batch
from pyomid.types import Column, CommitRequest, KeyRange, RowWrite, TableInfo

WARM: Final = 4
ROUNDS: Final = 7
ONE_WRITES: Final = 1600
LOADS: Final = 10
LOAD_ROWS: Final = 1000
_TICKS_S: Final = os.sysconf("SC_CLK_TCK")


class Setting:
    """One HBase, one TSO, and who spends processor time."""

    def __init__(self, cluster: Cluster, database: Database, pids: Mapping[str, int]) -> None:
        self.cluster, self.database, self._pids = cluster, database, pids
        self.store = HBaseStore(cluster)

    def table(self, name: str) -> str:
        self.store.create_table(TableInfo(name, (b"f",)))
        self.database.create_table(name, ["f"], if_not_exists=True)
        return name

    def cpu_s(self) -> dict[str, float]:
        return {who: _cpu_s(pid) for who, pid in self._pids.items()}

    def in_turns(self, title: str, unit: str, items: int, steps: Mapping[str, Callable[[], object]]) -> None:
        """Rates are medians, processor time is the mean of the rounds that count."""
        print(f"\n{title}")
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        spent: dict[str, dict[str, float]] = {name: dict.fromkeys(self._pids, 0.0) for name in steps}
        for turn in range(WARM + ROUNDS):
            for name, work in steps.items():
                before, begun = self.cpu_s(), time.perf_counter()
                work()
                elapsed = time.perf_counter() - begun
                self.database.drain(60.0)
                if turn >= WARM:
                    seconds[name].append(elapsed)
                    after = self.cpu_s()
                    for who in after:
                        spent[name][who] += after[who] - before[who]
        bare = statistics.median(next(iter(seconds.values())))
        print(f"| step | {unit}/s | ÷ bare | µs by the clock | µs of processor time: {', '.join(self._pids)} |")
        print("| --- | --- | --- | --- | --- |")
        for name, taken in seconds.items():
            median = statistics.median(taken)
            cpu = ", ".join(f"{each / ROUNDS / items * 1e6:.3g}" for each in spent[name].values())
            print(
                f"| {name} | {quantity(items / median)} ({quantity(items / max(taken))} … "
                f"{quantity(items / min(taken))}) | {bare / median:.2f} | {median / items * 1e6:.3g} | {cpu} |",
                flush=True,
            )


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_S


def scans(setting: Setting, rows: int) -> None:
    database, store = setting.database, setting.store
    cells = rows // 1000 * 1000 * CELLS
    for name, complete in (("healed", True), ("not healed", False)):
        table = setting.table(f"scan_{name[:3]}")
        for first in range(0, rows, 1000):
            bulk_transaction(database, table, batch(first, first + 1000), complete=complete)
        spec = ScanSpec(table, KeyRange(), max_versions=ALL_VERSIONS, rows_per_call=10_000, is_fresh=True)

        def received(spec: ScanSpec = spec) -> None:
            found = setting.cluster.scan(spec)
            while found.fetch() is not None:
                pass

        def decoded(table: str = table) -> None:
            assert sum(each.cells for each in store.scan(table, KeyRange())) >= cells

        def seen(table: str = table) -> None:
            found, cache, begun = 0, CommitCache(100_000), database._core.deployment.tso.begin()
            reader = Snapshot(begun.start_ts, begun.epoch)
            for each in chain(store.scan(table, KeyRange()), (None,)):
                result = database._core.driver.run(read_batch(database.table_info(table), each, None, reader, cache))
                found += 0 if result is None else len(result[1].cells)
            assert found == cells

        def as_rows(table: str = table) -> None:
            with database.snapshot() as tx:
                assert sum(len(row) for _, row in tx.table(table).scan()) == cells

        steps: dict[str, Callable[[], object]] = {
            "received, one call at a time, not decoded": received,
            "+ three calls at once, decoded": decoded,
            "+ resolved by a snapshot": seen,
        }
        if complete:
            steps["+ as rows of the client"] = as_rows
        setting.in_turns(f"Scan of {cells} user cells, {name}", "user cells", cells, steps)


def one_writes(setting: Setting) -> None:
    database, deployment = setting.database, setting.database._core.deployment
    table = setting.table("one")
    column, tables = Column(b"f", b"q0"), (table_id(table.encode()),)

    def put(row: bytes, start_ts: int) -> None:
        deployment.store.write_cells(table, start_ts, [RowWrite(row, ((column, b"value"),))])

    def bare(row: bytes, version: int) -> None:
        put(row, version)

    def begun(row: bytes, _: int) -> None:
        beginning = deployment.tso.begin()
        put(row, beginning.start_ts)
        beginning.end()

    def committed(row: bytes, _: int) -> None:
        beginning = deployment.tso.begin()
        put(row, beginning.start_ts)
        ids = (cell_id(table.encode(), row, *column),)
        assert deployment.tso.commit(CommitRequest(beginning.start_ts, ids, tables)).committed
        beginning.end()

    def whole(row: bytes, _: int) -> None:
        with database.begin() as tx:
            tx.table(table).put(row, {b"f:q0": b"value"})

    versions = iter(range(1, 1 << 30))
    for threads in (1, 16):
        count = ONE_WRITES // (4 if threads == 1 else 1) // threads

        def by_threads(work: Callable[[bytes, int], None], threads: int = threads, count: int = count) -> None:
            def lane(number: int) -> None:
                for index in range(count):
                    work(b"%02d-%06d" % (number, index), next(versions))

            run_threads(threads, lane)

        steps = {"one put": bare, "+ begin": begun, "+ commit, its entry": committed, "+ the client, completion": whole}
        setting.in_turns(
            f"One write a transaction, {threads} threads", "tx", threads * count,
            {name: lambda work=work: by_threads(work) for name, work in steps.items()},  # type: ignore[misc]
        )  # fmt: skip


def loads(setting: Setting) -> None:
    database, deployment = setting.database, setting.database._core.deployment
    table = setting.table("load")
    batches = [batch(index * LOAD_ROWS, (index + 1) * LOAD_ROWS) for index in range(LOADS)]
    versions = iter(range(1, 1 << 30))

    def put() -> None:
        for each in batches:
            deployment.store.write_batch(table, next(versions), each)

    def committed(*, complete: bool = False) -> None:
        for each in batches:
            bulk_transaction(database, table, each, complete=complete)

    def ids() -> None:
        for each in batches:
            name_ids(table.encode(), [each.row_key(index) for index in range(each.rows)])
            deployment.store.write_batch(table, next(versions), each)

    setting.in_turns(
        f"Load, {LOAD_ROWS} rows × {CELLS} cells a transaction", "rows", LOADS * LOAD_ROWS,
        {
            "the rows put": put,
            "+ ids of rows": ids,
            "+ begin and commit": committed,
            "+ shadow cells, completion": lambda: committed(complete=True),
            "+ the public client": lambda: load_by_transactions(database, table, LOADS, LOAD_ROWS),
        },
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--only", default="scans,one-writes,loads", help="default: %(default)s")
    arguments = parser.parse_args()
    print("\n".join(machine_lines()))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server, cluster = started_hbase(stack, folder)
        create_database(cluster)
        url = f"omid+hbase://{server.quorum}/hbase"
        tso = stack.enter_context(our_tso(url, folder / "tso.log"))
        database = stack.enter_context(pyomid.connect(url))
        pids = {"client": os.getpid(), "TSO": tso.pid, "HBase": server.pid}
        setting = Setting(cluster, database, pids)
        parts: dict[str, Callable[[], None]] = {
            "scans": lambda: scans(setting, arguments.rows),
            "one-writes": lambda: one_writes(setting),
            "loads": lambda: loads(setting),
        }
        for name in arguments.only.split(","):
            parts[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main())
