"""The embedded client's own costs: a one-write transaction, and a point get, against what they are made of.

one-write transaction ÷ one durable LMDB commit                             reported
point get ÷ the raw LMDB get of the same record                             reported
begin, get and commit with observers ÷ without                              reported

The parts are measured in the same run, in turns with the whole: a durable commit is one LMDB write transaction of 100
bytes into an environment of this benchmark's own, on the same disk.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lmdb
from benchmarks._report import Report
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry

import pyomid
from pyomid.observe import Metrics, Observer, Spans

RUNS = 15
CALLS = 100
GETS = 2_000
"""Calls in one run; the figures are medians of the runs, which take turns."""


def durable_commit(folder: Path) -> Callable[[], None]:
    """One write transaction with a record of 100 bytes."""
    environment = lmdb.open(str(folder), map_size=1 << 30)
    numbers = iter(range(1 << 40))

    def call() -> None:
        with environment.begin(write=True) as transaction:
            transaction.put(b"%016d" % next(numbers), b"v" * 100)

    return call


def raw_get(folder: Path) -> Callable[[], Any]:
    """One get of a 100-byte record in a read transaction of its own, as every fresh read needs one."""
    environment = lmdb.open(str(folder), map_size=1 << 30)
    with environment.begin(write=True) as transaction:
        for number in range(1000):
            transaction.put(b"%016d" % number, b"v" * 100)
    key = b"%016d" % 500

    def call() -> Any:
        with environment.begin() as transaction:
            return transaction.get(key)

    return call


def repeated(call: Callable[[], Any], calls: int) -> Callable[[], None]:
    def work() -> None:
        for _ in range(calls):
            call()

    return work


def main() -> int:
    report = Report("embedded: one transaction, one get")
    with tempfile.TemporaryDirectory(prefix="pyomid-bench-") as name:
        with pyomid.connect(f"omid://{name}/db") as db:
            db.create_table("t", families=["f"])
            measure_transaction(report, db, Path(name))
            measure_get(report, db, Path(name))
        measure_observers(report, f"omid://{name}/db")
    return report.finish()


def measure_transaction(report: Report, db: pyomid.Database, folder: Path) -> None:
    numbers = iter(range(1 << 40))

    def one_write() -> None:
        with db.begin() as tx:
            tx.table("t").put(b"%016d" % next(numbers), {b"f:x": b"v" * 100})

    commit = durable_commit(folder / "peer")
    works = {
        "durable LMDB commit": repeated(commit, CALLS),
        "one-write transaction": repeated(one_write, CALLS),
    }
    floor, ours = report.measure_together(works, items=CALLS, unit="calls", runs=RUNS)
    db.drain()
    report.ratio("one-write transaction ÷ one LMDB commit", ours.item_us, floor.item_us)
    report.note("limit: cells and outcome are one LMDB transaction, with its two syncs")


def measure_get(report: Report, db: pyomid.Database, folder: Path) -> None:
    key = b"%016d" % 5
    with db.begin() as tx:
        table = tx.table("t")
        assert table.get(key)
        works = {"raw LMDB get": raw_get(folder / "peer-get"), "point get": lambda: table.get(key)}
        raw, ours = report.measure_together(
            {name: repeated(work, GETS) for name, work in works.items()}, items=GETS, unit="gets", runs=RUNS
        )
    report.ratio("point get ÷ raw LMDB get, time", ours.item_us, raw.item_us)
    report.note("limit: Python; a get is a read of the cells, one of the watermarks, and the choice of versions")


def measure_observers(report: Report, url: str) -> None:
    """begin, get, commit, of the client by itself and with each observer."""

    def reads(db: pyomid.Database) -> Callable[[], None]:
        def call() -> None:
            with db.begin() as tx:
                tx.table("t").get(b"%016d" % 5)

        return call

    with ExitStack() as opened:
        kinds: dict[str, list[Observer]] = {
            "no observer": [],
            "an empty one": [Observer()],
            "Metrics": [Metrics(CollectorRegistry())],
            "Spans": [Spans(TracerProvider())],
        }
        works = {
            f"begin + get + commit, {kind}": repeated(
                reads(opened.enter_context(pyomid.connect(url, observers=observers))), CALLS
            )
            for kind, observers in kinds.items()
        }
        none, *others = report.measure_together(works, items=CALLS, unit="calls", runs=RUNS)
    for kind, sample in zip(list(kinds)[1:], others, strict=True):
        report.ratio(f"with {kind} ÷ without, time", sample.item_us, none.item_us)


if __name__ == "__main__":
    sys.exit(main())
