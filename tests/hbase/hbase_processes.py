"""TSO processes of a cluster, started as an operator would."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType


class TsoProcess:
    """`pyomid tso` over HBase on a free port. `wait_until_leading` returns its address.

    The lease is long, so that a busy machine ends no leader; tests of fail-over shorten it.
    """

    def __init__(self, url: str, log: Path, *, lease_s: float = 20.0, options: tuple[str, ...] = ()) -> None:
        self.log = log
        command = [sys.executable, "-m", "pyomid", "tso", "--listen", "127.0.0.1:0", "--store", url]
        command += ["--leader-lease", str(lease_s), "--conflict-map-entries", "100000", *options]
        with open(log, "ab") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
            )

    def wait_until_leading(self, *, deadline_s: float = 60.0) -> str:
        """The address it serves on. Raises where it ended instead."""
        timer = threading.Timer(deadline_s, self.process.kill)
        timer.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        timer.cancel()
        if not line:
            raise AssertionError(f"the TSO never led: {self.log.read_text()[-2000:]}")
        return line.split()[-1]

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM, to the end; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        return self.process.wait(timeout=30.0)

    def __enter__(self) -> TsoProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
