"""Raw scan and batched puts: our native client beside Python through HBase's own Thrift2 gateway, in one run.

    python -m benchmarks.hbase.thrift2 [--dir D] [--rows 50000]

The gateway is Java's, from its jar, which brings its own interface file; the Python side is thriftpy2 with its compiled
protocol, which nothing else needs: `pip install thriftpy2` first.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks._report import Report
from benchmarks.hbase._server import started_hbase
from benchmarks.hbase.run import CELLS, RUNS, SCANS_WARM, batch

from java_omid import free_port, write_client_site
from pyomid.cli.hbase import Bundle, class_path, java, join
from pyomid.errors import Unavailable
from pyomid.omid.hbase.store import HBaseStore
from pyomid.types import KeyRange, TableInfo

THRIFT: Final = Bundle("hbase-thrift", ("org.apache.hbase:hbase-thrift:2.6.1",))
INTERFACE: Final = "org/apache/hadoop/hbase/thrift2/hbase.thrift"
START_S_MAX: Final = 60.0
ROWS_AT_ONCE: Final = 1000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, help="keep HBase's folder here, and use it again")
    parser.add_argument("--rows", type=int, default=50_000)
    arguments = parser.parse_args()
    try:
        import thriftpy2  # noqa: F401
    except ImportError:
        print("not run: this row needs thriftpy2 (pip install thriftpy2)")
        return 2
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-thrift2-")))
        server, cluster = started_hbase(stack, arguments.dir or folder)
        store = HBaseStore(cluster)
        gateway = stack.enter_context(thrift_gateway(folder, server.ports.zookeeper))
        report = Report("HBase: native client beside the Thrift2 gateway")
        compare(report, store, gateway, arguments.rows)
        report.finish()
    return 0


@contextmanager
def thrift_gateway(folder: Path, zookeeper_port: int) -> Iterator[Any]:
    """A connected Python client of a gateway of its own."""
    import thriftpy2
    from thriftpy2.rpc import make_client
    from thriftpy2.transport import TTransportException

    path = class_path(THRIFT)
    (jar,) = (each for each in path if each.name.startswith("hbase-thrift-"))
    interface = folder / "hbase.thrift"
    interface.write_bytes(zipfile.ZipFile(jar).read(INTERFACE))
    write_client_site(folder, zookeeper_port)
    module = thriftpy2.load(str(interface), module_name="hbase_thrift")
    port = free_port()
    main_class = "org.apache.hadoop.hbase.thrift2.ThriftServer"
    words = ("-p", str(port), "--infoport", "-1", "-threadpool", "start")
    with open(folder / "thrift.log", "ab") as log:
        process = subprocess.Popen(
            java("-Xmx512m", "-cp", join([folder, *path]), main_class, *words),
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        end_s = time.monotonic() + START_S_MAX
        while True:
            try:
                client = make_client(module.THBaseService, "127.0.0.1", port, timeout=60_000)
                break
            except TTransportException as error:
                if process.poll() is not None or time.monotonic() > end_s:
                    raise Unavailable(f"no Thrift2 gateway: {(folder / 'thrift.log').read_text()[-1500:]}") from error
                time.sleep(0.1)
        client.module = module
        yield client
        client.close()
    finally:
        process.terminate()
        process.wait(30)


def compare(report: Report, store: HBaseStore, gateway: Any, rows: int) -> None:
    ours, theirs = "bench_native", "bench_thrift2"
    for name in (ours, theirs):
        store.drop_table(name)
        store.create_table(TableInfo(name, (b"f",)))
    batches = [batch(first, min(rows, first + ROWS_AT_ONCE)) for first in range(0, rows, ROWS_AT_ONCE)]

    def put_ours() -> None:
        for each in batches:
            store.write_batch(ours, 50, each)

    puts = (
        report.measure("batched puts, pyomid", put_ours, items=rows, unit="rows", runs=RUNS),
        report.measure(
            "batched puts, Thrift2", lambda: put_through(gateway, theirs, rows), items=rows, unit="rows", runs=RUNS
        ),
    )
    report.ratio("batched puts ÷ Thrift2", *puts)
    works: dict[str, Callable[[], object]] = {
        "raw scan, pyomid": lambda: sum(each.cells for each in store.scan(ours, KeyRange())),
        "raw scan, Thrift2": lambda: scan_through(gateway, theirs, rows * CELLS),
    }
    for _ in range(SCANS_WARM):
        for work in works.values():
            work()
    scans = report.measure_together(works, items=rows * CELLS, unit="cells", runs=RUNS)
    report.ratio("raw scan ÷ Thrift2", *scans, at_least=8.0)


def put_through(gateway: Any, table: str, rows: int) -> None:
    module = gateway.module
    for first in range(0, rows, ROWS_AT_ONCE):
        puts = [
            module.TPut(
                row=b"row%08d" % row,
                columnValues=[
                    module.TColumnValue(family=b"f", qualifier=b"q%d" % cell, value=b"value%08d" % row, timestamp=50)
                    for cell in range(CELLS)
                ],
            )
            for row in range(first, min(rows, first + ROWS_AT_ONCE))
        ]
        gateway.putMultiple(table.encode(), puts)


def scan_through(gateway: Any, table: str, cells: int) -> None:
    scanner = gateway.openScanner(table.encode(), gateway.module.TScan(caching=ROWS_AT_ONCE, maxVersions=1 << 30))
    found = 0
    while rows := gateway.getScannerRows(scanner, ROWS_AT_ONCE):
        found += sum(len(row.columnValues) for row in rows)
    gateway.closeScanner(scanner)
    assert found == cells, f"{found} cells of {cells}"


if __name__ == "__main__":
    sys.exit(main())
