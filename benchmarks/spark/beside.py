"""A Spark load beside point writers of another process: what it costs them, and how often it loses to them.

    python -m benchmarks.spark.beside [rows=100000] [tries=5] [writers=4] [pause_ms=5] [large=5000000] [at_once=3]
                                      [service_rows=300000]

1. Threads write single rows of the loaded table that the load does not touch, with a pause after each transaction. The
   loads claim the table (level table), or report their rows (level auto): one after the other, several at once, and one
   that is large. Reported: how many loads lost (goal, except at level table: none), the writers' rate, their aborts and
   slowest transactions. Goal: 0.9 of the writers' rate beside loads that claim, which take as much of the processors.
   `large=0`: no large load.
2. A service writes single rows of another table in one loop, without a pause, while one job loads `service_rows`. Goal:
   the service's p99 ≤ 50 ms. `tries=0` runs this part alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from benchmarks._report import Report
from benchmarks.spark._setting import PARTS, Setting, setting

import pyomid
from pyomid.errors import ConflictError

FAMILY_COLUMN = b"d:v"


def main() -> int:
    if sys.argv[1:2] == ["writers"]:
        return point_writers(sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
    asked = dict(text.split("=", 1) for text in sys.argv[1:])
    rows, tries, writers = (int(asked.get(*each)) for each in (("rows", "100000"), ("tries", "5"), ("writers", "4")))
    pause_s, service_rows = float(asked.get("pause_ms", "5")) / 1_000, int(asked.get("service_rows", "300000"))
    large, at_once = int(asked.get("large", "5000000")), int(asked.get("at_once", "3"))
    report = Report(f"Spark: loads beside point writers of another process, local[{PARTS}]")
    with setting("leaseSeconds=60") as at:
        one_load(at, rows, "table")
        beside_a_service(report, at, service_rows)
        works: dict[str, tuple[int, Callable[[], object]]] = {
            "no load": (0, lambda: time.sleep(3)),
            f"{tries} loads, level table": (tries, lambda: loads(at, rows, "table", tries)),
            f"{tries} loads": (tries, lambda: loads(at, rows, "auto", tries)),
            f"{at_once} loads at once": (at_once, lambda: loads_at_once(at, rows, at_once)),
            f"a load of {large} rows": (1, lambda: loads(at, large, "auto", 1)),
        }
        rates: dict[str, float] = {}
        for name, (count, work) in works.items() if tries else ():
            if name.startswith("a load of 0"):
                continue
            point, lost = beside(at, "loaded", writers, pause_s, work)
            rates[name] = point["commits"] / point["seconds"]
            report.note(
                f"{name:<24} lost {lost} of {count}; points: {rates[name]:.0f}/s, "
                f"{point['aborts']} aborted, slowest {point['slowest_ms']:.0f} ms, 99 % within {point['p99_ms']:.1f} ms"
            )
            if count and "table" not in name:
                report.ratio(f"{name}: lost ÷ loads", lost, count, at_most=0)
        if tries:
            of_claims = rates[f"{tries} loads, level table"]
            report.ratio("writers' rate beside loads ÷ beside claims", rates[f"{tries} loads"], of_claims, at_least=0.9)
    return report.finish()


def beside_a_service(report: Report, at: Setting, rows: int) -> None:
    quiet, _ = beside(at, "service", 1, 0.0, lambda: time.sleep(3))
    loaded, _ = beside(at, "service", 1, 0.0, lambda: one_load(at, rows, "table"))
    for name, point in (("no load", quiet), (f"load of {rows} rows", loaded)):
        report.note(
            f"service, {name:<20} {point['commits'] / point['seconds']:.0f} transactions/s, p50 {point['p50_ms']:.1f}, "
            f"p99 {point['p99_ms']:.1f}, slowest {point['slowest_ms']:.0f} ms"
        )
    report.ratio("a service's p99 beside a Spark load ÷ goal ≤ 50 ms", loaded["p99_ms"], 50, at_most=1)
    print("\n| work | no load | beside the load | goal |\n| --- | --- | --- | --- |")
    print(f"| a service's p99 beside a Spark load | {quiet['p99_ms']:.3g} ms | {loaded['p99_ms']:.3g} ms | ≤ 50 ms |\n")


def one_load(at: Setting, rows: int, level: str, *, first: int = 0) -> None:
    frame = at.spark.range(first, first + rows, numPartitions=PARTS).selectExpr("id AS k", "id AS v")
    with at.db.begin(conflict_level=level) as tx:
        tx.write(frame, "loaded", row_key="k")


def loads(at: Setting, rows: int, level: str, tries: int) -> int:
    lost = 0
    for _ in range(tries):
        try:
            one_load(at, rows, level)
        except ConflictError:
            lost += 1
    return lost


def loads_at_once(at: Setting, rows: int, count: int) -> int:
    """Of rows of their own."""

    def lost(number: int) -> int:
        try:
            one_load(at, rows, "auto", first=number * rows)
        except ConflictError:
            return 1
        return 0

    with ThreadPoolExecutor(count) as pool:
        return sum(pool.map(lost, range(count)))


def beside(
    at: Setting, table: str, writers: int, pause_s: float, work: Callable[[], object]
) -> tuple[dict[str, float], int]:
    command = [sys.executable, "-m", "benchmarks.spark.beside", "writers", at.url, table, str(writers), str(pause_s)]
    traffic = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert traffic.stdout is not None
    assert traffic.stdout.readline() == "ready\n"
    lost = work()
    told, _ = traffic.communicate("end\n", timeout=60)
    return json.loads(told), int(lost or 0) if isinstance(lost, int) else 0


def point_writers(url: str, name: str, writers: int, pause_s: float) -> int:
    """Writes rows above all that are loaded until a line arrives on stdin; prints its counts."""
    ended, taken_s, aborts = threading.Event(), [], [0]
    with pyomid.connect(url) as db:
        if all(table.name != name for table in db.tables()):
            db.create_table(name, families=["d"])

        def write(number: int) -> None:
            row = 1 << 40 | number << 32
            while not ended.wait(pause_s):
                row += 1
                began = time.monotonic()
                try:
                    with db.begin() as tx:
                        tx.table(name).put((1 << 63 | row).to_bytes(8, "big"), {FAMILY_COLUMN: bytes(8)})
                    taken_s.append(time.monotonic() - began)
                except ConflictError:
                    aborts[0] += 1

        threads = [threading.Thread(target=write, args=(number,)) for number in range(writers)]
        began = time.monotonic()
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        sys.stdin.readline()
        ended.set()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - began
    slow = sorted(taken_s)
    counted = {
        "commits": len(slow),
        "aborts": aborts[0],
        "seconds": seconds,
        "p50_ms": slow[len(slow) // 2] * 1_000,
        "slowest_ms": slow[-1] * 1_000,
        "p99_ms": slow[int(len(slow) * 0.99)] * 1_000,
    }
    print(json.dumps(counted), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
