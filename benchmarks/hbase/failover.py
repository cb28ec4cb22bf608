"""Fail-over as a client sees it: the longest pause between two acknowledged commits when the leader dies or stops.

    python -m benchmarks.hbase.failover [--lease 3] [--times 3] [--dir D]

A leader and a standby over one HBase; one client commits one-write transactions without end. The leader is killed
(kill −9), or stopped (SIGSTOP, its connections stay open), and replaced by a fresh standby before the next turn.
The goal is lease + 0.5 s.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks._report import machine_lines

import pyomid
from pyomid.cli.hbase import HBaseServer
from pyomid.errors import OmidError
from pyomid.omid.hbase.cluster import Cluster
from pyomid.omid.hbase.deployment import create_database
from pyomid.omid.hbase.zookeeper import ZooKeeper

GRACE_S = 0.5
SETTLE_S = 2.0
"""Commits go on so long between two deaths, so that each pause stands alone."""

STANDING_BY_S_MAX = 120.0


class Client:
    """Commits without end; `longest_pause_s` is reset by whoever reads it."""

    def __init__(self, url: str, table: str) -> None:
        self.commits = 0
        self._last_s = time.monotonic()
        self._longest_s = 0.0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._database = pyomid.connect(url, commit_retry_seconds=120.0)
        self._database.create_table(table, ["f"])
        self._thread = threading.Thread(target=self._run, args=(table,))
        self._thread.start()

    def take_longest_pause_s(self) -> float:
        with self._lock:
            longest_s, self._longest_s = self._longest_s, 0.0
            return longest_s

    def wait_for_more(self, commits: int = 50) -> None:
        target = self.commits + commits
        while self.commits < target:
            time.sleep(0.01)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._database.close()

    def _run(self, table: str) -> None:
        while not self._stop.is_set():
            try:
                with self._database.begin() as tx:
                    tx.table(table).put(b"%09d" % self.commits, {b"f:q": b"v"})
            except OmidError:
                continue
            now_s = time.monotonic()
            with self._lock:
                self._longest_s = max(self._longest_s, now_s - self._last_s)
            self._last_s = now_s
            self.commits += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lease", type=float, default=3.0)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="an HBase that runs there already is used")
    arguments = parser.parse_args()
    print("\n".join(machine_lines()))
    with ExitStack() as stack:
        folder = arguments.dir or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = HBaseServer(folder / "hbase" if arguments.dir is None else folder)
        if not server.is_running():
            server.start()
            stack.callback(server.kill)
        cluster = Cluster(ZooKeeper(server.quorum))
        stack.callback(cluster.close)
        create_database(cluster)
        url = f"omid+hbase://{server.quorum}/hbase"
        missed = [not turn(url, folder, how, arguments) for how in (signal.SIGKILL, signal.SIGSTOP)]
    return int(any(missed))


def turn(url: str, folder: Path, how: signal.Signals, arguments: argparse.Namespace) -> bool:
    """All deaths of one kind; whether each was within the goal."""
    leader = start(url, folder, arguments.lease)
    assert leader.stdout is not None
    leader.stdout.readline()
    client = Client(url, f"failover_{how.name}_{time.time_ns()}")
    pauses_s = []
    try:
        for _ in range(arguments.times):
            standby = start(url, folder, arguments.lease)
            wait_until_standing_by(folder, standby)
            time.sleep(SETTLE_S)
            client.wait_for_more()
            steady_s = client.take_longest_pause_s()
            leader.send_signal(how)
            assert standby.stdout is not None
            standby.stdout.readline()
            client.wait_for_more()
            pauses_s.append(client.take_longest_pause_s())
            leader.kill()
            leader.wait()
            leader = standby
            print(f"{how.name:8} pause {pauses_s[-1]:6.2f} s   (longest before: {steady_s * 1000:.0f} ms)")
    finally:
        client.close()
        leader.terminate()
        leader.wait()
    goal_s = arguments.lease + GRACE_S
    verdict = "met" if max(pauses_s) <= goal_s else "MISSED"
    print(
        f"{how.name:8} lease {arguments.lease:g} s, longest pause {max(pauses_s):.2f} s, goal {goal_s:g} s: {verdict}"
    )
    return bool(max(pauses_s) <= goal_s)


def wait_until_standing_by(folder: Path, standby: subprocess.Popen[str]) -> None:
    """One that was started a moment ago would measure its own start."""
    end_s = time.monotonic() + STANDING_BY_S_MAX
    while not any(
        f'"pid": {standby.pid},' in line and "stands by" in line
        for line in (folder / "tso.log").read_text().splitlines()
    ):
        if time.monotonic() > end_s:
            raise TimeoutError(f"the standby never stood by: see {folder / 'tso.log'}")
        time.sleep(0.02)


def start(url: str, folder: Path, lease_s: float) -> subprocess.Popen[str]:
    """A TSO; one line on its standard output once it leads."""
    command = [sys.executable, "-m", "pyomid", "tso", "--listen", "127.0.0.1:0", "--store", url]
    with open(folder / "tso.log", "ab") as log:
        return subprocess.Popen(
            [*command, "--leader-lease", str(lease_s)], stdout=subprocess.PIPE, stderr=log, text=True
        )


if __name__ == "__main__":
    sys.exit(main())
