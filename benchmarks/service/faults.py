"""What is done to the processes of the hour: one fault after the other, by chance."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.service.bank import note

STOPPED_S: Final = 4.0


class Faults:
    """A thread; each fault goes to the notes by name."""

    def __init__(self, service: int, batch: BatchJob, notes: Path, between_s: tuple[float, float]) -> None:
        self._service, self._batch, self._notes = service, batch, notes
        self._between_s = between_s
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ends.set()
        self._thread.join()

    def _work(self) -> None:
        chance = random.Random(16)
        faults: list[tuple[str, Callable[[], int | None]]] = [
            ("a worker is killed", lambda: _kill(self._worker(chance))),
            ("a worker is stopped", lambda: _stop(self._worker(chance))),
            ("the batch job is killed", self._batch.kill),
        ]
        while not self._ends.wait(chance.uniform(*self._between_s)):
            name, act = chance.choice(faults)
            with contextlib.suppress(ProcessLookupError):
                if act() is not None:
                    note(self._notes, "fault", name)

    def _worker(self, chance: random.Random) -> int | None:
        with contextlib.suppress(OSError):
            found = Path(f"/proc/{self._service}/task/{self._service}/children").read_text().split()
            return int(chance.choice(found)) if found else None
        return None


def _kill(pid: int | None) -> int | None:
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    return pid


def _stop(pid: int | None) -> int | None:
    if pid is not None:
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(STOPPED_S)
        finally:
            os.kill(pid, signal.SIGCONT)
    return pid


class BatchJob:
    """The job's process, and the one that follows where it was killed, JVM and all."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._command, self._log = command, log
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self.ended_by_itself = 0

    def keep(self) -> None:
        """Starts one if none is there."""
        with self._lock:
            if self._process is not None:
                if self._process.poll() is None:
                    return
                self.ended_by_itself += self._process.returncode != -signal.SIGKILL
            with self._log.open("ab") as out:
                self._process = subprocess.Popen(self._command, stdout=out, stderr=out, start_new_session=True)

    def kill(self) -> int | None:
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                return None
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return process.pid
