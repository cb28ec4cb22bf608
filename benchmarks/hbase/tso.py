"""The TSO over HBase's commit table, the Java original beside it on the same HBase, and what HBase itself takes.

    python -m benchmarks.hbase.tso [--dir D] [--rounds 3] [--seconds 4] [--loads 8x16,64x16,64x256]

Every load is checked reply by reply (benchmarks/tso/load.c). Servers take turns: one TSO runs at a time.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks._report import machine_lines
from benchmarks.hbase._server import started_hbase
from benchmarks.tso.run import Bench, median

from java_omid import JavaTso
from pyomid.cli.hbase import HBaseServer
from pyomid.omid.hbase.commit_table import HBaseCommitTable
from pyomid.omid.hbase.deployment import create_database

JAVA_BATCHES = {"Java, default batches (25)": 25, "Java, batches of 1000": 1000}
TIMES_DEFAULT, TIMES_BEST = 5.0, 2.0
BEGIN_P99_MS_MAX = 0.3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, help="keep HBase's folder here, and use it again")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--loads", default="8x16,64x16,64x256")
    arguments = parser.parse_args()
    arguments.no_java, arguments.entries = False, 0
    print("\n".join(machine_lines()))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-hbase-tso-")))
        server, cluster = started_hbase(stack, arguments.dir or folder)
        create_database(cluster)
        bench = Bench(folder, arguments)
        ceiling(HBaseCommitTable(cluster))
        for load in arguments.loads.split(","):
            connections, outstanding = map(int, load.split("x"))
            compare(bench, server, (connections, outstanding))
    return 1 if bench.violations else 0


def ceiling(table: HBaseCommitTable) -> None:
    """Plain puts of commit entries, one writer, nothing else going on."""
    for size in (128, 1_000, 4_000):
        rates = []
        for _ in range(5):
            entries = np.array([(start * 50, start * 50 + 500) for start in range(1, 40_001)], dtype=np.int64)
            begun = time.perf_counter()
            for first in range(0, len(entries), size):
                table.put_block(entries[first : first + size])
            rates.append(len(entries) / (time.perf_counter() - begun))
        print(f"  HBase's own ceiling, {size} entries at once: {np.median(rates):,.0f} entries/s")
    table.delete_below(1 << 40)


def compare(bench: Bench, server: HBaseServer, load: tuple[int, int]) -> None:
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(bench.rounds):
        for name, start in contenders(bench, server).items():
            with start() as (pid, where):
                extended = ["--extended"] if name == "pyomid" else []
                found.setdefault(name, []).append(bench.load(pid, *where, *extended, load=load))
    for name, results in found.items():
        bench.show(f"{load[0]}×{load[1]} {name}", results)
    rates = {name: median(results, "tx_per_s") for name, results in found.items()}
    ours = rates.pop("pyomid")
    default = rates["Java, default batches (25)"]
    print(
        f"  {load[0]}×{load[1]} ÷ Java's default {ours / default:.1f} × (goal {TIMES_DEFAULT:g} ×), ÷ its best ", end=""
    )
    print(f"{ours / max(rates.values()):.1f} × (goal {TIMES_BEST:g} ×)")
    begin_ms = median(found["pyomid"], "begin_p99_us") / 1000
    print(f"  {load[0]}×{load[1]} begin p99 {begin_ms:.2f} ms (goal {BEGIN_P99_MS_MAX} ms at 8×16)")


Started = Callable[[], AbstractContextManager[tuple[int, list[str]]]]


def contenders(bench: Bench, server: HBaseServer) -> dict[str, Started]:
    url = f"omid+hbase://{server.quorum}/hbase"

    @contextmanager
    def java(batch_size: int) -> Iterator[tuple[int, list[str]]]:
        folder = bench.folder / f"java-{time.monotonic_ns()}"
        port = server.ports.zookeeper
        with JavaTso(folder, zookeeper_port=port, batch_size=batch_size, heap_mb=1024) as peer:
            yield peer.pid, ["--connect", peer.address]

    peers: dict[str, Started] = {name: lambda size=size: java(size) for name, size in JAVA_BATCHES.items()}  # type: ignore[misc]
    return {"pyomid": lambda: bench.pyomid_tcp("--store", url, "--leader-lease", "2"), **peers}


if __name__ == "__main__":
    sys.exit(main())
