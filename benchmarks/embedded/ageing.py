"""A folder that a service raises counters in, beside a fresh one: its size, `get` and scan, with no command run.

Options: --transactions (200 000), --keys (1 000), --threads (8), --age (2), the folder's maxTransactionAgeSeconds: how
far W lies behind at most; --share (0.1), its upkeepShare: with 0 nothing is cleaned, and size grows; --retention (0),
for how long history is kept: with 1h nothing of this run goes, and what that costs is seen.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks._report import Report

import pyomid
from pyomid.config import duration_s
from pyomid.database.database import Database

VALUE = b"f:count"
GETS = 2_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=200_000)
    parser.add_argument("--keys", type=int, default=1_000)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--age", type=float, default=2.0)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--retention", default="0")
    options = parser.parse_args()
    report = Report(f"embedded: {options.transactions} one-write transactions on {options.keys} keys, no command run")
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        settings = f"maxTransactionAgeSeconds={options.age}&upkeepShare={options.share}&retention={options.retention}"
        urls = [f"omid://{folder}/{name}?{settings}" for name in ("fresh", "aged")]
        with pyomid.connect(urls[0]) as fresh, pyomid.connect(urls[1]) as aged:
            for db in (fresh, aged):
                fill(db, options.keys)
            began = time.monotonic()
            raise_counters(aged, options.transactions, options.keys, options.threads)
            seconds = time.monotonic() - began
            report.note(f"{options.transactions / seconds:.0f} transactions a second for {seconds:.0f} s")
            is_bound = duration_s(options.retention) == 0
            compare(report, fresh, aged, options.keys, is_bound=is_bound)
            compare_sizes(report, Path(folder), is_bound=is_bound)
    return report.finish()


def fill(db: Database, keys: int) -> None:
    db.create_table("t", families=["f"])
    for first in range(0, keys, 100):
        with db.begin() as tx:
            for key in range(first, min(first + 100, keys)):
                tx.table("t").put(b"%08d" % key, {VALUE: b"0"})
    assert db.drain(30)


def raise_counters(db: Database, transactions: int, keys: int, threads: int) -> None:
    def work(thread: int) -> None:
        for number in range(thread, transactions, threads):
            key = b"%08d" % (number * 7 % keys)

            def put(tx: pyomid.Transaction, key: bytes = key, value: bytes = b"%d" % number) -> None:
                tx.table("t").put(key, {VALUE: value})

            db.run(put)

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert db.drain(30)


def compare(report: Report, fresh: Database, aged: Database, keys: int, *, is_bound: bool) -> None:
    def get(db: Database) -> Callable[[], None]:
        def work() -> None:
            with db.begin(lease=True) as tx:  # a busy machine may take longer than --age
                table = tx.table("t")
                for number in range(GETS):
                    table.get(b"%08d" % (number % keys))

        return work

    def scan(db: Database) -> Callable[[], None]:
        def work() -> None:
            with db.begin(lease=True) as tx:  # a busy machine may take longer than --age
                assert sum(1 for _ in tx.table("t").scan()) == keys

        return work

    young, old = report.measure_together(
        {"get in a fresh folder": get(fresh), "get in the aged folder": get(aged)}, items=GETS, unit="gets"
    )
    report.ratio("get: fresh ÷ aged, rates", young, old, at_most=1.5 if is_bound else None)
    young, old = report.measure_together(
        {"scan of a fresh folder": scan(fresh), "scan of the aged folder": scan(aged)}, items=keys, unit="rows"
    )
    report.ratio("scan: fresh ÷ aged, rates", young, old, at_most=2 if is_bound else None)


def compare_sizes(report: Report, folder: Path, *, is_bound: bool) -> None:
    sizes = {
        name: sum(file.stat().st_blocks * 512 for file in (folder / name).rglob("*")) for name in ("fresh", "aged")
    }
    data = {name: (folder / name / "data" / "data.mdb").stat().st_blocks * 512 for name in ("fresh", "aged")}
    for name in ("fresh", "aged"):
        report.note(f"{name}: {sizes[name] / 1e6:.1f} MB on the disk, {data[name] / 1e6:.2f} MB of them the rows' file")
    report.ratio("the folder's size: aged ÷ fresh", sizes["aged"], sizes["fresh"], at_most=2 if is_bound else None)


if __name__ == "__main__":
    sys.exit(main())
