"""Where the durable TSO's rate goes: step by step from a bare log to the whole, each step a server of its own.

    python -m benchmarks.tso.build_up [--rounds 3] [--seconds 3] [--loads 8x16,64x256]

The generator, the loop and the compiled decision are the same in all steps. What makes a flush durable grows:

    decide, append, sync   one record of the log, written through to the disk beside the loop; nothing else
    + the log's turn       whose turn it is, which starts are sealed, which segment has room, what an interrupt leaves
    + in place             the files are still those of the folder
    + index                the entries in the table that other processes map, and from there to LMDB
    + epoch looks          the epoch before the write and after it (T5): this is the embedded commit table
    + completions          each committed start is completed: its entry is deleted
    + look-ups beside      another process looks up 10 000 entries a second

All steps take turns. Figures are medians of the rounds; a ratio is of one round, too.
"""

from __future__ import annotations

import argparse
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvloop
from benchmarks._report import machine_lines
from benchmarks.tso.run import Bench, disk_limits
from numpy.typing import NDArray

from pyomid.oracle.settings import TsoSettings
from pyomid.ports import FlushEnded, FlushLoop
from pyomid.server.startup import ServiceOptions, serve
from pyomid.server.store_calls import TsoStores
from pyomid.storage.embedded import EmbeddedCatalog, EmbeddedCommitTable, EmbeddedLeaderState
from pyomid.storage.embedded.commit_log.background_write import open_writer
from pyomid.storage.embedded.commit_log.segment import Segment
from pyomid.storage.memory import MemoryCatalog, MemoryCommitTable, MemoryLeaderState

BARE = "decide, append, sync"
TURN, PLACE, INDEX, EPOCH = "+ the log's turn", "+ in place", "+ index", "+ epoch looks"
COMPLETIONS, LOOKUPS = "+ completions", "+ look-ups beside"
STEPS = (BARE, TURN, PLACE, INDEX, EPOCH, COMPLETIONS, LOOKUPS)
GOAL = 0.6


class BareTable(MemoryCommitTable):
    """A flush is one record in one file. Nobody can look an entry up."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        folder.mkdir()
        self._segment, self._generation = Segment(folder / "log"), 0
        writer = open_writer()
        assert writer is not None, "this system writes nothing in the background"
        assert self._segment.is_direct, f"no direct writes in {folder}"
        self._writer = writer
        self._epoch = 0
        self._ended: FlushEnded | None = None
        self._roll()

    def serve_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    @property
    def flushes_in_flight_max(self) -> int:
        return 1

    def submit(self, entries: NDArray[Any], ended: FlushEnded, loop: FlushLoop) -> None:
        if not len(entries):
            ended(([], self._epoch))
            return
        loop.watch(self._writer.fileno(), self._look)
        if not self._segment.has_room(len(entries)):
            self._roll()
        self._ended = ended
        assert self._segment.begin_append((entries,), self._writer)

    def _look(self) -> None:
        result = self._writer.end()
        if result is not None:
            self._segment.end_append(result)
            ended, self._ended = self._ended, None
            assert ended is not None
            ended(([], self._epoch))

    def _roll(self) -> None:
        self._generation += 1
        self._segment.begin(self._generation)


def stores_of(step: str, folder: Path) -> TsoStores:
    if step == BARE:
        return TsoStores(BareTable(folder), MemoryLeaderState(), MemoryCatalog())
    table = EmbeddedCommitTable(folder, writable=True)
    leave_out(table, STEPS.index(step))
    return TsoStores(table, EmbeddedLeaderState(folder, writable=True), EmbeddedCatalog(folder))


def leave_out(table: Any, reached: int) -> None:
    """What comes later than this step does nothing."""
    log, compacted = table._writer, table._compacted
    if reached < STEPS.index(PLACE):
        log._check_in_place = lambda group: None
    if reached < STEPS.index(INDEX):
        log._index.place = lambda number, rows: 0
    if reached < STEPS.index(EPOCH):
        log._compacted.check_epoch = lambda epoch: None
        compacted.epoch = lambda: table._epoch


def run_server(path: str, step: str, folder: Path) -> None:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(path)
    sock.listen(1024)
    options = ServiceOptions(settings=TsoSettings(window_starts=1 << 16), kernel=True)
    uvloop.run(
        serve(
            stores_of(step, folder),
            options,
            [(sock, None)],
            ready=lambda: print("ready", flush=True),
            stop_signals=[signal.SIGTERM],
        )
    )


@contextmanager
def served(bench: Bench, step: str) -> Iterator[tuple[int, list[str], Path]]:
    folder = bench.folder / f"step-{time.monotonic_ns()}"
    path = folder.with_suffix(".sock")
    with open(bench.folder / "server.log", "a") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.tso.build_up", "--serve", step, str(path), str(folder)],
            stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    try:
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise SystemExit((bench.folder / "server.log").read_text()[-2000:])
        yield process.pid, ["--unix", str(path)], folder
    finally:
        process.terminate()
        process.wait(30)


def one_run(bench: Bench, step: str, load: tuple[int, int]) -> dict[str, Any]:
    with served(bench, step) as (pid, where, folder):
        completes = ["--complete"] if step in (COMPLETIONS, LOOKUPS) else ["--extended"]
        if step != LOOKUPS:
            return bench.load(pid, *where, *completes, load=load, warm_s=1.5)
        looker = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("lookups.py"), folder], stdout=subprocess.PIPE, text=True
        )
        try:
            return bench.load(pid, *where, *completes, load=load, warm_s=1.5)
        finally:
            looker.send_signal(signal.SIGTERM)
            looker.communicate()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--loads", default="8x16,64x256")
    parser.add_argument("--serve", nargs=3, metavar=("STEP", "SOCKET", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        step, path, folder = arguments.serve
        run_server(path, step, Path(folder))
        return 0
    arguments.no_java, arguments.entries = True, 0
    print("\n".join(machine_lines()))
    with tempfile.TemporaryDirectory(prefix="bench-build-up-") as name:
        bench = Bench(Path(name), arguments)
        print("  " + disk_limits(bench.folder))
        for load in arguments.loads.split(","):
            connections, outstanding = map(int, load.split("x"))
            found: dict[str, list[dict[str, Any]]] = {step: [] for step in STEPS}
            for _ in range(bench.rounds):
                for step in STEPS:
                    found[step].append(one_run(bench, step, (connections, outstanding)))
            before = 1.0
            for step, results in found.items():
                bench.show(f"{load} {step}", results)
                ratio = statistics.median(
                    mine["tx_per_s"] / bare["tx_per_s"] for mine, bare in zip(results, found[BARE], strict=True)
                )
                print(f"    {ratio:.2f} × of the bare one, {ratio / before:.2f} × of the step before")
                before = ratio
            print(f"  {load} the whole ÷ the bare one {before:.2f} × (goal ≥ {GOAL} ×)")
    return 1 if bench.violations else 0


if __name__ == "__main__":
    sys.exit(main())
