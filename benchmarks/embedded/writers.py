"""Eight processes write one folder at once: each writes LMDB itself, or all hand over to one service process.

The service is the best case for handing over: it does nothing but take rows from a Unix socket, a thread for each
connection, and the threads' writes share commits (`Environment.write`).
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from multiprocessing.synchronize import Event
from typing import Any

import numpy as np
from benchmarks._report import Report, Sample
from benchmarks.embedded.bulk import flights

from pyomid.cells import CellBatch
from pyomid.folder import EmbeddedStore
from pyomid.types import Column, RowWrite, TableInfo

PROCESSES = 8
ROWS_EACH = 100
BATCH_ROWS = 10_000
RUNS = 3
COLUMN = Column(b"d", b"column00")
_LENGTH = struct.Struct(">Q")

Spawned = multiprocessing.get_context("spawn")
Write = Callable[[str, int, Any], None]


def main() -> int:
    report = Report(f"embedded: {PROCESSES} processes writing at once")
    for kind, items, unit in (("rows", ROWS_EACH, "commits"), ("batch", BATCH_ROWS, "rows")):
        rates: dict[str, list[float]] = {"direct": [], "service": []}
        latencies: dict[str, list[float]] = {"direct": [], "service": []}
        for _ in range(RUNS):
            for way in rates:
                elapsed, taken = run(way, kind)
                rates[way].append(elapsed)
                latencies[way] += taken
        names = {"direct": f"{kind}: each process writes itself", "service": f"{kind}: handed over to a service"}
        direct, service = (report.show(Sample(names[way], tuple(rates[way]), items * PROCESSES, unit)) for way in names)
        for way, name in names.items():
            report.latencies(name, latencies[way])
        report.ratio(f"{kind}: handed over ÷ direct", service, direct)
    stopped(report)
    return report.finish()


def run(way: str, kind: str) -> tuple[float, list[float]]:
    """Seconds from the first start to the last end, and each call's latency."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        make(folder)
        ready, go, results = Spawned.Semaphore(0), Spawned.Event(), Spawned.Queue()
        server = Spawned.Process(target=serve, args=(folder, ready), daemon=True)
        if way == "service":
            server.start()
            ready.acquire()
        clients = [
            Spawned.Process(target=client, args=(way, kind, folder, number, ready, go, results))
            for number in range(PROCESSES)
        ]
        for each in clients:
            each.start()
        for _ in clients:
            ready.acquire()
        begun = time.perf_counter()
        go.set()
        taken = [latency for _ in clients for latency in results.get()]
        elapsed = time.perf_counter() - begun
        for each in clients:
            each.join()
        if way == "service":
            server.terminate()
            server.join()
        return elapsed, taken


def make(folder: str) -> None:
    store = EmbeddedStore(folder)
    store.create_table(TableInfo("t", (b"d",)))
    batch = flights(100)
    store.write_batch("t", 50, batch)  # its columns have their numbers from now on
    store.close()


def client(way: str, kind: str, folder: str, number: int, ready: Any, go: Event, results: Any) -> None:
    write = direct_writer(folder) if way == "direct" else service_writer(folder)
    works = row_works(number) if kind == "rows" else batch_works(number)
    write("t", *warm_up(number, kind))
    ready.release()
    go.wait()
    taken = []
    for version, rows in works:
        begun = time.perf_counter()
        write("t", version, rows)
        taken.append(time.perf_counter() - begun)
    results.put(taken)


def warm_up(number: int, kind: str) -> tuple[int, Any]:
    version = 100 + 50 * number
    return version, flights(10) if kind == "batch" else [RowWrite(b"warm-%d" % number, ((COLUMN, b"value"),))]


def row_works(number: int) -> list[tuple[int, Any]]:
    return [
        (10_000 + 50 * (number * ROWS_EACH + index), [RowWrite(b"%d-%06d" % (number, index), ((COLUMN, b"value"),))])
        for index in range(ROWS_EACH)
    ]


def batch_works(number: int) -> list[tuple[int, Any]]:
    return [(10_000 + 50 * number, flights(BATCH_ROWS))]


def direct_writer(folder: str) -> Write:
    store = EmbeddedStore(folder, create=False)

    def write(table: str, version: int, rows: Any) -> None:
        if isinstance(rows, CellBatch):
            store.write_batch(table, version, rows)
        else:
            store.write_cells(table, version, rows)

    return write


def service_writer(folder: str) -> Write:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(f"{folder}/service.sock")

    def write(table: str, version: int, rows: Any) -> None:
        message = pickle.dumps((table, version, rows), protocol=5)
        connection.sendall(_LENGTH.pack(len(message)) + message)
        assert connection.recv(1) == b"+"

    return write


def serve(folder: str, ready: Any) -> None:
    write = direct_writer(folder)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"{folder}/service.sock")
    listener.listen()
    ready.release()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=answer, args=(connection, write), daemon=True).start()


def answer(connection: socket.socket, write: Write) -> None:
    source = connection.makefile("rb")
    while header := source.read(_LENGTH.size):
        write(*pickle.loads(source.read(_LENGTH.unpack(header)[0])))
        connection.sendall(b"+")


def stopped(report: Report) -> None:
    """A writer that stands still: how often that holds the others up, if it is stopped at a random moment."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as folder:
        make(folder)
        ready = Spawned.Semaphore(0)
        victim = Spawned.Process(target=write_for_ever, args=(folder, ready), daemon=True)
        victim.start()
        ready.acquire()
        write = direct_writer(folder)
        rng, held_up, tries = np.random.default_rng(1), 0, 20
        for number in range(tries):
            time.sleep(rng.uniform(0.01, 0.05))
            os.kill(victim.pid or 0, signal.SIGSTOP)
            begun = time.perf_counter()
            timer = threading.Timer(0.5, os.kill, (victim.pid, signal.SIGCONT))
            timer.start()
            write("t", 10**9 + 50 * number, [RowWrite(b"mine", ((COLUMN, b"value"),))])
            held_up += time.perf_counter() - begun > 0.45
            timer.cancel()
            os.kill(victim.pid or 0, signal.SIGCONT)
        victim.kill()
        victim.join()
    report.note(
        f"SIGSTOP of a busy writer at {tries} random moments: {held_up} times the next writer had to wait for it"
    )


def write_for_ever(folder: str, ready: Any) -> None:
    write, batch, version = direct_writer(folder), flights(2000), 10_000
    while True:
        version += 50
        write("t", version, batch)
        ready.release()


if __name__ == "__main__":
    from benchmarks.embedded import writers  # under its own name, so that spawned processes find its functions

    sys.exit(writers.main())
