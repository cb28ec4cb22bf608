"""The whole demo: shop, stream, readers, kills, comparison; the exit status is 1 if any check fails."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from examples.cdc import report, shop
from examples.cdc.events import note, noted
from examples.cdc.invariants import broken
from examples.cdc.topics import TABLES

import pyomid

FOLDER: Final = Path("build/cdc").absolute()

PAUSE_S: Final = 3.0
"""Time between two snapshots of the reader: the stream needs the cores too."""

LANDING_S_MAX: Final = 300
"""The demo fails if the stream has not finished this long after the shop closed."""


@dataclass(slots=True)
class Asked:
    """What the command line asks for."""

    seconds: float = 120.0
    rate: int = 3_000
    kills: int = 3
    delta: bool = False
    seed: int = 1


@dataclass(slots=True)
class Run:
    asked: Asked
    began: float = field(default_factory=time.time)
    events: int = 0
    transactions: int = 0
    checked: int = 0
    torn: int = 0
    differing: dict[str, int] = field(default_factory=dict)
    delta: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def say(self, text: str) -> None:
        print(f"{time.time() - self.began:6.1f} s  {text}", flush=True)

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            self.failures.append(what)
            self.say(f"FAILED: {what}")


def main(asked: Asked) -> int:
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "topics").mkdir(parents=True)
    run = Run(asked)
    url = f"omid://{FOLDER}/database?leaseSeconds=30"
    run.say(f"a shop publishes {asked.rate} change events a second for {asked.seconds:.0f} s; {asked.kills} kills each")
    reader = Reader(url)
    landing = Landing(url)
    landing.start()
    while not noted(FOLDER, "driver started") and landing.is_alive():
        time.sleep(0.2)
    reader.start()
    kills = threading.Thread(target=kill, args=(run, landing), daemon=True)
    kills.start()
    source = shop.run(FOLDER / "topics", asked.seconds, asked.rate, asked.seed)
    run.events, run.transactions = source.events, source.transactions
    run.say(f"the shop is closed: {source.events:,} events of {source.transactions:,} transactions")
    kills.join()
    (FOLDER / "all-in").touch()
    landing.join(LANDING_S_MAX)
    run.require(landing.finished, "the stream landed everything")
    reader.stop()
    run.checked, run.torn = reader.checked, reader.torn
    run.require(reader.error is None, f"the reader went on: {reader.error}")
    run.require(run.checked > 0 and run.torn == 0, f"no snapshot is torn: {run.torn} of {run.checked}")
    compare(run, url, source)
    if asked.delta:
        run.delta = beside_delta(run)
    report.write(FOLDER, run)
    run.say(f"report: {FOLDER / 'report.html'}")
    return 1 if run.failures else 0


class Landing(threading.Thread):
    """Keeps one driver of the stream running, until it has landed everything."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._driver: subprocess.Popen[bytes] | None = None
        self.finished = False

    def run(self) -> None:
        while not self.finished:
            with (FOLDER / "driver.log").open("ab") as log:
                command = [sys.executable, "-m", "examples.cdc.land", str(FOLDER), self._url]
                self._driver = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
                code = self._driver.wait()
            self.finished = code == 0
            if code > 0:
                note(FOLDER, "driver failed", code=code)
                return

    def kill(self) -> None:
        """Kill the driver, its JVM and their workers."""
        if self._driver is not None and self._driver.poll() is None:
            os.killpg(self._driver.pid, signal.SIGKILL)
            note(FOLDER, "killed", what="driver")

    def kill_worker(self) -> None:
        """Kill the newest of the driver's Python workers: Spark runs its task again."""
        if self._driver is not None and (workers := _workers(self._driver.pid)):
            with suppress(ProcessLookupError):
                os.kill(max(workers), signal.SIGKILL)
                note(FOLDER, "killed", what="worker")


def _workers(session: int) -> list[int]:
    """Return Spark's Python workers in the session of a driver."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if os.getsid(int(entry.name)) == session and b"pyspark.daemon" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def kill(run: Run, landing: Landing) -> None:
    """Kill the driver and one of its workers in turn, evenly over the shop's hours, each while a batch is being
    landed."""
    for number in range(2 * run.asked.kills):
        time.sleep(run.asked.seconds / (2 * run.asked.kills + 1))
        seen, until = len(noted(FOLDER, "landed")), time.monotonic() + 60
        while len(noted(FOLDER, "landed")) == seen and landing.is_alive() and time.monotonic() < until:
            time.sleep(0.1)  # the next batch has begun
        time.sleep(0.5)
        if number % 2 == 0:
            landing.kill()
        else:
            landing.kill_worker()


class Reader(threading.Thread):
    """Reads the four tables in one snapshot after the other, and counts those in which they disagree."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._ended = threading.Event()
        self.checked = 0
        self.torn = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            with pyomid.connect(self._url) as db:
                while not self._ended.wait(PAUSE_S):
                    self._check(db)
        except BaseException as error:
            self.error = error
            raise

    def _check(self, db: pyomid.Database) -> None:
        try:
            found = broken(tables(db))
        except (pyomid.Unavailable, pyomid.ConflictError) as error:
            note(FOLDER, "interrupted", error=type(error).__name__)
            return
        self.checked += 1
        self.torn += found > 0
        note(FOLDER, "torn" if found else "agreed")

    def stop(self) -> None:
        self._ended.set()
        self.join()


def tables(db: pyomid.Database) -> dict[str, pa.Table]:
    with db.begin() as tx:
        return {name: tx.table(name, codec=dict).to_arrow().read_all() for name in TABLES}


def compare(run: Run, url: str, source: shop.Shop) -> None:
    """Require that each table has exactly the shop's rows."""
    with pyomid.connect(url) as db:
        landed = tables(db)
    for name, rows in landed.items():
        found = {frozenset(row.items()) for row in rows.drop_columns("lsn").to_pylist()}
        wanted = {frozenset(row.items()) for row in source.rows[name].values()}
        run.differing[name] = len(found ^ wanted)
        run.require(found == wanted, f"{name} has the shop's {len(wanted)} rows: {len(found ^ wanted)} differ")


def beside_delta(run: Run) -> dict[str, Any]:
    """Land the same events in Delta tables, while a reader looks; return its counts."""
    from benchmarks.spark.peers import jars, measured_by, python_of_peers

    run.say("the same events into four Delta tables")
    return measured_by([python_of_peers(), "-m", "examples.cdc.delta", str(FOLDER), jars("delta"), "10"], "Delta Lake")
